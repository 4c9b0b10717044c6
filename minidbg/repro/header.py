"""The script's header: PEP 723 metadata that installers and minidbg read without running anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from minidbg.fx.case import Case
from minidbg.repro import near
from minidbg.source.size import call_nodes
from minidbg.words import run_spec, script_header
from minidbg.words.errors import UnreadableRepro
from minidbg.words.files import read_regular
from minidbg.words.kinds import Kind
from minidbg.words.records import damage_in_words, texts
from minidbg.words.run_spec import DAMAGE, Provenance, RunSpec
from minidbg.words.script_header import (
    ABOVE,
    HANG_LIMIT_S,
    SCHEMA,
    SCRIPT_LIMIT_BYTES,
    TORCH_WAS,
    expected_in,
    metadata_of,
    nodes_in,
    text_of,
)


@dataclass(frozen=True, slots=True)
class Header:
    path: Path
    spec: RunSpec
    """How the script is run and what it must show; its backend without an expression, which stands at the top of the script."""
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

    ``message`` is what the header holds of the failure's message, where that is not all of it: ``ABOVE``, mostly.
    ``folder`` is the repro folder that the script is for, where that is known.
    """
    version, remarks = case.provenance.torch_version, list(case.backend.remarks)
    if message is not None:
        case = replace(case, provenance=replace(case.provenance, message=message))
    if folder is not None:
        case = case.with_spec(backend=near.for_header(case.backend, folder))
    plain = ["".join(one if one.isprintable() else " " for one in remark) for remark in remarks]
    if remarks and not any(remark.startswith(TORCH_WAS) for remark in remarks) and plain == remarks:
        case = case.with_spec(backend=replace(case.backend, remarks=(ABOVE,)))
    if torch_requirement(version) == "torch":
        plain.insert(0, f"{TORCH_WAS}{version}, which no index keeps")
    lines = [
        *write_wrapped("dependencies", dependencies(case, has_tensors=has_tensors)),
        *(f"# {remark}" for remark in plain),
        "[tool.minidbg]",
        *write_lines({"expect": "reproduces"}),
        *write_wrapped("details", details_of(case, device=device, kind=kind)),
    ]
    body = "\n".join(f"# {line}" for line in lines)
    return f"# /// script\n{body}\n# ///"


def dependencies(case: Case, *, has_tensors: bool) -> tuple[str, ...]:
    """What to install to run the script: versions that an index has."""
    stored = ("safetensors", "numpy") if has_tensors else ()
    return (torch_requirement(case.provenance.torch_version), *case.backend.requirements, *stored)


def torch_requirement(version: str) -> str:
    """``torch==2.13.0`` for ``2.13.0+cpu``; plain ``torch`` for nightlies and builds of one's own, which no index keeps."""
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
        "schema": SCHEMA,
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
        raise UnreadableRepro(f"{path}: not a text in UTF-8, so no repro script ({error.reason})") from error


def header_of(text: str, path: Path) -> Header:
    try:
        metadata = metadata_of(text)
        table = run_spec.table_of(text, path)
    except ValueError as error:
        missing = re.search("(?m)^What is missing: (.*)", text)  # the text of a case that no script can hold
        raise UnreadableRepro(f"{path}: {missing[1] if missing else error}") from error
    try:
        return _header(path, table, texts(metadata.get("dependencies", ()), "dependencies"))
    except DAMAGE as error:
        raise UnreadableRepro(f"{path}: [tool.minidbg] is damaged: {damage_in_words(error)}") from error


def _header(path: Path, table: Mapping[str, Any], required: tuple[str, ...]) -> Header:
    return Header(
        path,
        RunSpec.from_table(table),
        expected_in(table),
        nodes=nodes_in(table),
        provenance=Provenance.from_table(table),
        dependencies=required,
    )


# --- TOML ---


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


def write_lines(table: Mapping[str, Any]) -> Iterator[str]:
    """A line ``key = value`` for each value of ``table``, without the table's own name.

    Values: bool, int, float, str, lists and mappings of these. Half surrogates, which TOML cannot hold, become U+FFFD.
    No line holds a character that any reader takes for a line break.
    """
    for key, value in table.items():
        yield f"{_key(key)} = {write_value(value)}"


WIDTH = 198
"""Most characters of a line, which is a comment of the script."""


def write_wrapped(key: str, value: Mapping[str, Any] | Sequence[Any]) -> Iterator[str]:
    """``key = value`` in one line, or in several: a list an item a line, a mapping as the list of its ``pieces``."""
    begin = f"{key} = "
    if len(begin) + len(write_value(value)) <= WIDTH:
        yield begin + write_value(value)
        return
    begin += "["
    items = pieces(value, WIDTH - len(begin) - 1) if isinstance(value, Mapping) else value
    *parts, last = map(write_value, items)
    for part in parts:
        yield f"{begin}{part},"
        begin = "  "
    yield f"{begin}{last}]"


def pieces(table: Mapping[str, Any], width: int) -> Iterator[Mapping[str, Any]]:
    """``table`` in parts of at most ``width`` characters each, which ``script_header.whole`` puts together again.

    A TOML table of one line cannot be broken; a list of such tables can.
    """
    piece: dict[str, Any] = {}
    for atom in _atoms(table, width):
        longer = script_header.merged(piece, atom)
        if piece and len(write_value(longer)) > width:
            yield piece
            longer = atom
        piece = longer
    yield piece


def _atoms(value: Any, width: int) -> Iterator[Any]:
    if len(write_value(value)) <= width // 2 or not isinstance(value, str | Mapping | Sequence):
        yield value
    elif isinstance(value, str):
        yield from re.findall(r"\S{1,15}\s?|\s", value)
    elif isinstance(value, Mapping):
        yield from ({key: atom} for key, item in value.items() for atom in _atoms(item, width))
    elif any(len(write_value(item)) > width // 2 for item in value):
        yield from _atoms(script_header.numbered(value), width)
    else:
        yield from ([item] for item in value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def write_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))  # that of Python is TOML's, of nan and inf too
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {write_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(write_value, value)) + "]"
    raise TypeError(f"TOML has no form for a {type(value).__name__}: {value!r}")


def _string(text: str) -> str:
    return '"' + "".join(map(_character, without_half_pairs(text))) + '"'


def without_half_pairs(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _character(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
