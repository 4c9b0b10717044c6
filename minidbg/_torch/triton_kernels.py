"""Launches of a user's Triton kernels: dynamo keeps the kernel and its constants in a table of the process, the node has numbers."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from minidbg._torch.private_names import seen
from minidbg.errors import CannotWrite


@dataclass(frozen=True, slots=True)
class Launch:
    """``kernel[grid](*args, **kwargs)``."""

    kernel: Any
    grid: tuple[Any, ...]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@seen("2.11", "2.15")
def table_of_kernels() -> Any:
    """Where dynamo keeps kernels (``add_kernel``, ``get_kernel``) and their constant arguments."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_side_table


@contextlib.contextmanager
def kernels_kept() -> Iterator[None]:
    """A block in which ``torch._dynamo.reset()`` forgets no kernel: graphs that are held have their numbers."""
    table = table_of_kernels()
    kept = {name: getattr(table, name) for name in ("id_to_kernel", "kernel_to_id", "constant_args")}
    yield
    vars(table).update(kept)


TABLE = "torch._higher_order_ops.triton_kernel_wrap.kernel_side_table"
"""The name of that table in source text; its module is imported for it."""


def is_kernel_launch(node: fx.Node) -> bool:
    """Whether ``node`` launches a user's Triton kernel, in the form that dynamo writes or in the functional one."""
    return str(getattr(node.target, "_name", "")).startswith("triton_kernel_wrapper")


def has_kernel_launch(gm: fx.GraphModule) -> bool:
    """Whether ``gm``, or a graph inside it, launches a user's Triton kernel."""
    graphs = (module.graph for module in gm.modules() if isinstance(module, fx.GraphModule))
    return any(is_kernel_launch(node) for graph in graphs for node in graph.nodes)


def kernel_and_constants(node: fx.Node) -> tuple[Any, dict[str, Any]]:
    """The kernel of a launch and the arguments that are no part of the graph. Raises CannotWrite after the table was emptied."""
    table = table_of_kernels()
    try:
        return table.get_kernel(node.kwargs["kernel_idx"]), table.get_constant_args(
            node.kwargs["constant_args_idx"]
        )
    except AssertionError as error:
        raise CannotWrite(
            "a Triton kernel", "torch._dynamo.reset() has forgotten it since the graph was made"
        ) from error


def launch_of(node: fx.Node) -> Launch:
    """The call that dynamo turned into the launch ``node``. Raises CannotWrite where no plain call becomes that again."""
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
    end = next(
        (at for at, name in enumerate(kernel.arg_names) if name not in values or name in by_keyword), None
    )
    args = tuple(values.pop(name) for name in kernel.arg_names[:end])
    return Launch(kernel, grid, args, {name: values[name] for name in (*by_keyword, *values)})


@seen("2.11", "2.15")
def launch_arguments(
    kernel: Any, grid: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """What ``kernel[grid](*args, **kwargs)`` is in a graph: the operator and the node's keyword arguments."""
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
    if "launch_kwargs" in inspect.signature(type(triton_kernel_wrapper_mutation).__call__).parameters:
        node_kwargs["launch_kwargs"] = tuple(kwargs)
    return triton_kernel_wrapper_mutation, node_kwargs


def is_kernel(value: Any) -> bool:
    """Whether ``value`` is a kernel of Triton, autotuned or not; Triton need not be here."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__}
    return bool(names & {"triton.runtime.jit.JITFunction", "triton.runtime.autotuner.Autotuner"})
