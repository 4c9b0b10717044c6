"""A process that cannot be forked asks forks of a clean interpreter; this is chosen, and said, by itself."""

from __future__ import annotations

import logging
import os
import signal
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import planted_backends as planted
import psutil
import pytest
import torch
from command_line import python
from torch import fx

from minidbg import asking, backends, repro, torch_internals, workers
from minidbg.asking import fork_safety, oracle_calls
from minidbg.fx.case import Case
from minidbg.words.outcome import Outcome, Verdict
from minidbg.workers import zygote

HERE = f"{Path(__file__).stem}:"


def echo(argument: Mapping[str, Any], note: Any) -> Any:
    note("heard")
    return [argument["value"], os.environ.get("OF_THE_ASKER"), os.getcwd()]


def sleep(argument: Mapping[str, Any], note: Any) -> None:
    note("asleep")
    with open(argument["pid_file"], "w") as file:
        file.write(str(os.getpid()))
    time.sleep(300)


def has_autograd(argument: Mapping[str, Any], note: Any) -> Any:
    return fork_safety.trivial_question()["autograd"]


MARKS: list[str] = []
"""What a process has that its forks have too, and no fresh interpreter."""


def marks(argument: Mapping[str, Any], note: Any) -> Any:
    return [argument["number"], *MARKS]


def asks_its_own(argument: Mapping[str, Any], note: Any) -> Any:
    MARKS.append("a fork")
    workers.branch_off()
    done = [workers.call_in_zygote(HERE + "marks", {"number": one}, seconds=60) for one in (1, 2)]
    own = workers.start_zygote()
    return {
        "answers": [one.value for one in done],
        "pid": own.pid,
        "folder": str(own.folder),
    }


@pytest.fixture(autouse=True)
def _importable_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def case_of(backend: Any = planted.raises_on_relu, **fields: Any) -> Case:
    graph = fx.symbolic_trace(lambda x: (torch.relu(x),))
    given = {"backend": backends.find(backend), "inputs": (torch.ones(3),), **fields}
    return Case(graph, **given)


def test_answer_comes_from_the_askers_surroundings_of_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OF_THE_ASKER", "now")
    monkeypatch.chdir(tmp_path)
    done = workers.call_in_zygote(HERE + "echo", {"value": {"a": 1}}, seconds=60)
    assert done.value == [{"a": 1}, "now", str(tmp_path)]
    assert (done.answered, done.note, done.error) == (True, "heard", "")


def test_child_has_autograd_whatever_ran_here() -> None:
    torch.autograd.backward(torch.ones(3, requires_grad=True).sum())
    assert workers.call_in_zygote(HERE + "has_autograd", {}, seconds=60).value is True


def test_a_child_has_a_zygote_of_its_own_at_once_which_ends_with_it() -> None:
    """A reduction on an accelerator: it uses the device itself, and each of its questions needs a process that has not."""
    value = workers.call_in_zygote(HERE + "asks_its_own", {}, seconds=60).value
    assert value["answers"] == [[1, "a fork"], [2, "a fork"]]
    deadline = time.monotonic() + 10
    while psutil.pid_exists(value["pid"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(value["pid"])
    assert not Path(value["folder"]).exists()


def test_hang_is_ended_and_the_next_question_is_answered(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    done = workers.call_in_zygote(HERE + "sleep", {"pid_file": str(pid_file)}, seconds=1)
    assert (done.timed_out, done.answered, done.note) == (True, False, "asleep")
    assert "in sleep" in done.stderr_tail
    assert not psutil.pid_exists(int(pid_file.read_text()))
    assert workers.call_in_zygote(HERE + "echo", {"value": 2}, seconds=60).value[0] == 2


@pytest.mark.slow
def test_zygote_that_was_killed_is_replaced() -> None:
    os.kill(workers.start_zygote().pid, signal.SIGKILL)
    assert workers.call_in_zygote(HERE + "echo", {"value": 3}, seconds=60).value[0] == 3


def test_function_that_is_not_there_is_an_error_that_names_it() -> None:
    assert "no_such_function" in workers.call_in_zygote(HERE + "no_such_function", {}, seconds=60).error


def test_values_travel_exactly_and_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    large = torch.randn(300, 300)
    case = case_of(inputs=(large,))
    with asking.packed(case) as path:
        assert torch.equal(repro.load(path).inputs[0], large)
        files = {one: one.stat().st_mtime_ns for one in path.parent.iterdir() if one.suffix != ".py"}
    with asking.packed(case_of(inputs=(large.clone(),))) as path:
        assert {one: one.stat().st_mtime_ns for one in files} == files
    assert not path.exists()
    monkeypatch.setattr("minidbg.asking.packing.SPARE_BYTES", 1 << 60)  # no room in memory
    with asking.packed(case) as path:
        assert torch.equal(repro.load(path).inputs[0], large)
    assert not path.parent.exists()


# ---- the choice ------------------------------------------------------------------------------------


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The way of each question, none of which is asked; autograd has threads for devices in this process."""
    asked: list[str] = []

    def way(name: str) -> Any:
        return lambda case, *_, **__: asked.append(name) or Outcome(Verdict.GONE, seconds=0.1)

    monkeypatch.delenv("MINIDBG_WORKERS", raising=False)
    monkeypatch.setattr(torch_internals, "autograd_has_threads", lambda: True)
    monkeypatch.setattr(oracle_calls, "in_a_fork", way("fork"))
    monkeypatch.setattr(oracle_calls, "in_a_zygote", way("zygote"))
    fork_safety.say_once.cache_clear()
    return asked


def submit(case: Case) -> Outcome:
    return asking.submit(case, seconds=30)


def test_where_forks_have_no_autograd_only_questions_without_it_are_forked(
    ways: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    grad = torch.ones(3, requires_grad=True)
    parameter = fx.GraphModule(torch.nn.ReLU(), fx.symbolic_trace(torch.nn.ReLU()).graph)
    parameter.register_parameter("weight", torch.nn.Parameter(torch.ones(3)))
    with caplog.at_level(logging.WARNING, "minidbg"):
        submit(case_of("eager"))
        for case in (
            case_of("eager", inputs=(grad,)),
            case_of("eager", backward=True),
            Case(parameter, (torch.ones(3),), backends.find("eager")),
        ):
            submit(case)
    assert ways == ["fork", "zygote", "zygote", "zygote"]
    (said,) = caplog.messages
    assert said.startswith("minidbg: autograd has started threads for devices in this process")
    assert "costs some seconds once" in said


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_setting_wins(ways: list[str], monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setenv("MINIDBG_WORKERS", way)
    submit(case_of("eager", backward=True))
    assert ways == ["zygote" if way == "spawn" else "fork"]


def test_accelerator_in_use_is_never_forked(ways: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    submit(case_of("eager"))
    assert ways == ["zygote"]
    assert "cuda is initialised" in str(asking.fork_refusal(autograd=False))


def test_backend_whose_first_addition_hangs_in_a_fork_goes_on_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A backend with threads of its own, such as IREE: each fork waits for threads that only this process has."""
    monkeypatch.delenv("MINIDBG_WORKERS", raising=False)
    monkeypatch.setattr(oracle_calls, "BACKEND_QUESTION_S", 0.5)
    monkeypatch.setattr(oracle_calls, "WORKS_IN_FORKS", {})
    here = os.getpid()

    def threaded(graph_module: fx.GraphModule, example_inputs: Any) -> Any:
        while os.getppid() == here:
            time.sleep(0.01)
        return planted.raises_on_relu(graph_module, example_inputs)

    case = case_of(compiler=threaded)
    assert case.backend.modules
    fork_safety.say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "minidbg"):
        outcomes = [submit(case) for _ in range(2)]
    assert ["ReluNotSupported" in one.message for one in outcomes] == [True, True]
    (said,) = caplog.messages
    assert "did not end one addition in a fork of this process" in said


@pytest.mark.slow
def test_engine_starts_before_a_cuda_build_pretends_to_have_devices() -> None:
    """Else eight threads of autograd, and no fork of any program that has trained a step could run autograd."""
    program = """
        import minidbg
        minidbg.wrap("eager")
        import torch
        x = torch.ones(3, requires_grad=True)
        torch.compile(lambda x: x.sin().sum(), backend="aot_eager")(x).backward()
        from minidbg import isolation, processes
        print(asking.fork_refusal())
    """
    if torch.cuda.is_available() or any(map(os.path.exists, torch_internals.DRIVERS)):
        pytest.skip("this machine has devices, so autograd's engine has threads for them")
    done = python("-c", textwrap.dedent(program), check=True)
    assert done.stdout == "None\n"


def test_driver_in_sight_leaves_the_engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it would start the threads that it is to do without."""
    ran: list[object] = []
    monkeypatch.setattr("minidbg.torch_internals.process.DRIVERS", ("/dev/null",))
    monkeypatch.setattr(torch.autograd, "backward", ran.append)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert not torch_internals.forks_survive_autograd()
    assert ran == []
    monkeypatch.setattr("minidbg.torch_internals.process.DRIVERS", ())
    monkeypatch.setattr("minidbg.torch_internals.process.autograd_has_threads", lambda: False)
    assert torch_internals.forks_survive_autograd()
    assert len(ran) == 1


def test_a_device_of_a_backends_own_leaves_the_engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has devices from its import on, and no driver of a name that anybody knows."""
    ran: list[object] = []
    monkeypatch.setattr("minidbg.torch_internals.process.DRIVERS", ())
    monkeypatch.setattr(torch.autograd, "backward", ran.append)
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "npu")
    assert not torch_internals.forks_survive_autograd()
    assert ran == []


def test_zygote_imports_only_what_starts_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "calm_one.py").write_text("")
    (tmp_path / "busy_one.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert zygote.starts_nothing("calm_one")
    assert not zygote.starts_nothing("busy_one")
    assert not zygote.starts_nothing("no_such_module")


@pytest.mark.skipif(torch.version.cuda is None, reason="this build of torch has no CUDA to lose")
def test_a_process_that_has_looked_for_a_gpu_is_not_forked() -> None:
    """Where one is: nothing can be compiled in a fork after ``torch.cuda.is_available()``, not even for the CPU."""
    if torch.cuda.is_available():
        pytest.skip("a GPU is here, and this is about one that comes and goes")
    program = """
        import torch
        from minidbg.isolation import fork_refusal
        print(fork_refusal())
        torch.cuda.is_available()  # a machine without one is not poisoned by it
        from minidbg.isolation import fork_safety
        fork_safety.answer_to_trivial_question.cache_clear()
        print(fork_refusal())
        torch.cuda.is_available = lambda: True
        fork_safety.answer_to_trivial_question.cache_clear()
        print(fork_refusal())
    """
    done = python("-c", textwrap.dedent(program))
    lost = "cuda has been looked for in this process and cannot be used in a fork of it"
    assert done.stdout.splitlines() == ["None", "None", lost], done.stderr


@pytest.mark.skipif(torch.version.cuda is None, reason="this build of torch has no CUDA to lose")
def test_a_warm_up_where_a_gpu_is_leaves_it_to_the_forks() -> None:
    program = """
        import os, sys
        from minidbg.words.environment import FORKABLE
        os.environ.update(FORKABLE.put_in)
        import torch
        torch.cuda._device_count_nvml = lambda: 1  # as where a GPU is; CUDA itself would not start here
        from minidbg import torch_internals, devices
        assert devices.present() == ["cuda"]
        torch_internals.warm_up_compiling(inductor=True)
        if os.fork() == 0:
            print("lost", devices.lost_in_fork(), flush=True)
            os._exit(0)
        os.wait()
        print("torch._inductor.compile_fx" in sys.modules)
    """
    done = python("-c", textwrap.dedent(program))
    assert done.stdout.splitlines() == ["lost None", "True"], done.stderr


def test_a_warm_up_takes_no_graph_from_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that an earlier process has left there would leave each child to fill the compiler's lazy tables."""
    import torch._functorch.config
    import torch._inductor.config

    caches = []

    def compiled(function: Any, **_: Any) -> Any:
        caches.append((torch._inductor.config.fx_graph_cache, torch._functorch.config.enable_autograd_cache))
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch_internals.process, "leave_out_measurements", lambda: None)
    threads = torch.get_num_threads()
    with torch._inductor.config.patch(fx_graph_cache=True):
        torch_internals.warm_up_compiling(inductor=True)
    torch.set_num_threads(threads)
    assert caches == [(False, False)] * 2
