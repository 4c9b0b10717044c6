"""The few lines by which a repro script judges itself: its model in eager, then by the backend.

A failure is compared by exception type and a text pattern; wrong results by tolerances, against
eager and against eager in float64. ``minidbg.judge`` compares more. A script is announced only when
both say that the failure reproduces; where these lines cannot judge, ``ScriptJudge`` raises
NoShortForm, and a script is written that only shows it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from minidbg import torch_internals
from minidbg.codegen.expressions import quoted
from minidbg.core import templates
from minidbg.core.errors import MinidbgError
from minidbg.core.literals import write_literal
from minidbg.core.metrics import METRICS, Judge
from minidbg.core.outcome import Signature, without_expressions
from minidbg.core.run_spec import CallPath, Context, Level
from minidbg.core.script_header import Header
from minidbg.fx.case import Case
from minidbg.fx.copying import storage_bytes, storage_key
from minidbg.fx.effects import tensors_in
from minidbg.fx.mutation import mutated_placeholders
from minidbg.judge import signature as signatures
from minidbg.judge.differences import FACTOR, TOLERANCES
from minidbg.judge.run import MOST_IN_HALF, MOST_TIMES
from minidbg.torch_internals.devices import has_wait

PATTERN_WIDTH = 90
ALWAYS_REGISTERED = ("inductor", "eager", "aot_eager", "aot_eager_decomp_partition")
PRINTED_TOLERANCES = {
    str(dtype).removeprefix("torch."): (relative, absolute)
    for dtype, (_, absolute, relative) in TOLERANCES.items()
}
"""Relative and absolute, by dtype name: the judge's against float64, whose noise the lines add."""
VALUES = ("float", "nan", "inf", "integer", "bool")
LEAVES = ("output", "gradient", "input")
CATEGORIES = (*VALUES, "dtype", "shape", "device", "requires_grad", "aliasing")


class NoShortForm(MinidbgError):
    """The failure needs the whole judge; the message says why."""


def has_custom_layout(values: Sequence[Any]) -> bool:
    """Whether casting each value alone loses its memory layout: gaps, overlaps, offset, sharing."""
    plain = {
        id(one): one for one in tensors_in(list(values)) if torch_internals.has_plain_memory(one)
    }.values()
    shared = len({storage_key(one) for one in plain}) < len(plain)
    kept = (torch.empty_like(one, device="meta").stride() == one.stride() for one in plain)
    return shared or not all(kept) or any(storage_bytes(one) != one.nbytes for one in plain)


class ScriptJudge:
    """What the templates ask of the case. ``judges``: whether the script judges it, or only shows
    it. ``here`` is the variable that holds the device. Raises NoShortForm."""

    def __init__(self, case: Case, header: Header, model: str, *, judges: bool) -> None:
        self.header, self.spec, self.kind = header, header.spec, header.spec.expected.kind
        self.judges, self.limit = judges, f"{header.spec.time_limit_s:g}"
        name, expression = case.backend.name, case.backend.expression
        self.name = name if expression in (repr(name), f'"{name}"') else ""
        """Of a backend that is registered; empty for all others."""
        self.golden = f'"{self.spec.golden}"' if self.spec.golden else ""
        """Where eager runs, as text; empty: where the backend does."""
        self.is_direct = self.spec.call is CallPath.DIRECT
        self.is_aten = self.spec.level is Level.ATEN
        self.has_state = "def __init__" in model or (self.is_direct and "root." in model)
        self.has_parameters = "torch.nn.Parameter" in model
        self.has_loops = any(f".higher_order.{loop}," in model for loop in torch_internals.LOOPS)
        is_dynamic = self.spec.dynamic if self.is_aten else any(self.spec.dynamic_dims)
        ends = case.graph_module.graph.find_nodes(op="output")
        dtypes = {value.dtype for value in tensors_in(case.inputs)}
        text = model + str(self.spec.context.autocast)
        is_half = torch.float16 in dtypes or "torch.float16" in text
        most_times = MOST_IN_HALF if is_half else MOST_TIMES
        has_several = any(len(node.all_input_nodes) > 1 for node in ends)
        self.most_times = f"2**{most_times.bit_length() - 1}" if has_several else ""
        self.has_symbols = bool(is_dynamic) and any(type(value) is int for value in case.inputs)
        """Whether plain integers among the inputs become symbols, as AOTAutograd makes them."""
        self.modes, self.statements = modes_of(self.spec.context)
        self.is_about_guards = self.spec.expected.message == signatures.NO_GUARDS
        self.category, self.leaf = "", ""
        if self.kind.traits.compares:
            message = self.spec.expected.message or "output: float"
            self.leaf, _, self.category = message.partition(": ")
            self.category = self.category.partition(" ")[0]
        if judges and self.golden and re.search(r"device(=|\()", model):
            raise NoShortForm("the reference is eager on the CPU, and the graph names a device")
        if judges:
            self.refuse(case)
        elif self.leaf:  # no float64 run is asked for
            self.category, self.leaf = "", self.leaf if self.leaf in LEAVES else LEAVES[0]
        judge = Judge.of(self.spec.judge) if self.spec.judge and self.compares_values else None
        self.judge = judge.text if judge else ""
        self.judged = lines_of(judge) if judge else []
        self.has_custom_layout = self.compares_values and has_custom_layout(case.inputs)
        self.factor = f"{FACTOR:g}"

    def refuse(self, case: Case) -> None:
        if self.leaf and (self.category not in CATEGORIES or self.leaf not in LEAVES):
            raise NoShortForm("a result of another structure than eager's needs the whole comparison")
        if self.is_direct and self.has_parameters and self.spec.backward:
            raise NoShortForm(
                "gradients of parameters are asked for, and the backend is called without torch.compile"
            )
        for index in mutated_placeholders(case.graph_module) if self.spec.backward else ():
            value = case.inputs[index]
            if isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf:
                raise NoShortForm(
                    "gradients of a value that the graph writes to are those from before the write"
                )

    def functions(self) -> list[str]:
        is_run = self.judges or not self.kind.traits.dies
        needed = {
            "run": is_run and self.needs_run,
            "compiled": is_run and self.is_direct,
            "check": self.judges and self.leaf,
        }
        text = templates.template_environment().get_template("judge.py.j2").module
        return [getattr(text, name)(self).strip("\n") for name, wanted in needed.items() if wanted]

    def shown(self) -> list[str]:
        """Statements that run it in eager and through the backend; none where that is deadly."""
        compiled = self.call(self.compiled_model("_device"), "_device")
        if self.kind.traits.dies or not self.leaf:
            return [] if self.kind.traits.dies else [compiled]
        here = self.golden or "_device"
        both = f"{self.call(self.eager(here), here)}, {compiled}"
        return [
            f"for _i, (_wanted, _got) in enumerate(itertools.zip_longest({both})):",
            f'    print(f"{self.leaf} {{_i}}: eager gives {{_wanted}}, the backend gives {{_got}}")',
        ]

    @property
    def compares_values(self) -> bool:
        return self.category in VALUES

    @property
    def widens(self) -> bool:
        return self.compares_values and not self.judged

    @property
    def needs_run(self) -> bool:
        return bool(self.modes or self.statements or self.spec.backward or self.leaf or self.waits)

    @property
    def waits(self) -> bool:
        late = self.kind.traits.dies or self.kind.traits.raises_when_run
        return late and has_wait(self.spec.device)

    # --- the model, eager and compiled

    def eager(self, here: str = "device") -> str:
        made = "graph()" if self.is_direct else "Repro()"
        return f"{made}.to({here})" if self.has_state else made

    def compiled_model(self, here: str = "device") -> str:
        if self.is_direct:
            return "_compiled"
        arguments, backend = ["backend=backend", "fullgraph=True"], self.spec.backend
        arguments += ["dynamic=True"] if self.spec.dynamic else []
        arguments += [f"mode={quoted(backend.mode)}"] if backend.mode else []
        arguments += [f"options={write_literal(dict(backend.options))}"] if backend.options else []
        return f"torch.compile({self.eager(here)}, {', '.join(arguments)})"

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

    def call(self, model: str, here: str = "device") -> str:
        return f"_run({model}, {here})" if self.needs_run else f"{model}(*inputs({here}))"

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
        """The body of ``test_repro(device)``, which raises while the failure is there."""
        lines = [self.judging(self.compiled_model())]
        if self.spec.attempts != 1:
            often = f"for _ in range({self.spec.attempts}):  # it fails in some runs only"
            lines = [often, "    torch.compiler.reset()", f"    {lines[0]}"]
        return textwrap.indent("\n".join(lines), "    ")

    def judging(self, model: str, here: str = "device") -> str:
        """The statement raising for a bad ``model``; if eager's does, the backend is unjudged."""
        return f"_check({model}, {here})" if self.leaf else self.call(model, here)

    def backend_line(self) -> str:
        """The statement that fails where the backend's name is unknown; none for torch's own."""
        return "torch._dynamo.lookup_backend(backend)" if self.name not in ("", *ALWAYS_REGISTERED) else ""

    def pattern(self) -> str:
        """The regular expression that tells the failure, as a literal."""
        values = "not close|not equal" if self.compares_values else self.category
        own = self.kind.traits.said or (values if self.leaf else self.spec.match)
        return written_pattern(own or "|".join(dict.fromkeys(self.patterns())))

    def patterns(self) -> Iterator[str]:
        if self.is_about_guards:  # the order of hashes decides which of three errors comes first
            yield from (signatures.BUILDS_GUARDS, signatures.GUARD_FAILED)
        message, signature = self.header.provenance.message, self.spec.signature
        known = [signature, *signature.others] if signature else []
        texts = list(dict.fromkeys(map(as_said, known)))
        yield from map(text_pattern, [message, *texts[1:]] if message else texts)

    def said(self) -> str:
        if self.is_about_guards:
            return "traceback.format_exc()"
        text = 'f"{type(_error).__name__}: {_error}"'
        if self.leaf or self.kind.traits.dies:
            return text
        return f're.sub(r"{signatures.CONTROL_SEQUENCE}", "", {text})  # without colours'

    def searched(self) -> str:
        """Where the pattern is searched; with single spaces, but for a pattern of the user's."""
        is_own = self.leaf or self.kind.traits.dies or self.is_about_guards or self.spec.match
        return "_said" if is_own else '" ".join(_said.split())'


FORMULAS = {
    "pcc_": "unit = torch.stack([v / v.abs().max() for v in (a, e)])",
    "pcc": "pcc = torch.corrcoef(unit)[0, 1] if (unit.amax(1) - unit.amin(1) > 1e-5).all() "
    "else torch.allclose(a, e, 1e-2, 1e-2)",
    "cosine": "cosine = a @ e / a.norm() / e.norm()",
    "max_abs": "max_abs = (a - e).abs().max()",
    "mean_abs": "mean_abs = (a - e).abs().mean()",
    "max_rel": "max_rel = torch.where(e == 0, a - a, (a - e) / e).abs().max()",
    "sqnr": "sqnr = 20 * torch.log10(e.norm() / (a - e).norm())",
    "equal": "equal = False",
}
"""Of a result that differs from eager's and of eager's, as vectors of float64."""
MOST_LINES = 10
"""Of the judge in a script, which is to be read."""


def lines_of(judge: Judge) -> list[str]:
    """A function's body, true of tensors ``a`` and ``e`` where ``judge`` is. Raises NoShortForm."""
    names = {*METRICS} & {*re.findall(r"\w+", judge.expression)}
    lines = [
        "a, e = (torch.view_as_real(v.resolve_conj()) if v.is_complex() else v for v in (a, e))",
        "a, e = (v.detach().cpu().double().flatten() for v in (a, e))",
        "same = (a == e) | (a.isnan() & e.isnan())",
        "if same.all():",
        "    return True",
        "a, e = (v[~same | e.isfinite()] for v in (a, e))",
        *(line for name, line in FORMULAS.items() if name.strip("_") in names),
        f"return bool({judge.expression})",
    ]
    if names.difference(FORMULAS) or len(lines) > MOST_LINES:
        raise NoShortForm(f"the judge {judge.text} needs the whole comparison")
    return lines


def as_said(signature: Signature) -> str:
    """``Type: message`` as a signature has it, with # where it lost something of what was said."""
    name = signature.types[-1].rpartition(".")[2] if signature.types else ""
    between = (
        "#" if name and signature.message else ""
    )  # a compiler's errors are not all that the message holds
    return f"{name}: {between}{re.sub(STAND_IN_PATTERN, '#', signature.message)}".removeprefix(": ")


STAND_IN_PATTERN = r"<(?:path|url|hash|kernel|name)>"
"""What ``VOLATILE`` puts in, and no message has."""


def modes_of(context: Context) -> tuple[list[str], list[str]]:
    """What differs from torch's defaults in the failing call: context managers, and statements."""
    dtype, device, precision = context.default_dtype, context.default_device, context.matmul_precision
    managers = {
        "torch.inference_mode()": context.inference,
        "torch.no_grad()": not (context.grad or context.inference),
        **{f'torch.autocast("{on}", dtype={of})': True for on, of, _ in context.autocast},
        f'torch.device("{device}")': device,
    }
    statements = {
        **{f"import {module}": module != "torch" and is_dotted_name(module) for module in context.config},
        "torch.use_deterministic_algorithms(True)": context.deterministic,
        f"torch.set_default_dtype({dtype})": dtype != "torch.float32",
        f'torch.set_float32_matmul_precision("{precision}")': precision != "highest",
        **dict.fromkeys(settings_of(context.config), True),
        f"torch.set_num_threads({context.threads})": context.threads_matter,
    }
    modes = (managers, statements)
    first, second = ([text for text, is_on in mode.items() if is_on] for mode in modes)
    return first, second


def settings_of(config: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for module, options in config.items():
        for name, value in options.items():
            if is_dotted_name(module) and is_dotted_name(name):
                yield f"{module}.{name} = {write_literal(value)}"
            else:  # a header may say anything, and what it says must not become code
                owner = f"sys.modules[{write_literal(module)}]"
                yield f"setattr({owner}, {write_literal(name)}, {write_literal(value)})"


def is_dotted_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def text_pattern(message: str) -> str:
    """A regular expression for the first telling line of ``message``, wild where runs, machines,
    graphs and locales differ: quotes too, which g++ writes by other characters in each."""
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
