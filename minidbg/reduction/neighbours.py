"""The passing neighbour of a repro in one sentence: what it is without which the failure goes away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from minidbg.case import Case
from minidbg.graphs.size import call_targets, canonical_text


def sentence(smallest: Case, neighbour: Case) -> str:
    """``passes without torch.relu``; the first difference in the order that explains a failure best."""
    return next(differences(smallest, neighbour), "")


def differences(smallest: Case, neighbour: Case) -> Iterator[str]:
    """What ``neighbour`` has not, or has otherwise."""
    gone = Counter(call_targets(smallest.graph_module)) - Counter(call_targets(neighbour.graph_module))
    names = [name for name in gone if name not in "{}"]
    if names:
        yield f"passes without {' and '.join(names)}"
    if len(neighbour.inputs) < len(smallest.inputs):
        yield f"passes with {len(neighbour.inputs)} of the {len(smallest.inputs)} inputs"
    if canonical_text(smallest.graph_module) != canonical_text(neighbour.graph_module):
        yield "passes with plainer arguments of the same calls"
    for place, (has, lacks) in enumerate(zip(smallest.inputs, neighbour.inputs, strict=False)):
        if told(has) != told(lacks):
            yield f"passes when input {place} is {told(lacks)} instead of {told(has)}"
    yield "passes with plainer values in its inputs"


def told(value: Any) -> str:
    """``float32[2, 8]`` and what is unusual about it."""
    if not isinstance(value, torch.Tensor):
        return repr(value)[:60]
    text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value.layout is torch.strided and not value.is_contiguous():
        text += f" of strides {value.stride()}"
    return text + (" that requires grad" if value.requires_grad else "")
