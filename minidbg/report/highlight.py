"""Python source as HTML with a class for each kind of word, by the standard library's own tokenizer."""

from __future__ import annotations

import builtins
import io
import keyword
import token as kinds
import tokenize
from collections.abc import Iterator
from html import escape

BUILT_IN = frozenset(dir(builtins))
STRINGS = frozenset(
    {kinds.STRING, *(getattr(kinds, name) for name in dir(kinds) if name.startswith("FSTRING"))}
)


def highlighted(source: str) -> str:
    """``source`` as HTML, to stand in ``<pre>``; source that is no Python comes back escaped and plain."""
    try:
        return "".join(pieces(source))
    except (tokenize.TokenError, SyntaxError, IndexError):
        return escape(source)


def pieces(source: str) -> Iterator[str]:
    """The source in order, words that have a kind in spans."""
    lines = source.splitlines(keepends=True)
    row, column = 1, 0
    defines = False
    for one in tokenize.generate_tokens(io.StringIO(source).readline):
        if one.type in (kinds.INDENT, kinds.DEDENT, kinds.NEWLINE, kinds.NL, kinds.ENDMARKER) or one.start < (
            row,
            column,
        ):
            continue
        yield escape(between(lines, (row, column), one.start))
        kind = kind_of(one, defines=defines)
        text = escape(between(lines, one.start, one.end))
        yield f'<span class="{kind}">{text}</span>' if kind else text
        defines = one.type == kinds.NAME and one.string in ("def", "class")
        row, column = one.end
    yield escape(between(lines, (row, column), (len(lines) + 1, 0)))


def between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """The text from one place (row from 1, column) to another."""
    (first, left), (last, right) = start, end
    if first > len(lines):
        return ""
    if first == last:
        return lines[first - 1][left:right]
    middle = "".join(lines[first : last - 1])
    return lines[first - 1][left:] + middle + (lines[last - 1][:right] if last <= len(lines) else "")


def kind_of(one: tokenize.TokenInfo, *, defines: bool) -> str:
    """The class for a token; empty for the plain ones."""
    if one.type == kinds.COMMENT:
        return "c"
    if one.type in STRINGS:
        return "s"
    if one.type == kinds.NUMBER:
        return "n"
    if one.type == kinds.NAME:
        if defines:
            return "d"
        if keyword.iskeyword(one.string):
            return "k"
        if one.string in BUILT_IN or one.string == "self":
            return "b"
    return ""
