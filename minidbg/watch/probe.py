"""The devices: ``probe.py devices [--no-torch]``, a script in a worker: the daemon holds no torch.

It prints one line of JSON: ``{"devices": {name: {"name", "driver"}}, "torch", "machine"}``. With
``--no-torch`` only the processor is looked at.
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(argv: Sequence[str]) -> int:
    here = str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if path != here]
    devices, version = {"cpu": {"name": processor(), "driver": ""}}, ""
    if "--no-torch" not in argv:
        import torch

        version = torch.__version__
        devices |= accelerators(torch)
    machine = f"{platform.system()} {platform.machine()}"
    print(json.dumps({"devices": devices, "torch": version, "machine": machine}), flush=True)
    return 0


def accelerators(torch: Any) -> dict[str, dict[str, str]]:
    """Every device torch sees besides the processor, under all names it can be asked for by."""
    if not torch.accelerator.is_available():
        return {}
    kind = torch.accelerator.current_accelerator().type
    current = torch.accelerator.current_device_index()
    name_of = getattr(getattr(torch, kind, None), "get_device_name", lambda index: kind)
    found = {
        f"{kind}:{index}": {
            "name": str(name_of(index)),
            "driver": str(getattr(torch.version, kind, None) or ""),
        }
        for index in range(torch.accelerator.device_count())
    }
    return {kind: found[f"{kind}:{current}"], **found}


def processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
