"""What a run leaves behind has a label for each leaf, by which two runs are held against each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.masked import masked_tensor

from minidbg.judge.leaves import collect_leaves

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning"),
]


X = torch.arange(3.0)


@pytest.mark.parametrize(
    ("outputs", "labels"),
    [
        (X, ["output 0"]),
        ((X, X), ["output 0", "output 1"]),
        ([(X, [X])], ["output 0[0]", "output 0[1][0]"]),
        ({"a": X, "b": (X,)}, ["output a", "output b[0]"]),
        (({1: X},), ["output 0[1]"]),
        ((torch.Size([2, 3]),), ["output 0"]),
        (lambda: masked_tensor(X, X > 0), ["output 0.mask", "output 0.data"]),
        (lambda: torch.eye(2).to_sparse(), ["output 0.layout", "output 0"]),
        (lambda: torch.eye(2).to_sparse_csr(), ["output 0.layout", "output 0"]),
        ((), []),
    ],
    ids=["one", "two", "nested", "dict", "a number as key", "a size", "masked", "coo", "csr", "none"],
)  # fmt: skip
def test_each_leaf_has_the_label_by_which_people_find_it(outputs: Any, labels: list[str]) -> None:
    found = collect_leaves(outputs() if callable(outputs) else outputs)  # some are made with a warning
    assert list(found) == labels
    assert {leaf.role for leaf in found.values()} <= {"output"}


def test_inputs_and_gradients_are_called_by_their_number_or_name() -> None:
    by_number = collect_leaves((), inputs_after=[X], gradients=[None, X])
    assert {label: leaf.role for label, leaf in by_number.items()} == {
        "input 0 after the call": "input",
        "gradient of input 0": "gradient",
        "gradient of input 1": "gradient",
    }
    by_name = collect_leaves((), inputs_after={"weight": X}, gradients={"weight": X})
    assert list(by_name) == ["input weight after the call", "gradient of weight"]


def test_a_sparse_meta_tensor_stays_what_it_is_since_it_has_no_values() -> None:
    assert list(collect_leaves(torch.eye(2).to_sparse().to("meta"))) == ["output 0"]
