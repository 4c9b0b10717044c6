"""From the exception to a repro, real failures of inductor inside real models: minidbg beside torch's launcher flow.

Run as a program: ``python tests/tools/benchmarks/bench_models.py [--bugs A,B] [--models C,D] [--torch-flow] [--limit 300] [--json PATH]``:
each bug of ``real_failures`` in each model, and the cases of ``tests/cases/models`` with ``--models cases``. Each run is a process of
its own, as a user's would be; kernel caches are kept from run to run. No run of the program finds the graphs of
an earlier one in a cache: a compile is what times are told in. ``compile`` is
the failing ``torch.compile`` call by itself; minidbg's time is that of the call with it, which ends when its verified repro is announced,
without one ``compile``; and the same under ``minidbg run``. Torch's flow is
``TORCHDYNAMO_REPRO_AFTER`` with the level that fits, and then the launcher that it wrote; its time is both without one ``compile``. Whether its
repro fails is found out by running it, which minidbg's time has in it: so torch's is given without that run and with it. A failure that does not
show in this build of torch is left out. A model in training runs its backward: one ``compile`` is that of a whole step.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from real_failures import BUGS, MODELS

WITHOUT_GRAPH_CACHES = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
LEAST_S = 1.0
"""A difference of two runs that is smaller is taken to be noise."""
HERE = Path(__file__).parent
CASES = HERE.parents[1] / "cases" / "models"


@dataclass(frozen=True)
class Row:
    """A failure in a model, and how torch's flow is told about it."""

    name: str
    make: str
    """The expression that makes model and inputs."""
    nodes: int
    """Calls that the failure needs by itself."""
    training: bool = False
    dies: bool = False
    after: str = "dynamo"
    level: str = "2"
    variables: tuple[tuple[str, str], ...] = ()
    dynamic: bool | None = None


OF_CASES = (
    Row("compile_193265_gpt2_step_schedule", "", 2),
    Row("runtime_190272_densenet121_fractional_pool", "", 1, variables=(("OMP_NUM_THREADS", "1"),)),
    Row("accuracy_own_unet_remainder_inf", "", 1, level="4"),
    Row("runtime_189518_detr_positions", "", 6),
    Row("accuracy_187027_tts_upsampling", "", 4, level="4", dynamic=True),
)


def rows(bugs: Sequence[str], models: Sequence[str]) -> Iterator[Row]:
    """The table: every bug in every model."""
    for model in models:
        if model == "cases":
            for row in OF_CASES:
                make = f"__import__({row.name!r}).make()"
                yield replace(row, make=make)
            continue
        for name in bugs:
            bug = BUGS[name]
            make = f"__import__('real_failures').make({name!r}, {model!r})"
            one_thread = (("OMP_NUM_THREADS", "1"),) if bug.kind == "runtime" else ()
            training = MODELS[model].training
            yield Row(
                f"{name} in {model}",
                make,
                bug.nodes,
                training,
                bug.kind == "crash",
                bug.after,
                bug.level,
                one_thread,
            )


PROGRAM_FILE = "train.py"
PROGRAM = """
import json, sys, time
sys.path[:0] = {folders!r}
import torch
torch.compiler.config.cache_key_tag = str(time.time())  # caches of graphs have none of an earlier run
model, inputs = {make}
training = {training!r}
if hasattr(model, "eval") and not training:
    model.eval()
tool = {tool!r}
backend = "inductor"
if tool in ("minidbg", "run"):
    import minidbg
if tool == "minidbg":
    backend = minidbg.wrap(backend)
compiled = torch.compile(model, backend=backend, dynamic={dynamic!r})
began = time.perf_counter()
found = {{}}
try:
    with torch.set_grad_enabled(training):
        outputs = compiled(*inputs)
        if training:  # the step that a wrong result is found in compiles the backward too
            import torch.utils._pytree as pytree
            sum(value.sum() for value in pytree.tree_leaves(outputs) if getattr(value, "requires_grad", False)).backward()
except Exception as error:
    found["error"] = type(error).__name__
    if tool in ("minidbg", "run"):
        report = minidbg.report_of(error)
        if report is None:  # eager fails too in this torch: it is no failure of the backend
            del found["error"]
        else:
            found |= {{"path": str(report.path or ""), "line": report.line}}
found["seconds"] = time.perf_counter() - began
print("FOUND " + json.dumps(found))
"""


class CannotRun(Exception):
    """The program neither fails as its row says nor passes: what it says on stderr."""


def run(command: list[str], folder: Path, limit_s: float, **variables: str) -> tuple[str, float, int | None]:
    """stdout, seconds and exit status of a program; None where its time was up.

    Raises CannotRun where it ends by an exception that it does not catch.
    """
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
    if command[1] == PROGRAM_FILE and done.returncode == 1:  # the failure of the row is caught
        raise CannotRun(done.stderr[-2000:])
    return done.stdout, time.perf_counter() - began, done.returncode


def program(row: Row, tool: str, folder: Path, limit_s: float, **variables: str) -> dict[str, Any]:
    """What one run of the user's program found, with the seconds of the failing call and of the whole."""
    text = PROGRAM.format(
        folders=[str(HERE), str(CASES)], make=row.make, training=row.training, tool=tool, dynamic=row.dynamic
    )
    (folder / PROGRAM_FILE).write_text(text)
    under = ["-m", "minidbg", "run"] if tool == "run" else []
    stdout, seconds, status = run([sys.executable, *under, PROGRAM_FILE], folder, limit_s, **variables)
    lines = [line.removeprefix("FOUND ") for line in stdout.splitlines() if line.startswith("FOUND ")]
    return {"whole": seconds, "status": status, **(json.loads(lines[-1]) if lines else {})}


def interpreter_s(folder: Path, limit_s: float) -> float:
    """Seconds of an interpreter that imports what a first compile by inductor imports."""
    imports = "import torch._dynamo, torch._inductor.compile_fx, torch._inductor.codegen.cpp"
    return min(run([sys.executable, "-c", imports], folder, limit_s)[1] for _ in range(2))


def measured(row: Row, limit_s: float, torch_flow: bool) -> dict[str, Any] | None:
    """One row of the table; None where the failure does not show in this build."""
    how = dict(row.variables)
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        for tool in ("plain", "minidbg", "run", "torch"):
            (top / tool).mkdir()
        for _ in range(2):  # the first one builds the kernels that the others find
            plain = program(row, "plain", top / "plain", limit_s, **how)
        compile_s = plain.get("seconds", plain["whole"])
        ours = program(row, "minidbg", top / "minidbg", limit_s, **how)
        if "error" not in ours and plain["status"] == 0:
            return None
        found = {"case": row.name, "compile_s": compile_s, "nodes_alone": row.nodes}
        found["interpreter_s"] = interpreter_s(top, limit_s)
        if row.dies and "line" not in ours:  # the program died: what the next one would do
            ours |= after_death(top / "minidbg", limit_s, **how)
        found["minidbg_s"] = ours.get("seconds", ours["whole"]) - compile_s
        found["minidbg"] = ours.get("line", "no repro")
        if not row.dies:
            under = program(row, "run", top / "run", limit_s, **how)
            found["run_s"] = under.get("seconds", under["whole"]) - compile_s
        found |= questions(found["minidbg"])
        if ours.get("path"):
            stdout, _, status = run([sys.executable, ours["path"]], top / "minidbg", limit_s, **how)
            found["minidbg_repro"] = f"status {status}: {stdout.splitlines()[0][:60] if stdout else ''}"
            found["ok"] = status == 1 and found.get("nodes", math.inf) <= 1.5 * row.nodes
        if torch_flow:
            found |= by_torch(row, top / "torch", compile_s, limit_s, {**how, **WITHOUT_GRAPH_CACHES})
        return found


def after_death(folder: Path, limit_s: float, **variables: str) -> dict[str, Any]:
    """What ``minidbg reduce`` makes of the crash record that the dead program left."""
    records = sorted(folder.glob("minidbg_repros/.minidbg/crash_records/*.py"))
    if not records:
        return {}
    command = [sys.executable, "-m", "minidbg", "reduce", str(records[-1]), "--json"]
    stdout, seconds, _ = run(command, folder, limit_s, **variables)
    try:
        written = json.loads(stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    line = f"{written['nodes_before']} -> {written['nodes_after']} nodes, {written['oracle_calls']} runs"
    return {"path": written["path"] or "", "line": line, "seconds": seconds}


def questions(line: str) -> dict[str, Any]:
    """What the last line about a repro says: questions, and nodes that are left."""
    nodes, asked = re.search(r"-> (\d+) nodes", line), re.search(r"(\d+) runs", line)
    return {"nodes": int(nodes[1]), "questions": int(asked[1])} if nodes and asked else {}


def by_torch(
    row: Row,
    folder: Path,
    compile_s: float,
    limit_s: float,
    variables: dict[str, str],
) -> dict[str, Any]:
    """Torch's own flow: the failing run that writes a launcher, the launcher, and its repro run once."""
    debug = {**variables, "TORCHDYNAMO_REPRO_AFTER": row.after, "TORCHDYNAMO_REPRO_LEVEL": row.level}
    first = program(row, "plain", folder, limit_s, **debug)
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
    _, proof_s, status = run([sys.executable, str(repros[-1])], folder, limit_s, **variables)
    said = f"about {nodes} nodes, its repro.py {how_it_ends(repros[-1], status)}"
    return {"torch_s": total, "torch_proved_s": total + proof_s, "torch": said}


def how_it_ends(path: Path, status: int | None) -> str:
    """The status, where the file is Python: for a graph without inputs torch writes a function with no body, which ends with 1 too."""
    try:
        compile(path.read_text(), path, "exec")
    except SyntaxError as error:
        return f"is not Python: {error.msg}"
    return f"ends with status {status}"


def lines(row: dict[str, Any]) -> Iterator[str]:
    yield f"{row['case']}  {'ok' if row.get('ok') else 'NOT OK'}"
    yield f"  failing compile {row['compile_s']:8.1f} s"
    yield f"  an interpreter  {row['interpreter_s']:8.1f} s"
    times = row["minidbg_s"] / row["compile_s"]
    yield f"  minidbg         {row['minidbg_s']:8.1f} s  x{times:.1f} of a compile; {row['minidbg']}; {row.get('minidbg_repro', '')}"
    if "run_s" in row:
        yield f"  minidbg run     {row['run_s']:8.1f} s"
    if "torch_s" in row:
        more = ">" if row.get("torch_cut_off") else ""
        proved = f", {row['torch_proved_s']:.1f} s with its repro run" if "torch_proved_s" in row else ""
        yield f"  torch           {row['torch_s']:8.1f} s  x{more}{row['torch_s'] / row['minidbg_s']:.1f} of minidbg{proved}; {row['torch']}"


def spread(rows: Sequence[dict[str, Any]], what: str) -> str:
    values = [row[what] for row in rows]
    return f"median {statistics.median(values):g}, at most {max(values)}"


def summary(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The goals of the table, each with what was met."""
    if rows := [row for row in found if "questions" in row]:
        yield f"{len(rows)} rows, {spread(rows, 'questions')} questions"
    for what in ("minidbg_s", "run_s"):
        if shares := [row[what] / row["interpreter_s"] for row in found if what in row]:
            yield f"{what}: {statistics.fmean(shares):.2f} interpreters in the mean of {len(shares)} rows"
    ended = [row for row in found if "torch_proved_s" in row]
    if ended:
        ratios = [
            math.exp(statistics.fmean(math.log(row[torch] / max(row["minidbg_s"], LEAST_S)) for row in ended))
            for torch in ("torch_s", "torch_proved_s")
        ]
        yield f"torch's flow ended in {len(ended)} of {len(found)}, and took {ratios[0]:.1f} times as long there; with its repro run once, as ours was, {ratios[1]:.1f} times"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bugs", default=",".join(BUGS), help="names of real_failures.BUGS")
    parser.add_argument("--models", default="cases", help="names of real_failures.MODELS, and 'cases'")
    parser.add_argument("--torch-flow", action="store_true", help="run torch's launcher flow beside it")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each process")
    parser.add_argument("--json", help="where to write the rows")
    options = parser.parse_args()
    found = []
    for row in rows(options.bugs.split(","), options.models.split(",")):
        try:
            result = measured(row, options.limit, options.torch_flow)
        except CannotRun as reason:
            print(f"{row.name}: its program does not run here:\n{reason}")
            continue
        if result is None:
            print(f"{row.name}: does not fail in this build of torch")
            continue
        found.append(result)
        print("\n".join(lines(result)), flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(found, indent=1))
    print("\n".join(summary(found)))


if __name__ == "__main__":
    main()
