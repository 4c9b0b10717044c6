"""What a hunt counts, keeps on disk and compares; what its batches say of planted backends, in this process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import python
from torch.fx import symbolic_trace

from minidbg.extras.hunt import candidates, hunting, judging, programs, samples, states, table
from minidbg.extras.hunt.commands import tell
from minidbg.extras.hunt.hunting import Hunt
from minidbg.extras.hunt.states import RANKS, CellState, HuntFolder
from minidbg.fx.case import Case
from minidbg.judge.harness import HANDED_BACK
from minidbg.reduction.result import ReductionResult
from minidbg.source.size import call_targets
from minidbg.words.deadline import Deadline
from minidbg.words.errors import BadSetting
from minidbg.words.outcome import Kind, Outcome, Signature, Verdict
from minidbg.words.run_spec import BackendRef, RunSpec
from minidbg.workers import ChildResult

BACKEND = BackendRef("toy", '"toy"')
HEAD = {"backend": "toy", "seed": 0}


def record(op: str, state: CellState, dtype: str = "float32", number: int = 0, **more: Any) -> dict[str, Any]:
    candidate = {"op": op, "dtype": dtype, "device": "cpu", "number": number}
    return {
        "candidate": candidate,
        "id": candidates.name_of(candidate),
        "state": state,
        "seconds": 0.1,
        **more,
    }


def failing(op: str, key: str, dtype: str = "float32", **more: Any) -> dict[str, Any]:
    more = {"message": "wrong: 3", "family": "f", "targets": [op], "capture": f"/captures/{key}.py", **more}
    return record(op, CellState.WRONG, dtype, key=key, **more)


def store_with(folder: Path, *records: dict[str, Any]) -> HuntFolder:
    store = HuntFolder.open(folder, BACKEND, HEAD)
    for one in records:
        states.append(store.results_file, one)
    store.read()
    return store


def outcome(kind: Kind = Kind.COMPILE, message: str = "", types: tuple[str, ...] = ()) -> Outcome:
    return Outcome(Verdict.REPRODUCES, Signature(kind, types=types, message=message), message=message)


# ---- states


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (Outcome(Verdict.GONE), CellState.OK),
        (Outcome(Verdict.GONE, reason=HANDED_BACK), CellState.HANDED_BACK),
        (
            Outcome(Verdict.GONE, reason="output 0 is not judged: eager differs from itself"),
            CellState.SKIPPED,
        ),
        (Outcome(Verdict.INVALID, reason="eager itself fails: RuntimeError"), CellState.SKIPPED),
        (Outcome(Verdict.INVALID, reason="dynamo handed another graph to the backend: 1"), CellState.OK),
        (outcome(Kind.COMPILE, "KeyError: 'x'", ("KeyError",)), CellState.FAILS),
        (outcome(Kind.COMPILE, "KeyError: 'x'", ("NotImplementedError",)), CellState.UNSUPPORTED),
        (outcome(Kind.RUNTIME, "RuntimeError: dtype bool is not supported"), CellState.UNSUPPORTED),
        (
            outcome(types=("torch._subclasses.fake_tensor.DataDependentOutputException",)),
            CellState.HANDED_BACK,
        ),
        (outcome(Kind.ACCURACY, "output: float"), CellState.WRONG),
        (outcome(Kind.CRASH), CellState.CRASHED),
        (outcome(Kind.HANG), CellState.HANGS),
    ],
)
def test_each_outcome_is_one_state_of_the_table(found: Outcome, state: CellState) -> None:
    assert judging.state_of(found) is state


def test_every_state_has_a_rank() -> None:
    assert sorted(RANKS) == sorted(CellState)


def test_a_name_stands_for_its_variants_and_a_wrong_one_is_answered_with_the_nearest() -> None:
    known = ["div.floor", "div.trunc", "divide", "addcdiv"]
    assert samples.matching(["torch.div"], known, "operator") == ["div.floor", "div.trunc"]
    assert samples.matching(["*div*"], known, "operator") == known
    with pytest.raises(BadSetting, match="did you mean 'divide'"):
        samples.matching(["divid"], known, "operator")


def test_one_exception_is_one_failure_in_all_ops_and_a_wrong_result_is_one_for_each_op() -> None:
    def key(found: Outcome, op: str) -> str:
        return judging.key_of(found, {"op": op}, [])

    raised, wrong = outcome(Kind.COMPILE, "KeyError: 'x'"), outcome(Kind.ACCURACY, "output: float")
    assert key(raised, "add") == key(raised, "mul")
    assert key(wrong, "add") != key(wrong, "mul")


def test_what_is_wrong_with_a_negation_not_carried_out_is_one_failure_in_all_ops() -> None:
    """As ``x.conj().imag`` gives it; inductor of torch 2.13 and 2.14 reads the memory below it."""

    def deaf(graph_module: Any, example_inputs: Any) -> Any:
        def run(*inputs: Any) -> Any:
            return graph_module(*(torch._neg_view(one) if one.is_neg() else one for one in inputs))

        return run

    found = outcome(Kind.ACCURACY, "output: float")
    values = torch.randn(4, dtype=torch.complex64).conj().imag
    for inputs, lazy in (((values,), True), ((values.resolve_neg(),), False)):
        case = Case(
            symbolic_trace(lambda x: (x.exp(),)),
            inputs,
            RunSpec(backend=BackendRef("deaf", '"deaf"')),
            compiler=deaf,
        )
        assert judging.is_of_lazy_inputs(case, found) is lazy
    assert len({judging.key_of(found, {"op": op}, [op], lazy=True) for op in ("exp", "sin")}) == 1


# ---- what is on disk


def test_a_failure_is_counted_and_a_repro_that_two_failures_share_makes_them_one(tmp_path: Path) -> None:
    store = store_with(tmp_path, failing("add", "a"), failing("add", "a", "int64"), failing("sub", "b"))
    assert [(one.key, one.count) for one in store.cases()] == [("a", 2), ("b", 1)]
    store.settle("a", {"path": "/repros/one.py"})
    store.settle("b", {"path": "/repros/one.py"})
    assert [(one.key, one.count, list(one.ops)) for one in store.cases()] == [("a", 3, ["add", "sub"])]


def test_a_failure_that_does_not_show_again_is_none(tmp_path: Path) -> None:
    store = store_with(tmp_path, failing("add", "a"))
    store.settle("a", {"refused": "the case does not show its failure here: gone"})
    assert store.cases() == []
    assert [one.first for one in store.refuted()] == ["add float32 cpu 0"]
    assert [cell.state for cell in table.cells_of(store)] == [CellState.SKIPPED]


def test_a_random_graph_with_every_call_of_a_known_repro_is_that_failure_again(tmp_path: Path) -> None:
    store = store_with(tmp_path, failing("add", "a"))
    store.settle("a", {"path": "/repros/one.py", "targets": ["add"]})
    graph = {"candidate": {"program": {}}, "id": "graph 1", "state": CellState.WRONG, "family": "f"}
    states.append(store.results_file, {**graph, "key": "g", "targets": ["relu", "add"]})
    states.append(store.results_file, {**graph, "id": "graph 2", "key": "h", "targets": ["relu"]})
    store.read()
    assert {one.key: one.count for one in store.cases()} == {"a": 2, "h": 1}


def test_a_hunt_that_was_killed_goes_on_and_a_complete_one_begins_with_what_failed(tmp_path: Path) -> None:
    store = store_with(tmp_path, record("add", CellState.OK), failing("sub", "a"))
    store.settle("a", {"path": "/repros/one.py"})
    with open(store.results_file, "ab") as file:
        file.write(b'{"half a li')  # killed in a write
    again = HuntFolder.open(tmp_path, BACKEND, HEAD)
    assert again.resumed
    assert [one.repro for one in again.cases()] == [Path("/repros/one.py")]
    again.end()
    anew = HuntFolder.open(tmp_path, BACKEND, HEAD)
    assert not anew.resumed
    assert not anew.results
    assert [one["op"] for one in anew.corpus] == ["sub"]


def test_a_changed_backend_is_hunted_anew(tmp_path: Path) -> None:
    source = tmp_path / "toy.py"
    source.write_text("one")
    backend = BackendRef("toy", "toy", files=(str(source),))
    states.append(HuntFolder.open(tmp_path, backend, HEAD).results_file, record("add", CellState.OK))
    assert HuntFolder.open(tmp_path, backend, HEAD).resumed
    source.write_text("another")
    assert not HuntFolder.open(tmp_path, backend, HEAD).resumed


# ---- the table and the baseline


def test_a_cell_shows_the_worst_of_its_samples(tmp_path: Path) -> None:
    worse = failing("add", "a") | {"id": "add float32 cpu 1"}
    store = store_with(tmp_path, record("add", CellState.OK), worse, record("<mul>", CellState.OK))
    cells = {cell.op: cell for cell in table.cells_of(store)}
    assert cells["add"].state is CellState.WRONG
    assert table.totals(table.cells_of(store)) == {CellState.OK: 1, CellState.WRONG: 1}


def test_a_baseline_tells_new_worse_and_fixed(tmp_path: Path) -> None:
    others = record("mul", CellState.UNSUPPORTED), record("sub", CellState.OK)
    before = store_with(tmp_path / "1", failing("add", "a"), *others)
    file = tmp_path / "hunt.toml"
    table.write_baseline(file, before, "toy")
    same = table.compare(file, before, "toy")
    assert (list(same.new), list(same.fixed)) == ([], [])
    fixed = record("add", CellState.OK), record("mul", CellState.FAILS)
    after = store_with(tmp_path / "2", *fixed, failing("sub", "b", message="now wrong"))
    compared = table.compare(file, after, "toy")
    new = [text.partition(":")[0] for text in compared.new]
    assert new == ["mul float32", "sub float32", "new failure (sub)"]
    assert list(compared.fixed) == ["add float32: ok, was wrong"]
    with pytest.raises(BadSetting, match="baseline of 'toy', not of 'other'"):
        table.compare(file, after, "other")
    file.write_text("ops = 3")
    with pytest.raises(BadSetting, match="delete it"):
        table.compare(file, after, "toy")


# ---- random graphs


def test_random_graphs_are_the_same_for_the_same_seed_and_run_in_eager() -> None:
    drawn = programs.drawn(3, 6)
    assert drawn == programs.drawn(3, 6)
    assert drawn == json.loads(json.dumps(drawn))
    for one in drawn:
        assert programs.LEAST_STEPS <= len(one["steps"]) <= programs.MOST_STEPS
        programs.as_module(one)(*map(programs.made, one["inputs"]))


@pytest.mark.parametrize(
    ("step", "is_undefined"), [([".exp_", [{"v": 0}], {}], True), ([".exp_", [{"v": 1}], {}], False), ([".exp", [{"v": 0}], {}], False)]
)  # fmt: skip
def test_no_graph_writes_to_a_tensor_that_overlaps_itself(step: list[Any], is_undefined: bool) -> None:
    overlapping, sliced = (
        programs.made({**INPUT, "shape": [3, 4], "layout": layout}) for layout in ("overlapping", "sliced")
    )
    assert programs.writes_over_itself(step, [overlapping, sliced]) is is_undefined


@pytest.mark.parametrize("layout", [*dict.fromkeys(programs.LAYOUTS)])
@pytest.mark.parametrize("shape", [[2, 3, 4, 2], [], [0], [1, 0, 3]])
def test_an_input_is_the_same_tensor_each_time(layout: str, shape: list[int]) -> None:
    spec = {**INPUT, "dtype": "complex64", "shape": shape, "layout": layout}
    one, two = programs.made(spec), programs.made(spec)
    assert list(one.shape) == shape
    assert torch.equal(one, two)
    assert (one.stride(), one.is_conj(), one.is_neg()) == (two.stride(), two.is_conj(), two.is_neg())


CONTROL = [
    ["steps.cond", [{"v": 0}, ["sin"], ["neg"]], {}],
    ["steps.while_loop", [{"v": 0}, ["sin"]], {}],
    ["steps.mapped", [{"v": 0}, ["sin", "neg"]], {}],
    ["steps.scanned", [{"v": 0}, ["tanh"]], {}],
    ["steps.sized", [{"v": 0}, "half"], {}],
]


@pytest.mark.parametrize("step", CONTROL, ids=lambda step: step[0])
def test_control_flow_and_sizes_reach_the_graph_and_give_what_plain_python_gives(step: list[Any]) -> None:
    spec = {**RELU["inputs"][0], "shape": [4, 3]}
    one = {"inputs": [spec], "steps": [step], "outputs": [1], "dynamic": True}
    graph_module, inputs, _ = programs.built(one)
    wanted = {"steps.mapped": "map_impl", "steps.scanned": "scan", "steps.sized": "floordiv"}
    name = wanted.get(step[0], step[0].removeprefix("steps."))
    assert name in {getattr(node.target, "__name__", "") for node in graph_module.graph.nodes}
    graph_module.recompile()
    assert torch.equal(graph_module(*inputs)[0], programs.run_step(step, [programs.made(spec)]))


# ---- twists


@pytest.mark.parametrize("twist", [one for one, _, _ in samples.ROUNDS if one])
def test_a_twisted_sample_is_a_program_that_eager_runs(twist: str) -> None:
    op = "sum" if "into_" in twist else "add"
    found = samples.built(samples.Sample(op, "float32", "cpu", 1, twist), 0, by_dynamo=False)
    assert found is not None
    graph_module, inputs, _ = found
    graph_module(*inputs)


@pytest.mark.parametrize(
    ("op", "dtype"), [("empty_like", "float32"), ("nn.functional.interpolate.bilinear", "uint8")]
)
def test_what_eager_leaves_open_is_no_candidate(op: str, dtype: str) -> None:
    with pytest.raises(samples.NoSamples, match=r"memory|fixed point"):
        samples.built(samples.Sample(op, dtype, "cpu", 0), 0)


def test_what_is_fused_around_an_operator_leaves_its_result_as_it_was() -> None:
    plain, _, _ = samples.built(samples.Sample("sub", "float32", "cpu", 1), 0, by_dynamo=False)  # type: ignore[misc]
    fused, inputs, _ = samples.built(samples.Sample("sub", "float32", "cpu", 1, "fused"), 0, by_dynamo=False)  # type: ignore[misc]
    assert len(fused.graph.nodes) > len(plain.graph.nodes)
    torch.testing.assert_close(-fused(*inputs)[0], plain(*[-one for one in inputs])[0])


def test_torchs_own_test_of_inductor_is_not_repeated_first() -> None:
    assert samples.order_for("toy", ("float32", "uint8"))[0] == (("", 0, 1), "float32")
    (twist, _, _), dtype = samples.order_for("inductor", ("float32", "uint8"))[0]
    assert (bool(twist), dtype) == (True, "uint8")
    assert samples.order_for("inductor", ("uint8",), 1) == [(("", 0, 1), "uint8")]
    assert sum(last - first for (_, first, last), _ in samples.order_for("toy", ("bool",), 9)) == 9


# ---- batches

INPUT = {
    "dtype": "float32", "shape": [3], "layout": "contiguous", "values": "normal", "grad": False, "seed": 0,
}  # fmt: skip
RELU: programs.Program = {
    "inputs": [INPUT],
    "steps": [["torch.tanh", [{"v": 0}], {}], ["torch.relu", [{"v": 1}], {}]],
    "outputs": [2],
    "dynamic": False,
}
SIN = {**RELU, "steps": [["torch.tanh", [{"v": 0}], {}], ["torch.sin", [{"v": 1}], {}]]}
HYPOT = {**RELU, "steps": [["torch.tanh", [{"v": 0}], {}], ["torch.hypot", [{"v": 0}, {"v": 1}], {}]]}
TANH = {**RELU, "steps": RELU["steps"][:1], "outputs": [1]}


def batch(
    folder: Path,
    backend: str,
    *batched: programs.Program,
    seconds: float = 60.0,
    value_limit_bytes: int = 1 << 30,
) -> list[dict[str, Any]]:
    """The records that a batch leaves."""
    argument = {
        "backend": {"name": backend, "options": {}, "mode": None}, "seed": 0, "known": [], "call_seconds": 60.0,
        "results": str(folder / "results"), "doing": str(folder / "doing"), "folder": str(folder / "repros"),
        "batch": [{"program": one} for one in batched], "seconds": seconds, "tried": [], "most_together": 4, "patience": 60.0,
        "value_limit_bytes": value_limit_bytes,
    }  # fmt: skip
    judging.run_batch(argument, lambda text: None)
    return [json.loads(line) for line in (folder / "results").read_text().splitlines()]


@pytest.fixture(autouse=True)
def _loud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "quiet", lambda: None)  # it is for the whole process


def test_a_batch_writes_what_became_of_each_and_one_capture_of_each_failure(tmp_path: Path) -> None:
    wrong, fine, again = batch(tmp_path, "planted_backends:adds_one_to_relu", RELU, TANH, RELU)
    assert [one["state"] for one in (wrong, fine, again)] == ["wrong", "handed back", "wrong"]
    assert wrong["key"] == again["key"]
    assert Path(wrong["capture"]).is_file()
    assert "capture" not in again


@pytest.mark.parametrize(("limit", "stored"), [(1 << 30, True), (0, False)])
def test_a_capture_of_a_hunt_keeps_to_the_limit_of_values(tmp_path: Path, limit: int, stored: bool) -> None:
    large = {**RELU, "inputs": [{**INPUT, "shape": [4000]}]}
    (wrong,) = batch(tmp_path, "planted_backends:adds_one_to_relu", large, value_limit_bytes=limit)
    assert Path(wrong["capture"]).with_suffix(".safetensors").is_file() is stored


def test_candidates_share_a_graph_and_only_those_of_a_failing_one_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    execute = judging.execute

    def counted(case: Any, **more: Any) -> Outcome:
        sizes.append(sum(node.op == "call_function" for node in case.graph_module.graph.nodes))
        return execute(case, **more)

    monkeypatch.setattr(judging, "execute", counted)
    records = batch(tmp_path, "toy_with_bugs:toy", SIN, SIN, HYPOT, SIN)
    assert [one["state"] for one in records] == ["ok", "ok", "wrong", "ok"]
    assert sizes[:2] == [8, 4]
    assert records[2]["targets"] == ["torch.hypot", "torch.tanh"]


def test_the_name_of_a_dispatching_function_is_the_same_in_every_process() -> None:
    found = samples.built(samples.Sample("nn.functional.max_pool2d", "float32", "cpu", 0), 0)
    assert "0x" not in " ".join(call_targets(found[0]))


def test_a_backend_that_gives_the_graph_back_is_seen(tmp_path: Path) -> None:
    (only,) = batch(tmp_path, "planted_backends:returns_gm_forward", TANH)
    assert only["state"] == "handed back"


def test_a_batch_ends_with_its_time(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    assert batch(tmp_path, "eager", TANH, seconds=-1.0) == []


def test_a_candidate_that_hangs_ends_the_process_with_its_stack() -> None:
    program = (
        "import time\nfrom minidbg.extras.hunt.judging import time_limit\n"
        "def hangs():\n    time.sleep(60)\nwith time_limit(0.1):\n    hangs()\n"
    )
    done = python("-c", program, timeout=120)
    assert done.returncode == -signal.SIGALRM
    assert "in hangs" in done.stderr


def test_two_children_may_write_at_once(tmp_path: Path) -> None:
    if os.fork() == 0:
        for number in range(300):
            states.append(tmp_path / "file", {"child": number})
        os._exit(0)
    for number in range(300):
        states.append(tmp_path / "file", {"parent": number})
    os.wait()
    assert len([json.loads(line) for line in (tmp_path / "file").read_text().splitlines()]) == 600


# ---- the time that is given


class Asked:
    """A hunt with so many seconds left, whose children give one answer."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, left_s: float, answer: ChildResult
    ) -> None:
        self.hunt = Hunt(candidates.Wanted("aot_eager", folder, seconds=90.0))
        self.hunt.deadline = Deadline.after(left_s)
        capture = folder / ".minidbg" / "captures" / "compile_add_ab12cd.py"
        states.append(self.hunt.store.results_file, failing("add", "k", capture=str(capture)))
        self.hunt.store.read()
        self.asked: list[dict[str, Any]] = []

        def call(preparation: object, argument: dict[str, Any], **how: Any) -> ChildResult:
            self.asked.append({**argument, **how})
            return answer

        monkeypatch.setattr(hunting.workers, "call_in_server", call)


def ended(path: Path | None, ended_by: str = "budget of 20 s") -> ReductionResult:
    return ReductionResult(path, 9, 4, 3, 1.0, False, Verdict.REPRODUCES, ended_by=ended_by)


def test_a_hang_among_several_candidates_does_not_take_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hunt = Asked(tmp_path, monkeypatch, left_s=80.0, answer=ChildResult()).hunt
    assert 15 < hunt.patience() <= 20
    hunt.deadline = Deadline.after(1.0)
    assert hunt.patience() == hunting.LEAST_PATIENCE_S


def test_a_reduction_has_no_more_than_the_time_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repro = tmp_path / "compile_add.py"
    answer = ChildResult(answered=True, value=ended(repro).to_json())
    asked = Asked(tmp_path, monkeypatch, left_s=20.0, answer=answer)
    assert asked.hunt.reduce("k")[1]["path"] == str(repro)
    (question,) = asked.asked
    limits = question["limits"]
    assert 15 < limits["seconds"] <= 20
    assert limits["due"] == pytest.approx(asked.hunt.deadline.at, abs=0.5)
    assert question["deadline"].at < asked.hunt.deadline.at + 5
    assert asked.hunt.cut_short == [repro]


@pytest.mark.parametrize(
    "answer", [ChildResult(timed_out=True), ChildResult(answered=True, value=ended(None).to_json())]
)
def test_a_reduction_that_the_end_of_the_time_cut_off_says_nothing_about_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: ChildResult
) -> None:
    hunt = Asked(tmp_path, monkeypatch, left_s=20.0, answer=answer).hunt
    assert hunt.reduce("k") is None
    assert [one.settled for one in hunt.store.cases()] == [False]


def test_a_candidate_that_the_end_of_the_time_cut_off_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(tmp_path, monkeypatch, left_s=0.0, answer=ChildResult(timed_out=True))
    before = asked.hunt.store.results_file.read_text()
    asked.hunt.batch([failing("mul", "m")["candidate"]], 0)
    assert asked.asked[0]["seconds"] == 0.0
    assert (len(asked.asked), list(asked.hunt.again)) == (1, [])
    assert asked.hunt.store.results_file.read_text() == before


def test_a_repro_that_was_written_before_the_end_is_not_called_unreduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its reduction had no time left to tell of it."""
    hunt = Asked(tmp_path, monkeypatch, left_s=20.0, answer=ChildResult(timed_out=True)).hunt
    log = tmp_path / ".minidbg" / "reductions" / "compile_add_ab12cd" / "replay.jsonl"
    log.parent.mkdir(parents=True)
    end = {"end": "published", "written": ended(tmp_path / "compile_add.py", "").to_json()}
    for began, repro in ((hunt.began_at - 60, None), (hunt.began_at + 1, tmp_path / "compile_add.py")):
        log.write_text(json.dumps({"schema": 1, "began": began}) + "\n" + json.dumps(end) + "\n")
        hunt.reductions_begun.add("k")
        hunt.take_stock()
        (failure,) = hunt.store.cases()
        assert failure.repro == repro
        tell(hunt, None, False, None, as_json=False)
        assert ("1 of the failures is captured and not reduced" in capsys.readouterr().err) is (repro is None)
