"""How torch and minidbg are set up here: versions, settings, folders, switches in the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import metadata

import jinja2
import torch
from packaging.requirements import Requirement

from minidbg import _torch, settings
from minidbg.doctor.finding import Finding, broken, fine, missing
from minidbg.doctor.machine import refusal_to_write
from minidbg.errors import BadSetting
from minidbg.repro import templates as own
from minidbg.repro.flights import dead_flights

OFF = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
BESIDE = (
    "TORCHDYNAMO_REPRO_AFTER",
    "TORCHDYNAMO_REPRO_LEVEL",
    "TORCH_LOGS",
    "TORCH_TRACE",
    "TORCH_COMPILE_DEBUG",
)


def torch_version() -> Iterator[Finding]:
    """Torch, within the range that this minidbg is tested with."""
    wanted = next(
        (one for one in map(Requirement, metadata.requires("minidbg") or ()) if one.name == "torch"), None
    )
    here = torch.__version__
    if wanted is None or wanted.specifier.contains(here.partition("+")[0], prereleases=True):
        yield fine("torch", here)
    else:
        advice = f"minidbg is tested with torch{wanted.specifier}: private parts of torch that it uses may be others"
        yield missing("torch", here, advice)


def private_names() -> Iterator[Finding]:
    """Names that torch may change without notice, and what is off without those that it has changed."""
    found = list(_torch.internals())
    lost = [(need, name) for need in found for name in need.names if not _torch.is_here(name)]
    for need, name in lost:
        yield missing(name, "not in this torch", f"off without it: {need.purpose}")
    if not lost:
        count = len({name for need in found for name in need.names})
        yield fine("torch's private names", f"all {count} are here; 'minidbg doctor --internals' lists them")


def configuration() -> Iterator[Finding]:
    """The settings that are in force."""
    try:
        changed = [one for one in settings.load_with_origins() if one.source != "default"]
    except BadSetting as error:
        yield broken("settings", str(error), "mend it there: minidbg.wrap raises the same")
        return
    yield fine("settings", f"{len(changed)} differ from the default; 'minidbg config' lists them")


def templates() -> Iterator[Finding]:
    """Templates of one's own, as far as their syntax tells."""
    place = own.own_folder()
    if place is None:
        return
    for name in own.own_names():
        try:
            own.environment(place).get_template(name)
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            yield missing(
                "templates",
                f"{place / name}, line {line}: {error}",
                "the built-in one is used until it is mended",
            )
        else:
            yield fine("templates", str(place / name))


def folder() -> Iterator[Finding]:
    """The repro folder, and what crashed processes have left in it."""
    place = settings.load().repro_dir
    refused = refusal_to_write(place.absolute())
    if refused:
        yield missing("repro folder", f"{place} cannot be written: {refused}", "set MINIDBG_DIR")
        return
    scripts = len(list(place.glob("*.py")))
    yield fine(
        "repro folder", f"{place}, {scripts} repros" if place.exists() else f"{place}, made when needed"
    )
    dead = dead_flights(place) if place.exists() else []
    if dead:
        advice = "minidbg reduce --last-crash makes a repro of the newest"
        yield missing("crashes", f"{len(dead)} processes died in a backend: {dead[0].name}", advice)


def switches() -> Iterator[Finding]:
    """Variables that change what torch.compile does."""
    for name in OFF:
        if os.environ.get(name, "0") not in ("", "0"):
            yield broken(
                name, os.environ[name], "unset it: torch.compile does nothing, so no backend can fail"
            )
    for name in BESIDE:
        if os.environ.get(name):
            yield fine(name, f"{os.environ[name]}: goes on working beside minidbg")
