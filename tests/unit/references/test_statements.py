"""What the statements of a source bind and need."""

from __future__ import annotations

import ast
import linecache
import sys
from types import ModuleType

import pytest

from minidbg.references.source_text import (
    Statement,
    has_main_block,
    is_main_block,
    read_statements,
    statements_of,
)


def only(text: str) -> Statement:
    (statement,) = read_statements(text, "<test>")
    return statement


def test_function_needs_its_decorators_defaults_and_annotations_at_once_and_its_body_later() -> None:
    found = only(
        "@deco(level)\ndef f(a: Kind = DEFAULT) -> Result:\n    return helper(a) + [x for x in table]"
    )

    assert found.binds == {"f"}
    assert found.needs_now == {"deco", "level", "Kind", "DEFAULT", "Result"}
    assert found.needs_later == {"helper", "table"}


def test_class_body_runs_at_once_and_its_methods_later() -> None:
    found = only("class C(Base):\n    size = LIMIT\n    def m(self):\n        return self.size + other()")

    assert found.needs_now == {"Base", "LIMIT"}
    assert found.needs_later == {"other"}


def test_comprehension_at_top_level_runs_at_once() -> None:
    assert only("a = [f(x) for x in xs if x in ys]").needs_now == {"f", "xs", "ys"}


def test_names_of_nested_functions_are_no_globals() -> None:
    found = only("def f():\n    y = 1\n    def g(z):\n        return y + z + w\n    return g")

    assert found.needs_now | found.needs_later == {"w"}


def test_global_declarations_are_seen() -> None:
    assert only("def f():\n    global count\n    count = 1").rebinds == {"count"}


def test_imports_are_seen_at_any_depth() -> None:
    found = only("def f():\n    import a.b\n    from c import d\n    from . import e\n    from ..g import h")

    assert found.imported == {"a.b", "c", ".", "..g"}


def test_statements_of_the_main_block_stand_in_its_place() -> None:
    text = 'a = 1\nif __name__ == "__main__":\n    b = 2\n    c = """\n  kept\n"""\nd = 3\n'

    found = read_statements(text, "<test>")

    assert [(one.guarded, *one.binds) for one in found] == [
        (False, "a"),
        (True, "b"),
        (True, "c"),
        (False, "d"),
    ]
    space: dict[str, object] = {}
    exec(found[2].text, space)
    assert space["c"] == "\n  kept\n"


def test_statements_that_share_a_line_are_told_apart() -> None:
    assert [one.text for one in read_statements("a = 1; b = 2", "<test>")] == ["a = 1", "b = 2"]


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ('__name__ == "__main__"', True),
        ('"__main__" == __name__', True),
        ('__name__ != "other"', False),
        ("ready", False),
    ],
)
def test_main_block_is_told_by_its_condition(test: str, expected: bool) -> None:
    (node,) = ast.parse(f"if {test}:\n    pass").body

    assert is_main_block(node) is expected


def test_else_of_the_main_block_is_what_an_import_runs() -> None:
    found = read_statements('if __name__ == "__main__":\n    a = 1\nelse:\n    b = 2', "<test>")

    assert [(one.guarded, *one.binds) for one in found] == [(True, "a"), (False, "b")]


def test_module_without_a_file_has_the_cells_that_linecache_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("made_by_exec")
    monkeypatch.setitem(sys.modules, "made_by_exec", module)
    monkeypatch.setitem(linecache.cache, "<cell 1>", (5, None, ["a = 1\n", "b = 2\n"], "<cell 1>"))

    assert [one.text for one in statements_of("made_by_exec", "<cell 1>")] == ["a = 1", "b = 2"]
    assert statements_of("made_by_exec", "<cell 2>") == ()


def test_this_module_has_no_main_block() -> None:
    assert not has_main_block(__name__)
