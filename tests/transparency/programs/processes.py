"""Other processes: workers of a DataLoader, forks, pools."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

Compile = Callable[..., Any]


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index)) + torch.rand(4)


def workers(compile: Compile) -> Any:
    """A DataLoader whose workers are alive while the model is compiled; they draw from the seed of the program."""
    torch.set_num_threads(1)
    own = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = compile(own)
    loader = DataLoader(Rows(), batch_size=2, num_workers=2, shuffle=True, persistent_workers=True)
    y = [compiled(batch).detach() for _ in range(2) for batch in loader]
    del loader
    return {"y": y}


def workers_compile(compile: Compile) -> Any:
    """The collate function of the workers is compiled itself."""
    torch.set_num_threads(1)
    compiled = compile(lambda x: x.relu() + 1)

    def collated(rows: list[torch.Tensor]) -> torch.Tensor:
        return compiled(torch.stack(rows))

    y = list(DataLoader(Rows(), batch_size=3, num_workers=1, collate_fn=collated))
    return {"y": y, "here": compiled(torch.ones(2, 4))}


def forked(compile: Compile) -> Any:
    """A fork after a compile goes on with what is compiled, and compiles more."""
    torch.set_num_threads(1)
    compiled = compile(lambda x: x.relu().cumsum(0))
    x = torch.randn(3)
    y = compiled(x)
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        status = 1
        try:
            print(
                "in the child",
                torch.equal(compiled(x), y),
                compile(lambda x: x.relu() * 3)(x).sum().item(),
                flush=True,
            )
            status = 0
        finally:
            os._exit(status)
    return {"y": y, "status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "again": compiled(x)}


def square(number: int) -> int:
    return number * number


def pools(compile: Compile) -> Any:
    """Pools of threads and processes that live through a compile, and a command that inherits the environment."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        before = pool.submit(square, 3).result()
        y = compile(lambda x: x.relu() + 1)(torch.randn(3))
        after = pool.submit(square, 4).result()
    code = "import os; print(sorted(name for name in os.environ if 'TORCH' in name or 'OMP' in name), os.listdir('/proc/self/fd'))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {"y": y, "pool": (before, after), "said": said.stdout}
