"""The code under test on its way to a worker: one zip for each content, and the folder that a worker unpacks it into.

The digest of the content is what the folder is called and what a verdict belongs to. In the folder every file lies at its path on
the sender's machine; once it is there, only bytecode is added.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import shutil
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from pathlib import Path

from filelock import FileLock

from minidbg.watch.snapshot import COMPILED
from minidbg.workers.build import build_within

INSTALLED = re.compile(r".*/(?:site|dist)-packages/(?P<inner>.+)")
"""A path inside an installation: such code does not travel, a worker has its own."""
MANIFEST = ".minidbg-code.json"
BUILD_SAID = ".minidbg-build"
"""What the build of a folder came to: its first error, or nothing. It is written last."""
DRAFT = "draft-"
BUILD_SECONDS = 3600.0
MOST_TREES = 16
DRAFT_S = 86400.0
LARGE_BYTES = 1 << 20
"""From this size on a file is not compressed: 100 MB of a library would take four seconds after each save."""
WRITTEN_S = 946_684_800
"""When every file was written, as far as Python sees: bytecode of one folder fits the same file in another."""


def sha_of(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


class Edited(Exception):
    """A file no longer has the content that was to be sent."""


@dataclass(frozen=True)
class Code:
    """What is sent. All paths are those of the sender's machine."""

    files: Mapping[str, str] = field(default_factory=dict)
    """The hash of each file; a ``*`` behind it where the file is executable."""
    paths: tuple[str, ...] = ()
    """Folders that go in front of ``sys.path``."""
    installed: Mapping[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    """By top-level name, what is watched inside an installation: its version, and the hash of each file by its path there.

    It is not sent. A worker that has the same version must have the same files.
    """
    build: str = ""
    build_folder: str = ""

    @cached_property
    def manifest(self) -> bytes:
        """All of this as JSON."""
        return json.dumps(
            {one.name: getattr(self, one.name) for one in fields(self)}, sort_keys=True
        ).encode()

    @cached_property
    def digest(self) -> str:
        return sha_of(self.manifest)

    @cached_property
    def zipped(self) -> bytes:
        """The manifest and the files. Raises Edited, and OSError for a file that is gone."""
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr(MANIFEST, self.manifest, zipfile.ZIP_DEFLATED)
            for path, sha in self.files.items():
                data = Path(path).read_bytes()
                if sha_of(data) != sha.rstrip("*"):
                    raise Edited(f"{path} was edited while it was being sent")
                member = zipfile.ZipInfo(path.lstrip("/"))
                member.external_attr = (0o755 if sha.endswith("*") else 0o644) << 16
                how = zipfile.ZIP_DEFLATED if len(data) < LARGE_BYTES else zipfile.ZIP_STORED
                archive.writestr(member, data, how, compresslevel=1)
        return content.getvalue()

    @classmethod
    def read(cls, tree: Path) -> Code:
        """What was unpacked into ``tree``. Raises OSError."""
        return cls(**json.loads((tree / MANIFEST).read_bytes()))

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
            if not (build and COMPILED.search(path)):
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


# On the worker


@dataclass(slots=True)
class Trees:
    """The folders of code, each called by the digest of its content. Several workers may share them, also of several machines."""

    folder: Path
    codes: dict[str, tuple[Code, str]] = field(default_factory=dict)
    """By digest, the code that was used last, and why it cannot be used here, or nothing."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def ready(self, digest: str, zipped: bytes) -> tuple[Path, Code, str]:
        """The folder of a content, what it holds, and why it cannot be used, or nothing. Raises OSError, and ValueError for a bad zip."""
        if not re.fullmatch(
            "[0-9a-f]{40}", digest
        ):  # a path out of the folder would be removed, or taken for a tree
            raise ValueError(f"{digest!r:.80} is no digest of code")
        tree = self.folder / digest
        with self.lock:
            if not tree.exists():
                self.unpack(digest, zipped)
            os.utime(tree)
            if digest not in self.codes:
                code = Code.read(tree)
                self.codes = {digest: (code, differing(code))}  # one sweep follows the other
            code, why = self.codes[digest]
        return tree, code, (code.build and self.build(digest, zipped, code)) or why

    def unpack(self, digest: str, zipped: bytes) -> None:
        """Make the folder. It gets its name when it is whole: other workers may look for it meanwhile, and this one may be killed."""
        tree, before = self.folder / digest, next(iter(self.by_use()), None)
        with self.draft() as draft:
            extract(zipped, whole := Path(draft, digest))
            code = Code.read(whole)
            if code.digest != digest:
                raise ValueError(f"the zip that was sent as {digest} holds {code.digest}")
            if before is not None:
                take_bytecode(before, whole, code)
            try:
                whole.rename(tree)
            except OSError:
                if not tree.exists():  # else another worker was first
                    raise
        self.prune()

    def build(self, digest: str, zipped: bytes, code: Code) -> str:
        """Run the build command in the folder, once; its first error, or nothing. Not in a draft, since it may write paths down."""
        tree = self.folder / digest
        said = tree / BUILD_SAID
        if not said.exists():
            with FileLock(f"{tree}.lock"):
                if not said.exists():
                    self.remove(tree)  # a build that was killed has left a part
                    self.unpack(digest, zipped)
                    said.write_text(built(code, tree))
        return said.read_text()

    def by_use(self) -> list[Path]:
        """The folders, the one that was used last first."""
        trees = [path for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith(DRAFT)]
        return sorted(trees, key=written, reverse=True)

    def prune(self) -> None:
        """Remove all but the folders that were used last, and what killed workers have left."""
        for tree in self.by_use()[MOST_TREES:]:
            self.remove(tree)
            Path(f"{tree}.lock").unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if path.name.startswith(DRAFT) and time.time() - written(path) > DRAFT_S:
                shutil.rmtree(path, ignore_errors=True)

    def remove(self, tree: Path) -> None:
        """Rename it before its files go, so that nobody takes those that are left for the whole."""
        with self.draft() as draft, contextlib.suppress(FileNotFoundError):  # another worker was first
            tree.rename(Path(draft, tree.name))

    def draft(self) -> tempfile.TemporaryDirectory[str]:
        """A folder for as long as a block lasts; that of a worker that is killed goes after a day."""
        return tempfile.TemporaryDirectory(prefix=DRAFT, dir=self.folder, ignore_cleanup_errors=True)


def written(path: Path) -> float:
    """When a folder was used or a file written last; 0 when it has gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def extract(zipped: bytes, tree: Path) -> None:
    """Write the files of a zip. Raises ValueError for one that would lie outside ``tree``, and OSError."""
    with zipfile.ZipFile(io.BytesIO(zipped)) as archive:
        for member in archive.infolist():
            target = below(tree, f"/{member.filename}")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(member))
            target.chmod(member.external_attr >> 16)
            os.utime(target, (WRITTEN_S, WRITTEN_S))


def take_bytecode(before: Path, tree: Path, code: Code) -> None:
    """Copy the bytecode of what is the same in ``before``: after a save a large package need not be compiled again."""
    with contextlib.suppress(FileNotFoundError):  # another worker removes it
        earlier = Code.read(before).files
        for path in (
            path for path, sha in code.files.items() if path.endswith(".py") and earlier.get(path) == sha
        ):
            source = below(before, path)
            for cached in source.parent.glob(f"__pycache__/{source.stem}.*.pyc"):
                target = below(tree, path).parent / "__pycache__"
                target.mkdir(exist_ok=True)
                shutil.copy2(cached, target)


def differing(code: Code) -> str:
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
    return re.sub(rf"""(["'])({every})(?=["'/\\])""", lambda found: f"{found[1]}{tree}{found[2]}", text)


def built(code: Code, folder: Path) -> str:
    """Run the build command in the tree; its first error, or nothing."""
    try:
        done = build_within(BUILD_SECONDS, code.build, below(folder, code.build_folder))
    except OSError as error:
        return f"the build failed: {error}"
    return f"the build failed with status {done.status}: {done.error[:300]}" if done.status else ""


def as_sent(files: Iterable[str], tree: Path) -> list[str]:
    """The files of a run as the sender knows them: absolute paths of its own, and paths inside an installation; others are left out."""
    inside = f"{tree}{os.sep}"
    found: dict[str, None] = {}
    for path in files:
        if path.startswith(inside):
            found["/" + path.removeprefix(inside)] = None
        elif (installed := INSTALLED.match(path)) is not None:
            found[installed["inner"]] = None
    return list(found)
