"""Objects of scripts, notebooks and sessions: their source copied, or their file loaded by path."""

from __future__ import annotations

import types

from minidbg.references.blocks import block_of
from minidbg.references.homes import file_of, loaded_module
from minidbg.references.pieces import NotSelfContained
from minidbg.references.places import Place
from minidbg.references.statements import has_main_block, statements_of
from minidbg.references.trail import Trail


class NotLoadable(Exception):
    """Neither the source nor the file of a script gives an object back; the text is a clause."""


class NotDefined(NotLoadable):
    """The name that holds the object is no definition of it: a loop variable, or source that nobody kept."""


def from_script(place: Place, value: object, trail: Trail) -> str:
    """The expression for a global of a module that no import finds. Raises NotLoadable."""
    file = getattr(getattr(value, "__code__", None), "co_filename", None)
    if place.module != "__main__" and file_of(place.module) is not None:
        # it was loaded by path before, under a name that its frames have in signatures
        return _by_file(place, "no import finds its module", trail, name=place.module)
    try:
        with trail.attempt():
            copy = trail.copy_of(place.module, file)
            if not copy.defines(place.first):
                raise NotDefined(f"nobody kept the definition of {place.first}")
            copy.add_name(place.first)
            block_of(copy)  # complete, and it compiles
    except NotSelfContained as error:
        check_loadable(place.module, place.first, f"its source cannot be copied ({error})")
        return _by_file(place, str(error), trail)
    return place.path


def from_function(function: types.FunctionType, trail: Trail) -> str:
    """The expression for a local function that uses nothing local: its source is copied. Raises NotLoadable."""
    path = [part for part in function.__qualname__.split(".") if part != "<locals>"]
    if function.__module__ != "__main__":
        raise NotLoadable(f"it is a local function of {function.__module__}.{path[0]}")
    try:
        with trail.attempt():
            copy = trail.copy_of("__main__", function.__code__.co_filename)
            copy.add_function(function)
            block_of(copy)
    except NotSelfContained as error:
        raise NotLoadable(f"it is a local function, and its source cannot be copied: {error}") from error
    return path[0] + "()" * (len(path) - 1)


def check_loadable(module: str, name: str, copied: str) -> None:
    """Raise NotLoadable where running a script again would do more than define ``name``, or not define it.

    ``copied`` is a clause that says why its source is not copied.
    """
    if file_of(module) is None:
        raise NotLoadable(f"{copied}, and {module} has no file")
    if not has_main_block(module):
        raise NotLoadable(
            f"{copied}, and loading its script would run the whole of it: there is no "
            f'`if __name__ == "__main__":` block'
        )
    if name in guarded_names(module):
        raise NotLoadable(f"{copied}, and it is defined in the `__main__` block, which is not run again")


def _by_file(place: Place, why: str, trail: Trail, name: str = "") -> str:
    module = loaded_module(place.module)
    package = (getattr(module, "__package__", None) or "") if place.module == "__main__" else ""
    if package:
        trail.requires(package)
    trail.uses(place.module)
    known = trail.load_file(str(file_of(place.module)), why, name=name, package=package)
    return f"{known}.{place.path}"


def guarded_names(module: str) -> frozenset[str]:
    """Names that only the ``__main__`` block of a module binds."""
    statements = statements_of(module)
    free = {name for found in statements if not found.guarded for name in found.binds}
    return frozenset(name for found in statements if found.guarded for name in found.binds) - free
