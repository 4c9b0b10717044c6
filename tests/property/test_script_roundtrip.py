"""Random cases: written, loaded and written again they are the same text."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_graphs import GraphMaker

from minidbg.codegen.size import canonical_text
from minidbg.core.outcome import Direction, Kind, Signature
from minidbg.core.run_spec import BackendRef, CallPath, Context, Provenance, RunSpec
from minidbg.fx.case import Case
from minidbg.repro import Exactness, Form, NoShortForm, load, write

texts = st.text(max_size=20) | st.sampled_from(
    ['"""', "\\", "# /// script", "# ---- Below", "\ud800", "{{ 1 }}"]
)
values = st.sampled_from(
    [
        lambda: torch.randn(4, 4),
        lambda: torch.randn(4, 4).t(),
        lambda: torch.randn(4, 4, requires_grad=True),
        lambda: torch.randn(4, 4, requires_grad=True) * 1,
        lambda: torch.nn.Parameter(torch.randn(4, 4) * 0.02),
        lambda: torch.randn(9, 9)[2:6, 1:5],
        lambda: torch.ones(4, 4).tril(),
        lambda: torch.full((4, 4), float("nan")),
        lambda: torch.rand(1, 4).expand(4, 4),
        lambda: torch.randn(4, 4, dtype=torch.bfloat16),
    ]
)
contexts = st.builds(
    Context,
    grad=st.booleans(),
    autocast=st.sampled_from([(), (("cpu", "torch.bfloat16", True),)]),
    deterministic=st.booleans(),
    default_dtype=st.sampled_from(["torch.float32", "torch.float64"]),
    matmul_precision=st.sampled_from(["highest", "medium"]),
    threads=st.none() | st.integers(1, 64),
    config=st.dictionaries(
        st.just("torch._inductor.config"),
        st.dictionaries(texts, st.integers() | texts, min_size=1, max_size=2),
    ),
)
signatures = st.none() | st.builds(
    Signature,
    kind=st.sampled_from(Kind),
    direction=st.sampled_from(Direction),
    types=st.lists(texts, max_size=2).map(tuple),
    frames=st.lists(texts, max_size=2).map(tuple),
    message=texts,
)
stories = st.builds(
    Provenance,
    nodes=st.integers(0, 9),
    inputs=st.integers(0, 9),
    captured_from=texts,
    line=texts,
    message=texts,
    torch_version=st.sampled_from(["2.13.0+cpu", "2.14.0.dev20261120", ""]),
    reduced=st.booleans(),
    certified=st.booleans(),
    notes=st.lists(texts, max_size=2).map(tuple),
)


@given(
    st.integers(0, 10_000),
    st.lists(values, min_size=4, max_size=4),
    contexts,
    signatures,
    stories,
    st.sampled_from(CallPath),
    st.sampled_from([Exactness.SMALL, Exactness.EXACT]),  # drawn values are fitted anew
)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
def test_write_load_write_is_the_identity(seed, makers, context, signature, story, call, exactness):
    maker = GraphMaker(seed, calls=6, writes=True, modes=True)
    graph_module, _ = maker.finish()
    inputs = tuple(make() for make in makers[: maker.inputs])
    case = Case(
        graph_module,
        inputs,
        RunSpec(BackendRef("eager", '"eager"'), context, signature, call=call),
        provenance=story,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = written(case, Path(folder) / "r.py", exactness)
        loaded = load(path)
        again = written(loaded, Path(folder) / "again.py", exactness)
        assert again.read_bytes() == path.read_bytes()
        assert canonical_text(loaded.graph_module) == canonical_text(graph_module)
        for beside in Path(folder).glob("r.safetensors"):
            assert beside.read_bytes() == again.with_suffix(".safetensors").read_bytes()


def written(case: Case, path: Path, exactness: Exactness) -> Path:
    """The script of ``case``: short where its failure can be shown so, which that of a random message often cannot."""
    try:
        return write(case, path, exactness=exactness)
    except NoShortForm:
        return write(case, path, Form.SHOWS, exactness=exactness)
