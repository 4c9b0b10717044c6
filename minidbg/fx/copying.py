"""Copies that a backend cannot tell from the original: graph modules that share tensors, clones of
inputs; and the graph that dynamo makes of a function."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, fx

from minidbg import torch_internals
from minidbg.core.errors import MinidbgError
from minidbg.fx.effects import tensors_in
from minidbg.torch_internals.tensors import has_plain_memory


@contextlib.contextmanager
def freezing_gc() -> Iterator[None]:
    """Freeze the objects that exist, so that gc scans only new ones in the block: a large graph and
    torch itself are many."""
    if gc.get_freeze_count():  # somebody else's, who may not want it undone
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def storage_key(tensor: Tensor) -> int:
    """A number that tensors share exactly when they share storage; those without have their own."""
    try:
        return torch_internals.storage_identity(tensor)
    except (RuntimeError, NotImplementedError):  # sparse, opaque and wrapper tensors have none
        return id(tensor)


def storage_bytes(tensor: Tensor) -> int:
    """Bytes of the storage behind ``tensor``; of a tensor without one, of its elements."""
    try:
        return tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        return tensor.numel() * tensor.element_size()


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind ``tensors``, each counted once."""
    return sum({storage_key(one): storage_bytes(one) for one in tensors}.values())


def clone_values(values: Sequence[Any], change: Callable[[Tensor], Tensor] | None = None) -> list[Any]:
    """A clone of each value, the same for the same; tensors that shared a storage share a new one.

    What is no tensor is passed on as it is, tuples, lists and dicts are opened. No autograd history
    is kept: what was no leaf gets a short history of its own. ``change`` gives the elements of the
    clones another dtype: of whole memories, and of tensors without plain memory.
    """
    return list(map(_Cloner(values, change).clone, values))


def with_history(value: Any) -> Any:
    """A tensor that requires grad as a non-leaf, so that a graph may write to it; others as is."""
    if not isinstance(value, Tensor) or not value.requires_grad or not value.is_leaf:
        return value
    with torch.enable_grad():
        return value.clone()


class _Cloner:
    def __init__(self, values: Sequence[Any], change: Callable[[Tensor], Tensor] | None) -> None:
        self._change = change
        tensors = list(tensors_in(list(values)))
        self._keys = {id(value): storage_key(value) for value in tensors}
        self._members = Counter(self._keys[id(value)] for value in tensors)
        self._memories: dict[Any, Tensor] = {}
        self._seen: dict[int, Any] = {}

    def clone(self, value: Any) -> Any:
        if type(value) in (tuple, list):
            return type(value)(map(self.clone, value))
        if type(value) is dict:
            return {key: self.clone(part) for key, part in value.items()}
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._seen:
            self._seen[id(value)] = self._clone_tensor(value)
        return self._seen[id(value)]

    def _clone_tensor(self, value: Tensor) -> Tensor:
        plain = torch_internals.has_plain_memory(value)
        if self._change is not None and not plain:
            clone = self._change(value.detach())
        # nothing can be written to it, and a clone would be an ordinary tensor
        elif torch_internals.is_zero_tensor(value):
            clone = value.detach()
        elif value.is_conj() or value.is_neg():
            clone = _clone_of_lazy(value.detach())
        elif not (plain or torch_internals.is_freed(value)):
            clone = value.detach().clone()
        else:
            mode: Any = torch.inference_mode if value.is_inference() else torch.no_grad
            with mode():
                clone = self._on_new_storage(value)
        if isinstance(value, torch.nn.Parameter) and not isinstance(clone, torch.nn.Parameter):
            return torch.nn.Parameter(clone, requires_grad=value.requires_grad)
        if not value.requires_grad:
            return clone
        clone.requires_grad_()
        return clone if value.is_leaf else self._with_history(clone, value)

    def _on_new_storage(self, value: Tensor) -> Any:
        base: Any = value._base  # what AOTAutograd compiles looks for it
        if id(base) in self._keys and base.dtype == value.dtype and not base.requires_grad:
            return self.clone(base).as_strided(value.size(), value.stride(), value.storage_offset())
        key = self._keys[id(value)], self._change and value.dtype
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        if key not in self._memories:
            whole = whole_memory(value).clone()
            elements = (len(whole) // value.itemsize,)
            flat = torch.empty_like(empty).set_(whole.untyped_storage(), 0, elements, (1,))
            self._memories[key] = flat if self._change is None else self._change(flat)
        memory = self._memories[key].untyped_storage()
        empty = empty if self._change is None else self._change(empty)
        return empty.set_(memory, value.storage_offset(), value.size(), value.stride())

    def _with_history(self, leaf: Tensor, value: Tensor) -> Any:
        """A tensor like ``leaf``, but no leaf; writable in place unless it shares its storage."""
        with torch.enable_grad():
            if self._members[self._keys[id(value)]] > 1:
                return leaf.view_as(leaf)
            copied = leaf.clone()
            if copied.stride() == leaf.stride():
                return copied
            # where several elements are one, eager writes to none of them
            expanded = any(
                size > 1 and step == 0 for size, step in zip(leaf.shape, leaf.stride(), strict=True)
            )
            if expanded or not torch_internals.has_plain_memory(leaf):
                return leaf.view_as(leaf)
            return clone_values([leaf.detach()])[0].copy_(leaf)


def whole_memory(value: Tensor) -> Tensor:
    """The bytes of all of ``value``'s storage, by what each device has: ``set_`` needs the size."""
    memory = value.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=value.device)
    return whole.set_(memory, 0, (memory.nbytes(),), (1,))


def bytes_in(memory: Tensor, value: Tensor) -> Tensor:
    """The bytes of ``value`` among those of all its storage, or what stands for each."""
    size = value.itemsize
    strides = (*(step * size for step in value.stride()), 1)
    return memory.as_strided((*value.shape, size), strides, value.storage_offset() * size)


def share_memory(x: Tensor, y: Tensor) -> bool | None:
    """Whether two tensors have a byte in common; None where much memory would be needed to tell."""
    if not (has_plain_memory(x) and has_plain_memory(y)):
        return None
    memory, last = sorted((x.untyped_storage(), y.untyped_storage()), key=lambda each: each.data_ptr())
    if memory.data_ptr() != last.data_ptr():  # of NumPy's views one may begin inside of the other
        return False if memory.data_ptr() + memory.nbytes() <= last.data_ptr() else None
    if memory.nbytes() > MOST_MARKED_BYTES:
        return x.data_ptr() == y.data_ptr() or None
    marks = torch.zeros(memory.nbytes(), dtype=torch.bool)
    bytes_in(marks, x).fill_(True)
    return bool(bytes_in(marks, y).any())


def _clone_of_lazy(value: Tensor) -> Tensor:
    """A clone lazily conjugated or negated as ``value`` is: a plain clone would carry it out."""
    if value.is_conj():
        plain = value.conj()
        return (_clone_of_lazy(plain) if plain.is_neg() else plain.clone()).conj()
    return torch_internals.negated_view(torch_internals.negated_view(value).clone())


def copy_node(
    graph: fx.Graph,
    node: fx.Node,
    argument: Callable[[fx.Node], Any],
    arguments: tuple[Any, Any] | None = None,
) -> fx.Node:
    """``node`` again at the end of ``graph``, with its name where that is free, and its meta.

    ``argument`` gives what stands for a node of the old graph in ``arguments``, by default the
    node's own args and kwargs.
    """
    args, kwargs = arguments or (node.args, node.kwargs)
    new_kwargs = fx.map_arg(kwargs, argument) if kwargs else {}
    return torch_internals.append_node(graph, node, fx.map_arg(args, argument), new_kwargs)


MOST_MARKED_BYTES = 64 << 20  # of a storage, where those of two tensors are marked
_OF_ONE_GRAPH = frozenset({"_graph", "_code", "_lineno_map", "_prologue_start", "meta"})
"""Attributes of a GraphModule that belong to its graph, not to the module."""


def copy_graph_module(gm: fx.GraphModule, done: dict[int, fx.GraphModule] | None = None) -> fx.GraphModule:
    """A copy of ``gm`` whose graphs, nested ones included, can be edited without touching ``gm``.

    Tensors and submodules that are no graph modules are shared. Names of nodes stay; what dynamo
    has put on the module and its nodes comes along, and each node's meta as a shallow copy. The
    copy writes its Python code only when it is called. ``done``: copies by the id of what they are
    of.
    """
    done = {} if done is None else done
    if id(gm) in done:
        return done[id(gm)]
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        made = copies[node] = copy_node(graph, node, copies.__getitem__)
        # AOTAutograd asserts that _dynamo_source is there when the module has _param_name_to_source
        if "_dynamo_source" in node.__dict__:
            made.__dict__["_dynamo_source"] = node.__dict__["_dynamo_source"]
    graph.set_codegen(copy.copy(gm.graph._codegen))
    new = done[id(gm)] = torch_internals.lazy_graph_module(gm, graph, type(gm).__name__)
    new.meta = copy.copy(getattr(gm, "meta", {}))
    for name, value in vars(gm).items():
        if name in ("_parameters", "_buffers", "_modules"):
            kept = vars(new)[name]
            kept.update({key: held for key, held in value.items() if not hasattr(new, key)})
        elif name not in vars(new) and name not in _OF_ONE_GRAPH:
            vars(new)[name] = value
    new.training = gm.training
    _copy_nested(new, done)
    return new


def _copy_nested(module: Any, done: dict[int, fx.GraphModule]) -> None:
    """Replace graph modules below ``module`` by copies; containers between are the copy's own."""
    for name, child in list(module._modules.items()):
        if isinstance(child, fx.GraphModule):
            module._modules[name] = copy_graph_module(child, done)
        elif child is not None and any(isinstance(sub, fx.GraphModule) for sub in child.modules()):
            own = module._modules[name] = copy.copy(child)
            vars(own)["_modules"] = dict(child._modules)
            _copy_nested(own, done)


def returning(graph_module: fx.GraphModule, nodes: Sequence[fx.Node]) -> fx.GraphModule:
    """A copy that returns the values of ``nodes``."""
    made = copy_graph_module(graph_module)
    named = {node.name: node for node in made.graph.nodes}
    made.graph.output_node().args = (tuple(named[node.name] for node in nodes),)
    made.recompile()
    return made


class NoGraph(MinidbgError):
    """Dynamo made no single graph: the function computes nothing, or cannot be captured whole."""


class _Captured(BaseException):
    """Ends the call once the graph and its inputs are known. No user code may catch it."""

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        self.inputs = inputs


def capture_by_dynamo(
    function: Callable[..., Any], args: Sequence[Any], *, dynamic: bool | None = None
) -> tuple[fx.GraphModule, tuple[Any, ...]]:
    """The whole graph of ``function(*args)`` and the values of its placeholders in order.

    The inputs are the live tensors (parameters of a module among them) and plain numbers. The graph
    is not run. Raises NoGraph when there is no single graph, and whatever dynamo raises on code
    that it cannot trace.
    """
    graphs: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., NoReturn]:
        graphs.append(copy_graph_module(gm))
        return stop

    def stop(*inputs: Any) -> NoReturn:
        raise _Captured(inputs)

    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    with torch_internals.many_recompiles(), torch_internals.without_overrides():
        try:
            compiled(*args)
        except _Captured as captured:
            return graphs[-1], captured.inputs
    raise NoGraph(
        "torch.compile made no graph of it: it has no operation on tensors, or dynamo is switched "
        "off; give a function that computes something"
    )
