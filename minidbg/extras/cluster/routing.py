"""The pool of ``watch --cluster``: a device ``machine/device`` is asked for at that machine, one
without a machine here. Needs no Dask.

A run elsewhere brings what it sees: all that is watched, as one zip named by its content digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from minidbg.core.text import plural
from minidbg.watch.daemon import Message
from minidbg.watch.events import Notice
from minidbg.watch.files import scan, walk_files
from minidbg.watch.settings import machine_of
from minidbg.watch.sources import find_spec, site_packages
from minidbg.workers import Ended, Pool, Request

ALSO_IGNORED = (".py", ".so", ".safetensors")
"""What goes although git ignores it: a build puts it beside the sources, and repros need it."""


@dataclass(frozen=True, slots=True)
class ZippedSources:
    """A zip with each file at its absolute path on this machine; ``paths`` lead ``sys.path``."""

    digest: str
    zipped: bytes
    paths: tuple[str, ...]


class Others(Protocol):
    """Other machines, with each ``machine/device`` as in ``Devices``. Tests script theirs."""

    def devices(self) -> Mapping[str, str]: ...
    def submit(self, device: str, request: Request, code: ZippedSources) -> Future[Ended]: ...
    def close(self) -> None: ...


class RoutingPool:
    def __init__(self, others: Others, here: Pool, tell: Callable[[Message], None]) -> None:
        self.others, self.here, self.tell = others, here, tell
        self.code: ZippedSources | None = None
        """As it was at the sweep's first run elsewhere."""

    def submit(self, request: Request) -> Future[Ended]:
        if not request.argv:
            return self.with_devices(self.here.submit(request))
        device = json.loads(request.argv[2])["device"]
        if not machine_of(device):
            return self.here.submit(request)
        if self.code is None:
            self.code = packed_code(request.recompiled, self.tell)
        return self.others.submit(device, request, self.code)

    def with_devices(self, asked: Future[Ended]) -> Future[Ended]:
        """With those elsewhere. While there are none there are none here: the daemon waits."""
        both: Future[Ended] = Future()

        def add(end: Future[Ended]) -> None:
            ended, elsewhere = end.result(), self.others.devices()
            answer = ended.value or {"environments": {}, "torch": ""}
            devices = {**answer["environments"], **elsewhere} if elsewhere else {}
            value = {**answer, "environments": devices}
            both.set_result(replace(ended, value=value, answered=True))

        asked.add_done_callback(add)
        return both

    def refresh(self) -> Sequence[str]:
        self.code = None
        return self.here.refresh()

    def let_go(self) -> None:
        self.here.let_go()

    def close(self) -> None:
        self.others.close()
        self.here.close()


def packed_code(roots: Iterable[str], tell: Callable[[Message], None]) -> ZippedSources:
    """Files of these trees and single files. Installed ones stay, torch too: machines have them."""
    torch = find_spec("torch")
    stays = (*site_packages(), f"{os.path.dirname(torch.origin or '')}/" if torch else os.devnull)
    roots = [root for root in roots if not f"{root}/".startswith(stays)]
    beside = (path for root in roots for path in walk_files(root) if path.endswith(ALSO_IGNORED))
    files: dict[str, bytes] = {}
    for path in sorted({*scan(roots), *beside}):
        # it has just gone; or no zip can hold a file of that name
        with contextlib.suppress(OSError, UnicodeEncodeError):
            files[path] = Path(path).read_bytes() if path.encode() else b""
    paths = tuple(dict.fromkeys(map(import_folder, roots)))
    total, buffer = hashlib.sha256(repr(paths).encode()), io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path, content in files.items():
            total.update(f"{path}\0{len(content)}\0".encode() + content)
            archive.writestr(path.lstrip("/"), content)
    size = f"{plural(len(files), 'file')}, {buffer.tell() / 1000:.0f} kB"
    tell(Notice(f"sending the watched files ({size}) to the other machines, and nothing else"))
    return ZippedSources(total.hexdigest()[:40], buffer.getvalue(), paths)


def import_folder(root: str) -> str:
    """The folder needed on ``sys.path`` for a package or module, or for the package it lies in."""
    folder = os.path.dirname(root)
    while os.path.isfile(f"{folder}/__init__.py"):
        folder = os.path.dirname(folder)
    return folder
