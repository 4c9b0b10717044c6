"""Run as a plain file: a fresh interpreter that imports torch while nobody waits for it, then runs the script it is told.

Arguments: modules to import. A line of JSON on stdin, ``{"argv": [script, ...], "cwd": folder}``, starts the script as
``python script ...`` would; the end of stdin ends this process.
"""

import contextlib
import importlib
import json
import os
import runpy
import sys


def main() -> None:
    for name in sys.argv[1:]:
        with contextlib.suppress(Exception):  # the script will say what is missing
            importlib.import_module(name)
    line = sys.stdin.readline()
    if not line:
        return
    order = json.loads(line)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(order["cwd"])
    sys.argv[:] = order["argv"]
    sys.path[0] = os.path.dirname(order["argv"][0])
    runpy.run_path(order["argv"][0], run_name="__main__")


if __name__ == "__main__":
    main()
