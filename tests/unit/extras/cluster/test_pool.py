"""What the pool of a cluster makes of what Dask tells it; no scheduler, no worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")

from minidbg import __version__
from minidbg.extras.cluster import members
from minidbg.extras.cluster import pool as room
from minidbg.extras.cluster.code import Code, sha_of
from minidbg.extras.cluster.connection import Connection
from minidbg.extras.cluster.members import members_of
from minidbg.extras.cluster.pool import Asked, ClusterPool
from minidbg.watch.events import Notice
from minidbg.watch.places import Members, Place
from minidbg.words.cluster_address import Cluster
from minidbg.workers.pool import Ended, Order, RunMode

from .test_members import worker

MINE = {"minidbg": __version__}


@pytest.fixture
def told() -> list[Any]:
    return []


@pytest.fixture
def pool(told: list[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterPool]:
    async def alone(self: Connection) -> None:
        """No connection."""

    monkeypatch.setattr(Connection, "stay", alone)
    made = ClusterPool(told.append, Cluster("tcp://127.0.0.1:1"))  # type: ignore[arg-type]
    yield made
    made.close()


def within(pool: ClusterPool, work: Any) -> Any:
    """Do it in the pool's thread."""

    async def run() -> Any:
        return work()

    return asyncio.run_coroutine_threadsafe(run(), pool.connection.loop).result(10)


def test_a_column_stays_for_a_while_when_its_last_worker_goes(
    pool: ClusterPool, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    within(pool, lambda: pool.look_round({"tcp://a:1": worker(**MINE)}))
    within(pool, lambda: pool.look_round({}))
    assert [list(one.places) for one in told] == [["cpu@box"]]
    monkeypatch.setattr(members, "LEAVE_S", 0.0)
    within(pool, lambda: pool.look_round({}))
    assert told[-1] == Members({})


def test_what_is_still_so_is_said_once_and_again_when_it_comes_back(
    pool: ClusterPool, told: list[Any]
) -> None:
    within(pool, lambda: pool.event((0.0, {"worker": "tcp://a:1", "text": "disk full"})))
    full = {"tcp://a:1": worker(status="paused", **MINE), "tcp://b:1": worker(**MINE)}
    for _ in range(3):
        within(pool, lambda: pool.look_round(full))
    within(pool, lambda: pool.roster.full.clear())
    within(pool, lambda: pool.look_round(full))
    within(pool, lambda: pool.event((0.0, {"worker": "tcp://a:1", "text": "disk full"})))
    within(pool, lambda: pool.look_round(full))
    assert [one.text for one in told if isinstance(one, Notice)] == ["disk full", "disk full"]


def test_the_third_worker_that_dies_under_an_order_ends_it(
    pool: ClusterPool, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again elsewhere twice; then that is told as a fact about machines."""

    class Client:
        status = "running"

        def submit(self, *_: Any, key: str, **__: Any) -> asyncio.Future[Any]:
            future = pool.connection.loop.create_future()

            async def outcome() -> None:
                await future

            def die() -> None:
                gone = {"action": "remove-worker", "processing-tasks": {key}, "expected": False}
                for number in range(room.MOST_DEATHS):
                    pool.event((0.0, {**gone, "worker": f"w{number}"}))

            pool.connection.loop.call_soon(die)
            return SimpleNamespace(release=future.cancel, exception=outcome)

    monkeypatch.setattr(room, "RETRY_S", 0.0)
    within(pool, lambda: pool.look_round({"tcp://a:1": worker(**MINE)}))
    within(pool, lambda: setattr(pool.connection, "client", Client()))
    within(pool, pool.connection.connected.set)
    order = Order(7, (), RunMode.FORK, 1.0, place="cpu@box")
    answer = pool.answer(Asked(order, {}, Code()))
    asyncio.run_coroutine_threadsafe(answer, pool.connection.loop).result(10)
    (ended,) = [one for one in told if isinstance(one, Ended)]
    assert ended.unable == "the machine failed, not the repro: workers died under it (w0, w1, w2)"
    within(pool, lambda: setattr(pool.connection, "client", None))


def test_a_verdict_on_other_code_counts_for_nothing(pool: ClusterPool) -> None:
    said = {"host": "box", "code": "old", "ended": {"id": 1, "status": 1, "stdout": "{}"}}
    assert "other code" in pool.as_ended(1, said, "new").unable
    assert pool.as_ended(1, said, "old").unable == ""


class Sending:
    """Knows what was given to Dask."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def submit(self, *what: Any, resources: dict[str, float], **_: Any) -> str:
        self.sent.append((*what, resources))
        return f"future {len(self.sent)}"


def test_the_code_is_sent_once_for_each_content_and_kind_of_machine(
    pool: ClusterPool, tmp_path: Path
) -> None:
    """Its orders wait for the same future. It waits for no run that has not ended."""
    client: Any = Sending()
    (source := tmp_path / "b.py").write_text("y = 1")
    places = members_of(
        {"tcp://a:1": worker(**MINE), "tcp://b:1": worker(kind="other", **MINE)}, MINE["minidbg"]
    )[0]
    here, there = places["cpu@box"], places["cpu@other"]

    def zipped(place: Place) -> Any:
        work = pool.zipped(client, pool.code, place)
        return asyncio.run_coroutine_threadsafe(work, pool.connection.loop).result(10)

    first = pool.take({str(source): sha_of(b"y = 1")}, [])
    assert [zipped(here), zipped(here), zipped(there)] == ["future 1", "future 1", "future 2"]
    source.write_text("y = 2")
    second = pool.take({str(source): sha_of(b"y = 2")}, [])
    assert zipped(here) == "future 3"
    found = [(content, resources) for _, content, resources in client.sent]
    assert found == [
        (first.zipped, {here.resource: 0}), (first.zipped, {there.resource: 0}), (second.zipped, {here.resource: 0}),
    ]  # fmt: skip


def test_an_order_has_its_script_and_tensors_with_it(pool: ClusterPool, tmp_path: Path) -> None:
    (script := tmp_path / "a.py").write_text("x = 1")
    assert pool.request(Order(1, (), RunMode.FORK, 1.0, script=str(script)))["tensors"] == b""
    (tmp_path / "a.safetensors").write_bytes(b"values")
    request = pool.request(Order(1, (str(script), "--json"), RunMode.FORK, 1.0, script=str(script)))
    assert (request["name"], request["script"], request["tensors"]) == ("a.py", b"x = 1", b"values")
    assert request["argv"] == ["@script", "--json"]


def test_an_order_that_is_given_up_while_the_code_is_zipped_is_not_run(
    pool: ClusterPool, told: list[Any]
) -> None:
    """Nobody would wait for it, and its slot would be taken."""
    client: Any = Sending()
    client.status = "running"
    zipping = asyncio.run_coroutine_threadsafe(pool.zipping.acquire(), pool.connection.loop)
    assert zipping.result(10)
    within(pool, lambda: pool.look_round({"tcp://a:1": worker(**MINE)}))
    within(pool, lambda: setattr(pool.connection, "client", client))
    within(pool, pool.connection.connected.set)
    asked = Asked(Order(7, (), RunMode.FORK, 1.0, place="cpu@box"), {}, Code())
    answer = asyncio.run_coroutine_threadsafe(pool.answer(asked), pool.connection.loop)
    within(pool, lambda: None)  # until it waits for the zip
    within(pool, lambda: pool.give_up(7))
    within(pool, pool.zipping.release)
    answer.result(10)
    assert [what[0] for what in client.sent] == [bytes]
    assert [one.cancelled for one in told if isinstance(one, Ended)] == [True]
    within(pool, lambda: setattr(pool.connection, "client", None))
