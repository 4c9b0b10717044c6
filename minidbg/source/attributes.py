"""What ``__init__`` of a written module creates: constants, submodules by the call of their constructor, nested graphs, in order of first use."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from minidbg import torch_internals
from minidbg.fx.attribute_paths import lookup
from minidbg.source.expressions import attribute_path, literal, tensor_literal
from minidbg.source.names import is_plain_identifier
from minidbg.words.errors import CannotWrite

ConstantExpression = Callable[[str, Tensor], str]
"""Dotted name and tensor -> the expression that ``__init__`` evaluates to make it."""

LARGEST_LITERAL = 64
"""Elements of the largest constant written as a literal."""


def exact_literal(name: str, value: Tensor) -> str:
    """``torch.tensor([...], dtype=...)`` for a constant of at most ``LARGEST_LITERAL`` elements.

    Raises CannotWrite for larger ones and for tensors that are not plain strided ones with data.
    """
    part = f"the constant {name!r}"
    if not is_plain(value):
        raise CannotWrite(part, f"a {type(value).__name__} of this layout has no literal form")
    if value.numel() > LARGEST_LITERAL:
        raise CannotWrite(part, f"its {value.numel()} elements are too many for a literal")
    kind = f"dtype={value.dtype}" + (f", device={str(value.device)!r}" if value.device.type != "cpu" else "")
    if value.numel() == 0 or value.is_meta:
        return f"torch.empty({tuple(value.shape)}, {kind})"
    literal = f"torch.tensor({tensor_literal(value)}, {kind})"
    if value.is_contiguous():
        return literal
    return f"torch.empty_strided({tuple(value.shape)}, {value.stride()}, {kind}).copy_({literal})"


def is_plain(value: Tensor) -> bool:
    """Whether ``value`` is a strided tensor of torch's own classes, whose elements are all that it is."""
    is_known = type(value) in (Tensor, nn.Parameter, nn.Buffer)
    if not is_known or value.layout is not torch.strided or value.is_quantized or value.is_nested:
        return False
    return not (
        torch_internals.is_wrapped(value)
        or torch_internals.is_zero_tensor(value)
        or torch_internals.is_freed(value)
    )


def by_name(name: str, value: Tensor) -> str:
    """``constants['name']``: for source that runs where ``instantiate`` provides the tensors."""
    return f"constants[{name!r}]"


def used_targets(graph: fx.Graph) -> list[str]:
    """The attributes that ``graph`` reads or calls, each once, in order of first use."""
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
        """The expression for what holds ``target``, and what it is called there."""
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

    def _submodule(self, target: str, module: nn.Module) -> None:
        self._assign(target, constructor(module, target))
        tensors: Iterator[tuple[str, Tensor]] = itertools.chain(
            module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
        )
        for name, value in tensors:
            path = f"{target}.{name}"
            tied = self._written.setdefault(id(value), path)
            is_first = tied == path
            self._assign(path, self._constant(path, value) if is_first else attribute_path(self._owner, tied))


def constructor(module: nn.Module, part: str) -> str:
    """The expression that builds a module of torch.nn like ``module``, the values of its state aside.

    A call is used only when what it builds has the same type, settings and shapes of state.
    Raises CannotWrite naming ``part`` when no call does.
    """
    modes = {inner.training for inner in module.modules()}
    text = _call(module, part, one_mode=len(modes) == 1)
    text = text if modes != {False} else f"{text}.eval()"
    if not _builds(text, module, with_modes=True):
        raise _refusal(part, module, "it has hooks or a mixture of training modes")
    return text


def _call(module: nn.Module, part: str, *, one_mode: bool) -> str:
    """The constructor call; with ``one_mode`` all modules inside are in the same training mode."""
    kind = type(module)
    if getattr(nn, kind.__name__, None) is not kind and not is_quantizing(module):
        raise _refusal(part, module, "only modules of torch.nn can be rebuilt")
    if kind is nn.Sequential:  # and no subclass: fused modules are such
        write = functools.partial(_call, one_mode=True) if one_mode else constructor
        children = (write(child, part) for child in module.children())
        return f"torch.nn.Sequential({', '.join(children)})"
    for arguments in _argument_lists(module):
        if _builds(_text(kind, arguments), module, with_modes=False):
            return _text(kind, _needed(arguments, module))
    raise _refusal(part, module, "no call of its constructor builds an equal one")


def _text(kind: type[nn.Module], arguments: list[str]) -> str:
    path = f"torch.nn.{kind.__name__}" if getattr(nn, kind.__name__, None) is kind else class_path(kind)
    return f"{path}({', '.join(arguments)})"


def _needed(arguments: list[str], module: nn.Module) -> list[str]:
    """``arguments`` without the keywords that change nothing."""
    for argument in reversed(arguments):
        fewer = [other for other in arguments if other is not argument]
        if "=" in argument and _builds(_text(type(module), fewer), module, with_modes=False):
            arguments = fewer
    return arguments


def _argument_lists(module: nn.Module) -> Iterator[list[str]]:
    """Arguments that may build ``module``: by its constructor's signature, then by its repr."""
    if is_quantizing(module):
        yield from argument_lists(module)
        if getattr(module, "qconfig", None) is not None:
            known = _by_signature(module, without="qconfig")
            getter = "qconfig=torch.ao.quantization.get_default_qat_qconfig"
            yield from ([*known, f"{getter}({engine!r})"] for engine in ENGINES)
            return
    for propose in (_by_signature, _by_repr):
        try:
            yield propose(module)
        except (CannotWrite, ValueError, SyntaxError):
            continue


def _by_signature(module: nn.Module, without: str = "") -> list[str]:
    """Arguments whose attributes of the same name differ from the default. Raises ValueError without them."""
    parts = []
    for name, parameter in inspect.signature(type(module)).parameters.items():
        if name == without:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError(f"{name} takes any number of values")
        required = parameter.default is parameter.empty
        value = getattr(module, name, None if required else parameter.default)
        if name == "bias" and not isinstance(value, bool):
            value = value is not None
        if required:
            parts.append(literal(value))
        elif isinstance(value, Tensor) or value != parameter.default:
            parts.append(f"{name}={literal(value)}")
    return parts


def _by_repr(module: nn.Module) -> list[str]:
    """The arguments in ``module``'s repr, if it is a call with literals only: a repr may hold anything."""
    call = ast.parse(repr(module), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError("the repr is no call")
    parts = [literal(ast.literal_eval(item)) for item in call.args]
    parts += [f"{item.arg}={literal(ast.literal_eval(item.value))}" for item in call.keywords if item.arg]
    return parts


def _builds(text: str, module: nn.Module, *, with_modes: bool) -> bool:
    """Whether ``text`` builds a module like ``module``; tried without memory for the weights."""
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        try:
            built = eval(text, {"torch": torch})
        except (TypeError, ValueError, RuntimeError, AssertionError):
            return False
    return type(built) is type(module) and _settings(built, with_modes) == _settings(module, with_modes)


def _settings(module: nn.Module, with_modes: bool) -> dict[str, Any]:
    """What decides a module's behaviour beside the values of its state, by dotted name."""
    found: dict[str, Any] = {}
    for path, inner in module.named_modules(remove_duplicate=False):
        found[path] = type(inner)
        for key, value in vars(inner).items():
            if not key.startswith("_") and (with_modes or key != "training"):
                found[f"{path}.{key}"] = _comparable(value)
            if with_modes and key.endswith("_hooks"):
                found[f"{path}.{key}"] = len(value)  # some constructors set hooks themselves
        state: list[tuple[str, Tensor | None]] = [*inner._parameters.items(), *inner._buffers.items()]
        for key, tensor in state:
            observed = is_quantizing(inner) and key in inner._buffers
            found[f"{path}.{key}"] = None if tensor is None or observed else tuple(tensor.shape)
    return found


def _comparable(value: Any) -> Any:
    """Something that is equal for equal settings."""
    if isinstance(value, Tensor):
        return object()  # it equals nothing: no constructor brings a tensor that is no part of the state
    if hasattr(value, "activation") and hasattr(value, "weight"):
        try:
            # what settings make: they themselves compare as different always
            return [_settings(part, with_modes=False) for part in (value.activation(), value.weight())]
        except (TypeError, ValueError, RuntimeError, AssertionError):
            return object()  # settings of a user's own that build nothing here
    return value


def _refusal(part: str, module: nn.Module, why: str) -> CannotWrite:
    return CannotWrite(f"the submodule {part!r} of type {type(module).__name__}", why)


ENGINES = ("fbgemm", "x86", "qnnpack", "onednn")
"""Engines whose default settings are tried; settings made by hand have no name."""

OBSERVER_SETTINGS = ("dtype", "qscheme", "reduce_range", "averaging_constant", "ch_axis")


def is_quantizing(module: nn.Module) -> bool:
    """Whether ``module`` is one of torch's own for quantization."""
    return type(module).__module__.startswith("torch.ao.")


def class_path(kind: type) -> str:
    """The dotted name of a class of torch.ao; ``import torch`` is all that it needs."""
    return f"{kind.__module__}.{kind.__qualname__}"


def argument_lists(module: nn.Module) -> Iterator[list[str]]:
    """Arguments that may build a fake-quantize module, by what its observer was given."""
    observer = getattr(module, "activation_post_process", None)
    if not isinstance(observer, nn.Module):
        return
    settings = {name: getattr(observer, name) for name in OBSERVER_SETTINGS if hasattr(observer, name)}
    least: Any = module.quant_min
    most: Any = module.quant_max
    for low, high in ((least, most), (2 * least, 2 * most + 1)):  # reduce_range has halved what it holds
        given = {"quant_min": low, "quant_max": high, **settings}
        yield [
            f"observer={class_path(type(observer))}",
            *(f"{name}={literal(value)}" for name, value in given.items()),
        ]
