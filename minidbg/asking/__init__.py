"""Questions about a case, each answered in a child: one ``ask``, whatever the case."""

from minidbg.asking.oracle_calls import answers_in_forks, ask, unless_the_machine_failed
from minidbg.asking.packing import packed, pickled_for_children, preparation, read, save, unpacked

__all__ = [
    "answers_in_forks",
    "ask",
    "packed",
    "pickled_for_children",
    "preparation",
    "read",
    "save",
    "unpacked",
    "unless_the_machine_failed",
]
