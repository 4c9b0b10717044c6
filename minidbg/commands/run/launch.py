"""The program in a child process that acts as if started directly, and the summary at its end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from minidbg.commands.output import signals_handled
from minidbg.core import environment
from minidbg.core.errors import ONE_PROCESS
from minidbg.core.files import glob
from minidbg.core.kinds import Kind
from minidbg.core.run_spec import how_to_supply_backend
from minidbg.core.settings import Reduce, Settings
from minidbg.core.text import display_path, json_objects, last_json, plural, signal_name
from minidbg.workers import Warmup, leftovers, own_kernel_cache
from minidbg.workers.child import PR_SET_PDEATHSIG, prctl
from minidbg.workers.client import Server
from minidbg.workers.leftovers import SAME_START_S

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
"""Signals that somebody sends to us and means for the program."""
MOST_KNOCKS = 128
"""Processes of a program whose server is still at its imports."""
PREPARED = "minidbg.reduction.reducing:reduce_in_child"
MOST_RECOMPILED = 5
"""Functions whose recompilations are told one by one."""
EXIT_GRACE_S = 60.0
"""What reducing may take beyond its budget, which begins when torch and the backend are loaded."""
FROM_THE_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to the whole process group, the program included."""


def run_program(arguments: Sequence[str], environ: Mapping[str, str], door: str, warm: str) -> int:
    """Run ``python *arguments`` with this terminal, working directory, streams; its exit status, or
    the signal that ended it, negative. Raises OSError."""
    with leaving_signals_to_child() as children:
        child = subprocess.Popen(
            [sys.executable, *arguments],
            env=dict(environ),
            # a kill of minidbg alone must not leave the program behind
            preexec_fn=(lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM)) if sys.platform == "linux" else None,
        )
        children.append(child)
        with lent_server(door, warm, child):
            return child.wait()


@contextlib.contextmanager
def lent_server(path: str, warm: str, child: subprocess.Popen[Any]) -> Iterator[None]:
    """Start a server once a process of the program comes to the door at ``path``, and prepare it.
    It ends with the block, and with this process."""
    with socket.socket(socket.AF_UNIX) as door:
        server = Server(door=door)
        # wanted later, a path that is too long; an old kernel; no process can be made
        with contextlib.suppress(OSError, AttributeError):
            door.bind(path)
            door.listen(MOST_KNOCKS)
            ended = os.pidfd_open(child.pid)
            came, _, _ = select.select([door.fileno(), ended], [], [])
            os.close(ended)
            if ended not in came:
                with own_kernel_cache():
                    server.prepare(PREPARED, Warmup(warm=warm, modules=("torch",)))
    try:
        yield
    finally:
        if server.pid is not None:
            server.end()
            leftovers.remove_those_of_the_dead("values", server.folder.parent)


@contextlib.contextmanager
def leaving_signals_to_child() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A block in which signals to us reach the children in the list, each once."""
    children: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    def from_the_keyboard(number: int, frame: FrameType | None) -> None:
        if not in_the_foreground():
            forward(number, frame)

    # handlers, since a child would inherit an ignored signal
    handlers = dict.fromkeys(FORWARDED, forward)
    with signals_handled(handlers | dict.fromkeys(FROM_THE_KEYBOARD, from_the_keyboard)):
        yield children


def in_the_foreground() -> bool:
    """Whether the keyboard's signals come to this process group from the terminal."""
    with contextlib.suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


def summary_of(
    log: Path, ending: int, began: float, settings: Settings, say: Callable[[str], object]
) -> list[str]:
    """What failed in a program since ``began`` (epoch seconds); dead processes' cases are reduced.

    ``say`` hears what is done meanwhile.
    """
    events = list(json_objects(log.read_text(encoding="utf-8", errors="replace").splitlines()))
    failures = [event for event in events if event.get("event") == "failure"]
    printed = "".join(str(event["text"]) for event in events if event.get("event") == "traceback")
    may_reduce = not was_interrupted(ending)
    waited = [event for event in failures if may_reduce and ONE_PROCESS in event["line"]]
    # the last of equal ones; minidbg reduce takes the others
    waiting = {(event["kind"], event["said"]): event for event in waited}.values()
    unseen = (event for event in failures if f"minidbg: {event.get('line')}\n" not in printed)
    lines = failure_lines(event for event in unseen if event not in waiting)
    lines += reduced_at_the_end(waiting, settings, say)
    if glob(settings.repro_dir / ".minidbg" / "crash_records", "*.py"):
        lines += deaths_since(began, settings, ending, say)
    if not lines and not failures:
        lines = [nothing_failed(events, ending)]
    kinds = {str(event.get("kind")) for event in failures}
    graphs = (event for event in events if event.get("event") == "graphs")
    recompiled = (event for event in events if event.get("event") == "recompiled")
    return [*lines, *graph_lines(graphs, kinds), *recompiled_lines(recompiled)]


def failure_lines(events: Iterable[dict[str, Any]]) -> list[str]:
    """One line for each failure that a process reported; equal ones once, with their number."""
    texts = Counter(
        f"{event.get('backend')} {Kind(event['kind']).traits.warning} a graph: {event.get('line')}"
        for event in events
    )
    return [text if times == 1 else f"{text} ({times} times)" for text, times in texts.items()]


def reduced_at_the_end(
    events: Iterable[dict[str, Any]], settings: Settings, say: Callable[[str], object]
) -> Iterator[str]:
    """A line for each failure on a device that the program had to itself; one budget for all."""
    until = time.monotonic() + settings.seconds
    for event in events:
        granted = replace(settings, seconds=max(0.0, until - time.monotonic()))
        happened = f"{event['backend']} {Kind(event['kind']).traits.warning} a graph"
        yield reduced_after(Path(event["capture"]), granted, happened, say, interrupted=False)


def graph_lines(events: Iterable[dict[str, Any]], kinds: Collection[str] = ()) -> list[str]:
    """What became of the graphs of all processes, and a line for each reason why one was not
    verified; none without graphs.

    ``kinds`` are those of the failures.
    """
    counts, reasons = Counter[str](), Counter[str]()
    for event in events:
        counts.update({name: event[name] for name in ("graphs", "verified", "failed", "not_run")})
        reasons.update({f"not verified: {why}": n for why, n in event["not_verified"].items()})
        reasons.update({f"verified in part: {note}": n for note, n in event["left_out"].items()})
    known = [Kind(kind).traits for kind in kinds]
    became_failed = known[0].happened if len(known) == 1 else "failed"
    fates = {
        "verified": "agrees with eager" if counts["verified"] == 1 else "agree with eager",
        "failed": became_failed,
        "not_run": "compiled and never called",
    }
    parts = [f"{plural(counts[key], 'graph')} {fate}" for key, fate in fates.items() if counts[key]]
    all_failed = counts["failed"] == counts["graphs"]
    none_ran = parts and all_failed and not any(one.compiles for one in known)
    lines = [f"{', '.join(parts)}{'; none ran' if none_ran else ''}"] if parts else []
    return [*lines, *(f"{plural(n, 'graph')} {reason}" for reason, n in reasons.most_common())]


def recompiled_lines(events: Iterable[dict[str, Any]]) -> list[str]:
    """How often dynamo compiled functions again: in all, and of a few the guard that failed."""
    times, guards = Counter[tuple[str, str, int]](), dict[tuple[str, str, int], str]()
    for event in events:
        function, path, line = event["where"]
        times[function, path, line] += event["times"]
        guards[function, path, line] = event["guard"][:200]
    lines = [plural(times.total(), "recompilation")] if times else []
    for where, number in times.most_common(MOST_RECOMPILED):
        function, path, line = where
        place = f"{function} ({display_path(Path(path))}:{line})"
        lines.append(f"{number} of them of {place}: {guards[where]}")
    return lines


def program_ended(ending: int) -> str:
    if ending < 0:
        return f" (the program was ended by {signal_name(-ending)})"
    return f" (the program ended with status {ending})" if ending else ""


def nothing_failed(events: Sequence[dict[str, Any]], ending: int) -> str:
    wrapped = (event for event in events if event.get("event") == "wrapped")
    backends = Counter(str(event.get("backend")) for event in wrapped)
    if not backends:
        advice = "; give it one: model.compile()"
        return f"no torch.compile in this program{program_ended(ending) or advice}"
    uses = ", ".join(f"{name} {n} times" if n > 1 else name for name, n in backends.items())
    return f"no backend failed (wrapped: {uses})"


# Processes of the program that did not come back from a backend


def deaths_since(
    began: float, settings: Settings, ending: int, say: Callable[[str], object]
) -> Iterator[str]:
    """A line for each process that has started since ``began`` and died, with the repro that was
    made of the case it left."""
    from minidbg.repro import crash_records  # late: torch is imported only where somebody has died

    folder = settings.repro_dir
    for record in (*crash_records.records_of_dead(folder), *crash_records.waited_in_vain(folder)):
        name = crash_records.read_name(record)
        if name is None or name.started_ms / 1000 < began - SAME_START_S:
            continue
        happened = crash_records.death(record) + program_ended(ending)
        if name.step is crash_records.Step.WAITING:
            crash_records.remove_record(record)
            yield happened
            continue
        try:
            capture = crash_records.as_capture(record)
        except FileNotFoundError:
            yield f"{happened}; another minidbg has taken its record"
        except OSError as error:
            yield f"{happened}; its record {record} cannot be moved ({error})"
        else:
            interrupted = was_interrupted(ending) or name.step is crash_records.Step.INTERRUPTED
            yield reduced_after(capture, settings, happened, say, interrupted=interrupted)


def was_interrupted(ending: int) -> bool:
    return ending in (-signal.SIGINT, 130)  # shells have 130 for Ctrl-C


def reduced_after(
    capture: Path, settings: Settings, happened: str, say: Callable[[str], object], *, interrupted: bool
) -> str:
    """Reduce the capture, if wanted now, in its own process, which a backend's import may kill."""
    from minidbg.reduction.result import ReductionResult  # late: needed for deaths alone
    from minidbg.watch.repros import read_repro

    shown, repro = display_path(capture), read_repro(capture, capture.name)
    if repro is not None and repro.spec.backend.missing_backend:
        return f"{happened}; a {how_to_supply_backend(capture, repro.spec.backend.missing_backend)}"
    if settings.reduce is Reduce.LATER:
        return f"{happened}; run: minidbg reduce {shown}"
    if interrupted:
        return f"{happened}; if the backend hung, run: minidbg reduce {shown}"
    say(f"{happened}; reducing that graph")
    command = [sys.executable, "-m", "minidbg", "reduce", "-q", str(capture), "--json", "--seconds"]
    command.append(f"{settings.seconds:g}")
    limit, began = settings.seconds + EXIT_GRACE_S, time.monotonic()
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            timeout=limit,
            check=False,
            text=True,
            env=environment.for_judge(),
        )
    except subprocess.TimeoutExpired:
        took = time.monotonic() - began
        return f"{happened}; not reduced within {took:.0f} s: the capture is in {shown}"
    written = last_json(done.stdout)
    if written is None:  # it has said why
        return f"{happened}; not reduced: the capture is in {shown}"
    line = f"{happened}: {ReductionResult.from_json(written).line}"
    return line if written["path"] else f"{line}; the capture is in {shown}"
