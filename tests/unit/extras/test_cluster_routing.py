"""Which pool a run of ``watch --cluster`` goes to, and what travels with it. Needs no Dask."""

from __future__ import annotations

import io
import zipfile
from concurrent.futures import Future
from pathlib import Path

import pytest
from support.doubles import Children

from minidbg.core.errors import BadSetting
from minidbg.extras.cluster.commands import security_of
from minidbg.extras.cluster.routing import RoutingPool, ZippedSources
from minidbg.judge.command import judge_command
from minidbg.watch.settings import DEVICES_CALL
from minidbg.workers import Ended, Request

CPU, GPU = "cpu|a processor", "cuda:0|a GPU"
HERE = Ended(value={"environments": {"cpu": CPU}, "torch": "2.14"}, answered=True)


class Pool(Children):
    """Of this machine, and of the other ones, which gets a device and code too; ``sent`` is the last code."""

    def submit(self, *words: object) -> Future[Ended]:
        *_, self.sent = words
        return self(next(one for one in words if isinstance(one, Request)))

    def devices(self) -> dict[str, str]:
        return {"box/cuda:0": GPU} if self.requests else {}

    def refresh(self) -> list[str]:
        return []


def test_a_run_goes_to_its_machine_with_what_is_watched_and_the_others_stay(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    source = tmp_path / "toy" / "__init__.py"
    here, there, told = Pool(lambda request: HERE), Pool(lambda request: Ended()), []
    pool = RoutingPool(there, here, told.append)
    home, away = (
        Request(judge_command("repro.py", device=device), recompiled=(str(source.parent),))
        for device in ("cpu", "box/cuda:0")
    )

    def devices() -> dict[str, object]:
        return pool.submit(Request(call=DEVICES_CALL)).result().value["environments"]

    def sent(text: str) -> ZippedSources:
        source.write_text(text)
        pool.submit(away)
        return there.sent

    assert devices() == {}, "nothing runs while no machine is there"
    first = sent("ANSWER = 1")
    assert [f"/{name}" for name in zipfile.ZipFile(io.BytesIO(first.zipped)).namelist()] == [str(source)]
    assert (first.paths, len(told)) == ((str(tmp_path),), 1)
    assert sent("ANSWER = 2") is first, "a sweep judges one code"
    pool.refresh()
    assert sent("ANSWER = 2").digest != first.digest
    pool.submit(home)
    assert (here.requests[-1], there.requests) == (home, [away] * 3)
    assert devices() == {"cpu": CPU, "box/cuda:0": GPU}


def test_a_scheduler_that_others_reach_is_refused_without_tls() -> None:
    for address in ("tcp://10.0.0.7:8786", "tcp://0.0.0.0:8786", "box:8786", "ucx://127.0.0.1:1"):
        with pytest.raises(BadSetting, match=r"runs code on each worker.*use tls://.*distributed\.comm\.tls"):
            security_of(address)
