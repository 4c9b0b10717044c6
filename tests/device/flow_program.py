"""``flow_program.py DEVICE FAULT``: a small training step with a backend of ``faulty``; the last line is what minidbg made of it, as JSON."""

import json
import sys

import faulty
import torch

import minidbg


def step(x, w, index):
    y = torch.nn.functional.layer_norm(torch.relu(x) @ w, (16,))
    y = torch.nn.functional.gelu(y[index])
    return torch.softmax(y * 2, 1).sum(0) + torch.cos(x.mean())


if __name__ == "__main__":
    device, fault = sys.argv[1:3]
    torch.manual_seed(0)
    x, w = torch.randn(8, 16, device=device), torch.randn(16, 16, device=device, requires_grad=True)
    index = torch.tensor([7, 0, 5, 5], device=device)
    compiled = torch.compile(step, backend=minidbg.wrap(getattr(faulty, fault), seconds=100))
    print("starting", flush=True)
    try:
        compiled(x, w, index).square().sum().backward()
        torch.get_device_module(device).synchronize()
        print(json.dumps({"report": None}))
    except Exception as error:  # noqa: BLE001 - whatever the backend or the device raises
        report = minidbg.report_of(error)
        said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        path = str(report.path) if report is not None and report.path else None
        print(json.dumps({"report": report and report.line, "path": path, "said": said}))
