"""The node that is named as the first that differs is wrong, and no input that differs has one named."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.new_process import as_in_a_new_process  # noqa: F401 - a fixture for all tests here
from torch import fx

import minidbg
from minidbg import AccuracyError

GRID = torch.linspace(-1, 1, 12).reshape(3, 4)


def random_program(seed: int) -> Callable[..., Any]:
    """Sines, sums and one wrong op or more; views, writes to values and to an input; some values are returned, others lead nowhere."""

    def program(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        choice = random.Random(seed)
        values = [x.sin(), x * 2]
        steps = torch.arange(x.shape[0])
        for number in range(14):
            one, other = choice.choice(values), choice.choice(values)
            kind = choice.choice(("sin", "add", "relu", "write", "view", "state", "steps"))
            if number == 7 or kind == "relu":
                values.append((one * 3).relu())
            elif kind == "sin":
                values.append(one.sin())
            elif kind == "add":
                values.append(one + other)
            elif kind == "write":
                values.append(one.clone().mul_(other))
            elif kind == "view":
                turned = one.t()
                values.append(turned.t())
            elif kind == "state":
                state[choice.randrange(3)] = one[0]
            else:
                steps = steps + 1
                values.append(one * steps[:, None])
        return tuple(choice.sample(values, 2))

    return program


class WrongRelu(fx.Interpreter):
    """Each relu is off by a hundredth."""

    def run_node(self, node: fx.Node) -> Any:
        value = super().run_node(node)
        return value + 1e-2 if node.target in ("relu", torch.relu) else value


@pytest.mark.parametrize("seed", range(6))
def test_what_is_named_is_wrong(seed: int, tmp_path: Path) -> None:
    graphs: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        graphs.append(gm)
        return WrongRelu(gm).run

    inputs = GRID.clone(), torch.zeros(3, 4)
    compiled = torch.compile(
        random_program(seed), backend=minidbg.wrap(backend, repro_dir=tmp_path, reduce="later")
    )
    try:
        compiled(*inputs)
    except AccuracyError as error:
        found = error
    else:
        return  # no wrong value is left behind
    nodes = {node.name: node for node in graphs[0].graph.nodes}
    assert found.suspect_nodes, f"nothing was named: {found}"
    node = nodes[found.suspect_nodes[0]]
    assert node.target in ("relu", torch.relu), f"{node} is right"


def written_input(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(3) + 1
    beside = (x * rows[:, None]).relu()
    positions.add_(2)
    return beside


def with_its_view(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """As a decoder's ``position_ids``: integers, and right, which a later write changes."""
    rows = positions.unsqueeze(1)
    beside = x * rows
    positions.add_(2)
    return beside


def with_an_error_that_vanishes(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    beside = x * (x.relu() > 0.5)
    positions.add_(2)
    return beside


@pytest.mark.parametrize("program", [written_input, with_its_view, with_an_error_that_vanishes])
def test_an_input_that_alone_differs_is_no_reason_to_name_a_node_beside_it(
    program: Callable[..., Any], tmp_path: Path
) -> None:
    """A write that gets lost, where other values of the graph are beside it."""

    class LosesWrites(WrongRelu):
        def run_node(self, node: fx.Node) -> Any:
            if node.target in ("add_", operator.iadd):
                return self.fetch_args_kwargs_from_env(node)[0][0].clone()
            return (
                super().run_node(node)
                if program is with_an_error_that_vanishes
                else fx.Interpreter.run_node(self, node)
            )

    compiled = torch.compile(
        program,
        backend=minidbg.wrap(lambda gm, inputs: LosesWrites(gm).run, repro_dir=tmp_path, reduce="later"),
    )
    with pytest.raises(AccuracyError, match="after the call is 0") as raised:
        compiled(GRID, torch.arange(3))
    assert not raised.value.suspect_nodes
