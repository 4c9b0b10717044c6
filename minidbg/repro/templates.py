"""The Jinja2 templates: a person's own, else those inside the installed package, or in the folder beside it in a checkout.

``[tool.minidbg] templates`` names a folder; what it has is used in place of the file of the same name here. A
template of one's own that is broken costs nothing but itself: the built-in one is used, and a warning names file
and line.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from minidbg import settings
from minidbg.errors import BadSetting, MinidbgError

PACKAGE = Path(__file__).parent.parent
FOLDERS = (PACKAGE / "repro_templates", PACKAGE.parent / "repro_templates")

log = logging.getLogger("minidbg")


class BrokenTemplate(MinidbgError):
    """A template of a person's own cannot be used; ``path`` and ``line`` say where, the message why."""

    def __init__(self, path: Path, line: int | None, why: str) -> None:
        self.path, self.line = path, line
        place = f"{path}, line {line}" if line else str(path)
        super().__init__(f"{place}: {why}; the built-in {path.name} is used until this is mended")


Check = Callable[[str], None]
"""Raises ValueError or SyntaxError for a text that is not what it should be."""


def fill(name: str, variables: Mapping[str, Any], check: Check | None = None) -> str:
    """The template of that file name, filled: a person's own where there is one and it works, else the built-in one.

    ``check`` judges what a template of one's own has made. A broken one is logged as a warning.
    Raises jinja2.TemplateNotFound when there is neither.
    """
    folder = own_folder()
    if folder is not None and (folder / name).is_file():
        try:
            return fill_own(folder / name, variables, check)
        except BrokenTemplate as broken:
            log.warning("minidbg: %s", broken)
    return built_in(name, variables)


def built_in(name: str, variables: Mapping[str, Any]) -> str:
    """The template that comes with minidbg, filled. Raises jinja2.TemplateNotFound."""
    return environment(None).get_template(name).render(variables)


def fill_own(path: Path, variables: Mapping[str, Any], check: Check | None = None) -> str:
    """The template of one's own at ``path``, filled. Raises BrokenTemplate for whatever is wrong with it."""
    try:
        text = environment(path.parent).get_template(path.name).render(variables)
    except jinja2.TemplateSyntaxError as error:
        where = Path(error.filename) if error.filename else path
        raise BrokenTemplate(where, error.lineno, error.message or "syntax error") from error
    except Exception as error:
        # a template runs a person's expressions, which raise what they like
        raise BrokenTemplate(path, line_in(path, error), f"{type(error).__name__}: {error}") from error
    try:
        if check is not None:
            check(text)
    except (ValueError, SyntaxError, MinidbgError) as error:
        raise BrokenTemplate(path, None, f"what it makes cannot be used: {error}") from error
    return text


def line_in(path: Path, error: BaseException) -> int | None:
    """The line of the template at which ``error`` was raised; jinja2 puts the template's own lines into the traceback."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((frame.lineno for frame in frames if Path(frame.filename) == path), None)


def own_folder() -> Path | None:
    """The folder of a person's own templates, if one is set; a setting that is wrong was an error before, where it counts."""
    try:
        return settings.load().templates
    except (BadSetting, OSError):
        return None


def own_names() -> list[str]:
    """The file names of a person's own templates."""
    folder = own_folder()
    return sorted(path.name for path in folder.glob("*.j2")) if folder else []


@cache
def environment(folder: Path | None) -> jinja2.Environment:
    """Where templates are looked up: first in ``folder``, so that they may extend and include the built-in ones."""
    folders = [*([folder] if folder else []), *FOLDERS]
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([str(one) for one in folders]),
        undefined=jinja2.StrictUndefined,
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
