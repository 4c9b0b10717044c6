"""accelerate: a model, an optimizer and a loader prepared with inductor as dynamo backend, mixed precision."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from results import show

set_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 16),
    torch.nn.GELU(),
    torch.nn.Dropout(0.2),
    torch.nn.LayerNorm(16),
    torch.nn.Linear(16, 3),
)
data = torch.utils.data.TensorDataset(torch.randn(24, 8), torch.randint(0, 3, (24,)))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
accelerator = Accelerator(
    cpu=True, mixed_precision="bf16", dynamo_backend="inductor", gradient_accumulation_steps=2
)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for _ in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
show(model=accelerator.unwrap_model(model), losses=losses)
