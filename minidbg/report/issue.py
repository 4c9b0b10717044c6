"""A bug report in the form that PyTorch's own template for torch.compile asks for, as Markdown.

Its sections are those of ``.github/ISSUE_TEMPLATE/pt2-bug-report.yml``: Describe the bug (with the ablation and the
minimal reproducer it asks for), Error logs, Versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minidbg import repro, workers
from minidbg.errors import MinidbgError
from minidbg.failure import Kind, Verdict
from minidbg.report import forms
from minidbg.report.forms import NoShortForm
from minidbg.report.glance import difference
from minidbg.report.privacy import Private
from minidbg.report.story import Story
from minidbg.repro import templates
from minidbg.stages import StageReport, find_stages

LOG_LINES = 60
VERSIONS_SECONDS = 120.0
STAGES_SECONDS = 120.0

SAID: dict[Kind, str] = {
    Kind.COMPILE: "fails to compile",
    Kind.RUNTIME: "compiles, and what it compiled fails at",
    Kind.ACCURACY: "gives a wrong result for",
    Kind.CRASH: "ends the process at",
    Kind.HANG: "does not come back from",
}


@dataclass(frozen=True, slots=True)
class Issue:
    """A bug report."""

    title: str
    body: str
    """Markdown."""
    ran: bool
    """Whether the failure was seen again while this was written."""


def issue(story: Story, *, run: bool = True, keep_private: bool = False, versions: bool = True) -> Issue:
    """The bug report for ``story``.

    ``run`` runs the short script and, where the header has no stages, the stages of compiling: a fresh process each.
    ``keep_private`` leaves paths and names as they are. ``versions`` runs ``torch.utils.collect_env``.
    """
    script, logs, ran = script_and_logs(story, run=run)
    extra = {
        "said": SAID[story.header.kind],
        "script": script,
        "needs_file": bool(story.parts.stored),
        "remarks": forms.remarks_of(story),
        "passes": story.header.provenance.neighbour,
        "logs": last_lines(logs, LOG_LINES),
        "ablation": ablation(story, run=run),
        "neighbour": "\n".join(difference(story.parts.model, story.neighbour.model))
        if story.neighbour
        else "",
        "versions": environment() if versions else "",
        "whole_script": script == story.text,
        "ran": ran,
    }
    title = title_of(story)
    body = templates.fill("issue.md.j2", {**safe_variables(story), "issue_title": title, **extra})
    if not keep_private:
        private = Private.of_this_process()
        title, body = private.left_out(title), private.left_out(body)
    return Issue(title, body, ran)


def safe_variables(story: Story) -> dict[str, Any]:
    """The variables of every form; those of a short form are empty where there is none."""
    try:
        return forms.variables_of(story)
    except NoShortForm:
        empty = dict.fromkeys(forms.VARIABLES, "")
        return {
            **empty,
            "title": story.title,
            "kind": str(story.header.kind),
            "backend_name": story.header.backend,
            "message": story.message,
            "captured_from": story.header.provenance.captured_from,
            "line": story.header.provenance.line,
            "notes": list(story.header.provenance.notes),
            "figures": dict(story.figures),
            "torch_version": story.header.provenance.torch_version,
            "model": story.parts.model,
            "header": dict(story.header.table),
        }


def title_of(story: Story) -> str:
    """``[inductor] fails to compile full and cumsum: IndexError: tuple index out of range``."""
    first = story.message.partition("\n")[0][:120]
    title = story.title.rstrip(".")
    if title.startswith(f"{story.header.backend} "):
        title = f"[{story.header.backend}] {title.removeprefix(story.header.backend).strip()}"
    return f"{title}: {first}" if first else title


def script_and_logs(story: Story, *, run: bool) -> tuple[str, str, bool]:
    """The script to paste, what it printed (else what was captured), and whether it was seen to fail just now."""
    try:
        text = templates.fill("plain.py.j2", forms.variables_of(story))
        if not run:
            return text, story.message, False
        return text, forms.check_that_it_fails(text, "repro.py", story), True
    except NoShortForm:
        pass
    if not run:
        return story.text, story.message, False
    outcome = repro.run(story.path, seconds=forms.RUN_SECONDS)
    failed = outcome.verdict in (Verdict.REPRODUCES, Verdict.FLAKY)
    return story.text, outcome.message or outcome.reason or story.message, failed


def ablation(story: Story, *, run: bool) -> StageReport | None:
    """What the stages of compiling do with the graph: from the header, else found out now; None when it is not to be had."""
    if story.stages or not run:
        return story.stages
    try:
        return find_stages(story.path, seconds=STAGES_SECONDS)
    except (MinidbgError, OSError, ImportError):
        return None


def environment() -> str:
    """What ``python -m torch.utils.collect_env`` prints, in a process of its own."""
    ended = workers.run_python(["-W", "ignore", "-m", "torch.utils.collect_env"], seconds=VERSIONS_SECONDS)
    text = ended.stdout.strip()
    start = text.find("PyTorch version")
    return text[start:] if start >= 0 else f"torch.utils.collect_env gave nothing: {ended.stderr_tail[-500:]}"


def last_lines(text: str, count: int) -> str:
    """The first two and the last lines of ``text`` when it is longer than ``count``."""
    lines = text.strip().splitlines()
    if len(lines) <= count:
        return "\n".join(lines)
    return "\n".join([*lines[:2], f"... {len(lines) - count} lines ...", *lines[2 - count :]])
