"""Numbers that may only fall, from landing to landing. ``python tests/house/ratchets.py`` lowers those in ratchets.txt to what is there."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "minidbg"
FILE = Path(__file__).with_name("ratchets.txt")
LINES = "lines of minidbg/"
SHARED = "top-level names in more than one file"
LONG = "lines of minidbg/ beyond 100 characters"
VAGUE = ("found", "one", "given", "known", "said", "kept", "told")
PATCHES = "patches of our own objects in "


def recorded() -> dict[str, int]:
    rows = (line.rpartition(": ") for line in FILE.read_text(encoding="utf-8").splitlines())
    return {name: int(number) for name, _, number in rows}


def counted() -> dict[str, int]:
    """What ratchets.txt records, as it is now. A file of tests is there where it patches anything of ours."""
    sources = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".js")]
    found = {LINES: sum(path.read_text(encoding="utf-8").count("\n") for path in sources)}
    modules = [path for path in sources if path.suffix == ".py"]
    texts = [path.read_text(encoding="utf-8") for path in modules]
    trees = [ast.parse(text) for text in texts]
    found[SHARED] = len(shared_names(trees))
    found[LONG] = sum(len(line) > 100 for text in texts for line in text.splitlines())
    vague = Counter(name for tree in trees for name in vague_names(tree))
    found |= {f"{name} as a name in minidbg/": vague[name] for name in VAGUE}
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "attr(" in text and (number := sum(1 for _ in patches(ast.parse(text)))):
            found[f"{PATCHES}{path.relative_to(TESTS)}"] = number
    return found


def patches(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls of ``setattr`` and ``delattr`` of a fixture on what is imported from minidbg, named as text, or made here.

    What other packages have may be patched: ``os``, ``time``, ``torch``.
    """
    others = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                others |= {
                    (one.asname or one.name).partition(".")[0] for one in names if not is_ours(one.name)
                }
            case ast.ImportFrom(module=module, names=names) if not is_ours(module or ""):
                others |= {one.asname or one.name for one in names}
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "delattr"), args=[ast.Constant(value=str(text)), *_]
            ):
                if is_ours(text):
                    yield node
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=[target, *_]):
                if not {one.id for one in ast.walk(target) if isinstance(one, ast.Name)} & others:
                    yield node


def shared_names(trees: Iterable[ast.Module]) -> set[str]:
    """Names that more than one file defines at its top level; imports, ``_`` and dunders do not count."""
    files = Counter(name for tree in trees for name in set(defined_in(tree.body)))
    return {name for name, times in files.items() if times > 1}


def defined_in(body: list[ast.stmt]) -> Iterator[str]:
    for statement in body:
        targets: list[ast.expr] = []
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign():
                targets = statement.targets
            case ast.AnnAssign(target=target):
                targets = [target]
            case ast.If() | ast.Try():
                yield from defined_in([*statement.body, *statement.orelse])
        for node in (inner for target in targets for inner in ast.walk(target)):
            is_bound = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            if is_bound and node.id.strip("_") and not node.id.startswith("__"):
                yield node.id


def vague_names(tree: ast.Module) -> Iterator[str]:
    """Each identifier that is one of VAGUE, as often as it stands there: a name, an argument, an attribute."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=name) | ast.Attribute(attr=name):
                if name in VAGUE:
                    yield str(name)


def is_ours(name: str) -> bool:
    return name.partition(".")[0] == "minidbg"


def main() -> None:
    now, before = counted(), recorded() if FILE.exists() else {}
    rows = {name: min(number, before.get(name, number)) for name, number in now.items()}
    FILE.write_text("".join(f"{name}: {number}\n" for name, number in rows.items()), encoding="utf-8")
    risen = [
        f"{name}: {number}, recorded {rows[name]}" for name, number in now.items() if number > rows[name]
    ]
    sys.exit("\n".join(risen) or None)


if __name__ == "__main__":
    main()
