"""A script back into the case it was written from; this runs its ``inputs()`` and its backend's imports."""

from __future__ import annotations

import ast
import itertools
import linecache
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx

from minidbg import references
from minidbg.case import BackendRef, CallPath, Case, Level
from minidbg.errors import UnreadableRepro
from minidbg.graphs import capture_by_dynamo, recipes, tensors, write_module
from minidbg.graphs.comments import comments_by_line, stack_trace
from minidbg.graphs.constructed import all_imports_of
from minidbg.graphs.parse import NotOurForm, read_module
from minidbg.graphs.source import by_name, write_graph_builder
from minidbg.repro.header import Header, header_of, script_text
from minidbg.repro.parts import Parts, backend_of, read_parts

_numbers = itertools.count(1)


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
    compiler = references.resolve(reference)
    namespace = _namespace(path, parts, reference)
    with tensors.as_scripts_do([header.device]):
        values = tuple(namespace["inputs"](header.device))
    with tensors.as_scripts_do():
        graph_module, inputs = _graph(parts, header, namespace, values)
    _remember_constants(parts.model, graph_module)
    allowed: Any = header.table.get("tolerances", {})
    reference = replace(
        reference, setup=(*_added_imports(parts, graph_module, inputs, header.call), *reference.setup)
    )
    return Case(
        graph_module,
        inputs,
        reference,
        header.context,
        header.signature,
        header.call,
        Level(header.table.get("level", Level.DYNAMO)),
        dynamic=header.table.get("dynamic"),
        dynamic_dims=tuple(tuple(dims) for dims in header.table.get("dynamic_dims", ())),
        backward=bool(header.table.get("backward", False)),
        attempts=int(header.table.get("attempts", 1)),
        tolerances=allowed
        if isinstance(allowed, str)
        else {name: (low, high) for name, (low, high) in allowed.items()},
        match=header.table.get("match"),
        provenance=header.provenance,
        compiler=compiler,
    )


def _namespace(path: Path, parts: Parts, reference: BackendRef) -> dict[str, Any]:
    """The globals of the script's own definitions, in a module that can be found by its name: dynamo looks for it."""
    name = f"minidbg_repro_{next(_numbers)}"
    module = types.ModuleType(name)
    namespace = module.__dict__
    if reference.embedded:
        # Evaluated where resolve has run the embedded definitions, once: operators cannot be registered twice.
        namespace.update(
            cast(Any, references.resolve(replace(reference, setup=(), expression="dict(globals())")))
        )
    namespace.update(__name__=name, __file__=str(path), torch=torch)
    sys.modules[name] = module
    text = "\n\n".join([*parts.imports, parts.stored, parts.model, parts.inputs])
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), namespace)
    return namespace


def _graph(
    parts: Parts, header: Header, namespace: Mapping[str, Any], values: tuple[Any, ...]
) -> tuple[fx.GraphModule, tuple[Any, ...]]:
    """The graph and the values of its placeholders: exactly as written where it is our form, else as dynamo sees it."""
    if header.call is CallPath.DIRECT:
        graph_module: fx.GraphModule = namespace["graph"]()
    else:
        try:
            graph_module = read_module(parts.model, namespace)
        except NotOurForm:
            return capture_by_dynamo(namespace["Repro"](), values, dynamic=header.table.get("dynamic"))
    names = [node.name for node in graph_module.graph.nodes if node.op == "placeholder"]
    if len(names) != len(values):
        raise UnreadableRepro(
            f"{header.path}: inputs() gives {len(values)} values, the model takes {len(names)}"
        )
    _remember_inputs(parts.inputs, names, values)
    return graph_module, values


def _remember_inputs(function: str, names: Sequence[str], values: Sequence[Any]) -> None:
    made = recipes.read_recipes(function, names)
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
            recipes.remember(value, recipe)
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
            value, text = _attribute(owner, name), recipes.dedented(model, expression, column)
            if isinstance(value, Tensor) and "stored(" not in text:
                recipes.remember(value, recipes.Recipe("value", (f"value = {text}",)))


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
    """For a class or a builder, and those nested in it: the path to its module, and the function that makes its parts."""
    body = definition.body if isinstance(definition, ast.ClassDef | ast.FunctionDef) else []
    nested = {node.name: node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    maker = nested.get("__init__", definition)
    if not isinstance(maker, ast.FunctionDef):
        return
    builds: list[_Build] = []
    for statement in maker.body:
        name, value = _assigned(statement) if isinstance(statement, ast.Assign | ast.Expr) else (None, None)
        if name is None or value is None:
            continue
        called = ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
        inner = nested.get(called)
        if inner is not None:
            yield from _makers(inner, f"{prefix}.{name}".strip("."))
        else:
            builds.append((name, _inside_parameter(value), statement.col_offset))
    yield prefix, maker, builds


def _assigned(statement: ast.Assign | ast.Expr) -> tuple[str | None, ast.expr | None]:
    """Attribute path and value of ``self.a.b = value`` or ``self.a.register_buffer("b", value)``; ``root`` as ``self``."""
    if isinstance(statement, ast.Assign):
        target = ast.unparse(statement.targets[0]).partition(".")
        return (target[2], statement.value) if target[0] in ("self", "root") and target[2] else (None, None)
    call = statement.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(call.args) != 2:
        return None, None
    owner = ast.unparse(call.func.value).partition(".")
    key = call.args[0]
    if (
        call.func.attr != "register_buffer"
        or owner[0] not in ("self", "root")
        or not isinstance(key, ast.Constant)
    ):
        return None, None
    return ".".join(part for part in (owner[2], str(key.value)) if part), call.args[1]


def _inside_parameter(value: ast.expr) -> ast.expr:
    is_parameter = isinstance(value, ast.Call) and ast.unparse(value.func) == "torch.nn.Parameter"
    return value.args[0] if is_parameter and isinstance(value, ast.Call) and value.args else value


def _added_imports(
    parts: Parts, graph_module: fx.GraphModule, inputs: Sequence[Any], call: CallPath
) -> tuple[str, ...]:
    """Imports at the top of the script that the text of model and inputs does not ask for: a person put them there."""
    write = write_graph_builder if call is CallPath.DIRECT else write_module
    needed = {*write(graph_module, constant_expression=by_name).imports, *all_imports_of(inputs)}
    return tuple(line for line in parts.imports if line not in needed)
