"""The smaller parts of watch: settings, lock, service files, repros, sources, outcomes, builds."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from pathlib import Path

import pytest

from minidbg.history import State
from minidbg.watch import probe
from minidbg.watch.builds import Build, Built, build_within
from minidbg.watch.files import Root
from minidbg.watch.repros import AlreadyWatched, Lock, Repro, home_of, living_holder, read_repro, read_repros
from minidbg.watch.runner import Runner, judging, outcome_of
from minidbg.watch.settings import FailOn, WatchSettings, load, parse_devices
from minidbg.watch.sources import (  # fmt: skip
    left_out_folders,
    module_roots,
    source_roots,
    worth_watching,
)
from minidbg.watch.states import Job, Purpose
from minidbg.watch.sweep import Run
from minidbg.words.errors import BadSetting, MinidbgError
from minidbg.words.outcome import Kind, Outcome, Signature, Verdict
from minidbg.workers.pool import Ended, RunMode

SCRIPT = """# /// script
# dependencies = []
# # a remark
#
# [tool.minidbg]
# schema = 1
# kind = "{kind}"
# backend = "toy"
# options = "{{'a': {option}}}"
# [tool.minidbg.signature]
# kind = "{kind}"
# types = ["ValueError"]
# ///
def backend():
    import toy_one.deep, torch._dynamo
    from toy_two import x
    from . import nothing
"""


def written(folder: Path, name: str = "a.py", *, kind: str = "compile", option: int = 1) -> Repro:
    path = folder / name
    path.write_text(SCRIPT.format(kind=kind, option=option))
    repro = read_repro(path, name)
    assert repro.damage == ""
    return repro


# Settings


def test_the_project_file_sets_and_arguments_win(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.minidbg.watch]\nbuild = "ninja"\nsources = ["csrc"]\njobs = 3\n'
    )
    (tmp_path / "inner").mkdir()
    settings = load({"jobs": 5, "fail_on": "unexpected", "sources": ()}, folder=tmp_path / "inner")
    assert (settings.build, settings.jobs) == ("ninja", 5)
    assert (settings.fail_on, settings.sources) == (FailOn.UNEXPECTED, (tmp_path / "csrc",))
    assert settings.folder == tmp_path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('biuld = "ninja"', "no setting named 'biuld'.*did you mean 'build'"),
        ("jobs = 0", "jobs=0.*must be 1 or more"),
        ('workers = "frok"', "must be one of 'auto', 'fork', 'spawn'; did you mean 'fork'"),
    ],
)
def test_a_wrong_setting_says_where_and_what_is_near(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.minidbg.watch]\n{line}\n")
    with pytest.raises(BadSetting, match=message):
        load({}, folder=tmp_path)


def test_the_other_settings_do_not_stumble_over_the_table_of_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minidbg.words import settings

    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.minidbg.watch]\nbuild = "ninja"\n')
    assert settings.load().max_calls is None


@pytest.mark.parametrize("text", ["", " , ", "cuda:x", "cpu;cuda", "1"])
def test_what_is_no_device_is_refused(text: str) -> None:
    with pytest.raises(BadSetting):
        parse_devices(text)


def test_devices_are_read_in_order_and_once() -> None:
    assert parse_devices("cuda:1, cpu,cuda:1") == ("cuda:1", "cpu")
    assert parse_devices(None) is None


# Lock


def test_a_lock_is_held_once_and_tells_its_holder(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    with pytest.raises(AlreadyWatched, match=rf"already watched by process {os.getpid()} on .* since"):
        Lock(tmp_path)
    assert living_holder(tmp_path)["pid"] == os.getpid()
    lock.release()
    assert living_holder(tmp_path) == {}
    Lock(tmp_path).release()


def test_a_killed_holder_and_a_reused_process_number_are_no_holder(tmp_path: Path) -> None:
    program = "import os, sys; from pathlib import Path; from minidbg.watch.repros import Lock; Lock(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=60)
    holder = tmp_path / ".minidbg" / "watch.json"
    assert holder.exists()
    assert living_holder(tmp_path) == {}
    about = json.loads(holder.read_text())
    holder.write_text(json.dumps({**about, "pid": os.getpid()}))
    assert living_holder(tmp_path) == {}
    Lock(tmp_path).release()


def test_a_folder_that_cannot_be_written_has_its_history_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("minidbg.watch.repros.os.access", lambda path, mode: False)
    lock = Lock(tmp_path / "repros")
    assert not (tmp_path / "repros").exists()
    assert living_holder(tmp_path / "repros")["pid"] == os.getpid()
    lock.release()


# Repros and their sources


def test_modules_come_from_the_header_and_from_what_backend_imports(tmp_path: Path) -> None:
    assert written(tmp_path).modules == ("toy_one", "toy_two")


def test_repros_share_a_canary_when_they_get_the_same_backend_in_the_same_way(tmp_path: Path) -> None:
    one, same, other = (written(tmp_path, f"{n}.py", option=o) for n, o in (("a", 1), ("b", 1), ("c", 2)))
    assert one.backend_key == same.backend_key != other.backend_key


def test_unchanged_repros_are_not_read_again(tmp_path: Path) -> None:
    written(tmp_path)
    known = read_repros([tmp_path], tmp_path)
    again = read_repros([tmp_path], tmp_path, known)
    assert again["a.py"] is known["a.py"]
    (tmp_path / "a.safetensors").write_bytes(b"values")
    assert read_repros([tmp_path], tmp_path, again)["a.py"].digest != known["a.py"].digest


@pytest.mark.parametrize(
    "text",
    ["", "# /// script\n# x = [\n# ///\n", "# /// script\n# [tool.minidbg]\n# kind = 'odd'\n# ///\n", SCRIPT.format(kind="crash", option=1) + "def broken(:"],
)  # fmt: skip
def test_a_damaged_repro_is_read_as_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.py").write_text(text)
    repro = read_repro(tmp_path / "a.py", "a.py")
    assert repro.damage.startswith("damaged: ")


def test_bytes_that_are_no_text_are_damage_and_a_missing_file_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"\xff\xfe\x00")
    repro = read_repro(tmp_path / "a.py", "a.py")
    assert "not a text in UTF-8" in repro.damage
    assert read_repro(tmp_path / "b.py", "b.py") is None


def test_a_path_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(MinidbgError, match=r"nowhere: no such file or folder"):
        home_of([tmp_path / "nowhere"])


def package(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "__init__.py").write_text("")
    return path


def test_packages_links_namespaces_and_single_modules_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    real = package(tmp_path / "checkout" / "src", "wl_linked")
    site.mkdir()
    (site / "wl_linked").symlink_to(real)
    package(site, "wl_plain")
    (site / "wl_namespace" / "part").mkdir(parents=True)
    (site / "wl_single.py").write_text("")
    (site / "wl_compiled.abi3.so").write_bytes(b"")
    monkeypatch.syspath_prepend(str(site))
    places = {name: [root.path for root in module_roots(name, ())] for name in
              ("wl_linked", "wl_plain", "wl_namespace", "wl_single", "wl_compiled", "wl_missing")}  # fmt: skip
    assert places == {
        "wl_linked": [str(real)],
        "wl_plain": [str(site / "wl_plain")],
        "wl_namespace": [str(site / "wl_namespace")],
        "wl_single": [str(site / "wl_single.py")],
        "wl_compiled": [str(site / "wl_compiled.abi3.so")],
        "wl_missing": [],
    }
    assert "wl_plain" not in sys.modules, "nothing is imported"


def test_an_editable_install_with_an_import_hook_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As setuptools installs them: a finder on ``sys.meta_path`` that maps the name to the checkout."""
    from importlib.machinery import ModuleSpec
    from importlib.util import spec_from_file_location

    real = package(tmp_path / "src", "wl_editable")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            return spec_from_file_location(name, real / "__init__.py") if name == "wl_editable" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert [root.path for root in module_roots("wl_editable", ())] == [str(real)]


def test_folders_of_the_header_are_searched_when_python_finds_nothing(tmp_path: Path) -> None:
    real = package(tmp_path, "wl_elsewhere")
    assert [root.path for root in module_roots("wl_elsewhere", [str(tmp_path)])] == [str(real)]


def test_a_backend_of_torch_itself_means_its_compiler_trees(tmp_path: Path) -> None:
    text = SCRIPT.format(kind="compile", option=1).replace("import toy_one.deep, torch._dynamo", "pass")
    (tmp_path / "a.py").write_text(text.replace("from toy_two import x", "pass"))
    repro = read_repro(tmp_path / "a.py", "a.py")
    names = {Path(root.path).name for root in source_roots([repro])}
    assert {"_inductor", "_dynamo", "lib"} <= names
    assert "torch" not in names


def test_of_loaded_files_only_those_are_watched_that_can_change_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import click

    left_out = (os.path.dirname(os.__file__) + os.sep, "/usr/lib/", "/tmp/torchinductor_")
    build = tmp_path / "build" / "ext.so"
    build.parent.mkdir()
    build.write_bytes(b"")
    source = tmp_path / "src"
    (source / ".git").mkdir(parents=True)
    for name in ("ext.so", "table.json", ".git/HEAD"):
        (source / name).write_text("")
    data_elsewhere = tmp_path / "notes.txt"
    data_elsewhere.write_text("")
    inside = [str(source / name) for name in ("ext.so", "table.json")]
    files = [
        os.__file__, click.__file__, str(build), *inside, str(source / ".git/HEAD"), str(data_elsewhere),
        "/tmp/torchinductor_x/ab/cab.py", "/usr/lib/libc.so.6",
    ]  # fmt: skip
    found = set(worth_watching(files, [Root(str(source))], left_out))
    assert found == {click.__file__, str(build), *inside}
    assert [*worth_watching([str(build)], [], left_out_folders(tmp_path))] == [str(build)], (
        "people build in /tmp"
    )


# Runs and outcomes


def ended(**fields: object) -> Ended:
    return Ended(1, **{"seconds": 2.0, **fields})


def test_the_last_json_line_is_the_answer(tmp_path: Path) -> None:
    said = json.dumps(Outcome(Verdict.GONE).to_json())
    run = ended(status=0, stdout=f"{{noise\nphase compile\n{said}\ntrailing")
    outcome = outcome_of(written(tmp_path), "cuda:1", run)
    assert (outcome.verdict, outcome.device) == (Verdict.GONE, "cuda:1")


@pytest.mark.parametrize(
    ("kind", "fields", "verdict"),
    [
        ("compile", {"signal": 11}, Verdict.CRASHED),
        ("crash", {"signal": 11, "stdout": "phase compile forward\n"}, Verdict.REPRODUCES),
        ("crash", {"signal": 6, "timed_out": True, "stdout": "phase runtime\n"}, Verdict.TIMEOUT),
        ("hang", {"timed_out": True, "signal": 6, "stdout": "phase runtime backward\n"}, Verdict.REPRODUCES),
        ("compile", {"timed_out": True, "signal": 9}, Verdict.TIMEOUT),
        ("crash", {"signal": 11, "stdout": "phase eager\n"}, Verdict.INVALID),
        ("hang", {"timed_out": True, "signal": 6, "stdout": "phase eager\n"}, Verdict.INVALID),
        ("crash", {"status": 7, "stdout": "phase runtime\n"}, Verdict.REPRODUCES),
        ("compile", {"status": 1, "stderr": "Traceback\nValueError: x"}, Verdict.INVALID),
        ("compile", {"status": 125, "stderr": "usage"}, Verdict.SKIPPED),
    ],
)
def test_a_run_without_an_answer_is_judged_by_its_end(
    tmp_path: Path, kind: str, fields: dict[str, object], verdict: Verdict
) -> None:
    assert outcome_of(written(tmp_path, kind=kind), "cpu", ended(**fields)).verdict is verdict


def test_a_crash_says_its_signal(tmp_path: Path) -> None:
    outcome = outcome_of(written(tmp_path), "cpu", ended(signal=11))
    assert outcome.reason == "died of SIGSEGV"
    assert outcome.signature == Signature(Kind.CRASH, types=("SIGSEGV",))


def test_workers_judge_crashes_in_their_own_process(tmp_path: Path) -> None:
    crash, plain = written(tmp_path, "c.py", kind="crash"), written(tmp_path, "p.py")
    assert [judging(repro, "cpu")[-1] for repro in (crash, plain)] == ["--child", "--json"]


def test_time_limits_follow_what_runs_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5))
    job = Job("a.py", "cpu")
    task, fresh = Run(Purpose.RUN, job), Run(Purpose.CONFIRM, job, fresh=True)
    hang, plain = written(tmp_path, "h.py", kind="hang"), written(tmp_path, "p.py")
    runner = Runner(None, WatchSettings())
    assert runner.time_limit(task, hang, None, RunMode.FORK) == 10.0
    assert runner.time_limit(fresh, hang, None, RunMode.FRESH) == 20.0, "an interpreter must start first"
    runner.usual_seconds = 5.0
    assert runner.time_limit(task, hang, None, RunMode.FORK) == 25.0
    known = State("p.py", "cpu", Verdict.GONE, 1.0, 1.0, plain.digest, "e", "c", seconds=20.0)
    assert [runner.time_limit(task, plain, state, RunMode.FORK) for state in (None, known)] == [180.0, 100.0]
    monkeypatch.setattr(os, "getloadavg", lambda: (4.0 * (os.cpu_count() or 1), 0.0, 0.0))
    assert runner.time_limit(fresh, plain, known, RunMode.FRESH) == 240.0, (
        "a busy machine is slow to start one"
    )
    limited = Runner(None, WatchSettings(seconds=7.0))
    assert limited.time_limit(task, plain, known, RunMode.FORK) == 7.0


# What workers are asked besides


def test_without_torch_the_machine_is_its_processor(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["devices", "--no-torch"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["devices"]) == ["cpu"]
    assert found["devices"]["cpu"]["name"]


# Builds, background work


@pytest.mark.parametrize(
    ("command", "status", "error"),
    [
        ("seq 100; echo trouble >&2; exit 3", 3, "trouble"),
        ("echo 'gcc -c x.c'; echo 'x.c:3: error: no such'; seq 500; exit 1", 1, "x.c:3: error: no such"),
        ("seq 500; echo 'no error'", 0, ""),
    ],
)
def test_a_build_tells_its_status_its_last_lines_and_its_first_error(
    tmp_path: Path, command: str, status: int, error: str
) -> None:
    told: queue.SimpleQueue[Built] = queue.SimpleQueue()
    build = Build(command, tmp_path, told.put)
    built = told.get(timeout=30)
    assert (built.build, built.status, built.error) == (build, status, error)
    assert len(built.output.splitlines()) == 30


def test_a_cancelled_build_ends(tmp_path: Path) -> None:
    told: queue.SimpleQueue[Built] = queue.SimpleQueue()
    Build("sleep 1000", tmp_path, told.put).cancel()
    assert told.get(timeout=30).status == -9


def test_a_build_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"no end within 0\.1 s"):
        build_within(0.1, "sleep 1000", tmp_path)
