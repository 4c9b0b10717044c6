"""Child processes that can be killed: what may crash, hang or fill the memory runs there. Nothing here imports torch."""

from minidbg.workers.child import Ended, kill_group
from minidbg.workers.fork import Notes, call_in_fork
from minidbg.workers.forkserver import (
    branch_off,
    call_in_server,
    end_server,
    interrupt_questions,
    prepare,
    start_server,
    start_standby,
    stream_to_the_user,
    take_standby,
)
from minidbg.workers.interpreter import run_python
from minidbg.workers.kernel_cache import own_kernel_cache, remove_unfinished, where_kernels_go
from minidbg.workers.one_question import submit
from minidbg.workers.request import Request, Submit, Warmup
from minidbg.workers.standby import Standby, StandbyPlan

__all__ = [
    "Ended",
    "Notes",
    "Warmup",
    "Request",
    "Submit",
    "prepare",
    "take_standby",
    "StandbyPlan",
    "Standby",
    "start_standby",
    "branch_off",
    "call_in_fork",
    "call_in_server",
    "end_server",
    "interrupt_questions",
    "kill_group",
    "own_kernel_cache",
    "remove_unfinished",
    "run_python",
    "start_server",
    "submit",
    "stream_to_the_user",
    "where_kernels_go",
]
