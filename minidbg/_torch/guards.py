"""The guards that dynamo builds after a backend has returned."""

from __future__ import annotations

from collections.abc import MutableSet, Sequence
from typing import Any

import torch

from minidbg._torch.tensors import is_fake


class GuardState:
    """What dynamo will build the guards of the graph in hand from: its ShapeEnv and the example inputs.

    Made before a backend is called. A backend that traces the graph once more may leave symbols in the ShapeEnv that no
    input has, and one that works in place may reshape an input; dynamo then fails after the backend has returned.
    ``produce_guards_verbose``, ``tracked_fakes`` and the counters were seen in 2.11 to 2.15; without them nothing is found.
    """

    def __init__(self, example_inputs: Sequence[Any] = ()) -> None:
        context = torch._guards.TracingContext.try_get()
        env: Any = getattr(getattr(context, "fake_mode", None), "shape_env", None)
        # Under translation validation torch records each call of the ShapeEnv and replays them.
        usable = hasattr(env, "produce_guards_verbose") and not env._translation_validation_enabled
        self.env: Any = env if usable else None
        self.attributes = (
            {name: (value, _copied(value)) for name, value in vars(env).items()} if usable else {}
        )
        self.size = self._size()
        tensors = (
            value for value in example_inputs if isinstance(value, torch.Tensor) and not is_fake(value)
        )
        self.layouts = [(value, _layout(value)) for value in tensors if value.layout is torch.strided]

    def error_of_guards(self) -> Exception | None:
        """What dynamo will raise because of what was done since; None when it will go on.

        An error that dynamo would have raised before, too, is none.
        """
        for value, before in self.layouts:
            if _layout(value) != before:
                return AssertionError(
                    "Guard failed on the same frame it was created: the backend changed an example input in place, "
                    f"from shape {before[0]}, strides {before[1]} to {tuple(value.shape)}, {value.stride()}"
                )
        if self.env is None or self._size() == self.size:
            return None
        error = self._dry_run()
        if error is None:
            return None
        now = GuardState()  # the program goes on from here, or is put back again
        self.put_back()
        known = self._dry_run()
        now.put_back()
        return error if known is None else None

    def put_back(self) -> None:
        """Undo what was done since. Counters go on: caches and the names of new symbols hang on them."""
        for value, layout in self.layouts:
            if _layout(value) != layout:
                with torch.no_grad():
                    value.as_strided_(*layout)
        if self.env is None or self._size() == self.size:
            return
        for name, (value, content) in self.attributes.items():
            if content is not value:
                value.clear()
                (value.extend if isinstance(value, list) else value.update)(_copied(content))
            if not (isinstance(value, int) and name.endswith("_counter")):
                setattr(self.env, name, value)
        for name in ("_version_counter", "_replacements_version_counter"):
            if hasattr(self.env, name):
                setattr(self.env, name, getattr(self.env, name) + 1)

    def _size(self) -> list[int]:
        names = ("guards", "var_to_range", "replacements", "divisible", "_version_counter")
        values = (getattr(self.env, name, ()) for name in names)
        return [value if isinstance(value, int) else len(value) for value in values]

    def _dry_run(self) -> Exception | None:
        tracked = list(getattr(self.env, "tracked_fakes", None) or ())
        known = {_root_name(one.source) for one in tracked}
        foreign: list[str] = []

        def name(source: Any) -> str:
            if source.guard_source.name == "CONSTANT" and _root_name(source) not in known:
                foreign.append(_root_name(source))  # a name of the backend's own
            return _name(source)

        was_disabled, self.env.log.disabled = self.env.log.disabled, True  # dynamo will say it itself
        try:
            self.env.produce_guards_verbose(
                [one.fake for one in tracked],
                [one.source for one in tracked],
                source_ref=name,
                input_contexts=[one.symbolic_context for one in tracked],
                langs=("python",),
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, dynamo will meet it
            raised_inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
            return error if raised_inside else None  # another torch's method may take other arguments
        finally:
            self.env.log.disabled = was_disabled
        if foreign:
            return AssertionError(
                f"Guard failed on the same frame it was created: name {foreign[0]!r} is not defined"
            )
        return None


def _root_name(source: Any) -> str:
    while hasattr(source, "base"):
        source = source.base
    return _name(source)


def _name(source: Any) -> str:
    return str(source.name() if callable(source.name) else source.name)


def _copied(value: Any) -> Any:
    """A copy of a container, and of the containers in a table; anything else as it is."""
    if isinstance(value, dict):
        copy = value.copy()
        copy.update({key: _copied(one) for key, one in value.items() if isinstance(one, list | set)})
        return copy
    make: Any = type(value)
    return make(value) if isinstance(value, list | MutableSet) else value


def _layout(value: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(value.shape), value.stride(), int(value.storage_offset())
