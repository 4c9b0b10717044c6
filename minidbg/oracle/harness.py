"""The one judge: runs a case and says what happened. Every repro script carries this text below its model.

Stands on torch, the standard library and ``signature.py``, which is embedded with it. A *case* is here the plain
table that a script's ``[tool.minidbg]`` header holds (``minidbg.oracle.embed.settings_of`` writes it); an *outcome*
is the table that ``--json`` prints.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from minidbg.oracle.direct import compile_directly
from minidbg.oracle.signature import exception_chain, phase_of, signature_of, text_of

# --- embedded from here ---

SEED = 0


def attempt(
    make_model: Callable[[], Any],
    make_inputs: Callable[[], tuple[Any, ...]],
    compiler: Any,
    case: dict[str, Any],
    note: Callable[[str], object] = lambda phase: None,
    differ: Callable[..., dict[str, Any] | None] | None = None,
) -> dict[str, Any]:
    """Run the model in eager, then through the backend. Never raises what the model or the backend raises.

    Models and inputs are made anew for each run, since a run may write to both. ``note`` hears which part is
    about to run, to know what a death was due to. ``differ`` says how two runs differ that should agree.
    """
    began = time.perf_counter()

    def made(change: Callable[[Any], Any] = lambda made: made) -> tuple[Any, tuple[Any, ...]]:
        with torch.inference_mode(False):
            return change(make_model()), change(make_inputs())

    def eager(change: Callable[[Any], Any] = lambda made: made, seed: int = SEED) -> dict[str, Any]:
        model, inputs = made(change)
        return run_once(model, model, inputs, case, seed)

    with entered_modes(case.get("context", {})):
        try:
            note("eager")
            expected = eager()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - where eager fails, the backend is not to blame
            result = outcome("invalid", f"eager itself fails: {brief(error)}", message=first_lines(error))
        else:
            actual, result = run_compiled(*made(), compiler, case, note)
            if actual is not None and differ is not None:
                note("compare")
                result = compared(lambda: differ(actual, expected, eager), case) or result
    return {**result, "seconds": round(time.perf_counter() - began, 3)}


def run_compiled(
    model: Any, inputs: tuple[Any, ...], compiler: Any, case: dict[str, Any], note: Callable[[str], object]
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """One run through the backend: what it left behind (None if it failed), and the outcome."""
    doing, direction, direct = "compile", "forward", case.get("call") == "direct"

    def now(what: str, way: str) -> None:
        nonlocal doing, direction
        doing, direction = what, way
        note(f"{what} {way}")

    try:
        now("compile", "forward")
        if direct:
            function = compile_directly(compiler, model, inputs, case, literal_in(case.get("options")))
            now("runtime", "forward")
        else:
            function = compile_by_torch(compiler, model, inputs, case)
        left = run_once(function, model, inputs, case, SEED, lambda: now("runtime", "backward"))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a foreign backend raises, SystemExit too, is the answer
        kind = doing if direct and direction == "forward" else phase_of(error, direction)
        if kind == "tracing":
            reason = f"dynamo did not call the backend: {brief(error)}"
            return None, outcome("invalid", reason, message=first_lines(error))
        return None, failure(signature_of(error, kind, direction), case, first_lines(error))
    return left, outcome("gone")


def compile_by_torch(compiler: Any, model: Any, inputs: tuple[Any, ...], case: dict[str, Any]) -> Any:
    for value, dims in zip(inputs, case.get("dynamic_dims") or (), strict=False):
        for dim in dims:
            torch._dynamo.maybe_mark_dynamic(value, dim)
    options = literal_in(case.get("options"))
    given: dict[str, Any] = {"dynamic": case.get("dynamic"), "mode": case.get("mode"), "options": options}
    given = {name: value for name, value in given.items() if value not in (None, {})}
    return torch.compile(model, backend=compiler, fullgraph=True, **given)


def run_once(
    function: Any,
    model: Any,
    inputs: tuple[Any, ...],
    case: dict[str, Any],
    seed: int,
    backward_begins: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Call ``function``, then backward if the case has one; outputs, inputs and buffers afterwards, gradients."""
    torch.manual_seed(seed)
    outputs = function(*inputs)
    gradients: dict[str, Any] = {}
    if case.get("backward"):
        wanted = {f"input {place}": value for place, value in enumerate(inputs)} | dict(
            model.named_parameters()
        )
        wanted = {name: value for name, value in wanted.items() if needs_gradient(value)}
        roots = [value for value in leaves_of(outputs) if needs_gradient(value)]
        if roots and wanted:
            random = torch.Generator().manual_seed(seed)
            cotangents = [
                torch.randn(root.shape, generator=random).to(root.device, root.dtype) for root in roots
            ]
            backward_begins()
            found = torch.autograd.grad(roots, list(wanted.values()), cotangents, allow_unused=True)
            gradients = dict(zip(wanted, found, strict=True))
    after = {str(place): value for place, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
    return {"outputs": outputs, "inputs_after": after | dict(model.named_buffers()), "gradients": gradients}


def needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def leaves_of(value: Any) -> list[Any]:
    items = list(value.values()) if isinstance(value, dict) else value
    return (
        [leaf for item in items for leaf in leaves_of(item)] if isinstance(items, (tuple, list)) else [value]
    )


@contextlib.contextmanager
def entered_modes(context: dict[str, Any]) -> Iterator[None]:
    """The settings around the failing call, put back afterwards."""
    with contextlib.ExitStack() as stack:
        patch_config(stack, context.get("config", {}))
        set_defaults(stack, context)
        if "default_device" in context:
            stack.enter_context(torch.device(context["default_device"]))
        stack.enter_context(torch.set_grad_enabled(context.get("grad", True)))
        if context.get("inference"):
            stack.enter_context(torch.inference_mode())
        for device, dtype, cache_enabled in context.get("autocast", ()):
            stack.enter_context(torch.autocast(device, dtype_named(dtype), cache_enabled=cache_enabled))
        yield


def patch_config(stack: contextlib.ExitStack, given: dict[str, str]) -> None:
    """Options of torch's config modules. Graph caches are off: they would hide a change of the compiler."""
    config = {
        "torch._inductor.config": {"fx_graph_cache": False, "fx_graph_remote_cache": False},
        "torch._functorch.config": {"enable_autograd_cache": False, "enable_remote_autograd_cache": False},
        "torch._dynamo.config": {"verbose": True},  # whole tracebacks: they tell compile from runtime
    }
    for name in {**config, **given}:
        module = importlib.import_module(name)
        options = {**config.get(name, {}), **literal_in(given.get(name))}
        stack.enter_context(module.patch({key: options[key] for key in options if hasattr(module, key)}))


def set_defaults(stack: contextlib.ExitStack, context: dict[str, Any]) -> None:
    """Settings that torch keeps for the whole process."""
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    stack.callback(torch.use_deterministic_algorithms, deterministic, warn_only=warn_only)
    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    warn_only = bool(context.get("deterministic_warn_only"))
    torch.use_deterministic_algorithms(bool(context.get("deterministic")), warn_only=warn_only)
    torch.set_default_dtype(dtype_named(context.get("default_dtype", "torch.float32")))
    torch.set_float32_matmul_precision(context.get("matmul_precision", "highest"))
    if "threads" in context:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(context["threads"])


def dtype_named(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return dtype


def literal_in(value: Any) -> Any:
    """Options travel as the text of a Python literal, since TOML has no None and no tuple."""
    return ast.literal_eval(value) if isinstance(value, str) else dict(value or {})


def failure(signature: dict[str, Any], case: dict[str, Any], message: str, **more: Any) -> dict[str, Any]:
    """The outcome of a run that showed ``signature``, against the one that the case expects."""
    if same_failure(case.get("signature"), signature):
        verdict = "reproduces"
    else:
        verdict = {"crash": "crashed", "hang": "timeout"}.get(signature["kind"], "changed")
    return outcome(verdict, signature=signature, message=message, **more)


def compared(differ: Callable[[], dict[str, Any] | None], case: dict[str, Any]) -> dict[str, Any] | None:
    """The outcome when two runs differ; ``differ()`` gives a part of the signature, a message and figures."""
    try:
        difference = differ()
    except ValueError as error:
        return outcome("invalid", f"cannot be compared with eager: {error}")
    if difference is None:
        return None
    signature = {
        "kind": "accuracy",
        "direction": "forward",
        "types": [],
        "frames": [],
        **difference["signature"],
    }
    figures = {name: value for name, value in difference.items() if name not in ("signature", "message")}
    return failure(signature, case, difference["message"], figures=figures)


def same_failure(expected: dict[str, Any] | None, found: dict[str, Any]) -> bool:
    """Every field equal, of the frames the innermost. Crashes and hangs are the same by their kind."""
    if expected is None or expected["kind"] in ("crash", "hang"):
        return expected is None or bool(expected["kind"] == found["kind"])
    expected = {"direction": "forward", "types": [], "frames": [], "message": "", **expected}
    innermost = [list(one["frames"])[:1] for one in (expected, found)]
    fields = ("kind", "direction", "types", "message")
    return innermost[0] == innermost[1] and all(expected[name] == found[name] for name in fields)


def outcome(verdict: str, reason: str = "", **more: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("signature", "signal", "reproduced", "runs"))
    return {"verdict": verdict, "reason": reason, "message": "", "figures": {}, **empty, **more}


def brief(error: BaseException) -> str:
    return first_lines(error).partition("\n")[0][:300]


def first_lines(error: BaseException) -> str:
    """What the backend said, without dynamo's wrapping and advice."""
    error = exception_chain(error)[0]
    text = text_of(error).partition("\n\nSet TORCHDYNAMO_VERBOSE")[0].strip()
    return f"{type(error).__name__}: {text}"[:4000]
