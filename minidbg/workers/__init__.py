"""Child processes that can be killed: what may crash, hang or fill the memory runs there. Nothing here imports torch."""

from minidbg.workers.child import Ended
from minidbg.workers.client import Request, StandbyPlan, Submit, Warmup
from minidbg.workers.fork import call_in_fork
from minidbg.workers.forkserver import (
    end_server,
    interrupt_questions,
    prepare,
    start_server,
    start_standby,
    stream_to_the_user,
    submit_to_server,
)
from minidbg.workers.interpreter import run_python, submit
from minidbg.workers.kernel_cache import own_kernel_cache, remove_unfinished, where_kernels_go
from minidbg.workers.standby import Standby

__all__ = [
    "Ended",
    "Warmup",
    "Request",
    "Submit",
    "prepare",
    "StandbyPlan",
    "Standby",
    "start_standby",
    "call_in_fork",
    "submit_to_server",
    "end_server",
    "interrupt_questions",
    "own_kernel_cache",
    "remove_unfinished",
    "run_python",
    "start_server",
    "submit",
    "stream_to_the_user",
    "where_kernels_go",
]
