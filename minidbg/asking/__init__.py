"""Questions about a case, each answered in a child: one ``submit``, whatever the case."""

from minidbg.asking.live_backend import pickled_for_children
from minidbg.asking.oracle_calls import asked_elsewhere, outcome_of, submit, unless_the_machine_failed
from minidbg.asking.packing import ask, packed, preparation, with_all_values

__all__ = [
    "ask",
    "asked_elsewhere",
    "outcome_of",
    "packed",
    "pickled_for_children",
    "preparation",
    "submit",
    "unless_the_machine_failed",
    "with_all_values",
]
