"""Run as a plain script on a worker: ``question.py CASE MARGIN TO_THE_END``. Prints each phase, then the outcome as a line of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> None:
    """Answer one question of a reduction."""
    here = str(Path(__file__).parent)
    sys.path[:] = [*(path for path in sys.path if path != here), str(Path(__file__).parents[2])]
    from minidbg.isolation.packing import answer

    question = {"path": argv[0], "margin": json.loads(argv[1]), "to_the_end": json.loads(argv[2])}
    print(json.dumps(answer(question, lambda phase: print("phase", phase, flush=True))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
