"""Run eager with other legal results where torch defines none; what changes is not compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minidbg.judge.differences import are_close
from minidbg.torch_internals.operators import run_in_parts
from minidbg.torch_internals.tensors import TorchDispatchMode, in_memory

# What a subclass answers itself, where it does; most are no ops that the dispatcher knows, and an
# error in one ends the process.
METADATA = """
size sym_size stride sym_stride storage_offset sym_storage_offset numel sym_numel dim is_contiguous
sym_is_contiguous is_strides_like_format is_non_overlapping_and_dense device layout
"""


def within(mode: Callable[[], Any], function: Any) -> Any:
    """``function``, which then runs in ``mode()``; what is none, as it is."""
    if not callable(function) or isinstance(function, (type, torch.Tensor)):
        return function

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode():
            return function(*args, **kwargs)

    return run


class PerturbedEager(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands each op of an eager run to ``called``, also those in the bodies of higher-order ops.

    Afterwards ``may_draw`` says whether any may draw random numbers, ``mixes`` whether any makes an
    element of several; ``coarsest`` is the largest rounding step, relative, of dtypes of results.
    """

    supports_higher_order_operators = True
    may_draw = mixes = False
    coarsest = 0.0

    def around(self, function: Any) -> Any:
        return within(lambda: self, function)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not hasattr(func, "overloadpacket"):
            # of higher order; the mode is off in here, so its bodies bring it
            return func(*map(self.around, args), **kwargs)
        name = func.overloadpacket.__name__.strip("_")
        if name in METADATA.split():
            return NotImplemented
        aliases = any(result.alias_info for result in func._schema.returns)
        if not aliases:  # in here arithmetic takes a lazy conjugate for a plain tensor
            args = tuple(x if (plain := in_memory(x)) is None else plain for x in args)
        result = self.called(func, name, args, kwargs)
        last = result[-1] if isinstance(result, (tuple, list)) and result else result
        draws = torch.Tag.nondeterministic_seeded in func.tags
        # an op of the program's own may draw without saying so
        self.may_draw |= draws or func.namespace not in TAGGED
        moves = "copy" in name or aliases
        is_each = name.startswith("foreach_") and name not in ("foreach_norm", "foreach_max")
        self.mixes |= not (moves or is_each or torch.Tag.pointwise in func.tags)
        if isinstance(last, torch.Tensor) and (last.is_floating_point() or last.is_complex()):
            self.coarsest = max(self.coarsest, torch.finfo(last.dtype).eps)
        return result

    def called(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        made = run_in_parts(self, func, args, kwargs)
        return func(*args, **kwargs) if made is NotImplemented else made

    def applied_to(self, value: Any) -> Any:
        if isinstance(value, torch.nn.Module):
            value.forward = self.around(value.forward)
            return value
        return value if isinstance(value, (tuple, list)) else self.around(value)


TAGGED = ("aten", "prims", "prim")
"""Namespaces whose ops say whether they draw random numbers."""
EMPTY = "empty empty_like empty_strided empty_permuted new_empty new_empty_strided"


class ZeroFilled(PerturbedEager):  # type: ignore[no-untyped-call]
    """Eager itself, with zeros for memory that nobody wrote, whose garbage may be of any size: what
    ``UndefinedResults`` is compared with."""

    def called(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        result = super().called(func, name, args, kwargs)
        return result.zero_() if name in EMPTY.split() else result


class UndefinedResults(PerturbedEager):
    """While active, an op gives another legal result where torch defines none for its arguments.

    ``number`` selects the answers: extremes and reversed orders first, then random ones. ``met``
    says afterwards what the program left open. Each answer is legal, so what depends on one differs
    legally too, gradients included.
    """

    def __init__(self, number: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = number
        self.met: dict[str, None] = {}
        self.generator = torch.Generator().manual_seed(number)

    def called(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        rule = RULES.get(name)
        if rule is None or any(argument.is_out for argument in func._schema.arguments):
            return super().called(func, name, args, kwargs)
        arguments = func._schema.arguments
        given = {one.name: one.default_value for one in arguments if one.has_default_value()}
        given |= dict(zip([one.name for one in arguments], args, strict=False)) | kwargs
        return rule(self, func, given)

    # ---- other answers, elsewhere the same

    def filled(self, result: torch.Tensor, open_: torch.Tensor, what: str) -> torch.Tensor:
        if bool(open_.any()):
            self.met[what] = None
            result.copy_(torch.where(open_, self.other_than(result), result))
        return result

    def other_than(self, result: torch.Tensor) -> torch.Tensor:
        if result.dtype is torch.bool:
            return ~result
        if result.is_floating_point() or result.is_complex():
            return torch.full_like(result, (float("nan"), 1e4, -1e4, 0.0)[self.number % 4])
        bounds = torch.iinfo(result.dtype)
        if self.number < 3:
            values = torch.full_like(result, (bounds.max, bounds.min, 0)[self.number])
        else:
            below = 4 ** min(self.number - 2, 7)
            values = torch.randint(0, below, result.shape, generator=self.generator).to(result)
        return torch.where(values == result, values ^ 1, values)

    def order(self, size: int, device: torch.device) -> torch.Tensor:
        order = torch.randperm(size, generator=self.generator)
        return (torch.arange(size - 1, -1, -1) if self.number == 0 else order).to(device)

    # ---- rules: of an op, whose arguments are ``given``

    def cast(self, func: Any, given: dict[str, Any]) -> Any:
        source = next(given[name] for name in ("src", "self", "a") if name in given)
        result = func(**given)
        to_integer = not (result.is_floating_point() or result.is_complex() or result.dtype is torch.bool)
        if not (to_integer and isinstance(source, torch.Tensor) and source.is_floating_point()):
            return result
        whole, bounds = source.detach().trunc(), torch.iinfo(result.dtype)
        fits = (whole >= float(bounds.min)) & (whole < float(bounds.max) + 1)
        what = "casts of floats to integers that cannot hold them"
        return self.filled(result, ~fits.to(result.device), what)

    def shift(self, func: Any, given: dict[str, Any]) -> Any:
        by = torch.as_tensor(given["other"])
        too_far = (by < 0) | (by >= 8 * torch.as_tensor(given["self"]).element_size())
        result = func(**given)
        return self.filled(result, too_far.to(result.device), "shifts by the width or more")

    def choose(self, func: Any, given: dict[str, Any]) -> Any:
        """Sorting, indices of extremes: elements in another order, which only shows in ties."""
        result, values, dim = func(**given), given["self"], given.get("dim", "none")
        if dim == "none" or given.get("stable") or not values.dim() or not values.numel():
            return result
        if dim is None:
            values, dim = values.reshape(-1), 0
        order = self.order(values.shape[dim], values.device)
        again = func(**{**given, "self": values.index_select(dim, order), "dim": dim})
        indices, found = (x if isinstance(x, torch.Tensor) else x[1] for x in (result, again))
        found = order[found].reshape(indices.shape)
        if not given.get("sorted", True) and values.dim():  # topk
            self.met["the order of unsorted results"] = None
            order = self.order(indices.shape[dim], values.device)
            return result[0].index_select(dim, order), indices.index_select(dim, order)
        if torch.equal(found, indices):
            return result
        self.met["the order of equal elements"] = None
        return found if isinstance(result, torch.Tensor) else (again[0].reshape(result[0].shape), found)

    def extremes(self, func: Any, given: dict[str, Any]) -> Any:
        """Indices of extremes in windows, or up to a place: of equal ones, others."""
        (best, indices), values = func(**given), given["self"].detach()
        nan = values.isnan()
        rank = torch.unique(torch.where(nan, 0, values), return_inverse=True)[1].double()
        # it is the extreme, and equal among themselves
        rank = torch.where(nan, -1.0 if "min" in func.__name__ else values.numel(), rank)
        chance = torch.rand(rank.shape, generator=self.generator).to(rank)
        again = func(**{**given, "self": rank + chance / 2})[1]
        if not torch.equal(again, indices):
            self.met["the order of equal elements"] = None
        return best, again

    def moments(self, func: Any, given: dict[str, Any]) -> Any:
        """The mean beside a spread: torch's way to it makes NaN of an infinity, others do not."""
        spread, mean = func(**given)
        what = "the mean that comes with a variance of infinities"
        return spread, self.filled(mean, mean.isnan() & spread.isnan(), what)

    def unique(self, func: Any, given: dict[str, Any]) -> Any:
        values, inverse, counts = func(**given)
        dim = given.get("dim", 0)
        if given["sorted"] or values.shape[dim] < 2:
            return values, inverse, counts
        self.met["the order of unsorted results"] = None
        order = self.order(values.shape[dim], values.device)
        inverse = order.argsort()[inverse] if inverse.numel() else inverse
        return values.index_select(dim, order), inverse, counts[order] if counts.numel() else counts

    def write(self, func: Any, given: dict[str, Any]) -> Any:
        """Writes in another order, which shows where places repeat; sums only round otherwise."""
        source = next((name for name in ("src", "source", "values") if name in given), None)
        again, result = given["self"].clone(), func(**given)
        if source is None or given.get("accumulate") or "reduce" in func.__name__:
            return result
        numbers, values = torch.arange(again.numel(), device=again.device), given[source]
        numbers, dim = numbers.reshape(again.shape), given.get("dim")
        if "indices" in given:
            places = torch.ops.aten.index.Tensor(numbers, given["indices"])
            values = values.expand(places.shape)
        elif dim is None:
            places = numbers.take(given["index"])
        elif given["index"].dim() == values.dim():  # scatter takes a part of larger values
            places = numbers.gather(dim, given["index"])
            values = values[tuple(map(slice, places.shape))]
        else:
            places = numbers.index_select(dim, given["index"])
        order = self.order(places.numel(), again.device)
        again.put_(places.reshape(-1)[order], values.reshape(-1).to(again.device)[order])
        if not are_close(again, result, 0.0, 0.0):
            self.met["which of several writes to one place stays"] = None
            result.copy_(again)
        return result

    def empty(self, func: Any, given: dict[str, Any]) -> Any:
        result = func(**given)
        if result.numel():
            self.met["uninitialised memory"] = None
            result.copy_(self.other_than(result))
        return result

    def vectors(self, func: Any, given: dict[str, Any]) -> Any:
        """Bases, and unordered eigenvalues of a general matrix: what uses them is not judged."""
        result, matrix = func(**given), given["A"] if "A" in given else given["self"]
        for part in (result,) if isinstance(result, torch.Tensor) else result:
            if part.dim() == matrix.dim() or part.is_complex():
                self.filled(part, torch.ones_like(part, dtype=torch.bool), VECTORS)
        return result


VECTORS = "eigenvectors, singular vectors, factors of qr, and the order of eigenvalues"
ORDERED = "sort argsort topk median nanmedian mode kthvalue"
"""Of ties, ``argmax``, ``argmin``, and ``max`` and ``min`` along a dimension, give the first."""
WRITTEN = "scatter index_put _index_put_impl _unsafe_index_put index_copy put"
RULES: dict[str, Callable[[UndefinedResults, Any, dict[str, Any]], Any]] = {
    name.strip("_"): rule
    for names, rule in {
        "_to_copy copy convert_element_type": UndefinedResults.cast,
        "bitwise_left_shift bitwise_right_shift lshift rshift ilshift irshift": UndefinedResults.shift,
        ORDERED: UndefinedResults.choose,
        "cummax cummin max_pool2d_with_indices max_pool3d_with_indices"
        " adaptive_max_pool2d adaptive_max_pool3d": UndefinedResults.extremes,
        "var_mean std_mean": UndefinedResults.moments,
        "_unique2 unique_dim": UndefinedResults.unique,
        WRITTEN: UndefinedResults.write,
        EMPTY: UndefinedResults.empty,
        "_linalg_svd _linalg_eigh linalg_eig linalg_eigvals"
        " _linalg_eigvals linalg_qr": UndefinedResults.vectors,
    }.items()
    for name in names.split()
}
