"""Readable names: of a graph's values, and the public dotted names of functions, classes, operators and enum members.

Everything that ends up as an identifier in written source goes through ``Names`` or is checked by ``is_plain_identifier``:
a node's name is text from a stranger.
"""

from __future__ import annotations

import builtins
import itertools
import keyword
import re
import sys
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.fx.effects import walk
from minidbg.words.errors import CannotWrite

_RENAMED_BY_FX = ("inf", "nan", "NoneType", "device", "fx_pytree", "pytree")
"""Nodes that are called like these get another name, so a name read back would not be the name written."""

RESERVED = frozenset({*keyword.kwlist, *dir(builtins), "self", "torch", "constants", *_RENAMED_BY_FX})
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
        self.by_node: dict[fx.Node, str] = {}

    def __getitem__(self, node: fx.Node) -> str:
        return self.by_node[node]

    def add(self, node: fx.Node) -> str:
        is_input = node.op == "placeholder"
        name = self.unique(*(readable(str(node.target)) if is_input else (identifier(node.name),)))
        self.by_node[node] = name
        return name

    def free(self, raw: str) -> str:
        return self.unique(identifier(raw))

    def unique(self, *candidates: str) -> str:
        free = (name for name in candidates if name not in self._used)
        name = next(free, None) or numbered(candidates[-1], self._used)
        self._used.add(name)
        return name


def class_name(attribute: str, used: set[str]) -> str:
    words = _NOT_IN_NAMES.sub("_", attribute).split("_")
    base = "".join(word[:1].upper() + word[1:] for word in words)
    base = base if base and not base[0].isdigit() else f"Graph{base}"
    return numbered(base, used | RESERVED)


def numbered(name: str, used: Set[str]) -> str:
    further = (f"{name}_{number}" for number in itertools.count(1))
    return next(one for one in itertools.chain([name], further) if one not in used)


_HOMES = (
    *("builtins", "operator", "math", "torch", "torch.nn.functional", "torch.linalg", "torch.fft"),
    *("torch.special", "torch.sparse", "torch.nested", "torch.Tensor", "torch.nn"),
)
"""Where a function is looked for by its own name, the best place first."""

LOADED_WITH_TORCH = frozenset(
    {
        *(home for home in _HOMES if home.startswith("torch")),
        *("torch._C", "torch._C._nn", "torch.functional", "torch.utils.checkpoint", "torch.amp"),
        *("torch.amp.autocast_mode", "torch.autograd", "torch.autograd.function", "torch.autograd.grad_mode"),
    }
)
"""Modules that ``import torch`` brings; any other is imported by name."""

_KNOWN: dict[int, tuple[Any, Reference]] = {}
"""By identity what Python or torch itself brings, which stays where it is, and how it is named."""


@dataclass(frozen=True, slots=True)
class Reference:
    text: str
    imports: str = ""

    @property
    def root(self) -> str:
        return self.text.partition(".")[0]


def reference_to(value: Any) -> Reference:
    """How to name ``value``, a function, class, operator or enum member, in another process.

    Every answer was looked up again and gave ``value`` itself. Raises CannotWrite for what no name reaches:
    lambdas, local functions, functions of ``__main__``.
    """
    if id(value) in _KNOWN:
        return _KNOWN[id(value)][1]
    operator_path = torch_internals.operator_path(value)
    places = _places(value) if operator_path is None else [("torch", operator_path.removeprefix("torch."))]
    for module, path in places:
        root, _, inside = module.partition(".")
        # of torch._C._functorch the name is no module's, but an attribute's
        home = sys.modules.get(module) or (walk(sys.modules.get(root), inside) if inside else None)
        if walk(home, path) is not value or module == "__main__":
            continue
        if not all(map(is_plain_identifier, [*module.split("."), *path.split(".")])):
            continue
        # what defines a custom operator is known to the backend's reference
        is_foreign = path.startswith("ops.higher_order.") and not type(value).__module__.startswith("torch.")
        reference = _with_import(f"{module}.{path}", type(value).__module__ if is_foreign else module)
        if operator_path is None and not reference.imports:
            _KNOWN[id(value)] = value, reference
        return reference
    # dynamo's closures for DTensors in torch 2.11
    is_torchs = str(getattr(value, "__module__", "")).startswith("torch.")
    why = "torch made it for this graph" if is_torchs else "define it in a module, by a global name"
    raise CannotWrite(_describe(value), f"no import leads to it; {why}")


def _places(value: Any) -> Iterator[tuple[str, str]]:
    own_name = str(getattr(value, "__name__", ""))
    yield from ((home, own_name) for home in _HOMES)
    torchs_name = str(torch.overrides.resolve_name(value) if callable(value) else "")
    yield torchs_name.rpartition(".")[0], torchs_name.rpartition(".")[2]
    yield from (("torch._C._nn", own_name), ("torch._C", own_name))
    kind, home = type(value).__qualname__, type(value).__module__
    if hasattr(type(value), "__members__"):  # an enum of Python or of pybind11
        name = getattr(value, "name", "")
        yield home, f"{kind}.{name}"
        yield home, f"{kind.lstrip('_')}.{name}"
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(path, str):
        yield module, path
        yield module, path.rpartition(".")[2]
    globals_of_home = dict(getattr(sys.modules.get(home), "__dict__", {}))
    yield from ((home, name) for name, found in globals_of_home.items() if found is value)


def _with_import(text: str, module: str) -> Reference:
    if module == "builtins":
        return Reference(text.removeprefix("builtins."))
    if module in LOADED_WITH_TORCH:
        return Reference(text)
    return Reference(text, f"import {module if module in sys.modules else module.partition('.')[0]}")


def _describe(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__name__
    return f"{getattr(value, '__module__', None)}.{name}"
