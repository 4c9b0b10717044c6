"""What minidbg raises when it was asked for something it cannot do.

What the wrapped backend raises is never one of these: it is re-raised as it came, with a note.
Each message says what happened, with the value, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any


class MinidbgError(Exception):
    """The root: a request that cannot be met."""

    advice: str = ""
    """What to do next, where the message does not say so itself, after a semicolon."""

    def in_two(self) -> tuple[str, str]:
        """What happened, and what to do: the two lines that the command line prints."""
        what, _, rest = str(self).partition("; ")
        return (what, rest or self.advice) if not self.advice or rest else (str(self), self.advice)


class TorchNameMissing(MinidbgError):
    """This torch does not have a private name that minidbg needs."""

    advice = "a newer minidbg may know this torch"

    def __init__(self, name: str, function: str, version: str) -> None:
        super().__init__(f"torch {version} has no {name}, which minidbg needs here ({function})")


class UnknownBackend(MinidbgError):
    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(
            f"no backend named {name!r}{nearest(name, names)}. "
            f"torch.compile knows: {', '.join(names)}; a backend that is registered by an import "
            "needs that import first: minidbg.wrap(..., setup='import PACKAGE'), "
            "or PACKAGE:NAME on a command line"
        )


class BackendUnreachable(MinidbgError):
    """No fresh process could get this backend back: nothing importable leads to it."""


class NothingLeadsThere(BackendUnreachable):
    """Neither an expression nor source gives this backend: the object itself is all there is."""


ONE_PROCESS = "can be opened by one process at a time"


class DeviceInUse(MinidbgError):
    """A child could not open ``device``: another process has it, which may be the asking one."""

    def __init__(self, device: str) -> None:
        self.device, self.kind = device, device.partition(":")[0]
        super().__init__(f"{self.kind} {ONE_PROCESS}, and another has it; try again after its end")


class CannotWrite(MinidbgError):
    """A part of the case has no form in a script; ``part`` names it."""

    def __init__(self, part: str, why: str) -> None:
        self.part, self.why = part, why
        super().__init__(f"{part} cannot be written into a repro script: {why}")


class UnreadableRepro(MinidbgError):
    advice = "give a script that minidbg wrote: 'minidbg list' names those of the repro folder"


class NotReproduced(MinidbgError):
    """The case ran without its failure: nothing to reduce; ``outcome`` says what it did."""

    def __init__(self, message: str, outcome: object = None) -> None:
        self.outcome = outcome
        super().__init__(message)


class AccuracyError(Exception):
    """A backend's results differ from eager's by more than rounding: its failure, nobody's request.

    ``where``: the value (``output 0``, ``gradient of input 2``), ``category``: the kind (``float``,
    ``nan``, ``dtype``, ...), ``figures`` has the numbers; ``minidbg.report_of`` gives the repro.
    """

    def __init__(self, message: str, difference: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.op = ""
        """Of the first node that differs, where it is known."""
        self.suspect_nodes: tuple[str, ...] = ()
        """The name of that node."""
        rest = dict(difference)
        self.signature: dict[str, Any] = rest.pop("signature")
        self.where: str = rest.pop("where")
        self.category: str = rest.pop("category")
        rest.pop("message", None)
        self.figures: dict[str, Any] = rest


class BadSetting(MinidbgError):
    """A setting is unknown, has a value that it cannot have, or has two."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, or nothing when no known name is near ``name``."""
    # plain texts: of the members of an enum, repr() would tell more than anybody can write
    matches = get_close_matches(name, [str(one) for one in known], n=2, cutoff=0.6)
    return "; did you mean " + " or ".join(map(repr, matches)) + "?" if matches else ""


class Interrupted(MinidbgError):
    """Ctrl-C ended a search; the message says what it had found, and how to go on."""


class Terminated(BaseException):
    """The signal ``number`` ends this process; what it unwinds lets go of what it holds."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
