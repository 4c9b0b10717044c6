"""What is promised to work where a package is missing, run where it cannot be imported."""

from __future__ import annotations

from pathlib import Path

from support.command_line import python

from house.source import trees

REFUSED = """
import sys


class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused}:
            raise ImportError(f"{{name}} is not to be imported here")


sys.meta_path.insert(0, Refused())
"""


def refusing(*packages: str) -> str:
    return REFUSED.format(refused=packages)


def test_words_workers_and_commands_that_only_read_need_no_torch(tmp_path: Path) -> None:
    """The daemon of ``minidbg watch`` imports them, every command line does, and a server for scripts that need no torch."""
    daemon = ["watch.daemon", "watch.terminal", "commands.watching", "judge.death"]
    modules = ["minidbg." + name for name in daemon] + [
        "minidbg." + name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for name in trees()
        if name.startswith(("core/", "workers/"))
    ]
    program = refusing("torch") + (
        "import importlib\n"
        f"for name in {modules}: importlib.import_module(name)\n"
        "from click.testing import CliRunner\n"
        "from minidbg.commands import cli\n"
        "for line in ('--help', 'list', 'status', 'history', 'config', 'help', 'watch --help'):\n"
        "    result = CliRunner().invoke(cli, line.split())\n"
        "    assert not isinstance(result.exception, ImportError), line\n"
    )
    done = python("-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
