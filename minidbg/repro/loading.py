"""A script back into the case it was written from: its parts by their syntax, then its ``inputs()``
and its backend, which are run."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import fx

from minidbg import backends
from minidbg.backends.definitions import OF_SCRIPTS
from minidbg.backends.statements import first_line_number
from minidbg.codegen.inputs import as_scripts_do, write_inputs
from minidbg.codegen.module_text import write_graph_builder, write_module
from minidbg.codegen.origins import stack_trace
from minidbg.codegen.parse import read_module
from minidbg.core.errors import UnreadableRepro
from minidbg.core.files import open_regular
from minidbg.core.records import MALFORMED, describe_malformed
from minidbg.core.run_spec import BackendRef, CallPath
from minidbg.core.script_header import Header
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.repro.folder import tensors_of
from minidbg.repro.header import header_of, script_text
from minidbg.repro.render import EMBEDDED_MARK, KERNELS_MARK, SCRIPT_IMPORTS
from minidbg.torch_internals.devices import place_here

_module_numbers = itertools.count(1)


@contextlib.contextmanager
def stored_tensors(path: Path) -> Iterator[None]:
    """A block that reads them. Raises UnreadableRepro, naming their file, if damaged."""
    beside = tensors_of(path)
    try:
        with contextlib.suppress(FileNotFoundError), open_regular(beside):
            pass  # to open a pipe by itself would wait for ever
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and str(beside) not in str(error):
            raise
        why = getattr(error, "strerror", None) or str(error)
        raise UnreadableRepro(
            f"{beside}: its tensors cannot be read: {why}; copy the file anew, together with its script"
        ) from error


def load(path: Path | str) -> Case:
    """The case of the script at ``path``, written by us or edited by a person.

    What the script's backend needs is imported, and stays imported. Raises UnreadableRepro, and
    whatever the script's own code raises: a module that is not here, above all.
    """
    path = Path(path).absolute()
    text = script_text(path)
    header = header_of(text, path)
    parts = read_parts(text, header)
    compiler = backends.resolve(parts.backend)
    # where the definitions at the top have run, once: operators cannot be registered twice
    known = {**backends.namespace_of(parts.backend), "__file__": str(path), "_from_line": _from_line}
    # in ``graph()`` each node knows again its line of the user's code
    model = NODE_OF_LINE.sub(lambda line: f"_from_line({line[1]}, {stack_trace(line[0])!r})", parts.model)
    made = backends.run_as_module(
        f"minidbg_repro_{next(_module_numbers)}",
        "\n\n".join([parts.stored, parts.kernels, model, parts.inputs]),
        **known,
    )
    with stored_tensors(path), as_scripts_do():
        inputs = tuple(made["inputs"](place_here(header.spec.device)))
        if header.spec.call is CallPath.DIRECT:
            graph_module = made["graph"]()
        elif (graph_module := read_module(parts.model, made)) is None:
            graph_module, inputs = capture_by_dynamo(made["Repro"](), inputs, dynamic=header.spec.dynamic)
    taken = len(graph_module.graph.find_nodes(op="placeholder"))
    if taken != len(inputs):
        raise UnreadableRepro(f"{path}: inputs() gives {len(inputs)} values, the model takes {taken}")
    setup = _without_model(parts.backend.setup, graph_module, inputs, header.spec.call)
    spec = replace(header.spec, backend=replace(parts.backend, setup=setup))
    return Case(graph_module, inputs, spec, header.provenance, compiler)


NODE_OF_LINE = re.compile(r"(?m)(g\.create_node\(.*\))  # .+:\d+$")


def _from_line(node: fx.Node, trace: str) -> fx.Node:
    node.meta["stack_trace"] = trace
    return node


def _without_model(
    setup: tuple[str, ...], graph_module: fx.GraphModule, inputs: Sequence[Any], call: CallPath
) -> tuple[str, ...]:
    """``setup`` without the imports above it that the text of model and inputs needs, each once."""
    write = write_graph_builder if call is CallPath.DIRECT else write_module
    names = [f"x{index}" for index in range(len(inputs))]
    needed = {*write(graph_module).imports, *write_inputs(inputs, names, raw=True).imports}
    left = list(setup)
    for line in needed & set(setup):
        left.remove(line)
    return tuple(left)


@dataclass(frozen=True, slots=True)
class Parts:
    backend: BackendRef
    """What stands at the top of the script, imports of the model too."""
    model: str
    """``class Repro``, or ``def graph``."""
    inputs: str
    stored: str = ""
    kernels: str = ""
    """Triton kernels of the model, with what they look up."""


def read_parts(text: str, header: Header) -> Parts:
    """Raises UnreadableRepro for a script that Python or minidbg does not understand."""
    try:
        nodes = ast.parse(text).body
    except MALFORMED as error:
        raise UnreadableRepro(f"{header.path}: {describe_malformed(error)}") from error
    named = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    wanted = "graph" if header.spec.call is CallPath.DIRECT else "Repro"
    model, given = named.get(wanted), named.get("inputs")
    if model is None or given is None:
        missing = "inputs" if model else wanted
        call = "" if missing == "Repro" else "()"
        raise UnreadableRepro(f"{header.path}: it defines no {missing}{call}")
    lines, begin = text.split("\n"), first_line_number(model)
    kernels = lines.index(KERNELS_MARK) + 1 if KERNELS_MARK in lines else begin
    copied = lines.index(EMBEDDED_MARK) + 1 if EMBEDDED_MARK in lines else 0
    top = [
        node
        for node in nodes
        if not _is_ours(node, nodes) and not (kernels < first_line_number(node) < begin)
    ]
    assigned = [node for node in reversed(top) if isinstance(node, ast.Assign)]
    chosen = next((node for node in assigned if ast.unparse(node.targets[0]) == "backend"), None)
    top = [node for node in top if node is not chosen]
    end = min(kernels, first_line_number(chosen) if chosen else begin)
    setup = list(itertools.takewhile(lambda node: not isinstance(node, ast.FunctionDef | ast.ClassDef), top))
    if copied:
        setup = [node for node in setup if node.lineno <= copied]
    added = [
        node for node in top if node not in setup and not (copied and copied < first_line_number(node) < end)
    ]
    embedded = ["\n".join(lines[copied : end - 1]).strip("\n")] if copied else []
    embedded += [segment_of(text, node) for node in added]
    plain = header.spec.backend
    # a definition called backend, where nothing is assigned
    expression = (
        ast.get_source_segment(text, getattr(chosen, "value", None) or model) if chosen else "backend"
    )
    found = replace(
        plain,
        setup=tuple(segment_of(text, node) for node in setup),
        embedded="\n\n\n".join(embedded),
        expression=expression or "",
    )
    lacks_it = found.lacks_backend or backends.is_pickled(found)
    return Parts(
        backend=found if lacks_it else replace(found, missing_backend=""),
        model=segment_of(text, model),
        inputs=segment_of(text, given),
        stored=segment_of(text, named["stored"]) if "stored" in named else "",
        kernels="\n".join(lines[kernels : begin - 1]),
    )


def _is_ours(node: ast.stmt, nodes: list[ast.stmt]) -> bool:
    """Whether a statement is part of each script, or of what judges it."""
    match node:
        case ast.Expr():
            return node is nodes[0] or ast.unparse(node).startswith("__import__('os').environ")
        case ast.If():
            return "__main__" in ast.unparse(node.test)
        case ast.AugAssign():
            return ast.unparse(node.target) == "sys.path"
        case ast.Import() | ast.ImportFrom():
            return ast.unparse(node) in SCRIPT_IMPORTS
    return getattr(node, "name", None) in OF_SCRIPTS


def segment_of(text: str, node: ast.stmt) -> str:
    """Its lines, with the comment behind it."""
    return "\n".join(text.split("\n")[first_line_number(node) - 1 : node.end_lineno])
