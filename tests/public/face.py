"""What users and their programs hold on to, as text: ``python tests/public/face.py`` writes face.txt.

Public names with their signatures, the commands with options and what they say of exit statuses, settings, the keys of events and of each
``--json``. Only public names and the command line are used. ``keys`` takes half a minute: it makes a repro and asks each command about it.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
FILE = Path(__file__).with_name("face.txt")
ASKED = {
    "check": ("check", "REPRO"),
    "config": ("config",),
    "doctor": ("doctor",),
    "list": ("list",),
    "reduce": ("reduce", "REPRO"),
    "report": ("report", "REPRO", "--no-run", "--no-versions"),
    "show": ("show", "REPRO"),
}
"""Commands whose answer is JSON, as each is asked in a folder with one repro."""
ELSEWHERE = {
    "bisect": "needs a repository",
    "history": "what a watch has seen",
    "hunt": "a line for each cell",
    "stages": "asks eight compilers",
    "watch": "the events above",
}
"""Those that are not asked here, and what they are."""


def names() -> Iterator[str]:
    import minidbg

    for name in minidbg.__all__:
        thing = getattr(minidbg, name)
        if inspect.isclass(thing):
            plain = {*dir(str), *dir(BaseException)}
            members = [one for one in dir(thing) if not one.startswith("_") and one not in plain]
            yield f"{name}: {' '.join(members)}"
        else:
            signature = re.sub(r"<[^<>]*>|'", "", str(inspect.signature(thing)))
            yield f"{name}{signature}"


def commands() -> Iterator[str]:
    import click

    from minidbg.commands import cli

    def told(words: str, command: click.Command, context: click.Context) -> Iterator[str]:
        taken = [one for one in command.params if isinstance(one, click.Argument)]
        yield " ".join([f"minidbg {words}".strip(), *(one.make_metavar(context) for one in taken)])
        for one in command.params:
            if isinstance(one, click.Option) and not one.hidden:
                values = f" {one.make_metavar(context)}" if not one.is_flag and not one.count else ""
                yield f"  {', '.join([*one.opts, *one.secondary_opts])}{values}"
        statuses = re.findall(r"[^.]*[Ee]xit status[^.]*\.", inspect.cleandoc(command.help or ""))
        yield from (f"  ends: {' '.join(text.split())}" for text in statuses)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from told(f"{words} {name}".strip(), inner, click.Context(inner, context, name))

    yield from told("", cli, click.Context(cli, info_name="minidbg"))


def settings() -> Iterator[str]:
    """Each with its default: nobody has set any in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        env = {name: value for name, value in os.environ.items() if not name.startswith("MINIDBG")}
        done = subprocess.run(
            [sys.executable, "-m", "minidbg", "config", "--json"],
            cwd=folder, env={**env, "XDG_CONFIG_HOME": folder}, capture_output=True, text=True, check=True,
        )  # fmt: skip
    rows = map(json.loads, done.stdout.splitlines())
    values = (
        (row["name"], "of the machine" if row["name"] == "watch.jobs" else json.dumps(row["value"]))
        for row in rows
    )
    yield from (f"{name} = {value}" for name, value in values)


def events() -> Iterator[str]:
    """The keys of each event of ``minidbg watch --json``, as the recorded sessions have them."""
    lines = (TESTS / "golden" / "watch_events.txt").read_text(encoding="utf-8").splitlines()
    found: dict[str, set[str]] = {}
    for line in lines:
        if name := re.match(r'\{"event": "(\w+)"', line):
            found.setdefault(name[1], set()).update(re.findall(r'[{,] ?"(\w+)": ', line))
    yield from (f"{name}: {' '.join(sorted(keys))}" for name, keys in sorted(found.items()))


PROGRAM = """
import minidbg, planted_backends, torch
print(minidbg.save_repro(lambda x: torch.relu(x.sin()), (torch.ones(3),), planted_backends.raises_on_relu))
"""


def keys() -> Iterator[str]:
    """What each command with ``--json`` prints of a folder with one repro."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONPATH": f"{TESTS / 'planted'}:{TESTS.parent}", "XDG_CONFIG_HOME": folder}

        def asked(*words: str) -> str:
            done = subprocess.run(
                [sys.executable, *words],
                cwd=folder,
                env=env,
                capture_output=True,
                text=True,
                timeout=250,
                check=False,
            )
            return done.stdout or f"nothing, but: {done.stderr[-500:]}"

        repro = asked("-c", PROGRAM).strip()
        for words in ASKED.values():
            text = asked("-m", "minidbg", *(repro if one == "REPRO" else one for one in words), "--json")
            yield f"minidbg {' '.join(words)} --json"
            yield from (f"  {path}" for path in paths_of(text))


def paths_of(text: str) -> list[str]:
    """Each key of the JSON values in ``text`` with those above it, and what it holds: ``backend.name: str``."""
    found: dict[str, set[str]] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict) and all(re.fullmatch(r"\w+", key) for key in value):
            for key, inner in value.items():
                walk(inner, f"{path}.{key}" if path else key)
        elif isinstance(value, list):
            for inner in value or [None]:
                walk(inner, f"{path}[]")
        else:
            found.setdefault(path, set()).add(type(value).__name__)

    decoder, rest = json.JSONDecoder(), text.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        walk(value, "")
        rest = rest[end:].lstrip()
    return [f"{path}: {' or '.join(sorted(kinds))}" for path, kinds in sorted(found.items())]


PARTS = {"names": names, "commands": commands, "settings": settings, "events": events, "keys": keys}


def face(*parts: str) -> str:
    return "\n".join(f"[{part}]\n" + "".join(f"{line}\n" for line in PARTS[part]()) for part in parts)


def parts_of(text: str) -> dict[str, str]:
    blocks = re.split(r"(?m)^\[(\w+)\]\n", text)[1:]
    return {name: block.strip() for name, block in zip(blocks[::2], blocks[1::2], strict=True)}


if __name__ == "__main__":
    FILE.write_text(face(*PARTS), encoding="utf-8")
