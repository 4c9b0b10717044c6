"""The devices of this machine, asked for in a child: the daemon holds no torch."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def devices_of_machine(argument: Mapping[str, Any], note: object) -> dict[str, Any]:
    """``{"devices": {name: {"name", "driver"}}, "torch", "machine"}``; only the processor where
    scripts need no torch, see ``preload_for``."""
    named, version = {"cpu": {"name": processor(), "driver": ""}}, ""
    if os.environ.get("MINIDBG__WATCH_PRELOAD") != "none":
        import torch

        version = torch.__version__
        named |= accelerators(torch)
    machine = f"{platform.system()} {platform.machine()}"
    return {"devices": named, "torch": version, "machine": machine}


def accelerators(torch: Any) -> dict[str, dict[str, str]]:
    """Every device torch sees besides the processor, under all names it can be asked for by."""
    if not torch.accelerator.is_available():
        return {}
    kind = torch.accelerator.current_accelerator().type
    current = torch.accelerator.current_device_index()
    name_of = getattr(getattr(torch, kind, None), "get_device_name", lambda index: kind)
    driver = str(getattr(torch.version, kind, None) or "")
    named = {
        f"{kind}:{index}": {"name": str(name_of(index)), "driver": driver}
        for index in range(torch.accelerator.device_count())
    }
    return {kind: named[f"{kind}:{current}"], **named}


def processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
