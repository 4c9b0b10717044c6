"""Faults of a cluster, each again and again, with real processes on hosts that are network namespaces. Needs root and ``ip``.

    python tests/tools/soaks/soak_cluster.py [--times 20] [--faults worker,scheduler,cut,other,disk,watchers,loss] [--cut 60]

One host has the scheduler, two have workers of one kind, one has a worker of another, one has ``minidbg watch``. A toy backend
is saved again and again while the fault comes, so that which repro fails when is known. After each round every state must be
the true one of the last save, every flip that was told a true one, and no repro may be without a verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.cluster_driver import Cluster, Host, Net, end, wait_until, why_no_hosts
from support.toy_repros import BROKEN, WORKS, Checkout, script
from support.watch_driver import WatchProcess

ROOT = Path(__file__).parents[3]
OPS = [f"op{number}" for number in range(6)]
LASTS = "def {op}(value):\n    import time\n    time.sleep(0.3)\n"
"""So long does a run take that a fault can come in the middle."""


@dataclass
class Table:
    """Everything that runs, and what is true of the code."""

    folder: Path
    net: Net
    desk: Checkout
    cluster: Cluster
    hosts: dict[str, Host]
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    watchers: list[WatchProcess] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    saves: list[tuple[float, set[str]]] = field(default_factory=list)
    dice: random.Random = field(default_factory=random.Random)
    mark: int = 0
    """The number of the event before which the last worker was started."""

    def start_worker(self, name: str, *options: str, **more: object) -> None:
        kind = "red" if name in ("w1", "w2") else "blue"
        self.mark = self.watchers[0].mark() if self.watchers else 0
        self.workers[name] = self.cluster.worker(
            name, "--kind", kind, "-j", "2", *options, host=self.hosts[name], **more
        )  # type: ignore[arg-type]

    def start_watcher(self, host: str = "desk") -> WatchProcess:
        prefix = self.hosts[host].prefix
        running = WatchProcess(
            self.folder, "minidbg_repros" if host == "desk" else str(self.desk.repros), *self.cluster.watch_options(),
            env=self.desk.env, prefix=prefix,
        )  # fmt: skip
        self.watchers.append(running)
        return running

    def wait_for_places(self, *, count: int = 1, since: int = 0) -> None:
        """Until there are so many columns, and both red workers."""
        wanted = lambda event: (  # noqa: E731
            event["event"] == "columns"
            and len(event["places"]) >= count
            and event["places"].get("cpu@red") == 4
        )
        self.watchers[0].wait_for(wanted, since=since)

    def wait_for_notice(self, text: str) -> None:
        wanted = lambda event: event["event"] == "notice" and text in event["text"]  # noqa: E731
        self.watchers[0].wait_for(wanted, since=self.mark, seconds=30)

    def save(self) -> None:
        """Break or mend one op."""
        op = self.dice.choice(OPS)
        self.broken ^= {op}
        text = (BROKEN if op in self.broken else WORKS).format(op=op)
        (self.desk.package / f"{op}.py").write_text(LASTS.format(op=op) + text.partition("\n")[2])
        self.saves.append((time.time(), set(self.broken)))

    def check(self, columns: set[str], seconds: float = 120.0) -> str:
        """Wait until all is judged; what is wrong, or nothing."""
        wanted = {
            (f"{op}.py", column): "reproduces" if op in self.broken else "gone"
            for op in OPS
            for column in columns
        }
        for running in self.watchers:
            try:
                wait_until(lambda: self.states(running, columns) == wanted, "all states", seconds)
            except AssertionError:
                found = self.states(running, columns)
                return f"states: { ({key: (found.get(key), value) for key, value in wanted.items() if found.get(key) != value}) }"
            for event in running.since(0, "flip"):
                op, failed = event["repro"].removesuffix(".py"), event["after"] != "gone"
                true = [op in broken for at, broken in self.saves if at <= event["at"]][-6:]
                if failed not in true:
                    return f"a false flip: {event}"
        return ""

    def states(self, running: WatchProcess, columns: set[str]) -> dict[tuple[str, str], str]:
        """What was shown last of each repro and column."""
        shown: dict[tuple[str, str], str] = {}
        for event in list(running.events):
            if event["event"] == "result" and event["verdict"]:
                shown[event["repro"], event["device"]] = event["verdict"]
            elif event["event"] == "flip":
                shown[event["repro"], event["device"]] = event["after"]
        return {key: verdict for key, verdict in shown.items() if key[1] in columns}


def checkout(folder: Path) -> Checkout:
    return Checkout(
        folder, {op: LASTS + WORKS.partition("\n")[2] for op in OPS}, {op: script(op) for op in OPS}
    )


@contextmanager
def table(folder: Path, seed: int, net_name: str) -> Iterator[Table]:
    with ExitStack() as stack:
        net = stack.enter_context(Net(net_name))
        hosts = {name: net.host(name) for name in ("sched", "w1", "w2", "w3", "desk")}
        cluster = stack.enter_context(Cluster(folder / "cluster", host=hosts["sched"]))
        found = Table(folder, net, checkout(folder), cluster, hosts, dice=random.Random(seed))
        found.saves.append((time.time(), set()))
        for name in ("w1", "w2", "w3"):
            found.start_worker(name)
        found.start_watcher()
        try:
            found.wait_for_places(count=2)
            assert not (why := found.check({"cpu@red", "cpu@blue"})), why
            yield found
        finally:
            for running in found.watchers:
                running.close()


# The faults. Each leaves the cluster whole, or says which columns are left.


def cut(it: Table, seconds: float) -> None:
    """The cable of a machine with a worker is out for a while."""
    host = it.hosts[it.dice.choice(["w1", "w2", "w3"])]
    it.save()
    time.sleep(it.dice.uniform(0, 1))
    host.is_cut = True
    time.sleep(seconds / 2)
    it.save()
    time.sleep(seconds / 2)
    host.is_cut = False


def scheduler(it: Table, seconds: float) -> None:
    """The scheduler is killed and starts again."""
    it.save()
    time.sleep(it.dice.uniform(0, 1))
    end(it.cluster.scheduler)
    it.save()
    time.sleep(it.dice.uniform(0, 3))
    it.cluster.start_scheduler()


def worker(it: Table, seconds: float) -> None:
    """A worker is killed in mid-run, and starts again."""
    name = it.dice.choice(["w1", "w2", "w3"])
    it.save()
    time.sleep(it.dice.uniform(0.2, 1.5))
    end(it.workers[name])
    time.sleep(it.dice.uniform(0, 3))
    it.start_worker(name)


def other(it: Table, seconds: float) -> None:
    """A machine with other packages calls itself like the others, and gets no runs."""
    python = it.folder / "other" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(python.parents[1])], check=True)
        (place,) = python.parents[1].glob("lib/python*/site-packages")
        (place / "same.pth").write_text("\n".join([*(path for path in sys.path if path), str(ROOT)]))
        (place / "torch-1.0.dist-info").mkdir()
    end(it.workers["w2"])
    it.start_worker("w2", python=str(python))
    it.save()
    it.wait_for_notice("is not like")
    it.save()
    time.sleep(1)
    end(it.workers["w2"])
    it.start_worker("w2")


def disk(it: Table, seconds: float) -> None:
    """The disk of a worker is full."""
    small = it.folder / f"small{len(it.saves)}"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(small)], check=True)
    try:
        end(it.workers["w1"])
        it.start_worker("w1", cache=small / "cache")
        it.wait_for_places(since=it.mark)
        (small / "ballast").write_bytes(b"x" * (30 << 20))
        it.save()
        it.wait_for_notice("no runs until")
        it.save()
        time.sleep(2)
    finally:
        end(it.workers["w1"])
        subprocess.run(["umount", "-l", str(small)], check=True)
        it.start_worker("w1")


def loss(it: Table, seconds: float) -> None:
    """A machine loses packets and is slow."""
    host = it.hosts[it.dice.choice(["w1", "w2", "w3", "desk", "sched"])]
    host.slow(0.04, 0.02, loss=0.1)
    it.save()
    time.sleep(2)
    it.save()
    time.sleep(2)
    host.slow(0)


def watchers(it: Table, seconds: float) -> None:
    """Somebody else watches other repros on the same cluster, with other code, and stops in mid-sweep."""
    other = checkout(it.folder / f"other{len(it.saves)}")
    options, prefix = it.cluster.watch_options(), it.hosts["sched"].prefix
    running = WatchProcess(other.folder, "minidbg_repros", *options, env=other.env, prefix=prefix)
    try:
        it.save()
        running.wait_for_event("result")
        it.save()
        time.sleep(it.dice.uniform(0, 2))
        bad = [event for event in running.since(0, "result") if event["verdict"] not in ("gone", None)]
        assert not bad, bad
        running.process.send_signal(it.dice.choice([2, 9, 15]))
    finally:
        running.close()


FAULTS: dict[str, Callable[[Table, float], None]] = {
    one.__name__: one for one in (worker, scheduler, cut, other, disk, watchers, loss)
}


def main() -> int:
    """Run, print one line for each fault, and exit with 1 if a state was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--cut", type=float, default=60.0, help="seconds that a cable is out")
    parser.add_argument("--net", default="mdbg", help="what the namespaces' names begin with")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if why := why_no_hosts():
        print(why)
        return 125
    wrong = 0
    for name in options.faults.split(","):
        began, bad, deaths = time.monotonic(), [], 0
        with (
            tempfile.TemporaryDirectory(prefix="minidbg-soak-") as folder,
            table(Path(folder), options.seed, options.net) as it,
        ):
            for _ in range(options.times):
                FAULTS[name](it, options.cut)
                it.save()
                if why := it.check({"cpu@red", "cpu@blue"}, 60 + options.cut):
                    bad.append(why)
                for event in it.watchers[0].since(0, "notice"):
                    deaths += "fault in minidbg" in event["text"]
            it.watchers[0].stop()
        wrong += len(bad)
        print(json.dumps({"fault": name, "times": options.times, "wrong": len(bad), "why": bad[:3], "faults_of_ours": deaths,
                          "flips": len(it.watchers[0].since(0, "flip")), "seconds": round(time.monotonic() - began), "load": round(os.getloadavg()[0], 1)}), flush=True)  # fmt: skip
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
