"""The few lines by which a repro script judges itself: its model in eager, then by the backend.

A failure is compared by exception type and a text pattern; wrong results by tolerances, against
eager and against eager in float64. ``minidbg.judge`` compares more. A script is announced only when
both say that the failure reproduces; where these lines cannot judge, ``lines_that_judge`` raises
NoShortForm, and a script is written that only shows it.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

from minidbg import torch_internals
from minidbg.codegen.expressions import quoted
from minidbg.core import templates
from minidbg.core.errors import MinidbgError
from minidbg.core.literals import write_literal
from minidbg.core.outcome import Signature, without_expressions
from minidbg.core.run_spec import CallPath, Context, Level
from minidbg.core.script_header import Header
from minidbg.judge import signature as signatures
from minidbg.repro.wording import is_dotted_name, mode_phrases
from minidbg.torch_internals.devices import is_accelerator

PATTERN_WIDTH = 90
ALWAYS_REGISTERED = ("inductor", "eager", "aot_eager", "aot_eager_decomp_partition")
PRINTED_TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "float32": (3e-5, 1e-5),
    "bfloat16": (3.2e-2, 1e-5),
    "float16": (2e-3, 1e-5),
}
"""Relative and absolute, by dtype name: the judge's against float64, whose noise the lines add."""
VALUES = ("float", "nan", "inf", "integer", "bool")
LEAVES = ("output", "gradient", "input")
CATEGORIES = (*VALUES, "dtype", "shape", "device", "requires_grad", "aliasing")


class NoShortForm(MinidbgError):
    """The failure needs the whole judge; the message says why."""


def lines_that_judge(
    header: Header, *, model: str, expression: str, has_numbers: bool = True, has_custom_layout: bool = False
) -> dict[str, Any]:
    """The variables of ``script.py.j2`` that judge; ``judge.py.j2`` has the text of the functions.

    ``expression`` stands for the backend. ``has_numbers``: inputs may hold plain integers.
    ``has_custom_layout``: a plain ``double()`` would lay an input otherwise in memory.
    """
    case = _ScriptJudge(header, model, expression, has_numbers)
    if why := case.beyond_a_few_lines():
        raise NoShortForm(why)
    case.has_custom_layout = has_custom_layout
    own = {"functions": judge_functions(case, check=bool(case.leaf)), "test": case.test()}
    case.here = "_device"
    return {
        **own,
        "eager": case.judging(case.eager),
        "backend_line": case.backend_line(),
        "dies": case.kind.traits.dies,
        "child": case.call(case.compiled_model()),
        "pattern": written_pattern(case.pattern()),
        "said": case.said(),
        "searched": case.searched,
    }


def lines_that_only_show(header: Header, *, model: str, expression: str) -> dict[str, Any]:
    """The variables of ``shows.py.j2``: one run in eager and one through the backend; none where
    that would end the process."""
    case = _ScriptJudge(header, model, expression, has_numbers=True)
    if case.kind.traits.dies:
        return {"functions": [], "shown": []}
    case.here = "_device"
    shown = [case.call(case.compiled_model())]
    if case.leaf:
        case.category = ""  # no float64 run is asked for
        case.leaf = case.leaf if case.leaf in LEAVES else LEAVES[0]
        both = f"{case.call(case.eager)}, {case.call(case.compiled_model())}"
        shown = [
            f"for _i, (_wanted, _got) in enumerate(itertools.zip_longest({both})):",
            f'    print(f"{case.leaf} {{_i}}: eager gives {{_wanted}}, the backend gives {{_got}}")',
        ]
    return {"functions": judge_functions(case, check=False), "shown": shown}


def judge_functions(case: _ScriptJudge, *, check: bool) -> list[str]:
    needed = {"run": case.needs_run, "compiled": case.is_direct, "check": check}
    text = templates.template_environment().get_template("judge.py.j2").module
    return [getattr(text, name)(case).strip("\n") for name, wanted in needed.items() if wanted]


class _ScriptJudge:
    def __init__(self, header: Header, model: str, expression: str, has_numbers: bool) -> None:
        self.header, self.spec, self.kind = header, header.spec, header.spec.expected.kind
        name = header.spec.backend.name
        self.name = name if expression in (repr(name), f'"{name}"') else ""
        """Of a backend that is registered; empty for all others."""
        self.device, self.here = self.spec.device, "device"
        """Where it runs unless told otherwise; the variable that holds where it does."""
        self.is_direct = self.spec.call is CallPath.DIRECT
        self.is_aten = self.spec.level is Level.ATEN
        self.has_state = "def __init__" in model or (self.is_direct and "root." in model)
        self.has_parameters = "torch.nn.Parameter" in model
        self.has_custom_layout = False
        self.has_loops = any(f".higher_order.{loop}," in model for loop in torch_internals.LOOPS)
        is_dynamic = self.spec.dynamic if self.is_aten else any(self.spec.dynamic_dims)
        self.has_symbols = has_numbers and bool(is_dynamic)
        """Whether plain integers among the inputs become symbols, as AOTAutograd makes them."""
        self.backward, self.attempts = self.spec.backward, self.spec.attempts
        self.modes, self.statements = split_phrases(self.spec.context)
        self.is_about_guards = self.spec.expected.message == signatures.NO_GUARDS
        self.category, self.leaf = "", ""
        if self.kind.traits.compares:
            message = self.spec.expected.message or "output: float"
            self.leaf, _, self.category = message.partition(": ")
            self.category = self.category.partition(" ")[0]

    def beyond_a_few_lines(self) -> str:
        if self.leaf and (self.category not in CATEGORIES or self.leaf not in LEAVES):
            return "a result of another structure than eager's needs the whole comparison"
        if self.is_direct and self.has_parameters and self.backward:
            return "gradients of parameters are asked for, and the backend is called without torch.compile"
        return ""

    @property
    def compares_values(self) -> bool:
        return self.category in VALUES

    @property
    def needs_run(self) -> bool:
        return bool(self.modes or self.statements or self.backward or self.leaf or self.waits)

    @property
    def waits(self) -> bool:
        late = self.kind.traits.dies or self.kind.traits.raises_when_run
        return late and is_accelerator(self.device)

    # --- the model, eager and compiled

    @property
    def eager(self) -> str:
        made = "graph()" if self.is_direct else "Repro()"
        return f"{made}.to({self.here})" if self.has_state else made

    def compiled_model(self) -> str:
        if self.is_direct:
            return "_compiled"
        arguments, backend = ["backend=backend", "fullgraph=True"], self.spec.backend
        arguments += ["dynamic=True"] if self.spec.dynamic else []
        arguments += [f"mode={quoted(backend.mode)}"] if backend.mode else []
        arguments += [f"options={write_literal(dict(backend.options))}"] if backend.options else []
        return f"torch.compile({self.eager}, {', '.join(arguments)})"

    @property
    def wrapper(self) -> str:
        mode, options = self.spec.backend.mode, write_literal(dict(self.spec.backend.options))
        settings = f"{quoted(mode) if mode else None}, {options}, {self.spec.dynamic}"
        if self.name == "inductor":
            return f"torch._TorchCompileInductorWrapper({settings})"
        return f"torch._TorchCompileWrapper(backend, {settings})"

    @property
    def dims(self) -> str:
        if any(self.spec.dynamic_dims):
            return str([list(one) for one in self.spec.dynamic_dims])
        return "[[]] * len(values)" if self.has_loops or (self.is_aten and self.spec.dynamic) else ""

    def call(self, model: str) -> str:
        return f"_run({model}, {self.here})" if self.needs_run else f"{model}(*inputs({self.here}))"

    # --- the judgement

    @property
    def compared(self) -> str:
        if self.category == "aliasing":
            return "[*outputs, *values]"
        written = "[*values, *model.buffers()]" if self.has_state and not self.is_direct else "values"
        return {"output": "outputs", "gradient": "gradients", "input": written}[self.leaf]

    @property
    def tolerances(self) -> str:
        given = self.spec.tolerances
        pairs = {of: given.get(of, given.get("any", pair)) for of, pair in PRINTED_TOLERANCES.items()}
        pairs |= {name: pair for name, pair in given.items() if name != "any"}
        texts = [f"torch.{of}: ({low:g}, {high:g})".replace("e-0", "e-") for of, (low, high) in pairs.items()]
        return ", ".join(texts)

    def test(self) -> str:
        """The body of ``test_repro(device)``, which raises while the failure is there; crash and
        hang have a template part."""
        lines = [self.judging(self.compiled_model())]
        if self.attempts != 1:
            often = f"for _ in range({self.attempts}):  # it fails in some runs only"
            lines = [often, "    torch.compiler.reset()", f"    {lines[0]}"]
        return textwrap.indent("\n".join(lines), "    ")

    def judging(self, model: str) -> str:
        """The statement raising for a bad ``model``; if eager's does, the backend is unjudged."""
        return f"_check({model}, {self.here})" if self.leaf else self.call(model)

    def backend_line(self) -> str:
        """The statement that fails where the backend's name is unknown; none for torch's own."""
        return "torch._dynamo.lookup_backend(backend)" if self.name not in ("", *ALWAYS_REGISTERED) else ""

    def pattern(self) -> str:
        message, signature = self.header.provenance.message, self.spec.signature
        if self.kind.traits.said:
            return self.kind.traits.said
        if self.leaf:
            return "not close|not equal" if self.compares_values else self.category
        if self.spec.match:
            return self.spec.match
        known = [signature, *signature.others] if signature else []
        patterns = [text_pattern(said) for said in dict.fromkeys(map(as_said, known))]
        if message:
            patterns[:1] = [text_pattern(message)]
        if self.is_about_guards:  # the order of hashes decides which of three errors comes first
            patterns = [signatures.BUILDS_GUARDS, signatures.GUARD_FAILED, *patterns]
        return "|".join(dict.fromkeys(patterns))

    def said(self) -> str:
        if self.is_about_guards:
            return "traceback.format_exc()"
        text = 'f"{type(_error).__name__}: {_error}"'
        if self.leaf or self.kind.traits.dies:
            return text
        return f're.sub(r"{signatures.CONTROL_SEQUENCE}", "", {text})  # without colours'

    @property
    def searched(self) -> str:
        """The expression in which the pattern is searched; its spaces are single, but for a pattern
        that the user has given."""
        is_own = self.leaf or self.kind.traits.dies or self.is_about_guards or self.spec.match
        return "_said" if is_own else '" ".join(_said.split())'


def as_said(signature: Signature) -> str:
    """``Type: message`` as a signature has it, with # where it lost something of what was said."""
    name = signature.types[-1].rpartition(".")[2] if signature.types else ""
    between = (
        "#" if name and signature.message else ""
    )  # a compiler's errors are not all that the message holds
    return f"{name}: {between}{re.sub(STAND_IN_PATTERN, '#', signature.message)}".removeprefix(": ")


STAND_IN_PATTERN = r"<(?:path|url|hash|kernel|name)>"
"""What ``VOLATILE`` puts in, and no message has."""


def split_phrases(context: Context) -> tuple[list[str], list[str]]:
    """The modes of the failing call: as context managers, and as statements."""
    managers, statements = [], []
    for phrase in mode_phrases(context):
        if phrase.startswith("torch.set_default_device"):
            managers.append(phrase.replace("torch.set_default_device", "torch.device"))
        elif phrase.startswith(("torch.no_grad", "torch.inference_mode", "torch.autocast")):
            managers.append(phrase)
        else:
            statements.append(phrase)
    imports = [
        f"import {module}" for module in context.config if module != "torch" and is_dotted_name(module)
    ]
    threads = [f"torch.set_num_threads({context.threads})"] if context.threads_matter else []
    return managers, [*imports, *statements, *threads]


def text_pattern(message: str) -> str:
    """A regular expression for the first telling line of ``message``, wild where runs, machines,
    graphs and locales differ.

    g++ quotes names by other characters in each locale, so quotes are wild, and so is all else that
    is neither ASCII nor a letter.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    telling = signatures.meaningful_lines(message)
    line = lines[0] if not telling or len(telling) > 2 or telling[0] in lines else telling[0]
    line = line[: 10 * PATTERN_WIDTH]  # what replaces parts of it may take the square of its length
    for pattern, replacement in signatures.VOLATILE:
        wild = "%#" if replacement.startswith("%") else "#"
        line = re.sub(pattern, f"{replacement}#" if "\\1" in replacement else wild, line)
    line = " ".join(without_expressions(line).split())
    if len(line) > PATTERN_WIDTH:
        line = line[:PATTERN_WIDTH].rpartition(" ")[0] or line[:PATTERN_WIDTH]
    pieces = [re.sub(r"\\([ &~#<>:\-])", r"\1", re.escape(piece)) for piece in re.split("#+", line)]
    return re.sub(LOCAL, ".", ".*".join(pieces).removesuffix(".*"))


LOCAL = r"""["'`]|[^\w\x00-\x7f]"""
"""Characters that are other ones in another locale; the same number of them."""


def written_pattern(pattern: str) -> str:
    if "\\" in pattern and '"' not in pattern and not pattern.endswith("\\") and pattern.isprintable():
        return f'r"{pattern}"'
    return quoted(pattern)
