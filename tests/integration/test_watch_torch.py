"""``minidbg watch`` over real repro scripts: torch in forked workers, a backend in a package, a compile error and a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import python
from support.watch_driver import WatchProcess, watching

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BACKEND = """from torch._dynamo import register_backend
from watched_backend.rules import check


@register_backend(name="watched_backend")
def watched_backend(gm, example_inputs):
    for node in gm.graph.nodes:
        check(node)
    return gm.forward
"""

RULES = """import os
import signal


def check(node):
    if "relu" in str(node.target):
        raise ValueError("no relu")
    if "tanh" in str(node.target):
        os.kill(os.getpid(), signal.SIGSEGV)
"""

WRITE = """
import torch, minidbg, watched_backend
for op in (torch.relu, torch.tanh):
    minidbg.save_repro(lambda x: op(x) + 1, (torch.ones(3),), "watched_backend", f"repros/{op.__name__}.py")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("watch_torch")
    package = made / "src" / "watched_backend"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(BACKEND)
    (package / "rules.py").write_text(RULES)
    python("-c", WRITE, cwd=made, env={"PYTHONPATH": str(made / "src")}, check=True, timeout=300)
    return made


def test_a_save_is_answered_at_once_and_confirmed_as_a_person_would_see_it(folder: Path) -> None:
    rules = folder / "src" / "watched_backend" / "rules.py"

    def save(running: WatchProcess, text: str) -> int:
        mark = running.mark()
        rules.write_text(text)
        running.wait_for_sweep(since=mark, seconds=300)
        return mark

    def told(running: WatchProcess, mark: int, name: str) -> list[tuple[str, str]]:
        events = running.since(mark, name)
        return [(event["repro"], event.get("kind") or event["verdict"]) for event in events]

    with watching(folder, "repros", env={"PYTHONPATH": str(folder / "src")}) as running:
        running.wait_for_sweep(since=0, seconds=300)
        assert sorted(told(running, 0, "result")) == [("relu.py", "reproduces"), ("tanh.py", "reproduces")]
        assert running.flips() == []

        mark = save(running, RULES.replace('"tanh"', '"nothing"'))
        assert told(running, mark, "unconfirmed") == [("tanh.py", "gone")]
        assert told(running, mark, "flip") == [("tanh.py", "FIXED")]

        mark = save(running, RULES.replace("no relu", "relu is not supported").replace('"tanh"', '"nothing"'))
        assert told(running, mark, "flip") == [("relu.py", "changed")]

        mark = save(running, "def check(node:\n")
        assert [event["backend"] for event in running.since(mark, "backend_broken")] == ["watched_backend"]
        assert told(running, mark, "result") == []

        mark = save(running, RULES)
        flips = sorted(told(running, mark, "flip"))
        assert flips == [("relu.py", "reproduces again"), ("tanh.py", "REGRESSED")]
        assert running.stop() == 0
