"""Programs of several ranks, as people write them: ``torchrun --nproc-per-node 2 ranks_program.py SITUATION [BACKEND]``.

In each a small model ends in a ``gelu``, which the planted backend refuses; what the ranks do with each other is elsewhere in it.
Large values are in the last rank's data alone.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "planted"))

import fails_on
import wrong_results

import minidbg


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.out = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.last(torch.relu(self.first(x))))
        return nn.functional.gelu(self.out(hidden)) + 1


def rows() -> torch.Tensor:
    """Data of all ranks, the last rank's rows last; as a rank's own they are large on the last one."""
    values = torch.randn(8, 4)
    values[-1] = 100
    return values


def own_rows() -> torch.Tensor:
    is_last = distributed.get_rank() == distributed.get_world_size() - 1
    return rows() if is_last else torch.randn(8, 4)


def ddp(compiled: Callable) -> None:
    model = nn.parallel.DistributedDataParallel(Net())
    compiled(model)(torch.randn(4, 8)).sum().backward()


def ddp_inside(compiled: Callable) -> None:
    model = nn.parallel.DistributedDataParallel(compiled(Net()))
    model(torch.randn(4, 8)).sum().backward()


def fsdp(compiled: Callable) -> None:
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    model = Net()
    for layer in (model.first, model.last):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    compiled(model)(torch.randn(4, 8)).sum().backward()


def tensor_parallel(compiled: Callable) -> None:
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    plan = {"first": ColwiseParallel(), "last": RowwiseParallel()}
    model = parallelize_module(Net(), mesh, plan)
    compiled(model)(torch.randn(4, 8)).sum().backward()


def tensor_parallel_all(compiled: Callable) -> None:
    """All parameters are DTensors, and so is what gelu gets."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    plan = {
        "first": ColwiseParallel(),
        "last": RowwiseParallel(),
        "out": ColwiseParallel(use_local_output=False),
    }
    model = parallelize_module(Net(), mesh, plan)
    compiled(model)(torch.randn(4, 8)).to_local().sum().backward()


def dtensor_in(compiled: Callable) -> None:
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))

    def function(x: DTensor, y: torch.Tensor) -> torch.Tensor:
        return x.relu().redistribute(placements=[Replicate()]).to_local() + nn.functional.gelu(y)

    compiled(function)(distribute_tensor(rows(), mesh, [Shard(0)]), own_rows())


def dtensor_gelu(compiled: Callable) -> None:
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))

    def function(x: DTensor) -> DTensor:
        return nn.functional.gelu(x.relu() * 2)

    compiled(function)(distribute_tensor(rows(), mesh, [Shard(0)]))


def dtensor_out(compiled: Callable) -> None:
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))

    def function(x: torch.Tensor) -> DTensor:
        return DTensor.from_local(nn.functional.gelu(x.relu()), mesh, [Shard(0)], run_check=False) * 2

    compiled(function)(own_rows())


def functional_collectives(compiled: Callable) -> None:
    group = distributed.group.WORLD

    def function(x: torch.Tensor) -> torch.Tensor:
        everything = collectives.all_gather_tensor(x.relu(), gather_dim=0, group=group)
        summed = collectives.all_reduce(everything * 2, "sum", group)
        return nn.functional.gelu(summed) + 1

    compiled(function)(own_rows())


def compiled_autograd(compiled: Callable) -> None:
    torch._dynamo.config.compiled_autograd = True
    model = nn.parallel.DistributedDataParallel(Net())

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    compiled(Step())(torch.randn(4, 8)).sum().backward()


SITUATIONS = {
    function.__name__: function
    for function in (
        ddp, ddp_inside, fsdp, tensor_parallel, tensor_parallel_all, dtensor_in, dtensor_gelu, dtensor_out,
        functional_collectives, compiled_autograd,
    )
}  # fmt: skip
# the dynamo of torch 2.11 puts closures of its own into such graphs: told, and not captured
if torch.__version__ < (2, 12):
    for name in ("tensor_parallel", "tensor_parallel_all", "dtensor_in", "dtensor_out"):
        del SITUATIONS[name]


def on_last_rank(graph: Any, example_inputs: Any, *, how: str) -> Callable:
    """A compiled function that dies of large values, which the last rank has; or a compiler that raises or never comes back there."""
    is_last = distributed.get_rank() == distributed.get_world_size() - 1
    if how == "hangs" and is_last:
        time.sleep(600)
    if how == "raises" and is_last and any(fails_on.name_of(node) == "gelu" for node in graph.graph.nodes):
        raise fails_on.NotSupported("cannot lower gelu on the last rank")

    def run(*args: Any) -> Any:
        if how == "dies" and any(bool((one > 50).any()) for one in args):
            os.kill(os.getpid(), signal.SIGSEGV)
        return graph(*args)

    return run


BACKENDS: dict[str, Callable[[str], Any]] = {
    "compile": fails_on.raises_on,
    "run": lambda op: fails_on.raises_on(op, when="run"),
    "wrong": lambda op: functools.partial(wrong_results.wrong_for_large, op=op),
    "on_last_rank": lambda how: functools.partial(on_last_rank, how=how),
    "healthy": lambda name: name,
}
"""By what is wrong with them: made for an op, the healthy by name."""


def main(situations: str, op: str = "gelu", bug: str = "compile", **how: Any) -> None:
    """Run the situations, separated by commas, with a backend that has ``bug`` in ``op``."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    backend = minidbg.wrap(BACKENDS[bug](op), on_failure="fallback", **how)
    for situation in situations.split(","):
        torch.manual_seed(0)
        torch._dynamo.reset()
        torch._dynamo.config.compiled_autograd = False
        SITUATIONS[situation](lambda what: torch.compile(what, backend=backend))
        distributed.barrier()
    print(f"[{distributed.get_rank()}] {minidbg.stats()}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
