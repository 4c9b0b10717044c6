"""A transformer of twelve blocks, one with a position bias, and a backend that cannot take it.

``minidbg demo`` runs this file as a user's own program.
"""

import operator

import torch
from torch import nn

import minidbg


def tiny_fuser(gm, example_inputs):
    """Fuse ``add`` into the ``softmax`` after it. Bug: it forgets that an addend may broadcast."""
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is not torch.softmax:
            continue
        scores = node.args[0]
        if scores.op == "call_function" and scores.target is operator.add:
            left, right = (operand.meta["example_value"].shape for operand in scores.args)
            if left != right:
                raise NotImplementedError(
                    f"tiny_fuser: cannot fuse add{tuple(left), tuple(right)} into {node.name}"
                )
    return torch.fx.Interpreter(gm).run


class Block(nn.Module):
    def __init__(self, width, heads, position_bias):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.bias = nn.Parameter(torch.randn(heads, 16, 16)) if position_bias else None

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        if self.bias is not None:
            scores = scores + self.bias
        mixed = torch.softmax(scores, dim=-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.after(x))))


def main():
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(64, 4, position_bias=i == 7) for i in range(12))).eval()
    model = torch.compile(model, backend=minidbg.wrap(tiny_fuser))
    with torch.no_grad():
        model(torch.randn(2, 16, 64))


if __name__ == "__main__":
    main()
