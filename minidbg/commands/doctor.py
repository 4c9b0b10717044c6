"""What minidbg needs, one check each: python, torch, devices, a compiler,
forks, the repro folder, backends."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

import torch
from packaging.requirements import Requirement

from minidbg import torch_internals, workers
from minidbg.backends.reference import GROUP
from minidbg.core import settings
from minidbg.core.machine import HERE
from minidbg.core.text import last_line, plural
from minidbg.repro import crash_records
from minidbg.watch.settings import accelerators

QUESTION_S = 60.0
"""For one answer of the forkserver, its imports included."""


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    found: str
    advice: str = ""
    state: str = "fine"
    """``missing``: something works less well, or not at all; ``broken``: minidbg cannot work."""


fine = Finding
missing = partial(Finding, state="missing")
broken = partial(Finding, state="broken")


def python() -> Iterator[Finding]:
    yield fine("python", f"{platform.python_version()}, {sys.executable}, {platform.platform()}")


def devices() -> Iterator[Finding]:
    threads = plural(torch.get_num_threads(), "thread")
    yield fine("cpu", f"{plural(HERE.processors(), 'core')}, {threads} for torch")
    here = accelerators(torch)
    if not here:
        yield fine("accelerator", "none; repros for accelerators are skipped here")
    for name, (what, _) in here.items():
        if ":" in name:  # the current one goes by its kind alone too
            yield fine(name, what)


def compiler() -> Iterator[Finding]:
    words = shlex.split(os.environ.get("CXX", ""))
    words = words or [next(filter(shutil.which, ("g++", "clang++")), "")]
    if not words[0] or shutil.which(words[0]) is None:
        named = f"CXX is {words[0]!r}, which is not there" if words[0] else "no g++ or clang++ on the path"
        yield missing("C++ compiler", named, "inductor on CPU needs one: install g++, or set CXX")
        return
    yield fine("C++ compiler", str(shutil.which(words[0])))


def forking() -> Iterator[Finding]:
    """One question, as a reduction asks it: in a fork of an interpreter that only forks."""
    began = time.monotonic()
    try:
        request = workers.Request(call=f"{__name__}:tiny_backward", seconds=QUESTION_S, fork=workers.Warmup())
        asked = workers.submit(request).result()
    except OSError as error:
        yield missing("fork", f"no process can be made: {error}", "raise the limit of processes")
        return
    if asked.answered:
        took = f"the first after {time.monotonic() - began:.1f} s, for imports"
        yield fine("fork", f"runs in forks of an interpreter of minidbg's own work; {took}")
        return
    why = last_line(asked.error or asked.stderr_tail) or f"no answer in {QUESTION_S:.0f} s"
    advice = "report it: nothing can be reduced here"
    yield missing("fork", f"a forked interpreter does not compute: {why}", advice)


def tiny_backward(argument: Mapping[str, Any], note: object) -> float:
    """In a child: a product and its gradient."""
    import torch

    weight = torch.ones(65, 65, requires_grad=True)
    (torch.ones(65, 65) @ weight).relu().sum().backward()  # type: ignore[no-untyped-call]
    return float(weight.grad.sum()) if weight.grad is not None else 0.0


def torch_version() -> Iterator[Finding]:
    requirements = map(Requirement, metadata.requires("minidbg") or ())
    needs = [need for need in requirements if need.name == "torch"]
    wanted, here = needs[0].specifier if needs else "", torch.__version__
    advice = f"minidbg asks for torch{wanted}: private parts of torch that it uses may be others"
    is_known = not needs or needs[0].specifier.contains(here.partition("+")[0], prereleases=True)
    yield fine("torch", here) if is_known else missing("torch", here, advice)


def folder() -> Iterator[Finding]:
    """The repro folder, and what crashed processes have left in it."""
    place = settings.load().repro_dir
    scripts = plural(len(list(place.glob("*.py"))), "repro")
    yield fine(
        "repro folder",
        f"{place}, {scripts if place.exists() else 'not there yet; the first failure makes it'}",
    )
    for line in crash_records.at_work(place):
        yield fine("at work", line)
    dead = crash_records.records_of_dead(place)
    if dead:
        advice = "minidbg reduce makes repros of them"
        yield missing("crashes", f"{len(dead)} processes died in a backend: {dead[0].name}", advice)


IMPORT_SECONDS = 120.0


def backends() -> Iterator[Finding]:
    entries = {entry.name: entry for entry in metadata.entry_points(group=GROUP)}
    registered = [name for name in torch_internals.known_backends() if name not in entries]
    yield fine("backends", f"registered: {', '.join(registered)}")
    for name, entry in sorted(entries.items()):
        yield examined(name, entry)


def examined(name: str, entry: metadata.EntryPoint) -> Finding:
    """The backend of an entry point, loaded in a process of its own."""
    dist = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
    what = f"{name} = {entry.value}{dist}"
    advice = f"torch.compile(backend={name!r}) fails the same way: mend or remove that distribution"
    request = workers.Request(
        call=f"{__name__}:can_be_called", argument={"named": entry.value}, seconds=IMPORT_SECONDS,
        fork=workers.Warmup(),
    )  # fmt: skip
    ended = workers.submit(request).result()
    if ended.timed_out:
        trouble = f"its import did not end within {IMPORT_SECONDS:g} s"
    elif ended.answered or ended.error:
        trouble = last_line(ended.error) or ("" if ended.value else "is no callable")
    else:
        how = f"signal {ended.signal}" if ended.signal else f"exit status {ended.exit_status}"
        trouble = f"the process that imported it died ({how})"
    return missing("backend", f"{what}: {trouble}", advice) if trouble else fine("backend", what)


def can_be_called(argument: Mapping[str, Any], note: object) -> bool:
    """In a child: whether an entry point leads to something that can be called."""
    return callable(metadata.EntryPoint("", argument["named"], GROUP).load())


Check = Callable[[], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    python, torch_version, devices, compiler, forking, folder, backends,
)  # fmt: skip


def examine(checks: tuple[Check, ...] = CHECKS) -> Iterator[Finding]:
    """One finding after another, as made. Takes some seconds: backends are imported in a child."""
    for check in checks:
        try:
            yield from check()
        except Exception as trouble:  # noqa: BLE001 - a machine breaking one check needs the others
            name = check.__name__.replace("_", " ")
            found = f"could not be looked at: {type(trouble).__name__}: {trouble}"
            yield broken(name, found, "this is worth a bug report")
