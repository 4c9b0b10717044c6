"""What commands share: -q, -v, --json, logs and notes on stderr, errors in two lines, NO_COLOR; and
how a signal ends one: Ctrl-C, SIGTERM and SIGHUP unwind it, to let go of what it holds."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeAlias, TypeVar

import click

from minidbg.core import environment
from minidbg.core.errors import ONE_PROCESS, DeviceInUse, MinidbgError, Terminated
from minidbg.core.files import glob
from minidbg.core.metrics import Judge
from minidbg.core.script_header import HIDDEN
from minidbg.core.text import display_path, printable

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)
CANNOT_JUDGE = 125
"""Status of requests that could not be met: ``git bisect`` sees no failing repro in our mistake."""
INTERRUPTED = 130
LOG_HANDLER = "minidbg's command line"
VERBOSITY: ContextVar[int] = ContextVar("minidbg_verbosity", default=0)
"""-1 or less: quiet; 0: usual; from 1: verbose; errors are told when no click context is left."""


class ReproPath(click.Path):
    """A script as ``find_repro`` finds it; with ``folders`` a folder as it is."""

    def __init__(self, *, folders: bool = False) -> None:
        super().__init__(path_type=Path)
        self.folders = folders

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Raises MinidbgError."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        return path if self.folders and path.is_dir() else find_repro(path, repro_folder())


def find_repro(text: Path, folder: Path) -> Path:
    """A path, or enough of a name among repros, else captures. Raises MinidbgError."""
    from minidbg.watch.repros import find_repros

    captures = folder / HIDDEN / "captures"
    for candidate in (text, folder / text, folder / f"{text}.py", captures / text):
        if os.path.isfile(candidate):
            return candidate
    if text.name != str(text) or text.suffix == ".py":
        advice = "give the path of a repro script, or a part of its name"
        raise MinidbgError(f"{text}: no such file; {advice}")
    repros = find_repros([folder])
    matches = [path for path in repros if str(text) in path.stem]
    matches = matches or [path for path in glob(captures, "*.py") if str(text) in path.stem]
    if len(matches) == 1:
        return matches[0]
    which = [path.stem for path in matches or repros]
    listed = f"{', '.join(which[:5])}{', ...' if len(which) > 5 else ''}"
    if matches:
        raise MinidbgError(f"'{text}' matches several repros: {listed}; give a unique part")
    known = f"{display_path(folder)} has {listed}" if which else "give the path of a repro script"
    raise MinidbgError(f"no repro's name contains '{text}'; {known}")


REPRO = ReproPath()
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER_TYPE = click.Path(file_okay=False, path_type=Path)
COUNT = click.IntRange(min=1)
TIME_LIMIT = click.FloatRange(min=0.1, max=1e9)
BACKEND = "NAME|MODULE:OBJECT"
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
DIR_OPTION = click.option(
    "--dir", "folder", type=FOLDER_TYPE, help="Folder to write repros to; default: minidbg_repros."
)
DEVICE_OPTION = click.option(
    "--device", help="Run on this device instead of the one in the script, for example cuda:1."
)
BUILD = "Shell command to run {}, for example 'ninja -C build'."


def seconds_option(
    of: str = "", default: float | None = 300.0, shown: str | bool = True
) -> Callable[[FC], FC]:
    what = f"Time limit in seconds{of}."
    return click.option(
        "--seconds", type=TIME_LIMIT, metavar="SECONDS", default=default, show_default=shown, help=what
    )


def judge_option(what: str) -> Callable[[FC], FC]:
    """An expression of metrics, checked; empty where none is given."""

    def checked_judge(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str:
        return Judge.of(text).text if text is not None else ""

    return click.option("--judge", metavar="EXPR", callback=checked_judge, help=what)


def jobs_option(shown: str | bool, default: int | None = None) -> Callable[[FC], FC]:
    what = "Most runs at the same time."
    return click.option(
        "--jobs", "-j", type=COUNT, metavar="N", default=default, show_default=shown, help=what
    )


def count(step: int) -> Any:

    def add(_context: click.Context, _parameter: click.Parameter, times: int) -> None:
        if times:
            VERBOSITY.set(VERBOSITY.get() + step * times)
            configure(VERBOSITY.get())

    return add


QUIET = click.Option(
    ["-q", "--quiet"],
    count=True,
    expose_value=False,
    callback=count(-1),
    help="Print results and errors only.",
)
VERBOSE = click.Option(
    ["-v", "--verbose"],
    count=True,
    expose_value=False,
    callback=count(1),
    help="Log to stderr, and show tracebacks; -vv logs more.",
)


def with_verbosity_options(command: click.Command) -> click.Command:
    command.params += [option for option in (QUIET, VERBOSE) if option not in command.params]
    return command


def colour() -> bool | None:
    """False under NO_COLOR (https://no-color.org: set, not empty), else None: the stream decides."""
    return False if os.environ.get("NO_COLOR") else None


def note(text: str) -> None:
    """One line on stderr, unless quiet."""
    if VERBOSITY.get() >= 0:
        click.echo(f"minidbg: {printable(text)}", err=True)


def begin_again(refusal: DeviceInUse) -> None:
    """Become a process that leaves the device to its questions: this one has it, for good. Returns
    where that is known already, so that it is another program which has it."""
    from minidbg.torch_internals import devices

    if devices.is_exclusive(refusal.device):
        return
    note(f"{refusal.kind} {ONE_PROCESS}: begun again, and questions come one at a time")
    kinds = {environment.EXCLUSIVE_KINDS: " ".join({*devices.EXCLUSIVE, refusal.kind})}
    sys.stdout.flush()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # those of a driver too
    os.execve(sys.executable, sys.orig_argv, environment.for_judge() | kinds)


def repro_folder() -> Path:
    from minidbg.core import settings

    return settings.load().repro_dir


def existing_folder(folder: Path | None) -> Path:
    """The named folder or the repro folder. Raises MinidbgError if no failure has made that yet."""
    default = repro_folder()
    if folder is None and not default.exists():
        raise MinidbgError(
            f"no repros yet: there is no {display_path(default)}; the first failure under minidbg "
            "run, or minidbg.wrap, makes it"
        )
    return folder or default


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, default=str))


# --- errors, in two lines: what happened, with the value; what to do ---


def print_error(error: BaseException) -> None:
    if VERBOSITY.get() > 0 and not isinstance(error, click.ClickException):
        click.echo("".join(traceback.format_exception(error)).rstrip(), err=True)
    for line in error_lines(error):
        click.echo(printable(line), err=True)


def error_lines(error: BaseException) -> list[str]:
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "minidbg"
        # click's own words name an argument first: invalid value for '[PATH]'
        is_own = isinstance(getattr(error, "param", None), click.Argument) and error.message
        said = error.message if is_own else error.format_message()
        what, _, advice = " ".join(said.split()).partition("; ")
        advice = advice or f"see: {command} --help"
        return [f"{command}: {what[:1].lower()}{what[1:]}", f"  {advice}"]
    if isinstance(error, MinidbgError):
        what, advice = error.in_two()
        return [f"minidbg: {what}", f"  {advice or '-v shows where this came from'}"]
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, OSError):
        advice = "look at that path and its permissions; -v shows where this came from"
        return [f"minidbg: {what}", f"  {advice}"]
    return [
        f"minidbg: unexpected {what}",
        "  run it again with -v for the traceback; where the script is fine, this is a bug in minidbg",
    ]


def configure(verbosity: int) -> None:
    """Send the logger ``minidbg`` to stderr: below 0 errors alone, at 2 everything."""
    import structlog  # late: most commands log nothing

    logger = logging.getLogger("minidbg")
    level = logging.DEBUG if verbosity > 1 else logging.INFO
    logger.setLevel(logging.ERROR if verbosity < 0 else level)
    handler = logging.StreamHandler(sys.stderr)
    handler.name = LOG_HANDLER
    console = structlog.dev.ConsoleRenderer(colors=colour() is not False and sys.stderr.isatty())
    stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processor=console, foreign_pre_chain=[structlog.stdlib.add_log_level, stamp]
        )
    )
    logger.handlers = [*(old for old in logger.handlers if old.name != LOG_HANDLER), handler]
    logger.propagate = False


# --- the end of a command by a signal ---

Handler: TypeAlias = Callable[[int, FrameType | None], object]


@contextlib.contextmanager
def signals_handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """A block in which these signals are handled so; one that is ignored (nohup) stays ignored."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        wanted = [number for number in handlers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handlers[number]) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def terminated(number: int, frame: FrameType | None) -> NoReturn:
    """Unwind what the signal interrupts, as Ctrl-C does; a second one ends the process."""
    signal.signal(number, signal.SIG_DFL)
    raise Terminated(number)


def end_interrupted() -> NoReturn:
    """End a command that Ctrl-C unwound, without the interpreter's exit: torch's takes seconds."""
    let_go()
    os._exit(INTERRUPTED)


def end_by(number: int) -> NoReturn:
    """End as the signal would have: who started us is told so."""
    let_go()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # where the signal is blocked


def let_go() -> None:
    """End the forkserver, and write out what was printed; a second Ctrl-C waits."""
    from minidbg import workers  # late: most commands have none

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    workers.end_server()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # who read it has gone
            stream.flush()
