"""What the machine has: Python, devices, compiler, processes, memory, disk, file events."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from minidbg import workers
from minidbg.doctor.finding import Finding, fine, missing

GIB = 1 << 30
COMPILER_SECONDS = 60
LEAST_SHARED_BYTES = 64 << 20
LEAST_FREE_BYTES = GIB
LEAST_WATCHES = 8192
LEAST_INSTANCES = 16

PROBE = "#include <omp.h>\n#include <cmath>\nint threads() { return omp_get_max_threads(); }\n"


def python() -> Iterator[Finding]:
    """The interpreter."""
    yield fine("python", f"{platform.python_version()}, {sys.executable}, {platform.platform()}")


def devices() -> Iterator[Finding]:
    """The CPU and what torch can use beside it."""
    yield fine("cpu", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads for torch")
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        yield fine(
            "accelerator", "none that this build of torch can use; repros of other devices are skipped here"
        )
        return
    kind = accelerator.type
    for number in range(torch.accelerator.device_count()):
        name_of = getattr(getattr(torch, kind, None), "get_device_name", None)
        yield fine(f"{kind}:{number}", str(name_of(number)) if name_of else kind)


def compiler() -> Iterator[Finding]:
    """Whether inductor can make C++ kernels: a compiler with OpenMP."""
    words = shlex.split(os.environ.get("CXX", "")) or [next(filter(shutil.which, ("g++", "clang++")), "")]
    if not words[0] or shutil.which(words[0]) is None:
        named = f"CXX is {words[0]!r}, which is not there" if words[0] else "no g++ or clang++ on the path"
        yield missing("C++ compiler", named, "inductor on CPU needs one: install g++, or set CXX")
        return
    with tempfile.TemporaryDirectory(prefix="minidbg-doctor-") as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(PROBE)
        command = [*words, "-fopenmp", "-shared", "-fPIC", str(source), "-o", str(Path(folder, "probe.so"))]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILER_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            yield missing("C++ compiler", f"{words[0]}: {error}", "inductor on CPU needs one that works")
            return
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[0]
        yield missing("C++ compiler", f"{words[0]} fails: {said}", "install its OpenMP headers and library")
    else:
        yield fine("C++ compiler", f"{shutil.which(words[0])}, with OpenMP")


def forking() -> Iterator[Finding]:
    """How an oracle call is made."""
    refusal = workers.fork_refusal()
    if refusal is None:
        yield fine("fork", "oracle calls run in forks of the failing process: 0.1 to 1 s each")
    else:
        advice = "nothing to do: they run in forks of a fresh interpreter, which costs some seconds once"
        yield missing("fork", refusal, advice)


def shared_memory() -> Iterator[Finding]:
    """``/dev/shm``, which containers like to make small."""
    place = Path("/dev/shm")
    if not place.is_dir():
        if sys.platform == "linux":
            yield missing(
                "/dev/shm", "not there", "mount a tmpfs on it: torch's workers share tensors through it"
            )
        return
    free = shutil.disk_usage(place).free
    if free < LEAST_SHARED_BYTES:
        advice = "give the container more, for example docker run --shm-size=1g"
        yield missing("/dev/shm", f"{free >> 20} MiB free", advice)
    else:
        yield fine("/dev/shm", f"{free >> 20} MiB free")


def memory() -> Iterator[Finding]:
    """Main memory that is free now."""
    seen = psutil.virtual_memory()
    found = f"{seen.available / GIB:.1f} of {seen.total / GIB:.1f} GiB free"
    if seen.available < LEAST_FREE_BYTES:
        yield missing("memory", found, "close something, or lower watch's jobs: each run needs about 0.5 GiB")
    else:
        yield fine("memory", found)


def caches() -> Iterator[Finding]:
    """The folders that compilers write to."""
    kernels = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(
        Path(tempfile.gettempdir(), f"torchinductor_{user_name()}")
    )
    for name, place in (
        ("inductor's cache", Path(kernels)),
        ("temporary files", Path(tempfile.gettempdir())),
    ):
        refused = refusal_to_write(place)
        if refused:
            yield missing(
                name, f"{place} cannot be written: {refused}", "set TORCHINDUCTOR_CACHE_DIR or TMPDIR"
            )
            continue
        free = shutil.disk_usage(existing(place)).free
        if free < LEAST_FREE_BYTES:
            yield missing(
                name, f"{place}, {free >> 20} MiB free", "make room: kernels and captures are written there"
            )
        else:
            yield fine(name, f"{place}, {free / GIB:.1f} GiB free")


def inotify() -> Iterator[Finding]:
    """How many folders the system lets watch follow."""
    limits = Path("/proc/sys/fs/inotify")
    if not limits.is_dir():
        return
    watches, instances = (
        int((limits / name).read_text()) for name in ("max_user_watches", "max_user_instances")
    )
    found = f"{watches} folders, {instances} watchers"
    if watches < LEAST_WATCHES or instances < LEAST_INSTANCES:
        advice = "sysctl fs.inotify.max_user_watches=524288 fs.inotify.max_user_instances=512, or watch with --poll 2"
        yield missing("file events", found, advice)
    else:
        yield fine("file events", found)


def user_name() -> str:
    """As torch has it in the name of its cache folder."""
    try:
        return psutil.Process().username().replace("/", "_")
    except (psutil.Error, KeyError):
        return "unknown"


def existing(place: Path) -> Path:
    """``place``, or the nearest folder above it that is there."""
    return next(folder for folder in (place, *place.parents) if folder.exists())


def refusal_to_write(place: Path) -> str:
    """Why no file can be made in ``place`` (or where it would be made); empty when one can."""
    try:
        with tempfile.TemporaryFile(dir=existing(place)):
            return ""
    except OSError as error:
        return error.strerror or str(error)
