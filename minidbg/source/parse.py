"""Our own straight-line source, read back into the very graph it was written from, by its syntax tree.

Nothing is traced, so nothing is folded, dropped or reordered. Source that a person has edited beyond our
form raises ``NotOurForm``; dynamo can capture that (``capture_by_dynamo``).
"""

from __future__ import annotations

import ast
import builtins
import operator
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn

from minidbg import torch_internals
from minidbg.fx.effects import FORMS
from minidbg.fx.ranks import is_maker
from minidbg.source.attributes import used_targets
from minidbg.source.expressions import BINARY, GET_DATA, UNARY
from minidbg.source.names import Names
from minidbg.source.origins import comments_by_line, stack_trace
from minidbg.words.errors import MinidbgError

LITERAL_MAKERS: tuple[Any, ...] = (float, complex, slice, range, torch.device, torch.Size)
"""What may be called inside an argument; every other call is a node and a statement of its own."""


class NotOurForm(MinidbgError):
    """The source is not the straight line that ``write_module`` writes; the message has the line."""

    def __init__(self, why: str, node: ast.AST | None = None) -> None:
        line = getattr(node, "lineno", None)
        where = f"line {line} of the class" if line else "the class"
        super().__init__(f"{where}: {why}; only the form that minidbg writes can be read without tracing it")


def read_module(class_source: str, namespace: Mapping[str, Any]) -> fx.GraphModule:
    """The graph module that ``class_source``, one class, was written from.

    ``namespace`` has what the class refers to: ``torch``, the imports, what the constants are made of.
    The class is run once to make its constants; ``forward`` is only read.
    Raises NotOurForm.
    """
    text = textwrap.dedent(class_source)
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        raise NotOurForm(f"it does not parse: {error}") from error
    if len(body) != 1 or not isinstance(body[0], ast.ClassDef):
        raise NotOurForm("it is not exactly one class")
    definition = body[0]
    _check_init(definition)
    own, comments = dict(namespace), comments_by_line(text)
    exec(compile(text, "<repro class>", "exec", dont_inherit=True), own)
    with torch.random.fork_rng(devices=[]):
        outermost = own[definition.name]()
    made: dict[int, fx.GraphModule] = {}

    def read(definition: ast.ClassDef, instance: nn.Module) -> fx.GraphModule:
        """The graph module of ``instance``, an instance of the class ``definition``; one for each instance."""
        if id(instance) in made:
            return made[id(instance)]
        nested = {item.name: item for item in definition.body if isinstance(item, ast.ClassDef)}
        functions = {item.name: item for item in definition.body if isinstance(item, ast.FunctionDef)}
        if "forward" not in functions:
            raise NotOurForm("it has no forward", definition)
        graph = _ForwardReader(functions["forward"], own, comments).graph
        root: dict[str, Any] = {}
        for target in used_targets(graph):
            try:
                value: Any = operator.attrgetter(target)(instance)
            except AttributeError:
                raise NotOurForm(f"forward uses self.{target}, which __init__ does not make") from None
            inner = nested.get(type(value).__name__) if isinstance(value, nn.Module) else None
            is_ours = type(value).__qualname__ == f"{type(instance).__qualname__}.{type(value).__name__}"
            if inner is not None and is_ours:
                value = read(inner, value)
            elif isinstance(value, nn.Module):
                raise NotOurForm(f"self.{target} is a module, which dynamo inlines")
            root[target] = value
        made[id(instance)] = torch_internals.lazy_graph_module(root, graph)
        return made[id(instance)]

    return read(definition, outermost)


def _check_init(definition: ast.ClassDef) -> None:
    if definition.decorator_list or definition.keywords:
        raise NotOurForm("a class has no decorator and no metaclass", definition)
    for item in definition.body:
        if isinstance(item, ast.ClassDef):
            _check_init(item)
        elif isinstance(item, ast.FunctionDef) and item.name == "__init__":
            if len(item.args.args) != 1 or item.args.kwonlyargs or item.args.vararg or item.args.kwarg:
                raise NotOurForm("its __init__ takes arguments", item)
        elif not (isinstance(item, ast.FunctionDef) and item.name == "forward"):
            raise NotOurForm("a class holds only nested classes, __init__ and forward", item)


class _ForwardReader:
    def __init__(
        self, forward: ast.FunctionDef, namespace: Mapping[str, Any], comments: Mapping[int, str]
    ) -> None:
        self.graph = fx.Graph()
        self._namespace = namespace
        self._comments = comments
        self._locals: dict[str, fx.Node] = {}
        names = (item for item in ast.walk(forward) if isinstance(item, ast.arg | ast.Name))
        self._free_names = Names(one.arg if isinstance(one, ast.arg) else one.id for one in names)
        self._read_parameters(forward)
        *statements, last = forward.body
        for statement in statements:
            self._read_statement(statement)
        if not isinstance(last, ast.Return):
            raise NotOurForm("forward does not end in return", last)
        self.graph.output(None if last.value is None else self._value(last.value))

    def _read_parameters(self, forward: ast.FunctionDef) -> None:
        args = forward.args
        if args.vararg or args.kwarg or args.kwonlyargs or args.posonlyargs or forward.decorator_list:
            raise NotOurForm("forward takes plain parameters only", forward)
        names = args.args[1:]
        defaults = [None] * (len(names) - len(args.defaults)) + list(args.defaults)
        for arg, default in zip(names, defaults, strict=True):
            given = () if default is None else (self._value(default),)
            self._locals[arg.arg] = self._add("placeholder", arg.arg, given, {}, arg.arg)

    def _read_statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name in self._locals or name == "self":
                    raise NotOurForm(f"{name!r} is assigned twice", statement)
                self._locals[name] = self._located(self._node(value, name), statement)
            case ast.Assign(targets=[ast.Subscript(value=owner, slice=index)], value=value):
                args = (self._local(owner), self._index(index), self._value(value))
                self._located(self._add("call_function", operator.setitem, args, {}, None), statement)
            case ast.Expr(value=value):
                self._located(self._node(value, None), statement)
            case ast.With(
                items=[ast.withitem(context_expr=ast.Call() as call, optional_vars=None)], body=body
            ):
                self._located(self._read_block(call, body), statement)
            case _:
                raise NotOurForm(f"a {type(statement).__name__} statement", statement)

    def _read_block(self, call: ast.Call, body: list[ast.stmt]) -> fx.Node:
        manager = self._global(call.func)
        form = next((form for form in FORMS if form.manager is manager), None)
        if form is None or call.keywords:
            raise NotOurForm(f"a block of {ast.unparse(call.func)}", call)
        enter = self._add("call_function", form.enter, tuple(map(self._value, call.args)), {}, None)
        for statement in body:
            if not isinstance(statement, ast.Pass):
                self._read_statement(statement)
        self._add("call_function", form.exit, (enter,), {}, None)
        return enter

    def _located(self, node: fx.Node, statement: ast.stmt) -> fx.Node:
        if trace := stack_trace(self._comments.get(statement.lineno, "")):
            node.meta["stack_trace"] = trace
        return node

    def _node(self, expression: ast.expr, name: str | None) -> fx.Node:
        path = _self_path(expression)
        if path is not None:
            return self._add("get_attr", path, (), {}, name)
        match expression:
            case ast.BinOp(left=left, op=op, right=right):
                return self._infix(type(op), (left, right), name, expression)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._infix(type(op), (left, right), name, expression)
            case ast.UnaryOp(op=op, operand=ast.Name() as operand):
                return self._infix(type(op), (operand,), name, expression)
            case ast.Subscript(value=owner, slice=index):
                args = (self._local(owner), self._index(index))
                return self._add("call_function", operator.getitem, args, {}, name)
            case ast.Attribute(value=ast.Name() as owner, attr="data") if GET_DATA is not None:
                return self._add("call_function", GET_DATA, (self._local(owner),), {}, name)
            case ast.Attribute(value=ast.Name() as owner, attr=attr):
                return self._add("call_function", getattr, (self._local(owner), attr), {}, name)
            case ast.Call():
                return self._call(expression, name)
        raise NotOurForm(f"{ast.unparse(expression)} is no single operation", expression)

    def _infix(self, symbol: type, operands: tuple[ast.expr, ...], name: str | None, at: ast.expr) -> fx.Node:
        function = FUNCTION_OF_SYMBOL.get((symbol, len(operands)))
        if function is None:
            raise NotOurForm(f"the operator of {ast.unparse(at)}", at)
        return self._add("call_function", function, tuple(map(self._value, operands)), {}, name)

    def _call(self, call: ast.Call, name: str | None) -> fx.Node:
        args = tuple(self._value(arg) for arg in call.args)
        kwargs = self._keywords(call)
        if isinstance(call.func, ast.Subscript):
            return self._launch(call.func, args, kwargs)
        path = _self_path(call.func)
        if path is not None:
            return self._add("call_module", path, args, kwargs, name)
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
            owner = self._locals.get(call.func.value.id)
            if owner is not None:
                return self._add("call_method", call.func.attr, (owner, *args), kwargs, name)
        return self._add("call_function", self._global(call.func), args, kwargs, name)

    def _launch(self, at: ast.Subscript, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        """``kernel[grid](...)``, a user's Triton kernel."""
        kernel, grid = self._global(at.value), self._value(at.slice)
        if not torch_internals.is_kernel(kernel) or not isinstance(grid, tuple):
            raise NotOurForm(f"{ast.unparse(at)} is no kernel with a grid", at)
        target, given = torch_internals.launch_arguments(kernel, grid, args, kwargs)
        return self._add("call_function", target, (), given, None)

    def _keywords(self, call: ast.Call) -> dict[str, Any]:
        kwargs: dict[str, Any] = {}
        for keyword in call.keywords:
            value = self._value(keyword.value)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value, dict):
                kwargs.update(value)
            else:
                raise NotOurForm("** of something that is no dict", call)
        return kwargs

    def _value(self, expression: ast.expr) -> Any:
        match expression:
            case ast.Name(id=name) if name in self._locals:
                return self._locals[name]
            case ast.Constant(value=value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
            case ast.Tuple(elts=items):
                return tuple(map(self._value, items))
            case ast.List(elts=items):
                return list(map(self._value, items))
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {
                    self._value(k): self._value(v) for k, v in zip(keys, values, strict=True) if k is not None
                }
            case ast.Call(func=function):
                return self._made(self._global(function), expression)
            case ast.Name() | ast.Attribute():
                return self._global(expression)
        raise NotOurForm(f"{ast.unparse(expression)} in an argument", expression)

    def _made(self, maker: Any, call: ast.Call) -> Any:
        is_named_tuple = isinstance(maker, type) and issubclass(maker, tuple) and hasattr(maker, "_fields")
        if not (maker in LITERAL_MAKERS or is_named_tuple or is_maker(maker)):
            raise NotOurForm(f"the call {ast.unparse(call)} in an argument", call)
        return maker(*map(self._value, call.args), **self._keywords(call))

    def _index(self, index: ast.expr) -> Any:
        if isinstance(index, ast.Tuple):
            return tuple(map(self._index, index.elts))
        if isinstance(index, ast.Slice):
            parts = (index.lower, index.upper, index.step)
            return slice(*(None if part is None else self._value(part) for part in parts))
        return self._value(index)

    def _local(self, expression: ast.expr) -> fx.Node:
        if isinstance(expression, ast.Name) and expression.id in self._locals:
            return self._locals[expression.id]
        raise NotOurForm(f"{ast.unparse(expression)} is no value computed before", expression)

    def _global(self, expression: ast.expr) -> Any:
        match expression:
            case ast.Name(id=name) if name not in self._locals and name in self._namespace:
                return self._namespace[name]
            case ast.Name(id=name) if name not in self._locals and hasattr(builtins, name):
                return getattr(builtins, name)
            case ast.Attribute(value=owner, attr=attr):
                found = self._global(owner)
                if hasattr(found, attr):
                    return getattr(found, attr)
        raise NotOurForm(f"nothing is called {ast.unparse(expression)}", expression)

    def _add(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None
    ) -> fx.Node:
        if op == "call_function" and not callable(target):
            raise NotOurForm(f"{target!r} cannot be called")
        if name is None:
            name = self._free_names.free(str(getattr(target, "__name__", target)))
        return self.graph.create_node(op, target, args, kwargs, name=name)


def _self_path(expression: ast.expr) -> str | None:
    """``a.b`` of ``self.a.b`` and of ``getattr(self.a, 'b')``; None for what does not start at self."""
    match expression:
        case ast.Attribute(value=owner, attr=attr):
            pass
        case ast.Call(ast.Name(id="getattr"), args=[owner, ast.Constant(value=str() as attr)], keywords=[]):
            pass
        case _:
            return None
    if isinstance(owner, ast.Name):
        return attr if owner.id == "self" else None
    path = _self_path(owner)
    return None if path is None else f"{path}.{attr}"


def _symbols() -> dict[tuple[type, int], Callable[..., Any]]:
    found: dict[tuple[type, int], Callable[..., Any]] = {}
    for function, symbol in BINARY.items():
        expression: Any = ast.parse(f"a {symbol} b", mode="eval").body
        found[type(expression.ops[0] if isinstance(expression, ast.Compare) else expression.op), 2] = function
    for function, symbol in UNARY.items():
        expression = ast.parse(f"{symbol}a", mode="eval").body
        found[type(expression.op), 1] = function
    return found


FUNCTION_OF_SYMBOL = _symbols()
