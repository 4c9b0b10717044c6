"""The backward that AOTAutograd compiles at its first run: runs of ours leave that to the program.

The first backward decides for good how the backward is compiled. Where it keeps the graph
(``retain_graph``, ``create_graph``), no saved tensor is donated to it; else they are, its memory is
reused, and a later backward that keeps the graph is refused. Were a run of ours the first one, a
program that keeps its graph would be refused, or would go on without donations, with more memory.

So the autograd nodes of our runs get an autograd.Function of their own, with a copy of what
AOTAutograd sets when it compiles. What was compiled for us is handed to the program when it asks
for the same; when it keeps the graph, its backward is compiled as it would be without us.
"""

from __future__ import annotations

import copy
import inspect
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from minidbg.torch_internals.dynamo import compiling_alone
from minidbg.torch_internals.private_names import private_or

TAG = "minidbg"
"""Set on a backward's entry in inductor's cache: its key does not say what is donated."""


@private_or(lambda tensors: not any(map(_of_aot_autograd, _nodes_behind(tensors))), since="2.13")
def leave_first_backward(tensors: Sequence[torch.Tensor]) -> bool:
    """Let a backward of ``tensors``, from a run of ours, set nothing the program's first is to set.
    False where this torch keeps that elsewhere: then this backward must not run."""
    from torch._functorch._aot_autograd.runtime_wrappers import _AutogradBackwardCompiler

    found = []
    for node in filter(_of_aot_autograd, _nodes_behind(tensors)):
        impl = inspect.unwrap(node._forward_cls._backward_impl)
        compiler = inspect.getclosurevars(impl).nonlocals.get("backward_compiler")
        if not isinstance(compiler, _AutogradBackwardCompiler):
            return False
        if compiler.compiled_bw is None:
            found.append((node, impl, compiler))
    for node, impl, compiler in found:
        made, ours = node._forward_cls, _own_compiler(compiler)
        # what a backward of ours sets, it sets in this one and in the compiler
        own: Any = type(made.__name__, (made,), {})
        own._backward_impl = _closing_over(impl, CompiledFunction=own, backward_compiler=ours)
        own.backward = _closing_over(made.backward, CompiledFunction=own)
        node._forward_cls = own
    return True


def _nodes_behind(tensors: Sequence[torch.Tensor]) -> Iterator[Any]:
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors]
    known = {None}
    while waiting:
        node = waiting.pop()
        if node not in known:
            known.add(node)
            waiting += [function for function, _ in node.next_functions]
            yield node


def _of_aot_autograd(node: Any) -> bool:
    return hasattr(getattr(node, "_forward_cls", None), "_aot_id")


def _closing_over(function: Callable[..., Any], **values: Any) -> staticmethod[..., Any]:
    variables = {**inspect.getclosurevars(function).nonlocals, **values}
    cells = tuple(types.CellType(variables[name]) for name in function.__code__.co_freevars)
    code, module, name = function.__code__, function.__globals__, function.__name__
    return staticmethod(types.FunctionType(code, module, name, function.__defaults__, cells))


def _own_compiler(compiler: Any) -> Any:
    """A copy of a backward's compiler. What it compiles waits for the program's first backward."""
    known = getattr(compiler.bw_compiler, "__self__", None)
    ahead = known if isinstance(known, CompiledAhead) else CompiledAhead(compiler)
    own = copy.copy(compiler)
    own.bw_compiler, own.try_save_cache_entry = ahead.for_us, None
    compiler.bw_compiler = ahead.for_the_program
    context: Any = getattr(own.lazy_backward_info, "saved_context", None)
    buckets = getattr(context, "ddp_optimizer_ctx", None)
    # its context counts the backwards that are compiled, from a model's last graph to the first
    if buckets is not None:
        donated = own.fw_metadata.bw_donated_idxs
        ours = (one for one in buckets.metadata_per_bucket if one.bw_donated_idxs is donated)
        context = copy.copy(context)
        context.ddp_optimizer_ctx, context.fw_metadata = None, next(ours, own.fw_metadata)
        own.lazy_backward_info = copy.copy(own.lazy_backward_info)
        own.lazy_backward_info.saved_context = context
    return own


class CompiledAhead:
    def __init__(self, compiler: Any) -> None:
        self.compiler = compiler
        self.compile = compiler.bw_compiler
        self.made: Any = None
        self.donated: Any = None
        """Which saved tensors what is ``made`` may write to."""
        self.warned: list[warnings.WarningMessage] = []
        self.counted: dict[str, Counter[str]] = {}

    def for_us(self, module: Any, placeholders: Any) -> Any:
        """The compiled backward; warnings and counts of its compile are for the program's first."""
        if self.made is None:
            self.donated = self.compiler.fw_metadata.bw_donated_idxs
            config: Any = torch.compiler.config
            tag = config.cache_key_tag + (TAG if self.donated else "")
            with (
                compiling_alone() as self.counted,
                config.patch(cache_key_tag=tag),
                warnings.catch_warnings(record=True, action="always") as self.warned,
            ):
                self.made = self.compile(module, placeholders)
        return self.made

    def for_the_program(self, module: Any, placeholders: Any) -> Any:
        self.compiler.bw_compiler = self.compile
        if self.made is None or self.compiler.fw_metadata.bw_donated_idxs != self.donated:
            return self.compile(module, placeholders)
        for kind, counts in self.counted.items():
            if counts:
                torch._dynamo.utils.counters[kind].update(counts)
        for one in self.warned:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno, source=one.source)
        return self.made
