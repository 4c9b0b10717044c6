"""Sessions of ``minidbg watch`` with a toy backend that needs no torch: what happens, and what must be told of it.

A step is something that a person does, and the lines of ``told_of`` that must come of it: verdicts, flips, and what is said of
backends and repros. How a daemon gets there (runs, confirmations, sweeps that were given up) is its own affair.
"""

from __future__ import annotations

import difflib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from support.toy_repros import BROKEN, WORKS, WRONG, Checkout, script
from support.watch_driver import Event, WatchProcess

from minidbg.history import HISTORY_FILE, History

OTHERWISE = "def {op}(value):\n    raise TypeError('{op} fails in another way')\n"
CRASHES = "def {op}(value):\n    import os, signal\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
NO_PYTHON = "def {op}(value:\n"
OF_THE_DESK = "import os, time\nfrom pathlib import Path\n\nDESK = Path(__file__).parents[2]\n\n\n"
EVERY_OTHER_RUN = OF_THE_DESK + (
    "def {op}(value):\n"
    "    number = len(os.listdir(DESK / 'runs'))\n"
    "    (DESK / 'runs' / str(number)).mkdir()\n"
    "    if number % 2 == 0:\n"
    "        raise ValueError('{op} is broken')\n"
    "    return value + 1\n"
)
WAITS_AND_BREAKS = OF_THE_DESK + (
    "def {op}(value):\n"
    "    (DESK / 'entered').mkdir(exist_ok=True)\n"
    "    while not (DESK / 'open').exists():\n"
    "        time.sleep(0.02)\n"
    "    raise ValueError('{op} is broken')\n"
)
"""It comes back once there is a folder ``open``; no file is read, so the run has loaded nothing but code."""

ABOUT_REPROS = {
    "repro_added": "added",
    "repro_edited": "edited",
    "repro_removed": "removed",
    "repro_damaged": "damaged",
}
ABOUT_BACKENDS = {"backend_broken": "is broken", "backend_back": "works again"}


def told_of(events: list[Event]) -> list[str]:
    """What a person must hear, sorted: the last verdict on each repro, every flip, and what is said of repros and backends."""
    verdicts, others = {}, []
    for event in events:
        match event["event"]:
            case "result":
                verdict = f" ({event['verdict']})" if event["verdict"] else ""
                verdicts[event["repro"]] = f"{event['repro']}: {event['transition']}{verdict}"
            case "flip":
                files = ", ".join(event["files"])
                flip = f"flip {event['kind']}: {event['repro']} {event['before']} -> {event['after']}"
                others.append(f"{flip} by {files}" if files else flip)
            case "notice" if event["text"].startswith("not as their headers expect: "):
                others.append(event["text"])
            case name if name in ABOUT_REPROS:
                others.append(f"{ABOUT_REPROS[name]} {event['repro']}")
            case name if name in ABOUT_BACKENDS:
                others.append(f"{event['backend']} {ABOUT_BACKENDS[name]}")
    return sorted([*verdicts.values(), *others])


MOMENTS = {"at", "seconds", "since", "sweep", "last_before_sweep", "runs", "last_before", "first_after"}


def in_full(events: list[Event], *, flips_alone: bool) -> list[str]:
    """The events that ``told_of`` tells of as their JSON, but for what is a matter of moments."""
    told = {"flip"} if flips_alone else {"flip", *ABOUT_REPROS, *ABOUT_BACKENDS}
    chosen = [event for event in events if event["event"] in told]
    if not flips_alone:
        chosen += {event["repro"]: event for event in events if event["event"] == "result"}.values()
    masked = MOMENTS | {"files"} if flips_alone else MOMENTS
    return sorted(
        json.dumps({
            # of a crash the rest of the message is a stack
            key: "-" if key in masked else value.partition("\n")[0] if key == "message" else value
            for key, value in event.items()
        })
        for event in chosen
    )  # fmt: skip


class Desk(Checkout):
    """A toy backend, its repros, and the daemon that looks after them."""

    running: WatchProcess

    def __init__(self, folder: Path, ops: dict[str, str], kinds: dict[str, str]) -> None:
        super().__init__(folder, ops, {op: script(op, kind=kinds.get(op, "runtime")) for op in ops})
        self.commit(ignored="*.log")
        (folder / "runs").mkdir()
        self.mark = 0
        self.json: list[str] = []
        """What was told in each step, ``in_full``."""

    def start(self, *arguments: str) -> None:
        self.running = WatchProcess(self.folder, "--jobs", "2", *arguments, env=self.env)
        self.mark = 0

    def save(self, **sources: str) -> None:
        """All at once, as an editor saves."""
        self.mark = self.running.mark()
        for op, source in sources.items():
            draft = self.package / f".{op}.new"
            draft.write_text(source.format(op=op))
            os.replace(draft, self.package / f"{op}.py")

    def write_repro(self, name: str, text: str | None) -> None:
        self.mark = self.running.mark()
        path = self.repros / f"{name}.py"
        path.unlink() if text is None else path.write_text(text)

    def told(self) -> list[str]:
        """What was told since the last step began."""
        return told_of(self.running.events[self.mark :])

    def wait_for_sweep(self) -> None:
        self.running.wait_for_sweep(since=self.mark)
        self.running.wait_until_quiet()

    def wait_for_folder(self, name: str, seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while not (self.folder / name).exists():
            assert time.monotonic() < until, f"no run has made {name}: {self.running.events[self.mark :]}"
            time.sleep(0.02)

    def kill_once_told(self, **fields: object) -> None:
        """``kill -9``, as soon as a flip with these fields is told, and known to be; its children must end by themselves."""
        self.running.wait_for_event("flip", since=self.mark, **fields)
        until = time.monotonic() + 20
        with History(self.repros / ".minidbg" / HISTORY_FILE, readonly=True) as history:
            while not history.flips(
                announced=True
            ):  # killed before, the next daemon tells it again: rather twice than never
                assert time.monotonic() < until
                time.sleep(0.02)
        family = psutil.Process(self.running.process.pid).children(recursive=True)
        self.running.stop(signal.SIGKILL)
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive, "a process outlived the daemon"

    def once(self, *arguments: str, status: int) -> None:
        """``watch --once`` from its begin to its end."""
        self.start("--once", *arguments)
        assert self.running.process.wait(120) == status
        self.running.reader.join(20)


@dataclass(frozen=True)
class Step:
    do: Callable[[Desk], object]
    told: list[str]
    flips_alone: bool = False
    """What else is told, and which files are named, is a matter of moments."""

    def differences(self, desk: Desk) -> list[str]:
        """Do it; what is told and must not be, or must be and is not."""
        self.do(desk)
        told, events = desk.told(), desk.running.events[desk.mark :]
        desk.json += ["", *in_full(events, flips_alone=self.flips_alone)]
        if self.flips_alone:
            told = [line.partition(" by ")[0] for line in told if line.startswith("flip")]
        return [line for line in difflib.ndiff(sorted(self.told), told) if line[0] in "+-"]


def saving(**sources: str) -> Callable[[Desk], object]:
    return lambda desk: (desk.save(**sources), desk.wait_for_sweep())


def starting(*arguments: str) -> Callable[[Desk], object]:
    return lambda desk: (desk.start(*arguments), desk.wait_for_sweep())


def writing(name: str, text: str | None) -> Callable[[Desk], object]:
    return lambda desk: (desk.write_repro(name, text), desk.wait_for_sweep())


def removing(name: str) -> Callable[[Desk], object]:
    def remove(desk: Desk) -> None:
        desk.write_repro(name, None)
        desk.running.wait_for_event("repro_removed", since=desk.mark)
        desk.running.wait_until_quiet()

    return remove


def saving_in_the_midst(desk: Desk) -> None:
    """A run of what is saved first is under way when it is saved again: it would break the op."""
    desk.save(gate=WAITS_AND_BREAKS)
    mark = desk.mark
    desk.wait_for_folder("entered")
    desk.save(gate=WORKS + "# again\n")
    (desk.folder / "open").mkdir()
    desk.wait_for_sweep()
    desk.mark = mark


def killing_in_the_midst(desk: Desk) -> None:
    """One flip has been told, the other job still runs."""
    desk.save(relu=WORKS, gate=WAITS_AND_BREAKS)
    desk.wait_for_folder("entered")
    desk.kill_once_told(repro="relu.py")


def opening(desk: Desk) -> None:
    (desk.folder / "open").mkdir()
    starting()(desk)


@dataclass(frozen=True)
class Session:
    name: str
    ops: dict[str, str]
    steps: list[Step]
    kinds: dict[str, str] = field(default_factory=dict)
    quick: bool = False
    hooked: list[str] = field(default_factory=list)
    """The kinds of flips that ``on_flip`` must have been given."""


NEW = {op: f"{op}.py: new (reproduces)" for op in ("relu", "sin", "exp", "sum")}
GATE_IS_NEW = "gate.py: new (gone)"
HOOK = "--on-flip", "cat >> hooked.jsonl; echo >> hooked.jsonl"

SESSIONS = [
    Session("fixed_and_regressed", {"relu": BROKEN, "sin": BROKEN, "sum": WRONG}, [
        Step(starting(*HOOK), [NEW["relu"], NEW["sin"], NEW["sum"]]),
        Step(saving(relu=WORKS), [
            "flip FIXED: relu.py reproduces -> gone by backend/toy/relu.py", "relu.py: FIXED (gone)",
            "sin.py: still failing (reproduces)", "sum.py: still failing (reproduces)",
        ]),
        Step(saving(sin=BROKEN + "# nothing that matters\n"), [
            "relu.py: still gone (gone)", "sin.py: still failing (reproduces)", "sum.py: still failing (reproduces)",
        ]),
        Step(saving(relu=BROKEN, sum=WORKS), [
            "flip FIXED: sum.py reproduces -> gone by backend/toy/relu.py, backend/toy/sum.py",
            "flip REGRESSED: relu.py gone -> reproduces by backend/toy/relu.py, backend/toy/sum.py",
            "relu.py: REGRESSED (reproduces)", "sin.py: still failing (reproduces)", "sum.py: FIXED (gone)",
        ]),
    ], kinds={"sum": "accuracy"}, quick=True, hooked=["FIXED", "FIXED", "REGRESSED"]),
    Session("fails_otherwise", {"relu": BROKEN, "exp": BROKEN}, [
        Step(starting(), [NEW["exp"], NEW["relu"]]),
        Step(saving(relu=OTHERWISE), [
            "exp.py: still failing (reproduces)",
            "flip changed: relu.py reproduces -> changed by backend/toy/relu.py", "relu.py: changed (changed)",
        ]),
        Step(saving(relu=CRASHES), [
            "exp.py: still failing (reproduces)",
            "flip crashed: relu.py changed -> crashed by backend/toy/relu.py", "relu.py: crashed (crashed)",
        ]),
        Step(saving(relu=BROKEN), [
            "exp.py: still failing (reproduces)",
            "flip reproduces again: relu.py crashed -> reproduces by backend/toy/relu.py",
            "relu.py: reproduces again (reproduces)",
        ]),
    ]),
    Session("flaky", {"relu": BROKEN, "tan": WORKS}, [
        Step(starting(), [NEW["relu"], "tan.py: new (gone)"]),
        Step(saving(tan=EVERY_OTHER_RUN), [
            "flip flaky: tan.py gone -> flaky by backend/toy/tan.py", "relu.py: still failing (reproduces)",
            "tan.py: flaky (flaky)",
        ]),
        Step(saving(relu=BROKEN + "# once more\n"), ["relu.py: still failing (reproduces)", "tan.py: flaky (flaky)"]),
    ]),
    Session("a_save_in_the_midst", {"relu": BROKEN, "gate": WORKS}, [
        Step(starting(), [GATE_IS_NEW, NEW["relu"]]),
        Step(saving_in_the_midst, ["gate.py: still gone (gone)", "relu.py: still failing (reproduces)"]),
    ]),
    Session("a_broken_backend", {"relu": BROKEN, "sin": BROKEN, "gate": WORKS}, [
        Step(starting(), [GATE_IS_NEW, NEW["relu"], NEW["sin"]]),
        Step(saving(relu=NO_PYTHON), ["toy is broken"]),
        Step(saving(relu=WORKS), [
            "flip FIXED: relu.py reproduces -> gone by backend/toy/relu.py", "gate.py: still gone (gone)",
            "relu.py: FIXED (gone)", "sin.py: still failing (reproduces)", "toy works again",
        ]),
    ]),
    Session("repros_come_and_go", {"relu": BROKEN, "gate": WORKS}, [
        Step(starting(), [GATE_IS_NEW, NEW["relu"]]),
        Step(writing("second", script("relu")), ["added second.py", "second.py: new (reproduces)"]),
        Step(writing("second", script("gate")), ["edited second.py", "second.py: new (gone)"]),
        Step(writing("relu", "# /// script\n# broken = [\n# ///\n"), ["damaged relu.py", "relu.py: invalid"]),
        Step(removing("second"), ["removed second.py"]),
        Step(writing("relu", script("relu")), ["edited relu.py", "relu.py: still failing (reproduces)"]),
    ]),
    Session("killed", {"relu": BROKEN, "sin": BROKEN, "gate": WORKS}, [
        Step(starting(), [GATE_IS_NEW, NEW["relu"], NEW["sin"]]),
        Step(killing_in_the_midst, ["flip FIXED: relu.py reproduces -> gone"], flips_alone=True),
        Step(opening, ["flip REGRESSED: gate.py gone -> reproduces"], flips_alone=True),
        Step(saving(sin=BROKEN + "# nothing that matters\n"), [
            "gate.py: still failing (reproduces)", "relu.py: still gone (gone)", "sin.py: still failing (reproduces)",
        ]),
    ]),
    Session("once", {"relu": BROKEN, "gate": WORKS, "sin": OTHERWISE}, [
        Step(lambda desk: desk.once(status=1), [GATE_IS_NEW, NEW["relu"], "sin.py: new (changed)"]),
        Step(lambda desk: desk.once("minidbg_repros/gate.py", status=0), ["gate.py: still gone (gone)"]),
        Step(lambda desk: desk.once("minidbg_repros/relu.py", "--fail-on", "unexpected", status=0), [
            "relu.py: still failing (reproduces)",
        ]),
        Step(lambda desk: desk.once("--fail-on", "unexpected", status=1), [
            "gate.py: still gone (gone)", "relu.py: still failing (reproduces)", "sin.py: changed (changed)",
            "not as their headers expect: gate.py [cpu] is gone, sin.py [cpu] is changed",
        ]),
    ]),
]  # fmt: skip
