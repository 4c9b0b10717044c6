"""The metrics of a result of the backend's beside eager's.

``a`` is what the backend gave, ``e`` what eager gave. All are computed in float64, complex numbers
by their real and imaginary parts, integers and bools as numbers. NaN, and infinities of one sign,
that both have in the same places are left out; any other NaN or infinity makes each metric NaN,
which no judge accepts. So does another shape. Where nothing is left, as in what is empty, the
metrics are those of equal values. What is no number (a string, None) is equal or makes them NaN.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from minidbg.core.metrics import Metrics

NAN = math.nan
FAR = Metrics(NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, equal=False)
SPREAD_OF_A_CONSTANT = 1e-5
"""Of the largest value: values that lie closer together are one."""


def metrics_of(a: Any, e: Any, reference: Any = None) -> Metrics:
    """The metrics of one result; ``reference`` is what float64 gives for it, if that is known."""
    if not all(isinstance(value, torch.Tensor | int | float | complex) for value in (a, e)):
        return Metrics() if type(a) is type(e) and a == e else FAR
    forms = [(getattr(v, "dtype", type(v)), getattr(v, "layout", None)) for v in (a, e)]
    is_alone = torch.as_tensor(e).numel() == 1
    a, e = map(_dense, (a, e))
    if a.shape != e.shape:
        return FAR
    equal = forms[0] == forms[1] and bool(((a == e) | ((a != a) & (e != e))).all())
    exact = _dense(torch.nan if reference is None else reference)
    a, e, exact = (value.to(torch.float64) for value in (a, e, exact))
    top1 = _top1(a, e)
    exact = exact if exact.shape == e.shape else torch.full_like(e, math.nan)
    counts = e.isfinite() | ~((a == e) | (a.isnan() & e.isnan()))
    a, e, exact = a[counts], e[counts], exact[counts]
    if not bool(a.isfinite().all() and e.isfinite().all()):
        return FAR
    if not (a - e).any():
        return Metrics(top1=top1, equal=equal)
    pcc = _pcc(a, e, is_alone=is_alone)
    # differences and squares of what is large would be infinite; powers of two divide exactly
    unit = 2.0 ** (math.frexp(float(torch.maximum(a.abs(), e.abs()).max()))[1] - 1)
    a, e, exact = a / unit, e / unit, exact / unit
    off = (a - e).abs()
    return Metrics(
        pcc=pcc,
        cosine=_cosine(a, e),
        max_abs=float(off.max()) * unit,
        mean_abs=float((off / len(off)).sum()) * unit,
        max_rel=float(torch.where(e == 0, 0, off / e.abs()).max()),
        sqnr=float(20 * torch.log10(e.norm() / off.norm())),
        ratio=float((a - exact).norm() / (e - exact).norm()),
        top1=top1,
        equal=equal,
    )


def _dense(value: Any) -> torch.Tensor:
    """On the CPU; complex numbers as pairs of real ones."""
    value = torch.as_tensor(value).detach().cpu()
    dense: torch.Tensor = (value.dequantize() if value.is_quantized else value).to_dense()
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense


def _pcc(a: torch.Tensor, e: torch.Tensor, *, is_alone: bool) -> float:
    for values in (a, e):  # one that is constant but for rounding correlates with nothing
        spread = 0.0 if is_alone else float(values.max() - values.min())
        if spread <= SPREAD_OF_A_CONSTANT * float(values.abs().max()):
            return float(torch.allclose(a, e, rtol=1e-2, atol=1e-2))
    a, e = a / a.abs().max(), e / e.abs().max()  # sums of what is large would be infinite
    return _cosine(a - a.mean(), e - e.mean())


def _cosine(a: torch.Tensor, e: torch.Tensor) -> float:
    largest = [float(value.abs().max()) for value in (a, e)]
    if not all(largest):
        return float(largest[0] == largest[1])
    a, e = a / largest[0], e / largest[1]  # squares of what is tiny would be zero
    return min(1.0, max(-1.0, float((a / a.norm()) @ (e / e.norm()))))


def _top1(a: torch.Tensor, e: torch.Tensor) -> float:
    if not e.numel():
        return 1.0
    rows = [value.nan_to_num(-math.inf, math.inf, -math.inf) for value in (a, e)]
    a, e = (value.reshape(-1, value.shape[-1] if value.dim() else 1) for value in rows)
    chosen = e.gather(1, a.argmax(1, keepdim=True))
    return float((chosen == e.amax(1, keepdim=True)).double().mean())
