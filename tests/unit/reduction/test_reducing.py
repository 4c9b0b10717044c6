"""A reduction as a whole: what it leaves on disk, where it begins after an end, and what it does with a flaky failure.

Oracle calls run in this process, and a script is "verified" by running its case once more: what is tested here is the order of
things. tests/integration has the real children and interpreters.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import planted_backends
import pytest
import torch
from torch import fx

from minidbg import backends, oracle, repro, workers
from minidbg.codegen.size import call_nodes, call_targets
from minidbg.core.errors import CannotWrite, Interrupted, NotReproduced
from minidbg.core.outcome import Kind, Outcome, Signature, Verdict
from minidbg.core.run_spec import STAND_IN_NOTE, BackendRef, CallPath, Provenance, RunSpec
from minidbg.fx.case import Case
from minidbg.judge.run import NOT_CALLED
from minidbg.oracle.execute import ANOTHER_GRAPH, execute
from minidbg.reduction import problem, publishing, reducing, session
from minidbg.reduction.result import Limits, ReductionResult
from minidbg.repro.crash_records import reduced_crash
from minidbg.workers import Ended


@pytest.fixture
def asked_cases(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """Oracle calls in this process; the list gets each case that is really run."""
    asked: list[Case] = []

    def submit(case: Case, *, seconds: float, memory_bytes: int | None = None, **_: Any) -> Outcome:
        asked.append(case)
        return execute(case)

    drafts: dict[Path, Case] = {}

    def judged(case: Case, draft: Path, *_: Any, **__: Any) -> Outcome:
        drafts[draft] = case
        return execute(case)

    def run_alone(draft: Path, **_: Any) -> Ended:
        return Ended(exit_status=execute(drafts[draft]).verdict.exit_status)

    monkeypatch.setattr(session.oracle, "ask", submit)
    monkeypatch.setattr(publishing, "judge_draft", judged)
    monkeypatch.setattr(publishing.repro, "run_alone", run_alone)
    monkeypatch.setattr(session.Standbys, "start", lambda *_: None)
    return asked


def chain() -> tuple[fx.GraphModule, torch.Tensor]:
    """Twenty-four cheap calls, one of which is the culprit."""

    def forward(x: torch.Tensor) -> Any:
        for layer in range(24):
            x = torch.sin(x) if layer != 17 else torch.relu(x)
            x = x + 1
        return (x,)

    return fx.symbolic_trace(forward), torch.randn(4, 3)


def refuses_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Its message names no op, so that there is something to search."""
    if torch.relu in [node.target for node in graph_module.graph.nodes]:
        raise ValueError("no kernel")
    return graph_module.forward


def failing_case(compiler: Any = refuses_relu, **more: Any) -> Case:
    graph_module, x = chain()
    name = "planted_backends.raises_on_relu"
    backend = BackendRef(name, name, setup=("import planted_backends",))
    provenance = Provenance(nodes=call_nodes(graph_module), inputs=1)
    return Case(graph_module, (x,), RunSpec(backend, **more), provenance, compiler)


def with_its_failure(case: Case) -> Case:
    return publishing.with_failure(case, execute(case))


@pytest.fixture
def case() -> Case:
    """One that has failed, with its signature."""
    return with_its_failure(failing_case())


def reduced(case: Case, folder: Path, **limits: Any) -> ReductionResult:
    return reducing.reduce_and_publish(case, folder, limits=Limits(**limits))


def before_each_question(patch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """What happens in the world before each call of the oracle from here on."""
    submit = session.oracle.ask
    patch.setattr(session.oracle, "ask", lambda case, **how: (happens(), submit(case, **how))[1])


def raises_if(holds: bool, error: type[BaseException]) -> None:
    if holds:
        raise error


def targets_of(path: Path) -> tuple[str, ...]:
    return call_targets(repro.load(path).graph_module)


def test_the_result_is_put_down_and_the_best_so_far_goes(
    tmp_path: Path, asked_cases: list[Case], case: Case
) -> None:
    written = reduced(case, tmp_path)
    assert written.certified
    assert len(asked_cases) == written.oracle_calls
    (done,) = tmp_path.glob(".minidbg/reductions/*/done.json")
    assert ReductionResult.from_json(json.loads(done.read_text())).path == written.path
    assert not list(tmp_path.glob(".minidbg/reductions/*/best.py")), "the verified repro is in its place"


@pytest.fixture
def best(tmp_path: Path, case: Case) -> Path:
    """The best so far of a reduction of ``case`` that was ended."""
    smaller = fx.symbolic_trace(lambda x: (torch.relu(torch.sin(x)) + 1,))
    ended = session.Session(Limits(), folder=repro.reduction_folder(case, tmp_path))
    ended.best = case.with_graph(smaller, case.inputs)
    ended.keep_best()
    (path,) = tmp_path.glob(".minidbg/reductions/*/best.py")
    return path


@pytest.mark.parametrize("is_damaged", [False, True])
def test_after_a_kill_a_reduction_begins_from_the_best_so_far_where_that_can_be_read(
    tmp_path: Path,
    asked_cases: list[Case],
    case: Case,
    best: Path,
    caplog: pytest.LogCaptureFixture,
    is_damaged: bool,
) -> None:
    if is_damaged:
        best.write_text(best.read_text()[:300])
    written = reduced(case, tmp_path)
    assert call_nodes(asked_cases[0].graph_module) == (call_nodes(case.graph_module) if is_damaged else 3)
    assert (f"{best} is skipped: " in caplog.text) == is_damaged
    assert (written.certified, written.nodes_before) == (True, call_nodes(case.graph_module))
    assert targets_of(written.path) == ("torch.relu",)
    assert not best.exists()


def test_where_the_best_so_far_does_not_fail_any_more_the_whole_is_asked(
    tmp_path: Path, asked_cases: list[Case], case: Case, best: Path
) -> None:
    mended = failing_case(planted_backends.returns_gm_forward, signature=case.signature)
    with pytest.raises(NotReproduced):
        reduced(mended, tmp_path)
    asked = [call_nodes(one.graph_module) for one in asked_cases]
    assert (asked[0], {*asked}) == (3, {3, call_nodes(case.graph_module)})


def test_a_quick_reduction_writes_nothing_but_its_result(
    tmp_path: Path, asked_cases: list[Case], monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    written: list[str] = []
    write = repro.write

    def noted(case: Case, path: Path, *form: Any, **how: Any) -> Path:
        written.append(path.name)
        return write(case, path, *form, **how)

    monkeypatch.setattr(repro, "write", noted)
    assert reduced(case, tmp_path).path is not None
    assert written[0] == "draft.py"
    assert not set(written) & {"best.py"}


def test_the_best_so_far_of_a_long_search_is_on_disk(
    tmp_path: Path, asked_cases: list[Case], monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    monkeypatch.setattr(session, "BEST_EVERY_S", 0.0)
    seen: list[int] = []

    def looks() -> None:
        best = tmp_path.glob(".minidbg/reductions/*/best.py")
        seen.extend(repro.read_header(path).nodes for path in best)

    before_each_question(monkeypatch, looks)
    reduced(case, tmp_path)
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) > 1
    assert seen[-1] == 1


def test_ctrl_c_leaves_the_best_as_a_repro_that_is_not_certified(
    tmp_path: Path, asked_cases: list[Case], monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    pressed: list[bool] = []

    def interrupted_once() -> None:
        if len(asked_cases) == 4 and not pressed:
            pressed.append(True)
            raise KeyboardInterrupt

    before_each_question(monkeypatch, interrupted_once)
    written = reduced(case, tmp_path)
    assert written.path is not None
    assert not written.certified
    assert 1 <= written.nodes_after < call_nodes(case.graph_module)
    assert "interrupted by Ctrl-C" in written.notes
    again = reduced(case, tmp_path)
    assert again.certified, "started again, it goes on to the end"


def test_a_second_ctrl_c_names_what_there_is(
    tmp_path: Path, asked_cases: list[Case], monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    before_each_question(monkeypatch, lambda: raises_if(len(asked_cases) >= 4, KeyboardInterrupt))
    with pytest.raises(Interrupted, match=r"best so far is .*best\.py"):
        reduced(case, tmp_path)


@pytest.mark.parametrize("jobs", [2, 4])
def test_the_result_does_not_depend_on_the_number_of_jobs(
    tmp_path: Path, asked_cases: list[Case], monkeypatch: pytest.MonkeyPatch, jobs: int, case: Case
) -> None:
    together: list[int] = []

    class InTurn(nullcontext[Any]):
        """Counts the questions of a pool, and asks one after the other."""

        def __enter__(self) -> Any:
            return self

        def map(self, run: Callable[[Case], Outcome], cases: Sequence[Case]) -> Iterator[Outcome]:
            together.append(len(cases))
            return map(run, cases)

    monkeypatch.setattr(session, "ThreadPoolExecutor", InTurn)
    monkeypatch.setattr(problem, "WORTH_LOOKING_AHEAD_S", 0.0)
    alone = reduced(case, tmp_path / "alone", jobs=1)
    assert not together
    many = reduced(case, tmp_path / "many", jobs=jobs)
    assert max(together) in range(2, jobs + 1)
    assert alone.path.name == many.path.name


class FailsSometimes:
    """A backend whose relu fails in a share of its runs, and in each with an input of many elements; its dice are its own."""

    def __init__(self, share: float, seed: int) -> None:
        self.share, self.dice = share, random.Random(seed)

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            there = any(node.target is torch.relu for node in graph_module.graph.nodes)
            if there and self.dice.random() < self.share:
                raise RuntimeError("it went wrong")
            return graph_module.forward(*args)

        return run


def flaky_case(share: float, seed: int, **more: Any) -> Case:
    always = execute(failing_case(FailsSometimes(1.0, 0)))
    return publishing.with_failure(failing_case(FailsSometimes(share, seed, **more)), always)


@pytest.mark.parametrize(
    "seed", [0, 2, 3, 4, 5, 6]
)  # with 1, the five runs that tell flaky ones apart all fail
def test_a_failure_in_one_of_two_runs_is_reduced_to_its_culprit(
    tmp_path: Path, asked_cases: list[Case], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    def verify(case: Case, exactness: Any, folder: Path, **_: Any) -> tuple[Outcome, Path | None]:
        runs = (execute(case) for _ in range(case.spec.attempts))
        seen = next((one for one in runs if one.verdict is Verdict.REPRODUCES), Outcome(Verdict.GONE))
        return seen, repro.write(case, repro.drafts(folder) / "draft.py") if seen.signature else None

    monkeypatch.setattr(publishing, "verify", verify)
    case = flaky_case(0.5, seed)
    written = reduced(case, tmp_path, jobs=1)
    assert targets_of(written.path) == ("torch.relu",)
    assert any(note.startswith("flaky: it fails in") for note in written.notes)
    assert repro.read_header(written.path).spec.attempts > 1


def test_a_failure_that_is_too_rare_is_kept_whole_and_said_so(
    tmp_path: Path, asked_cases: list[Case]
) -> None:
    with pytest.raises(NotReproduced):
        reduced(flaky_case(0.02, 1), tmp_path)


def test_the_script_tells_what_the_backend_says_of_the_graph_in_it(
    tmp_path: Path, asked_cases: list[Case]
) -> None:
    def counts(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        calls = [node.target for node in graph_module.graph.nodes if node.op.startswith("call")]
        if torch.relu in calls:
            raise ValueError(f"no kernel for {len(calls)} calls")
        return graph_module.forward

    whole = with_its_failure(failing_case(counts))
    assert "no kernel for 48 calls" in whole.provenance.message
    written = reduced(whole, tmp_path)
    assert "no kernel for 1 calls" in written.path.read_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LoweringException: size 9", "LoweringException: size 2"),
        ("InductorError: LoweringException: size 9", None),
    ],
)
def test_the_outermost_exception_is_told_where_it_was_before(
    case: Case, before: str, after: str | None
) -> None:
    """Another torch wraps a failure in another exception, and the script looks for the text."""
    failed = replace(case, provenance=Provenance(message=before))
    said = Outcome(Verdict.REPRODUCES, message="InductorError: LoweringException: size 2")
    meeting = SimpleNamespace(last_shown=said)
    told = publishing.repro_message(failed, failed, SimpleNamespace(smallest=failed), meeting)
    assert told == (after or said.message)


def test_of_a_wrong_result_the_figures_of_the_smallest_are_told(case: Case) -> None:
    before = "x gives wrong results: output 3 differs: by 9\nRMSE against float64: backend 8\ngradients go wrong between a and b"
    wrong = replace(
        case.with_spec(signature=Signature(Kind.ACCURACY, message="output: float")),
        provenance=Provenance(message=before),
    )
    said = Outcome(
        Verdict.REPRODUCES, message="output 0 differs: by 2; RMSE against float64: backend 1", seconds=1.0
    )
    found, meeting = SimpleNamespace(smallest=wrong), SimpleNamespace(last_shown=said)
    assert publishing.repro_message(wrong, wrong, found, meeting) == (
        "output 0 differs: by 2\nRMSE against float64: backend 1"
    )
    larger = replace(wrong, graph_module=chain()[0])
    assert publishing.repro_message(larger, wrong, found, meeting) == before


def test_a_script_that_misses_its_failure_says_what_it_printed_and_what_the_judge_saw(
    case: Case, tmp_path: Path, asked_cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = "fails differently: no 'kern' in 'x'"
    shows = Ended(exit_status=125, stderr_tail=repro.NOT_JUDGED_HERE)
    ends = iter([Ended(exit_status=3, stdout=printed), shows])
    monkeypatch.setattr(publishing.repro, "run_alone", lambda draft, **_: next(ends))
    written = reduced(case, tmp_path)
    assert written.path is not None
    _, _, why = " ".join(written.path.read_text().split()).partition("only shows it")
    assert printed in why
    assert "judge saw: ValueError: no kernel" in why


def test_other_failures_met_on_the_way_are_kept_as_captures(tmp_path: Path, asked_cases: list[Case]) -> None:
    def two_bugs(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        names = [node.target for node in graph_module.graph.nodes]
        if torch.relu in names:
            raise ValueError("no kernel")
        if torch.sin in names:
            raise TypeError("no kernel")
        return graph_module.forward

    case = with_its_failure(failing_case(two_bugs))
    written = reduced(case, tmp_path)
    assert written.also_found == 1
    ((said, path),) = written.others
    assert said in written.line
    assert repro.read_header(Path(path)).provenance.message.startswith(said)
    (capture,) = repro.captures(tmp_path).glob("*.py")
    assert repro.read_header(capture).spec.signature is not None
    assert repro.read_header(capture).spec.signature.types == ("TypeError",)  # type: ignore[union-attr]


def test_what_passes_is_told(tmp_path: Path, asked_cases: list[Case]) -> None:
    both = {torch.relu, torch.sin}

    def refuses_both(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        if both <= {node.target for node in graph_module.graph.nodes}:
            raise ValueError("no kernel")
        return graph_module.forward

    written = reduced(with_its_failure(failing_case(refuses_both)), tmp_path)
    assert repro.read_header(written.path).provenance.neighbour in (
        "passes without torch.relu",
        "passes without torch.sin",
    )


def test_a_failure_seen_again_is_answered_by_its_repro(
    tmp_path: Path, asked_cases: list[Case], monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    limits = Limits()
    first = reducing.reduce_and_publish(case, tmp_path, limits=limits, just_seen=True)
    asked_cases.clear()
    monkeypatch.setattr(repro, "run", lambda path, seconds, **_: Outcome(Verdict.REPRODUCES))
    again = reducing.reduce_and_publish(case, tmp_path, limits=limits, just_seen=True)
    assert again.path == first.path
    assert again.known_before
    assert not oracle
    monkeypatch.setattr(repro, "run", lambda path, seconds, **_: Outcome(Verdict.GONE))
    assert not reducing.reduce_and_publish(case, tmp_path, limits=limits, just_seen=True).known_before


def test_a_large_capture_is_believed_and_its_whole_is_not_compiled(
    tmp_path: Path, asked_cases: list[Case], monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    monkeypatch.setattr(reducing, "SMALL_WHOLE", 40)
    written = reduced(case, tmp_path)
    assert written.certified
    assert written.nodes_after == 1
    assert max(call_nodes(asked.graph_module) for asked in asked_cases) < call_nodes(case.graph_module)


def test_a_large_capture_of_what_was_mended_since_is_found_out(
    tmp_path: Path, asked_cases: list[Case], monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    monkeypatch.setattr(reducing, "SMALL_WHOLE", 40)
    mended = failing_case(planted_backends.returns_gm_forward, signature=case.signature)
    with pytest.raises(NotReproduced, match="does not show its failure here: gone"):
        reduced(mended, tmp_path)
    sizes = [call_nodes(asked.graph_module) for asked in asked_cases]
    assert sizes.index(call_nodes(case.graph_module)) < 12, "a few small questions, then the whole"


@pytest.mark.parametrize(
    "reason", [f"{ANOTHER_GRAPH}: 2 of them", f"{NOT_CALLED}: AssertionError: no graph module"]
)
@pytest.mark.parametrize(("jobs", "few"), [(1, False), (2, True)])
def test_a_path_on_which_dynamo_takes_no_graph_as_it_is_is_left_after_few_questions(
    tmp_path: Path,
    asked_cases: list[Case],
    monkeypatch: pytest.MonkeyPatch,
    case: Case,
    jobs: int,
    few: bool,
    reason: str,
) -> None:
    def submit(asked: Case, **_: Any) -> Outcome:
        asked_cases.append(asked)
        other = asked.spec.call is CallPath.TORCH_COMPILE
        return Outcome(Verdict.INVALID, reason=reason) if other else execute(asked)

    monkeypatch.setattr(session.oracle, "ask", submit)
    if few:  # the questions of single removals are asked together
        graph = fx.symbolic_trace(lambda x: (torch.relu(x.sin().cos().sin().cos().sin().cos().sin().cos()),))
        case = case.with_graph(graph, case.inputs)
    written = reducing.reduce_and_publish(case, tmp_path, limits=Limits(jobs=jobs), just_seen=True)
    assert written.certified
    assert written.nodes_after == 1
    assert sum(asked.spec.call is CallPath.TORCH_COMPILE for asked in asked_cases) <= 4 + jobs


def test_a_whole_that_left_its_device_in_error_is_asked_before_anything_smaller(
    tmp_path: Path, asked_cases: list[Case]
) -> None:
    """An index out of range does that in eager too; nothing was run to find that out, since the device refused."""
    failed = failing_case(signature=Signature(Kind.RUNTIME))
    graph = fx.symbolic_trace(lambda x, index: (torch.relu(x.sin())[index],))
    story = replace(failed.provenance, notes=(STAND_IN_NOTE,))
    case = replace(failed, graph_module=graph, inputs=(torch.randn(4), torch.tensor([4])), provenance=story)
    with pytest.raises(
        NotReproduced, match="this is not a failure of the backend: eager itself fails: IndexError"
    ):
        reducing.reduce_and_publish(case, tmp_path, limits=Limits(), just_seen=True)
    assert call_nodes(asked_cases[0].graph_module) == 3


def test_a_hang_that_was_a_busy_machine_is_refuted_by_few_questions_about_the_whole(
    tmp_path: Path, asked_cases: list[Case]
) -> None:
    case = failing_case(planted_backends.returns_gm_forward, signature=Signature(Kind.HANG))
    with pytest.raises(NotReproduced, match="does not show its failure here: gone"):
        reducing.reduce_and_publish(case, tmp_path, limits=Limits(), just_seen=True)
    assert {call_nodes(asked.graph_module) for asked in asked_cases} == {call_nodes(case.graph_module)}


def test_a_large_graph_gets_longer_than_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    case, hangs = failing_case(), failing_case(signature=Signature(Kind.HANG))
    asks = session.Session(Limits(seconds=300.0, call_seconds=60.0))
    assert asks.seconds_for(case) == 60.0
    monkeypatch.setattr(session, "LARGE", 20)
    assert 140 < asks.seconds_for(case) <= 150
    assert asks.seconds_for(hangs) == 60.0, "its limit is what shows it"


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.HANG, Kind.RUNTIME])
def test_the_forkserver_tries_nothing_that_ends_or_hangs_its_children(kind: Kind) -> None:
    case = failing_case(signature=Signature(kind)).with_spec(backend=backends.find_reference("inductor"))
    warmup = oracle.warmup_for(case)
    assert warmup.warm == ("inductor" if kind is Kind.RUNTIME else "imports")


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (Outcome(Verdict.INVALID, reason="eager itself fails"), "eager itself fails"),
        (
            Outcome(Verdict.GONE, stderr="compiling\nfell back to eager\n"),
            "there the backend agrees with eager; the last line printed was: fell back to eager",
        ),
        (Outcome(Verdict.GONE), "there the backend agrees with eager; nothing was printed"),
        (
            Outcome(Verdict.CHANGED, message="no kernel for cos"),
            "the last line printed was: no kernel for cos",
        ),
    ],
    ids=["reason", "stderr", "nothing", "message"],
)
def test_a_reduction_without_a_repro_says_what_its_last_run_showed(
    tmp_path: Path, asked_cases: list[Case], monkeypatch: pytest.MonkeyPatch, last: Outcome, said: str
) -> None:
    """No reason known is never an answer: the run's own output is."""
    monkeypatch.setattr(publishing, "judge_draft", lambda *_, **__: last)
    written = reducing.reduce_and_publish(failing_case(), tmp_path, limits=Limits(), just_seen=True)
    assert written.path is None
    assert written.line.endswith(said)


@pytest.fixture
def asks() -> Iterator[session.Session]:
    """A session with an interpreter ahead that has nothing to import."""
    case = failing_case(signature=Signature(Kind.COMPILE))
    with session.Standbys(case) as ahead:
        ahead.ahead = workers.StandbyPlan((), os.environ)
        START_AHEAD(ahead)
        yield session.Session(Limits(), ahead=ahead)


START_AHEAD = session.Standbys.start
"""Before a fixture has taken it away."""


def verified(asks: session.Session, draft: Path, text: str) -> tuple[Outcome, workers.Ended | None]:
    case = failing_case(signature=Signature(Kind.COMPILE))

    def write(*_: Any, **__: Any) -> Path:
        draft.write_text(text)
        return draft

    return publishing.run_both_ways(case, draft, write, asks, 60.0)


def test_a_script_by_itself_is_not_waited_for_when_the_judge_sees_no_failure(
    asks: session.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both run at the same time: one that never ends must not hold up the other's answer."""
    monkeypatch.setattr(publishing, "judge_draft", lambda *_, **__: Outcome(Verdict.GONE))
    (alone,) = asks.ahead.waiting
    outcome, ended = verified(asks, tmp_path / "draft.py", "import time; time.sleep(300)")
    assert (outcome.verdict, ended) == (Verdict.GONE, None)
    assert alone.asked.recv(1) == b"", "it has been ended"


def test_a_script_by_itself_runs_while_it_is_judged(
    asks: session.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(*_: Any, **__: Any) -> Outcome:
        until = time.monotonic() + 60
        while not (tmp_path / "ran").exists() and time.monotonic() < until:
            time.sleep(0.01)
        return Outcome(Verdict.REPRODUCES if (tmp_path / "ran").exists() else Verdict.GONE)

    monkeypatch.setattr(publishing, "judge_draft", judged)
    text = f"open({str(tmp_path / 'ran')!r}, 'w'); raise SystemExit(1)"
    outcome, ended = verified(asks, tmp_path / "draft.py", text)
    assert outcome.verdict is Verdict.REPRODUCES
    assert ended is not None
    assert ended.exit_status == 1


def test_a_search_that_met_another_failure_judges_its_script_twice(
    asks: session.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def judged(case: Case, draft: Path, seconds: float, fork: Any = None, **_: Any) -> Outcome:
        given.append(fork)
        return Outcome(Verdict.REPRODUCES)

    monkeypatch.setattr(publishing, "judge_draft", judged)
    other = Outcome(Verdict.CHANGED, signature=Signature(Kind.COMPILE, message="one"))
    asks.learn(failing_case(signature=Signature(Kind.COMPILE)), other)
    verified(asks, tmp_path / "draft.py", "raise SystemExit(1)")
    assert len(given) == 2
    assert None not in given, "in forks"


def test_what_a_fork_does_not_show_is_asked_in_a_new_interpreter(
    asks: session.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork may lack what the failure needs, an accelerator or threads: no form is given up for that."""

    def judged(case: Case, draft: Path, seconds: float, fork: Any = None, **_: Any) -> Outcome:
        return Outcome(Verdict.REPRODUCES if fork is None else Verdict.GONE)

    monkeypatch.setattr(publishing, "judge_draft", judged)
    outcome, ended = verified(asks, tmp_path / "draft.py", "raise SystemExit(1)")
    assert outcome.verdict is Verdict.REPRODUCES
    assert ended is not None
    assert ended.exit_status == 1


def test_an_interpreter_that_was_ended_is_replaced_by_a_fresh_one(
    asks: session.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "judge_draft", lambda *_, **__: Outcome(Verdict.REPRODUCES))
    (alone,) = asks.ahead.waiting
    alone.cancel()
    _, ended = verified(asks, tmp_path / "draft.py", "raise SystemExit(1)")
    assert ended is not None
    assert ended.exit_status == 1


@pytest.mark.parametrize(
    ("verdicts", "verdict", "failed"),
    [
        ((Verdict.REPRODUCES, Verdict.REPRODUCES), Verdict.REPRODUCES, None),
        ((Verdict.REPRODUCES, Verdict.GONE, Verdict.REPRODUCES), Verdict.FLAKY, 2),
        ((Verdict.REPRODUCES, Verdict.CHANGED, Verdict.GONE), Verdict.FLAKY, 1),
        ((Verdict.REPRODUCES, Verdict.CRASHED), Verdict.FLAKY, 1),
    ],
)
def test_several_runs_of_a_script_make_one_outcome(
    verdicts: Sequence[Verdict], verdict: Verdict, failed: int | None
) -> None:
    expected, other = Signature(Kind.COMPILE, message="a"), Signature(Kind.COMPILE, message="b")
    signatures = {Verdict.REPRODUCES: expected, Verdict.CHANGED: other}
    outcomes = [Outcome(one, signature=signatures.get(one)) for one in verdicts]
    outcome = publishing.of_several_runs(outcomes)
    assert (outcome.verdict, outcome.reproduced, outcome.signature) == (verdict, failed, expected)


def test_reducing_a_capture_keeps_the_time_limit_asked_for_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 15: a crash took limits of its own, and the daemon reduced again what was reduced already."""
    path = tmp_path / ".minidbg" / "captures" / "crash_relu.py"
    path.parent.mkdir(parents=True)
    path.write_text("a capture")
    asked: list[Limits] = []

    def reduced(case: object, folder: Path, *, limits: Limits, **_: object) -> object:
        asked.append(limits)
        return ReductionResult(folder / "crash_small.py", 3, 1, 7, 2.0, True, Verdict.REPRODUCES)

    case = SimpleNamespace(backend=BackendRef("b", "b"))
    monkeypatch.setattr(reducing.repro, "load", lambda path: case)
    monkeypatch.setattr(reducing, "reduce_and_publish", reduced)
    monkeypatch.setenv("MINIDBG_TIME_LIMIT_S", "8")
    reducing.reduce_path(path, limits=Limits())
    assert asked[0].call_seconds == 8.0
    assert path.with_suffix(".reduced").exists()
    assert reduced_crash(tmp_path) is None
    (tmp_path / "crash_small.py").touch()
    assert reduced_crash(tmp_path)["path"] == str(tmp_path / "crash_small.py")
    path.write_text("another")
    monkeypatch.delenv("MINIDBG_TIME_LIMIT_S")
    reducing.reduce_path(path, limits=Limits())
    assert asked[1].call_seconds == Limits().call_seconds


def test_the_line_names_the_repro_as_it_is_typed_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reduction in a fresh interpreter knows the whole path, a forked one what the program gave."""
    monkeypatch.chdir(tmp_path)
    figures: Any = {"nodes_before": 3, "nodes_after": 1, "oracle_calls": 5, "seconds": 1.0, "certified": True}
    for path in (Path("repros/r.py"), tmp_path / "repros/r.py"):
        line = ReductionResult(path, **figures, verdict=Verdict.REPRODUCES).line
        assert line == "3 -> 1 nodes, 5 runs, 1.0 s; run: python repros/r.py"
    elsewhere = ReductionResult(
        Path("/elsewhere/r.py"), **figures, verdict=Verdict.REPRODUCES, known_before=True
    )
    assert elsewhere.line.endswith("run: python /elsewhere/r.py")


def test_a_script_that_lacks_its_backend_is_announced_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    figures: Any = {"nodes_before": 3, "nodes_after": 1, "oracle_calls": 5, "seconds": 1.0, "certified": True}
    written = ReductionResult(
        Path("to/s.py"), **figures, verdict=Verdict.REPRODUCES, lacking="a closure of train.py:4"
    )
    assert written.line == (
        "3 -> 1 nodes, 5 runs, 1.0 s; a reduced graph whose backend is to be filled in, a closure of train.py:4: "
        "edit `backend = ...` in to/s.py, or give it one: minidbg reduce to/s.py --backend MODULE:EXPRESSION"
    )
    assert ReductionResult.from_json(written.to_json()) == written
    assert "lacking" not in replace(written, lacking="").to_json()
    assert "run: python to/s.py" in replace(written, known_before=True).line


def test_what_fails_in_eager_too_is_called_no_failure_of_the_backend(tmp_path: Path) -> None:
    case = failing_case()
    narrow = case.with_graph(case.graph_module, tuple("no tensor" for _ in case.inputs))
    with pytest.raises(NotReproduced, match="no failure of the backend: eager itself fails"):
        reduced(narrow, tmp_path)


@pytest.mark.parametrize("limit", [799, 800])
def test_no_more_values_are_written_than_the_limit_allows(
    tmp_path: Path, asked_cases: list[Case], limit: int
) -> None:
    values = torch.randint(50, (100,), generator=torch.Generator().manual_seed(7))

    def refuses_these(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        def run(x: torch.Tensor) -> Any:
            raises_if(torch.equal(x, values), ValueError)
            return graph_module(x)

        return run

    case = with_its_failure(replace(failing_case(refuses_these), inputs=(values,)))
    if limit < 800:
        with pytest.raises(CannotWrite, match="take 800 bytes, and value_limit_bytes allows 799"):
            reduced(case, tmp_path, value_limit_bytes=limit)
    else:
        path = reduced(case, tmp_path, value_limit_bytes=limit).path
        assert torch.equal(repro.load(path).inputs[0], values)
