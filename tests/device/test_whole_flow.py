"""The whole flow on an accelerator: ``pytest -m device`` on the stand-in, ``pytest -m device --device cuda`` on a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.watch_driver import WatchProcess

HERE = Path(__file__).parent
STAND_IN = HERE.parent / "stand_ins" / "acme_device"
Run = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = [pytest.mark.slow, pytest.mark.device, pytest.mark.timeout(900)]
only_stand_in = pytest.mark.skipif(
    "config.getoption('--device') != 'acme'", reason="what only the stand-in can do"
)


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> str:
    """The device type under test, which is here."""
    kind: str = request.config.getoption("--device")
    if kind == "acme":
        env = os.environ | {"PYTHONPATH": str(STAND_IN)}
        subprocess.run([sys.executable, "-m", "acme.build"], check=True, env=env, timeout=600)
    else:
        here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if here is None or here.type != kind:
            pytest.skip(f"no {kind} is here (found {here})")
    return kind


@pytest.fixture
def run(device: str, tmp_path: Path) -> Run:
    """``python *arguments`` in a folder of its own, with the stand-in's backend; ``bug`` as in acme/compiler.py."""

    def run_python(
        *arguments: object, bug: str = "", stand_in: Path = STAND_IN, **env: str
    ) -> subprocess.CompletedProcess[str]:
        env = environment(device, bug, stand_in) | env
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=600)

    return run_python


def environment(device: str, bug: str, stand_in: Path) -> dict[str, str]:
    given = os.environ.get("PYTHONPATH", "")  # where packages are that this machine lacks
    paths = os.pathsep.join(filter(None, [str(stand_in), str(HERE.parents[1]), given]))
    own = {"PYTHONPATH": paths, "ACME_BUG": bug, "ACME_ON": device}
    return os.environ | own


def only_repro(folder: Path) -> Path:
    (path,) = (folder / "minidbg_repros").glob("*.py")
    return path


@pytest.mark.parametrize("bug", ["raises:gelu", "wrong:gelu"])
def test_a_failure_only_there_ends_as_a_repro_whose_stages_say_so(
    run: Run, device: str, bug: str, tmp_path: Path
) -> None:
    done = run(HERE / "program.py", f"{device}:0", bug=bug)
    assert "5 -> 1 nodes" in done.stdout, done.stdout + done.stderr
    assert "generators as they should be" in done.stdout
    path = only_repro(tmp_path)
    assert "passes with its inputs on cpu" in run("-m", "minidbg", "stages", path, bug=bug).stdout
    assert run(path, bug=bug).returncode == 1
    assert run(path, "--device", "cpu", bug=bug).returncode == 0
    if device == "acme":
        assert run(path, "--device", "acme:1", bug=bug).returncode == 1


@only_stand_in
def test_where_eager_of_the_device_is_wrong_too_eager_on_the_cpu_shows_it(run: Run, tmp_path: Path) -> None:
    program, bug = HERE / "program.py", "eager:gelu"
    assert "raised" not in run(program, "acme:0", bug=bug).stdout
    for what in ("plain", "mixed"):
        done = run(program, "acme:0", what, bug=bug, MINIDBG_GOLDEN="cpu")
        assert "-> 1 nodes" in done.stdout, done.stdout + done.stderr
        path = only_repro(tmp_path)
        assert "Reference: eager on cpu." in path.read_text()
        assert run(path, bug=bug).returncode == 1
        assert run("-m", "minidbg", "check", path, bug=bug).returncode == 1
        assert run(path, "--device", "cpu", bug=bug).returncode == 0
        path.unlink()


@only_stand_in
def test_a_node_says_where_it_ran(run: Run, tmp_path: Path) -> None:
    made = run(HERE / "two_nodes.py", "acme:0", "two.py", bug="raises:relu")
    assert made.returncode == 0, made.stderr
    words = ("-m", "minidbg", "nodes", "two.py", "--jsonl", "rows.jsonl")
    for more, statuses in ((), ["ok", "ok"]), (("--no-fallback",), ["ok", "error"]):
        done = run(*words, *more)
        rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
        assert [row["ran_on"] for row in rows] == ["acme:0", "cpu (fell back)"], done.stderr
        assert [row["status"] for row in rows] == statuses
        assert rows[1]["reason"] == "aten::relu by torch's CPU fallback"
        assert done.returncode == len(set(statuses)) - 1
    assert "1 of 2 nodes ran elsewhere" in done.stdout


def test_a_process_that_dies_only_there_has_left_what_its_repro_is_made_of(
    run: Run, device: str, tmp_path: Path
) -> None:
    assert run(HERE / "program.py", f"{device}:0", bug="crash:gelu").returncode < 0
    done = run("-m", "minidbg", "reduce", bug="crash:gelu")
    assert "5 -> 1 nodes" in done.stderr, done.stdout + done.stderr
    path = only_repro(tmp_path)
    assert run(path, bug="crash:gelu").returncode == 1


@only_stand_in
def test_a_late_error_is_one_of_the_graph_that_caused_it(run: Run, tmp_path: Path) -> None:
    done = run(HERE / "program.py", "acme:0", bug="late:gelu")
    assert "5 -> 1 nodes" in done.stdout, done.stdout + done.stderr
    path = only_repro(tmp_path)
    assert "gelu kernel failed" in path.read_text()
    assert len(path.read_text().splitlines()) < 120, "its own lines did not wait for the device"
    assert run(path, bug="late:gelu").returncode == 1


@only_stand_in
def test_a_device_in_error_is_captured_and_the_next_question_gets_a_fresh_process(
    run: Run, tmp_path: Path
) -> None:
    done = run(HERE / "program.py", "acme:0", bug="broken:gelu")
    assert "5 -> 1 nodes" in done.stdout, done.stdout + done.stderr
    assert "on a device in error" in only_repro(tmp_path).read_text()


@only_stand_in
def test_memory_that_runs_out_on_one_device_leaves_the_other_alone(run: Run) -> None:
    small = run(HERE / "program.py", "acme:1", ACME_LIMIT="300")
    assert "not reduced at once: out of memory" in small.stdout, small.stdout + small.stderr
    assert "result" in run(HERE / "program.py", "acme:0", ACME_LIMIT="300").stdout


@only_stand_in
def test_a_device_that_the_program_has_to_itself_is_left_alone_until_its_end(
    run: Run, tmp_path: Path
) -> None:
    """Nobody has said so of it: the first child hears that it is in use."""
    only_one, lock = "acme can be opened by one process at a time", {"ACME_LOCK": str(tmp_path / "lock")}
    program, wrong = (HERE / "program.py", "acme:0"), {"bug": "wrong:gelu", **lock}
    done = run(*program, "mixed", **wrong)
    assert f"not reduced at once: {only_one}, and this program has it until its end" in done.stdout
    reduced = run("-m", "minidbg", "reduce", **wrong)
    assert f"{only_one}: begun again" in reduced.stderr, reduced.stderr
    assert "10 -> 1 nodes" in reduced.stderr, reduced.stderr
    path = only_repro(tmp_path)
    assert run(path, **wrong).returncode == 1
    table = run("-m", "minidbg", "nodes", path, **wrong)
    assert f"{only_one}: begun again" in table.stderr, table.stderr
    assert "<------" in table.stdout, table.stdout + table.stderr
    assert table.stdout.splitlines()[-1].startswith("next: minidbg reduce"), table.stdout
    path.unlink()
    done = run("-m", "minidbg", "run", *program, bug="raises:gelu", **lock)
    assert f"not reduced at once: {only_one}" in done.stdout
    assert "acme failed to compile a graph: 5 -> 1 nodes" in done.stderr, done.stdout + done.stderr
    assert run(only_repro(tmp_path), bug="raises:gelu", **lock).returncode == 1


@pytest.mark.parametrize("what", ["mixed", "draws"])
def test_a_graph_of_two_devices_is_verified_and_its_failure_reduced(
    run: Run, device: str, what: str, tmp_path: Path
) -> None:
    """Inputs on both, moves, constants, autocast of that type; or numbers of both generators."""
    healthy = run(HERE / "program.py", device, what)
    assert "verified=1" in healthy.stdout, healthy.stdout + healthy.stderr
    assert "generators as they should be" in healthy.stdout
    done = run(HERE / "program.py", device, what, bug="wrong:gelu")
    assert "-> 1 nodes" in done.stdout, done.stdout + done.stderr
    assert run(only_repro(tmp_path), bug="wrong:gelu").returncode == 1


@only_stand_in
def test_watch_runs_a_matrix_and_skips_what_is_not_there(run: Run, tmp_path: Path) -> None:
    run(HERE / "program.py", "acme:0", bug="raises:gelu")
    name = only_repro(tmp_path).name
    folder, columns = tmp_path / "minidbg_repros", "cpu,acme:0,acme:1,acme:2"
    done = run("-m", "minidbg", "watch", folder, "--once", "--devices", columns, bug="raises:gelu")
    told = done.stdout + done.stderr
    for column, verdict in (("cpu", "gone"), ("acme:0", "reproduces"), ("acme:1", "reproduces")):
        assert f"{name} [{column}] ({verdict})" in told, told
    assert "acme:2 not present (found cpu, acme:0, acme:1); 1 repro skipped there" in told


@only_stand_in
def test_a_device_that_vanishes_while_watching_is_skipped_and_never_gone(run: Run, tmp_path: Path) -> None:
    """The backend is mended while the device is away: what is not there has not been fixed."""
    own = tmp_path / "acme_of_mine"
    shutil.copytree(STAND_IN, own)
    compiler, away = own / "acme/compiler.py", tmp_path / "away"
    run(HERE / "program.py", "acme:0", bug="raises:gelu", stand_in=own)
    name = only_repro(tmp_path).name
    env = environment("acme", "raises:gelu", own) | {"ACME_GONE": str(away)}
    daemon = WatchProcess(tmp_path, "minidbg_repros", "--devices", "cpu,acme:0", env=env)
    try:
        daemon.wait_for_sweep(since=0, seconds=200)
        away.touch()
        sound = compiler.read_text().replace('bug == "raises"', 'bug == "rises"')
        compiler.write_text(sound)
        begun = len(daemon.events)
        daemon.wait_for_sweep(since=begun, seconds=200)
        told = [event for event in daemon.events[begun:] if event.get("device") == "acme:0"]
        assert [event["event"] for event in told] == ["result"], told
        assert told[0]["transition"] == "skipped"
        assert "no device 'acme:0' here: RuntimeError: acme error 100" in told[0]["reason"]
        away.unlink()
        compiler.write_text(sound + "# once more")
        fixed = daemon.wait_for_event("flip", since=begun, seconds=200)
        assert (fixed["repro"], fixed["device"]) == (name, "acme:0")
        daemon.stop()
    finally:
        daemon.close()
