"""``minidbg stages``: at which stage of compiling a repro's failure comes about."""

from __future__ import annotations

from pathlib import Path

import click

from minidbg.cli.manners import JSON, note, print_json


@click.command()
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--seconds", default=120.0, show_default=True, help="Most seconds to spend.")
@click.option(
    "--background", is_flag=True, hidden=True, help="When the machine is idle, for a minute at most."
)
@JSON
def stages(path: Path, seconds: float, background: bool, as_json: bool) -> None:
    """Find out at which stage of compiling PATH's failure comes about, and write that into its header.

    Runs its graph through eager, aot_eager and aot_eager_decomp_partition, and bisects inductor's passes, lowerings
    and options with torch's own bisector. Each run is a child process.
    """
    from minidbg import stages as room

    report = room.find_in_background(path) if background else room.find_stages(path, seconds=seconds)
    room.keep_stages(path, report)
    if as_json:
        print_json({"repro": str(path), "sentence": report.sentence, **report.to_table()})
    else:
        click.echo(report.sentence)
    note(f"{report.seconds:.1f} s; it stands in the header of {path}")
