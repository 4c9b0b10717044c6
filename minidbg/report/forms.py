"""A repro in other forms: a short script without a judge, a test for pytest, a bug report, or what a person's template makes.

Each form is a template (``plain.py.j2``, ``pytest.py.j2``, ``issue.md.j2``, or ``NAME.*.j2`` in a folder of one's own).
All get the variables of VARIABLES. A script is run before it is handed out: a short form that does not fail as the
repro does is no repro, and the whole script is given in its place.
"""

from __future__ import annotations

import os
import re
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidbg import workers
from minidbg.case import CallPath
from minidbg.errors import MinidbgError, nearest
from minidbg.failure import Direction, Kind
from minidbg.report.story import Story, as_table
from minidbg.repro import templates
from minidbg.repro.header import Header, literal_options
from minidbg.repro.wording import mode_phrases

BUILT_IN: Mapping[str, str] = {"pytest": "pytest.py.j2", "script": "plain.py.j2", "issue": "issue.md.j2"}
RUN_SECONDS = 180.0

VARIABLES: Mapping[str, str] = {
    "title": "one sentence: backend, kind of failure, ops",
    "kind": "compile, runtime, accuracy, crash or hang",
    "backend_name": "the backend, for people",
    "message": "what the backend said, its first lines",
    "captured_from": "train.py:41, or empty",
    "line": "that line's text, or empty",
    "notes": "list of sentences that a reader must know",
    "figures": "nodes, nodes_before, inputs, inputs_before, certified, oracle_calls, seconds",
    "torch_version": "the version that it was seen with",
    "name": "the file's name without .py, good as part of a test's name",
    "imports": "list of import statements above the backend",
    "embedded": "source that the backend needs and no import reaches, or empty",
    "backend": "source of def backend()",
    "model": "source of class Repro, or of def graph()",
    "inputs": "source of def inputs()",
    "stored": "source of def stored(), which reads the .safetensors file beside the script, or empty",
    "run": "source of def run(model): makes inputs, enters the modes, calls, goes backward where needed",
    "compiled": "expression for the compiled model",
    "eager": "expression for the model itself",
    "header": "all of [tool.minidbg], as a table",
}
"""What every template gets; ``script.py.j2`` gets other ones, and ``issue.md.j2`` some more, see ``issue.py``."""


class NoShortForm(MinidbgError):
    """The repro needs its judge: the message says why."""


@dataclass(frozen=True, slots=True)
class Form:
    """A repro in another form."""

    text: str
    name: str
    """File name that fits it."""
    complaint: str = ""
    """What a reader must know about it: that it is the whole script after all, and why."""
    remarks: tuple[str, ...] = ()
    """What it needs and no requirement can say: where the backend was imported from."""


def export(story: Story, template: str, *, run: bool = True) -> Form:
    """``story`` by the template of that name. Raises MinidbgError for a template that does not exist."""
    file = template_file(template)
    stem = story.path.stem
    ending = Path(file.removesuffix(".j2")).suffix
    if template == "issue":
        from minidbg.report.issue import issue

        return Form(issue(story, run=run).body, f"{stem}.md")
    name = f"test_{stem}{ending}" if template == "pytest" else f"{stem}_{template}{ending}"
    try:
        variables = variables_of(story)
        text = templates.fill(file, variables)
        if run and ending == ".py":
            check_that_it_fails(text, name, story)
    except NoShortForm as refusal:
        return Form(
            story.text, story.path.name, f"{refusal}; this is the whole script, which pytest runs too"
        )
    return Form(text, name, remarks=remarks_of(story))


def remarks_of(story: Story) -> tuple[str, ...]:
    """What the script needs that no index has."""
    return tuple(map(str, as_table(story.header.table.get("reference")).get("remarks", ())))


def template_file(name: str) -> str:
    """The file name of the template called ``name``. Raises MinidbgError with the nearest one."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    own = {file.partition(".")[0]: file for file in templates.own_names()}
    if name in own:
        return own[name]
    known = [*BUILT_IN, *own]
    near = nearest(name, known)
    raise MinidbgError(f"no template named {name!r}{near or ';'} there are {', '.join(known)}")


def variables_of(story: Story) -> dict[str, Any]:
    """The values of VARIABLES. Raises NoShortForm."""
    header, parts = story.header, story.parts
    return {
        "title": story.title,
        "kind": str(header.kind),
        "backend_name": header.backend,
        "message": story.message,
        "captured_from": header.provenance.captured_from,
        "line": header.provenance.line,
        "notes": list(header.provenance.notes),
        "figures": dict(story.figures),
        "torch_version": header.provenance.torch_version,
        "name": re.sub(r"\W", "_", story.path.stem),
        "imports": list(parts.imports),
        "embedded": embedded(story),
        "backend": parts.backend,
        "model": parts.model,
        "inputs": parts.inputs,
        "stored": parts.stored,
        "run": run_function(header),
        "compiled": compiled_expression(header),
        "eager": "graph()" if header.call is CallPath.DIRECT else "Repro()",
        "header": dict(header.table),
    }


def embedded(story: Story) -> str:
    """Definitions that the backend needs, copied or added by hand, without imports that every form has."""
    text = "\n\n\n".join(part for part in (story.parts.copied, story.parts.added) if part)
    lines = [
        line
        for line in text.split("\n")
        if line not in ("import torch", "from __future__ import annotations")
    ]
    return "\n".join(lines).strip("\n")


# --- how it is run ---


def run_function(header: Header) -> str:
    """Source of ``def run(model)``. Raises NoShortForm for what a few lines cannot do."""
    refuse_what_needs_its_judge(header)
    modes, statements = split_phrases(header)
    call = "result = model(*arguments)"
    if header.call is CallPath.DIRECT:
        call = "result = model(*arguments)"
    body = ["torch.manual_seed(0)", "arguments = inputs()", *statements, *dynamic_marks(header)]
    body += [f"with {', '.join(modes)}:", f"    {call}"] if modes else [call]
    if header.table.get("backward"):
        body += [
            "outputs = result if isinstance(result, (tuple, list)) else [result]",
            "sum(one.sum() for one in outputs if isinstance(one, torch.Tensor) and one.requires_grad).backward()",
        ]
    if header.signature and header.signature.direction is Direction.BACKWARD and header.kind is Kind.ACCURACY:
        body += [
            "return [one.grad for one in arguments if isinstance(one, torch.Tensor) and one.requires_grad]"
        ]
    else:
        body += ["return result"]
    return "def run(model):\n" + textwrap.indent("\n".join(body), "    ")


def refuse_what_needs_its_judge(header: Header) -> None:
    """Raise NoShortForm for failures that only the script's own judge can show."""
    if header.kind in (Kind.CRASH, Kind.HANG):
        raise NoShortForm(f"a {header.kind} needs the judge, which runs it in a process of its own")
    if header.table.get("level") == "aten":
        raise NoShortForm(
            "a compiler of AOTAutograd is called with fake tensors, which the script's judge makes"
        )
    if header.call is CallPath.DIRECT and (header.table.get("dynamic") or header.kind is Kind.ACCURACY):
        raise NoShortForm("a backend that is called directly like this needs the script's judge")
    if int(header.table.get("attempts", 1)) > 1:
        raise NoShortForm("a flaky failure is asked several times by the script's judge")


def split_phrases(header: Header) -> tuple[list[str], list[str]]:
    """The modes of the failing call as context managers, and as statements."""
    managers, statements = [], []
    for phrase in mode_phrases(header.context):
        if phrase.startswith(("torch.no_grad", "torch.inference_mode", "torch.autocast")):
            managers.append(phrase)
        else:
            statements.append(phrase)
    imports = [f"import {module}" for module in header.context.config if module != "torch"]
    threads = [f"torch.set_num_threads({header.context.threads})"] if header.context.threads_matter else []
    return managers, [*imports, *statements, *threads]


def dynamic_marks(header: Header) -> list[str]:
    """Statements that mark dynamic dimensions."""
    return [
        f"torch._dynamo.mark_dynamic(arguments[{place}], {list(dims)})"
        for place, dims in enumerate(header.table.get("dynamic_dims", ()))
        if dims
    ]


def compiled_expression(header: Header) -> str:
    """``torch.compile(Repro(), backend=backend(), fullgraph=True)``, with what else was given."""
    if header.call is CallPath.DIRECT:
        return "(lambda *arguments: torch._dynamo.lookup_backend(backend())(graph(), list(arguments))(*arguments))"
    arguments = ["backend=backend()", "fullgraph=True"]
    dynamic = header.table.get("dynamic")
    if dynamic and not any(header.table.get("dynamic_dims", ())):
        arguments.append("dynamic=True")
    if header.table.get("mode"):
        arguments.append(f"mode={header.table['mode']!r}")
    options = literal_options(header.table.get("options") or {})
    if options:
        arguments.append(f"options={options!r}")
    return f"torch.compile(Repro(), {', '.join(arguments)})"


# --- whether it fails ---


def check_that_it_fails(text: str, name: str, story: Story) -> str:
    """What a fresh interpreter says when it runs the form: the end of its stderr. Raises NoShortForm when it does not fail so."""
    tensors = story.path.with_suffix(".safetensors")
    with tempfile.TemporaryDirectory(prefix="minidbg-export-") as folder:
        script = Path(folder, name)
        script.write_text(text, encoding="utf-8")
        if tensors.exists():
            script.with_suffix(".safetensors").symlink_to(tensors.absolute())
        way = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", str(script)]
        argv = way if name.startswith("test_") else [str(script)]
        ended = workers.run_python(argv, seconds=RUN_SECONDS, cwd=folder, env=with_paths(story.header))
    said = f"{ended.stdout}\n{ended.stderr_tail}" if name.startswith("test_") else ended.stderr_tail
    if ended.exit_status != 1 or not says_the_same(said, story.header):
        raise NoShortForm("the short form does not fail as the repro does")
    return ended.stderr_tail.replace(f"{folder}/", "")


def with_paths(header: Header) -> dict[str, str | None]:
    """The environment in which the backend can be imported: a script has the folders in its header, a short form has not."""
    before = os.environ.get("PYTHONPATH")
    paths = [*map(str, header.table.get("paths", ())), *([before] if before else [])]
    return {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}


def says_the_same(said: str, header: Header) -> bool:
    """Whether a traceback is about the failure that the header expects."""
    if header.kind is Kind.ACCURACY:
        return "AssertionError" in said
    types = as_table(header.table.get("signature")).get("types", ())
    return not types or str(types[-1]).rpartition(".")[2] in said
