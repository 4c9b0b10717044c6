"""The field trial: models that people run, compiled with and without minidbg. A healthy one must not notice it.

    python tests/tools/surveys/field.py --backends aot_eager --json field.jsonl
    python tests/tools/surveys/field.py --models GPT2LMHeadModel timm/resnet18 --modes train --jobs 2
    python tests/tools/surveys/field.py --device cuda --jobs 8                # on a GPU

Each trial is a model, a mode and a backend, in processes of their own with a time limit: one runs the bare backend, one the wrapped backend, each
with empty inductor caches. Compared are all results (outputs, gradients, parameters, buffers, the RNG state), bit by bit, the processor seconds of the
first call and of later ones, and the most memory that the first call took, the device's too. ``--json`` names a file to which each row is appended; trials that it holds
already are not made again, so that an interrupted trial goes on where it was. Exit status 1 when a trial was not silent.

Modes: ``eval`` (no gradients), ``train`` (three steps of SGD), ``amp`` (the same in bfloat16 autocast), ``dynamic`` (the same with symbolic
shapes and two batch sizes). A backend may be followed by a mode of torch.compile: ``inductor:reduce-overhead``.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import json
import logging
import math
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import psutil
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

sys.path.insert(0, str(Path(__file__).parents[2]))
from programs.field_models import ENTRIES, library_is_here

MODES = ("eval", "train", "amp", "dynamic")
STEPS = 3
LATER_CALLS = 12
GOOD = ("silent", "bare backend fails")


@dataclass(frozen=True, slots=True)
class Trial:
    model: str
    mode: str
    backend: str
    device: str = "cpu"

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Trial:
        return cls(**{name: row[name] for name in cls.__slots__ if name in row})

    def __str__(self) -> str:
        device = None if self.device == "cpu" else self.device
        return " ".join(filter(None, (self.model, self.mode, self.backend, device)))


# ---- the program


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors in a result with their paths, those of key-value caches too."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from leaves(one, f"{path}.{index}")
    elif hasattr(value, "__dict__"):
        yield from leaves(vars(value), path)


def loss_of(tensors: Iterable[tuple[str, Tensor]]) -> Tensor:
    """The same for every model: some function of all that has gradients."""
    trained = [one for _, one in tensors if one.requires_grad and one.is_floating_point()]
    return torch.stack([one.float().square().mean() for one in trained]).sum()


def step(compiled: Any, model: torch.nn.Module, inputs: dict[str, Any], trial: Trial) -> dict[str, Tensor]:
    """One step of the program; what it gives, copied to the CPU."""
    if trial.mode == "eval":
        with torch.no_grad():
            return {name: kept(one) for name, one in leaves(compiled(**inputs))}
    with torch.autocast(trial.device, torch.bfloat16, enabled=trial.mode == "amp"):
        results = dict(leaves(compiled(**inputs)))
    loss_of(results.items()).backward()
    found = {name: kept(one) for name, one in results.items()}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.grad is not None:
                found[f"gradient of {name}"] = kept(weight.grad)
                weight -= 0.01 * weight.grad
                weight.grad = None
    return found


def kept(value: Tensor) -> Tensor:
    """A copy on the CPU, with the same strides."""
    return value.detach().to("cpu", copy=True)


def run_program(trial: Trial, backend: Any, folder: Path, tool: str) -> dict[str, Any]:
    """Times, memory and an error, if any, of the trial's program; all its results are saved in ``folder``."""
    torch.manual_seed(0)
    model, make_inputs = ENTRIES[trial.model].make()
    model.to(trial.device).train(trial.mode != "eval")
    batches = [2, 3, 2] if trial.mode == "dynamic" else [2] * STEPS
    inputs = [tree_map_only(Tensor, lambda one: one.to(trial.device), make_inputs(n)) for n in batches]
    mode = trial.backend.partition(":")[2] or None
    given = {"mode": mode} if mode and isinstance(backend, str) else {}  # a wrapped backend has it
    compiled = torch.compile(
        model, backend=backend, dynamic=True if trial.mode == "dynamic" else None, **given
    )
    found: dict[str, Any] = {}
    results: dict[str, Tensor] = {}
    torch.manual_seed(1)
    try:
        forget_peak_memory()
        before, began = memory_bytes("VmRSS"), clocks()
        for index, one in enumerate(inputs):
            results |= {f"{index}{name}": value for name, value in step(compiled, model, one, trial).items()}
            if index == 0:
                found["first_s"], found["first_cpu_s"] = (
                    now - then for now, then in zip(clocks(), began, strict=True)
                )
                found["peak_bytes"] = memory_bytes("VmHWM")
                found["peak_added_bytes"] = found["peak_bytes"] - before
                peak = getattr(torch.get_device_module(trial.device), "max_memory_allocated", None)
                if trial.device != "cpu" and peak is not None:
                    found["device_peak_bytes"] = peak()
        results |= {f"state {name}": kept(value) for name, value in model.state_dict().items()}
        results["RNG state"] = torch.get_rng_state()
        if trial.device != "cpu":
            results["RNG state there"] = torch.get_device_module(trial.device).get_rng_state().cpu()
        torch.save(results, folder / f"{tool}.pt")
        times = []
        for _ in range(LATER_CALLS):
            began_s = time.process_time()
            step(compiled, model, inputs[0], trial)
            times.append(time.process_time() - began_s)
        found["later_cpu_s"], found["later_median_cpu_s"] = min(times), statistics.median(times)
    except Exception as error:  # noqa: BLE001 - whatever the program raises is what the trial is about
        found["error"] = f"{type(error).__name__}: {error}"[:2000]
        traceback.print_exc()
    found["graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return found


def clocks() -> tuple[float, float]:
    """Seconds now: by the wall, and of this process and its compilers."""
    return time.perf_counter(), sum(os.times()[:4])


def memory_bytes(name: str) -> int:
    """VmRSS, or its largest value so far (VmHWM); 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return int(found[1]) * 1024 if found else 0
    return 0


def forget_peak_memory() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


# ---- one trial


def measured(trial: Trial, folder: Path, limit_s: float) -> dict[str, Any]:
    """The row of one trial."""
    tools = ["bare", "wrapped"]
    if sum(map(ord, str(trial))) % 2:  # the second finds files in memory: neither tool always comes second
        tools.reverse()
    for tool in tools:
        in_a_process(lambda tool=tool: run_as(trial, tool, folder), folder / f"{tool}.txt", limit_s)
    bare, wrapped = (outcome(folder, tool) for tool in ("bare", "wrapped"))
    row = {"bare": bare, "wrapped": wrapped, "different": [], "bare_differs": []}
    if "error" not in bare and "error" not in wrapped:
        row["different"] = differences(folder, "bare", "wrapped")
    if row["different"]:
        in_a_process(lambda: run_as(trial, "again", folder), folder / "again.txt", limit_s)
        row["bare_differs"] = differences(folder, "bare", "again")
    return row


def run_as(trial: Trial, tool: str, folder: Path) -> None:
    """In a process of its own: run the program with the bare or the wrapped backend, and write what happened."""
    torch.set_num_threads(1)
    own = folder / f"{tool}_folder"
    own.mkdir(exist_ok=True)
    os.chdir(own)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(own / "cache")
    import_what_forks_need([trial.model])
    heard, again = Heard(), CompiledAgain()
    for handler in (heard, again):
        logging.getLogger("minidbg").addHandler(handler)
    logging.getLogger("minidbg").setLevel(logging.DEBUG)
    name, _, mode = trial.backend.partition(":")
    backend: Any = name
    if tool == "wrapped":
        import minidbg

        backend = minidbg.wrap(name, mode=mode or None, reduce="later", repro_dir=own / "repros")
    warnings.simplefilter("ignore")
    found = run_program(trial, backend, folder, tool)
    if tool == "wrapped":
        found["stats"] = asdict(minidbg.stats())
    found |= {"said": heard.said, "compiled_again": again.times}
    (folder / f"{tool}.json").write_text(json.dumps(found))


class Heard(logging.Handler):
    """Keeps what minidbg says to a user."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage()[:2000])


class CompiledAgain(logging.Handler):
    """Counts the graphs that were compiled once more to be judged, which is what a first call of twice the time has spent it on."""

    times = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.times += str(record.msg).startswith("compiled_once_more")


def outcome(folder: Path, tool: str) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError):
        return dict(json.loads((folder / f"{tool}.json").read_text()))
    lines = (folder / f"{tool}.txt").read_text(errors="replace").splitlines()
    return {"error": f"the process died: {lines[-1][:300] if lines else 'it wrote nothing'}", "said": []}


def differences(folder: Path, one: str, other: str) -> list[str]:
    """What is not the same bit by bit in two runs of the program."""
    left, right = (torch.load(folder / f"{name}.pt") for name in (one, other))
    names = [name for name in {**left, **right} if not same_bits(left.get(name), right.get(name))]
    return [f"{name}: {difference(left.get(name), right.get(name))}" for name in names]


def same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    if (
        one is None
        or other is None
        or (one.dtype, one.shape, one.stride()) != (other.dtype, other.shape, other.stride())
    ):
        return False
    return torch.equal(*(value.contiguous().reshape(-1).view(torch.uint8) for value in (one, other)))


def difference(one: Tensor | None, other: Tensor | None) -> str:
    if one is None or other is None:
        return "only in one"
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{one.dtype} {tuple(one.shape)} and {other.dtype} {tuple(other.shape)}"
    if one.stride() != other.stride():
        return f"strides {one.stride()} and {other.stride()}"
    return f"by {(one.double() - other.double()).abs().max():.1e} of {one.double().abs().max():.1e}"


# ---- processes


def in_a_process(task: Callable[[], None], output: Path, limit_s: float) -> None:
    """Run ``task`` in a fork of this process, with its output in a file; killed with its children when its time is up.

    That is ``limit_s`` seconds of the processor, or ten times as many by the wall: a busy machine is no hang.
    """
    pid = started(task, output)
    began = time.monotonic()
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if cpu_seconds(pid) > limit_s or time.monotonic() - began > 10 * limit_s:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            with output.open("a") as more:
                more.write(f"\ntime limit of {limit_s:.0f} s\n")
            return
        time.sleep(0.1)


def cpu_seconds(pid: int) -> float:
    """Of a process and its children that have ended."""
    with contextlib.suppress(psutil.Error):
        return sum(psutil.Process(pid).cpu_times()[:4])
    return 0.0


def started(task: Callable[[], None], output: Path) -> int:
    """The process that runs ``task``, with a process group of its own."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own, about forks and threads
        pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG: end with the parent
    try:
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        task()
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def rows_of(trials: Sequence[Trial], jobs: int, limit_s: float) -> Iterator[dict[str, Any]]:
    """The rows, as they come."""
    with tempfile.TemporaryDirectory() as name:
        waiting = list(enumerate(trials))
        running: dict[int, tuple[Trial, Path]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    number, trial = waiting.pop(0)
                    folder = Path(name) / str(number)
                    folder.mkdir()

                    def task(trial: Trial = trial, folder: Path = folder) -> None:
                        (folder / "row.json").write_text(json.dumps(measured(trial, folder, limit_s)))

                    running[started(task, folder / "trial.txt")] = trial, folder
                pid, _ = os.wait()
                trial, folder = running.pop(pid)
                try:
                    row = json.loads((folder / "row.json").read_text())
                except FileNotFoundError:
                    row = {"trouble": (folder / "trial.txt").read_text()[-2000:]}
                yield {**asdict(trial), "torch": torch.__version__, **row}
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)


# ---- what came of it


def verdict(row: dict[str, Any]) -> str:
    """One or two words on a row."""
    if "trouble" in row:
        return "the trial itself failed"
    bare, wrapped = row["bare"], row["wrapped"]
    if "error" in bare:
        return "bare backend fails" if "error" in wrapped else "only the bare backend fails"
    if "error" in wrapped:
        return "ALARM" if "AccuracyError" in wrapped["error"] else "FAILED"
    if row["different"] and not row["bare_differs"]:
        return "DIFFERENT"
    if wrapped["stats"]["not_verified"]:
        return "not verified"
    if wrapped["said"]:
        return "said something"
    return "silent"


def ratio(row: dict[str, Any], name: str) -> float | None:
    """Of the wrapped backend to the bare one."""
    if "trouble" in row:
        return None
    bare, wrapped = row["bare"].get(name), row["wrapped"].get(name)
    return wrapped / bare if bare and wrapped else None


def line_of(row: dict[str, Any]) -> str:
    figures = " ".join(
        f"{word} x{found:.2f}"
        for word, name in FIGURES.items()
        if "(" not in word and (found := ratio(row, name)) is not None
    )
    text = f"{Trial.of_row(row)!s:60} {verdict(row):14} {figures}"
    more = [row["trouble"]] if "trouble" in row else []
    if verdict(row) not in GOOD:
        wrapped = row.get("wrapped") or {}
        more += [*wrapped.get("said", []), *row.get("different", [])[:3]]
        more += [side["error"] for side in (row.get("bare") or {}, wrapped) if "error" in side]
    return "\n    ".join([text.rstrip(), *(" ".join(one.split())[:300] for one in more)])


FIGURES = {
    "first": "first_cpu_s",
    "first (wall)": "first_s",
    "later": "later_cpu_s",
    "later (median)": "later_median_cpu_s",
    "peak memory": "peak_bytes",
    "memory added": "peak_added_bytes",
    "on the device": "device_peak_bytes",
}


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for backend, mode in sorted({(row["backend"], row["mode"]) for row in rows}):
        chosen = [row for row in rows if (row["backend"], row["mode"]) == (backend, mode)]
        counts = Counter(map(verdict, chosen))
        yield f"{backend}, {mode}: {len(chosen)} trials: " + ", ".join(
            f"{number} {word}" for word, number in counts.most_common()
        )
        for word, name in FIGURES.items():
            found = sorted((value, row["model"]) for row in chosen if (value := ratio(row, name)) is not None)
            if found:
                mean = math.exp(statistics.fmean(math.log(value) for value, _ in found))
                yield f"    {word:14} geometric mean x{mean:.2f}, worst x{found[-1][0]:.2f} ({found[-1][1]})"
    graphs, why = Counter[str](), Counter[str]()
    for stats in (row["wrapped"]["stats"] for row in rows if "stats" in (row.get("wrapped") or {})):
        graphs.update({name: stats[name] for name in ("graphs", "verified", "failed", "not_run")})
        why.update({f"not verified: {reason}": number for reason, number in stats["not_verified"].items()})
        why.update(
            {f"a part is not verified: {reason}": number for reason, number in stats["left_out"].items()}
        )
    yield ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in graphs.items())
    for reason, number in why.most_common():
        yield f"    {number} {reason[:200]}"


# ---- the command


def chosen_trials(options: argparse.Namespace) -> Iterator[Trial]:
    for backend in options.backends.split(","):
        for mode in options.modes.split(","):
            for model in options.models:
                yield Trial(model, mode, backend, options.device)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=list(ENTRIES), metavar="NAME", help="default: all")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--backends", default="inductor,aot_eager")
    parser.add_argument("--device", default="cpu", help="where models and inputs are")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--limit", type=float, default=240.0, help="processor seconds for each process")
    parser.add_argument("--json", type=Path, help="a file of rows, one a line, that is gone on with")
    options = parser.parse_args(argv)
    for name in options.models:
        if name not in ENTRIES:
            parser.error(f"no model named {name!r}; there are {', '.join(ENTRIES)}")
    for mode in options.modes.split(","):
        if mode not in MODES:
            parser.error(f"no mode named {mode!r}; there are {', '.join(MODES)}")
    trials = list(chosen_trials(options))
    missing = {ENTRIES[name].library for name in options.models}
    missing = {library for library in missing if not library_is_here(library)}
    for library in sorted(missing):
        print(f"{library} is not installed: its models are left out", flush=True)
    trials = [trial for trial in trials if ENTRIES[trial.model].library not in missing]
    known: dict[Trial, dict[str, Any]] = {}
    if options.json and options.json.exists():
        for line in options.json.read_text().splitlines():
            row = json.loads(line)
            known[Trial.of_row(row)] = row
    if options.device == "cpu":  # elsewhere forks could not use it when a library has looked for it
        import_what_forks_need({trial.model for trial in trials if trial not in known})
    for row in rows_of([trial for trial in trials if trial not in known], options.jobs, options.limit):
        known[Trial.of_row(row)] = row
        print(line_of(row), flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
    rows = [known[trial] for trial in trials if trial in known]
    print("\n".join(summary(rows)))
    return int(any(verdict(row) not in GOOD for row in rows))


def import_what_forks_need(models: Iterable[str]) -> None:
    """Import in this process what each trial would import again. Nothing is run: a process that has used threads cannot be forked."""
    for name in ("torch._dynamo", "torch._inductor.compile_fx"):
        importlib.import_module(name)
    for model in sorted(models):
        library = importlib.import_module(ENTRIES[model].library)
        with contextlib.suppress(AttributeError):  # timm makes most models by name
            getattr(library, model.rpartition("/")[2])


if __name__ == "__main__":
    sys.exit(main())
