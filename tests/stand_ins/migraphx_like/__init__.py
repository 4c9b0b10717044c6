"""As torch_migraphx: a function called at import registers a partial and an aot_autograd object; config is global."""

import functools

from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd
from torch._inductor import config


def _compile(gm, example_inputs, use_aot=False, **kwargs):
    print("compiled by migraphx_like", use_aot)
    return gm.forward


def _register():
    register_backend(functools.partial(_compile, use_aot=False), name="migraphx_like")
    register_backend(
        aot_autograd(fw_compiler=functools.partial(_compile, use_aot=True)), name="migraphx_like_aot"
    )


_register()
