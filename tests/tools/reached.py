"""Which lines of minidbg which tests reach, in whichever process: the map for what is deleted.

    python tests/tools/reached.py run GROUP FOLDER COMMAND ...   run a command, and note in FOLDER/GROUP.txt what it reaches
    python tests/tools/reached.py report FOLDER [ROOM ...]       every function with its groups, and a table of the rooms

GROUP is a name of one's own; those in ``NOT_THE_NET`` stand for tests that go with the code they test. Each block of each
function is marked when it is compiled, and writes its line on its first visit in a process: children, forks and what dies by
a signal are counted too, and torch runs at its usual pace. ``run`` puts one ``.pth`` file into the interpreter's packages.
The code must not change between ``run`` and ``report``.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib.machinery
import marshal
import os
import subprocess
import sys
import sysconfig
import types
from collections import Counter, defaultdict
from pathlib import Path

LOG, ROOT = "REACHED_LOG", "REACHED_ROOT"
NOT_THE_NET = ("unit", "integration", "other")
LEFT_ALONE = ("commands/demo/program.py",)  # dynamo traces it
real_compile = builtins.compile


class Marks(ast.NodeTransformer):
    """Puts a mark before each block of each function, and behind each statement that may leave the block early."""

    def __init__(self, path: str) -> None:
        self.path, self.names, self.within = path, list[str](), list[tuple[int, str]]()
        self.lines: dict[tuple[int, str], Counter[int]] = {}
        """Of each function, its line and name: how many lines stand behind each mark."""

    def visit(self, node: ast.AST) -> ast.AST:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        self.names += [node.name] if is_function or isinstance(node, ast.ClassDef) else []
        self.within += [(node.lineno, ".".join(self.names))] if is_function else []
        self.generic_visit(node)
        if self.within and not isinstance(node, ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                if isinstance(block := getattr(node, name, None), list) and block:
                    setattr(node, name, self.marked(block, node if is_function else None))
        self.names[len(self.names) - (is_function or isinstance(node, ast.ClassDef)) :] = []
        self.within[len(self.within) - is_function :] = []
        return node

    def marked(self, block: list[ast.stmt], function: ast.AST | None) -> list[ast.stmt]:
        first = int(function is not None and len(block) > 1 and ast.get_docstring(function) is not None)
        begun, at, lines = block[:first], 0, self.lines.setdefault(self.within[-1], Counter())
        for one in block[first:]:
            if not at:
                at = one.lineno
                call = ast.parse(f"__reached__({f'{self.path}:{at}'!r})").body[0]
                for node in ast.walk(call):
                    ast.copy_location(node, one)
                begun.append(call)
            if function:
                lines[at], function = at - function.lineno, None
            begun.append(one)
            inner = [deeper for name in ("body", "handlers", "cases") for deeper in getattr(one, name, ())]
            ends = [getattr(deeper, "lineno", one.lineno) for deeper in inner] or [one.end_lineno + 1]
            lines[at] += max(1, min(ends) - one.lineno)
            at = 0 if inner else at
        return begun


# In every interpreter of a run


def hook() -> None:
    if hasattr(builtins, "__reached__"):
        return
    root, log, seen = os.environ[ROOT] + os.sep, os.environ[LOG], set[str]()
    get_code = importlib.machinery.SourceFileLoader.get_code
    open_, write, close, flags = os.open, os.write, os.close, os.O_WRONLY | os.O_APPEND | os.O_CREAT

    def reached(where: str) -> None:
        if where not in seen:
            seen.add(where)  # before the file is opened, which an audit hook of ours hears
            try:
                file = open_(log, flags)
                write(file, f"{where}\n".encode())
                close(file)
            except OSError:
                seen.discard(where)  # no descriptor is free, or no space: the next visit

    def is_ours(path: object) -> bool:
        return isinstance(path, str) and path.startswith(root) and not path.endswith(LEFT_ALONE)

    def code_of(path: str) -> types.CodeType:
        status = os.stat(path)
        key = hashlib.sha256(f"{path} {status.st_mtime_ns} {status.st_size}".encode()).hexdigest()
        stored = Path(log).parent / "code" / key
        if stored.exists():
            return marshal.loads(stored.read_bytes())
        marked = Marks(path.removeprefix(root)).visit(ast.parse(Path(path).read_bytes()))
        code = real_compile(marked, path, "exec", dont_inherit=True)
        stored.parent.mkdir(parents=True, exist_ok=True)
        draft = stored.with_suffix(f".{os.getpid()}")
        draft.write_bytes(marshal.dumps(code))
        draft.replace(stored)
        return code

    def compile_(source: object, filename: object, mode: str, *rest: object, **more: object) -> object:
        if isinstance(source, bytes) and mode == "exec" and is_ours(filename):
            return code_of(str(filename))
        more |= {} if len(rest) > 1 else {"dont_inherit": True}  # what is there to inherit is this file's
        return real_compile(source, filename, mode, *rest, **more)

    def get(self: importlib.machinery.SourceFileLoader, name: str) -> types.CodeType | None:
        path = self.get_filename(name)
        return code_of(path) if is_ours(path) else get_code(self, name)

    builtins.__reached__, builtins.compile = reached, compile_
    importlib.machinery.SourceFileLoader.get_code = get
    words = sys.orig_argv
    place = next((place for place, word in enumerate(words) if place and not word.startswith("-")), 0)
    if place and is_ours(words[place]) and not {"-m", "-c"} & {*words[:place]}:
        # Python compiles a script without asking anybody, so this file runs it
        os.execv(sys.executable, [sys.executable, *words[1:place], __file__, "script", *words[place:]])


def run_as_main(path: str, *arguments: str) -> None:
    here, main = sys.modules["__main__"], types.ModuleType("__main__")
    vars(main).update(__file__=path, __builtins__=builtins, __cached__=None, __of__=here)
    sys.argv[:], sys.modules["__main__"] = [path, *arguments], main
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(path)
    exec(compile(b"", path, "exec"), vars(main))


def run(group: str, folder: str, *command: str) -> int:
    import minidbg

    Path(folder).mkdir(parents=True, exist_ok=True)
    line = (
        f"exec(open({__file__!r}).read() + '\\nhook()', {{'__name__': 'reached', '__file__': {__file__!r}}})"
    )
    pth = Path(sysconfig.get_path("purelib"), "minidbg_reached.pth")
    pth.write_text(f"import os; {LOG!r} in os.environ and {line}\n")
    given = {ROOT: str(Path(minidbg.__file__).parent), LOG: str(Path(folder, f"{group}.txt").absolute())}
    given["PYTEST_ADDOPTS"] = (
        "--assert=plain"  # what rewrites asserts rewrites plug-ins too, by a loader of its own
    )
    return subprocess.run(command, env={**os.environ, **given}, check=False).returncode


def report(folder: str, *rooms: str) -> None:
    import minidbg

    root = Path(minidbg.__file__).parent
    reached: dict[str, set[str]] = defaultdict(set)
    for log in sorted(Path(folder).glob("*.txt")):
        for where in {*log.read_text().splitlines()}:
            reached[where].add(log.stem)
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(root.rglob("*.py")):
        name = str(path.relative_to(root))
        room = "/".join(name.split("/")[: 2 if name.startswith("extras") else 1]) if "/" in name else "."
        if rooms and room not in rooms:
            continue
        marks = Marks(name)
        marks.visit(ast.parse(path.read_bytes()))
        for (number, qualified), lines in sorted(marks.lines.items()):
            own = sorted(lines)
            by = {at: how(reached[f"{name}:{at}"]) for at in own}
            groups = set().union(*(reached[f"{name}:{at}"] for at in own))
            table[room][f"functions {how(groups)}"] += 1
            blocks = defaultdict(list)
            for at in own:
                table[room][f"lines {by[at]}"] += lines[at]
                blocks[by[at]].append(f"{at}+{lines[at]}")
            others = [word for word in ("unit", "nothing") if word in blocks and len(blocks) > 1]
            parts = [f"; {word}: {', '.join(blocks[word])}" for word in others]
            size, by_whom = lines.total(), f"{how(groups)} ({' '.join(sorted(groups))})"
            print(f"{name}:{number} {qualified} [{size}] {by_whom}{''.join(parts)}")
    words = [f"{what} {which}" for what in ("functions", "lines") for which in ("net", "unit", "nothing")]
    print(f"\n{'room':<20}" + "".join(f"{word:>18}" for word in words))
    for room, counts in [*table.items(), ("together", sum(table.values(), Counter()))]:
        print(f"{room:<20}" + "".join(f"{counts[word]:>18}" for word in words))


def how(groups: set[str]) -> str:
    """By whom: the net, only tests that go with the code, or nothing."""
    return "net" if groups - {*NOT_THE_NET} else "unit" if groups else "nothing"


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    sys.exit({"run": run, "report": report, "script": run_as_main}[what](*words))
