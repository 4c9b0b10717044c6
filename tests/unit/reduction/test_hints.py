"""What an error names, for the reduction to ask about first."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from minidbg.fx.case import Case
from minidbg.reduction.subsets import hints_from_error
from minidbg.words.outcome import Kind, Signature
from minidbg.words.run_spec import BackendRef, Provenance, RunSpec


def sine() -> Case:
    graph = fx.Graph()
    graph.output((graph.call_function(torch.sin, (graph.placeholder("x"),)),))
    return Case(
        fx.GraphModule(torch.nn.Module(), graph), (torch.ones(2),), RunSpec(BackendRef("eager", '"eager"'))
    )


def test_a_wrong_result_hints_at_no_word_of_the_comparison() -> None:
    case = sine().with_spec(signature=Signature(Kind.ACCURACY, message="input: float"))
    message = "b gives wrong results: input 3 after the call differs"
    assert hints_from_error(replace(case, provenance=Provenance(message=message))) == ()
    refused = Signature(Kind.COMPILE, message="no relu")
    assert hints_from_error(
        replace(case.with_spec(signature=refused), provenance=Provenance(message="lowering"))
    ) == (
        "lowering",
        "relu",
    )
