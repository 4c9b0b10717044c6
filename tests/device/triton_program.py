"""``triton_program.py DEVICE FAULT now|later``: a graph that launches a tuned kernel, with a backend that fails at it; the answer is JSON."""

import importlib
import json
import sys

import faulty
import torch
import triton
import triton.language as tl

import minidbg

FACTOR = tl.constexpr(3)
SHIFT = tl.constexpr(1)


@triton.jit
def scaled(value):
    return value * FACTOR + SHIFT


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=8)], key=["size"]
)
@triton.jit
def tuned(x_ptr, y_ptr, size, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + place, scaled(tl.load(x_ptr + place, mask=place < size)), mask=place < size)


def program(x):
    x = torch.nn.functional.gelu(x) * 2
    y = torch.empty_like(x)
    tuned[(triton.cdiv(x.numel(), 64),)](x, y, x.numel())
    return torch.softmax(y, 0) + 1


if __name__ == "__main__":
    device, fault, reduce = sys.argv[1:4]
    if device == "cpu":  # dynamo takes kernels only where a device is that can run them
        importlib.import_module("torch.utils._triton").has_triton = lambda **_: True
    compiled = torch.compile(
        program, backend=minidbg.wrap(getattr(faulty, fault), reduce=reduce, seconds=100)
    )
    try:
        compiled(torch.randn(300, device=device))
        print(json.dumps({"report": None}))
    except Exception as error:  # noqa: BLE001 - whatever the backend raises
        report = minidbg.report_of(error)
        where = {
            name: str(value) if (value := getattr(report, name, None)) else None
            for name in ("path", "capture")
        }
        print(
            json.dumps(
                {"report": report and report.line, "said": f"{type(error).__name__}: {error}"[:300], **where}
            )
        )
