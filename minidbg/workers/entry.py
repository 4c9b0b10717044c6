"""What runs a script as ``__main__`` in an interpreter that is already there. The standard library
only, since it is started as a plain file too.

    entry.py MODULE[:FUNCTION] ...    import, call, then follow the order, a line of JSON on stdin

An order is ``{"argv": [script, ...]}``, for the script as ``python script ...`` would run it; or
what ``run_script`` wants, for a run of watch's. The end of stdin ends the process.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import gc
import importlib
import itertools
import json
import linecache
import os
import pkgutil
import runpy
import stat
import sys
import traceback
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

ENTRY = __file__
LOADED = "loaded.json"
"""In the folder of a run of watch's: the files that it has loaded."""
MOST_FILES_READ = 10_000
NO_VERDICT = 70
"""Exit status of a script ended by an uncaught exception; Python's own, 1, means "reproduces"."""


def run_script(request: Mapping[str, Any], after: str = "") -> int:
    """Run the script as ``__main__`` in this process; its exit status. The file ``LOADED`` says
    what it loaded; in a fork, ``after`` the last module of its parent."""
    folder = Path.cwd()
    faulthandler.enable(file=sys.stderr, all_threads=True)
    compile_anew(request["recompiled"])
    # Folders may have changed within their time stamp's grain, and sources since they were read.
    importlib.invalidate_caches()
    linecache.clearcache()
    sys.argv = list(request["argv"])
    path = sys.argv[0]
    sys.path.insert(0, os.path.dirname(path))
    before = {*loaded_files(after)} if after else set[str]()
    read = files_read()
    try:  # as ``runpy.run_path`` does
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        made = sys.modules["__main__"] = types.ModuleType("__main__")
        vars(made).update(__file__=path, __cached__=None, __package__="", __builtins__=builtins)
        exec(code, vars(made))
        return 0
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)
        return NO_VERDICT
    except BaseException:  # noqa: BLE001 - a traceback and a status of its own, as of any script
        traceback.print_exc()
        return NO_VERDICT
    finally:
        opened = read()  # before the look at what is loaded, which opens a file itself
        loaded = set(loaded_files(after)) - before
        files = sorted({os.path.realpath(path) for path in loaded | opened})
        (folder / LOADED).write_text(json.dumps(files))


def files_read() -> Callable[[], set[str]]:
    """From now on, files opened here to read and never to write: a table is as good as code."""
    read: set[str] = set()
    written: set[str] = set()

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and len(read) < MOST_FILES_READ:
            (written if arguments[2] & (os.O_WRONLY | os.O_RDWR) else read).add(arguments[0])

    sys.addaudithook(hear)
    return lambda: {
        path for path in read - written if not path.endswith((".py", ".pyc")) and os.path.isfile(path)
    }


def compile_anew(paths: Sequence[str]) -> None:
    """Have modules at or below ``paths`` compiled from their source: without these times Python
    neither reads nor writes bytecode."""
    files, folders = frozenset(paths), tuple(path.rstrip(os.sep) + os.sep for path in paths)
    stats_of = SourceFileLoader.path_stats

    def path_stats(self: SourceFileLoader, path: str) -> Mapping[str, Any]:
        if path in files or path.startswith(folders):
            raise OSError(f"{path} is compiled anew")
        return stats_of(self, path)

    SourceFileLoader.path_stats = path_stats  # type: ignore[method-assign]


def loaded_files(last_module: str = "") -> Iterator[str]:
    """Every file this process has loaded code from: shared libraries (Linux), and modules that came
    after ``last_module``: in a forked child, a look at the server's would copy twenty megabytes."""
    for name in [*itertools.takewhile(lambda name: name != last_module, reversed(sys.modules))]:
        path = getattr(sys.modules[name], "__file__", None)
        if isinstance(path, str):
            yield path
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            columns = line.split(maxsplit=5)
            if len(columns) == 6 and columns[5].startswith("/") and ".so" in columns[5]:
                yield columns[5]


def fingerprints(files: Sequence[str]) -> dict[str, list[int]]:
    """Modification time and size of each file that exists; of a folder what is installed in it."""
    found = {}
    for path in files:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found[path] = [status.st_mtime_ns, status.st_size]
            if stat.S_ISDIR(status.st_mode):
                # Names, and what the interpreter read there when it started: the folder's own time
                # says less, since a ``__pycache__`` and an install of the same change it too.
                names = sorted(set(os.listdir(path)) - {"__pycache__"})
                read = (Path(path, name).read_bytes() for name in names if name.endswith(".pth"))
                found[path] = [zlib.crc32(b"\0".join([*map(os.fsencode, names), *read]))]
    return found


@contextlib.contextmanager
def freezing_imports() -> Iterator[None]:
    """No garbage collection within the block, and none ever of what is there at its end: a third of
    the time that imports and the exit take."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def main(*modules: str) -> int:
    with freezing_imports():
        for name in modules:
            with contextlib.suppress(Exception):  # the script will say what is missing
                found = pkgutil.resolve_name(name)
                if ":" in name:
                    found()
    line = sys.stdin.readline()
    if not line:
        return 0
    order = json.loads(line)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if "recompiled" in order:
        return run_script(order)
    sys.argv[:] = order["argv"]
    sys.path.insert(0, os.path.dirname(order["argv"][0]))
    runpy.run_path(order["argv"][0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
