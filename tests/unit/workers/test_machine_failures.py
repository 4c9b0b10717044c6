"""What the machine does to a question is no answer to it: unfinished libraries, full disks, killed compilers, refused forks."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from support.doubles import Hands

from minidbg import oracle
from minidbg.core.errors import DeviceInUse
from minidbg.core.machine import Deadline
from minidbg.core.outcome import Kind, Outcome, Signature, Verdict
from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.fx.case import Case
from minidbg.torch_internals.devices import kept_on_cpu
from minidbg.workers import Ended, kernel_cache

unless_the_machine_failed = partial(oracle.unless_the_machine_failed, pause=lambda seconds: None)
ANSWER = Outcome(Verdict.GONE)
WANTED = Signature(Kind.COMPILE, types=("ValueError",), message="no kernel")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(kernel_cache.CACHE_VARIABLE, str(tmp_path))
    return tmp_path


def failed(message: str, verdict: Verdict = Verdict.CHANGED) -> Outcome:
    return Outcome(verdict, signature=Signature(Kind.COMPILE, message=message), message=message)


def asked(*outcomes: Outcome | OSError) -> tuple[Callable[[], Outcome], list[int]]:
    """A question with these answers, and a list that gets an item for each time it is asked."""
    answers, times = iter(outcomes), []

    def ask() -> Outcome:
        times.append(1)
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    return ask, times


MACHINE = [
    "ImportError: {cache}/ab/cab.main.so: cannot open shared object file: No such file or directory",
    "OSError: {cache}/ab/cab.main.so: file too short",
    "InductorError: ImportError: {cache}/ab/cab.main.so: invalid ELF header",
    "FileNotFoundError: [Errno 2] No such file or directory: '{cache}/ab/cab.main.cpp'",
    "OSError: [Errno 28] No space left on device: '/tmp/x'",
    "CppCompileError: C++ compile error\n\nOutput:\ng++: fatal error: Killed signal terminated program cc1plus",
    "CppCompileError: C++ compile error\n\nOutput:\ncollect2: fatal error: ld terminated with signal 9 [Killed]",
    "BlockingIOError: [Errno 11] Resource temporarily unavailable",
]


@pytest.mark.slow
@pytest.mark.parametrize("message", MACHINE, ids=lambda text: text.partition(":")[0] + text[-20:])
@pytest.mark.parametrize(("expected", "verdict"), [(WANTED, Verdict.CHANGED), (None, Verdict.REPRODUCES)])
def test_a_failure_of_the_machine_is_asked_again(
    message: str, expected: Signature | None, verdict: Verdict, cache: Path
) -> None:
    ask, times = asked(failed(message.format(cache=cache), verdict), ANSWER)
    assert unless_the_machine_failed(ask, expected=expected) == ANSWER
    assert len(times) == 2


@pytest.mark.parametrize("message", MACHINE[:4])
def test_a_failure_that_is_expected_is_the_answer(message: str, cache: Path) -> None:
    outcome = failed(message.format(cache=cache), Verdict.REPRODUCES)
    ask, times = asked(outcome)
    assert unless_the_machine_failed(ask, expected=outcome.signature) == outcome
    assert len(times) == 1


@pytest.mark.parametrize(
    "message",
    [
        "ImportError: /opt/acme/lib.so: cannot open shared object file: No such file or directory",
        "FileNotFoundError: [Errno 2] No such file or directory: '/opt/acme/table.bin'",
        "ImportError: {cache}/ab/cab.so: undefined symbol: _Z3foov",
        "CppCompileError: error: no match for 'operator+'",
        "IndexError: list index out of range",
    ],
)
def test_what_a_backend_does_wrong_itself_is_an_answer(message: str, cache: Path) -> None:
    outcome = failed(message.format(cache=cache))
    ask, times = asked(outcome)
    assert unless_the_machine_failed(ask, expected=WANTED) == outcome
    assert len(times) == 1


def test_pauses_and_further_questions_end_with_the_deadline() -> None:
    clock = Hands()
    ask, times = asked(*[failed(MACHINE[4])] * 4)
    deadline = Deadline(3.0, clock)
    outcome = unless_the_machine_failed(ask, expected=WANTED, deadline=deadline, pause=clock.wait)
    assert outcome.verdict is Verdict.INVALID
    assert (clock.now, len(times)) == (3.0, 4)


def test_a_machine_that_goes_on_failing_proves_nothing() -> None:
    ask, times = asked(*[failed(MACHINE[4])] * 4)
    outcome = unless_the_machine_failed(ask, expected=WANTED)
    assert outcome.verdict is Verdict.INVALID
    assert outcome.signature is None
    assert "no space" in outcome.reason
    assert len(times) == 4


def test_a_fork_that_is_refused_is_tried_again() -> None:
    refusal = OSError(errno.EAGAIN, "Resource temporarily unavailable")
    ask, _ = asked(refusal, refusal, ANSWER)
    assert unless_the_machine_failed(ask, expected=WANTED) == ANSWER
    ask, _ = asked(*[refusal] * 4)
    with pytest.raises(OSError, match="temporarily"):
        unless_the_machine_failed(ask, expected=WANTED)


WRITES = """
import sys, time
with open(sys.argv[1], "wb") as library:
    library.write(b"\\x7fELF\\x02")
    library.flush()
    print("half", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="which process writes a file is read from /proc")
def test_a_library_that_another_process_is_writing_stays(cache: Path) -> None:
    mine, theirs = cache / "mine.so", cache / "theirs.so"
    mine.write_bytes(b"\x7fELF\x02")
    command = [sys.executable, "-c", WRITES, str(theirs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"half\n"
        assert kernel_cache.remove_unfinished(cache) == [mine]
        writer.communicate(b"\n")
    assert kernel_cache.remove_unfinished(cache) == [theirs]


def test_a_finished_library_stays(cache: Path) -> None:
    library = cache / "whole.so"
    library.write_bytes(Path(os.path.realpath(sys.executable)).read_bytes())
    assert kernel_cache.remove_unfinished(cache) == []


OPENING = 'Traceback (most recent call last):\n  File "parcel.py", line 98, in unpacked\n    busy = in use\n'
ELSEWHERE = OPENING.replace("unpacked", "execute")
TAKEN = {
    "RuntimeError: TPU is already in use by process with pid 7.": True,
    "RuntimeError: open(/dev/accel0): Device or resource busy": True,
    "OSError: spyre: EBUSY": True,
    "AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\nSet X=1": True,
    "OutOfMemoryError: GPU 0: this process has 7 GiB memory in use.": False,
    "RuntimeError: [Errno 98] Address already in use": False,
    "OSError: [Errno 26] Text file busy": False,
    "ValueError: no": False,
}


@pytest.mark.parametrize("text", TAKEN)
def test_a_device_is_taken_where_a_child_hears_so_when_it_opens_it_and_nowhere_else(text: str) -> None:
    graph_module = torch.fx.symbolic_trace(torch.nn.ReLU())
    case = Case(graph_module, (torch.ones(1),), RunSpec(BackendRef("inductor")))
    ended = [Ended(error=where + text) for where in (OPENING, ELSEWHERE)]
    assert [oracle.taken_device(case, one) for one in ended] == ["", ""], "the CPU"
    with kept_on_cpu("spyre"):
        assert [oracle.taken_device(case, one) for one in ended] == ["spyre" if TAKEN[text] else "", ""]


def test_a_device_that_stays_in_use_is_no_answer_about_the_backend() -> None:
    times: list[int] = []

    def ask() -> Outcome:
        times.append(1)
        raise DeviceInUse("spyre:0")

    with pytest.raises(DeviceInUse):
        unless_the_machine_failed(ask, expected=WANTED)
    assert len(times) == 4, "a driver may let go late"
