"""timm: mixup, drop path, label smoothing, an average of the weights, timm's own optimizer; then evaluation."""

import numpy
import timm
import torch
from results import show
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

torch.manual_seed(0)
numpy.random.seed(0)
model = timm.create_model(
    "convnext_atto",
    num_classes=5,
    depths=(1, 1, 1, 1),
    dims=(8, 8, 16, 16),
    drop_path_rate=0.2,
    drop_rate=0.1,
)
average = ModelEmaV3(model, decay=0.9)
compiled = torch.compile(model, backend="aot_eager")
optimizer = create_optimizer_v2(model, opt="lamb", lr=1e-2, weight_decay=0.05)
mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=5)
losses = []
for step in range(3):
    x, y = mixup(torch.randn(4, 3, 32, 32), torch.randint(0, 5, (4,)))
    loss = SoftTargetCrossEntropy()(compiled(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    average.update(model, step=step)
    losses.append(loss.detach())
compiled.eval()
with torch.no_grad():
    evaluated = compiled(torch.randn(4, 3, 32, 32))
show(model=model, average=average.module, losses=losses, evaluated=evaluated)
