"""``minidbg check``: run repros and say which still fail."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from minidbg.commands import output
from minidbg.commands.output import CANNOT_JUDGE, print_json
from minidbg.commands.watching import OPTIONS
from minidbg.core.outcome import EXIT_STATUS, Outcome, Verdict
from minidbg.core.run_spec import PRECISIONS
from minidbg.core.text import in_one_line

WORST_FIRST = (1, 3, CANNOT_JUDGE, 0)

VERDICT_STYLE = {
    Verdict.GONE: "green",
    Verdict.REPRODUCES: "red",
    Verdict.CHANGED: "yellow",
    Verdict.CRASHED: "yellow",
    Verdict.TIMEOUT: "yellow",
    Verdict.FLAKY: "magenta",
}


@click.command()
@click.argument("paths", nargs=-1, required=True, type=output.ReproPath(folders=True))
@output.JSON_OPTION
@output.DEVICE_OPTION
@click.option(
    "--backend",
    metavar=output.BACKEND,
    help="Use this backend instead of the one in the script: "
    "a registered name, module:attribute, or a call, module:make(level=2).",
)
@OPTIONS
@click.option("--rtol", type=click.FloatRange(min=0.0), help="Relative tolerance of results; needs --atol.")
@click.option("--atol", type=click.FloatRange(min=0.0), help="Absolute tolerance of results; needs --rtol.")
@click.option(
    "--tolerances",
    "precision",
    type=click.Choice(PRECISIONS),
    help="Tolerances for a backend that computes float32 in this precision by design; "
    "replaces --rtol and --atol.",
)
@click.option(
    "--bisect",
    is_flag=True,
    help="For git bisect run: exit with 125 instead of 3, so that git skips the commit.",
)
@output.seconds_option(" of each run")
def check(
    paths: tuple[Path, ...],
    as_json: bool,
    device: str | None,
    backend: str | None,
    options: str,
    rtol: float | None,
    atol: float | None,
    precision: str | None,
    bisect: bool,
    seconds: float,
) -> None:
    """Run repros in fresh interpreters, and say which still fail.

    PATHS are scripts, unique parts of their names in the repro folder, or folders of scripts. Exit status, the first that applies: 1 a repro still fails, at least in some runs; 3 one fails differently; 125 one cannot be judged here; 0 all are gone.
    """
    from minidbg import repro
    from minidbg.watch.repros import find_repros

    for path in paths:
        if not find_repros([path]):
            where = f"captures lie in {path}/.minidbg/captures"
            raise click.UsageError(f"{path}: no *.py in this folder; {where}")
    if (rtol is None) != (atol is None):
        raise click.UsageError("--rtol and --atol go together: give both or neither")
    if precision and rtol is not None:
        raise click.UsageError("--tolerances replaces --rtol and --atol: give one or the other")
    tolerances = precision if rtol is None or atol is None else (rtol, atol)
    statuses = []
    for path in find_repros(paths):
        outcome = repro.run(
            path, device=device, backend=backend, options=options, tolerances=tolerances, seconds=seconds
        )
        statuses.append(outcome.verdict.exit_status)
        if as_json:
            print_json({"repro": str(path), **outcome.to_json()})
        else:
            print_outcome(path, outcome)
    worst = min(statuses, key=WORST_FIRST.index)
    sys.exit(CANNOT_JUDGE if bisect and worst == Verdict.CHANGED.exit_status else worst)


def print_outcome(path: Path, outcome: Outcome) -> None:
    verdict = click.style(f"{outcome.verdict:<10}", fg=VERDICT_STYLE.get(outcome.verdict))
    why = in_one_line(outcome.reason or outcome.message.strip().partition("\n")[0][:120])
    click.echo(f"{verdict} {in_one_line(str(path))}  {outcome.seconds:.1f} s  {why}".rstrip())


assert set(EXIT_STATUS.values()) == set(WORST_FIRST), "a new status needs its place among the worst"
