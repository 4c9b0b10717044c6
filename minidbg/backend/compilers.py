"""``minidbg.wrap_compiler``: a compiler for ``aot_autograd`` that behaves like the one it wraps until that one fails.

One level below ``wrap``: the graphs are AOTAutograd's (forward, backward, inference), the example inputs are fake, and
the compiled function may take its inputs in one list that it clears.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from minidbg import _torch, settings
from minidbg.backend import failures, standing, verify
from minidbg.backend.capture import Failure
from minidbg.backend.chain import Link
from minidbg.backend.failures import Report
from minidbg.backend.kept import Kept, keep
from minidbg.case import CompiledFn, CompilerFn, Level
from minidbg.errors import BadSetting
from minidbg.failure import Kind
from minidbg.graphs.copying import copy_graph_module
from minidbg.graphs.mutation import mutated_placeholders, written_attributes
from minidbg.oracle.direct import compile_directly
from minidbg.settings import Layout, OnFailure, Settings


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
        if failures.is_answering():
            compiled_fn: CompiledFn = self.compiler(gm, example_inputs, **keywords)
            return compiled_fn
        compiler = functools.partial(self.compiler, **keywords) if keywords else self.compiler
        try:
            graph = AtenGraph(gm, compiler, self.settings, stored=self.stored)
        except Exception as trouble:  # noqa: BLE001 - whatever it is, it is not the user's
            # A bug of ours must not keep the user from compiling: his compiler is called as if we were not here.
            failures.log.warning("minidbg: a graph is not wrapped (%s: %s)", type(trouble).__name__, trouble)
            failures.log.debug("wrapping_failed", exc_info=True)
            return compiler(gm, example_inputs)
        return graph.compile(gm, example_inputs)

    def __getattr__(self, name: str) -> Any:
        if name == "compiler":  # not set yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.compiler, name)

    def __repr__(self) -> str:
        return f"<minidbg.wrap_compiler({getattr(self.compiler, '__name__', self.compiler)})>"


def wrap_compiler(
    compiler: CompilerFn,
    *,
    verify: str | int | None = None,
    on_failure: str | None = None,
    reduce: str | None = None,
    repro_dir: str | os.PathLike[str] | None = None,
    seconds: float | None = None,
    max_calls: int | None = None,
    setup: str | Sequence[str] | None = None,
    reference: str | None = None,
    value_limit_bytes: int | None = None,
    reduce_oom: bool | None = None,
    match: str | None = None,
    env: Sequence[str] | None = None,
) -> Any:
    """``compiler``, for ``aot_autograd(fw_compiler=, bw_compiler=, inference_compiler=)``.

    When it fails on a graph, or what it compiled does, a verified minimal repro is left in ``repro_dir``: an ATen
    graph and a call of the compiler. The settings are those of ``minidbg.wrap``. Raises BadSetting.
    """
    given = {
        "verify": verify,
        "on_failure": on_failure,
        "reduce": reduce,
        "repro_dir": repro_dir,
        "seconds": seconds,
        "max_calls": max_calls,
        "setup": setup,
        "reference": reference,
        "value_limit_bytes": value_limit_bytes,
        "reduce_oom": reduce_oom,
        "match": match,
        "env": env,
    }
    if isinstance(compiler, str) or not callable(compiler):
        raise BadSetting(
            f"wrap_compiler({compiler!r}): a compiler (gm, example_inputs) -> compiled_fn is needed; "
            f"a backend of torch.compile goes to minidbg.wrap"
        )
    own = settings.load(given)
    return _torch.with_inner_compiler(
        compiler, lambda inner, stored: WrappedCompiler(inner, own, stored=stored)
    )


class AtenGraph:
    """The state of one graph of AOTAutograd. It is settled once it has run well, and is then called without any care."""

    def __init__(
        self, gm: fx.GraphModule, compiler: CompilerFn, own_settings: Settings, *, stored: bool = False
    ) -> None:
        self.stored = stored
        self.untouched = with_examples(copy_graph_module(gm))
        self.link = Link(compiler)
        self.settings = own_settings
        self.part = _torch.aot_graph_part()
        self.mutated = mutated_placeholders(self.untouched)
        self.held = tuple(written_attributes(self.untouched))
        self.standing = standing.of_new_graph()
        self.compiled_fn: CompiledFn = self.untouched.forward
        self.boxed = False
        self.good_calls = 0
        self.settled = False

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
        """What AOTAutograd is to call, boxed where the compiler's own result is."""
        try:
            compiled_fn = self.link.compiler(gm, example_inputs)
        except Exception as error:
            if _torch.is_control_flow(error) or self.is_put_off():
                raise
            report = self.answered(error, example_inputs, Kind.COMPILE)
            if self.settings.on_failure is not OnFailure.FALLBACK:
                self.tell(error, report)
                raise
            failures.warn_going_on(self.failure(error, example_inputs, Kind.COMPILE), report, "eager")
            return self.untouched.forward
        if self.stored or _torch.is_serializable_callable(compiled_fn):
            return compiled_fn
        return self.called_as(compiled_fn)

    def is_put_off(self) -> bool:
        """Whether AOTAutograd swallows a failure now: of a backward that may never be needed, compiled ahead of time.

        When it is needed, it is compiled once more, and that failure is answered.
        """
        return self.part == "backward" and not _torch.in_backward() and _torch.tries_backward_early()

    def called_as(self, compiled_fn: CompiledFn) -> CompiledFn:
        """``compiled_fn`` behind the care that an unsettled graph takes, with its own calling convention."""
        self.compiled_fn = compiled_fn
        self.boxed = bool(getattr(compiled_fn, "_boxed_call", False))
        if self.boxed:

            def run_boxed(args: list[Any]) -> Any:
                return self.compiled_fn(args) if self.settled else self.careful_call(args)

            run_boxed._boxed_call = True  # type: ignore[attr-defined]  # torch's own mark
            return run_boxed

        def run(*args: Any) -> Any:
            return self.compiled_fn(*args) if self.settled else self.careful_call(list(args))

        return run

    def call(self, args: list[Any]) -> Any:
        """The compiled function in its own convention; it may clear ``args``."""
        return self.compiled_fn(args) if self.boxed else self.compiled_fn(*args)

    def careful_call(self, args: list[Any]) -> Any:
        """A call of a graph that has not yet run well."""
        values = tuple(args)  # the callee may clear the list
        if failures.is_answering() or any(_torch.is_fake(value) for value in values):
            return self.call(args)
        kept = keep(values, self.mutated, self.held, limit_bytes=self.settings.value_limit_bytes)
        verification = self.verification(values, kept)
        try:
            result = self.call(args)
        except Exception as error:
            if not self.goes_on_in_eager(error, values, kept):
                del kept, values, verification  # the traceback holds this frame
                raise
        else:
            wrong = judged(verification, result, values) if verification is not None else None
            if wrong is None:
                self.good_calls += 1
                self.settled = verify.is_settled(self.good_calls, self.settings.verify)
                return result
            self.answer_wrong_results(wrong, kept)
        return self.untouched.forward(*values)

    def verification(self, values: tuple[Any, ...], kept: Kept) -> verify.Verification | None:
        """What will judge this call; None when it is not compared."""
        most = verify.calls_compared(self.settings.verify)
        if most is not None and self.good_calls >= most:
            self.standing.why_not = self.standing.why_not or standing.NOT_ASKED
            return None
        link = called_by_us(self.link)
        # AOTAutograd asks its compilers for the strides that they chose
        own = replace(self.settings, layout=Layout.IGNORE)
        return verify.begin(
            self.untouched, self.unboxed, link, values, self.mutated, kept, own, self.standing
        )

    def unboxed(self, *args: Any) -> Any:
        """The compiled function with its inputs one by one."""
        return self.call(list(args))

    def answer_wrong_results(self, wrong: Failure, kept: Kept) -> None:
        """Report ``wrong``. Raises its error, unless eager is to run instead, now and from now on."""
        notes = (*wrong.notes, self.origin)
        failure = replace(wrong, link=self.link, level=Level.ATEN, notes=notes)
        self.standing.failed = True
        report = failures.answer(failure, self.settings)
        failures.set_report(wrong.error, report)
        if not kept.restore() or self.settings.on_failure is not OnFailure.FALLBACK:
            self.tell(wrong.error, report)
            raise wrong.error
        failures.warn_going_on(failure, report, "eager")
        self.compiled_fn, self.settled = eager(self.untouched, boxed=self.boxed), True

    def goes_on_in_eager(self, error: Exception, values: tuple[Any, ...], kept: Kept) -> bool:
        """Answer a failed run; whether eager is to run instead, now and from now on."""
        restored = kept.restore()
        failure = self.failure(error, values, Kind.RUNTIME)
        if failures.own_report(error) is None and restored:
            blameless = failures.eager_fails_too(failure, os.environ)
            kept.restore()
            if blameless:
                return False
        report = self.answered(error, values, Kind.RUNTIME)
        if not restored or self.settings.on_failure is not OnFailure.FALLBACK:
            self.tell(error, report)
            return False
        failures.warn_going_on(failure, report, "eager")
        self.compiled_fn, self.boxed, self.settled = eager(self.untouched, boxed=self.boxed), self.boxed, True
        return True

    def answered(self, error: Exception, values: Sequence[Any], kind: Kind) -> Report:
        """The report on ``error``, which is then readable from it. One that a wrapper below made is kept."""
        known = failures.own_report(error)
        if known is not None:
            return known
        self.standing.failed = True
        report = failures.answer(self.failure(error, values, kind), self.settings)
        failures.set_report(error, report)
        return report

    def failure(self, error: Exception, values: Sequence[Any], kind: Kind) -> Failure:
        """What failed."""
        notes = (self.origin,)
        return Failure(self.untouched, tuple(values), self.link, kind, error, notes, level=Level.ATEN)

    @property
    def origin(self) -> str:
        """Which graph this is, for people."""
        return (
            f"the {self.part} graph that AOTAutograd made" if self.part else "a graph that AOTAutograd made"
        )

    def tell(self, error: Exception, report: Report) -> None:
        """Put the report's line on ``error``, and into the log where dynamo will wrap it and hide notes."""
        failures.add_line(error, report)
        if not _torch.dynamo_keeps_type(error) and _torch.in_a_backend():
            failures.log.warning("minidbg: %s", report.line)


def called_by_us(link: Link) -> Link:
    """``link``, whose compiler is called outside AOTAutograd with real inputs: it gets fake ones."""

    def compiled(gm: fx.GraphModule, inputs: Sequence[Any]) -> CompiledFn:
        found: CompiledFn = compile_directly(compiler, gm, tuple(inputs), {"level": "aten"}, {})
        return found

    compiler, ours = link.compiler, Link(link.backend)
    object.__setattr__(ours, "compiler", compiled)
    return ours


def judged(verification: verify.Verification, result: Any, values: tuple[Any, ...]) -> Failure | None:
    """What is wrong with ``result`` beside its aliasing, which AOTAutograd leaves to its compilers; it is compared last."""
    found = verification.judge(result, values)
    allowed = found is not None and getattr(found.error, "category", "") == "aliasing"
    return None if allowed else found


def eager(graph: fx.GraphModule, *, boxed: bool) -> CompiledFn:
    """``graph`` itself, in the convention of the compiled function whose place it takes."""
    if not boxed:
        return graph.forward
    return lambda args: graph.forward(*args)


def with_examples(graph: fx.GraphModule) -> fx.GraphModule:
    """``graph``, whose placeholders say what AOTAutograd knows of their values as dynamo's do."""
    for node in graph.graph.nodes:
        if node.op == "placeholder" and "val" in node.meta:
            node.meta.setdefault("example_value", node.meta["val"])
    return graph
