"""``speed_program.py DEVICE FAULT SHARE``: a chain of 300 nodes whose backend fails at one of them, after SHARE of the free memory was taken.

The answer is JSON: seconds from the fault to the report on the exception, the report, and the most memory of the device that others took
meanwhile, as a share of all. The stand-in's memory is counted for each process, so that its share is 0.
"""

import json
import sys
import threading
import time

import faulty
import torch

import minidbg
from minidbg.torch_internals.devices import free_bytes


def chain(x, w):
    for number in range(70):
        x = torch.nn.functional.layer_norm(
            torch.sin(x) @ w * 0.1 + x, (32,)
        )  # no chaos: an error stays what it is
        if number == 40:
            x = torch.nn.functional.gelu(x)
    return x


class Lowest(threading.Thread):
    """Looks at the device's free memory until it is stopped."""

    def __init__(self, device):
        super().__init__(daemon=True)
        self.device, self.found, self.stopped = torch.device(device, 0), [], threading.Event()

    def run(self):
        while not self.stopped.wait(0.05):
            self.found.append(free_bytes(self.device) or 0)


if __name__ == "__main__":
    device, fault, share = sys.argv[1], sys.argv[2], float(sys.argv[3])
    torch.manual_seed(0)
    x, w = torch.randn(16, 32, device=device), torch.randn(32, 32, device=device) / 6
    taken = torch.empty(
        int((free_bytes(torch.device(device, 0)) or 0) * share), dtype=torch.uint8, device=device
    )
    before = free_bytes(torch.device(device, 0))
    lowest = Lowest(device)
    lowest.start()
    compiled = torch.compile(chain, backend=minidbg.wrap(getattr(faulty, fault), seconds=100))
    try:
        compiled(x, w)
        print(json.dumps({"report": None, "path": None}))
    except Exception as error:  # noqa: BLE001 - whatever the backend raises
        seconds = time.monotonic() - faulty.MOMENTS[0]
        lowest.stopped.set()
        lowest.join()
        report = minidbg.report_of(error)
        total = getattr(torch.get_device_module(device).get_device_properties(0), "total_memory", None)
        share = (
            max(0, before - min(lowest.found or [before])) / total if total and before is not None else None
        )
        path = str(report.path) if report is not None and report.path else None
        print(
            json.dumps({"seconds": seconds, "report": report and report.line, "path": path, "share": share})
        )
