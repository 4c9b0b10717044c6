"""The command line: results on stdout, the rest on stderr; a command calls one library function."""

from minidbg.commands.root import cli, main

__all__ = ["cli", "main"]
