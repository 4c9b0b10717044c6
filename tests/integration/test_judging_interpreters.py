"""An interpreter that judges wraps nothing, and torch's override variable reaches no question."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import planted_backends as planted
import pytest
import torch
from support.new_process import Answers, as_in_a_new_process  # noqa: F401 - a fixture for all tests here
from torch._dynamo.backends.common import aot_autograd

import minidbg
from minidbg.core import environment
from minidbg.core.errors import BadSetting
from minidbg.core.outcome import Verdict
from minidbg.fx.case import Case
from minidbg.oracle.execute import execute

pytestmark = pytest.mark.usefixtures("answers")


def relu(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.sin())


def knows_options(gm: Any, example_inputs: Any, *, mode: str | None = None, options: Any = None) -> Any:
    """Fails on relu, and says what it was given."""
    if planted.has_relu(gm):
        raise NotImplementedError(f"no relu with mode={mode} options={options}")
    return gm.forward


# ---- the mark


@pytest.fixture
def judging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.JUDGING, "1")


@pytest.mark.usefixtures("judging")
def test_wrap_gives_the_backend_as_it_is_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "minidbg"):
        assert minidbg.wrap(planted.raises_on_relu) is planted.raises_on_relu
    assert "not_wrapped: raises_on_relu, since this interpreter judges a repro" in caplog.messages


@pytest.mark.usefixtures("judging")
@pytest.mark.parametrize(
    ("backend", "says"),
    [
        (lambda: minidbg.wrap(planted.raises_on_relu), "relu"),
        (lambda: minidbg.wrap([planted.raises_on_relu, "eager"]), "relu"),
        (lambda: minidbg.wrap(knows_options, options={"level": 2}, mode="fast"), r"mode=fast options=\{'level': 2\}"),
        (lambda: aot_autograd(fw_compiler=minidbg.wrap_compiler(planted.raises_on_relu)), "relu"),
    ],
    ids=["backend", "chain", "options", "compiler"],
)  # fmt: skip
def test_no_failure_is_answered_there(backend: Callable[[], Any], says: str, cases: list[Case]) -> None:
    with pytest.raises(Exception, match=says) as caught:
        torch.compile(relu, backend=backend())(torch.ones(3))
    assert minidbg.report_of(caught.value) is None
    assert cases == []


@pytest.mark.usefixtures("judging")
def test_a_name_works_there_too(cases: list[Case]) -> None:
    torch.compile(relu, backend=minidbg.wrap("aot_eager"))(torch.ones(3))
    torch.compile(relu, backend="minidbg", options={"backend": "aot_eager"})(torch.ones(3))
    with pytest.raises(BadSetting):
        minidbg.wrap("aot_eager", verify="sometimes")  # type: ignore[arg-type]  # what is wrong is wrong everywhere


def test_what_was_used_while_a_question_ran_is_wrapped_afterwards(
    monkeypatch: pytest.MonkeyPatch, cases: list[Case]
) -> None:
    options = {"backend": planted.raises_on_relu}
    for answered, change in enumerate((monkeypatch.setenv, monkeypatch.delenv)):
        change(environment.JUDGING, *["1"][answered:])
        torch._dynamo.reset()
        with pytest.raises(Exception, match="relu"):
            torch.compile(relu, backend="minidbg", options=options)(torch.ones(3))
        assert len(cases) == answered


# ---- by name


def test_by_name_the_line_is_on_the_exception(answers: Answers) -> None:
    """The entry point stands between torch and the wrapper, which must know who calls."""
    with pytest.raises(Exception, match="backend='raises_on_relu' raised") as caught:
        torch.compile(relu, backend="minidbg", options={"backend": planted.raises_on_relu})(torch.ones(3))
    assert caught.value.__notes__ == ["minidbg: report 1"]
    assert minidbg.report_of(caught.value) is not None


# ---- TORCH_COMPILE_OVERRIDE_BACKENDS


def test_torchs_variable_cannot_name_minidbg(monkeypatch: pytest.MonkeyPatch, cases: list[Case]) -> None:
    """It would be called in place of the backend that the program asked for, and wrap another."""
    monkeypatch.setenv("TORCH_COMPILE_OVERRIDE_BACKENDS", ">=0:minidbg")
    sentence = pytest.raises(Exception, match="use 'minidbg run' instead")
    with torch._dynamo.config.patch(debug_backend_override=">=0:minidbg"), sentence:
        torch.compile(relu, backend="eager")(torch.ones(3))
    assert cases == []


def test_a_question_is_asked_of_the_cases_backend(cases: list[Case]) -> None:
    """A fork has the option as it was read when torch was imported; a script must not say it either."""
    with pytest.raises(Exception, match="relu"):
        torch.compile(relu, backend=minidbg.wrap(planted.raises_on_relu))(torch.ones(3))
    (case,) = cases
    with torch._dynamo.config.patch(debug_backend_override=">=0:eager"):
        assert execute(case).verdict is Verdict.REPRODUCES
