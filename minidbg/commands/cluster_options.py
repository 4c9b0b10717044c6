"""``--cluster`` and the options for its certificates."""

from __future__ import annotations

import functools
from typing import Any

import click

from minidbg.words.cluster_address import Cluster


def tls_options(command: Any) -> Any:
    """Add the options for certificates to a command that gets an address as ``cluster``; it gets a ``Cluster`` instead, or None."""
    names = ("tls_ca", "tls_cert", "tls_key", "insecure")

    @functools.wraps(command)
    def with_cluster(*arguments: Any, cluster: str | None, **options: Any) -> Any:
        given = {name: options.pop(name) for name in names}
        return command(*arguments, cluster=Cluster(cluster, **given) if cluster else None, **options)

    click.option("--insecure", is_flag=True, help="Allow tcp:// beyond this machine.")(with_cluster)
    for name, text in (  # the last one is listed first
        ("--tls-key", "Its key."),
        ("--tls-cert", "The certificate of this side (PEM)."),
        ("--tls-ca", "For tls://: the authority that both sides trust (PEM)."),
    ):
        click.option(name, default="", metavar="FILE", help=text)(with_cluster)
    return with_cluster


def cluster_options(command: Any) -> Any:
    """Add ``--cluster`` and the options for certificates to a command, which gets ``cluster``: a ``Cluster``, or None."""
    text = "Run on the machines of a Dask cluster: tcp://HOST:PORT, tls://HOST:PORT or local; see 'minidbg help cluster'."
    return click.option("--cluster", metavar="ADDRESS", help=text)(tls_options(command))
