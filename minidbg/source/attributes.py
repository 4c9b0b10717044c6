"""What ``__init__`` of a written module creates: constants and nested graphs, in order of first use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, fx, nn

from minidbg import torch_internals
from minidbg.fx.effects import lookup
from minidbg.source.expressions import attribute_path, literal
from minidbg.source.names import is_plain_identifier
from minidbg.words.errors import CannotWrite

ConstantExpression = Callable[[str, Tensor], str]
"""Dotted name and tensor -> the expression that ``__init__`` evaluates to make it."""


def is_plain(value: Tensor) -> bool:
    is_known = type(value) in (Tensor, nn.Parameter, nn.Buffer)
    if not is_known or value.layout is not torch.strided or value.is_quantized or value.is_nested:
        return False
    return not (
        torch_internals.is_wrapped(value)
        or torch_internals.is_zero_tensor(value)
        or torch_internals.is_freed(value)
    )


def by_name(name: str, value: Tensor) -> str:
    return f"constants[{name!r}]"


def used_targets(graph: fx.Graph) -> list[str]:
    targets = (str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module"))
    return list(dict.fromkeys(targets))


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
        is_shared = isinstance(value, Tensor | nn.Module)
        same = self._written.setdefault(id(value), target) if is_shared else target
        if same != target:
            self._assign(target, attribute_path(self._owner, same))
        elif isinstance(value, fx.GraphModule):
            self.nested[target] = value
            self.statements.append(target)
        elif isinstance(value, Tensor):
            self._tensor(target, value)
        elif isinstance(value, nn.Module):
            kind = type(value).__name__
            why = "dynamo inlines modules, so only a graph made by hand calls one; give the model instead"
            raise CannotWrite(f"the submodule {target!r} of type {kind}", why)
        else:
            self._assign(target, literal(value))

    def fill(self, target: str, expression: str) -> None:
        position = self.statements.index(target)
        held, self.statements = self.statements, []
        self._assign(target, expression)
        self.statements = held[:position] + self.statements + held[position + 1 :]

    def _open_containers(self, target: str) -> None:
        for container in itertools.accumulate(target.split(".")[:-1], "{}.{}".format):
            if container not in self._containers:
                self._containers.add(container)
                self._assign(container, "torch.nn.Module()")

    def _assign(self, target: str, expression: str) -> None:
        path, field = self._owner_of(target)
        plain = is_plain_identifier(field)
        self.statements.append(
            f"{path}.{field} = {expression}" if plain else f"setattr({path}, {field!r}, {expression})"
        )

    def _owner_of(self, target: str) -> tuple[str, str]:
        owner, _, field = target.rpartition(".")
        return attribute_path(self._owner, owner) if owner else self._owner, field

    def _constant(self, target: str, value: Tensor) -> str:
        name = f"{self._path}.{target}" if self._path else target
        self.constants[name] = value
        expression = self._constant_expression(name, value)
        if not isinstance(value, nn.Parameter):
            return expression
        flag = "" if value.requires_grad else ", requires_grad=False"
        return f"torch.nn.Parameter({expression}{flag})"

    def _tensor(self, target: str, value: Tensor) -> None:
        expression = self._constant(target, value)
        if isinstance(value, nn.Parameter):
            self._assign(target, expression)
            return
        path, field = self._owner_of(target)
        # also for a plain tensor attribute: a GraphModule makes a buffer of it
        self.statements.append(f"{path}.register_buffer({field!r}, {expression})")
