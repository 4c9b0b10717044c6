"""How a process ended, read one way: for a question, a check, a run under watch, a test of pytest, a task of a cluster."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from minidbg.core.outcome import Direction, Kind, Outcome, Signature, Verdict
from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.judge.death import outcome_of_death, outcome_of_run
from minidbg.workers import Ended

STACK = """before it
Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3/ctypes/__init__.py", line 1 in string_at
  File "/src/acme.py", line 7 in lower
  File "/site-packages/torch/_dynamo/output_graph.py", line 9 in call_user_compiler
  File "/src/train.py", line 3 in main
"""


def spec_for(kind: Kind = Kind.CRASH, **more: Any) -> RunSpec:
    return RunSpec(backend=BackendRef("acme", "'acme'"), signature=Signature(kind, **more))


def died(**fields: Any) -> Ended:
    return Ended(**{"signal": signal.SIGSEGV, "stderr_tail": STACK, "seconds": 2.0, **fields})


def test_a_crash_has_its_cause_its_place_and_what_was_said() -> None:
    found = outcome_of_death(died(note="compile forward"), spec_for())
    assert found.verdict is Verdict.REPRODUCES
    assert found.signature is not None
    assert found.signature.types == ("SIGSEGV",)
    assert [frame.rpartition(":")[2] for frame in found.signature.frames] == ["string_at", "lower"]
    assert found.message == "SIGSEGV while compiling forward: before it\nSegmentation fault"
    assert (found.signal, found.stderr, found.seconds) == (signal.SIGSEGV, STACK, 2.0)


@pytest.mark.parametrize(
    "told", [{"note": "runtime backward"}, {"stdout": "phase eager\nphase runtime backward\n"}]
)
def test_the_phase_is_a_note_or_a_line_on_stdout(told: dict[str, str]) -> None:
    found = outcome_of_death(died(**told), spec_for())
    assert found.signature is not None
    assert found.signature.direction is Direction.BACKWARD
    assert found.message.startswith("SIGSEGV while running backward")


def test_what_was_ended_for_a_limit_was_not_killed_by_its_signal() -> None:
    for limit, types in (({"timed_out": True}, ("compile",)), ({"out_of_memory": True}, ("memory limit",))):
        found = outcome_of_death(died(note="compile forward", **limit), spec_for())
        assert found.signature is not None
        assert (found.signature.types, found.signal) == (types, None)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"note": "eager"}, "eager itself died (SIGSEGV)"),
        ({"note": "eager", "timed_out": True}, "eager itself did not come back in time"),
        ({"note": "compare", "timed_out": True}, "the comparison with eager did not come back in time"),
        ({}, "the process died (SIGSEGV)"),
        ({"signal": None, "exit_status": 1, "stderr_tail": "x\nSyntaxError: bad\n"}, "exit status 1 without a verdict: SyntaxError: bad"),
    ],
)  # fmt: skip
def test_what_does_not_end_in_the_backend_judges_nothing(fields: dict[str, Any], reason: str) -> None:
    found = outcome_of_death(died(**fields), spec_for())
    assert (found.verdict, found.reason, found.signature) == (Verdict.INVALID, reason, None)
    of_run = outcome_of_run(died(**fields), spec_for(), limit_s=5)
    assert (of_run.verdict, of_run.reason, of_run.signature) == (Verdict.INVALID, reason, None)
    assert of_run.message == fields.get("stderr_tail", STACK)


def test_a_backend_that_exits_has_ended_the_process_whatever_its_status() -> None:
    for status in (0, 7, 125):
        ended = died(note="compile forward", signal=None, exit_status=status, stderr_tail="")
        found = outcome_of_death(ended, spec_for())
        assert (found.verdict, found.message) == (
            Verdict.REPRODUCES, f"exit status {status} while compiling forward"
        )  # fmt: skip


def test_a_script_that_printed_its_outcome_and_died_in_its_exit_has_answered() -> None:
    said = '{"verdict": "gone", "signature": null}\n'
    for fields in ({"stdout": said}, {"stdout": said, "timed_out": True}):
        assert outcome_of_run(died(**fields), spec_for(), limit_s=5) == Outcome(Verdict.GONE)


def test_a_death_says_nothing_that_a_header_could_want_of_the_backend() -> None:
    spec = RunSpec(backend=BackendRef("acme", "'acme'"), signature=Signature(Kind.CRASH), match="double free")
    assert outcome_of_death(died(note="compile forward"), spec).verdict is Verdict.REPRODUCES
