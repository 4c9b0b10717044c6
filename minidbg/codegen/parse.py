"""Our own straight-line source, read back into the very graph it was written from: a statement is a
node, whose arguments Python evaluates.

Nothing is traced, so nothing is folded, dropped or reordered. Whether a text is ours is asked once,
at the end: what is not written again as it stands was edited by a person, and dynamo can capture it
(``capture_by_dynamo``).
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import fx, nn

from minidbg import torch_internals
from minidbg.codegen.expressions import BINARY, UNARY
from minidbg.codegen.module_text import write_module
from minidbg.codegen.names import Names
from minidbg.codegen.origins import stack_trace
from minidbg.fx.effects import FORMS
from minidbg.torch_internals.operators import GET_DATA

Operation = tuple[str, Any, tuple[Any, ...], dict[str, Any]]
"""The kind of a node, its target, arguments and keywords."""


def read_module(class_source: str, namespace: dict[str, Any]) -> fx.GraphModule | None:
    """The graph module of ``class_source``; None where ``write_module`` writes none like it.
    ``namespace``: the class and its needs. ``forward`` is only read; an instance has constants."""
    (definition,) = ast.parse(class_source).body
    assert isinstance(definition, ast.ClassDef)
    lines = class_source.split("\n")
    made: dict[int, fx.GraphModule] = {}

    def read(definition: ast.ClassDef, instance: nn.Module) -> fx.GraphModule:
        if id(instance) in made:
            return made[id(instance)]
        nested = {item.name: item for item in definition.body if isinstance(item, ast.ClassDef)}
        (forward,) = (item for item in definition.body if getattr(item, "name", "") == "forward")
        graph = _ForwardReader(forward, namespace, lines).graph
        root: dict[str, Any] = {}
        for node in graph.nodes:
            if node.op in ("get_attr", "call_module"):
                value = root[node.target] = getattr(instance, node.target)
                if inner := nested.get(type(value).__name__):
                    root[node.target] = read(inner, value)
        made[id(instance)] = torch_internals.lazy_graph_module(root, graph)
        return made[id(instance)]

    with torch.random.fork_rng(devices=[]):
        outermost = namespace[definition.name]()
        try:
            graph_module = read(definition, outermost)
            again = write_module(graph_module).text
        except Exception:  # noqa: BLE001 - what a person wrote may raise anything if taken for ours
            return None
    return graph_module if _without_init(again) == _without_init(class_source) else None


def _without_init(class_source: str) -> str:
    tree = ast.parse(class_source)
    for one in ast.walk(tree):
        if isinstance(one, ast.ClassDef):
            one.body = [item for item in one.body if getattr(item, "name", "") != "__init__"]
    return ast.dump(tree)


class _ForwardReader:
    def __init__(self, forward: Any, namespace: dict[str, Any], lines: Sequence[str]) -> None:
        self.graph = fx.Graph()
        self._namespace = namespace
        self._lines = lines
        self._values: dict[str, Any] = {"self": numpy.s_}  # no node has this name
        names = (item for item in ast.walk(forward) if isinstance(item, ast.arg | ast.Name))
        self._free_names = Names(one.arg if isinstance(one, ast.arg) else one.id for one in names)
        for parameter in forward.args.args[1:]:
            name = parameter.arg
            self._values[name] = self._add(("placeholder", name, (), {}), name)
        for statement in forward.body:
            self._read(statement)

    def _read(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Return(value=value):
                self.graph.output(self._value(value))
                return
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                node = self._values[name] = self._add(self._operation(value), name)
            case ast.Assign(targets=[ast.Subscript() as target], value=value):
                args = (*self._item(target), self._value(value))
                node = self._add(("call_function", operator.setitem, args, {}))
            case ast.Expr(value=value):
                node = self._add(self._operation(value))
            case ast.With(items=[ast.withitem(context_expr=ast.Call() as call)], body=body):
                form = next(form for form in FORMS if form.manager is self._value(call.func))
                node = self._add(("call_function", form.enter, *self._given(call)))
                for inner in body:
                    if not isinstance(inner, ast.Pass):
                        self._read(inner)
                self._add(("call_function", form.exit, (node,), {}))
            case _:
                raise TypeError(f"a {type(statement).__name__} is no node")
        if trace := stack_trace(self._lines[statement.lineno - 1]):
            node.meta["stack_trace"] = trace

    def _add(self, operation: Operation, name: str = "") -> fx.Node:
        target = operation[1]
        name = name or self._free_names.free(str(getattr(target, "__name__", target)))
        return self.graph.create_node(*operation, name=name)

    def _operation(self, expression: ast.expr) -> Operation:
        match expression:
            case ast.BinOp(a, op, b) | ast.Compare(a, [op], [b]):
                return "call_function", SYMBOLS[type(op)], (self._value(a), self._value(b)), {}
            case ast.UnaryOp(op=op, operand=operand):
                return "call_function", SYMBOLS[type(op)], (self._value(operand),), {}
            case ast.Subscript():
                return "call_function", operator.getitem, self._item(expression), {}
            case ast.Attribute(ast.Name("self"), attr):
                return "get_attr", attr, (), {}
            case ast.Attribute(ast.Name(id=name), "data"):
                return "call_function", GET_DATA, (self._values[name],), {}
            case ast.Attribute(ast.Name(id=name), attr):
                return "call_function", getattr, (self._values[name], attr), {}
            case ast.Call(ast.Attribute(ast.Name("self"), attr)):
                return "call_module", attr, *self._given(expression)
            case ast.Call(ast.Attribute(ast.Name(id=name), attr)) if name in self._values:
                args, kwargs = self._given(expression)
                return "call_method", attr, (self._values[name], *args), kwargs
            case ast.Call(ast.Subscript(kernel, grid)):  # a user's Triton kernel
                launched = (self._value(kernel), self._value(grid), *self._given(expression))
                target, kwargs = torch_internals.launch_arguments(*launched)
                return "call_function", target, (), kwargs
            case ast.Call(func=function):
                return "call_function", self._value(function), *self._given(expression)
        raise TypeError(f"a {type(expression).__name__} is no node")

    def _given(self, call: ast.Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        kwargs: dict[str, Any] = {}
        for one in call.keywords:
            value = self._value(one.value)
            kwargs |= {one.arg: value} if one.arg else value
        return tuple(map(self._value, call.args)), kwargs

    def _item(self, expression: ast.Subscript) -> tuple[Any, Any]:
        index = ast.Subscript(ast.Name("self", ast.Load()), expression.slice, ast.Load())
        return self._value(expression.value), self._value(ast.fix_missing_locations(index))

    def _value(self, expression: Any) -> Any:
        match expression:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in self._values:
                return self._values[name]
        code = compile(ast.Expression(expression), "<argument>", "eval")
        return eval(code, self._namespace, self._values)


def _symbol(text: str) -> type:
    expression: Any = ast.parse(text, mode="eval").body
    return type(expression.ops[0] if isinstance(expression, ast.Compare) else expression.op)


SYMBOLS = {_symbol(f"a {symbol} b"): function for function, symbol in BINARY.items()}
SYMBOLS |= {_symbol(f"{symbol}a"): function for function, symbol in UNARY.items()}
