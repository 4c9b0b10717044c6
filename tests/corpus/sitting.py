"""An interpreter in which many programs of the corpus fail, one after the other: torch and the forkserver are started once for all.

``python sitting.py FOLDER < ROWS``: each line of stdin is a row as JSON, each line of stdout what came of it; a program runs as
``__main__`` in a folder of its own. Of minidbg, public names and the command are used, so any version can sit here.

A failure that has the signature of an earlier one is reduced once in a process: two such programs stand in different groups.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import runpy
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from fails_on import all_nodes, name_of

import minidbg

(COMMAND,) = importlib.metadata.entry_points(group="console_scripts", name="minidbg")
SCRIPT_LINES, STDERR_LINES = 12, 3


@contextlib.contextmanager
def taken(path: Path) -> Iterator[None]:
    """A block whose stdout and stderr, those of its children too, go to ``path``."""
    sys.stdout.flush(), sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        for number, was in zip((1, 2), before, strict=True):
            os.dup2(was, number), os.close(was)


def command(*words: object) -> tuple[int, str]:
    """``minidbg WORDS``, in this interpreter: its exit status, and what it prints on both streams."""
    out = Path("command.txt")
    with taken(out):
        try:
            COMMAND.load()(list(map(str, words)))
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
    return status, out.read_text()


def lived(row: dict[str, Any]) -> str:
    """The program of ``row``, run to its end; what it wrote to stderr."""
    Path("program.py").write_text(row["program"])
    if row.get("alone"):  # it dies, or is ended by a signal
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([sys.executable, "program.py"], timeout=row["alone"], capture_output=True)
        return command("reduce")[1]
    torch._dynamo.reset()
    torch.manual_seed(0)
    with taken(Path("stderr.txt")):
        try:
            runpy.run_path("program.py", run_name="__main__")
        except BaseException:  # noqa: BLE001 - the failure is what is looked at; a panic is no Exception
            traceback.print_exc()
    return Path("stderr.txt").read_text()


def ops_of(graph_module: torch.fx.GraphModule) -> list[str]:
    """The calls of a graph, those of nested ones first."""
    calls = [node for node in all_nodes(graph_module) if node.op.startswith("call")]
    return [name_of(node) for node in sorted(calls, key=lambda node: node.graph is graph_module.graph)]


def answer(row: dict[str, Any]) -> dict[str, Any]:
    """What came of ``row``: facts, and texts as a person sees them."""
    stderr = lived(row)
    said = [
        line
        for line in stderr.splitlines()
        if re.match(r"(?!Traceback|Set TORCHDYNAMO|W\d{4} |minidbg: .* nodes? after )\S", line)
    ]
    texts = {"stderr": "\n".join(said[-STDERR_LINES:])}
    scripts = sorted(Path("minidbg_repros").glob("*.py"))
    facts: dict[str, Any] = {"scripts": len(scripts)}
    for path in scripts[:1]:
        text = path.read_text()
        story = json.loads(command("show", "--json", path)[1])
        figures = story["figures"]
        facts |= {name: story[name] for name in ("kind", "call", "signature")}
        facts |= {"nodes": figures["nodes"], "ops": ops_of(minidbg.load(path).graph_module)}
        done = map(json.loads, (file.read_text() for file in Path("minidbg_repros").rglob("done.json")))
        asked = [each["oracle_calls"] for each in done if Path(each["path"]).name == path.name]
        facts |= {"certified": figures["certified"], "questions": max(asked)}  # none is a fault
        facts["lines"] = len(text.splitlines())
        texts["script"] = "\n".join(text.splitlines()[:SCRIPT_LINES])
        texts["show"] = command("show", path)[1]
        if row.get("check"):
            status, printed = command("check", "--json", path)
            found = json.loads(printed.strip().splitlines()[-1])
            facts |= {
                "status": status,
                "verdict": found["verdict"],
                "category": found["figures"].get("category"),
            }
            facts["same_signature"] = found["signature"] == story["signature"]
            said = "\n".join(filter(None, [found["reason"], found["message"]]))
            texts["check"] = said.partition("Fatal Python error")[0]  # a stack is this machine's
    return {"facts": facts, "texts": texts}


def main(folder: Path) -> None:
    for line in sys.stdin:
        row = json.loads(line)
        place = folder / f"{row['group']}__{row['name']}"
        place.mkdir()
        os.chdir(place)
        try:
            found = answer(row)
        except Exception:  # noqa: BLE001 - the others are asked all the same
            found = {
                "facts": {"broke": traceback.format_exc().splitlines()[-1]},
                "texts": {"trouble": traceback.format_exc()},
            }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
