"""The few lines by which a repro script judges itself: its model in eager first, then through the backend.

A failure is compared by exception type and a text pattern; wrong results by tolerances, against eager and against eager in
float64. ``minidbg.oracle`` compares more. A script is announced only when both say that the failure reproduces; for a case
that these lines cannot show, ``lines_for`` raises NoShortForm, and a standalone script is written.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

from minidbg.case import CallPath, Context
from minidbg.errors import MinidbgError
from minidbg.failure import Kind
from minidbg.graphs.expressions import quoted
from minidbg.metadata import HANG_LIMIT_S
from minidbg.oracle.signature import BUILDS_GUARDS, GUARD_FAILED, NO_GUARDS, VOLATILE, meaningful_lines
from minidbg.repro.header import Header
from minidbg.repro.wording import is_dotted_name, mode_phrases

NAMES = ("run", "check", "compiled", "sharing", "options", "device", "error", "same")
"""Global names of these lines, beside those that every script has."""
PATTERN_WIDTH = 90
ALWAYS_REGISTERED = ("inductor", "eager", "aot_eager", "aot_eager_decomp_partition")
TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "float32": (3e-5, 1e-5),
    "bfloat16": (3.2e-2, 1e-5),
    "float16": (2e-3, 1e-5),
}
"""Relative and absolute, by name of dtype: those of the oracle against float64, whose noise the lines add."""
VALUES = ("float", "nan", "inf", "integer", "bool")


class NoShortForm(MinidbgError):
    """The repro needs the whole oracle; the message says why."""


def lines_for(header: Header, *, model: str, plain_backend: str, has_numbers: bool = True) -> dict[str, Any]:
    """The variables of ``script.py.j2`` that judge.

    ``plain_backend`` is a backend's name in quotes, or the global name of its function; empty where ``backend()`` gives it.
    ``has_numbers``: there may be plain integers among the inputs.
    """
    writer = _JudgeWriter(header, model, plain_backend, has_numbers)
    dies = header.kind in (Kind.CRASH, Kind.HANG)
    return {
        "functions": [text for text in (writer.run(), writer.compiled(), writer.check()) if text],
        "test": writer.test(),
        "eager": writer.eager_line(),
        "backend_line": writer.backend_line(),
        "dies": dies,
        "child": writer.call(writer.compiled_model()),
        "pattern": written_pattern(writer.pattern()),
        "said": "traceback.format_exc()" if writer.is_about_guards else 'f"{type(error).__name__}: {error}"',
    }


class _JudgeWriter:
    """Writes the lines for one header."""

    def __init__(self, header: Header, model: str, plain_backend: str, has_numbers: bool) -> None:
        self.header, self.table = header, header.table
        self.backend, self.has_numbers = plain_backend or "backend()", has_numbers
        self.is_direct = header.call is CallPath.DIRECT
        self.has_state = "def __init__" in model or (self.is_direct and "root." in model)
        self.has_parameters = "torch.nn.Parameter" in model
        self.attempts = int(self.table.get("attempts", 1))
        self.is_about_guards = header.signature is not None and header.signature.message == NO_GUARDS
        self.category, self.leaf = "", ""
        if header.kind is Kind.ACCURACY:
            known = header.signature.message if header.signature else ""
            self.leaf, _, self.category = (known or "output: float").partition(": ")
            self.category = self.category.partition(" ")[0]
            if self.category not in (
                *VALUES,
                "dtype",
                "shape",
                "device",
                "requires_grad",
                "stride",
                "aliasing",
            ):
                raise NoShortForm("a result of another structure than eager's needs the whole comparison")
            if isinstance(allowed := self.table.get("tolerances"), str) and self.category in VALUES:
                raise NoShortForm(f"what {allowed} arithmetic gives is known to the whole comparison only")
        if self.is_direct and self.has_parameters and self.table.get("backward"):
            raise NoShortForm(
                "gradients of parameters are asked for, and the backend is called without torch.compile"
            )

    # --- the model, eager and compiled

    def eager(self) -> str:
        """The model itself."""
        made = "graph()" if self.is_direct else "Repro()"
        return f"{made}.to(device)" if self.has_state else made

    def compiled_model(self) -> str:
        """What goes through the backend, as an expression."""
        if self.is_direct:
            return "compiled"
        arguments = [f"backend={self.backend}", "fullgraph=True"]
        arguments += ["dynamic=True"] if self.table.get("dynamic") else []
        arguments += [f"mode={quoted(self.table['mode'])}"] if self.table.get("mode") else []
        arguments += [f"options={self.table['options']}"] if self.table.get("options") else []
        return f"torch.compile({self.eager()}, {', '.join(arguments)})"

    def call(self, model: str) -> str:
        """``model`` called with the inputs, in the modes of the failing call."""
        return f"run({model}, device)" if self.needs_run else f"{model}(*inputs(device))"

    @property
    def needs_run(self) -> bool:
        """Whether a call takes more than one expression."""
        modes, statements = split_phrases(self.header.context)
        return bool(modes or statements or self.table.get("backward") or self.leaf)

    def run(self) -> str:
        """``def run``, or nothing where a plain call does."""
        if not self.needs_run:
            return ""
        compared = bool(self.leaf)
        modes, statements = split_phrases(self.header.context)
        yields = {"output": "the outputs", "gradient": "the gradients", "input": "the inputs after the call"}
        body = [f'"""One call of the model{"; " + yields[self.leaf] if compared else ""}."""']
        body += [*statements, "torch.manual_seed(0)", "values = inputs(device)"]
        if self.category in VALUES:
            body += [
                "if wide:",
                "    values = [v.double() if torch.is_tensor(v) and v.is_floating_point() else v for v in values]",
            ]
        reads = compared or self.table.get("backward")
        call = [
            "outputs = " + ("torch.utils._pytree.tree_leaves(model(*values))" if reads else "model(*values)")
        ]
        if self.table.get("backward"):
            owner = "[*values, *model.parameters()]" if self.has_parameters else "values"
            call += [
                "roots = [o for o in outputs if torch.is_tensor(o) and o.requires_grad]",
                f"leaves = [v for v in {owner} if torch.is_tensor(v) and v.requires_grad]",
                "seeds = [torch.randn(o.shape, dtype=torch.float32).to(o) for o in roots]",
                "gradients = torch.autograd.grad(roots, leaves, seeds, allow_unused=True)",
            ]
        body += [f"with {', '.join(modes)}:", *(f"    {line}" for line in call)] if modes else call
        if compared:
            body += [f"return {self.leaves()}"]
        wide = ", wide=False" if self.category in VALUES else ""
        return f'def run(model, device="{self.header.device}"{wide}):\n' + indented(body)

    def leaves(self) -> str:
        """The values to compare, as an expression."""
        if self.category == "aliasing":
            return "[v for v in [*outputs, *values] if torch.is_tensor(v)]"
        kept = {
            "output": "outputs",
            "gradient": "gradients",
            "input": "[*values, *model.buffers()]" if self.has_state and not self.is_direct else "values",
        }[self.leaf]
        return f"[v for v in {kept} if torch.is_tensor(v)]"

    def compiled(self) -> str:
        """``def compiled``, which calls the backend without torch.compile; nothing where torch.compile is used."""
        if not self.is_direct:
            return ""
        if self.table.get("level") == "aten":
            return "def compiled(*values):\n" + indented(list(self.as_aot_autograd_does()))
        body = ['"""The backend called without torch.compile, which would change this graph."""']
        dims = self.table.get("dynamic_dims", ())
        first = "gm, examples = graph(), list(values)"
        body += self.symbolic_examples(dims, first) if any(dims) else [first]
        body += [
            'for node, value in zip(gm.graph.find_nodes(op="placeholder"), examples):',
            '    node.meta.setdefault("example_value", value)',
        ]
        mode, options = self.table.get("mode"), self.table.get("options", "{}")
        settings = f"{quoted(mode) if mode else None}, {options}, {self.table.get('dynamic')}"
        if self.backend == '"inductor"':
            wrapper = f"torch._TorchCompileInductorWrapper({settings})"
        else:
            wrapper = f"torch._TorchCompileWrapper({self.backend}, {settings})"
        body += ["with tracing(TracingContext(fake_mode)):"] if any(dims) else []
        body += [
            f"{'    ' if any(dims) else ''}compiled_fn = {wrapper}(gm, examples)",
            "return compiled_fn(*values)",
        ]
        return "def compiled(*values):\n" + indented(body)

    def as_aot_autograd_does(self) -> Iterator[str]:
        """The compiler is called with fake inputs, each node knows its fake value, and the result may want one list."""
        dims = self.table.get("dynamic_dims", ())
        yield '"""The compiler called as AOTAutograd does: with fake inputs, and fake values on each node."""'
        yield "from torch.fx.passes.fake_tensor_prop import FakeTensorProp"
        yield "from torch.fx.passes.shape_prop import ShapeProp"
        if any(dims) or self.table.get("dynamic"):
            yield from self.symbolic_examples(dims or [[]] * 100, "gm, examples = graph(), list(values)")
        else:
            yield "from torch._guards import TracingContext, tracing"
            yield "from torch._subclasses import FakeTensorMode"
            yield ""
            yield "gm, fake_mode = graph(), FakeTensorMode(allow_non_fake_inputs=True)"
            yield "examples = [fake_mode.from_tensor(v) if torch.is_tensor(v) else v for v in values]"
        yield "with torch.no_grad(), tracing(TracingContext(fake_mode)):"
        yield "    FakeTensorProp(gm, fake_mode).propagate_dont_convert_inputs(*examples)"
        yield "    ShapeProp(gm, fake_mode).run(*examples)"
        yield f"    compiled_fn = {self.backend}(gm, examples)"
        yield 'return compiled_fn(list(values)) if getattr(compiled_fn, "_boxed_call", False) else compiled_fn(*values)'

    def symbolic_examples(self, dims: Any, first: str) -> Iterator[str]:
        """Statements that make ``examples`` fake, with symbols for the dynamic dimensions (and for plain integers of AOTAutograd).

        ``first`` is the statement that makes ``examples`` a list; it comes after the imports.
        """
        yield "from torch._dynamo.source import LocalSource"
        yield "from torch._guards import TracingContext, tracing"
        yield "from torch._subclasses import FakeTensorMode"
        yield "from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext"
        yield ""
        yield first
        yield "fake_mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)"
        yield f"for i, dims in zip(range(len(values)), {[list(one) for one in dims]}):"
        yield '    value, source = values[i], LocalSource(f"input_{i}")'
        yield "    if torch.is_tensor(value):"
        yield "        kinds = [DimDynamic.DUCK if d in dims else DimDynamic.STATIC for d in range(value.dim())]"
        yield "        context = StatelessSymbolicContext(dynamic_sizes=kinds, constraint_sizes=[None] * len(kinds))"
        yield "        examples[i] = fake_mode.from_tensor(value, source=source, symbolic_context=context)"
        if self.has_numbers and (self.table.get("level") != "aten" or self.table.get("dynamic")):
            yield "    elif type(value) is int:"
            yield "        symbol = fake_mode.shape_env.create_symbol(value, source, dynamic_dim=DimDynamic.DUCK)"
            yield "        examples[i] = fake_mode.shape_env.create_symintnode(symbol, hint=value, source=source)"

    # --- the judgement

    def check(self) -> str:
        """``def check``, which compares with eager; nothing for failures that are exceptions."""
        if not self.leaf:
            return ""
        body = ['"""Raise AssertionError where the model\'s results differ from eager\'s."""']
        if self.category in VALUES:
            body[0] = (
                '"""Raise AssertionError where the model is farther from eager than rounding explains."""'
            )
            body += list(self.compare_values())
        elif self.category == "aliasing":
            body += [
                f'assert sharing(run(model, device)) == sharing(run({self.eager()}, device)), "aliasing differs"'
            ]
        else:
            name = "stride()" if self.category == "stride" else self.category
            body += [
                f"for got, wanted in zip(run(model, device), run({self.eager()}, device), strict=True):",
                f'    assert got.{name} == wanted.{name}, f"{self.category} {{got.{name}}}, eager\'s {{wanted.{name}}}"',
            ]
        text = f'def check(model, device="{self.header.device}"):\n' + indented(body)
        if self.category == "aliasing":
            rows = "[[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in values] for b in values]"
            text = f'def sharing(values):\n    """Which of them lie in one storage."""\n    return {rows}\n\n\n{text}'
        return text

    def compare_values(self) -> Iterator[str]:
        """Statements that hold each result against eager's, allowing for eager's own error as float64 shows it."""
        eager = self.eager()
        first, second = self.tolerances()
        yield f"tolerances = {{{first}}}"
        yield f"tolerances |= {{{second}}}"
        yield f"eager = run({eager}, device)"
        yield "try:"
        yield f"    exact = run({eager}.double(), device, wide=True)"
        yield "except Exception:"
        yield "    exact = eager  # the program has no float64 form"
        yield "for got, wanted, true in zip(run(model, device), eager, exact, strict=True):"
        yield "    relative, absolute = tolerances.get(wanted.dtype.to_real(), (0, 0))"
        yield "    if wanted.is_floating_point() and wanted.numel():"
        yield "        noise = torch.nan_to_num(wanted.double() - true.double(), 0, 0, 0).abs().max().item()"
        yield "        absolute = absolute * min(1, wanted.abs().max().item()) + 3 * noise"
        yield "    torch.testing.assert_close(got, wanted, rtol=relative, atol=absolute, equal_nan=True)"

    def tolerances(self) -> list[str]:
        """The items of a dict from dtype to relative and absolute tolerance, in two lines."""
        given = self.table.get("tolerances", {})
        pairs = {name: given.get(name, given.get("any", pair)) for name, pair in TOLERANCES.items()}
        pairs |= {name: pair for name, pair in given.items() if name != "any"}
        texts = [
            f"torch.{name}: ({low:g}, {high:g})".replace("e-0", "e-") for name, (low, high) in pairs.items()
        ]
        half = (len(texts) + 1) // 2
        return [", ".join(texts[:half]), ", ".join(texts[half:])]

    def test(self) -> str:
        """The body of ``test_repro(device)``, which raises while the failure is there; crash and hang have a template part."""
        model = self.compiled_model()
        call = f"check({model}, device)" if self.leaf else self.call(model)
        if self.attempts == 1:
            return indented([call])
        return indented(
            [
                f"for _ in range({self.attempts}):  # it fails in some runs only",
                "    torch.compiler.reset()",
                f"    {call}",
            ]
        )

    def eager_line(self) -> str:
        """The statement that runs eager alone: where it fails, or differs from itself, nothing can be said of the backend."""
        return f"check({self.eager()}, device)" if self.leaf else self.call(self.eager())

    def backend_line(self) -> str:
        """The statement that fails where the backend is missing; nothing for backends of torch itself."""
        name = self.backend.strip("'\"")
        if name == self.backend:  # no name in quotes; a function of the script's own is never missing
            return "" if name.isidentifier() else name
        return "" if name in ALWAYS_REGISTERED else f"torch._dynamo.lookup_backend({self.backend})"

    def pattern(self) -> str:
        """A regular expression that this failure's ``Type: message`` contains."""
        header = self.header
        if header.kind is Kind.HANG:
            return "TimeoutExpired"
        if header.kind is Kind.CRASH:
            return "the process died"
        if self.leaf:
            return "not close|not equal" if self.category in VALUES else self.category
        if self.table.get("match"):
            return str(self.table["match"])
        known = [header.signature, *header.signature.others] if header.signature else []
        said = [
            f"{'.'.join(one.types[-1:]).rpartition('.')[2]}: {one.message}".removeprefix(": ")
            for one in known
        ]
        # a signature's message has spaces where the text itself may have line breaks
        patterns = [text_pattern(text).replace(" ", r"\s+") for text in said]
        if header.provenance.message:
            patterns[:1] = [text_pattern(header.provenance.message)]
        if self.is_about_guards:  # which of three errors dynamo meets first hangs on the order of hashes
            patterns = [BUILDS_GUARDS, GUARD_FAILED, *patterns]
        return "|".join(dict.fromkeys(patterns))


def indented(lines: list[str]) -> str:
    """The lines as a function's body."""
    return textwrap.indent("\n".join(lines), "    ")


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
    """A regular expression for the first telling line of ``message``, wild where runs, machines and graphs differ."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    telling = meaningful_lines(message)
    line = lines[0] if not telling or len(telling) > 2 or telling[0] in lines else telling[0]
    for pattern, replacement in VOLATILE:
        if "\\1" not in replacement:
            line = re.sub(pattern, "%#" if replacement.startswith("%") else "#", line)
    if len(line) > PATTERN_WIDTH:
        line = line[:PATTERN_WIDTH].rpartition(" ")[0] or line[:PATTERN_WIDTH]
    pieces = [re.sub(r"\\([ &~#<>:\-])", r"\1", re.escape(piece)) for piece in re.split("#+", line)]
    return ".*".join(pieces).removesuffix(".*")


def written_pattern(pattern: str) -> str:
    """The pattern as a string literal, raw where it has a backslash and can be."""
    if "\\" in pattern and '"' not in pattern and not pattern.endswith("\\") and pattern.isprintable():
        return f'r"{pattern}"'
    return quoted(pattern)


def hang_limit(header: Header) -> float:
    """Seconds from the end of the eager run after which a compile counts as a hang."""
    limit = header.table.get("time_limit_s", HANG_LIMIT_S)
    return float(limit) if isinstance(limit, int | float) else HANG_LIMIT_S
