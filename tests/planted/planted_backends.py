"""Tiny backends with one bug each, named for it. Each takes a graph at dynamo level and runs it in eager otherwise.

"On relu" means: a call of relu in any of its spellings, at any depth of nested graphs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

CompiledFn = Callable[..., Any]


class ReluNotSupported(Exception):
    """What ``raises_on_relu`` raises."""


def has_relu(graph_module: fx.GraphModule) -> bool:
    return any(is_relu(node) for module in graphs_of(graph_module) for node in module.graph.nodes)


def graphs_of(graph_module: fx.GraphModule) -> list[fx.GraphModule]:
    return [module for module in graph_module.modules() if isinstance(module, fx.GraphModule)]


def is_relu(node: fx.Node) -> bool:
    if node.op == "call_module":
        owner = node.graph.owning_module
        return owner is not None and isinstance(owner.get_submodule(str(node.target)), torch.nn.ReLU)
    return node.op.startswith("call") and "relu" in str(getattr(node.target, "__name__", node.target)).lower()


def raises_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Fails to compile, naming the node and an address."""
    for node in graph_module.graph.nodes:
        if is_relu(node):
            raise ReluNotSupported(
                f"cannot lower {node.name} with {len(example_inputs)} inputs at {id(node):#x}"
            )
    return graph_module.forward


def raises_in_run_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Compiles, and fails when called."""
    bad = has_relu(graph_module)

    def compiled_fn(*args: Any) -> Any:
        if bad:
            raise RuntimeError(f"relu kernel failed for shape {list(args[0].shape)}")
        return graph_module(*args)

    return compiled_fn


def adds_one_to_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Gives wrong values."""
    for module in graphs_of(graph_module):
        for node in list(module.graph.nodes):
            if is_relu(node):
                with module.graph.inserting_after(node):
                    wrong = module.graph.call_function(torch.add, (node, 1))
                node.replace_all_uses_with(wrong, delete_user_cb=lambda user, wrong=wrong: user is not wrong)
        module.recompile()
    return graph_module.forward


def hangs_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Never comes back from compiling, in Python."""
    while has_relu(graph_module):
        time.sleep(0.01)
    return lambda *args: graph_module.forward(*args)  # handed back, it would be asked about a relu by itself


def hangs_in_run_holding_the_gil_on_relu(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any]
) -> CompiledFn:
    """Never comes back from a run, in C code that holds the GIL."""
    bad = has_relu(graph_module)

    def compiled_fn(*args: Any) -> Any:
        if bad:
            # (a+)+b is exponential in the regex engine, which does not release the GIL.
            __import__("re").match(r"(a+)+b", "a" * 64)
        return graph_module(*args)

    return compiled_fn


def segfaults_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Dies while compiling by a real invalid read."""
    if has_relu(graph_module):
        import ctypes

        ctypes.string_at(0)
    return graph_module.forward


def segfaults_in_run_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Dies when called."""
    bad = has_relu(graph_module)

    def compiled_fn(*args: Any) -> Any:
        if bad:
            import ctypes

            ctypes.string_at(0)
        return graph_module(*args)

    return compiled_fn


def aborts_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Dies while compiling as a failed C assertion or ``std::terminate`` does."""
    if has_relu(graph_module):
        sys.stderr.write("terminate called after throwing an instance of 'std::runtime_error'\n")
        sys.stderr.flush()
        os.abort()
    return graph_module.forward


def exits_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Ends the process while compiling, with no signal and no message."""
    if has_relu(graph_module):
        os._exit(7)
    return graph_module.forward


def exits_with_zero_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Ends the process as if all were well."""
    if has_relu(graph_module):
        os._exit(0)
    return graph_module.forward


def is_killed_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Dies while compiling as under the kernel's out-of-memory killer."""
    if has_relu(graph_module):
        os.kill(os.getpid(), signal.SIGKILL)
    return graph_module.forward


def leaves_processes_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Starts a compiler that outlives it, and then never comes back."""
    if has_relu(graph_module):
        import subprocess

        subprocess.Popen(["sleep", "613"])
        time.sleep(600)
    return graph_module.forward


def mutates_its_graph(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Destroys the graph that it was given before it fails on relu."""
    bad = has_relu(graph_module)
    for node in reversed(list(graph_module.graph.nodes)):
        graph_module.graph.erase_node(node)
    if bad:
        raise ReluNotSupported("cannot lower relu")
    raise AssertionError("only for graphs with relu")


def returns_gm_forward(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Healthy: gives back a bound method."""
    return graph_module.forward


def runs_the_graph(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Healthy: does not hand the graph back, which would be no answer."""
    return fx.Interpreter(graph_module).run


def raises_without_a_message_on_relu(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any]
) -> CompiledFn:
    """Fails to compile with an exception whose text is empty."""
    if has_relu(graph_module):
        raise ReluNotSupported
    return graph_module.forward


def asks_for_fallback_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Raises an exception that dynamo takes for a reason to run in eager, silently."""
    if has_relu(graph_module):
        from torch._subclasses.fake_tensor import UnsupportedOperatorException

        raise UnsupportedOperatorException(torch.ops.aten.relu.default)
    return graph_module.forward


def raises_a_panic_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Raises what is no ``Exception``, as a panic in a Rust extension does."""
    if has_relu(graph_module):
        raise PanicException("relu: index 3 out of range for slice of length 3")
    return graph_module.forward


def raises_on_symbolic_sizes(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Fails to compile where a size is a symbol; dynamo gives symbols as inputs of their own."""
    sizes = [node.meta.get("example_value") for node in graph_module.graph.nodes if node.op == "placeholder"]
    shapes = [size for value in sizes if isinstance(value, torch.Tensor) for size in value.shape]
    if any(isinstance(size, torch.SymInt) for size in [*sizes, *shapes]):
        raise RelationError("cannot prove that the symbol is not negative")
    return graph_module.forward


class RelationError(Exception):
    """What ``raises_on_symbolic_sizes`` raises."""


def ends_the_program_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Calls ``sys.exit`` while compiling, as a command line tool used as a library does."""
    if has_relu(graph_module):
        sys.exit(1)
    return graph_module.forward


def asks_to_skip_the_frame(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Tells dynamo to run this frame in eager."""
    from torch._dynamo.exc import SkipFrame

    raise SkipFrame("not worth compiling")


class PanicException(BaseException):
    """Stands for ``pyo3_runtime.PanicException``."""


def _backward_fails_to_compile(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    for node in graph_module.graph.nodes:
        if "threshold_backward" in str(node.target):
            raise ReluNotSupported(f"cannot lower {node.name} of the backward graph")
    return graph_module.forward


def _backward_fails_to_run(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    bad = any("threshold_backward" in str(node.target) for node in graph_module.graph.nodes)

    def compiled_fn(*args: Any) -> Any:
        if bad:
            raise RuntimeError("the backward kernel of relu failed")
        return graph_module(*args)

    return compiled_fn


def _forward_works(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    return graph_module.forward


raises_in_backward_of_relu = aot_autograd(fw_compiler=_forward_works, bw_compiler=_backward_fails_to_compile)
raises_in_run_of_backward_of_relu = aot_autograd(
    fw_compiler=_forward_works, bw_compiler=_backward_fails_to_run
)
