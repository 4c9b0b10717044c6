"""What the script's docstring tells: which failure, seen where, reduced how far."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from torch import fx

from minidbg.codegen.size import call_nodes, targets_of_calls
from minidbg.core.text import plural, printable
from minidbg.fx.case import Case
from minidbg.fx.nested import all_graphs, holders
from minidbg.judge.signature import meaningful_lines

TITLE_WIDTH = 110
QUOTED_LINES = 4
MESSAGE_WIDTH = 135
LINE_WIDTH = 200
"""Of a line of the docstring, whatever is said in it."""

SAID_BY_TITLE = re.compile(r" gives wrong results: ")
"""Begins, after the backend's name, the message of an AccuracyError."""
ADVICE = re.compile(
    r"(?m)^(?:Original traceback:\n(?:None\n?|[ \t]+.*\n?)*|(?:Use tlparse to see|Set TORCHDYNAMO_VERBOSE=1 for).*\n?)"
)
"""What torch adds for who has no script yet: where the call is, or None, and how to see more."""
HEADER_MARK = re.compile(r"(?m)^# ///")


def title(case: Case) -> str:
    template = case.spec.expected.kind.traits.title
    text = template.format(backend=case.backend.name, ops=ops_phrase(case))
    way = case.signature.direction if case.signature else "forward"
    return text if way == "forward" else f"{text[:-1]} in backward."


def op_names(gm: fx.GraphModule) -> tuple[str, ...]:
    """Short names of the ops that the graph calls, each once, in order; ``getitem``, which mostly
    picks one of several results, where it is all there is."""
    names = dict.fromkeys(filter(None, map(_short, targets_of_calls(gm))))
    return tuple(name for name in names if name != "getitem") or tuple(names)


def main_op(case: Case) -> str:
    """The op that the failure is likely about: one that its error or frames name, else the last."""
    names = op_names(case.graph_module)
    named = named_ops(case, names)
    return named[0] if named else names[-1] if names else ""


def named_ops(case: Case, names: Sequence[str]) -> list[str]:
    signature = case.signature
    said = " ".join((signature.message, *signature.types, *signature.frames)) if signature else ""
    return sorted((name for name in names if len(name) > 2 and name in said), key=len, reverse=True)


def _short(target: str) -> str:
    parts = target.replace("::", ".").split(".")
    if parts[-1] == "default" or (len(parts) > 3 and parts[0] == "torch" and parts[1] == "ops"):
        parts = parts[: 4 if parts[:2] == ["torch", "ops"] else -1]
    return parts[-1].strip("_") or parts[-1]


MOST_OPS = 4
"""Operators that a title names."""


def ops_phrase(case: Case) -> str:
    """``cumsum``, ``full and cumsum``; of many operators those that the error names, those that run
    nested graphs, and how many others."""
    names = list(op_names(case.graph_module))
    if len(names) > MOST_OPS:
        of_nested = (node.target for _, g in all_graphs(case.graph_module) for node in holders(g))
        first = [*named_ops(case, names)[:1], *(_short(str(target)) for target in of_nested)]
        names.sort(key=lambda name: name not in first)
        names[MOST_OPS - 1 :] = [f"{len(names) - MOST_OPS + 1} other operators"]
    if len(names) < 2:
        return names[0] if names else "a graph without operators"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def docstring(case: Case, *, values: str, remark: str = "", usage: str = "") -> str:
    first, *more = [*message_lines(case), ""]
    headline = title(case)
    if first and len(first) <= min(TITLE_WIDTH, LINE_WIDTH - len(headline) - 1):
        headline = f"{headline[:-1]}: {first}"
    else:
        more = [first, *more]
    message = "\n".join(f"    {line}" for line in more if line)
    remarks = (remark, *_provenance_lines(case, values), usage)
    told = [line for part in remarks for line in part.splitlines()]
    wrapped = (textwrap.fill(line, LINE_WIDTH, break_long_words=True) for line in told)
    parts = [headline, message, "\n".join(wrapped)]
    return escaped("\n\n".join(part for part in parts if part))


def message_lines(case: Case, *, unchanged: bool = False) -> list[str]:
    """The message's first lines, and how much was cut; of a compiler's long output the errors.
    ``unchanged``: whole, so that the same is told of these lines again."""
    message = case_message(case)
    for pattern, replacement in () if unchanged else OF_ONE_PROCESS:
        message = re.sub(pattern, replacement, message)
    lines = [line.rstrip() for line in message.splitlines() if line.strip()]
    telling = meaningful_lines(message)
    are_new = len(telling) <= 2 and not {*telling[:1]} & {line.strip() for line in lines}
    if lines and telling and are_new:
        whole = (next((line for line in lines if one in line), one) for one in telling)
        lines = [lines[0], *(whole if unchanged else telling)]
    if more := len(lines[QUOTED_LINES:]):
        lines[QUOTED_LINES - 1] += f" ... (and {plural(more, 'more line')})"

    def cut(line: re.Match[str]) -> str:
        return f"{line[1]} ... (and {plural(len(line[2]), 'more character')}){line[3]}"

    lines = lines[:QUOTED_LINES]
    return lines if unchanged else [LONG_LINE.sub(cut, line) for line in lines]


LONG_LINE = re.compile(
    rf"^(.{{{MESSAGE_WIDTH}}})(?! \.\.\. \(and \d{{1,6}} more char)(.+?)((?: \.\.\. \(and \d{{1,6}} more lines?\))?)$"
)
"""One that was not cut yet."""


def case_message(case: Case) -> str:
    """The failure's message without what the title says and torch's advice to who has no script."""
    name, message = case.backend.name, case.provenance.message
    said = SAID_BY_TITLE.match(message, len(name)) if message.startswith(name) else None
    return ADVICE.sub("", message[said.end() :] if said else message)


def escaped(text: str) -> str:
    """``text`` such that it cannot end the string it stands in, nor show as other than it is."""
    quoted = re.sub("[\ud800-\udfff]", "\ufffd", text).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    shown = printable(quoted, shown="\n")
    return HEADER_MARK.sub(" # ///", shown)  # at the start of a line it would be a second header


FRAME = r'(?m)(?:^[ \t]*(?:from user code|Found from) ?:\s*\n)?^[ \t]*File "<minidbg_source_\d+>", line \d+.*\n?(?:[ \t]+\S.*\n?)?'
OF_ONE_PROCESS = (
    (FRAME, ""),
    (r" at 0x[0-9a-fA-F]+\b", ""),  # <Graph object at 0x7f6be17ec590>
    (r"\b0x[0-9a-fA-F]{9,}\b", "0x..."),
    (r"<?\bminidbg_source_\d+\b>?", "this script"),
)
"""What a message has of the process that it was raised in, and nobody else can look up: addresses,
files that minidbg made, and lines in them."""


def _provenance_lines(case: Case, values: str) -> Iterator[str]:
    provenance = case.provenance
    seen = []
    if provenance.reduced and provenance.nodes:
        counts = [f"{call_nodes(case.graph_module)} of {provenance.nodes} nodes"]
        if len(case.inputs) <= provenance.inputs:  # else intermediate values have become inputs
            counts.append(f"{len(case.inputs)} of {provenance.inputs} inputs")
        seen.append(
            ", ".join([*counts, "1-minimal" if provenance.certified else "perhaps not minimal"]) + "."
        )
    if provenance.captured_from:
        line = f" `{provenance.line}`" if provenance.line else ""
        seen.append(f"From {provenance.captured_from}{line}, torch {provenance.torch_version}.")
    elif provenance.torch_version:
        seen.append(f"Seen with torch {provenance.torch_version}.")
    if seen:
        yield " ".join(seen)
    if values:
        yield values
    if case.spec.golden:
        yield f"Reference: eager on {case.spec.golden}."
    if case.spec.context.env_matters:
        set_to = " ".join(f"{name}={value}" for name, value in case.spec.context.env.items())
        yield f"Gone without this in the environment: {set_to}."
    if provenance.neighbour:
        yield f"It {provenance.neighbour}."
    yield from (f"{note[0].upper()}{note[1:].rstrip('.')}." for note in provenance.notes if note)
