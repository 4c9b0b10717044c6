"""Sparse gradients of an embedding, and SparseAdam."""

import torch
from results import show

torch.manual_seed(0)


class Bag(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 8, sparse=True)
        self.bag = torch.nn.EmbeddingBag(50, 8, mode="sum")
        self.out = torch.nn.Linear(8, 2)

    def forward(self, ids):
        return self.out(self.words(ids).mean(1) + self.bag(ids))


model = Bag()
compiled = torch.compile(model)
sparse = torch.optim.SparseAdam(model.words.parameters(), lr=1e-2)
dense = torch.optim.Adam([*model.bag.parameters(), *model.out.parameters()], lr=1e-2)
gradients = []
for _ in range(3):
    compiled(torch.randint(0, 50, (4, 6))).square().mean().backward()
    gradients.append(model.words.weight.grad.coalesce())
    for optimizer in (sparse, dense):
        optimizer.step()
        optimizer.zero_grad()
show(model=model, gradients=gradients)
