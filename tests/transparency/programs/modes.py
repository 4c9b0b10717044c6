"""Global switches and modes of torch that are on while something is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Compile = Callable[..., Any]


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - compared
        return error


def autocast(compile: Compile) -> Any:
    """Around, inside, left and entered again; the cache of casts is the program's."""
    own = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = compile(own)
    x = torch.randn(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        around = compiled(x)
        with torch.autocast("cpu", enabled=False):
            off = compiled(x)
        (around.float() + own(x)).sum().backward()

    def inside(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            return own(x).relu()

    return {"around": around, "off": off, "inside": compile(inside)(x), "gradient": own[0].weight.grad}


def deterministic(compile: Compile) -> Any:
    torch.use_deterministic_algorithms(True)
    x = torch.randn(4, requires_grad=True)
    y = compile(lambda x: x.relu().index_add(0, torch.tensor([0, 0]), x[:2]))(x)
    y.sum().backward()
    refused = attempt(lambda: compile(lambda x: torch.kthvalue(x.relu(), 2))(x.detach()))
    torch.use_deterministic_algorithms(True, warn_only=True)
    return {"x": x, "y": y, "refused": refused}


def default_dtype(compile: Compile) -> Any:
    torch.set_default_dtype(torch.float64)
    own = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    return {"y": compile(lambda x: own(x) + torch.ones(3) + 0.1)(torch.randn(2, 3))}


def default_device(compile: Compile) -> Any:
    torch.set_default_device("meta")
    empty = compile(lambda x: x.relu() + torch.ones(3))(torch.ones(3))
    torch.set_default_device("cpu")
    with torch.device("cpu"):
        y = compile(lambda x: x.relu() + torch.arange(3))(torch.ones(3))
    return {"shape": (empty.shape, str(empty.device)), "y": y}


def inference(compile: Compile) -> Any:
    own = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.BatchNorm1d(3))
    compiled = compile(own)
    x = torch.randn(2, 3)
    with torch.inference_mode():
        inside = compiled(x)
        made = torch.randn(2, 3)
        of_made = compiled(made)
    return {
        "inside": inside,
        "of made": of_made,
        "outside": compiled(x),
        "mixed": attempt(lambda: compiled(made)),
        "model": own,
    }


def grad_modes(compile: Compile) -> Any:
    compiled = compile(lambda x: x.relu() * 2)
    x = torch.randn(3, requires_grad=True)
    results = {"grad": compiled(x)}
    with torch.no_grad():
        results["no grad"] = compiled(x)
    torch.set_grad_enabled(False)
    results["off"] = compiled(x)
    torch.set_grad_enabled(True)
    return {**results, "decorated": torch.no_grad()(compiled)(x)}


class CountsCalls(TorchFunctionMode):
    """A mode of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class CountsOps(TorchDispatchMode):
    """A mode below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


def own_modes(compile: Compile) -> Any:
    """A mode sees the program's calls, and nobody else's."""
    x = torch.randn(3)
    compiled = compile(lambda x: x.relu() + 1)
    with CountsOps() as ops:
        below = compiled(x)
    warm = compile(lambda x: x.relu() - 1)
    warm(x)
    with CountsOps() as later:
        warm(x)
    with CountsCalls() as calls:
        y = attempt(lambda: compile(lambda x: x.relu() * 3)(x))
    return {
        "below": below,
        "ops": ops.ops,
        "later": later.ops,
        "y": y,
        "calls": [one for one in calls.calls if one == "relu"],
    }


def cuda_graphs(compile: Compile) -> Any:
    """Modes that are about CUDA graphs, on a CPU."""
    x = torch.randn(3, requires_grad=True)
    results = {mode: compile(lambda x: x.relu() + 1, mode=mode)(x) for mode in ("reduce-overhead", "default")}
    torch.compiler.cudagraph_mark_step_begin()
    results["reduce-overhead"].sum().backward()
    return {**results, "x": x}


def dropout(compile: Compile) -> Any:
    """Random numbers inside and around, forked, seeded, and from a generator of the program's own."""
    compiled = compile(lambda x: nn.functional.dropout(x.relu(), 0.5) + torch.rand(20))
    x = torch.ones(20)
    results = [compiled(x), torch.rand(2), compiled(x)]
    with torch.random.fork_rng():
        torch.manual_seed(5)
        results.append(compiled(x))
    own = torch.Generator().manual_seed(7)
    results += [torch.rand(2, generator=own), compiled(x), torch.rand(2, generator=own), torch.rand(2)]
    return {
        "results": results,
        "own": attempt(lambda: compile(lambda x: x.relu() + torch.rand(20, generator=own))(x)),
    }


def other_generators(compile: Compile) -> Any:
    """Python's and NumPy's numbers between compiled calls and in what is traced."""
    import random

    import numpy

    compiled = compile(lambda x: x.relu() * random.random() + random.randint(1, 9))
    x = torch.ones(3)
    return {
        "y": [compiled(x) for _ in range(3)],
        "python": repr(random.random()),
        "numpy": repr(numpy.random.rand()),
    }


def sizes(compile: Compile) -> Any:
    """Sizes that change, that are marked, unbacked ones, and integers as inputs."""
    work = lambda x, n: x.relu().reshape(-1, n) * x.shape[0]  # noqa: E731 - one code object for all
    compiled = compile(work)
    results = [compiled(torch.arange(float(size)), 2) for size in (4, 6, 8, 12)]
    results.append(compiled(torch.arange(12.0), 3))
    marked = torch.randn(5, 3)
    torch._dynamo.mark_dynamic(marked, 0, min=2, max=10)
    results.append(compile(lambda x: x.relu().sum(0) + x.shape[0])(marked))
    torch._dynamo.mark_static(marked, 1)
    results.append(compile(lambda x: x.relu() + x.size(1), dynamic=True)(marked))
    return {
        "results": results,
        "empty": compiled(torch.ones(0), 2),
        "few": compile(lambda x: x.relu().nonzero())(torch.ones(2)),
    }


def profiled_precision(compile: Compile) -> Any:
    torch.set_float32_matmul_precision("high")
    torch.backends.mkldnn.deterministic = True
    torch.set_printoptions(precision=2, sci_mode=True)
    own = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()).to(memory_format=torch.channels_last)
    y = compile(own)(torch.randn(1, 1, 5, 5))
    print(y.sum())
    return {"y": y}


def exported(compile: Compile) -> Any:
    """torch.export, make_fx and fake tensors beside compiled code."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    own = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.randn(2, 3)
    y = compile(own)(x)
    program = torch.export.export(own, (x,))
    with FakeTensorMode() as fake:
        faked = attempt(lambda: tuple(compile(lambda x: x.t())(fake.from_tensor(x)).shape))
    return {"y": y, "graph": str(program.graph), "made": make_fx(lambda x: x.relu())(x).code, "faked": faked}
