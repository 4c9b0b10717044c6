"""A repro script as a command: finds a backend, asks the judge, prints the outcome as a JSON line.

``judge/command.py`` executes the script and comes here with what it defines.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from minidbg.core.outcome import Outcome, Verdict
from minidbg.core.run_spec import Level, RunSpec
from minidbg.core.text import abridged
from minidbg.judge.death import shown_in
from minidbg.judge.run import HANDED_BACK, Runnable, brief, judge, programs_of_one_op


@dataclass(frozen=True, slots=True)
class ExecutedScript:
    definitions: Mapping[str, Any]
    spec: RunSpec
    failed: Sequence[BaseException] = ()
    device: str | None = None
    """In place of the header's."""
    backend: str | None = None
    """In place of the script's ``backend``: a registered name or ``module:expression``."""

    def runnable(self) -> Runnable:
        compiler, device = self.compiler(), self.device
        make = self.definitions.get("graph") or self.definitions["Repro"]
        inputs = self.definitions["inputs"]
        return Runnable(
            lambda: make().to(device) if device is not None else make(),
            lambda: tuple(inputs(device or self.spec.device)),
            compiler,
            self.spec,
        )

    def compiler(self) -> Any:
        """Raises Unavailable, for the device too."""
        definitions, reference, failed = self.definitions, self.spec.backend, self.failed
        if failed and (self.backend is None or "inputs" not in definitions):
            cause = brief(failed[0])
            if isinstance(failed[0], ImportError):
                where = f"; put its folder on PYTHONPATH ({', '.join(reference.paths)}: not there)"
                where = where if reference.paths else ""
                raise Unavailable(f"the backend's modules are not all here: {cause}{where}")
            raise BackendCannotLoad(f"the backend cannot be loaded: {cause}")
        compiler = definitions.get("backend", reference.name)
        if self.backend is not None:
            from minidbg.backends import named  # no script needs it for its own backend

            sys.path += reference.paths
            try:
                compiler = named(self.backend)
            except Exception as error:  # noqa: BLE001 - a broken module, a factory that refuses
                raise Unavailable(f"no backend {self.backend!r} here: {brief(error)}") from None
        if compiler is ...:
            raise Unavailable(reference.unfilled)
        if isinstance(compiler, str) and compiler not in torch.compiler.list_backends(()):
            raise Unavailable(f"no backend named {compiler!r} is registered here")
        if self.spec.level is Level.ATEN and isinstance(compiler, str):
            raise Unavailable(
                f"a compiler for aot_autograd is needed (module:attribute), and {compiler!r} is a backend"
            )
        place = self.device or self.spec.device
        try:
            torch.empty(1, device=place)
        except Exception as error:  # noqa: BLE001 - a plugin's own error types, all mean: not here
            raise Unavailable(f"no device {place!r} here: {brief(error)}") from None
        return compiler


class Unavailable(Exception):
    """What the case needs is not here: a module, a device, the backend."""


class BackendCannotLoad(Unavailable):
    """The backend is here, and cannot be loaded."""


def judged_on_one_op(script: ExecutedScript) -> Outcome:
    """Whether its backend handles any op at all: the outcome on the first program of one op that is
    as in eager, else on the first of all.

    Of the script's settings only backend and level are used: the rest is about its failure.
    """
    spec = RunSpec(script.spec.backend, level=script.spec.level, dynamic=None)
    outcomes: list[Outcome] = []
    try:
        compiler = script.compiler()
    except Unavailable as missing:
        verdict = Verdict.INVALID if isinstance(missing, BackendCannotLoad) else Verdict.SKIPPED
        return Outcome(verdict, reason=str(missing))
    for program in programs_of_one_op(compiler, spec, script.device):
        outcomes.append(judge(program, any_failure=True))
        if outcomes[-1].verdict is Verdict.GONE:
            return outcomes[-1]
    first = outcomes[0]
    return replace(first, reason=abridged(first.message, 300) or first.reason)


def outcome_of_script(script: ExecutedScript, say: Callable[[str], object]) -> Outcome:
    """Judge the script in this process, which says in which phase it is where it may die of it.
    Another flaky failure gets the header's number of attempts."""
    dies = script.spec.expected.kind.traits.dies

    def once() -> Outcome:
        try:
            found = judge(script.runnable(), note=lambda phase: dies and say("phase " + phase))
            if found.verdict is Verdict.GONE and HANDED_BACK in found.reason:
                found = replace(found, verdict=Verdict.SKIPPED)
        except Unavailable as missing:
            found = Outcome(Verdict.SKIPPED, reason=str(missing))
        return replace(found, device=script.device or script.spec.device)

    return shown_in(1 if dies else script.spec.attempts, once)


def main(script: ExecutedScript, say: Callable[[str], object], *, one_op: bool = False) -> int:
    """Judge ``script``, or its backend, ``say`` the outcome; the exit status."""
    try:
        outcome = judged_on_one_op(script) if one_op else outcome_of_script(script, say)
    except Exception as error:  # noqa: BLE001 - Python would exit with 1, "reproduces"
        traceback.print_exc()
        outcome = Outcome(Verdict.INVALID, reason=f"the script itself failed: {brief(error)}")
    say(json.dumps(outcome.to_json(), default=str))
    return outcome.verdict.exit_status
