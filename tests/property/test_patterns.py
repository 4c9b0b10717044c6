"""Whatever a backend says, the script that expects it recognises it: the pattern is made of the text that is searched."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import fx

from minidbg.core.outcome import same_message
from minidbg.core.run_spec import BackendRef, Provenance, RunSpec
from minidbg.core.script_header import Header
from minidbg.fx.case import Case
from minidbg.judge.run import first_lines
from minidbg.judge.signature import signature_of
from minidbg.repro import selfcheck

PIECES = st.sampled_from(
    ["error: ", "x.cpp:3:7: ", "Fehler: ", "'", "\u2018", "\u00ab\u00a0", "\x1b[31m", "\x1b[m", "\x1b", "\x00", "\t", "\n", "\r\n", "  ",
     "buf12", "0x7f3e", "/tmp/a/b.cpp:9", "https://x.y/z", "%relu_3", "L_x_", "s77*s1", "[2, 3]", "#", "\\", "; ", "a; a", "target: ",
     "KeyError: ", "Output:\n", "Command:\n", "args[0]: 1", "\udc80", "\ufffd", "\u3042", "\u0645", "\u200b", "(", ")*", "?", "=="]
)  # fmt: skip
NOTHING = fx.GraphModule({}, fx.Graph())
MESSAGES = st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join)


def judge_of_failure(error: BaseException, message: str) -> selfcheck.ScriptJudge:
    spec = RunSpec(BackendRef("x", '"x"'), signature=signature_of(error, "compile"))
    header = Header(spec, provenance=Provenance(message=message))
    return selfcheck.ScriptJudge(Case(NOTHING, (), spec), header, "", judges=True)


@settings(max_examples=300, deadline=None)
@given(MESSAGES)
@example("C++ compile error\n\nOutput:\nx.cpp:3:7: error: \u2018tmp5\u2019 was not declared")
@example("\x1b[31mno\x1b[m relu")
@example("error: \u00ab\u202ftmp\u00a0\u00bb")
@example("once; once; once more")
@pytest.mark.parametrize("kind", [ValueError, KeyError])
def test_a_pattern_is_found_in_the_text_that_it_was_made_of(kind: type[Exception], said: str) -> None:
    error = kind(said)
    judged = judge_of_failure(error, first_lines(error))
    pattern = eval(judged.pattern())
    names = {"re": re, "_said": eval(judged.said(), {"re": re, "_error": error})}
    searched = eval(judged.searched(), names)
    assert re.search(pattern, searched), (pattern, searched)


REPEATED = (
    "Too", "To", "s#", "#", "(-", "-", "Max(", "FloorDiv", "Mod", "s# + ", "zuf# ,", "0x1f", "a://b", "/a.b", "abcdefabcdef",
    "Command:\n" * 20, "%a", "L[a]", "a1", "_#", "1.5e1", "#, ", "[ ", "(#,", "abcd; ", "a b; ", "error: ", "target: a ",
)  # fmt: skip


def test_no_message_takes_long_to_be_compared_or_made_a_pattern_of() -> None:
    slow = []
    for piece in REPEATED:
        text, began = piece * 200, time.process_time()
        same_message(f"x {text} s#!", f"y {text}!")
        signature_of(ValueError(text), "compile")
        selfcheck.text_pattern(text)
        if (seconds := time.process_time() - began) > 0.5:
            slow.append((piece, seconds))
    assert not slow
