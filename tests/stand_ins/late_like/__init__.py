"""Registers its names only when asked to, and computes one of them: no import alone brings them back."""

from torch._dynamo import register_backend


def late(gm, example_inputs):
    print("compiled by late_like")
    return gm.forward


def activate():
    register_backend(late, name="late_like")


for _kind in ("computed",):
    register_backend(
        lambda gm, example_inputs: (print("compiled by", _kind), gm.forward)[1], name=f"{_kind}_like"
    )
