"""A dozen models of the field trial that nothing is wrong with: minidbg says nothing, and every bit is as without it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from acceptance import is_here

from parts.context import Context, Failed, Figures, Row, Skipped

FIELD = Path(__file__).resolve().parents[2] / "surveys" / "field.py"
DOZEN = (
    "BertForSequenceClassification", "GPT2LMHeadModel", "LlamaForCausalLM", "MixtralForCausalLM", "T5ForConditionalGeneration",
    "ViTForImageClassification", "SwinModel", "Wav2Vec2Model", "timm/resnet18", "torch/TransformerEncoder", "torch/convolutions",
    "torch/Words",
)  # fmt: skip
FEW = ("GPT2LMHeadModel", "timm/resnet18", "torch/TransformerEncoder", "torch/Words")
"""For the modes that compile for minutes."""
ON_THE_STAND_IN = (
    "BertForSequenceClassification",
    "GPT2LMHeadModel",
    "T5ForConditionalGeneration",
    "torch/TransformerEncoder",
    "torch/Words",
)
"""It has no convolutions."""
MOST_FIRST = 1.3
"""A first call, verification included, takes at most so many times the bare backend's."""
SILENT = ("silent", "layout only")


def rows(context: Context) -> Iterator[tuple[str, Row]]:
    if context.device == "acme":  # inductor has no code for it
        yield "aot_eager, training", partial(row, context, "aot_eager", "train", ON_THE_STAND_IN)
        yield (
            "aot_eager, half precision",
            partial(row, context, "aot_eager", "amp", ("torch/Words", "torch/TransformerEncoder")),
        )
        return
    yield "inductor, training", partial(row, context, "inductor", "train", DOZEN)
    yield "inductor, half precision", partial(row, context, "inductor", "amp", DOZEN)
    yield "CUDA graphs", partial(row, context, "inductor:reduce-overhead", "eval,train", FEW)
    yield "max-autotune", partial(row, context, "inductor:max-autotune", "eval", FEW)


def row(context: Context, backend: str, modes: str, models: Sequence[str]) -> tuple[Figures, str]:
    """One run of the field trial; its own rows lie beside, and are gone on with by the next run."""
    libraries = {"timm": ("timm", "torchvision"), "torch": ("torch",)}  # timm imports torchvision
    chosen = [
        name for name in models if is_here(libraries.get(name.partition("/")[0], ("transformers",))) is None
    ]
    if not chosen:
        raise Skipped("none of its models' packages is here (--wheels)")
    name = f"{backend.replace(':', '-')}-{modes.replace(',', '-')}"
    path = context.folder / f"{name}.jsonl"
    limit = max(1.0, context.left - 2)  # then its finished trials are judged
    done = context.python(
        FIELD, "--models", *chosen, "--modes", modes, "--backends", backend, "--device", context.device,
        "--jobs", max(1, (os.cpu_count() or 2) // 2), "--limit", f"{limit:.0f}", "--json", path, cwd=context.place(name), limit=limit,
    )  # fmt: skip
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if not found:
        raise Failed(f"no trial ended: {done.tail}")
    return judged(found, len(chosen) * len(modes.split(",")), len(models) - len(chosen))


def times_first(row: dict[str, Any]) -> float:
    """The first call against the bare one's, by the clock or by the processor, whichever is less: on a busy machine one of them lies."""
    from field import ratio

    found = [value for name in ("first_s", "first_cpu_s") if (value := ratio(row, name)) is not None]
    return min(found, default=0.0)


def judged(found: list[dict[str, Any]], wanted: int, left_out: int) -> tuple[Figures, str]:
    """The figures of the trials; raises Failed where one was noticed or none ended."""
    import sys

    sys.path.insert(0, str(FIELD.parent))
    from field import line_of, ratio, verdict

    verdicts = Counter(verdict(one) for one in found)
    figures: Figures = {"trials": len(found), **verdicts}
    for word, name in {
        "times the first call, worst": "first_s",
        "times its processor seconds, worst": "first_cpu_s",
        "times the device's memory, worst": "device_peak_bytes",
    }.items():
        if ratios := [(value, one["model"]) for one in found if (value := ratio(one, name)) is not None]:
            figures[word] = max(ratios)[0]
    bad = [line_of(one) for one in found if verdict(one) not in (*SILENT, "bare backend fails")]
    said = [f"{wanted - len(found)} trials had no time"] if len(found) < wanted else []
    said += [f"{left_out} models' packages are not here"] if left_out else []
    slow = [f"{one['model']} x{value:.2f}" for one in found if (value := times_first(one)) > MOST_FIRST]
    said += [f"first call above {MOST_FIRST}: {', '.join(slow)}"] if slow else []
    if bad:
        raise Failed("; ".join(bad))
    if verdicts["bare backend fails"] * 2 > len(found):
        raise Failed(f"the bare backend fails for most of the models: {found[0]['bare'].get('error', '')}")
    return figures, "; ".join(said)
