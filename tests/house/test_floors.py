"""Imports go down only; torch's private names, extras and the environment of children have one room each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from house.source import PACKAGE, dotted, imported_modules, nodes_of, room_of, trees

FLOORS = {
    name: floor
    for floor, names in enumerate(
        (
            ("core",),
            ("torch_internals", "workers", "history"),
            ("fx",),
            ("backends",),
            ("codegen",),
            ("judge",),
            ("repro", "oracle"),
            ("reduction",),
            ("library", "wrapper", "watch", "report"),
            ("__init__", "pytest_plugin", "commands"),
            ("extras",),
            ("nodes",),
            ("__main__",),
        )
    )
    for name in names
}
"""The picture that ``ls minidbg`` is, from below. Rooms of one floor do not see each other."""

# What they need of torch is imported late, in the server or its child.
WORKERS_THAT_KNOW_TORCH = {"workers/fork.py", "workers/server.py"}
READ_FILES_OF_OTHERS = "library.py", "nodes/"
"""They take a file of any kind, and import the importers when they are called."""


def test_imports_go_down_only() -> None:
    assert {room_of(name) for name in trees()} <= set(FLOORS)
    upward = []
    for name in trees():
        here = room_of(name)
        for line, imported in imported_modules(name):
            there = imported.split(".")[1] if imported.startswith("minidbg.") else ""
            if there not in FLOORS or there == here or here == "__init__":
                continue
            late = there == "torch_internals" and name in WORKERS_THAT_KNOW_TORCH
            late |= there == "extras" and name.startswith(READ_FILES_OF_OTHERS)
            if FLOORS[there] >= FLOORS[here] and not late:
                upward.append(
                    f"{name}:{line}: {here} (floor {FLOORS[here]}) imports {there} ({FLOORS[there]})"
                )
    assert upward == []


def test_architecture_names_every_room_and_only_files_that_are_there() -> None:
    text = (PACKAGE / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    named = text.partition("## Floors")[2].partition("\n## ")[0]
    assert rooms <= set(re.findall(r"`([a-z_]+)`", named))
    files = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", text))
    assert len(files) > 10
    assert [one for one in files if not ((PACKAGE / one).is_file() or (PACKAGE.parent / one).is_file())] == []


def is_private_torch(name: str) -> bool:
    parts = name.split(".")
    return parts[0] == "torch" and any(part.startswith("_") and not part.startswith("__") for part in parts)


def test_private_torch_names_live_in_one_room() -> None:
    named = []
    for name in trees():
        if room_of(name) == "torch_internals":
            continue
        named += [f"{name}:{line}: {one}" for line, one in imported_modules(name) if is_private_torch(one)]
        attributes = (node for node in nodes_of(name) if isinstance(node, ast.Attribute))
        named += [f"{name}:{node.lineno}" for node in attributes if is_private_torch(dotted(node))]
    assert named == []


def test_only_workers_fork() -> None:
    """The program's process is never forked: who wants a question answered asks the forkserver."""
    forks = [
        f"{name}:{node.lineno}"
        for name in trees()
        if room_of(name) != "workers"
        for node in nodes_of(name)
        if isinstance(node, ast.Call) and re.search(r"\bfork(pty)?$|call_in_fork$", dotted(node.func))
    ]
    assert forks == []


def extra_of(name: str) -> str:
    """``hunt`` for ``minidbg.extras.hunt.judging``; empty for what is no extra."""
    return name.split(".")[2] if name.startswith("minidbg.extras.") else ""


def test_an_extra_is_imported_by_itself_alone() -> None:
    """The table of commands names extras as text."""
    others = [
        f"{name}:{line}: {imported}"
        for name in trees()
        for line, imported in imported_modules(name)
        if extra_of(imported) and not name.startswith((f"extras/{extra_of(imported)}", *READ_FILES_OF_OTHERS))
    ]
    assert others == []


STARTERS = ("run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput")
ELSEWHERE_INHERITED = ("system", "popen", "execv", "execl", "execlp", "execvp", "spawnv", "spawnl", "spawnvp")
READERS = {"several_ranks", "from_environment", "eager_fails_too", "allowed_environment", "without_secrets"}
"""Functions that read variables of a mapping and start nothing."""
MAY_INHERIT = {
    "core/environment.py": "the one room",
    "workers/server.py": "a run becomes its script, in the environment that the pool has made for it",
}


def inherited(tree: ast.AST) -> Iterator[str]:
    """Each place, with its line, that hands the whole environment on, or starts something that inherits it."""
    parents = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            module, _, name = dotted(node.func).rpartition(".")
            starts = module == "subprocess" and name in STARTERS
            if (starts and all(one.arg != "env" for one in node.keywords)) or (
                module == "os" and name in ELSEWHERE_INHERITED
            ):
                yield f"{node.lineno}: {ast.unparse(node)[:60]}"
        is_environ = isinstance(node, ast.Attribute) and dotted(node) == "os.environ"
        if is_environ and not is_one_variable(parents[id(node)]):
            yield f"{node.lineno}: {ast.unparse(parents[id(node)])[:60]}"


def is_one_variable(parent: ast.AST) -> bool:
    """Whether ``os.environ`` is read or set there, and not copied or handed to somebody."""
    match parent:
        case ast.Subscript() | ast.Compare():
            return True
        case ast.Attribute(attr="get" | "pop" | "update" | "clear" | "setdefault"):
            return True
        case ast.Call(func=function):
            return dotted(function).rpartition(".")[2] in READERS
        case ast.AugAssign() | ast.arguments():
            return True
    return False


def test_one_room_makes_the_environment_of_children() -> None:
    others = [
        f"{name}:{one}"
        for name, tree in trees().items()
        if name not in MAY_INHERIT
        for one in inherited(tree)
    ]
    assert others == []


def test_each_way_to_hand_the_environment_on_is_seen() -> None:
    lines = (
        "subprocess.run(['x'])",
        "subprocess.Popen(['x'], env={**os.environ, 'A': 'b'})",
        "start(env=os.environ)",
        "start(dict(os.environ))",
        "start(os.environ | more)",
        "start({k: v for k, v in os.environ.items()})",
        "start(os.environ.copy())",
        "environ = os.environ",
        "os.execv('x', [])",
    )
    assert [line for line in lines if not list(inherited(ast.parse(line)))] == []
