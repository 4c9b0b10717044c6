"""Which slow tests CI asks: canaries always, those of the rooms that have just changed, and a part that is another one each day.

``.ci/run --all`` asks all of them. What is not asked is marked ``another_day``.
"""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Iterable, Sequence
from functools import cache

import pytest

from support import TESTS

PARTS = 48
"""Days in which each slow test is asked once, whatever changes."""
MOST_OF_CHANGES = 8
"""Tests asked for the rooms that have changed: where more would be, a part of them that is another one each day."""
FIRST_PAIRS = 10
CANARIES = frozenset("""
journeys/test_journeys.py::test_every_way_to_name_a_backend_is_as_quick_as_wrap_and_gives_its_script[plain-minidbg.wrap]
journeys/test_journeys.py::test_every_way_to_name_a_backend_is_as_quick_as_wrap_and_gives_its_script[plain-minidbg run]
journeys/test_journeys.py::test_wrap
journeys/test_journeys.py::test_wrap_compiler
journeys/test_journeys.py::test_reduce_of_a_capture
journeys/test_journeys.py::test_last_crash
journeys/test_journeys.py::test_pytest
corpus/test_captures.py::test_some_captures
corpus/test_programs.py::test_what_comes_of_every_failing_program[accuracy-0]
corpus/test_sessions.py::test_the_other_sessions
integration/test_watch_bisect.py::test_the_commit_that_broke_it_is_found_past_commits_that_cannot_be_judged
integration/test_pytest_plugin.py::test_headers_say_what_is_expected_and_anything_else_fails[alone]
integration/test_cluster.py::test_code_goes_to_each_machine_and_one_that_is_away_is_a_column_that_waits
integration/test_torchrun.py::test_each_situation_is_captured_and_all_ranks_go_on[2]
integration/test_hunt_command.py::test_the_planted_bugs_are_in_the_table_each_where_it_is
integration/test_page.py::test_a_page_that_is_open_shows_a_flip_and_then_that_watch_has_ended
integration/test_deaths.py::test_a_process_that_memory_has_killed_becomes_a_verified_repro_of_one_node
integration/test_ended_reductions.py::test_ctrl_c_of_the_command_writes_the_best_and_says_how_to_go_on
integration/test_by_chance.py::test_a_failure_in_half_of_its_runs_is_reduced_to_its_culprit
integration/test_main_path.py::test_reducing_a_repro_that_was_edited_by_hand
integration/test_readme.py::test_the_program_of_the_first_page_ends_as_shown
device/test_whole_flow.py::test_a_failure_only_there_ends_as_a_repro_whose_stages_say_so[wrong:gelu]
property/test_verdict.py::test_all_programs[programs of wrong results are silent in wider arithmetic]
property/test_verdict.py::test_all_programs[a wrong result is found whatever lies beside it]
property/test_verdict.py::test_all_programs[a healthy result is silent]
property/test_verdict.py::test_all_programs[a wrong result is found with nothing beside it]
golden/test_golden.py::test_golden_script_shows_its_failure_in_a_clean_interpreter[accuracy_direct]
unit/report/test_issue.py::test_a_report_is_run_asks_other_backends_and_has_the_versions
unit/judge/test_command.py::test_dangerous_scripts_live_to_tell_the_verdict[segfaults_in_run_on_relu-hang-3-crashed: ]
""".strip().splitlines())  # fmt: skip
"""One of each area, always asked, with the first pairs of transparency."""

ASKED_BY = {
    "backends": "integration/test_references integration/test_backends_without_a_name",
    "codegen": "integration/test_constructs integration/test_repro_scripts golden",
    "commands": "integration/test_main_path integration/test_readme integration/test_run",
    "core": "integration/test_readme integration/test_package",
    "extras": "integration/test_cluster integration/test_hunt_command integration/test_page",
    "fx": "integration/test_constructs integration/test_verify",
    "history": "integration/test_watch_day corpus/test_sessions",
    "judge": "integration/test_verify property/test_verdict",
    "oracle": "integration/test_workers integration/test_ways_of_a_question",
    "reduction": "corpus integration/test_ended_reductions integration/test_by_chance",
    "report": "integration/test_stages",
    "repro": "integration/test_repro_scripts integration/test_main_path",
    "torch_internals": "integration/test_guard_failures integration/test_import",
    "watch": "integration/test_watch corpus/test_sessions",
    "workers": "integration/test_deaths integration/test_ended_reductions corpus",
    "wrapper": "integration/test_wrap integration/test_verify integration/test_freed transparency",
}
"""By room, the slow tests that ask it from outside, as beginnings of their names; beside those of tests/unit."""


@cache
def git(*words: str) -> str:
    """What git prints; nothing where the source is no repository."""
    done = subprocess.run(["git", *words], cwd=TESTS, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def newest() -> int:
    """When the newest commit was made, in seconds."""
    return int(git("log", "-1", "--format=%ct") or 0)


def day() -> int:
    """The day of the newest commit: the same commit asks the same tests whenever it is tried."""
    return newest() // 86400


@cache
def rooms_changed() -> frozenset[str]:
    """Those that the commits of the last day, counted from the newest, have touched."""
    paths = git("log", f"--since={newest() - 86400}", "--name-only", "--format=", "--", "../minidbg").split()
    return frozenset(path.split("/")[1].removesuffix(".py") for path in paths)


def tests_of(rooms: Iterable[str]) -> tuple[str, ...]:
    """How the names of the tests begin that ask these rooms."""
    outside = (name for room in rooms for name in ASKED_BY.get(room, "").split())
    return (*outside, *(f"unit/{room}/" for room in rooms))


def turn(name: str, parts: int) -> bool:
    """Whether a test is in today's part of so many; by its name, so that a new one moves no other."""
    return (zlib.crc32(name.encode()) + day()) % max(1, parts) == 0


def leave_for_another_day(items: Sequence[pytest.Item]) -> None:
    names = {item: item.nodeid.removeprefix("tests/") for item in items if item.get_closest_marker("slow")}
    pairs = [name for name in names.values() if name.startswith("transparency/test_transparency")]
    always = {*CANARIES, *pairs[:FIRST_PAIRS]}
    touched = [name for name in names.values() if name.startswith(tests_of(rooms_changed()))]
    for item, name in names.items():
        is_of_changes = name in touched and turn(name, len(touched) // MOST_OF_CHANGES)
        if name not in always and not is_of_changes and not turn(name, PARTS):
            item.add_marker("another_day")
