"""``minidbg bisect``: the commit of the backend at which a repro flipped, by ``git bisect`` in a worktree of its own."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from minidbg.judge.death import outcome_of_run
from minidbg.watch.files import run_git
from minidbg.watch.repros import Repro, read_repro
from minidbg.watch.runner import Build, as_its_header_says, judging
from minidbg.watch.sources import module_roots, repositories_of
from minidbg.words import environment
from minidbg.words.errors import Interrupted, MinidbgError
from minidbg.words.outcome import EXIT_STATUS, Verdict
from minidbg.words.text import display_path, last_line, plural
from minidbg.workers import leftovers, run_python

CANNOT_JUDGE = 125
SECONDS = 300.0


class CannotBisect(MinidbgError):
    """The search cannot be made, or came to no end."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first commit with the newer behaviour. ``fixed``: whether that is the fix, not the culprit."""

    commit: str
    subject: str
    author: str
    date: str
    fixed: bool
    steps: int

    def text(self) -> str:
        what = "fixed the failure" if self.fixed else "is the first that fails"
        return f"{self.commit} {what} ({plural(self.steps, 'commit')} tried)\n  {self.subject}\n  {self.author}, {self.date}"


@dataclass(frozen=True, slots=True)
class Bisection:
    """What to look for: ``good`` and ``bad`` are revisions of the backend's repository."""

    good: str
    bad: str
    path: Path
    """Of the repro."""
    tell: Callable[[str], None]
    repository: Path | None = None
    build: str | None = None
    build_folder: Path | None = None
    """Where the build runs; in the worktree it is the same place below its root."""
    device: str | None = None
    options: str = ""
    """Options of the backend that are added to the repro's own, a Python dict as text."""
    seconds: float = SECONDS

    def run(self) -> Culprit:
        """Find the commit. Raises CannotBisect, saying what stands in the way and what to do."""
        repro = read_repro(self.path, str(self.path))
        if repro is None or repro.damage:
            raise CannotBisect(f"{self.path}: {repro.damage if repro else 'has gone'}")
        roots = [root for module in repro.modules for root in module_roots(module, repro.spec.backend.paths)]
        repositories = [str(self.repository.absolute())] if self.repository else repositories_of(roots)
        if len(repositories) != 1:
            several = f"{len(repositories)} git repositories ({', '.join(repositories)})"
            where = several if repositories else "no git repository"
            name = repro.spec.backend.name
            raise CannotBisect(f"the code of backend {name} lies in {where}; name it with --repository")
        repository = Path(repositories[0]).resolve()
        good, bad = (commit_of(repository, revision) for revision in (self.good, self.bad))
        with worktree(repository, bad) as tree:
            # the backend's modules are imported from there: they lie as in the repository
            above = [Path(root).parent for root in roots if Path(root).parent.is_relative_to(repository)]
            folders = [str(tree / one.relative_to(repository)) for one in above]
            path = os.pathsep.join([*dict.fromkeys(folders), os.environ.get("PYTHONPATH", "")]).rstrip(
                os.pathsep
            )
            env = environment.for_judge(
                environment.NO_CACHED_GRAPHS, environment.NO_BYTECODE, given={"PYTHONPATH": path}
            )
            built_in = (self.build_folder or repository).resolve()
            inside = built_in.relative_to(repository) if built_in.is_relative_to(repository) else "."
            return self.search(
                lambda: self.judge(repro, tree, env, tree / inside), repository, tree, good, bad
            )

    def search(
        self, judge: Callable[[], tuple[int, str]], repository: Path, tree: Path, good: str, bad: str
    ) -> Culprit:
        """Let git choose commits. The older end's behaviour is git's "before", the newer one's "after".

        First see that the repro does at both ends what was said: a search from wrong ends finds some commit, and a wrong one.
        """
        for commit, wanted, word in ((bad, 1, "bad"), (good, 0, "good")):
            git(tree, "checkout", "--quiet", "--force", commit)
            status, reason = judge()
            self.tell(f"{word} end {commit[:10]}: {reason}")
            if status != wanted:
                seen, told = ("reproduce", "reproduces") if wanted else ("be gone", "is gone")
                raise CannotBisect(
                    f"at the {word} end {commit[:10]} the repro should be seen to {seen}, but: {reason}. "
                    f"Name another commit at which it {told}"
                )
        fixed = git(repository, "merge-base", good, bad) == bad
        old, new = (bad, good) if fixed else (good, bad)
        steps = 2  # both ends
        try:
            said = bisect(tree, "start", "--term-old=before", "--term-new=after", new, old)
            while not re.search(r"(?m)^[0-9a-f]{40} is the first '?after'? commit", said):
                commit = git(tree, "rev-parse", "HEAD")
                status, reason = judge()
                self.tell(f"{commit[:10]}: {reason}")
                steps += 1
                is_old = status == (1 if fixed else 0)
                said = bisect(tree, "skip" if status == CANNOT_JUDGE else "before" if is_old else "after")
                if status != CANNOT_JUDGE:
                    old, new = (commit, new) if is_old else (old, commit)
        except KeyboardInterrupt:
            good, bad = (new, old) if fixed else (old, new)
            raise Interrupted(
                f"interrupted after {plural(steps, 'commit')}: gone at {good[:10]}, reproduces at {bad[:10]}; "
                f"to go on: minidbg bisect {good[:10]} {bad[:10]} {display_path(self.path)}, with the same options"
            ) from None
        commit = git(tree, "rev-parse", "refs/bisect/after")
        told = git(tree, "show", "--no-patch", "--format=%s%x00%an%x00%ad", "--date=short", commit)
        subject, author, date = told.split("\0")
        return Culprit(commit, subject, author, date, fixed, steps)

    def judge(self, repro: Repro, tree: Path, env: dict[str, str], build_folder: Path) -> tuple[int, str]:
        """Build, run the repro against the code in ``tree``; 0 gone, 1 reproduces, 125 cannot be judged; and why."""
        try:
            built = Build(self.build, build_folder).wait(self.seconds) if self.build else None
        except (OSError, subprocess.TimeoutExpired) as error:
            return CANNOT_JUDGE, f"the build fails: {error}"
        if built and built.status:
            return CANNOT_JUDGE, f"the build fails: {built.error or f'exit status {built.status}'}"
        if misplaced := imported_from_elsewhere(tree, repro, env):
            return CANNOT_JUDGE, misplaced
        command = judging(repro, self.device or repro.spec.device, options=self.options, in_worker=False)
        with tempfile.TemporaryDirectory(prefix="minidbg-run-", dir=tree.parent) as folder:
            done = run_python(command, seconds=self.seconds, cwd=folder, env=env)
        outcome = outcome_of_run(done, as_its_header_says(repro), limit_s=self.seconds)
        first_line = outcome.message.partition("\n")[0] if outcome.verdict is Verdict.CHANGED else ""
        reason = ": ".join(part for part in (str(outcome.verdict), outcome.reason or first_line) if part)
        is_clear = outcome.verdict in (Verdict.GONE, Verdict.REPRODUCES)
        return EXIT_STATUS[outcome.verdict] if is_clear else CANNOT_JUDGE, reason


def commit_of(repository: Path, revision: str) -> str:
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except CannotBisect:
        raise CannotBisect(f"{revision!r} is no commit of {repository}") from None


KIND = "bisect"
REMOVE = 'git -C "$1" worktree remove --force --force "$2"; rm -rf "$3"'
"""Twice: git locks one that it has not finished."""


@contextlib.contextmanager
def worktree(repository: Path, commit: str) -> Iterator[Path]:
    """A checkout of the repository in a temporary folder, which is gone afterwards, bisection and all; those of killed searches go first."""
    for line in git(repository, "worktree", "list", "--porcelain").splitlines():
        left = Path(line.removeprefix("worktree "))
        if leftovers.is_of_the_dead(KIND, left.parent.name):
            remove_worktree(repository, left)
    tree = leftovers.make_folder(KIND) / repository.name
    try:
        git(repository, "worktree", "add", "--detach", "--force", str(tree), commit)
        yield tree
    finally:
        remove_worktree(repository, tree)


def remove_worktree(repository: Path, tree: Path) -> None:
    """Remove the worktree and its folder, in a process that goes on when a second Ctrl-C ends this one."""
    subprocess.Popen(
        ["sh", "-c", REMOVE, "sh", str(repository), str(tree), str(tree.parent)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env=environment.for_tool(),
    ).wait()  # fmt: skip


def imported_from_elsewhere(tree: Path, repro: Repro, env: dict[str, str]) -> str:
    """Why the run would judge other code than that of ``tree``; empty when it would not."""
    program = "import importlib.util as u, sys; specs = filter(None, map(u.find_spec, sys.argv[1:])); "
    program += "print(*(p for s in specs for p in [*(s.submodule_search_locations or ()), s.origin] if p), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *repro.modules], env=env, cwd=tree, capture_output=True, text=True, check=False,
    )  # fmt: skip
    places = done.stdout.split("\n")[:-1]
    if done.returncode:
        return ""  # the run itself will say what is wrong
    inside = os.path.realpath(tree) + os.sep
    if any(os.path.realpath(place).startswith(inside) for place in places):
        return ""
    where = f"imported from {places[0]}, not from the worktree" if places else "not importable at this commit"
    return f"{repro.modules[0]} is {where}"


def git(folder: Path, *arguments: str) -> str:
    """What git prints. Raises CannotBisect."""
    try:
        done = run_git(str(folder), *arguments)
    except OSError as error:
        raise CannotBisect(f"git cannot be run: {error}") from error
    printed = done.stdout.decode(errors="replace").strip()
    if done.returncode == 0:
        return printed
    if names := re.findall(r"(?m)^[0-9a-f]{40}$", printed):  # of a bisection
        raise CannotBisect(
            f"the commits that are left cannot be judged, it is one of {', '.join(names[:10])}"
        )
    raise CannotBisect(
        f"git {shlex.join(arguments)}: {last_line(done.stderr.decode(errors='replace')) or last_line(printed)}"
    )


def bisect(tree: Path, *arguments: str) -> str:
    git(tree, "checkout", "--quiet", "--force", "HEAD")  # builds may have written into files that git tracks
    return git(tree, "bisect", *arguments)
