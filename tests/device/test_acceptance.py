"""The acceptance run on the stand-in: what breaks in one part is a row, and leaves the others whole."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import types
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import acceptance
import psutil
import pytest
from parts import one_part
from parts.context import Failed, Skipped

SCRIPT = Path(__file__).with_name("acceptance.py")
slow = [pytest.mark.slow, pytest.mark.device, pytest.mark.timeout(1200)]


@pytest.fixture
def stand_in(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--device") != "acme":
        pytest.skip("on a device the acceptance run itself is what is run: python tests/device/acceptance.py")


def run(out: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    command = [sys.executable, str(SCRIPT), "--device", "acme", "--out", str(out), *words]
    done = subprocess.run(command, cwd=out.parent, text=True, capture_output=True, timeout=1100)
    return done, [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]


def statuses(rows: Sequence[dict[str, Any]], part: str) -> set[str]:
    return {row["status"] for row in rows if row["part"] == part}


@pytest.mark.usefixtures("stand_in")
class TestOnTheStandIn:
    pytestmark = slow

    @pytest.mark.exhaustive  # a quarter of an hour
    def test_all_parts_that_need_no_model_are_well(self, tmp_path: Path) -> None:
        parts = [word for name in ("flow", "triton", "watch", "speed") for word in ("--part", name)]
        done, rows = run(tmp_path / "out", "--minutes", "16", *parts)
        assert not [row for row in rows if row["status"] == "failed"], done.stdout
        assert done.returncode == 0
        skipped = {row["said"] for row in rows if row["status"] == "skipped"}
        assert skipped <= {
            "Triton has no driver for the stand-in",
            "triton is not here (--wheels)",
            "the part's share of the minutes is over",
        }
        assert {row["row"] for row in rows if row["part"] == "flow"} >= {"compile failure", "endless kernel"}
        table = (tmp_path / "out" / "table.md").read_text()
        assert all(f"| {row['part']} | {row['row']} |" in table for row in rows)

    @pytest.mark.exhaustive  # five minutes beside another test
    def test_models_are_run_there_too(self, tmp_path: Path) -> None:
        pytest.importorskip("transformers")
        done, rows = run(tmp_path / "out", "--minutes", "8", "--part", "healthy")
        assert done.returncode == 0, done.stdout
        assert statuses(rows, "healthy") == {"ok"}

    @pytest.mark.parametrize("planted", ["hangs", "dies"])
    def test_a_part_that_hangs_or_dies_leaves_the_others_whole(self, tmp_path: Path, planted: str) -> None:
        words = ("--minutes", "1.5", "--part", "healthy", "--part", "triton", "--planted", planted)
        done, rows = run(tmp_path / "out", *words)
        assert done.returncode == 1
        (broken,) = (row for row in rows if row["part"] == "healthy")
        wanted = "did not end within" if planted == "hangs" else "SIGABRT"
        assert broken["status"] == "failed"
        assert wanted in broken["said"]
        assert len([row for row in rows if row["part"] == "triton"]) == 3, done.stdout
        assert "failed" not in statuses(rows, "triton")

    def test_a_resumed_run_goes_on_behind_its_rows(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        _, first = run(out, "--part", "triton")
        refused, same = run(out, "--part", "triton")
        assert refused.returncode == 125
        assert f"has {len(first)} rows" in refused.stderr
        _, again = run(out, "--part", "triton", "--resume")
        assert first == same == again

    def test_a_run_that_is_killed_leaves_its_rows_and_no_process(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        words = f"--device acme --out {out} --part triton --part healthy --planted hangs".split()
        process = subprocess.Popen([sys.executable, SCRIPT, *words], cwd=tmp_path)
        parts: list[psutil.Process] = []
        until = time.monotonic() + 300
        while not (parts and (out / "healthy").exists()) and time.monotonic() < until:
            time.sleep(0.2)
            parts = [one for one in psutil.Process(process.pid).children() if "healthy" in words_of(one)]
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(parts, timeout=20)
        assert parts
        assert not alive
        before = acceptance.rows_in(out / "rows.jsonl")
        assert statuses(before, "triton")
        _, after = run(out, "--resume", "--part", "triton", "--minutes", "3")
        assert after[: len(before)] == before


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; none of a part that has ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


class TestResume:
    def resumed(self, out: Path, monkeypatch: pytest.MonkeyPatch, **rows: Any) -> list[str]:
        """Run a part with these rows behind the ones in ``out``; which were run."""
        ran: list[str] = []

        def task(name: str) -> tuple[dict[str, Any], str]:
            ran.append(name)
            if isinstance(rows[name], Exception):
                raise rows[name]
            return {}, rows[name]

        module = types.ModuleType("parts.own")
        vars(module)["rows"] = lambda context: ((name, partial(task, name)) for name in rows)
        monkeypatch.setitem(sys.modules, "parts.own", module)
        words = ["own", "--device", "acme", "--out", str(out), "--seconds", "100"]
        monkeypatch.setattr(sys, "argv", ["one_part.py", *words])
        one_part.main()
        return ran

    def test_runs_what_is_not_well_yet(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        no_time, no_package = Skipped(acceptance.OVER), Skipped("timm is not here (--wheels)")
        self.resumed(tmp_path, monkeypatch, well="1", failed=Failed("no"), late=no_time, lacks=no_package)
        ran = self.resumed(tmp_path, monkeypatch, well="2", failed="2", late="2", lacks=no_package)
        assert ran == ["failed", "late", "lacks"]
        assert len(acceptance.rows_in(tmp_path / "rows.jsonl")) == 4 + 2, "the same reason is not said twice"
        last = {row["row"]: row for row in acceptance.Results(tmp_path, "acme").last()}
        statuses_now = {name: row["status"] for name, row in last.items()}
        assert statuses_now == {**dict.fromkeys(("well", "failed", "late"), "ok"), "lacks": "skipped"}

    def test_a_line_that_was_cut_short_is_left_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "rows.jsonl"
        path.write_text('{"part": "own", "row": "a", "status": "ok"}\n{"part": "own", "ro')
        assert self.resumed(tmp_path, monkeypatch, a="", b="") == ["b"]
        assert [row["row"] for row in acceptance.rows_in(path)] == ["a", "b"]


def test_the_table_has_no_names_of_the_users_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/jane")
    results = acceptance.Results(tmp_path, "acme")
    results.add("flow", "a", "failed", said=f"in /home/jane/secret/a.py and {acceptance.CHECKOUT}/b.py")
    assert "| in ~/secret/a.py and CHECKOUT/b.py |" in results.table()


def test_wheels_are_unpacked_for_what_is_missing_alone(tmp_path: Path) -> None:
    import zipfile

    wheels, out = tmp_path / "wheels", tmp_path / "out"
    wheels.mkdir()
    for name in ("not_known_here-1.0", "torch-9.9", "pytest-0.1"):
        with zipfile.ZipFile(wheels / f"{name}-py3-none-any.whl", "w") as file:
            file.writestr(f"{name.partition('-')[0]}_of_the_wheel.py", "")
    options = acceptance.parsed(["--wheels", str(wheels), "--out", str(out)])
    list(acceptance.missing_packages(options, {}))
    assert [path.name for path in (out / "site").iterdir()] == ["not_known_here_of_the_wheel.py"]
