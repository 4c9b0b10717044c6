"""Names of functions, and whether a fresh process knows them."""

from __future__ import annotations

import math
import operator
import subprocess
import sys

import pytest
import torch

from minidbg.source.names import LOADED_WITH_TORCH, Reference, reference_to
from minidbg.words.errors import CannotWrite


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.relu, Reference("torch.relu")),
        (torch._C._nn.linear, Reference("torch.nn.functional.linear")),
        (torch.nn.functional.conv2d, Reference("torch.conv2d")),
        (torch.special.expit, Reference("torch.special.expit")),
        (torch._C._set_grad_enabled, Reference("torch._C._set_grad_enabled")),
        (torch.ops.higher_order.cond, Reference("torch.ops.higher_order.cond")),
        (torch.Tensor.add, Reference("torch.Tensor.add")),
        (torch.sym_max, Reference("torch.sym_max")),
        (operator.iadd, Reference("operator.iadd", "import operator")),
        (math.floor, Reference("math.floor", "import math")),
        (len, Reference("len")),
        (
            torch._functorch.predispatch._add_batch_dim,
            Reference("torch._functorch.predispatch._add_batch_dim", "import torch._functorch.predispatch"),
        ),
    ],
    ids=lambda value: value.text if isinstance(value, Reference) else "",
)
def test_the_public_name_is_found_by_identity(value: object, expected: Reference) -> None:
    assert reference_to(value) == expected


def test_what_is_not_reachable_is_refused() -> None:
    def local() -> None: ...

    local.__qualname__ = "reference_to"  # a name that leads elsewhere
    local.__module__ = "minidbg.source.names"
    for value in (local, lambda: None, torch.relu.__call__):
        with pytest.raises(CannotWrite):
            reference_to(value)


@pytest.mark.slow
def test_import_torch_alone_brings_the_modules_that_are_taken_for_granted() -> None:
    asked = f"import torch\nfor name in {sorted(LOADED_WITH_TORCH)}: eval(name)"
    subprocess.run([sys.executable, "-c", asked], check=True, timeout=120)
