"""Runs one program and writes down what it gave and what state the interpreter is then in.

``python observe.py PROGRAM BACKEND OUT``: the program is ``module:function`` in ``programs``, the backend a name of torch's, ``module:name``,
or ``inductor!BUG`` with a bug that torch brings for tests. OUT.wrap, where it exists, has it wrapped; ``minidbg run`` does that by itself.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import random
import sys

import numpy
import seen
import torch
import torch._inductor.config


def backend_of(name: str) -> object:
    name, _, bug = name.partition("!")
    if bug:
        torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = bug
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute) if attribute else name


def main(program: str, backend: str, out: str) -> None:
    random.seed(0), numpy.random.seed(0), torch.manual_seed(0)
    module, _, function = program.partition(":")
    run = getattr(importlib.import_module(f"programs.{module}"), function)
    asked = backend_of(backend)
    if os.path.exists(f"{out}.wrap"):
        import minidbg  # the numbers that its import draws are the program's to miss

        asked = minidbg.wrap(asked)
    found = {}
    try:
        found["results"] = seen.plain(run(functools.partial(torch.compile, backend=asked)))
    except Exception as error:  # noqa: BLE001 - a failing program is observed like any other
        found |= {"raised": seen.plain(error), "notes": getattr(error, "__notes__", [])}
        del error
    found["state"] = seen.everything([os.getcwd(), *filter(None, [os.environ.get("TMPDIR")])])
    if os.path.exists(f"{out}.wrap"):
        found["graphs"] = dataclasses.asdict(minidbg.stats())
    with open(out, "w") as file:
        json.dump(found, file, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
