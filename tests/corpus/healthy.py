"""Healthy programs, bare and wrapped, and what the wrapper added: runs in eager, bytes, files, processes.

``python healthy.py FOLDER`` prints a line of JSON for each program of healthy.toml. Each runs in forks of this interpreter, which has
imported torch and run no backward. Of minidbg only public names are used.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import wrong_results
from torch import nn
from torch.nn import functional as F

import minidbg

PROGRAMS = Path(__file__).with_name("healthy.toml")
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"}
COUNTS = dict.fromkeys(("compiles", "calls", "probed", "opened_to_write", "processes"), 0)


@torch.library.custom_op("corpus::probe", mutates_args=())
def probe(x: torch.Tensor) -> torch.Tensor:
    COUNTS["probed"] += 1
    return x.clone()


probe.register_fake(lambda x: torch.empty_like(x))
probe.register_autograd(lambda ctx, grad: grad)


def counting(inner: Callable[..., Any]) -> Callable[..., Any]:
    """A backend that counts what it is asked."""

    def counted(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        COUNTS["compiles"] += 1
        compiled_fn = inner(gm, example_inputs)

        def call(*args: Any) -> Any:
            COUNTS["calls"] += 1
            return compiled_fn(*args)

        return call

    return counted


def bytes_alive() -> int:
    gc.collect()
    storages = [
        one.untyped_storage() for one in gc.get_objects() if type(one) in (torch.Tensor, nn.Parameter)
    ]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def lived(row: dict[str, Any], folder: Path, *, wrapped: bool) -> dict[str, Any]:
    """The counts at the end of a program, whose own variables are still alive."""
    folder.mkdir()
    os.chdir(folder)
    backend = counting(eval(row.get("backend", "lambda gm, _: gm.forward"), {"wrong_results": wrong_results}))
    if wrapped:
        backend = minidbg.wrap(backend, **row.get("settings", {}))

    def note(event: str, args: tuple[Any, ...]) -> None:
        if event in STARTS:
            COUNTS["processes"] += 1
        elif (
            event == "open"
            and args[2] & os.O_CREAT
            and str(args[0]).startswith((str(folder), "minidbg_repros"))
        ):
            COUNTS["opened_to_write"] += 1

    sys.addaudithook(note)
    torch.manual_seed(0)
    given = {
        "torch": torch,
        "nn": nn,
        "F": F,
        "probe": probe,
        "compile": lambda f: torch.compile(f, backend=backend),
    }
    exec(compile(row["program"], "program.py", "exec"), given)
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    left = [
        re.sub(r"[0-9a-f]{8}-[\d-]+", "#", one) for one in left
    ]  # of crash records, which end with the process
    counts: dict[str, Any] = {**COUNTS, "bytes": bytes_alive(), "left": left}
    return {**counts, "stats": asdict(minidbg.stats())} if wrapped else counts


def in_fork(function: Callable[[], Any]) -> Any:
    """What ``function`` gives in a fork of this process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            with open(writer, "w") as file:
                json.dump(function(), file)
        except BaseException:  # noqa: BLE001 - the fork must not go on as its parent
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def what_was_added(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    bare, ours = (
        in_fork(lambda wrapped=wrapped: lived(row, folder / f"wrapped-{wrapped}", wrapped=wrapped))
        for wrapped in (False, True)
    )
    return {
        **{name: ours[name] for name in ("compiles", "calls")},
        **{f"more_{name}": ours[name] - bare[name] for name in ("compiles", "calls", "bytes", "processes")},
        "eager_runs": ours["probed"] - bare["probed"] - (ours["calls"] - bare["calls"]),
        "files_opened": ours["opened_to_write"],
        "files_left": ours["left"],
        "stats": ours["stats"],
    }


def main(folder: Path) -> None:
    minidbg.wrap("eager")  # imports, which are the same for all
    torch.compile(lambda x: x + 1, backend=lambda gm, _: gm.forward)(torch.ones(1))
    torch._dynamo.reset()
    for name, row in tomllib.loads(PROGRAMS.read_text()).items():
        place = folder / name
        place.mkdir()
        print(f"{name} = {json.dumps(what_was_added(row, place))}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
