"""Whether this process can be forked, and the child be of use."""

from __future__ import annotations

import functools
import logging
import os
import sys

import torch

from minidbg import torch_internals
from minidbg.judge.child import death_name, last_words
from minidbg.torch_internals import devices
from minidbg.workers import call_in_fork, own_kernel_cache

log = logging.getLogger("minidbg")
LOST: dict[int, str] = {}
"""By process: the accelerator that a fork of it has found that it cannot use."""
TRIVIAL_QUESTION_S = 20.0
"""Generous: the machine may be busy. A child that hangs does so for ever."""
NO_AUTOGRAD = "autograd has started threads for devices in this process, and no fork of it can run autograd"

torch_internals.forks_survive_autograd()  # at import: what it prevents cannot be undone once a program has run backward


def fork_refusal(*, autograd: bool = True) -> str | None:
    """Why this process cannot be forked safely, as a clause for people; None when it can.

    ``autograd``: whether the child will need it. The trivial question costs a fork and a few small operators, once per process.
    """
    if sys.platform != "linux":
        return f"forking a process that runs torch is safe on Linux only, this is {sys.platform}"
    accelerator = devices.in_use()
    if accelerator is not None:
        return f"{accelerator} is initialised in this process and cannot be used in a fork of it"
    refusal, without_autograd = answer_to_trivial_question(os.getpid())
    if os.getpid() in LOST:
        return f"{LOST[os.getpid()]} has been looked for in this process and cannot be used in a fork of it"
    if refusal is None and autograd and (without_autograd or torch_internals.autograd_has_threads()):
        return NO_AUTOGRAD
    return refusal


@functools.cache
def answer_to_trivial_question(pid: int) -> tuple[str | None, bool]:
    """Why no child answers a small question, and whether one that does has no autograd.

    Threads of the program may hold a lock that the child needs.
    """
    try:
        answer = call_in_fork(trivial_question, seconds=TRIVIAL_QUESTION_S)
    except OSError as error:
        return f"no process can be made: {error}", False
    if isinstance(answer.value, dict):
        if answer.value["lost"] is not None:
            LOST[pid] = str(answer.value["lost"])
        return None, not answer.value["autograd"]
    if answer.timed_out:
        return f"a forked child did not answer a trivial question in {TRIVIAL_QUESTION_S:.0f} s", False
    death = death_name(-answer.signal if answer.signal is not None else answer.exit_status or 0)
    why = answer.error.strip().rpartition("\n")[2] or f"{death} {last_words(answer.stderr_tail)}"
    return f"a forked child failed at a trivial question: {why}", False


def trivial_question() -> dict[str, bool | str | None]:
    """Whether autograd works here, after operators that use threads, and the accelerator that does not."""
    weight = torch.ones(65, 65, requires_grad=True)
    loss = (torch.ones(65, 65) @ weight).relu().sum()
    torch.nn.functional.conv2d(torch.ones(1, 1, 9, 9), torch.ones(1, 1, 3, 3)).sum().item()
    try:
        torch.autograd.backward(loss)
    except (
        RuntimeError
    ):  # "Unable to handle autograd's threading in combination with fork-based multiprocessing"
        return {"autograd": False, "lost": devices.lost_in_fork()}
    return {"autograd": True, "lost": devices.lost_in_fork()}


@functools.cache
def say_once(text: str) -> None:
    """Warn people of ``text``, once per process and text."""
    log.warning("minidbg: %s", text)


def get_ready(*, inductor: bool) -> None:
    """Import and compile here what each forked child would have to. For a process of our own: torch is changed a little."""
    threads = torch.get_num_threads()
    with own_kernel_cache():
        try:
            torch_internals.one_thread_after_fork()
            torch_internals.warm_up_compiling(inductor=inductor)
        finally:
            torch.set_num_threads(threads)
