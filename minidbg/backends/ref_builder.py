"""Find the expression that gives an object back (an import, copied source, the path of its script), and collect what it needs: ``RefBuilder``."""

from __future__ import annotations

import builtins
import contextlib
import copy
import functools
import keyword
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from minidbg import torch_internals
from minidbg.backends.copied_source import CopiedStatement, Copy, NotSelfContained
from minidbg.backends.locations import Location, location_of
from minidbg.python_text.modules import file_of, finds_again, installed, is_foreign, top_level
from minidbg.python_text.source_text import (
    has_main_block,
    joined,
    read_statements,
    statements_of,
)
from minidbg.words.literals import NotALiteral, write_literal
from minidbg.words.run_spec import BackendRef


@dataclass(frozen=True, slots=True)
class CopiedBlock:
    """Copied source in two parts, each whole Python statements.

    ``above`` stands at the top level of the script. ``inside`` runs in ``backend()``: the imports of modules that
    may be missing elsewhere, so that their absence is noticed there, and all the rest too where it uses them at
    once. Names are global in both: where a function was defined is part of a failure's signature.
    ``modules`` are further foreign modules, which functions import when they run.
    """

    above: str = ""
    inside: str = ""
    modules: tuple[str, ...] = ()


def block_of(copy: Copy, known: Set[str] = frozenset()) -> CopiedBlock:
    """What ``copy`` holds beyond the ``known`` texts. Raises NotSelfContained when a name would be missing."""
    pieces = [piece for piece in copy.pieces.values() if piece.text not in known]
    pieces.sort(key=lambda piece: (piece.order, piece.text if piece.is_import else ""))
    _check_names(copy)
    foreign = [piece for piece in pieces if piece.is_import and any(map(is_foreign, piece.imported))]
    inside = pieces if _runs_at_once(copy, {name for piece in foreign for name in piece.binds}) else foreign
    above = [piece for piece in pieces if piece not in inside]
    later = {module for piece in pieces if not piece.is_import for module in piece.imported}
    # one that is not loaded was never imported: its absence is no reason to stop
    further = {module for module in later if is_foreign(module) and module in sys.modules}
    text = joined([piece.text for piece in above])
    block = CopiedBlock(text, _inside(copy, inside), tuple(sorted(further)))
    compile(f"{block.above}\n{block.inside}", "<copy>", "exec")
    return block


def _inside(copy: Copy, pieces: list[CopiedStatement]) -> str:
    if not pieces:
        return ""
    title = [] if all(piece.is_import for piece in pieces) else [copy.title]
    bound = sorted({name for piece in pieces for name in piece.binds})
    return "\n".join([f"global {', '.join(bound)}", *title, joined([piece.text for piece in pieces])])


def _runs_at_once(copy: Copy, foreign: set[str]) -> bool:
    """Whether a statement, when it runs, may look up one of the ``foreign`` names: itself or by what it calls."""
    needs: dict[str, set[str]] = {}
    for piece in copy.pieces.values():
        for name in piece.binds:
            needs.setdefault(name, set()).update(piece.needs)
    waiting = {name for piece in copy.pieces.values() for name in piece.needs_now}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in foreign:
            return True
        seen.add(name)
        waiting |= needs.get(name, set()) - seen
    return False


def _check_names(copy: Copy) -> None:
    bound = {name for piece in copy.pieces.values() for name in piece.binds}
    needed = {name for piece in copy.pieces.values() for name in piece.needs}
    if absent := needed - bound - copy.missing - {*dir(builtins), "__name__"}:
        raise NotSelfContained(f"{', '.join(sorted(absent))} would be missing")


class RefBuilder:
    """Imports and their surroundings, each once and in order, while the parts of a backend are being found.

    Names are given out so that two objects of one name from two modules stay apart.
    """

    def __init__(self, start: BackendRef = BackendRef("", "")) -> None:  # noqa: B008 - it is frozen
        self.setup: dict[str, None] = dict.fromkeys(start.setup)
        self._embedded = start.embedded
        copied = (start.embedded, *(text for text in start.setup if "\n" in text))
        self._known = {found.text for text in copied for found in read_statements(text, "<copy>")}
        self.copies: dict[str, Copy] = {}
        self.files: dict[str, None] = dict.fromkeys(start.files)
        self.paths: dict[str, None] = dict.fromkeys(start.paths)
        self.requirements: dict[str, None] = dict.fromkeys(start.requirements)
        self.remarks: dict[str, None] = dict.fromkeys(start.remarks)
        self.modules: dict[str, None] = dict.fromkeys(start.modules)
        self.fill_in = start.fill_in
        self._names: dict[str, tuple[str, str]] = {}

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """A block after whose exception the builder is as it was before."""
        saved = {name: copy.copy(value) for name, value in vars(self).items()}
        copies = {module: dict(found.pieces) for module, found in self.copies.items()}
        try:
            yield
        except BaseException:
            vars(self).update(saved)
            for module, pieces in copies.items():
                self.copies[module].pieces = pieces
            raise

    def name_for(self, module: str, name: str) -> str:
        wanted, number = name, 1
        while self._names.setdefault(wanted, (module, name)) != (module, name):
            number += 1
            wanted = f"{name}_{number}"
        return wanted

    def import_from(self, module: str, name: str) -> str:
        known = self.name_for(module, name)
        renamed = f" as {known}" if known != name else ""
        self.setup[f"from {module} import {name}{renamed}"] = None
        self.uses(module)
        return known

    def import_module(self, module: str, why: str = "") -> None:
        plain = f"import {module}"
        if not any(line == plain or line.startswith(plain + " ") for line in self.setup):
            self.setup[f"{plain}  # {why}" if why else plain] = None
        self.uses(module)

    def copy_of(self, module: str, file: str | None = None) -> Copy:
        return self.copies.setdefault(module, Copy(module, file))

    def load_file(self, path: str, why: str, *, name: str = "", package: str = "") -> str:
        """``known = load_by_path(path)``; what the module is called in the script."""
        base = os.path.basename(path)
        plain = re.sub(r"\W", "_", os.path.splitext(base)[0])
        known = self.name_for("", f"_{plain}" if plain[:1].isdigit() or keyword.iskeyword(plain) else plain)
        given = {"name": name, "package": package}
        further = "".join(f", {key}={value!r}" for key, value in given.items() if value)
        self.setup[f"{known} = load_by_path({path!r}{further})"] = None
        self.files[path] = None
        self.paths[os.path.dirname(path)] = None
        self.remarks[f"{base} is loaded by its path, without its `__main__` block, since {why}"] = None
        return known

    def uses(self, module: str) -> None:
        """``module`` is part of the backend: what it needs to be installed, and what there is to watch."""
        top = top_level(module)
        if top == "torch" or is_foreign(module):
            self.modules[top] = None
        if is_foreign(module):
            self.requires(module)

    def requires(self, module: str) -> None:
        found = installed(module)
        if found.requirement:
            self.requirements[found.requirement] = None
        if found.remark:
            self.remarks[found.remark] = None
        self.paths |= dict.fromkeys(found.paths)

    def reference(
        self, name: str, expression: str, options: Mapping[str, Any], mode: str | None
    ) -> BackendRef:
        embedded = self._place_copies()
        return BackendRef(
            name=name,
            expression=expression,
            setup=tuple(self.setup),
            embedded=embedded,
            files=tuple(self.files),
            paths=tuple(self.paths),
            options=dict(options),
            mode=mode,
            requirements=tuple(self.requirements),
            remarks=tuple(self.remarks),
            modules=tuple(self.modules),
            fill_in=self.fill_in,
        )

    def _place_copies(self) -> str:
        """Put copied source where it belongs, with what it needs; the text for the top level of the script."""
        texts = [self._embedded] if self._embedded else []
        for copied in self.copies.values():
            block = block_of(copied, self._known)
            for module in block.modules:
                self.import_module(module, "for a function of the copied source")
            for piece in copied.pieces.values():
                for module in filter(is_foreign, piece.imported):
                    self.requires(module)
            if block.inside:
                self.setup[block.inside] = None
            if block.above:
                texts.append(block.above)
        return "\n\n".join(texts)


class NotReferable(Exception):
    """No fresh process gets an object back; the text is a clause: ``it is a closure over level``."""


class NotDefined(NotReferable):
    """The name that holds the object is no definition of it: a loop variable, or source that nobody kept."""


def from_script(location: Location, value: object, builder: RefBuilder) -> str:
    """The expression for a global of a module that no import finds. Raises NotReferable."""
    file = getattr(getattr(value, "__code__", None), "co_filename", None)
    if location.module != "__main__" and file_of(location.module) is not None:
        # it was loaded by path before, under a name that its frames have in signatures
        return _by_file(location, "no import finds its module", builder, name=location.module)
    try:
        with builder.attempt():
            copy = builder.copy_of(location.module, file)
            if not copy.defines(location.first):
                raise NotDefined(f"nobody kept the definition of {location.first}")
            copy.add_name(location.first)
            block_of(copy)  # complete, and it compiles
    except NotSelfContained as error:
        check_loadable(location.module, location.first, f"its source cannot be copied ({error})")
        return _by_file(location, str(error), builder)
    return location.path


def from_function(function: types.FunctionType, builder: RefBuilder) -> str:
    """The expression for a local function that uses nothing local: its source is copied. Raises NotReferable."""
    path = [part for part in function.__qualname__.split(".") if part != "<locals>"]
    if function.__module__ != "__main__":
        raise NotReferable(f"it is a local function of {function.__module__}.{path[0]}")
    try:
        with builder.attempt():
            copy = builder.copy_of("__main__", function.__code__.co_filename)
            copy.add_function(function)
            block_of(copy)
    except NotSelfContained as error:
        raise NotReferable(f"it is a local function, and its source cannot be copied: {error}") from error
    return path[0] + "()" * (len(path) - 1)


def check_loadable(module: str, name: str, copied: str) -> None:
    """Raise NotReferable where running a script again would do more than define ``name``, or not define it.

    ``copied`` is a clause that says why its source is not copied.
    """
    if file_of(module) is None:
        raise NotReferable(f"{copied}, and {module} has no file")
    if not has_main_block(module):
        raise NotReferable(
            f"{copied}, and loading its script would run the whole of it: there is no "
            f'`if __name__ == "__main__":` block'
        )
    if name in guarded_names(module):
        raise NotReferable(f"{copied}, and it is defined in the `__main__` block, which is not run again")


def _by_file(location: Location, why: str, builder: RefBuilder, name: str = "") -> str:
    module = sys.modules[location.module]
    package = (getattr(module, "__package__", None) or "") if location.module == "__main__" else ""
    if package:
        builder.requires(package)
    builder.uses(location.module)
    known = builder.load_file(str(file_of(location.module)), why, name=name, package=package)
    return f"{known}.{location.path}"


def guarded_names(module: str) -> frozenset[str]:
    statements = statements_of(module)
    free = {name for found in statements if not found.guarded for name in found.binds}
    return frozenset(name for found in statements if found.guarded for name in found.binds) - free


def expression_for(value: Any, builder: RefBuilder) -> str:
    """The expression for ``value``; what it needs first goes on the ``builder``.

    In this order: a location that an import reaches, its parts put together anew, its source.
    Raises NotReferable, and the builder is as it was before.
    """
    location = location_of(value)
    with builder.attempt():
        if location is not None and finds_again(location.module):
            name = builder.import_from(location.module, location.first)
            return name + location.path.removeprefix(location.first)
        try:
            with builder.attempt():
                return _rebuilt(value, builder)
        except NotReferable as error:
            return _from_source(value, location, error, builder)


def _rebuilt(value: Any, builder: RefBuilder) -> str:
    if isinstance(value, types.MethodType):
        return f"{expression_for(value.__self__, builder)}.{value.__func__.__name__}"
    if isinstance(value, functools.partial):
        builder.setup["import functools"] = None
        function = expression_for(value.func, builder)
        return _call("functools.partial", value.args, value.keywords, builder, first=function)
    arguments = torch_internals.aot_autograd_arguments(value)
    if arguments is None:
        raise NotReferable(_why_not(value))
    builder.setup["from torch._dynamo.backends.common import aot_autograd"] = None
    return _call("aot_autograd", (), arguments, builder)


def _from_source(value: Any, location: Location | None, error: NotReferable, builder: RefBuilder) -> str:
    """By copied source or by the path of a script; ``error`` is why nothing else worked."""
    if location is not None:
        with contextlib.suppress(NotDefined):
            return from_script(location, value, builder)
    is_named = isinstance(value, types.FunctionType) and value.__name__ != "<lambda>"
    if is_named and not value.__code__.co_freevars:
        return from_function(value, builder)
    raise error


def _call(
    function: str,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    builder: RefBuilder,
    first: str | None = None,
) -> str:
    """``function(first, *arguments, **keywords)`` with each argument a literal or an object with a location."""
    parts = [first] if first is not None else []
    parts += [_argument(value, f"argument {index}", builder) for index, value in enumerate(arguments)]
    named = [(name, _argument(value, f"argument {name!r}", builder)) for name, value in keywords.items()]
    if all(name.isidentifier() for name, _ in named):
        parts += [f"{name}={text}" for name, text in named]
    else:
        parts.append("**{" + ", ".join(f"{name!r}: {text}" for name, text in named) + "}")
    return f"{function}({', '.join(parts)})"


def _argument(value: object, part: str, builder: RefBuilder) -> str:
    table = torch_internals.decompositions_expression(value)
    if table is not None:
        builder.setup[table[0]] = None
        return table[1]
    try:
        return write_literal(value)
    except NotALiteral as error:
        if not callable(value):
            raise NotReferable(f"{part} is no literal: {error}") from None
    try:
        return expression_for(value, builder)
    except NotReferable as error:
        raise NotReferable(f"{part} cannot be found again: {error}") from None


def _why_not(value: Any) -> str:
    code = getattr(value, "__code__", None)
    if isinstance(value, types.FunctionType) and code is not None:
        where = f"of {value.__module__}, line {code.co_firstlineno}"
        if code.co_freevars:
            return f"it is a closure {where}, over {', '.join(code.co_freevars)}"
        if value.__name__ == "<lambda>":
            return f"it is a lambda {where}, without a global name"
        return f"it is a function {where}, which no import leads to"
    kind = type(value)
    return f"it is an object of {kind.__module__}.{kind.__qualname__} that no global name holds"
