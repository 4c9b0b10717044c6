"""``minidbg worker``: this machine as a worker of a Dask cluster."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile

import click

from minidbg.commands.cluster_options import tls_options
from minidbg.extras.cluster.members import LEAN
from minidbg.words.cluster_address import Cluster
from minidbg.words.errors import MinidbgError


@click.command("worker")
@click.argument("cluster", metavar="ADDRESS")
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), default=min(8, os.cpu_count() or 1), show_default=True,
    help="Runs at the same time on the processor.",
)  # fmt: skip
@click.option(
    "--kind",
    default="",
    help="What machines are called that may stand in for each other; default: made of what is installed.",
)
@click.option("--cache", default="", metavar="FOLDER", help="Where the code under test is kept.")
@tls_options
def worker(cluster: Cluster, jobs: int, kind: str, cache: str) -> None:
    """Run repros here for 'watch --cluster' and 'reduce --cluster'.

    ADDRESS is that of a Dask scheduler ('dask scheduler' starts one). Whoever reaches the scheduler runs code here as you.
    Ends with Ctrl-C; when the scheduler has gone it waits for it.
    """
    if cluster.local_runs:
        raise click.UsageError(
            f"{cluster.address}: a worker joins a scheduler, at tcp://HOST:PORT or tls://HOST:PORT"
        )
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise MinidbgError("dask is not installed; pip install 'minidbg[cluster]'") from None
    import asyncio  # late, as all that the list of commands does not need

    sys.exit(asyncio.run(serve(cluster, jobs, kind, cache)))


async def serve(cluster: Cluster, jobs: int, kind: str, cache: str) -> int:
    """Be a worker until a signal comes; a new one of Dask's whenever the scheduler was lost. The exit status."""
    import asyncio

    import dask
    from distributed import Worker

    logging.getLogger("distributed").setLevel(logging.ERROR)
    stopped = asyncio.ensure_future(signalled())
    options = [*(["--kind", kind] if kind else []), *(["--cache", cache] if cache else [])]
    with (
        tempfile.TemporaryDirectory(prefix="minidbg-dask-") as folder,
        dask.config.set({**LEAN, "distributed.worker.http.routes": []}),
    ):
        while True:
            found = Worker(
                cluster.address, nthreads=jobs, memory_limit=0, security=cluster.security(), local_directory=folder,
                preload=["minidbg.extras.cluster.judges"], preload_argv=options, dashboard=False,
            )  # fmt: skip
            ends = asyncio.ensure_future(found.start())
            await asyncio.wait({ends, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if ends.done() and not stopped.done():
                ends.result()
                if "minidbg" not in found.plugins:
                    await found.close()
                    return 1  # Dask has logged why
                places = ", ".join(
                    f"{name.partition('#')[0]} {count:g}"
                    for name, count in found.state.total_resources.items()
                )
                click.echo(f"minidbg: working for {cluster.address} as {found.address}: {places}", err=True)
                ends = asyncio.ensure_future(found.finished())
                await asyncio.wait({ends, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                ends.cancel()
                await found.close(nanny=False)
                return 0
            click.echo(f"minidbg: {cluster.address} has gone; waiting for it", err=True)


async def signalled() -> None:
    import asyncio

    event, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, event.set)
    await event.wait()
