"""Child processes that can be killed: what may crash, hang or fill the memory runs there. Nothing here imports torch."""

from minidbg.workers.child import Ended
from minidbg.workers.client import (
    Pool,
    Request,
    Scripts,
    Standby,
    StandbyPlan,
    Submit,
    Warmup,
    end_server,
    interrupt_questions,
    preload_for,
    start_server,
    stream_to_the_user,
    submit_to_server,
)
from minidbg.workers.fork import call_in_fork
from minidbg.workers.interpreter import run_python, submit
from minidbg.workers.kernel_cache import own_kernel_cache, remove_unfinished, where_kernels_go

__all__ = [
    "Ended",
    "Pool",
    "Request",
    "Scripts",
    "Standby",
    "StandbyPlan",
    "Submit",
    "Warmup",
    "call_in_fork",
    "end_server",
    "interrupt_questions",
    "own_kernel_cache",
    "preload_for",
    "remove_unfinished",
    "run_python",
    "start_server",
    "stream_to_the_user",
    "submit",
    "submit_to_server",
    "where_kernels_go",
]
