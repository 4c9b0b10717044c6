"""``minidbg.wrap_compiler``: a compiler for ``aot_autograd`` that behaves like the one it wraps until that one fails.

One level below ``wrap``: the graphs are AOTAutograd's (forward, backward, inference), the example inputs are fake, and
the compiled function may take its inputs in one list that it clears.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from torch import fx

from minidbg import _torch, settings
from minidbg.backend import failures
from minidbg.backend.chain import Link
from minidbg.backend.failures import Report
from minidbg.backend.graph_state import GraphState, state_of
from minidbg.case import CompiledFn, CompilerFn, Level
from minidbg.errors import BadSetting
from minidbg.settings import CompilerSettings, Layout, Settings


class WrappedCompiler:
    """A compiler ``(gm, example_inputs) -> compiled_fn`` with the name and the attributes of the one it wraps."""

    def __init__(self, compiler: CompilerFn, own_settings: Settings, *, stored: bool = False) -> None:
        functools.update_wrapper(self, compiler, updated=())
        self.compiler = compiler
        self.settings = own_settings
        self.stored = stored
        """Whether AOTAutograd stores what is compiled for another process, by its type."""

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], /, **keywords: Any) -> CompiledFn:
        """What the wrapped compiler returns, behind a thin function; what it raises is raised, with a note."""
        compiler = functools.partial(self.compiler, **keywords) if keywords else self.compiler
        graph = state_of(lambda: AtenGraph(gm, compiler, self.settings, stored=self.stored))
        if graph is None:
            return compiler(gm, example_inputs)
        try:
            return graph.compile(gm, example_inputs)
        except Exception as error:
            report = failures.own_report(error)
            if report is not None:
                graph.say_why_it_is_raised(error, report)
            raise

    def __getattr__(self, name: str) -> Any:
        if name == "compiler":  # not set yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.compiler, name)

    def __repr__(self) -> str:
        return f"<minidbg.wrap_compiler({getattr(self.compiler, '__name__', self.compiler)})>"


def wrap_compiler(compiler: CompilerFn, **given: Unpack[CompilerSettings]) -> Any:
    """``compiler``, for ``aot_autograd(fw_compiler=, bw_compiler=, inference_compiler=)``.

    When it fails on a graph, or what it compiled does, a verified minimal repro is left in ``repro_dir``: an ATen
    graph and a call of the compiler. The settings are those of ``minidbg.wrap``. Raises BadSetting.
    """
    if isinstance(compiler, str) or not callable(compiler):
        raise BadSetting(
            f"wrap_compiler({compiler!r}): a compiler (gm, example_inputs) -> compiled_fn is needed; "
            f"a backend of torch.compile goes to minidbg.wrap"
        )
    own = settings.of_call(given, CompilerSettings)
    return _torch.with_inner_compiler(
        compiler, lambda inner, stored: WrappedCompiler(inner, own, stored=stored)
    )


class AtenGraph(GraphState):
    """A graph of AOTAutograd. Its flight is not recorded: dynamo's graph, which it is a part of, is."""

    level = Level.ATEN

    def __init__(
        self, gm: fx.GraphModule, compiler: CompilerFn, own_settings: Settings, *, stored: bool = False
    ) -> None:
        # the layout is the compiler's: AOTAutograd asks its compilers for the strides that they chose
        own = replace(own_settings, layout=Layout.IGNORE)
        super().__init__(gm, [Link(compiler, level=self.level)], own)
        self.record.is_on = False
        self.stored = stored
        self.part = _torch.aot_graph_part()
        self.origin = (f"{f'the {self.part}' if self.part else 'a'} graph that AOTAutograd made",)

    def is_put_off(self) -> bool:
        """Whether AOTAutograd swallows a failure now: of a backward that may never be needed, compiled ahead of time."""
        return self.part == "backward" and not _torch.in_backward() and _torch.tries_backward_early()

    def called_as(self, compiled_fn: CompiledFn) -> CompiledFn:
        """``compiled_fn`` behind some care, or as it is where AOTAutograd stores it."""
        return compiled_fn if self.stored else super().called_as(compiled_fn)

    def say_why_it_is_raised(self, error: Exception, report: Report) -> None:
        """Put the report's line on ``error``, and into the log where dynamo will wrap it and hide notes."""
        super().say_why_it_is_raised(error, report)
        if not _torch.dynamo_keeps_type(error) and _torch.in_a_backend():
            failures.log.warning("minidbg: %s", report.line)
