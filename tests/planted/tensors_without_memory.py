"""Every part of minidbg that looks at bits, strides or storage, on every tensor that has none; a program, since a wrong look ends the process.

Prints a line for each look that raises what it should not, and ``all looked at`` at its end.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from minidbg import torch_internals
from minidbg.codegen.inputs import materialise, write_inputs
from minidbg.codegen.size import canonical_text
from minidbg.core.errors import MinidbgError
from minidbg.fx import copying, effects
from minidbg.fx.record import StorageSerials
from minidbg.judge import compare, differences, precision, undefined
from minidbg.judge.eager_runs import EagerRuns, Tag
from minidbg.judge.leaves import CannotCompare, _are_plain, collect_leaves
from minidbg.wrapper import rollback
from minidbg.wrapper.capture import real_value


class OwnTensor(torch.Tensor):
    pass


def freed() -> torch.Tensor:
    value = torch.randn(1000)
    value.untyped_storage().resize_(0)
    return value


def escaped() -> torch.Tensor:
    kept: list[torch.Tensor] = []
    torch.vmap(lambda x: kept.append(x) or x)(torch.randn(2, 3))
    return kept[0]


def fake() -> torch.Tensor:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.randn(2, 3)


def functional() -> torch.Tensor:
    return torch._to_functional_tensor(torch.randn(2, 3))


def odd_tensors() -> Iterator[tuple[str, torch.Tensor]]:
    zeros = torch._efficientzerotensor
    yield "zero", zeros((2, 3))
    yield "zero, half", zeros((2, 3), dtype=torch.bfloat16)
    yield "zero, whole numbers", zeros((3,), dtype=torch.int64)
    yield "zero, transposed and expanded", zeros((2, 3)).t().expand(4, 3, 2)
    yield "zero, conjugated", zeros((3,), dtype=torch.complex64).conj()
    yield "zero, a leaf", zeros((3,)).requires_grad_()
    yield "conj", torch.randn(3, dtype=torch.complex64).conj()
    yield "neg", torch.randn(3, dtype=torch.complex64).conj().imag
    yield "freed", freed()
    yield "meta", torch.randn(2, 3, device="meta")
    yield "fake", fake()
    yield "functional", functional()
    yield "escaped from vmap", escaped()
    yield "sparse", torch.eye(3).to_sparse()
    yield "csr", torch.eye(3).to_sparse_csr()
    yield "jagged", torch.nested.nested_tensor([torch.randn(2), torch.randn(3)], layout=torch.jagged)
    yield "nested", torch.nested.nested_tensor([torch.randn(2), torch.randn(3)])
    yield "quantized", torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8)
    yield "mkldnn", torch.randn(2, 3).to_mkldnn()
    yield "subclass", torch.randn(3).as_subclass(OwnTensor)


def described(value: torch.Tensor) -> None:
    (made,) = materialise(write_inputs([value], ["value"]))
    assert made._is_zerotensor() == value._is_zerotensor()
    assert (made.dtype, made.is_conj()) == (value.dtype, value.is_conj())
    assert value.is_nested or made.shape == value.shape
    assert value.layout is not torch.strided or made.stride() == value.stride()
    assert made.requires_grad == value.requires_grad


def cloned(value: torch.Tensor) -> None:
    clone, again = copying.clone_values([value, value])
    assert clone is again
    assert clone._is_zerotensor() == value._is_zerotensor()


def compared(value: torch.Tensor) -> None:
    run = collect_leaves((value, value), (value,), ())
    other = collect_leaves((torch.zeros(2, 3), torch.zeros(2, 3)), (torch.zeros(2, 3),), ())
    assert value._is_zerotensor() is False or compare.mismatch(run, run) is None
    for one, two in ((run, run), (run, other), (other, run)):
        compare.mismatch(one, two, EagerRuns({tag: [run] for tag in Tag}))


def holding(value: torch.Tensor) -> torch.fx.GraphModule:
    graph, root = torch.fx.Graph(), torch.nn.Module()
    root.value = value
    graph.output(graph.get_attr("value"))
    return torch.fx.GraphModule(root, graph)


def in_modes(value: torch.Tensor) -> None:
    for mode in (
        precision.RoundingNoise(1),
        undefined.UndefinedResults(),
        undefined.ZeroFilled(),
    ):
        with mode:
            (torch.sin(value) + value).sum()


LOOKS: dict[str, Callable[[Any], Any]] = {
    "has_plain_memory": torch_internals.has_plain_memory,
    "in_memory": torch_internals.in_memory,
    "has_few_bits": precision.has_few_bits,
    "float64": lambda value: precision.to_float64((value,)),
    "modes": in_modes,
    "compare": compared,
    "largest": lambda value: differences.largest(value) if _are_plain(value, value) else None,
    "clone": cloned,
    "bytes": lambda value: copying.bytes_of([value]),
    "serials": StorageSerials().of,
    "describe": described,
    "real_value": lambda value: described(real_value(value, 0)),
    "keep": lambda value: rollback.keep([value], [0], [], limit_bytes=1 << 30).restore(),
    "fact": effects.fact_of,
    "hash": lambda value: canonical_text(holding(value)),
}
NO_LOOK = {("modes", "freed"), ("compare", "freed"), ("largest", "freed")}
"""The program's own ops on them end the process; verification refuses such calls before."""
REFUSALS = (MinidbgError, CannotCompare, precision.NoFloat64, RuntimeError, NotImplementedError)


def look_at_all() -> None:
    for kind, value in odd_tensors():
        for name, look in LOOKS.items():
            if (name, kind) in NO_LOOK:
                continue
            try:
                look(value)
            except REFUSALS as error:
                if kind.startswith("zero"):
                    print(f"{name} of {kind}: {type(error).__name__}: {error}")
            except Exception as error:  # noqa: BLE001 - told, and looked at by the test
                print(f"{name} of {kind}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    look_at_all()
    print("all looked at")
