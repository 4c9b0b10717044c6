"""The acceptance run on an accelerator: one command, a table for the people who build minidbg.

    python tests/device/acceptance.py --device cuda
    python tests/device/acceptance.py --device cuda --part flow --part triton --minutes 5

It needs this checkout and a torch, nothing else. Packages that are missing are taken from a folder of wheels (--wheels DIR), into the
folder of results and nowhere else. Fill it on a machine that has an index (the second line for the timm models of the field trial, which
would bring another torch along; the VERSION is the one made for the torch
there, 0.28.0 for 2.13.0, from the index that the torch came from):

    pip download --only-binary=:all: -d DIR $(python tests/device/acceptance.py --packages)
    pip download --only-binary=:all: --no-deps -d DIR timm diffusers torchvision==VERSION

If that machine has another Python or system, say which wheels the one with the device wants: pip download --python-version 3.12
--platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 ...

The parts, in this order, each with its share of the minutes; what one leaves is the others':

    flow     nine kinds of failure, planted: captured, reduced, verified, and the script exits 1
    healthy  a dozen models in training, half precision, CUDA graphs and max-autotune: silent, with the bits of the bare backend
    triton   a user's Triton kernel with autotuner and helpers, in a script that stands alone
    watch    a matrix of cpu and the device, a device in error, two daemons
    speed    seconds from the exception to the repro, questions a second, the device's memory
    tests    pytest -m device

Each finished row is a line of DIR/rows.jsonl and of the table DIR/table.md at once, so a kill loses nothing but the row it met; --resume runs
what is not well yet: rows that were not reached, had no time, lacked a package or failed. A part that hangs or dies is a row, and the next part
begins. Exit status 1 when a row failed, 0 otherwise; rows that were skipped say why. ``--device acme`` runs all of it on the stand-in of the tests, which needs g++.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
STAND_IN = HERE.parent / "stand_ins" / "acme_device"
SHARES = {"flow": 30, "healthy": 25, "triton": 5, "watch": 12, "speed": 8, "tests": 20}
"""Parts in their order, and what part of the time each may take while the ones behind it are still to come."""
FOR_TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "expecttest")
FOR_MODELS = ("transformers",)
LEAST_S = 10.0
"""A part is not begun with less."""
OWN_END_S = 5.0
"""What a part keeps of its time to end what it has started."""
ALL = "(all)"
"""The row of a part that was not begun, hung or died."""
OVER = "the part's share of the minutes is over"
MARKS = {"ok": "ok", "failed": "**FAILED**", "skipped": "skipped"}


def main(argv: list[str] | None = None) -> int:
    options = parsed(argv)
    if options.packages:
        print(" ".join(needed_packages()))
        return 0
    if is_here(["torch"]):
        print(
            f"{sys.executable} has no torch: run this with the Python that has the one to try",
            file=sys.stderr,
        )
        return 125
    options.out.mkdir(parents=True, exist_ok=True)
    results = Results(options.out, options.device)
    if results.rows and not options.resume:
        print(
            f"{options.out} has {len(results.rows)} rows: --resume runs what is not well yet, --out names another folder",
            file=sys.stderr,
        )
        return 125
    environ = environment(options.out, options.device)
    for line in missing_packages(options, environ):
        print(line, flush=True)
    if (
        options.device == "acme"
        and subprocess.run([sys.executable, "-m", "acme.build"], env=environ).returncode
    ):
        print("the stand-in cannot be built: it needs g++", file=sys.stderr)
        return 125
    until = time.monotonic() + 60 * options.minutes
    for name, seconds in shared(options.part or list(SHARES), until):
        run_part(name, seconds, options, environ, results)
    results.write_table()
    print(
        f"\n{results.table()}\n\nin {options.out}: table.md, rows.jsonl, and a folder for each part with what it printed"
    )
    if any(row.get("said", "").startswith(OVER) for row in results.last()):
        print("some rows had no time: the same command with --resume runs them, and keeps the others")
    return int(any(row["status"] == "failed" for row in results.last()))


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="a device type: cuda, xpu, acme ... (default: cuda)")
    parser.add_argument(
        "--part", action="append", choices=list(SHARES), help="only this one; may be given several times"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together (default: 9)")
    parser.add_argument(
        "--out",
        type=lambda text: Path(text).resolve(),
        default=Path("minidbg_acceptance").resolve(),
        metavar="DIR",
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the rows of DIR that are well, and run the others"
    )
    parser.add_argument(
        "--wheels",
        type=lambda text: Path(text).resolve(),
        metavar="DIR",
        help="packages that may be missing here",
    )
    parser.add_argument(
        "--packages", action="store_true", help="print the packages to download as wheels, and end"
    )
    parser.add_argument(
        "--planted", choices=("hangs", "dies"), help=argparse.SUPPRESS
    )  # for the test: what the second part does
    return parser.parse_args(argv)


def shared(parts: Sequence[str], until: float) -> Iterator[tuple[str, float]]:
    """Each part with the seconds it may take: its share of what is left when its turn comes."""
    for index, name in enumerate(parts):
        shares = [SHARES[one] for one in parts[index:]]
        yield name, max(0.0, until - time.monotonic()) * shares[0] / sum(shares)


# ---- packages


def needed_packages() -> list[str]:
    """Requirements of minidbg, its tests and the models, without torch."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    own = [line for line in project["dependencies"] if name_in(line) != "torch"]
    extra = {name_in(line): line for line in project["optional-dependencies"]["test"]}
    return [*own, *(extra.get(name, name) for name in (*FOR_TESTS, *FOR_MODELS))]


def name_in(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return normal(found[0]) if found else requirement


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def missing_packages(options: argparse.Namespace, environ: dict[str, str]) -> Iterator[str]:
    """Unpack the wheels of packages that are not here; a line for each package that is missing after all."""
    site = options.out / "site"
    here = {
        normal(one.metadata["Name"])
        for one in metadata.distributions(path=[*sys.path, str(site)])
        if one.metadata["Name"]
    }
    for wheel in sorted(options.wheels.glob("*.whl")) if options.wheels else ():
        name = normal(wheel.name.partition("-")[0])
        if name not in here and name != "torch":
            with zipfile.ZipFile(wheel) as file:
                file.extractall(site)
            here.add(name)
    for name in map(name_in, needed_packages()):
        if name not in here:
            yield f"{name} is not here{', nor among the wheels' if options.wheels else ' (--wheels DIR)'}: rows that need it are skipped"


def environment(out: Path, device: str) -> dict[str, str]:
    """Of all processes: the checkout's minidbg, the unpacked wheels, the stand-in where it is asked for."""
    paths = [
        CHECKOUT,
        HERE,
        out / "site",
        *([STAND_IN] if device == "acme" else []),
        os.environ.get("PYTHONPATH", ""),
    ]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(one) for one in paths if str(one)),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
    }


# ---- one part


def run_part(
    name: str, seconds: float, options: argparse.Namespace, environ: dict[str, str], results: Results
) -> None:
    """Run a part in a process group of its own, with its output in a file; what keeps it from its end is a row."""
    print(f"=== {name}: at most {seconds:.0f} s", flush=True)
    if seconds < LEAST_S:
        results.add(name, ALL, "skipped", said=f"{seconds:.0f} s are left of --minutes {options.minutes:g}")
        return
    folder = options.out / name
    folder.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "parts.one_part",
        name,
        "--device",
        options.device,
        "--out",
        str(options.out),
    ]
    command += [
        "--seconds",
        f"{seconds - OWN_END_S:.0f}",
        *(["--planted", options.planted] if options.planted else []),
    ]
    with (folder / "output.txt").open("ab") as output:
        process = subprocess.Popen(
            command, env=environ, cwd=folder, stdout=output, stderr=output, start_new_session=True,
            preexec_fn=die_with_the_parent if sys.platform == "linux" else None,
        )  # fmt: skip
        ended = followed(process, seconds, results)
    if not ended:
        results.add(name, ALL, "failed", said=f"it did not end within {seconds:.0f} s and was killed")
    elif process.returncode:
        lines = (folder / "output.txt").read_text(errors="replace").splitlines()
        how = (
            f"signal {signal.Signals(-process.returncode).name}"
            if process.returncode < 0
            else f"status {process.returncode}"
        )
        results.add(name, ALL, "failed", said=f"it ended with {how}: {lines[-1] if lines else 'no output'}")
    elif any((row["part"], row["row"]) == (name, ALL) for row in results.last()):
        results.add(name, ALL, "ok", said="this time it ended by itself")


def die_with_the_parent() -> None:
    """Whoever is killed leaves nothing behind: no part that writes on, no daemon, no program that waits for its device."""
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG


def followed(process: subprocess.Popen[bytes], seconds: float, results: Results) -> bool:
    """Wait for the end, and print rows as they come; whether it ended in time. What it has started is ended too."""
    until = time.monotonic() + seconds
    try:
        while process.poll() is None and time.monotonic() < until:
            results.read_new()
            time.sleep(0.2)
        return process.poll() is not None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        results.read_new()


class Results:
    """The rows, as the parts append them to one file, and the table made of them."""

    def __init__(self, out: Path, device: str) -> None:
        self.path, self.table_path, self.device = out / "rows.jsonl", out / "table.md", device
        self.rows: list[dict[str, Any]] = []
        self.read_new(quiet=True)

    def read_new(self, quiet: bool = False) -> None:
        """Take up the lines that have come, print them, and write the table anew."""
        new = rows_in(self.path)[len(self.rows) :]
        self.rows += new
        if new and not quiet:
            print(*map(line_of, new), sep="\n", flush=True)
            self.write_table()

    def add(self, part: str, name: str, status: str, **facts: Any) -> None:
        append(self.path, {"part": part, "row": name, "status": status, **facts})
        self.read_new()

    def last(self) -> list[dict[str, Any]]:
        """Of a row that was run twice the last."""
        return list({(row["part"], row["row"]): row for row in self.rows}.values())

    def table(self) -> str:
        """Markdown: what was run on, the sums, one line a row."""
        last = self.last()
        counts = Counter(row["status"] for row in last)
        cells = [
            f"| {row['part']} | {row['row']} | {MARKS[row['status']]} | {figures_of(row)} | {cell(row.get('said', ''))} |"
            for row in last
        ]
        head = f"{', '.join(machine(self.device))}: " + ", ".join(
            f"{counts[one]} {one}" for one in MARKS if counts[one]
        )
        return "\n".join([head, "", "| part | row | | figures | said |", "|---|---|---|---|---|", *cells])

    def write_table(self) -> None:
        draft = self.table_path.with_suffix(".draft")
        draft.write_text(self.table() + "\n")
        draft.replace(self.table_path)


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The finished lines; one that is being written, or was cut short, is none."""
    text = path.read_text() if path.exists() else ""
    found = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def append(path: Path, row: dict[str, Any]) -> None:
    """One line, written at once and on the disk: what a killed run has found stays."""
    with path.open("a+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        cut = file.read() not in ("", "\n")  # a machine that went down in the middle of a line
        file.write("\n" * cut + json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def machine(device: str) -> Iterator[str]:
    """The device, the torch and the system, without importing torch, which might be what hangs."""
    name = device
    if device == "cuda" and shutil.which("nvidia-smi"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
            name = subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.splitlines()[0]
    yield name
    for package in ("torch", "triton"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield f"{package} {metadata.version(package)}"
    yield f"Python {platform.python_version()}"


def line_of(row: dict[str, Any]) -> str:
    said = f"  {row['said']}" if row.get("said") else ""
    return f"{row['part']:8} {row['row']:28} {row['status']:8} {figures_of(row)}{said[:300]}"


def figures_of(row: dict[str, Any]) -> str:
    return ", ".join(
        f"{value:.1f} {name}" if isinstance(value, float) else f"{value} {name}"
        for name, value in row.get("figures", {}).items()
    )


def cell(text: str) -> str:
    """A sentence in the table, which is sent to others: without the names of the user's folders."""
    for folder, name in ((CHECKOUT, "CHECKOUT"), (Path.home(), "~")):
        text = text.replace(f"{folder}{os.sep}", f"{name}{os.sep}")
    return " ".join(text.split()).replace("|", "\\|")[:300]


def is_here(names: Iterable[str]) -> str | None:
    """The first of these modules that is not here."""
    return next((name for name in names if importlib.util.find_spec(name) is None), None)


if __name__ == "__main__":
    sys.exit(main())
