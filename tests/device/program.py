"""A program on an accelerator: ``program.py DEVICE [WHAT]``, compiled by the stand-in's backend; ACME_BUG says what is wrong with it."""

import contextlib
import sys

import torch

import minidbg


def plain(device):
    def function(x, w):
        return torch.nn.functional.gelu(torch.relu(x) @ w).sum(1) * 2

    return function, (torch.randn(4, 8, device=device), torch.randn(8, 4, device=device))


def mixed(device):
    """Inputs on two devices, a move and a constant inside the graph, autocast of the device's type."""
    kind = torch.device(device).type

    def function(x, w):
        scale = torch.full((4,), 2.0, device=device)
        with torch.autocast(kind, torch.bfloat16):
            y = torch.relu(x).to(device) @ w
        return torch.nn.functional.gelu(y.float()) * scale, x + 1

    return function, (torch.randn(4, 8), torch.randn(8, 4, device=device))


def draws(device):
    """Numbers of the device's generator and of the CPU's."""

    def function(x, w):
        noise = torch.rand(4)
        y = torch.nn.functional.dropout(torch.relu(w), 0.5)
        return torch.nn.functional.gelu(y).sum(1) * 2, x + noise

    return function, (torch.randn(4), torch.randn(8, 4, device=device))


def generators(device):
    return [torch.get_rng_state(), torch.get_device_module(device).get_rng_state(device)]


if __name__ == "__main__":
    device, what = (*sys.argv[1:], "plain")[:2]
    function, inputs = {"plain": plain, "mixed": mixed, "draws": draws}[what](device)
    states = generators(device)
    with contextlib.suppress(torch.OutOfMemoryError):
        function(*inputs)
    after_eager = generators(device)
    torch.set_rng_state(states[0])
    torch.get_device_module(device).set_rng_state(states[1], device)
    compiled = torch.compile(function, backend=minidbg.wrap("acme", env=["ACME_BUG", "ACME_ON"], seconds=120))
    try:
        print("result", compiled(*inputs))
        states = after_eager
    except (RuntimeError, AssertionError, minidbg.AccuracyError) as error:
        print("raised", type(error).__name__, error, *getattr(error, "__notes__", ()), sep="\n")
    with contextlib.suppress(RuntimeError):  # a device in error refuses to tell
        same = all(map(torch.equal, states, generators(device)))
        print("generators", "as they should be" if same else "changed")
    print(minidbg.stats())
