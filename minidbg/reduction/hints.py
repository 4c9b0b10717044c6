"""Which nodes and ops the error names: the reduction asks about them first."""

from __future__ import annotations

import re

from minidbg.fx.case import Case

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}")


def hints_from_error(case: Case) -> tuple[str, ...]:
    """Words of the error that may be nodes or ops of the graph, most telling first; the reducer looks them up.

    The error text is a hint and nothing more: each suspicion is asked of the oracle.
    """
    text = case.provenance.message
    if case.spec.traits.compares:  # the words of the comparison name no node
        return ()
    if case.signature is not None:
        text = f"{text} {case.signature.message} {' '.join(case.signature.frames)}"
    return tuple(dict.fromkeys(WORD.findall(text)))
