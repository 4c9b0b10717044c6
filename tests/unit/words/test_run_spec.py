"""The run's record has one form: nobody but ``to_table`` and ``from_table`` names a key of its table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import minidbg
from minidbg.words.outcome import Direction, Kind, Signature
from minidbg.words.run_spec import BackendRef, CallPath, Context, Level, RunSpec

PACKAGE = Path(minidbg.__file__).parent
RECORD = PACKAGE / "words" / "run_spec.py"
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != RECORD]

HOLDERS = {
    "words/script_header.py": "takes the table out of the script's text",
    "judge/command.py": "hands it to from_table",
    "repro/header.py": "what a header has beside the record: schema, expect, nodes, stages",
    "watch/repros.py": "the same, and what people write: owner, issue, muted",
    "watch/idle_work.py": "the same, for captures: nodes",
}
"""Files that hold a header's table as it was read, and why."""
READERS = {"table_of", "read_table", "table_in", "metadata_of", "header_table"}

OTHER_TABLES = {
    ("words/script_header.py", "details"): "the line that the table is written on; it is opened there",
    ("words/outcome.py", "kind"): "Signature's own table",
    ("words/outcome.py", "signature"): "Outcome's JSON",
    ("reduction/stages.py", "backend"): "StageReport's own table",
    ("history/store.py", "modules"): "a row of the history",
    ("commands/run/inside.py", "backend"): "orders for the program that is run",
    ("extras/hunt/table.py", "backend"): "the baseline of a hunt",
    ("extras/hunt/programs.py", "grad"): "an input of a random program",
    ("extras/serve/serving.py", "origin"): "a header of HTTP",
}
OTHER_WORDS = {
    ("words/script_header.py", "details"): "the line that the table is written on; it is opened there",
    ("repro/header.py", "details"): "and written there",
    ("judge/precision.py", "autocast"): "names of torch's own ops",
    ("report/forms.py", "remarks"): "a variable of the template of issues",
    **{
        ("reduction/context_passes.py", name): "a field that is tried at its default"
        for name in ("autocast", "deterministic", "default_dtype", "matmul_precision")
    },
}


def keys_of_the_record() -> set[str]:
    """Every key that ``run_spec.py`` writes or reads, by its syntax tree: a new one is held to the same.

    But those of a signature, whose own ``to_table`` and ``from_table`` have them.
    """
    tree = ast.parse(RECORD.read_text())
    return {key for node in ast.walk(tree) for key in keys_named(node)} - {"direction", "types", "frames"} | {
        "details"
    }


def keys_named(node: ast.AST) -> Iterator[str]:
    """The string literals that ``node`` uses as keys: ``d["k"]``, ``d.get("k")``, ``"k" in d``, ``{"k": v}``."""
    found: list[ast.expr | None] = []
    match node:
        case ast.Dict(keys):
            found = [*keys]
        case ast.Subscript(slice=key):
            found = [key]
        case ast.Call(ast.Attribute(attr="get" | "pop" | "setdefault"), [key, *_]):
            found = [key]
        case ast.Compare(key, [ast.In() | ast.NotIn()]):
            found = [key]
    yield from (one.value for one in found if isinstance(one, ast.Constant) and isinstance(one.value, str))


def table_asked(node: ast.AST) -> str:
    """The text of what a key is looked up in."""
    match node:
        case (
            ast.Subscript(value=table)
            | ast.Call(ast.Attribute(value=table))
            | ast.Compare(comparators=[table])
        ):
            return ast.unparse(table)
    return ""


KEYS = keys_of_the_record()
COMMON = {
    "kind", "backend", "device", "call", "level", "dynamic", "backward", "options", "mode", "match", "signature",
    "context", "origin", "reference", "paths", "modules", "files", "threads", "env",
    "config", "grad", "inference",
}  # fmt: skip
"""Keys that are words of other tables, too: events, outcomes, requests."""


def test_the_keys_are_known_by_reading_the_record() -> None:
    spec = RunSpec(
        BackendRef("b", "b", mode="fast"), signature=Signature(Kind.HANG), time_limit_s=3, attempts=2
    )
    assert spec.to_table().keys() <= KEYS
    assert COMMON < KEYS
    assert {"attempts", "time_limit_s", "tolerances", "autocast", "requirements"} <= KEYS - COMMON


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nobody_else_names_a_key_of_the_record(path: Path) -> None:
    """In a table that may be a header's; and of the keys that mean nothing else, as any text at all."""
    name, tree = str(path.relative_to(PACKAGE)), ast.parse(path.read_text())
    named = []
    for node in ast.walk(tree):
        of_a_table = any(word in table_asked(node) for word in ("table", "header", "case", "spec", "details"))
        keys = set(keys_named(node)) & KEYS if of_a_table else set()
        named += [(node.lineno, key) for key in keys if (name, key) not in OTHER_TABLES]
        if (
            isinstance(node, ast.Constant)
            and node.value in KEYS - COMMON
            and (name, node.value) not in OTHER_WORDS
        ):
            named.append((node.lineno, node.value))
    assert not named, f"{name}: use a field of RunSpec, at {named}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_few_files_hold_the_table_at_all(path: Path) -> None:
    name = str(path.relative_to(PACKAGE))
    used = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)} & READERS
    assert not used or name in HOLDERS


def test_each_exception_is_needed() -> None:
    for name, key in {**OTHER_TABLES, **OTHER_WORDS}:
        tree = ast.parse((PACKAGE / name).read_text())
        assert any(isinstance(node, ast.Constant) and node.value == key for node in ast.walk(tree)), (
            name,
            key,
        )
    for name in HOLDERS:
        assert READERS & set(
            ast.unparse(ast.parse((PACKAGE / name).read_text())).replace("(", " ").split()
        ), name


@pytest.mark.parametrize(
    "spec",
    [
        RunSpec(BackendRef("eager", '"eager"')),
        RunSpec(BackendRef("eager", '"eager"'), signature=Signature(Kind.HANG), kind_if_unseen=Kind.CRASH),
        RunSpec(
            BackendRef(
                "b.f", "b.f", ("import b", "x = 'a\n\"b'"), "def f(): ...", ("/a b/c.py",), ("/p",),
                {"pass": (1, None, [2.5, float("inf")]), "inner": {"deep": ("x",)}}, "max-autotune", ("b==1",), ("remark",), ("b",),
            ),
            Context(
                grad=False, autocast=(("cuda", "torch.bfloat16", True),), threads=3, threads_matter=True,
                config={"torch._inductor.config": {"a": None, "b": {1, 2}}}, env={"A": "b"},
            ),
            Signature(
                Kind.ACCURACY, Direction.BACKWARD, ("T",), ("m:f",), "said", (Signature(Kind.COMPILE, message="other"),)
            ),
            Kind.RUNTIME, CallPath.DIRECT, Level.ATEN, "cuda", None, ((0,), ()), True, 7, 12.5, {"float32": (1e-3, 0.0)}, "re.*", 3.0,
        ),
        RunSpec(BackendRef("eager", '"eager"'), tolerances="bfloat16"),
    ],
)  # fmt: skip
def test_all_of_the_record_travels_to_another_process(spec: RunSpec) -> None:
    assert RunSpec.from_literal(spec.to_literal()) == spec
