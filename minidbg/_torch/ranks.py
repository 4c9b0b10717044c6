"""Process groups of several ranks."""

from __future__ import annotations

from typing import Any

import torch

from minidbg._torch.private_names import seen


@seen("2.13", "2.14", otherwise=lambda name: None)
def ranks_of_group(name: str) -> list[int] | None:
    """The ranks of the process group called ``name``; None for the group of all ranks, and where no group has that name."""
    try:
        group: Any = torch.distributed.distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined,arg-type]  # private
    except (RuntimeError, ValueError):
        return None
    ranks = torch.distributed.get_process_group_ranks(group)
    return None if group == torch.distributed.group.WORLD else ranks
