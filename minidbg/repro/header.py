"""The script's header: PEP 723 metadata that installers and minidbg read, running nothing."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from minidbg.codegen.size import call_nodes
from minidbg.core import script_header
from minidbg.core.errors import UnreadableRepro
from minidbg.core.files import read_regular
from minidbg.core.kinds import Kind
from minidbg.core.records import MALFORMED, describe_malformed, table_of
from minidbg.core.run_spec import HANG_LIMIT_S
from minidbg.core.script_header import HEADER_VERSION, SCRIPT_LIMIT_BYTES, Header, text_of
from minidbg.fx.case import Case

# --- writing ---


def write_header(case: Case, *, has_tensors: bool, folder: str | None) -> str:
    """The block as comment lines; ``folder`` is the repro folder that the script is for, if any."""
    hangs = case.spec.traits.endless
    spec, story, remarks = case.spec, case.provenance, list(case.backend.remarks)
    paths = case.backend.paths
    if folder is not None:  # such that parse_header makes them absolute again
        near = [at for at in paths if shared_folder(at, folder)]
        paths = tuple(os.path.relpath(at, folder) if at in near else at for at in paths)
    spec = replace(
        spec,
        backend=replace(spec.backend, paths=paths, expression="", setup=(), embedded=""),
        dynamic_dims=spec.dynamic_dims if any(spec.dynamic_dims) else (),
        kind_if_unseen=Kind.COMPILE if spec.signature else spec.kind_if_unseen,
        # generous, since a healthy compile must not pass for a hang
        time_limit_s=30.0 + len(case.graph_module.graph.nodes) // 10 if hangs else HANG_LIMIT_S,
        margin=1.0,
    )
    torch = torch_requirement(story.torch_version)
    if torch == "torch":
        remarks.insert(0, f"torch was {story.torch_version}, which no index keeps")
    stored = ("safetensors", "numpy") if has_tensors else ()
    facts = {
        "expect": "reproduces",
        "schema": HEADER_VERSION,
        "nodes": call_nodes(case.graph_module),
        "inputs": len(case.inputs),
        **table_of(spec),
        "provenance": table_of(story),
    }
    lines = [
        f"dependencies = {toml([torch, *case.backend.requirements, *stored])}",
        *("# " + "".join(c if c.isprintable() else " " for c in remark) for remark in remarks),
        "[tool.minidbg]",
        *(f"{name} = {toml(value)}" for name, value in facts.items()),
    ]
    body = "\n".join(f"# {line}" for line in lines)
    return f"# /// script\n{body}\n# ///"


def shared_folder(path: str, folder: str) -> str:
    """The folder above ``path`` and repro ``folder``, if in one tree or repository; else empty."""
    shared, around = os.path.commonpath([path, folder]), os.path.dirname(folder)
    is_tree = shared == around != os.path.dirname(around) or shared.startswith(os.path.join(around, ""))
    above = Path(shared, ".git").parents[:-1]
    return shared if is_tree or any(os.path.exists(place / ".git") for place in above) else ""


def torch_requirement(version: str) -> str:
    """``torch==2.13.0`` for ``2.13.0+cpu``; ``torch`` for what no index keeps."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return "torch"
    return "torch" if parsed.is_devrelease or parsed.is_prerelease else f"torch=={parsed.public}"


def toml(value: Any) -> str:
    match value:
        case dict():
            plain = re.compile(r"[\w-]+", re.ASCII).fullmatch
            keys = {key: key if plain(key) else toml(key) for key in value}
            return "{" + ", ".join(f"{keys[key]} = {toml(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return f"[{', '.join(map(toml, value))}]"
        case str():
            text = json.dumps(re.sub("[\ud800-\udfff]", "\ufffd", value), ensure_ascii=False)
            return "".join(one if one.isprintable() else f"\\U{ord(one):08X}" for one in text)
    return str(value).lower()


# --- reading ---


def read_header(path: Path | str) -> Header:
    """The header, with nothing executed. Raises UnreadableRepro for what is no repro of ours, is
    damaged or by a later minidbg."""
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
        return script_header.parse_header(text, path)
    except MALFORMED as error:
        missing = re.search("(?m)^What is missing: (.*)", text)  # of a case that no script can hold
        why = missing[1] if missing else describe_malformed(error)
        raise UnreadableRepro(f"{path}: {why}") from error
