"""A script in a fresh interpreter: what its end says; one repro, many torches: ``bisect --torch``."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from minidbg import backends, repro, workers
from minidbg.commands.root import cli
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.repro import run, running, write
from minidbg.repro.running import TorchFlip, find_flip, in_order
from minidbg.words.errors import MinidbgError, UnreadableRepro
from minidbg.words.outcome import Kind, Outcome, Signature, Verdict
from minidbg.words.run_spec import RunSpec
from minidbg.workers import ChildResult


@pytest.fixture
def ended(make_case, tmp_path, monkeypatch):
    """Runs a script of ``kind`` whose interpreter ends as given; the command line is kept in ``ended.argv``."""

    def answer(kind=Kind.COMPILE, arguments=None, **how):
        def run_python(argv, **limits):
            answer.argv, answer.limits = argv, limits
            return ChildResult(**how)

        monkeypatch.setattr(workers, "run_python", run_python)
        path = write(make_case(signature=Signature(kind, message="m")), tmp_path / "r.py")
        return run(path, seconds=5, **(arguments or {}))

    return answer


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
    assert ended.argv[1:] == [str(tmp_path / "r.py"), "--json", "--device", "cuda:1", "--backend", "mod:attr"]
    assert outcome.device == "cuda:1"


def test_the_script_runs_in_an_empty_folder_elsewhere(ended, tmp_path):
    ended(stdout=said())
    assert str(ended.limits["cwd"]) != str(tmp_path)
    assert ended.limits["seconds"] == 5


@pytest.mark.parametrize(
    ("kind", "died", "timed_out"),
    [
        (Kind.COMPILE, Verdict.CRASHED, Verdict.TIMEOUT),
        (Kind.CRASH, Verdict.REPRODUCES, Verdict.TIMEOUT),
        (Kind.HANG, Verdict.CRASHED, Verdict.REPRODUCES),
    ],
)
def test_a_death_is_a_crash_and_no_answer_in_time_a_hang(ended, kind, died, timed_out):
    outcome = ended(kind, signal=signal.SIGSEGV, stderr_tail="Fatal Python error")
    assert (outcome.verdict, outcome.reason) == (died, "died of SIGSEGV")
    assert outcome.signal == signal.SIGSEGV
    assert "Fatal" in outcome.message
    outcome = ended(kind, timed_out=True, signal=signal.SIGKILL)
    assert (outcome.verdict, outcome.reason) == (timed_out, "no answer within 5 s")


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


# ---- with the torch of other interpreters --------------------------------------------------------------

F, G, S, C = Verdict.REPRODUCES, Verdict.GONE, Verdict.SKIPPED, Verdict.CHANGED


def searched(verdicts: Mapping[str, Verdict]) -> tuple[TorchFlip, list[str]]:
    """The flip, and the versions that were asked."""
    asked: list[str] = []

    def judge(version: str) -> Outcome:
        asked.append(version)
        return Outcome(verdicts[version])

    return find_flip(list(verdicts), judge), asked


@pytest.mark.parametrize(
    ("verdicts", "flip", "most"),
    [
        ({"1": F, "2": G}, TorchFlip("1", "2", fixed=True), 2),
        ({"1": F, "2": F, "3": F, "4": G, "5": G}, TorchFlip("3", "4", fixed=True), 4),
        ({"1": G, "2": G, "3": C, "4": F}, TorchFlip("2", "3", fixed=False), 4),
        ({"1": S, "2": F, "3": S, "4": G, "5": S}, TorchFlip("2", "4", fixed=True, unjudged=("3",)), 5),
        ({str(one): F if one < 90 else G for one in range(100)}, TorchFlip("89", "90", fixed=True), 9),
    ],
)
def test_the_first_version_after_the_flip_is_found(
    verdicts: Mapping[str, Verdict], flip: TorchFlip, most: int
) -> None:
    found, asked = searched(verdicts)
    assert found == flip
    assert len(asked) == len(set(asked)) <= most


@pytest.mark.parametrize(
    ("verdicts", "why"),
    [
        ({"1": F, "2": G, "3": F}, "it fails in torch 1 and in 3; give versions of which one fails"),
        ({"1": G, "2": G}, "it is gone in torch 1 and in 2"),
        ({"1": F, "2": S}, "it fails in torch 1; no other version can judge it"),
        ({"1": S, "2": S}, "none of torch 1, 2 can judge it"),
    ],
)
def test_a_search_without_a_flip_says_why(verdicts: Mapping[str, Verdict], why: str) -> None:
    with pytest.raises(MinidbgError, match=why):
        searched(verdicts)


def test_versions_are_put_in_order() -> None:
    assert in_order("2.13.0, 2.9.1,2.12.1,2.13.0") == ["2.9.1", "2.12.1", "2.13.0"]
    for text in ("2.13.0", "", "newest,2.13.0"):
        with pytest.raises(MinidbgError, match="versions"):
            in_order(text)


# ---- the command line, with interpreters that know their answers ------------------------------------

Fake = Callable[[str, Verdict], Path]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """An environment whose interpreter has torch ``version``, says ``verdict`` of each script and keeps its arguments."""

    def make(version: str, verdict: Verdict) -> Path:
        python = tmp_path / "environments" / f"torch-{version}" / "bin" / "python"
        python.parent.mkdir(parents=True)
        answer = json.dumps(Outcome(verdict, reason="so it was told").to_json())
        python.write_text(
            f"#!{sys.executable}\nimport sys\n"
            f"print({version!r} if 'importlib.metadata' in sys.argv[-1] else {answer!r})\n"
        )
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        return python

    return make


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph, inputs = capture_by_dynamo(torch.relu, (torch.ones(3),))
    torch._dynamo.reset()
    case = Case(graph, inputs, RunSpec(backends.find("eager"), signature=Signature(Kind.COMPILE)))
    return repro.write(case, tmp_path_factory.mktemp("repros") / "one.py")


def command(*arguments: Any) -> Any:
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def test_bisect_uses_environments_that_are_there(fake: Fake, script: Path, tmp_path: Path) -> None:
    for version, verdict in (("2.11.0", F), ("2.12.1", F), ("2.13.0", G), ("2.14.1", G)):
        fake(version, verdict)
    versions = "2.11.0,2.14.1,2.12.1,2.13.0"
    done = command("bisect", "--torch", versions, "--environments", tmp_path / "environments", script)
    assert "torch 2.13.0 is the first without the failure; 2.12.1 still has it\n" in done.output
    assert done.exit_code == 0


def test_ctrl_c_says_among_which_versions_the_search_goes_on(
    fake: Fake, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version, verdict in (("2.11.0", F), ("2.12.1", F), ("2.13.0", F), ("2.14.1", G), ("2.15.0", G)):
        fake(version, verdict)
    run = running.run

    def run_until_2_14(path: Path, *, python: str, seconds: float) -> Outcome:
        if "torch-2.14.1" in python:
            raise KeyboardInterrupt
        return run(path, python=python, seconds=seconds)

    monkeypatch.setattr(running, "run", run_until_2_14)
    versions = "2.11.0,2.12.1,2.13.0,2.14.1,2.15.0"
    done = command("bisect", "--torch", versions, "--environments", tmp_path / "environments", script)
    what, how = done.exception.in_two()
    assert what == "interrupted: torch 2.11.0 reproduces, 2.15.0 gone, 2.13.0 reproduces"
    assert how.startswith("to go on: minidbg bisect --torch 2.13.0,2.14.1,2.15.0 ")


def test_an_environment_is_made_by_the_installer_that_is_here_and_goes(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installer that knows two versions of torch; the environments are gone when the search ends."""
    log, uv = tmp_path / "log", tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    answers = {"2.13.0": json.dumps(Outcome(F).to_json()), "2.14.1": json.dumps(Outcome(G).to_json())}
    uv.write_text(
        f"#!{sys.executable}\nimport os, sys\nanswers = {answers!r}\n"
        "if sys.argv[1] == 'venv':\n    os.makedirs(sys.argv[-1] + '/bin'); sys.exit()\n"
        "python = sys.argv[sys.argv.index('--python') + 1]\n"
        f"open({str(log)!r}, 'a').write(python + ' ' + ' '.join(sys.argv[5:]) + chr(10))\n"
        "version = next(one for one in sys.argv if one.startswith('torch==')).removeprefix('torch==')\n"
        "if version not in answers: sys.exit('no such torch')\n"
        f"open(python, 'w').write('#!{sys.executable}' + chr(10) + 'print(' + repr(answers[version]) + ')')\n"
        "os.chmod(python, 0o755)\n"
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(uv.parent), prepend=":")
    done = command("bisect", "--torch", "2.14.1,2.13.0", script)
    assert "torch 2.14.1 is the first without the failure; 2.13.0 still has it\n" in done.output
    made = [line.split()[0] for line in log.read_text().splitlines()]
    assert len(made) == 2
    assert not any(Path(one).exists() for one in made)
    refused = command("bisect", "--torch", "2.14.1,1.0", script)
    assert "torch 1.0 cannot be installed: no such torch" in str(refused.exception)


def test_commits_and_versions_are_not_both_taken(script: Path) -> None:
    for arguments in (["a", "b", "--torch", "2.12,2.13"], ["a"], []):
        assert command("bisect", *arguments, script).exit_code != 0


def test_an_environment_whose_making_was_interrupted_is_not_taken_for_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(place: Path, wanted: Sequence[str]) -> None:
        (place / "bin").mkdir(parents=True)
        (place / "bin" / "python").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "install", interrupted)
    with pytest.raises(KeyboardInterrupt), running.interpreter_with_torch("2.13.0", [], tmp_path, print):
        pass
    assert list(tmp_path.iterdir()) == []


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
    with workers.start_ahead(repro.interpreter_ahead("eager")) as ahead:
        ended = ahead.start([str(script)], seconds=60)()
    assert ended is not None
    assert ended.stdout.split() == [str(tmp_path / "cache" / "minidbg" / "kernels"), "None", "True"]
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
