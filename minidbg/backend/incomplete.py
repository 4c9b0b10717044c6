"""What is kept of a failure that no script can hold: a text with the graph, the inputs, the backend and the error."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from minidbg import repro
from minidbg.backend.capture import Failure
from minidbg.settings import Settings


def keep_what_there_is(failure: Failure, refusal: Exception, settings: Settings) -> Path | None:
    """The text file written to the captures, or None where the file system refuses that too.

    The same failure gives the same file.
    """
    text = "\n".join(parts(failure, refusal))
    digest = hashlib.sha256(str(failure.graph_module.graph).encode("utf-8", "backslashreplace")).hexdigest()[
        :6
    ]
    try:
        path = repro.captures(settings.repro_dir) / f"incomplete_{failure.kind}_{digest}.txt"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        return None
    return path


def parts(failure: Failure, refusal: Exception) -> Iterator[str]:
    """The paragraphs of the text: what is missing first."""
    yield f"{failure.link.name}: a {failure.kind} failure that minidbg cannot write as a script.\n"
    yield f"What is missing: {refusal}\n"
    yield f"torch {torch.__version__}; options {dict(failure.link.options)!r}, mode {failure.link.mode!r}\n"
    yield "The graph:\n"
    yield failure.graph_module.print_readable(print_output=False)
    yield "\nIts inputs:\n"
    placeholders = [node for node in failure.graph_module.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, failure.inputs, strict=False):
        yield f"  {node.name}: {in_words(value)}"
    yield "\nThe failure:\n"
    yield "".join(traceback.format_exception(failure.error))


def in_words(value: Any) -> str:
    """Type, shape and flags of a tensor, without its values; the type of anything else."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if not isinstance(value, torch.Tensor):
        return f"{kind} {value!r}" if isinstance(value, bool | int | float | str | None) else kind
    flags = ", requires_grad" if value.requires_grad else ""
    return f"{kind} {value.dtype} of shape {tuple(value.shape)}, {value.layout}, on {value.device}{flags}"
