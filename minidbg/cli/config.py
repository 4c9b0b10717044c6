"""``minidbg config``: every setting, its value and who set it."""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from minidbg import settings
from minidbg.cli.manners import JSON, print_json
from minidbg.settings import Origin
from minidbg.watch import settings as watching


@click.command()
@JSON
def config(as_json: bool) -> None:
    """Print each setting, its value and where that was written.

    The weakest source first: defaults, the user's file, [tool.minidbg] of the nearest pyproject.toml, MINIDBG_*
    variables, arguments. Those of [tool.minidbg.watch] follow as watch.NAME.
    """
    origins = [*settings.load_with_origins(), *of_watch(Path.cwd())]
    if as_json:
        for origin in origins:
            print_json({"name": origin.name, "value": plain(origin.value), "source": origin.source})
        return
    names, values = max(len(one.name) for one in origins), max(len(text(one.value)) for one in origins)
    for origin in origins:
        line = f"{origin.name:<{names}}  {text(origin.value):<{min(values, 40)}}  {variable(origin)}"
        click.echo(click.style(line, dim=origin.source == "default"))
    click.echo(f"minidbg: the user's file is {settings.user_settings_file()}", err=True)


def of_watch(folder: Path) -> Iterator[Origin]:
    """The settings of watch. Raises BadSetting."""
    table, project = watching.from_project(folder)
    source = f"[tool.minidbg.watch] of {project}"
    default = watching.WatchSettings()
    for field in dataclasses.fields(default):
        if field.name in watching.CONVERT:
            value = table.get(field.name, getattr(default, field.name))
            yield Origin(f"watch.{field.name}", value, source if field.name in table else "default")


def variable(origin: Origin) -> str:
    """Where the setting was written, with the variable's name when it was the environment."""
    if origin.source != "the environment":
        return origin.source
    name = "MINIDBG_DIR" if origin.name == "repro_dir" else f"MINIDBG_{origin.name.upper()}"
    return f"{name} in the environment"


def text(value: Any) -> str:
    """A value as a person would write it."""
    shown = plain(value)
    return "-" if shown is None or shown == [] else str(shown)


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, enum.Enum | os.PathLike):
        return str(value)
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return value
