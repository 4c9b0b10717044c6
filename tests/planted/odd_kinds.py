"""Backends of odd kinds, each a function of the graph, for ``test_odd_kinds``: what they raise, return, are, or do beside."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import fx

Inputs = Sequence[Any]


# What they raise


class WithoutText(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


class TextIsANumber(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]


class TextAsksForItself(Exception):
    """As one whose text is made of itself; a real recursion ends some interpreters, by the depth that a debugger or a test has left."""

    def __str__(self) -> str:
        raise RecursionError("maximum recursion depth exceeded while getting the str of an object")


class Text(str):
    """A text whose methods raise."""

    __slots__ = ()

    def partition(self, *_: object) -> NoReturn:
        raise KeyError("no partition")

    strip = startswith = partition  # type: ignore[assignment]


class TextOfAClass(Exception):
    def __str__(self) -> str:
        return Text("of a class")


class TakesNoNote(Exception):
    def add_note(self, note: str) -> None:
        raise OSError("no notes")


class NotesAreATuple(Exception):
    __notes__ = ("one",)


class ArgsRaise(Exception):
    @property
    def args(self) -> Any:  # type: ignore[override]
        raise ValueError("no args")


class CauseRaises(Exception):
    @property
    def inner_exception(self) -> Any:
        raise ValueError("no inner exception")


class Slotted(Exception):
    __slots__ = ()


class NeedsArguments(Exception):
    """Cannot be pickled, nor made again."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__("needs two")
        self.one, self.two = one, two


class IsItsOwnCause(Exception):
    def __init__(self) -> None:
        super().__init__("round and round")
        self.__cause__ = self


class EqualToAll(Exception):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class BoolRaises(Exception):
    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")


class AttributesRaise(Exception):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class Meta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        raise ValueError("is it one?")


class ClassRefusesToBeAskedFor(Exception, metaclass=Meta):
    pass


def raising(make: Callable[[], BaseException]) -> Callable[..., Any]:
    def backend(gm: fx.GraphModule, example_inputs: Inputs) -> Callable[..., Any]:
        raise make()

    return backend


def raising_in_the_call(make: Callable[[], BaseException]) -> Callable[..., Any]:
    def backend(gm: fx.GraphModule, example_inputs: Inputs) -> Callable[..., Any]:
        def compiled_fn(*args: Any) -> Any:
            raise make()

        return compiled_fn

    return backend


RAISED: dict[str, Callable[[], BaseException]] = {
    "without a text": WithoutText,
    "whose text is a number": TextIsANumber,
    "whose text asks for itself": TextAsksForItself,
    "whose text is of a class": TextOfAClass,
    "that takes no note": TakesNoNote,
    "whose notes are a tuple": NotesAreATuple,
    "whose args raise": ArgsRaise,
    "whose inner exception raises": CauseRaises,
    "with slots": Slotted,
    "that needs arguments": lambda: NeedsArguments(1, 2),
    "that is its own cause": IsItsOwnCause,
    "that is equal to all": EqualToAll,
    "neither true nor false": BoolRaises,
    "whose attributes raise": AttributesRaise,
    "whose class cannot be asked for": ClassRefusesToBeAskedFor,
    "that is a group": lambda: ExceptionGroup("two", [ValueError("one"), TypeError("other")]),
    "with a long text": lambda: ValueError("x" * 1_000_000),
    "with half a surrogate": lambda: ValueError("\ud800"),
    "with control sequences": lambda: ValueError("\x1b[2J\x00\u202e"),
    "with an object as text": lambda: ValueError(object),
    "that ends an iteration": lambda: StopIteration(3),
    "of a generator": lambda: GeneratorExit(),
    "that asks for an exit": lambda: SystemExit(3),
    "that is a warning": lambda: UserWarning("no kernel"),
    "an assertion": lambda: AssertionError(),
    "of an operating system": lambda: OSError(28, "No space left on device"),
}


# What they are


class Instance:
    def __call__(self, gm: fx.GraphModule, example_inputs: Inputs) -> Callable[..., Any]:
        return gm.forward


class WithoutAttributes:
    """As some extension types are: nothing can be asked of it."""

    __slots__ = ()

    def __call__(self, gm: fx.GraphModule, example_inputs: Inputs) -> Callable[..., Any]:
        return gm.forward


class ReprRaises(Instance):
    def __repr__(self) -> str:
        raise ValueError("no repr")


class Unhashable(Instance):
    __hash__ = None  # type: ignore[assignment]


class EveryAttribute(Instance):
    """As a mock has them."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "reset":
            raise AttributeError(name)
        return self


class Method:
    def backend(self, gm: fx.GraphModule, example_inputs: Inputs) -> Callable[..., Any]:
        return gm.forward


def with_more(more: int, gm: fx.GraphModule, example_inputs: Inputs) -> Callable[..., Any]:
    return gm.forward


@functools.lru_cache
def cached(gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
    return gm.forward


# What they return


class CompiledObject:
    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm = gm

    def __call__(self, *args: Any) -> Any:
        return self.gm(*args)

    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")


def returning(make: Callable[[fx.GraphModule], Any]) -> Callable[..., Any]:
    def backend(gm: fx.GraphModule, example_inputs: Inputs) -> Any:
        return make(gm)

    return backend


def as_list(gm: fx.GraphModule) -> Callable[..., Any]:
    return lambda *args: list(gm(*args))


def as_iterator(gm: fx.GraphModule) -> Callable[..., Any]:
    def compiled_fn(*args: Any) -> Iterator[Any]:
        yield from gm(*args)

    return compiled_fn


def as_one_tensor(gm: fx.GraphModule) -> Callable[..., Any]:
    return lambda *args: gm(*args)[0]


def too_many(gm: fx.GraphModule) -> Callable[..., Any]:
    return lambda *args: (*gm(*args), None)


def numbers(gm: fx.GraphModule) -> Callable[..., Any]:
    return lambda *args: (7,)


def empty_graph(gm: fx.GraphModule, example_inputs: Inputs) -> Callable[..., Any]:
    """Eats the graph that it was given."""
    run = fx.GraphModule(gm, torch.fx.Graph())
    run.graph = _copy(gm.graph)
    run.recompile()
    for node in reversed(list(gm.graph.nodes)):
        gm.graph.erase_node(node)
    return run


def _copy(graph: fx.Graph) -> fx.Graph:
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph, {}))
    return copied


KINDS: dict[str, Callable[..., Any]] = {
    **{f"raises one {name}": raising(make) for name, make in RAISED.items()},
    **{f"its code raises one {name}": raising_in_the_call(make) for name, make in RAISED.items()},
    "an instance": Instance(),
    "without attributes": WithoutAttributes(),
    "unhashable": Unhashable(),
    "every attribute": EveryAttribute(),
    "a method": Method().backend,
    "a partial": functools.partial(with_more, 3),
    "a lambda": lambda gm, example_inputs: gm.forward,
    "returns the graph": returning(lambda gm: gm),
    "returns an object": returning(CompiledObject),
    "returns a partial": returning(lambda gm: functools.partial(gm.forward)),
    "returns None": returning(lambda gm: None),
    "returns a number": returning(lambda gm: 3),
    "its code returns a list": returning(as_list),
    "its code returns an iterator": returning(as_iterator),
    "its code returns one tensor": returning(as_one_tensor),
    "its code returns too many": returning(too_many),
    "its code returns a number": returning(numbers),
    "its code returns None": returning(lambda gm: lambda *args: None),
    "eats its graph": empty_graph,
}
