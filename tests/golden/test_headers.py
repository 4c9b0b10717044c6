"""Headers of repros as each version has written them say the same as before.

``tables_*``: a table of TOML each, all fields written. ``lines_*``: a line a value, what reading supplies left out.
``details_*``: all that tools read on one line, as it is written now.
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minidbg.repro import read_header
from minidbg.words.outcome import Direction, Kind, Signature
from minidbg.words.run_spec import BackendRef, CallPath, Context, Level, Provenance, RunSpec
from minidbg.words.script_header import metadata_of, table_in, text_of

FOLDER = Path(__file__).parent / "headers"
FILES = sorted(FOLDER.glob("*.txt"))
STORY = Provenance(
    nodes=812,
    inputs=214,
    captured_from="train.py:41",
    line="y = torch.relu(x)",
    torch_version="2.13.0+cpu",
    python_version="3.11.7",
    reduced=True,
)
SAID = 'kernel failed: """quoted""" and \\ back'
MY_BACKEND = "my_backend is an editable install of /src/my_backend at commit 1a2b3c"
RUNTIME_MODES = RunSpec(
    BackendRef(
        "fails_when_called",
        "",
        modules=("my_backend",),
        requirements=("my-backend==0.3",),
        remarks=(MY_BACKEND,),
    ),
    Context(grad=False, matmul_precision="high", config={"torch._inductor.config": {"max_autotune": True}}),
    Signature(
        Kind.RUNTIME,
        types=("RuntimeError",),
        frames=("<script>:fails_when_called.compiled_fn",),
        message=SAID,
    ),
    kind_if_unseen=Kind.RUNTIME,
)
EVERY_FIELD = RunSpec(
    BackendRef(
        "my_pkg.backend",
        "",
        files=("/src/train.py",),
        paths=("/src/my_pkg",),
        options={"dtype": torch.float16, "passes": ("a", None), "far": float("inf")},
        requirements=("my-pkg==0.3",),
        remarks=("my_pkg is an editable install",),
        modules=("my_pkg",),
    ),
    Context(
        grad=False,
        inference=True,
        autocast=(("cuda", "torch.bfloat16", True),),
        deterministic=True,
        deterministic_warn_only=True,
        default_dtype="torch.float64",
        default_device="cuda",
        matmul_precision="high",
        threads=4,
        threads_matter=True,
        config={"torch._inductor.config": {"max_autotune": True, "cpp.threads": None}},
        env={"TORCH_LOGS": "+dynamo"},
    ),
    Signature(Kind.ACCURACY, Direction.BACKWARD, ("a.B", "C"), ("m:f", "n:g"), "gradient: float"),
    kind_if_unseen=Kind.ACCURACY,
    call=CallPath.DIRECT,
    level=Level.ATEN,
    device="cuda:1",
    dynamic=True,
    dynamic_dims=((0, 1),),
    backward=True,
    attempts=5,
    tolerances={"float32": (1e-3, 1e-5), "any": (0.5, 0.25)},
    match="relu|gelu",
)
OTHERS = (Signature(Kind.RUNTIME, types=("ValueError",), message="x"),)
MEANT = {
    "tables_accuracy_direct": RunSpec(
        BackendRef("adds_one", ""),
        signature=Signature(Kind.ACCURACY, message="output: float"),
        kind_if_unseen=Kind.ACCURACY,
        call=CallPath.DIRECT,
    ),
    "tables_runtime_modes": RUNTIME_MODES,
    "lines_runtime_modes": RUNTIME_MODES,
    "lines_every_field": EVERY_FIELD,
    "details_every_field": replace(EVERY_FIELD, signature=replace(EVERY_FIELD.expected, others=OTHERS)),
    "details_hang": RunSpec(
        BackendRef("inductor", "", mode="max-autotune"),
        Context(threads=4, env={"TORCH_LOGS": "+dynamo"}),
        Signature(Kind.HANG, types=("compile",)),
        kind_if_unseen=Kind.HANG,
        dynamic=None,
        tolerances={"float32": (0.03, 0.03)},
        time_limit_s=30,
    ),
    "details_capture": RunSpec(BackendRef("inductor", ""), kind_if_unseen=Kind.CRASH),
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_header_of_any_version_is_read_as_it_was_meant(path: Path) -> None:
    header = read_header(path)
    assert header.spec == MEANT[path.stem]
    again = header.spec.to_table(header.provenance)
    assert RunSpec.from_table(again) == header.spec
    assert Provenance.from_table(again) == replace(header.provenance, oracle_calls=0, seconds=0.0)


def test_where_a_case_comes_from_is_read_too() -> None:
    message = f"RuntimeError: {SAID}"
    assert read_header(FOLDER / "lines_runtime_modes.txt").provenance == replace(STORY, message=message)
    tables = read_header(FOLDER / "tables_runtime_modes.txt").provenance
    assert tables == replace(STORY, message=message, oracle_calls=14, seconds=3.25)


def table_of(path: Path) -> dict[str, Any]:
    return table_in(metadata_of(text_of(path.read_bytes())))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("details_*.txt")), ids=lambda path: path.stem)
def test_a_table_of_today_is_written_as_it_was_read(path: Path) -> None:
    table, header = table_of(path), read_header(path)
    about_the_file = ("schema", "nodes", "expect")
    wanted = {name: value for name, value in table.items() if name not in about_the_file}
    written = header.spec.to_table(header.provenance)
    assert written == wanted
    assert list(written) == list(wanted), "in the same order"


def test_headers_are_read_and_written_where_torch_is_not_imported() -> None:
    """By ``minidbg watch``: a dtype among the options stays a name."""
    program = (
        "import sys\n"
        "from minidbg.words.run_spec import Provenance, RunSpec\n"
        "from minidbg.words.script_header import metadata_of, table_in, text_of\n"
        "for path in sys.argv[1:]:\n"
        "    table = table_in(metadata_of(text_of(open(path, 'rb').read())))\n"
        "    spec, story = RunSpec.from_table(table), Provenance.from_table(table)\n"
        "    print(spec.to_table(story))\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, FILES)], capture_output=True, text=True, check=False
    )
    assert not done.stderr
    tables = [read_header(path).spec.to_table(Provenance.from_table(table_of(path))) for path in FILES]
    assert done.stdout.splitlines() == list(map(str, tables))
