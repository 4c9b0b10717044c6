"""Verification against eager: which calls of a graph are compared, and the comparison of one call.

The compiled function runs once on the user's own inputs, and what it gives is judged. Eager runs
afterwards, on copies taken before. Gradients come from another run of the compiled function, on
copies too, *before* the user's own: a backend may hand out the same buffers in each run, and what
the user holds must be what was written last.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from minidbg import torch_internals
from minidbg.codegen.names import readable_name
from minidbg.core.errors import AccuracyError
from minidbg.core.foreign import fence, first_line_of, is_of_a_signal_handler, is_out_of_memory, message_of
from minidbg.core.kinds import Kind
from minidbg.core.outcome import Direction
from minidbg.core.run_spec import Level, RunSpec
from minidbg.core.settings import Verify
from minidbg.fx.effects import nested_graphs, op_name
from minidbg.fx.randomness import Derandomized, feed_recorded, may_draw
from minidbg.judge.compare import (
    Comparison,
    Difference,
    changed_unseen,
    comparison_of,
    is_never_excused,
)
from minidbg.judge.eager_runs import OTHER_SEED, Tag
from minidbg.judge.leaves import CannotCompare
from minidbg.judge.run import collected, gradient_sources, gradients_of
from minidbg.torch_internals.devices import generator_states
from minidbg.wrapper import handle, verify_runs
from minidbg.wrapper.capture import Failure
from minidbg.wrapper.chain import Link, compile_at_run_time
from minidbg.wrapper.process import PROCESS, GraphFacts
from minidbg.wrapper.rollback import Kept, tensors_among

log = logging.getLogger("minidbg")
GRADIENTS_REFUSED = "its gradients are not judged: autograd refuses the graph's backward"
GRADIENTS_NOT_RUN = "its gradients are not judged: what the backend compiled raises on copies of the inputs"
NUMBERS_OF_BACKWARD = "whether backward has the random numbers that forward has drawn is not judged"
NOTHING_JUDGED = "of its results none is judged"
OTHERS_S = 60.0
"""How long a comparison waits for those of other threads, which may wait for this one's graph."""
DRAWN_ANEW = "its outputs agree with the random numbers that the backend drew, its gradients do not: backward has drawn others"
RECORDED = "its random numbers were recorded and are inputs here, so that eager and the backend have the same"


def calls_compared(verify: Verify | int) -> float:
    """How many first calls of a graph are compared with eager."""
    if isinstance(verify, Verify):
        return {Verify.FIRST: 1, Verify.ALWAYS: math.inf, Verify.NEVER: 0}[verify]
    return verify


@dataclass(slots=True)
class Verification:
    before: verify_runs.CallSnapshot
    link: Link
    spec: RunSpec
    facts: GraphFacts
    gradients: dict[str, Any] | None = None
    """What the compiled function gave on copies; None when none are needed or had."""
    backward_error: Exception | None = None
    after_forward: tuple[Any, ...] = ()
    """The generators after the forward of which these are the gradients."""
    spoiled: str = ""
    """The input or output that is another one after the backward, if any."""
    lacks_gradients: bool = False
    """Whether there are gradients that no run of the compiled function gave."""

    def take_gradients(
        self, call: Callable[[list[Any]], Any], kept: Kept, *, compiled_for_us: bool = False
    ) -> None:
        """Run the compiled function by ``call``, and its backward, on copies; keep gradients, or
        the error. What ``kept`` holds is put back.

        Where the backward cannot run without being taken for the program's first one, the graph is
        compiled once more, for us alone.
        """
        inside = self.before
        inputs = inside.fresh(everything=True)
        sources = gradient_sources(inside.model, inputs)
        try:
            with quiet():
                try:
                    with torch_internals.deferring_first_call():
                        outputs = call(list(inputs))
                    taken = inside.model.graph.output_node().args[0]
                    if isinstance(outputs, (tuple, list)) and isinstance(taken, (tuple, list)):
                        outputs = outputs[: len(taken)]
                    self.after_forward = generator_states(inputs)
                except Exception as error:  # the user's own call will tell, but nothing of gradients
                    if is_of_a_signal_handler(error):
                        raise
                    self.lacks_gradients = True
                    return
                if not (compiled_for_us or torch_internals.leave_first_backward(tensors_among([outputs]))):
                    compiled_fn = compile_at_run_time(self.link, inside.model, tuple(inputs))
                    inside.set_generators()
                    with torch_internals.restoring_counters():
                        self.take_gradients(lambda args: compiled_fn(*args), kept, compiled_for_us=True)
                    return
                unchanged = verify_runs.bits_of(inputs, outputs)
                try:
                    self.gradients = gradients_of(outputs, sources)
                except Exception as error:  # judged when eager's backward has been seen
                    if is_out_of_memory(error) or is_of_a_signal_handler(error):
                        raise
                    # one that was compiled for us, outside of dynamo, may want what only dynamo
                    # has; the program's own will tell
                    if compiled_for_us or torch_internals.is_a_check_of_aot_autograd(error):
                        self.facts.leave_out(GRADIENTS_REFUSED)
                    else:
                        self.backward_error = error
                else:
                    changed = verify_runs.bits_of(inputs, outputs).items() - unchanged.items()
                    self.spoiled = min((label for label, _ in changed), default="")
        finally:
            inside.set_generators()
            if inside.graph is not inside.model:
                kept.restore()

    def judge(self, result: Any, args: Sequence[Any], undeclared: str) -> Failure | None:
        """Run eager on the copies, and compare ``result``, which the compiled function gave for
        ``args``, and what else it left behind; the failure, None where there is none.

        No backend is to blame for what dynamo had declared otherwise (``undeclared``). Whatever
        goes wrong on our side leaves the call unverified.
        """
        inside, facts = self.before, self.facts
        with fence("verification_failed", lambda trouble: facts.not_verified(reason_of(trouble))):
            with alone(), handle.handling(args), quiet():
                drawn = generator_states(args)
                wants = self.gradients is not None or self.backward_error is not None
                try:
                    expected = inside.eager(backward=wants, may_refuse=True)
                except Exception as error:
                    if is_of_a_signal_handler(error) or is_out_of_memory(error):
                        raise
                    why = f"eager raises {first_line_of(error)}; {self.link.name} returned a result"
                    facts.eager_raises = why
                    PROCESS.say_once(why)
                    return None
                failure: Failure | None
                if isinstance(result, (tuple, list)):
                    result = result[: len(expected["outputs"])]  # nobody takes more
                actual = collected(result, inside.model, tuple(args), self.gradients or None)
                unseen = [f"input {index} after the call" for index in inside.changed_unseen(args)]
                states = generator_states(inside.inputs)  # other threads may have moved them, too
                if expected["gradients"] is None:
                    facts.leave_out(GRADIENTS_REFUSED)
                raised = self.backward_error if expected["gradients"] is not None else None
                if raised is not None:
                    phase = torch_internals.backward_phase(raised) or "runtime"
                    own = inside.graph, inside.inputs, self.link, phase, raised
                    failure = Failure(*own, direction=Direction.BACKWARD)
                elif unseen:
                    failure = self.mismatch(changed_unseen(unseen[0]))
                elif self.spoiled:
                    spoiled = changed_unseen(self.spoiled, " by its backward")
                    failure = self.mismatch(spoiled, direction=Direction.BACKWARD)
                elif may_draw(inside.graph) and not same_states(inside.generators, states):
                    as_eager = same_states(drawn, states)
                    drew_alike = same_states(self.after_forward, drawn)
                    failure = self.compare_drawn(actual, expected, drew_alike, as_eager)
                else:
                    runs = comparison_of(actual, expected, inside.eager, self.spec)
                    self.leave_out(runs, difference := runs.difference())
                    del runs  # what eager's other runs left is not held while a hint is looked for
                    failure = self.mismatch(difference)
            if failure is not None and undeclared:
                raise CannotCompare(undeclared)
            if self.lacks_gradients:
                facts.leave_out(GRADIENTS_NOT_RUN)
                facts.why_not = facts.why_not or GRADIENTS_NOT_RUN
            else:
                facts.verified |= failure is None and not facts.handed_back
            is_aliasing = getattr(failure and failure.error, "category", "") == "aliasing"
            # which AOTAutograd leaves to its compilers
            return None if is_aliasing and self.link.level is Level.ATEN else failure
        return None

    def leave_out(self, runs: Comparison, difference: Difference | None) -> None:
        """Tell what is not judged. Raises CannotCompare where that is all and nothing differs."""
        for note in runs.notes():
            self.facts.leave_out(note)
        results = {at for at, leaf in runs.expected.items() if leaf.role != "input"}
        if difference is None and results and results <= runs.unjudged:
            raise CannotCompare(f"{NOTHING_JUDGED}: {runs.notes()[0]}")

    # ---- random numbers

    def compare_drawn(
        self, actual: dict[str, Any], expected: dict[str, Any], drew_alike: bool, as_eager: bool
    ) -> Failure | None:
        """Compare where eager drew random numbers, as a backend may from a stream of its own:
        with the same, with those that it draws, or compiled once more with eager's as inputs.
        The program's call may have left the generators as the gradients' did, and as eager."""
        inside = self.before
        beside = partial(comparison_of, actual, expected, inside.eager, self.spec)
        if (own := beside(()).difference()) is None:
            return None
        if is_never_excused(own):
            return self.mismatch(own)
        # equal outputs tell of equal numbers, but where another thread or a checkpoint has drawn
        drew_alike &= not any(any(nested_graphs(node)) for node in inside.graph.graph.nodes)
        if drew_alike and is_backward(own) and self.outputs_show_numbers(expected):
            return self.mismatch(beside((Tag.NOISE,)).difference(), (DRAWN_ANEW,))
        fed: Derandomized | None = None
        numbers: Derandomized | None = None
        inside.set_generators()
        with fence("numbers_not_taken_out"):  # then it is judged but for what others change
            fed = feed_recorded(inside.graph, inside.fresh())
        if fed is None or not fed.fed:
            runs = beside()
            self.leave_out(runs, difference := runs.difference())
            return self.mismatch(difference)
        with fence("draws_alone_failed"):  # a graph of ours, which the user never asked for
            numbers = verify_runs.draws_by(self.link, inside, fed)
        if numbers is not None:
            found = self.difference_beside(numbers, actual)
            if found is None:
                return None
            if drew_alike and is_backward(found) and not (is_backward(own) or fed.cut):
                return self.mismatch(found, (DRAWN_ANEW,))
        # a kernel of the backend's that draws is not in the graph that is compiled once more
        for name in (*fed.switched_off, *fed.left, *(fed.fed if as_eager else ())):
            self.facts.leave_out(f"what {name} draws is not judged")
        for name in fed.cut if self.gradients else ():
            note = f"the gradient of {name} is not judged, which draws random numbers"
            self.facts.leave_out(note)
        once_more = feed_recorded(inside.graph, inside.fresh(), masks=False, shows=True)
        if {*once_more.switched_off}.difference(fed.switched_off):
            # the backend's own attention takes no mask of its dropout, and is asked without
            note = "what attention drops out is not judged"
            self.facts.left_out = (*self.facts.left_out, note)
        return self.with_numbers(once_more).compiled_anew()

    def difference_beside(self, numbers: Derandomized, actual: dict[str, Any]) -> Difference | None:
        """How ``actual`` differs from what eager gives with these numbers: not at all where the
        graph is right and they are the backend's."""
        other = self.with_numbers(numbers)
        expected = other.before.eager(backward=bool(actual["gradients"]), may_refuse=True)
        for index in range(len(self.before.inputs), len(numbers.inputs)):
            expected["inputs_after"].pop(str(index), None)
        runs = comparison_of(actual, expected, other.before.eager, self.spec)
        self.leave_out(runs, difference := runs.difference())
        return difference

    def outputs_show_numbers(self, expected: dict[str, Any]) -> bool:
        """Whether eager's outputs differ with another seed, so equal ones tell of equal numbers."""
        again = self.before.eager(seed=OTHER_SEED, backward=False)
        again["gradients"] = None
        runs = comparison_of(again, expected, self.before.eager, self.spec, ())
        return runs.difference() is not None

    def with_numbers(self, fed: Derandomized) -> Verification:
        """The same call of a graph that gets its random numbers as inputs."""
        added = fed.inputs[len(self.before.inputs) :]
        inside = replace(self.before, graph=fed.graph_module, inputs=(*self.before.inputs, *added))
        return replace(self, before=inside)

    def compiled_anew(self) -> Failure | None:
        log.debug("compiled_once_more")
        inside, wants = self.before, self.gradients is not None
        expected = inside.eager(backward=wants, may_refuse=True)
        try:
            actual = verify_runs.run_compiled_anew(inside, self.link, backward=wants)
        except Exception as error:
            why = f"its random numbers could not be taken out: {reason_of(error)}"
            raise CannotCompare(why) from error
        runs = comparison_of(actual, expected, inside.eager, self.spec)
        self.leave_out(runs, found := runs.difference())
        if found is None and self.gradients:
            # of healthy training nobody is told
            self.facts.left_out = (*self.facts.left_out, NUMBERS_OF_BACKWARD)
        return self.mismatch(found, (RECORDED,))

    # ---- failures

    def mismatch(
        self, found: Difference | None, notes: tuple[str, ...] = (), direction: str = ""
    ) -> Failure | None:
        if found is None:
            return None
        where, inside = found["where"], self.before
        message = found["message"].replace(where, self.in_words(where), 1)
        error = AccuracyError(f"{self.link.name} gives wrong results: {message}", found)
        if where.startswith("output "):  # no value tells of gradients, nor who writes to an input
            node = verify_runs.first_differing_node(inside, self.link, self.spec)
            if node is not None:
                error.op, error.suspect_nodes = op_name(node), (node.name,)
        graph, inputs = inside.graph, inside.inputs
        way = Direction(direction or error.signature["direction"])
        return Failure(graph, inputs, self.link, Kind.ACCURACY, error, notes, way)

    def in_words(self, where: str) -> str:
        named_input = re.search(r"\binput (\d+)\b", where)
        if named_input is None:
            return where
        index = int(named_input[1])
        placeholders = self.before.graph.graph.find_nodes(op="placeholder")
        name = readable_name(str(placeholders[index].target))
        named = where.replace(f"input {index}", f"input {index} ({name})", 1)
        if index not in self.before.written:
            named = named.replace(" after the call", ", which eager leaves as it is,")
        return named


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A block of runs that read and set the process's random generators: no other thread's at once.

    Raises CannotCompare where another's takes too long: it may wait for this thread's next graph.
    """
    if not PROCESS.comparing.acquire(timeout=OTHERS_S):
        raise CannotCompare(f"a comparison in another thread has taken more than {OTHERS_S:.0f} s")
    try:
        yield
    finally:
        PROCESS.comparing.release()


def same_states(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether these are the same generators in the same states."""
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(torch.equal(state, now) for (_, state), (_, now) in pairs)


def is_backward(difference: Difference) -> bool:
    return bool(difference["signature"]["direction"] == Direction.BACKWARD)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A block without warnings and anomaly detection (NaN in a gradient is compared), whose casts
    autocast does not keep.

    They would hold on to copies until its own block ends.
    """
    with (
        torch_internals.outside_tracing(),
        torch_internals.without_warnings(),
        torch_internals.dropping_compile_stacks(),
        torch_internals.preserving_thread_state(),
    ):
        torch.set_autocast_cache_enabled(False)
        yield


def reason_of(trouble: Exception) -> str:
    if is_out_of_memory(trouble):
        return "memory ran out while eager ran beside the backend"
    return message_of(trouble) if isinstance(trouble, CannotCompare) else first_line_of(trouble)
