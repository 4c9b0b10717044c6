"""Crash records: each graph goes to disk before it is compiled, so a process that dies leaves one.

Before a graph is compiled, its record is written: the graph, what its inputs look like, and the
values of integers, booleans and small tensors. While nothing happens with the graph the record is
renamed to say so, and when the graph has run well, backward included, it is removed.
``repro.crash_records`` finds what dead processes have left.

What was written survives a kill of the process: the kernel has it. So nothing is flushed to disk.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.core.errors import MinidbgError
from minidbg.core.files import for_its_owner
from minidbg.core.foreign import is_of_a_signal_handler
from minidbg.core.kinds import Kind
from minidbg.core.settings import Settings
from minidbg.fx.context import current_context
from minidbg.fx.ranks import collective_name, rank_note, talks_to_others
from minidbg.repro import Exactness, Form, crash_records, render
from minidbg.repro.crash_records import RecordName, Step
from minidbg.repro.folder import as_safetensors
from minidbg.torch_internals.operators import run_in_parts
from minidbg.wrapper.capture import case_of_call
from minidbg.wrapper.chain import Link
from minidbg.wrapper.process import PROCESS

log = logging.getLogger("minidbg")
RECORD_VALUE_BYTES = 64 << 20
"""Most bytes of integers and booleans in one record."""
RECORD_NUMBERS = itertools.count(1)
NOTE = "the graph was recorded before the call, by a process that did not come back from it"


class CrashRecord:
    def __init__(self, graph_module: fx.GraphModule, settings: Settings) -> None:
        self.graph_module = graph_module
        self.settings = settings
        self.path: Path | None = None
        self.name: RecordName | None = None
        self.link: Link | None = None
        self.is_on = settings.crash_records
        self.inside: set[int] = set()
        """Threads that are in a step now."""

    def write(self, step: Step, link: Link, values: Sequence[Any]) -> None:
        self.discard()
        with torch_internals.restoring_random_numbers(values), torch_internals.outside_tracing():
            context = current_context(values, further_env=self.settings.env)
            case = case_of_call(link, self.graph_module, values, context, self.settings)
            tensors = (value for value in case.inputs if isinstance(value, torch.Tensor))
            trains = context.grad and any(value.requires_grad for value in tensors)
            backend = case.backend
            if lacks := backend.missing_backend:
                backend = replace(backend, missing_backend=f"{lacks}, which ended with its process")
            story = replace(case.provenance, notes=(NOTE, *rank_note()))
            case = case.with_spec(backward=trains, backend=backend, kind_if_unseen=Kind.CRASH)
            script = render(
                replace(case, provenance=story),
                Form.CAPTURE,
                exactness=Exactness.SMALL,
                value_limit_bytes=RECORD_VALUE_BYTES,
                raw=True,
            )
        number = next(RECORD_NUMBERS)
        repro_dir = self.settings.repro_dir.absolute()
        is_new = not repro_dir.exists()
        folder = crash_records.make_record_folder(repro_dir)
        if is_new:
            PROCESS.folders[repro_dir] = os.getpid()
        self.name, self.link = crash_records.own_name(number, step), link
        self.path = folder / str(self.name)
        PROCESS.records[number] = self.path
        weakref.finalize(self, remove, number).atexit = False  # a graph that is gone cannot crash
        if script.tensors:
            put_file(crash_records.tensors_of_record(self.path), as_safetensors(script.tensors))
        draft = self.path.with_suffix(".tmp")
        put_file(draft, script.text.encode())
        os.replace(draft, self.path)

    def move(self, step: Step) -> None:
        """Rename the record after ``step``; one that is gone, or our parent's, stays as it is."""
        old = self.name
        if old is None or self.path is None or old.pid != os.getpid() or old.step is step:
            return
        name = old._replace(step=step)
        with contextlib.suppress(OSError):
            os.replace(self.path, self.path.with_name(str(name)))
            self.name, self.path = name, self.path.with_name(str(name))
            if name.number in PROCESS.records:
                PROCESS.records[name.number] = self.path

    def close(self) -> None:
        """No more can happen, or it is known: the record goes, unless another thread is inside."""
        if not self.inside:
            self.discard()

    def discard(self) -> None:
        if self.name is None or self.path is None or self.name.pid != os.getpid():
            return
        PROCESS.records.pop(self.name.number, None)
        with contextlib.suppress(OSError):  # also one that was to stay: its graph ran well since
            crash_records.remove_record(self.path)
        self.name = self.path = None

    def leave(self) -> None:
        """The process goes down in this step: the record stays, whatever runs at its exit."""
        if self.name is not None:
            PROCESS.records.pop(self.name.number, None)


def put_file(path: Path, content: bytes) -> None:
    with open(path, "wb", opener=for_its_owner) as file:
        file.write(content)


def remove(number: int) -> None:
    if (path := PROCESS.records.pop(number, None)) is not None:
        with contextlib.suppress(OSError):
            crash_records.remove_record(path)


class Collectives(torch_internals.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A run in which other ranks take part: the record says when this one waits for them."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # dynamo compiles in it as without it

    def __init__(self, record: CrashRecord) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = record
        self.begun = False
        """Whether a collective has taken place, so that the call cannot be made again."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a wrapper first: what it does inside comes by here again
        kwargs = kwargs or {}
        if collective_name(func) is None:
            made = run_in_parts(self, func, args, kwargs)
            return func(*args, **kwargs) if made is NotImplemented else made
        self.begun = True
        self.record.move(Step.WAITING)
        result = func(*args, **kwargs)
        self.record.move(Step.RUN)
        return result


class During:
    """The block of a step in which the process may die; the graph is called with ``values``. A
    class, so no frame of ours stands in the user's traceback."""

    __slots__ = ("began", "collectives", "link", "record", "step", "values")

    def __init__(self, record: CrashRecord, step: Step, link: Link, values: Sequence[Any]) -> None:
        self.record, self.step, self.link, self.values = record, step, link, values
        self.began = 0.0
        self.collectives: Collectives | None = None  # of a run in which others may take part

    def __enter__(self) -> None:
        """The record is on disk under the name of the step. Raises what a handler of a signal does,
        and no other ordinary exception."""
        record, step, link = self.record, self.step, self.link
        try:
            if record.is_on:
                record.inside.add(threading.get_ident())
                if record.name is None or record.name.pid == os.getpid():  # else it is our parent's
                    is_new = record.name is None or link is not record.link
                    if is_new and step is not Step.BACKWARD:
                        record.write(step, link, self.values)
                    record.move(step)
            if step is Step.RUN and talks_to_others(record.graph_module, self.values):
                self.collectives = Collectives(record)
                self.collectives.__enter__()  # type: ignore[no-untyped-call]
        except Exception as trouble:  # no script form or room, our bug: the backend is still called
            record.discard()
            if is_of_a_signal_handler(trouble):
                raise
            exc_info = not isinstance(trouble, MinidbgError | OSError)
            log.debug("crash_record_failed: %s", trouble, exc_info=exc_info)
        self.began = PROCESS.clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        record = self.record
        if self.collectives is not None:
            self.collectives.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        record.inside.discard(threading.get_ident())
        if record.name is None:
            return
        is_interrupt = isinstance(error, KeyboardInterrupt)
        is_answered = isinstance(error, Exception) or (error is None and self.step is Step.BACKWARD)
        if is_answered or (is_interrupt and PROCESS.clock() - self.began < crash_records.LONG_S):
            record.close()
        elif error is not None:  # SystemExit, a panic, the end of a hang
            if is_interrupt and record.name.step is not Step.WAITING:  # else another rank hangs
                record.move(Step.INTERRUPTED)
            record.leave()
        elif not record.inside:
            record.move(Step.IDLE)


# ---- where records lie


@atexit.register
def clear_up() -> None:
    """At a normal end nothing is left of a process in which nothing failed."""
    for number in list(PROCESS.records):
        remove(number)
    for folder, pid in PROCESS.folders.items():
        if pid == os.getpid():
            crash_records.remove_if_unused(folder)


# a forked child leaves its parent's records alone
os.register_at_fork(after_in_child=lambda: PROCESS.records.clear())
