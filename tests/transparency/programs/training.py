"""Loops as people write them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Compile = Callable[..., Any]


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 2))


def averaged(compile: Compile) -> Any:
    """EMA by hand and by torch, which copies the compiled model and swaps its weights."""
    own = model()
    compiled = compile(own)
    theirs = torch.optim.swa_utils.AveragedModel(
        compiled, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    by_hand = copy.deepcopy(own)
    optimizer = torch.optim.AdamW(own.parameters(), lr=0.1)
    for _ in range(3):
        compiled(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        theirs.update_parameters(compiled)
        with torch.no_grad():
            for mean, now in zip(by_hand.parameters(), own.parameters(), strict=True):
                mean.lerp_(now, 0.1)
    compiled.eval(), theirs.eval()
    x = torch.ones(1, 4)
    return {"y": compiled(x), "theirs": theirs(x), "by hand": by_hand, "names": list(theirs.state_dict())}


def compiled_step(compile: Compile) -> Any:
    """The optimizer is compiled, and in another step with its scheduler and clipping around it."""
    own = model()
    forward = compile(own)
    optimizer = torch.optim.Adam(own.parameters(), lr=torch.tensor(0.1))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    step = compile(lambda: optimizer.step())
    for _ in range(3):
        forward(torch.randn(3, 4)).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(own.parameters(), 0.5)
        step()
        optimizer.zero_grad()
        schedule.step()
    return {"model": own, "norm": norm, "state": optimizer.state_dict()}


def scaled(compile: Compile) -> Any:
    """Mixed precision with a scaler, one step of which is skipped for an infinite gradient."""
    own = model()
    compiled = compile(own)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = compiled(torch.randn(3, 4)).square().mean()
        scaler.scale(loss * (float("inf") if step == 1 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return {"model": own, "scaler": scaler.state_dict()}


def whole_step(compile: Compile) -> Any:
    """Forward, loss and backward in one compiled function, and evaluation between the steps."""
    own = model()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = own(x).square().mean()
        loss.backward()
        return loss.detach()

    compiled = compile(step)
    losses, evaluated = [], []
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    for _ in range(2):
        losses.append(compiled(torch.randn(3, 4)))
        optimizer.step()
        optimizer.zero_grad()
        own.eval()
        with torch.no_grad():
            evaluated.append(compile(own)(torch.ones(1, 4)))
        own.train()
    return {"losses": losses, "evaluated": evaluated, "model": own}


def adversaries(compile: Compile) -> Any:
    """Two models and two optimizers, detached results and a gradient that crosses from one compiled model into the other."""
    maker, judge = (
        nn.Sequential(nn.Linear(2, 4), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)),
    )
    make, judged = compile(maker), compile(judge)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (maker, judge)]
    for _ in range(2):
        made = make(torch.randn(3, 2))
        (judged(made.detach()).mean() - judged(torch.randn(3, 4)).mean()).backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        (-judged(made).mean()).backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
    return {"maker": maker, "judge": judge, "gradients": [one.grad for one in judge.parameters()]}
