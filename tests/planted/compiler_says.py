"""What g++ says of one error in several locales, as inductor hands it on."""

from __future__ import annotations

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
