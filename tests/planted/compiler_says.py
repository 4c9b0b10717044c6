"""What g++ says of one error in several locales, as inductor hands it on; and a backend that says it of relu."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from fails_on import all_nodes, name_of
from torch import fx

UNDECLARED = "C++ compile error\n\nCommand:\ng++ /t/{file} -O3 -o /t/x.so\n\nOutput:\n/t/{file}: In Funktion kernel:\n/t/{file}:7:1: "
COMPILER_SAYS = {
    "C": "error: '{name}' was not declared in this scope",
    "C.UTF-8": "error: \u2018{name}\u2019 was not declared in this scope",
    "coloured": "\x1b[01;31m\x1b[Kerror: \x1b[m\x1b[K'\x1b[01m\x1b[K{name}\x1b[m\x1b[K' was not declared in this scope",
    "with links": "error: '{name}' was \x1b]8;;https://gcc.gnu.org/x\x07not declared\x1b]8;;\x07 in this scope",
}


class CppCompileError(RuntimeError):
    """Named as torch's own."""


def compile_error(locale: str, name: str, file: str = "a.cpp") -> CppCompileError:
    """What torch raises where g++ does not know ``name``."""
    return CppCompileError((UNDECLARED + COMPILER_SAYS[locale] + "\nnote\n").format(name=name, file=file))


def refuses_relu(gm: fx.GraphModule, example_inputs: Sequence[Any], *, locale: str) -> Callable[..., Any]:
    if any(name_of(node) == "relu" for node in all_nodes(gm)):
        size = len(gm.graph.nodes)
        raise compile_error(locale, f"tmp{size}", f"c{size}x.cpp")
    return gm.forward


def refuses_relu_in(locale: str) -> functools.partial[Callable[..., Any]]:
    """A backend without a kernel for relu, whose compiler speaks the language of ``locale``."""
    return functools.partial(refuses_relu, locale=locale)
