"""Whatever has become of a file in a repro folder, each reading command ends, in a sentence, and shows the other repros.

No hang, no traceback, none of the words "unexpected" and "a bug in minidbg", at most 200 MB more than an idle command takes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from damaged_folders import SOUND, damaged_folder, write_folder

SECONDS = 10
MORE_BYTES = 200 << 20
FILES = 20
MANY_FILES = 1300
"""Of each commit, others than those of the one before."""


COMMANDS: dict[str, list[str]] = {
    "list": ["list", "--json"],
    "list as text": ["list"],
    "show": ["show", "odd"],
    "show a sound one": ["show", "sound0", "--json"],
    "report": ["report", "odd", "--no-run", "--no-versions"],
    "history": ["history"],
    "history of one": ["history", "odd"],
    "config": ["config"],
}


def commands_of(project: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is asked of each folder: commands, and the reading parts of check, watch and doctor, which run nothing."""
    from minidbg.commands.root import main

    yield from ((name, lambda argv=argv: main(argv)) for name, argv in COMMANDS.items())
    yield from ((name, lambda part=part: told(part, project)) for name, part in PARTS.items())


def told(part: Callable[[Path], object], project: Path) -> None:
    """``part`` of a command, whose errors end as they do on the command line."""
    from minidbg.commands.output import print_error

    try:
        part(project / "minidbg_repros")
    except Exception as error:  # noqa: BLE001 - as main does
        print_error(error)


def check_reads(folder: Path) -> object:
    from minidbg.repro import read_header
    from minidbg.watch.repros import find_repros

    for path in find_repros([folder]):
        with contextlib.suppress(Exception) if path.name in SOUND else contextlib.nullcontext():
            read_header(path)
    return None


def watch_reads(folder: Path) -> object:
    from minidbg.history import open_or_begin_anew
    from minidbg.watch import settings
    from minidbg.watch.repros import read_repros, unreduced

    settings.load_watch_settings({})
    repros = read_repros([folder], folder)
    assert {name for name in SOUND if not repros[name].damage} == set(SOUND)
    unreduced(folder)
    history, _ = open_or_begin_anew(folder / ".minidbg" / "history.sqlite", 7.0)
    history.close()
    return None


def doctor_looks(folder: Path) -> object:
    from minidbg.commands import doctor

    return list(doctor.folder())


PARTS: dict[str, Callable[[Path], object]] = {
    "doctor": doctor_looks,
    "check": check_reads,
    "watch": watch_reads,
}


class TooLong(BaseException):
    """No Exception, so that nothing but this test takes it."""


def too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong


def asked(run: Callable[[], object]) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command in this process."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return status, out.getvalue(), err.getvalue()


def complaints(name: str, status: int, out: str, err: str, what: str) -> Iterator[str]:
    """What is wrong with the end of a command."""
    if "Traceback" in err or "minidbg: unexpected " in err or "bug in minidbg" in err:
        yield err[-400:]
    if name == "list" and status == 0:
        rows = {row["repro"]: row for row in map(json.loads, out.splitlines())}
        if (
            any(rows.get(sound, {}).get("verdict") != "reproduces" for sound in SOUND)
            and "history" not in what
        ):
            yield f"other rows are not intact: {sorted(rows)}"
    if name == "list" and status != 0 and not ("history.sqlite" in err or "pyproject.toml" in what):
        yield f"no list, and no word of the file: {err}"


def trial(model: Path, seed: int) -> list[str]:
    """What went wrong with the folder of ``seed``."""
    with tempfile.TemporaryDirectory() as top:
        project = Path(top, "project")
        what = damaged_folder(model, project, seed)
        os.chdir(project)
        found = []
        for name, run in commands_of(project):
            try:
                said = complaints(name, *asked(run), what)
                found += [f"seed {seed}, {what}, {name}: {one}" for one in said]
            except TooLong:
                found.append(f"seed {seed}, {what}, {name}: no end in {SECONDS} s")
            except BaseException as error:  # noqa: BLE001 - the point
                found.append(f"seed {seed}, {what}, {name}: raised {error!r}")
        os.chdir(top)
    return found


def main(first: int, count: int) -> None:
    """All trials in this process, with so much memory as an idle command has and some more; what went wrong, as JSON."""
    assert threading.current_thread() is threading.main_thread()
    signal.signal(signal.SIGALRM, too_long)
    with tempfile.TemporaryDirectory() as top:
        model = Path(top, "model")
        write_folder(model)
        os.chdir(model)
        for _, run in commands_of(model):
            asked(run)
        shutil.rmtree(model)
        write_folder(model)
        idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found = [one for seed in range(first, first + count) for one in trial(model, seed)]
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - idle
        os.chdir(top)
    print(json.dumps({"found": found, "more_bytes": more}))


def run_trials(first: int, count: int, folder: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MINIDBG")}
    environ |= {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, __file__, str(first), str(count)], capture_output=True, text=True, check=False,
        timeout=120 + 2 * count, env=environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["found"] == []
    assert said["more_bytes"] < MORE_BYTES


def test_some_damaged_folders_are_read_by_every_reading_command(tmp_path: Path) -> None:
    run_trials(0, FILES, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_more_damaged_folders_are_read_by_every_reading_command(part: int, tmp_path: Path) -> None:
    half = MANY_FILES // 2
    from support.rotating import day  # not where this file runs as the program of a trial

    run_trials(FILES + day() * MANY_FILES + part * half, half, tmp_path)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
