"""Programs as people write them, not only models: under ``minidbg run`` each ends with the same bits as alone, in silence, all graphs verified."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import python

PROGRAMS = Path(__file__).parents[1] / "programs"
NEEDED = {
    "accelerate_loop": ("accelerate",),
    "diffusers_loop": ("diffusers",),
    "generate": ("transformers",),
    "hf_trainer": ("transformers", "accelerate"),
    "lightning_fit": ("lightning",),
    "lora": ("peft", "transformers"),
    "timm_training": ("timm",),
    "weight_only": ("torchao",),
}
"""Libraries that are no dependency of the tests; ``pip install -e ".[field]"`` brings them."""


AGREES = r"minidbg: (no backend failed \(wrapped: |\d+ graphs? agrees? with eager(, \d+ graphs? compiled and never called)?$)"
NOT_JUDGED = (
    r"minidbg: (a part of a graph is not verified|\d+ graphs? verified in part): .* (draws|random numbers)"
)
RECOMPILED = r"minidbg: (\d+ recompilations?$|\d+ of them of )"
DRAWING = {"recurrent", "transformer_encoder"}
"""What they draw in backends that eager's numbers cannot be given to is not judged, and that is said."""
RECOMPILING = {
    "compiled_autograd", "compiled_optimizer", "diffusers_loop", "flex", "generate", "recurrent", "timm_training",
    "transformer_encoder",
}  # fmt: skip
"""Dynamo compiles these again."""


def each_program() -> Iterator[object]:
    yield from sorted({path.stem for path in PROGRAMS.glob("*.py")} - {"results", "field_models"})


def ended(folder: Path, program: str, *start: str) -> tuple[list[str], str]:
    """The results of a program that has ended well, and what it wrote to stderr."""
    env = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    done = python(*start, PROGRAMS / f"{program}.py", cwd=folder, env=env, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return [line for line in done.stdout.splitlines() if line.startswith("RESULT ")], done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", list(each_program()))
def test_program_ends_with_the_same_bits_and_in_silence(tmp_path: Path, program: str) -> None:
    for library in NEEDED.get(program, ()):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed; pip install -e '.[field]' brings it")
    under, said = ended(tmp_path, program, "-m", "minidbg", "run")
    alone, _ = ended(tmp_path, program)
    assert len(under) > 1
    assert under == alone
    own = [line for line in said.splitlines() if line.startswith("minidbg: ")]
    expected = [AGREES] + [NOT_JUDGED] * (program in DRAWING) + [RECOMPILED] * (program in RECOMPILING)
    assert [line for line in own if not any(re.match(form, line) for form in expected)] == []
    assert sum(bool(re.match(AGREES, line)) for line in own) == 2, "\n".join(own)
