"""The metrics of the field, against numpy and torch's own; and what a judge accepts."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.ns.fx.utils import compute_cosine_similarity, compute_sqnr

from minidbg.core.metrics import BadJudge, Judge, Metrics, worst_of
from minidbg.judge.metrics import metrics_of
from minidbg.repro.selfcheck import lines_of

NAN, INF = math.nan, math.inf
T, HUGE = torch.tensor, torch.tensor(1.7e308, dtype=torch.float64)


def pairs() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """What a small model gives in a dtype, and what it gives when bfloat16 is cast to that, a hundredth too large."""
    made = {}
    inputs = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        torch.manual_seed(0)
        model = nn.Linear(16, 5).to(dtype).requires_grad_(False)
        e = model(inputs.to(dtype))
        a = model.bfloat16()(inputs.bfloat16())
        made[str(dtype)] = (a.to(dtype) * 1.01, e)
    e = made["torch.float32"][1]
    made["quantized"] = (torch.fake_quantize_per_tensor_affine(e, 0.02, 0, -128, 127), e)
    return made


def test_they_are_those_of_numpy_and_torch_to_six_digits() -> None:
    off = []
    for what, (a, e) in pairs().items():
        x, y = (value.double().numpy().ravel() for value in (a, e))
        narrow = e.float(), a.float()  # torch's own refuse others
        at_the_top = e == e.amax(-1, keepdim=True)
        wanted = {
            "pcc": np.corrcoef(x, y)[0, 1],
            "cosine": float(compute_cosine_similarity(*narrow)),
            "max_abs": np.abs(x - y).max(),
            "mean_abs": np.abs(x - y).mean(),
            "max_rel": (np.abs(x - y)[y != 0] / np.abs(y)[y != 0]).max(),
            "sqnr": float(compute_sqnr(*narrow)),
            "top1": float(at_the_top.gather(-1, a.argmax(-1, keepdim=True)).double().mean()),
        }
        got = asdict(metrics_of(a, e))
        off += [(what, name, got[name]) for name in wanted if got[name] != pytest.approx(wanted[name], 1e-6)]
    assert off == []


def test_ratio_is_the_distance_from_float64_in_units_of_eagers_own() -> None:
    exact = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    e, a = exact + 0.001, exact - 0.003
    assert metrics_of(a, e, exact).ratio == pytest.approx(3.0)
    assert metrics_of(a, exact, exact).ratio == INF
    assert metrics_of(e, e, None).ratio == 1.0
    assert math.isnan(metrics_of(a, e, None).ratio)


ROWS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "one element, near": (T([1.005]), T([1.0]), {"pcc": 1.0, "equal": False}),
    "one element, far": (T([1.5]), T([1.0]), {"pcc": 0.0}),
    "a constant, near": (T([2.0, 2.001]), T([2.0, 2.0]), {"pcc": 1.0}),
    "a constant but for rounding": (T([1.0, 1.0000001]), T([1.0, 0.9999999]), {"pcc": 1.0, "equal": False}),
    "a constant, far": (T([2.0, 3.0]), T([2.0, 2.0]), {"pcc": 0.0}),
    "NaN in the same place": (T([NAN, 1.0, 2.0]), T([NAN, 1.0, 2.0]), {"pcc": 1.0, "equal": True}),
    "NaN of the backend's": (T([NAN, 1.0]), T([0.0, 1.0]), {"pcc": NAN, "max_abs": NAN, "ratio": NAN}),
    "NaN of eager's": (T([0.0, 1.0]), T([NAN, 1.0]), {"cosine": NAN, "equal": False}),
    "one infinity": (T([INF, 1.0, 2.0]), T([INF, 1.0, 2.0]), {"max_abs": 0.0, "equal": True}),
    "another infinity": (T([INF, 1.0]), T([-INF, 1.0]), {"max_abs": NAN}),
    "integers": (T([1, 2, 4]), T([1, 2, 3]), {"max_abs": 1.0, "equal": False}),
    "integers too large for float64": (T([2**60 + 1]), T([2**60]), {"equal": False}),
    "bools": (T([True, False]), T([True, True]), {"max_abs": 1.0, "pcc": 0.0}),
    "complex": (T([NAN + 77j, 2j]), T([NAN + 1j, 2j]), {"max_abs": 76.0, "equal": False}),
    "one complex number": (T(4 + 1j), T(1 + 1j), {"pcc": 0.0, "max_abs": 3.0}),
    "opposite huge numbers": (-HUGE, HUGE, {"sqnr": -6.0206, "cosine": -1.0}),
    "empty": (torch.ones(0, 3), torch.ones(0, 3), {"pcc": 1.0, "sqnr": INF, "equal": True, "top1": 1.0}),
    "sparse": (T([[0.0, 2.0]]).to_sparse(), T([[0.0, 1.0]]).to_sparse(), {"max_abs": 1.0}),
    "another shape": (torch.ones(2), torch.ones(2, 1), {"pcc": NAN, "equal": False}),
    "another dtype": (torch.ones(2).double(), torch.ones(2), {"max_abs": 0.0, "equal": False}),
    "zeros": (torch.zeros(3), torch.zeros(3), {"cosine": 1.0, "pcc": 1.0, "sqnr": INF}),
    "zeros for numbers": (torch.zeros(2), T([1.0, 2.0]), {"cosine": 0.0, "sqnr": 0.0, "max_rel": 1.0}),
    "numbers for zeros": (T([1.0, 2.0]), torch.zeros(2), {"cosine": 0.0, "sqnr": -INF, "max_rel": 0.0}),
    "huge numbers": (HUGE * T([1, 0, 1, 1]), HUGE * T([1, 1, 0, 1]), {"pcc": -1 / 3, "sqnr": 1.760913}),
    "tiny numbers": (T([1e-30, 2e-30]), T([1e-30, 2e-30]), {"cosine": 1.0}),
    "a tie at the top": (T([[1.0, 3.0, 2.0]]), T([[3.0, 3.0, 1.0]]), {"top1": 1.0}),
    "another at the top": (T([[1.0, 3.0], [5.0, 1.0]]), T([[3.0, 1.0], [5.0, 1.0]]), {"top1": 0.5}),
    "a number": (2.0, 2.0, {"pcc": 1.0, "equal": True}),
    "no number": ("a", "b", {"pcc": NAN, "equal": False}),
    "None twice": (None, None, {"pcc": 1.0, "equal": True}),
}


def test_each_kind_of_result_has_an_answer() -> None:
    off = []
    for what, (a, e, wanted) in ROWS.items():
        got = asdict(metrics_of(a, e))
        off += [(what, n, got[n]) for n in wanted if got[n] != pytest.approx(wanted[n], nan_ok=True)]
    assert off == []


IN_A_SCRIPT = (
    "pcc>=0.99", "cosine>=0.99", "max_abs<1e-2", "mean_abs<1e-2", "max_rel<0.02", "sqnr>=10", "equal"
)  # fmt: skip


def test_the_lines_in_a_script_say_what_the_judge_says() -> None:
    """Of dense results of one shape and dtype, which the script asks before."""
    off = []
    given = {what: (a, e) for what, (a, e, *_) in (ROWS | pairs()).items() if isinstance(e, torch.Tensor)}
    for text in IN_A_SCRIPT:
        space = {"torch": torch}
        exec("\n    ".join(["def judge(a, e):", *lines_of(Judge.of(text))]), space)
        for what, (a, e) in given.items():
            is_alike = a.shape == e.shape and a.dtype == e.dtype and not e.is_sparse
            if is_alike and "too large" not in what:
                is_right = Judge.of(text).accepts(metrics_of(a, e))
                off += [(text, what, is_right)] * (space["judge"](a, e) != is_right)
    assert off == []


def test_the_worst_result_counts() -> None:
    both = worst_of([Metrics(pcc=0.5, max_abs=0.1), Metrics(pcc=0.9, max_abs=0.3, equal=False)])
    assert (both.pcc, both.max_abs, both.equal) == (0.5, 0.3, False)
    assert math.isnan(worst_of([Metrics(), Metrics(pcc=NAN)]).pcc)


def test_a_judge_accepts_what_its_expression_says_of_each_result() -> None:
    good, bad = Metrics(pcc=0.995, cosine=0.999, max_abs=1e-4, sqnr=40.0), Metrics(*[NAN] * 8, equal=False)
    rows = {
        "pcc>=0.99": True, "pcc>=0.999": False, "cosine>=0.99 and max_abs<1e-3": True, "top1": True,
        "equal": True, "pcc>0.999 or sqnr>=10": True, "pcc>=.99 and pcc<=1": True, "ratio<1.5": True,
        "sqnr_db > -3": True, "max_rel_diff == 0": True,
    }  # fmt: skip
    assert {text: Judge.of(text).accepts(good) for text in rows} == rows
    assert [text for text in rows if Judge.of(text).accepts(bad)] == []


def test_anything_else_is_refused_and_the_metrics_are_named() -> None:
    for text in ("", "pcc", "pcc>=", "psnr>3", "1<2", "not top1", "abs(pcc)>1", "pcc!=1", "__import__('os')",
                 "pcc>=0.99 or x", "pcc + 1 > 2", "pcc > 'a'", "equal; top1", "pcc.real > 0", "0.99<=pcc", "pcc>01", "top1 equal", "equal>", "pcc>1e", "pcc=>1", "topp1",
                 "pcc>" + 9_999 * "1"):  # fmt: skip
        with pytest.raises(BadJudge, match="is no judge") as refused:
            Judge.of(text)
        assert "metrics: pcc, cosine" in refused.value.in_two()[1], text
