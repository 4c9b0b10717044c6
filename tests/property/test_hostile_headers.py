"""Whatever stands in a file, reading its header gives a Header or UnreadableRepro, in bounded time, and runs nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minidbg.core.errors import UnreadableRepro
from minidbg.core.script_header import Header
from minidbg.core.text import in_one_line, printable
from minidbg.repro import read_header
from minidbg.repro.header import header_of, toml

FILE = Path("repro.py")
KEYS = [
    "schema", "kind", "expect", "backend", "name", "call", "device", "nodes", "signature", "context", "provenance", "tolerances",
    "options", "dynamic_dims", "autocast", "config", "types", "frames", "message", "others", "notes", "env", "modules", "paths",
]  # fmt: skip
scalars = st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
tables: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


def tool_table(table):
    return "\n".join(["[tool.minidbg]", *(f"{name} = {toml(value)}" for name, value in table.items())])


def script(body: str) -> str:
    return (
        "# /// script\n" + "\n".join(f"# {line}" if line else "#" for line in body.split("\n")) + "\n# ///\n"
    )


def is_header_or_refusal(text: str) -> None:
    refusal = ""
    try:
        assert isinstance(header_of(text, FILE), Header)
    except UnreadableRepro as error:
        refusal = str(error)
    assert refusal == "" or refusal.startswith(f"{FILE}: ")


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), tables, max_size=9))
def test_any_table_is_read_or_refused(table: dict[str, Any]) -> None:
    whole = {"schema": 1, "backend": {"name": "x"}, **table}
    is_header_or_refusal(script(tool_table(whole)))


@settings(max_examples=60, deadline=None)
@given(st.text())
@example('tool = "text"')
@example("tool = {minidbg = 3}")
@example("[tool.minidbg]\nschema = 1\nbackend.name = 'x'\ncontext.config = '" + "[" * 9000 + "'")
@example("[tool.minidbg]\nschema = 1\nbackend.name = 'x'\nnodes = inf")
@example("[tool.minidbg]\nschema = 1\nbackend.name = 'x'\ncontext.config = '__import__(\"os\")._exit(9)'")
@example("[tool.minidbg]\nschema = 1\nbackend = {name = 'x', options = \"{'on': torch.device('mars')}\"}")
@example("a = " + "[" * 100_000)
@example("a." * 20_000 + "a = 1")
def test_any_block_is_read_or_refused(body: str) -> None:
    is_header_or_refusal(script(body))


def test_thousands_of_beginnings_are_refused_in_no_time() -> None:
    began = time.monotonic()
    with pytest.raises(UnreadableRepro, match="50000 '# /// script' blocks"):
        header_of("# /// script\n# a = 1\n" * 50_000, FILE)
    assert time.monotonic() - began < 2


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, tmp_path / "missing.py"):
        with pytest.raises(UnreadableRepro, match=str(path)):
            read_header(path)
    (tmp_path / "binary.py").write_bytes(bytes(range(256)))
    with pytest.raises(UnreadableRepro, match=r"binary\.py.*UTF-8"):
        read_header(tmp_path / "binary.py")


@given(st.text())
@example("\x1b]0;title\x07\x1b[2J\x9b31m\u202e\u2066\ud800\r\n\t")
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    assert all(one.isprintable() or one in "\n\t" for one in printable(text))
    assert "\n" not in in_one_line(text)
    in_one_line(text).encode()  # half surrogates would raise


PROGRAM = '''"""A script. \x1b[2J"""
import torch

backend = "eager"

class Repro(torch.nn.Module):
    def forward(self, x):
        return (x.relu(),)

def inputs(device="cpu"):
    return (torch.ones(3),)

'''
EVIL = "\x1b]0;title\x07\x1b[2J\u202eevil[red]"


@pytest.mark.parametrize(
    "arguments", [["show"], ["list"], pytest.param(["report", "-q"], marks=pytest.mark.slow)]
)
def test_commands_print_no_control_sequence_of_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    from click.testing import CliRunner

    from minidbg.commands.root import cli

    told = {"message": EVIL, "captured_from": EVIL, "line": EVIL, "notes": [EVIL]}
    signature = {"kind": "compile", "types": [EVIL], "frames": [EVIL], "message": EVIL}
    table = {"schema": 1, "backend": {"name": EVIL}, "signature": signature, "provenance": told}
    folder = tmp_path / "minidbg_repros"
    folder.mkdir()
    (folder / "compile_x_1.py").write_text(PROGRAM + script(tool_table(table)))
    monkeypatch.chdir(tmp_path)
    target = str(folder) if arguments == ["list"] else str(folder / "compile_x_1.py")
    done = CliRunner().invoke(cli, [*arguments, target])
    said = done.output
    assert said, done.exception
    assert not {"\x1b", "\x07", "\u202e"} & set(said)
