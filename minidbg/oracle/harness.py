"""The one judge: runs a case and says what happened. Every repro script carries this text below its model.

Stands on torch, the standard library and ``signature.py``, which is embedded with it. A *case* is here the plain table that a script's ``[tool.minidbg]``
header holds (``minidbg.oracle.embed.settings_of`` writes it); an *outcome* is the table that ``--json`` prints.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from minidbg.oracle.signature import exception_chain, signature_of, stack_of

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
    about to run, to know what a death was due to. ``differ`` compares the two runs where they must agree.
    """
    began = time.perf_counter()

    def eager(change: Callable[[Any], Any] = lambda value: value, seed: int = SEED) -> dict[str, Any]:
        model, inputs = change(make_model()), change(make_inputs())
        return run(model, model, inputs, case, seed)

    with modes(case.get("context", {})):
        try:
            note("eager")
            expected = eager()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - where eager fails, the backend is not to blame
            result = outcome("invalid", f"eager itself fails: {brief(error)}", message=first_lines(error))
        else:
            model, inputs = make_model(), make_inputs()
            actual, result = run_compiled(model, inputs, compiler, case, note)
            if actual is not None and differ is not None:
                note("compare")
                result = judged(differ(actual, expected, eager), case) or result
    return {**result, "seconds": round(time.perf_counter() - began, 3)}


def run_compiled(
    model: Any, inputs: tuple[Any, ...], compiler: Any, case: dict[str, Any], note: Callable[[str], object]
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """One run through the backend: what it left behind (None if it failed), and the outcome."""
    doing, direction = "compile", "forward"

    def now(what: str, way: str = "forward") -> None:
        nonlocal doing, direction
        doing, direction = what, way
        note(f"{what} {way}")

    try:
        now("compile")
        if case.get("call") == "direct":
            function = compile_directly(compiler, model, inputs, case)
            now("runtime")
        else:
            function = compile_by_torch(compiler, model, inputs, case)
        left = run(function, model, inputs, case, SEED, backward_begins=lambda: now("runtime", "backward"))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a foreign backend raises, SystemExit too, is the answer
        if never_reached_backend(error):
            return None, outcome(
                "invalid", f"the backend was not called: {brief(error)}", message=first_lines(error)
            )
        kind = doing if case.get("call") == "direct" and direction == "forward" else None
        return None, failed(signature_of(error, kind, direction), case, first_lines(error))
    return left, outcome("gone")


def compile_by_torch(compiler: Any, model: Any, inputs: tuple[Any, ...], case: dict[str, Any]) -> Any:
    for value, dims in zip(inputs, case.get("dynamic_dims") or (), strict=False):
        for dim in dims:
            torch._dynamo.maybe_mark_dynamic(value, dim)
    given = {
        "dynamic": case.get("dynamic"),
        "mode": case.get("mode"),
        "options": literal(case.get("options")),
    }
    given = {name: value for name, value in given.items() if value not in (None, {})}
    return torch.compile(model, backend=compiler, fullgraph=True, **given)


def compile_directly(compiler: Any, graph_module: Any, inputs: tuple[Any, ...], case: dict[str, Any]) -> Any:
    """Hand the graph to the backend as dynamo would, without dynamo: it would change this graph on the way."""
    given = [case.get("mode"), literal(case.get("options")) or None, case.get("dynamic")]
    wrapper: Any = torch._TorchCompileWrapper  # what torch.compile makes of backend, mode and options
    if compiler == "inductor":
        wrapper = torch._TorchCompileInductorWrapper
    else:
        given.insert(0, compiler)
    compiler_fn = wrapper(*given)
    compiled_fn = compiler_fn(graph_module, list(inputs))

    def call_compiled(*args: Any) -> Any:
        return compiled_fn(*args)

    return call_compiled


def run(
    function: Any,
    model: Any,
    inputs: tuple[Any, ...],
    case: dict[str, Any],
    seed: int,
    backward_begins: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Call ``function``, then backward if the case has one; outputs, inputs afterwards, and gradients."""
    torch.manual_seed(seed)
    outputs = function(*inputs)
    gradients: dict[str, Any] = {}
    if case.get("backward"):
        wanted = {f"input {place}": value for place, value in enumerate(inputs) if needs_gradient(value)}
        wanted |= {name: value for name, value in model.named_parameters() if value.requires_grad}
        roots = [value for value in flat(outputs) if needs_gradient(value)]
        if roots and wanted:
            generator = torch.Generator().manual_seed(seed)
            cotangents = [
                torch.randn(root.shape, generator=generator).to(root.device, root.dtype) for root in roots
            ]
            backward_begins()
            found = torch.autograd.grad(roots, list(wanted.values()), cotangents, allow_unused=True)
            gradients = dict(zip(wanted, found, strict=True))
    after = {str(place): value for place, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
    after |= dict(model.named_buffers())
    return {"outputs": outputs, "inputs_after": after, "gradients": gradients}


def needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for item in value for leaf in flat(item)] if isinstance(value, (tuple, list)) else [value]


@contextlib.contextmanager
def modes(context: dict[str, Any]) -> Iterator[None]:
    """The settings around the failing call, put back afterwards. Graph caches are off: they would hide a change."""
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    deterministic = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    config = {
        "torch._inductor.config": {"fx_graph_cache": False, "fx_graph_remote_cache": False},
        "torch._functorch.config": {"enable_autograd_cache": False, "enable_remote_autograd_cache": False},
        "torch._dynamo.config": {"verbose": True},  # whole tracebacks: they tell compile from runtime
    }
    for name, options in context.get("config", {}).items():
        config[name] = {**config.get(name, {}), **literal(options)}
    with contextlib.ExitStack() as stack:
        for name, options in config.items():
            module = importlib.import_module(name)
            stack.enter_context(
                module.patch({key: value for key, value in options.items() if hasattr(module, key)})
            )
        stack.callback(torch.set_default_dtype, dtype)
        stack.callback(torch.set_float32_matmul_precision, precision)
        stack.callback(torch.use_deterministic_algorithms, deterministic[0], warn_only=deterministic[1])
        if "default_dtype" in context:
            torch.set_default_dtype(dtype_named(context["default_dtype"]))
        if "matmul_precision" in context:
            torch.set_float32_matmul_precision(context["matmul_precision"])
        if context.get("deterministic"):
            torch.use_deterministic_algorithms(True, warn_only=bool(context.get("deterministic_warn_only")))
        if "threads" in context:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(context["threads"])
        if context.get("default_device"):
            stack.enter_context(torch.device(context["default_device"]))
        stack.enter_context(torch.set_grad_enabled(context.get("grad", True)))
        if context.get("inference"):
            stack.enter_context(torch.inference_mode())
        for device, dtype_name, cached in context.get("autocast", ()):
            stack.enter_context(torch.autocast(device, dtype_named(dtype_name), cache_enabled=cached))
        yield


def dtype_named(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return dtype


def literal(value: Any) -> Any:
    """Options travel as the text of a Python literal, since TOML has no None and no tuple."""
    return ast.literal_eval(value) if isinstance(value, str) else dict(value or {})


def never_reached_backend(error: BaseException) -> bool:
    """Whether dynamo stopped before it called the backend, or found nothing to call it with."""
    stack = stack_of(error)
    if any(function.endswith("call_user_compiler") for _, function in stack):
        return False
    tracing = any(module == "torch._dynamo.convert_frame" for module, _ in stack)
    return tracing or (bool(stack) and stack[-1][1].startswith("_TorchDynamoContext"))


def failed(signature: dict[str, Any], case: dict[str, Any], message: str, **more: Any) -> dict[str, Any]:
    """The outcome of a run that showed ``signature``, against the one that the case expects."""
    expected = case.get("signature")
    verdict = "reproduces" if expected is None or same_failure(expected, signature) else "changed"
    if verdict == "changed":
        verdict = {"crash": "crashed", "hang": "timeout"}.get(signature["kind"], verdict)
    return outcome(verdict, signature=signature, message=message, **more)


def judged(difference: dict[str, Any] | None, case: dict[str, Any]) -> dict[str, Any] | None:
    """The outcome of two runs that differ; ``difference`` has ``signature``, ``message``, figures, or is None."""
    if difference is None:
        return None
    signature = {"kind": "accuracy", "direction": "forward", "types": [], "frames": [], "message": ""}
    signature |= difference["signature"] if isinstance(difference["signature"], dict) else {}
    figures = {name: value for name, value in difference.items() if name not in ("signature", "message")}
    return failed(signature, case, difference["message"], figures=figures)


def same_failure(expected: dict[str, Any], found: dict[str, Any]) -> bool:
    """Every field equal; of the frames only the innermost. Crashes and hangs are the same by their kind."""
    if expected["kind"] in ("crash", "hang"):
        return bool(found["kind"] == expected["kind"])
    first = [list(one.get("frames", ()))[:1] for one in (expected, found)]
    fields = [
        [one["kind"], one["direction"], list(one["types"]), one["message"]] for one in (expected, found)
    ]
    return first[0] == first[1] and fields[0] == fields[1]


def outcome(verdict: str, reason: str = "", **more: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "signature": None,
        "message": "",
        "signal": None,
        "reproduced": None,
        "runs": None,
        "figures": {},
    }
    return {"verdict": verdict, "reason": reason, **empty, **more}


def brief(error: BaseException) -> str:
    return first_lines(error).partition("\n")[0][:300]


def first_lines(error: BaseException) -> str:
    """What the backend said, without dynamo's wrapping and advice."""
    error = exception_chain(error)[0]
    text = str(error).partition("\n\nSet TORCHDYNAMO_VERBOSE")[0].strip()
    return f"{type(error).__name__}: {text}"[:4000]
