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
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

import msgspec
import platformdirs

from minidbg.core import script_header
from minidbg.core.errors import BadSetting, nearest
from minidbg.core.files import NOTE_LIMIT_BYTES, read_regular
from minidbg.core.metrics import Judge
from minidbg.core.run_spec import PRECISIONS

DEFAULT_FOLDER = Path("minidbg_repros")
VALUE_LIMIT_BYTES = 1024**3

Converter: TypeAlias = Callable[[Any], Any]
"""From what was written to the setting's type. Its ValueError or TypeError says what is allowed."""


def choice(kind: type[enum.StrEnum]) -> Converter:
    words = [str(member) for member in kind]

    def chosen(value: Any) -> Any:
        if isinstance(value, str) and value in words:
            return kind(value)
        near = nearest(value, words) if isinstance(value, str) else ""
        raise ValueError(f"must be one of {', '.join(map(repr, words))}{near}")

    return chosen


def of_type(kind: Any) -> Converter:
    """What msgspec takes for that type; numbers and booleans may be texts."""

    def converted(value: Any) -> Any:
        try:
            return msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError as error:
            what = str(error)
            raise ValueError(f"{what[0].lower()}{what[1:]}") from None

    return converted


def at_least(least: float) -> Converter:
    """A number of the type of ``least``."""
    return of_type(Annotated[type(least), msgspec.Meta(ge=least)])


def strings(value: Any) -> tuple[str, ...]:
    """One text, or a list of them. From the environment, one a line."""
    if not isinstance(value, str | list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a string or a list of strings")
    items = value.splitlines() if isinstance(value, str) else value
    return tuple(item for item in items if item.strip())


def string(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a string")
    return value


def pattern(value: Any) -> str:
    try:
        re.compile(string(value))
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    return str(value)


def golden_device(value: Any) -> str:
    if value not in ("", "cpu"):
        raise ValueError("must be 'cpu', or '' for eager on the backend's own device")
    return str(value)


def path(value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or not str(value) or "\0" in str(value):
        raise ValueError("must be a path")
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError(f"must be a path: {error}") from None


def setting(default: Any, check: Converter) -> Any:
    return dataclasses.field(default=default, metadata={"check": check})


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


def verification(value: Any) -> Verify | int:
    if str(value).removeprefix("-").isdecimal():
        calls: int = at_least(1)(value)
        return calls
    try:
        return Verify(choice(Verify)(value))
    except ValueError as error:
        raise ValueError(f"{error}, or a number of calls") from None


def by_dtype(value: Any) -> tuple[tuple[str, float, float], ...]:
    """``{"float16": (1e-2, 1e-3)}``, sorted by name, or of a precision."""
    if isinstance(value, str) and value in PRECISIONS:
        value = PRECISIONS[value]
    if not isinstance(value, Mapping):
        near = nearest(value, PRECISIONS) if isinstance(value, str) else ""
        words = ", ".join(map(repr, PRECISIONS))
        raise ValueError(
            f"no such precision{near}; must be one of {words}, "
            "or a mapping by dtype: {'float16': (1e-2, 1e-3)}"
        )
    found = []
    for dtype, pair in value.items():
        name = str(dtype).removeprefix("torch.")
        if name not in FLOATS:
            raise ValueError(f"{name!r} is not a dtype with tolerances{nearest(name, FLOATS)}")
        relative, absolute = of_type(tuple[float, float])(pair)
        found.append((name, at_least(0.0)(relative), at_least(0.0)(absolute)))
    return tuple(sorted(found))


FLOATS = ("float64", "float32", "bfloat16", "float16", "complex128", "complex64", "complex32")


@dataclass(frozen=True, slots=True)
class Settings:
    verify: Verify | int = setting(Verify.FIRST, verification)
    on_failure: OnFailure = setting(OnFailure.RAISE, choice(OnFailure))
    reduce: Reduce | None = setting(None, choice(Reduce))
    """None decides at the failure: now, or later in a job of several ranks."""
    repro_dir: Path = setting(DEFAULT_FOLDER, path)
    seconds: float = setting(300.0, at_least(0.0))
    """For all reductions of this process together."""
    max_calls: int | None = setting(None, at_least(1))
    """Runs of one reduction."""
    setup: tuple[str, ...] = setting((), strings)
    """Statements that make the backend known in a fresh process."""
    reference: str | None = setting(None, string)
    """``module:qualname`` of the backend, or of a function without arguments that returns it."""
    value_limit_bytes: int = setting(VALUE_LIMIT_BYTES, at_least(0))
    """Most bytes of real tensor values written for one failure, or kept for an unverified graph."""
    match: str | None = setting(None, pattern)
    """A regular expression; a failure whose text does not contain it is captured, not reduced."""
    rtol: float | None = setting(None, at_least(0.0))
    """Relative tolerance of floats compared with eager, for all dtypes; given with ``atol``."""
    atol: float | None = setting(None, at_least(0.0))
    """Absolute tolerance, in units of the value."""
    tolerances: tuple[tuple[str, float, float], ...] = setting((), by_dtype)
    """The same by dtype: ``{"float16": (1e-2, 1e-3)}``. It counts before ``rtol`` and ``atol``.

    Or, for ``float32``, by the backend's own precision: ``"bfloat16"``, ``"float16"``, ``"tf32"``.
    """
    golden: Literal["", "cpu"] = setting("", golden_device)
    """``cpu``: results are held against eager there, where the device's own is in doubt."""
    judge: str = setting("", lambda value: Judge.of(string(value)).text)
    """An expression of metrics (``pcc>=0.99``) that is true of a right result, instead of
    tolerances and of eager's own error. Raises BadJudge for another text."""
    env: tuple[str, ...] = setting((), strings)
    """Names of more environment variables that a repro needs; their values are written into it."""
    memory_bytes: int | None = setting(None, at_least(1 << 20))
    """Most bytes of memory that one run may take; None is four fifths of what is free."""
    crash_records: bool = setting(True, of_type(bool))
    """Write down what a backend is about to do, for the case that the process dies in it."""

    @property
    def allowed(self) -> dict[str, tuple[float, float]]:
        """Relative and absolute tolerance by dtype name, ``any`` for the rest; empty: built-in."""
        common = {"any": (self.rtol, self.atol)} if self.rtol is not None and self.atol is not None else {}
        return {**common, **{dtype: (rtol, atol) for dtype, rtol, atol in self.tolerances}}


CONVERTERS: Mapping[str, Converter] = {
    one.name: one.metadata["check"] for one in dataclasses.fields(Settings)
}


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


@dataclass(frozen=True, slots=True)
class Origin:
    name: str
    value: Any
    source: str
    """``default``, a file, ``the environment`` or ``the arguments``."""


def of_call(arguments: Mapping[str, Any], kind: type[WrapSettings | CompilerSettings]) -> Settings:
    """Settings of all sources for a call with ``arguments``, all in ``kind``. Raises BadSetting."""
    for name in arguments:
        known(name, "the arguments", list(kind.__annotations__))
    return load(arguments)


def load(arguments: Mapping[str, Any] | None = None) -> Settings:
    """The settings of all sources; an argument that is None counts as not given. Raises BadSetting,
    which says where it was written."""
    return Settings(**{origin.name: origin.value for origin in load_with_origins(arguments)})


def load_with_origins(arguments: Mapping[str, Any] | None = None) -> tuple[Origin, ...]:
    """Each setting with its value and where that was written, in the order of Settings. Raises
    BadSetting as ``load`` does."""
    sources: list[tuple[str, Mapping[str, Any]]] = []
    if (user_file := user_settings_file()).is_file():
        sources.append((str(user_file), read_toml(user_file)))
    project, table = project_table(Path.cwd())
    where = f"[tool.minidbg] of {project}"
    if isinstance(folder := table.get("repro_dir"), str):
        table["repro_dir"] = project.parent / checked("repro_dir", folder, where, CONVERTERS)
    table.pop("watch", None)  # it is read, and checked, by watch
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    environment = from_environment(os.environ)
    sources += [(where, table), ("the environment", environment), ("the arguments", given)]
    return merged(Settings(), CONVERTERS, sources)


def merged(
    default: Any, convert: Mapping[str, Converter], sources: Iterable[tuple[str, Mapping[str, Any]]]
) -> tuple[Origin, ...]:
    """The settings named in ``convert``: those of the dataclass ``default``, overridden by each
    source in turn. Raises BadSetting."""
    names = [field.name for field in dataclasses.fields(default) if field.name in convert]
    found = {name: Origin(name, getattr(default, name), "default") for name in names}
    for source, table in sources:
        for name, value in table.items():
            known(name, source, names)
            found[name] = Origin(name, checked(name, value, source, convert), source)
    return tuple(found.values())


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


def checked(name: str, value: Any, source: str, convert: Mapping[str, Converter]) -> Any:
    try:
        return convert[name](value)
    except (ValueError, TypeError, OverflowError, RecursionError, re.error) as error:
        raise BadSetting(f"{name}={value!r:.200} (in {source}): {error}") from None
