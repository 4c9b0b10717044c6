"""The environment of each process that minidbg starts: variables it lacks, those it gets, and why.

A program under ``minidbg run``, or one that torch's override variables lead to minidbg, carries
variables that have ``torch.compile`` wrapped. An interpreter that judges its repro and inherits
them wraps the repro too, reduces its failure, judges that repro in an interpreter, and so on. So no
other file of the package hands ``os.environ`` on (``tests/house/test_floors.py``), and whatever an
interpreter must have or must lack is an ``EnvRule`` here.

A judging interpreter has a mark: ``minidbg.wrap`` gives the bare backend; no failure is answered.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

RUN = "MINIDBG__RUN"
"""The orders of ``minidbg run``, for the program and all the processes that it starts."""
HOOK = Path(__file__).parents[1] / "commands" / "run" / "hook"
"""First on the program's PYTHONPATH: the folder whose ``sitecustomize`` has the orders followed."""
EXCLUSIVE_KINDS = "MINIDBG__EXCLUSIVE"
"""Kinds of devices that a process found to be one process's at a time, for the one it becomes."""
JUDGING = "MINIDBG__JUDGING"
"""The mark of a process that judges, or is judging just now."""


@dataclass(frozen=True, slots=True)
class EnvRule:
    """Variables that some processes are to have, or to lack, for one reason."""

    why: str
    taken_out: tuple[str, ...] = ()
    put_in: Mapping[str, str] = field(default_factory=dict)


# Of every process that minidbg starts but the user's program
OF_THE_PROGRAM = (
    EnvRule("'minidbg run' was told to wrap the program, not what judges its failures", (RUN,)),
    EnvRule(
        "torch reads them when it is imported, and would judge a repro with another backend or "
        "other options: with minidbg itself, where its own name stands there",
        (
            "TORCH_COMPILE_OVERRIDE_BACKENDS",
            "TORCH_COMPILE_OVERRIDE_INDUCTOR_CONFIGS",
            "TORCH_COMPILE_OVERRIDE_DYNAMO_CONFIGS",
        ),
    ),
)

# Of some
JUDGES = EnvRule(
    "a backend that the user's module wraps, and a program that a repro's import runs, "
    "answer no failure there",
    put_in={JUDGING: "1"},
)
JUDGES_NOTHING = EnvRule("an editor, a build or a program may use minidbg as anybody does", (JUDGING,))
NO_CACHED_GRAPHS = EnvRule(
    "a cached graph would hide a change of the compiler; the cache of compiled kernels, "
    "keyed by their source, cannot",
    put_in={
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO": "0",
    },
)
FORKABLE = EnvRule(
    "torch then looks for GPUs without CUDA, which no fork of a process that has used it can use",
    put_in={"PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
)
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
ONE_THREAD = EnvRule(
    "a fork of a process with more threads hangs",
    put_in=dict.fromkeys((*THREADS, "TORCHINDUCTOR_COMPILE_THREADS"), "1"),
)
USUAL_THREADS = EnvRule(
    "as in a shell of somebody who never set them: a repro that needs a number of threads sets it itself",
    THREADS,
)
NO_BYTECODE = EnvRule(
    "commits follow each other within a second, and the bytecode of the one before must not run",
    put_in={"PYTHONDONTWRITEBYTECODE": "1"},
)
IN_ENGLISH = EnvRule("minidbg reads what it prints", put_in={"LC_ALL": "C"})


def for_judge(*rules: EnvRule, given: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The environment of minidbg's own interpreter. ``given`` wins; None takes a variable out."""
    return _changed(dict(os.environ), (*OF_THE_PROGRAM, JUDGES, *rules), given or {})


def for_tool(*rules: EnvRule) -> dict[str, str]:
    """The environment of what is not minidbg: git, a C++ compiler, an editor, a user's command."""
    return _changed(dict(os.environ), (*OF_THE_PROGRAM, JUDGES_NOTHING, *rules), {})


def for_program(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of the user's program under ``minidbg run``: as it would be without minidbg,
    with ``given`` and the hook."""
    environ = _changed(dict(os.environ), (JUDGES_NOTHING,), given)
    before = environ.get("PYTHONPATH")
    return {**environ, "PYTHONPATH": os.pathsep.join([str(HOOK), *([before] if before else [])])}


def _changed(
    environ: dict[str, str], rules: tuple[EnvRule, ...], given: Mapping[str, str | None]
) -> dict[str, str]:
    for rule in rules:
        environ = {name: value for name, value in environ.items() if name not in rule.taken_out}
        environ |= rule.put_in
        if RUN in rule.taken_out:
            environ = _without_hook(environ)
    environ |= {name: value for name, value in given.items() if value is not None}
    return {name: value for name, value in environ.items() if given.get(name, "") is not None}


def _without_hook(environ: dict[str, str]) -> dict[str, str]:
    """``environ`` without the hook's folder on PYTHONPATH, which goes if nothing else was there."""
    folders = environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(HOOK) not in folders:
        return environ
    path = os.pathsep.join(folder for folder in folders if folder != str(HOOK))
    others = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    return {**others, "PYTHONPATH": path} if path else others


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
