"""Whatever a backend is, raises or returns, the wrapped program ends as the bare one does: the same exception, the same result."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from odd_kinds import KINDS, ReprRaises

import minidbg

WRONG_RESULTS = ("its code returns an iterator", "its code returns a number", "its code returns None")
"""What a comparison with eager finds before the program itself fails on it."""


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + 1


def ending(backend: Callable[..., Any]) -> tuple[Any, ...]:
    """The result, or the exception with the one inside it: classes and what can be had of the texts."""
    torch._dynamo.reset()
    try:
        return "result", torch.compile(program, backend=backend)(torch.tensor([-1.0, 2.0])).tolist()
    except BaseException as error:  # noqa: BLE001 - an exit as well
        inner = vars(error).get("inner_exception")
        return ("error", *map(of_exception, (error, inner, error.__cause__)))


def of_exception(error: BaseException | None) -> tuple[str, str] | None:
    if error is None:
        return None
    try:
        # torch puts the backend's address, and its name, into the text
        text = "" if "inner_exception" in vars(error) else str(error)[:45]
    except Exception:  # noqa: BLE001 - the point
        text = "no text"
    return type(error).__name__, text


def test_a_backend_without_a_text_of_its_own_is_wrapped_although_torch_refuses_it() -> None:
    assert ending(ReprRaises())[:2] == ("error", ("ValueError", "no repr"))
    assert ending(minidbg.wrap(ReprRaises())) == ("result", [1.0, 3.0])


@pytest.mark.parametrize(  # most of them in the slow step
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (place % 4 > 0)) for place, name in enumerate(KINDS)],
)
def test_a_wrapped_backend_of_an_odd_kind_ends_as_the_bare_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIDBG_DIR", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bare = ending(KINDS[name])
        verify = "never" if name in WRONG_RESULTS else "first"
        assert ending(minidbg.wrap(KINDS[name], reduce="later", verify=verify)) == bare
