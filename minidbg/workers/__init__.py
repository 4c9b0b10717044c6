"""Child processes that can be killed: what may crash, hang or fill the memory runs there. Nothing here imports torch."""

from minidbg.workers.ahead import Ahead, InterpreterAhead
from minidbg.workers.child import ChildResult, kill_group
from minidbg.workers.fork import Notes, call_in_fork
from minidbg.workers.forkserver import (
    Preparation,
    branch_off,
    call_in_server,
    end_server,
    interrupt_questions,
    prepare,
    run_script_in_server,
    start_ahead,
    start_server,
    stream_to_the_user,
    taken_ahead,
)
from minidbg.workers.interpreter import RunPython, run_python
from minidbg.workers.kernel_cache import own_kernel_cache, remove_unfinished, where_kernels_go
from minidbg.workers.memory import memory_limit
from minidbg.workers.one_question import call_in_interpreter
from minidbg.workers.pool import Preload

__all__ = [
    "ChildResult",
    "Notes",
    "Preload",
    "Preparation",
    "prepare",
    "taken_ahead",
    "Ahead",
    "RunPython",
    "InterpreterAhead",
    "run_script_in_server",
    "start_ahead",
    "branch_off",
    "call_in_fork",
    "call_in_interpreter",
    "call_in_server",
    "end_server",
    "interrupt_questions",
    "kill_group",
    "memory_limit",
    "own_kernel_cache",
    "remove_unfinished",
    "run_python",
    "start_server",
    "stream_to_the_user",
    "where_kernels_go",
]
