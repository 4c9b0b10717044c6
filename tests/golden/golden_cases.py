"""The cases whose scripts are kept as text: small, and together they use every part of a script."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from minidbg.core.outcome import Kind, Signature
from minidbg.core.run_spec import BackendRef, CallPath, Context, Provenance, RunSpec
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.repro import Exactness

RAISES_ON_RELU = """\
class ReluNotSupported(Exception):
    pass


def raises_on_relu(gm, example_inputs):
    for node in gm.graph.nodes:
        if "relu" in str(node.target):
            raise ReluNotSupported(f"cannot lower {node.name}")
    return gm.forward"""

FAILS_WHEN_CALLED = '''\
def fails_when_called(gm, example_inputs):
    def compiled_fn(*args):
        raise RuntimeError('kernel failed: """quoted""" and \\\\ back')

    return compiled_fn'''

ADDS_ONE = """\
def adds_one(gm, example_inputs):
    def compiled_fn(*args):
        return tuple(value + 1 for value in gm(*args))

    return compiled_fn"""


@dataclass(frozen=True)
class Golden:
    """A case and how its values are written."""

    case: Case
    exactness: Exactness = Exactness.SEEDED


def story(message: str, **more: object) -> Provenance:
    facts = {"nodes": 812, "inputs": 214, "captured_from": "train.py:41", "line": "y = torch.relu(x)"}
    told = {
        "reduced": True,
        "certified": True,
        "python_version": "3.11.7",
    }
    return Provenance(**{"torch_version": "2.13.0+cpu", "message": message, **facts, **told, **more})


def compile_relu() -> Golden:
    def f(x):
        return torch.relu(x)

    graph_module, inputs = capture_by_dynamo(f, (torch.zeros(4, 8),))
    traced_from(graph_module)
    signature = Signature(
        Kind.COMPILE,
        types=("<script>.ReluNotSupported",),
        frames=("<script>:raises_on_relu",),
        message="cannot lower relu",
    )
    backend = BackendRef("raises_on_relu", "raises_on_relu", embedded=RAISES_ON_RELU)
    told = story("ReluNotSupported: cannot lower relu")
    return Golden(
        Case(graph_module, inputs, RunSpec(backend, signature=signature, dynamic=False), provenance=told)
    )


def runtime_modes() -> Golden:
    """Modes, control flow, views of one storage, NaN, values that matter."""

    def f(x, y, mask):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ y
        z = torch.where(mask, z, 0.0)
        z[0] = 1
        return torch.cond(z.sum() > 0, lambda value: value.sin(), lambda value: value.cos(), (z,))

    base = torch.arange(16.0)
    base[5] = math.nan
    values = (base.view(4, 4), base.view(4, 4).t(), torch.ones(4, 4, dtype=torch.bool).tril())
    graph_module, inputs = capture_by_dynamo(f, values)
    traced_from(graph_module)
    signature = Signature(
        Kind.RUNTIME,
        types=("RuntimeError",),
        frames=("<script>:fails_when_called.compiled_fn",),
        message='kernel failed: """quoted""" and \\ back',
    )
    backend = BackendRef(
        "fails_when_called",
        "fails_when_called",
        setup=("import json",),
        embedded=FAILS_WHEN_CALLED,
        requirements=("my-backend==0.3",),
        remarks=("my_backend is an editable install of /src/my_backend at commit 1a2b3c",),
        modules=("my_backend",),
    )
    context = Context(
        grad=False,
        autocast=(("cpu", "torch.bfloat16", True),),
        deterministic=True,
        default_dtype="torch.float64",
        matmul_precision="high",
        config={"torch._inductor.config": {"max_autotune": True, "cpp.threads": 1}},
    )
    message = 'RuntimeError: kernel failed: """quoted""" and \\ back'
    return Golden(
        Case(
            graph_module,
            inputs,
            RunSpec(backend, context, signature, dynamic=False),
            provenance=story(message, certified=False),
        ),
        Exactness.EXACT,
    )


def accuracy_direct() -> Golden:
    """A graph with a weight, handed to the backend directly."""
    torch.manual_seed(0)
    root = torch.nn.Module()
    root.register_buffer("weight", torch.randn(16, 16) * 0.1)
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.mm, (x, graph.get_attr("weight"))),))
    signature = Signature(Kind.ACCURACY, message="output: float")
    backend = BackendRef("adds_one", "adds_one", embedded=ADDS_ONE)
    context = Context(grad=False, inference=True, default_device="cpu")
    case = Case(
        fx.GraphModule(root, graph),
        (torch.randn(20, 16, requires_grad=True),),
        RunSpec(backend, context, signature, call=CallPath.DIRECT, dynamic=False),
        provenance=story(
            "output 0 differs: max relative error 3.1e-2",
            notes=("fails only when the backend is called directly",),
        ),
    )
    return Golden(case)


def traced_from(graph_module: fx.GraphModule) -> fx.GraphModule:
    """The graph with all its lines from train.py:41, wherever this file has them."""
    for module in graph_module.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            if node.meta.get("stack_trace"):
                node.meta["stack_trace"] = '  File "train.py", line 41, in forward\n'
    return graph_module


GOLDEN: Mapping[str, Callable[[], Golden]] = {
    "compile_relu": compile_relu,
    "runtime_modes": runtime_modes,
    "accuracy_direct": accuracy_direct,
}
