"""What dynamo does with a backend's answer: its exceptions, what it stores, the graphs that it
hands out, the guards that it builds after."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NoReturn
from unittest import mock

import torch

from minidbg.core.run_spec import Level
from minidbg.torch_internals.aot import in_backward
from minidbg.torch_internals.operators import SET_GRAD
from minidbg.torch_internals.private_names import nothing_around, private, private_or
from minidbg.torch_internals.tensors import append_node, lazy_graph_module


@contextlib.contextmanager
@private_or(lambda: iter([{}]))
def compiling_alone() -> Iterator[dict[str, Counter[str]]]:
    """A block that compiles while no other thread does, uncounted; as ``restoring_counters``.
    Tracing keeps state in globals under dynamo's lock; compiled functions run without that."""
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock, dropping_compile_stacks(), restoring_counters() as counted:
        yield counted


@contextlib.contextmanager
@private_or(nothing_around, since="2.13")
def dropping_compile_stacks() -> Iterator[None]:
    """A block of which torch's metrics keep no stack.

    They keep that of each compile for good. Ours run within a call of the program's compiled
    function: with the stack its code would stay alive, with that dynamo's global for the function,
    and with that the backend.
    """
    from torch._dynamo.utils import get_metrics_context

    stacks = get_metrics_context()._edits
    before = len(stacks)
    try:
        yield
    finally:
        del stacks[before:]


@contextlib.contextmanager
@private_or(lambda: iter([{}]))
def restoring_counters() -> Iterator[dict[str, Counter[str]]]:
    """A block of ours torch does not count; then the table holds what it would have counted."""
    from torch._dynamo.utils import counters

    counted: dict[str, Counter[str]] = {}
    before = {kind: counts.copy() for kind, counts in counters.items()}
    try:
        yield counted
    finally:
        for kind in list(counters):
            known = before.get(kind, Counter())
            counted[kind] = counters[kind] - known
            counters[kind].clear()
            counters[kind].update(known)
            if kind not in before:
                del counters[kind]


@private_or(lambda error: True)
def is_control_flow(error: BaseException) -> bool:
    """Whether dynamo takes this exception of a backend as a message to itself, not as a failure.

    Restart of the analysis, skipping of the frame, and the FakeTensor exceptions that become a
    graph break. ``InductorError``, ``BackendCompilerFailed`` and ``IndexError`` are none of these.
    """
    from torch._dynamo import exc

    breaks = exc.exceptions_allowed_to_be_fallback
    messages = (exc.TensorifyScalarRestartAnalysis, exc.SkipFrame, *breaks)
    return isinstance(error, messages)


@private_or(lambda error: True)
def dynamo_keeps_type(error: BaseException) -> bool:
    """Whether dynamo lets this exception of a backend through as it is; others it wraps."""
    from torch._dynamo.exc import ShortenTraceback

    as_it_is = (ShortenTraceback, IndexError) if torch.__version__ >= "2.13" else ShortenTraceback
    return isinstance(error, as_it_is)


@private_or(lambda backend, error, frame: error)
def backend_compiler_failed(backend: object, error: Exception, frame: FrameType) -> Exception:
    """The exception dynamo would wrap ``error`` in, with its traceback; dynamo does not rewrap it.
    ``frame`` must be a frame of the traceback that the exception will have."""
    from torch._dynamo.exc import BackendCompilerFailed

    return BackendCompilerFailed(backend, error, frame).with_traceback(error.__traceback__)


@private_or(lambda compiled_fn: compiled_fn)
def without_lazy_recompile(compiled_fn: Any) -> Any:
    """``compiled_fn``, or the compiled forward behind it if it is a lazily compiled GraphModule's.

    Dynamo does the same to what a backend returns (torch's name for it is
    ``_LazyGraphModule.force_recompile``), and cannot once it is wrapped.
    """
    if isinstance(compiled_fn, lazy_graph_module):
        lazy_graph_module.force_recompile(compiled_fn)
        return compiled_fn
    module = getattr(compiled_fn, "__self__", None)
    if isinstance(module, lazy_graph_module) and compiled_fn.__name__ == "_lazy_forward":
        lazy_graph_module.force_recompile(module)
        return module.forward
    return compiled_fn


@private_or(lambda _: False)
def is_serializable_callable(compiled_fn: Any) -> bool:
    module = sys.modules.get("torch._dynamo.aot_compile_types")
    return module is not None and isinstance(compiled_fn, module.SerializableCallable)


@private_or(lambda: False)
def in_a_backend() -> bool:
    return torch._guards.TracingContext.try_get() is not None and not in_backward()


@private_or(list)
def recompilations() -> list[tuple[CodeType, int, str]]:
    """What dynamo compiled again since its last reset: how often, and the guard that failed last.
    Dynamo notes each time of each graph that it already had why that did not fit."""
    from torch._dynamo.utils import guard_failures

    listed = []
    for code, reasons in guard_failures.items():
        times = Counter(reason.partition(":")[0] for reason in reasons)
        guard = re.split(r"\s+#|\n", reasons[-1].partition(": ")[2])[0]  # without the line it is of
        listed.append((code, max(times.values()), guard))
    return listed


@contextlib.contextmanager
@private
def many_recompiles() -> Iterator[None]:
    with torch._dynamo.config.patch(recompile_limit=1 << 20, accumulated_recompile_limit=1 << 20):
        yield


@contextlib.contextmanager
@private
def graphs_given_to_backends() -> Iterator[list[list[torch.fx.Node]]]:
    """A list that receives the calls of each graph dynamo hands to a backend in this thread, as
    copies, since the backend may change them."""
    from torch._dynamo.output_graph import OutputGraph

    graphs: list[list[torch.fx.Node]] = []
    original = OutputGraph.call_user_compiler
    thread = threading.get_ident()

    def call_user_compiler(self: Any, gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        if threading.get_ident() != thread:
            return original(self, gm, example_inputs)
        copied = torch.fx.Graph()
        graphs.append([append_node(copied, node, (), {}) for node in calls_that_count(gm.graph)])
        try:
            return original(self, gm, example_inputs)
        except Exception as error:
            if is_control_flow(error):
                graphs.pop()  # dynamo restarts, or runs eager: before 2.13 also with fullgraph=True
            raise

    with mock.patch.object(OutputGraph, "call_user_compiler", call_user_compiler):
        yield graphs


def calls_that_count(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """A graph's calls but for grad mode settings: dynamo drops those under which nothing runs."""
    calls = (node for node in graph.nodes if node.op.startswith("call"))
    return [node for node in calls if node.target is not SET_GRAD]


def text_of_call(node: torch.fx.Node) -> str:
    """The same for calls of equal targets."""
    return f"{node.op} {getattr(node.target, '__module__', '')} {node.target}"


@private
def replace_run_repro(record: Callable[..., NoReturn]) -> None:
    """In this process, for good: a file that torch's minifier wrote calls ``record(level, mod,
    load_args, **options)`` at its end."""
    from torch._dynamo.repro import after_aot, after_dynamo

    for module, level in ((after_dynamo, Level.DYNAMO), (after_aot, Level.ATEN)):
        vars(module)["run_repro"] = functools.partial(record, level)


@private
def input_reader(save_dir: str | None) -> Any:
    """What ``load_args`` of such a file reads inputs with: stored, without ``save_dir`` random."""
    from torch._dynamo.debug_utils import InputReader

    reader = InputReader(save_dir=save_dir)
    symint = reader.symint
    # Scripts of 2.13 and later also pass expr=, which older readers lack and nothing here asks for.
    reader.symint = lambda value, **_: symint(value)  # type: ignore[method-assign]
    return reader


def guards_to_come() -> Callable[[], Exception | None]:
    """Asked after a backend returned: what dynamo will raise for what it did; None if it goes on.

    Dynamo builds guards from its ShapeEnv. A backend that traces the graph once more may leave
    symbols there that no input has. ``produce_guards_verbose``, ``tracked_fakes`` and the counters
    were seen in 2.11 to 2.15; without them nothing is found.
    """
    context = torch._guards.TracingContext.try_get()
    env: Any = getattr(getattr(context, "fake_mode", None), "shape_env", None)
    # Under translation validation torch records each call of the ShapeEnv and replays them.
    usable = hasattr(env, "produce_guards_verbose") and not env._translation_validation_enabled
    before = _counts(env)
    return lambda: _dry_run(env) if usable and _counts(env) != before else None


def _counts(env: Any) -> list[int]:
    names = ("guards", "var_to_range", "replacements", "divisible", "_version_counter")
    values = (getattr(env, name, ()) for name in names)
    return [value if isinstance(value, int) else len(value) for value in values]


def _dry_run(env: Any) -> Exception | None:
    tracked = list(getattr(env, "tracked_fakes", None) or ())
    roots = {_root_name(fake.source) for fake in tracked}
    foreign: list[str] = []

    def name(source: Any) -> str:
        if source.guard_source.name == "CONSTANT" and _root_name(source) not in roots:
            foreign.append(_root_name(source))  # a name of the backend's own
        return _source_name(source)

    try:
        with mock.patch.object(env.log, "disabled", True):  # dynamo will say it itself
            env.produce_guards_verbose(
                [fake.fake for fake in tracked],
                [fake.source for fake in tracked],
                source_ref=name,
                input_contexts=[fake.symbolic_context for fake in tracked],
                langs=("python",),
            )
    except Exception as error:  # noqa: BLE001 - whatever it is, dynamo will meet it
        raised_inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
        # what a program asks of its sizes is no backend's; another torch's may take other arguments
        is_programs = type(error).__name__ == "ConstraintViolationError"
        return error if raised_inside and not is_programs else None
    if foreign:
        return AssertionError(
            f"Guard failed on the same frame it was created: name {foreign[0]!r} is not defined"
        )
    return None


def _root_name(source: Any) -> str:
    while hasattr(source, "base"):
        source = source.base
    return _source_name(source)


def _source_name(source: Any) -> str:
    return str(source.name() if callable(source.name) else source.name)


@private
def mark_sizes(value: Any, dims: tuple[int, ...]) -> None:
    """Have dynamo take ``dims`` as symbols and the rest as numbers, also with ``dynamic=True``.
    ``mark_static`` does nothing while dynamo compiles; a fork of the failing program still does."""
    for dim in dims:
        torch._dynamo.maybe_mark_dynamic(value, dim)
    value._dynamo_static_indices = set(range(value.dim())).difference(dims)
    if value._base is not None and not dims:  # dynamo makes symbols for a view's base, too
        value._base._dynamo_static_indices = set(range(value._base.dim()))
