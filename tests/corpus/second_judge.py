"""The judge of another version beside this one: both are shown the same graphs through the same mutilated backends.

    python tests/corpus/second_judge.py --python OTHER [--cases 60] [--seed 0]   # an interpreter that has another minidbg
    python tests/corpus/second_judge.py --wheel OLD.whl                          # a wheel, with the packages of this interpreter

Each version writes each case by ``minidbg.save_repro`` and judges the script by ``minidbg check --json``, many cases in one
interpreter. Verdict, kind and category must be the same, or ``differences.toml`` allows the difference:

    [[difference]]
    word = "decided"   # or: old-bug, mend, sentence
    why = "one line"
    case = "softmax *"                     # these three are patterns, of the printed lines
    before = "gone"
    now = "skipped*"

Exit status 1 when a difference is not allowed.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import importlib.metadata
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORDS = ("decided", "old-bug", "mend", "sentence")
DTYPES = ("float32", "float32", "float32", "float64", "bfloat16", "float16")
WRONG = ("compile", "run", "values", "nan", "dtype", "shape", "gradient", "backward")


def case(number: int) -> tuple[str, Any, list[Any], Any]:
    """What to call it, a graph of some calls, inputs for it, and a backend that gets one of its ops more or less wrong."""
    import torch
    from one_op import off_by, on_op
    from torch import fx

    functions: dict[str, Callable[..., Any]] = {
        "sin": torch.sin, "exp": torch.exp, "tanh": torch.tanh, "relu": torch.relu, "sqrt": lambda x: torch.sqrt(torch.abs(x)),
        "softmax": lambda x: torch.softmax(x, -1), "matmul": lambda x: x @ x, "cumsum": lambda x: torch.cumsum(x, 0),
        "mean": lambda x: x - torch.mean(x, 0, keepdim=True), "sum": lambda x: x + torch.sum(x), "round": torch.round,
        "sort": lambda x: torch.sort(x, 1)[0], "argmax": lambda x: x + torch.argmax(x, 1)[:, None],
        "half": lambda x: x.half().to(x.dtype), "reciprocal": torch.reciprocal, "layer_norm": lambda x: torch.layer_norm(x, (8,)),
        "dropout": lambda x: torch.dropout(x, 0.5, True), "mul_": lambda x: x.clone().mul_(1.5),
        "gt": lambda x: torch.where(torch.gt(x, 0), x, -x),
    }  # fmt: skip
    chance = random.Random(number)
    names = chance.sample(sorted(functions), chance.randint(1, 6))

    def program(x: torch.Tensor) -> torch.Tensor:
        for name in names:
            x = functions[name](x)
        return x

    gm = fx.symbolic_trace(program)
    dtype, needs_grad = chance.choice(DTYPES), chance.random() < 0.4
    op = chance.choice([*names, *names, "cos"])  # cos is nowhere: the backend is healthy
    what = chance.choice(WRONG)
    backend = on_op(op, what)
    if chance.random() < 0.5:
        what = f"{10 ** chance.uniform(-8, -0.5):.2g}"
        backend = off_by(op, float(what))
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(8, 8, generator=generator).to(getattr(torch, dtype))
    return (
        f"{op} {what} in {dtype}{' with grad' * needs_grad}: {' '.join(names)}",
        gm,
        [x.requires_grad_(needs_grad)],
        backend,
    )


def answer(folder: Path, numbers: list[int]) -> None:
    """In an interpreter of one version: an object for each case."""
    import minidbg

    (command,) = importlib.metadata.entry_points(group="console_scripts", name="minidbg")
    for number in numbers:
        name, gm, inputs, backend = case(number)
        try:
            path = minidbg.save_repro(gm, inputs, backend, folder / f"case_{number}.py", seconds=60)
        except minidbg.MinidbgError as error:
            outcome = getattr(error, "outcome", None)
            said = facts(outcome.to_json()) if outcome is not None else f"refused: {error}"
        except Exception as error:  # noqa: BLE001 - the other version may do otherwise
            said = f"raised {type(error).__name__}: {error}"
        else:
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
                command.load()(["check", "--json", str(path)])
            said = facts(json.loads(out.getvalue().strip().splitlines()[-1]))
        print(json.dumps([number, name, said]), flush=True)


def facts(outcome: dict[str, Any]) -> str:
    words = (
        outcome["verdict"],
        (outcome["signature"] or {}).get("kind"),
        (outcome["figures"] or {}).get("category"),
    )
    return " ".join(word for word in words if word)


def asked(python: str, path: list[str], numbers: list[int], folder: Path) -> dict[int, tuple[str, str]]:
    folder.mkdir()
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, str(HERE.parent / "planted")])}
    command = [python, str(HERE / "second_judge.py"), "--answer", str(folder), *map(str, numbers)]
    done = subprocess.run(command, env=environ, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return {number: (name, said) for number, name, said in map(json.loads, done.stdout.splitlines())}


def word_for(name: str, before: str, now: str) -> str | None:
    """The word that allows the difference."""
    for row in tomllib.loads((HERE / "differences.toml").read_text()).get("difference", []):
        assert row["word"] in WORDS, row
        if all(
            fnmatch.fnmatchcase(text, row[key])
            for key, text in (("case", name), ("before", before), ("now", now))
        ):
            return f"{row['word']}: {row['why']}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    numbers = [*range(options.seed, options.seed + options.cases)]
    with tempfile.TemporaryDirectory() as made:
        folder, path = Path(made), []
        if options.wheel:
            zipfile.ZipFile(options.wheel).extractall(folder / "wheel")
            path = [str(folder / "wheel")]
        before = asked(options.python, path, numbers, folder / "before")
        now = asked(sys.executable, [], numbers, folder / "now")
    return compared(before, now)


def compared(before: dict[int, tuple[str, str]], now: dict[int, tuple[str, str]]) -> int:
    """Print each difference, with what allows it; 1 where nothing does."""
    wrong, counts = 0, Counter(said for _, said in now.values())
    for number, (name, said) in now.items():
        if said != (said_before := before[number][1]):
            word = word_for(name, said_before, said)
            wrong += word is None
            print(
                f"case {number}: {name}\n    before: {said_before}\n    now:    {said}\n    {word or 'NOT ALLOWED'}"
            )
    print(f"{len(now)} cases, {wrong} differences that are not allowed; now: {dict(counts.most_common())}")
    return int(wrong > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--answer"]:
        answer(Path(sys.argv[2]), [*map(int, sys.argv[3:])])
    else:
        sys.exit(main())
