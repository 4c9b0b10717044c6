"""Run as a plain script: what devices are here? Prints one line of JSON: ``{"devices": {name: {...}}, "torch", "python"}``.

With ``--no-torch`` only the processor is looked at.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any


def main(argv: list[str]) -> int:
    """Print the devices."""
    devices, version = {"cpu": {"name": processor(), "driver": ""}}, ""
    if "--no-torch" not in argv:
        import torch

        version = torch.__version__
        devices |= accelerators(torch)
    about = {"devices": devices, "torch": version, "python": platform.python_version()}
    print(
        json.dumps(
            {**about, "machine": f"{platform.system()} {platform.machine()}", "host": platform.node()}
        ),
        flush=True,
    )
    return 0


def accelerators(torch: Any) -> dict[str, dict[str, str]]:
    """Every device that torch sees besides the processor, under all names it can be asked for by."""
    if not torch.accelerator.is_available():
        return {}
    kind = torch.accelerator.current_accelerator().type
    found = {
        f"{kind}:{index}": about(torch, kind, index) for index in range(torch.accelerator.device_count())
    }
    return {kind: found[f"{kind}:{torch.accelerator.current_device_index()}"], **found}


def about(torch: Any, kind: str, index: int) -> dict[str, str]:
    """A device's own name and its driver, as far as torch or the system tells."""
    module = getattr(torch, kind, None)
    name = getattr(module, "get_device_name", lambda index: kind)(index)
    return {"name": str(name), "driver": driver(torch, kind)}


def driver(torch: Any, kind: str) -> str:
    """The version of the kernel driver and of the runtime that torch was built for."""
    runtime = str(getattr(torch.version, kind, None) or "")
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split() if kind == "cuda" else []
    except OSError:
        words = []
    kernel = next((word for word in words if word[:1].isdigit() and "." in word), "")
    return " ".join(part for part in (kernel, f"{kind} {runtime}" if runtime else "") if part)


def processor() -> str:
    """The processor's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
