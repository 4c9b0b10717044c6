"""Backends that fail on one construct and run everything else in eager.

``raises_on("cond")`` fails to compile a graph that calls an op named ``cond`` at any depth; ``raises_where("expanded")`` one
in which some value has the trait. Both are ``functools.partial`` objects, so that a repro names them by an import.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

CompiledFn = Callable[..., Any]


class NotSupported(Exception):
    """What the backends here raise."""


# ---- a call


def fails_on_call(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, names: tuple[str, ...], when: str = "compile"
) -> CompiledFn:
    """Fails on a graph that holds a call of each of ``names``."""
    called = {name_of(node) for node in all_nodes(gm) if node.op.startswith("call")}
    return failing(gm, set(names) <= called, f"cannot lower {' and '.join(names)}", when)


def raises_on(*names: str, when: str = "compile") -> functools.partial[CompiledFn]:
    return functools.partial(fails_on_call, names=names, when=when)


def raises_on_two(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """With two bugs."""
    for name in ("relu", "tan"):
        raises_on(name)(gm, example_inputs)
    return gm.forward


def failing(gm: fx.GraphModule, bad: bool, text: str, when: str) -> CompiledFn:
    """``gm`` in eager, or the failure ``text`` at compile or run time when it is ``bad``."""
    if bad and when == "compile":
        raise NotSupported(text)

    def compiled_fn(*args: Any) -> Any:
        if bad:
            raise NotSupported(text)
        return gm(*args)

    return compiled_fn


def all_nodes(gm: fx.GraphModule) -> Iterator[fx.Node]:
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            yield from module.graph.nodes


def name_of(node: fx.Node) -> str:
    """``relu`` of torch.relu, of ``x.relu()``, of aten.relu.default, of a ReLU module that was left as one."""
    if node.op == "call_module":
        owner = node.graph.owning_module
        return type(owner.get_submodule(str(node.target))).__name__.lower()
    target = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(target, "__name__", target)).rpartition(".")[2]


# ---- a trait of a value


def fails_on_trait(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, trait: str, when: str = "compile"
) -> CompiledFn:
    """Fails on a graph that calls something while an input, parameter or buffer of it has the trait."""
    calls = any(node.op.startswith("call") for node in gm.graph.nodes)
    held = [*gm.parameters(), *gm.buffers()]
    if when == "compile":
        bad = calls and TRAITS[trait](gm, [*example_inputs, *held])
        return failing(gm, bad, f"cannot take {trait} inputs", when)

    def compiled_fn(*args: Any) -> Any:
        if calls and TRAITS[trait](gm, [*args, *held]):
            raise NotSupported(f"cannot take {trait} inputs")
        return gm(*args)

    return compiled_fn


def raises_where(trait: str, when: str = "compile") -> functools.partial[CompiledFn]:
    return functools.partial(fails_on_trait, trait=trait, when=when)


Check = Callable[[fx.GraphModule, Sequence[Any]], bool]


def some_tensor(check: Callable[[torch.Tensor], bool]) -> Check:
    return lambda gm, values: any(check(value) for value in values if isinstance(value, torch.Tensor))


def share_storage(gm: fx.GraphModule, values: Sequence[Any]) -> bool:
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return len({value.untyped_storage()._cdata for value in tensors}) < len(tensors)


def has_symbols(gm: fx.GraphModule, values: Sequence[Any]) -> bool:
    """Whether a size is symbolic, told by the graph: at run time the values are plain."""
    metas = [node.meta.get("example_value") for node in gm.graph.nodes if node.op == "placeholder"]
    shapes = [size for value in metas if isinstance(value, torch.Tensor) for size in value.shape]
    return any(isinstance(size, torch.SymInt) for size in [*metas, *shapes])


def nodes_hold(check: Callable[[fx.Node], bool]) -> Check:
    return lambda gm, values: any(check(node) for node in all_nodes(gm))


DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128",
)  # fmt: skip
TRAITS: Mapping[str, Check] = {
    "symbolic": has_symbols,
    "non_leaf": some_tensor(lambda value: not value.is_leaf),
    "expanded": some_tensor(lambda value: 0 in value.stride() and value.numel() > 1),
    "transposed": some_tensor(lambda value: value.dim() == 2 and value.stride()[0] < value.stride()[1]),
    "channels_last": some_tensor(
        lambda value: (
            value.dim() == 4
            and not value.is_contiguous()
            and value.is_contiguous(memory_format=torch.channels_last)
        )
    ),
    "zero_size": some_tensor(lambda value: value.numel() == 0),
    "scalar": some_tensor(lambda value: value.dim() == 0),
    "parameter": some_tensor(lambda value: isinstance(value, torch.nn.Parameter)),
    "with_grad": some_tensor(lambda value: value.requires_grad),
    "aliased": share_storage,
    "quantized": some_tensor(lambda value: value.is_quantized),
    "conjugated": some_tensor(lambda value: value.is_conj()),
    "inference_tensor": some_tensor(lambda value: value.is_inference()),
    "sparse": some_tensor(lambda value: value.layout is not torch.strided),
    "no_grad": lambda gm, values: not torch.is_grad_enabled(),
    "inference": lambda gm, values: torch.is_inference_mode_enabled(),
    "autocast": lambda gm, values: torch.is_autocast_enabled("cpu"),
    "training": nodes_hold(lambda node: node.kwargs.get("training") is True or (name_of(node) == "dropout")),
    **{name: some_tensor(lambda value, name=name: value.dtype is getattr(torch, name)) for name in DTYPES},
}
