"""Which nodes and ops the error names: the reduction asks about them first."""

from __future__ import annotations

import re

from minidbg.fx.case import Case

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}")
FIRST_DIFFERING = "first differing node: "
"""Begins the line of a wrong result's message that names a node."""


def hints_from_error(case: Case) -> tuple[str, ...]:
    """Words of the error that may be nodes or ops of the graph, most telling first; the reducer looks them up.

    The error text is a hint and nothing more: each suspicion is asked of the oracle.
    """
    text = case.provenance.message
    if case.spec.traits.compares:  # the words of the comparison name no node; its name may be one letter
        return tuple(filter(None, [first_differing(case)]))
    if case.signature is not None:
        text = f"{text} {case.signature.message} {' '.join(case.signature.frames)}"
    return tuple(dict.fromkeys(WORD.findall(text)))


def first_differing(case: Case) -> str:
    """The name of the first node whose value is wrong, as far as the message of a wrong result tells."""
    return case.provenance.message.partition(FIRST_DIFFERING)[2].partition("\n")[0]
