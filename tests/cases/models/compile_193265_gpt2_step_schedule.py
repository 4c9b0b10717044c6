"""GPT2LMHeadModel (random, 6 layers) with a depth schedule built from a 0-dim cumsum in block 3. Source: pytorch/pytorch#193265."""

import torch
import torch.nn as nn

KIND = "compile"
BACKEND = "inductor"
FAILS = ("2.13", "2.14")


class Scheduled(nn.Module):
    def __init__(self, inner, depth):
        super().__init__()
        self.inner, self.depth = inner, depth

    def forward(self, x):
        t = torch.full((), float(self.depth)).cumsum(0)
        return self.inner(x) * torch.rsqrt(1 + t)


def make():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    m = GPT2LMHeadModel(
        GPT2Config(vocab_size=200, n_positions=32, n_embd=64, n_layer=6, n_head=4, use_cache=False)
    ).eval()
    m.transformer.h[3].mlp = Scheduled(m.transformer.h[3].mlp, 3)
    return m, (torch.randint(0, 200, (2, 10)),)
