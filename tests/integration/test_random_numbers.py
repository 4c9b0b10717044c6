"""Random numbers of a program are those that it draws without minidbg: Python's, NumPy's and each device's."""

from __future__ import annotations

import random
from pathlib import Path

import numpy
import planted_backends as planted
import pytest
import torch
from support.new_process import as_in_a_new_process  # noqa: F401 - a fixture for all tests here

import minidbg
from minidbg import torch_internals


@pytest.mark.parametrize("backend", [planted.adds_one_to_relu, planted.raises_on_relu, "aot_eager"])
def test_a_verified_call_and_an_answered_failure_draw_nothing(backend: object, tmp_path: Path) -> None:
    """Nor do they seed: accelerators that are not in use yet keep the seed that waits for them."""
    random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
    waiting = [vars(torch.cuda._lazy_seed_tracker).copy(), vars(torch.xpu._lazy_seed_tracker).copy()]
    state, legacy, generator = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    wrapped = minidbg.wrap(backend, repro_dir=tmp_path, reduce="later", on_failure="fallback")  # type: ignore[arg-type]
    x = torch.linspace(-1, 1, 8, requires_grad=True)
    torch.compile(lambda x: torch.relu(x).cumsum(0) / 3, backend=wrapped)(x).sum().backward()
    assert random.getstate() == state
    assert all(
        numpy.array_equal(one, other) for one, other in zip(numpy.random.get_state(), legacy, strict=True)
    )
    assert torch.equal(torch.get_rng_state(), generator)
    now = [vars(torch.cuda._lazy_seed_tracker), vars(torch.xpu._lazy_seed_tracker)]
    assert now == waiting


def test_a_block_of_ours_may_draw_and_seed_what_it_likes() -> None:
    torch.manual_seed(2)
    seed = vars(torch.cuda._lazy_seed_tracker).copy()
    with torch_internals.restoring_random_numbers():
        before = random.getstate(), numpy.random.rand(), torch.rand(1)
        random.seed(5), numpy.random.seed(5), torch.manual_seed(5)
    assert random.getstate() == before[0]
    with torch_internals.restoring_random_numbers():
        pass
    assert vars(torch.cuda._lazy_seed_tracker) == seed
    assert torch.initial_seed() == 2
