"""Jinja2 templates of scripts and reports: in the installed package, or beside it in a checkout."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from minidbg.core.text import printable

PACKAGE = Path(__file__).parent.parent
FOLDERS = (PACKAGE / "repro_templates", PACKAGE.parent / "repro_templates")


def fill(name: str, variables: Mapping[str, Any]) -> str:
    return template_environment().get_template(name).render(variables)


@jinja2.pass_eval_context
def shown(context: jinja2.nodes.EvalContext, value: Any) -> Any:
    """What a template shows of ``value``: of texts in a page, which are others', what prints."""
    return printable(value) if context.autoescape and type(value) is str else value


@cache
def template_environment(folders: tuple[Path, ...] = FOLDERS) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(list(map(str, folders))),
        undefined=jinja2.StrictUndefined,
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
