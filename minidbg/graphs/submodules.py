"""A module of torch.nn, or of torch.ao in quantization-aware training, as the constructor call that builds it."""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from minidbg.errors import CannotWrite
from minidbg.graphs.expressions import literal


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
        children = [
            _call(child, part, one_mode=True) if one_mode else constructor(child, part)
            for child in module.children()
        ]
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
            yield from ([*known, qconfig] for qconfig in qconfigs())
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
            return [_settings(part, with_modes=False) for part in parts_of(value)]
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
    for low, high in ranges(module):
        given = {"quant_min": low, "quant_max": high, **settings}
        yield [
            f"observer={class_path(type(observer))}",
            *(f"{name}={literal(value)}" for name, value in given.items()),
        ]


def ranges(module: Any) -> Iterator[tuple[int, int]]:
    """The range of a fake-quantize module as it may have been given: ``reduce_range`` has halved what it holds."""
    low, high = module.quant_min, module.quant_max
    yield low, high
    yield 2 * low, 2 * high + 1


def qconfigs() -> Iterator[str]:
    """Expressions of the settings that torch has names for."""
    for engine in ENGINES:
        yield f"qconfig=torch.ao.quantization.get_default_qat_qconfig({engine!r})"


def parts_of(qconfig: Any) -> tuple[nn.Module, nn.Module]:
    """What settings make: settings themselves compare as different always."""
    return qconfig.activation(), qconfig.weight()
