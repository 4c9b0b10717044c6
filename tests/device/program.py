"""A program on an accelerator: ``program.py DEVICE [WHAT]``, compiled by the stand-in's backend; ACME_BUG says what is wrong with it."""

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


if __name__ == "__main__":
    device, what = (*sys.argv[1:], "plain")[:2]
    function, inputs = {"plain": plain, "mixed": mixed}[what](device)
    states = [torch.get_rng_state(), torch.get_device_module(device).get_rng_state(device)]
    compiled = torch.compile(function, backend=minidbg.wrap("acme", env=["ACME_BUG", "ACME_ON"], seconds=120))
    try:
        print("result", compiled(*inputs))
    except (RuntimeError, AssertionError, minidbg.AccuracyError) as error:
        print("raised", type(error).__name__, error, *getattr(error, "__notes__", ()), sep="\n")
    after = [torch.get_rng_state(), torch.get_device_module(device).get_rng_state(device)]
    print("generators", "as before" if all(map(torch.equal, states, after)) else "changed")
    print(minidbg.stats())
