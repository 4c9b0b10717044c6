"""The run's record, as it travels."""

from __future__ import annotations

import json

import pytest

from minidbg.core.outcome import Direction, Kind, Signature
from minidbg.core.records import record_of, table_of
from minidbg.core.run_spec import BackendRef, CallPath, Context, Level, RunSpec


@pytest.mark.parametrize(
    "spec",
    [
        RunSpec(BackendRef("eager", '"eager"')),
        RunSpec(BackendRef("eager", '"eager"'), signature=Signature(Kind.HANG), kind_if_unseen=Kind.CRASH),
        RunSpec(
            BackendRef(
                "b.f", "b.f", ("import b", "x = 'a\n\"b'"), "def f(): ...", ("/p",),
                {"pass": (1, None, [2.5, float("inf")]), "inner": {"deep": ("x",)}}, "max-autotune", ("b==1",), ("remark",), ("b",),
            ),
            Context(
                grad=False, autocast=(("cuda", "torch.bfloat16", True),), threads=3, threads_matter=True,
                config={"torch._inductor.config": {"a": None, "b": {1, 2}}}, env={"A": "b"},
            ),
            Signature(
                Kind.ACCURACY, Direction.BACKWARD, ("T",), ("m:f",), "said", (Signature(Kind.COMPILE, message="other"),)
            ),
            Kind.RUNTIME, CallPath.DIRECT, Level.ATEN, "cuda", None, ((0,), ()), True, 7, 12.5, {"float32": (1e-3, 0.0)}, "re.*", 3.0, "cpu",
        ),
    ],
)  # fmt: skip
def test_all_of_the_record_travels_to_another_process(spec: RunSpec) -> None:
    assert record_of(json.loads(json.dumps(table_of(spec))), RunSpec) == spec
