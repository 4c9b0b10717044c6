"""Calling a backend without dynamo, which would change some graphs on the way."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._guards import TracingContext, tracing

from minidbg.core.run_spec import Level, RunSpec
from minidbg.torch_internals.backends import as_torch_compile_has_it
from minidbg.torch_internals.private_names import private
from minidbg.torch_internals.tensors import all_nodes


@private
def compile_directly(compiler: Any, graph_module: Any, inputs: tuple[Any, ...], spec: RunSpec) -> Any:
    """What ``compiler`` makes of the graph, given as dynamo gives it; it may write to the graph."""
    if spec.level is Level.ATEN:
        return compile_as_aot_autograd_does(compiler, graph_module, inputs, spec)
    options = dict(spec.backend.options) or None
    wrapped = as_torch_compile_has_it(compiler, spec.backend.mode, options, spec.dynamic)
    context: Any = contextlib.nullcontext()
    example_inputs = list(inputs)
    if any(spec.dynamic_dims) or has_loops(graph_module):
        numbers = any(spec.dynamic_dims)
        fake_mode, example_inputs = with_symbolic_sizes(graph_module, inputs, spec, numbers=numbers)
        context = tracing(TracingContext(fake_mode))
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    for node, value in zip(placeholders, example_inputs, strict=True):
        node.meta.setdefault("example_value", value)
    with context:
        compiled_fn = wrapped(graph_module, example_inputs)

    def call_compiled(*args: Any) -> Any:
        return compiled_fn(*args)

    return call_compiled


@private
def compile_as_aot_autograd_does(
    compiler: Any, graph_module: Any, inputs: tuple[Any, ...], spec: RunSpec
) -> Any:
    """``compiler(gm, fake_inputs)``: nodes know fake values; the result may want boxed inputs."""
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp
    from torch.fx.passes.shape_prop import _extract_tensor_metadata

    fake_mode, fakes = with_symbolic_sizes(graph_module, inputs, spec, numbers=bool(spec.dynamic))
    with torch.no_grad():
        FakeTensorProp(graph_module, fake_mode).propagate_dont_convert_inputs(*fakes)
        for node in graph_module.graph.nodes:
            if isinstance(node.meta.get("val"), torch.Tensor):
                node.meta["tensor_meta"] = _extract_tensor_metadata(node.meta["val"])
        with tracing(TracingContext(fake_mode)):
            compiled_fn = compiler(graph_module, fakes)

    def call_compiled(*args: Any) -> Any:
        boxed = getattr(compiled_fn, "_boxed_call", False)
        return compiled_fn(list(args)) if boxed else compiled_fn(*args)

    return call_compiled


def has_loops(graph_module: Any) -> bool:
    """Whether a loop is in the graph or one nested in it: backends count its rounds by a symbol,
    and fail without a ShapeEnv."""
    return any(getattr(node.target, "__name__", "") in LOOPS for node in all_nodes(graph_module))


LOOPS = ("scan", "while_loop", "map_impl")


@private
def with_symbolic_sizes(
    graph_module: Any, inputs: tuple[Any, ...], spec: RunSpec, *, numbers: bool
) -> tuple[Any, list[Any]]:
    """Fake inputs, dynamic sizes as symbols, one for equal sizes; plain ints too if ``numbers``.

    Without dynamo, backends take real inputs for static ones, and a bug that needs symbols would be
    gone. Whether a loop may count its rounds is the program's setting, as it is for a
    ``torch.compile`` that may break the graph.
    """
    from torch._dynamo.source import LocalSource
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    counts = torch._dynamo.config.capture_scalar_outputs or not has_loops(graph_module)
    shapes: Any = ShapeEnv(allow_scalar_outputs=counts)
    fake_mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    dynamic_dims = spec.dynamic_dims or ((),) * len(inputs)
    fakes = []
    for index, (value, dims) in enumerate(zip(inputs, dynamic_dims, strict=True)):
        source: Any = LocalSource(f"input_{index}")
        if isinstance(value, torch.Tensor):
            duck, static = DimDynamic.DUCK, DimDynamic.STATIC
            kinds = [duck if dim in dims else static for dim in range(value.dim())]
            free: Any = [None] * len(kinds)
            context: Any = StatelessSymbolicContext(dynamic_sizes=kinds, constraint_sizes=free)
            fakes.append(fake_mode.from_tensor(value, source=source, symbolic_context=context))
        elif type(value) is int and numbers:
            symbol = shapes.create_symbol(value, source, dynamic_dim=DimDynamic.DUCK)
            fakes.append(shapes.create_symintnode(symbol, hint=value, source=source))
        else:
            fakes.append(value)
    return fake_mode, fakes
