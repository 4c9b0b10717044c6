"""Runs a model in eager, then through a backend, as a ``RunSpec`` says; answers an ``Outcome``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from minidbg import torch_internals
from minidbg.core.environment import judging
from minidbg.core.errors import TorchNameMissing
from minidbg.core.foreign import first_line_of, is_of_a_signal_handler
from minidbg.core.outcome import Outcome, Signature, Verdict
from minidbg.core.records import record_of
from minidbg.core.run_spec import CallPath, RunSpec
from minidbg.core.text import abridged
from minidbg.fx.context import entered_modes, patched_config, without_modes
from minidbg.fx.effects import graph_texts, is_handed_back, tensors_in
from minidbg.judge.compare import Comparison, comparison_of
from minidbg.judge.leaves import CannotCompare
from minidbg.judge.precision import to_cpu
from minidbg.judge.signature import (
    error_text,
    exception_chain,
    failure,
    is_about_guards,
    phase_of,
    signature_of,
)
from minidbg.torch_internals import devices
from minidbg.torch_internals.thread_state import autocast_dtypes, preserving_thread_state, without_autocast

SEED = 0
MOST_TIMES = 2**24  # by how much a cotangent is larger at most
MOST_IN_HALF = 2**12  # where float16 has to hold it
COTANGENT_SEED = 9_176_551  # no program is likely to have set it: its data would be these numbers
NOT_CALLED = "dynamo did not call the backend"
"""How the reason begins where dynamo does not take the program as it is written."""

Change = Callable[[Any], Any]
"""Makes another model of a model, and other inputs of a tuple of inputs."""


def unchanged(made: Any) -> Any:
    return made


def change_of_eager(golden: str, change: Change) -> Change:
    """``change``, of what is on the CPU where eager is to run there."""
    return (lambda made: change(to_cpu(made))) if golden else change


@dataclass(frozen=True, slots=True)
class Runnable:
    """A program for a backend, made of a case in memory or of an executed script.

    Models and inputs are made anew for each run, since a run may write to both.
    """

    make_model: Callable[[], Any]
    make_inputs: Callable[[], tuple[Any, ...]]
    compiler: Any
    """What torch.compile takes as backend; at the level of ATen, a compiler for aot_autograd."""
    spec: RunSpec

    def made(self, change: Change = unchanged) -> tuple[Any, tuple[Any, ...]]:
        """torch is as when a script begins: no mode, float32, the seed."""
        with preserving_thread_state(), without_modes():
            torch.set_default_dtype(torch.float32)
            torch.manual_seed(SEED)
            return change(self.make_model()), change(self.make_inputs())

    def eager(self, change: Change = unchanged, seed: int = SEED, backward: int = True) -> dict[str, Any]:
        model, inputs = self.made(change_of_eager(self.spec.golden, change))
        with entered_modes(self.spec.context):
            torch.manual_seed(seed)
            return collect_run(model, model, inputs, backward=backward and self.spec.backward)

    def passes_in_eager(self) -> bool:
        """Whether the program goes through dynamo without its backend."""
        model, inputs = self.made()
        plain = replace(self.spec, backend=replace(self.spec.backend, options={}, mode=None))
        try:
            compile_by_torch("eager", model, inputs, plain)(*inputs)
        except Exception:  # noqa: BLE001 - the answer
            return False
        return True


def judge(
    runnable: Runnable,
    *,
    any_failure: bool = False,
    note: Callable[[str], object] = lambda phase: None,
    witness: Callable[[BaseException], object] = lambda error: None,
    seen: Callable[[Comparison], object] = lambda comparison: None,
) -> Outcome:
    """Run the model in eager, then through the backend. Never raises what either of them raises.

    Results are compared where wrong ones are expected, or ``any_failure`` is looked for. ``note``
    hears which part is about to run, to know what a death was due to. ``witness`` sees what the
    backend raised, with its traceback; ``seen`` both runs, where they are compared.
    """
    spec = runnable.spec
    compares = any_failure or spec.expected.kind.traits.compares
    began = time.perf_counter()
    notes: list[str] = []

    with patched_config(spec.context.config):
        try:
            note("eager")
            expected = runnable.eager()
        except KeyboardInterrupt:
            raise
        except (FileNotFoundError, ModuleNotFoundError) as error:  # the values lie in another file
            result = Outcome(Verdict.SKIPPED, reason=f"what it needs is not here: {brief(error)}")
        except BaseException as error:  # noqa: BLE001 - where eager fails, no backend is to blame
            reason = f"eager itself fails: {brief(error)}"
            result = Outcome(Verdict.INVALID, reason=reason, message=first_lines(error))
        else:
            model, inputs = runnable.made()
            try:
                with judging(), entered_modes(spec.context):
                    actual, result = run_compiled(runnable, model, inputs, notes, note, witness)
            except TorchNameMissing as lacks:  # ours to want, and no failure of the backend
                actual, result = None, Outcome(Verdict.SKIPPED, reason=str(lacks))
            if actual is not None and compares:
                note("compare")
                comparison = comparison_of(actual, expected, runnable.eager, spec)
                seen(comparison)
                try:
                    difference = comparison.difference()
                except CannotCompare as error:
                    reason = f"cannot be compared with eager: {error}"
                    result = Outcome(Verdict.INVALID, reason=reason)
                except Exception as error:
                    if is_of_a_signal_handler(error):
                        raise
                    why = f"comparing it with eager failed ({first_line_of(error)})"
                    result = Outcome(Verdict.INVALID, reason=f"{why}; that is a bug in minidbg")
                else:
                    notes += comparison.notes()
                    if difference is not None:
                        signature = {"kind": "accuracy", **difference.pop("signature")}
                        message, signed = difference.pop("message"), record_of(signature, Signature)
                        result = failure(signed, spec, message, figures=difference)
            if result.verdict is Verdict.GONE:
                if HANDED_BACK in notes and not compiles_one_op(runnable.compiler, spec, inputs):
                    notes[:] = [BY_DESIGN if note == HANDED_BACK else note for note in notes]
                result = replace(result, reason="; ".join(dict.fromkeys(notes)))
    return replace(result, seconds=round(time.perf_counter() - began, 3))


def run_compiled(
    runnable: Runnable,
    model: Any,
    inputs: tuple[Any, ...],
    notes: list[str],
    note: Callable[[str], object] = lambda phase: None,
    witness: Callable[[BaseException], object] = lambda error: None,
) -> tuple[dict[str, Any] | None, Outcome]:
    """One run through the backend: what it left behind (None if it failed), and the outcome.

    ``notes`` gets a sentence when the backend did nothing. Where dynamo fails over its guards, that
    is the backend's failure if the same program goes through dynamo without it.
    """
    spec = runnable.spec
    doing, direction, direct = "compile", "forward", spec.call is CallPath.DIRECT

    def now(what: str, way: str) -> None:
        nonlocal doing, direction
        doing, direction = what, way
        note(f"{what} {way}")

    try:
        now("compile", "forward")
        compiler = noting_passthrough(runnable.compiler, notes)
        if direct:
            function = torch_internals.compile_directly(compiler, model, inputs, spec)
            now("runtime", "forward")
        else:
            function = compile_by_torch(compiler, model, inputs, spec)
        torch.manual_seed(SEED)
        then = partial(now, "runtime", "backward")
        left = collect_run(function, model, inputs, backward=spec.backward, before_backward=then)
    except (KeyboardInterrupt, TorchNameMissing):
        raise
    except BaseException as error:  # noqa: BLE001 - a backend's error, SystemExit too, is an answer
        witness(error)
        phase = doing if direct and direction == "forward" else phase_of(error, direction)
        if phase == "tracing":
            if not (is_about_guards(error) and runnable.passes_in_eager()):
                reason = f"{NOT_CALLED}: {brief(error)}"
                return None, Outcome(Verdict.INVALID, reason=reason, message=first_lines(error))
            phase = "compile"  # dynamo stumbled over what the backend did to its ShapeEnv or inputs
        return None, failure(signature_of(error, phase, direction), spec, first_lines(error))
    return left, Outcome(Verdict.GONE)


HANDED_BACK = "handed back: eager ran it"
"""The reason of an outcome that is no success of the backend's, since it compiles other graphs."""
BY_DESIGN = "the backend returns each graph as it is, for eager to run"


def noting_passthrough(compiler: Any, notes: list[str]) -> Any:
    """``compiler``; ``notes`` gets a sentence when it hands the graph back as it was, for eager."""
    if compiler in ("inductor", "eager"):
        return compiler
    called = torch_internals.registered_backend(compiler) if isinstance(compiler, str) else compiler

    def call_backend_and_look(graph_module: Any, *args: Any, **kwargs: Any) -> Any:
        before = graph_texts(graph_module)
        compiled_fn = called(graph_module, *args, **kwargs)
        if is_handed_back(compiled_fn, graph_module, lambda: before):
            notes.append(HANDED_BACK)
        return compiled_fn

    for name in (*torch_internals.BACKEND_HOOKS, "__name__"):
        if getattr(called, name, None) is not None:
            setattr(call_backend_and_look, name, getattr(called, name))
    return call_backend_and_look


def model_of(op: Callable[[Any], Any]) -> torch.fx.GraphModule:
    """A graph module, which every level and call path takes."""
    return torch.fx.symbolic_trace(lambda value: (op(value),))


def programs_of_one_op(compiler: Any, spec: RunSpec, device: Any) -> Iterator[Runnable]:
    """Some that any backend should handle; each may be the very bug of a repro."""
    numbers = partial(torch.linspace, -2, 2, 8, device=device)
    for op in (lambda value: value + 1, torch.relu, lambda value: value * 2, torch.sin):
        yield Runnable(partial(model_of, op), lambda: (numbers(),), compiler, spec)


def compiles_one_op(compiler: Any, spec: RunSpec, inputs: tuple[Any, ...]) -> bool:
    """Whether the backend makes something of its own of a program of one op; asked without dynamo
    where it takes one so, for speed."""
    device = next((value.device for value in inputs if isinstance(value, torch.Tensor)), "cpu")
    taken, handed_back = 0, list[str]()
    for call in (CallPath.DIRECT, CallPath.TORCH_COMPILE):
        plain = RunSpec(spec.backend, call=call, level=spec.level, dynamic=None)
        for one in programs_of_one_op(compiler, plain, device) if not taken else ():
            with contextlib.suppress(TorchNameMissing):
                taken += run_compiled(one, *one.made(), handed_back)[0] is not None
    return taken > len(handed_back)


def compile_by_torch(compiler: Any, model: Any, inputs: tuple[Any, ...], spec: RunSpec) -> Any:
    for value, dims in zip(inputs, spec.dynamic_dims, strict=False):
        if isinstance(value, torch.Tensor):
            torch_internals.mark_sizes(value, dims)
    own = spec.backend
    how: Any = {"dynamic": spec.dynamic, "mode": own.mode, "options": dict(own.options) or None}
    return torch.compile(model, backend=compiler, fullgraph=True, **how)


@preserving_thread_state()  # a run that raises inside vmap would leave its level to the next one
def collect_run(
    function: Any,
    model: Any,
    inputs: tuple[Any, ...],
    *,
    backward: int,
    before_backward: Callable[[], object] = lambda: None,
    may_refuse: bool = False,
) -> dict[str, Any]:
    """What a call of ``function``, ``model`` in some form, leaves: outputs, inputs, gradients; None
    for these where ``may_refuse`` and their backward fails. ``backward``: also ``most_times``."""
    sources = gradient_sources(model, inputs) if backward else {}
    outputs = function(*inputs)
    devices.synchronize((*inputs, *tensors_in(outputs)))
    gradients: dict[str, Any] | None = None
    most = backward if backward > 1 else most_times(outputs)
    try:
        gradients = gradients_of(outputs, sources, before_backward, most)
    except (RuntimeError, NotImplementedError):
        if not may_refuse:
            raise
    devices.synchronize((gradients or {}).values())
    return {**collected(outputs, model, inputs, gradients), "most_times": most}


def collected(
    outputs: Any, model: Any, inputs: tuple[Any, ...], gradients: dict[str, Any] | None
) -> dict[str, Any]:
    after = {str(i): value for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
    after |= {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {"outputs": outputs, "inputs_after": after, "gradients": gradients}


def gradient_sources(model: Any, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """What gradients are asked for, taken before a run: of what the run writes to, the gradient is
    that of the value before.

    Afterwards the tensor stands for its new value: in eager that has a gradient, in a graph of
    AOTAutograd it is outside.
    """
    values = {f"input {i}": v for i, v in enumerate(inputs)} | dict(model.named_parameters())
    edge = torch.autograd.graph.get_gradient_edge
    return {
        name: value if value.is_leaf else edge(value)
        for name, value in values.items()
        if needs_gradient(value)
    }


def most_times(outputs: Any) -> int:
    """By how much the cotangent of a single number may be larger than others: float16 holds less."""
    dtypes = {*autocast_dtypes(), *(value.dtype for value in tensors_in(outputs))}
    return MOST_IN_HALF if torch.float16 in dtypes else MOST_TIMES


def gradients_of(
    outputs: Any, sources: dict[str, Any], before_backward: Any = lambda: None, most: int = 0
) -> dict[str, Any]:
    """Gradients of ``sources``, for cotangents that are the same in each run, whatever it draws."""
    roots = [(index, root) for index, root in enumerate(tensors_in(outputs)) if root.requires_grad]
    if not (roots and sources):
        return {}
    many = max([1, *(root.numel() for _, root in roots if root.layout is not torch.jagged)])
    many = min(many, most or most_times(outputs))
    cotangents = [cotangent_for(root, index, many) for index, root in roots]
    before_backward()
    with without_autocast():
        found = torch.autograd.grad(
            [root for _, root in roots], list(sources.values()), cotangents, allow_unused=True
        )
    return dict(zip(sources, found, strict=True))


def cotangent_for(root: torch.Tensor, index: int, many: int = 1) -> torch.Tensor:
    """Of few bits, so that no run which rounds otherwise has others. That of a single number is
    larger beside ``many``: a loss is their mean, whose gradient theirs would hide."""
    if root.layout is torch.jagged:  # a ragged size is no number
        made = torch.zeros_like(root.detach())
        made.values().copy_(cotangent_for(made.values(), index))
        return made
    random = torch.Generator().manual_seed(COTANGENT_SEED + index)
    shape = (*root.shape, 2) if root.is_complex() else root.shape
    sizes = torch.randint(1, 64, shape, generator=random, device="cpu")
    signs = torch.randint(2, shape, generator=random, device="cpu") * 2 - 1
    scale = 2 ** (many.bit_length() - 1) if root.dim() == 0 else 1
    values = (sizes * signs).to(torch.float32) / 16 * scale
    values = torch.view_as_complex(values) if root.is_complex() else values
    return values.to(root.device, root.dtype)


def needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def brief(error: BaseException) -> str:
    return abridged(first_lines(error), 300)


def first_lines(error: BaseException) -> str:
    error = exception_chain(error)[0]
    text = error_text(error).partition("\n\nSet TORCHDYNAMO_VERBOSE")[0].strip()
    return f"{type(error).__name__}: {text}"[:4000]
