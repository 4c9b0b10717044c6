"""Which columns a cluster's workers make, and which addresses are refused. No Dask."""

from __future__ import annotations

from typing import Any

import pytest

from minidbg.extras.cluster.members import members_of, resource_of
from minidbg.words.cluster_address import Cluster, is_loopback
from minidbg.words.errors import BadSetting

VERSION = "1.0"


def worker(
    kind: str = "box", host: str = "a", mark: str = "0001", status: str = "running", **more: Any
) -> dict[str, Any]:
    facts = {
        "minidbg": VERSION, "torch": "2.14.1", "python": "3.11.7", "machine": "Linux x86_64", "packages": "p",
        "devices": {"cpu": {"name": "Xeon", "driver": ""}}, "host": host, "slots": 2, "kind": kind, "mark": mark,
    }  # fmt: skip
    return {"status": status, "minidbg": {**facts, **more}}


GPU = {
    "devices": {
        "cpu": {"name": "Xeon", "driver": ""}, "cuda": {"name": "H100", "driver": "1"},
        "cuda:0": {"name": "H100", "driver": "1"}, "cuda:1": {"name": "H100", "driver": "1"},
    }
}  # fmt: skip


def test_machines_of_a_kind_share_columns() -> None:
    places, notices = members_of(
        {"tcp://a:1": worker(), "tcp://b:1": worker(host="b"), "tcp://c:1": worker("gpu", **GPU)}, VERSION
    )
    assert {name: place.slots for name, place in places.items()} == {
        "cpu@box": 4, "cpu@gpu": 2, "cuda:0@gpu": 1, "cuda:1@gpu": 1,
    }  # fmt: skip
    assert not notices


def test_a_machine_that_is_not_like_the_others_of_its_kind_gets_no_runs() -> None:
    other = worker(host="b", mark="0002", torch="2.13.0")
    places, notices = members_of({"tcp://a:1": worker(), "tcp://b:1": other}, VERSION)
    assert places["cpu@box"].slots == 2
    (notice,) = notices
    assert "tcp://b:1 (b) is not like a (torch)" in notice


def test_a_newcomer_does_not_take_a_column_over() -> None:
    """The hosts' order must not decide: the machine that was there first stays."""
    first, other = worker(host="z"), worker(host="a", mark="0002", torch="2.13.0")
    before = [resource_of(first["minidbg"], "cpu")]
    places, _ = members_of({"tcp://z:1": first, "tcp://a:1": other}, VERSION, before)
    assert places["cpu@box"].resource == before[0]


def test_another_torch_is_another_environment() -> None:
    """Where unlike machines follow each other in one column, a new history begins: no flip."""
    one, _ = members_of({"tcp://a:1": worker()}, VERSION)
    two, _ = members_of({"tcp://a:1": worker(mark="0002", torch="2.13.0")}, VERSION)
    assert one["cpu@box"].environment.key != two["cpu@box"].environment.key


def test_a_worker_whose_disk_is_full_has_no_slots() -> None:
    places, _ = members_of({"tcp://a:1": worker(), "tcp://b:1": worker(host="b", status="paused")}, VERSION)
    assert places["cpu@box"].slots == 2


@pytest.mark.parametrize(
    ("other", "told"),
    [(worker(minidbg="0.9"), "has minidbg 0.9, not 1.0"), ({"status": "running"}, "minidbg worker")],
    ids=["another minidbg", "somebody else's"],
)
def test_other_workers_get_no_runs_and_are_told_of(other: dict[str, Any], told: str) -> None:
    places, notices = members_of({"tcp://a:1": other}, VERSION)
    assert not places
    assert told in notices.pop()


@pytest.mark.parametrize("address", ["tcp://192.0.2.1:8786", "tcp://0.0.0.0:8786"])
def test_plain_tcp_beyond_the_loopback_is_refused(address: str) -> None:
    with pytest.raises(BadSetting, match="runs code on each worker"):
        Cluster(address)
    assert Cluster(address, insecure=True).address == address


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:1", "tls://192.0.2.1:1", "local", "local:4"],
)
def test_the_loopback_and_tls_are_fine(address: str) -> None:
    assert Cluster(address).local_runs == {"local": 1, "local:4": 4}.get(address, 0)


@pytest.mark.parametrize("address", ["", "box:8786", "tcp://box", "http://box:1", "local:x", "localhost"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(BadSetting, match="no address of a cluster"):
        Cluster(address)


def test_a_name_that_is_not_found_is_not_taken_for_this_machine() -> None:
    assert not is_loopback("name.invalid")


def test_the_same_is_said_to_another_minidbg() -> None:
    found = Cluster("tls://box:1", tls_ca="ca", tls_cert="cert", tls_key="key")
    assert " ".join(found.arguments) == "--cluster tls://box:1 --tls-ca ca --tls-cert cert --tls-key key"
