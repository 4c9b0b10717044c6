"""Small passes for small graphs: outputs, modes, single nodes, inputs. Their last round is the certificate."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from minidbg.graphs.edit import alike
from minidbg.graphs.effects import Mode, is_call, mode_of
from minidbg.reduce.problem import Candidate, ReductionProblem


def drop_modes(problem: ReductionProblem) -> None:
    """Try without autocast and grad-mode changes. Cost: one call, none where there are none."""
    nodes = problem.best.calls
    if any(mode_of(node) is not Mode.NONE for node in nodes):
        problem.consider(problem.extract(set(nodes), modes=False))


def drop_outputs(problem: ReductionProblem) -> None:
    """Try with only the outputs that nothing else uses, then without each one. Cost: one call for each output."""
    recording = problem.recording
    spare = [
        node for node in recording.outputs if node.users.keys() - {recording.nodes[-1]} or not is_call(node)
    ]
    if len(recording.outputs) > 1 and len(spare) > 1:
        needed = set(recording.outputs) - set(spare)
        if problem.consider(problem.extract(set(problem.best.calls), outputs=needed, passed_through=True)):
            return
    for name in [node.name for node in spare] if len(recording.outputs) > 1 else []:
        outputs = {node for node in problem.recording.outputs if node.name != name}
        if outputs:
            problem.consider(problem.extract(set(problem.best.calls), outputs=outputs, passed_through=True))


def drop_nodes(problem: ReductionProblem) -> None:
    """Try to put each node's recorded value in its place, last first. Cost: one call for each node."""
    for name in reversed([node.name for node in problem.best.calls if mode_of(node) is Mode.NONE]):
        nodes = {node for node in problem.best.calls if node.name != name}
        if len(nodes) < len(problem.best.calls):
            before = problem.best
            if not problem.consider(candidate := problem.extract(nodes)) and problem.best is before:
                problem.neighbour = candidate or problem.neighbour


def bypass_nodes(problem: ReductionProblem) -> None:
    """Try to put a same-shaped input of a node in its place. Cost: one call for each such input."""
    for name in reversed([node.name for node in problem.best.calls if mode_of(node) is Mode.NONE]):
        for candidate in _bypasses(problem, name):
            if problem.consider(candidate):
                break


def _bypasses(problem: ReductionProblem, name: str) -> Iterator[Candidate | None]:
    recording = problem.recording
    node = next((node for node in problem.best.calls if node.name == name), None)
    if node is None or not node.users:
        return
    for source in node.all_input_nodes:
        if alike(recording.facts, source, node):
            yield problem.extract(set(problem.best.calls) - {node}, stand_ins={node: source})


def drop_inputs(problem: ReductionProblem) -> None:
    """Try to do without each input: an element of a list, or an argument that may be None. Cost: one call for each."""
    for name in reversed([node.name for node in problem.recording.placeholders]):
        node = next((node for node in problem.recording.placeholders if node.name == name), None)
        if node is not None:
            problem.consider(_without_input(problem, node))


def _without_input(problem: ReductionProblem, node: fx.Node) -> Candidate | None:
    return problem.extract(set(problem.best.calls), without={node}) if node.users else None
