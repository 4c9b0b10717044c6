"""What ``minidbg watch --once`` leaves for other programs: a JSON document and a JUnit file."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from minidbg.watch import recorder
from minidbg.watch.announce import View
from minidbg.watch.events import Event, Flipped, Json, Judged, Stopped, SweepFinished
from minidbg.watch.page import Live, about
from minidbg.watch.repros import replace_text
from minidbg.watch.settings import FailOn
from minidbg.watch.states import FAILING
from minidbg.words.text import in_one_line, printable


class Results(View):
    """Gathers the results of one sweep, and writes them when the daemon ends. ``live`` knows since when."""

    def __init__(self, live: Live, fail_on: FailOn, *, junit: Path | None, document: Path | None) -> None:
        """Raises OSError for files that cannot be written."""
        self.live, self.fail_on = live, fail_on
        wanted = ((junit, self.junit), (document, self.document))
        self.writers = {path: text for path, text in wanted if path is not None}
        for path in self.writers:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        self.began = time.time()
        self.results: dict[tuple[str, str], Judged] = {}
        self.flips: list[Flipped] = []
        self.sweep: SweepFinished | None = None
        self.status: int | None = None

    def show(self, event: Event) -> None:
        """Take the event in; a second sweep's results replace those of the first."""
        match event:
            case Judged():
                self.results[event.repro, event.device] = event
            case Flipped():
                self.flips.append(event)
            case SweepFinished():
                self.sweep = event
            case Stopped():
                self.status = event.status

    def close(self) -> None:
        """Write the files; say so where one cannot be written."""
        for path, text in self.writers.items():
            try:
                replace_text(path, text())
            except OSError as error:
                print(f"minidbg: {path} cannot be written: {error}", file=sys.stderr)

    def document(self) -> str:
        home = Path(self.live.matrix.home) if self.live.matrix.home else None
        status = recorder.status_of(home) if home is not None else {}
        found = {
            "schema": 1, "at": self.began, "exit_status": self.status, "revision": status.get("revision", ""),
            **self.live.machine, "sweep": self.sweep.to_json() if self.sweep else {}, "broken": self.broken(),
            "build_failure": self.live.matrix.build_failure,
            "results": [{**one.to_json(), **self.more_about(one)} for one in self.results.values()],
            "flips": [{"at": flip.at, **flip.to_json()} for flip in self.flips],
        }  # fmt: skip
        return json.dumps(found, indent=1) + "\n"

    def more_about(self, result: Judged) -> Json:
        """Since when, and what the header says to people."""
        cell = self.live.matrix.cells.get((result.repro, result.device))
        since = cell.since if cell else None
        return {"since": since, **about(self.live.repros().get(result.repro))}

    def broken(self) -> list[Json]:
        """The backends that could do nothing at all."""
        return [
            {"backend": backend, "device": device, "reason": why}
            for (backend, device), why in self.live.matrix.broken.items()
        ]

    def junit(self) -> str:
        """A test suite with a case for each repro and column."""
        suite = ElementTree.Element("testsuite", name="minidbg watch")
        for result in self.results.values():
            self.add_case(suite, result)
        for one in self.broken():
            add_error(suite, f"backend {one['backend']}", one["device"], f"is broken: {one['reason']}")
        if self.live.matrix.build_failure:
            add_error(suite, "build", "build", self.live.matrix.build_failure)
        counts = {
            name: str(len(suite.findall(f"testcase/{tag}")))
            for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
        }
        seconds = str(self.sweep.seconds if self.sweep else 0.0)
        suite.attrib |= {"tests": str(len(suite)), **counts, "time": seconds, "timestamp": utc(self.began)}
        root = ElementTree.Element("testsuites")
        root.append(suite)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"

    def add_case(self, suite: ElementTree.Element, result: Judged) -> None:
        """A failure where the exit status counts one; a known failure is skipped, as pytest writes an expected one."""
        verdict, said = result.verdict or result.standing, result.reason or result.message
        case = ElementTree.SubElement(
            suite, "testcase", name=printable(result.repro), classname=printable(result.device), time=str(result.seconds)
        )  # fmt: skip
        more = self.more_about(result)
        properties = ElementTree.SubElement(case, "properties")
        for name in ("since", "expect", "owner", "issue", "muted"):
            if more.get(name):
                value = utc(more[name]) if name == "since" else in_one_line(str(more[name]))
                ElementTree.SubElement(properties, "property", name=name, value=value)
        known = self.fail_on is FailOn.UNEXPECTED and (bool(result.expected) or bool(result.muted))
        failing = verdict in FAILING
        contradicts = self.fail_on is FailOn.UNEXPECTED and verdict == "gone" and not known
        if contradicts:
            said = f"its header expects {more.get('expect')}; if it is fixed: minidbg accept {result.repro}"
        if failing and known:
            add(case, "skipped", verdict, f"known failure: {said}")
        elif failing or contradicts:
            add(case, "failure", verdict, said)
        elif verdict == "invalid":
            add(case, "error", verdict, said)
        elif verdict != "gone":
            add(case, "skipped", verdict, said)


def add(case: ElementTree.Element, tag: str, kind: str, text: str) -> None:
    """What became of a test case: in short, and in full."""
    found = ElementTree.SubElement(case, tag, type=kind, message=in_one_line(f"{kind}: {text}")[:300])
    found.text = printable(text)


def add_error(suite: ElementTree.Element, name: str, where: str, text: str) -> None:
    case = ElementTree.SubElement(suite, "testcase", name=in_one_line(name), classname=in_one_line(where))
    add(case, "error", "not judged", text)


def utc(at: Any) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(float(at)))
