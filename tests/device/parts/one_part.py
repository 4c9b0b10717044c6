"""Runs one part of the acceptance run: ``one_part.py PART --device D --out DIR --seconds S``; started by ``acceptance.py``.

A part is a module of this folder whose ``rows(context)`` yields names and functions. A row's function gives its figures and a sentence;
it raises ``Failed``, or ``Skipped`` with a reason. Rows that are well in DIR are not run again.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
import traceback
from pathlib import Path
from typing import Any

from acceptance import OVER, append, rows_in

from parts.context import Context, Failed, Row, Skipped


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part")
    parser.add_argument("--device", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--planted")
    options = parser.parse_args()
    path = options.out / "rows.jsonl"
    known = {row["row"]: row for row in rows_in(path) if row["part"] == options.part}
    context = Context(options.device, options.out, Path.cwd(), time.monotonic() + options.seconds)
    module = importlib.import_module(f"parts.{options.part}")
    for name, task in module.rows(context):
        if name in known and known[name]["status"] == "ok":
            continue
        if options.planted and options.part == "healthy":
            time.sleep(1e6) if options.planted == "hangs" else os.abort()
        row = {"part": options.part, "row": name, **outcome_of(task, context)}
        if row != known.get(name):  # the same reason to skip it once more
            append(path, row)


def outcome_of(task: Row, context: Context) -> dict[str, Any]:
    if time.monotonic() >= context.until:
        return {"status": "skipped", "said": OVER}
    try:
        figures, said = task()
    except Skipped as reason:
        return {"status": "skipped", "figures": reason.figures, "said": str(reason)}
    except Failed as reason:
        return {"status": "failed", "said": str(reason)}
    except Exception as trouble:  # noqa: BLE001 - the next row is run all the same
        traceback.print_exc()
        return {"status": "failed", "said": f"the row itself broke: {type(trouble).__name__}: {trouble}"}
    return {"status": "ok", "figures": figures, "said": said}


if __name__ == "__main__":
    main()
