"""What a user has after his program has failed, for many small failures: one server, whose forks reduce them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fails_on import all_nodes, name_of

import minidbg
from minidbg.fx.case import Case
from minidbg.wrapper.process import PROCESS


@dataclass(frozen=True)
class Found:
    error: Exception
    path: Path
    text: str
    case: Case

    @property
    def ops(self) -> list[str]:
        """Names of the calls of the repro's graph, those of nested graphs first."""
        nested = [node for node in all_nodes(self.case.graph_module) if node.op.startswith("call")]
        outer = set(self.case.graph_module.graph.nodes)
        ordered = [
            *[node for node in nested if node not in outer],
            *[node for node in nested if node in outer],
        ]
        return [name_of(node) for node in ordered]


def failing_program(
    function: Callable[..., Any], args: Sequence[Any], backend: Any, folder: Path, **given: Any
) -> Found:
    """Compile and call ``function``, which must fail and leave a verified repro; ``given`` goes to torch.compile."""
    torch._dynamo.reset()
    PROCESS.__init__()
    wrapped = minidbg.wrap(backend, repro_dir=folder, seconds=120)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever type the backend raises
        torch.compile(function, backend=wrapped, **given)(*args)
    report = minidbg.report_of(caught.value)
    assert report is not None, caught.value
    assert report.path is not None, report.line
    assert [path.name for path in folder.glob("*.py")] == [report.path.name]
    return Found(caught.value, report.path, report.path.read_text(), minidbg.load(report.path))
