"""A question for a worker: all of it goes with the order, as bytes. No Dask scheduler, no worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")

from minidbg import asking
from minidbg.extras.cluster.asking import Asker
from minidbg.extras.cluster.pool import NO_CODE, ClusterPool
from minidbg.fx.case import Case
from minidbg.words.outcome import Outcome, Verdict
from minidbg.workers.pool import Ended, Order


class Worker:
    """In place of the pool: takes what travels, has it as files on another machine, and answers."""

    topic, code = "answers", NO_CODE

    def __init__(self, asker: Asker, there: Path) -> None:
        self.asker, self.there = asker, there
        self.cases: list[Case] = []

    def run(self, order: Order) -> None:
        request = ClusterPool.request(self, order)  # type: ignore[arg-type]
        assert request["tensors"]
        script = self.there / request["name"]
        script.write_bytes(request["script"])
        script.with_suffix(".safetensors").write_bytes(request["tensors"])
        self.cases.append(asking.read(script))
        said = Outcome(Verdict.GONE).to_json()
        self.asker.heard(Ended(order.id, status=0, stdout=json.dumps(said)))


def test_a_question_has_its_values_with_it_and_leaves_no_file(
    case_of: Callable[..., Case], tmp_path: Path
) -> None:
    (here := tmp_path / "here").mkdir()
    (there := tmp_path / "there").mkdir()
    case = case_of("eager")
    asker: Any = Asker(here, print)
    asker.pool = worker = Worker(asker, there)
    for _ in range(2):
        assert asker(case, 5.0, None, to_the_end=False).verdict is Verdict.GONE
    assert not list(here.iterdir())
    first, second = worker.cases
    for asked in (first, second):
        assert all(map(torch.equal, asked.inputs, case.inputs))
