"""The stage report put into a repro script that exists already: a table in its header, a line in its docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from minidbg.errors import UnreadableRepro
from minidbg.metadata import BLOCK
from minidbg.repro.files import replace_file
from minidbg.repro.header import header_of, script_text, write_value
from minidbg.repro.wording import USAGE, escaped
from minidbg.stages.report import StageReport

LINE = re.compile(r"(?m)^Stages: .*\n\n?")


def keep_stages(path: Path | str, report: StageReport) -> None:
    """Write ``report`` into the script at ``path``, in place of an earlier one; all else stays as it is.

    A reader sees the old script or the new one. A docstring that a person has rewritten is left alone. Raises
    UnreadableRepro when the script is none of ours, and OSError.
    """
    path = Path(path)
    old = script_text(path)
    before = header_of(old, path)
    new = with_line(with_table(old, report), report)
    after = header_of(new, path)
    rest = {key: value for key, value in after.table.items() if key != "stages"}
    if rest != {key: value for key, value in before.table.items() if key != "stages"}:
        raise UnreadableRepro(f"{path}: its header has a form in which nothing can be added to it")
    ast.parse(new)
    replace_file(path, new.encode())


def with_table(text: str, report: StageReport) -> str:
    """``text`` with ``stages = {...}`` as the first line of ``[tool.minidbg]``."""
    block = BLOCK.search(text)
    assert block is not None, "header_of has read it"
    kept, inside = [], False
    for line in block["content"].rstrip("\n").split("\n"):
        if line.startswith("# ["):
            inside = line.startswith(("# [tool.minidbg.stages]", "# [tool.minidbg.stages."))
        if not inside and not line.startswith("# stages = "):
            kept.append(line)
            if line == "# [tool.minidbg]":
                kept.append(f"# stages = {write_value(report.to_table())}")
    return text[: block.start("content")] + "\n".join(kept) + "\n" + text[block.end("content") :]


def with_line(text: str, report: StageReport) -> str:
    """``text`` whose docstring says the report's sentence before the exit statuses."""
    usage = text.find("\n" + USAGE.partition("\n")[0])
    if usage < 0:
        return text
    docstring, rest = text[: usage + 1], text[usage + 1 :]
    line = escaped(f"Stages: {report.sentence}.")
    return LINE.sub("", docstring) + f"{line}\n{rest}"
