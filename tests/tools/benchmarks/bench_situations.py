"""The situations of tests/peers/situations.py, with torch's own minifier and with minidbg, side by side.

``python tests/tools/benchmarks/bench_situations.py [NAME ...] [--seconds 100] [--only torch|minidbg]``. Torch's minifier is run as its
documentation says: environment variables, the launcher that it writes, then the repro; nothing is edited by hand. A launcher gets
``--seconds``. Each row is printed when it is done.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "peers"))

from situations import SITUATIONS, Ended, Situation, program, run, with_minidbg


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    tool: str
    seconds: float
    steps: int
    """Commands that a user types until he has a result."""
    repro: str
    nodes: str
    says: str
    right: bool

    def __str__(self) -> str:
        cells = (
            self.name, self.tool, f"{self.seconds:.0f}", str(self.steps), self.repro, self.nodes, self.says[:70],
            "yes" if self.right else "NO",
        )  # fmt: skip
        return "| " + " | ".join(cells) + " |"


HEAD = "| situation | tool | s | steps | repro | nodes | `python repro.py` | right |\n|---|---|---|---|---|---|---|---|"


def torch_rows(situation: Situation, seconds: float) -> Iterator[Row]:
    """A row for each way of switching torch's minifier on."""
    for after in situation.afters:
        with tempfile.TemporaryDirectory() as folder:
            yield torch_row(situation, after, Path(folder), seconds)


def torch_row(situation: Situation, after: str, folder: Path, seconds: float) -> Row:
    (folder / "train.py").write_text(program(situation, with_minidbg=False))
    env = {
        "TORCHDYNAMO_REPRO_AFTER": after,
        "TORCHDYNAMO_REPRO_LEVEL": str(situation.level),
        "TORCH_COMPILE_DEBUG_DIR": str(folder / "debug"),
    }
    name, limit = f"{situation.name}-{after}", 25.0 if situation.kind == "hang" else seconds
    first = run([sys.executable, "train.py"], folder, seconds=limit, env=env)
    launchers = sorted(folder.rglob("minifier_launcher.py"))
    if not launchers:
        silent = situation.kind is None and first.status == 0
        return Row(name, "torch", first.seconds, 1, "none", "", last_line(first), silent)
    launched = run([sys.executable, str(launchers[0])], folder, seconds=limit)
    repros = sorted(folder.rglob("repro.py"))
    spent = first.seconds + launched.seconds
    if not repros:
        return Row(name, "torch", spent, 2, "none", "", last_line(launched), False)
    again = run([sys.executable, str(repros[0])], folder, seconds=seconds)
    text = repros[0].read_text()
    nodes = len(re.findall(r"(?m)^ {8}\w+ = (?!l_|self\.|arg)", text))
    final = launched.status == 0  # else what lies there is a checkpoint of a minifier that was cut off
    right = (
        final
        and again.status == 1
        and original_error(first) in again.output
        and situation.kind is not None
        and nodes <= situation.most_nodes
    )
    return Row(
        name,
        "torch",
        spent,
        3,
        "final" if final else "checkpoint",
        str(nodes),
        f"rc {again.status}: {last_line(again)}",
        right,
    )


def original_error(first: Ended) -> str:
    """The type of the exception that the user has seen."""
    found: list[str] = re.findall(r"(?m)^(?:[\w.]+\.)?(\w+(?:Error|Exception))\b", first.output)
    return found[-1] if found else "no exception"


def last_line(ended: Ended) -> str:
    return ended.output.strip().rpartition("\n")[2].replace("|", "/")


def minidbg_row(situation: Situation) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        result = with_minidbg(situation, Path(folder))
        repro = "none" if result.repro is None else "verified"
        nodes = "" if result.nodes is None else str(result.nodes)
        said = result.said.replace("|", "/")
        says = said if result.status is None else f"rc {result.status}: {said}"
        return Row(
            situation.name, "minidbg", result.seconds, 1, repro, nodes, says, result.is_right_for(situation)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="situations; all of them by default")
    parser.add_argument("--seconds", type=float, default=100.0, help="limit of each step of torch's minifier")
    parser.add_argument("--only", choices=("torch", "minidbg"))
    options = parser.parse_args()
    print(HEAD, flush=True)
    for situation in SITUATIONS:
        if options.names and situation.name not in options.names:
            continue
        if options.only != "minidbg":
            for row in torch_rows(situation, options.seconds):
                print(row, flush=True)
        if options.only != "torch":
            print(minidbg_row(situation), flush=True)


if __name__ == "__main__":
    main()
