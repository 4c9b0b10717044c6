"""Which stage of compiling has a repro's failure, and what it passes with.

The same graph goes through torch.compile with one stage more each time; for inductor, with parts of
it switched off; and with changes that a program could make. It is asked for (``minidbg stages``, or
a bug report), and no announced script is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minidbg import backends, oracle, repro, torch_internals, workers
from minidbg.core.errors import NotReproduced
from minidbg.core.machine import Deadline
from minidbg.core.outcome import Outcome, Verdict
from minidbg.core.records import plain
from minidbg.core.run_spec import CallPath, Level
from minidbg.fx.case import Case
from minidbg.judge.run import HANDED_BACK
from minidbg.torch_internals.devices import kept_on_cpu

NOT_FAILING = {
    Verdict.GONE: "yes", Verdict.SKIPPED: "not judged", Verdict.INVALID: "not judged"
}  # fmt: skip
"""Verdicts of a stage at which no failure shows -> whether its bug is gone."""
EARLIER = {
    "eager": "dynamo's own graph fails without any backend, so torch.compile's frontend is at fault",
    "aot_eager": "it fails in AOTAutograd already, before any compiler",
    "aot_eager_decomp_partition": "it fails with decompositions and the partitioner already,"
    " before any compiler",
}
"""Stages before a compiler, and what a failure of each means."""

OPTION_SWITCHES: Sequence[Mapping[str, Any]] = (
    {
        "numerics": "strict", "emulate_precision_casts": True, "pattern_matcher": False,
        "joint_graph_constant_folding": False, "layout_optimization": False,
        "comprehensive_padding": False, "split_reductions": False, "size_asserts": False,
        "loop_ordering_after_fusion": False, "inplace_buffers": False, "allow_buffer_reuse": False,
        "epilogue_fusion": False, "max_fusion_size": 1, "cpp.simdlen": 1,
        "use_pre_grad_passes": False, "use_joint_graph_passes": False,
        "use_post_grad_passes": False,
    },
    {"fallback_by_default": True},
)  # fmt: skip
"""Documented switches of inductor that turn something off, the cheapest first; and its lowerings,
which take all other parts with them."""
STRICT = "`numerics='strict'`"
"""Sums in eager's order, on devices where torch has one (2.14)."""
CALL_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class StageReport:
    verdicts: Mapping[str, Verdict]
    """Stage -> verdict, in the order of compiling; the last one is the repro's own backend."""
    backend: str
    passes: tuple[str, ...] = ()
    """What the failure is gone with: ```epilogue_fusion=False```, ``one thread``."""
    seconds: float = 0.0

    @property
    def guilty(self) -> str:
        failing = (name for name, verdict in self.verdicts.items() if verdict not in NOT_FAILING)
        return next(failing, "")

    @property
    def sentence(self) -> str:
        strict = "gone with strict numerics: order of rounding"
        passes = (strict if what == STRICT else f"passes with {what}" for what in self.passes)
        return "; ".join((self._stage(), *passes))

    @property
    def disabled(self) -> dict[str, str]:
        """What was left out or changed -> whether the failure was gone without it."""
        whole = {"eager": "AOTAutograd", "aot_eager": "decompositions and partitioner"}
        before = takewhile(lambda name: name != self.backend, self.verdicts)
        stages = {whole.get(name, self.backend): self.verdicts[name] for name in before}
        words = {**dict.fromkeys(Verdict, "no"), **NOT_FAILING}
        rows = {what: words[verdict] for what, verdict in stages.items()}
        return {**dict(reversed(rows.items())), **dict.fromkeys(self.passes, "yes")}

    def _stage(self) -> str:
        passing = [name for name, verdict in self.verdicts.items() if verdict is Verdict.GONE]
        listed = " and ".join(filter(None, (", ".join(passing[:-1]), *passing[-1:])))
        passed = f"{listed} pass{'es' if len(passing) == 1 else ''}" if passing else ""
        if not self.guilty:
            return f"no stage fails through torch.compile ({passed or 'none could be judged'})"
        fails = f"{self.guilty} fails" if self.guilty == self.backend else EARLIER[self.guilty]
        return f"{passed}; {fails}" if passed else fails

    def to_json(self) -> dict[str, Any]:
        return {"guilty": self.guilty, **plain(self), "seconds": round(self.seconds, 1)}


# --- how it is found out ---


@workers.own_kernel_cache()
def find_stages(
    path: Path | str,
    *,
    seconds: float = 120.0,
    note: Callable[[str], object] = str,
    submit: workers.Submit = workers.submit,
) -> StageReport:
    """Run the repro's graph through each stage, in child processes, for at most about ``seconds``,
    its own backend in any case.

    ``note`` hears what is run next. Runs the script's code. Raises UnreadableRepro, NotReproduced
    for a graph that reaches no torch.compile (one of AOTAutograd's, for a compiler alone), and
    whatever loading the script's backend raises.
    """
    with kept_on_cpu(repro.read_header(path).spec.device):
        until, case = Deadline.after(seconds), repro.load(path)
        if case.spec.level is Level.ATEN:
            raise NotReproduced(
                f"{path}: this graph is AOTAutograd's own, called with the compiler alone;"
                " there are no stages before it"
            )
        own, case = case.backend.name, case.with_spec(call=CallPath.TORCH_COMPILE)

        def run(case: Case, what: str) -> Outcome:
            if until.is_over and what != own:
                return Outcome(Verdict.SKIPPED, reason="the time is over")
            note(f"running it with {what}")
            limit = max(5.0, min(CALL_SECONDS, until.left()))
            return oracle.ask(case, seconds=limit, submit=submit)

        verdicts: dict[str, Verdict] = {}
        for name in dict.fromkeys((*EARLIER, own)):
            stage = case
            if name != own:
                reference = backends.find_reference(name)
                stage = replace(case.with_spec(backend=reference), compiler=name)
            verdict = run(stage, name).verdict
            # slow, or a busy host
            late = verdict is Verdict.TIMEOUT and not case.spec.traits.endless
            verdicts[name] = Verdict.SKIPPED if late else verdict
        report = StageReport(verdicts, own)
        passes = tuple(avoided(case, run)) if report.guilty == own else ()
        return replace(report, passes=passes, seconds=seconds + until.clock() - until.at)


# --- what a program can change ---


def avoided(case: Case, run: Callable[[Case, str], Outcome]) -> Iterator[str]:
    """The changes of the program with which the failure is gone, as far as there is time."""

    def passes(what: str, changed: Case) -> bool:
        outcome = run(changed, what)
        return outcome.verdict is Verdict.GONE and HANDED_BACK not in outcome.reason

    def passes_with(options: Mapping[str, Any]) -> bool:
        backend = replace(case.backend, options={**case.backend.options, **options}, mode=None)
        return passes(options_text(options), case.with_spec(backend=backend))

    names = torch_internals.inductor_option_names() if case.backend.name == "inductor" else ()
    free = {*names}.difference(case.backend.options)
    for switches in OPTION_SWITCHES:
        options = {name: value for name, value in switches.items() if name in free}
        if not options or not passes_with(options):
            continue
        while len(options) > 1:
            items, middle = [*options.items()], len(options) // 2
            half = next(filter(passes_with, (dict(items[:middle]), dict(items[middle:]))), None)
            if half is None:
                break
            options = half
        yield f"`{options_text(options)}`"
        break
    yield from (what for what, changed in changed_cases(case) if passes(what, changed))


def options_text(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def changed_cases(case: Case) -> Iterator[tuple[str, Case]]:
    """What a program could change, in words, and the case as it then runs."""
    context = case.spec.context
    symbolic = bool(any(case.spec.dynamic_dims) or case.spec.dynamic)
    yield f"`dynamic={not symbolic}`", case.with_spec(dynamic=not symbolic, dynamic_dims=())
    if context.threads_matter and context.threads != 1:
        yield "one thread", case.with_spec(context=replace(context, threads=1))
    for what, is_meant, change in CHANGES_OF_INPUTS:
        meant = [isinstance(one, torch.Tensor) and is_meant(one) for one in case.inputs]
        pairs = zip(case.inputs, meant, strict=True)
        # not in the graph: a program calls it before what it compiles
        changed = (
            change(one.detach()).requires_grad_(one.requires_grad) if to_change else one
            for one, to_change in pairs
        )
        if any(meant):
            yield what, replace(case, inputs=tuple(changed))


CHANGES_OF_INPUTS: Sequence[tuple[str, Callable[[Tensor], bool], Callable[[Tensor], Tensor]]] = (
    ("`.contiguous()` before it", lambda x: not x.is_contiguous(), Tensor.contiguous),
    ("`.to(torch.float32)` before it", lambda x: x.dtype in (torch.float16, torch.bfloat16), Tensor.float),
    ("`.to(torch.int64)` before it", lambda x: x.dtype in (torch.bool, torch.uint8), Tensor.long),
    ("its inputs on cpu", lambda x: x.device.type not in ("cpu", "meta"), Tensor.cpu),
)
"""What a program can do to the inputs of its model, and for which of them it is done."""
