"""The public dotted name of a function, class, operator or enum member, and the import it needs."""

from __future__ import annotations

import builtins
import enum
import importlib
import math
import operator
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from minidbg import _torch
from minidbg.errors import CannotWrite
from minidbg.graphs.names import is_plain_identifier

_PUBLIC_HOMES = (
    "builtins",
    "operator",
    "math",
    "torch",
    "torch.nn.functional",
    "torch.linalg",
    "torch.fft",
    "torch.special",
    "torch.sparse",
    "torch.nested",
    "torch.Tensor",
    "torch.nn",
    "torch._C._nn",
    "torch._C",
)
"""Where functions are looked for by identity, the best name first."""

LOADED_WITH_TORCH = frozenset(
    {
        "torch",
        "torch.amp",
        "torch.amp.autocast_mode",
        "torch.autograd",
        "torch.autograd.function",
        "torch.autograd.grad_mode",
        "torch.fft",
        "torch.functional",
        "torch.linalg",
        "torch.nested",
        "torch.nn",
        "torch.nn.functional",
        "torch.special",
        "torch.sparse",
        "torch.utils.checkpoint",
        "torch._C",
    }
)
"""Modules that ``import torch`` brings; any other is imported by name."""

_HIGHER_ORDER = "torch.ops.higher_order."
_TRITON = f"{_HIGHER_ORDER}triton_kernel_wrapper"


@dataclass(frozen=True, slots=True)
class Reference:
    """How source text names an object: ``text`` after the statement ``imports`` (empty for torch and builtins)."""

    text: str
    imports: str = ""

    @property
    def root(self) -> str:
        """The first name of ``text``, which no local value may take."""
        return self.text.partition(".")[0]


def reference_to(value: Any) -> Reference:
    """How to name ``value``, a function, class, operator or enum member, in another process.

    Every answer was looked up again and gave ``value`` itself. Raises CannotWrite for what no name reaches:
    lambdas, local functions, functions of ``__main__``.
    """
    operator_path = _torch.operator_path(value)
    if operator_path is not None:
        return _operator_reference(operator_path, value)
    known = _index().get(id(value))
    if known is not None:
        return _with_import(known)
    for module, path in _places(value):
        if module != "__main__" and all(map(is_plain_identifier, [*module.split("."), *path.split(".")])):
            found = walk(sys.modules.get(module) or _attribute_module(module), path)
            if found is value:
                return _with_import(f"{module}.{path}", module)
    raise CannotWrite(f"{_describe(value)}", "no import leads to it; define it in a module, by a global name")


def _operator_reference(text: str, value: Any) -> Reference:
    """The reference ``text`` to an operator, after a look whether it leads to ``value``."""
    parts = text.split(".")
    if not all(map(is_plain_identifier, parts)) or walk(torch, ".".join(parts[1:])) is not value:
        raise CannotWrite(_describe(value), f"{text} does not lead to it")
    if text.startswith(_TRITON):
        raise CannotWrite(_describe(value), "its kernel lives in a table of this process")
    if not text.startswith(_HIGHER_ORDER):
        return Reference(text)  # what defines a custom operator is known to the backend's reference
    home = type(value).__module__
    return Reference(text, "" if home.startswith("torch.") else f"import {home}")


def walk(start: Any, path: str) -> Any:
    """``start.path``, or None when a part is missing."""
    for part in path.split("."):
        try:
            start = getattr(start, part)
        except (AttributeError, RuntimeError):
            return None
    return start


def _attribute_module(name: str) -> Any:
    """The module ``name`` where only attributes lead to it: ``torch._C._functorch``."""
    root, _, path = name.partition(".")
    return walk(sys.modules.get(root), path) if path else None


def _places(value: Any) -> Iterator[tuple[str, str]]:
    """Module and dotted path where ``value`` may live."""
    if isinstance(value, enum.Enum):
        yield type(value).__module__, f"{type(value).__qualname__}.{value.name}"
    elif hasattr(type(value), "__members__"):  # an enum of pybind11
        name = getattr(value, "name", "")
        yield type(value).__module__, f"{type(value).__qualname__}.{name}"
        yield type(value).__module__, f"{type(value).__qualname__.lstrip('_')}.{name}"
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(path, str):
        yield module, path
        yield module, path.rpartition(".")[2]
    home = sys.modules.get(type(value).__module__)
    for name, found in list(vars(home).items()) if home is not None else ():
        if found is value:
            yield type(value).__module__, name


def _with_import(text: str, module: str = "") -> Reference:
    """The reference ``text``; ``module`` is where it lives, when that is known."""
    if text.startswith("builtins."):
        return Reference(text.removeprefix("builtins."))
    if not module:
        root = text.partition(".")[0]
        return Reference(text, "" if root == "torch" else f"import {root}")
    if module in LOADED_WITH_TORCH:
        return Reference(text)
    return Reference(text, f"import {module if module in sys.modules else module.partition('.')[0]}")


@cache
def _index() -> dict[int, str]:
    """Identity of each public function to its name. The functions live as long as their modules: ids stay valid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated names warn when they are looked at
        return _look_through_homes()


def _look_through_homes() -> dict[int, str]:
    names: dict[int, str] = {}
    for home in _PUBLIC_HOMES:
        owner = _home(home)
        for name in dir(owner):
            if name.startswith("__"):
                continue  # operator.__add__ is operator.add
            value = getattr(owner, name, None)
            # a name that is bound anew at each look-up leads to no lasting object
            if callable(value) and is_plain_identifier(name) and getattr(owner, name) is value:
                names.setdefault(id(value), f"{home}.{name}")
    return names


def _home(name: str) -> Any:
    homes: dict[str, Any] = {"builtins": builtins, "operator": operator, "math": math, "torch": torch}
    if name in homes:
        return homes[name]
    parent, _, last = name.rpartition(".")
    return getattr(_home(parent), last) if name != "torch.nn.functional" else importlib.import_module(name)


def _describe(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__name__
    return f"{getattr(value, '__module__', None)}.{name}"
