"""From a failure to a case: stand-ins for what was not there, the user's line, numbers for symbolic ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import fx, nn
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from minidbg.codegen.origins import user_line
from minidbg.core.errors import BackendUnreachable
from minidbg.core.outcome import Kind
from minidbg.core.run_spec import STAND_IN_NOTE, CallPath, Level
from minidbg.core.settings import Settings
from minidbg.wrapper.capture import Failure, case_of_failure, real_value, reference_of_link
from minidbg.wrapper.chain import Link


def small_graph() -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: (torch.relu(x) + 1,))


def failing(
    graph: fx.GraphModule, inputs: tuple[object, ...], level: Level = Level.DYNAMO, **changes: object
) -> Failure:
    try:
        raise ValueError("relu of this is not known\nsecond line")
    except ValueError as error:
        return Failure(graph, inputs, Link("eager", level=level), Kind.COMPILE, error, **changes)


def test_what_the_user_says_of_a_backend_is_refused_where_it_leads_nowhere() -> None:
    hidden = Link((lambda secret: lambda gm, inputs: secret)(object()))
    failure = replace(failing(small_graph(), (torch.ones(2),)), link=hidden)
    with pytest.raises(BackendUnreachable, match="reference='torch:nothing' cannot be imported"):
        case_of_failure(failure, Settings(reference="torch:nothing"))


def test_fake_inputs_are_replaced_by_seeded_ones_and_that_is_said() -> None:
    with FakeTensorMode() as mode:
        values = (
            torch.empty_strided((2, 3), (1, 2)),
            torch.empty(4, dtype=torch.long),
            torch.empty(2, dtype=torch.bool),
            mode.from_tensor(nn.Parameter(torch.ones(3))),
            torch.empty(0),
        )
    failure = failing(small_graph(), values)
    first, second = case_of_failure(failure, Settings()), case_of_failure(failure, Settings())
    assert STAND_IN_NOTE in first.provenance.notes
    for fake, value, again in zip(values, first.inputs, second.inputs, strict=True):
        assert type(value) in (torch.Tensor, nn.Parameter)
        assert (value.shape, value.stride(), value.dtype) == (fake.shape, fake.stride(), fake.dtype)
        assert value.requires_grad == fake.requires_grad
        assert torch.equal(value, again)
    assert first.inputs[1].max() <= 1
    assert isinstance(first.inputs[3], nn.Parameter)


def test_symbolic_numbers_become_those_of_this_run_without_a_guard() -> None:
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    fake = mode.from_tensor(
        torch.ones(7, 5),
        source=ConstantSource("x"),
        symbolic_context=StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC]),
    )
    assert real_value(fake.shape[0], 0) == 7
    assert type(real_value(fake.shape[0], 0)) is int
    assert tuple(real_value(fake, 0).shape) == (7, 5)
    assert not environment.guards


def test_the_users_line_is_the_one_the_message_names() -> None:
    graph = small_graph()
    relu, add = (node for node in graph.graph.nodes if node.op == "call_function")
    relu.meta["stack_trace"] = '  File "/src/train.py", line 7, in forward\n    h = torch.relu(x)\n'
    add.meta["stack_trace"] = (
        '  File "/src/train.py", line 8, in forward\n    return scaled(h)\n'
        '  File "/src/ops.py", line 3, in scaled\n    return h + 1\n'
    )
    assert user_line(graph, "no kernel") == ("train.py:7", "h = torch.relu(x)")
    assert user_line(graph, "no kernel", last=True) == ("ops.py:3", "return h + 1")
    assert user_line(graph, f"while lowering '{add.name}'") == ("ops.py:3", "return h + 1")
    add.name = "add_3"
    assert user_line(graph, "cannot lower add_3 here") == ("ops.py:3", "return h + 1")
    assert user_line(graph, "cannot lower add_31 here") == ("train.py:7", "h = torch.relu(x)")
    assert user_line(graph, "target: add\n  return h + 1\n") == ("ops.py:3", "return h + 1")


@pytest.mark.parametrize(
    ("message", "head"),
    [("x" * 9000, "x" * 4000), ("\n".join(map(str, range(100))), "\n".join(map(str, range(20))))],
)
def test_a_long_message_is_cut(message: str, head: str) -> None:
    failure = replace(failing(small_graph(), (torch.ones(2),)), error=ValueError(message))
    assert case_of_failure(failure, Settings()).provenance.message == head


def test_a_freed_tensor_is_stood_in_for_and_that_is_said() -> None:
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    case = case_of_failure(failing(small_graph(), (freed,)), Settings())
    assert STAND_IN_NOTE in case.provenance.notes
    assert case.inputs[0].shape == (3,)
    assert (
        STAND_IN_NOTE
        not in case_of_failure(failing(small_graph(), (torch.ones(3),)), Settings()).provenance.notes
    )


def test_an_input_whose_device_is_in_error_is_said_to_be_stood_in_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("minidbg.torch_internals.devices.in_error", lambda values: True)
    assert (
        STAND_IN_NOTE
        in case_of_failure(failing(small_graph(), (torch.ones(3),)), Settings()).provenance.notes
    )


def test_a_symbolic_number_without_a_value_in_this_run_is_two() -> None:
    """0 and 1 are special to torch."""
    assert real_value(ShapeEnv().create_unbacked_symint(), 0) == 2


def test_a_graph_of_aot_autograd_is_called_by_itself_without_gradients_and_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        aten = case_of_failure(failing(small_graph(), (torch.ones(2),), level=Level.ATEN), Settings())
        dynamo = case_of_failure(failing(small_graph(), (torch.ones(2),)), Settings())
    assert (aten.spec.call, aten.spec.context.grad, aten.spec.context.autocast) == (
        CallPath.DIRECT,
        False,
        (),
    )
    assert (dynamo.spec.call, dynamo.spec.context.grad) == (CallPath.TORCH_COMPILE, True)
    assert dynamo.spec.context.autocast != ()


def test_a_backend_is_looked_for_once() -> None:
    known = Link("eager")
    assert reference_of_link(known, Settings()) is reference_of_link(known, Settings())


def test_a_case_says_which_nodes_the_frames_of_its_failure_held() -> None:
    graph = small_graph()

    def refuse_relu() -> None:
        for node in graph.graph.nodes:
            if node.target is torch.relu:
                raise ValueError("no kernel")

    try:
        refuse_relu()
    except ValueError as error:
        failure = Failure(graph, (torch.ones(2),), Link("eager"), Kind.COMPILE, error)
    assert case_of_failure(failure, Settings()).provenance.suspects == ("relu",)
