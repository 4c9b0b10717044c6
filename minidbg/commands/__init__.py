"""The command line: results on stdout, everything else on stderr; each command calls one function of the library."""

from minidbg.commands.root import cli, main

__all__ = ["cli", "main"]
