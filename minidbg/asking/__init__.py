"""Questions about a case, each answered in a child: one ``submit``, whatever the case."""

from minidbg.asking.oracle_calls import Executor, outcome_of, submit, unless_the_machine_failed
from minidbg.asking.packing import ask, packed, preparation, read, save, unpacked

__all__ = [
    "Executor",
    "ask",
    "outcome_of",
    "packed",
    "preparation",
    "read",
    "save",
    "submit",
    "unpacked",
    "unless_the_machine_failed",
]
