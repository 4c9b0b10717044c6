"""A server whose questions are scripts: each runs in a forked child that already has torch, or in a fresh interpreter.

Started by ``minidbg.workers.pool``, as ``main``; the loop is ``serving``'s. What it imports is
chosen before it starts, and nothing of the code that is judged is in it, since that may change. The
argument of ``run`` is the script as ``Request`` has it, with ``cwd``, the folder of the run,
``env`` and ``unset``, how its variables differ from the server's, and ``fresh``: in an interpreter
of its own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import site
import socket
import stat
import sys
import tempfile
import traceback
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from minidbg.core import environment
from minidbg.workers import child, serving
from minidbg.workers.entry import ENTRY, NO_VERDICT, Base, freezing_imports, loaded_files, run_script

PRELOADED: list[tuple[Base, dict[str, list[int]]]] = []
"""In the server, and so in its children: what it had loaded when it began to fork, and the
``fingerprints`` of the files."""


def loaded(argument: Mapping[str, Any], note: object) -> dict[str, list[int]]:
    return PRELOADED[0][1]


# In the child


def run(argument: dict[str, Any], note: object) -> NoReturn:
    """Become the run of a script: its exit status is this process's."""
    os.environ.update(argument["env"])
    for name in argument["unset"]:
        os.environ.pop(name, None)
    os.environ["TMPDIR"] = argument["cwd"]
    tempfile.tempdir = None
    if argument["nice"]:
        os.nice(argument["nice"])
    os.chdir(argument["cwd"])
    if argument["fresh"]:
        order = Path("order.json")
        order.write_text(json.dumps(argument) + "\n")
        os.dup2(os.open(order, os.O_RDONLY), 0)
        os.execv(sys.executable, [sys.executable, "-P", "-X", "faulthandler", ENTRY])
    end(run_script(argument, PRELOADED[0][0]))


def run_in_fork(argument: dict[str, Any], note: object) -> NoReturn:
    """The same in a child of a forkserver, with as many threads as a script of a person's has. ``argv``, ``folder``."""
    from minidbg import torch_internals  # late: this file's server needs no torch

    torch_internals.one_thread_after_fork()
    torch_internals.use_usual_threads()
    os.chdir(argument["folder"])
    end(run_script({"argv": argument["argv"], "recompiled": (), "files": os.devnull}, Base()))


def end(status: int) -> NoReturn:
    """End this process, and lose nothing of what it has printed."""
    with contextlib.suppress(BaseException):  # the script may have put anything there, and we end in any case
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


# Starting up


def preload(names: Sequence[str], *, warm: str) -> None:
    """Import what every run needs, and compile once with torch (``warm``: aot, inductor, or empty for nothing).

    A name that cannot be imported is left to the runs.
    """
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if warm and "torch" in sys.modules:
        from minidbg import torch_internals

        torch_internals.warm_up_compiling(inductor=warm == "inductor")


def fingerprints(files: Sequence[str]) -> dict[str, list[int]]:
    """Modification time and size of each file that exists; of a folder what is installed in it."""
    found = {}
    for path in files:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found[path] = [status.st_mtime_ns, status.st_size]
            if stat.S_ISDIR(status.st_mode):
                found[path] = [zlib.crc32(installed_in(Path(path)))]
    return found


def installed_in(folder: Path) -> bytes:
    """The names in a folder of packages, and what the interpreter read there when it started.

    The folder's own time says less: it changes too when an interpreter makes a ``__pycache__``, and
    when what is there is installed again.
    """
    names = sorted(set(os.listdir(folder)) - {"__pycache__"})
    paths = [(folder / name).read_bytes() for name in names if name.endswith(".pth")]
    return b"\0".join([*map(os.fsencode, names), *paths])


def main(root: str, text: str) -> None:
    """Serve as the JSON ``text`` says. ``root``, on the path so that minidbg is found, is none of
    the scripts' business."""
    config = json.loads(text)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the daemon, which tells us
    child.die_with_parent(signal.SIGTERM, config["parent"])
    os.environ.update(environment.FORKABLE.put_in)
    with freezing_imports():
        preload(config["preload"], warm=config["warm"])
    sys.path.reverse()  # the last one is ours; it may be on the path by itself
    sys.path.remove(root)
    sys.path.reverse()
    files = frozenset(loaded_files())
    prints = fingerprints([*files, *site.getsitepackages()])
    PRELOADED.append((Base(files, next(reversed(sys.modules))), prints))
    gc.freeze()  # children share these objects: a collection in one of them must not copy their pages
    try:
        serving.serve(socket.socket(fileno=config["socket"]))
    except BaseException:  # noqa: BLE001 - its last words
        traceback.print_exc()
        os._exit(NO_VERDICT)
    os._exit(0)  # Python's own end would look through all of torch for a quarter of a second
