"""What the pool of a cluster makes of what Dask tells it; no scheduler, no worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")

from minidbg.extras.cluster import members
from minidbg.extras.cluster import pool as room
from minidbg.extras.cluster.code import sha_of
from minidbg.extras.cluster.connection import Connection
from minidbg.extras.cluster.members import members_of
from minidbg.extras.cluster.pool import Asked, ClusterPool
from minidbg.watch.places import Members, Notice
from minidbg.words.cluster_address import Cluster
from minidbg.workers.pool import Ended, Order

from .test_members import worker

MINE = {"minidbg": room.importlib.metadata.version("minidbg")}


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
    order = Order(7, (), "fork", 1.0, place="cpu@box")
    answer = pool.answer(Asked(order, {"code": "c", "script": ("", "")}), {})
    asyncio.run_coroutine_threadsafe(answer, pool.connection.loop).result(10)
    (ended,) = [one for one in told if isinstance(one, Ended)]
    assert ended.unable == "the machine failed, not the repro: workers died under it (w0, w1, w2)"
    within(pool, lambda: setattr(pool.connection, "client", None))


def test_a_verdict_on_other_code_counts_for_nothing(pool: ClusterPool) -> None:
    said = {"host": "box", "code": "old", "ended": {"id": 1, "status": 1, "stdout": "{}"}}
    assert "other code" in pool.as_ended(1, said, "new").unable
    assert pool.as_ended(1, said, "old").unable == ""


def test_new_code_and_a_new_script_go_with_the_first_orders(pool: ClusterPool, tmp_path: Path) -> None:
    """A worker that has them need not ask, which would take two more ways there and back."""
    (script := tmp_path / "a.py").write_text("x = 1")
    (source := tmp_path / "b.py").write_text("y = 1")
    pool.take({str(source): sha_of(b"y = 1")}, [])
    request = pool.request(Order(1, (), "fork", 1.0, script=str(script)))
    asked = Asked(Order(1, (), "fork", 1.0, place="cpu@box", script=str(script)), request)
    place = members_of({"tcp://a:1": worker(**MINE)}, MINE["minidbg"])[0]["cpu@box"]
    enclosed = [sorted(pool.enclosed(asked, place).values()) for _ in range(2 * place.slots + 1)]
    manifest = pool.outbox.blobs[pool.outbox.digest]
    assert enclosed[0] == sorted([b"x = 1", b"y = 1", manifest])
    assert enclosed[1:-1] == [sorted([b"y = 1", manifest])] * (2 * place.slots - 1)
    assert enclosed[-1] == []
