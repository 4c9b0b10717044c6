"""As IPEX: a plugin that registers a name of its own and has a global switch."""

from torch._dynamo import register_backend

_backend = "inductor"


@register_backend
def ipex(gm, example_inputs):
    print("compiled by ipex")
    return gm.forward
