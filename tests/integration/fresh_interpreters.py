"""Fresh interpreters for tests, without paying for `import torch` each time.

One process imports torch and nothing else, and forks for each script. The script then runs as `python script`
would run it: as `__main__`, its folder first on `sys.path`, in a working directory of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 60


@dataclass(frozen=True)
class Ended:
    """How a script ended; ``output`` is stdout and stderr together."""

    status: int
    output: str


class FreshInterpreters:
    """The parent's side. Use as a context manager. ``preloaded`` modules are imported besides torch."""

    def __init__(self, *preloaded: str) -> None:
        self.preloaded = preloaded

    def __enter__(self) -> FreshInterpreters:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, *self.preloaded], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**environment, "OMP_NUM_THREADS": "1"}, cwd="/",
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait(LIMIT_S)
        self.process.stdout.close()

    def run(self, script: Path, *, cwd: Path, module: str | None = None) -> Ended:
        """Run ``script``, or with ``module`` the module of that name in the folder ``script``, by ``python -m``."""
        assert self.process.stdin
        assert self.process.stdout
        output = cwd / "output.txt"
        print(json.dumps([str(script), str(cwd), str(output), module]), file=self.process.stdin, flush=True)
        status = int(self.process.stdout.readline())
        return Ended(status, output.read_text())


def serve() -> None:
    """The child's side: a script for each line of stdin, its exit status on stdout.

    Torch is imported here so that forked scripts have it.
    """
    import torch
    from torch._dynamo.backends import registry

    for module in sys.argv[1:]:
        importlib.import_module(module)
    # what torch imports when it first compiles, for all scripts at once; entry points are for them to find
    torch.compile(lambda x: x + 1, backend=lambda gm, inputs: gm.forward)(torch.ones(1))
    torch._dynamo.reset()
    registry._lazy_import.cache_clear()
    registry._discover_entrypoint_backends.cache_clear()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            become(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def become(script: str, cwd: str, output: str, module: str | None) -> None:
    """Run a script in this process and end it."""
    status = 1
    try:
        signal.alarm(LIMIT_S)
        os.chdir(cwd)
        with open(output, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdin.close()
        if module is None:
            sys.argv, sys.path[:0] = [script], [os.path.dirname(script)]
            runpy.run_path(script, run_name="__main__")
        else:
            sys.argv, sys.path[:0] = [module], [script]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - the forked child must not go on in the server's loop
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
