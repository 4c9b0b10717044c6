"""How long published repros are: ``python tests/tools/surveys/script_lengths.py`` prints lines for 23 plants, and the median.

The plants fail to compile: twenty constructs of dynamo (``support/constructs.py``) and three ways to raise. Each is captured,
reduced and verified as for a user, with the runs in forks of this process.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "planted"))

import planted_backends
from fails_on import raises_on
from support.constructs import CONSTRUCTS, Construct, sandwich, square
from support.quick_path import failing_program, take_the_quick_path

NAMES = {
    "all_dynamic", "dynamic_not_needed", "item", "alone_in_a_branch", "in_a_branch", "in_a_map", "checkpoint", "in_an_autocast_block",
    "grad_mode_block", "no_grad_around", "write_through_a_view", "aliased_inputs", "graph_break", "no_leaf", "expanded",
    "conjugated", "tied_weights", "several_outputs", "uint64", "float8_e5m2",
}  # fmt: skip
PLANTS = [one for one in CONSTRUCTS if one.name in NAMES] + [
    Construct("by_name", sandwich, square, planted_backends.raises_on_relu),
    Construct("no_message", sandwich, square, planted_backends.raises_without_a_message_on_relu),
    Construct("any_of_three", sandwich, square, raises_on("sin", "relu", "cos")),
]


def main() -> None:
    lengths = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        take_the_quick_path(monkeypatch)
        for plant in PLANTS:
            folder = Path(tempfile.mkdtemp())
            with contextlib.redirect_stderr(None), plant.around():
                found = failing_program(plant.function, plant.args(), plant.backend, folder, **plant.given)
            lengths[plant.name] = len(found.text.splitlines())
            print(f"{lengths[plant.name]:4} {plant.name}  {found.path}", flush=True)
    print(f"median of {len(lengths)}: {statistics.median(lengths.values()):g} lines")


if __name__ == "__main__":
    main()
