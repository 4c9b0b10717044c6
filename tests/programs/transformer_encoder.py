"""nn.TransformerEncoder: the fast path in evaluation, with a padding mask, and training."""

import warnings

import torch
from results import show

warnings.simplefilter("ignore")
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
encoder = torch.nn.TransformerEncoder(layer, 2)
compiled = torch.compile(encoder)
x = torch.randn(3, 6, 16)
padding = torch.zeros(3, 6, dtype=torch.bool)
padding[1:, 4:] = True
encoder.eval()
with torch.no_grad():
    plain = compiled(x)
    padded = compiled(x, src_key_padding_mask=padding)
encoder.train()
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
for _ in range(2):
    compiled(x, src_key_padding_mask=padding)[:, :4].square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
show(plain=plain, padded=padded, encoder=encoder)
