"""Questions about a case, each answered in a child: one ``ask_all``, whatever the cases."""

from minidbg.oracle.ask import ask, ask_all, forked_from, unless_the_machine_failed
from minidbg.oracle.parcel import packed, pickled_for_children, unpacked, warmup_for, with_backend

__all__ = [
    "ask",
    "ask_all",
    "forked_from",
    "packed",
    "pickled_for_children",
    "warmup_for",
    "unpacked",
    "unless_the_machine_failed",
    "with_backend",
]
