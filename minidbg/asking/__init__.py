"""Questions about a case, each answered in a child: one ``submit``, whatever the case."""

from minidbg.asking.oracle_calls import (
    Submit,
    answers_in_forks,
    submit,
    unless_the_machine_failed,
)
from minidbg.asking.packing import ask, packed, pickled_for_children, preparation, read, save, unpacked

__all__ = [
    "Submit",
    "answers_in_forks",
    "ask",
    "packed",
    "pickled_for_children",
    "preparation",
    "read",
    "save",
    "submit",
    "unpacked",
    "unless_the_machine_failed",
]
