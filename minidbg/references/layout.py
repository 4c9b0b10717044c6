"""The layout of copied source: statements one after the other, and one level deeper."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Sequence


def indented(text: str, prefix: str = "    ") -> str:
    """``text`` one level deeper; the inner lines of strings stay as they are, since they are values.

    Docstrings are indented like code.
    """
    inside: set[int] = set()
    before, depth = tokenize.NEWLINE, 0
    for token in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
        is_docstring = depth == 0 and before in _BETWEEN_STATEMENTS
        if token.type in _STRING_TOKENS and not is_docstring:
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
        depth += (token.string in "([{") - (token.string in ")]}") if token.type == tokenize.OP else 0
        before = token.type
    lines = text.splitlines()
    return "\n".join(
        prefix + line if line.strip() and number not in inside else line
        for number, line in enumerate(lines, 1)
    )


_BETWEEN_STATEMENTS = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT}
_STRING_TOKENS = {
    tokenize.STRING,
    *(getattr(tokenize, name, -1) for name in ("FSTRING_MIDDLE", "TSTRING_MIDDLE")),
}


def joined(statements: Sequence[str], gap: int = 2) -> str:
    """The statements as one text: ``gap`` empty lines around definitions, one below the imports."""
    parts: list[str] = []
    for before, text in zip(["", *statements], statements, strict=False):
        wide = before and (_is_wide(text) or _is_wide(before))
        below_imports = _is_import(before) and not _is_import(text)
        parts.append("\n" * (gap if wide else 1 if below_imports else 0) + text)
    return "\n".join(parts)


def _is_wide(text: str) -> bool:
    return "\n" in text or text.startswith(("def ", "class ", "@", "async def "))


def _is_import(text: str) -> bool:
    return text.startswith(("import ", "from "))
