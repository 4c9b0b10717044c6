"""After the program: what its processes reported, and the cases of those that died in a backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidbg.run.launch import Ending
from minidbg.run.orders import told
from minidbg.settings import Settings


@dataclass(frozen=True, slots=True)
class Summary:
    """What is to be told when the program has ended."""

    lines: tuple[str, ...]
    failures: int
    repros: tuple[Path, ...]


def summary_of(
    log: Path, ending: Ending, began: float, settings: Settings, say: Callable[[str], object]
) -> Summary:
    """What failed in the program that ran since ``began`` (seconds of the epoch); dead processes' cases are reduced.

    ``say`` hears what is done meanwhile.
    """
    events = list(told(log))
    lines = failure_lines(event for event in events if event.get("event") == "failure")
    repros = [Path(event["path"]) for event in events if event.get("path")]
    if any((settings.repro_dir / ".minidbg" / "flight").glob("*.py")):
        # late: torch is imported only where somebody has died
        from minidbg.run import deaths

        for death in deaths.since(settings.repro_dir, began):
            line, path = deaths.answered(death, settings, ending, say)
            lines.append(line)
            repros += [path] if path else []
    failures = len(lines)
    lines = lines or [nothing_failed(events)]
    lines += graph_lines(event for event in events if event.get("event") == "graphs")
    return Summary(tuple(lines), failures, tuple(dict.fromkeys(repros)))


def failure_lines(events: Iterable[dict[str, Any]]) -> list[str]:
    """One line for each failure that a process reported; equal ones once, with their number."""
    texts = Counter(f"{event.get('backend')}, {event.get('kind')}: {event.get('line')}" for event in events)
    return [text if times == 1 else f"{text} ({times} times)" for text, times in texts.items()]


def graph_lines(events: Iterable[dict[str, Any]]) -> list[str]:
    """How many graphs all processes verified, and a line for each reason why others were not; none without graphs."""
    counts, reasons = Counter[str](), Counter[str]()
    for event in events:
        counts.update({name: event[name] for name in ("graphs", "verified", "not_run")})
        reasons.update({f"not verified: {reason}": n for reason, n in event["not_verified"].items()})
        reasons.update({f"verified in part: {note}": n for note, n in event["left_out"].items()})
    if not counts["graphs"]:
        return []
    first = f"{counts['verified']} of {counts['graphs'] - counts['not_run']} graphs that ran agree with eager"
    return [first, *(f"{number} {reason}" for reason, number in reasons.most_common())]


def nothing_failed(events: Sequence[dict[str, Any]]) -> str:
    """The line for a program in which no backend failed."""
    backends = Counter(str(event.get("backend")) for event in events if event.get("event") == "wrapped")
    if not backends:
        return (
            "no torch.compile in this program; --compile-all MODULE:CLASS compiles the instances of a class"
        )
    uses = ", ".join(f"{name} {times} times" if times > 1 else name for name, times in backends.items())
    return f"no backend failed (wrapped: {uses})"
