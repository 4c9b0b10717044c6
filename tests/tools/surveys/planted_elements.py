"""Bugs of one element, one row and one leaf in models that people run: which does minidbg find, and why not the others?

    python tests/tools/surveys/planted_elements.py --json planted.jsonl
    python tests/tools/surveys/planted_elements.py --json planted.jsonl --models SwinModel T5ForConditionalGeneration

A bug changes an element, a row or all of one value in a model's first graph, or of its gradient: a factor of 1.01, the sign, or zero.
It counts where it changes a result by more than ten times eager's own error, which is eager's distance from float64 (``matters``).
Each row of ``--json`` is a trial; models whose rows it holds are not tried again. Each model has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(TESTS), str(TESTS / "planted")]
from programs.field_models import DOZEN, ENTRIES  # noqa: E402 - tests/ is on the path only now

WHERE, HOW, DIRECTIONS = (
    ("element", "row", "leaf"),
    {"1.01": 1.01, "sign": -1.0, "zero": 0.0},
    ("forward", "gradient"),
)
TIMES = 10.0
LIMIT_S = 600.0


def spoiled(value: Any, where: str, factor: float) -> Any:
    import torch

    number = torch.arange(value.numel(), device=value.device).reshape(value.shape)
    middle = value.numel() // 2
    row = value.shape[-1] if value.dim() else 1
    first, count = {"element": (middle, 1), "row": (middle // row * row, row), "leaf": (0, value.numel())}[
        where
    ]
    return torch.where((number >= first) & (number < first + count), value * factor, value)


class Planted:
    """Eager, with one bug at a place of the first graph it is given."""

    def __init__(self, where: str, how: str, direction: str, place: float) -> None:
        self.where, self.factor, self.direction, self.place = where, HOW[how], direction, place
        self.node = ""

    def __call__(self, gm: Any, example_inputs: Any) -> Callable[..., Any]:
        nodes = [node for node in gm.graph.nodes if self.takes(node)]
        if nodes and not self.node:
            node = nodes[int(self.place * len(nodes))]
            with gm.graph.inserting_after(node):
                changed = gm.graph.call_function(self.changed, (node,))
            node.replace_all_uses_with(changed, delete_user_cb=lambda user: user is not changed)
            gm.recompile()
            self.node = node.name
        return gm.forward

    def takes(self, node: Any) -> bool:
        import torch

        value = node.meta.get("example_value")
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point() and node.users
        return (
            node.op.startswith("call") and is_float and (value.requires_grad or self.direction == "forward")
        )

    def changed(self, value: Any) -> Any:
        from spoiled import ChangedGradient

        def change(one: Any) -> Any:
            return spoiled(one, self.where, self.factor)

        return change(value) if self.direction == "forward" else ChangedGradient.apply(value, change)


def results(name: str, backend: Any, wide: bool = False) -> dict[str, Any]:
    """Outputs and gradients of the model on its inputs; raises what the backend raises."""
    import torch
    from field import leaves
    from torch.utils._pytree import tree_map_only

    torch._dynamo.reset()
    torch.manual_seed(0)
    model, make_inputs = ENTRIES[name].make()
    model.eval()
    inputs = make_inputs(2)
    if wide:
        model.double()
        inputs = tree_map_only(
            torch.Tensor, lambda one: one.double() if one.is_floating_point() else one, inputs
        )
    found = dict(leaves(torch.compile(model, backend=backend)(**inputs)))
    trained = [one for one in found.values() if one.requires_grad and one.is_floating_point()]
    torch.stack([one.square().mean() for one in trained]).sum().backward()
    gradients = {
        f"gradient of {key}": one.grad for key, one in model.named_parameters() if one.grad is not None
    }
    return {key: value.detach().double() for key, value in {**found, **gradients}.items()}


def largest_change(broken: dict[str, Any], eager: dict[str, Any], exact: dict[str, Any]) -> tuple[float, str]:
    """The most that a leaf is off, in units of eager's own error there, and its name."""
    most, name = 0.0, ""
    for key, usual in eager.items():
        if key not in broken or not usual.numel():
            continue
        off = float((broken[key] - usual).abs().nan_to_num().max())
        own = float((usual - exact[key]).abs().nan_to_num().max()) if key in exact else 0.0
        ratio = off / (own or 1e-9 * float(usual.abs().nan_to_num().max()) or 1e-30)
        most, name = max((most, name), (ratio, key))
    return most, name


def trials_of(name: str) -> Iterator[dict[str, Any]]:
    import torch

    import minidbg

    torch.set_num_threads(1)
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("minidbg").addHandler(handler)
    eager = results(name, "eager")
    try:
        exact = results(name, "eager", wide=True)
    except Exception as error:  # noqa: BLE001 - such a model has no reference, and its rows say so
        exact, heard = {}, [*heard, f"no float64: {error}"]
    order = DOZEN.index(name) if name in DOZEN else 0
    for direction in DIRECTIONS:
        for number, where in enumerate(WHERE):
            how = list(HOW)[(number + order + (direction == "gradient")) % 3]
            place = ((order * 6 + number * 2 + (direction == "gradient")) * 0.381966) % 1.0
            row: dict[str, Any] = {"model": name, "direction": direction, "where": where, "how": how}
            heard.clear()
            bare = Planted(where, how, direction, place)
            ratio, leaf = largest_change(results(name, bare), eager, exact)
            row |= {
                "node": bare.node,
                "ratio": ratio,
                "leaf": leaf,
                "matters": ratio > TIMES,
                "float64": bool(exact),
            }
            with tempfile.TemporaryDirectory() as folder:
                backend = minidbg.wrap(
                    Planted(where, how, direction, place), reduce="later", repro_dir=folder
                )
                try:
                    results(name, backend)
                except minidbg.AccuracyError as error:
                    row |= {"found": True, "reason": str(error).splitlines()[0][:200]}
                else:
                    counts = minidbg.stats()
                    said = [*heard, *counts.not_verified, *counts.left_out] or ["no word"]
                    row |= {"found": False, "reason": "; ".join(said)[:300]}
            yield row


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    counted = [row for row in rows if row.get("matters")]
    hits = sum(row["found"] for row in counted)
    yield f"{len(rows)} trials, {len(counted)} change a result by more than {TIMES:.0f} times eager's error; {hits} found"
    kinds = Counter((row["direction"], row["where"], row["how"], row["found"]) for row in counted)
    for (direction, where, how, found), number in sorted(kinds.items()):
        yield f"    {direction:9} {where:8} {how:5} {'found' if found else 'MISSED':7} {number}"
    for row in counted:
        if not row["found"]:
            yield f"    MISSED {row['model']} {row['direction']} {row['where']} {row['how']} at {row['node']}: " \
                  f"{row['ratio']:.0f} times at {row['leaf']}; {row['reason']}"  # fmt: skip
    quiet = [row for row in rows if row.get("found") and not row["matters"]]
    yield f"    {len(quiet)} found that change a result by less"
    for row in rows:
        if "trouble" in row:
            yield f"    the trial itself failed: {row['model']}: {row['trouble'][-200:]}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=DOZEN, metavar="NAME")
    parser.add_argument(
        "--json", type=Path, required=True, help="a file of rows, one a line, that is gone on with"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.child:
        for row in trials_of(options.child):
            print("ROW " + json.dumps(row), flush=True)
        return 0
    rows = (
        [json.loads(line) for line in options.json.read_text().splitlines()] if options.json.exists() else []
    )
    done = {row["model"] for row in rows}
    for name in options.models:
        if name in done:
            continue
        command = [sys.executable, __file__, "--json", str(options.json), "--child", name]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            lines, said = ran.stdout.splitlines(), ran.stderr
        except subprocess.TimeoutExpired:
            lines, said = [], f"time limit of {LIMIT_S:.0f} s"
        new = [json.loads(line[4:]) for line in lines if line.startswith("ROW ")]
        if len(new) < len(WHERE) * len(DIRECTIONS):
            new.append({"model": name, "trouble": said[-2000:]})
        rows += new
        with options.json.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in new)
        hits = sum(row.get("found", False) for row in new)
        print(
            f"{name}: {hits} of {sum(row.get('matters', False) for row in new)} that matter, of {len(new)}",
            flush=True,
        )
    print("\n".join(summary(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
