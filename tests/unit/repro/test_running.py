"""A script in a fresh interpreter: what its end says."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from support.doubles import Children

from minidbg import repro, workers
from minidbg.core.errors import UnreadableRepro
from minidbg.core.outcome import Kind, Signature, Verdict
from minidbg.repro import run, write
from minidbg.workers import Ended


@pytest.fixture
def ended(make_case, tmp_path):
    """Runs a script of ``kind`` whose interpreter ends as given, and is then ``ended.by``."""

    def answer(kind=Kind.COMPILE, arguments=None, **how):
        answer.by = Children(lambda _: Ended(**how))
        path = write(make_case(signature=Signature(kind, message="m")), tmp_path / "r.py")
        return run(path, seconds=5, submit=answer.by, **(arguments or {}))

    return answer


COMPILES = "phase eager\nphase compile forward\n"
"""What is told of where it is by a script that may die of its backend."""


def said(**fields):
    answer = {"verdict": "gone", "signature": None, "repro": "r.py", "torch": "2.13.0", **fields}
    return json.dumps(answer) + "\n"


def test_the_scripts_own_answer_counts(ended):
    outcome = ended(stdout="noise\n" + said(seconds=1.5), exit_status=0)
    assert (outcome.verdict, outcome.seconds) == (Verdict.GONE, 1.5)


def test_a_verdict_without_a_reason_has_what_the_run_printed(ended):
    outcome = ended(stdout=said(), stderr_tail="fell back to eager\n", exit_status=0)
    assert (outcome.reason, outcome.stderr) == ("", "fell back to eager\n")


def test_device_and_backend_are_passed_on(ended, tmp_path):
    outcome = ended(arguments={"device": "cuda:1", "backend": "mod:attr"}, stdout=said(verdict="skipped"))
    path, orders = ended.by.requests[0].argv[1:]
    assert (path, json.loads(orders)) == (str(tmp_path / "r.py"), {"device": "cuda:1", "backend": "mod:attr"})
    assert outcome.device == "cuda:1"


@pytest.mark.parametrize(
    ("kind", "died", "timed_out"),
    [
        (Kind.COMPILE, Verdict.CRASHED, Verdict.TIMEOUT),
        (Kind.CRASH, Verdict.REPRODUCES, Verdict.TIMEOUT),
        (Kind.HANG, Verdict.CRASHED, Verdict.REPRODUCES),
    ],
)
def test_a_death_is_a_crash_and_no_answer_in_time_a_hang(ended, kind, died, timed_out):
    outcome = ended(kind, stdout=COMPILES, signal=signal.SIGSEGV, stderr_tail="Fatal Python error")
    assert (outcome.verdict, outcome.reason) == (died, "died of SIGSEGV")
    assert outcome.signal == signal.SIGSEGV
    assert "Fatal" in outcome.message
    outcome = ended(kind, stdout=COMPILES, timed_out=True, signal=signal.SIGKILL)
    assert (outcome.verdict, outcome.reason) == (timed_out, "no answer within 5 s")


def test_a_run_that_took_too_much_memory_says_so(ended):
    outcome = ended(out_of_memory=True, signal=signal.SIGKILL)
    assert (outcome.verdict, outcome.reason) == (
        Verdict.CRASHED,
        "ended, for it took more memory than it may",
    )


@pytest.mark.parametrize("stdout", ["", "\n", "Traceback\n", "[1, 2]\n", '{"verdict": "odd"}\n', "null\n"])
def test_an_end_without_a_verdict_judges_nothing(ended, stdout):
    outcome = ended(stdout=stdout, exit_status=1, stderr_tail="x\nSyntaxError: invalid syntax\n")
    assert outcome.verdict is Verdict.INVALID
    assert outcome.reason == "exit status 1 without a verdict: SyntaxError: invalid syntax"


def test_a_refused_command_line_is_skipped(ended):
    assert ended(exit_status=125, stderr_tail="r.py: unrecognized arguments").verdict is Verdict.SKIPPED


def test_a_file_that_is_no_repro_is_not_run(tmp_path):
    (tmp_path / "r.py").write_text("raise SystemExit(1)\n")
    with pytest.raises(UnreadableRepro):
        run(tmp_path / "r.py")


@pytest.mark.slow
def test_scripts_in_the_interpreter_started_ahead_use_minidbgs_kernels_and_a_persons_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is killed there leaves nothing half done in the user's cache, and kernels that the search has built are found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    script = tmp_path / "show.py"
    script.write_text(
        "import os, sys; print(os.environ['TORCHINDUCTOR_CACHE_DIR'], os.environ.get('OMP_NUM_THREADS'), 'torch' in sys.modules)"
    )
    with workers.start_server().start_standby(*repro.standby_plan("eager")) as ahead:
        ended = ahead.start([str(script)], seconds=60)()
    assert ended is not None
    assert ended.stdout.split() == [str(tmp_path / "cache" / "minidbg" / "kernels"), "None", "True"]
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
