"""Compiled optimizer steps: Adam with a learning rate in a tensor, and SGD with momentum."""

import torch
from results import show

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizers = [
    torch.optim.Adam(model[0].parameters(), lr=torch.tensor(1e-2)),
    torch.optim.SGD(model[2].parameters(), lr=1e-1, momentum=0.9, nesterov=True),
]
schedulers = [torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=3) for optimizer in optimizers]


@torch.compile(fullgraph=False)
def step():
    for optimizer in optimizers:
        optimizer.step()


for _ in range(4):
    model(torch.randn(5, 6)).square().mean().backward()
    step()
    for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
        optimizer.zero_grad()
        scheduler.step()
states = [value for optimizer in optimizers for state in optimizer.state.values() for value in state.values()]
show(model=model, states=[value for value in states if isinstance(value, torch.Tensor)])
