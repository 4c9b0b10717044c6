"""Whether this process can be forked, and the child be of use."""

from __future__ import annotations

import functools
import os
import sys

import torch

from minidbg import _torch
from minidbg.oracle.child import death_name, last_words
from minidbg.workers.fork import call_in_fork
from minidbg.workers.kernels import own_kernel_cache

TRIVIAL_QUESTION_S = 20.0
"""Generous: the machine may be busy. A child that hangs does so for ever."""


def fork_refusal() -> str | None:
    """Why this process cannot be forked safely, as a clause for people; None when it can.

    The trivial question costs a fork and a few small operators, once per process.
    """
    if sys.platform != "linux":
        return f"forking a process that runs torch is safe on Linux only, this is {sys.platform}"
    accelerator = _torch.accelerator_in_use()
    if accelerator is not None:
        return f"{accelerator} is initialised in this process and cannot be used in a fork of it"
    return answer_to_trivial_question(os.getpid())


@functools.cache
def answer_to_trivial_question(pid: int) -> str | None:
    """Ask a child for a small forward and backward: threads of the program may hold a lock that it needs."""
    try:
        answer = call_in_fork(trivial_question, seconds=TRIVIAL_QUESTION_S)
    except OSError as error:
        return f"no process can be made: {error}"
    if answer.answered:
        return None
    if answer.timed_out:
        return f"a forked child did not answer a trivial question in {TRIVIAL_QUESTION_S:.0f} s"
    death = death_name(-answer.signal if answer.signal is not None else answer.exit_status or 0)
    why = answer.error.strip().rpartition("\n")[2] or f"{death} {last_words(answer.stderr_tail)}"
    return f"a forked child failed at a trivial question: {why}"


def get_ready(*, inductor: bool) -> None:
    """Import and compile here what each forked child would have to. For a process of our own: torch is changed a little."""
    threads = torch.get_num_threads()
    with own_kernel_cache():
        try:
            _torch.one_thread_after_fork()
            _torch.warm_up_compiling(inductor=inductor)
        finally:
            torch.set_num_threads(threads)


def trivial_question() -> float:
    weight = torch.ones(65, 65, requires_grad=True)
    torch.autograd.backward((torch.ones(65, 65) @ weight).relu().sum())
    image = torch.nn.functional.conv2d(torch.ones(1, 1, 9, 9), torch.ones(1, 1, 3, 3))
    return float(image.sum())
