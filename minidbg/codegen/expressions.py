"""One graph node as one Python expression, and any value as the short text that a person would
write; ``parse`` reads them back."""

from __future__ import annotations

import dataclasses
import enum
import math
import operator
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
from torch import fx
from torch.fx.graph import magic_methods

from minidbg import torch_internals
from minidbg.codegen.names import is_plain_identifier, reference_to
from minidbg.codegen.triton_kernels import Definitions
from minidbg.core.errors import CannotWrite
from minidbg.fx.ranks import shared_text
from minidbg.torch_internals.operators import GET_DATA

LINE = 88
"""Characters in a line of numbers, its margin included."""


def quoted(text: str) -> str:
    """``repr(text)``, in double quotes where that needs no escape."""
    plain = repr(text)
    needs_no_escape = plain[0] == "'" and '"' not in plain and "\\'" not in plain
    return f'"{plain[1:-1]}"' if needs_no_escape else plain


def number_text(value: complex, dtype: torch.dtype = torch.float64) -> str:
    """The shortest text of a bool, int, float or complex that gives ``value`` back in ``dtype``."""
    if isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, complex):
        part = torch.float32 if dtype in (torch.complex32, torch.complex64) else torch.float64
        return f"complex({number_text(value.real, part)}, {number_text(value.imag, part)})"
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return 'float("inf")' if value > 0 else 'float("-inf")'
    if dtype is torch.float32:  # its shortest digits; str() of it may be set to another form
        value = float(numpy.format_float_scientific(numpy.float32(value)))
    return repr(value)


def rounded(value: float) -> str:
    """``value`` to two significant digits, as a person writes it: ``0.02``, ``1.2e-05``, ``12``."""
    return repr(float(f"{value:.1e}")).removesuffix(".0")


def tensor_literal(items: Any, dtype: torch.dtype, margin: str = "") -> str:
    """Nested lists, or a number, of which ``torch.tensor`` makes what ``items`` is the list of."""
    if not isinstance(items, list):
        return number_text(items, dtype)
    inner = margin + "    "
    parts = [tensor_literal(item, dtype, inner) for item in items]
    text = ", ".join(parts)
    if len(f"{margin}[{text}]") <= LINE:
        return f"[{text}]"
    if isinstance(items[0], list):
        lines = [f"{part}," for part in parts]
    else:
        width = LINE - len(inner)
        lines = textwrap.wrap(f"{text},", width, break_long_words=False, break_on_hyphens=False)
    return "[\n" + "".join(f"{inner}{line}\n" for line in lines) + f"{margin}]"


# fx prints its own text of a graph by this table: "{} + {}", "-{}", "{}[{}]"
SIGNS = {
    getattr(operator, name): form.strip("{}")
    for name, form in magic_methods.items()
    if hasattr(operator, name)
}
BINARY: Mapping[Callable[..., Any], str] = {
    function: sign.strip() for function, sign in SIGNS.items() if sign.startswith(" ")
}
"""Functions written between their two arguments."""
UNARY: Mapping[Callable[..., Any], str] = {
    operator.not_: "not ",
    **{function: sign for function, sign in SIGNS.items() if len(sign) == 1},
}
"""Functions written before their argument."""


class Expressions:
    def __init__(self, name_of: Callable[[fx.Node], str] = str) -> None:
        self.name_of = name_of
        self.attributes: Mapping[str, str] = {}
        """By the target of a node the attribute of ``self`` that it stands for."""
        self.imports: set[str] = set()
        self.roots: set[str] = set()
        self.kernels = Definitions(self.value, self.imports)

    def node(self, node: fx.Node) -> str:
        try:
            match node.op:
                case "get_attr":
                    return f"self.{self.attributes[str(node.target)]}"
                case "call_module":
                    called = self.attributes[str(node.target)]
                    return f"self.{called}({self._arguments(node.args, node.kwargs)})"
                case "call_method":
                    owner, *rest = node.args or (None,)
                    if not isinstance(owner, fx.Node) or not is_plain_identifier(str(node.target)):
                        why = "no attribute of a node is called so"
                        raise CannotWrite(f"method {node.target!r}", why)
                    arguments = self._arguments(rest, node.kwargs)
                    return f"{self.value(owner)}.{node.target}({arguments})"
            return self._function(node)
        except CannotWrite as refusal:
            refusal.add_note(f"in node {node.name!r} ({node.op})")
            raise

    def value(self, value: Any) -> str:
        """``value`` as an expression giving an equal one. Raises CannotWrite naming its type."""
        if isinstance(value, fx.Node):
            return self.name_of(value)
        if value is None or isinstance(value, bool):
            return repr(value)
        if value is Ellipsis:
            return "..."
        if isinstance(value, enum.Enum):
            return self.reference(value)
        if isinstance(value, float | complex):
            return number_text(complex(value) if isinstance(value, complex) else float(value))
        for cls in (int, str, bytes):
            if isinstance(value, cls):  # the plain type's repr: a subclass may have its own
                return cls.__repr__(value)
        if isinstance(value, tuple | list | dict | slice | range):
            return self._container(value)
        return self._torch_value(value)

    def reference(self, value: Any) -> str:
        text, imported = reference_to(value)
        self.roots.add(text.partition(".")[0])
        self.imports |= {imported} - {""}
        return text

    def index(self, value: Any) -> str:
        if type(value) is tuple and value:
            inside = ", ".join(self._index_part(part) for part in value)
            return f"{inside}," if len(value) == 1 else inside
        return self._index_part(value)

    def _index_part(self, value: Any) -> str:
        if not isinstance(value, slice):
            return self.value(value)
        parts = (value.start, value.stop, value.step)
        start, stop, step = ("" if part is None else self.value(part) for part in parts)
        return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"

    def _function(self, node: fx.Node) -> str:
        target, args = node.target, node.args
        if torch_internals.is_kernel_launch(node):
            kernel, grid, given, by_name = torch_internals.launch_of(node)
            return f"{self._kernel(kernel)}[{self.value(grid)}]({self._arguments(given, by_name)})"
        infix = self._infix(target, args) if args and not node.kwargs else ""
        return infix or f"{self.reference(target)}({self._arguments(args, node.kwargs)})"

    def _kernel(self, kernel: Any) -> str:
        name = self.kernels.name_of(kernel)
        self.roots.add(name.partition(".")[0])
        return name

    def keywords(self, node: fx.Node) -> str:
        texts = {key: self.value(value) for key, value in node.kwargs.items()}
        if torch_internals.is_kernel_launch(node):
            kernel, constants = torch_internals.kernel_and_constants(node)
            table = self.reference(torch_internals.table_of_kernels())
            texts["kernel_idx"] = f"{table}.add_kernel({self._kernel(kernel)})"
            texts["constant_args_idx"] = f"{table}.add_constant_args({self.value(constants)})"
        return "{" + ", ".join(f"{key!r}: {text}" for key, text in texts.items()) + "}"

    def _infix(self, target: Any, args: tuple[Any, ...]) -> str:
        """The operator form where it means exactly the call, else nothing."""
        if target in BINARY and len(args) == 2 and any(isinstance(arg, fx.Node) for arg in args):
            left, right = map(self.value, args)
            # -1 ** x is -(1 ** x)
            left = f"({left})" if target is operator.pow and left.startswith("-") else left
            return f"{left} {BINARY[target]} {right}"
        match args:
            case (fx.Node() as node,) if target in UNARY:
                return f"{UNARY[target]}{self.value(node)}"
            case (fx.Node() as node,) if target is GET_DATA:
                return f"{self.value(node)}.data"
            case (fx.Node() as node, index) if target is operator.getitem:
                return f"{self.value(node)}[{self.index(index)}]"
            case (fx.Node() as node, str(name)) if target is getattr and is_plain_identifier(name):
                # x.data is another function to dynamo
                return f"{self.value(node)}.{name}" if name != "data" else ""
        return ""

    def _arguments(self, args: Any, kwargs: Mapping[str, Any]) -> str:
        parts = [self.value(arg) for arg in args]
        if all(map(is_plain_identifier, kwargs)):
            parts += [f"{name}={self.value(value)}" for name, value in kwargs.items()]
        else:
            parts.append(f"**{self.value(dict(kwargs))}")
        return ", ".join(parts)

    def _container(self, value: Any) -> str:
        write = self.value
        if isinstance(value, slice):
            return f"slice({write(value.start)}, {write(value.stop)}, {write(value.step)})"
        if isinstance(value, range):
            return f"range({value.start}, {value.stop}, {value.step})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{write(k)}: {write(v)}" for k, v in value.items()) + "}"
        inside = ", ".join(map(write, value))
        if isinstance(value, list):
            return f"[{inside}]"
        if isinstance(value, torch.Size):
            return f"torch.Size([{inside}])"
        if hasattr(value, "_fields"):
            return f"{self.reference(type(value))}({inside})"
        return f"({inside},)" if len(value) == 1 else f"({inside})"

    def _torch_value(self, value: Any) -> str:
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format | torch.qscheme):
            return str(value)
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if isinstance(value, torch.Generator):
            return f"torch.Generator({str(value.device)!r}).manual_seed({value.initial_seed()})"
        if (shared := shared_text(value)) is not None:
            self.roots.add("torch")
            self.imports |= {f"import {shared[1]}"} if shared[1] else set()
            return shared[0]
        of_triton = type(value).__module__.startswith("triton.")  # tl.float32
        if callable(value) or hasattr(type(value), "__members__") or of_triton:
            return self.reference(value)
        if dataclasses.is_dataclass(value) and all(f.init for f in dataclasses.fields(value)):
            inside = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return f"{self.reference(type(value))}({self._arguments((), inside)})"
        cls = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CannotWrite(f"an argument of type {cls}", "it has no literal form")


def literal(value: Any) -> str:
    """``value`` as an expression that names only ``torch``. Raises CannotWrite naming its type."""
    write = Expressions()
    text = write.value(value)
    if write.imports:
        raise CannotWrite(text, "it takes an import, and stands where only constants can")
    return text
