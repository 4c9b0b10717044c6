"""A tutorial's backend of thirty lines, with a bug of each kind planted in it."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

aten = torch.ops.aten


def compiler(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is aten.cumsum.default and node.args[0].meta["val"].dtype is torch.bool:
            raise KeyError("no entry in the table for a cumsum of bool")
        if node.target is aten.hypot.default:
            node.target = aten.maximum.default
        if node.target is aten.trunc.default and node.args[0].meta["val"].dtype is torch.float16:
            os.abort()
        if node.target is aten.frac.default:
            time.sleep(10_000)
        if node.target is aten.erfinv.default:
            raise NotImplementedError("toy has no erfinv")
    gm.recompile()
    return make_boxed_func(gm.forward)


toy = aot_autograd(fw_compiler=compiler)
