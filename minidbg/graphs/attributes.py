"""What ``__init__`` of a written module creates: constants, submodules, nested graphs, in order of first use."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from minidbg.errors import CannotWrite
from minidbg.graphs.expressions import Expressions, attribute_path
from minidbg.graphs.literals import tensor_literal
from minidbg.graphs.names import is_plain_identifier

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
    found: Any = module
    for part in target.split("."):
        if not hasattr(found, part):
            raise CannotWrite(f"the attribute {target!r}", "the graph module has no such attribute")
        found = getattr(found, part)
    return found


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
            self._assign(target, Expressions(_no_nodes).value(value))

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
        path = attribute_path(self._owner, target)
        tensors: Iterator[tuple[str, Tensor]] = itertools.chain(
            module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
        )
        for name, value in tensors:
            expression = self._constant(f"{target}.{name}", value)
            if isinstance(value, nn.Parameter):
                expression = _parameter(expression, value)
            self.statements.append(_state(path, name, expression))


def _state(path: str, name: str, expression: str) -> str:
    owner, _, field = name.rpartition(".")
    path = attribute_path(path, owner) if owner else path
    if is_plain_identifier(field):
        return f"{path}.{field} = {expression}"
    return f"setattr({path}, {field!r}, {expression})"


def _parameter(expression: str, value: Tensor) -> str:
    flag = "" if value.requires_grad else ", requires_grad=False"
    return f"torch.nn.Parameter({expression}{flag})"


def _no_nodes(node: fx.Node) -> str:
    raise CannotWrite(f"node {node.name!r}", "it stands in an attribute")


def constructor(module: nn.Module, part: str) -> str:
    """The expression that builds a module of torch.nn like ``module``, its weights aside.

    It comes from the module's repr, and is used only when what it builds has the same type, the same
    settings and the same shapes of state. Raises CannotWrite naming ``part`` otherwise.
    """
    text = _constructor_text(module, part)
    with torch.random.fork_rng(devices=[]):
        try:
            built = eval(text, {"torch": torch})
        except (TypeError, ValueError, RuntimeError) as error:
            raise _no_constructor(part, module, f"{text} fails: {error}") from error
    if not _same_settings(module, built):
        raise _no_constructor(part, module, f"{text} does not build an equal one")
    return text


def _constructor_text(module: nn.Module, part: str) -> str:
    kind = type(module)
    if getattr(nn, kind.__name__, None) is not kind:
        raise _no_constructor(part, module, "only modules of torch.nn can be rebuilt")
    ending = "" if module.training else ".eval()"
    if isinstance(module, nn.Sequential):
        children = [_constructor_text(child, part) for child in module]
        return f"torch.nn.Sequential({', '.join(children)}){ending}"
    return f"torch.nn.{_literal_call(repr(module), part, module)}{ending}"


def _literal_call(text: str, part: str, module: nn.Module) -> str:
    """``text`` written anew when it is a call with literal arguments only: a repr may hold anything."""
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise _no_constructor(part, module, "its repr is no expression") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise _no_constructor(part, module, "its repr is no call")
    write = Expressions(_no_nodes).value
    try:
        arguments = [write(ast.literal_eval(item)) for item in call.args]
        arguments += [
            f"{item.arg}={write(ast.literal_eval(item.value))}" for item in call.keywords if item.arg
        ]
    except ValueError as error:
        raise _no_constructor(part, module, "its repr has an argument that is no literal") from error
    return f"{type(module).__name__}({', '.join(arguments)})"


def _same_settings(one: nn.Module, other: Any) -> bool:
    return type(one) is type(other) and _settings(one) == _settings(other) and not _hooks(one)


def _settings(module: nn.Module) -> dict[str, Any]:
    """What decides a module's behaviour beside the values of its state, by dotted name."""
    found: dict[str, Any] = {}
    for path, inner in module.named_modules(remove_duplicate=False):
        found[path] = type(inner)
        for key, value in vars(inner).items():
            if not key.startswith("_"):
                found[f"{path}.{key}"] = copy.copy(value)
        tensors: Iterator[tuple[str, Tensor | None]] = iter(
            [*inner._parameters.items(), *inner._buffers.items()]
        )
        for key, tensor in tensors:
            found[f"{path}.{key}"] = None if tensor is None else tuple(tensor.shape)
    return found


def _hooks(module: nn.Module) -> bool:
    return any(
        value for inner in module.modules() for key, value in vars(inner).items() if key.endswith("_hooks")
    )


def _no_constructor(part: str, module: nn.Module, why: str) -> CannotWrite:
    return CannotWrite(f"the submodule {part!r} of type {type(module).__name__}", why)
