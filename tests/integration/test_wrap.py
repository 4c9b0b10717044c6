"""What a program sees of ``minidbg.wrap``: nothing while its backend works, its own exception when it fails.

The answer to a failure is a stub here; ``torch.compile`` and the backends are real. No C++ compiler is used.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.compile_fx  # else dynamo.reset() imports it by the wrapper, while it goes over its table of backends
from functorch.compile import nop
from support.new_process import Answers, as_in_a_new_process, warnings_of  # noqa: F401 - a fixture for all tests here
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch._dynamo.exc import BackendCompilerFailed, SkipFrame, TensorifyScalarRestartAnalysis
from torch._dynamo.testing import CompileCounter
from torch._functorch.aot_autograd import make_boxed_func
from torch._subclasses.fake_tensor import DataDependentOutputException, UnsupportedFakeTensorException

from minidbg.core.errors import BadSetting, UnknownBackend
from minidbg.core.metrics import BadJudge
from minidbg.core.outcome import Direction, Kind
from minidbg.core.settings import Reduce, Settings
from minidbg.fx.case import Case
from minidbg.wrapper import Report, entry_point, report_of, wrap
from minidbg.wrapper.process import PROCESS, stats

pytestmark = pytest.mark.usefixtures("answers")


# ---- small backends, one trait each


class Refused(Exception):
    """What the backends here raise while compiling."""


def raises(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    raise Refused("this graph is refused")


def raises_index_error(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    raise IndexError("dimension 9 is not there")


def raises_when_called(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    def compiled_fn(*args: Any) -> Any:
        raise RuntimeError("kernel failed")

    return compiled_fn


def writes_then_raises(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    """Runs the whole graph, mutations and random numbers included, and fails after it."""

    def compiled_fn(*args: Any) -> Any:
        gm(*args)
        raise RuntimeError("kernel failed after writing")

    return compiled_fn


def writes_while_compiling_then_raises(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    gm(*example_inputs)
    raise Refused("ran it, then refused it")


def raises_from_the_second_call(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    calls = 0

    def compiled_fn(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        result = gm(*args)
        if calls > 1:
            raise RuntimeError("kernel failed the second time")
        return result

    return compiled_fn


def mutilates_the_graph_and_raises(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    output = next(node for node in gm.graph.nodes if node.op == "output")
    output.args = ((),)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    raise Refused("refused, and the graph is gone")


def returns_a_boxed_function(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    def boxed(*args: Any) -> Any:
        return gm(*args)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def returns_a_lazy_graph_module(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule.from_graphmodule(gm).forward


def returns_no_callable(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    return None


def fail(action: Callable[[], Any]) -> Exception:
    """The exception that ``action`` ends with."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - the test looks at it, whatever it is
        return error
    raise AssertionError("it did not fail")


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def accumulate(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def without_and_with(backend: Any) -> tuple[Exception, Exception]:
    """What a program gets whose backend fails, alone and wrapped."""
    plain = fail(lambda: torch.compile(double, backend=backend)(torch.ones(2)))
    torch._dynamo.reset()
    return plain, fail(lambda: torch.compile(double, backend=wrap(backend))(torch.ones(2)))


# ---- transparent while it works


@pytest.mark.parametrize("backend", [returns_a_boxed_function, returns_a_lazy_graph_module])
def test_odd_forms_of_compiled_functions_work(backend: Any, answers: Answers) -> None:
    x = torch.randn(4, 6)
    compiled = torch.compile(double, backend=wrap(backend))
    assert torch.equal(compiled(x), double(x))
    assert torch.equal(compiled(x), double(x))
    assert not answers.cases


def test_the_backend_gets_the_very_objects_once() -> None:
    seen: list[tuple[Any, Any]] = []

    def outer(gm: fx.GraphModule, example_inputs: Any) -> Any:
        passed.append((gm, example_inputs))
        return inner(gm, example_inputs)

    def spy(gm: fx.GraphModule, example_inputs: Any) -> Any:
        seen.append((gm, example_inputs))
        return gm.forward

    passed: list[tuple[Any, Any]] = []
    inner = wrap(spy)
    torch.compile(double, backend=outer)(torch.ones(3))
    assert len(seen) == 1
    assert seen[0][0] is passed[0][0]
    assert seen[0][1] is passed[0][1]


@pytest.mark.parametrize("call_before", [0, 1])
def test_a_healthy_backend_is_not_blamed_for_the_programs_own_error(
    call_before: int, answers: Answers
) -> None:
    table = nn.Embedding(4, 2)
    compiled = torch.compile(lambda i: table(i), backend=wrap("eager"))
    for works in range(call_before):
        compiled(torch.tensor([1, 2 + works]))
    for index in (9, 11):
        error = fail(lambda index=index: compiled(torch.tensor([index, 0])))
        assert isinstance(error, IndexError)
        assert report_of(error) is None
        assert not getattr(error, "__notes__", [])
    assert not answers.cases


def test_a_wrapper_made_in_a_loop_compiles_once() -> None:
    """Dynamo guards on the backend by ==; without value equality it recompiles and gives up at its limit."""
    counter = CompileCounter()
    for _ in range(20):
        torch.compile(double, backend=wrap(counter))(torch.ones(3))
    assert counter.frame_count == 1


def test_wrappers_compare_by_backend_options_and_settings() -> None:
    assert wrap("eager") == wrap("eager")
    assert hash(wrap("eager")) == hash(wrap("eager"))
    assert wrap("eager") != wrap("aot_eager")
    assert wrap("eager") != wrap("eager", on_failure="fallback")
    assert wrap("inductor", options={"max_autotune": True}) == wrap(options={"max_autotune": True})
    assert wrap("inductor", options={"max_autotune": True}) != wrap("inductor")
    assert wrap("inductor", mode="max-autotune") != wrap("inductor")
    assert wrap(["eager", "aot_eager"]) != wrap("eager")
    assert wrap("eager") != "eager"


def test_a_wrapper_can_be_registered_under_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.backends import registry

    torch._dynamo.list_backends()  # torch fills its tables once: not in the copies below
    monkeypatch.setattr(registry, "_COMPILER_FNS", dict(registry._COMPILER_FNS))
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))
    register_backend(wrap("eager"), name="wrapped_eager")
    assert torch.equal(torch.compile(double, backend="wrapped_eager")(torch.ones(2)), torch.full((2,), 3.0))


def test_the_wrapper_has_the_wrapped_backends_name() -> None:
    assert wrap("inductor").__name__ == "inductor"
    assert wrap(raises).__name__ == "raises"
    assert wrap(aot_autograd(fw_compiler=raises)).__name__ == "compiler_fn"
    assert wrap(["eager", "inductor"]).__name__ == "eager"


# ---- options, mode, reset, configuration


class TakesOptions:
    """Remembers its keyword arguments, and what else torch.compile asks of it."""

    def __init__(self) -> None:
        self.__name__ = "takes_options"
        self.given: list[dict[str, Any]] = []
        self.resets = 0

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        self.given.append(kwargs)
        return gm.forward

    def reset(self) -> None:
        self.resets += 1

    def get_compiler_config(self) -> dict[str, Any]:
        return {"level": 3}


def test_options_reach_another_backend_as_keyword_arguments_only_when_given() -> None:
    backend = TakesOptions()
    torch.compile(double, backend=wrap(backend))(torch.ones(2))
    torch.compile(double, backend=wrap(backend, options={"level": 1}))(torch.ones(2))
    torch.compile(double, backend=wrap(backend, mode="fast"))(torch.ones(2))
    torch.compile(double, backend=wrap(backend), options={"level": 2})(torch.ones(2))
    torch.compile(double, backend=wrap(backend, options={"level": 2}), options={"more": 1})(torch.ones(2))
    torch.compile(double, backend=wrap(backend, options={"level": 1}), options={"level": 1})(torch.ones(2))
    torch.compile(double, backend=wrap(backend, options={}, mode="default"))(torch.ones(2))
    assert backend.given == [
        {},
        {"options": {"level": 1}},
        {"mode": "fast"},
        {"options": {"level": 2}},
        {"options": {"level": 2, "more": 1}},
        {"options": {"level": 1}},
        {},
    ]


def test_inductor_gets_options_and_mode_as_config_patches() -> None:
    config = wrap("inductor", mode="max-autotune", options={"epilogue_fusion": False}).get_compiler_config()
    assert config["max_autotune"] is True
    assert config["epilogue_fusion"] is False
    assert wrap("inductor").get_compiler_config()["epilogue_fusion"] is True


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (
            {"options": {"level": 1}},
            {"options": {"level": 2}},
            "option 'level' is 1 in minidbg.wrap and 2 in",
        ),
        ({"mode": "slow"}, {"mode": "fast"}, "mode is 'slow' in minidbg.wrap and 'fast' in torch.compile"),
    ],
)
def test_the_same_option_or_mode_with_two_values_names_both(ours: Any, theirs: Any, said: str) -> None:
    compiled = torch.compile(double, backend=wrap(TakesOptions(), **ours), **theirs)
    error = fail(lambda: compiled(torch.ones(2)))
    assert isinstance(error, BackendCompilerFailed)
    assert isinstance(error.inner_exception, BadSetting)
    assert said in str(error)


def test_reset_and_compiler_config_are_forwarded() -> None:
    backend = TakesOptions()
    wrapper = wrap(backend)
    torch.compile(double, backend=wrapper)(torch.ones(2))
    torch._dynamo.reset()
    assert backend.resets == 1
    assert wrapper.get_compiler_config() == {"level": 3}


class BeginsOnce:
    """A backend of torch 2.15: it is told before its first graph that somebody wants it."""

    def __init__(self) -> None:
        self.begun = 0

    def _dynamo_backend_init(self) -> None:
        self.begun += 1

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return gm.forward


def test_a_backend_that_is_to_be_begun_is_begun_as_without_the_wrapper() -> None:
    bare, wrapped, second = BeginsOnce(), BeginsOnce(), BeginsOnce()
    torch.compile(double, backend=bare)(torch.ones(2))
    torch.compile(double, backend=wrap(wrapped))(torch.ones(2))
    assert wrapped.begun == bare.begun
    torch.compile(double, backend=wrap([wrapped, second]))(torch.ones(2))
    assert (wrapped.begun, second.begun) == (2 * bare.begun, bare.begun)


def test_what_the_wrapped_backend_has_not_the_wrapper_has_not() -> None:
    assert not hasattr(wrap("eager"), "reset")
    assert not hasattr(wrap("eager"), "get_compiler_config")
    assert not hasattr(wrap("eager"), "_dynamo_backend_init")


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"backend": "inducter"}, UnknownBackend, "no backend named 'inducter'; did you mean 'inductor'"),
        ({"backend": ["eager", "inducter"]}, UnknownBackend, "'inducter'"),
        ({"backend": []}, BadSetting, "a chain needs one backend"),
        ({"backend": 3}, BadSetting, "backend=3: must be a name, a callable"),
        ({"backend": "minidbg"}, BadSetting, "does not wrap itself"),
        ({"on_failure": "explode"}, BadSetting, "on_failure='explode'.*'raise', 'fallback'"),
        ({"options": {"max_autotun": True}}, BadSetting, "Unexpected optimization option max_autotun$"),
        ({"options": {"max_autotune": "yes"}}, BadSetting, "max_autotune"),
        ({"judge": "psnr>3"}, BadJudge, "'psnr>3' is no judge"),
        ({"judge": ""}, BadJudge, "'' is no judge"),
        ({"mode": "max-autotun"}, BadSetting, "max-autotun, should be one of: .*max-autotune$"),
    ],
)
def test_bad_arguments_are_errors_at_once(
    arguments: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        wrap(**arguments)


# ---- by name, through the entry point


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"mode": "fast", "on_failure": "fallback", "level": 3}, {"mode": "fast", "options": {"level": 3}}),
        ({"options": {"seconds": 3}}, {"options": {"seconds": 3}}),
    ],
    ids=["settings and the backend's own", "a nested table, for what could be settings"],
)
def test_by_name_options_reach_the_backend(options: dict[str, Any], given: dict[str, Any]) -> None:
    backend = TakesOptions()
    torch.compile(double, backend="minidbg", options={"backend": backend, **options})(torch.ones(2))
    assert backend.given == [given]


def test_by_name_torch_compiles_own_mode_reaches_the_backend() -> None:
    wrapped = entry_point.wrapped({"mode": "max-autotune"})
    assert wrapped.backends == ("inductor",)
    assert wrapped.mode == "max-autotune"


@pytest.mark.skipif(not hasattr(torch.compiler, "set_default_backend"), reason="torch 2.13 has it first")
def test_where_no_backend_is_named_it_is_the_one_that_the_program_has_set(
    request: pytest.FixtureRequest,
) -> None:
    request.addfinalizer(lambda: torch.compiler.set_default_backend(None))
    answers = []
    for chosen in ("aot_eager", raises, "minidbg", None):
        torch.compiler.set_default_backend(chosen)
        answers.append((wrap().backends[0], entry_point.wrapped({}).backends[0]))
    assert answers == [(each, each) for each in ("aot_eager", raises, "inductor", "inductor")]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"on_failur": "raise", "backend": "eager"}, "'on_failur' is no setting.* did you mean 'on_failure'"),
        ({"max_autotun": True}, "Unexpected optimization option max_autotun"),
        ({"zzzz": True}, "Unexpected optimization option zzzz"),
    ],
)
def test_by_name_mistakes_are_told(options: dict[str, Any], told: str) -> None:
    with pytest.raises(BackendCompilerFailed, match=told):
        torch.compile(double, backend="minidbg", options=options)(torch.ones(2))


# ---- on_failure="raise"


def test_a_compile_failure_is_dynamos_exception_with_the_report_last(answers: Answers) -> None:
    plain, error = without_and_with(raises)
    assert type(error) is type(plain) is BackendCompilerFailed
    assert error.args == plain.args
    assert error.backend_name == plain.backend_name == "raises"
    assert type(error.inner_exception) is Refused
    printed = "".join(traceback.format_exception(error)).strip().splitlines()
    assert printed[-1] == "minidbg: report 1"
    assert report_of(error).path == Path("r.py")
    assert report_of(error.inner_exception).path == Path("r.py")
    assert error.minidbg_report is error.inner_exception.minidbg_report
    assert answers.cases[0].kind is Kind.COMPILE


@pytest.mark.parametrize("backend", [raises_index_error, returns_no_callable])
def test_a_backend_fails_as_without_the_wrapper(backend: Any, answers: Answers) -> None:
    """Before 2.13 dynamo wrapped an IndexError as any other."""
    plain, error = without_and_with(backend)
    assert (type(error), error.args) == (type(plain), plain.args)
    assert error.__notes__[-1] == "minidbg: report 1"
    assert len(answers.cases) == 1


def test_a_run_time_failure_arrives_as_it_is(answers: Answers) -> None:
    error = fail(lambda: torch.compile(double, backend=wrap(raises_when_called))(torch.ones(2)))
    assert type(error) is RuntimeError
    assert error.args == ("kernel failed",)
    printed = "".join(traceback.format_exception(error)).strip().splitlines()
    assert printed[-1] == "minidbg: report 1"
    assert report_of(error).path == Path("r.py")
    assert answers.cases[0].kind is Kind.RUNTIME


def test_called_without_dynamo_the_wrapper_raises_what_the_backend_raised(answers: Answers) -> None:
    gm = fx.symbolic_trace(double)
    error = fail(lambda: wrap(raises)(gm, [torch.ones(2)]))
    assert type(error) is Refused
    assert error.__notes__ == ["minidbg: report 1"]


def test_the_graph_of_the_case_is_the_one_before_the_backend_touched_it(answers: Answers) -> None:
    fail(lambda: torch.compile(double, backend=wrap(mutilates_the_graph_and_raises))(torch.ones(2)))
    case = answers.cases[0]
    assert torch.equal(case.graph_module(torch.ones(2))[0], torch.full((2,), 3.0))
    assert case.provenance.nodes == 2
    torch._dynamo.reset()
    chain = wrap([mutilates_the_graph_and_raises, "eager"])
    assert torch.equal(torch.compile(double, backend=chain)(torch.ones(2)), torch.full((2,), 3.0))


@pytest.mark.parametrize("error", [SkipFrame, DataDependentOutputException, UnsupportedFakeTensorException])
def test_dynamos_control_flow_passes_untouched(error: type[Exception], answers: Answers) -> None:
    """TORCH.md: these make dynamo skip the frame or break the graph; the program runs in eager."""

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        raise error("aten.item")

    assert torch.equal(torch.compile(double, backend=wrap(backend))(torch.ones(2)), torch.full((2,), 3.0))
    assert not answers.cases


def test_a_restart_of_the_analysis_restarts_it_and_counts_one_graph(answers: Answers) -> None:
    attempts = 0

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise TensorifyScalarRestartAnalysis(restart_reason="once more")
        return gm.forward

    assert torch.equal(torch.compile(double, backend=wrap(backend))(torch.ones(2)), torch.full((2,), 3.0))
    assert attempts == 2
    assert not answers.cases
    assert (stats().graphs, stats().failed) == (1, 0)


def test_an_interrupt_passes_untouched(answers: Answers) -> None:
    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        torch.compile(double, backend=wrap(backend))(torch.ones(2))
    assert not answers.cases


def test_our_own_trouble_never_hides_the_users_exception() -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a bug of ours")

    PROCESS.responder = broken
    for backend, kind in ((raises, BackendCompilerFailed), (raises_when_called, RuntimeError)):
        torch._dynamo.reset()
        error = fail(lambda backend=backend: torch.compile(double, backend=wrap(backend))(torch.ones(2)))
        assert type(error) is kind
        assert "ZeroDivisionError: a bug of ours" in error.__notes__[-1]
        assert report_of(error).path is None


def test_a_graph_that_cannot_be_copied_is_passed_on_without_us(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from minidbg.wrapper import graph_state

    def broken(gm: fx.GraphModule) -> Any:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(graph_state, "copy_graph_module", broken)
    assert torch.equal(torch.compile(double, backend=wrap("eager"))(torch.ones(2)), torch.full((2,), 3.0))
    assert warnings_of(caplog) == ["minidbg: a graph is not wrapped (ZeroDivisionError: a bug of ours)"]


def test_a_wrapper_inside_a_wrapped_backend_answers_once(answers: Answers) -> None:
    error = fail(lambda: torch.compile(double, backend=wrap(wrap(raises)))(torch.ones(2)))
    assert type(error) is BackendCompilerFailed
    assert len(answers.cases) == 1
    assert error.__notes__ == ["minidbg: report 1"]
    torch._dynamo.reset()
    error = fail(lambda: torch.compile(double, backend=wrap(wrap(raises_when_called)))(torch.ones(2)))
    assert len(answers.cases) == 2
    assert error.__notes__ == ["minidbg: report 2"]


def test_work_on_a_failure_is_not_itself_answered() -> None:
    """A run has the same backend; a wrapper in its way must not capture that."""
    wrapper = wrap(raises)
    inner: list[Exception] = []

    def respond(case: Case, settings: Settings, same_as: Path | None = None) -> Report:
        inner.append(fail(lambda: wrapper(case.graph_module, list(case.inputs))))
        return Report("done")

    PROCESS.responder = respond
    fail(lambda: torch.compile(double, backend=wrapper)(torch.ones(2)))
    assert len(inner) == 1
    assert type(inner[0]) is Refused
    assert report_of(inner[0]) is None


def test_the_same_failure_again_is_answered_from_memory(answers: Answers) -> None:
    compiled = torch.compile(double, backend=wrap(raises_when_called))
    for _ in range(3):
        error = fail(lambda: compiled(torch.ones(2)))
        assert error.__notes__ == ["minidbg: report 1"]
    assert len(answers.cases) == 1


# ---- on_failure="fallback"


@pytest.mark.parametrize("backend", [writes_then_raises, writes_while_compiling_then_raises])
def test_a_fallback_is_eager_from_the_values_before_the_call(backend: Any, answers: Answers) -> None:
    """TORCH.md: running eager after a failed call applies mutations twice."""
    x = torch.zeros(3)
    wrapped = wrap(backend, on_failure="fallback")
    result, drawn = torch.compile(lambda x: (accumulate(x), torch.rand(3)), backend=wrapped)(x)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(3))
    if backend is writes_then_raises:
        assert torch.equal(answers.inputs[0][0], torch.zeros(3))
    assert torch.equal(x, torch.ones(3))
    assert torch.equal(result, torch.full((3,), 2.0))


def test_a_settled_graph_that_mutates_raises_instead_of_falling_back(answers: Answers) -> None:
    compiled = torch.compile(accumulate, backend=wrap(raises_from_the_second_call, on_failure="fallback"))
    x = torch.zeros(3)
    compiled(x)
    error = fail(lambda: compiled(x))
    assert type(error) is RuntimeError
    assert "writes to its inputs" in " ".join(answers.cases[0].provenance.notes)


def test_a_settled_graph_without_mutation_falls_back(answers: Answers) -> None:
    compiled = torch.compile(double, backend=wrap(raises_from_the_second_call, on_failure="fallback"))
    for _ in range(4):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert len(answers.cases) == 1


def test_more_than_the_value_limit_is_not_kept_and_so_not_run_again(answers: Answers) -> None:
    backend = wrap(writes_then_raises, on_failure="fallback", value_limit_bytes=4)
    error = fail(lambda: torch.compile(accumulate, backend=backend)(torch.zeros(3)))
    assert type(error) is RuntimeError
    assert len(answers.cases) == 1


# ---- in the backward


def no_backward_compiler(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    raise Refused("no backward")


def backward_compiler_that_breaks_when_called(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    def broken(*args: Any) -> Any:
        raise RuntimeError("backward kernel failed")

    return make_boxed_func(broken)


refuses_in_aot_autograd = aot_autograd(fw_compiler=raises)
without_backward = aot_autograd(fw_compiler=nop, bw_compiler=no_backward_compiler)
with_broken_backward = aot_autograd(fw_compiler=nop, bw_compiler=backward_compiler_that_breaks_when_called)


@pytest.mark.parametrize(
    ("backend", "kind", "error_type"),
    [(without_backward, Kind.COMPILE, Refused), (with_broken_backward, Kind.RUNTIME, RuntimeError)],
    ids=["while compiling", "when run"],
)
def test_a_failing_backward_is_captured_and_raised_with_its_report(
    backend: Any, kind: Kind, error_type: type[Exception], answers: Answers
) -> None:
    """TORCH.md: it surfaces in the user's loss.backward(), never in the wrapper's call."""
    x = torch.randn(3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = torch.compile(double, backend=wrap(backend, verify="never"))(x).sum()
    error = fail(loss.backward)
    assert type(error) is error_type
    assert error.__notes__ == ["minidbg: report 1"]
    case = answers.cases[0]
    assert (case.kind, case.signature.direction, case.spec.backward) == (kind, Direction.BACKWARD, True)
    assert case.inputs[0] is x
    assert case.spec.context.grad
    assert case.spec.context.autocast == (("cpu", "torch.bfloat16", True),)
    assert case.provenance.notes == ()


def test_after_a_failed_backward_fallback_is_eager_in_later_calls(answers: Answers) -> None:
    backend = wrap(with_broken_backward, on_failure="fallback", verify="never")
    compiled = torch.compile(double, backend=backend)
    x = torch.randn(3, requires_grad=True)
    fail(compiled(x).sum().backward)
    compiled(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    assert len(answers.cases) == 1


def test_the_programs_own_error_in_backward_is_not_blamed_on_the_backend(answers: Answers) -> None:
    compiled = torch.compile(lambda x: (x * x).sin(), backend=wrap("aot_eager"))
    loss = compiled(torch.randn(3, requires_grad=True)).sum()
    loss.backward()
    error = fail(loss.backward)
    assert "a second time" in str(error)
    assert not getattr(error, "__notes__", [])
    assert not answers.cases


# ---- a chain


def test_a_chain_in_which_nothing_works_raises_what_the_last_link_raised(answers: Answers) -> None:
    error = fail(lambda: torch.compile(double, backend=wrap([raises_index_error, raises]))(torch.ones(2)))
    assert isinstance(error, BackendCompilerFailed)
    assert isinstance(error.inner_exception, Refused)
    assert error.backend_name == "raises"
    assert len(answers.cases) == 2


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_link_that_dies_inside_aot_autograd_leaves_nothing_to_the_next(
    dynamic: bool | None, answers: Answers
) -> None:
    """TORCH.md: a call within dynamo's callback overwrites the live tracing context; the next link's must do again."""

    def gradients(backend: Any) -> list[torch.Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3))
        compiled = torch.compile(model, backend=backend, dynamic=dynamic)
        for size in (5, 7):
            compiled(torch.randn(size, 6)).sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    expected = gradients("aot_eager")
    found = gradients(wrap([refuses_in_aot_autograd, "aot_eager"]))
    assert all(map(torch.equal, expected, found))
    assert answers.cases


def test_a_chain_that_breaks_in_the_first_run_raises_when_nothing_is_left(answers: Answers) -> None:
    """The next call begins with the first link again."""
    compiled = torch.compile(double, backend=wrap([raises_when_called, raises]))
    for _ in range(2):
        assert str(fail(lambda: compiled(torch.ones(2)))) == "kernel failed"
    assert len(answers.cases) == 2


def test_what_a_link_writes_before_it_refuses_is_put_back_for_the_next() -> None:
    chain = wrap([raises_when_called, writes_while_compiling_then_raises, "eager"])
    assert torch.equal(torch.compile(accumulate, backend=chain)(torch.zeros(3)), torch.full((3,), 2.0))


def test_a_dynamic_graph_goes_on_with_the_next_link_for_every_shape(answers: Answers) -> None:
    """TORCH.md: outside dynamo aot_eager makes a dynamic graph static; compiled at 5, it would fail at 7."""
    chain = wrap([raises_when_called, "aot_eager"])
    compiled = torch.compile(lambda x: x * x.shape[0], backend=chain, dynamic=True)
    for size in (5, 7, 5, *range(8, 20)):
        assert torch.equal(compiled(torch.ones(size)), torch.full((size,), float(size)))
    assert len(answers.cases) == 1


# ---- what is captured


def test_the_case_holds_live_inputs_and_the_users_line(answers: Answers) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    fail(lambda: torch.compile(double, backend=wrap(raises))(x))
    case = answers.cases[0]
    assert case.inputs[0] is x
    assert case.provenance.captured_from.startswith(("tests/integration/test_wrap.py:", "test_wrap.py:"))
    assert case.provenance.line == "return x * 2 + 1"
    assert case.provenance.message == "this graph is refused"
    assert (case.provenance.nodes, case.provenance.inputs) == (2, 1)
    assert case.signature.types[0].endswith("Refused")
    assert case.spec.dynamic is False
    assert case.spec.dynamic_dims == ()


def test_symbolic_sizes_become_numbers_and_marks(answers: Answers) -> None:
    fail(lambda: torch.compile(lambda x, n: x * n, backend=wrap(raises), dynamic=True)(torch.ones(4, 6), 3))
    case = answers.cases[0]
    assert case.spec.dynamic is True
    dims = dict(zip((type(value) for value in case.inputs), case.spec.dynamic_dims, strict=True))
    assert dims[torch.Tensor] == (0, 1)
    assert all(type(value) in (int, torch.Tensor) for value in case.inputs)
    assert {4, 6, 3} == {value for value in case.inputs if isinstance(value, int)}


def test_modes_are_read_when_the_call_fails(answers: Answers) -> None:
    compiled = torch.compile(double, backend=wrap(raises_when_called))
    with torch.inference_mode():
        fail(lambda: compiled(torch.ones(2)))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        fail(lambda: compiled(torch.ones(3)))
    first, second = answers.cases
    assert first.spec.context.inference
    assert not second.spec.context.inference
    assert not second.spec.context.grad
    assert second.spec.context.autocast == (("cpu", "torch.bfloat16", True),)


def test_a_failure_is_answered_in_plain_modes() -> None:
    """Oracle calls enter the modes of their case; what they inherit would otherwise stay on."""
    seen: list[tuple[bool, bool, bool, torch.device]] = []

    def respond(case: Case, settings: Settings, same_as: Path | None = None) -> Report:
        modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        seen.append((*modes, torch.empty(1).device))
        return Report("done")

    PROCESS.responder = respond
    compiled = torch.compile(double, backend=wrap(raises_when_called))
    x = torch.ones(2)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        fail(lambda: compiled(x))
        assert torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()
    assert seen == [(False, True, False, torch.device("cpu"))]


def test_inference_mode_is_seen_at_compile_time_by_its_tensors(answers: Answers) -> None:
    """TORCH.md: dynamo turns inference mode off while it calls the backend."""
    with torch.inference_mode():
        fail(lambda: torch.compile(double, backend=wrap(raises))(torch.ones(2)))
    assert answers.cases[0].spec.context.inference
    assert not answers.cases[0].spec.context.grad


# ---- what is reduced


def test_one_reduction_for_a_signature_and_the_rest_later(answers: Answers) -> None:
    for function in (double, torch.sin):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, function=function: function(x), backend=wrap(raises))
        fail(lambda compiled=compiled: compiled(torch.ones(2)))
    assert [settings.reduce for settings in answers.settings] == [Reduce.NOW, Reduce.LATER]
    assert "same failure as" in answers.cases[1].provenance.notes[-1]


def test_in_a_job_of_several_ranks_reduction_waits(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    fail(lambda: torch.compile(double, backend=wrap(raises))(torch.ones(2)))
    fail(lambda: torch.compile(torch.sin, backend=wrap(raises, reduce="now"))(torch.ones(2)))
    assert [settings.reduce for settings in answers.settings] == [Reduce.LATER, Reduce.NOW]
