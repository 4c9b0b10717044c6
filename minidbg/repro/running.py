"""A script in a fresh interpreter: judged by the installed judge, or run by itself as anybody would run it."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from minidbg import workers
from minidbg.judge.command import JUDGE_SCRIPT
from minidbg.judge.death import outcome_of_run
from minidbg.repro.header import read_header
from minidbg.words import environment
from minidbg.words.errors import Interrupted, MinidbgError
from minidbg.words.outcome import Outcome, Verdict
from minidbg.words.text import display_path


def run(
    path: Path | str,
    *,
    device: str | None = None,
    backend: str | None = None,
    options: str = "",
    tolerances: tuple[float, float] | str | None = None,
    seconds: float = 120.0,
    fork: workers.Preparation | None = None,
    python: str | None = None,
) -> Outcome:
    """Judge the script at ``path`` in a fresh interpreter, from an empty folder, for at most ``seconds``.

    ``fork``: in a fork of this process's forkserver, prepared so, which saves the time that importing torch takes.
    ``python`` is another interpreter, with a torch of its own and without minidbg.
    ``options``, a dict as text, are added to the backend's options in the script.
    ``tolerances``, relative and absolute or the name of a precision, replace those of the script for wrong results.

    A run that dies or does not come back is an Outcome too, judged against what the script expects. Raises UnreadableRepro.
    """
    header = read_header(path)
    argv = [JUDGE_SCRIPT, str(header.path.absolute()), *(["--options", options] if options else []), "--json"]
    argv += ["--device", device] if device else []
    argv += ["--backend", backend] if backend else []
    given = (tolerances,) if isinstance(tolerances, str) else tuple(map(repr, tolerances or ()))
    argv += ["--tolerances", *given] if given else []
    if fork is not None:
        ended = workers.run_script_in_server(fork, argv, seconds=seconds)
    else:
        ended = _run(argv, seconds, python)
    outcome = outcome_of_run(ended, header.spec, limit_s=seconds)
    if not (outcome.reason or outcome.stderr) and outcome.verdict in (Verdict.GONE, Verdict.CHANGED):
        outcome = replace(outcome, stderr=ended.stderr_tail)  # who expected a failure asks what was said
    return replace(outcome, device=device or outcome.device or header.spec.device)


def run_alone(
    path: Path, *, seconds: float, without: Iterable[str] = (), paths: Sequence[str] = ()
) -> workers.ChildResult:
    """How ``python path`` ends, run by itself from an empty folder for at most ``seconds``.

    ``without`` some of this process's environment variables, and with ``paths`` on its PYTHONPATH.
    """
    env: dict[str, str | None] = dict.fromkeys(without)
    if paths:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, os.environ.get("PYTHONPATH")]))
    return _run([str(path.absolute())], seconds, env=env)


def _run(
    argv: list[str], seconds: float, python: str | None = None, env: Mapping[str, str | None] | None = None
) -> workers.ChildResult:
    with tempfile.TemporaryDirectory(prefix="minidbg-run-") as folder:
        # No fresh bytecode folder: compiling torch's own modules again would cost half a minute a run.
        parts = (environment.USUAL_THREADS, *([environment.OTHER_PYTHON] if python else []))
        unset = dict.fromkeys(name for part in parts for name in part.taken_out)
        return workers.run_python(
            argv, seconds=seconds, cwd=folder, env={**unset, **(env or {})}, python=python or sys.executable
        )


def interpreter_ahead(backend: str, without: Iterable[str] = ()) -> workers.Ahead:
    """What an interpreter imports while a search runs, whose script for ``backend`` (its name) will then be run by itself, and its variables.

    ``without`` are variables of this process that it does not get, since the script may not need them.
    """
    modules = ("torch", "torch._dynamo", *(("torch._inductor.compile_fx",) if backend == "inductor" else ()))
    given = {
        **workers.where_kernels_go(),
        **dict.fromkeys((*environment.FORKABLE.put_in, *without)),
    }  # it need not be
    return workers.Ahead(modules, environment.for_judge(environment.USUAL_THREADS, given=given))


# --- with the torch of other interpreters ---


INSTALL_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class TorchFlip:
    """Two neighbours in the list of versions between which a repro's verdict changed."""

    before: str
    after: str
    fixed: bool
    """Whether the failure is gone in ``after``; else it began there."""
    unjudged: tuple[str, ...] = ()
    """Versions between the two that could not judge it."""

    @property
    def line(self) -> str:
        """For people."""
        between = f"; not to be judged in {', '.join(self.unjudged)}, between them" if self.unjudged else ""
        if self.fixed:
            return f"torch {self.after} is the first without the failure; {self.before} still has it{between}"
        return f"torch {self.after} is the first with the failure; {self.before} does not have it{between}"


def find_flip(versions: Sequence[str], judge: Callable[[str], Outcome]) -> TorchFlip:
    """The versions between which the verdict changes, by bisection. ``versions`` are in order, oldest first.

    Raises MinidbgError when the oldest and the newest agree, or fewer than two can judge the repro.
    """
    known: dict[int, bool] = {}  # whether the repro fails there
    unjudged: set[int] = set()

    def can_judge(index: int) -> bool:
        verdict = judge(versions[index]).verdict
        if verdict in (Verdict.SKIPPED, Verdict.INVALID):
            unjudged.add(index)
        else:
            known[index] = verdict is not Verdict.GONE
        return index in known

    low = next(filter(can_judge, range(len(versions))), None)
    if low is None:
        raise MinidbgError(f"none of torch {', '.join(versions)} can judge it; 'minidbg check' says why")
    rest = [index for index in range(len(versions) - 1, low, -1) if index not in unjudged]
    high = next(filter(can_judge, rest), low)
    if known[high] == known[low]:
        state = "fails" if known[low] else "is gone"
        raise MinidbgError(
            f"it {state} in torch {versions[low]}"
            + (f" and in {versions[high]}" if high != low else "; no other version can judge it")
            + "; give versions of which one fails and one does not"
        )
    while True:
        between = [index for index in range(low + 1, high) if index not in unjudged]
        if not between:
            skipped = tuple(versions[index] for index in range(low + 1, high))
            return TorchFlip(versions[low], versions[high], fixed=known[low], unjudged=skipped)
        centre = low + high
        middle = min(between, key=lambda index: abs(2 * index - centre))
        if can_judge(middle):
            low, high = (middle, high) if known[middle] == known[low] else (low, middle)


def in_order(versions: str) -> list[str]:
    """The versions in ``2.13.0,2.12.1``, oldest first, each once. Raises MinidbgError."""
    try:
        found = sorted({one.strip() for one in versions.split(",") if one.strip()}, key=Version)
    except InvalidVersion as error:
        raise MinidbgError(f"{error}; give versions of torch, as in --torch 2.12.1,2.13.0") from None
    if len(found) < 2:
        raise MinidbgError(f"{versions!r} is less than two versions; a search needs at least two")
    return found


def search_torch(
    repro: Path, versions: str, *, folder: Path | None, seconds: float, tell: Callable[[str], None]
) -> TorchFlip:
    """The versions of torch between which the verdict of ``repro`` changes; each is installed in an environment of its own.

    Environments are made in ``folder`` and stay there for the next search; without it they go, one after the other. Raises MinidbgError.
    """
    wanted = [one for one in read_header(repro).dependencies if not one.startswith("torch==")]
    judged: dict[str, Verdict] = {}

    def judge(version: str) -> Outcome:
        with interpreter_with_torch(version, wanted, folder, tell) as python:
            outcome = run(repro, python=python, seconds=seconds)
        tell(f"torch {version}: {outcome.verdict}{f' ({outcome.reason})' if outcome.reason else ''}")
        judged[version] = outcome.verdict
        return outcome

    every = in_order(versions)
    try:
        return find_flip(every, judge)
    except KeyboardInterrupt:
        so_far = ", ".join(f"{version} {verdict}" for version, verdict in judged.items())
        rest = ",".join(still_between(every, judged))
        how = f"minidbg bisect --torch {rest} {display_path(repro)}"
        how += f" --environments {folder}" if folder is not None else ""
        what = f"interrupted: torch {so_far}" if judged else "interrupted before a version was judged"
        raise Interrupted(f"{what}; to go on: {how}") from None


def still_between(versions: Sequence[str], judged: Mapping[str, Verdict]) -> Sequence[str]:
    """The versions among which the flip lies, the neighbours on both sides included; those that cannot judge are left out."""
    left = [one for one in versions if judged.get(one) not in (Verdict.SKIPPED, Verdict.INVALID)]
    known = [index for index, one in enumerate(left) if one in judged]
    for low, high in itertools.pairwise(known):
        if (judged[left[low]] is Verdict.GONE) != (judged[left[high]] is Verdict.GONE):
            return left[low : high + 1]
    return left


@contextlib.contextmanager
def interpreter_with_torch(
    version: str, wanted: Sequence[str], folder: Path | None, tell: Callable[[str], None]
) -> Iterator[str]:
    """The interpreter of an environment with torch ``version`` and the distributions ``wanted``. Raises MinidbgError."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="minidbg-torch-")))
        place = folder.absolute() / f"torch-{version}"
        python = place / "bin" / "python"
        if not python.exists():
            tell(f"installing torch {version} in {place}")
            try:
                install(place, [f"torch=={version}", *wanted])
            except BaseException as error:
                shutil.rmtree(
                    place, ignore_errors=True
                )  # half of one would be taken for a whole one by the next search
                if not isinstance(error, OSError | subprocess.SubprocessError):
                    raise
                said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
                raise MinidbgError(
                    f"torch {version} cannot be installed: {said[-1] if said else error}; "
                    "leave it out, or put an environment with it at " + str(place)
                ) from None
        yield str(python)


def install(place: Path, wanted: Sequence[str]) -> None:
    """Make a virtual environment at ``place`` with ``wanted``: by uv where it is, else by venv and pip. Raises SubprocessError."""
    python, uv = str(place / "bin" / "python"), shutil.which("uv")
    make, put = (
        [sys.executable, "-m", "venv"],
        [python, "-m", "pip", "install", "--disable-pip-version-check"],
    )
    if uv is not None:
        make, put = [uv, "venv", "--python", sys.executable], [uv, "pip", "install", "--python", python]
    for command in ([*make, str(place)], [*put, *wanted]):
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS,
            env=environment.for_tool(),
        )  # fmt: skip
