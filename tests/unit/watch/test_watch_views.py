"""What people see: plain lines, the matrix, and what list, status and history read beside the daemon."""

from __future__ import annotations

import io
import itertools
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from minidbg.commands.watching import accept, list_repros, status
from minidbg.commands.watching import history as history_command
from minidbg.history import Flip, History, Observation, Revision, State
from minidbg.watch import events
from minidbg.watch.announce import Announcer, JsonLines, Log, PlainLines
from minidbg.watch.drawing import KEYS, OLD, OLD_LEGEND, cell_text, render, span
from minidbg.watch.events import Event, Flipped, Judged, Notice, Started
from minidbg.watch.matrix import Matrix, clock
from minidbg.watch.repros import Lock
from minidbg.watch.states import Transition
from minidbg.watch.terminal import obey
from minidbg.words.kinds import Kind
from minidbg.words.outcome import Outcome, Verdict

NOW = 1_000_000.0


def as_text(matrix: Matrix, width: int = 100, height: int = 30) -> str:
    """The matrix without colours."""
    console = Console(width=width, height=height, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(render(matrix, width, height))
    return capture.get()


STARTED = Started(
    7, "/r", ("a.py",), ("src",), files=3, jobs=2, at=NOW,
    states=(State("a.py", "cpu", Verdict.REPRODUCES, NOW - 7200, NOW, "s", "e", "c"),),
)  # fmt: skip


def sweep_started(number: int = 1, jobs: int = 2) -> Event:
    return events.SweepStarted(number, jobs, 2, ("src/x.py",), 1, ("cpu",), at=NOW)


def sweep_finished(number: int = 1) -> Event:
    return events.SweepFinished(number, "complete", 1.0, None, {}, 0, at=NOW)


def result(
    repro: str, verdict: str | None, device: str = "cpu", standing: str = "still failing", **more: Any
) -> Judged:
    known = {"reason": "", **more}
    found = Verdict(verdict) if verdict else None
    return Judged(1, repro, device, Transition(standing), found, 0.25, 1, **known, at=NOW)


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


# Plain lines


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("aaaaaaaaaa", "aaaaaaaaaa+12345678", "aaaaaaaaaa -> with edits (12345678)"),
        ("aaaaaaaaaa+12345678", "bbbbbbbbbb", "aaaaaaaaaa with edits (12345678) -> bbbbbbbbbb"),
        (
            "aaaaaaaaaa+4daba889", "aaaaaaaaaa+2fa4e531",
            "aaaaaaaaaa with edits (4daba889) -> with edits (2fa4e531)",
        ),
        ("aaaaaaaaaa", "aaaaaaaaaa", "at aaaaaaaaaa"),
        ("one a, two b", "one a, two b+12345678", "one a, two b -> one a, two b with edits (12345678)"),
    ],
)  # fmt: skip
def test_a_flip_says_what_happened_and_which_file_changed_before_the_revisions(
    before: str, after: str, text: str
) -> None:
    told = flip("a.py", last_before=before, first_after=after).line()
    assert told == f"FIXED a [cpu]  x.py changed; {text}"


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ((), "at aaaaaaaaaa, no watched file changed"),
        (("src/acme/__init__.py",), "acme/__init__.py changed; at aaaaaaaaaa"),
        (("a.py", "b.py", "c.py"), "a.py, b.py, ... changed; at aaaaaaaaaa"),
    ],
)
def test_a_flip_names_the_files_that_changed_if_any_did(files: tuple[str, ...], text: str) -> None:
    told = flip("a.py", files=files, last_before="aaaaaaaaaa", first_after="aaaaaaaaaa").line()
    assert told == f"FIXED a [cpu]  {text}"


@pytest.mark.parametrize(
    ("seen", "before", "text"),
    [
        (True, "reproduces", "reproduced before"), (True, "gone", "was gone before"),
        (False, "gone", "its header expects gone"),
    ],
)  # fmt: skip
def test_a_verdict_that_is_being_confirmed_is_told_beside_the_one_before(
    seen: bool, before: str, text: str
) -> None:
    told = replace(unconfirmed("a.py", before, "crashed"), seen=seen).line()
    assert told.endswith(f"a.py [cpu] {text}; confirming in a fresh interpreter")


def test_a_flip_that_is_no_fix_and_no_regression_names_its_verdicts() -> None:
    assert flip("a.py", "changed", "changed").line().startswith("changed a [cpu] reproduces -> changed  ")


def test_unchanged_results_are_not_listed_unless_every_one_is_wanted() -> None:
    for every, lines in ((False, 1), (True, 2)):
        stream = io.StringIO()
        view = PlainLines(stream, every_result=every)
        view.show(result("a.py", "reproduces"))
        view.show(result("b.py", "gone", standing="new"))
        assert len(stream.getvalue().splitlines()) == lines


def test_control_sequences_from_elsewhere_do_not_reach_the_terminal() -> None:
    event = result("a.py", "gone", standing="new", reason="\x1b]0;owned\x07 \x1b[2J")
    assert "\x1b" not in event.line()
    matrix = Matrix(clock=lambda: NOW)
    matrix.hear(event)
    matrix.hear(Notice("\x1b[31mred", at=NOW))
    assert "\x1b" not in as_text(matrix)


def test_a_reader_that_has_gone_is_dropped_and_the_others_hear_on() -> None:
    closed, heard = io.StringIO(), io.StringIO()
    closed.close()
    announce = Announcer([JsonLines(closed), JsonLines(heard)])
    announce(Notice("one"))
    announce(Notice("two"))
    assert [json.loads(line)["text"] for line in heard.getvalue().splitlines()] == ["one", "two"]
    assert len(announce.views) == 1


def test_the_log_is_json_lines_and_rotates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minidbg.watch.announce.LOG_BYTES", 2000)
    log = Log(tmp_path / "watch.log")
    for number in range(100):
        log.show(Notice(f"number {number}"))
    log.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 4
    assert json.loads((tmp_path / "watch.log").read_text().splitlines()[-1])["text"] == "number 99"


# The matrix


@pytest.fixture
def matrix() -> Matrix:
    made = Matrix(clock=lambda: NOW + 1)
    made.hear(STARTED)
    return made


def test_the_matrix_shows_repros_by_devices_what_needs_attention_first(matrix: Matrix) -> None:
    matrix.hear(sweep_started(jobs=3))
    matrix.hear(result("a.py", "reproduces"))
    matrix.hear(result("b.py", "gone", "cuda:0", standing="new"))
    matrix.hear(result("c.py", "crashed", standing="crashed", reason="died of SIGSEGV"))
    lines = as_text(matrix, width=120).splitlines()
    assert "sweep 1  |  3/3 in 1.0 s  |  changed: src/x.py" in lines[0]
    assert lines[1].split() == ["repro", "cpu", "cuda:0", "since", "took"]
    assert [line.split()[0] for line in lines[2:5]] == ["c.py", "a.py", "b.py"]
    assert lines[3].split() == ["a.py", "reproduces", "-", "2", "h", "0.2", "s"]
    assert "died of SIGSEGV" in lines[2]


def test_a_flip_stands_on_top_and_an_unconfirmed_one_in_its_cell(matrix: Matrix) -> None:
    matrix.hear(sweep_started(2))
    matrix.hear(unconfirmed("a.py", "reproduces", "gone"))
    assert "reproduces -> gone?" in as_text(matrix)
    matrix.hear(result("a.py", "gone", standing="FIXED"))
    matrix.hear(flip("a.py"))
    text = as_text(matrix, width=160)
    assert "FIXED a [cpu]" in text.splitlines()[1]
    assert "*a.py" in text, "its row is marked"
    assert "gone?" not in text
    assert matrix.flips[0].path == "/r/a.py"


def test_flips_that_are_not_shown_are_counted(matrix: Matrix) -> None:
    for number in range(9):
        assert "earlier flip" not in as_text(matrix, 80, 60) or number > 6
        matrix.hear(flip(f"r{number}.py"))
    assert "... and 3 earlier flips; all: minidbg history" in as_text(matrix, 80, 60)
    assert "... and 5 earlier flips; all: minidbg history" in as_text(matrix, 80, 24)


def test_a_failed_build_is_told_until_the_code_is_good_again(matrix: Matrix) -> None:
    """Issue 15: the head line said 'building' for ever."""
    matrix.hear(events.BuildStarted("make", at=NOW))
    assert "building: make" in as_text(matrix)
    error = "acme/src/kernels.c:17:5: error: " + "too few arguments to function " * 5
    matrix.hear(events.BuildFailed(1, 1.0, "long", error, at=NOW))
    first, *rest = as_text(matrix, width=100).splitlines()
    assert f"build failed {clock(NOW)}, rows are from before it" in first
    assert " ".join(line.strip() for line in rest[:3]).startswith(error.strip()), "in full"
    matrix.hear(events.BuildFinished(1.0, at=NOW))
    assert "build failed" not in as_text(matrix)
    assert "too few" not in as_text(matrix)


def test_a_row_keeps_its_line_when_its_verdict_changes_until_a_person_sorts(matrix: Matrix) -> None:
    for number in range(1, 3):
        matrix.hear(sweep_started(number))
        matrix.hear(result("a.py", "reproduces" if number == 1 else "gone"))
        matrix.hear(result("b.py", "gone"))
        matrix.hear(sweep_finished(number))
    matrix.hear(result("c.py", "reproduces"))
    assert matrix.names() == ["a.py", "b.py", "c.py"]
    matrix.sort()
    assert matrix.names() == ["c.py", "a.py", "b.py"]


def test_the_error_of_the_selected_row_is_shown_in_full(matrix: Matrix) -> None:
    message = "LoweringException: " + "no lowering for aten.tanh.default " * 8
    matrix.hear(result("b.py", "reproduces", message=message))
    assert "aten.tanh.default no lowering" not in as_text(matrix, width=80)
    matrix.select(1)
    matrix.select(1)
    assert matrix.selected == "b.py"
    text = as_text(matrix, width=80)
    assert " ".join(message.split()) in " ".join(text.split())
    assert ">" in next(line for line in text.splitlines() if line.lstrip(" >*").startswith("b.py"))


def test_a_broken_backend_stays_on_top_until_it_is_back(matrix: Matrix) -> None:
    matrix.hear(broken())
    assert "broken: toy on cpu: SyntaxError" in as_text(matrix)
    matrix.hear(events.BackendBack("toy", "cpu"))
    assert "broken" not in as_text(matrix)


@pytest.mark.parametrize("height", [8, 12, 24])
def test_more_repros_than_lines_are_counted(matrix: Matrix, height: int) -> None:
    for number in range(100):
        matrix.hear(result(f"r{number:03d}.py", "gone"))
    lines = as_text(matrix, height=height).splitlines()
    assert len(lines) <= height
    shown = sum(line.lstrip().startswith(("r0", "a.py")) for line in lines)
    assert f"... and {101 - shown} more repros" in "\n".join(lines)


def test_a_long_list_says_how_to_see_the_rest_and_a_selected_row_is_always_seen(matrix: Matrix) -> None:
    for number in range(39):
        matrix.hear(result(f"r{number:02d}.py", "reproduces"))
    assert "more repros; up/down scrolls" in as_text(matrix, 80, 24)
    for place in (1, 25, 12, -100):
        matrix.select(place)
        assert f"> {matrix.selected}" in as_text(matrix, 80, 24)


# The matrix: which rows are old


def is_marked(matrix: Matrix, repro: str, device: str = "cpu") -> bool:
    """Whether a verdict is dim and has the mark; both or neither, and the legend is there with it."""
    text = cell_text(matrix, matrix.cells[repro, device])
    dim = any("dim" in str(span.style) for span in text.spans)
    drawn = as_text(matrix, width=120)
    marked = text.plain.startswith(OLD)
    assert (dim, OLD_LEGEND in drawn) == (marked, "~" in drawn.replace(OLD_LEGEND, ""))
    return marked


def test_a_verdict_of_an_earlier_session_is_marked_until_a_sweep_has_reached_it(matrix: Matrix) -> None:
    assert is_marked(matrix, "a.py")
    matrix.hear(replace(sweep_started(), changed=0))
    assert is_marked(matrix, "a.py")
    matrix.hear(result("a.py", "reproduces"))
    assert not is_marked(matrix, "a.py")


def test_after_a_save_rows_are_marked_until_they_are_judged_also_where_the_backend_is_broken(
    matrix: Matrix,
) -> None:
    matrix.hear(result("a.py", "reproduces"))
    matrix.hear(result("b.py", "gone"))
    matrix.hear(sweep_started(2))
    matrix.hear(result("a.py", "reproduces"))
    assert [is_marked(matrix, name) for name in ("a.py", "b.py")] == [False, True]
    matrix.hear(sweep_started(3))
    matrix.hear(broken())
    matrix.hear(sweep_finished(3))
    assert is_marked(matrix, "a.py")
    assert is_marked(matrix, "b.py")


def test_a_row_that_is_run_again_on_the_same_code_is_not_old(matrix: Matrix) -> None:
    for name in ("a.py", "b.py"):
        matrix.hear(result(name, "gone"))
    matrix.hear(sweep_finished())
    matrix.hear(replace(sweep_started(2), changed=0, files=()))
    matrix.hear(result("a.py", "gone"))
    matrix.hear(sweep_finished(2))
    assert not cell_text(matrix, matrix.cells["b.py", "cpu"]).plain.startswith(OLD)


def test_what_a_sweep_has_judged_that_a_save_cut_short_is_old(matrix: Matrix) -> None:
    matrix.hear(sweep_started(2))
    matrix.hear(result("a.py", "gone"))
    matrix.hear(replace(sweep_finished(2), end="superseded"))
    assert is_marked(matrix, "a.py")


def test_an_edited_repro_is_old_and_a_verdict_that_is_being_confirmed_shows_both(matrix: Matrix) -> None:
    matrix.hear(result("a.py", "reproduces"))
    matrix.hear(events.ReproEdited("a.py"))
    assert is_marked(matrix, "a.py")
    matrix.hear(unconfirmed("a.py", "reproduces", "gone"))
    assert cell_text(matrix, matrix.cells["a.py", "cpu"]).plain == "reproduces -> gone?"


def test_during_a_build_and_after_one_that_failed_every_row_is_old(matrix: Matrix) -> None:
    matrix.hear(result("a.py", "reproduces"))
    matrix.hear(events.BuildStarted("make", at=NOW))
    assert is_marked(matrix, "a.py")
    matrix.hear(events.BuildFailed(1, 1.0, "long", "error", at=NOW))
    assert is_marked(matrix, "a.py")
    matrix.hear(events.BuildFinished(1.0, at=NOW))
    assert not is_marked(matrix, "a.py")


def test_a_flip_that_was_forgotten_in_an_earlier_session_leaves_its_row_old(matrix: Matrix) -> None:
    matrix.hear(replace(flip("a.py", "REGRESSED", "reproduces"), at=NOW + 3600))
    assert is_marked(matrix, "a.py")
    assert matrix.cells["a.py", "cpu"].since == NOW - 7200, "when it happened, not when it was told"
    matrix.hear(sweep_started(2))
    matrix.hear(sweep_finished(2))
    assert is_marked(matrix, "a.py")
    matrix.hear(flip("a.py"))
    assert not is_marked(matrix, "a.py"), "of the sweep that is shown, as of a run in quiet time"


# The matrix: a small terminal

LONG = "compile_batch_norm_1d2c3b.py"


@pytest.mark.parametrize(
    ("width", "columns", "remark"),
    [
        (120, ["repro", "cpu", "since", "took"], True), (80, ["repro", "cpu", "since", "took"], True),
        (58, ["repro", "cpu", "since", "took"], False), (46, ["repro", "cpu"], False),
    ],
)  # fmt: skip
def test_a_name_and_its_verdict_stay_whole_while_the_remark_and_then_the_times_give_way(
    matrix: Matrix, width: int, columns: list[str], remark: bool
) -> None:
    matrix.hear(sweep_started())
    matrix.hear(result(LONG, "reproduces", message="NotImplementedError: no kernel for batch_norm here"))
    lines = as_text(matrix, width).splitlines()
    assert next(line.split() for line in lines if line.startswith("  repro")) == columns
    row = next(line for line in lines if LONG in line)
    assert "reproduces" in row
    assert ("NotImpl" in row) == remark


@pytest.mark.parametrize("width", [24, 40, 60, 80, 130])
@pytest.mark.parametrize("height", [12, 24, 40])
def test_nothing_is_wider_or_higher_than_the_screen(matrix: Matrix, width: int, height: int) -> None:
    devices = ("cpu", "cuda:0", "cpu ACME_FUSE=1", "cuda:0 ACME_FUSE=1")
    for number, device in itertools.product(range(40), devices):
        matrix.hear(
            result(f"compile_batch_norm_{number}.py", "reproduces", device, message="no kernel " * 40)
        )
    for number in range(8):
        matrix.hear(unconfirmed(f"compile_batch_norm_{number}.py", "reproduces", "crashed"))
        matrix.hear(
            flip(f"compile_batch_norm_{number}.py", last_before="aaaaaaaaaa", first_after="bbbbbbbbbb")
        )
        matrix.hear(Notice(f"{number} " + "something that somebody must know " * 4, at=NOW))
    for number in range(20):
        matrix.select(1)
        matrix.answer = "why not " * 30 if number % 2 else ""
        lines = as_text(matrix, width, height).splitlines()
        assert max(map(len, lines)) <= width
        assert width < 60 or len(lines) <= height or height < 24
    matrix.help = True
    assert max(map(len, as_text(matrix, width, height).splitlines())) <= width


def test_a_name_stays_readable_beside_new_verdicts_that_are_being_confirmed(matrix: Matrix) -> None:
    for device in ("cpu", "cuda:0", "cuda:1"):
        matrix.hear(result("compile_erf_51c0de.py", "reproduces", device))
        matrix.hear(replace(unconfirmed("compile_erf_51c0de.py", "reproduces", "crashed"), device=device))
    row = next(line for line in as_text(matrix, 80).splitlines() if "compile_erf_51c0de.py" in line)
    assert row.count("reproduces") == 3


def test_columns_that_do_not_fit_are_counted(matrix: Matrix) -> None:
    for number in range(8):
        matrix.hear(result(LONG, "reproduces", f"cuda:{number}"))
    text = as_text(matrix, 80)
    assert LONG in text
    assert "... and 5 more columns: 'minidbg list' has all" in text


def test_a_file_that_changed_is_named_on_a_narrow_screen_too(matrix: Matrix) -> None:
    files = ("projects/acme/src/acme_backend/lowering/rules.py", "projects/acme/src/acme_backend/kernels.py")
    matrix.hear(events.SweepStarted(2, 2, 2, files, 2, ("cpu",), at=NOW))
    matrix.hear(replace(sweep_finished(2), first_verdict_seconds=0.25))
    matrix.hear(flip(LONG, files=files))
    first, second, *_ = as_text(matrix, 80).splitlines()
    assert first.rstrip() == "waiting; sweep 2 took 1.00 s  |  changed: rules.py, ..."
    assert "changed: rules.py, kernels.py" in as_text(matrix, 100)
    assert second.rstrip().endswith(f"FIXED {Path(LONG).stem} [cpu]  rules.py, kernels.py changed"), (
        "no half revision"
    )
    assert "first verdict after 0.25 s" in as_text(matrix, 200)


def test_notices_are_wrapped_and_the_newest_stay(matrix: Matrix) -> None:
    long = "this sweep waits for new workers: /usr/lib/python3/torch/_inductor/lowering.py changed since the old ones started"
    for text in ("one", "two", "three", long):
        matrix.hear(Notice(text, at=NOW))
    text = " ".join(as_text(matrix, 80, 24).split())
    assert long in text
    assert "three" in text
    assert "one" in text
    assert "one" not in as_text(matrix, 80, 12), "where there is no room"


# Keys


def test_a_question_mark_lists_every_key_and_mark_and_any_key_closes_the_list(matrix: Matrix) -> None:
    obey(matrix, "?")
    lines = as_text(matrix, 80, 24).splitlines()
    assert len(lines) <= 24
    text = "\n".join(lines)
    assert all(re.search(rf"(?m)^  {re.escape(key)} +\w", text) for key in KEYS)
    assert "~verdict" in text
    assert "a.py" not in text
    obey(matrix, "\x1b[B")
    assert matrix.selected == "a.py"
    assert "a.py" in as_text(matrix)
    obey(matrix, "?")
    obey(matrix, "?")
    assert not matrix.help


@pytest.mark.parametrize(
    ("key", "answer", "order"),
    [
        ("x", "x is no key here; ? lists the keys", None),
        ("\x1b[A", "", None),
        ("o", "", None),
        ("\r", "", "rerun"),
    ],
)
def test_a_key_that_can_do_nothing_says_why(matrix: Matrix, key: str, answer: str, order: str | None) -> None:
    found = obey(matrix, key)
    assert (matrix.answer, found and found.name) == (answer, order)
    if answer:
        assert answer in as_text(matrix, 80)
        obey(matrix, "?")
        assert matrix.answer == "", "until the next key"


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("o", "no repro to open"), ("j", "no repro to select"),
        ("\n", "no repro to run"),
    ],
)  # fmt: skip
def test_keys_without_any_repro_say_so(key: str, answer: str) -> None:
    matrix = Matrix(clock=lambda: NOW)
    obey(matrix, key)
    assert matrix.answer == answer


def test_readme_shows_the_matrix_as_it_is_drawn() -> None:
    readme = Path(__file__).parents[3].joinpath("README.md").read_text()
    shown = re.search(r"(?ms)^```text\n(minidbg watch /home.*?)^```", readme)
    assert shown is not None
    matrix = Matrix(clock=lambda: NOW + 4)
    matrix.hear(replace(STARTED, home="/home/me/minidbg_repros", states=()))
    matrix.hear(events.SweepStarted(12, 4, 2, ("torch/_inductor/lowering.py",), 1, at=NOW))
    seconds = {"compile_add_8abe2e.py": 0.4, "runtime_bmm_51c0de.py": 4.1}
    for repro, verdict, device, since in (
        ("runtime_bmm_51c0de.py", "reproduces", "cpu", NOW - 3 * 3600),
        ("runtime_bmm_51c0de.py", "crashed", "cuda:0", NOW - 3 * 3600),
        ("compile_add_8abe2e.py", "gone", "cpu", NOW),
        ("compile_add_8abe2e.py", "skipped", "cuda:0", NOW),
    ):
        matrix.hear(replace(result(repro, verdict, device), since=since, seconds=seconds[repro]))
    revisions = {"last_before": "3f9c2a1b0d", "first_after": "3f9c2a1b0d+77ab01c2"}
    matrix.hear(flip("compile_add_8abe2e.py", files=("torch/_inductor/lowering.py",), **revisions))
    matrix.hear(events.SweepFinished(12, "complete", 1.94, None, {}, 0, at=NOW))
    drawn = [line.rstrip() for line in as_text(matrix, width=110).splitlines()]
    assert drawn[: len(drawn) - 1] == shown[1].replace("14:02:51", clock(NOW)).splitlines(), (
        "all but the keys"
    )


def test_times_are_told_in_the_unit_people_would_use() -> None:
    assert [span(value) for value in (0.4, 59, 60, 7300, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]


# list, status, history


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A repro folder with a day of history, which a daemon has open."""
    for name, expect in (("a.py", "gone"), ("b.py", "reproduces"), ("never.py", "reproduces")):
        (tmp_path / name).write_text(
            f'# /// script\n# [tool.minidbg]\n# schema = 1\n# kind = "compile"\n# expect = "{expect}"\n# backend = "toy"\n# ///\n'
        )
    (tmp_path / "damaged.py").write_text("")
    from minidbg.watch.repros import read_repros

    digests = {name: repro.digest for name, repro in read_repros([tmp_path], tmp_path).items()}
    (tmp_path / ".minidbg").mkdir()
    with History(tmp_path / ".minidbg" / "history.sqlite") as opened:
        for began, commit in ((NOW - 1, "a" * 40), (NOW, "b" * 40)):
            number = opened.start_sweep(began, code="c", files=["src/x.py"])
            opened.set_revisions(number, {"/src": Revision(commit)})
            opened.end_sweep(number, NOW + 1, "complete")
            gone = Outcome(Verdict.GONE)
            opened.add_observation(
                Observation("a.py", "cpu", NOW, gone, "run", digests["a.py"], "e", sweep=number)
            )
        opened.add_flip(Flip("a.py", "cpu", NOW + 1, "FIXED", Verdict.REPRODUCES, Verdict.GONE, 2, 1))
        for name, verdict in (("a.py", Verdict.GONE), ("b.py", Verdict.GONE)):
            opened.put_state(State(name, "cpu", verdict, NOW, NOW, digests[name], "e", "c", runs=2))
        yield tmp_path


def run(command: object, *arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(command, [str(argument) for argument in arguments])  # type: ignore[arg-type]
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_list_shows_every_repro_and_what_contradicts_its_header(folder: Path) -> None:
    _, text = run(list_repros, folder)
    words = {line.split()[0]: line for line in text.splitlines()}
    assert set(words) == {"a.py", "b.py", "never.py", "damaged.py"}
    assert "header expects reproduces" in words["b.py"]
    assert "header" not in words["a.py"]
    assert "not seen yet" in words["never.py"]
    assert "damaged" in words["damaged.py"]
    _, lines = run(list_repros, folder, "--json")
    rows = {row["repro"]: row for row in map(json.loads, lines.splitlines())}
    assert (rows["a.py"]["verdict"], rows["a.py"]["expected"]) == ("gone", True)
    assert rows["never.py"]["verdict"] is None


def test_list_says_that_a_repro_was_edited_since(folder: Path) -> None:
    with (folder / "a.py").open("a") as file:
        file.write("# edited\n")
    assert "gone (before an edit)" in run(list_repros, folder)[1]


def test_history_of_one_repro_has_its_flips_with_revisions_and_then_its_runs(folder: Path) -> None:
    with History(folder / ".minidbg" / "history.sqlite") as opened:
        for _ in range(18):
            again = Observation("a.py", "cpu", NOW + 9, Outcome(Verdict.GONE), "probe", "s", "e", sweep=2)
            opened.add_observation(again)
    _, text = run(history_command, folder / "a.py")
    lines = text.splitlines()
    assert "reproduces -> gone between aaaaaaaaaa and bbbbbbbbbb (src/x.py)" in lines[0]
    assert lines[1].endswith("sweep 2, the last of 20 runs"), "runs with one verdict are one line"
    assert len(lines) == 2
    assert len(run(history_command, folder)[1].splitlines()) == 1
    assert len(run(history_command, folder / "a.py", "-n", 1, "--json")[1].splitlines()) == 2


def test_a_kind_that_there_is_not_is_answered_with_those_that_there_are(tmp_path: Path) -> None:
    done = CliRunner().invoke(list_repros, ["--kind", "crashes", str(tmp_path)])
    assert (done.exit_code, all(kind in done.output for kind in Kind)) == (2, True), done.output


def test_history_takes_a_part_of_a_name_as_show_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 15: it answered "no history in ." and a wrong hint."""
    (folder / "accuracy_neg_ab12cd.py").write_text((folder / "b.py").read_text())
    monkeypatch.setenv("MINIDBG_DIR", str(folder))
    assert run(history_command, "accuracy_neg") == (0, "0 flips\n")
    assert CliRunner().invoke(history_command, ["nowhere"]).exit_code != 0


def test_accept_makes_a_regression_test_and_begins_no_new_history(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minidbg.watch.repros import read_repro

    monkeypatch.setenv("MINIDBG_DIR", str(folder))
    before = read_repro(folder / "b.py", "b.py")
    done, said = run(accept, "b", "--force")
    assert (done, "regression test" in said) == (0, True)
    after = read_repro(folder / "b.py", "b.py")
    assert after.expect is Verdict.GONE
    assert after.digest == before.digest
    (line,) = (line for line in run(list_repros, folder)[1].splitlines() if line.startswith("b.py"))
    assert "header" not in line


REPRODUCES = Outcome(Verdict.REPRODUCES, message="ValueError: no kernel")
NO_DEVICE = Outcome(Verdict.SKIPPED, reason="no device cuda")


@pytest.mark.parametrize(
    ("outcome", "seen", "why"),
    [
        (Outcome(Verdict.GONE), {}, ""),
        (Outcome(Verdict.GONE), {"cpu": Verdict.REPRODUCES}, ""),
        (
            Outcome(Verdict.GONE),
            {"cuda:0": Verdict.REPRODUCES},
            r"was last seen to fail on cuda:0 at 1970-01-1\d ",
        ),
        (REPRODUCES, {"cpu": Verdict.GONE}, "still reproduces: ValueError: no kernel"),
        (Outcome(Verdict.CRASHED, reason="SIGSEGV"), {}, r"still fails \(crashed\): SIGSEGV"),
        (NO_DEVICE, {}, "cannot be judged here: skipped: no device cuda"),
        (NO_DEVICE, {"cpu": Verdict.GONE}, ""),
        (NO_DEVICE, {"cpu": Verdict.REPRODUCES}, "was last seen to fail on cpu"),
    ],
)
def test_accept_takes_no_repro_that_still_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, seen: dict[str, Verdict], why: str
) -> None:
    from minidbg.watch.repros import read_repro

    path = folder / "never.py"
    digest = read_repro(path, "never.py").digest
    with History(folder / ".minidbg" / "history.sqlite") as opened:
        for device, verdict in seen.items():
            opened.put_state(State("never.py", device, verdict, NOW, NOW, digest, "e", "c"))
        opened.put_state(State("never.py", "xpu", Verdict.REPRODUCES, NOW, NOW, "before an edit", "e", "c"))
    monkeypatch.setattr("minidbg.repro.run", lambda path, seconds: outcome)
    before = path.read_text()
    done = CliRunner().invoke(accept, [str(path)])
    if why:
        assert re.search(f"never.py {why}", str(done.exception))
        assert (
            done.exception.in_two()[1]
            == "no header was changed; accept it when the failure is gone, or give --force"
        )
        assert path.read_text() == before
    else:
        assert (done.exit_code, "regression test" in done.output) == (0, True)


def test_where_one_repro_still_fails_no_other_is_accepted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = {"never.py": Outcome(Verdict.GONE), "b.py": REPRODUCES}
    monkeypatch.setattr("minidbg.repro.run", lambda path, seconds: outcomes[path.name])
    before = (folder / "never.py").read_text()
    assert CliRunner().invoke(accept, [str(folder / name) for name in outcomes]).exit_code != 0
    assert (folder / "never.py").read_text() == before


def test_list_names_the_repros_of_one_kind(folder: Path) -> None:
    crash = (folder / "b.py").read_text().replace('kind = "compile"', 'kind = "crash"')
    (folder / "crash.py").write_text(crash)
    assert [line.split()[0] for line in run(list_repros, folder, "--kind", "crash")[1].splitlines()] == [
        "crash.py"
    ]
    assert len(run(list_repros, folder, "--kind", "crash", "--kind", "compile")[1].splitlines()) == 4
    assert run(list_repros, folder, "--kind", "hang") == (0, "no repros of kind hang\n")


def test_status_tells_whether_somebody_watches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status_now, text = run(status, folder)
    assert status_now == 1
    assert "not watched" in text
    assert "last sweep: 2" in text
    assert json.loads(run(status, folder, "--json")[1])["verdicts"] == {
        "damaged": 1,
        "gone": 2,
        "not seen": 1,
    }
    with History(folder / ".minidbg" / "history.sqlite") as opened:
        opened.start_sweep(NOW, code="c", files=[])
    assert "last sweep: 3" in run(status, folder)[1]
    assert "interrupted" in run(status, folder)[1], "nothing runs where nobody watches"
    with History(folder / ".minidbg" / "history.sqlite") as opened:
        opened.connection.execute("delete from sweeps where id = 3")
    lock = Lock(folder)
    try:
        status_now, text = run(status, folder, "--json")
        found = json.loads(text)
        assert (status_now, found["running"], found["revision"]) == (0, True, "bbbbbbbbbb")
        monkeypatch.setattr("psutil.Process.status", lambda self: "stopped")
        assert "which is stopped: nothing is judged until it goes on" in run(status, folder)[1]
    finally:
        lock.release()


def test_status_counts_in_words(folder: Path) -> None:
    with History(folder / ".minidbg" / "history.sqlite") as opened:
        states = {name: opened.states()[name, "cpu"] for name in ("a.py", "b.py")}
        opened.put_state(replace(states["b.py"], verdict=Verdict.REPRODUCES))
        assert "1 gone, 1 not seen yet, 1 still reproduces" in run(status, folder)[1]
        opened.put_state(replace(states["a.py"], verdict=Verdict.REPRODUCES))
        opened.set_revisions(2, {"/src": Revision("c" * 40, "2fa4e531")})
    text = run(status, folder)[1]
    assert "1 not seen yet, 2 still reproduce" in text
    assert "complete at cccccccccc with edits (2fa4e531)" in text


def test_reading_writes_nothing(folder: Path) -> None:
    def contents() -> dict[str, float]:
        paths = (path for path in folder.rglob("*") if not path.name.endswith("-shm"))
        return {str(path): path.stat().st_mtime_ns for path in paths}

    before = contents()
    time.sleep(0.01)
    for command in (list_repros, history_command, status):
        run(command, folder)
    assert contents() == before
