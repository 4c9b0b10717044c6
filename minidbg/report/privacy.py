"""Text without what it tells about a person and his machine: home folder, names of user and host, private paths."""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PUBLIC_ROOTS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/proc",
    "/sys",
    "/dev",
    "/etc",
    "/opt/rocm",
    "/opt/conda",
)
"""Folders that are the same on many machines; what lies elsewhere may name a project or a customer."""
PATH = re.compile(r"(?<![\w:/.<>~])/(?:[\w.@+-]+/)+[\w.@+-]+")
BELOW = re.compile(r"(~|<tmp>|<python>)/(?:[\w.@+-]+/)+([\w.@+-]+)")
"""A path below a folder that was replaced: its own folders may name a project, too."""
COMMON_USERS = frozenset(
    {"root", "user", "ubuntu", "admin", "runner", "jovyan", "nobody", "test", "torch", "python"}
)
"""Names that tell nothing, and that are words of their own."""
SHORTEST_NAME = 3


@dataclass(frozen=True, slots=True)
class Private:
    """What is to be left out. ``folders`` are replaced by their names here, longest first."""

    folders: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_this_process(cls) -> Private:
        """The folders and names of this user on this machine."""
        paths = sysconfig.get_paths()
        folders = {
            paths["purelib"]: "site-packages",
            paths["platlib"]: "site-packages",
            paths["stdlib"]: Path(paths["stdlib"]).name,
            os.getcwd(): ".",
            sys.prefix: "<python>",
            str(Path.home()): "~",
            tempfile.gettempdir(): "<tmp>",
        }
        folders |= {os.path.realpath(one): name for one, name in folders.items()}
        folders.pop("/", None)
        names = {}
        for name, word in ((user(), "<user>"), (socket.gethostname(), "<host>")):
            if len(name) >= SHORTEST_NAME and name.lower() not in COMMON_USERS and name != "localhost":
                names[name] = word
        return cls(folders, names)

    def left_out(self, text: str) -> str:
        """``text`` with paths shortened and names replaced. Relative paths and public folders stay."""
        for folder in sorted(self.folders, key=len, reverse=True):
            text = re.sub(rf"(?<![\w.]){re.escape(folder)}(?=[/\s'\":,)\]]|$)", self.folders[folder], text)
        text = PATH.sub(shortened, BELOW.sub(r"\1/.../\2", text))
        for name, word in self.names.items():
            text = re.sub(rf"(?<![\w]){re.escape(name)}(?![\w])", word, text)
        return text


def shortened(match: re.Match[str]) -> str:
    """The last part of a path that lies in no public folder."""
    path = match[0]
    if path.startswith(tuple(f"{root}/" for root in PUBLIC_ROOTS)):
        return path
    return f".../{path.rpartition('/')[2]}"


def user() -> str:
    """The user's name, empty when the system has none for him."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
