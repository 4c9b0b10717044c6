"""Readable names: of a graph's values; public dotted ones of functions, classes, operators, enums.

Everything that ends up as an identifier in written source goes through ``Names`` or is checked by
``is_plain_identifier``: a node's name is text from a stranger.
"""

from __future__ import annotations

import builtins
import itertools
import keyword
import re
import sys
from collections.abc import Iterable, Iterator, Set
from typing import Any

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.core.errors import CannotWrite
from minidbg.fx.effects import walk

_FX_RENAMES = ("inf", "nan", "NoneType", "device", "fx_pytree", "pytree")
"""Nodes called like these get another name, so a name read back would not be the one written."""

RESERVED = frozenset({*keyword.kwlist, *dir(builtins), "self", "torch", "constants", *_FX_RENAMES})
"""Names that no value of a written graph may have."""

_FROM_SOURCE = re.compile(r"[LG]_(.+?)_?|[lg]_(.+?)_")
"""How dynamo names an input after its source ``L['x']``; subgraphs hold it in lower case."""

_HOLDERS = re.compile(r"(?:^[^\W\d]\w*?)?_(?:modules|parameters|buffers)_(?=.)")
_NOT_IN_NAMES = re.compile(r"[^0-9a-zA-Z_]+")


def is_plain_identifier(text: str) -> bool:
    """Whether ``text`` means the same anywhere in a class body: Python normalises names beyond
    ASCII, and mangles ``__private`` ones inside classes."""
    mangled = text.startswith("__") and not text.endswith("__")
    return text.isascii() and text.isidentifier() and not keyword.iskeyword(text) and not mangled


def readable_name(raw: str) -> str:
    """``h_0_weight`` for what dynamo calls ``L_self_modules_h_modules_0_parameters_weight_``."""
    while match := _FROM_SOURCE.fullmatch(raw):  # until none matches: a written name is its own
        raw = identifier(_HOLDERS.sub("_", match[1] or match[2]).removeprefix("_"))
    return identifier(raw)


def identifier(name: str) -> str:
    name = re.sub("^__+", "_", _NOT_IN_NAMES.sub("_", name))
    if not name.strip("_"):
        name = "value"
    if name[0].isdigit():
        name = f"layer_{name}"
    return name + "_" if name in RESERVED else name


class Names:
    """Unique names for the nodes of one graph; a set of clean names comes back unchanged."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._used: set[str] = set(reserved)

    def of(self, node: fx.Node) -> str:
        return self.free(readable_name(str(node.target)) if node.op == "placeholder" else node.name)

    def free(self, raw: str) -> str:
        name = numbered(identifier(raw), self._used)
        self._used.add(name)
        return name


def numbered(name: str, used: Set[str]) -> str:
    further = (f"{name}_{number}" for number in itertools.count(1))
    return next(one for one in itertools.chain([name], further) if one not in used)


_HOMES = (
    *("builtins", "operator", "math", "torch", "torch.nn.functional", "torch.linalg", "torch.fft"),
    *("torch.special", "torch.sparse", "torch.nested", "torch.Tensor", "torch.nn"),
)
"""Where a function is looked for by its own name, the best place first."""

LOADED_WITH_TORCH = (
    *("torch._C._nn", "torch.functional", "torch.utils.checkpoint", "torch.autograd", "torch.amp"),
    *("torch._C", "torch.amp.autocast_mode", "torch.autograd.function", "torch.autograd.grad_mode"),
    *(home for home in _HOMES if home.startswith("torch")),
)
"""Modules that ``import torch`` brings; any other is imported by name."""


_KNOWN: dict[int, tuple[Any, tuple[str, str]]] = {}
"""By identity what Python or torch itself brings, which stays where it is, and how it is named."""


def reference_to(value: Any) -> tuple[str, str]:
    """How to name a function, class, operator or enum member in another process, and the statement
    that this needs, if any; looked up again, it is ``value`` itself. Raises CannotWrite for what no
    name reaches: lambdas, local functions, functions of ``__main__``."""
    if id(value) in _KNOWN:
        return _KNOWN[id(value)][1]
    op_path = torch_internals.operator_path(value)
    places = _places(value) if op_path is None else [("torch", op_path.removeprefix("torch."))]
    for module, path in places:
        root, _, inside = module.partition(".")
        # of torch._C._functorch the name is no module's, but an attribute's
        home = sys.modules.get(module) or (walk(sys.modules.get(root), inside) if inside else None)
        text = f"{module}.{path}"
        if module == "__main__" or walk(home, path) is not value:
            continue
        if not all(map(is_plain_identifier, text.split("."))):
            continue
        if path.startswith("ops.higher_order.") and not type(value).__module__.startswith("torch."):
            # what defines a custom operator is known to the backend's reference
            return text, f"import {type(value).__module__}"
        if module != "builtins" and module not in LOADED_WITH_TORCH:
            if walk(sys.modules.get(root), text.partition(".")[2]) is not value:
                # a function may have the name of the package: torchao.quantization.quantize_
                return path, f"from {module} import {path.partition('.')[0]}"
            return text, f"import {module if module in sys.modules else root}"
        reference = text.removeprefix("builtins."), ""
        if op_path is None:
            _KNOWN[id(value)] = value, reference
        return reference
    home, name = (getattr(value, f"__{part}__", None) for part in ("module", "qualname"))
    # dynamo's closures for DTensors in torch 2.11
    is_torchs = str(home).startswith("torch.")
    why = "torch made it for this graph" if is_torchs else "define it in a module, by a global name"
    raise CannotWrite(f"{home}.{name or type(value).__name__}", f"no import leads to it; {why}")


def _places(value: Any) -> Iterator[tuple[str, str]]:
    own_name = str(getattr(value, "__name__", ""))
    yield from ((home, own_name) for home in _HOMES)
    torchs_name = str(torch.overrides.resolve_name(value) if callable(value) else "")
    yield torchs_name.rpartition(".")[0], torchs_name.rpartition(".")[2]
    yield from (("torch._C._nn", own_name), ("torch._C", own_name))
    kind, home = type(value).__qualname__, type(value).__module__
    if hasattr(type(value), "__members__"):  # an enum of Python or of pybind11
        member = getattr(value, "name", "")
        yield from ((home, f"{name}.{member}") for name in (kind, kind.lstrip("_")))
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(path, str):
        yield from ((module, path), (module, path.rpartition(".")[2]))
    globals_of_home = dict(getattr(sys.modules.get(home), "__dict__", {}))
    yield from ((home, name) for name, found in globals_of_home.items() if found is value)
