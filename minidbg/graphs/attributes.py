"""What ``__init__`` of a written module creates: constants, submodules, nested graphs, in order of first use."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from minidbg.errors import CannotWrite
from minidbg.graphs.expressions import attribute_path, literal
from minidbg.graphs.literals import tensor_literal
from minidbg.graphs.names import is_plain_identifier
from minidbg.graphs.submodules import constructor

ConstantExpression = Callable[[str, Tensor], str]
"""Dotted name and tensor -> the expression that ``__init__`` evaluates to make it."""

LARGEST_LITERAL = 64
"""Elements of the largest constant written as a literal."""


def exact_literal(name: str, value: Tensor) -> str:
    """``torch.tensor([...], dtype=...)`` for a constant of at most ``LARGEST_LITERAL`` elements.

    Raises CannotWrite for larger ones and for tensors that are not plain strided ones with data.
    """
    if (
        type(value) not in (Tensor, nn.Parameter, nn.Buffer)
        or value.layout is not torch.strided
        or value.is_quantized
    ):
        raise CannotWrite(
            f"the constant {name!r}", f"a {type(value).__name__} of this layout has no literal form"
        )
    if value.numel() > LARGEST_LITERAL:
        raise CannotWrite(
            f"the constant {name!r}", f"its {value.numel()} elements are too many for a literal"
        )
    device = "" if value.device.type == "cpu" else f", device={str(value.device)!r}"
    if value.numel() == 0 or value.is_meta:
        return f"torch.empty({tuple(value.shape)}, dtype={value.dtype}{device})"
    literal = f"torch.tensor({tensor_literal(value)}, dtype={value.dtype}{device})"
    if value.is_contiguous():
        return literal
    return f"torch.empty_strided({tuple(value.shape)}, {value.stride()}, dtype={value.dtype}{device}).copy_({literal})"


def by_name(name: str, value: Tensor) -> str:
    """``constants['name']``: for source that runs where ``instantiate`` provides the tensors."""
    return f"constants[{name!r}]"


def used_targets(graph: fx.Graph) -> list[str]:
    """The attributes that ``graph`` reads or calls, each once, in order of first use."""
    return list(
        dict.fromkeys(str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module"))
    )


def lookup(module: nn.Module, target: str) -> Any:
    """The object at a dotted path. Raises CannotWrite naming the path when there is none."""
    try:
        return operator.attrgetter(target)(module)
    except AttributeError:
        raise CannotWrite(f"the attribute {target!r}", "the graph module has no such attribute") from None


class Attributes:
    """Collects the ``__init__`` statements of one class.

    ``path`` is the dotted way from the outermost module, for the names in ``constants``.
    """

    def __init__(
        self, module: fx.GraphModule, path: str, constant_expression: ConstantExpression, owner: str = "self"
    ) -> None:
        self._module = module
        self._owner = owner
        self._path = path
        self._constant_expression = constant_expression
        self._written: dict[int, str] = {}
        self._containers: set[str] = set()
        self.constants: dict[str, Tensor] = {}
        self.statements: list[str] = []
        self.nested: dict[str, fx.GraphModule] = {}
        """Target -> graph module that needs a class; ``statements`` holds a gap for it, see ``fill``."""

    def write_all(self, targets: Iterable[str]) -> None:
        """Write each target, containers first. Raises CannotWrite naming the attribute that has no form."""
        known = list(targets)
        for target in known:
            if not any(target.startswith(f"{other}.") for other in known):
                self._write(target)

    def _write(self, target: str) -> None:
        first = target.partition(".")[0]
        if hasattr(nn.Module, first):
            raise CannotWrite(f"the attribute {target!r}", "torch.nn.Module has an attribute of this name")
        value = lookup(self._module, target)
        self._open_containers(target)
        same = self._written.get(id(value)) if isinstance(value, Tensor | nn.Module) else None
        if same is not None:
            self._assign(target, attribute_path(self._owner, same))
            return
        self._written[id(value)] = target
        if isinstance(value, fx.GraphModule):
            self.nested[target] = value
            self.statements.append(target)
        elif isinstance(value, Tensor):
            self._tensor(target, value)
        elif isinstance(value, nn.Module):
            self._submodule(target, value)
        else:
            self._assign(target, literal(value))

    def fill(self, target: str, expression: str) -> None:
        """Put ``expression`` where the nested graph of ``target`` belongs."""
        position = self.statements.index(target)
        held, self.statements = self.statements, []
        self._assign(target, expression)
        self.statements = held[:position] + self.statements + held[position + 1 :]

    def _open_containers(self, target: str) -> None:
        parts = target.split(".")[:-1]
        for length in range(1, len(parts) + 1):
            container = ".".join(parts[:length])
            if container not in self._containers:
                self._containers.add(container)
                self._assign(container, "torch.nn.Module()")

    def _assign(self, target: str, expression: str) -> None:
        owner, _, field = target.rpartition(".")
        path = attribute_path(self._owner, owner) if owner else self._owner
        if is_plain_identifier(field):
            self.statements.append(f"{path}.{field} = {expression}")
        else:
            self.statements.append(f"setattr({path}, {field!r}, {expression})")

    def _constant(self, target: str, value: Tensor) -> str:
        name = f"{self._path}.{target}" if self._path else target
        self.constants[name] = value
        return self._constant_expression(name, value)

    def _tensor(self, target: str, value: Tensor) -> None:
        expression = self._constant(target, value)
        if isinstance(value, nn.Parameter):
            self._assign(target, _parameter(expression, value))
            return
        owner, _, field = target.rpartition(".")
        path = attribute_path(self._owner, owner) if owner else self._owner
        # also for a plain tensor attribute: a GraphModule makes a buffer of it
        self.statements.append(f"{path}.register_buffer({field!r}, {expression})")

    def _submodule(self, target: str, module: nn.Module) -> None:
        self._assign(target, constructor(module, target))
        tensors: Iterator[tuple[str, Tensor]] = itertools.chain(
            module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
        )
        for name, value in tensors:
            path = f"{target}.{name}"
            tied = self._written.setdefault(id(value), path)
            if tied != path:
                self._assign(path, attribute_path(self._owner, tied))
                continue
            expression = self._constant(path, value)
            self._assign(
                path, _parameter(expression, value) if isinstance(value, nn.Parameter) else expression
            )


def _parameter(expression: str, value: Tensor) -> str:
    flag = "" if value.requires_grad else ", requires_grad=False"
    return f"torch.nn.Parameter({expression}{flag})"
