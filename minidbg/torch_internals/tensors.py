"""Tensors, symbolic numbers and graphs, and the modes around them."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes

from minidbg.torch_internals.private_names import nothing_around, private, private_or

lazy_graph_module = _LazyGraphModule
"""A GraphModule that writes its forward only when it is called or printed."""
without_modes = _disable_current_modes
"""A block in which no fake, functional or proxy mode touches what is called."""
negated_view = torch._neg_view


@private
def has_plain_memory(value: Any) -> bool:
    """Whether ``value`` lies in a storage as it is, so bits, strides and storage say something.

    Not those of a ZeroTensor (forward-mode differentiation makes them; a look at their bits ends
    the process), of a storage that was freed (likewise), of a lazily conjugated or negated view, a
    wrapper of functorch or of functionalization, a fake, meta, sparse, nested or quantized tensor,
    or one of a subclass.
    """
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        return False
    if value.is_nested or value.is_quantized or value.device.type == "meta" or is_wrapped(value):
        return False
    if value.is_conj() or value.is_neg() or is_zero_tensor(value):
        return False
    try:
        return value.untyped_storage().nbytes() > 0 or not value.numel()
    except (RuntimeError, NotImplementedError):  # a device that shows none
        return False


@private_or(lambda value: False)
def is_zero_tensor(value: torch.Tensor) -> bool:
    return bool(value._is_zerotensor())


def is_freed(value: torch.Tensor) -> bool:
    """Whether the elements of ``value`` are gone: sharded training frees storage, keeps tensors."""
    if value.layout is not torch.strided or value.device.type == "meta" or not value.numel():
        return False
    if is_wrapped(value) or is_zero_tensor(value):
        return False
    try:
        return value.untyped_storage().nbytes() == 0
    except (RuntimeError, NotImplementedError):
        return False


@private_or(lambda value: False)
def is_wrapped(value: torch.Tensor) -> bool:
    """Whether ``value`` exists only in a level of vmap, grad or jvp, or of functionalization."""
    in_level = torch._C._functorch.is_functorch_wrapped_tensor(value)
    return bool(in_level or torch._is_functional_tensor(value))


@private
def in_memory(value: Any) -> Any:
    """``value`` if in plain memory; elements of a lazy one or ZeroTensor in a new one; or None."""
    if has_plain_memory(value):
        return value
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or is_wrapped(value):
        return None
    if is_zero_tensor(value):
        return torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    if value.layout is not torch.strided or value.is_nested:
        return None
    made = value.detach().resolve_conj().resolve_neg()
    return made if has_plain_memory(made) else None


def all_nodes(gm: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    for module in gm.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


@private
def append_node(
    graph: torch.fx.Graph, like: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.fx.Node:
    """A node like ``like`` at the end of ``graph``: op, target, type, meta, and name where free.

    ``Graph.create_node`` without its walk over the arguments in Python, which takes most of its
    time, and without asking whether a name that a graph has is one: on dynamo's long names that
    takes most of the rest.
    """
    name, used = like.name, graph._graph_namespace._used_names
    if name in used:
        name = graph._graph_namespace.create_name(name, None)
    used.add(name)
    node = torch.fx.Node(graph, name, like.op, like.target, args, kwargs, like.type)
    graph._graph_namespace.associate_name_with_obj(name, node)
    graph._insert(node)
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    node.meta.update(like.meta)
    return node


@private_or(lambda value: type(value).__name__ in ("FakeTensor", "FunctionalTensor"))
def is_fake(value: object) -> bool:
    """Whether ``value`` is a tensor without data: a FakeTensor, or a functional wrapper."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor) or (
        isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)
    )


@private_or(lambda value: None if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else value)
def hint(value: Any) -> Any:
    """The number a symbolic value stands for in this run, with no guard, None for a ragged size;
    other values as they are."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    return None if value.node.is_nested_int() or not value.node.has_hint() else value.node.hint


@contextlib.contextmanager
@private
def outside_tracing() -> Iterator[None]:
    """A block without tracing context, compiled autograd, the program's modes (a default device
    stays) and saved-tensor hooks.

    Work of ours inside a backend's call would overwrite dynamo's live context; dynamo's graph has
    what function modes do; the hooks of ``checkpoint`` count what is saved; compiled autograd would
    hand each backward of ours to the program's compiler.
    """
    from torch._C import _len_torch_function_stack
    from torch.overrides import _pop_mode, _push_mode
    from torch.utils._device import DeviceContext

    autograd = torch._C._autograd
    with contextlib.ExitStack() as before:
        compiled_autograd: Any = sys.modules.get("torch._dynamo.compiled_autograd")
        if getattr(compiled_autograd, "compiled_autograd_enabled", False):
            # the flag is the process's, the compiler a thread's: threads without would leave it off
            before.callback(setattr, compiled_autograd, "compiled_autograd_enabled", True)
            before.enter_context(compiled_autograd._disable())
        while (pair := autograd._top_saved_tensors_default_hooks(True)) is not None:
            autograd._pop_saved_tensors_default_hooks()
            before.callback(autograd._push_saved_tensors_default_hooks, *pair)
        modes = [_pop_mode() for _ in range(_len_torch_function_stack())]
        kept = [mode for mode in modes if isinstance(mode, DeviceContext)]
        for mode in modes:
            before.callback(_push_mode, mode)
        for mode in reversed(kept):
            _push_mode(mode)
            before.callback(_pop_mode)
        with torch._guards.tracing(None), without_modes():
            yield


@private
def deferring_first_call() -> contextlib.AbstractContextManager[Any]:
    """A block in which a compiled function may be called while its first call is still to come.

    AOTAutograd checks custom operators in the first call, by a dispatch mode: what that raises or
    warns of is the program's.
    """
    config: Any = sys.modules.get("torch._functorch.config")
    checks = hasattr(config, "check_custom_op_aliasing")
    return config.patch(check_custom_op_aliasing=False) if checks else contextlib.nullcontext()


@private_or(lambda error: False)
def is_of_a_saved_tensor_hook(error: Exception) -> bool:
    """Whether the program's own hook raised ``error``: that of ``checkpoint`` does, once it has
    recomputed what it needs."""
    pair = torch._C._autograd._top_saved_tensors_default_hooks(True)
    code = getattr(pair and pair[0], "__code__", None)
    return any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))


@contextlib.contextmanager
@private_or(nothing_around)
def same_versions(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """A block whose writes to ``tensors`` autograd does not count: to put back what was there."""
    counted = tuple(tensor for tensor in tensors if not tensor.is_inference())
    with torch.autograd.grad_mode._unsafe_preserve_version_counter(counted):
        yield


@private
def storage_identity(value: torch.Tensor) -> int:
    """A number that tensors share exactly when they share their storage."""
    return int(value.untyped_storage()._cdata)


@private
def symbols_in(value: object) -> set[str]:
    """Names of the symbols in the shape and strides of a fake tensor, or in a symbolic number."""
    if isinstance(value, torch.Tensor):
        found: set[str] = set()
        for size in (*value.shape, *(value.stride() if value.layout is torch.strided else ())):
            found |= symbols_in(size)
        return found
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return {str(symbol) for symbol in value.node.expr.free_symbols}
    return set()


def load_exported(path: os.PathLike[str]) -> torch.export.ExportedProgram:
    """``torch.export.load(path)``, which may not fall back to a pickle that runs code (the variable
    is private). Raises what torch's reader does."""
    with mock.patch.dict("os.environ", TORCH_FORCE_WEIGHTS_ONLY_LOAD="1"):
        return torch.export.load(path)


@private_or(lambda name: None, since="2.13")
def ranks_of_group(name: str) -> list[int] | None:
    """The ranks of the process group called ``name``; None for the group of all ranks, and where no
    group has that name."""
    try:
        group: Any = torch.distributed.distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined,arg-type]  # private
    except (RuntimeError, ValueError):
        return None
    ranks = torch.distributed.get_process_group_ranks(group)
    return None if group == torch.distributed.group.WORLD else ranks
