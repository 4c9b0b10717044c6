"""A question on a worker of a cluster, run as a plain script: ``entry.py CASE TO_THE_END`` prints each phase, then the outcome as JSON.

CASE is the table of a parcel; its storages lie beside it, in a file of safetensors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from minidbg.asking.execute import execute
from minidbg.asking.packing import with_backend
from minidbg.fx.case import Case


def case_in(path: Path) -> Case:
    """The case of the parcel at ``path``, with its backend."""
    storages = load_file(path.with_suffix(".safetensors"))

    def stored(key: str, dtype: torch.dtype, device: str = "cpu") -> Tensor:
        return storages[key].view(dtype).to(device)

    return with_backend(json.loads(path.read_text(encoding="utf-8")), stored)


if __name__ == "__main__":
    outcome = execute(
        case_in(Path(sys.argv[1])),
        note=lambda phase: print("phase", phase, flush=True),
        to_the_end=json.loads(sys.argv[2]),
    )
    print(json.dumps(outcome.to_json()), flush=True)
