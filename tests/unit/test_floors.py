"""Imports go down only; every private torch name lives in one room. Both are read off the syntax trees."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "minidbg"

FLOORS = {
    name: floor
    for floor, names in enumerate(
        (
            ("words",),
            ("torch_internals", "workers", "history", "python_text"),
            ("fx",),
            ("source", "backends"),
            ("judge",),
            ("repro", "asking"),
            ("reduction",),
            ("library", "wrapper", "watch", "report"),
            ("__init__", "pytest_plugin", "commands"),
            ("extras",),
            ("__main__",),
        )
    )
    for name in names
}
"""The picture that ``ls minidbg`` is, from below. Rooms of one floor do not see each other."""

# What they need of torch is imported late, in the child: it goes when one forkserver is handed its preparation by name.
WORKERS_THAT_KNOW_TORCH = {"workers/fork.py", "workers/server.py", "workers/forkserver.py"}


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of each module imported, relative forms and ``importlib`` calls included."""
    package = ["minidbg", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant):
                yield node.lineno, str(argument.value)


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_every_room_has_a_floor() -> None:
    assert {room_of(path) for path in sources()} <= set(FLOORS)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    here = room_of(path)
    upward = []
    for line, name in imported_modules(path):
        parts = name.split(".")
        if parts[0] != "minidbg" or len(parts) < 2 or parts[1] not in FLOORS:
            continue
        there = parts[1]
        if there == "torch_internals" and str(path.relative_to(PACKAGE)) in WORKERS_THAT_KNOW_TORCH:
            continue
        if there != here and FLOORS[there] >= FLOORS[here] and here != "__init__":
            upward.append(
                f"line {line}: {here} (floor {FLOORS[here]}) imports {there} (floor {FLOORS[there]})"
            )
    assert not upward


def is_private_torch(name: str) -> bool:
    parts = name.split(".")
    return parts[0] == "torch" and any(part.startswith("_") and not part.startswith("__") for part in parts)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_private_torch_names_live_in_one_room(path: Path) -> None:
    if room_of(path) == "torch_internals":
        pytest.skip("this module is where private names may be")
    named = [f"line {line}: {name}" for line, name in imported_modules(path) if is_private_torch(name)]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and is_private_torch(ast.unparse(node)):
            named.append(f"line {node.lineno}: {ast.unparse(node)}")
    assert not named


@pytest.mark.parametrize(
    "path",
    [path for path in sources() if room_of(path) in ("words", "workers")],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_words_and_workers_are_there_without_torch(path: Path) -> None:
    """The daemon of ``minidbg watch`` imports them, every command line does, and a server for scripts that need no torch."""
    named = [
        ast.unparse(node)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom) and "torch" in ast.unparse(node)
    ]
    assert not named


FORKS = {
    "workers/fork.py": "the one call, and a child under supervision",
    "workers/forkserver.py": "a server of a child's own",
    "workers/serving.py": "the one loop: a supervisor for each question",
}
STARTS = {
    "commands/demo/show.py": "the demo's repro, as a person runs it",
    "commands/doctor.py": "a C++ compiler",
    "commands/run/launch.py": "the user's program",
    "python_text/modules.py": "git",
    "repro/running.py": "another Python, with a torch of its own",
    "watch/bisecting.py": "git",
    "watch/flip_commands.py": "on_flip",
    "watch/sources.py": "git",
    "watch/terminal.py": "an editor",
    "workers/build.py": "the user's build command",
    "workers/forkserver.py": "the forkserver",
    "workers/interpreter.py": "a fresh interpreter, for python repro.py and for a judge that may die",
    "workers/pool.py": "a server that runs scripts",
}
"""Files that start a process, and what it is."""


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_processes_are_started_and_forked_where_the_list_says(path: Path) -> None:
    """The program's process is never forked: who wants a question answered asks the forkserver."""
    here = str(path.relative_to(PACKAGE))
    called = {
        ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    }
    forks = called & {"os.fork", "os.forkpty", "fork", "fork.fork"} or (
        path.parent.name != "workers" and {name for name in called if name.endswith("call_in_fork")}
    )
    starts = {
        name
        for name in called
        if name.partition(".")[0] == "subprocess" and name != "subprocess.list2cmdline"
    }
    assert bool(forks) == (here in FORKS), forks
    assert bool(starts) == (here in STARTS), starts


def test_the_wrapper_imports_at_once_what_it_needs() -> None:
    """No circle hides in an import that comes late. What answers a failure costs a program in which nothing fails some 0.05 s."""
    late = [
        f"{path.name}, line {node.lineno}"
        for path in (PACKAGE / "wrapper").glob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert late == []


def extra_of(name: str) -> str:
    """``hunt`` for ``minidbg.extras.hunt.table``; empty for what is no extra."""
    return (
        name.removeprefix("minidbg.extras.").partition(".")[0] if name.startswith("minidbg.extras.") else ""
    )


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_an_extra_is_named_by_itself_and_by_the_table_of_commands(path: Path) -> None:
    """Also as text: a module's name for ``importlib`` or for ``python -m``."""
    here = path.relative_to(PACKAGE).parts
    if here == ("commands", "table.py"):
        pytest.skip("this is the table")
    own = here[1] if here[0] == "extras" and len(here) > 2 else ""
    texts = [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    named = [
        f"line {line}: {name}"
        for line, name in [*imported_modules(path), *texts]
        if (extra := extra_of(name)) and extra != own
    ]
    assert not named


def modules_loaded_with(name: str, known: dict[str, Path], loaded: set[str]) -> None:
    """Add to ``loaded`` what importing the module ``name`` imports at once, without what functions import when they are called."""
    parts = name.split(".")
    for module in (".".join(parts[:length]) for length in range(1, len(parts) + 1)):
        if module in loaded or (parts[0] == "minidbg" and module not in known):
            continue
        loaded.add(module)
        if module in known:
            for imported in imported_at_once(ast.parse(known[module].read_text())):
                modules_loaded_with(imported, known, loaded)


def imported_at_once(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        elif not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from imported_at_once(child)


def test_the_judge_needs_torch_and_nothing_else_that_must_be_installed() -> None:
    """``minidbg check --python`` and ``minidbg bisect --torch`` run it where minidbg's other requirements are missing."""
    known = {
        ".".join(("minidbg", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in sources()
    }
    loaded: set[str] = set()
    for name in imported_modules(PACKAGE / "judge" / "command.py"):
        modules_loaded_with(name[1], known, loaded)
    assert "minidbg.judge.script" in loaded
    assert {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) == {"minidbg", "torch"}
