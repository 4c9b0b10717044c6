"""Killable child processes for what may crash, hang or fill memory. Nothing here imports torch."""

from minidbg.workers.child import Ended as Ended
from minidbg.workers.child import run_python as run_python
from minidbg.workers.client import Ahead as Ahead
from minidbg.workers.client import Pool as Pool
from minidbg.workers.client import Request as Request
from minidbg.workers.client import Scripts as Scripts
from minidbg.workers.client import Standby as Standby
from minidbg.workers.client import Submit as Submit
from minidbg.workers.client import Warmup as Warmup
from minidbg.workers.client import end_server as end_server
from minidbg.workers.client import preload_for as preload_for
from minidbg.workers.client import prepared as prepared
from minidbg.workers.client import start_server as start_server
from minidbg.workers.client import stream_to_the_user as stream_to_the_user
from minidbg.workers.client import submit as submit
from minidbg.workers.kernel_cache import own_kernel_cache as own_kernel_cache
from minidbg.workers.kernel_cache import remove_unfinished as remove_unfinished
from minidbg.workers.kernel_cache import where_kernels_go as where_kernels_go
