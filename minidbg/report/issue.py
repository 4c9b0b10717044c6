"""A repro as a bug report: it is run first, and that it did not fail as the repro does is said.

The report, in Markdown, has the sections of PyTorch's own template for torch.compile,
``.github/ISSUE_TEMPLATE/pt2-bug-report.yml``: Describe the bug (with the ablation and the minimal
reproducer it asks for), Error logs, Versions.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from minidbg import repro, workers
from minidbg.core import templates
from minidbg.core.errors import MinidbgError
from minidbg.core.outcome import Verdict
from minidbg.core.text import abridged
from minidbg.report.details import ReproDetails
from minidbg.report.stages import find_stages

RUN_SECONDS = 180.0
LOG_LINES = 60
LONG_LINES = 150
"""A longer script is folded away."""
VERSIONS_SECONDS = 120.0
STAGES_SECONDS = 120.0


def issue(
    details: ReproDetails,
    *,
    run: bool = True,
    keep_private: bool = False,
    versions: bool = True,
    note: Callable[[str], object] = str,
) -> tuple[str, str, bool]:
    """The bug report for ``details``: title, Markdown, and whether the failure was seen again.

    ``run`` runs the script and the stages of compiling, ``versions`` ``torch.utils.collect_env``,
    each a fresh process; ``keep_private`` leaves paths and names. ``note`` hears what is run.
    """
    logs, ran = logs_of(details, run=run)
    ablation = None
    if run:
        with contextlib.suppress(MinidbgError, OSError, ImportError):
            ablation = find_stages(details.path, seconds=STAGES_SECONDS, note=note)
    header, title = details.header, title_of(details)
    variables = {
        "issue_title": title,
        "details": details,
        "logs": last_lines(logs, LOG_LINES),
        "ablation": ablation,
        "versions": environment_text() if versions else "",
        "is_long": len(details.text.splitlines()) > LONG_LINES,
        "ran": ran,
    }
    body = templates.fill("issue.md.j2", variables)
    title, body = (without_secrets(text, header.spec.context.env) for text in (title, body))
    title, body = (without_secrets(text, os.environ) for text in (title, body))
    if not keep_private:
        private = private_words()
        title, body = (without_private(text, *private) for text in (title, body))
    return title, body, ran


def title_of(details: ReproDetails) -> str:
    title = details.title.rstrip(".")
    first = abridged(details.message, 120)
    first = "" if first in title else first
    name = details.header.spec.backend.name
    if title.startswith(f"{name} "):
        title = f"[{name}] {title.removeprefix(name).strip()}"
    return f"{title}: {first}" if first else title


def logs_of(details: ReproDetails, *, run: bool) -> tuple[str, bool]:
    """What the script printed when run just now, else what was captured; and whether it failed."""
    if not run:
        return details.message, False
    ended = repro.run_alone(details.path, seconds=RUN_SECONDS)
    if ended.exit_status == 1:
        log = ended.stderr_tail.replace(f"{details.path.absolute().parent}/", "")
        return log or ended.stdout, True
    outcome = repro.run(details.path, seconds=RUN_SECONDS)
    failed = outcome.verdict in (Verdict.REPRODUCES, Verdict.FLAKY)
    return outcome.message or outcome.reason or details.message, failed


def environment_text() -> str:
    """What ``python -m torch.utils.collect_env`` prints, in a process of its own."""
    argv = ["-W", "ignore", "-m", "torch.utils.collect_env"]
    ended = workers.run_python(argv, seconds=VERSIONS_SECONDS)
    text = ended.stdout.strip()
    start = text.find("PyTorch version")
    nothing = f"torch.utils.collect_env gave nothing: {ended.stderr_tail[-500:]}"
    return text[start:] if start >= 0 else nothing


def last_lines(text: str, count: int) -> str:
    """The first two and the last lines of ``text`` when it is longer than ``count``."""
    lines = text.strip().splitlines()
    if len(lines) <= count:
        return "\n".join(lines)
    return "\n".join([*lines[:2], f"... {len(lines) - count} lines ...", *lines[2 - count :]])


# --- what a report tells about nobody ---


SECRET = re.compile("TOKEN|SECRET|KEY|PASSWORD")
"""In the name of a variable."""
SHORTEST_SECRET = 6
"""A shorter value is left out only behind the variable's name: it may be a word of its own."""


def without_secrets(text: str, variables: Mapping[str, str]) -> str:
    """``text`` without the values of those ``variables`` whose names say that they are secret."""
    for name, value in variables.items():
        if value and SECRET.search(name):
            forms = {value, repr(value)[1:-1], json.dumps(value)[1:-1].replace("'", "\\u0027")}
            either = "|".join(map(re.escape, sorted(forms, key=len, reverse=True)))
            before = "" if len(value) >= SHORTEST_SECRET else rf"\b{re.escape(name)}\W{{1,6}}"
            text = re.sub(rf"({before})(?<!\w)(?:{either})(?!\w)", rf"\g<1><{name}>", text)
    return text


PUBLIC_ROOTS = (
    "/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/proc/", "/sys/", "/dev/", "/etc/",
    "/opt/rocm/", "/opt/conda/",
)  # fmt: skip
"""Folders that are alike on many machines; what lies elsewhere may name a project or customer."""
PATH = re.compile(r"(?<![\w:/.<>~])/(?:[\w.@+-]+/)+[\w.@+-]+")
BELOW = re.compile(r"(~|<tmp>|<python>)/(?:[\w.@+-]+/)+([\w.@+-]+)")
"""A path below a folder that was replaced: its own folders may name a project, too."""
COMMON_USERS = frozenset(
    ["root", "user", "ubuntu", "admin", "runner", "jovyan", "nobody", "test", "torch", "python"]
)
"""Names that tell nothing, and that are words of their own."""
SHORTEST_NAME = 3


def private_words() -> tuple[dict[str, str], dict[str, str]]:
    """Folders and names of this process that a report leaves out, and what stands there instead."""
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
        is_common = name.lower() in COMMON_USERS or name == "localhost"
        if len(name) >= SHORTEST_NAME and not is_common:
            names[name] = word
    return folders, names


def without_private(text: str, folders: Mapping[str, str], names: Mapping[str, str]) -> str:
    """``text`` with paths shortened, the longest folders first, and names replaced. Relative paths
    and public folders stay."""
    for folder in sorted(folders, key=len, reverse=True):
        pattern = rf"(?<![\w.]){re.escape(folder)}(?=[/\s'\":,)\]]|$)"
        text = re.sub(pattern, folders[folder], text)
    text = PATH.sub(shortened, BELOW.sub(r"\1/.../\2", text))
    for name, word in names.items():
        text = re.sub(rf"(?<![\w]){re.escape(name)}(?![\w])", word, text)
    return text


def shortened(match: re.Match[str]) -> str:
    """The last part of a path that lies in no public folder."""
    return match[0] if match[0].startswith(PUBLIC_ROOTS) else f".../{match[0].rpartition('/')[2]}"


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
