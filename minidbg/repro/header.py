"""The script's header: PEP 723 metadata that installers and minidbg read without running anything."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from minidbg.codegen.size import call_nodes
from minidbg.core import run_spec
from minidbg.core.errors import UnreadableRepro
from minidbg.core.files import read_regular
from minidbg.core.kinds import Kind
from minidbg.core.records import describe_malformed, string_list
from minidbg.core.run_spec import MALFORMED, Provenance, RunSpec
from minidbg.core.script_header import (
    HANG_LIMIT_S,
    HEADER_VERSION,
    SCRIPT_LIMIT_BYTES,
    expected_in,
    metadata_of,
    node_count_of,
    text_of,
)
from minidbg.fx.case import Case
from minidbg.repro import near


@dataclass(frozen=True, slots=True)
class Header:
    path: Path
    spec: RunSpec
    """How the script is run and what it must show; its backend without an expression, which stands
    at the top of the script."""
    expect: str = "reproduces"
    """``reproduces``, or ``gone`` once fixed: a regression test from then on."""
    nodes: int = 0
    provenance: Provenance = field(default_factory=Provenance)
    dependencies: tuple[str, ...] = ()


# --- writing ---


def write_header(
    case: Case,
    *,
    device: str,
    has_tensors: bool,
    kind: Kind | None = None,
    message: str | None = None,
    folder: str | None = None,
) -> str:
    """The block as comment lines, ready to stand in a script. ``kind`` is for a case that shows no failure yet.

    ``message`` is what the header holds of the failure's message, where that is not all of it.
    ``folder`` is the repro folder that the script is for, where that is known.
    """
    version, remarks = case.provenance.torch_version, list(case.backend.remarks)
    if message is not None:
        case = replace(case, provenance=replace(case.provenance, message=message))
    if folder is not None:
        case = case.with_spec(backend=near.for_header(case.backend, folder))
    if torch_requirement(version) == "torch":
        remarks.insert(0, f"torch was {version}, which no index keeps")
    details = json.dumps(details_of(case, device=device, kind=kind))
    for one in ("'", "\x7f"):  # which cannot stand in a literal of TOML
        details = details.replace(one, f"\\u{ord(one):04x}")
    lines = [
        f"dependencies = {json.dumps(dependencies(case, has_tensors=has_tensors))}",
        *("# " + "".join(one if one.isprintable() else " " for one in remark) for remark in remarks),
        "[tool.minidbg]",
        'expect = "reproduces"',
        f"details = '{details}'",
    ]
    body = "\n".join(f"# {line}" for line in lines)
    return f"# /// script\n{body}\n# ///"


def dependencies(case: Case, *, has_tensors: bool) -> tuple[str, ...]:
    """What to install to run the script: versions that an index has."""
    stored = ("safetensors", "numpy") if has_tensors else ()
    return (torch_requirement(case.provenance.torch_version), *case.backend.requirements, *stored)


def torch_requirement(version: str) -> str:
    """``torch==2.13.0`` for ``2.13.0+cpu``; plain ``torch`` for nightlies and builds of one's own,
    which no index keeps."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return "torch"
    return "torch" if parsed.is_devrelease or parsed.is_prerelease else f"torch=={parsed.public}"


def details_of(case: Case, *, device: str, kind: Kind | None = None) -> dict[str, Any]:
    """``[tool.minidbg]`` of the case, without what a person may change: what tools read."""
    hangs = case.spec.traits.endless
    spec = replace(
        case.spec,
        device=device,
        kind_if_unseen=kind or case.spec.kind_if_unseen,
        # generous, since a healthy compile must not pass for a hang
        time_limit_s=30 + len(case.graph_module.graph.nodes) // 10 if hangs else HANG_LIMIT_S,
    )
    return {
        "schema": HEADER_VERSION,
        "nodes": call_nodes(case.graph_module),
        **spec.to_table(case.provenance),
    }


# --- reading ---


def read_header(path: Path | str) -> Header:
    """The header of the script at ``path``; nothing in it is executed.

    Raises UnreadableRepro for a file that is no repro of ours, is damaged, or was written by a later minidbg.
    """
    path = Path(path)
    return header_of(script_text(path), path)


def script_text(path: Path) -> str:
    try:
        return text_of(read_regular(path, SCRIPT_LIMIT_BYTES))
    except OSError as error:
        raise UnreadableRepro(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UnreadableRepro(f"{path}: not UTF-8 text, so no repro script ({error.reason})") from error


def header_of(text: str, path: Path) -> Header:
    try:
        metadata = metadata_of(text)
        table = run_spec.table_of(text, path)
    except ValueError as error:
        missing = re.search("(?m)^What is missing: (.*)", text)  # the text of a case that no script can hold
        raise UnreadableRepro(f"{path}: {missing[1] if missing else error}") from error
    try:
        return _header(path, table, string_list(metadata.get("dependencies", ()), "dependencies"))
    except MALFORMED as error:
        raise UnreadableRepro(f"{path}: [tool.minidbg] is damaged: {describe_malformed(error)}") from error


def _header(path: Path, table: Mapping[str, Any], required: tuple[str, ...]) -> Header:
    return Header(
        path,
        RunSpec.from_table(table),
        expected_in(table),
        nodes=node_count_of(table),
        provenance=Provenance.from_table(table),
        dependencies=required,
    )
