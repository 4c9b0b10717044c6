"""Process groups of several ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

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


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that a compiled function may run in: dynamo compiles in it as without it."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True
