"""What ``minidbg demo`` prints around its program: the bug, the failure, the reduction, the script, its run."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax

from minidbg.words import environment
from minidbg.words.errors import MinidbgError
from minidbg.words.script_header import DIVIDER
from minidbg.wrapper import Report, report_of

PROGRAM = Path(__file__).with_name("program.py")


def run(console: Console) -> Report:
    """Play the demo in the current folder; what became of its failure.

    Raises MinidbgError when it did not end with a repro that fails.
    """
    console.rule("the backend under test")
    source = PROGRAM.read_text()
    function = source[source.index("def tiny_fuser") : source.index("class Block")].rstrip()
    console.print(python(function))

    console.rule("the program: torch.compile(model, backend=minidbg.wrap(tiny_fuser))")
    error = failure_of_program()
    console.print(f"{type(error).__name__}: {error}", style="red", markup=False, highlight=False)
    report = report_of(error)
    if report is None or report.path is None:
        raise MinidbgError(
            f"the demo's failure left no verified repro: {report.line if report else 'no report'}"
        )
    console.print(report.line, style="bold", markup=False)

    console.rule(str(report.path))
    script = report.path.read_text()
    console.print(python(script.split(DIVIDER)[0].rstrip()))

    command = [sys.executable, str(report.path)]
    console.rule(f"python {report.path}")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment.for_judge())
    console.print(done.stdout.rstrip(), markup=False, highlight=False)
    console.print(f"exit status {done.returncode} (1 = reproduces)", style="dim")
    console.print("'pytest REPRO' runs it as a test, which needs pytest: pip install pytest", style="dim")
    if done.returncode != 1:
        raise MinidbgError(
            f"the demo's repro ended with status {done.returncode}, not 1: {done.stderr[-2000:]}"
        )
    return report


def failure_of_program() -> Exception:
    """Run the program as ``__main__`` and return what its backend made torch.compile raise."""
    try:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    except Exception as error:  # noqa: BLE001 - any failure of the program is the thing to show
        return error
    raise MinidbgError(f"the demo program did not fail: {PROGRAM}")


def python(source: str) -> Syntax:
    """``source`` with highlighting, for a terminal of either brightness."""
    return Syntax(source, "python", theme="ansi_dark", background_color="default", word_wrap=True)
