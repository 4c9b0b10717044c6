"""The parts of a judged run: what is said of a failure, and that wrappers do not answer in one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from minidbg.core.run_spec import Context
from minidbg.fx.context import entered_modes, patched_config
from minidbg.judge.run import brief, collected, cotangent_for, first_lines, gradients_of


def test_what_a_backend_says_is_told_without_dynamos_advice() -> None:
    error = ValueError("no kernel\nfor this\n\nSet TORCHDYNAMO_VERBOSE=1 for more")
    assert first_lines(error) == "ValueError: no kernel\nfor this"
    assert brief(error) == "ValueError: no kernel"
    assert len(brief(ValueError("x" * 999))) == 300
    assert len(first_lines(ValueError("x" * 9999))) == 4000


def test_options_that_this_torch_lacks_are_left_out_and_the_others_are_put_back() -> None:
    import torch._inductor.config as config

    before = config.epilogue_fusion
    given = {"torch._inductor.config": {"epilogue_fusion": not before, "no_such_option": 1}}
    with patched_config(given):
        assert config.epilogue_fusion is not before
        assert not config.fx_graph_cache
    assert config.epilogue_fusion is before


def test_autocast_uses_the_device_of_the_failing_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pytorch's test_minifier, test_repro_minify_autocast_uses_tensor_device: entered once, with that device."""
    entered: list[tuple[Any, ...]] = []
    monkeypatch.setattr(torch, "autocast", lambda *given, **_: entered.append(given) or nullcontext())
    with entered_modes(Context(autocast=(("cuda", "torch.float16", True),))):
        pass
    assert entered == [("cuda", torch.float16)]


def test_without_a_way_from_a_result_to_an_input_there_is_no_gradient() -> None:
    x = torch.ones(2, requires_grad=True)
    begun: list[bool] = []
    assert gradients_of((x.detach(),), {"input 0": x}, lambda: not begun.append(True)) == {}
    assert gradients_of((x * 2,), {}, lambda: not begun.append(True)) == {}
    assert begun == []
    found = gradients_of((x * 2, 3), {"input 0": x, "input 1": x * 1}, lambda: not begun.append(True))
    assert begun == [True]
    assert found["input 1"] is None


def test_each_result_has_its_own_cotangent_the_same_in_each_run() -> None:
    x = torch.ones(3, dtype=torch.float64)
    one, again, other = (cotangent_for(x, place) for place in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.dtype is torch.float64


def test_a_ragged_result_has_a_cotangent_of_its_own_shape() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    made = cotangent_for(nested, 0)
    assert made.values().shape == (5,)
    assert bool((made.values() != 0).all())


def test_what_a_run_leaves_in_tensors_and_in_the_model_is_kept_by_name() -> None:
    model = torch.nn.BatchNorm1d(2)
    found = collected("out", model, (torch.ones(2), 3), {})["inputs_after"]
    assert set(found) == {"0", "weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
