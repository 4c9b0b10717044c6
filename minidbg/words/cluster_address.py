"""The address of a cluster, as an option gives it. Needs no Dask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minidbg.words.errors import BadSetting


@dataclass(frozen=True, slots=True)
class Cluster:
    """How to reach a cluster: ``tcp://HOST:PORT``, ``tls://HOST:PORT``, or ``local`` with the number of runs at the same time, ``local:4``."""

    address: str
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    insecure: bool = False

    def __post_init__(self) -> None:
        """Raises BadSetting for an address that is none, and for one that anybody on the network could use."""
        scheme, _, rest = self.address.partition("://")
        if scheme in ("tcp", "tls") and rest.rpartition(":")[2].isdecimal():
            if scheme == "tcp" and not self.insecure and not is_loopback(rest.rpartition(":")[0].strip("[]")):
                raise BadSetting(
                    f"{self.address} is not on this machine and not encrypted: whoever reaches the scheduler runs code on each "
                    "worker as its user; use tls:// with --tls-ca, --tls-cert and --tls-key, or say --insecure"
                )
        elif not (self.address == "local" or self.address.removeprefix("local:").isdecimal()):
            raise BadSetting(
                f"--cluster {self.address}: no address of a cluster; they look like tcp://127.0.0.1:8786, tls://box:8786, local or local:4"
            )

    @property
    def local_runs(self) -> int:
        """How many runs at the same time a worker takes that is started here; 0 for a cluster that somebody else has started."""
        if not self.address.startswith("local"):
            return 0
        return int(self.address.partition(":")[2] or 1)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The command line that says the same to another minidbg."""
        given = {"--tls-ca": self.tls_ca, "--tls-cert": self.tls_cert, "--tls-key": self.tls_key}
        options = [word for name, value in given.items() if value for word in (name, value)]
        return ("--cluster", self.address, *options, *(["--insecure"] if self.insecure else []))

    def security(self) -> Any:
        """Dask's own ``Security``, from the options or from Dask's configuration. Raises BadSetting."""
        from distributed.security import Security

        pair = {"cert": self.tls_cert, "key": self.tls_key}
        roles = ("client", "worker")
        given = {f"tls_{role}_{what}": file for role in roles for what, file in pair.items() if file}
        if self.tls_ca:
            given["tls_ca_file"] = self.tls_ca
        if not self.address.startswith("tls://"):
            return Security(require_encryption=False)
        security: Any = Security(require_encryption=True, **given)
        if not security.tls_ca_file:
            raise BadSetting(
                f"{self.address}: TLS needs --tls-ca, --tls-cert and --tls-key, or distributed.comm.tls in Dask's configuration"
            )
        return security


def is_loopback(host: str) -> bool:
    """Whether the name or number stands for this machine alone."""
    import ipaddress
    import socket

    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(str(one).partition("%")[0]).is_loopback for one in found)
