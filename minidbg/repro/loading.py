"""A script back into the case it was written from: its parts by their syntax, then its ``inputs()`` and its backend, which are run."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, fx

from minidbg import backends
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.repro.folder import tensors_of
from minidbg.repro.header import Header, header_of, script_text
from minidbg.repro.near import with_whole_paths
from minidbg.repro.render import EMBEDDED_MARK, KERNELS_MARK, OWN_NAMES, SCRIPT_IMPORTS
from minidbg.source import origins, tensors
from minidbg.source.expressions import quoted
from minidbg.source.module_text import by_name, write_graph_builder, write_module
from minidbg.source.origins import comments_by_line, dedented, stack_trace
from minidbg.source.parse import NotOurForm, read_module
from minidbg.source.specs import all_imports_of
from minidbg.words.errors import UnreadableRepro
from minidbg.words.files import open_regular
from minidbg.words.records import damage_in_words
from minidbg.words.run_spec import DAMAGE, BackendRef, CallPath
from minidbg.words.script_header import backend_in

_numbers = itertools.count(1)


def inputs_on(path: Path, device: str) -> tuple[Any, ...]:
    text = script_text(path)
    header = header_of(text, path)
    parts = read_parts(text, header)
    namespace = _namespace(path, parts, backend_of(parts, header))
    with stored_tensors(path), tensors.as_scripts_do([device]):
        return tuple(namespace["inputs"](device))


@contextlib.contextmanager
def stored_tensors(path: Path) -> Iterator[None]:
    """A block in which the script at ``path`` may read its tensors. Raises UnreadableRepro, which names their file, where they are damaged."""
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

    What the script's backend needs is imported, and stays imported. Raises UnreadableRepro, and whatever the script's own
    code raises: a module that is not here, above all.
    """
    path = Path(path).absolute()
    text = script_text(path)
    header = header_of(text, path)
    parts = read_parts(text, header)
    reference = backend_of(parts, header)
    compiler = backends.resolve(reference)
    namespace = _namespace(path, parts, reference)
    with stored_tensors(path), tensors.as_scripts_do([header.spec.device]):
        values = tuple(namespace["inputs"](header.spec.device))
    with stored_tensors(path), tensors.as_scripts_do():
        graph_module, inputs = _graph(parts, header, namespace, values)
    _remember_constants(parts.model, graph_module)
    added = _added_imports(parts, graph_module, inputs, header.spec.call)
    spec = replace(header.spec, backend=replace(reference, setup=(*added, *reference.setup)))
    return Case(graph_module, inputs, spec, header.provenance, compiler)


def _namespace(path: Path, parts: Parts, reference: BackendRef) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if reference.embedded:
        # Evaluated where resolve has run the embedded definitions, once: operators cannot be registered twice.
        known |= cast(Any, backends.resolve(replace(reference, setup=(), expression="dict(globals())")))
    known |= {"__file__": str(path), "torch": torch}
    text = "\n\n".join([*parts.imports, parts.stored, parts.kernels, parts.model, parts.inputs])
    return backends.run_as_module(f"minidbg_repro_{next(_numbers)}", text, **known)


def _graph(
    parts: Parts, header: Header, namespace: Mapping[str, Any], values: tuple[Any, ...]
) -> tuple[fx.GraphModule, tuple[Any, ...]]:
    if header.spec.call is CallPath.DIRECT:
        graph_module: fx.GraphModule = namespace["graph"]()
    else:
        try:
            graph_module = read_module(parts.model, namespace)
        except NotOurForm:
            return capture_by_dynamo(namespace["Repro"](), values, dynamic=header.spec.dynamic)
    names = [node.name for node in graph_module.graph.nodes if node.op == "placeholder"]
    if len(names) != len(values):
        raise UnreadableRepro(
            f"{header.path}: inputs() gives {len(values)} values, the model takes {len(names)}"
        )
    _remember_inputs(parts.inputs, names, values)
    return graph_module, values


def _remember_inputs(function: str, names: Sequence[str], values: Sequence[Any]) -> None:
    made = origins.read_recipes(function, names)
    seen: set[int] = set()
    for name, value in zip(names, values, strict=True):
        recipe = made.get(name)
        if (
            isinstance(value, Tensor)
            and recipe is not None
            and id(value) not in seen
            # the file lies beside that script; what is written next has a file of its own, or none
            and not any("stored(" in text for text in recipe.statements)
        ):
            origins.remember(value, recipe)
        seen.add(id(value))


def _remember_constants(model: str, graph_module: fx.GraphModule) -> None:
    """Keep the expressions by which ``__init__``, or ``graph()``, makes tensors; and of ``graph()`` the comments."""
    definition = ast.parse(model).body[0]
    comments = comments_by_line(model)
    for prefix, maker, builds in _makers(definition, ""):
        owner = _attribute(graph_module, prefix)
        if isinstance(owner, fx.GraphModule) and isinstance(definition, ast.FunctionDef):
            _remember_locations(maker, comments, owner)
        for name, expression, column in builds:
            value, text = _attribute(owner, name), origins.dedented(model, expression, column)
            if isinstance(value, Tensor) and "stored(" not in text:
                origins.remember(value, origins.Recipe("value", (f"value = {text}",)))


def _attribute(owner: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        owner = getattr(owner, part, None)
    return owner


def _remember_locations(
    maker: ast.FunctionDef, comments: Mapping[int, str], graph_module: fx.GraphModule
) -> None:
    """Nodes that were built line by line know again which line of the user's they came from."""
    nodes = {node.name: node for node in graph_module.graph.nodes}
    for statement in maker.body:
        call = getattr(statement, "value", None)
        name = call.args[-1] if isinstance(call, ast.Call) and call.args else None
        trace = stack_trace(comments.get(statement.end_lineno or 0, ""))
        if trace and isinstance(name, ast.Constant) and name.value in nodes:
            nodes[name.value].meta["stack_trace"] = trace


_Build = tuple[str, ast.expr, int]
"""Attribute path, the expression that makes it, and the column of its statement."""


def _makers(definition: ast.stmt, prefix: str) -> Iterator[tuple[str, ast.FunctionDef, list[_Build]]]:
    """For a class or a builder, and those nested in it: the path to its module, and the function that makes its parts.

    Parts are made by ``self.a.b = value`` or ``self.a.register_buffer("b", value)``; in a builder ``root`` stands for ``self``.
    """
    body = definition.body if isinstance(definition, ast.ClassDef | ast.FunctionDef) else []
    nested = {node.name: node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    maker = nested.get("__init__", definition)
    if not isinstance(maker, ast.FunctionDef):
        return
    builds: list[_Build] = []
    for statement in maker.body:
        match statement:
            case ast.Assign([ast.Attribute(owner, str(key)), *_], value):
                pass
            case ast.Expr(ast.Call(ast.Attribute(owner, "register_buffer"), [ast.Constant(str(key)), value])):
                pass
            case _:
                continue
        root, _, name = f"{ast.unparse(owner)}.{key}".partition(".")
        if root not in ("self", "root"):
            continue
        called = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
        inner = nested.get(called.rpartition(".")[2])
        if inner is not None:
            yield from _makers(inner, f"{prefix}.{name}".strip("."))
            continue
        if isinstance(value, ast.Call) and called == "torch.nn.Parameter" and value.args:
            value = value.args[0]
        builds.append((name, value, statement.col_offset))
    yield prefix, maker, builds


def _added_imports(
    parts: Parts, graph_module: fx.GraphModule, inputs: Sequence[Any], call: CallPath
) -> tuple[str, ...]:
    """Imports at the top of the script that the text of model and inputs does not ask for: a person put them there."""
    write = write_graph_builder if call is CallPath.DIRECT else write_module
    needed = {*write(graph_module, constant_expression=by_name).imports, *all_imports_of(inputs)}
    return tuple(line for line in parts.imports if line not in needed)


@dataclass(frozen=True, slots=True)
class Parts:
    model: str
    """``class Repro``, or ``def graph``."""
    inputs: str
    backend: str
    stored: str = ""
    kernels: str = ""
    """Triton kernels of the model, with what they look up."""
    imports: tuple[str, ...] = ()
    """Import statements at the top level, above the judge, without those that every script has."""
    copied: str = ""
    """What was embedded when the script was written."""
    added: str = ""
    """All other definitions above the judge: a person's."""


def read_parts(text: str, header: Header) -> Parts:
    """The parts of the script ``text``. Raises UnreadableRepro for a script that Python or minidbg does not understand."""
    try:
        nodes = ast.parse(text).body
    except DAMAGE as error:
        raise UnreadableRepro(f"{header.path}: {damage_in_words(error)}") from error
    named = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    wanted = "graph" if header.spec.call is CallPath.DIRECT else "Repro"
    model, given = named.get(wanted), named.get("inputs")
    if model is None or given is None:
        missing = "inputs" if model else wanted
        raise UnreadableRepro(f"{header.path}: it defines no {missing}{'' if missing == 'Repro' else '()'}")
    own = named.get("backend")  # none where the backend is a name, or one of the script's functions
    name = "" if own else backend_in(text) or quoted(header.spec.backend.name)
    lines = text.split("\n")
    start = lines.index(EMBEDDED_MARK) + 1 if EMBEDDED_MARK in lines else 0
    mark = lines.index(KERNELS_MARK) + 1 if KERNELS_MARK in lines else _first_line(model)
    end = min(_first_line(own or model), mark)
    loader = named.get("load_by_path")  # our own, at the beginning of what was copied
    after_loader = loader.end_lineno if loader and start < loader.lineno < end else start
    others = [
        node
        for node in _not_ours(nodes)
        if not (start and start < node.lineno < end) and not mark < node.lineno < _first_line(model)
    ]
    return Parts(
        model=source_of(text, model),
        inputs=source_of(text, given),
        backend=source_of(text, own) if own else f"def backend():\n    return {name}",
        stored=source_of(text, named["stored"]) if "stored" in named else "",
        kernels="\n".join(lines[mark : _first_line(model) - 1]),
        imports=tuple(
            line for line in map(ast.unparse, filter(_is_import, others)) if line not in SCRIPT_IMPORTS
        ),
        copied="\n".join(lines[after_loader : end - 1]).strip("\n") if start else "",
        added="\n\n\n".join(source_of(text, node) for node in others if not _is_import(node)),
    )


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def source_of(text: str, node: ast.stmt) -> str:
    return "\n".join(text.split("\n")[_first_line(node) - 1 : node.end_lineno])


def _first_line(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    return min([node.lineno, *(one.lineno for one in decorators)])


def _not_ours(nodes: list[ast.stmt]) -> list[ast.stmt]:
    def is_ours(node: ast.stmt) -> bool:
        match node:
            case ast.Expr():
                return node is nodes[0]
            case ast.If():
                return "__main__" in ast.unparse(node.test)
            case ast.AugAssign():
                return ast.unparse(node.target) == "sys.path"
        return getattr(node, "name", None) in OWN_NAMES

    return [node for node in nodes if not is_ours(node)]


def backend_of(parts: Parts, header: Header) -> BackendRef:
    """The reference that the script's ``def backend()`` stands for, as it is written now."""
    plain = replace(header.spec.backend, embedded=_embedded(parts, parts.added))
    function = ast.parse(parts.backend).body[0]
    assert isinstance(function, ast.FunctionDef)
    comments = [
        node for node in function.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    *setup, last = [node for node in function.body if node not in comments] or [ast.Pass()]
    returns = any(isinstance(part, ast.Return) for node in setup for part in ast.walk(node))
    if isinstance(last, ast.Return) and last.value is not None and not returns:
        lines = with_whole_paths([dedented(parts.backend, node) for node in setup], header.spec.backend.files)
        found = replace(plain, setup=lines, expression=dedented(parts.backend, last.value))
        lacks_it = found.is_to_be_filled_in or backends.is_pickled(found)
        return found if lacks_it else replace(found, fill_in="")
    # A person made more of it than imports and a value: it is kept whole, under another name.
    whole = re.sub(r"\bdef backend\b", "def make_backend", parts.backend, count=1)
    added = f"{parts.added}\n\n\n{whole}".strip("\n")
    return replace(plain, embedded=_embedded(parts, added), expression="make_backend()", fill_in="")


def _embedded(parts: Parts, added: str) -> str:
    """What was embedded, and what a person added, with the imports at the top of the script that they count on."""
    future, torch = SCRIPT_IMPORTS[0], SCRIPT_IMPORTS[-1]
    imports = (future, torch) if added else (future,) if parts.copied else ()
    more = parts.imports if added else ()
    head = "\n".join(line for line in (*imports, *more) if line not in parts.copied.split("\n"))
    return "\n\n\n".join(part for part in (head, parts.copied, added) if part)
