"""Strings, names and shapes of an enemy in a case: the script stays the script that it would be, and says what they were."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import fx

from minidbg.core.outcome import Kind, Signature
from minidbg.core.run_spec import BackendRef, Context, Provenance, RunSpec
from minidbg.fx.case import Case
from minidbg.repro import render
from minidbg.repro.header import header_of
from minidbg.repro.wording import message_lines

HOSTILE = [
    '"""\nimport os; os._exit(9)\n"""',
    "'''\nimport os\n'''",
    "\\",
    '\\\\"""',
    "\n# ///\nimport os\n# /// script\n",
    "\r\nimport os\r",
    "\x0cimport os\x1c\x1d\x85\u2028\u2029import os",
    "\x1b]0;title\x07\x1b[2J\x9b31m",
    "\u202e\u2066",
    "{{ 7 * 7 }}{% for x in y %}",
    "\ud800\udfff\x00",
    "# coding: utf-7",
    "x" * 5000,
    "# /// script\n# x = 1\n# ///",
    "{% raw %}",
]
texts = st.sampled_from(HOSTILE) | st.text(max_size=30)


def graph_named(name: str) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder(name)
    graph.output((graph.call_function(torch.relu, (x,)),))
    return fx.GraphModule(torch.nn.Module(), graph)


def case_with(text: str, other: str, *, name: str = "x", value: torch.Tensor | None = None) -> Case:
    backend = BackendRef(
        name=text or "x", expression='"eager"', options={"level": other}, remarks=(text,), paths=(other,)
    )
    return Case(
        graph_named(name),
        (torch.ones(3) if value is None else value,),
        RunSpec(
            backend,
            Context(env={"OMP_SCHEDULE": other}, config={"torch._inductor.config": {"cpp.cxx": text}}),
            Signature(Kind.CRASH, types=(text,), frames=(other,), message=text),
        ),
        provenance=Provenance(captured_from=text, line=other, message=text, notes=(other,)),
    )


def skeleton(text: str) -> list[str]:
    """What Python sees at the top level of a script, without the text of its docstring."""
    return [f"{type(node).__name__} {getattr(node, 'name', '')}" for node in ast.parse(text).body]


def in_toml(text: str) -> str:
    """``text`` with what TOML cannot hold replaced."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


PLAIN = skeleton(render(case_with("plain", "text")).text)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=texts, other=texts)
@example(text=HOSTILE[0], other=HOSTILE[4])
@example(text=HOSTILE[4], other=HOSTILE[0])
@example(text=HOSTILE[6], other=HOSTILE[7])
@example(text=HOSTILE[5], other=HOSTILE[10])
def test_hostile_strings_stay_strings(text: str, other: str) -> None:
    case = case_with(text, other)
    script = render(case).text
    assert skeleton(script) == PLAIN
    assert all(one.isprintable() or one == "\n" for one in script)
    header = header_of(script, Path("repro.py"))
    assert header.spec.signature.message == in_toml(text)
    assert header.provenance.message in (
        in_toml(text),
        in_toml("\n".join(message_lines(case, unchanged=True))),
    )


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.text(alphabet="aZ_0é变\u0131", min_size=1, max_size=9).filter(str.isidentifier))
@example(name="torch")
@example(name="inputs")
@example(name="__class__")
@example(name="main")
def test_hostile_names_stay_names(name: str) -> None:
    assert skeleton(render(case_with("plain", "text", name=name)).text) == PLAIN


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "value",
    [
        torch.empty(0, 5),
        torch.ones(()),
        torch.ones(1).expand(1 << 40),
        torch.ones(1, 3).expand(1 << 30, 3).t(),
        torch.randn(9).as_strided((3, 3, 3), (1, 1, 1)),
        torch.empty(1 << 40, device="meta"),
        torch.randn(4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2),
    ],
    ids=lambda value: str(tuple(value.shape)),
)
def test_hostile_shapes_are_written_in_bounded_time(value: torch.Tensor) -> None:
    script = render(case_with("plain", "text", value=value)).text
    ast.parse(script)
    assert len(script) < 300_000
