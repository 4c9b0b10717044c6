"""DistributedDataParallel in two processes that talk by gloo."""

import os
import socket
import sys

import torch
from results import show
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = (
            torch.nn.Linear(8, 16),
            torch.nn.BatchNorm1d(16),
            torch.nn.Linear(16, 2),
        )

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


def train(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net()
    compiled = torch.compile(DistributedDataParallel(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(3):
        compiled(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        show(model=model)
        sys.stdout.flush()
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(train, (port,), nprocs=2)
