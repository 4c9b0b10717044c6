"""Four kinds of changes of a program: an option of the backend, ``dynamic=`` or the number of threads; another backend; the ops at
fault in eager, as a graph break around them has it; contiguous or cast tensors before them.
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

from minidbg import backends, torch_internals
from minidbg.fx.case import Case
from minidbg.fx.copying import copy_graph_module
from minidbg.fx.effects import is_call
from minidbg.source.expressions import Expressions
from minidbg.source.names import identifier, numbered
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
    """Statements for the program."""
    where: str
    """``in place of cumsum at train.py:41``."""
    case: Case
    changes_graph: bool = False
    """Whether the graph computes in another way, so that its eager results are compared with those before."""


WHERE = "where torch.compile is called, with its other arguments"


def with_backend(case: Case, **more: Any) -> Case:
    return case.with_spec(backend=replace(case.backend, **more), call=CallPath.TORCH_COMPILE)


# --- an option: of the backend, dynamic=, one thread ---


def inductor_options(case: Case) -> Mapping[str, Any]:
    """The switches that this torch has and the program has not set; none for another backend."""
    if case.backend.name != "inductor":
        return {}
    known = {*torch_internals.inductor_option_names()}.difference(case.backend.options)
    return {name: value for name, value in INDUCTOR_OPTIONS.items() if name in known}


def with_options(case: Case, options: Mapping[str, Any]) -> Change:
    return with_settings(case, f"options={dict(options)!r}", {**case.backend.options, **options})


def without_own_options(case: Case) -> Iterator[Change]:
    """The program's own mode and options, one left out at a time."""
    if case.backend.mode:
        yield with_settings(case, f"without mode={case.backend.mode!r}", {})
    for name in case.backend.options:
        rest = {key: value for key, value in case.backend.options.items() if key != name}
        yield with_settings(case, f"without the option {name!r}", rest)


def with_settings(case: Case, what: str, options: Mapping[str, Any]) -> Change:
    changed = with_backend(case, options=options, mode=None)
    return Change(what, call_of_compile(changed), WHERE, changed)


def call_of_compile(case: Case, backend: str = "{}{}", more: str = "") -> tuple[str, ...]:
    """The call of torch.compile, with the imports that it needs; ``backend`` has places for the expression and its settings."""
    given = {"mode": case.backend.mode, "options": dict(case.backend.options)}
    settings = "".join(f", {name}={value!r}" for name, value in given.items() if value)
    imports = [line for line in case.backend.setup if line.startswith(("import ", "from "))]
    return (
        *imports,
        f"model = torch.compile(model, backend={backend.format(case.backend.expression, settings)}{more})",
    )


def with_other_sizes(case: Case) -> Change:
    """All sizes symbolic, or all of them numbers."""
    symbolic = bool(any(case.spec.dynamic_dims) or case.spec.dynamic)
    other = case.with_spec(dynamic=not symbolic, dynamic_dims=(), call=CallPath.TORCH_COMPILE)
    cost = "a compilation for each size" if symbolic else "one compilation for many sizes"
    *imports, line = call_of_compile(case, more=f", dynamic={not symbolic}")
    return Change(f"dynamic={not symbolic}", (*imports, f"{line}  # {cost}"), WHERE, other)


def with_one_thread(case: Case) -> Iterator[Change]:
    """One thread, for a failure that several threads are part of."""
    if case.spec.context.threads_matter and case.spec.context.threads != 1:
        changed = case.with_spec(context=replace(case.spec.context, threads=1))
        yield Change("one thread", ("torch.set_num_threads(1)",), "before the first call", changed)


# --- another backend ---


def with_other_backends(case: Case) -> Iterator[Change]:
    """This graph through a backend that compiles nothing; the program's other graphs are still compiled."""
    for name in ("aot_eager", "eager"):
        lines = ("import minidbg", *call_of_compile(case, f'minidbg.wrap([{{}}, "{name}"]{{}})'))
        # the setup stays, which has the graph's custom operators defined
        changed = with_backend(case, name=name, expression=f'"{name}"', options={}, mode=None)
        yield Change(f"{name} for this graph", lines, WHERE, replace(changed, compiler=name))


# --- the ops at fault ---

MOST_CULPRITS = 8


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


def definitions(
    nodes: Sequence[fx.Node], suffix: str, of_input: Callable[[fx.Node, str], str], of_result: str = ""
) -> list[str]:
    """A function for each different call that ``nodes`` make, of the values that they take, to call in their place.

    ``of_input`` writes what a call takes, by its node and its name. Raises CannotWrite.
    """
    imports: dict[str, None] = {}
    found: dict[str, str] = {}
    for node in nodes:
        names = {one: f"x{number}" for number, one in enumerate(node.all_input_nodes)}
        write = Expressions(lambda one, names=names: of_input(one, names[one]))  # type: ignore[misc]
        value = write.node(node)
        imports |= dict.fromkeys(sorted(write.imports))
        value = f"({value}){of_result.format(dtype_of(node))}" if of_result and dtype_of(node) else value
        text = f"({', '.join(names.values())}):\n    return {value}"
        found.setdefault(text, numbered(f"{identifier(short_name(node))}_{suffix}", {*found.values()}))
    return [*imports, *(f"def {name}{text}" for text, name in found.items())]


def called_in_place(culprits: Sequence[fx.Node]) -> str:
    """Where the functions of ``definitions`` are called."""
    places = ", ".join(dict.fromkeys(place for node in culprits if (place := location(node))))
    return f"in place of {names_of(culprits)} at {places or 'a line that is not known'}"


def names_of(culprits: Sequence[fx.Node]) -> str:
    return ", ".join(dict.fromkeys(short_name(node) for node in culprits))


def short_name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def with_changed_inputs(case: Case, small: Case, culprits: Sequence[fx.Node]) -> Iterator[Change]:
    """The tensors that the ops at fault take, contiguous or cast."""
    dtypes = {value.dtype for value in small.inputs if isinstance(value, torch.Tensor)}
    kinds: list[tuple[str, str, tuple[Any, ...]]] = [("contiguous", ".contiguous()", ())]
    if dtypes & {torch.float16, torch.bfloat16}:
        kinds.insert(0, ("to", ".to(torch.float32)", (torch.float32,)))
    if dtypes & {torch.bool, torch.uint8}:
        kinds.insert(0, ("to", ".to(torch.int64)", (torch.int64,)))
    for method, text, arguments in kinds:
        changed = changed_before(case, culprits, method, arguments)
        if changed is not None:

            def of_input(node: fx.Node, name: str, text: str = text) -> str:
                return name + text if is_tensor(node, case) else name

            suffix, back = ("of_cast", ".to({})") if method == "to" else ("of_contiguous", "")
            lines = definitions(culprits, suffix, of_input, back)
            what = f"{text} before {names_of(culprits)}"
            yield Change(what, tuple(lines), called_in_place(culprits), changed, changes_graph=True)


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


def outside_the_graph(case: Case, culprits: Sequence[fx.Node]) -> Change:
    """The ops at fault run in eager between two compiled parts: what a graph break around their lines does."""
    names = tuple(node.name for node in culprits)
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
    lines = [
        f"@torch.compiler.disable\n{text}" if text.startswith("def ") else text
        for text in definitions(culprits, "in_eager", lambda node, name: name)
    ]
    changed = replace(case.with_spec(backend=around, call=CallPath.TORCH_COMPILE), compiler=backend)
    return Change(
        f"a graph break around {names_of(culprits)}", tuple(lines), called_in_place(culprits), changed
    )


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
