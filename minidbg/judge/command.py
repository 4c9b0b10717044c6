"""Run as a plain file, ``judge/command.py REPRO [ORDERS]``: judge a script by this judge.

The script is executed for its definitions; its own few lines of judgement are not used. What is
printed and the exit status are those of ``minidbg.judge.script``.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib.util
import json
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minidbg.judge.script import ExecutedScript

JUDGE_SCRIPT = __file__
MODULE_NAME = "minidbg_repro"
"""The module that a repro's definitions live in; signatures call it ``<script>``."""
FAILED = "_failed"
"""The name in it of the errors that its statements raised."""


def judge_command(path: str | os.PathLike[str], **orders: Any) -> tuple[str, ...]:
    """What Python is to run, our only such command, that the script at ``path`` is judged.

    ``orders``, where given: ``device``, ``backend``, a registered name or ``module:expression``,
    its further ``options``, a dict as text; ``tolerances``, ``judge`` as in a header; ``one_op``.
    """
    wanted = {name: value for name, value in orders.items() if value not in (None, False)}
    return JUDGE_SCRIPT, os.path.abspath(path), json.dumps(wanted)


def main(argv: list[str]) -> int:
    """Judge the repro at ``argv[0]`` as ``argv[1]`` orders, if it is given."""
    path = os.path.abspath(argv[0])
    gc.disable()  # imports stay: to look for garbage there, also at exit, takes a third of the time
    with clean_stdout() as say:
        definitions = definitions_of(path)
        gc.freeze()
        gc.enable()
        try:
            from minidbg.judge import script
        except ImportError as error:  # Python's own exit status, 1, means "reproduces"
            print(f"the judge cannot be loaded with this torch: {error}", file=sys.stderr)
            return 125
        from minidbg.core.records import MALFORMED

        try:
            orders = json.loads(argv[1]) if argv[1:] else {}
            executed = script_of(definitions, path, orders)
        except (OSError, *MALFORMED) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 125
        return script.main(executed, say, one_op=orders.get("one_op", False))


@contextlib.contextmanager
def clean_stdout() -> Iterator[Callable[[str], object]]:
    """Give a ``print`` to the real stdout; all that backends and compilers print goes to stderr."""
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield lambda text: os.write(real, (text + "\n").encode(errors="backslashreplace"))
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)


def script_of(definitions: dict[str, Any], path: str, orders: Mapping[str, Any]) -> ExecutedScript:
    """The executed script, with what ``judge_command`` orders in place of what its header says.

    Raises OSError, MALFORMED for an unreadable header, ValueError where a mode stands in their way.
    """
    from minidbg.core.files import read_regular
    from minidbg.core.literals import read_literal
    from minidbg.core.script_header import SCRIPT_LIMIT_BYTES, parse_header, text_of
    from minidbg.judge.script import ExecutedScript

    spec = parse_header(text_of(read_regular(path, SCRIPT_LIMIT_BYTES)), path).spec
    if options := orders.get("options"):
        import torch  # noqa: F401 - whose dtypes may stand in the options

        if spec.backend.mode is not None:
            raise ValueError(
                f"its header has mode {spec.backend.mode!r},"
                " which torch.compile does not take together with options"
            )
        together = {**spec.backend.options, **read_literal(options)}
        spec = replace(spec, backend=replace(spec.backend, options=together))
    spec = replace(spec, **{name: orders[name] for name in orders.keys() & {"tolerances", "judge"}})
    device, backend = orders.get("device"), orders.get("backend")
    return ExecutedScript(definitions, spec, definitions[FAILED], device, backend)


def definitions_of(path: str) -> dict[str, Any]:
    """What the script at ``path`` defines, executed in a module of its own, as if from its folder.

    Each statement by itself: another backend can be asked where the script's own is not here.
    ``FAILED`` lists what was raised.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.path.dirname(path), *(folder for folder in sys.path if folder != here)]
    if importlib.util.find_spec("minidbg") is None:
        sys.path.append(str(Path(__file__).parents[2]))
    module = types.ModuleType(MODULE_NAME)
    module.__file__ = path
    sys.modules[MODULE_NAME] = module  # dynamo looks for the module of a function by its name
    failed: list[BaseException] = []
    module.__dict__[FAILED] = failed
    try:
        tree = ast.parse(Path(path).read_bytes(), path)
        for index, node in enumerate(tree.body):
            if index and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                text = f"try: pass\nexcept (Exception, SystemExit) as _error: {FAILED}.append(_error)"
                (attempt,) = ast.parse(text).body
                attempt.body = [node]  # type: ignore[attr-defined]
                tree.body[index] = attempt
        whole = ast.fix_missing_locations(tree)
        exec(compile(whole, path, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - no Python, so it cannot be judged
        failed.append(error)
    return module.__dict__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
