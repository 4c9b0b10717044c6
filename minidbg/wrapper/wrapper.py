"""``minidbg.wrap`` and ``minidbg.wrap_compiler``: results act like what they wrap until it fails.

``wrap_compiler`` is for compilers of ``aot_autograd``, one level below ``wrap``: the graphs are
AOTAutograd's (forward, backward, inference), the example inputs are fake, and the compiled function
may take its inputs in one list that it clears.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack, get_type_hints

import torch
from torch import fx

from minidbg import backends, torch_internals
from minidbg.core import environment, settings
from minidbg.core.errors import BadSetting, UnknownBackend, nearest
from minidbg.core.run_spec import CompiledFn, CompilerFn, Level
from minidbg.core.settings import CompilerSettings, Settings, WrapSettings
from minidbg.fx.randomness import may_draw
from minidbg.wrapper.chain import Backend, Link, backend_hash, link_name, merged_links
from minidbg.wrapper.graph_state import GraphState, state_of
from minidbg.wrapper.process import add_line, own_report, set_report
from minidbg.wrapper.verify import NUMBERS_OF_BACKWARD

log = logging.getLogger("minidbg")
OWN_NAME = "minidbg"


@dataclass(eq=False, repr=False)
class WrappedBackend:
    """A backend ``(gm, example_inputs) -> compiled_fn``, equal by backend, options and settings.

    Dynamo guards on the backend by ``==``: an object made each turn of a loop must not recompile.
    """

    backends: tuple[Backend, ...]
    options: Mapping[str, Any]
    mode: str | None
    settings: Settings
    _tags: ClassVar[tuple[str, ...]] = ()  # register_backend sets it

    def __post_init__(self) -> None:
        self.__name__ = link_name(self.backends[0])

    @functools.cached_property
    def links(self) -> tuple[Link, ...]:
        """The chain; ``options`` and ``mode`` are the first link's.
        Raises BadSetting for what inductor does not know."""
        first, *others = self.backends
        try:
            return (Link(first, self.options, self.mode), *map(Link, others))
        except RuntimeError as error:
            if first != "inductor":
                raise
            what = str(error).partition(", known options are")[0]
            raise BadSetting(f"inductor's options or mode: {what}") from error

    def __call__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> CompiledFn:
        """What the wrapped backend returns, behind a thin function; what it raises gets a note."""
        links = self.links
        if mode or options:
            together = merged_links(self.options, self.mode, options or {}, mode)
            links = WrappedBackend(self.backends, *together, self.settings).links
        graph = state_of(lambda: GraphState(gm, links, self.settings))
        if graph is None:
            return links[0].compiler(gm, example_inputs)
        try:
            return graph.compile(gm, example_inputs)
        except Exception as error:
            report = own_report(error)
            if report is None:
                raise
            if torch_internals.dynamo_keeps_type(error) or not is_called_by_torch():
                add_line(error, report)
                raise
            # dynamo would wrap it in this, and a note on the inner exception is never printed
            try:
                outer = torch_internals.backend_compiler_failed(
                    graph.links[graph.position], error, sys._getframe()
                )
            except Exception:  # noqa: BLE001 - its text raises, as it will when dynamo does this
                outer = None
            if outer is None:
                raise
            set_report(outer, report)
            add_line(outer, report)
            raise outer from None

    def __getattr__(self, name: str) -> Any:
        """Hooks that torch.compile looks for on a backend: ours has those of the wrapped one, and
        begins each link of a chain."""
        if name in torch_internals.BACKEND_HOOKS:
            links = self.links if name == torch_internals.BACKEND_INIT else self.links[:1]
            hooks = (backends.hook(link.compiler, name) for link in links)
            found = [hook for hook in hooks if hook is not None]
            if len(links) == 1 and found:
                return found[0]
            if found:
                return lambda: [begin() for begin in found]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WrappedBackend):
            return NotImplemented
        fields = ("backends", "options", "mode", "settings")
        return all(getattr(self, name) == getattr(other, name) for name in fields)

    def __hash__(self) -> int:
        return hash((tuple(map(backend_hash, self.backends)), self.mode, self.settings))

    def __repr__(self) -> str:
        return f"<minidbg.wrap({', '.join(map(link_name, self.backends))})>"


def is_called_by_torch() -> bool:
    """Whether a backend of ours is called by torch.compile, so exceptions are dynamo's to wrap."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
    return name == "torch" or name.startswith("torch._dynamo.")


def wrap(
    backend: Backend | Sequence[Backend] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    **given: Unpack[WrapSettings],
) -> CompilerFn:
    """``backend`` for ``torch.compile``; a failure leaves a verified minimal repro in ``repro_dir``.

    ``backend`` is a name, a callable ``(gm, example_inputs) -> compiled_fn``, or a list of them: a
    chain, in which the first that works is used and each failing link is captured; ``options`` and
    ``mode`` are then the first link's. None is ``torch.compiler.get_default_backend()``.

    - ``verify``: ``"first"``, ``"always"``, ``"never"`` or a number: which calls of a compiled
      graph are compared with eager.
    - ``rtol``, ``atol``, ``tolerances``: how far floats may be off; relative to the value, in units
      of the value, by dtype; or by the precision that the backend computes float32 in by design:
      ``tolerances="bfloat16"``, ``"float16"``, ``"tf32"``.
    - ``golden``: ``"cpu"`` runs eager on the CPU, for a device whose own eager is in doubt.
    - ``judge``: an expression of metrics that is true of a right result, ``"pcc>=0.99"``, instead
      of tolerances and eager's own error.
    - ``on_failure``: ``"raise"`` the backend's exception, or ``"fallback"`` to eager (or the next
      link) with a warning.
    - ``reduce``: ``"now"``, or ``"later"``: write the capture only. ``seconds`` (of all reductions
      of this process) and ``max_calls`` (runs of one) bound it.
    - ``repro_dir``: the folder. ``value_limit_bytes``: most bytes of real tensor values that the
      files of one failure hold, and that are copied to verify one call.
    - ``setup`` (statements) and ``reference`` (``"module:expression"``): how a fresh process gets
      the backend back.
    - ``match``: a regular expression that a failure's text must contain to be reduced. ``env``:
      names of variables that a repro needs. ``crash_records``: keep the case of a process that dies
      on disk.

    What is not given (None) comes from ``MINIDBG_*`` variables, ``[tool.minidbg]`` of the nearest
    pyproject.toml and the user's file; ``minidbg.core.settings.Settings`` has the defaults. The
    result compares equal to another one of the same backend, options and settings, so that dynamo
    does not compile again.

    An interpreter that judges a repro gets ``backend`` as it is: its failure is not answered there.

    Raises UnknownBackend, BadJudge, and BadSetting for an unknown setting or option or an invalid
    value.
    """
    backends = checked_backends(unnamed_backend() if backend is None else backend)
    wrapped = WrappedBackend(backends, dict(options or {}), mode, settings.of_call(given, WrapSettings))
    if options or mode:
        wrapped.links  # noqa: B018 - what inductor does not know fails now, not in the first call
    if environment.is_judging():
        log.info("not_wrapped: %s, since this interpreter judges a repro", wrapped.__name__)
        if options or mode or isinstance(backends[0], str):
            return wrapped.links[0].compiler
        return backends[0]
    return wrapped


def unnamed_backend() -> Backend:
    """What torch.compile takes where none is named; inductor where that is minidbg itself."""
    # a program may set it, from torch 2.13 on
    backend: Backend = getattr(torch.compiler, "get_default_backend", lambda: "inductor")()
    return "inductor" if backend in (OWN_NAME, entry_point) else backend


def checked_backends(backend: object) -> tuple[Backend, ...]:
    links = tuple(backend) if isinstance(backend, list | tuple) else (backend,)
    if not links:
        raise BadSetting("backend=[]: a chain needs one backend at least")
    for link in links:
        if isinstance(link, str):
            if link == OWN_NAME:
                raise BadSetting(
                    f"backend={link!r}: minidbg does not wrap itself; name the backend that is to be wrapped"
                )
            known = torch_internals.known_backends()
            if link not in known:
                raise UnknownBackend(link, [name for name in known if name != OWN_NAME])
        elif not callable(link):
            raise BadSetting(
                f"backend={link!r}: must be a name, a callable (gm, example_inputs), or a list of them"
            )
    return links


class EntryPoint:
    """Backend of ``torch.compile(m, backend="minidbg", options={"backend": "my_backend", ...})``.

    ``options`` holds arguments of ``minidbg.wrap`` and the wrapped backend's own options; where
    a name could be either, the backend's own go into a nested ``options={"options": {...}}``.
    """

    __name__ = OWN_NAME
    _tags: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.made: list[tuple[dict[str, Any], CompilerFn]] = []

    def __call__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> CompiledFn:
        """As its backend. Raises BadSetting or UnknownBackend in dynamo's BackendCompilerFailed."""
        if OWN_NAME in os.environ.get(OVERRIDE, ""):
            raise BadSetting(f"{OVERRIDE} hides what the program asked for; use 'minidbg run' instead of it")
        given = dict(options or {})
        if mode is not None and "mode" not in given:
            given["mode"] = mode
        return self.wrapped(given)(gm, example_inputs)

    def wrapped(self, options: dict[str, Any]) -> CompilerFn:
        options.setdefault("backend", unnamed_backend())  # which the program may set again
        for earlier, wrapper in self.made:
            if earlier == options:
                return wrapper
        wrapper = wrap(**split_options(options))
        if isinstance(wrapper, WrappedBackend):  # else a question is under way in this process
            self.made.append((options, wrapper))
        return wrapper

    def reset(self) -> None:
        """``torch._dynamo.reset()`` for the wrapped backends, and forget them."""
        for _, wrapper in self.made:
            getattr(wrapper, "reset", lambda: None)()
        self.made.clear()


entry_point = EntryPoint()


OVERRIDE = "TORCH_COMPILE_OVERRIDE_BACKENDS"
WRAP_ARGUMENTS = ("backend", "options", "mode", *get_type_hints(WrapSettings))


def split_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """``wrap``'s arguments from one flat table; what is none of them is the backend's option.

    Raises BadSetting for a name that looks like a misspelt argument of ``wrap``.
    """
    arguments = {name: value for name, value in given.items() if name in WRAP_ARGUMENTS}
    own = {name: value for name, value in given.items() if name not in WRAP_ARGUMENTS}
    nested = arguments.pop("options", None) or {}
    backend = arguments["backend"]
    first = backend[0] if isinstance(backend, list | tuple) and backend else backend
    for name in own if first != "inductor" else ():  # which refuses what it does not know
        if near := nearest(name, WRAP_ARGUMENTS):
            raise BadSetting(
                f"options: {name!r} is no setting of minidbg{near}. What is surely "
                f"{link_name(first)}'s own goes into options={{'options': {{{name!r}: ...}}}}"
            )
    options, _ = merged_links(nested, None, own, None)
    return {**arguments, "options": options}


class WrappedCompiler:
    """``(gm, example_inputs) -> compiled_fn`` with name and attributes of the compiler it wraps."""

    def __init__(self, compiler: CompilerFn, own_settings: Settings) -> None:
        functools.update_wrapper(self, compiler, updated=())
        self.compiler = compiler
        self.settings = own_settings

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], /, **keywords: Any) -> CompiledFn:
        compiler = functools.partial(self.compiler, **keywords) if keywords else self.compiler
        graph = state_of(lambda: AtenGraph(gm, compiler, self.settings))
        if graph is None:
            return compiler(gm, example_inputs)
        try:
            return graph.compile(gm, example_inputs)
        except Exception as error:
            report = own_report(error)
            if report is not None:
                graph.say_why_it_is_raised(error, report)
            raise

    def __getattr__(self, name: str) -> Any:
        if name == "compiler":  # not set yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.compiler, name)

    def __repr__(self) -> str:
        return f"<minidbg.wrap_compiler({getattr(self.compiler, '__name__', self.compiler)})>"


def wrap_compiler(compiler: CompilerFn, **given: Unpack[CompilerSettings]) -> Any:
    """``compiler``, for ``aot_autograd(fw_compiler=, bw_compiler=, inference_compiler=)``.

    When it fails on a graph, or what it compiled does, a verified minimal repro is left in
    ``repro_dir``: an ATen graph and a call of the compiler. Forward and backward are each compared
    with AOTAutograd's own graph, never the gradients with those of the program: ``minidbg.wrap``
    does that. The settings are those of ``minidbg.wrap``. Raises BadSetting.
    """
    if isinstance(compiler, str) or not callable(compiler):
        raise BadSetting(
            f"wrap_compiler({compiler!r}): a compiler (gm, example_inputs) -> compiled_fn is "
            f"needed; a backend of torch.compile goes to minidbg.wrap"
        )
    own = settings.of_call(given, CompilerSettings)
    if environment.is_judging():
        log.info("not_wrapped: %s, since this interpreter judges a repro", link_name(compiler))
        return compiler
    return WrappedCompiler(compiler, own)


class AtenGraph(GraphState):
    """A graph of AOTAutograd. It has no crash record: dynamo's graph, which it is a part of, is."""

    level = Level.ATEN

    def __init__(self, gm: fx.GraphModule, compiler: CompilerFn, own_settings: Settings) -> None:
        super().__init__(gm, [Link(compiler, level=self.level)], own_settings)
        self.record.is_on = False
        self.part = torch_internals.aot_graph_part()
        self.origin = (f"{f'the {self.part}' if self.part else 'a'} graph that AOTAutograd made",)

    def went_well(self, result: Any, args: tuple[Any, ...]) -> None:
        super().went_well(result, args)
        if self.part == "backward" and self.facts.verified and may_draw(self.untouched):
            # AOTAutograd's graph is the reference, and draws as well
            self.facts.leave_out(NUMBERS_OF_BACKWARD)
