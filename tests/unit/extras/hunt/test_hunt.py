"""What a hunt says of an outcome, counts, and expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from minidbg.core.errors import BadSetting
from minidbg.core.outcome import Kind, Outcome, Signature, Verdict
from minidbg.extras.hunt import judging
from minidbg.extras.hunt.commands import is_worse
from minidbg.extras.hunt.hunting import Hunt
from minidbg.extras.hunt.judging import Sample, SampleResult
from minidbg.judge.run import HANDED_BACK


def outcome(kind: Kind = Kind.COMPILE, message: str = "", types: tuple[str, ...] = ()) -> Outcome:
    return Outcome(Verdict.REPRODUCES, Signature(kind, types=types, message=message), message=message)


SAYS = {
    SampleResult.OK: Outcome(Verdict.GONE),
    SampleResult.UNSUPPORTED: outcome(Kind.COMPILE, "not supported"),
    SampleResult.FAILS: outcome(Kind.COMPILE, "KeyError: 'x'", ("KeyError",)),
    SampleResult.WRONG: outcome(Kind.ACCURACY, "output: float"),
}


def hunt_with(**states: SampleResult) -> Hunt:
    """A hunt that has seen one sample of each of these operators."""
    hunt = Hunt("toy", Path("."), print)
    for op, state in states.items():
        hunt.take_in(Sample(op, "float32", "cpu", 0), SAYS[state])
    return hunt


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (Outcome(Verdict.GONE), SampleResult.OK),
        (Outcome(Verdict.GONE, reason=HANDED_BACK), SampleResult.HANDED_BACK),
        (
            Outcome(
                Verdict.GONE,
                reason="output 0 is not judged: eager differs from itself, or may with other random numbers",
            ),
            SampleResult.SKIPPED,
        ),
        (Outcome(Verdict.INVALID, reason="eager itself fails: RuntimeError"), SampleResult.SKIPPED),
        (Outcome(Verdict.INVALID, reason="dynamo handed another graph to the backend: 1"), SampleResult.OK),
        (outcome(Kind.COMPILE, "KeyError: 'x'", ("KeyError",)), SampleResult.FAILS),
        (outcome(Kind.COMPILE, "KeyError: 'x'", ("NotImplementedError",)), SampleResult.UNSUPPORTED),
        (outcome(Kind.RUNTIME, "RuntimeError: dtype bool is not supported"), SampleResult.UNSUPPORTED),
        (
            outcome(types=("torch._subclasses.fake_tensor.DataDependentOutputException",)),
            SampleResult.HANDED_BACK,
        ),
        (outcome(Kind.ACCURACY, "output: float"), SampleResult.WRONG),
        (outcome(Kind.CRASH), SampleResult.CRASHED),
        (outcome(Kind.HANG), SampleResult.HANGS),
    ],
)
def test_each_outcome_is_one_state_of_the_table(found: Outcome, state: SampleResult) -> None:
    assert judging.sample_result(found) is state


def test_a_name_stands_for_its_variants_and_a_wrong_one_is_answered_with_the_nearest() -> None:
    known = ["div.floor", "div.trunc", "divide", "addcdiv"]
    assert judging.matching(["torch.div"], known, "operator") == ["div.floor", "div.trunc"]
    assert judging.matching(["*div*"], known, "operator") == known
    with pytest.raises(BadSetting, match="did you mean 'divide'"):
        judging.matching(["divid"], known, "operator")


def test_one_exception_is_one_failure_in_all_ops_and_a_wrong_result_is_one_for_each_op() -> None:
    hunt = hunt_with(
        add=SampleResult.FAILS, mul=SampleResult.FAILS, sub=SampleResult.WRONG, div=SampleResult.WRONG
    )
    assert [dict(one.ops) for one in hunt.distinct()] == [{"sub": 1}, {"div": 1}, {"add": 1, "mul": 1}]


def test_a_cell_shows_the_worst_of_its_samples_and_nothing_that_did_not_fail_again() -> None:
    hunt = hunt_with(add=SampleResult.WRONG, sub=SampleResult.FAILS)
    hunt.take_in(Sample("add", "float32", "cpu", 1), Outcome(Verdict.GONE))
    hunt.distinct()[-1].refused = "the case does not show its failure here: gone"
    assert [(cell.op, state) for cell, (state, _) in hunt.table().items()] == [
        ("add", "wrong"),
        ("sub", "skipped"),
    ]
    assert [str(one.sample) for one in hunt.distinct()] == ["add float32 cpu 0"]


def test_what_is_expected_is_written_once_and_what_works_worse_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hunt.toml"
    first = hunt_with(add=SampleResult.WRONG, mul=SampleResult.UNSUPPORTED, sub=SampleResult.OK)
    assert [is_worse(first, file) for _ in range(2)] == [False, False]
    assert file.read_text().splitlines()[1:] == [
        "[ops]", '"add float32 cpu" = "wrong"', '"mul float32 cpu" = "unsupported"',
    ]  # fmt: skip
    capsys.readouterr()
    assert is_worse(hunt_with(add=SampleResult.OK, mul=SampleResult.FAILS, sub=SampleResult.OK), file)
    assert capsys.readouterr().err.splitlines() == [
        "minidbg: better: add float32 cpu: ok, was wrong", "minidbg: worse: mul float32 cpu: fails, was unsupported",
    ]  # fmt: skip
    file.write_text("ops = 3")
    with pytest.raises(BadSetting, match="delete it"):
        is_worse(first, file)
