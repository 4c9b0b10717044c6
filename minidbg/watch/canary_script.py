"""Run as a plain script: ``canary_script.py REPRO --device D``. Does the repro's backend handle any single op at all?

Prints one line of JSON: ``{"canary": "passes" | "missing" | "broken", "reason"}``. The backend comes from the repro's own
``backend()``, so what is asked is what the repro uses. A script may define ``canary(device)`` itself, which raises when
the backend is broken.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Namespace = dict[str, Any]


def main(argv: list[str]) -> int:
    """Judge the backend of the repro at ``argv[0]`` on the device ``argv[2]``; the exit status says nothing."""
    path, device = argv[0], argv[2]
    sys.path.append(str(Path(__file__).parents[2]))  # where minidbg is not installed
    try:
        from minidbg.judge_script import definitions_of

        answer, reason = judge(definitions_of(path), path, device)
    except BaseException as error:  # noqa: BLE001 - whatever a foreign backend raises is the answer
        traceback.print_exc()
        answer, reason = "broken", brief(error)
    print(json.dumps({"canary": answer, "reason": reason}), flush=True)
    return 0


def judge(namespace: Namespace, path: str, device: str) -> tuple[str, str]:
    """The answer and its reason."""
    if "canary" in namespace:
        namespace["canary"](device)
        return "passes", ""
    from minidbg.metadata import read_table

    case = read_table(path)
    try:
        backend = find_backend(namespace, case)
    except ModuleNotFoundError as error:
        return "missing", brief(error)
    return single_ops(backend, case, device)


def find_backend(namespace: Namespace, case: Namespace) -> Any:
    """What the repro's ``backend()`` gives, with the header's folders on the path if it needs them. Raises what it raises."""
    own = namespace.get("backend") or (lambda: case["backend"])
    try:
        return own()
    except ImportError:
        if not case.get("paths"):
            raise
    sys.path.extend(case["paths"])
    return own()


def single_ops(backend: Any, case: Namespace, device: str) -> tuple[str, str]:
    """Whether one of a few ops compiles and gives what eager gives; each may be the very bug that a repro shows."""
    import torch

    from minidbg.oracle.harness import literal_in

    ops: list[Callable[[Any], Any]] = [
        lambda value: value + 1,
        lambda value: torch.relu(value),
        lambda value: value * 2,
        lambda value: torch.sin(value),
    ]
    given: dict[str, Any] = {"options": literal_in(case.get("options")), "mode": case.get("mode")}
    given = {name: value for name, value in given.items() if value}
    reason = ""
    value = torch.linspace(-2, 2, 8, device=device)
    for op in ops:
        try:
            with torch.no_grad():
                found = torch.compile(op, backend=backend, fullgraph=True, **given)(value)
            if torch.allclose(found, op(value), atol=1e-3, rtol=1e-3):
                return "passes", ""
            reason = reason or "wrong values for a single op"
        except Exception as error:  # noqa: BLE001 - whatever a foreign backend raises is the answer
            traceback.print_exc()
            reason = reason or brief(error)
    return "broken", reason


def brief(error: BaseException) -> str:
    """Type and first line; of a syntax error, where it is."""
    inner = getattr(error, "inner_exception", None) or error
    if isinstance(inner, SyntaxError):
        return f"{type(inner).__name__}: {inner.msg} ({inner.filename}, line {inner.lineno})"
    text = str(inner).strip().partition("\n")[0]
    return f"{type(inner).__name__}: {text}"[:300]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
