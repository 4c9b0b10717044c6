"""As torchair: a factory that takes a config object and gives a closure; needs a device plugin."""

import torch_npu


class CompilerConfig:
    pass


def get_npu_backend(*, compiler_config=None):
    def backend(gm, example_inputs):
        print("compiled by torchair_like on", torch_npu.NAME, compiler_config)
        return gm.forward

    return backend
