"""A backend to which nothing leads: what a person is told to fill in, what goes into a file for children, and what is refused."""

from __future__ import annotations

import functools
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from minidbg.backends import assignment, is_pickled, pickled, resolve, to_fill_in, to_keep
from minidbg.words.errors import BackendUnreachable
from minidbg.words.run_spec import BackendRef


def make(level: Any) -> Callable[..., Any]:
    def closure(gm: Any, inputs: Any) -> Any:
        return level

    return closure


class Stateful:
    def __init__(self) -> None:
        self.level = 3

    def __call__(self, gm: Any, inputs: Any) -> Any:
        return self.level

    def method(self, gm: Any, inputs: Any) -> Any:
        return self.level


class BreaksWhenMadeAgain(Stateful):
    def __reduce__(self) -> Any:
        return refuse, ()


def refuse() -> Any:
    raise ConnectionError("the compiler's service is not there")


def line_of(function: Any) -> int:
    return int(function.__code__.co_firstlineno)


@pytest.mark.parametrize(
    ("backend", "what"),
    [
        (make(3), f"a closure of test_pickled.py:{line_of(make(3))}"),
        (
            functools.partial(make(3)),
            f"a functools.partial of a closure of test_pickled.py:{line_of(make(3))}",
        ),
        (Stateful(), "an object of the class Stateful of test_pickled.py:"),
        (Stateful().method, "the method method of an object of the class Stateful of test_pickled.py:"),
        (aot_autograd(fw_compiler=make(3)), "aot_autograd over a closure of test_pickled.py:"),
    ],
)
def test_a_script_says_which_kind_of_object_is_to_be_filled_in_and_where_it_was_defined(
    backend: Any, what: str
) -> None:
    lacks = to_fill_in(backend, options={"level": 2})

    assert lacks.fill_in.startswith(what)
    assert assignment(lacks) == f"backend = ...  # fill in: {lacks.fill_in}"
    assert lacks.options == {"level": 2}
    assert BackendRef.from_table(lacks.to_table()).fill_in == lacks.fill_in


def test_a_file_name_of_several_lines_stays_within_the_comment() -> None:
    namespace: dict[str, Any] = {}
    text = "def make(x):\n    def closure(gm, inputs):\n        return x\n    return closure"
    exec(compile(text, "two\nlines.py", "exec"), namespace)

    compile(assignment(to_fill_in(namespace["make"](1))), "<script>", "exec")


def test_an_option_that_is_no_literal_is_refused() -> None:
    with pytest.raises(BackendUnreachable, match="is no literal"):
        to_fill_in(make(3), options={"hook": object()})


@pytest.mark.parametrize("backend", [make(3), Stateful(), Stateful().method, functools.partial(make(3))])
def test_a_child_gets_the_object_with_its_state_out_of_a_file_for_this_user_alone(
    backend: Any, tmp_path: Path
) -> None:
    path = tmp_path / "backend.pickle"
    pickled.pickle_into(path, backend)
    reference = pickled.at(path, to_fill_in(backend))

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found: Any = resolve(reference)
    assert found is not backend
    assert found(None, None) == 3


def test_what_stays_says_nothing_of_the_file(tmp_path: Path) -> None:
    lacks = to_fill_in(make(3), setup="import math")
    reference = pickled.at(tmp_path / "backend.pickle", lacks)

    assert is_pickled(reference)
    assert to_keep(reference) == lacks
    assert to_keep(lacks) is lacks


def test_the_program_s_folders_are_those_that_nobody_installs_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "venv" / "site-packages"
    installed.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(installed), str(tmp_path / "gone"), *sys.path])

    folders = pickled.folders_of_program()

    assert folders[0] == str(tmp_path)
    assert not {str(installed), str(tmp_path / "gone")} & set(folders)
    assert not [one for one in folders if "site-packages" in one or one.endswith("lib-dynload")]


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (threading.Lock(), "cannot pickle '_thread.lock' object"),
        (sys.stdout.buffer if hasattr(sys.stdout, "buffer") else sys.stderr, "cannot pickle"),
        (torch.library.Library("minidbg_test_pickled", "FRAGMENT"), ""),
    ],
    ids=["lock", "file", "library"],
)
def test_what_holds_something_of_its_process_is_refused_with_the_reason(
    held: Any, why: str, tmp_path: Path
) -> None:
    with pytest.raises(BackendUnreachable, match=f"it cannot be pickled: .*{why}"):
        pickled.pickle_into(tmp_path / "backend.pickle", make(held))
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_limit_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "backend.pickle"
    with pytest.raises(BackendUnreachable, match="it takes more than 100,000 bytes"):
        pickled.pickle_into(path, make(b"x" * 100_000), limit_bytes=100_000)
    assert list(tmp_path.iterdir()) == []
    pickled.pickle_into(path, make(b"x" * 90_000), limit_bytes=100_000)


def test_an_error_of_making_it_again_is_none_of_the_backend(tmp_path: Path) -> None:
    path = tmp_path / "backend.pickle"
    pickled.pickle_into(path, BreaksWhenMadeAgain())
    with pytest.raises(BackendUnreachable, match="cannot be unpickled in another process: ConnectionError"):
        resolve(pickled.at(path, to_fill_in(BreaksWhenMadeAgain())))
