"""Repro folders in which one file is damaged: flipped, cut, of a wrong kind, huge, or no file at all. One seed, one folder."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save

from minidbg.core.outcome import Kind, Outcome, Signature, Verdict
from minidbg.history import Flip, History, Observation, Revision, State, SweepRecord

HEADER = """# /// script
# dependencies = ["torch==2.13.0"]
# [tool.minidbg]
# expect = "reproduces"
# schema = 1
# nodes = 1
# backend = {name = "eager", options = "{'level': 3}", paths = ["/src"], modules = ["toy"], requirements = ["toy==1"]}
# context = {env = {A = "1"}, threads = 2}
# signature = {kind = "compile", types = ["ValueError"], frames = ["toy:lower"], message = "no relu"}
# dynamic = false
# attempts = 2
# provenance = {nodes = 4, inputs = 2, captured_from = "train.py:41", line = "y = x.relu()", message = "no relu", \
torch_version = "2.13.0", reduced = true, notes = ["values: seeded"]}
# ///
"""
SCRIPT = '''"""eager fails to compile relu: ValueError: no relu

1 of 4 nodes."""
import torch


class Repro(torch.nn.Module):
    def forward(self, x):
        relu = torch.relu(x)  # train.py:41
        return (relu,)


def inputs(device="cpu"):
    x = torch.zeros(4, 8, device=device)
    return (x,)


backend = "eager"

'''
DONE = {"path": "sound0.py", "oracle_calls": 3, "seconds": 1.5}
SOUND = ("sound0.py", "sound1.py", "sound2.py")
WRONG = (
    "3",
    "-1",
    "inf",
    "nan",
    "true",
    "[]",
    "{}",
    "[1]",
    "{a = 1}",
    '""',
    '"\\u0000"',
    "1979-05-27",
    "9" * 5000,
)
HUGE_BYTES = 1 << 40


def write_folder(project: Path) -> None:
    """A project with a repro folder that holds one of everything that a reading command reads."""
    folder = project / "minidbg_repros"
    hidden = folder / ".minidbg"
    for name in ("captures", "neighbours", "reductions/sound0", "crash_records"):
        (hidden / name).mkdir(parents=True)
    for name in (*SOUND, "odd.py", ".minidbg/captures/odd.py", ".minidbg/neighbours/odd.py"):
        (folder / name).write_text(SCRIPT + HEADER)
    (folder / "odd.safetensors").write_bytes(save({"x": torch.ones(9)}))
    (hidden / "reductions/sound0/done.json").write_text(json.dumps(DONE))
    (hidden / "crash_records/0a1b2c3d-12-1700000000000-1.compile.py").write_text(SCRIPT + HEADER)
    (hidden / "watch.json").write_text('{"pid": 1, "host": "h", "started_ms": 1}')
    (project / "pyproject.toml").write_text(
        '[tool.minidbg]\nseconds = 9\nrepro_dir = "minidbg_repros"\ntolerances = {float16 = [1e-2, 1e-3]}\n'
        '[tool.minidbg.watch]\njobs = 2\non_flip = ["true"]\nsources = ["src"]\n'
    )
    write_history(hidden / "history.sqlite")


def write_history(path: Path) -> None:
    signature = Signature(Kind.COMPILE, types=("ValueError",), message="no relu")
    with History(path) as history:
        sweep = history.add(SweepRecord(("toy.py",)))
        history.set_revisions(sweep, {"/src": Revision("0123456789abcdef")})
        for name in (*SOUND, "odd.py"):
            outcome = Outcome(Verdict.REPRODUCES, signature, message="no relu")
            history.add(Observation(name, "cpu", 3.0, outcome, "run", "s", "e", sweep=sweep))
            history.add(State(name, "cpu", Verdict.REPRODUCES, 1.0, 2.0, "s", "e", "c"))
            history.add(Flip(name, "cpu", 3.0, "BROKEN", Verdict.GONE, Verdict.REPRODUCES, sweep, None))


# What may become of a file


def flipped(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 8, 200))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(bytes(data))


def cut(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))])


def doubled(path: Path, chance: random.Random) -> None:
    """A piece stands in another place as well."""
    data = path.read_bytes()
    begin, target = chance.randrange(len(data)), chance.randrange(len(data))
    path.write_bytes(data[:target] + data[begin : begin + chance.choice((9, 400))] + data[target:])


def of_a_wrong_kind(path: Path, chance: random.Random) -> None:
    """A value of another kind, where the file is a text with values."""
    data = path.read_bytes().decode("latin-1")
    places = [place for place, one in enumerate(data) if one in "=:" and place + 2 < len(data)]
    if not places:
        return flipped(path, chance)
    place = chance.choice(places) + 1
    end = next((at for at in range(place + 1, len(data)) if data[at] in ",}\n"), len(data))
    path.write_bytes(f"{data[:place]} {chance.choice(WRONG)}{data[end:]}".encode("latin-1"))
    return None


def repeated(path: Path, chance: random.Random) -> None:
    """One character many times, somewhere: what is read in the square of its length takes for ever."""
    data = path.read_bytes()
    place = chance.randrange(len(data))
    much = (
        chance.choice((b"-", b"a", b"[", b"(", b"{", b"# ", b"a.", b"\n", b'"', b" ", b"\\", b"not "))
        * 60_000
    )
    path.write_bytes(data[:place] + much + data[place:])


def huge(path: Path, chance: random.Random) -> None:
    """A sparse file: its size is real, its blocks are none."""
    os.truncate(path, chance.choice((1 << 25, HUGE_BYTES)))


def empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def a_pipe(path: Path, chance: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def a_device(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.symlink_to(chance.choice(("/dev/zero", "/dev/null", "/dev/full", "/dev/urandom")))


def a_folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def a_link(path: Path, chance: random.Random) -> None:
    """To nothing, to itself, to something else."""
    path.unlink()
    path.symlink_to(chance.choice(("nowhere", path.name, "/etc/passwd", "/proc/self/mem", "/")))


def gone(path: Path, chance: random.Random) -> None:
    path.unlink()


DAMAGES: tuple[tuple[int, Callable[[Path, random.Random], None]], ...] = (
    (6, flipped), (3, cut), (3, doubled), (8, of_a_wrong_kind), (3, repeated), (1, huge), (1, empty), (1, a_pipe), (1, a_device),
    (1, a_folder), (1, a_link), (1, gone),
)  # fmt: skip
VICTIMS = (
    *["minidbg_repros/odd.py"] * 6,
    *["minidbg_repros/.minidbg/history.sqlite"] * 4,
    *["pyproject.toml"] * 3,
    "minidbg_repros/odd.safetensors",
    "minidbg_repros/.minidbg/captures/odd.py",
    "minidbg_repros/.minidbg/neighbours/odd.py",
    "minidbg_repros/.minidbg/reductions/sound0/done.json",
    "minidbg_repros/.minidbg/crash_records/0a1b2c3d-12-1700000000000-1.compile.py",
    "minidbg_repros/.minidbg/watch.json",
)


def damaged_folder(model: Path, project: Path, seed: int) -> str:
    """A copy of ``model`` at ``project`` with one file damaged; which one, and how."""
    chance = random.Random(seed)
    shutil.copytree(model, project)
    victim = chance.choice(VICTIMS)
    damage = chance.choices([one for _, one in DAMAGES], [weight for weight, _ in DAMAGES])[0]
    damage(project / victim, chance)
    return f"{victim}: {damage.__name__}"
