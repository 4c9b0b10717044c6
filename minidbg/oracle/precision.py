"""Eager in a lower precision: what a backend gives that computes in bfloat16, float16 or TF32 by design.

And eager with other rounding errors, which shows what hangs on them. Standing alone, since it is also part of repro scripts as text.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from minidbg.oracle.reruns import copied
from minidbg.oracle.undefined import ChangedEager

# --- embedded from here ---

DROPPED_BITS = {"bfloat16": 16, "float16": 13, "tf32": 13}  # of float32's mantissa, which has 23
MULTIPLIED = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "convolution", "convolution_backward")
NO_ARITHMETIC = ("set", "resize", "requires_grad", "rename")


class LowerPrecision(ChangedEager):
    """While active, each op rounds its float32 results to ``precision``; in TF32 it rounds what is multiplied instead.

    The dtype stays float32. Attention runs by its parts, since a fused kernel would round at its end only. Number 0
    rounds to the nearest value; others round up or down by chance, since one run alone may be exact by luck.
    """

    def __init__(self, precision: str, number: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.precision, self.number = precision, number
        self.generator = torch.Generator().manual_seed(number)

    def __enter__(self) -> Any:
        self.attention: Any = sdpa_kernel(SDPBackend.MATH)
        self.attention.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.attention.__exit__(*error)

    def changed(self, value: Any) -> Any:
        """A rounded copy of a module or of a tuple of inputs. TF32 rounds no input that is not multiplied."""
        return copied(value, lambda tensor: self.stored(tensor.clone()), contextlib.nullcontext)

    def called(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        made = self.in_parts(func, args, kwargs)
        if made is not NotImplemented:
            return made
        if self.precision == "tf32":
            first = 1 if "add" in name else 0  # what the product is added to keeps its precision
            if name in MULTIPLIED:
                args = [*args[:first], *map(self.rounded, args[first:])]
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        returns = [one.alias_info for one in func._schema.returns]
        if name in NO_ARITHMETIC or any(alias and not alias.is_write for alias in returns):
            return result  # a view of what is rounded already
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            self.stored(tensor)
        return result

    def stored(self, tensor: Any) -> Any:
        """``tensor``, rounded in place where a value of this precision is stored."""
        if self.precision != "tf32" and isinstance(tensor, torch.Tensor) and tensor.dtype is torch.float32:
            tensor.copy_(self.rounded(tensor))
        return tensor

    def rounded(self, value: Any) -> Any:
        """``value`` with fewer bits of mantissa, and in float16 with its range; what is no float32 stays."""
        plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
        if not plain or value.dtype is not torch.float32:
            return value
        step = 1 << DROPPED_BITS[self.precision]
        added: Any = step // 2
        if self.number:
            added = torch.randint(step, value.shape, dtype=torch.int32, generator=self.generator)
            added = added.to(value.device)
        fewer = ((value.detach().view(torch.int32) + added) & -step).view(torch.float32)
        result = torch.where(value.isfinite(), fewer, value)
        return result.half().float() if self.precision == "float16" else result


class OtherRounding(LowerPrecision):  # type: ignore[no-untyped-call]
    """While active, each op's float results are off by a few rounding errors, as those of another compiler are.

    What moves much more than that was decided by rounding: which of two nearly equal values is the largest, on which side of a
    threshold one lies. Zeros and inputs stay exact, and so do small integers, except where an op may have rounded to one:
    ``log2`` of 8 is 2.9999998 elsewhere. ``step`` is afterwards the largest error of one rounding, relative.
    """

    def __init__(self, number: int) -> None:
        super().__init__("", number)
        self.step = 0.0
        self.exact = True

    def changed(self, value: Any) -> Any:
        """The inputs as they are."""
        return value

    def called(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        self.exact = name not in ROUNDING and (name not in ARITHMETIC or all(map(has_few_bits, args)))
        return super().called(func, name, args, kwargs)

    def stored(self, tensor: Any) -> Any:
        """``tensor`` with other errors, in place."""
        plain = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
        kind = NOISY_BITS.get(tensor.dtype) if plain else None
        if kind is not None and tensor.numel():
            whole, bits = kind
            up = torch.randint(2, tensor.shape, generator=self.generator).to(tensor.device, whole)
            old = tensor.detach().view(whole)
            moved = (old + up * ((1 << bits) - 1)) & -(1 << bits)
            if not self.exact:
                moved = torch.where((moved == old) & (tensor != 0), old + (2 * up - 1) * (1 << bits), moved)
            moved = moved.view(tensor.dtype)
            tensor.copy_(torch.where(moved.isfinite(), moved, tensor))
            self.step = max(self.step, torch.finfo(tensor.dtype).eps * (1 << bits))
        return tensor


NOISY_BITS = {
    torch.float64: (torch.int64, 3),
    torch.float32: (torch.int32, 3),
    torch.bfloat16: (torch.int16, 1),
    torch.float16: (torch.int16, 1),
}
"""The last bits, which are rounded away up or down, and the integer that they are seen in."""

NAMED_ROUNDING = """
acos acosh asin asinh atan atan2 atanh cos cosh erf erfc erfinv exp exp2 expm1 gelu log log10 log1p log2 log_softmax logaddexp
logaddexp2 logsumexp rsqrt sigmoid silu sin sinh softmax softplus tan tanh
"""
ROUNDING = frozenset(NAMED_ROUNDING.split())
"""Ops that every library rounds in its own way."""
NAMED_ARITHMETIC = """
add addcdiv addcmul cumprod cumsum div dot index_add lerp linalg_vector_norm linear mean mul native_batch_norm native_group_norm
native_layer_norm norm pow prod reciprocal rsub scatter_add sqrt std sub sum var
"""
ARITHMETIC = frozenset(NAMED_ARITHMETIC.split()).union(MULTIPLIED)
"""Ops whose result depends on the order of the operations, unless their arguments have few bits."""


def has_few_bits(argument: Any) -> bool:
    """Whether the numbers in an argument use at most half of the mantissa, so that products and short sums of them are exact."""
    if isinstance(argument, float):
        argument = torch.tensor(argument)
    if not (isinstance(argument, torch.Tensor) and argument.dtype in NOISY_BITS):
        return True
    whole, _ = NOISY_BITS[argument.dtype]
    half = (1 << (1 - int(math.log2(torch.finfo(argument.dtype).eps))) // 2) - 1
    return argument.layout is not torch.strided or not (argument.detach().view(whole) & half).any()


def tolerance_in(
    precision: str, dtype: torch.dtype, usual: tuple[float, float, float]
) -> tuple[float, float, float]:
    """``usual``, widened by a rounding step of ``precision`` where ``dtype`` is float32's."""
    if dtype not in (torch.float32, torch.complex64):
        return usual
    step = 2.0 ** (DROPPED_BITS[precision] - 23)
    return max(step, usual[0]), usual[1], max(step, usual[2])
