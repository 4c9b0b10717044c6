"""Modes in which the judge runs eager again give eager's bits where they perturb nothing, over torch's samples."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from support.rotating import day
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from minidbg.extras.hunt.judging import operators
from minidbg.judge.precision import Float64, NoFloat64
from minidbg.judge.undefined import PerturbedEager, ZeroFilled

NAMED_QUICK = """
nn.functional.interpolate.nearest nn.functional.interpolate.nearest-exact nn.functional.upsample_nearest
nn.functional.interpolate.bilinear nn.functional.batch_norm native_batch_norm nn.functional.group_norm
native_layer_norm nn.functional.layer_norm softmax.with_dtype log_softmax nn.functional.gelu
nn.functional.scaled_dot_product_attention nn.functional.linear matmul einsum std_mean var_mean
nn.functional.conv2d nn.functional.max_pool2d nn.functional.cross_entropy cumsum where index_put linalg.norm
"""
UNINITIALISED = ("empty", "new_empty", "resize_")
NAMES_A_DTYPE = ("bfloat16", "cfloat", "chalf", "float", "half")
"""In Float64 these give another dtype, as they are meant to."""


class Sample(nn.Module):
    def __init__(self, op: Callable[..., Any]) -> None:
        super().__init__()
        self.op = op

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.op(*args, **kwargs)


def ways(dtype: torch.dtype, name: str) -> Iterator[tuple[str, Callable[[nn.Module], Callable[..., Any]]]]:
    yield "PerturbedEager", lambda module: PerturbedEager().applied_to(module)
    yield "ZeroFilled", lambda module: ZeroFilled().applied_to(module)
    if dtype is torch.float64 and name not in NAMES_A_DTYPE:
        yield "Float64", lambda module: in_mode(Float64(), module)


OF_SINGULAR_VALUES = ["linalg.svdvals", "linalg.eigvalsh", "linalg.cond", "linalg.matrix_norm", "norm.nuc"]
"""Under any mode their kernel computes the vectors, too: in inference mode bare eager does not, and rounds otherwise."""


def in_mode(mode: Any, module: nn.Module) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return module(*args, **kwargs)

    return run


def leaves_of(function: Callable[..., Any], given: Any, inference: bool) -> list[Any]:
    """Outputs, gradients, and the inputs afterwards."""
    args, kwargs = tree_map_only(Tensor, unshared, given)
    torch.manual_seed(0)
    with torch.inference_mode() if inference else nullcontext():
        outputs = tree_leaves(function(*args, **kwargs))
    inputs = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    sources = [value for value in inputs if value.requires_grad]
    roots = [value for value in outputs if isinstance(value, Tensor) and value.requires_grad]
    grads: Iterable[Any] = ()
    if sources and roots:
        grads = torch.autograd.grad(roots, sources, list(map(torch.ones_like, roots)), allow_unused=True)
    return [*outputs, *grads, *inputs]


def unshared(value: Tensor) -> Tensor:
    plain = value.layout is torch.strided
    return value.detach().clone().requires_grad_(value.requires_grad) if plain else value


@torch.inference_mode()  # sparse results of it can be read nowhere else
def same_bits(one: Any, other: Any) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return bool(one is other or one == other or (one != one and other != other))
    if (one.dtype, one.shape, one.layout) != (other.dtype, other.shape, other.layout):
        return False
    dense = [
        value.detach().to_dense() if value.layout is not torch.strided else value for value in (one, other)
    ]
    plain = [value.detach().resolve_conj().resolve_neg().reshape(-1) for value in dense]
    if plain[0].is_quantized or not plain[0].numel():
        return torch.equal(*plain)
    packed = (torch.empty(value.numel(), dtype=value.dtype).copy_(value) for value in plain)
    return torch.equal(*(value.view(torch.uint8) for value in packed))


def differences(name: str, dtype: torch.dtype, most_samples: int) -> Iterator[str]:
    """In which modes a sample of the operator does not give eager's bits."""
    op = operators()[name]
    if dtype not in op.supported_dtypes("cpu") or name.startswith(UNINITIALISED):
        return
    trains = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    for inference in (False, True):
        samples = op.sample_inputs("cpu", dtype, requires_grad=trains and not inference)
        for number, sample in enumerate(itertools.islice(iter(samples), most_samples)):
            given = ((sample.input, *sample.args), sample.kwargs)
            try:
                usual, again = (leaves_of(op.op, given, inference) for _ in range(2))
            except Exception:  # noqa: BLE001 - a sample that eager cannot run shows nothing
                continue
            if not all(map(same_bits, usual, again)):
                continue
            where = f"{name} {dtype} sample {number}{' in inference mode' if inference else ''}"
            for mode, applied in ways(dtype, name):
                try:
                    changed = leaves_of(applied(Sample(op.op)), given, inference)
                except NoFloat64:
                    continue
                except Exception as error:  # noqa: BLE001 - the finding
                    yield f"{mode}: {where}: {type(error).__name__}: {str(error)[:100]}"
                    continue
                same = torch.allclose if inference and name in OF_SINGULAR_VALUES else same_bits
                if not (len(usual) == len(changed) and all(map(same, usual, changed))):
                    yield f"{mode}: {where}"


def all_differences(names: Iterable[str], dtypes: Iterable[torch.dtype], most_samples: int) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cells = itertools.product(names, dtypes)
        return [line for name, dtype in cells for line in differences(name, dtype, most_samples)]


def test_usual_operators_give_eagers_bits_under_each_mode() -> None:
    names = NAMED_QUICK.split()[day() % 9 :: 9]  # the slow test asks them all
    assert all_differences(names, [torch.float32, torch.float64], 2) == []


@pytest.mark.parametrize("sizes", [(2, 41), (2, 47), (2, 83)], ids=str)
def test_no_mode_takes_other_neighbours_than_eager(sizes: tuple[int, int]) -> None:
    """torch's Python decomposition rounds their places otherwise than its kernel."""

    def resized(x: Tensor) -> Tensor:
        return nn.functional.interpolate(x, size=sizes[1], mode="nearest-exact")

    x = torch.arange(float(sizes[0])).reshape(1, 1, -1)
    with torch.inference_mode():
        assert torch.equal(PerturbedEager().applied_to(Sample(resized))(x), resized(x))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_operators_give_eagers_bits_under_each_mode() -> None:
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.int64]
    assert all_differences(operators(), dtypes, 8) == []
