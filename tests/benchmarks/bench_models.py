"""From the exception to a repro, real failures of inductor inside large models: minidbg beside torch's launcher flow.

Run as a program: ``python tests/benchmarks/bench_models.py [--cold] [--limit 300] [--json PATH] [CASE ...]``. Each run is a process of
its own, as a user's would be; kernel caches are kept from run to run, or made anew with ``--cold``. Graph caches are off for both tools: a second
run of the program would find its graph compiled, and a compile is what times are told in. ``compile`` is
the failing ``torch.compile`` call by itself; minidbg's time begins when it has failed and ends when its verified repro is announced. Torch's flow is
``TORCHDYNAMO_REPRO_AFTER`` with the level that fits, and then the launcher that it wrote; its time is both without one ``compile``, and whether its
repro fails is found out by running it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WITHOUT_GRAPH_CACHES = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
CASES = Path(__file__).parents[1] / "cases"
MODELS = {
    "compile_193265_gpt2_step_schedule": {"after": "dynamo", "level": "2"},
    "runtime_190272_densenet121_fractional_pool": {"after": "dynamo", "level": "2", "OMP_NUM_THREADS": "1"},
    "accuracy_own_unet_remainder_inf": {"after": "dynamo", "level": "4"},
}

PROGRAM = """
import importlib, json, sys, time
sys.path[:0] = {folders!r}
import torch
case = importlib.import_module({case!r})
model, inputs = case.make()
if hasattr(model, "eval"):
    model.eval()
tool = {tool!r}
if tool == "minidbg":
    import minidbg
    backend = minidbg.wrap(case.BACKEND)
else:
    backend = case.BACKEND
compiled = torch.compile(model, backend=backend)
began = time.perf_counter()
found = {{}}
try:
    with torch.no_grad():
        compiled(*inputs)
except Exception as error:
    found["error"] = type(error).__name__
    if tool == "minidbg":
        report = minidbg.report_of(error)
        found |= {{"path": str(report.path), "line": report.line}}
found["seconds"] = time.perf_counter() - began
print("FOUND " + json.dumps(found))
"""


def run(command: list[str], folder: Path, limit_s: float, **variables: str) -> tuple[str, float, int | None]:
    """stdout, seconds and exit status of a program; None where its time was up."""
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **variables},
        )
    except subprocess.TimeoutExpired:
        return "", time.perf_counter() - began, None
    return done.stdout, time.perf_counter() - began, done.returncode


def program(case: str, tool: str, folder: Path, limit_s: float, **variables: str) -> dict[str, Any]:
    """What one run of the user's program found, with the seconds of the failing call and of the whole."""
    (folder / "train.py").write_text(
        PROGRAM.format(folders=[str(CASES), str(CASES / "models")], case=case, tool=tool)
    )
    stdout, seconds, status = run([sys.executable, "train.py"], folder, limit_s, **variables)
    lines = [line.removeprefix("FOUND ") for line in stdout.splitlines() if line.startswith("FOUND ")]
    return {"whole": seconds, "status": status, **(json.loads(lines[-1]) if lines else {})}


def measured(case: str, limit_s: float, cold: bool) -> dict[str, Any]:
    how = {**MODELS[case], **WITHOUT_GRAPH_CACHES}
    after, level = how.pop("after"), how.pop("level")
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)

        def variables(tool: str) -> dict[str, str]:
            if not cold:
                return how
            return {
                **how,
                "TORCHINDUCTOR_CACHE_DIR": str(top / tool / "cache"),
                "XDG_CACHE_HOME": str(top / tool / "own"),
            }

        for tool in ("plain", "minidbg", "torch"):
            (top / tool).mkdir()
        plain = program(case, "plain", top / "plain", limit_s, **variables("plain"))
        ours = program(case, "minidbg", top / "minidbg", limit_s, **variables("minidbg"))
        compile_s = plain.get("seconds", float("nan"))
        row: dict[str, Any] = {
            "case": case,
            "compile_s": compile_s,
            "minidbg_s": ours.get("seconds", float("nan")) - compile_s,
        }
        row["minidbg"] = ours.get("line", "no repro")
        if ours.get("path"):
            stdout, _, status = run([sys.executable, ours["path"]], top / "minidbg", limit_s, **how)
            row["minidbg_repro"] = f"status {status}: {stdout.splitlines()[0][:60] if stdout else ''}"
        return row | by_torch(case, after, level, top / "torch", compile_s, limit_s, variables("torch"))


def by_torch(
    case: str,
    after: str,
    level: str,
    folder: Path,
    compile_s: float,
    limit_s: float,
    variables: dict[str, str],
) -> dict[str, Any]:
    """Torch's own flow: the failing run that writes a launcher, the launcher, and its repro run once."""
    debug = {**variables, "TORCHDYNAMO_REPRO_AFTER": after, "TORCHDYNAMO_REPRO_LEVEL": level}
    first = program(case, "plain", folder, limit_s, **debug)
    launchers = sorted(folder.glob("**/minifier_launcher.py"))
    if not launchers:
        return {"torch_s": first["whole"], "torch": "no launcher written"}
    _, seconds, status = run([sys.executable, str(launchers[-1])], folder, limit_s, **variables)
    total = first.get("seconds", float("nan")) + seconds - compile_s
    if status is None:
        return {"torch_s": total, "torch": f"launcher cut off after {limit_s:.0f} s", "torch_cut_off": True}
    repros = sorted(folder.glob("**/repro.py"), key=lambda path: path.stat().st_mtime)
    if not repros:
        return {"torch_s": total, "torch": f"launcher ended with {status}, no repro.py"}
    nodes = sum(
        " = " in line
        for line in repros[-1].read_text().partition("def forward")[2].partition("return")[0].splitlines()
    )
    _, _, status = run([sys.executable, str(repros[-1])], folder, limit_s, **variables)
    return {"torch_s": total, "torch": f"about {nodes} nodes, its repro.py ends with status {status}"}


def lines(row: dict[str, Any]) -> Iterator[str]:
    yield row["case"]
    yield f"  failing compile {row['compile_s']:8.1f} s"
    yield f"  minidbg         {row['minidbg_s']:8.1f} s  x{row['minidbg_s'] / row['compile_s']:.1f} of a compile; {row['minidbg']}; {row.get('minidbg_repro', '')}"
    more = ">" if row.get("torch_cut_off") else ""
    yield f"  torch           {row['torch_s']:8.1f} s  x{more}{row['torch_s'] / row['minidbg_s']:.1f} of minidbg; {row['torch']}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=list(MODELS), metavar="CASE")
    parser.add_argument("--cold", action="store_true", help="new kernel caches for each run")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each process")
    parser.add_argument("--json", help="where to write the rows")
    options = parser.parse_args()
    rows = []
    for case in options.cases:
        rows.append(measured(case, options.limit, options.cold))
        print("\n".join(lines(rows[-1])), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
