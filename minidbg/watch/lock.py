"""One daemon per repro folder, and who it is."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import filelock
import platformdirs
import psutil

from minidbg.errors import MinidbgError
from minidbg.watch.repros import HIDDEN, replace_text

LOCK = "watch.lock"
HOLDER = "watch.json"


class AlreadyWatched(MinidbgError):
    """Another daemon watches this folder; ``holder`` is what it said about itself."""

    def __init__(self, folder: Path, holder: Mapping[str, Any]) -> None:
        self.folder, self.holder = folder, holder
        who = f"process {holder['pid']} on {holder['host']}" if holder else "another process"
        since = time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(holder["started"])) if holder else ""
        super().__init__(
            f"{folder} is already watched by {who}{since}; 'minidbg status' shows what it does, kill it to take over"
        )


class Lock:
    """The right to watch a folder, held from construction to ``release``, and given back by the kernel if we die."""

    def __init__(self, folder: Path) -> None:
        """Raises AlreadyWatched."""
        hidden = hidden_folder(folder)
        self.lock = filelock.FileLock(hidden / LOCK)
        self.holder = hidden / HOLDER
        try:
            self.lock.acquire(blocking=False)
        except filelock.Timeout:
            raise AlreadyWatched(folder, read_holder(folder)) from None
        about = {
            "pid": os.getpid(), "created": psutil.Process().create_time(), "started": time.time(),
            "host": platform.node(), "command": sys.argv,
        }  # fmt: skip
        replace_text(self.holder, json.dumps(about))

    def release(self) -> None:
        """Let others watch the folder."""
        self.holder.unlink(missing_ok=True)
        self.lock.release()


def hidden_folder(folder: Path) -> Path:
    """Where the history of a repro folder is kept, made if it is missing, and kept out of git."""
    hidden = hidden_path(folder)
    hidden.mkdir(parents=True, exist_ok=True)
    ignore = hidden / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    return hidden


def hidden_path(folder: Path) -> Path:
    """The folder's ``.minidbg``; of a folder that nothing can be written to, a place among the person's own files."""
    hidden = folder / HIDDEN
    if os.access(hidden if hidden.exists() else folder, os.W_OK):
        return hidden
    name = hashlib.sha1(str(folder.absolute()).encode(), usedforsecurity=False).hexdigest()[:16]
    return platformdirs.user_state_path("minidbg") / "watch" / name


def read_holder(folder: Path) -> Mapping[str, Any]:
    """What the daemon of the folder said about itself; empty when there is none to read."""
    try:
        about = json.loads((hidden_path(folder) / HOLDER).read_text())
        return about if {"pid", "host", "started", "created"} <= set(about) else {}
    except (OSError, ValueError, TypeError):
        return {}


def living_holder(folder: Path) -> Mapping[str, Any]:
    """The daemon that watches the folder now; empty when there is none. A reused process number does not deceive it."""
    about = read_holder(folder)
    try:
        alive = bool(about) and abs(psutil.Process(about["pid"]).create_time() - about["created"]) < 0.05
    except psutil.Error:
        alive = False
    return about if alive or (about and about["host"] != platform.node()) else {}


def is_stopped(holder: Mapping[str, Any]) -> bool:
    """Whether the daemon's process is stopped, by Ctrl-Z or SIGSTOP; of another machine's nobody knows."""
    try:
        here = holder["host"] == platform.node()
        return here and psutil.Process(holder["pid"]).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False
