"""A repro in other forms: written anew, standalone with the whole judge, a bug report, or by a person's own template.

``NAME.*.j2`` in a folder of one's own is the template NAME; it gets the variables of VARIABLES. A script is run before it is
handed out: a form that does not fail as the repro does is no repro, and the repro itself is given in its place.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidbg import repro
from minidbg.errors import MinidbgError, nearest
from minidbg.report.story import Story, as_table
from minidbg.repro import selfcheck, templates

RUN_SECONDS = 180.0

VARIABLES: Mapping[str, str] = {
    "title": "one sentence: backend, kind of failure, ops, and what the backend said",
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
    "functions": "list of sources that test needs; empty where a plain call does",
    "test": "body of def test_repro(device), which raises while the failure is there; empty for crash and hang",
    "pattern": "a string literal: a regular expression that its 'Type: message' contains",
    "header": "all of [tool.minidbg], as a table",
}
"""What every template gets; ``script.py.j2`` gets other ones, and ``issue.md.j2`` some more, see ``issue.py``."""


@dataclass(frozen=True, slots=True)
class Export:
    """A repro in another form."""

    text: str
    name: str
    """File name that fits it."""
    complaint: str = ""
    """What a reader must know about it: that it is another form than was asked for, and why."""
    remarks: tuple[str, ...] = ()
    """What it needs and no requirement can say: where the backend was imported from."""


def rewritten(story: Story, *, standalone: bool, run: bool = True) -> Export:
    """The repro written anew, in its short form or with the whole judge. Loads it, which runs its backend's imports."""
    case = repro.load(story.path)
    exactness = repro.Exactness.EXACT if story.parts.stored else repro.Exactness.SMALL
    complaint, name = "", f"{story.path.stem}_standalone.py" if standalone else story.path.name
    if not standalone:
        try:
            text = repro.render(case, exactness=exactness).text
            if run:
                check_that_it_fails(text, story)
            return Export(text, name, remarks=remarks_of(story))
        except repro.NoShortForm as refusal:
            complaint = f"{refusal}; this one carries the whole judge"
    text = repro.render(case, repro.Form.STANDALONE, exactness=exactness).text
    if run:
        try:
            check_that_it_fails(text, story)
        except repro.NoShortForm:
            complaint = "it did not show its failure when it was run just now"
    return Export(text, name, complaint, remarks_of(story))


def export(story: Story, template: str, *, run: bool = True) -> Export:
    """``story`` by the template of that name. Raises MinidbgError for a template that does not exist."""
    file = template_file(template)
    stem = story.path.stem
    if template == "issue":
        from minidbg.report.issue import issue

        return Export(issue(story, run=run).body, f"{stem}.md")
    ending = Path(file.removesuffix(".j2")).suffix
    text = templates.fill(file, variables_of(story))
    if run and ending == ".py":
        try:
            check_that_it_fails(text, story)
        except repro.NoShortForm as refusal:
            return Export(story.text, story.path.name, f"{refusal}; this is the repro itself")
    return Export(text, f"{stem}_{template}{ending}", remarks=remarks_of(story))


def remarks_of(story: Story) -> tuple[str, ...]:
    """What the script needs that no index has."""
    return tuple(map(str, as_table(story.header.table.get("reference")).get("remarks", ())))


def template_file(name: str) -> str:
    """The file name of the template called ``name``. Raises MinidbgError with the nearest one."""
    known = {"issue": "issue.md.j2"} | {file.partition(".")[0]: file for file in templates.own_names()}
    if name not in known:
        near = nearest(name, list(known))
        raise MinidbgError(f"no template named {name!r}{near or ';'} there are {', '.join(known)}")
    return known[name]


def variables_of(story: Story) -> dict[str, Any]:
    """The values of VARIABLES."""
    header, parts = story.header, story.parts
    try:
        judge = selfcheck.lines_for(header, model=parts.model, plain_backend="")
    except repro.NoShortForm:
        judge = {"functions": [], "test": "", "pattern": "", "dies": False}
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
        "model": "\n\n\n".join(part for part in (parts.kernels.strip(), parts.model) if part),
        "inputs": parts.inputs,
        "stored": parts.stored,
        "functions": judge["functions"],
        "test": "" if judge["dies"] else judge["test"],
        "pattern": judge["pattern"],
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


def check_that_it_fails(text: str, story: Story) -> None:
    """Run the form as ``python script.py``. Raises NoShortForm when its exit status is not 1."""
    tensors = story.path.with_suffix(".safetensors")
    with tempfile.TemporaryDirectory(prefix="minidbg-export-") as folder:
        script = Path(folder, "repro.py")
        script.write_text(text, encoding="utf-8")
        if tensors.exists():
            shutil.copyfile(tensors, script.with_suffix(".safetensors"))
        ended = repro.run_alone(script, seconds=RUN_SECONDS)
    if ended.exit_status != 1:
        raise repro.NoShortForm(
            f"this form does not fail as the repro does (exit status {ended.exit_status})"
        )
