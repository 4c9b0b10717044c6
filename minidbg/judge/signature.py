"""What makes two failures the same, read off an exception and its traceback."""

from __future__ import annotations

import re
import traceback
from dataclasses import replace
from typing import Any

from minidbg.core.foreign import inner_of, message_of
from minidbg.core.kinds import Kind
from minidbg.core.outcome import Direction, Outcome, Signature, Verdict
from minidbg.core.run_spec import RunSpec

# Code that only carries the call: where it stands in a stack depends on the graph, not on the bug.
CARRIERS = (
    "torch.fx",
    "torch._dynamo",
    "torch._compile",
    "torch._guards",
    "torch._ops",
    "torch._utils_internal",
    "torch.utils._contextlib",
    "torch.nn.modules.module",
)
CALLS_BACKEND = ("call_user_compiler", "_call_user_compiler", "compile_directly", "call_backend_and_look")
DYNAMO_WRAPS = ("torch._dynamo.exc.BackendCompilerFailed", "torch._dynamo.exc.Unsupported")
COMPILE_WRAPPER = "_TorchDynamoContext"  # what torch.compile returns, in torch._dynamo.eval_frame
CALLS_COMPILED = ("torch._dynamo.eval_frame", "DisableContext")  # dynamo wraps a backend's result
GUARD_FAILED = "Guard failed on the same frame it was created"  # dynamo's words
BUILDS_GUARDS = "produce_guards_verbose"  # in torch.fx.experimental.symbolic_shapes
NO_GUARDS = "dynamo cannot build its guards"  # the message of such a failure, whichever error it is
ASYNCHRONOUS = "torch.AcceleratorError"  # a kernel's failure, raised by the next call to the device
GENERATED = ("torch._inductor.runtime.compile_tasks", "torch_compile_debug")
SCRIPT = "<script>"
"""The module of what is defined in the program or in a repro, in signatures."""
SCRIPTS = ("__main__", "__mp_main__", "minidbg_repro", __name__)
CONTROL_SEQUENCE = r"\x1b(\[[\d;?]*[A-Za-z]|\][^\a]*\a?)"  # colours, links
OF_A_BACKEND = r"minidbg_backend_[0-9a-f]{8}"  # the module of copied source, in a child


def failure(signature: Signature, spec: RunSpec, message: str, **more: Any) -> Outcome:
    found = Outcome(Verdict(signature.kind.traits.otherwise), signature, message=message, **more)
    # nothing that a death says is the backend's
    narrowed = spec.match is not None and not signature.kind.traits.dies
    said = not narrowed or re.search(str(spec.match), message) is not None
    return found.judged_against(spec.signature) if said else found


def signature_of(error: BaseException, phase: str = "", direction: str = "forward") -> Signature:
    """What ``error`` shows; without a ``phase``, the traceback tells compile from runtime."""
    chain = exception_chain(error)
    phase = phase or phase_of(error, direction)
    found = Signature(kind_of(phase, error), Direction(direction))
    if is_about_guards(error):  # which of three errors comes first hangs on the order of hashes
        return replace(found, message=NO_GUARDS)
    types, frames = map(qualified_name, chain), innermost_frames(chain)
    return replace(found, types=tuple(types), frames=tuple(frames), message=stable_message(chain))


def kind_of(phase: str, error: BaseException) -> Kind:
    """What ``error`` is, raised in a ``phase``: compile, runtime; accuracy, of wrong results."""
    return Kind(phase)


def is_about_guards(error: BaseException) -> bool:
    """Whether dynamo failed over its guards: the backend's doing where no input is symbolic."""
    functions = {last_name(function) for _, function in stack_of(error)}
    last = exception_chain(error)[-1]
    return BUILDS_GUARDS in functions or error_text(last).startswith(GUARD_FAILED)


def qualified_name(error: BaseException) -> str:
    kind = type(error)
    module = module_name(kind.__module__)
    name = f"{module}.{kind.__qualname__}".replace(".<locals>", "")
    return kind.__qualname__ if module == "builtins" else name


def module_name(name: str) -> str:
    if name in SCRIPTS or re.fullmatch(OF_A_BACKEND, name):
        return SCRIPT
    return "<generated>" if name.startswith(GENERATED) else name


def also_imported(signature: Signature, name: str) -> Signature:
    """``signature`` with a further form: as where the program's script is imported, as ``name``."""

    def imported(texts: tuple[str, ...]) -> tuple[str, ...]:
        pairs = ((text, text.removeprefix(SCRIPT)) for text in texts)
        return tuple(text if rest == text else name + rest for text, rest in pairs)

    form = replace(signature, types=imported(signature.types), frames=imported(signature.frames))
    return signature if form == signature else replace(signature, others=(*signature.others, form))


def exception_chain(error: BaseException | None) -> list[BaseException]:
    """``error`` and what it wraps, outermost first, without dynamo's wrapping of backend errors."""
    chain: list[BaseException] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen and len(seen) < 12:
        seen.add(id(error))
        inner = inner_of(error)
        if inner is None and quotes(error, error.__context__):
            inner = error.__context__  # raised `from None`, but its text begins with it
        if inner is None or qualified_name(error) not in DYNAMO_WRAPS:
            chain.append(error)
        error = inner
    return chain


def quotes(error: BaseException, inner: BaseException | None) -> bool:
    return inner is not None and error_text(error).startswith(type(inner).__name__ + ":")


def error_text(error: BaseException) -> str:
    """Its message, without what could move a terminal; empty where there is none to be had."""
    text = re.sub(CONTROL_SEQUENCE, "", message_of(error)[:50_000])
    text = text.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"'})
    return "".join(
        one if one.isprintable() or one == "\n" else " " if one.isspace() else "\ufffd" for one in text
    )


def phase_of(error: BaseException, direction: str = "forward") -> str:
    """``compile`` when the stack passes the backend's call, ``runtime`` when that of its result.

    ``tracing`` when dynamo itself stopped before, or found nothing to call the backend with.
    """
    stack = stack_of(error)
    functions = {last_name(function) for module, function in stack if module.startswith("torch.")}
    if direction == "backward":
        compiles = functions & {"get_or_compile", "_backward_impl"}
        runs = "call_func_at_runtime_with_args" in functions
        return "compile" if compiles and not runs else "runtime"
    tracing = False
    for module, function in stack:
        if last_name(function) in CALLS_BACKEND:
            return "compile"
        if (module, function.partition(".")[0]) == CALLS_COMPILED and not tracing:
            return "runtime"
        tracing = tracing or module == "torch._dynamo.convert_frame"
    if "BackendCompilerFailed" in {base.__name__ for base in type(error).__mro__}:
        return "compile"  # its traceback was shortened
    ends_in_wrapper = bool(stack) and stack[-1][1].startswith(COMPILE_WRAPPER)
    return "tracing" if tracing or ends_in_wrapper else "runtime"


def stack_of(error: BaseException) -> list[tuple[str, str]]:
    stack = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = module_name(str(frame.f_globals.get("__name__") or ""))
        stack.append((module, function_name(frame.f_code.co_qualname)))
    return stack


def function_name(qualified: str) -> str:
    """Lambdas and comprehensions count as their function: Python 3.12 gives the latter no frame."""
    names = [part for part in qualified.split(".") if part != "<locals>"]
    while len(names) > 1 and names[-1].startswith("<"):
        names.pop()
    return ".".join(names)


def last_name(function: str) -> str:
    return function.rpartition(".")[2]


def innermost_frames(chain: list[BaseException], most: int = 4) -> list[str]:
    if any(isinstance(one, RecursionError) or qualified_name(one) == ASYNCHRONOUS for one in chain):
        return []  # where the stack ends is chance
    traced = [error for error in chain if error.__traceback__ is not None]
    names: list[str] = []
    waiting = False  # in torch.compile's wrapper, before compiled code: frames are the model's
    for module, function in stack_of(traced[-1]) if traced else []:
        last = last_name(function)
        if module == CALLS_COMPILED[0] and (waiting or function.startswith(COMPILE_WRAPPER)):
            waiting = function.startswith(COMPILE_WRAPPER)
            names.clear()
        elif module.partition(".")[0] == "minidbg" or last in (*CALLS_BACKEND, "call_compiled"):
            waiting = False
            names.clear()
        elif last == "__torch_dispatch__" and module.startswith("torch."):
            pass  # a mode's, or a subclass's: which are around a call is chance
        elif module and not (module.startswith(CARRIERS) or function.startswith("_TorchCompile")):
            name = f"{module}:{last if module == '<generated>' else function}"
            if names[-1:] != [name]:
                names.append(name)
    return names[-most:][::-1]


def stable_message(chain: list[BaseException], most: int = 400) -> str:
    pairs = zip(chain, [*chain[1:], None], strict=True)
    error = next((one for one, inner in pairs if not quotes(one, inner)), chain[0])
    targets = (re.search(r"(?m)^\s*target: (\S+)", error_text(one)) for one in chain)
    target = next((match[1] for match in targets if match), "")
    text = "\n".join(meaningful_lines(error_text(error)))
    text = f"{text} target: {target}" if target and target not in text else text
    text = " ".join(text.split())[: 4 * most]
    for pattern, replacement in VOLATILE:
        text = re.sub(pattern, replacement, text)
    return text[:most].strip()


def meaningful_lines(text: str) -> list[str]:
    found = re.findall(r"(?m)^.*?\b(?:fatal )?error: (.*)$", text)
    if found:
        return list(dict.fromkeys(line.strip() for line in found))[:2]  # each loop repeats it
    lines = []
    # where no output follows a command, its end is not sought
    head, mark, rest = text.rpartition("\nOutput:\n")
    for line in (re.sub(COMMAND, "", head + mark) + rest).splitlines():
        if re.match(APPENDIX, line):
            break
        lines.append(line.strip())
    return [line for line in lines if line][:8]


COMMAND = r"(?ms)^Command:\n.*?^Output:\n"  # the part of a CppCompileError that all share
APPENDIX = r"\s*(args\[\d+\]: |kwargs: |While executing |Original traceback|Found from :|Set TORCHDYNAMO_VERBOSE|from user code)"
VOLATILE = (
    (r" GPU \d+ has a total capacity .*", ""),  # out of memory: each process that is on the device
    (r"\b0x[0-9a-fA-F]+\b", "#"),
    (r"\w+://\S+", "<url>"),
    (r"(?:[A-Za-z]:)?(?:[/\\][\w.+@~-]+){2,}(?::\d+)*", "<path>"),
    (r"\b(?:[a-z2-7]{40,}|[0-9a-f]{12,})\b", "<hash>"),
    (r"\b(?:cpp|triton)_[a-z]*_?fused_\w+", "<kernel>"),
    (r"%\w+", "%<name>"),
    (r"\bL_\w+_\b|\bL\[[^\]\s]*\](?:\.\w+)*", "<name>"),
    (r"(?<=[A-Za-z_])\d+(?![A-Za-z\d])", "#"),  # buf12, relu_17, float32
    (r"(?:_#)+(?!\w)", ""),
    (r"(?<![\w#])-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?[A-Za-z]{0,2}\b", "#"),
    (r"#(?:\s*[,x*]\s*#)+", "#"),  # shapes of any rank
    (r"\[\s*\]|\[#,?\s*\]", "[#]"),
    (r"\(#,\)", "(#)"),
    (r"([^;]{4,}?)(?:; \1)+(?=;|$|\s)", r"\1"),  # one phrase for each dimension
)
