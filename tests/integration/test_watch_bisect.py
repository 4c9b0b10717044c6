"""``minidbg bisect`` in a repository with commits of all kinds: broken ones, ones that cannot be judged, a fix."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.signalled import Signalled
from support.toy_repros import BROKEN, WORKS, git, script, toy_package

from minidbg.commands.watching import bisect
from minidbg.core.errors import MinidbgError
from minidbg.watch import bisecting
from minidbg.workers import leftovers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SYNTAX_ERROR = "def {op}(value:\n"
OTHERWISE = "def {op}(value):\n    raise TypeError('another failure')\n"


class Repository:
    """A backend whose history is told commit by commit."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "checkout"
        self.package = toy_package(self.folder / "python", {"relu": WORKS})
        git(self.folder, "init", "-q", "-b", "main")
        self.repro = folder / "relu.py"
        self.repro.write_text(script("relu"))
        self.commits: list[str] = []
        monkeypatch.setenv("PYTHONPATH", str(self.folder / "python"))
        monkeypatch.syspath_prepend(str(self.folder / "python"))

    def commit(self, source: str, subject: str) -> str:
        (self.package / "relu.py").write_text(source.format(op="relu") + f"# {subject}\n")
        git(self.folder, "add", ".")
        git(self.folder, "commit", "-q", "-m", subject)
        self.commits.append(git(self.folder, "rev-parse", "HEAD"))
        return self.commits[-1]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    return Repository(tmp_path, monkeypatch)


def test_the_commit_that_broke_it_is_found_past_commits_that_cannot_be_judged(repository: Repository) -> None:
    good = repository.commit(WORKS, "good")
    for number in range(3):
        repository.commit(WORKS, f"fine {number}")
    culprit = repository.commit(BROKEN, "optimise relu")
    repository.commit(SYNTAX_ERROR, "broken for a day")
    repository.commit(OTHERWISE, "fails differently")
    bad = repository.commit(BROKEN, "bad")
    (repository.package / "relu.py").write_text("uncommitted = 1\n")
    told: list[str] = []
    tracked = repository.package.relative_to(repository.folder) / "relu.py"
    found = bisecting.bisect_revisions(good, bad, repository.repro, told.append, build=f"echo >> {tracked}")
    assert (found.commit, found.fixed) == (culprit, False)
    assert found.subject == "optimise relu"
    assert found.text().startswith(f"{culprit} is the first that fails")
    assert (repository.package / "relu.py").read_text() == "uncommitted = 1\n", "the checkout is not touched"
    assert git(repository.folder, "worktree", "list").count("\n") == 0
    assert git(repository.folder, "for-each-ref", "refs/bisect") == ""


def test_the_commit_that_fixed_it_is_found_when_good_is_the_newer_one(repository: Repository) -> None:
    bad = repository.commit(BROKEN, "bad")
    repository.commit(BROKEN, "still bad")
    fix = repository.commit(WORKS, "fix relu")
    good = repository.commit(WORKS, "good")
    done = CliRunner().invoke(bisect, [good, bad, str(repository.repro), "--json"])
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["commit"], found["fixed"]) == (fix, True)


def test_a_build_runs_at_each_commit_and_where_it_fails_nothing_is_judged(repository: Repository) -> None:
    good = repository.commit(WORKS, "good")
    (repository.folder / "unbuildable").write_text("")
    repository.commit(WORKS, "cannot be built")
    (repository.folder / "unbuildable").unlink()
    culprit = repository.commit(BROKEN, "culprit")
    bad = repository.commit(BROKEN, "bad")
    (repository.folder / "built.txt").unlink(missing_ok=True)
    log = repository.folder.parent / "builds.txt"
    build = f"pwd >> {log}; test ! -e unbuildable"
    told: list[str] = []
    with pytest.raises(MinidbgError, match="cannot be judged"):
        bisecting.bisect_revisions(good, bad, repository.repro, told.append, build=build)
    assert any(line.endswith("the build fails: exit status 1") for line in told)
    assert str(repository.folder) not in log.read_text().splitlines(), "builds happen in the worktree"
    repository.commit(BROKEN, "later")
    assert bisecting.bisect_revisions(repository.commits[1], bad, repository.repro, print).commit == culprit


def test_a_commit_without_the_folder_of_the_build_cannot_be_judged(repository: Repository) -> None:
    good, tools = repository.commit(WORKS, "good"), repository.folder / "tools"
    tools.mkdir()
    (tools / "build.sh").write_text("")
    bad = repository.commit(BROKEN, "bad")
    with pytest.raises(MinidbgError, match=r"at the good end .* but: the build fails: .*No such file"):
        bisecting.bisect_revisions(
            good, bad, repository.repro, print, build="sh build.sh", build_folder=tools
        )


def test_wrong_ends_are_refused_before_the_search(repository: Repository) -> None:
    first = repository.commit(WORKS, "first")
    second = repository.commit(WORKS, "second")
    with pytest.raises(MinidbgError, match=r"at the bad end .* should be reproduces, but: gone"):
        bisecting.bisect_revisions(first, second, repository.repro, print)
    with pytest.raises(MinidbgError, match=r"bad revision 'nowhere'"):
        bisecting.bisect_revisions("nowhere", second, repository.repro, print)


def test_a_backend_outside_any_repository_is_refused_with_the_way_out(
    repository: Repository, tmp_path: Path
) -> None:
    first = repository.commit(WORKS, "first")
    os.rename(repository.folder / ".git", tmp_path / "elsewhere.git")
    with pytest.raises(MinidbgError, match=r"lies in no git repository; name it with --repository"):
        bisecting.bisect_revisions(first, first, repository.repro, print)


class Search:
    """``minidbg bisect`` as a process, which waits at its third commit for the test."""

    def __init__(self, repository: Repository, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.repository, waits = repository, folder / "waits"
        slow = f"import pathlib, time\npathlib.Path({str(waits)!r}).touch()\ntime.sleep(100)\n"
        self.good = repository.commit(WORKS, "good")
        repository.commit(slow, "slow")
        self.bad = repository.commit(BROKEN, "bad")
        self.command = Signalled("bisect", self.good, self.bad, repository.repro, cwd=folder)
        monkeypatch.setattr("tempfile.tempdir", str(self.command.temporary))  # of this process
        self.command.wait_until(waits.exists)

    def worktrees(self) -> list[str]:
        """Those beside the person's own checkout."""
        lines = git(self.repository.folder, "worktree", "list", "--porcelain").splitlines()
        return [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")][1:]


@pytest.fixture
def search(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    return Search(repository, tmp_path, monkeypatch)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_the_search_and_leaves_nothing(search: Search, number: int, status: int) -> None:
    search.command.send(number)
    assert search.command.end()[0] == status
    assert search.worktrees() == []
    assert list(search.command.temporary.iterdir()) == []


def test_the_next_search_clears_what_a_killed_one_left_and_nothing_of_a_living_one(
    search: Search, tmp_path: Path
) -> None:
    search.command.send(signal.SIGKILL)
    search.command.process.wait()
    assert len(search.worktrees()) == 1
    living = leftovers.make_temporary_folder("bisect", tmp_path) / "checkout"
    git(search.repository.folder, "worktree", "add", "-q", "--detach", str(living))
    with pytest.raises(MinidbgError, match="cannot be judged"):
        bisecting.bisect_revisions(search.good, search.bad, search.repository.repro, print, seconds=3)
    assert search.worktrees() == [str(living)]
    assert list(search.command.temporary.iterdir()) == []
