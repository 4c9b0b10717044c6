"""Child processes that can be killed: what may crash, hang or fill the memory runs there."""

from minidbg.workers.fork import Notes, call_in_fork
from minidbg.workers.kernels import own_kernel_cache, remove_unfinished
from minidbg.workers.oracle_calls import (
    hang_in_forks,
    may_use_autograd,
    submit,
    unless_the_machine_failed,
    use_for_travel,
)
from minidbg.workers.programs import Standby, run_python
from minidbg.workers.result import ChildResult
from minidbg.workers.safety import fork_refusal, get_ready, say_once
from minidbg.workers.zygote import call_in_zygote, end_zygote, start_zygote

__all__ = [
    "Standby",
    "ChildResult",
    "Notes",
    "call_in_fork",
    "call_in_zygote",
    "end_zygote",
    "fork_refusal",
    "get_ready",
    "hang_in_forks",
    "may_use_autograd",
    "own_kernel_cache",
    "remove_unfinished",
    "run_python",
    "say_once",
    "start_zygote",
    "submit",
    "unless_the_machine_failed",
    "use_for_travel",
]
