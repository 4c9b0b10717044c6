"""flex_attention with a block mask and a bias, forward, and backward where the build has it."""

import torch
from results import show
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

torch.manual_seed(0)


def causal(batch, head, query, key):
    return query >= key


def bias(score, batch, head, query, key):
    return score + 0.1 * (query - key)


mask = create_block_mask(causal, None, None, 128, 128, device="cpu")
compiled = torch.compile(flex_attention)
with torch.no_grad():
    q, k, v = (torch.randn(1, 2, 128, 16) for _ in range(3))
    plain = compiled(q, k, v)
    masked = compiled(q, k, v, block_mask=mask)
    biased = compiled(q, k, v, score_mod=bias, block_mask=mask)
show(plain=plain, masked=masked, biased=biased)
