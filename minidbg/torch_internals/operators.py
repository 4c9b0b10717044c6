"""Operators: names, schemas, where they were defined; and launches of a user's Triton kernels.

Dynamo keeps a launch's kernel and constants in a table of the process; the node has numbers.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverloadPacket
from torch._ops import OpOverload as OpOverload
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.autograd.grad_mode import _enter_inference_mode, _exit_inference_mode
from torch.overrides import enable_reentrant_dispatch

from minidbg.core.errors import CannotWrite
from minidbg.torch_internals.private_names import nothing_around, private, private_or
from minidbg.torch_internals.tensors import all_nodes

AUTOCAST_FUNCTIONS = (_enter_autocast, _exit_autocast)
INFERENCE_MODE_FUNCTIONS = (_enter_inference_mode, _exit_inference_mode)
"""What dynamo writes for the beginning and the end of such a block."""
SET_GRAD = torch._C._set_grad_enabled
GET_DATA = torch._C._autograd._get_data_attr  # type: ignore[attr-defined]
"""What dynamo calls for ``x.data``, the only form it takes back."""
ATTENTION_WITH_WEIGHTS = torch.ops.aten._scaled_dot_product_attention_math.default
"""Attention that returns result and weights; the arguments are those of the public one."""
MULTIPLYING = """
mm bmm mv dot vdot addmm baddbmm addbmm addmv convolution convolution_backward linear
"""
SUMMING = """
sum mean nansum logsumexp var var_mean std std_mean norm linalg_vector_norm prod cumsum cumprod
logcumsumexp softmax log_softmax native_batch_norm native_batch_norm_legit
native_batch_norm_legit_no_training native_layer_norm native_group_norm native_batch_norm_backward
batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward native_layer_norm_backward
native_group_norm_backward softmax_backward_data log_softmax_backward_data embedding_dense_backward
fft_c2c fft_r2c fft_c2r avg_pool2d avg_pool3d adaptive_avg_pool2d adaptive_avg_pool3d cdist_forward
dist trace
"""
"""ATen's ops that add terms, by name: those of products, and the others."""
ROUNDING = """
acos acosh asin asinh atan atan2 atanh cos cosh erf erfc erfinv exp exp2 expm1 gelu hypot log log10
log1p log2 log_softmax logaddexp logaddexp2 logsumexp pow rsqrt sigmoid silu sin sinh softmax
softplus tan tanh
"""
"""Ops that every library rounds in its own way."""
EXACT = """
abs amax amin aminmax cat ceil clamp clamp_max clamp_min clone constant_pad_nd copysign cummax
cummin diag_embed embedding fill flip floor fmax fmin full full_like gather hardtanh index
index_copy index_fill index_select kthvalue lift_fresh masked_fill masked_scatter masked_select max
max_pool2d_with_indices max_pool3d_with_indices maximum median min minimum mode nan_to_num nanmedian
neg ones ones_like reflection_pad1d reflection_pad2d reflection_pad3d relu repeat replication_pad1d
replication_pad2d replication_pad3d roll round select_backward select_scatter slice_backward
slice_scatter sgn sign sort stack take threshold threshold_backward topk tril triu trunc
unsafe_index where zero zeros zeros_like
arange rename requires_grad resize set
"""
"""Ops that move values, choose among them or round to integers: no backend has other last bits."""
IN_PARTS: dict[str, Callable[..., Any]] = {
    "lerp": lambda x, y, weight: x + weight * (y - x),
    "add": lambda x, y, alpha=1: x + y * alpha,
    "sub": lambda x, y, alpha=1: x - y * alpha,
    "rsub": lambda x, y, alpha=1: y - x * alpha,
    "addcmul": lambda x, y, z, value=1: x + y * z * value,
    "addcdiv": lambda x, y, z, value=1: x + y / z * value,
}
"""Ops that are one kernel in eager, which may round once, and several elsewhere."""


@private
def operator_path(value: Any) -> str | None:
    """``torch.ops.aten.add.Tensor`` for a torch operator of any kind, None for other values."""
    if isinstance(value, HigherOrderOperator):
        return f"torch.ops.higher_order.{value.__name__}"
    if not isinstance(value, OpOverload | OpOverloadPacket):
        return None
    packet = value.overloadpacket if isinstance(value, OpOverload) else value
    overload = f".{value._overloadname}" if isinstance(value, OpOverload) else ""
    return f"torch.ops.{packet._qualified_op_name.replace('::', '.')}{overload}"


@functools.cache
@private
def operator_schemas(path: str) -> tuple[Any, ...]:
    """Schemas of ``torch.ops.aten.add.Tensor``, or all of ``torch.ops.aten.add``; else empty."""
    found: Any = torch
    for part in path.split(".")[1:]:
        found = getattr(found, part, None)
    if isinstance(found, OpOverload):
        return (found._schema,)
    if not isinstance(found, OpOverloadPacket):
        return ()
    overloads = found.overloads()  # type: ignore[no-untyped-call]  # torch has no types there
    return tuple(getattr(found, overload)._schema for overload in overloads)


def tags_of_operators(name: str) -> set[torch.Tag] | None:
    """What torch says of all overloads of ``torch.ops.aten.NAME``, or of ``NAME_``; None where
    there is no such operator."""
    bare = name.strip("_")
    packets = [getattr(torch.ops.aten, one, None) for one in (name, bare, f"{bare}_")]
    overloads = [getattr(packet, one) for packet in packets if packet for one in packet.overloads()]
    return {tag for overload in overloads for tag in overload.tags} if overloads else None


@private_or(lambda mode, func, args, kwargs, **_: NotImplemented)
def run_in_parts(mode: Any, func: Any, args: Any, kwargs: Any, *, explicit: bool = False) -> Any:
    """The result of an operator eager makes of others (seen in inference mode), each of them by
    ``mode``; NotImplemented where it has its own kernel. Called whole in a mode's handler, they
    know no autocast, and take a conjugate tensor for a plain one. ``func.decompose()`` prefers
    torch's Python decomposition, which compilers use: its bugs are theirs. ``explicit``: one with
    a kernel of its own, which is made of others too."""
    keys, has_kernel = torch._C.DispatchKey, torch._C._dispatch_has_kernel_for_dispatch_key
    whole = keys.CompositeExplicitAutograd if explicit else keys.CompositeImplicitAutograd
    views = torch._C.DispatchKeySet(keys.ADInplaceOrView)
    if not isinstance(func, OpOverload) or not has_kernel(func._name, whole):
        return NotImplemented
    with mode, enable_reentrant_dispatch(), torch._C._ExcludeDispatchKeyGuard(views):
        return func._op_dk(whole, *args, **kwargs)


@private_or(lambda target: True)
def has_effects(target: object) -> bool:
    """Whether ``target`` acts outside the graph if called: prints, or calls a torchbind object."""
    from torch._higher_order_ops.effects import _get_effect

    if isinstance(target, OpOverloadPacket):
        names = target.overloads()  # type: ignore[no-untyped-call]
        return any(has_effects(getattr(target, name)) for name in names)
    return isinstance(target, HigherOrderOperator | OpOverload) and _get_effect(target) is not None


@private
def operator_name(target: object) -> str | None:
    """``ns::name.overload`` of an operator, without ``.default``; None for other callables."""
    if isinstance(target, OpOverload):
        return str(target.name())  # type: ignore[no-untyped-call]
    if isinstance(target, OpOverloadPacket):
        first = target.overloads()[:1]  # type: ignore[no-untyped-call]
        overload = "" if first in ([], ["default"]) else f".{first[0]}"
        return str(target._qualified_op_name) + overload
    return None


@private
def operator_functions(name: str) -> list[Callable[..., Any]]:
    """The Python functions of operator ``ns::name`` that ``torch.library.custom_op`` and its
    methods were given; of others empty."""
    found = operator_definition(name)
    if found is None:
        return []
    further = (found._abstract_fn, found._setup_context_fn, found._backward_fn)
    fields = (found._init_fn, *found._backend_fns.values(), *further)
    return [function for function in fields if function is not None]


@private
def operator_definition(name: str) -> Any:
    from torch._library.custom_ops import OPDEFS

    return OPDEFS.get(name)


@private
def operator_files(name: str) -> list[str]:
    """Source files, Python or C++, that registered schema, kernels or fake kernel of ``ns::name``,
    the schema's first."""
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


@private  # of 2.13 and 2.14
def op_samples() -> list[Any]:
    """torch's own descriptions of its operators, each with sample inputs. Raises ImportError where
    a package is missing that torch's testing modules want."""
    from torch.testing._internal import common_methods_invocations as samples
    from torch.testing._internal.common_methods_invocations import op_db

    # Operators that draw numbers are wrapped in this, which sets the seed; dynamo cannot trace it.
    vars(samples)["wrapper_set_seed"] = lambda op, *args, **kwargs: op(*args, **kwargs)
    # The import freezes torch.backends in this process; a backend that sets flags there would fail.
    vars(torch.backends)["__allow_nonbracketed_mutation_flag"] = True
    return list(op_db)


@private
def table_of_kernels() -> Any:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_side_table


@contextlib.contextmanager
def preserving_kernels() -> Iterator[None]:
    """A block where ``torch._dynamo.reset()`` forgets no kernel: held graphs have their numbers."""
    table = table_of_kernels()
    names = ("id_to_kernel", "kernel_to_id", "constant_args")
    before = {name: getattr(table, name) for name in names}
    yield
    vars(table).update(before)


def is_kernel_launch(node: fx.Node) -> bool:
    return str(getattr(node.target, "_name", "")).startswith("triton_kernel_wrapper")


def has_kernel_launch(gm: fx.GraphModule) -> bool:
    return any(map(is_kernel_launch, all_nodes(gm)))


def kernel_and_constants(node: fx.Node) -> tuple[Any, dict[str, Any]]:
    """The kernel of a launch and the arguments that are no part of the graph. Raises CannotWrite
    after the table was emptied."""
    table = table_of_kernels()
    try:
        constants = table.get_constant_args(node.kwargs["constant_args_idx"])
        return table.get_kernel(node.kwargs["kernel_idx"]), constants
    except AssertionError as error:
        why = "torch._dynamo.reset() has forgotten it since the graph was made"
        raise CannotWrite("a Triton kernel", why) from error


def launch_of(node: fx.Node) -> tuple[Any, tuple[Any, ...], tuple[Any, ...], Mapping[str, Any]]:
    """Kernel, grid, args and kwargs of the call that dynamo turned into the launch ``node``. Raises
    CannotWrite where no plain call becomes that again."""
    given: Any = node.kwargs
    kernel, constants = kernel_and_constants(node)
    grids = list(dict.fromkeys(map(tuple, given["grid"])))
    for refused, why in (
        ("tensors_to_clone" in given, "it has the functional form, which only AOTAutograd makes"),
        (given["tma_descriptor_metadata"], "it takes TMA descriptors"),
        (len(grids) > 1, "its grid depends on the config that the autotuner takes"),
    ):
        if refused:
            raise CannotWrite("a launch of a Triton kernel", why)
    grid = grids[0]
    while len(grid) > 1 and grid[-1] == 1:  # dynamo makes three dimensions of all
        grid = grid[:-1]
    values = {**given["kwargs"], **constants}
    by_keyword = given.get("launch_kwargs") or ()  # not in torch 2.11
    names = kernel.arg_names
    ends = (at for at, name in enumerate(names) if name not in values or name in by_keyword)
    args = tuple(values.pop(name) for name in names[: next(ends, None)])
    return kernel, grid, args, {name: values[name] for name in (*by_keyword, *values)}


@private
def launch_arguments(
    kernel: Any, grid: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

    table = table_of_kernels()
    values = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
    constants = {name: value for name, value in values.items() if not isinstance(value, fx.Node)}
    node_kwargs = {
        "kernel_idx": table.add_kernel(kernel),
        "constant_args_idx": table.add_constant_args(constants),
        "grid": [(*grid, 1, 1)[:3]] * len(getattr(kernel, "configs", "1")),
        "tma_descriptor_metadata": {},
        "kwargs": {name: value for name, value in values.items() if name not in constants},
    }
    call = type(triton_kernel_wrapper_mutation).__call__
    if "launch_kwargs" in inspect.signature(call).parameters:
        node_kwargs["launch_kwargs"] = tuple(kwargs)
    return triton_kernel_wrapper_mutation, node_kwargs


def is_kernel(value: Any) -> bool:
    """Whether ``value`` is a kernel of Triton, autotuned or not; Triton need not be here."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__}
    return bool(names & {"triton.runtime.jit.JITFunction", "triton.runtime.autotuner.Autotuner"})


TO_CPU = "aten::_to_cpu"
"""What torch's CPU fallback calls, for each operator that a device has no kernel for."""
COMPILED_REGION = "Torch-Compiled Region"
"""How dynamo calls, in a profile, the run of what it has compiled."""


@contextlib.contextmanager
@private_or(nothing_around)
def noting_fallbacks(names: list[str]) -> Iterator[None]:
    """A block after which ``names`` holds the operators that torch's CPU fallback ran for a device,
    within what dynamo had compiled, or anywhere where it compiled nothing."""
    from torch.autograd import profiler_legacy  # without kineto, which writes to stderr

    with warnings.catch_warnings(action="ignore"):
        block: Any = profiler_legacy.profile()  # type: ignore[no-untyped-call]
        with block:
            yield
    events = block.function_events
    regions = [event.time_range for event in events if event.name.startswith(COMPILED_REGION)]
    for event in events:
        inside = any(region.start <= event.time_range.start <= region.end for region in regions)
        if event.name == TO_CPU and (inside or not regions):
            names.append(event.cpu_parent.name if event.cpu_parent else TO_CPU)
