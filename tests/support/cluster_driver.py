"""Drives a Dask cluster of real processes: a scheduler, workers of minidbg, and ``minidbg watch``, each in a host of its own if asked.

A host is a network namespace with one TAP device. All of them hang on a switch in this process, which can cut a cable, delay packets
and lose them: not every kernel has ``tc netem``.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from support.watch_driver import free_port

SCHEDULER = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]


def wait_until(done: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    until = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < until, f"{what} did not happen within {seconds} s"
        time.sleep(0.05)
    return found


class Host:
    """A network namespace; its address is ``10.77.SUBNET.NUMBER``. Times in seconds, for each way through its cable."""

    def __init__(self, net: Net, name: str, number: int) -> None:
        self.name, self.address = f"{net.name}{name}", f"10.77.{net.subnet}.{number}"
        self.is_cut, self.delay_s, self.jitter_s, self.loss = False, 0.0, 0.0, 0.0
        ip("netns", "add", self.name)
        self.device = tap_in(self.name)
        for command in ("addr add {}/24 dev eth0", "link set eth0 up", "link set lo up"):
            ip("netns", "exec", self.name, "ip", *command.format(self.address).split())

    @property
    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]

    def slow(self, delay_s: float, jitter_s: float = 0.0, loss: float = 0.0) -> None:
        self.delay_s, self.jitter_s, self.loss = delay_s, jitter_s, loss


def tap_in(namespace: str) -> int:
    """A TAP device ``eth0`` in the namespace, as a file of this process."""
    libc, found = ctypes.CDLL(None, use_errno=True), []

    def make() -> None:  # in a thread: a thread alone can be in another namespace
        with open(f"/run/netns/{namespace}") as there:
            if libc.setns(there.fileno(), 0x40000000):
                raise OSError(ctypes.get_errno(), "setns")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        # TUNSETIFF, IFF_TAP | IFF_NO_PI
        fcntl.ioctl(device, 0x400454CA, struct.pack("16sH", b"eth0", 0x1002))
        found.append(device)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return found[0]


class Net:
    """The switch and its hosts; gone with the block."""

    def __init__(self, name: str = "mdbg", subnet: int = 0) -> None:
        self.name, self.subnet = name, subnet
        self.hosts: list[Host] = []
        self.ended = False
        self.thread = threading.Thread(target=self.switch, daemon=True)

    def __enter__(self) -> Net:
        self.remove()
        self.thread.start()
        return self

    def host(self, name: str) -> Host:
        host = Host(self, name, len(self.hosts) + 2)
        self.hosts = [*self.hosts, host]
        return host

    def switch(self) -> None:
        """In a thread: carry frames until the end."""
        known: dict[bytes, Host] = {}
        late: list[tuple[float, int, Host, bytes]] = []
        numbers = itertools.count()
        while not self.ended:
            now, hosts = time.monotonic(), self.hosts
            while late and late[0][0] <= now:
                _, _, host, frame = heapq.heappop(late)
                with contextlib.suppress(OSError):
                    os.write(host.device, frame)
            wait = min(0.05, max(0.0, late[0][0] - now)) if late else 0.05
            by_device = {host.device: host for host in hosts}
            for device in select.select(list(by_device), [], [], wait)[0]:
                with contextlib.suppress(OSError):
                    frame, source = os.read(device, 70000), by_device[device]
                    known[frame[6:12]] = source
                    target = known.get(frame[:6])
                    for host in [target] if target else [one for one in hosts if one is not source]:
                        if not (lost(source) or lost(host)):
                            due = now + delay(source) + delay(host)
                            heapq.heappush(late, (due, next(numbers), host, frame))

    def __exit__(self, *_: object) -> None:
        self.ended = True
        self.thread.join()
        for host in self.hosts:
            os.close(host.device)
        self.remove()

    def remove(self) -> None:
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        for name in [line.split()[0] for line in listed.splitlines() if line.startswith(self.name)]:
            ip("netns", "del", name)


def lost(host: Host) -> bool:
    return host.is_cut or random.random() < host.loss


def delay(host: Host) -> float:
    return max(0.0, host.delay_s + random.uniform(-host.jitter_s, host.jitter_s))


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def why_no_hosts() -> str:
    """Why there can be no hosts here; empty when there can."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "network namespaces need root and ip"
    try:
        with FileLock("/run/minidbg-hosts.lock"), Net("mdbgtry", 9) as net:  # other tests try it too
            net.host("a")
    except (OSError, IndexError, subprocess.CalledProcessError) as error:
        return f"network namespaces with TAP devices cannot be made here: {error}"
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
        clean = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}  # minidbg, and no backend
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
        host = self.address.replace(f":{self.port}", "") if tls else where
        command = [*SCHEDULER, "--host", host, "--port", str(self.port), *tls]
        self.scheduler = self.start("scheduler", command, self.host)

    def worker(
        self, name: str, *options: str, host: Host | None = None, env: dict[str, str] | None = None,
        cache: Path | None = None, python: str = sys.executable,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """A worker that holds no torch unless ``env`` says so; its code lies in ``cache``."""
        cache = cache or self.folder / f"cache-{name}"
        given = {"MINIDBG__WATCH_PRELOAD": "none", "XDG_CACHE_HOME": str(self.folder / "home"), **(env or {})}
        command = [python, "-m", "minidbg", "worker", self.address, "--cache", str(cache)]
        return self.start(name, [*command, *self.tls, *self.insecure, *options], host, given)

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
