"""``minidbg bisect``: the commit of the backend at which a repro flipped, by ``git bisect run`` in a worktree of its own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidbg.errors import MinidbgError
from minidbg.failure import EXIT_STATUS, Outcome, Verdict
from minidbg.processes import deaths, run_python
from minidbg.processes.pool import COMPILER_ENVIRONMENT
from minidbg.watch.background import Builder, Built, last_line
from minidbg.watch.columns import Column
from minidbg.watch.repros import Repro, read_repro
from minidbg.watch.runner import as_renamed, expected_signature, is_fallback, judging
from minidbg.watch.sources import module_roots, repositories_of

CANNOT_JUDGE = 125
STEP = "minidbg: "
"""Begins the lines that our steps print among git's own."""
Tell = Callable[[str], None]


class CannotBisect(MinidbgError):
    """The search cannot be made, or came to no end."""


@dataclass(frozen=True, slots=True)
class Search:
    """What to look for: ``good`` and ``bad`` are revisions of the backend's repository."""

    good: str
    bad: str
    repro: Path
    repository: Path | None = None
    build: str | None = None
    build_folder: Path | None = None
    """Where the build runs; in the worktree it is the same place below its root."""
    device: str | None = None
    options: str = ""
    """Options of the backend that are added to the repro's own, a Python dict as text."""
    seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class Found:
    """The first commit with the newer behaviour. ``fixed``: whether that is the fix, not the culprit."""

    commit: str
    subject: str
    author: str
    date: str
    fixed: bool
    steps: int

    def text(self) -> str:
        """For people; the commit is the first word."""
        what = "fixed the failure" if self.fixed else "is the first that fails"
        return f"{self.commit} {what} ({self.steps} commits tried)\n  {self.subject}\n  {self.author}, {self.date}"

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


def search(wanted: Search, tell: Tell) -> Found:
    """Find the commit. Raises CannotBisect, saying what stands in the way and what to do."""
    repro = readable(wanted.repro)
    repository = wanted.repository.absolute() if wanted.repository else repository_of_backend(repro)
    good, bad = (commit_of(repository, revision) for revision in (wanted.good, wanted.bad))
    fixed = is_ancestor(repository, bad, good)
    if not fixed and not is_ancestor(repository, good, bad):
        base = git(repository, "merge-base", good, bad)
        tell(
            f"{wanted.good} and {wanted.bad} lie on two branches; git tests their merge base {base[:10]} first"
        )
    with worktree(repository, bad) as tree:
        job = {
            "repro": str(repro.path.absolute()),
            "repository": str(repository),
            "build": wanted.build,
            "build_folder": below(wanted.build_folder, repository),
            "device": wanted.device,
            "options": wanted.options,
            "seconds": wanted.seconds,
        }
        check_ends(tree, job, good, bad, tell)
        return run_bisect(tree, job, good, bad, fixed=fixed, tell=tell)


def below(folder: Path | None, repository: Path) -> str:
    """The place of ``folder`` in the repository; its root for one that is not in it."""
    real, root = (folder or repository).resolve(), repository.resolve()
    return str(real.relative_to(root)) if real.is_relative_to(root) else "."


def readable(path: Path) -> Repro:
    """The repro at ``path``. Raises CannotBisect for a damaged one."""
    repro = read_repro(path, str(path))
    if repro is None or repro.damage:
        raise CannotBisect(f"{path}: {repro.damage if repro else 'has gone'}")
    return repro


def repository_of_backend(repro: Repro) -> Path:
    """The git repository that holds the code of the repro's backend. Raises CannotBisect when that is not clear."""
    roots = [root.path for module in repro.modules for root in module_roots(module, repro.texts["paths"])]
    found = repositories_of([*roots, *repro.texts["files"]])
    if len(found) != 1:
        what = (
            f"lies in {len(found)} git repositories ({', '.join(found)})"
            if found
            else "lies in no git repository"
        )
        raise CannotBisect(f"the code of backend {repro.backend} {what}; name it with --repository")
    return Path(found[0])


def commit_of(repository: Path, revision: str) -> str:
    """The full name of a revision's commit. Raises CannotBisect for one that git does not know."""
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except CannotBisect:
        raise CannotBisect(f"{revision!r} is no commit of {repository}") from None


def is_ancestor(repository: Path, older: str, newer: str) -> bool:
    """Whether ``older`` is part of the history of ``newer``."""
    done = subprocess.run(
        ["git", "-C", str(repository), "merge-base", "--is-ancestor", older, newer],
        check=False,
        capture_output=True,
    )
    return done.returncode == 0


@contextlib.contextmanager
def worktree(repository: Path, commit: str) -> Iterator[Path]:
    """A checkout of the repository in a temporary folder, which is gone afterwards, bisection and all."""
    with tempfile.TemporaryDirectory(prefix="minidbg-bisect-") as folder:
        tree = Path(folder) / repository.name
        git(repository, "worktree", "add", "--detach", "--force", str(tree), commit)
        try:
            yield tree
        finally:
            for arguments in (("bisect", "reset"), ("worktree", "remove", "--force", str(tree))):
                with contextlib.suppress(CannotBisect):
                    git(tree if arguments[0] == "bisect" else repository, *arguments)
            with contextlib.suppress(CannotBisect):
                git(repository, "worktree", "prune")


def check_ends(tree: Path, job: dict[str, Any], good: str, bad: str, tell: Tell) -> None:
    """See that the repro does at both ends what was said: a search from wrong ends finds some commit, and a wrong one."""
    for commit, status, word in ((bad, 1, "bad"), (good, 0, "good")):
        git(tree, "checkout", "--quiet", "--force", commit)
        found, reason = judge(tree, job)
        tell(f"{word} end {commit[:10]}: {reason}")
        if found != status:
            expected = "reproduces" if status else "is gone"
            raise CannotBisect(
                f"at the {word} end {commit[:10]} the repro should be seen to {'reproduce' if status else 'be gone'}, but: "
                f"{reason}. Name another commit at which it {expected}"
            )


def run_bisect(tree: Path, job: dict[str, Any], good: str, bad: str, *, fixed: bool, tell: Tell) -> Found:
    """Let git search. The older end's behaviour is git's "old", the newer one's "new"."""
    old, new = (bad, good) if fixed else (good, bad)
    git(tree, "bisect", "start", "--term-old=before", "--term-new=after", new, old)
    step = [sys.executable, "-P", "-m", "minidbg.watch.bisecting", json.dumps({**job, "fixed": fixed})]
    process = subprocess.Popen(
        ["git", "-C", str(tree), "bisect", "run", *step], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": with_path(own_root(), os.environ.get("PYTHONPATH"))},
    )  # fmt: skip
    said: list[str] = []
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            said.append(line.rstrip())
            if line.startswith(STEP):
                tell(line.removeprefix(STEP).rstrip())
    steps = 2 + sum(line.startswith(STEP) for line in said)  # with both ends
    if process.wait() != 0:
        raise CannotBisect(f"git bisect came to no end: {why_no_end(said)}")
    commit = git(tree, "rev-parse", "refs/bisect/after")
    subject, author, date = git(
        tree, "show", "--no-patch", "--format=%s%x00%an%x00%ad", "--date=short", commit
    ).split("\0")
    return Found(commit, subject, author, date, fixed, steps)


def why_no_end(said: Sequence[str]) -> str:
    """What git said when it gave up, with the commits that are left."""
    names = [line for line in said if len(line) == 40 and set(line) <= set("0123456789abcdef")]
    if names:
        return f"the commits that are left cannot be judged, it is one of {', '.join(name[:10] for name in names)}"
    return "; ".join(said[-3:])


def own_root() -> str:
    """The folder that this package is imported from."""
    return str(Path(__file__).parents[2])


def with_path(first: str, rest: str | None) -> str:
    """A search path that begins with ``first``."""
    return os.pathsep.join([first, *([rest] if rest else [])])


# One step, in a process of its own that git starts


def build(command: str, folder: Path, seconds: float) -> str:
    """Run the build command in ``folder``; the error of one that fails, else nothing."""
    ended: queue.SimpleQueue[Built] = queue.SimpleQueue()
    builder = Builder(command, folder, ended.put)
    builder.start()
    try:
        built = ended.get(timeout=seconds)
    except queue.Empty:
        builder.cancel()
        return f"no end within {seconds:g} s"
    return built.error or f"exit status {built.status}" if built.status else ""


def judged(repro: Repro, column: Column, seconds: float, env: Mapping[str, str]) -> Outcome:
    """What the repro does in a fresh interpreter, from an empty folder."""
    with tempfile.TemporaryDirectory(prefix="minidbg-run-") as folder:
        done = run_python(judging(repro, column, in_worker=False), seconds=seconds, cwd=folder, env=env)
    return deaths.outcome_of(done, expected_signature(repro), limit_s=seconds)


def judge(tree: Path, job: dict[str, Any]) -> tuple[int, str]:
    """Build, run the repro against the code in ``tree``; 0 gone, 1 reproduces, 125 cannot be judged; and why."""
    if job["build"] and (error := build(job["build"], tree / job["build_folder"], job["seconds"])):
        return CANNOT_JUDGE, f"the build fails: {error}"
    repro = readable(Path(job["repro"]))
    env = environment_for(tree, repro, Path(job["repository"]))
    misplaced = imported_from_elsewhere(tree, repro, env)
    if misplaced:
        return CANNOT_JUDGE, misplaced
    column = Column(job["device"] or repro.device, options=job["options"])
    files = [str(tree / name) for name in git(tree, "ls-files").splitlines()]
    outcome = as_renamed(judged(repro, column, job["seconds"], env), repro, files)
    if is_fallback(outcome):
        return CANNOT_JUDGE, outcome.reason
    status = EXIT_STATUS[outcome.verdict]
    first_line = outcome.message.partition("\n")[0] if outcome.verdict is Verdict.CHANGED else ""
    reason = ": ".join(part for part in (str(outcome.verdict), outcome.reason or first_line) if part)
    return (status if outcome.verdict in (Verdict.GONE, Verdict.REPRODUCES) else CANNOT_JUDGE), reason


def environment_for(tree: Path, repro: Repro, repository: Path) -> dict[str, str]:
    """An environment in which the backend's modules are imported from ``tree``: there they lie as in the repository."""
    folders = []
    for module in repro.modules:
        for root in module_roots(module, repro.texts["paths"]):
            above = Path(root.path).parent
            if above.is_relative_to(os.path.realpath(repository)):
                folders.append(str(tree / above.relative_to(os.path.realpath(repository))))
    path = os.pathsep.join([*dict.fromkeys(folders), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    # No bytecode at all: commits follow each other within a second, and that of the one before must not run.
    return {**os.environ, **COMPILER_ENVIRONMENT, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


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
    """What git prints. Raises CannotBisect with its message."""
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise CannotBisect(f"git cannot be run: {error}") from error
    if done.returncode != 0:
        raise CannotBisect(f"git {shlex.join(arguments)}: {last_line(done.stderr) or last_line(done.stdout)}")
    return done.stdout.strip()


def main(argument: str) -> int:
    """One step of ``git bisect run``: the exit status that git understands."""
    job = json.loads(argument)
    status, reason = judge(Path.cwd(), job)
    commit = git(Path.cwd(), "rev-parse", "--short=10", "HEAD")
    print(f"{STEP}{commit}: {reason}", flush=True)
    if status == CANNOT_JUDGE:
        return CANNOT_JUDGE
    return 1 - status if job["fixed"] else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
