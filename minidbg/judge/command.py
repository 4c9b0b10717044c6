"""Run as a plain file, ``judge/command.py REPRO [--device D] [--json] ...``: judge a repro script with the installed oracle.

The script is executed for its definitions; its own few lines of judgement are not used. Options and exit status are those
of ``minidbg.judge.script``. A script may bring a judge of its own: ``judge_itself(argv)``, which prints the outcome as one
line of JSON and returns the exit status.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

JUDGE_SCRIPT = __file__
NAME = "minidbg_repro"
"""The module that a repro's definitions live in; signatures call it ``<script>``."""


def main(argv: list[str]) -> int:
    """Judge the repro at ``argv[0]``; the rest of ``argv`` are arguments of the judge, after ``--options DICT`` if it is given."""
    path = os.path.abspath(argv[0])
    options = argv[2] if argv[1:2] == ["--options"] else ""
    gc.disable()  # what is imported stays: to look for garbage there, now and at the exit, takes a third of the time
    namespace = definitions_of(path)
    gc.freeze()
    gc.enable()
    if "judge_itself" in namespace:
        return int(namespace["judge_itself"](argv[1:]))
    from minidbg.judge import script

    try:
        namespace = with_judge(namespace, path, options)
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 125
    return script.main(namespace, argv[3:] if options else argv[1:])


def with_judge(namespace: dict[str, Any], path: str, options: str = "") -> dict[str, Any]:
    """``definitions_of(path)`` with the installed judge of its kind of failure. Raises ValueError for an unreadable header."""
    from minidbg.judge import agreement, child
    from minidbg.words.script_header import read_table

    case = read_table(path)
    kind = case.get("kind")
    namespace = {name: value for name, value in namespace.items() if name not in ("differ", "judge_in_child")}
    namespace["judge_command"] = [sys.executable, "-X", "faulthandler", __file__, path]
    if options:
        namespace["changes"] = {"options": with_options(case, options)["options"]}
        namespace["judge_command"] += ["--options", options]
    if kind == "accuracy":
        namespace["differ"] = agreement.differ
    if kind in ("crash", "hang"):
        namespace["judge_in_child"] = child.judge_in_child
    return namespace


def with_options(case: dict[str, Any], options: str) -> dict[str, Any]:
    """The header's table with ``options``, a dict as text, added to its own. Raises ValueError where a mode stands in their way."""
    if not options:
        return case
    if case.get("mode") is not None:
        raise ValueError(
            f"its header has mode {case['mode']!r}, which torch.compile does not take together with options"
        )
    own = case.get("options") or {}  # as text it may name what only torch knows, such as torch.float16
    return {**case, "options": f"{{**{own if isinstance(own, str) else repr(own)}, **{options}}}"}


def definitions_of(path: str) -> dict[str, Any]:
    """What the script at ``path`` defines, executed in a module of its own as if from its own folder.

    When it cannot be executed, its ``backend`` raises the reason.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.path.dirname(path), *(folder for folder in sys.path if folder != here)]
    if importlib.util.find_spec("minidbg") is None:
        sys.path.append(str(Path(__file__).parents[2]))
    module = types.ModuleType(NAME)
    module.__file__ = path
    sys.modules[NAME] = module  # dynamo looks for the module of a function by its name
    try:
        exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a script that cannot be executed cannot be judged
        reason = error if isinstance(error, Exception) else RuntimeError(f"it exits by itself: {error}")

        def backend() -> Any:
            raise reason

        return {"__file__": path, "backend": backend}
    if "backend" not in module.__dict__:
        from minidbg.words.script_header import backend_in

        expression = backend_in(Path(path).read_text(encoding="utf-8-sig"))
        if expression:
            module.__dict__["backend"] = lambda: eval(expression, module.__dict__)
    return module.__dict__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
