"""``minidbg bisect``: the commit of the backend at which a repro flipped, by ``git bisect`` in a worktree of its own."""

from __future__ import annotations

import contextlib
import json
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
from minidbg.watch.builds import build_within
from minidbg.watch.repros import Repro, read_repro
from minidbg.watch.runner import as_its_header_says, as_renamed, judging
from minidbg.watch.sources import module_roots, repositories_of
from minidbg.words import environment
from minidbg.words.errors import Interrupted, MinidbgError
from minidbg.words.outcome import EXIT_STATUS, Outcome, Verdict
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
        repro = readable(self.path)
        repository = self.repository.absolute() if self.repository else repository_of_backend(repro)
        good, bad = (commit_of(repository, revision) for revision in (self.good, self.bad))
        fixed = is_ancestor(repository, bad, good)
        if not fixed and not is_ancestor(repository, good, bad):
            base = git(repository, "merge-base", good, bad)[:10]
            self.tell(
                f"{self.good} and {self.bad} lie on two branches; git tests their merge base {base} first"
            )
        with worktree(repository, bad) as tree:
            self.check_ends(repository, tree, good, bad)
            return self.search(repository, tree, good, bad, fixed=fixed)

    def command(self, good: str, bad: str) -> str:
        given = ("repository", "device", "options")
        options = [
            word for name in given if getattr(self, name) for word in (f"--{name}", str(getattr(self, name)))
        ]
        build = ["--build", self.build] if self.build and self.build_folder is None else []
        limit = ["--seconds", f"{self.seconds:g}"] if self.seconds != SECONDS else []
        return shlex.join(
            ["minidbg", "bisect", good[:10], bad[:10], display_path(self.path), *options, *build, *limit]
        )

    def check_ends(self, repository: Path, tree: Path, good: str, bad: str) -> None:
        """See that the repro does at both ends what was said: a search from wrong ends finds some commit, and a wrong one."""
        for commit, status, word in ((bad, 1, "bad"), (good, 0, "good")):
            git(tree, "checkout", "--quiet", "--force", commit)
            found, reason = self.judge(repository, tree)
            self.tell(f"{word} end {commit[:10]}: {reason}")
            if found != status:
                expected = "reproduces" if status else "is gone"
                raise CannotBisect(
                    f"at the {word} end {commit[:10]} the repro should be seen to {'reproduce' if status else 'be gone'}, but: "
                    f"{reason}. Name another commit at which it {expected}"
                )

    def search(self, repository: Path, tree: Path, good: str, bad: str, *, fixed: bool) -> Culprit:
        """Let git choose commits. The older end's behaviour is git's "before", the newer one's "after"."""
        old, new = (bad, good) if fixed else (good, bad)
        steps = 2  # both ends
        try:
            said = bisect(tree, "start", "--term-old=before", "--term-new=after", new, old)
            while not re.search(r"(?m)^[0-9a-f]{40} is the first '?after'? commit", said):
                commit = git(tree, "rev-parse", "HEAD")
                status, reason = self.judge(repository, tree)
                self.tell(f"{commit[:10]}: {reason}")
                steps += 1
                is_old = status == (1 if fixed else 0)
                said = bisect(tree, "skip" if status == CANNOT_JUDGE else "before" if is_old else "after")
                if status != CANNOT_JUDGE:
                    old, new = (commit, new) if is_old else (old, commit)
        except KeyboardInterrupt:
            good, bad = (new, old) if fixed else (old, new)
            left = int(git(repository, "rev-list", "--count", f"{old}..{new}")) - 1
            raise Interrupted(
                f"interrupted after {plural(steps, 'commit')}: gone at {good[:10]}, reproduces at {bad[:10]}, "
                f"{plural(left, 'commit')} between them; to go on: {self.command(good, bad)}"
            ) from None
        commit = git(tree, "rev-parse", "refs/bisect/after")
        told = git(tree, "show", "--no-patch", "--format=%s%x00%an%x00%ad", "--date=short", commit)
        subject, author, date = told.split("\0")
        return Culprit(commit, subject, author, date, fixed, steps)

    def judge(self, repository: Path, tree: Path) -> tuple[int, str]:
        """Build, run the repro against the code in ``tree``; 0 gone, 1 reproduces, 125 cannot be judged; and why."""
        try:
            where = tree / below(self.build_folder, repository)
            built = build_within(self.seconds, self.build, where) if self.build else None
        except OSError as error:
            return CANNOT_JUDGE, f"the build fails: {error}"
        if built and built.status:
            return CANNOT_JUDGE, f"the build fails: {built.error or f'exit status {built.status}'}"
        repro = readable(self.path)
        env = environment_for(tree, repro, repository)
        if misplaced := imported_from_elsewhere(tree, repro, env):
            return CANNOT_JUDGE, misplaced
        files = [str(tree / name) for name in git(tree, "ls-files").splitlines()]
        outcome = as_renamed(self.outcome(repro, env, tree.parent), repro, files)
        first_line = outcome.message.partition("\n")[0] if outcome.verdict is Verdict.CHANGED else ""
        reason = ": ".join(part for part in (str(outcome.verdict), outcome.reason or first_line) if part)
        is_clear = outcome.verdict in (Verdict.GONE, Verdict.REPRODUCES)
        return EXIT_STATUS[outcome.verdict] if is_clear else CANNOT_JUDGE, reason

    def outcome(self, repro: Repro, env: dict[str, str], parent: Path) -> Outcome:
        """What the repro does in a fresh interpreter, from an empty folder in ``parent``, with which it goes."""
        command = judging(repro, self.device or repro.spec.device, options=self.options, in_worker=False)
        with tempfile.TemporaryDirectory(prefix="minidbg-run-", dir=parent) as folder:
            done = run_python(command, seconds=self.seconds, cwd=folder, env=env)
        return outcome_of_run(done, as_its_header_says(repro), limit_s=self.seconds)


def below(folder: Path | None, repository: Path) -> str:
    real, root = (folder or repository).resolve(), repository.resolve()
    return str(real.relative_to(root)) if real.is_relative_to(root) else "."


def readable(path: Path) -> Repro:
    repro = read_repro(path, str(path))
    if repro is None or repro.damage:
        raise CannotBisect(f"{path}: {repro.damage if repro else 'has gone'}")
    return repro


def repository_of_backend(repro: Repro) -> Path:
    """The git repository that holds the code of the repro's backend. Raises CannotBisect when that is not clear."""
    roots = [root.path for module in repro.modules for root in module_roots(module, repro.spec.backend.paths)]
    found = repositories_of(roots)
    if len(found) != 1:
        where = f"{len(found)} git repositories ({', '.join(found)})" if found else "no git repository"
        raise CannotBisect(
            f"the code of backend {repro.spec.backend.name} lies in {where}; name it with --repository"
        )
    return Path(found[0])


def commit_of(repository: Path, revision: str) -> str:
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except CannotBisect:
        raise CannotBisect(f"{revision!r} is no commit of {repository}") from None


def is_ancestor(repository: Path, older: str, newer: str) -> bool:
    return run_git(repository, "merge-base", "--is-ancestor", older, newer).returncode == 0


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


def environment_for(tree: Path, repro: Repro, repository: Path) -> dict[str, str]:
    """An environment in which the backend's modules are imported from ``tree``: there they lie as in the repository."""
    folders = []
    for module in repro.modules:
        for root in module_roots(module, repro.spec.backend.paths):
            above = Path(root.path).parent
            if above.is_relative_to(os.path.realpath(repository)):
                folders.append(str(tree / above.relative_to(os.path.realpath(repository))))
    path = os.pathsep.join([*dict.fromkeys(folders), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return environment.for_judge(
        environment.NO_CACHED_GRAPHS, environment.NO_BYTECODE, given={"PYTHONPATH": path}
    )


def imported_from_elsewhere(tree: Path, repro: Repro, env: dict[str, str]) -> str:
    """Why the run would judge other code than that of ``tree``; empty when it would not."""
    places = "import importlib.util, json, sys; print(json.dumps([list(s.submodule_search_locations or []) + [s.origin or '']"
    program = f"{places} for n in sys.argv[1:] if (s := importlib.util.find_spec(n))]))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *repro.modules], env=env, cwd=tree, capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return ""  # the run itself will say what is wrong
    inside = os.path.realpath(tree) + os.sep
    if any(os.path.realpath(place).startswith(inside) for module in found for place in module):
        return ""
    if not found:
        return "the backend is not importable at this commit"
    return f"{repro.modules[0]} is imported from {found[0][0]}, not from the worktree"


def git(repository: Path, *arguments: str) -> str:
    done = run_git(repository, *arguments)
    if done.returncode != 0:
        raise CannotBisect(f"git {shlex.join(arguments)}: {last_line(done.stderr) or last_line(done.stdout)}")
    return done.stdout.strip()


def bisect(tree: Path, *arguments: str) -> str:
    """What ``git bisect`` prints. Raises CannotBisect when it gives up, with the commits that are left."""
    git(tree, "checkout", "--quiet", "--force", "HEAD")  # builds may have written into files that git tracks
    done = run_git(tree, "bisect", *arguments)
    if done.returncode == 0:
        return done.stdout
    names = re.findall(r"(?m)^[0-9a-f]{40}$", done.stdout)
    left = (
        f"the commits that are left cannot be judged, it is one of {', '.join(name[:10] for name in names)}"
    )
    said = "; ".join((done.stdout + done.stderr).splitlines()[-3:])
    raise CannotBisect(f"git bisect came to no end: {left if names else said}")


def run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git, which is to speak English. Raises CannotBisect without git."""
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, env=environment.for_tool(environment.IN_ENGLISH),
        )  # fmt: skip
    except OSError as error:
        raise CannotBisect(f"git cannot be run: {error}") from error
