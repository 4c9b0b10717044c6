"""Copied source gives way to the names of the script, and still does the same."""

from __future__ import annotations

import pytest

from minidbg.backends import avoid_names
from minidbg.backends.resolving import renamed
from minidbg.words.run_spec import BackendRef

PROGRAM = """
from time import time
import os.path
run = 3
def attempt(gm, run=run, *, k: "run" = 1):
    "run"  # run
    x = run + len([run for run in (1, 2)])
    return x if gm else attempt(True)
def both():
    global run
    run = run + 1
    return f"{run} {attempt(1)!r:>{run}}", [run for other in (1,)], {run: attempt}, (lambda run: run)(run)
def hides():
    attempt = 5
    def inner():
        return attempt
    import json as run
    return inner(), run.dumps([1])
def catches():
    try:
        raise ValueError("x")
    except ValueError as run:
        return str(run)
class K:
    run = 7
    def attempt(self):
        return run, self.run
def asks():
    return attempt(0), K().attempt(), callable(time), os.path.sep
"""


def test_renamed_source_does_the_same() -> None:
    names = {"run": "run_", "attempt": "attempt_", "time": "time_"}
    old: dict[str, object] = {}
    new: dict[str, object] = {"run": None, "time": None}
    exec(PROGRAM, old)
    exec(renamed(PROGRAM, names), new)
    new["attempt"] = None  # as the script's own definition below would

    for function in ("both", "hides", "catches", "asks"):
        before, after = old[function](), new[function]()  # type: ignore[operator]
        if function == "both":
            assert before[2].keys() == after[2].keys()
            before, after = (before[:2], before[3]), (after[:2], after[3])
        assert before == after, function


def test_definition_keeps_its_own_name_in_tracebacks() -> None:
    space: dict[str, object] = {}
    exec(renamed("def run(gm):\n    return gm", {"run": "run_"}), space)

    assert space["run_"].__code__.co_qualname == "run"  # type: ignore[attr-defined]


def test_comments_and_layout_stay() -> None:
    text = "def use(gm):\n    # what run does\n    return run( gm,  1 )  # run"

    assert renamed(text, {"run": "run_"}) == text.replace("return run(", "return run_(")


def test_columns_are_right_behind_letters_of_several_bytes() -> None:
    assert renamed("x = 'é' + run", {"run": "run_"}) == "x = 'é' + run_"


def test_reference_without_collisions_is_left_alone() -> None:
    ref = BackendRef(
        "b", "mine", embedded="import re\nimport torch\n\n\ndef mine(gm, inputs):\n    return re, torch"
    )

    assert avoid_names(ref, {"re", "torch", "run"}, ["import re", "import torch"]) is ref


@pytest.mark.parametrize("line", ["from time import time", "import json as time", "time = 3"])
def test_import_of_another_thing_gives_way(line: str) -> None:
    ref = BackendRef("b", "mine(time)", embedded=f"{line}\n\n\ndef mine(gm):\n    return time")

    found = avoid_names(ref, {"time"}, ["import time"])

    assert found.expression == "mine(time_)"
    assert "return time_" in found.embedded


def test_new_name_is_free() -> None:
    ref = BackendRef("b", "run", embedded="run = 1\nrun_ = 2")

    assert avoid_names(ref, {"run"}).expression == "run__"


def test_copied_source_inside_the_backend_function_is_renamed_too() -> None:
    ref = BackendRef(
        "b", "mine", setup=("import a", "global a, inputs, mine\ninputs = 1\ndef mine(gm): return inputs")
    )

    found = avoid_names(ref, {"inputs", "a"})

    assert found.setup[0] == "import a"
    assert found.setup[1].startswith("global a, inputs_, mine\ninputs_ = 1")
