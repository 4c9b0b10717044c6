"""A case as the text of a script, in one of three forms, and the tensors that lie beside it."""

from __future__ import annotations

import ast
import enum
import itertools
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from minidbg.backends import assignment
from minidbg.backends.statements import ANNOTATIONS, joined
from minidbg.codegen import module_text
from minidbg.codegen.expressions import quoted
from minidbg.codegen.inputs import Exactness, InputsText, bytes_to_store, write_constant, write_inputs
from minidbg.codegen.module_text import write_graph_builder
from minidbg.core.errors import CannotWrite
from minidbg.core.literals import write_literal
from minidbg.core.run_spec import BackendRef, CallPath
from minidbg.core.settings import VALUE_LIMIT_BYTES
from minidbg.core.templates import fill
from minidbg.fx.case import Case
from minidbg.fx.ranks import with_group
from minidbg.repro import selfcheck
from minidbg.repro.header import header_of, shared_folder, write_header
from minidbg.repro.wording import case_message, docstring, message_lines

SCRIPT_IMPORTS = (ANNOTATIONS, "import pathlib, sys", "import torch")
"""Imports that a script has for itself."""
NOT_JUDGED_HERE = "not judged here, but by: minidbg check"
EMBEDDED_MARK = "# Copied from the program that failed:"
KERNELS_MARK = "# Triton kernels that the graph launches:"

STORED = '''\
def stored(key, dtype, device="cpu"):
    """A tensor of the .safetensors file beside this script, which holds each storage once, as bytes."""
    from safetensors import safe_open

    with safe_open(__file__.removesuffix(".py") + ".safetensors", "pt") as file:
        return file.get_tensor(key).clone().view(dtype).to(device)
'''


class Form(enum.Enum):
    SHORT = "script.py.j2"
    """A few lines that judge it: what is published."""
    SHOWS = "shows.py.j2"
    """Lines that show it and exit 125, as a few lines cannot judge it: ``minidbg check`` does."""
    CAPTURE = "capture.py.j2"


USAGE = {
    Form.SHORT: "Exit status: 0 gone, 1 reproduces, 3 fails differently (125 with --bisect),"
    " 125 cannot be judged here. "
    "--device D runs it on device D.",
    Form.SHOWS: "Exit status: 125. --device D runs it on device D.",
    Form.CAPTURE: "Exit status: 125.",
}


@dataclass(frozen=True, slots=True)
class Script:
    """``text``: the script; ``tensors`` (uint8 ``[n]`` by key): its .safetensors file, if any."""

    text: str
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def render(
    case: Case,
    form: Form = Form.SHORT,
    *,
    exactness: Exactness = Exactness.SEEDED,
    value_limit_bytes: int = VALUE_LIMIT_BYTES,
    raw: bool = False,
    remark: str = "",
    folder: str | None = None,
) -> Script:
    """The script of ``case``; ``raw``: nobody reads it; inputs are stored without a look, or drawn.

    ``remark`` is one more sentence for the docstring. ``folder`` is the repro folder that the
    script is for: what lies around it is not named by absolute paths. Raises CannotWrite naming the
    part of the case that has no form in a script, or values beyond ``value_limit_bytes``, and
    NoShortForm for a case that a short script cannot show.
    """
    if (size := bytes_to_store(case.inputs, exactness)) > value_limit_bytes:
        why = f"they take {size:,} bytes, and value_limit_bytes allows {value_limit_bytes:,}"
        raise CannotWrite("the values of the inputs", why)
    case = with_group(case)
    runs, context = form is not Form.CAPTURE, case.spec.context
    if runs and not context.env_matters:  # it was run without them
        case = case.with_spec(context=replace(context, env={}))
    stored: dict[str, Tensor] = {}
    explicit = case.spec.context.default_dtype != "torch.float32"
    seeds = itertools.count(1)

    def constant(name: str, value: Tensor) -> str:
        return write_constant(f"Repro.{name}", value, exactness, stored, seed=next(seeds), explicit=explicit)

    write = write_graph_builder if case.spec.call is CallPath.DIRECT else module_text.write_module
    model = write(case.graph_module, constant_expression=constant)
    inputs = write_inputs(case.inputs, model.input_names, exactness, explicit=explicit, raw=raw)
    stored |= inputs.stored
    told = docstring(case, values=values_line(stored), remark=remark, usage=USAGE[form])
    case = case.with_spec(device=inputs.device)
    if runs:  # the first lines, where the failure is recognised by them
        message, first = case_message(case), "\n".join(message_lines(case, unchanged=True))
        if selfcheck.text_pattern(first) == selfcheck.text_pattern(message):
            message = first
        case = replace(case, provenance=replace(case.provenance, message=message))
    header = write_header(case, has_tensors=bool(stored), folder=folder)
    paths = list(path_lines(case.backend, folder))
    embedded = _embedded(case)
    kernels = f"{KERNELS_MARK}\n{joined(list(model.kernels.values()))}\n\n\n" if model.kernels else ""
    of_paths = ["import pathlib, sys"] if paths else []
    imports = tuple(dict.fromkeys([*of_paths, "import torch", *model.imports, *inputs.imports]))
    variables: dict[str, Any] = {
        "docstring": told,
        "imports": imports,
        "env": write_literal(dict(context.env)) if context.env_matters else "",
        "embedded": embedded,
        "annotated": any(
            getattr(node, "annotation", None) or getattr(node, "returns", None)
            for node in ast.walk(ast.parse(embedded))
        ),
        "embedded_mark": EMBEDDED_MARK,
        "unfilled": quoted(case.backend.unfilled) if case.backend.lacks_backend else "",
        "setup": list(case.backend.setup),
        "backend": assignment(case.backend),
        "model": f"{kernels}{model.text}".rstrip("\n"),
        "inputs": inputs_function(inputs, case.spec.dynamic_dims),
        "stored": STORED.rstrip("\n") if stored else "",
        "device": inputs.device,
        "header": header,
        "paths": paths,
        "not_judged": NOT_JUDGED_HERE,
        "functions": (),
    }
    if runs:
        read = header_of(f'"""{told}"""\n{header}', Path("the header"))
        judge = selfcheck.ScriptJudge(case, read, model.text, judges=form is Form.SHORT)
        variables |= {"judge": judge, "functions": judge.functions()}
    text = fill(form.value, variables)
    if not raw:  # not for a crash record: the check takes longer than all the rest
        try:
            compile(text, "<repro script>", "exec")
        except (SyntaxError, ValueError) as error:
            raise CannotWrite("the script", f"its text would be no Python: {error}") from error
    return Script(text, stored)


def values_line(stored: Mapping[str, Tensor]) -> str:
    if not stored:
        return ""
    size = sum(data.numel() for data in stored.values())
    amount = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
    return f"The .safetensors file of the same name belongs to this script: {amount} of values."


def inputs_function(inputs: InputsText, dynamic_dims: Sequence[Sequence[int]] = ()) -> str:
    """``def inputs(device=...)``; ``dynamic_dims`` has for each value the dimensions to mark."""
    marked = [(name, d) for name, dims in zip(inputs.names, dynamic_dims, strict=False) for d in dims]
    marks = (f"torch._dynamo.maybe_mark_dynamic({name}, {dim})" for name, dim in marked)
    names = inputs.names
    returned = f"({names[0]},)" if len(names) == 1 else ", ".join(names) if names else "()"
    if len(f"return {returned}") > 100:
        returned = f"(\n{module_text.listed(names)},\n)"
    lines = "\n".join([*inputs.lines, *marks, f"return {returned}"])
    return f'def inputs(device="{inputs.device}"):\n' + textwrap.indent(lines, "    ")


def _embedded(case: Case) -> str:
    text = case.backend.embedded
    imports = (ANNOTATIONS, "import torch")
    ours = {node.lineno for node in ast.parse(text).body if ast.unparse(node) in imports}
    return "\n".join(line for n, line in enumerate(text.split("\n"), 1) if n not in ours).strip("\n")


def path_lines(backend: BackendRef, folder: str | None) -> Iterator[str]:
    """Statements that put the folders of the backend's modules at the end of ``sys.path``. What
    lies in the tree around ``folder`` is looked for above the script, which may be moved."""
    for path in backend.paths:
        try:
            names = {name.partition(".")[0]: name for name in sorted(os.listdir(path), reverse=True)}
        except (OSError, ValueError):  # ValueError: no path can be called so
            names = {}
        modules = [module for module in backend.modules if module in names]
        what = (
            f"  # {', '.join(modules) or 'modules of the backend'}; elsewhere: put its folder on PYTHONPATH"
        )
        if not modules or not folder or not (shared := shared_folder(path, folder)):
            yield f"sys.path += [{path!r}]{what}"
            continue
        below = os.path.relpath(path, shared)
        inside = "" if below == "." else f" / {quoted(below)}"
        marker = os.path.normpath(os.path.join(below, names[modules[0]]))
        yield (
            f"sys.path += [str(up{inside}) for up in pathlib.Path(__file__).absolute().parents "
            f"if (up / {quoted(marker)}).exists()]{what}"
        )
