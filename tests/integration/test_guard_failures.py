"""What dynamo raises after a backend has returned, because of what the backend did, is the backend's failure."""

from __future__ import annotations

import breaks_guards
import pytest
import torch
from support.new_process import as_in_a_new_process  # noqa: F401 - a fixture for all tests here
from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError

from minidbg.core.outcome import Kind, Verdict
from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.oracle.execute import execute
from minidbg.wrapper import report_of, wrap

BROKEN = [
    breaks_guards.guards_on_its_own_symbol,
    breaks_guards.compares_its_own_symbols,
    breaks_guards.names_what_no_guard_knows,
]


def program(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).relu() * x.shape[0]


pytestmark = pytest.mark.usefixtures("answers")


every_broken_backend = pytest.mark.parametrize("backend", BROKEN, ids=lambda one: one.__name__)


@pytest.mark.slow
@every_broken_backend
def test_guards_that_cannot_be_built_are_a_failure_to_compile_that_the_oracle_sees(
    backend: object, cases: list[Case]
) -> None:
    with pytest.raises((AssertionError, IndexError, InternalTorchDynamoError)) as plain:
        torch.compile(program, backend=backend, dynamic=True)(torch.ones(5, 3))
    torch._dynamo.reset()
    with pytest.raises((BackendCompilerFailed, IndexError)) as raised:
        torch.compile(program, backend=wrap(backend, repro_dir="r"), dynamic=True)(torch.ones(5, 3))
    assert str(plain.value).split(". This")[0].splitlines()[0] in str(raised.value)
    assert report_of(raised.value) is not None
    (case,) = cases
    assert case.kind is Kind.COMPILE
    assert "guards" in case.provenance.notes[-1]
    torch._dynamo.reset()
    assert execute(case).verdict is Verdict.REPRODUCES


@every_broken_backend
def test_nothing_goes_on_from_a_shape_env_that_a_backend_has_spoilt(backend: object) -> None:
    wrapped = wrap([backend, "eager"], on_failure="fallback")
    with pytest.raises((BackendCompilerFailed, IndexError)) as raised:
        torch.compile(program, backend=wrapped, dynamic=True)(torch.ones(5, 3))
    assert report_of(raised.value) is not None


def test_guards_that_a_backend_may_add_are_no_failure(cases: list[Case]) -> None:
    """Each shape that the guard refuses is compiled anew."""
    compiled = torch.compile(program, backend=wrap(breaks_guards.guards_on_an_input), dynamic=True)
    for size in (5, 7, 8):
        assert torch.equal(compiled(torch.ones(size, 3)), program(torch.ones(size, 3)))
    assert not cases


def test_what_the_program_asks_of_dynamo_in_vain_is_not_the_backends_failure(cases: list[Case]) -> None:
    x = torch.ones(5, 3)
    torch._dynamo.mark_dynamic(x, 0)

    def only_for_five(x: torch.Tensor) -> torch.Tensor:
        return x.relu() if x.shape[0] == 5 else x

    with pytest.raises(Exception, match=r"(?i)constraint"):
        torch.compile(only_for_five, backend=wrap(breaks_guards.guards_on_an_input))(x)
    assert not cases


def test_sizes_that_were_numbers_are_numbers_in_a_candidate() -> None:
    """With ``dynamic=True``, which symbolic ints need, dynamo would make symbols of them all, of a view's base too."""
    seen: list[list[object]] = []

    def looks(gm: torch.fx.GraphModule, example_inputs: list[object]) -> object:
        placeholders = gm.graph.find_nodes(op="placeholder")
        examples = (node.meta["example_value"] for node in placeholders)
        seen.append([tuple(map(str, one.shape)) for one in examples if isinstance(one, torch.Tensor)])
        return torch.fx.Interpreter(gm).run

    x, table = torch.ones(5, 3), torch.arange(12).unsqueeze(0)

    def sliced(x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, table + 1

    graph_module, inputs = capture_by_dynamo(sliced, (x, table))
    case = Case(
        graph_module, tuple(inputs), RunSpec(BackendRef("looks", "looks"), dynamic=True), compiler=looks
    )
    execute(case.with_spec(dynamic_dims=((0,), ())))
    ((first, second),) = seen
    assert first[0] != "5"
    assert first[1] == "3"
    assert second == ("1", "12")
