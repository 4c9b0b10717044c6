import torch
import torch._dynamo as td
from torch._dynamo.backends.common import fake_tensor_unsupported


@td.register_backend(name="tensorrt_like")
@fake_tensor_unsupported
def tensorrt_like_backend(gm, sample_inputs, **kwargs):
    print("compiled by tensorrt_like", kwargs)
    return gm.forward


@td.register_backend(name="aot_tensorrt_like")
@fake_tensor_unsupported
def aot_tensorrt_like_backend(gm, sample_inputs, **kwargs):
    print("compiled by aot_tensorrt_like", kwargs)
    return gm.forward
