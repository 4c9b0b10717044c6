"""Which stage of compiling a repro's failure belongs to, what it passes with, and where the answer lies.

The same graph goes through torch.compile with one stage more each time; for inductor, torch's own bisector then; and with
changes that a program could make. It is asked for (``minidbg stages``, or a bug report): no announced script is changed, the
answer lies in ``.minidbg/stages``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.passes.split_module import split_module

from minidbg import asking, backends, repro, torch_internals, workers
from minidbg.fx.case import Case
from minidbg.fx.copying import copy_graph_module
from minidbg.fx.effects import is_call
from minidbg.judge.harness import HANDED_BACK
from minidbg.repro import Header
from minidbg.repro.folder import HIDDEN, hidden
from minidbg.words.deadline import Deadline
from minidbg.words.errors import NotReproduced
from minidbg.words.files import NOTE_LIMIT_BYTES, read_regular, replace_file
from minidbg.words.outcome import Outcome, Verdict
from minidbg.words.run_spec import DAMAGE, CallPath, Level
from minidbg.words.script_header import SCRIPT_LIMIT_BYTES
from minidbg.words.text import ordinal

FAILING = frozenset({"reproduces", "flaky", "changed", "crashed", "timeout"})
"""Verdicts of a stage at which the graph fails, in the same way or another."""

EARLIER = ("eager", "aot_eager", "aot_eager_decomp_partition")
"""Stages before a compiler: dynamo alone, with AOTAutograd, with decompositions and the partitioner."""

WHAT = {
    "eager": "dynamo's own graph fails without any backend, so torch.compile's frontend is at fault",
    "aot_eager": "it fails in AOTAutograd already, before any compiler",
    "aot_eager_decomp_partition": "it fails with decompositions and the partitioner already, before any compiler",
}

SWITCHES: Mapping[str, Any] = {
    "emulate_precision_casts": True, "pattern_matcher": False, "joint_graph_constant_folding": False, "layout_optimization": False,
    "comprehensive_padding": False, "split_reductions": False, "loop_ordering_after_fusion": False, "inplace_buffers": False,
    "allow_buffer_reuse": False, "epilogue_fusion": False, "max_fusion_size": 1, "cpp.simdlen": 1, "size_asserts": False,
    "use_pre_grad_passes": False, "use_joint_graph_passes": False, "use_post_grad_passes": False,
}  # fmt: skip
"""Documented switches of inductor that turn something off, the cheapest first."""


@dataclass(frozen=True, slots=True)
class StageReport:
    verdicts: Mapping[str, Verdict]
    """Stage -> verdict, in the order of compiling; the last one is the repro's own backend."""
    backend: str
    subsystem: str = ""
    """Of inductor: without it the failure is gone. ``lowerings``, ``post_grad_passes``, ``inductor_cse``."""
    number: int | None = None
    """Which application of the subsystem, counted from 0, brings the failure; None for one that is on or off."""
    detail: str = ""
    """What the bisector says of that application: a pass, a node."""
    passes: tuple[str, ...] = ()
    """Changes of the program with which the failure is gone: ```epilogue_fusion=False```, ``cpu``."""
    seconds: float = 0.0
    torch: str = ""
    notes: tuple[str, ...] = field(default=())
    """Why something could not be found out."""

    @property
    def guilty(self) -> str:
        return next((name for name, verdict in self.verdicts.items() if verdict in FAILING), "")

    @property
    def sentence(self) -> str:
        return "; ".join((self._stage(), *self.notes, *(f"passes with {one}" for one in self.passes)))

    def _stage(self) -> str:
        passing = [name for name, verdict in self.verdicts.items() if verdict is Verdict.GONE]
        listed = " and ".join(filter(None, (", ".join(passing[:-1]), *passing[-1:])))
        passed = f"{listed} pass{'es' if len(passing) == 1 else ''}" if passing else ""
        if not self.guilty:
            return f"no stage fails through torch.compile ({passed or 'none could be judged'})"
        if self.guilty in WHAT and self.guilty != self.backend:
            return WHAT[self.guilty] + (f"; {passed}" if passed else "")
        fails = f"{self.guilty} fails{self._culprit()}"
        return f"{passed}; {fails}" if passed else fails

    def _culprit(self) -> str:
        if not self.subsystem:
            return ""
        if self.number is None:
            return f", and passes with {self.subsystem} changed"
        told = f" ({self.detail})" if self.detail else ""
        return f", and passes when the {ordinal(self.number + 1)} of its {self.subsystem}{told} is skipped"

    def to_table(self) -> dict[str, Any]:
        told: dict[str, Any] = {"subsystem": self.subsystem, "number": self.number, "detail": self.detail}
        table: dict[str, Any] = {"guilty": self.guilty, "backend": self.backend}
        table |= {name: value for name, value in told.items() if value not in ("", None)}
        table |= {"seconds": round(self.seconds, 1), "torch": self.torch}
        table |= {
            name: list(texts) for name, texts in (("notes", self.notes), ("passes", self.passes)) if texts
        }
        return {**table, "verdicts": {name: str(verdict) for name, verdict in self.verdicts.items()}}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> StageReport:
        return cls(
            verdicts={str(name): Verdict(verdict) for name, verdict in table["verdicts"].items()},
            backend=str(table["backend"]),
            subsystem=str(table.get("subsystem", "")),
            number=None if table.get("number") is None else int(table["number"]),
            detail=str(table.get("detail", "")),
            seconds=float(table.get("seconds", 0.0)),
            torch=str(table.get("torch", "")),
            notes=tuple(map(str, table.get("notes", ()))),
            passes=tuple(map(str, table.get("passes", ()))),
        )


# --- where the answer lies ---


def kept_file(path: Path) -> Path:
    return repro.folder_of(path) / HIDDEN / "stages" / f"{path.stem}.json"


def stages_of(header: Header) -> StageReport | None:
    with contextlib.suppress(OSError, *DAMAGE):
        kept = json.loads(read_regular(kept_file(header.path), NOTE_LIMIT_BYTES))
        if kept["digest"] == digest_of(header.path):
            return StageReport.from_table(kept)
    return None


def keep_stages(path: Path, report: StageReport) -> None:
    hidden(repro.folder_of(path), "stages")
    table = {"digest": digest_of(path), **report.to_table()}
    replace_file(kept_file(path), json.dumps(table).encode())


def digest_of(path: Path) -> str:
    """Of the script alone: a graph of another text may fail at another stage."""
    return hashlib.sha1(read_regular(path, SCRIPT_LIMIT_BYTES), usedforsecurity=False).hexdigest()


# --- how it is found out ---

CALL_SECONDS = 20.0
"""Time limit of one run."""


class TimeIsUp(Exception):
    """The budget ran out inside the bisection."""


def find_stages(
    path: Path | str, *, seconds: float = 120.0, note: Callable[[str], object] = str
) -> StageReport:
    """Run the repro's graph through each stage, in child processes, for at most about ``seconds``.

    ``note`` hears what is run next.

    Runs the script's code. Raises UnreadableRepro, NotReproduced for a graph that reaches no torch.compile (one of
    AOTAutograd's, for a compiler alone), and whatever loading the script's backend raises.
    """
    began = time.monotonic()
    case = repro.load(path)
    if case.spec.level is Level.ATEN:
        raise NotReproduced(
            f"{path}: this graph is AOTAutograd's own, called with the compiler alone; there are no stages before it"
        )
    until = Deadline.after(seconds)
    with workers.own_kernel_cache():
        report = in_children(case, until, note)
    return replace(report, seconds=time.monotonic() - began)


def in_children(case: Case, until: Deadline, note: Callable[[str], object]) -> StageReport:
    def run(stage: str | None) -> Outcome:
        note(f"running it with {stage or case.backend.name}")
        return at_stage(case, stage, until)

    report = reported(case, until, run)
    bisectable = (
        case.backend.expression.strip("'\"") == "inductor"
        and not case.spec.traits.dies
        and report.guilty == report.backend
        and report.verdicts[report.guilty] is Verdict.REPRODUCES
    )
    if bisectable:
        note("inductor's passes, lowerings and options are bisected")
        report = bisected(case, report, until)
    if report.guilty != report.backend:
        return report
    return replace(report, passes=tuple(avoided(case, until, note)))


def reported(case: Case, until: Deadline, run: Callable[[str | None], Outcome]) -> StageReport:
    """What each stage does, as far as there is time; ``run`` gets its name, and None for the case's own backend, which is always run."""
    verdicts: dict[str, Verdict] = {}
    own = case.backend.name
    for name in (*EARLIER, own):
        if name not in verdicts and (name == own or not until.is_over):
            verdict = run(name if name != own else None).verdict
            late = verdict is Verdict.TIMEOUT and not case.spec.traits.endless  # slow, or a busy machine
            verdicts[name] = Verdict.SKIPPED if late else verdict
    return StageReport(verdicts, own, torch=torch.__version__)


def at_stage(case: Case, stage: str | None, until: Deadline, bisection: str = "") -> Outcome:
    """The case through torch.compile with ``stage`` as its backend, None for its own; within the ``bisection`` of that folder."""
    case = case.with_spec(call=CallPath.TORCH_COMPILE)
    if stage is not None:
        case = replace(case.with_spec(backend=backends.find(stage)), compiler=stage)
    return asking.submit(case, seconds=max(5.0, min(CALL_SECONDS, until.left())), bisection=bisection)


def bisected(case: Case, report: StageReport, until: Deadline) -> StageReport:

    def fails(bisection: str) -> bool:
        if until.is_over:
            raise TimeIsUp
        verdict = at_stage(case, None, until, bisection).verdict
        if verdict is Verdict.TIMEOUT:
            raise TimeIsUp
        if verdict in (Verdict.INVALID, Verdict.SKIPPED):
            raise RuntimeError(f"a run was {verdict}")
        return verdict is not Verdict.GONE  # failing otherwise is not passing

    try:
        found = torch_internals.bisect_inductor(fails)
    except TimeIsUp:
        return replace(report, notes=("the bisection of inductor ran out of time",))
    except (RuntimeError, ImportError) as error:  # raised when answers contradict each other
        return replace(report, notes=(f"torch's bisector gave up: {str(error).splitlines()[0][:200]}",))
    if found is None:
        return replace(report, notes=("torch's bisector found no stage at fault",))
    stage, subsystem, number, detail = found
    if stage != report.guilty:
        return replace(report, notes=(f"torch's bisector says {stage}",))
    if subsystem is None:
        return replace(report, notes=("no single pass, lowering or option of it is at fault",))
    return replace(report, subsystem=subsystem, number=number, detail=detail)


# --- what avoids it ---


def avoided(case: Case, until: Deadline, note: Callable[[str], object]) -> Iterator[str]:
    """The changes of the program with which the failure is gone, as far as there is time."""

    def passes(what: str, changed: Case) -> bool:
        if until.is_over:
            return False
        note(f"running it with {what}")
        outcome = at_stage(changed, None, until)
        return outcome.verdict is Verdict.GONE and HANDED_BACK not in outcome.reason

    options = [f"{name}={value!r}" for name, value in switches_of(case).items()]
    if options and passes("all switches of inductor off", with_switches(case, options)):
        while len(options) > 1:
            first, second = options[: len(options) // 2], options[len(options) // 2 :]
            half = next(
                (one for one in (first, second) if passes(", ".join(one), with_switches(case, one))), None
            )
            if half is None:
                break
            options = half
        yield f"`{', '.join(options)}`"
    yield from (what for what, changed in changes(case) if passes(what, changed))


def switches_of(case: Case) -> dict[str, Any]:
    """The switches that this torch has and the program has not set; none for another backend."""
    if case.backend.name != "inductor":
        return {}
    free = {*torch_internals.inductor_option_names()}.difference(case.backend.options)
    return {name: value for name, value in SWITCHES.items() if name in free}


def with_switches(case: Case, options: Sequence[str]) -> Case:
    values = {name: SWITCHES[name] for name in (text.partition("=")[0] for text in options)}
    return case.with_spec(
        backend=replace(case.backend, options={**case.backend.options, **values}, mode=None)
    )


def changes(case: Case) -> Iterator[tuple[str, Case]]:
    """What a program could change, in words, and the case as it then runs."""
    ref, context = case.backend, case.spec.context
    symbolic = bool(any(case.spec.dynamic_dims) or case.spec.dynamic)
    yield f"`dynamic={not symbolic}`", case.with_spec(dynamic=not symbolic, dynamic_dims=())
    if context.threads_matter and context.threads != 1:
        yield "one thread", case.with_spec(context=replace(context, threads=1))
    if sum(map(is_call, case.graph_module.graph.nodes)) > 1:
        made = f"minidbg.report.stages.op_by_op({ref.expression}, {dict(ref.options)!r}, {ref.mode!r})"
        split = replace(
            ref, expression=made, setup=(*ref.setup, "import minidbg.report.stages"), options={}, mode=None
        )
        compiler = op_by_op(case.compiler or backends.resolve(ref), ref.options, ref.mode)
        yield "a graph break between its ops", replace(case.with_spec(backend=split), compiler=compiler)
    tensors = [one for one in case.inputs if isinstance(one, torch.Tensor)]
    dtypes = {one.dtype for one in tensors}
    if any(not one.is_contiguous() for one in tensors):
        yield "`.contiguous()` before it", with_inputs(case, "contiguous")
    if dtypes & {torch.float16, torch.bfloat16}:
        yield "`.to(torch.float32)` before it", with_inputs(case, "to", torch.float32)
    if dtypes & {torch.bool, torch.uint8}:
        yield "`.to(torch.int64)` before it", with_inputs(case, "to", torch.int64)
    if {one.device.type for one in tensors} - {"cpu", "meta"}:
        on_cpu = (one.detach().cpu().requires_grad_(one.requires_grad) for one in tensors)
        inputs = tuple(next(on_cpu) if isinstance(one, torch.Tensor) else one for one in case.inputs)
        yield "its inputs on cpu", replace(case, inputs=inputs)


def with_inputs(case: Case, method: str, *arguments: Any) -> Case:
    """The case whose graph begins with that call of each tensor."""
    graph_module = copy_graph_module(case.graph_module)
    graph = graph_module.graph
    placeholders = graph.find_nodes(op="placeholder")
    with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
        for node, value in zip(placeholders, case.inputs, strict=True):
            if isinstance(value, torch.Tensor):
                changed = graph.call_method(method, (node, *arguments))
                node.replace_all_uses_with(
                    changed, delete_user_cb=lambda user, changed=changed: user is not changed
                )
    graph_module.recompile()
    return case.with_graph(graph_module, case.inputs)


def op_by_op(backend: Any, options: Mapping[str, Any], mode: str | None) -> Callable[..., Any]:
    """A backend that compiles each op by itself with ``backend``, as a program has it whose graph breaks between them."""

    def compile_parts(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        places = {node: number for number, node in enumerate(graph_module.graph.nodes)}
        split: Any = split_module(graph_module, None, places.__getitem__, keep_original_order=True)  # type: ignore[arg-type]
        for name, part in list(split.named_children()):
            if name.startswith("submod_"):
                split.add_module(
                    name, torch.compile(part, backend=backend, mode=mode, options=dict(options) or None)
                )
        return split.forward  # type: ignore[no-any-return]

    return compile_parts
