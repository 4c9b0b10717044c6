"""The root of the command line: finds commands when asked for, and ends each in the same manner.

Exit statuses are those of the verdicts (``minidbg.core.outcome.EXIT_STATUS``); what cannot be
judged, a usage error included, is 125.
"""

from __future__ import annotations

import os
import pkgutil
import signal
import sys
from typing import Any

import click

from minidbg import __version__
from minidbg.commands import output
from minidbg.commands.output import CANNOT_JUDGE
from minidbg.commands.table import COMMANDS, SECTIONS
from minidbg.core import environment
from minidbg.core.errors import Interrupted, Terminated, nearest

PROGRAMS = ("run", "demo")
"""Commands that run a program, whose failures are to be answered; others judge and answer none."""


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = pkgutil.resolve_name(COMMANDS[cmd_name])
        return output.with_verbosity_options(found)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            hint = nearest(name, COMMANDS) or "; see: minidbg --help"
            raise click.UsageError(f"no command named {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in SECTIONS.items():
            width = formatter.width - 6 - max(map(len, COMMANDS))
            rows = [
                (name, command.get_short_help_str(width))
                for name in names
                if (command := self.get_command(ctx, name)) is not None
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.pass_context
def cli(context: click.Context) -> None:
    """Reduce a failure of a torch.compile backend to a small script, and watch it get fixed.

    Results are printed on stdout, messages on stderr.

    Exit status of commands that run repros: 0 the failure is gone; 1 it is still there, at least in
    some runs; 3 another failure (another error, a crash, a timeout); 125 cannot be judged here, or
    the command could not do what was asked.
    """
    context.color = output.colour()
    if context.invoked_subcommand not in PROGRAMS:
        context.with_resource(environment.judging())


output.with_verbosity_options(cli)


def main(argv: list[str] | None = None) -> Any:
    """The entry point. What cannot be met ends with two lines on stderr and status 125."""
    output.VERBOSITY.set(0)
    try:
        ending = dict.fromkeys((signal.SIGTERM, signal.SIGHUP), output.terminated)
        with output.signals_handled(ending):
            status = cli.main(args=argv, prog_name="minidbg", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.format_message())
        status = 0
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("minidbg: interrupted", err=True)
        output.end_interrupted()
    except Interrupted as interrupted:
        output.print_error(interrupted)
        output.end_interrupted()
    except Terminated as by:
        output.end_by(by.number)
    except BrokenPipeError:
        # who read our output has gone: nothing to say, and nobody to say it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CANNOT_JUDGE)
    except Exception as error:  # noqa: BLE001 - a traceback exits with 1, which means "reproduces"
        output.print_error(error)
        sys.exit(CANNOT_JUDGE)
    sys.exit(status if isinstance(status, int) else 0)
