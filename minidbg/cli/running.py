"""``minidbg run``: an unmodified program, wrapped."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import click

from minidbg.cli.output import note


class ProgramLast(click.Command):
    """A command whose options end where the program's name, or its ``-m``, begins."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As of any command, with all that is the program's left to it."""
        begin = self.begin_of_program(args)
        return super().parse_args(ctx, [*args[:begin], "--", *args[begin:]])

    def begin_of_program(self, args: list[str]) -> int:
        """The place of the first argument that is not ours."""
        options = [one for one in self.params if isinstance(one, click.Option)]
        with_value = {name for one in options if not (one.is_flag or one.count) for name in one.opts}
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] not in ("-m", "--"):
            place += 2 if args[place] in with_value else 1
        return place + (args[place : place + 1] == ["--"])


@click.command(cls=ProgramLast)
@click.option(
    "--backend",
    envvar="MINIDBG_BACKEND",
    metavar="NAME|MODULE:OBJECT",
    help="Use this backend instead of those that the program asks for.",
)
@click.option("--fallback", is_flag=True, help="Go on in eager where a backend fails.")
@click.option("--later", is_flag=True, help="Write captures only; reduce them with: minidbg reduce.")
@click.option("--dir", "folder", type=click.Path(file_okay=False, path_type=Path), help="The repro folder.")
@click.option("--seconds", type=float, help="Most seconds that the reductions of a process may take.")
@click.option(
    "--compile-all",
    envvar="MINIDBG_COMPILE_ALL",
    multiple=True,
    metavar="MODULE:CLASS",
    help="Compile the instances of this torch.nn.Module class; for programs without torch.compile.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="{PROGRAM|-m MODULE} [ARGS]...")
def run(
    backend: str | None,
    fallback: bool,
    later: bool,
    folder: Path | None,
    seconds: float | None,
    compile_all: tuple[str, ...],
    program: tuple[str, ...],
) -> None:
    """Run a Python program with every torch.compile in it wrapped.

    The program runs as it would alone, and its exit status is ours (128 + n when signal n ended it). What failed is
    told at the end, also when the program died in a backend. Options stand before PROGRAM. Settings come from MINIDBG_*
    variables and pyproject.toml, as for minidbg.wrap.
    """
    from minidbg import settings
    from minidbg.run.inside import Orders
    from minidbg.run.launch import run_program, summary_of

    if not program or program == ("-m",):
        raise click.UsageError(
            "no program; for example: minidbg run train.py, or: minidbg run -m package.train"
        )
    given = {
        "on_failure": "fallback" if fallback else None,
        "reduce": "later" if later else None,
        "seconds": seconds,
    }
    loaded = settings.load({**given, "repro_dir": folder})
    repro_dir = loaded.repro_dir.absolute()
    variables = {f"MINIDBG_{name.upper()}": str(value) for name, value in given.items() if value is not None}
    environ = {**os.environ, **variables, "MINIDBG_DIR": str(repro_dir)}
    began = time.time()
    with tempfile.NamedTemporaryFile(prefix="minidbg-run-", suffix=".jsonl") as log:
        orders = Orders(log.name, backend, compile_all)
        ending = run_program(program, orders.in_environment(environ))
        summary = summary_of(Path(log.name), ending, began, loaded, note)
    for line in summary.lines:
        note(line)
    sys.exit(ending.pass_on())
