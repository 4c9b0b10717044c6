"""The code under test on its way to a worker: a manifest of paths and hashes, and the folder in which it becomes files again.

Everything that travels is a blob, called by the SHA-1 of its bytes. The manifest is one too, and its name is the digest that a
verdict carries. On the worker each manifest has a tree of its own below which every file lies at its path on the sender's
machine; a tree is never changed once it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from minidbg.words.files import link_or_copy
from minidbg.workers.build import build_within

INSTALLED = re.compile(r".*/(?:site|dist)-packages/(?P<inner>.+)")
"""A path inside an installation: such code does not travel, a worker has its own."""
BUILT = re.compile(r"\.(so|pyd|dylib|dll)$|\.so\.")
BLOBS = "@minidbg-blobs@"
"""In a script: the folder of the blobs."""
COMPLETE = ".minidbg-complete"
BUILD_SECONDS = 3600.0
MOST_TREES = 16
SMALL_BYTES = 1 << 16
"""So much travels with an order; larger files are sent to workers that ask for them, and read again for that."""
RACY_NS = 2_000_000_000
"""A file that was written so shortly before may be written again without another time stamp."""
UNUSED_S = 86400.0
"""After so long a blob that no tree was made of goes."""


def sha_of(data: bytes) -> str:
    """The name of a blob."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


class Edited(Exception):
    """A file no longer has the content that was to be sent."""


@dataclass(frozen=True)
class Code:
    """What is sent. All paths are those of the sender's machine."""

    files: Mapping[str, str] = field(default_factory=dict)
    """The blob of each file; a ``*`` behind it where the file is executable."""
    paths: tuple[str, ...] = ()
    """Folders that go in front of ``sys.path``."""
    installed: Mapping[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    """By top-level name, what is watched inside an installation: its version, and the blob of each file by its path there.

    It is not sent. A worker that has the same version must have the same files.
    """
    build: str = ""
    build_folder: str = ""

    @property
    def manifest(self) -> bytes:
        """The blob that says all of this."""
        return json.dumps(vars(self), sort_keys=True).encode()

    @classmethod
    def read(cls, manifest: bytes) -> Code:
        """What a manifest says."""
        return cls(**json.loads(manifest))

    def folders(self) -> list[str]:
        """The folders that its files lie in, for people."""
        above = {os.path.dirname(path) for path in self.files}
        return sorted(path for path in above if not any(path.startswith(one + os.sep) for one in above))


def code_of(
    files: Mapping[str, str], paths: Iterable[str], *, build: str = "", build_folder: str = ""
) -> Code:
    """The code in ``files``, each with the hash that a snapshot gave it. Raises OSError.

    What a build command makes is made on the worker, and therefore left out.
    """
    sent: dict[str, str] = {}
    installed: dict[str, tuple[str, dict[str, str]]] = {}
    for path, digest in sorted(files.items()):
        inside = INSTALLED.match(path)
        if inside is None:
            if not (build and BUILT.search(path)):
                known = digest if "@" not in digest else sha_of_file(path, digest)
                sent[path] = known + ("*" if os.access(path, os.X_OK) else "")
        elif "@" not in digest:
            inner = inside["inner"]
            top = inner.partition("/")[0].removesuffix(".py")
            installed.setdefault(top, (version_of(top), {}))[1][inner] = digest
    where = [path for path in dict.fromkeys(paths) if not INSTALLED.match(path + "/x")]
    return Code(sent, tuple(where), installed, build, build_folder)


@lru_cache(maxsize=1 << 14)
def sha_of_file(path: str, stamp: str) -> str:
    """The hash of a file whose size and time are as in ``stamp``. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.sha1(usedforsecurity=False)).hexdigest()


def sha_here(path: str) -> str:
    """The hash of an installed file; empty without it."""
    try:
        status = os.stat(path)
        return sha_of_file(path, f"{status.st_size}@{status.st_mtime_ns}")
    except OSError:
        return ""


@lru_cache(maxsize=256)
def version_of(name: str) -> str:
    """The version of the distribution that is called like the module ``name``; empty when there is none."""
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""


@dataclass(slots=True)
class Outbox:
    """The blobs that can be sent from here, and the code that runs are to see now."""

    build: str = ""
    build_folder: str = ""
    digest: str = ""
    """Of the manifest."""
    blobs: dict[str, str | bytes] = field(default_factory=dict)
    """The file that has a blob, or its bytes."""
    latest: dict[str, bytes] = field(default_factory=dict)
    """The manifest, and the files that the one before did not have; nothing where that is much."""
    installed: dict[str, str] = field(default_factory=dict)
    """Path of each watched file inside an installation, by its path in there."""
    hashes: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Of scripts and their tensors, by path; each with its time stamps."""

    def take(self, files: Mapping[str, str], paths: Iterable[str]) -> Code:
        """From now on runs are to see these files, each with its hash. Raises OSError."""
        code = code_of(files, paths, build=self.build, build_folder=self.build_folder)
        manifest = code.manifest
        self.digest = sha_of(manifest)
        sources = {sha.rstrip("*"): path for path, sha in code.files.items()}
        new = [sha for sha in (self.digest, *sources) if sha not in self.blobs]
        self.blobs |= {**sources, self.digest: manifest}
        self.installed = {found["inner"]: path for path in files if (found := INSTALLED.match(path))}
        self.latest = {}
        size = len(manifest) + sum(os.path.getsize(sources[sha]) for sha in new if sha in sources)
        if size <= SMALL_BYTES:
            with contextlib.suppress(Edited):  # the next sweep will see it
                self.latest = self.read(new)
        return code

    def script(self, path: Path) -> tuple[str, str]:
        """The blobs of a script and of the tensors beside it, empty without tensors. Raises OSError."""
        tensors = path.with_suffix(".safetensors")
        return self.sha(str(path)), self.sha(str(tensors)) if tensors.exists() else ""

    def sha(self, path: str) -> str:
        """The blob of a file. It is read again only when it was written. Raises OSError."""
        status = os.stat(path)
        stamp = status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
        known, sha = self.hashes.get(path, ((), ""))
        if known != stamp or time.time_ns() - status.st_mtime_ns < RACY_NS:
            data = Path(path).read_bytes()
            sha = sha_of(data) if data else ""
            self.blobs[sha] = data if len(data) < SMALL_BYTES else path
            self.hashes[path] = stamp, sha
        return sha

    def read(self, shas: Iterable[str]) -> dict[str, bytes]:
        """The bytes of blobs. Raises Edited when a file no longer has those, and OSError."""
        found = {}
        for sha in shas:
            source = self.blobs.get(sha, b"")
            found[sha] = source if isinstance(source, bytes) else Path(source).read_bytes()
            if isinstance(source, str) and sha_of(found[sha]) != sha:
                raise Edited(f"{source} was edited while it was being sent")
        return found


# On the worker


@dataclass(slots=True)
class BlobStore:
    """Blobs, and what is made of them, in one folder. Several workers of one machine may share it."""

    folder: Path
    codes: dict[str, Code] = field(default_factory=dict)
    """The manifest that was read last, by its digest."""

    def __post_init__(self) -> None:
        for name in ("blobs", "trees", "scripts"):
            (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    def blob(self, sha: str) -> Path:
        """Where a blob lies if it is here."""
        return self.folder / "blobs" / sha

    def lacking(self, digest: str, others: Iterable[str] = ()) -> list[str]:
        """The blobs that are not here of those that a tree and other files are made of; first of all the manifest."""
        wanted = list(others)
        if digest and not self.blob(digest).exists():
            wanted.append(digest)
        elif digest and not self.is_complete(digest):
            code = self.code(digest)
            wanted += {sha.rstrip("*") for sha in code.files.values()}
        return [sha for sha in wanted if not self.blob(sha).exists()]

    def is_complete(self, digest: str) -> bool:
        """Whether the tree of a manifest is here."""
        return (self.folder / "trees" / digest / COMPLETE).exists()

    def put(self, blobs: Mapping[str, bytes]) -> None:
        """Keep blobs; one whose bytes are not what its name says is left out. Raises OSError."""
        for sha, data in blobs.items():
            if sha_of(data) == sha and not self.blob(sha).exists():
                draft = self.blob(f"{sha}.{os.getpid()}.{threading.get_ident()}")
                try:
                    draft.write_bytes(data)
                    draft.replace(self.blob(sha))
                finally:
                    draft.unlink(missing_ok=True)

    def tree(self, digest: str) -> tuple[Path, str]:
        """The tree of a manifest whose blobs are here, and why it cannot be used, or nothing. Raises OSError."""
        folder = self.folder / "trees" / digest
        if not self.is_complete(digest):
            with FileLock(f"{folder}.lock"):
                if not self.is_complete(digest):
                    shutil.rmtree(folder, ignore_errors=True)
                    self.unpack(self.code(digest), folder, next(iter(self.complete()), None))
                    self.prune(folder)
        os.utime(folder / COMPLETE)
        return folder, (folder / COMPLETE).read_text()

    def code(self, digest: str) -> Code:
        """What a manifest that is here says. Raises OSError."""
        if digest not in self.codes:
            self.codes = {digest: Code.read(self.blob(digest).read_bytes())}  # one sweep follows the other
        return self.codes[digest]

    def unpack(self, code: Code, folder: Path, before: Path | None) -> None:
        """Write the files, bytecode of the same files ``before`` included, and run the build command."""
        earlier = Code.read(self.blob(before.name).read_bytes()).files if before is not None else {}
        for path, sha in code.files.items():
            target = below(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.blob(sha.rstrip("*")), target)
            # The time is the blob's, so that the bytecode of another tree fits.
            shutil.copystat(self.blob(sha.rstrip("*")), target)
            target.chmod(0o755 if sha.endswith("*") else 0o644)
            if before is not None and earlier.get(path) == sha and path.endswith(".py"):
                cached = below(before, path).parent / "__pycache__"
                for one in cached.glob(f"{target.stem}.*.pyc"):
                    (target.parent / "__pycache__").mkdir(exist_ok=True)
                    shutil.copy2(one, target.parent / "__pycache__")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / COMPLETE).write_text(built(code, folder) or self.differing(code))

    def differing(self, code: Code) -> str:
        """Why runs here would say nothing about ``code``: what is installed has the same version and other files."""
        for top, (version, files) in code.installed.items():
            here = importlib.util.find_spec(top)
            if here is None or not here.origin or version_of(top) != version:
                continue  # missing: the canary will say so; another version: these workers are a kind of their own
            found = INSTALLED.match(here.origin)
            base = here.origin.removesuffix(found["inner"]) if found else os.path.dirname(here.origin)
            other = [inner for inner, sha in files.items() if sha_here(os.path.join(base, inner)) != sha]
            if other:
                more = f" and {len(other) - 1} more" if len(other) > 1 else ""
                return f"{top} {version} is not the same on both machines: {sorted(other)[0]}{more}; what is installed does not travel"
        return ""

    def script(self, name: str, sha: str, tensors: str, tree: Path, code: Code) -> Path:
        """A repro script with its tensors, whose paths into ``code`` point into the tree. Raises OSError."""
        key = sha_of(f"{sha} {tensors} {tree}".encode())
        path = self.folder / "scripts" / key / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            if tensors:
                link_or_copy(self.blob(tensors), path.with_suffix(".safetensors"))
            text = self.blob(sha).read_text(encoding="utf-8-sig").replace(BLOBS, str(self.folder / "blobs"))
            text = moved(text, [*code.paths, *code.files], tree)
            draft = path.with_name(f".{os.getpid()}.{time.monotonic_ns()}")
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)
        return path

    def complete(self) -> list[Path]:
        """The complete trees, the one that was used last first."""
        marks = (self.folder / "trees").glob(f"*/{COMPLETE}")
        return sorted((mark.parent for mark in marks), key=used, reverse=True)

    def prune(self, keep: Path) -> None:
        """Remove all but the trees that were used last, and old blobs and scripts."""
        for tree in self.complete()[MOST_TREES:]:
            if tree != keep:
                (tree / COMPLETE).unlink(missing_ok=True)
                shutil.rmtree(tree, ignore_errors=True)
        for path in [*(self.folder / "blobs").iterdir(), *(self.folder / "scripts").iterdir()]:
            with contextlib.suppress(OSError):
                if path.stat().st_atime < time.time() - UNUSED_S and not self.is_complete(path.name):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def used(tree: Path) -> float:
    """When a tree was used last; 0 when it has gone."""
    try:
        return (tree / COMPLETE).stat().st_mtime
    except OSError:
        return 0.0


def below(tree: Path, path: str) -> Path:
    """Where the file at ``path`` on the sender's machine lies in a tree. Raises ValueError for one that would lie outside."""
    if not os.path.isabs(path) or ".." in path.split("/"):
        raise ValueError(f"{path!r} is no absolute path")
    return tree / path.lstrip("/")


def moved(text: str, paths: Iterable[str], tree: Path) -> str:
    """``text`` with each quoted path that begins with one of ``paths`` in ``tree``."""
    longest = sorted(set(paths), key=len, reverse=True)
    if not longest:
        return text
    every = "|".join(map(re.escape, longest))
    return re.sub(rf"""(["'])({every})(?=["'/])""", lambda found: f"{found[1]}{tree}{found[2]}", text)


def built(code: Code, folder: Path) -> str:
    """Run the build command in the tree; its first error, or nothing."""
    if not code.build:
        return ""
    try:
        done = build_within(BUILD_SECONDS, code.build, below(folder, code.build_folder))
    except OSError as error:
        return f"the build failed: {error}"
    return f"the build failed with status {done.status}: {done.error[:300]}" if done.status else ""


def as_sent(files: Iterable[str], tree: Path) -> list[str]:
    """The files of a run as the sender knows them: absolute paths of its own, and paths inside an installation; others are left out."""
    inside = f"{tree}{os.sep}"
    found: dict[str, Any] = {}
    for path in files:
        if path.startswith(inside):
            found["/" + path.removeprefix(inside)] = None
        elif (installed := INSTALLED.match(path)) is not None:
            found[installed["inner"]] = None
    return list(found)
