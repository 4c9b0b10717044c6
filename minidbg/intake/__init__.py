"""What others wrote, as cases: programs of ``torch.export``, and the repros of torch's own minifier."""

from minidbg.intake.asking import (
    UsedBackend,
    backend_named,
    case_of,
    cases_of_exported,
    first_that_fails,
    read_exported,
)
from minidbg.intake.torch_repros import cases_of_torch_repro, is_torch_repro

__all__ = [
    "UsedBackend",
    "backend_named",
    "case_of",
    "cases_of_exported",
    "cases_of_torch_repro",
    "first_that_fails",
    "is_torch_repro",
    "read_exported",
]
