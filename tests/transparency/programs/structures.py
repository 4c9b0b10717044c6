"""Tensors and modules that are not plain."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Compile = Callable[..., Any]


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - compared
        return error


def sparse(compile: Compile) -> Any:
    dense = torch.randn(4, 3).relu()
    weight = torch.randn(3, 2, requires_grad=True)
    into = compile(lambda s, w: (s @ w).relu())
    y = attempt(lambda: into(dense.to_sparse_csr(), weight))
    embedding = nn.Embedding(5, 3, sparse=True)
    looked_up = compile(lambda i: embedding(i).relu())(torch.tensor([1, 1, 4]))
    looked_up.sum().backward()
    return {
        "y": y,
        "z": attempt(lambda: into(dense.to_sparse(), weight)),
        "looked up": looked_up,
        "gradient": embedding.weight.grad,
    }


def nested(compile: Compile) -> Any:
    parts = [torch.randn(size, 3) for size in (2, 4)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    compiled = compile(lambda x: x.sin().relu() * 2)
    y = compiled(jagged)
    y.values().sum().backward()
    other = torch.nested.nested_tensor([*parts, torch.randn(1, 3)], layout=torch.jagged)
    return {"y": y, "gradient": jagged.grad, "other": compiled(other)}


def complex_numbers(compile: Compile) -> Any:
    z = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    compiled = compile(lambda z: torch.view_as_complex(torch.view_as_real(z * 2j).relu()))
    y = compiled(z)
    y.abs().sum().backward()
    return {"y": y, "z": z, "conjugate": compiled(z.detach().conj())}


def negative_views(compile: Compile) -> Any:
    """A view with the bit that says that its elements are the negative of what lies in memory."""
    z = torch.randn(4, dtype=torch.complex64)
    return {"y": compile(lambda x: x.relu() + 1)(z.conj().imag)}


class Tagged(torch.Tensor):
    """A bare subclass."""


def subclasses(compile: Compile) -> Any:
    x = torch.randn(3).as_subclass(Tagged)
    weight = nn.Parameter(torch.randn(3))
    buffer = nn.Buffer(torch.ones(3))
    y = compile(lambda x, b: (x * weight).relu() + b)(x, buffer)
    return {"y": y, "type": type(y).__name__}


def views(compile: Compile) -> Any:
    """Results that alias inputs and one another, with the strides of their inputs."""
    base = torch.randn(4, 6)

    def work(x: torch.Tensor) -> Any:
        y = x.relu()
        return x, x.t(), y[1:], y, x.unfold(0, 2, 1), x[:, ::2].detach()

    results = compile(work)(base)
    results[1].add_(1)
    overlapping = compile(lambda x: x.relu() + 1)(base.as_strided((3, 3), (1, 1)))
    expanded = compile(lambda x: x.relu() * 2)(torch.ones(1, 3).expand(4, 3))
    return {"base": base, "results": list(results), "overlapping": overlapping, "expanded": expanded}


def integers(compile: Compile) -> Any:
    """Numbers, strings, None, tuples, dataclasses and dicts in and out."""
    from collections import OrderedDict, namedtuple

    Pair = namedtuple("Pair", "a b")

    def work(x: torch.Tensor, n: int, scale: float, name: str, more: Any) -> Any:
        y = x.relu() * n * scale
        return {
            "pair": Pair(y, n + 1),
            "name": name + "!",
            "none": more.get("none"),
            "all": OrderedDict(a=y.int(), b=(scale * 2, None)),
        }

    compiled = compile(work)
    return [
        compiled(torch.arange(-2, 3), n, scale, "x", {"none": None})
        for n, scale in ((2, 0.5), (3, 0.25), (4, float("inf")))
    ]


def tied_weights(compile: Compile) -> Any:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(x).relu())

    own = Tied()
    y = compile(own)(torch.tensor([1, 3]))
    y.sum().backward()
    return {
        "y": y,
        "model": own,
        "gradient": own.head.weight.grad,
        "tied": own.head.weight is own.embed.weight,
    }


def parametrized(compile: Compile) -> Any:
    from torch.nn.utils import parametrizations, parametrize, prune

    own = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(3, 3)),
        nn.ReLU(),
        parametrizations.spectral_norm(nn.Linear(3, 3)),
    )
    prune.l1_unstructured(own[0], "bias", amount=1)
    compiled = compile(own)
    x = torch.randn(2, 3)
    y = compiled(x)
    y.sum().backward()
    with parametrize.cached():
        z = compiled(x)
    return {"y": y, "z": z, "model": own, "gradients": [one.grad for one in own.parameters()]}


def round_trips(compile: Compile) -> Any:
    """state_dict, pickle and deepcopy of a compiled module, before and after its first call."""
    own = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled = compile(own)
    before = attempt(lambda: copy.deepcopy(compiled))
    x = torch.randn(2, 3)
    y = compiled(x)
    after = attempt(lambda: copy.deepcopy(compiled))
    pickled = attempt(lambda: pickle.loads(pickle.dumps(compiled)))
    saved = io.BytesIO()
    torch.save(compiled.state_dict(), saved)
    saved.seek(0)
    own[0].reset_parameters()
    loaded = compiled.load_state_dict(torch.load(saved))
    again = compiled(x)
    in_place = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    in_place.compile(backend=compile.keywords["backend"])
    copied = attempt(lambda: copy.deepcopy(in_place)(x))
    whole = io.BytesIO()
    stored = attempt(lambda: torch.save(in_place, whole))
    used = [one if isinstance(one, Exception) else one(x) for one in (before, after, pickled)]
    return {
        "y": y, "again": again, "names": list(compiled.state_dict()), "loaded": str(loaded), "used": used,
        "in place": in_place(x), "copied": copied, "stored": stored, "text": str(compiled),
    }  # fmt: skip


def recurrent(compile: Compile) -> Any:
    torch._dynamo.config.allow_rnn = True
    own = nn.GRU(3, 4, batch_first=True)
    compiled = compile(lambda x, h: tuple(part.relu() for part in own(x, h)))
    x = torch.randn(2, 3, 3)
    y, h = compiled(x, torch.zeros(1, 2, 4))
    y.sum().backward()
    return {"y": y, "h": h, "gradients": [one.grad for one in own.parameters()]}


def attention(compile: Compile) -> Any:
    own = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    compiled = compile(own)
    x = torch.randn(2, 3, 8)
    y = compiled(x)
    y.sum().backward()
    own.eval()
    with torch.no_grad():
        z = compiled(x)
    return {"y": y, "z": z, "gradients": [one.grad for one in own.parameters()]}
