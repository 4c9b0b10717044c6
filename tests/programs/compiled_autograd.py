"""Compiled autograd: the whole backward in one graph, with hooks and accumulation."""

import torch
from results import show

torch.manual_seed(0)
torch._dynamo.config.compiled_autograd = True
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
seen = []
model[0].weight.register_hook(lambda gradient: gradient * 2)


@torch.compile
def train(x):
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()


losses = [train(torch.randn(5, 6)) for _ in range(3)]
show(losses=losses, gradients=[one.grad for one in model.parameters()])
