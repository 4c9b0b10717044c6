"""What people see: plain lines, the matrix, and what list, status and history read beside the daemon."""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from minidbg.commands.watching import history as history_command
from minidbg.commands.watching import list_repros
from minidbg.core.outcome import Outcome, Verdict
from minidbg.history import Flip, History, Observation, Revision, State, SweepRecord
from minidbg.watch import events
from minidbg.watch.events import Event, Flipped, Judged, Notice, Started
from minidbg.watch.repros import Lock
from minidbg.watch.states import Transition
from minidbg.watch.terminal import Screen, span
from minidbg.watch.views import Announcer, FlipCommands, JsonLines, PlainLines, RunAll, Stop, log_in

NOW = 1_000_000.0


def as_text(screen: Screen, width: int = 100, height: int = 30) -> str:
    """What is drawn, without colours."""
    console = Console(width=width, height=height, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(screen.render(width, height))
    return capture.get()


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


STARTED = Started(
    7, "/r", ("a.py",), ("src",), files=3, jobs=2, at=NOW,
    states=(State("a.py", "cpu", Verdict.REPRODUCES, NOW - 7200, NOW, "s", "e", "c"),),
)  # fmt: skip


def sweep_started(number: int = 1, jobs: int = 2) -> Event:
    return events.SweepStarted(number, jobs, 2, ("src/x.py",), 1, at=NOW)


def sweep_finished(number: int = 1) -> Event:
    return events.SweepFinished(number, "complete", 1.0, {}, 0, at=NOW)


def result(
    repro: str, verdict: str | None, device: str = "cpu", transition: str = "still failing", **more: Any
) -> Judged:
    known = {"reason": "", **more}
    found = Verdict(verdict) if verdict else None
    return Judged(1, repro, device, Transition(transition), found, 0.25, 1, **known, at=NOW)


def flip(repro: str, kind: str = "FIXED", after: str = "gone", **more: Any) -> Flipped:
    facts = {
        "files": ("src/x.py",), "last_before": "aaaaaaaaaa", "first_after": "aaaaaaaaaa+12345678",
        "path": f"/r/{repro}", **more,
    }  # fmt: skip
    return Flipped(repro, "cpu", kind, Verdict.REPRODUCES, Verdict(after), 2, 1, **facts, at=NOW)


def unconfirmed(repro: str, before: str, verdict: str) -> Event:
    facts = {"seen": True, "verdict": Verdict(verdict), "seconds": 0.1}
    return events.Unconfirmed(1, repro, "cpu", Verdict(before), **facts, at=NOW)


def broken() -> Event:
    return events.BackendBroken("toy", "cpu", "SyntaxError", 1, at=NOW)


# Lines, JSON, the log, and on_flip


def test_unchanged_results_are_not_listed_unless_every_one_is_wanted() -> None:
    for every, lines in ((False, 1), (True, 2)):
        stream = io.StringIO()
        view = PlainLines(stream, every_result=every)
        view.show(result("a.py", "reproduces"))
        view.show(result("b.py", "gone", transition="new"))
        assert len(stream.getvalue().splitlines()) == lines


def test_a_reader_that_has_gone_is_dropped_and_the_others_hear_on() -> None:
    closed, heard = io.StringIO(), io.StringIO()
    closed.close()
    announce = Announcer([JsonLines(closed), JsonLines(heard)])
    announce(Notice("one"))
    announce(Notice("two"))
    assert [json.loads(line)["text"] for line in heard.getvalue().splitlines()] == ["one", "two"]
    assert len(announce.views) == 1


def test_the_log_is_json_lines_and_the_one_before_is_kept(tmp_path: Path) -> None:
    for text in ("one", "two", "three"):
        view = JsonLines(log_in(tmp_path))
        view.show(Notice(text))
        view.close()
    last = {path.name: json.loads(path.read_text())["text"] for path in tmp_path.iterdir()}
    assert last == {"watch.log": "three", "watch.log.1": "two"}


FINISHED = sweep_finished()


def hooked(folder: Path, *commands: str, told: list[Event], seconds: float = 60.0) -> None:
    view = FlipCommands(commands, folder, lambda text: None, seconds)
    for event in told:
        view.show(event)
    view.close()


def test_on_flip_gets_what_flipped_in_a_sweep_at_once_and_the_rest_at_the_end(tmp_path: Path) -> None:
    told = [flip("sin.py"), flip("cos.py", "REGRESSED"), FINISHED, FINISHED, flip("tan.py")]
    hooked(tmp_path, "cat >> one; echo end >> one", "cat >> two", told=told)
    lines = (tmp_path / "one").read_text().splitlines()
    repros = [line if line == "end" else json.loads(line)["repro"] for line in lines]
    assert repros == ["sin.py", "cos.py", "end", "tan.py", "end"]
    assert (tmp_path / "two").read_text().splitlines() == [line for line in lines if line != "end"]


def test_a_command_of_on_flip_that_fails_or_takes_too_long_is_said_and_ends_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hooked(tmp_path, "echo no network >&2; exit 6", told=[flip("sin.py")])
    assert "for 1 flip: ended with status 6: no network" in capfd.readouterr().err
    hooked(tmp_path, "exec sleep 600", "touch next", told=[flip("sin.py")], seconds=1.0)
    assert "for 1 flip: could not be run: Command 'exec sleep 600' timed out" in capfd.readouterr().err
    assert (tmp_path / "next").exists()


# The screen


def heard(*told: Event, keys: str = "") -> Screen:
    """A screen that has heard of a repro of an earlier session, then of these events, and then of keys."""
    made = Screen(clock=lambda: NOW + 1)
    for event in (STARTED, *told):
        event.update(made.matrix)
    for key in keys:
        made.press(key)
    return made


MESSAGE = "LoweringException: " + "no lowering for aten.tanh.default " * 8
LONG = "compile_batch_norm_1d2c3b.py"
FILES = "projects/acme/src/acme_backend/lowering/rules.py", "projects/acme/src/acme_backend/kernels.py"
MANY = [result(f"r{number:03d}.py", "gone") for number in range(100)]
STALE_SERVER = "waiting for new workers before this sweep: /usr/lib/python3/torch/_inductor/lowering.py changed since the old ones started"
SHOWN: dict[str, tuple[list[Event], str, tuple[int, int], list[str]]] = {
    "nothing yet": ([], "", (80, 24), ["starting workers", "a.py  ~reproduces   2 h"]),
    "a sweep": ([sweep_started(jobs=3), result("a.py", "reproduces")], "", (130, 40), ["sweep 1  |  1/3 in 1.0 s  |  changed: x.py  |  /r"]),
    "what needs attention first": (
        [result("b.py", "gone", "cuda:0"), result("c.py", "crashed", reason="died of SIGSEGV"), FINISHED], "", (130, 40),
        ["  repro  cpu", "c.py   crashed", "died of SIGSEGV", "a.py   ~reproduces  -       2 h", "b.py   -"],
    ),
    "a new verdict": ([unconfirmed("a.py", "reproduces", "gone")], "", (80, 24), ["a.py  gone?"]),
    "a flip": ([flip("a.py")], "", (130, 40), ["FIXED a [cpu]  x.py changed; aaaaaaaaaa -> aaaaaaaaaa+12345678"]),
    "more flips than lines": ([flip(f"r{one}.py") for one in range(9)], "", (80, 24), ["FIXED r8 ", "... and 5 earlier flips; all: minidbg history"]),
    "a build": ([events.BuildStarted("make", at=NOW)], "", (80, 24), ["building: make  |  1.0 s"]),
    "a build that failed": (
        [events.BuildStarted("make", at=NOW), events.BuildFailed(1, 1.0, "", "kernels.c:17:5: error: too few", at=NOW)], "", (80, 24),
        ["build failed, rows are from before it", "kernels.c:17:5: error: too few"],
    ),
    "a broken backend": ([broken()], "", (80, 24), ["broken: toy on cpu: SyntaxError"]),
    "the error of the selected row": ([result("b.py", "reproduces", message=MESSAGE)], "jj", (80, 24), ["> b.py", MESSAGE[:60], MESSAGE[-20:].strip()]),
    "more rows than lines": (MANY, "", (80, 24), ["... and 81 more repros: up/down scrolls"]),
    "the last row": (MANY, "j" * 200, (80, 24), ["> r099.py"]),
    "more devices than there is room": (
        [result(LONG, "reproduces", f"cuda:{number}") for number in range(8)], "", (80, 24),
        [f"{LONG}  - reproduces  reproduces", "... and 6 more devices: 'minidbg list' has all"],
    ),
    "a long name beside many verdicts": (
        [result("n" * 90, "reproduces", f"cuda:{number}") for number in range(8)], "", (130, 40), ["nnn…  -            reproduces  reproduces  reproduces"],
    ),
    "a file that changed, in a narrow terminal": (
        [events.SweepStarted(2, 2, 2, FILES, 2, at=NOW), sweep_finished(2)], "", (80, 24),
        ["waiting; sweep 2 took 1.00 s  |  changed: rules.py, kernels.py"],
    ),
    "notices": ([Notice("one", at=NOW), Notice(STALE_SERVER, at=NOW)], "", (80, 24), [f"{clock(NOW)} one", STALE_SERVER]),
    "help": ([], "?", (80, 24), ["Enter", "run all repros again", "~verdict", "verdict?"]),
    "after help": ([], "?j", (80, 24), ["> a.py"]),
    "control sequences": ([Notice("\x1b[31mred", at=NOW)], "", (80, 24), ["[31mred"]),
}  # fmt: skip


def test_the_screen_tells_what_has_happened_in_the_lines_and_columns_that_there_are() -> None:
    troubles = []
    for name, (told, keys, (width, height), wanted) in SHOWN.items():
        for size in {(width, height), (80, 24), (130, 40)}:
            text = as_text(heard(*told, keys=keys), *size)
            lines = text.splitlines()
            if len(lines) > size[1] or max(map(len, lines)) > size[0] or "\x1b" in text:
                troubles.append(f"{name} does not fit {size}")
        text = as_text(heard(*told, keys=keys), width, height)
        flat = " ".join(text.split())
        troubles += [f"{name}: no {one!r} in\n{text}" for one in wanted if " ".join(one.split()) not in flat]
    assert not troubles, "\n".join(troubles)


def test_what_is_over_is_shown_no_more() -> None:
    over = [broken(), events.BackendBack("toy", "cpu"), events.BuildStarted("make", at=NOW)]
    over += [events.BuildFailed(1, 1.0, "", "too few", at=NOW), events.BuildFinished(1.0, at=NOW)]
    over += [unconfirmed("a.py", "reproduces", "gone"), result("a.py", "gone"), result("b.py", "gone")]
    text = as_text(heard(*over, events.ReproFileChanged("removed", "b.py")))
    assert [word for word in ("broken", "failed", "too few", "gone?", "b.py") if word in text] == []


def test_a_row_keeps_its_line_when_its_verdict_changes_until_a_person_sorts() -> None:
    first = [result("a.py", "reproduces"), result("b.py", "gone"), FINISHED]
    after = [
        sweep_started(2),
        result("a.py", "gone"),
        flip("a.py"),
        result("c.py", "reproduces"),
        sweep_finished(2),
    ]
    screen = heard(*first, *after)
    assert screen.matrix.repros == ["a.py", "b.py", "c.py"]
    screen.press("\r")
    assert screen.matrix.repros == ["c.py", "a.py", "b.py"]


JUDGED = [sweep_started(), result("a.py", "reproduces"), result("b.py", "gone"), FINISHED]
SAME_CODE = replace(sweep_started(2), changed=0, files=())
FORGOTTEN = replace(flip("a.py", "REGRESSED", "reproduces"), at=NOW + 3600)
OLD_ROWS: dict[str, tuple[list[Event], set[str]]] = {
    "of an earlier session": ([], {"a.py"}),
    "of an earlier session, until a sweep has reached it": ([SAME_CODE], {"a.py"}),
    "judged": (JUDGED, set()),
    "after a save, until they are judged": ([*JUDGED, sweep_started(2), result("a.py", "gone")], {"b.py"}),
    "after a save that broke the backend": ([*JUDGED, sweep_started(2), broken(), sweep_finished(2)], {"a.py", "b.py"}),
    "some are run again on the same code": ([*JUDGED, SAME_CODE, result("a.py", "gone"), sweep_finished(2)], set()),
    "a save cut the sweep short": ([*JUDGED[:3], replace(FINISHED, end="superseded")], {"a.py", "b.py"}),
    "an edited repro": ([*JUDGED, events.ReproFileChanged("edited", "a.py")], {"a.py"}),
    "during a build": ([*JUDGED, events.BuildStarted("make", at=NOW)], {"a.py", "b.py"}),
    "after a build": ([*JUDGED, events.BuildStarted("make", at=NOW), events.BuildFinished(1.0, at=NOW)], set()),
    "a flip that an earlier session did not tell": ([FORGOTTEN], {"a.py"}),
    "a flip of this sweep": ([sweep_started(2), result("a.py", "gone"), flip("a.py")], set()),
}  # fmt: skip


def test_rows_are_marked_as_old_until_the_present_code_is_judged() -> None:
    wrong = []
    for name, (told, old) in OLD_ROWS.items():
        screen = heard(*told)
        drawn = as_text(screen, width=120)
        marked = {repro for repro in screen.matrix.repros if re.search(rf"(?m)^  {repro} +~", drawn)}
        if marked != old:
            wrong.append(f"{name}: {sorted(marked)}, not {sorted(old)}\n{drawn}")
    assert not wrong, "\n".join(wrong)


def test_keys_that_ask_the_daemon_for_something_do_so_without_a_repro_too() -> None:
    asked = {key: Screen().press(key) for key in ("\r", "\n", "q", "j", "\x1b[A", "?")}
    assert {key: one for key, one in asked.items() if one} == {
        "\r": RunAll(),
        "\n": RunAll(),
        "q": Stop("asked to"),
    }


def test_readme_shows_the_matrix_as_it_is_drawn() -> None:
    readme = Path(__file__).parents[3].joinpath("README.md").read_text()
    shown = re.search(r"(?ms)^```text\n(waiting; sweep.*?)^```", readme)
    assert shown is not None
    screen = Screen(clock=lambda: NOW + 4)
    matrix = screen.matrix
    replace(STARTED, home="/home/me/minidbg_repros", states=()).update(matrix)
    events.SweepStarted(12, 4, 2, ("torch/_inductor/lowering.py",), 1, at=NOW).update(matrix)
    seconds = {"compile_add_d0c6ca.py": 0.4, "runtime_bmm_51c0de.py": 4.1}
    for repro, verdict, device, since in (
        ("runtime_bmm_51c0de.py", "reproduces", "cpu", NOW - 3 * 3600),
        ("runtime_bmm_51c0de.py", "crashed", "cuda:0", NOW - 3 * 3600),
        ("compile_add_d0c6ca.py", "gone", "cpu", NOW),
        ("compile_add_d0c6ca.py", "skipped", "cuda:0", NOW),
    ):
        replace(result(repro, verdict, device), since=since, seconds=seconds[repro]).update(matrix)
    revisions = {"last_before": "3f9c2a1b0d", "first_after": "3f9c2a1b0d+77ab01c2"}
    flip("compile_add_d0c6ca.py", files=("torch/_inductor/lowering.py",), **revisions).update(matrix)
    events.SweepFinished(12, "complete", 1.94, {}, 0, at=NOW).update(matrix)
    drawn = [line.rstrip() for line in as_text(screen, width=110).splitlines()]
    assert drawn[:-1] == shown[1].replace("14:02:51", clock(NOW)).splitlines(), "all but the keys"


def test_times_are_told_in_the_unit_people_would_use() -> None:
    assert [span(value) for value in (0.4, 59, 60, 7300, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]


# list, status, history


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A repro folder with a day of history, which a daemon has open."""
    for name, expect in (("a.py", "gone"), ("b.py", "reproduces"), ("never.py", "reproduces")):
        (tmp_path / name).write_text(
            f'# /// script\n# [tool.minidbg]\n# schema = 1\n# expect = "{expect}"\n# backend.name = "toy"\n# ///\n'
        )
    (tmp_path / "damaged.py").write_text("")
    from minidbg.watch.repros import read_repros

    digests = {name: repro.digest for name, repro in read_repros([tmp_path], tmp_path).items()}
    (tmp_path / ".minidbg").mkdir()
    with History(tmp_path / ".minidbg" / "history.sqlite") as opened:
        for commit in ("a" * 40, "b" * 40):
            number = opened.add(SweepRecord(("src/x.py",), {"/src": Revision(commit)}))
            gone = Outcome(Verdict.GONE)
            opened.add(Observation("a.py", "cpu", NOW, gone, "run", digests["a.py"], "e", sweep=number))
        opened.add(Flip("a.py", "cpu", NOW + 1, "FIXED", Verdict.REPRODUCES, Verdict.GONE, 2, 1))
        for name, verdict in (("a.py", Verdict.GONE), ("b.py", Verdict.GONE)):
            opened.add(State(name, "cpu", verdict, NOW, NOW, digests[name], "e", "c", runs=2))
        yield tmp_path


def run(command: object, *arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(command, [str(argument) for argument in arguments])  # type: ignore[arg-type]
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_list_shows_what_is_damaged_unseen_or_edited_since_and_history_as_many_lines_as_asked(
    folder: Path,
) -> None:
    _, text = run(list_repros, folder)
    words = {line.split()[0]: line for line in text.splitlines()}
    assert set(words) == {"a.py", "b.py", "never.py", "damaged.py"}
    assert "not seen" in words["never.py"]
    assert "damaged" in words["damaged.py"]
    assert len(run(history_command, folder / "a.py", "-n", 1, "--json")[1].splitlines()) == 2
    _, lines = run(list_repros, folder, "--json")
    rows = {row["repro"]: row for row in map(json.loads, lines.splitlines())}
    assert (rows["a.py"]["verdict"], rows["a.py"]["expected"]) == ("gone", True)
    assert rows["never.py"]["verdict"] is None
    with (folder / "a.py").open("a") as file:
        file.write("# edited\n")
    assert "gone (before an edit)" in run(list_repros, folder)[1]


GONE = Outcome(Verdict.GONE)


def test_list_says_who_watches(folder: Path) -> None:
    assert "watched by" not in run(list_repros, folder)[1]
    lock = Lock(folder)
    try:
        assert f"is watched by process {os.getpid()} on " in run(list_repros, folder)[1]
    finally:
        lock.release()


def test_reading_writes_nothing(folder: Path) -> None:
    def contents() -> dict[str, float]:
        paths = (path for path in folder.rglob("*") if not path.name.endswith("-shm"))
        return {str(path): path.stat().st_mtime_ns for path in paths}

    before = contents()
    time.sleep(0.01)
    for command in (list_repros, history_command):
        run(command, folder)
    assert contents() == before
