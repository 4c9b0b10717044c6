"""``minidbg worker``, and the pool of ``minidbg watch --cluster``. Dask is imported when used."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import click

from minidbg.commands.output import jobs_option
from minidbg.core.errors import BadSetting, MinidbgError
from minidbg.core.machine import HERE

if TYPE_CHECKING:
    from minidbg.watch.daemon import OtherMachines

CERTIFICATES = "set distributed.comm.tls in Dask's configuration ('minidbg help cluster' shows how)"


def security_of(address: str) -> Any:
    """Raises BadSetting where anybody on the network could use it, MinidbgError without Dask."""
    scheme, _, rest = address.partition("://")
    is_here = rest.rpartition(":")[0] in ("127.0.0.1", "[::1]", "localhost")
    if scheme != "tls" and not (scheme == "tcp" and is_here):
        why = "whoever reaches a scheduler runs code on each worker as its user"
        text = f"{address} is not encrypted, and not on this machine at tcp://127.0.0.1:PORT: {why}"
        raise BadSetting(f"{text}; use tls://HOST:PORT, and {CERTIFICATES}")
    try:
        from distributed.security import Security
    except ImportError as missing:
        text = f"a cluster needs Dask ({missing}); install it: pip install 'minidbg[cluster]'"
        raise MinidbgError(text) from missing
    security = Security(require_encryption=scheme == "tls")
    if scheme == "tls" and not security.tls_ca_file:
        raise BadSetting(f"{address} needs certificates; {CERTIFICATES}")
    return security


@click.command("worker")
@click.argument("address")
@click.option(
    "--name", default=platform.node(), show_default="the host's name",
    help="Name of this machine in watch; identical machines may share one.",
)  # fmt: skip
@jobs_option(True, min(8, HERE.processors()))
def worker(address: str, name: str, jobs: int) -> None:
    """Run repros here for 'minidbg watch --cluster'.

    ADDRESS is that of a Dask scheduler ('dask scheduler' starts one): whoever reaches it runs code
    here as you. Ends with Ctrl-C.
    """
    security = security_of(address)
    from minidbg.extras.cluster.worker import serve_scheduler

    serve_scheduler(address, security, name, jobs)


def pool_of(address: str) -> OtherMachines:
    """How the pool is made, or MinidbgError with no scheduler. Raises what ``security_of`` does."""
    security = security_of(address)
    from minidbg.extras.cluster.machines import Machines
    from minidbg.extras.cluster.routing import RoutingPool

    return lambda here, tell: RoutingPool(Machines(address, security, tell), here, tell)
