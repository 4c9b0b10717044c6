"""What a child of minidbg's inherits."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from minidbg.core import environment

OF_A_PROGRAM = {
    "MINIDBG__RUN": "{}",
    "TORCH_COMPILE_OVERRIDE_BACKENDS": ">=0:minidbg",
    "TORCH_COMPILE_OVERRIDE_INDUCTOR_CONFIGS": ">=0:max_autotune=True",
    "TORCH_COMPILE_OVERRIDE_DYNAMO_CONFIGS": ">=0:specialize_float=True",
}


@pytest.fixture
def of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OF_A_PROGRAM.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(environment.HOOK), "/their/own"]))


@pytest.mark.usefixtures("of_a_program")
@pytest.mark.parametrize("environ", [environment.for_judge, environment.for_tool])
def test_what_has_the_program_wrapped_stays_with_the_program(
    environ: Callable[[], dict[str, str]],
) -> None:
    made = environ()
    assert not OF_A_PROGRAM.keys() & made.keys()
    assert made["PYTHONPATH"] == "/their/own"
    assert made["PATH"] == os.environ["PATH"]


def test_a_path_with_nothing_but_the_hook_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty PYTHONPATH would be the working directory."""
    monkeypatch.setenv("PYTHONPATH", str(environment.HOOK))
    assert "PYTHONPATH" not in environment.for_judge()


def test_who_judges_is_marked_and_a_tool_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.JUDGING, "1")
    assert environment.JUDGING in environment.for_judge()
    assert environment.JUDGING not in environment.for_tool()
    assert environment.JUDGING not in environment.for_program({})


def test_given_variables_have_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("PYTHONHOME", "/here")
    made = environment.for_judge(environment.ONE_THREAD, {"OMP_NUM_THREADS": "5", "PYTHONHOME": None})
    assert (made["OMP_NUM_THREADS"], made["MKL_NUM_THREADS"]) == ("5", "1")
    assert "PYTHONHOME" not in made


@pytest.mark.usefixtures("of_a_program")
def test_a_program_has_its_own_variables_and_the_hook_first() -> None:
    made = environment.for_program({"MINIDBG__RUN": "orders"})
    assert made["PYTHONPATH"].split(os.pathsep)[0] == str(environment.HOOK)
    assert made["TORCH_COMPILE_OVERRIDE_BACKENDS"] == OF_A_PROGRAM["TORCH_COMPILE_OVERRIDE_BACKENDS"]
    assert made["MINIDBG__RUN"] == "orders"


@pytest.mark.usefixtures("of_a_program")
def test_a_process_that_judges_for_a_while_is_afterwards_as_it_was() -> None:
    before = dict(os.environ)
    with environment.judging():
        assert environment.is_judging()
        assert "TORCH_COMPILE_OVERRIDE_BACKENDS" not in os.environ
        with environment.judging():
            pass
        assert environment.is_judging()
    assert dict(os.environ) == before
