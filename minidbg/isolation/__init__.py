"""Oracle calls in child processes: one ``submit`` for a case, whatever way its child is made."""

from minidbg.isolation.fork_safety import fork_refusal, get_ready, say_once
from minidbg.isolation.machine_failures import unless_the_machine_failed
from minidbg.isolation.oracle_calls import submit, why_not_in_a_fork
from minidbg.isolation.packing import packed, warmth

__all__ = [
    "fork_refusal",
    "get_ready",
    "packed",
    "say_once",
    "submit",
    "unless_the_machine_failed",
    "warmth",
    "why_not_in_a_fork",
]
