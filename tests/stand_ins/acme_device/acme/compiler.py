"""Backends for the device, with the bugs that the variable ACME_BUG names; they run the graph in eager otherwise."""

import os

import torch

KIND = os.environ.get("ACME_ON", "acme")


def acme(gm, example_inputs):
    """``torch.compile(backend="acme")``: ``ACME_BUG=wrong:gelu`` and the like, only where gelu runs on the device (ACME_ON: acme).

    raises (at compile time), wrong, crash, memory (out of it), late (an error that the next synchronize raises), broken (an
    error after which the device fails every call).
    """
    bug, _, op = os.environ.get("ACME_BUG", "").partition(":")
    bad = [node for node in gm.graph.nodes if node.op.startswith("call") and name_of(node) == op]

    def on_acme(args):
        return next(
            (one.device.index for one in args if torch.is_tensor(one) and one.device.type == KIND), None
        )

    if bad and bug == "raises" and on_acme(example_inputs) is not None:
        raise NotImplementedError(f"acme has no kernel for {op}")

    def run(*args):
        index = on_acme(args) if bad else None
        if index is None or bug == "raises":
            return gm(*args)
        if bug == "crash":
            os.abort()
        if bug == "memory":
            return (torch.empty(1 << 50, device=f"{KIND}:{index}"),)
        result = gm(*args)
        if bug == "wrong":
            return tuple(
                one + 1 if torch.is_tensor(one) and one.is_floating_point() else one for one in result
            )
        if bug == "late":
            torch.ops.acme_runtime.fail_later(index, f"acme error 719: {op} kernel failed")
        if bug == "broken":
            torch.ops.acme_runtime.break_device(index)
            torch.ops.acme_runtime.synchronize(index)
        return result

    return run


def name_of(node):
    return str(getattr(node.target, "__name__", node.target)).rpartition(".")[2]
