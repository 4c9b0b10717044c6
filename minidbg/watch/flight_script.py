"""Run as ``python -m minidbg.watch.flight_script FOLDER``: flight records of processes that died become captures.

Prints one line of JSON: ``{"captures": [path, ...]}``. In a process of its own, since the reader of flight records
comes with torch, which the daemon does without.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from minidbg.repro.flights import as_capture, dead_flights


def main(argv: list[str]) -> int:
    """Take over what dead processes left in the repro folder ``argv[0]``."""
    captures = []
    for record in dead_flights(Path(argv[0])):
        with contextlib.suppress(OSError):  # 'minidbg run' and 'minidbg reduce --last-crash' may be faster
            captures.append(str(as_capture(record)))
    print(json.dumps({"captures": captures}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
