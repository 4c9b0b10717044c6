"""Oracle calls in child processes: one ``submit`` for a case, whatever way its child is made."""

from minidbg.asking.fork_safety import fork_refusal, get_ready, say_once
from minidbg.asking.oracle_calls import (
    asked_elsewhere,
    outcome_of,
    submit,
    unless_the_machine_failed,
    why_not_in_a_fork,
)
from minidbg.asking.packing import packed, portable, warmth

__all__ = [
    "asked_elsewhere",
    "fork_refusal",
    "get_ready",
    "outcome_of",
    "packed",
    "portable",
    "say_once",
    "submit",
    "unless_the_machine_failed",
    "warmth",
    "why_not_in_a_fork",
]
