"""Which machines a cluster has, and what minidbg makes of what they say of themselves. Needs no Dask."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minidbg.watch.places import Place
from minidbg.words.text import plural

if TYPE_CHECKING:
    from minidbg.history import Environment

LOOK_S = 2.0
"""How often the members are looked at although no event said so."""
LEAVE_S = 15.0
"""A column whose last worker has gone stays for so long: workers restart, and networks fail for a while."""
ALIKE = ("minidbg", "torch", "python", "machine", "devices", "packages")
"""What must be the same on machines that stand in for each other: a verdict may depend on it."""


def slots_of(facts: Mapping[str, Any]) -> dict[str, int]:
    """By device, what a worker that says these ``facts`` of itself takes at the same time."""
    names = [name for name in facts["devices"] if name == "cpu" or ":" in name]
    return {name: facts["slots"] if name == "cpu" else 1 for name in names}


def resource_of(facts: Mapping[str, Any], device: str) -> str:
    """What Dask calls a device of a worker: machines that differ never have the same."""
    return f"{device}@{facts['kind']}#{facts['mark']}"


def members_of(
    workers: Mapping[str, Mapping[str, Any]], version: str, before: Collection[str] = ()
) -> tuple[dict[str, Place], set[str]]:
    """The places of a scheduler's ``workers``, each a dict of what Dask knows of it; and what to tell of single ones.

    Of a kind with unlike machines, those stay whose resources were there ``before``.
    """
    ours = sorted(
        (resource_of(said, "cpu") not in before, said["host"], address)
        for address, worker in workers.items()
        if (said := worker.get("minidbg")) and worker.get("status", "running") == "running"
    )
    places: dict[str, Place] = {}
    notices: set[str] = set()
    first: dict[str, Mapping[str, Any]] = {}
    for _, host, address in ours:
        said = workers[address]["minidbg"]
        who = f"the worker {address} ({host})"
        if said["minidbg"] != version:
            why = f"has minidbg {said['minidbg']}, not {version}: it gets no runs; install the same"
            notices.add(f"{who} {why}")
            continue
        other = first.setdefault(said["kind"], said)
        if other["mark"] != said["mark"]:
            unlike = ", ".join(name for name in ALIKE if said[name] != other[name])
            notices.add(
                f"{who} is not like {other['host']} ({unlike}), but of the same kind: it gets no runs; start it with another --kind"
            )
            continue
        for device, slots in slots_of(said).items():
            name, resource = f"{device}@{said['kind']}", resource_of(said, device)
            known = places.get(name)
            environment = known.environment if known else environment_of(device, said)
            places[name] = Place(environment, resource, slots + (known.slots if known else 0))
    if workers and not ours:
        notices.add(
            f"none of the cluster's {plural(len(workers), 'worker')} can judge repros: start them by 'minidbg worker ADDRESS'"
        )
    return places, notices


def environment_of(device: str, said: Mapping[str, Any]) -> Environment:
    """What a result of this device is stored with."""
    about = said["devices"][device]
    facts = {name: str(said[name]) for name in ("host", "python", "kind", "packages")}
    machine = f"{said['machine']} {said['kind']}#{said['mark']}"
    from minidbg.history import Environment  # late: every command line lists the options of a cluster

    return Environment(device, about["name"], machine, about["driver"], said["torch"], facts)


@dataclass(slots=True)
class Roster:
    """The places that there are, one look at the scheduler after the other. Every moment ``now`` is in seconds."""

    version: str
    """Of minidbg here, which a worker must have."""
    places: dict[str, Place] = field(default_factory=dict)
    last_seen: dict[str, float] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    """What was said and is still so."""
    full: dict[str, tuple[float, str]] = field(default_factory=dict)
    """By worker: when it said that its disk has no room, and the text."""

    def look(self, workers: Mapping[str, Mapping[str, Any]], now: float) -> tuple[bool, list[str]]:
        """Take in what the scheduler says of its workers: whether the places are others now, and what to tell people."""
        before, news = self.places, list[str]()
        resources = {place.resource for place in before.values()}
        places, notices = members_of(workers, self.version, resources)
        self.last_seen.update(dict.fromkeys(places, now))
        for name, place in before.items():
            if name not in places and now - self.last_seen[name] < LEAVE_S:
                places[name] = place
        if workers:
            # What was found out before the worker spoke may still say that it runs.
            self.full = {
                who: (at, text)
                for who, (at, text) in self.full.items()
                if who in workers and (now - at < LOOK_S or workers[who]["status"] == "paused")
            }
            news = self.news(notices | {text for _, text in self.full.values()})
        self.places = places
        return places != before, news

    def news(self, notices: set[str]) -> list[str]:
        """Those of ``notices`` that were not so before."""
        before, self.told = self.told, notices
        return sorted(notices - before)


LEAN = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "60s",
    "distributed.admin.tick.interval": "500ms",
}
"""Configuration of Dask for what we start ourselves: it measures itself less often, of which nobody sees anything here."""
