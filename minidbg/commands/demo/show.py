"""What ``minidbg demo`` prints around its program: the bug, the failure, the reduction, the script,
its run, what next."""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax

from minidbg.core import environment
from minidbg.core.errors import MinidbgError
from minidbg.core.script_header import START
from minidbg.core.text import display_path
from minidbg.wrapper import Report, report_of

DEMO_PROGRAM = Path(__file__).with_name("program.py")
SETTINGS = {"MINIDBG_ON_FAILURE": "raise", "MINIDBG_REDUCE": "now"}
"""What the demo shows, whatever the person's own programs are to do."""


def run_demo(console: Console) -> Report:
    """Raises MinidbgError where it ends without a repro that fails."""
    console.rule("the backend under test")
    source = DEMO_PROGRAM.read_text()
    print_python(console, source[source.index("def tiny_fuser") : source.index("class Block")])

    console.rule("a transformer: torch.compile(model, backend=minidbg.wrap(tiny_fuser))")
    error = failure_of_program()
    raised = f"{type(error).__name__}: {error}".partition("\n\n")[0]  # then torch's variables
    console.out(raised, style="red", highlight=False)
    report = report_of(error)
    if report is None or report.path is None:
        raise MinidbgError(
            f"the demo's failure left no verified repro: {report.line if report else 'no report'}"
        )
    console.out(f"minidbg: {report.line}", style="bold", highlight=False)

    shown = display_path(report.path)
    console.rule(f"the script: {shown}")
    script = report.path.read_text()
    about = START.split(script)[0].rstrip()
    print_python(console, about)
    rest = len(script.splitlines()) - len(about.splitlines())
    console.out(f"({rest} more lines are comments for tools)", style="dim", highlight=False)

    console.rule(f"python {shown}")
    command = [sys.executable, str(report.path)]
    env = environment.for_judge()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    console.out(done.stdout.rstrip(), highlight=False)
    status = f"exit status {done.returncode} (1 while the bug is there, 0 once it is gone)"
    console.out(status, style="dim", highlight=False)
    if done.returncode != 1:
        raise MinidbgError(
            f"the demo's repro ended with status {done.returncode}, not 1: {done.stderr[-2000:]}"
        )

    what_next(console, report.path)
    return report


def what_next(console: Console, repro: Path) -> None:
    """The commands that one may try now. pytest is no dependency: where missing, that is said."""
    needs = "" if importlib.util.find_spec("pytest") else "; first: pip install pytest"
    console.rule("what next")
    commands = {
        f"minidbg show {repro.stem}": "what is known of the failure",
        f"pytest {display_path(repro)}": f"the script is a test too{needs}",
        "minidbg run YOUR_PROGRAM.py": "each torch.compile of yours wrapped; more: minidbg help",
    }
    for command, what in commands.items():
        console.out(f"{command:<{len(display_path(repro)) + 8}} # {what}", highlight=False)


def failure_of_program() -> Exception:
    os.environ.update(SETTINGS)
    try:
        runpy.run_path(str(DEMO_PROGRAM), run_name="__main__")
    except Exception as error:  # noqa: BLE001 - any failure of the program is the thing to show
        return error
    raise MinidbgError(
        "the demo's program did not fail; 'minidbg doctor' and 'minidbg config' show what may "
        "keep it from failing"
    )


def print_python(console: Console, source: str) -> None:
    """Highlighted for a dark or light terminal, in lines to copy: the terminal breaks them."""
    syntax = Syntax("", "python", theme="ansi_dark", background_color="default")
    console.print(syntax.highlight(source.rstrip()), soft_wrap=True)
