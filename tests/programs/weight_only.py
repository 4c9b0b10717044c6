"""torchao: weights in int8, and in int8 with int8 activations, under torch.compile."""

import torch
from results import show
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

torch.manual_seed(0)
found = {}
for config in (Int8WeightOnlyConfig(), Int8DynamicActivationInt8WeightConfig()):
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)).eval()
    quantize_(model, config)
    compiled = torch.compile(model)
    with torch.no_grad():
        found[type(config).__name__] = [compiled(torch.randn(4, 32)) for _ in range(2)]
show(**found)
