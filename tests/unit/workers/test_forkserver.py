"""Questions are answered in forks of a clean interpreter, whatever has happened in the process that asks."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import planted_backends as planted
import pytest
import torch
from support.command_line import python
from torch import fx

from minidbg import backends, oracle, torch_internals, workers
from minidbg.core.run_spec import RunSpec
from minidbg.fx.case import Case

HERE = f"{Path(__file__).stem}:"


def asked(name: str, *, warm: str = "", seconds: float = 60, **argument: Any) -> workers.Ended:
    """What the function of this name answers in a fork of the server."""
    fork = workers.Warmup(warm=warm)
    request = workers.Request(call=HERE + name, argument=argument, seconds=seconds, fork=fork)
    return workers.submit(request).result()


def echo(argument: Mapping[str, Any], note: Any) -> Any:
    note("heard")
    return [argument["value"], os.environ.get("OF_THE_ASKER"), os.getcwd()]


def has_autograd(argument: Mapping[str, Any], note: Any) -> Any:
    weight = torch.ones(65, 65, requires_grad=True)
    torch.autograd.backward((torch.ones(65, 65) @ weight).relu().sum())
    return weight.grad is not None


@pytest.fixture(autouse=True)
def _importable_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def case_of(backend: Any = planted.raises_on_relu, **fields: Any) -> Case:
    graph = fx.symbolic_trace(lambda x: (torch.relu(x),))
    inputs = fields.pop("inputs", (torch.ones(3),))
    compiler = fields.pop("compiler", None)
    return Case(
        graph, inputs, RunSpec(**{"backend": backends.find_reference(backend), **fields}), compiler=compiler
    )


def test_answer_comes_from_the_askers_surroundings_of_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OF_THE_ASKER", "now")
    monkeypatch.chdir(tmp_path)
    done = asked("echo", value={"a": 1})
    assert done.value == [{"a": 1}, "now", str(tmp_path)]
    assert (done.answered, done.note, done.error) == (True, "heard", "")


@pytest.mark.parametrize(
    "warm",
    [
        "",
        "aot",
        *(pytest.param(warm, marks=pytest.mark.slow) for warm in ("lowering", "codegen", "inductor")),
    ],
)
def test_child_has_autograd_whatever_ran_here_and_whatever_the_server_has_compiled(warm: str) -> None:
    """The server's first backward is one of a single element: after a compile's no child could run another."""
    torch.autograd.backward(torch.ones(3, requires_grad=True).sum())
    assert asked("has_autograd", warm=warm).value is True


def test_what_is_no_text_on_the_import_path_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python passes over it, and a program may have put a Path there."""
    monkeypatch.syspath_prepend("here")
    monkeypatch.setattr("sys.path", [Path("there"), *sys.path])
    assert asked("echo", value=4).value[0] == 4


# ---- the asker is left alone -----------------------------------------------------------------------


def test_the_process_that_asks_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has threads: OpenMP's, autograd's, a backend's own. What a fork of it does is chance."""

    def forked() -> int:
        raise AssertionError("forked")

    workers.start_server()  # an interpreter may be started by a fork that becomes another program at once
    monkeypatch.setattr(os, "fork", forked)
    for backward in (False, True):
        outcome = oracle.ask(case_of(backward=backward), seconds=60)
        assert "ReluNotSupported" in outcome.message


@pytest.mark.slow
def test_a_backend_with_threads_of_its_own_is_asked_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as IREE: a fork of a process that has imported it waits for threads that are not there."""
    (tmp_path / "threaded_one.py").write_text(
        "import os, queue, threading\n"
        "import planted_backends\n"
        "asked, made = queue.Queue(), queue.Queue()\n"
        "def work():\n"
        "    while True:\n"
        "        made.put(planted_backends.raises_on_relu)\n"
        "        asked.get()\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "made.get()\n"
        "def backend(gm, inputs):\n"
        "    asked.put(gm)\n"
        "    return made.get()(gm, inputs)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import threaded_one

    case = case_of(threaded_one.backend)
    assert case.backend.modules == ("threaded_one",)
    outcomes = [oracle.ask(case, seconds=30) for _ in range(2)]
    assert ["ReluNotSupported" in one.message for one in outcomes] == [True, True], outcomes


def test_driver_in_sight_leaves_the_engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it would start the threads that it is to do without."""
    ran: list[object] = []
    monkeypatch.setattr(torch.autograd, "backward", ran.append)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert not torch_internals.forks_survive_autograd(["/dev/null"])
    assert ran == []
    torch_internals.forks_survive_autograd([])
    assert len(ran) == 1


def test_a_device_of_a_backends_own_leaves_the_engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has devices from its import on, and no driver of a name that anybody knows."""
    ran: list[object] = []
    monkeypatch.setattr(torch.autograd, "backward", ran.append)
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "npu")
    assert not torch_internals.forks_survive_autograd([])
    assert ran == []


@pytest.mark.slow
@pytest.mark.skipif(torch.version.cuda is None, reason="this build of torch has no CUDA to lose")
def test_a_warm_up_where_a_gpu_is_leaves_it_to_the_forks() -> None:
    program = """
        import os, sys
        from minidbg.core.environment import FORKABLE
        os.environ.update(FORKABLE)
        import torch
        torch.cuda._device_count_nvml = lambda: 1  # as where a GPU is; CUDA itself would not start here
        from minidbg import torch_internals
        from minidbg.torch_internals import devices
        assert devices.present() == ["cuda"]
        torch_internals.warm_up_compiling("inductor")
        if os.fork() == 0:
            print("lost", torch.cuda._is_in_bad_fork(), flush=True)
            os._exit(0)
        os.wait()
        print("torch._inductor.compile_fx" in sys.modules)
    """
    done = python("-c", textwrap.dedent(program))
    assert done.stdout.splitlines() == ["lost False", "True"], done.stderr


def test_a_warm_up_takes_no_graph_from_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that an earlier process has left there would leave each child to fill the compiler's lazy tables."""
    import torch._functorch.config
    import torch._inductor.config

    caches = []

    def compiled(function: Any, **_: Any) -> Any:
        caches.append((torch._inductor.config.fx_graph_cache, torch._functorch.config.enable_autograd_cache))
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    threads = torch.get_num_threads()
    with torch._inductor.config.patch(fx_graph_cache=True):
        torch_internals.warm_up_compiling("inductor")
    torch.set_num_threads(threads)
    assert set(caches) == {(False, False)}
