"""The Jinja2 templates: inside the installed package, or in the folder beside it in a checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jinja2

PACKAGE = Path(__file__).parent.parent
FOLDERS = (PACKAGE / "repro_templates", PACKAGE.parent / "repro_templates")


@cache
def template(name: str) -> jinja2.Template:
    """The template of that file name. Raises jinja2.TemplateNotFound."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([str(folder) for folder in FOLDERS]),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)
