"""How a case gets to a worker in another interpreter: as a script with all of its values, and back as an outcome."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minidbg import _torch, workers
from minidbg.case import Case
from minidbg.errors import CannotWrite
from minidbg.failure import Kind, Outcome, Verdict
from minidbg.graphs.specs import Exactness
from minidbg.oracle import execute
from minidbg.repro.files import write
from minidbg.repro.loading import load
from minidbg.repro.render import Form
from minidbg.workers.result import ChildResult

LIMIT_BYTES = 1 << 40


def asked_elsewhere(case: Case, seconds: float, memory_bytes: int | None) -> Outcome | ChildResult:
    """The outcome of ``case`` in a spawned worker, or how the worker ended. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix="minidbg-job-") as folder:
        try:
            path = write(
                case,
                Path(folder) / "case.py",
                Form.CAPTURE,
                exactness=Exactness.EXACT,
                value_limit_bytes=LIMIT_BYTES,
            )
        except CannotWrite as refusal:
            return Outcome(Verdict.INVALID, reason=str(refusal))
        done = workers.call_in_spawned(
            "minidbg.repro.travel:answer", str(path), seconds=seconds, memory_bytes=memory_bytes
        )
    if not done.answered:
        return done
    outcome = Outcome.from_json(done.value)
    failed = outcome.signature is not None and outcome.signature.kind is Kind.RUNTIME
    if failed and not outcome.device.startswith("cpu"):
        workers.end_worker()  # an error of the device stays with its process
    return outcome.judged_against(case.signature)


def answer(path: str, note: Callable[[str], object]) -> dict[str, Any]:
    """In the worker: the outcome of the case in the script at ``path``."""
    _torch.forget_compiled_code()
    return execute(load(path), note=note).to_json()


workers.use_for_travel(asked_elsewhere)
