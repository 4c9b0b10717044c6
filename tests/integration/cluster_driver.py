"""Drives a Dask cluster of real processes: a scheduler, workers of minidbg, and ``minidbg watch``, each in a host of its own if asked.

A host is a network namespace. All hosts hang on one bridge, and a cable between them can be cut, be slow, or lose packets.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

SCHEDULER = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
WORKER = [sys.executable, "-m", "minidbg", "worker"]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_until(done: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    until = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < until, f"{what} did not happen within {seconds} s"
        time.sleep(0.05)
    return found


class Host:
    """A network namespace with one cable to the bridge; its address is ``10.77.0.NUMBER``."""

    def __init__(self, net: Net, name: str, number: int) -> None:
        self.net, self.name, self.address = net, f"{net.name}{name}", f"10.77.{net.subnet}.{number}"
        self.cable = f"{net.name}v{number}"
        ip("netns", "add", self.name)
        ip("link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("link", "set", self.cable, "master", net.bridge, "up")
        inside = ["netns", "exec", self.name, "ip"]
        ip(*inside, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip(*inside, "link", "set", "eth0", "up")
        ip(*inside, "link", "set", "lo", "up")

    @property
    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Pull the cable: nobody is told, packets vanish."""
        ip("link", "set", self.cable, "down")

    def join(self) -> None:
        ip("link", "set", self.cable, "up")

    def slow(self, *how: str) -> None:
        """``delay 20ms``, ``loss 5%``: of what goes out of the host."""
        subprocess.run(
            [*self.prefix, "tc", "qdisc", "replace", "dev", "eth0", "root", "netem", *how], check=True
        )


class Net:
    """A bridge and its hosts; gone with the block."""

    def __init__(self, name: str = "mdbg", subnet: int = 0) -> None:
        self.name, self.subnet, self.bridge = name, subnet, f"{name}br"
        self.hosts: list[Host] = []

    def __enter__(self) -> Net:
        self.remove()
        ip("link", "add", self.bridge, "type", "bridge")
        ip("link", "set", self.bridge, "up")
        return self

    def host(self, name: str) -> Host:
        self.hosts.append(Host(self, name, len(self.hosts) + 2))
        return self.hosts[-1]

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        for name in [line.split()[0] for line in listed.splitlines() if line.startswith(self.name)]:
            ip("netns", "del", name)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True, check=False)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def why_no_hosts() -> str:
    """Why there can be no network namespaces here; empty when there can."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        return "network namespaces need root, ip and tc"
    try:
        with Net("mdbgtry", 9) as net:
            net.host("a").slow("delay", "1ms")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be made here: {error}"
    return ""


class Cluster:
    """Processes that are ended with the block."""

    def __init__(self, folder: Path, *, host: Host | None = None, tls: list[str] | None = None) -> None:
        """``host`` is where the scheduler is, ``tls`` the options for certificates."""
        self.folder, self.host, self.tls = folder, host, tls or []
        self.port = free_port()
        where = host.address if host else "127.0.0.1"
        self.address = f"{'tls' if tls else 'tcp'}://{where}:{self.port}"
        self.insecure = ["--insecure"] if host and not tls else []
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Cluster:
        self.start_scheduler()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            end(process)

    def start(
        self, name: str, command: list[str], host: Host | None, env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("ab")
        clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        with log:
            process = subprocess.Popen(
                [*(host.prefix if host else []), *command], stdout=log, stderr=log, cwd=self.folder,
                env={**clean, **(env or {})}, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def start_scheduler(self) -> None:
        where = self.host.address if self.host else "127.0.0.1"
        tls = [{"--tls-ca": "--tls-ca-file"}.get(word, word) for word in self.tls]
        self.scheduler = self.start(
            "scheduler",
            [
                *SCHEDULER,
                "--host",
                self.address.replace(f":{self.port}", "") if tls else where,
                "--port",
                str(self.port),
                *tls,
            ],
            self.host,
        )

    def worker(
        self,
        name: str,
        *options: str,
        host: Host | None = None,
        env: dict[str, str] | None = None,
        cache: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """A worker that holds no torch unless ``env`` says so; its code lies in ``cache``."""
        cache = cache or self.folder / f"cache-{name}"
        given = {"MINIDBG__WATCH_PRELOAD": "none", "XDG_CACHE_HOME": str(self.folder / "home"), **(env or {})}
        command = [*WORKER, self.address, "--cache", str(cache), *self.tls, *self.insecure, *options]
        return self.start(name, command, host, given)

    def watch_options(self) -> list[str]:
        return ["--cluster", self.address, *self.tls, *self.insecure]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


def end(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """End the process and, when it is killed, what it has started."""
    if process.poll() is not None:
        return
    try:
        inner = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        inner = []
    process.send_signal(number)
    if number == signal.SIGKILL:
        for one in inner:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait(30)
