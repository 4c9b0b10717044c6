"""Changes of a program. Some leave its graph as it is: options and modes of its backend, symbolic sizes, one thread, another backend.

Others concern the ops at fault: a copy or a cast before them, their fallback to eager inside the backend or outside of it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.fx.passes.split_module import split_module

from minidbg import asking, backends, repro, torch_internals
from minidbg.fx.case import Case
from minidbg.fx.copying import clone_values, copy_graph_module
from minidbg.fx.effects import is_call
from minidbg.source.origins import location
from minidbg.words.run_spec import CallPath

INDUCTOR_OPTIONS: Mapping[str, Any] = {
    "emulate_precision_casts": True,
    "pattern_matcher": False,
    "joint_graph_constant_folding": False,
    "layout_optimization": False,
    "comprehensive_padding": False,
    "split_reductions": False,
    "loop_ordering_after_fusion": False,
    "inplace_buffers": False,
    "allow_buffer_reuse": False,
    "epilogue_fusion": False,
    "max_fusion_size": 1,
    "cpp.simdlen": 1,
    "size_asserts": False,
    "use_pre_grad_passes": False,
    "use_joint_graph_passes": False,
    "use_post_grad_passes": False,
}
"""Documented switches of inductor that turn something off, at about what they cost, the cheapest first."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the user's program, and the capture as it then runs."""

    what: str
    """In a few words: ``.contiguous() before cumsum``."""
    lines: tuple[str, ...]
    """To write into the program."""
    where: str
    """``train.py:41``, or a sentence."""
    case: Case
    changes_graph: bool = False
    """Whether the graph computes in another way, so that its eager results are compared with those before."""


WHERE = "where torch.compile is called"


def inductor_options(case: Case) -> Mapping[str, Any]:
    """The switches that this torch has and the program has not set; none for another backend."""
    if case.backend.name != "inductor":
        return {}
    known = {*torch_internals.inductor_option_names()}.difference(case.backend.options)
    return {name: value for name, value in INDUCTOR_OPTIONS.items() if name in known}


def with_options(case: Case, options: Mapping[str, Any]) -> Change:
    given = {**case.backend.options, **options}
    what = f"options={dict(options)!r}"
    line = f"torch.compile(..., backend={case.backend.expression}, options={given!r})"
    return Change(what, (line,), WHERE, with_backend(case, options=given, mode=None))


def with_backend(case: Case, **more: Any) -> Case:
    return case.with_spec(backend=replace(case.backend, **more), call=CallPath.TORCH_COMPILE)


def without_own_settings(case: Case) -> Iterator[Change]:
    """The program's own mode and options, one left out at a time."""
    expression = case.backend.expression
    if case.backend.mode:
        line = f"torch.compile(..., backend={expression})"
        yield Change(f"without mode={case.backend.mode!r}", (line,), WHERE, with_backend(case, mode=None))
    for name in case.backend.options:
        rest = {key: value for key, value in case.backend.options.items() if key != name}
        line = f"torch.compile(..., backend={expression}" + (f", options={rest!r})" if rest else ")")
        yield Change(f"without the option {name!r}", (line,), WHERE, with_backend(case, options=rest))


def with_other_sizes(case: Case) -> Iterator[Change]:
    """All sizes symbolic, or all of them numbers."""
    symbolic = any(case.spec.dynamic_dims) or case.spec.dynamic
    other = case.with_spec(dynamic=not symbolic, dynamic_dims=(), call=CallPath.TORCH_COMPILE)
    cost = "a compilation for each size" if symbolic else "one compilation for many sizes"
    line = f"torch.compile(..., dynamic={not symbolic})  # {cost}"
    yield Change(f"dynamic={not symbolic}", (line,), WHERE, other)


def with_one_thread(case: Case) -> Iterator[Change]:
    """One thread, for a failure that several threads are part of."""
    if case.spec.context.threads_matter and case.spec.context.threads != 1:
        changed = case.with_spec(context=replace(case.spec.context, threads=1))
        yield Change("one thread", ("torch.set_num_threads(1)",), "before the first call", changed)


def in_lite_mode(case: Case) -> Iterator[Change]:
    """The mode of inductor in which each op falls back to eager's kernel and nothing is fused."""
    if case.backend.name == "inductor" and "lite" in torch_internals.inductor_modes():
        line = f'torch.compile(..., backend={case.backend.expression}, mode="lite")'
        yield Change('mode="lite"', (line,), WHERE, with_backend(case, options={}, mode="lite"))


def with_other_backends(case: Case) -> Iterator[Change]:
    """This graph through a backend that compiles nothing; the program's other graphs are still compiled."""
    for name in ("aot_eager", "eager"):
        line = f'torch.compile(..., backend=minidbg.wrap([{case.backend.expression}, "{name}"]))'
        changed = replace(
            case.with_spec(backend=backends.find(name), call=CallPath.TORCH_COMPILE), compiler=name
        )
        yield Change(f"{name} for this graph", (line,), WHERE, changed)


MOST_CULPRITS = 8
ATEN_SECONDS = 60.0


def culprits_of(case: Case, small: Case) -> list[fx.Node]:
    """The capture's nodes that the repro is made of: of its targets, and of its lines where those are known."""
    wanted = {(str(node.op), repr_of(node)) for node in small.graph_module.graph.nodes if is_call(node)}
    places = {place for node in small.graph_module.graph.nodes if (place := location(node))}
    nodes = [
        node
        for node in case.graph_module.graph.nodes
        if is_call(node) and node.target is not operator.getitem and (str(node.op), repr_of(node)) in wanted
    ]
    there = [node for node in nodes if location(node) in places]
    return (there or nodes)[:MOST_CULPRITS]


def repr_of(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else torch_internals.GivenCall.of(node).text


def with_changed_inputs(case: Case, small: Case, culprits: Sequence[fx.Node]) -> Iterator[Change]:
    """A copy or a cast of the tensors that the ops at fault take."""
    dtypes = {value.dtype for value in small.inputs if isinstance(value, torch.Tensor)}
    kinds: list[tuple[str, str, tuple[Any, ...]]] = [
        ("contiguous", ".contiguous()", ()),
        ("clone", ".clone()", ()),
    ]
    if dtypes & {torch.float16, torch.bfloat16}:
        kinds.insert(0, ("to", ".float()", (torch.float32,)))
    if torch.bool in dtypes or torch.uint8 in dtypes:
        kinds.insert(0, ("to", ".to(torch.int64)", (torch.int64,)))
    for method, text, arguments in kinds:
        changed = changed_before(case, culprits, method, arguments)
        if changed is not None:
            names = ", ".join(dict.fromkeys(short_name(node) for node in culprits))
            lines = tuple(
                f"{short_name(node)}: {text} on each tensor that it takes"
                + (", and .to(dtype) on its result" if method == "to" else "")
                for node in culprits[:3]
            )
            yield Change(f"{text} before {names}", lines, places_of(culprits), changed, changes_graph=True)


def changed_before(
    case: Case, culprits: Sequence[fx.Node], method: str, arguments: tuple[Any, ...]
) -> Case | None:
    """The case in which the culprits take changed tensors; None where they write to them."""
    graph_module = copy_graph_module(case.graph_module)
    names = {node.name for node in culprits}
    for node in list(graph_module.graph.nodes):
        if node.name not in names:
            continue
        if node.op == "call_method" and str(node.target).endswith("_"):
            return None
        taken = [one for one in node.all_input_nodes if is_tensor(one, case)]
        with graph_module.graph.inserting_before(node):
            for one in taken:
                node.replace_input_with(one, graph_module.graph.call_method(method, (one, *arguments)))
        dtype = dtype_of(node)
        if method == "to" and dtype is not None:
            with graph_module.graph.inserting_after(node):
                back = graph_module.graph.call_method("to", (node, dtype))
            node.replace_all_uses_with(back, delete_user_cb=lambda user, back=back: user is not back)
    graph_module.recompile()
    return case.with_graph(graph_module, case.inputs).with_spec(call=CallPath.TORCH_COMPILE)


def is_tensor(node: fx.Node, case: Case) -> bool:
    if node.op == "placeholder":
        names = [one.name for one in case.graph_module.graph.nodes if one.op == "placeholder"]
        return isinstance(dict(zip(names, case.inputs, strict=True)).get(node.name), torch.Tensor)
    return node.op != "get_attr" or not isinstance(node.target, str) or "body" not in node.target


def dtype_of(node: fx.Node) -> torch.dtype | None:
    example = node.meta.get("example_value")
    return example.dtype if isinstance(example, torch.Tensor) else None


def inside_the_backend(case: Case, small: Case) -> Iterator[Change]:
    """Inductor's own fallback: it calls the kernels that eager has for the ops at fault, and compiles the rest."""
    operators = aten_calls_of(small) if case.backend.name == "inductor" else []
    if not operators:
        return
    lines = torch_internals.inductor_fallback_lines(operators)
    names = ", ".join(one.removeprefix("torch.ops.") for one in operators)
    ref = replace(case.backend, setup=(*case.backend.setup, *lines))
    changed = replace(case.with_spec(backend=ref, call=CallPath.TORCH_COMPILE), compiler=None)
    yield Change(
        f"inductor's fallback for {names}", tuple(lines), "before " + WHERE.removeprefix("where "), changed
    )


def aten_calls_of(case: Case) -> list[str]:
    """``torch.ops.aten.cumsum.default``: the operators that eager calls for the case, but for views, asked in a child."""
    value = asking.ask(f"{__name__}:aten_calls", case, seconds=ATEN_SECONDS)
    return [str(one) for one in value] if isinstance(value, list) else []


def aten_calls(argument: Mapping[str, Any], note: object) -> list[str]:
    """In the child: the answer to ``aten_calls_of``."""
    case = repro.load(argument["paths"][0])
    with torch_internals.aten_calls() as called:
        case.graph_module(*clone_values(case.inputs))
    return list(dict.fromkeys(called))


def outside_the_graph(case: Case, culprits: Sequence[fx.Node]) -> Change:
    """The ops at fault run in eager between two compiled parts: what a graph break around their lines does."""
    names = tuple(node.name for node in culprits)
    ops = ", ".join(dict.fromkeys(short_name(node) for node in culprits))
    ref = case.backend
    expression = f"minidbg.extras.workarounds.eager_around({ref.expression}, {names!r}, {dict(ref.options)!r}, {ref.mode!r})"
    around = replace(
        ref,
        expression=expression,
        setup=(*ref.setup, "import minidbg.extras.workarounds"),
        options={},
        mode=None,
    )
    backend = eager_around(case.compiler or backends.resolve(ref), names, ref.options, ref.mode)
    lines = (
        "@torch.compiler.disable",
        f"def outside(*args): ...  # the call of {ops} goes in here",
    )
    changed = replace(case.with_spec(backend=around, call=CallPath.TORCH_COMPILE), compiler=backend)
    return Change(f"a graph break around {ops}", lines, places_of(culprits), changed)


def short_name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def places_of(nodes: Sequence[fx.Node]) -> str:
    """``train.py:41, train.py:50``."""
    places = dict.fromkeys(place for node in nodes if (place := location(node)))
    return ", ".join(places) or "the lines are not known"


def eager_around(
    backend: Any, names: Sequence[str], options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """A backend that compiles what stands before and after the nodes of those names with ``backend``, and runs them in eager."""

    def compile_around(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        runs = itertools.groupby([*graph_module.graph.nodes], key=lambda node: node.name in names)
        parts = {node: number for number, (_, nodes) in enumerate(runs) for node in nodes}
        split: Any = split_module(graph_module, None, parts.__getitem__, keep_original_order=True)  # type: ignore[arg-type]
        for name, part in list(split.named_children()):
            if name.startswith("submod_") and not any(node.name in names for node in part.graph.nodes):
                split.add_module(
                    name, torch.compile(part, backend=backend, mode=mode, options=dict(options or {}) or None)
                )
        return split.forward  # type: ignore[no-any-return]

    return compile_around
