"""Child processes that can be killed: what may crash, hang or fill the memory runs there."""

from minidbg.workers.fork import Notes, call_in_fork
from minidbg.workers.kernels import own_kernel_cache, remove_unfinished
from minidbg.workers.oracle_calls import submit, use_for_travel
from minidbg.workers.programs import Standby, run_python
from minidbg.workers.result import ChildResult
from minidbg.workers.safety import fork_refusal, get_ready
from minidbg.workers.spawned import call_in_spawned, end_worker

__all__ = [
    "Standby",
    "ChildResult",
    "Notes",
    "call_in_fork",
    "call_in_spawned",
    "end_worker",
    "fork_refusal",
    "get_ready",
    "own_kernel_cache",
    "remove_unfinished",
    "run_python",
    "submit",
    "use_for_travel",
]
