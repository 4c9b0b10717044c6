"""A dozen models of the field trial that nothing is wrong with: minidbg says nothing, and every bit is as without it."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from acceptance import OVER, is_here

from parts.context import Context, Failed, Figures, Row, Skipped

FIELD = Path(__file__).resolve().parents[2] / "tools" / "surveys" / "field.py"
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
SILENT = ("silent",)


def rows(context: Context) -> Iterator[tuple[str, Row]]:
    if context.device == "acme":  # inductor has no code for it
        few = ("torch/Words", "torch/TransformerEncoder")
        wanted = [
            ("aot_eager, training", "aot_eager", "train", ON_THE_STAND_IN),
            ("aot_eager, half precision", "aot_eager", "amp", few),
        ]
    else:
        wanted = [
            ("inductor, training", "inductor", "train", DOZEN),
            ("inductor, half precision", "inductor", "amp", DOZEN),
            ("CUDA graphs", "inductor:reduce-overhead", "eval,train", FEW),
            ("max-autotune", "inductor:max-autotune", "eval", FEW),
        ]
    trials = [len(models) * len(modes.split(",")) for _, _, modes, models in wanted]
    for place, (name, *words) in enumerate(wanted):
        yield name, partial(row, context, trials[place] / sum(trials[place:]), *words)


def row(
    context: Context, share: float, backend: str, modes: str, models: Sequence[str]
) -> tuple[Figures, str]:
    """One run of the field trial, in this share of the time that is left; its rows lie beside, and are gone on with by the next run."""
    libraries = {"timm": ("timm", "torchvision"), "torch": ("torch",)}  # timm imports torchvision
    chosen = [
        name for name in models if is_here(libraries.get(name.partition("/")[0], ("transformers",))) is None
    ]
    if not chosen:
        raise Skipped("none of its models' packages is here (--wheels)")
    name = f"{backend.replace(':', '-')}-{modes.replace(',', '-')}"
    path = context.folder / f"{name}.jsonl"
    limit = max(1.0, share * context.left - 2)  # then its finished trials are judged
    with context.beside(
        FIELD, "--models", *chosen, "--modes", modes, "--backends", backend, "--device", context.device,
        "--jobs", max(1, (os.cpu_count() or 2) // 2), "--limit", f"{limit:.0f}", "--json", path, cwd=context.place(name), limit=limit,
    ) as ended:  # fmt: skip
        trial = the_field_trial()  # it imports torch, for which no time is left in the end
        done = ended()
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if not found:
        if done.status is None:
            raise Skipped(f"{OVER} before a trial ended")
        raise Failed(f"no trial ended: {done.tail}")
    return judged(trial, found, len(chosen) * len(modes.split(",")), len(models) - len(chosen))


def the_field_trial() -> Any:
    """Its module, for its words on rows."""
    sys.path.insert(0, str(FIELD.parent))
    return importlib.import_module("field")


def times_first(trial: Any, row: dict[str, Any]) -> float:
    """The first call against the bare one's, by the clock or by the processor, whichever is less: on a busy machine one of them lies."""
    found = [value for name in ("first_s", "first_cpu_s") if (value := trial.ratio(row, name)) is not None]
    return min(found, default=0.0)


def judged(trial: Any, found: list[dict[str, Any]], wanted: int, left_out: int) -> tuple[Figures, str]:
    """The figures of the trials; raises Failed where one was noticed or none ended."""
    verdicts = Counter(trial.verdict(one) for one in found)
    figures: Figures = {"trials": len(found), **verdicts}
    for word, name in {
        "times the first call, worst": "first_s",
        "times its processor seconds, worst": "first_cpu_s",
        "times the device's memory, worst": "device_peak_bytes",
    }.items():
        if ratios := [
            (value, one["model"]) for one in found if (value := trial.ratio(one, name)) is not None
        ]:
            figures[word] = max(ratios)[0]
    bad = [trial.line_of(one) for one in found if trial.verdict(one) not in (*SILENT, "bare backend fails")]
    said = [f"{left_out} models' packages are not here"] if left_out else []
    slow = [
        f"{one['model']} x{value:.2f} ({one['wrapped'].get('compiled_again', 0)} graphs compiled twice)"
        for one in found
        if (value := times_first(trial, one)) > MOST_FIRST
    ]
    said += [f"first call above {MOST_FIRST}: {', '.join(slow)}"] if slow else []
    if bad:
        raise Failed("; ".join(bad))
    if verdicts["bare backend fails"] * 2 > len(found):
        raise Failed(f"the bare backend fails for most of the models: {found[0]['bare'].get('error', '')}")
    if len(found) < wanted:
        raise Skipped(
            "; ".join([f"{OVER} with {wanted - len(found)} of {wanted} trials to come", *said]), figures
        )
    return figures, "; ".join(said)
