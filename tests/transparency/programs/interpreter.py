"""The interpreter that a program lives in: threads, signals, tracing, warnings, generators, exceptions, the collector."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

Compile = Callable[..., Any]


def generators(compile: Compile) -> Any:
    """A generator that dynamo runs through, one around compiled calls, and one that is closed in the middle."""

    def parts(x: torch.Tensor) -> Iterator[torch.Tensor]:
        for row in x:
            yield row.relu()

    compiled = compile(lambda x: sum(parts(x)))

    def calls(x: torch.Tensor) -> Iterator[torch.Tensor]:
        try:
            for turn in range(5):
                yield compiled(x + turn)
        finally:
            print("closed")

    x = torch.randn(3, 4)
    open_one = calls(x)
    first = next(open_one)
    open_one.close()
    return {"first": first, "all": list(calls(x)), "sent": list(zip(calls(x), range(2), strict=False))}


def threads(compile: Compile) -> Any:
    """Several threads call one model for the first time at once."""
    own = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled, start = compile(own), threading.Barrier(4)
    results: dict[int, Any] = {}

    def work(number: int) -> None:
        start.wait()
        try:
            results[number] = compiled(torch.full((2, 4), float(number))).detach()
        except Exception as error:  # noqa: BLE001 - raised below
            results[number] = error

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    for one in results.values():
        if isinstance(one, Exception):
            raise one
    return {"results": [results[number] for number in range(4)]}


def tasks(compile: Compile) -> Any:
    """asyncio, with a context variable for each task."""
    who: contextvars.ContextVar[int] = contextvars.ContextVar("who")
    compiled = compile(lambda x: x.relu() + 1)

    async def work(number: int) -> tuple[int, torch.Tensor]:
        who.set(number)
        await asyncio.sleep(0)
        return who.get(), compiled(torch.full((2,), float(number)))

    async def all_of_them() -> Any:
        return await asyncio.gather(*(work(number) for number in range(3)))

    return asyncio.run(all_of_them())


class Alarm(Exception):
    """Raised by a signal's handler."""


MOST_RINGS = 200


def signals(compile: Compile) -> Any:
    """A handler that counts while all is compiled, and one that raises out of a compiled call."""
    rings = 0

    @torch._dynamo.disable  # or it is compiled, where it comes between compiled frames
    def count(number: int, frame: Any) -> None:
        nonlocal rings
        rings += 1
        if rings == MOST_RINGS:  # a machine that is busy would do nothing else
            signal.setitimer(signal.ITIMER_REAL, 0)

    signal.signal(signal.SIGALRM, count)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    compiled = compile(lambda x: x.relu().cumsum(0))
    y = compiled(torch.randn(5))
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGUSR1, lambda number, frame: print("asked"))

    @torch._dynamo.disable
    def leave(number: int, frame: Any) -> None:
        raise Alarm("time is up")

    signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.5)  # again: what is raised in a finalizer is swallowed
    with contextlib.suppress(Alarm):
        while True:
            compiled(y)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return {"y": y, "rang": rings > 0}


def interrupts(compile: Compile) -> Any:
    """Ctrl-C while an operator of a compiled graph runs for the first time."""

    @torch.library.custom_op("transparency::interrupted", mutates_args=())
    def interrupted(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 1:
            signal.raise_signal(signal.SIGINT)
        return x.clone()

    calls = 0
    interrupted.register_fake(torch.empty_like)
    compiled = compile(lambda x: torch.ops.transparency.interrupted(x.relu()) + 1)
    x = torch.randn(3)
    try:
        compiled(x)
    except KeyboardInterrupt as error:
        print("interrupted", type(error).__name__, calls)
    return {"y": compiled(x)}


def traced(compile: Compile) -> Any:
    """A debugger or a coverage tool is at work; its own functions see no line of another's package."""
    seen = set()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == __file__:
            seen.add((frame.f_code.co_name, event))
        return trace

    compiled = compile(lambda x: x.relu() + 1)
    sys.settrace(trace)
    try:
        y = compiled(torch.randn(3))
        z = helper(y)
    finally:
        sys.settrace(None)
    return {"y": y, "z": z, "seen": seen}


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def profiled(compile: Compile) -> Any:
    calls = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += frame.f_code is helper.__code__ and event == "call"

    compiled = compile(lambda x: x.relu() + 1)
    sys.setprofile(profile)
    y = helper(compiled(torch.randn(3)))
    still = sys.getprofile() is profile
    sys.setprofile(None)
    with torch.profiler.profile() as profiler:
        compiled(torch.randn(3))
    return {
        "y": y,
        "calls": calls,
        "still": still,
        "relus": sum(one.key == "aten::relu" for one in profiler.key_averages()),
    }


def warnings_as_errors(compile: Compile) -> Any:
    warnings.simplefilter("error")

    def work(x: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        torch.add(x, 1, out=into)  # another shape: torch warns when it resizes
        return into.relu()

    results: dict[str, Any] = {"plain": compile(lambda x: x.relu())(torch.randn(3, requires_grad=True))}
    results["resized"] = attempt(lambda: compile(work)(torch.randn(3), torch.ones(1)))
    results["read"] = attempt(lambda: results["plain"].grad)
    return results


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - compared
        return error


def warnings_once(compile: Compile) -> Any:
    """Each warning comes as often as it did, from where it did: also torch's own, given once a process."""

    def warns(x: torch.Tensor) -> torch.Tensor:
        warnings.warn("from the program", stacklevel=2)
        return x.relu()

    compiled = compile(lambda x: warns(x) + 1)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        y = [compiled(torch.randn(3)) for _ in range(3)]
        # once a process, by C++
        torch.add(torch.ones(3), 1, out=torch.ones(1))
        torch.ones(3, 2).T.new_ones(3).T  # noqa: B018 - warns of T on one dimension
        (y[0].requires_grad_() * 1).grad  # noqa: B018 - warns of grad on what is no leaf
    return {
        "y": y,
        "heard": [(one.category.__name__, str(one.message), one.filename, one.lineno) for one in heard],
    }


def logs(compile: Compile) -> Any:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    torch._logging.set_logs(recompiles=True)
    log = logging.getLogger("program")
    compiled = compile(lambda x: x.relu() + 1)
    for size in (2, 3):
        log.info("sum %s", compiled(torch.ones(size)).sum().item())
    return {}


def exceptions(compile: Compile) -> Any:
    """The program's own, in a graph break, in eager's check of shapes, in what is traced, and in a context manager."""

    def breaks(x: torch.Tensor) -> torch.Tensor:
        y = x.relu() + 1
        torch._dynamo.graph_break()
        if y.sum() > 0:
            raise ValueError(f"too large: {tuple(y.shape)}")
        return y

    def in_a_block(x: torch.Tensor) -> torch.Tensor:
        try:
            raise KeyError("inside")
        except KeyError:
            return x.relu() * 2

    @contextlib.contextmanager
    def block() -> Iterator[None]:
        try:
            yield
        except ZeroDivisionError:
            print("divided")

    x = torch.ones(3)
    with block():
        print(compile(lambda x: x.relu() * 3)(x).sum().item() // 0)
    return {
        "break": attempt(lambda: compile(breaks)(x)),
        "shapes": attempt(lambda: compile(lambda x, y: x.relu() @ y)(x, torch.ones(4))),
        "index": attempt(lambda: compile(lambda x, i: x.relu()[i])(x, torch.tensor([7]))),
        "traced": attempt(lambda: compile(lambda x: x.relu().no_such_thing())(x)),
        "inside": compile(in_a_block)(x),
        "refused": attempt(lambda: compile(breaks, fullgraph=True)(x)),
    }


def graph_breaks(compile: Compile) -> Any:
    """Prints, data-dependent branches and calls of what dynamo does not enter."""

    @torch._dynamo.disable
    def outside(x: torch.Tensor) -> torch.Tensor:
        print("outside", x.shape)
        return x + 1

    def work(x: torch.Tensor, names: list[str]) -> torch.Tensor:
        y = x.relu()
        print("sum", y.sum().item())
        names.append("called")
        if y.max() > 100:
            return y
        return outside(y).relu() * len(names)

    names: list[str] = []
    compiled = compile(work)
    return {"y": [compiled(torch.arange(3.0), names) for _ in range(2)], "names": names}


def freed(compile: Compile) -> Any:
    """What the program lets go of is freed: its model, inputs and results, without the collector."""
    gc.collect()
    gc.disable()
    own = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled = compile(own)
    x = torch.randn(2, 3)
    y = compiled(x)
    y.sum().backward()
    watched = {
        "x": weakref.ref(x),
        "y": weakref.ref(y),
        "weight": weakref.ref(own[0].weight),
        "model": weakref.ref(own),
    }
    del x, y
    at_once = {name: one() is None for name, one in watched.items()}
    del own, compiled
    let_go = {name: one() is None for name, one in watched.items()}
    torch._dynamo.reset()
    gc.enable()
    gc.collect()
    return {
        "at once": at_once,
        "then": let_go,
        "at last": {name: one() is None for name, one in watched.items()},
    }


def resets(compile: Compile) -> Any:
    """torch._dynamo.reset in the middle, other settings, and a function compiled twice."""
    work = lambda x: x.relu() * 2  # noqa: E731 - one code object for all
    first = compile(work)
    y = [first(torch.ones(3))]
    torch._dynamo.reset()
    y.append(first(torch.ones(4)))
    with torch._dynamo.config.patch(suppress_errors=False, specialize_int=True):
        y += [compile(work, dynamic=True)(torch.ones(size)) for size in (2, 5)]
    with torch.compiler.set_stance("force_eager"):
        y.append(first(torch.ones(6)))
    return {"y": y}


def clocks(compile: Compile) -> Any:
    """A program that patches time: nobody else may read the clock that it has stopped."""
    import unittest.mock

    with (
        unittest.mock.patch("time.time", return_value=1e9),
        unittest.mock.patch("random.random", return_value=0.5),
    ):
        y = compile(lambda x: x.relu() + 1)(torch.randn(3))
    return {"y": y, "time": time.time() > 1e9}
