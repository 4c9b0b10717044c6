"""Readable Python names for the values of a graph, and the reading of names that come from elsewhere.

Everything that ends up as an identifier in written source goes through ``Names`` or is checked by
``is_plain_identifier``: a node's name is text from a stranger.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

from torch import fx

RESERVED = frozenset(
    {
        *keyword.kwlist,
        *dir(builtins),
        "self",
        "torch",
        "constants",
        # fx renames nodes that are called like these, so a name read back would not be the name written
        "inf",
        "nan",
        "NoneType",
        "device",
        "fx_pytree",
        "pytree",
    }
)
"""Names that no value of a written graph may have."""

_FROM_SOURCE = re.compile(r"[LG]_(.+?)_?|[lg]_(.+?)_")
"""How dynamo names an input after its source ``L['x']``; subgraphs hold it in lower case."""

_ROOT = re.compile(r"^[^\W\d]\w*?_(?:modules|parameters|buffers)_(?=.)")
_INSIDE = re.compile(r"_(?:modules|parameters|buffers)_(?=.)")
_NOT_IN_NAMES = re.compile(r"[^0-9a-zA-Z_]+")


def is_plain_identifier(text: str) -> bool:
    """Whether ``text`` means the same as attribute, keyword or variable anywhere in a class body.

    Names beyond ASCII are normalised by Python's parser, ``__private`` names are mangled inside classes.
    """
    mangled = text.startswith("__") and not text.endswith("__")
    return text.isascii() and text.isidentifier() and not keyword.iskeyword(text) and not mangled


def readable(raw: str) -> tuple[str, ...]:
    """Names for an input that dynamo called ``raw``, the best first.

    ``L_self_modules_h_modules_0_parameters_weight_`` gives ``h_0_weight`` and, for a case of two
    modules with the same inner name, ``self_h_0_weight``. A readable name is its own best name.
    """
    short = _to_fixed_point(raw, short=True)
    long = _to_fixed_point(raw, short=False)
    return (short, long) if short != long else (short,)


def _to_fixed_point(raw: str, *, short: bool) -> str:
    """Strip dynamo's marks until none is left, so that a name once written is not changed when read back."""
    name = raw
    while match := _FROM_SOURCE.fullmatch(name):
        inner = match[1] or match[2]
        name = identifier(_INSIDE.sub("_", _ROOT.sub("", inner) if short else inner))
    return identifier(name)


def identifier(name: str) -> str:
    """``name`` made an ASCII identifier that no class mangles and that is not reserved."""
    name = _NOT_IN_NAMES.sub("_", name)
    if name.startswith("__"):
        name = "_" + name.lstrip("_")
    if not name.strip("_"):
        name = "value"
    if name[0].isdigit():
        name = f"layer_{name}"
    return name + "_" if name in RESERVED else name


class Names:
    """Unique names for the nodes of one graph; a set of names that is already clean comes back unchanged."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._used: set[str] = set(reserved)
        self._of: dict[fx.Node, str] = {}

    def __getitem__(self, node: fx.Node) -> str:
        return self._of[node]

    def add(self, node: fx.Node) -> str:
        """Choose and keep the name of ``node``."""
        is_input = node.op == "placeholder"
        name = self.unique(*(readable(str(node.target)) if is_input else (identifier(node.name),)))
        self._of[node] = name
        return name

    def free(self, raw: str) -> str:
        """A free name like ``raw`` for something that is no node."""
        return self.unique(identifier(raw))

    def unique(self, *candidates: str) -> str:
        """The first free candidate, else the last one with the next free number."""
        for name in candidates:
            if name not in self._used:
                self._used.add(name)
                return name
        number = 1
        while f"{candidates[-1]}_{number}" in self._used:
            number += 1
        name = f"{candidates[-1]}_{number}"
        self._used.add(name)
        return name


def class_name(attribute: str, used: set[str]) -> str:
    """A class name for the nested graph at ``attribute``, not in ``used``: ``cond_true_0`` gives ``CondTrue0``."""
    words = _NOT_IN_NAMES.sub("_", attribute).split("_")
    base = "".join(word[:1].upper() + word[1:] for word in words)
    base = base if base and not base[0].isdigit() else f"Graph{base}"
    name, number = base, 1
    while name in used or name in RESERVED:
        name, number = f"{base}_{number}", number + 1
    return name
