"""The PEP 723 header of a repro script, as tools read it: the standard library only, and nothing of the script is executed.

And whether two failures' messages, as headers hold them, say the same.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

DIVIDER = (
    "# ---- Below is nothing about the failure: what tools read, and how this script judges itself. ----"
)
"""The line of a script that people need not read beyond."""

BLOCK = re.compile(
    r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$"
)  # the regular expression of PEP 723
START = re.compile(r"(?m)^# /// script$")
LONG_KEY = re.compile(r"(?:[\w-]+\s*\.\s*){100}")  # tomllib takes the square of its length
HANG_LIMIT_S = 120.0  # seconds that a script of the kind hang gets when its header names no limit


def metadata_of(text: str) -> dict[str, Any]:
    """The whole TOML table of the script's header. Raises ValueError for a text that has none, several, or a damaged one."""
    starts = len(START.findall(text))  # first: the search for a block takes the square of their number
    if starts > 1:
        raise ValueError(f"{starts} '# /// script' blocks; a script has one")
    block = BLOCK.search(text) if starts else None
    if block is None:
        raise ValueError("no '# /// script' block, so this is no repro script of minidbg")
    if LONG_KEY.search(block["content"]):
        raise ValueError("the '# /// script' block has a key of more than 100 parts")
    lines = [line[2:] if line.startswith("# ") else line[1:] for line in block["content"].split("\n")]
    try:
        return tomllib.loads("\n".join(lines))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the '# /// script' block is no TOML: {error}") from error


def table_in(metadata: dict[str, Any]) -> dict[str, Any]:
    """``[tool.minidbg]`` of the header. Raises ValueError when there is none."""
    tools = metadata.get("tool")
    table = tools.get("minidbg") if isinstance(tools, dict) else None
    if not isinstance(table, dict):
        raise ValueError("the '# /// script' block has no [tool.minidbg] table")
    details = table.pop(
        "details", None
    )  # on one line; what stands on a line of its own was put there by a person
    return {**details, **table} if isinstance(details, dict) else table


def read_table(path: str) -> dict[str, Any]:
    """``[tool.minidbg]`` of the script at ``path``. Raises ValueError or OSError."""
    with open(path, encoding="utf-8-sig") as file:
        return table_in(metadata_of(file.read()))


# Expressions of symbolic sizes, in a message whose numbers have become #:
ATOM = r"(?:(?:s|u|z|zf|zuf)#|#|Max|Min|(?:Python)?Mod|ModularIndexing|\w+Div|floor|ceiling|Eq|Ne|Ge|Gt|Le|Lt|To\w+|TruncTo\w+)"
OPERATOR = r"[\s()+\-*/%<>=,^&|]"
EXPRESSION = rf"(?<![\w#])[(\-]*(?=(?:{ATOM}|{OPERATOR})*?[a-z]#){ATOM}(?:{OPERATOR}*{ATOM})*\)*"


def same_message(one: str, other: str) -> bool:
    """Whether two stable messages say the same; an expression of symbolic sizes is another one in each graph."""
    return one == other or re.sub(EXPRESSION, "#", one) == re.sub(EXPRESSION, "#", other)


def backend_in(text: str) -> str | None:
    """The backend of a script without ``def backend()``, as an expression: a name in quotes, or a function of the script."""
    for found in re.finditer(
        r"""(?x) \btorch\.(?: compile\([^\n]*\bbackend= | _TorchCompileWrapper\( )  ( ["'][^"'\n]+["'] | [^\W\d]\w*\b(?!\() )
        | \bcompiled_fn\ =\ ([^\W\d]\w*)\(gm,\ examples\) """,
        text,
    ):
        name = found[1] or found[2]
        # the judge of a long script calls a parameter of that name, which is nothing of the script's
        defined = rf"(?m)^(?:(?:def|class)\ {name}\b|{name}\b[^\n=]*=|(?:from|import)\ [^\n]*\b{name}\b)"
        if name[0] in "\"'" or re.search(defined, text):
            return name
    return None
