"""``--python OTHER``, twice or more if asked: the same program with the minidbg of other interpreters too, one after the other.

Programs that take it use public names and the command line only, so each version that is compared runs the same text.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import minidbg


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python", action="append", default=[], help="an interpreter with another minidbg, which runs first"
    )


def run_others(options: argparse.Namespace) -> None:
    """Run this program by each of ``options.python``, and say whose figures follow."""
    words = list(sys.argv)
    for python in options.python:
        at = words.index("--python") if "--python" in words else words.index(f"--python={python}")
        del words[at : at + (2 if words[at] == "--python" else 1)]
    for python in options.python:
        done = subprocess.run([python, *words], check=False)
        if done.returncode:
            sys.exit(f"{python} ended with {done.returncode}")
    print(
        f"# minidbg {minidbg.__version__} of {sys.executable}, {minidbg.__file__}",
        file=sys.stderr,
        flush=True,
    )
