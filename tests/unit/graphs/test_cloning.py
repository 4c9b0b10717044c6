"""Clones of inputs: what a backend can see of a tensor stays."""

from __future__ import annotations

import torch

from minidbg.graphs.copying import clone_values


def test_clone_is_independent() -> None:
    x = torch.zeros(3)
    (clone,) = clone_values([x])
    clone.add_(1)
    assert torch.equal(x, torch.zeros(3))


def test_strides_and_offset_stay() -> None:
    x = torch.randn(6, 4)[1:, ::2].t()
    (clone,) = clone_values([x])
    assert (clone.shape, clone.stride(), clone.storage_offset()) == (x.shape, x.stride(), x.storage_offset())
    assert torch.equal(clone, x)


def test_aliasing_stays() -> None:
    x = torch.zeros(4)
    one, view, same = clone_values([x, x[1:3], x])
    assert one is same
    view.fill_(7)
    assert one.tolist() == [0, 7, 7, 0]
    assert x.tolist() == [0, 0, 0, 0]


def test_parameters_stay_parameters() -> None:
    (clone,) = clone_values([torch.nn.Parameter(torch.ones(2), requires_grad=False)])
    assert isinstance(clone, torch.nn.Parameter)
    assert not clone.requires_grad


def test_leafness_stays_and_what_is_no_leaf_may_be_written() -> None:
    leaf = torch.ones(2, requires_grad=True)
    one, other = clone_values([leaf, leaf * 2])
    assert one.is_leaf
    assert one.requires_grad
    assert not other.is_leaf
    other.add_(1)


def test_what_is_no_tensor_is_passed_on_and_tuples_are_opened() -> None:
    x = torch.ones(2)
    number, (clone, nothing) = clone_values([3, (x, None)])
    assert (number, nothing) == (3, None)
    assert clone is not x


def test_tensors_without_a_plain_storage_are_cloned_too() -> None:
    sparse = torch.eye(3).to_sparse()
    conjugated = torch.randn(2, dtype=torch.complex64).conj()
    clones = clone_values([sparse, conjugated])
    assert torch.equal(clones[0].to_dense(), torch.eye(3))
    assert torch.equal(clones[1], conjugated)


def test_inference_tensors_stay_inference_tensors() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
    (clone,) = clone_values([x])
    assert clone.is_inference()


def test_lazy_conjugation_and_negation_stay() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    values = [x.conj(), x.conj().imag, torch._neg_view(x.conj())]
    for value, clone in zip(values, clone_values(values), strict=True):
        assert (clone.is_conj(), clone.is_neg()) == (value.is_conj(), value.is_neg())
        assert torch.equal(clone, value)
        assert clone.untyped_storage()._cdata != value.untyped_storage()._cdata
