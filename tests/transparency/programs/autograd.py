"""Backward in all its forms."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

Compile = Callable[..., Any]


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def gradients(of: nn.Module) -> list[torch.Tensor | None]:
    return [one.grad for one in of.parameters()]


def retained_graph(compile: Compile) -> Any:
    own = model()
    compiled = compile(own)
    x = torch.randn(3, 4, requires_grad=True)
    loss = compiled(x).sin().sum()
    loss.backward(retain_graph=True)
    once = [one.clone() for one in gradients(own)]
    loss.backward()
    for _ in range(2):  # the ordinary way, after the other
        compiled(x).sum().backward()
    try:
        loss.backward()
    except RuntimeError as error:
        return {"once": once, "in all": gradients(own), "x": x, "a third time": error}


def double_backward(compile: Compile) -> Any:
    """AOTAutograd refuses it, in words of its own."""
    x = torch.randn(3, 4, requires_grad=True)
    y = compile(lambda x: x.relu() * x.sin())(x)
    [first] = torch.autograd.grad(y.sum(), x, create_graph=True)
    return {"first": first, "second": torch.autograd.grad(first.sum(), x)}


def inner_gradient(compile: Compile) -> Any:
    """A gradient penalty: create_graph on the eager side, the compiled model only inside."""
    compiled = compile(lambda x: (x.relu() ** 2).sum())
    x = torch.randn(5, requires_grad=True)
    weight = torch.randn(5, requires_grad=True)
    [first] = torch.autograd.grad((x * weight).sin().sum(), x, create_graph=True)
    compiled(first).backward()
    return {"x": x, "weight": weight}


class Block(nn.Linear):
    """A layer with a forward of the program's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


def hooks(compile: Compile) -> Any:
    """Of modules, tensors, parameters and graph nodes, forward and backward; who is called when is what is printed."""
    own = nn.Sequential(Block(4, 6), Block(6, 2))
    own[0].register_forward_hook(lambda module, args, out: print("forward", tuple(out.shape)))
    own[1].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    own[1].register_full_backward_hook(lambda module, into, out: print("backward", out[0].sum().item()))
    own[0].weight.register_hook(lambda gradient: print("weight", gradient.norm().item()))
    own[0].bias.register_post_accumulate_grad_hook(lambda bias: print("bias", bias.grad.norm().item()))
    compiled = compile(own)
    x = torch.randn(3, 4, requires_grad=True)
    x.register_hook(lambda gradient: gradient * 3)
    for _ in range(2):
        y = compiled(x)
        y.register_hook(lambda gradient: print("result", gradient.sum().item()))
        y.grad_fn.register_hook(lambda into, out: print("node", len(into), len(out)))
        y.sum().backward()
    return {"gradients": gradients(own), "x": x}


class NoMore(Exception):
    """What the hooks of a program raise."""


def raising_hooks(compile: Compile) -> Any:
    own = model()
    compiled = compile(own)
    x = torch.randn(3, 4, requires_grad=True)
    said = []

    def refuse(*_: Any) -> None:
        raise NoMore("enough of it")

    handles = [lambda: x.register_hook(refuse), lambda: own[1].register_forward_hook(refuse)]
    for register in handles:
        handle = register()
        try:
            compiled(x).sum().backward()
        except NoMore as error:
            said.append(error)
        handle.remove()
    compiled(x).sum().backward()
    return {"said": said, "gradients": gradients(own), "x": x}


class Doubling(torch.autograd.Function):
    """A forward and a backward that do not belong together."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.relu() + 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        [x] = ctx.saved_tensors
        return gradient * 2 * x


def own_function(compile: Compile) -> Any:
    compiled = compile(lambda x: Doubling.apply(x.sin()).cos())
    x = torch.randn(4, requires_grad=True)
    y = compiled(x)
    y.sum().backward()
    return {"y": y, "x": x}


def checkpointing(compile: Compile) -> Any:
    """Inside and around what is compiled, with dropout to be drawn twice alike."""
    own, drop = model(), nn.Dropout(0.5)
    x = torch.randn(3, 4, requires_grad=True)
    inside = compile(lambda x: checkpoint(lambda x: drop(own(x)).sin(), x, use_reentrant=False))
    inside(x).sum().backward()
    step = compile(lambda x: own(x).relu())
    checkpoint(step, x, use_reentrant=False).sum().backward()
    checkpoint(step, x, use_reentrant=True).sum().backward()
    return {"gradients": gradients(own), "x": x}


def saved_tensors(compile: Compile) -> Any:
    """Hooks around what autograd keeps: packed when it is saved, unpacked when it is read."""
    counts = {"packed": 0, "unpacked": 0}

    def packed(value: torch.Tensor) -> torch.Tensor:
        counts["packed"] += 1
        return value.double() if value.dtype is torch.float32 else value

    def unpacked(value: torch.Tensor) -> torch.Tensor:
        counts["unpacked"] += 1
        return value.float() if value.dtype is torch.float64 else value

    x = torch.randn(4, requires_grad=True)
    compiled = compile(lambda x: x.sin().relu() * x)
    with torch.autograd.graph.saved_tensors_hooks(packed, unpacked):
        y = compiled(x)
    y.sum().backward()
    return {**counts, "x": x}


def anomalies(compile: Compile) -> Any:
    x = torch.zeros(3, requires_grad=True)
    compiled = compile(lambda x: x.relu().sqrt() * 0 + x.relu())
    warnings.simplefilter("ignore")  # it prints the traceback of the forward call
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        y = compiled(x).sum()
        try:
            y.backward()
        except RuntimeError as error:
            return {"said": type(error), "y": y}
    return {"y": y, "x": x}


def compiled_autograd(compile: Compile) -> Any:
    own = model()
    own[0].weight.register_hook(lambda gradient: gradient * 2)
    compiled = compile(own)
    with torch._dynamo.compiled_autograd._enable(compile):
        for _ in range(2):
            compiled(torch.ones(3, 4)).square().mean().backward()
    return {"gradients": gradients(own)}


def accumulated(compile: Compile) -> Any:
    """Gradients of several steps add up, with and without set_to_none, and with part of the parameters frozen."""
    own = model()
    own[2].bias.requires_grad_(False)
    compiled = compile(own)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        loss = compiled(torch.randn(3, 4)).square().mean() / 2
        loss.backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=step == 1)
    return {"weights": own, "gradients": gradients(own), "optimizer": optimizer.state_dict()}


def writes(compile: Compile) -> Any:
    """In place on an input, on a view of one, on a buffer and on what autograd has seen."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(2))
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            view.mul_(2)
            x[0].relu_()
            return self.norm(x).relu() + view.sum()

    own = Counting()
    compiled = compile(own)
    x = torch.randn(3, 4)
    for _ in range(2):
        y = compiled(x, x[1])
    w = torch.randn(4, requires_grad=True)
    leaf = compile(lambda value: value.relu_().mul(2))(w * 1)
    leaf.sum().backward()
    try:
        compile(lambda value: value.relu_())(w)
    except RuntimeError as error:
        return {"x": x, "y": y, "model": own, "w": w, "leaf": leaf, "refused": error}
