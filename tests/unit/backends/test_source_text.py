"""Source read statement by statement and laid out again; values with a source text come back."""

from __future__ import annotations

import enum
import linecache
import math
import sys
from types import ModuleType

import pytest
import torch

from minidbg.backends.definitions import short_literal
from minidbg.backends.statements import Statement, indented, joined, read_statements, statements_of
from minidbg.words.literals import NotALiteral, read_literal, write_literal


def run(text: str) -> dict[str, object]:
    space: dict[str, object] = {}
    exec(text, space)
    return space


def test_indenting_does_not_change_strings() -> None:
    text = 'a = """one\n  two\n\nthree"""\nb = (\n    """x\ny"""\n)\nc = f"""{len(a)}\n{a}"""'

    inside = run("def f():\n" + indented(text) + "\n    return a, b, c")

    plain = run(text)
    assert inside["f"]() == (plain["a"], plain["b"], plain["c"])  # type: ignore[operator]


def test_docstrings_are_indented_like_code() -> None:
    text = 'def g():\n    """One.\n\n    Two.\n    """\n    return 1'

    assert indented(text) == ('    def g():\n        """One.\n\n        Two.\n        """\n        return 1')


def test_definitions_have_empty_lines_around_them() -> None:
    statements = ["import a", "from b import c", "x = 1", "y = 2", "def f(): pass", "z = 3"]

    assert joined(statements) == ("import a\nfrom b import c\n\nx = 1\ny = 2\n\n\ndef f(): pass\n\n\nz = 3")


def only(text: str) -> Statement:
    (statement,) = read_statements(text, "<test>")
    return statement


@pytest.mark.parametrize(
    ("text", "binds", "needs"),
    [
        (
            "@deco(level)\ndef f(a: Kind = DEFAULT) -> Result:\n    return helper(a) + [x for x in table]",
            {"f"},
            {"deco", "level", "Kind", "DEFAULT", "Result", "helper", "table"},
        ),
        (
            "class C(Base):\n    size = LIMIT\n    def m(self):\n        return self.size + other()",
            {"C"},
            {"Base", "LIMIT", "other"},
        ),
        ("a = [f(x) for x in xs if x in ys]", {"a"}, {"f", "xs", "ys"}),
        ("a = {k: {v for v in vs} for k, vs in m.items()}", {"a"}, {"m"}),
        ("def f():\n    y = 1\n    def g(z):\n        return y + z + w\n    return g", {"f"}, {"w"}),
    ],
    ids=["a function", "a class", "a comprehension", "a nested comprehension", "a nested function"],
)
def test_what_a_statement_binds_and_needs(text: str, binds: set[str], needs: set[str]) -> None:
    found = only(text)
    assert (found.binds, found.needs) == (binds, needs)


def test_global_declarations_are_seen() -> None:
    assert "count" in only("def f():\n    global count\n    count = 1").needs


def test_imports_are_seen_at_any_depth() -> None:
    text = "def f():\n    import a.b\n    from c import d\n    from . import e\n    from ..g import h"
    assert only(text).imported == {"a.b", "c", ".", "..g"}


def test_statements_of_the_main_block_stand_in_its_place() -> None:
    text = 'a = 1\nif "__main__" == __name__:\n    b = 2\n    c = """\n  kept\n"""\nelse:\n    e = 4\nd = 3\n'

    found = read_statements(text, "<test>")
    assert [name for one in found for name in one.binds] == ["a", "b", "c", "e", "d"]
    assert run(found[2].text)["c"] == "\n  kept\n"


def test_statements_that_share_a_line_are_told_apart() -> None:
    assert [one.text for one in read_statements("a = 1; b = 2", "<test>")] == ["a = 1", "b = 2"]


def test_module_without_a_file_has_the_cells_that_linecache_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("made_by_exec")
    monkeypatch.setitem(sys.modules, "made_by_exec", module)
    monkeypatch.setitem(linecache.cache, "<cell 1>", (5, None, ["a = 1\n", "b = 2\n"], "<cell 1>"))

    assert [one.text for one in statements_of("made_by_exec", "<cell 1>")] == ["a = 1", "b = 2"]
    assert statements_of("made_by_exec", "<cell 2>") == ()


LITERALS = [
    *(None, True, -3, 2.5, -0.0, float("inf"), -float("inf"), 1 + 2j, 3 - 4j, "it's", b"\x00"),
    *((), (1,), [1, (2, "x")], {"a": {"b": [None]}}, {3, 1, 2}, set(), frozenset({1})),
    *(torch.float16, torch.device("cuda:1"), torch.channels_last, torch.strided, torch.Size([2, 3])),
    {"precisions": {torch.float16, torch.float32}, "devices": (torch.device("cpu"), None)},
]


@pytest.mark.parametrize("value", LITERALS, ids=lambda value: type(value).__name__)
def test_text_of_a_literal_gives_it_back_run_or_read(value: object) -> None:
    for again in (eval(write_literal(value), {"torch": torch}), read_literal(write_literal(value))):
        assert again == value
        assert type(again) is type(value)


def test_nan_comes_back_as_nan() -> None:
    assert math.isnan(eval(write_literal(float("nan"))))


def test_text_of_a_set_does_not_depend_on_its_order() -> None:
    assert write_literal({"b", "a", "c"}) == "{'a', 'b', 'c'}"


class Level(enum.IntEnum):
    HIGH = 3


class Table(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    "value",
    [object(), len, Level.HIGH, Table(), [1, {"x": object()}]],
    ids=lambda value: type(value).__name__,
)
def test_objects_are_no_literals(value: object) -> None:
    with pytest.raises(NotALiteral):
        write_literal(value)


def test_refusal_names_the_place_of_the_object() -> None:
    with pytest.raises(NotALiteral) as caught:
        write_literal({"passes": [1, len]}, "options")

    assert caught.value.path == "options['passes'][1]"
    assert caught.value.value is len


def test_list_that_holds_itself_is_no_literal() -> None:
    endless: list[object] = []
    endless.append(endless)

    assert short_literal(endless) is None


@pytest.mark.parametrize(
    "text", ["open('x')", "torch.load('x')", "__import__('os')", "torch.nn", "(lambda: 1)()"]
)
def test_what_is_no_literal_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_literal(text)
