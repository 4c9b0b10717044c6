"""Hand-made repro scripts that put a judge without torch in the place of ``minidbg.judge.script``, and a backend for them.

The backend is the package ``toy`` with one function per op; a repro calls its op and compares the answer.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

HEADER = '''# /// script
# requires-python = ">=3.11"
# dependencies = []
#
# [tool.minidbg]
# schema = 1
# expect = "{expect}"
# backend = {{name = "toy", modules = ["toy"]}}
# device = "cpu"
# call = "torch.compile"
# nodes = 1
# [tool.minidbg.signature]
# kind = "{kind}"
# direction = "forward"
# types = ["{types}"]
# frames = []
# message = "{message}"
# ///
"""toy fails on {op}."""
'''

BODY = """
def backend():
    import toy

    return toy


import json, sys, time

EXPECTED = {expected!r}


def outcome(verdict, signature=None, reason="", message=""):
    return {{"verdict": verdict, "signature": signature, "reason": reason, "message": message, "seconds": 0.0,
            "device": "cpu", "signal": None, "reproduced": None, "runs": None, "figures": {{}}}}


def judge(note):
    try:
        toy = backend()
    except Exception as error:
        return outcome("skipped", reason=f"the backend cannot be loaded: {{type(error).__name__}}: {{error}}")
    note("runtime forward")
    try:
        value = toy.{op}(3)
    except Exception as error:
        found = {{"kind": "{kind}", "direction": "forward", "types": [type(error).__name__], "frames": [],
                 "message": str(error)}}
        same = (found["types"], found["message"]) == (EXPECTED["types"], EXPECTED["message"])
        return outcome("reproduces" if same else "changed", found, message=str(error))
    if EXPECTED["kind"] == "accuracy" and value != 4:
        return outcome("reproduces", {{"kind": "accuracy", "direction": "forward"}}, reason=f"{{value}} instead of 4")
    return outcome("gone")


def on_one_op():
    try:
        assert backend().add(1, 2) == 3, "wrong sum"
    except ModuleNotFoundError as error:
        return outcome("skipped", reason=str(error))
    except Exception as error:
        return outcome("invalid", reason=f"{{type(error).__name__}}: {{error}}")
    return outcome("gone")


def ExecutedScript(*parts):
    return parts


def main(script, say, *, one_op=False):
    if one_op:
        say(json.dumps(on_one_op()))
        return 0
    dies = EXPECTED["kind"] in ("crash", "hang")
    found = judge(lambda phase: dies and say(f"phase {{phase}}"))
    say(json.dumps({{**found, "repro": __file__, "backend": "toy", "torch": ""}}))
    return {{"gone": 0, "reproduces": 1, "changed": 3, "skipped": 125}}[found["verdict"]]


if __name__ == "__main__":
    sys.exit(main(None, lambda text: print(text, flush=True)))
import minidbg.judge

minidbg.judge.script = sys.modules["minidbg.judge.script"] = sys.modules[__name__]
"""


def script(
    op: str,
    *,
    kind: str = "runtime",
    expect: str = "reproduces",
    types: str = "ValueError",
    message: str | None = None,
    time_limit_s: float | None = None,
) -> str:
    """The text of a repro that calls ``toy.op(3)``; by default it expects ``ValueError: <op> is broken``."""
    message = f"{op} is broken" if message is None else message
    header = HEADER.format(kind=kind, expect=expect, types=types, message=message, op=op)
    if time_limit_s is not None:
        header = header.replace("# nodes = 1\n", f"# nodes = 1\n# time_limit_s = {time_limit_s}\n")
    expected = {"kind": kind, "types": [types], "message": message}
    return header + BODY.format(op=op, kind=kind, expected=expected)


WRONG = "def {op}(value):\n    return value + 2\n"
WORKS = "def {op}(value):\n    return value + 1\n"
BROKEN = "def {op}(value):\n    raise ValueError('{op} is broken')\n"


def toy_package(folder: Path, ops: dict[str, str]) -> Path:
    """A package ``toy`` in ``folder``: a module for each op, whose source is given, and ``add`` for the canary."""
    package = folder / "toy"
    package.mkdir(parents=True, exist_ok=True)
    imports = "".join(f"from toy.{op} import {op}\n" for op in ops)
    (package / "__init__.py").write_text(f"{imports}\n\ndef add(a, b):\n    return a + b\n")
    for op, source in ops.items():
        (package / f"{op}.py").write_text(source.format(op=op))
    return package


def git(folder: Path, *arguments: str) -> str:
    """Run git there, as a person who has a name; its output."""
    settings = "user.name=Somebody", "user.email=somebody@example.com", "commit.gpgsign=false"
    identity = [word for one in settings for word in ("-c", one)]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Checkout:
    """A backend in a git repository, and beside it the folder of its repros, for a daemon without torch."""

    def __init__(self, folder: Path, ops: dict[str, str], scripts: dict[str, str]) -> None:
        self.folder, self.source, self.repros = folder, folder / "backend", folder / "minidbg_repros"
        self.package = toy_package(self.source, ops)
        self.repros.mkdir(exist_ok=True)
        for name, text in scripts.items():
            (self.repros / f"{name}.py").write_text(text)
        self.env = {"MINIDBG__WATCH_PRELOAD": "none", "PYTHONPATH": str(self.source)}

    def commit(self, *, ignored: str) -> None:
        """The first commit, without what ``.gitignore`` names."""
        git(self.source, "init", "-q", "-b", "main")
        (self.source / ".gitignore").write_text(f"__pycache__/\n{ignored}\n")
        git(self.source, "add", ".")
        git(self.source, "commit", "-q", "-m", "first")
