"""``minidbg bisect``: the backend commit where a repro flipped, by ``git bisect`` in a worktree."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from minidbg.core import environment
from minidbg.core.errors import MinidbgError
from minidbg.core.outcome import Verdict
from minidbg.core.text import last_line, plural
from minidbg.judge.command import judge_command
from minidbg.judge.death import outcome_of_run
from minidbg.watch.events import BuildFailed
from minidbg.watch.files import run_git
from minidbg.watch.repros import Repro, read_repro
from minidbg.watch.runner import Build, as_its_header_says
from minidbg.watch.sources import module_roots, repositories_of
from minidbg.workers import leftovers, run_python


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first commit with new behaviour. ``fixed``: whether it is the fix, not the culprit."""

    commit: str
    subject: str
    author: str
    date: str
    fixed: bool
    steps: int

    def text(self) -> str:
        what = "fixed the failure" if self.fixed else "is the first that fails"
        tried = f"({plural(self.steps, 'commit')} tried)"
        return f"{self.commit} {what} {tried}\n  {self.subject}\n  {self.author}, {self.date}"


def bisect_revisions(
    good: str,
    bad: str,
    path: Path,
    tell: Callable[[str], None],
    *,
    repository: Path | None = None,
    build: str | None = None,
    build_folder: Path | None = None,
    device: str | None = None,
    options: str = "",
    seconds: float = 300.0,
) -> Culprit:
    """Find the commit between two revisions of the backend's repository where repro ``path``
    flipped. ``build`` runs in ``build_folder``, in the worktree the same place below its root;
    ``options``, a Python dict as text, are added to the repro's. Raises MinidbgError."""
    repro = read_repro(path, str(path))
    if repro is None or repro.damage:
        raise MinidbgError(f"{path}: {repro.damage if repro else 'has gone'}")
    backend = repro.spec.backend
    roots = [root for name in repro.backend_modules for root in module_roots(name, backend.paths)]
    repositories = [str(repository.absolute())] if repository else repositories_of(roots)
    if len(repositories) != 1:
        several = f"several git repositories ({', '.join(repositories)})"
        where = several if repositories else "no git repository"
        code = f"the code of backend {backend.name}"
        raise MinidbgError(f"{code} lies in {where}; name it with --repository")
    checkout = Path(repositories[0]).resolve()
    good, bad = (git(checkout, "log", "-1", "--format=%H", end, "--") for end in (good, bad))
    with worktree(checkout, bad) as tree:
        # the backend's modules are imported from there: they lie as in the repository
        above = [Path(root).parent for root in roots if Path(root).parent.is_relative_to(checkout)]
        folders = dict.fromkeys(str(tree / one.relative_to(checkout)) for one in above)
        places = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
        env = environment.for_judge(
            environment.NO_CACHED_GRAPHS, environment.NO_BYTECODE, {"PYTHONPATH": places}
        )
        built_in = (build_folder or checkout).resolve()
        inside = built_in.relative_to(checkout) if built_in.is_relative_to(checkout) else "."
        device = device or repro.spec.device
        command = judge_command(repro.path, device=device, options=options)

        def judge() -> tuple[Verdict | None, str]:
            """Whether it is gone or reproduces at this commit, None if it is unclear; and why."""
            try:
                built = Build(build, tree / inside).wait(seconds) if build else None
            except (OSError, subprocess.TimeoutExpired) as error:
                return None, f"the build fails: {error}"
            if isinstance(built, BuildFailed):
                return None, f"the build fails: {built.error or f'exit status {built.status}'}"
            if misplaced := imported_from_elsewhere(tree, repro, env):
                return None, misplaced
            with tempfile.TemporaryDirectory(prefix="minidbg-run-", dir=tree.parent) as folder:
                done = run_python(command, seconds=seconds, cwd=folder, env=env)
            outcome = outcome_of_run(done, as_its_header_says(repro), limit_s=seconds)
            verdict = outcome.verdict
            first_line = outcome.message.partition("\n")[0] if verdict is Verdict.CHANGED else ""
            reason = ": ".join(filter(None, [str(verdict), outcome.reason or first_line]))
            return verdict if verdict in (Verdict.GONE, Verdict.REPRODUCES) else None, reason

        # first check what was said of both ends: from wrong ends git finds some commit, a wrong one
        old, new = (bad, good) if git(tree, "merge-base", good, bad) == bad else (good, bad)
        ends = {bad: ("bad", Verdict.REPRODUCES), good: ("good", Verdict.GONE)}
        for commit, (word, wanted) in ends.items():
            git(tree, "checkout", "--quiet", "--force", commit)
            verdict, reason = judge()
            tell(f"{word} end {commit[:10]}: {reason}")
            if verdict is not wanted:
                end = f"at the {word} end {commit[:10]} the verdict should be {wanted}"
                raise MinidbgError(f"{end}, but: {reason}; name another commit")
        # the older end's behaviour is git's "before", the newer one's "after"
        said = git_bisect(tree, "start", "--term-old=before", "--term-new=after", new, old)
        steps = 2
        while not re.search(r"(?m)^[0-9a-f]{40} is the first '?after'? commit", said):
            commit = git(tree, "rev-parse", "HEAD")
            verdict, reason = judge()
            tell(f"{commit[:10]}: {reason}")
            steps += 1
            term = "before" if verdict is ends[old][1] else "after"
            said = git_bisect(tree, "skip" if verdict is None else term)
        commit = git(tree, "rev-parse", "refs/bisect/after")
        told = git(tree, "show", "--no-patch", "--format=%s%x00%an%x00%ad", "--date=short", commit)
        subject, author, date = told.split("\0")
        return Culprit(commit, subject, author, date, old == bad, steps)


@contextlib.contextmanager
def worktree(repository: Path, commit: str) -> Iterator[Path]:
    """A temporary checkout, gone at the end, bisection and all; those of killed ones go first."""
    folder = leftovers.make_temporary_folder("bisect")
    tree = folder / repository.name
    try:
        git(repository, "worktree", "prune")
        git(repository, "worktree", "add", "--detach", "--force", str(tree), commit)
        yield tree
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        git(repository, "worktree", "prune")


def imported_from_elsewhere(tree: Path, repro: Repro, env: dict[str, str]) -> str:
    """Why the run would judge other code than that of ``tree``; empty when it would not."""
    program = "import importlib.util as u, sys; "
    program += "specs = filter(None, map(u.find_spec, sys.argv[1:])); print(*(p for s in specs "
    program += "for p in [*(s.submodule_search_locations or ()), s.origin] if p), sep='\\n')"
    command = [sys.executable, "-P", "-c", program, *repro.backend_modules]
    done = subprocess.run(command, env=env, cwd=tree, capture_output=True, text=True, check=False)
    places = done.stdout.splitlines()
    inside = os.path.realpath(tree) + os.sep
    if done.returncode or any(os.path.realpath(place).startswith(inside) for place in places):
        return ""  # where it fails, the run itself will say what is wrong
    where = f"imported from {places[0]}, not from the worktree" if places else ""
    return f"{repro.backend_modules[0]} is {where or 'not importable at this commit'}"


def git(folder: Path, *arguments: str) -> str:
    """What git prints. Raises MinidbgError."""
    try:
        done = run_git(str(folder), *arguments)
    except OSError as error:
        raise MinidbgError(f"git cannot be run: {error}") from error
    printed = done.stdout.decode(errors="replace").strip()
    if done.returncode == 0:
        return printed
    if names := re.findall(r"(?m)^[0-9a-f]{40}$", printed):  # of a bisection
        commits = ", ".join(names[:10])
        raise MinidbgError(f"the remaining commits cannot be judged; it is one of {commits}")
    why = last_line(done.stderr.decode(errors="replace")) or last_line(printed)
    raise MinidbgError(f"git {shlex.join(arguments)}: {why}")


def git_bisect(tree: Path, *arguments: str) -> str:
    git(tree, "checkout", "--quiet", "--force", "HEAD")  # builds may have written tracked files
    return git(tree, "bisect", *arguments)
