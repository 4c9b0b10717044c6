from torch._dynamo import register_backend


@register_backend(name="tt_like")
def tt_backend(gm, example_inputs, options=None):
    import torch_xla

    print("compiled by tt_like on", torch_xla.NAME, options)
    return gm.forward
