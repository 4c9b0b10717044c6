"""pytorch's test/inductor/test_minifier_utils.py, and what test/functorch/test_minifier.py says of devices.

The other tests of test/functorch/test_minifier.py are retold in tests/unit/reduction/test_minimize.py.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from minidbg.codegen.inputs import write_inputs
from minidbg.codegen.module_text import instantiate, write_module
from minidbg.fx.copying import NoGraph, capture_by_dynamo


def test_inputs_keep_the_index_of_their_device() -> None:
    """test_dump_state_preserves_device_index; no such device is needed."""
    with FakeTensorMode():
        value = torch.empty(2, 3, device="cuda:7")
    assert write_inputs([value], ["x"]).device == "cuda:7"


def branching(flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.cond(flag, lambda x: x.sin(), lambda x: x.cos(), (x,))
    return result


def test_cond_subgraph_roundtrips() -> None:
    """Of a graph that make_fx traced, too; what is written computes the same for both branches."""
    x = torch.randn(3)
    gm = make_fx(branching, tracing_mode="fake")(torch.tensor(True), x)
    source = write_module(gm)
    assert ".sin" in source.text
    assert ".cos" in source.text
    assert "<lambda>" not in source.text
    again = instantiate(source)
    for flag in (torch.tensor(True), torch.tensor(False)):
        assert torch.equal(again(flag, x), branching(flag, x))


class ReturnsItself(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.nn.Module:
        return self


def test_a_program_without_a_tensor_result_has_no_graph() -> None:
    """test_invalid_output, test_invalid_output_user_error_classification: refused by name, not a crash."""
    with pytest.raises(NoGraph, match="made no graph of it"):
        capture_by_dynamo(ReturnsItself(), (torch.randn(2),))
