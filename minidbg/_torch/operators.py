"""Operators: their names, their schemas, and where they were defined."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

import torch

from minidbg._torch.private_names import seen


@seen("2.11", "2.15")
def autocast_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The calls by which a graph enters and leaves ``torch.autocast``."""
    from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

    return _enter_autocast, _exit_autocast


@seen("2.11", "2.15")
def inference_mode_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The calls by which a graph enters and leaves ``torch.inference_mode``."""
    from torch.autograd.grad_mode import _enter_inference_mode, _exit_inference_mode

    return _enter_inference_mode, _exit_inference_mode


@seen("2.11", "2.15")
def grad_mode_function() -> Callable[..., Any]:
    """The call by which a graph sets grad mode."""
    function: Callable[..., Any] = torch._C._set_grad_enabled
    return function


@seen("2.11", "2.15")
def attention_with_weights() -> Callable[..., Any]:
    """Attention that returns its result and its weights; the arguments are those of the public one."""
    function: Callable[..., Any] = torch.ops.aten._scaled_dot_product_attention_math.default
    return function


def get_data_function() -> Callable[..., Any] | None:
    """The call that dynamo puts into a graph for ``x.data``; None where it is a plain getattr."""
    function: Callable[..., Any] | None = getattr(torch._C._autograd, "_get_data_attr", None)
    return function


def is_overload(value: object) -> TypeGuard[torch._ops.OpOverload[..., Any]]:
    """Whether ``value`` is one overload of an operator: ``torch.ops.aten.add.Tensor``."""
    return isinstance(value, torch._ops.OpOverload)


@seen("2.11", "2.15")
def operator_path(value: Any) -> str | None:
    """``torch.ops.aten.add.Tensor`` for a torch operator of any kind, None for other values."""
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

    if isinstance(value, HigherOrderOperator):
        return f"torch.ops.higher_order.{value.__name__}"
    if not isinstance(value, OpOverload | OpOverloadPacket):
        return None
    packet, overload = (
        (value.overloadpacket, f".{value._overloadname}") if isinstance(value, OpOverload) else (value, "")
    )
    return f"torch.ops.{packet._qualified_op_name.replace('::', '.')}{overload}"


@seen("2.11", "2.15")
def operator_schemas(path: str) -> tuple[Any, ...]:
    """The schemas of ``torch.ops.aten.add.Tensor``, or of all overloads of ``torch.ops.aten.add``; empty when
    there is no such operator. ``_schema`` is private.
    """
    from torch._ops import OpOverload, OpOverloadPacket

    found: Any = torch
    for part in path.split(".")[1:]:
        found = getattr(found, part, None)
    if isinstance(found, OpOverload):
        return (found._schema,)
    if not isinstance(found, OpOverloadPacket):
        return ()
    return tuple(getattr(found, overload)._schema for overload in found.overloads())  # type: ignore[no-untyped-call]  # torch has no types there


@seen("2.11", "2.15", otherwise=lambda target: True)
def has_effects(target: object) -> bool:
    """Whether calling ``target`` does something outside the graph: prints, or calls into a torchbind object.

    ``_get_effect`` is private, with operators and higher-order operators.
    """
    from torch._higher_order_ops.effects import _get_effect
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

    if isinstance(target, OpOverloadPacket):
        return any(has_effects(getattr(target, name)) for name in target.overloads())  # type: ignore[no-untyped-call]
    return isinstance(target, HigherOrderOperator | OpOverload) and _get_effect(target) is not None


@seen("2.11", "2.15")
def operator_name(target: object) -> str | None:
    """``ns::name.overload`` of an operator in a graph, without ``.default``; None for other callables.

    A packet of several overloads is named by its first: they have one definition.
    """
    if isinstance(target, torch._ops.OpOverload):
        return str(target.name())  # type: ignore[no-untyped-call]
    if isinstance(target, torch._ops.OpOverloadPacket):
        first = target.overloads()[:1]  # type: ignore[no-untyped-call]
        return str(target._qualified_op_name) + ("" if first in ([], ["default"]) else f".{first[0]}")
    return None


@seen("2.11", "2.15")
def operator_functions(name: str) -> list[Callable[..., Any]]:
    """The Python functions of operator ``ns::name`` that ``torch.library.custom_op`` and its methods were given.

    None for operators that were defined otherwise. ``OPDEFS`` and the fields of ``CustomOpDef`` are private.
    """
    from torch._library.custom_ops import OPDEFS

    found = OPDEFS.get(name)
    if found is None:
        return []
    fields = (
        found._init_fn,
        *found._backend_fns.values(),
        found._abstract_fn,
        found._setup_context_fn,
        found._backward_fn,
    )
    return [function for function in fields if function is not None]


@seen("2.11", "2.15")
def operator_definition(name: str) -> object | None:
    """The ``CustomOpDef`` of operator ``ns::name``, what ``@torch.library.custom_op`` gives."""
    from torch._library.custom_ops import OPDEFS

    return OPDEFS.get(name)


@seen("2.11", "2.15")
def operator_files(name: str) -> list[str]:
    """Source files, Python or C++, that registered the schema, the kernels or the fake kernel of ``ns::name``.

    The schema's comes first. ``_dispatch_dump`` and the registry of fake kernels are private.
    """
    from torch._library.simple_registry import singleton

    found = []
    dump = torch._C._dispatch_dump(name)
    for line in dump.splitlines():
        before, _, place = line.partition("registered at ")
        if place and not before.startswith("alias analysis"):
            found.append(place.partition(" :: ")[0].rpartition(":")[0])
    kernel = singleton.find(name).fake_impl.kernel  # before 2.13 there is no ``get``
    if kernel is not None:
        found.append(kernel.source.rpartition(":")[0])
    return list(dict.fromkeys(found))


OP_SAMPLES = "torch.testing._internal.common_methods_invocations"
"""The module in which they are: seconds to import."""


@seen("2.13", "2.14")
def op_samples() -> list[Any]:
    """torch's own descriptions of its operators, each with sample inputs.

    Raises ImportError where a package is missing that torch's testing modules want.
    """
    from torch.testing._internal import common_methods_invocations
    from torch.testing._internal.common_methods_invocations import op_db

    # Operators that draw numbers are wrapped in this, which sets the seed and which dynamo cannot trace.
    vars(common_methods_invocations)["wrapper_set_seed"] = lambda op, *args, **kwargs: op(*args, **kwargs)
    # The import freezes torch.backends for the whole process, and a backend that sets a flag there would fail.
    vars(torch.backends)["__allow_nonbracketed_mutation_flag"] = True
    return list(op_db)


@contextlib.contextmanager
@seen("2.11", "2.15")
def aten_calls() -> Iterator[list[str]]:
    """A block in which the list hears each operator that eager calls below autograd, but for views: ``torch.ops.aten.cumsum.default``."""
    from torch.utils._python_dispatch import TorchDispatchMode

    called: list[str] = []

    class Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not func.is_view and not func.name().startswith(
                ("aten::detach", "aten::clone", "aten::empty")
            ):
                called.append(f"torch.ops.{func}")
            return func(*args, **(kwargs or {}))

    with Listener():  # type: ignore[no-untyped-call]
        yield called


@seen("2.11", "2.15")
def loop_functions() -> dict[str, Callable[..., Any]]:
    """torch's control-flow ops by name; the paths to all but ``cond`` are private."""
    from torch._higher_order_ops import map, scan, while_loop

    return {"map": map, "scan": scan, "while_loop": while_loop}
