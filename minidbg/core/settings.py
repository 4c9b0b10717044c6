"""What users set, and where: defaults < user file < ``[tool.minidbg]`` < ``MINIDBG_*`` < arguments.

The user file is ``minidbg.toml`` in the platform's configuration folder; ``[tool.minidbg]`` is
looked up in the nearest ``pyproject.toml`` of the working directory and its parents. A name that is
no setting is an error that names its source and the nearest setting, wherever it was written.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, get_type_hints

import msgspec
import platformdirs

from minidbg.core import script_header
from minidbg.core.errors import BadSetting, nearest
from minidbg.core.files import NOTE_LIMIT_BYTES, read_regular
from minidbg.core.metrics import Judge
from minidbg.core.records import converted
from minidbg.core.run_spec import PRECISIONS

DEFAULT_FOLDER = Path("minidbg_repros")
VALUE_LIMIT_BYTES = 1024**3

Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
Memory: TypeAlias = Annotated[int, msgspec.Meta(ge=1 << 20)]
"""Bytes that a process may take."""
Text: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\S")]


def setting(default: Any, check: Callable[[Any], Any]) -> Any:
    """A field whose value was written in a form of its own: ``check`` makes of that what its type
    takes. Its ValueError, TypeError, RuntimeError or re.error says what is allowed."""
    return dataclasses.field(default=default, metadata={"check": check})


def text_lines(value: Any) -> Any:
    """One text has an item a line."""
    return list(filter(str.strip, value.splitlines())) if isinstance(value, str) else value


def path(value: Any) -> Path:
    if not str(value) or "\0" in str(value):
        raise ValueError("must be a path")
    return Path(value).expanduser()


def by_dtype(value: Any) -> list[tuple[Any, ...]]:
    """``{"float16": (1e-2, 1e-3)}``, sorted by name, or of a precision."""
    if isinstance(value, str):
        value = PRECISIONS.get(value, value)
    if not isinstance(value, Mapping):
        words = ", ".join(map(repr, PRECISIONS))
        raise ValueError(
            f"no such precision{nearest(str(value), PRECISIONS)}; must be one of {words}, "
            "or a mapping by dtype: {'float16': (1e-2, 1e-3)}"
        )
    pairs = {str(dtype).removeprefix("torch."): pair for dtype, pair in value.items()}
    for name in pairs.keys() - FLOATS:
        raise ValueError(f"{name!r} is not a dtype with tolerances{nearest(name, FLOATS)}")
    return [(name, *pairs[name]) for name in sorted(pairs)]


FLOATS = ("float64", "float32", "bfloat16", "float16", "complex128", "complex64", "complex32")


class OnFailure(enum.StrEnum):
    """What the user's program goes on with after its backend has failed."""

    RAISE = "raise"
    """The backend's own exception, with a note."""
    FALLBACK = "fallback"
    """Eager, for this graph, from then on."""


class Reduce(enum.StrEnum):
    NOW = "now"
    LATER = "later"
    """By ``minidbg reduce``: only the capture is written."""


class Verify(enum.StrEnum):
    """Which calls of a compiled graph are compared with eager. A number: that many first calls."""

    FIRST = "first"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Settings:
    verify: Verify | Count = Verify.FIRST
    on_failure: OnFailure = OnFailure.RAISE
    reduce: Reduce | None = None
    """None decides at the failure: now, or later in a job of several ranks."""
    repro_dir: Path = setting(DEFAULT_FOLDER, path)
    seconds: Amount = 300.0
    """For all reductions of this process together."""
    max_calls: Count | None = None
    """Runs of one reduction."""
    setup: tuple[str, ...] = setting((), text_lines)
    """Statements that make the backend known in a fresh process."""
    reference: Text | None = None
    """``module:qualname`` of the backend, or of a function without arguments that returns it."""
    value_limit_bytes: Annotated[int, msgspec.Meta(ge=0)] = VALUE_LIMIT_BYTES
    """Most bytes of real tensor values written for one failure, or kept for an unverified graph."""
    match: Text | None = setting(None, lambda value: re.compile(value) and value)
    """A regular expression; a failure whose text does not contain it is captured, not reduced."""
    rtol: Amount | None = None
    """Relative tolerance of floats compared with eager, for all dtypes; ``atol`` is 0 without one."""
    atol: Amount | None = None
    """Absolute tolerance, in units of the value."""
    tolerances: tuple[tuple[str, Amount, Amount], ...] = setting((), by_dtype)
    """The same by dtype: ``{"float16": (1e-2, 1e-3)}``. It counts before ``rtol`` and ``atol``.

    Or, for ``float32``, by the backend's own precision: ``"bfloat16"``, ``"float16"``, ``"tf32"``.
    """
    golden: Literal["", "cpu"] = ""
    """``cpu``: results are held against eager there, where the device's own is in doubt."""
    judge: str = setting("", lambda value: Judge.of(str(value)).text)
    """An expression of metrics (``pcc>=0.99``) that is true of a right result, instead of
    tolerances and of eager's own error. Raises BadJudge for another text."""
    env: tuple[str, ...] = setting((), text_lines)
    """Names of more environment variables that a repro needs; their values are written into it."""
    memory_bytes: Memory | None = None
    """Most bytes of memory that one run may take; None is four fifths of what is free."""
    crash_records: bool = True
    """Write down what a backend is about to do, for the case that the process dies in it."""

    @property
    def allowed(self) -> dict[str, tuple[float, float]]:
        """Relative and absolute tolerance by dtype name, ``any`` for the rest; empty: built-in."""
        is_given = self.rtol is not None or self.atol is not None
        common = {"any": (self.rtol or 0.0, self.atol or 0.0)} if is_given else {}
        return {**common, **{dtype: (rtol, atol) for dtype, rtol, atol in self.tolerances}}


class CompilerSettings(TypedDict, total=False):
    """Settings of ``minidbg.wrap_compiler``, as a caller writes them; None is as if not given."""

    verify: str | int | None
    on_failure: str | None
    reduce: str | None
    repro_dir: str | os.PathLike[str] | None
    seconds: float | None
    max_calls: int | None
    setup: str | Sequence[str] | None
    reference: str | None
    value_limit_bytes: int | None
    match: str | None
    env: Sequence[str] | None


class WrapSettings(CompilerSettings, total=False):
    rtol: float | None
    atol: float | None
    tolerances: Mapping[Any, tuple[float, float]] | str | None
    golden: str | None
    judge: str | None
    crash_records: bool | None


Origins: TypeAlias = dict[str, tuple[Any, str]]
"""Each setting's value, and whence: ``default``, a file, ``the environment``, ``the arguments``."""


def of_call(arguments: Mapping[str, Any], kind: type[WrapSettings | CompilerSettings]) -> Settings:
    """Settings of all sources for a call with ``arguments``, all in ``kind``. Raises BadSetting."""
    for name in arguments:
        known(name, "the arguments", list(kind.__annotations__))
    return load(arguments)


def load(arguments: Mapping[str, Any] | None = None) -> Settings:
    """The settings of all sources; an argument that is None counts as not given. Raises BadSetting,
    which says where it was written."""
    return Settings(**{name: value for name, (value, _) in load_with_origins(arguments).items()})


def load_with_origins(arguments: Mapping[str, Any] | None = None) -> Origins:
    """In the order of Settings. Raises BadSetting as ``load`` does."""
    sources: list[tuple[str, Mapping[str, Any]]] = []
    if (user_file := user_settings_file()).is_file():
        sources.append((str(user_file), read_toml(user_file)))
    project, table = project_table(Path.cwd())
    where = f"[tool.minidbg] of {project}"
    if isinstance(folder := table.get("repro_dir"), str):
        table["repro_dir"] = project.parent / checked("repro_dir", folder, where, Settings)
    table.pop("watch", None)  # it is read, and checked, by watch
    written = {name: value for name, value in (arguments or {}).items() if value is not None}
    environment = from_environment(os.environ)
    sources += [(where, table), ("the environment", environment), ("the arguments", written)]
    return merged(Settings(), sources)


def merged(default: Any, sources: Iterable[tuple[str, Mapping[str, Any]]], *but: str) -> Origins:
    """The settings of the dataclass ``default``, ``but`` some, overridden by each source in turn.
    Raises BadSetting."""
    names = [field.name for field in dataclasses.fields(default) if field.name not in but]
    origins = {name: (getattr(default, name), "default") for name in names}
    for source, table in sources:
        for name, value in table.items():
            known(name, source, names)
            origins[name] = checked(name, value, source, type(default)), source
    return origins


def project_table(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The nearest pyproject.toml in ``folder`` or above it, and its ``[tool.minidbg]``; empty
    without one. Raises BadSetting."""
    for parent in (folder, *folder.parents):
        project = parent / "pyproject.toml"
        if project.is_file():
            table: Mapping[str, Any] = read_toml(project)
            for name in ("tool", "minidbg"):
                table = as_table(table.get(name, {}), name, project)
            return project, dict(table)
    return folder / "pyproject.toml", {}


def as_table(value: Any, name: str, project: Path) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadSetting(f"{name} = {value!r:.80} (in {project}): must be a mapping of settings")
    return value


def user_settings_file() -> Path:
    return platformdirs.user_config_path("minidbg") / "minidbg.toml"


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return script_header.parse_toml(read_regular(path, NOTE_LIMIT_BYTES).decode())
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise BadSetting(f"{path} is not valid TOML: {error}; fix it there") from error


OF_OTHERS = ("MINIDBG_BACKEND", "MINIDBG_STATS", "MINIDBG_TIME_LIMIT_S")
"""Variables that are no settings: ``minidbg run`` reads the first, repro scripts the last."""


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """``MINIDBG_*`` as settings. ``MINIDBG_DIR`` is the folder; two underscores mark no setting."""
    found = {
        variable.removeprefix("MINIDBG_").lower(): value
        for variable, value in environ.items()
        if re.match("MINIDBG_(?!_)", variable) and variable not in OF_OTHERS
    }
    return {"repro_dir" if name == "dir" else name: value for name, value in found.items()}


def known(name: str, source: str, names: Sequence[str]) -> None:
    if name not in names:
        near = nearest(name, names) or ";"
        settings = ", ".join(names)
        raise BadSetting(f"no setting named {name!r} (in {source}){near} Settings: {settings}")


types_of = cache(partial(get_type_hints, include_extras=True))


def checked(name: str, value: Any, source: str, kind: Any) -> Any:
    """``value`` as the dataclass ``kind`` has that setting. Raises BadSetting."""
    check = kind.__dataclass_fields__[name].metadata.get("check", lambda written: written)
    hint = types_of(kind)[name]
    try:
        return converted(check(value), hint, strict=False)
    except (ValueError, TypeError, OverflowError, RuntimeError, re.error) as error:
        raise BadSetting(f"{name}={value!r:.200} (in {source}): {error}") from None
