"""bfloat16 autocast with a gradient scaler, and gradient checkpointing."""

import torch
from results import show
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.SiLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 16)
        )

    def forward(self, x):
        return x + checkpoint(self.layers, x, use_reentrant=False)


model = torch.nn.Sequential(Block(), torch.nn.LayerNorm(16), Block(), torch.nn.Linear(16, 1))
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
losses = []
for _ in range(3):
    x = torch.randn(8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        loss = torch.nn.functional.mse_loss(compiled(x).float(), x.sum(1, keepdim=True))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    losses.append(loss.detach())
show(model=model, losses=losses, scale=scaler.get_scale())
