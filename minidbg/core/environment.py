"""The environment of each process that minidbg starts: variables it lacks, those it gets, and why.

A program under ``minidbg run``, or one that torch's override variables lead to minidbg, carries
variables that have ``torch.compile`` wrapped. An interpreter that judges its repro and inherits
them wraps the repro too, reduces its failure, judges that repro in an interpreter, and so on. So no
other file of the package hands ``os.environ`` on (``tests/house/test_floors.py``), and whatever an
interpreter must have or must lack is an ``EnvRule`` here.

A judging interpreter has a mark: ``minidbg.wrap`` gives the bare backend there, and what the user's
module wraps, or a program that a repro's import runs, answers no failure.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

RUN = "MINIDBG__RUN"
"""The orders of ``minidbg run``, for the program and all the processes that it starts."""
HOOK = Path(__file__).parents[1] / "commands" / "run" / "hook"
"""First on the program's PYTHONPATH: the folder whose ``sitecustomize`` has the orders followed."""
EXCLUSIVE_KINDS = "MINIDBG__EXCLUSIVE"
"""Kinds of devices that a process found to be one process's at a time, for the one it becomes."""
JUDGING = "MINIDBG__JUDGING"
"""The mark of a process that judges, or is judging just now."""

EnvRule: TypeAlias = Mapping[str, str | None]
"""Variables that some processes are to have, or for None to lack, for one reason."""

# Of every process that minidbg starts but the user's program
OF_THE_PROGRAM: EnvRule = dict.fromkeys(
    (
        # torch reads them when it is imported, and would judge a repro with another backend or
        # other options: with minidbg itself, where its own name stands there
        "TORCH_COMPILE_OVERRIDE_BACKENDS",
        "TORCH_COMPILE_OVERRIDE_INDUCTOR_CONFIGS",
        "TORCH_COMPILE_OVERRIDE_DYNAMO_CONFIGS",
        # 'minidbg run' was told to wrap the program, not what judges its failures
        RUN,
    )
)

# Of some
NO_CACHED_GRAPHS: EnvRule = {
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO": "0",
}
"""A cached graph would hide a change of the compiler; the cache of compiled kernels, keyed by their
source, cannot."""
FORKABLE: EnvRule = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Torch then looks for GPUs without CUDA, which no fork of a process that has used it can use."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
ONE_THREAD = dict.fromkeys((*THREADS, "TORCHINDUCTOR_COMPILE_THREADS"), "1")
"""A fork of a process with more threads hangs."""
USUAL_THREADS: EnvRule = dict.fromkeys(THREADS)
"""As in a shell of somebody who never set them: a repro that needs a number of threads sets it."""
NO_BYTECODE: EnvRule = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Commits follow each other within a second, and the bytecode of the one before must not run."""
IN_ENGLISH: EnvRule = {"LC_ALL": "C"}
"""Minidbg reads what it prints."""


def for_judge(*rules: EnvRule) -> dict[str, str]:
    """The environment of minidbg's own interpreter; the last of ``rules`` wins."""
    return _changed(OF_THE_PROGRAM, {JUDGING: "1"}, *rules)


def for_tool(*rules: EnvRule) -> dict[str, str]:
    """The environment of what is not minidbg: git, a C++ compiler, an editor, a user's command. It
    may use minidbg as anybody does."""
    return _changed(OF_THE_PROGRAM, {JUDGING: None}, *rules)


def for_program(given: EnvRule) -> dict[str, str]:
    """The environment of the user's program under ``minidbg run``: as it would be without minidbg,
    with ``given`` and the hook."""
    environ = _changed({JUDGING: None}, given)
    path = filter(None, (str(HOOK), environ.get("PYTHONPATH")))
    return {**environ, "PYTHONPATH": os.pathsep.join(path)}


def _changed(*rules: EnvRule) -> dict[str, str]:
    """This process's environment by ``rules``, without the hook's folder on PYTHONPATH, which goes
    if nothing else is there."""
    environ: dict[str, str | None] = dict(os.environ)
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(HOOK) in folders:
        rest = os.pathsep.join(folder for folder in folders if folder != str(HOOK))
        environ["PYTHONPATH"] = rest or None
    for rule in rules:
        environ |= rule
    return {name: value for name, value in environ.items() if value is not None}


def is_judging() -> bool:
    """Whether this process judges: it was started for that, or it is a fork of the user's process
    that answers a question."""
    return JUDGING in os.environ


@contextlib.contextmanager
def judging() -> Iterator[None]:
    """A block where this process judges; ``minidbg check`` and most commands do from the start."""
    before, here = dict(os.environ), for_judge()
    names = {name for name in before.keys() | here.keys() if before.get(name) != here.get(name)}
    try:
        _take_over(names, here)
        yield
    finally:
        _take_over(names, before)


def _take_over(names: set[str], wanted: Mapping[str, str]) -> None:
    for name in names:
        if name in wanted:
            os.environ[name] = wanted[name]
        else:
            os.environ.pop(name, None)
