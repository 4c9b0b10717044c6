"""The modes around a failing call, and what of the environment may be written down."""

from __future__ import annotations

import warnings

import torch
import torch._functorch.config
import torch._inductor.config

from minidbg import torch_internals
from minidbg.core.run_spec import Context
from minidbg.fx.context import ENVIRONMENT, allowed_environment, current_context, round_trips


def test_plain_modes_are_the_defaults() -> None:
    found = current_context()
    assert found == Context(threads=torch.get_num_threads(), env=found.env, config=found.config)


def test_modes_are_those_in_force_now() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("high")
    try:
        autocast = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
        with torch.no_grad(), autocast, torch.device("meta"):
            found = current_context()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
    assert not found.grad
    assert found.autocast == (("cpu", "torch.bfloat16", False),)
    assert (found.deterministic, found.deterministic_warn_only) == (True, True)
    assert found.default_dtype == "torch.float64"
    assert found.default_device == "meta"
    assert found.matmul_precision == "high"


def test_changed_configuration_is_kept_where_repr_gives_it_back() -> None:
    changed = {"epilogue_fusion": False, "cpp.threads": 3, "joint_custom_pre_pass": print}
    with (
        torch._inductor.config.patch(changed),
        torch._functorch.config.patch(cse=False),
        torch._dynamo.config.patch(specialize_int=True),
    ):
        found = current_context().config
    assert found["torch._inductor.config"]["epilogue_fusion"] is False
    assert found["torch._inductor.config"]["cpp.threads"] == 3
    assert "joint_custom_pre_pass" not in found["torch._inductor.config"]
    assert found["torch._functorch.config"]["cse"] is False
    assert found["torch._dynamo.config"]["specialize_int"] is True


def test_unchanged_configuration_is_not_written() -> None:
    assert "epilogue_fusion" not in current_context().config.get("torch._inductor.config", {})


def test_literals_round_trip_and_other_values_do_not() -> None:
    assert all(map(round_trips, [1, "a", None, (1, [2.5]), {"a": {1, 2}}, -3, b"x"]))
    others = [print, torch.float32, float("nan"), float("inf"), object(), {"a": len}]
    assert not any(map(round_trips, others))


def test_only_listed_variables_are_read() -> None:
    environ = {"OMP_NUM_THREADS": "2", "AWS_SECRET_ACCESS_KEY": "s", "TORCH_HUB_TOKEN": "t", "MY_FLAG": "1"}
    assert allowed_environment(environ, []) == {"OMP_NUM_THREADS": "2"}
    assert allowed_environment(environ, ["MY_FLAG", "NOT_SET"]) == {"MY_FLAG": "1", "OMP_NUM_THREADS": "2"}


def test_no_listed_variable_looks_like_a_secret() -> None:
    words = ("TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH", "KEY")
    assert not [name for name in ENVIRONMENT if any(word in name for word in words)]


def test_threads_in_silence_at_once_leave_warnings_and_anomaly_detection_as_they_were() -> None:
    """The second is in when the first goes, as it comes with two threads that verify graphs of theirs."""
    filters = list(warnings.filters)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        first, second = torch_internals.without_warnings(), torch_internals.without_warnings()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        warnings.warn("nobody hears it", stacklevel=1)
        assert not torch.is_anomaly_enabled()
        assert torch.is_warn_always_enabled()
        second.__exit__(None, None, None)
        assert torch.is_anomaly_enabled()
        assert not torch.is_anomaly_check_nan_enabled()
    assert warnings.filters == filters
    assert not torch.is_warn_always_enabled()
