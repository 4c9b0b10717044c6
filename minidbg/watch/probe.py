"""Questions that need torch, which the daemon does not hold: run as a plain script in a worker.

    probe.py devices [--no-torch]          {"devices": {name: {...}}, "torch", "python", "machine", "host"}
    probe.py canary REPRO DEVICE   an outcome, see ``canary``

Each prints one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minidbg.words.outcome import Outcome
    from minidbg.words.run_spec import RunSpec


def main(argv: Sequence[str]) -> int:
    here = str(Path(__file__).parent)
    sys.path[:] = [*(path for path in sys.path if path != here), str(Path(__file__).parents[2])]
    wanted: dict[str, Callable[..., Any]] = {"devices": devices, "canary": canary}
    print(json.dumps(wanted[argv[0]](*argv[1:])), flush=True)
    return 0


# The canary: does a repro's backend handle any op at all?


def canary(path: str, device: str) -> dict[str, Any]:
    """The judge's outcome on programs of one op, with the backend of the repro at ``path``: gone if it handles one.

    Skipped: the backend or the device is not here. A script may define ``canary(device)``, which raises when it is broken.
    """
    from minidbg.judge.command import definitions_of, spec_with_options
    from minidbg.words.outcome import Outcome, Verdict

    try:
        script = definitions_of(path)
        if "canary" in script:
            script["canary"](device)
            return Outcome(Verdict.GONE).to_json()
        spec = spec_with_options(path, "")
        script.setdefault("backend", lambda: spec.backend.name)
        try:
            import_backend(script, spec.backend.paths)
        except ModuleNotFoundError as error:
            return Outcome(Verdict.SKIPPED, reason=brief(error)).to_json()
        return judged_on_one_op(script, spec, device).to_json()
    except BaseException as error:  # noqa: BLE001 - whatever a foreign backend raises is the answer
        traceback.print_exc()
        return Outcome(Verdict.INVALID, reason=brief(error)).to_json()


def judged_on_one_op(script: Mapping[str, Any], spec: RunSpec, device: str) -> Outcome:
    """The outcome on the first of a few ops that is as in eager, else on the first of all: each may be a repro's very bug."""
    import torch

    from minidbg.judge.harness import judge
    from minidbg.judge.script import Script, Unavailable
    from minidbg.words.outcome import Outcome, Verdict
    from minidbg.words.run_spec import RunSpec

    def inputs(device: str) -> tuple[Any, ...]:
        return (torch.linspace(-2, 2, 8, device=device),)

    ops: list[Callable[[Any], Any]] = [
        lambda value: value + 1, torch.relu, lambda value: value * 2, torch.sin,
    ]  # fmt: skip
    first: Outcome | None = None
    plain = RunSpec(spec.backend, level=spec.level, dynamic=None)  # the rest is about the failure
    for op in ops:
        one_op = Script("", {**script, "graph": one_op_model(op), "inputs": inputs}, plain)
        try:
            found = judge(one_op.runnable(device), any_failure=True)
        except Unavailable as missing:  # the device has gone, which is no fault of the backend
            return Outcome(Verdict.SKIPPED, reason=str(missing))
        if found.verdict is Verdict.GONE:
            return found
        first = first or found
    assert first is not None
    return replace(first, reason=(first.message.partition("\n")[0] or first.reason)[:300])


def one_op_model(op: Callable[[Any], Any]) -> Callable[[], Any]:
    """Makes a graph module of one op, which every level and call path takes."""
    import torch

    class OneOp(torch.nn.Module):
        def forward(self, value: Any) -> Any:
            return (op(value),)

    return lambda: torch.fx.symbolic_trace(OneOp())


def import_backend(script: Mapping[str, Any], paths: Sequence[str]) -> None:
    """Call the repro's ``backend()``, with the header's folders on the path if it needs them. Raises what it raises."""
    try:
        script["backend"]()
    except ImportError:
        if not paths:
            raise
        sys.path.extend(paths)
        script["backend"]()


def brief(error: BaseException) -> str:
    """Type and first line; of a syntax error, where it is."""
    inner = getattr(error, "inner_exception", None) or error
    if isinstance(inner, SyntaxError):
        return f"{type(inner).__name__}: {inner.msg} ({inner.filename}, line {inner.lineno})"
    text = str(inner).strip().partition("\n")[0]
    return f"{type(inner).__name__}: {text}"[:300]


# Devices


def devices(option: str = "") -> dict[str, Any]:
    """What torch sees here; with ``--no-torch`` only the processor is looked at."""
    found, version = {"cpu": {"name": processor(), "driver": ""}}, ""
    if option != "--no-torch":
        import torch

        version = torch.__version__
        found |= accelerators(torch)
    return {
        "devices": found, "torch": version, "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}", "host": platform.node(),
    }  # fmt: skip


def accelerators(torch: Any) -> dict[str, dict[str, str]]:
    """Every device that torch sees besides the processor, under all names it can be asked for by."""
    if not torch.accelerator.is_available():
        return {}
    kind, current = torch.accelerator.current_accelerator().type, torch.accelerator.current_device_index()
    name_of = getattr(getattr(torch, kind, None), "get_device_name", lambda index: kind)
    found = {
        f"{kind}:{index}": {"name": str(name_of(index)), "driver": driver(torch, kind)}
        for index in range(torch.accelerator.device_count())
    }
    return {kind: found[f"{kind}:{current}"], **found}


def driver(torch: Any, kind: str) -> str:
    """The version of the kernel driver and of the runtime that torch was built for."""
    runtime = str(getattr(torch.version, kind, None) or "")
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split() if kind == "cuda" else []
    except OSError:
        words = []
    kernel = next((word for word in words if word[:1].isdigit() and "." in word), "")
    return " ".join(part for part in (kernel, f"{kind} {runtime}" if runtime else "") if part)


def processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
