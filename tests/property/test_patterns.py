"""Whatever a backend says, the script that expects it recognises it: the pattern is made of the text that is searched."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minidbg.judge.run import first_lines
from minidbg.judge.signature import signature_of
from minidbg.repro import selfcheck
from minidbg.repro.header import Header, header_of

PIECES = st.sampled_from(
    ["error: ", "x.cpp:3:7: ", "Fehler: ", "'", "\u2018", "\u00ab\u00a0", "\x1b[31m", "\x1b[m", "\x1b", "\x00", "\t", "\n", "\r\n", "  ",
     "buf12", "0x7f3e", "/tmp/a/b.cpp:9", "https://x.y/z", "%relu_3", "L_x_", "s77*s1", "[2, 3]", "#", "\\", "; ", "a; a", "target: ",
     "KeyError: ", "Output:\n", "Command:\n", "args[0]: 1", "\udc80", "\ufffd", "\u3042", "\u0645", "\u200b", "(", ")*", "?", "=="]
)  # fmt: skip
MESSAGES = st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join)


def header_of_failure(error: BaseException, message: str) -> Header:
    signature = signature_of(error, "compile")
    table = {"schema": 1, "kind": "compile", "backend": "x", "signature": signature.to_table()}
    details = json.dumps(table).replace("'", "\\u0027").replace("\x7f", "\\u007f")
    header = header_of(f"# /// script\n# [tool.minidbg]\n# details = '{details}'\n# ///\n", "x.py")
    object.__setattr__(header.provenance, "message", message)
    return header


@settings(max_examples=300, deadline=None)
@given(MESSAGES)
@example("C++ compile error\n\nOutput:\nx.cpp:3:7: error: \u2018tmp5\u2019 was not declared")
@example("\x1b[31mno\x1b[m relu")
@example("error: \u00ab\u202ftmp\u00a0\u00bb")
@example("once; once; once more")
@pytest.mark.parametrize("kind", [ValueError, KeyError])
def test_a_pattern_is_found_in_the_text_that_it_was_made_of(kind: type[Exception], said: str) -> None:
    error = kind(said)
    header = header_of_failure(error, first_lines(error))
    judged = selfcheck._ScriptJudge(header, "", '"x"', has_numbers=False)
    pattern = eval(selfcheck.written_pattern(judged.pattern()))
    names = {"re": re, "_said": eval(judged.said(), {"re": re, "_error": error})}
    searched = eval(judged.searched, names)
    assert re.search(pattern, searched), (pattern, searched)
