"""What a run may leave in its thread, put back: vmap, grad, modes, grad mode, autocast, dtype.

A graph holds the calls that open and close them. One that raises in between (in float64, in a mode
that changes its answers) leaves them open for whatever runs next, the user's program included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def preserving_thread_state() -> Iterator[None]:
    """A block after which torch's state of this thread is what it was: what the block opened is
    closed, what it set is set back."""
    with contextlib.ExitStack() as block:
        block.callback(thread_state())
        yield


def thread_state() -> Callable[[], None]:
    """Save torch's state of this thread; what puts it back, once."""
    states = [save() for save in SAVERS]
    for state in states:
        next(state)

    def put_back() -> None:
        for state in states:
            next(state, None)

    return put_back


# ---- each saves a part of it, and puts that back when it is resumed


def function_modes() -> Iterator[None]:
    """Modes above torch's functions; that of a default device goes below the others, so the stack
    is compared as a whole."""
    from torch.utils import _device

    stack: Any = torch.overrides
    before, device = stack._get_current_function_mode_stack(), _device.CURRENT_DEVICE
    yield
    now = stack._get_current_function_mode_stack()
    if list(map(id, now)) != list(map(id, before)):
        for _ in now:
            stack._pop_mode()
        for mode in before:
            stack._push_mode(mode)
    _device.CURRENT_DEVICE = device


def dispatch_modes() -> Iterator[None]:
    stack: Any = torch.utils._python_dispatch
    depth = len(stack._get_current_dispatch_mode_stack())
    yield
    while len(entered := stack._get_current_dispatch_mode_stack()) > depth:
        entered[-1].__exit__(None, None, None)


def functorch_levels() -> Iterator[None]:
    """Levels of vmap, grad, jvp and functionalize; one at a time: the function of 2.11 that takes
    away several takes two in each step."""
    functorch = torch._C._functorch
    depth = functorch.get_dynamic_layer_stack_depth()
    yield
    while functorch.get_dynamic_layer_stack_depth() > depth:
        kind = functorch.peek_interpreter_stack().key().name.lower()
        getattr(functorch, f"_{kind.removesuffix('tionalize')}_decrement_nesting")()


def dual_level() -> Iterator[None]:
    """The one level of forward-mode differentiation, which nobody can ask for: entering it fails
    where it is open."""

    def is_open() -> bool:
        try:
            torch._C._exit_dual_level(level=torch._C._enter_dual_level())
        except RuntimeError:
            return True
        return False

    was_open, number = is_open(), torch.autograd.forward_ad._current_level
    yield
    if not was_open and is_open():
        torch._C._exit_dual_level(level=0)
    torch.autograd.forward_ad._current_level = number


def autocast() -> Iterator[None]:
    """Autocast of each device that knows it, its cache, and how deep its blocks are nested: casts
    are kept until the outermost ends."""
    devices = [name for name in AUTOCAST_DEVICES if torch.amp.is_autocast_available(name)]
    before = [(name, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in devices]
    cached, depth = torch.is_autocast_cache_enabled(), nesting()
    yield
    for name, enabled, dtype in before:
        torch.set_autocast_enabled(name, enabled)
        torch.set_autocast_dtype(name, dtype)
    torch.set_autocast_cache_enabled(cached)
    while nesting() > depth:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


def nesting() -> int:
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def settings() -> Iterator[None]:
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    yield
    torch._C._set_grad_enabled(grad)
    torch.set_default_dtype(dtype)


AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "hpu", "mps", "mtia", "xla", "maia", "privateuseone")
SAVERS = (function_modes, dispatch_modes, functorch_levels, dual_level, autocast, settings)
"""In the order in which they are put back; what closes a level may set others."""


def autocast_dtypes() -> set[torch.dtype]:
    """What autocast computes in, on the kinds of device where it is on."""
    kinds = filter(torch.is_autocast_enabled, AUTOCAST_DEVICES)
    return {torch.get_autocast_dtype(kind) for kind in kinds}


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """A block with autocast off: a program runs its backward outside the block its call was in."""
    with contextlib.ExitStack() as stack:
        for name in AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(name):
                stack.enter_context(torch.autocast(name, enabled=False))
        yield
