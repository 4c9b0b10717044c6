"""An interpreter that judges wraps nothing, and torch's override variable has wrapped what the program asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import planted_backends as planted
import pytest
import torch
from support.new_process import Answers, as_in_a_new_process  # noqa: F401 - a fixture for all tests here
from torch._dynamo.backends.common import aot_autograd

import minidbg
from minidbg import torch_internals
from minidbg.asking.execute import execute
from minidbg.fx.case import Case
from minidbg.words import environment
from minidbg.words.errors import BadSetting
from minidbg.words.outcome import Verdict
from minidbg.wrapper.wrapper import WrappedBackend

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
    "backend",
    [
        lambda: minidbg.wrap(planted.raises_on_relu),
        lambda: minidbg.wrap([planted.raises_on_relu, "eager"]),
        lambda: minidbg.wrap(knows_options, options={"level": 2}, mode="fast"),
        lambda: aot_autograd(fw_compiler=minidbg.wrap_compiler(planted.raises_on_relu)),
    ],
    ids=["backend", "chain", "options", "compiler"],
)
def test_no_failure_is_answered_there(backend: Callable[[], Any], cases: list[Case]) -> None:
    with pytest.raises(Exception, match=r"relu") as caught:
        torch.compile(relu, backend=backend())(torch.ones(3))
    assert minidbg.report_of(caught.value) is None
    assert cases == []


@pytest.mark.usefixtures("judging")
def test_options_reach_the_backend_there_as_ever() -> None:
    wrapped = minidbg.wrap(knows_options, options={"level": 2}, mode="fast")
    with pytest.raises(Exception, match=r"mode=fast options=\{'level': 2\}"):
        torch.compile(relu, backend=wrapped)(torch.ones(3))


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


@pytest.fixture
def overridden() -> Iterator[None]:
    """As with ``>=0:minidbg`` in the variable, which torch reads when it is imported."""
    with torch._dynamo.config.patch(debug_backend_override=">=0:minidbg"):
        yield


def said_when_compiled_by(backend: Any, **given: Any) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever the backend raises
        torch.compile(relu, backend=backend, **given)(torch.ones(3))
    assert caught.value.__notes__ == ["minidbg: report 1"]
    return str(caught.value)


@pytest.mark.usefixtures("overridden")
def test_the_backend_that_the_program_asked_for_is_wrapped(cases: list[Case]) -> None:
    said_when_compiled_by(planted.raises_on_relu)
    (case,) = cases
    assert case.backend.name == "planted_backends.raises_on_relu"


@pytest.mark.usefixtures("overridden")
@pytest.mark.parametrize("given", [{"mode": "fast"}, {"options": {"level": 2}}])
def test_with_its_mode_or_options(cases: list[Case], given: dict[str, Any]) -> None:
    said = said_when_compiled_by(knows_options, **given)
    assert f"mode={given.get('mode')} options={given.get('options')}" in said
    (case,) = cases
    assert (case.backend.mode, dict(case.backend.options)) == (given.get("mode"), given.get("options", {}))


@pytest.mark.usefixtures("overridden")
def test_a_program_that_wraps_itself_is_not_wrapped_twice(cases: list[Case]) -> None:
    said_when_compiled_by(minidbg.wrap(planted.raises_on_relu, tolerances="bfloat16"))
    assert len(cases) == 1


@pytest.mark.usefixtures("overridden")
def test_a_program_that_names_minidbg_keeps_its_options(cases: list[Case]) -> None:
    said_when_compiled_by("minidbg", options={"backend": planted.raises_on_relu})
    (case,) = cases
    assert case.backend.name == "planted_backends.raises_on_relu"


@pytest.mark.usefixtures("overridden")
def test_inductor_keeps_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    def compiled(self: WrappedBackend, gm: Any, *arguments: Any) -> Any:
        seen.append((self.backends, self.options))
        return gm.forward

    monkeypatch.setattr(WrappedBackend, "compiled", compiled)
    torch.compile(relu, options={"epilogue_fusion": False})(torch.ones(3))
    assert [backends for backends, _ in seen] == [("inductor",)]
    assert seen[0][1]["epilogue_fusion"] is False


@pytest.mark.usefixtures("overridden")
def test_a_capture_of_torchs_own_is_left_alone(cases: list[Case]) -> None:
    exported = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
    assert torch.equal(exported.module()(torch.ones(3)), torch.ones(3))
    assert cases == []


@pytest.mark.usefixtures("overridden")
def test_a_backend_that_calls_minidbg_itself_asks_for_no_override(cases: list[Case]) -> None:
    """Else it would be called for itself without end."""

    def outer(gm: Any, example_inputs: Any) -> Any:
        return torch_internals.registered_backend("minidbg")(
            gm, example_inputs, options={"backend": planted.raises_on_relu}
        )

    said_when_compiled_by(outer)
    (case,) = cases
    assert case.backend.name == "planted_backends.raises_on_relu"


@pytest.mark.usefixtures("overridden")
def test_what_torch_does_not_say_the_variable_does(
    monkeypatch: pytest.MonkeyPatch, cases: list[Case]
) -> None:
    monkeypatch.setattr(torch_internals.private_names, "TAKEN_AWAY", {"asked_in_place_of"})
    monkeypatch.setenv("TORCH_COMPILE_OVERRIDE_BACKENDS", ">=0:minidbg")
    with pytest.raises(Exception, match="MINIDBG_BACKEND=NAME, or MODULE:ATTRIBUTE, says it"):
        torch.compile(relu, backend="eager")(torch.ones(3))
    torch._dynamo.reset()
    monkeypatch.setenv("MINIDBG_BACKEND", "planted_backends:raises_on_relu")
    with pytest.raises(Exception, match="relu"):
        torch.compile(relu, backend="eager")(torch.ones(3))
    (case,) = cases
    assert case.backend.name == "planted_backends.raises_on_relu"


@pytest.mark.usefixtures("overridden")
def test_a_question_is_asked_of_the_cases_backend(cases: list[Case]) -> None:
    """A fork has the option as it was read when torch was imported; a script must not say it either."""
    said_when_compiled_by(planted.raises_on_relu)
    (case,) = cases
    assert "debug_backend_override" not in str(case.spec.context.config)
    with torch._dynamo.config.patch(debug_backend_override=">=0:eager"):
        assert execute(case).verdict is Verdict.REPRODUCES
