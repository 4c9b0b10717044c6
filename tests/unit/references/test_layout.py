"""Copied statements keep their meaning when they are moved."""

from __future__ import annotations

from minidbg.references.source_text import indented, joined


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
