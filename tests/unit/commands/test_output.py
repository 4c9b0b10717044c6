"""How every command behaves: errors in two lines, statuses, -q and -v, NO_COLOR, help, completion."""

from __future__ import annotations

import logging
from pathlib import Path

import click
import pytest
import torch
from wrong_results import computes_in_bfloat16

import minidbg
from minidbg import commands
from minidbg.commands import output
from minidbg.commands.root import cli as root
from minidbg.commands.table import COMMANDS


def status_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        commands.main(list(arguments))
    return int(str(ended.value.code))


@pytest.fixture(autouse=True)
def _plain_logger() -> object:
    logger = logging.getLogger("minidbg")
    before = logger.level, list(logger.handlers), logger.propagate
    yield None
    logger.level, logger.handlers[:], logger.propagate = before[0], before[1], before[2]
    output.VERBOSITY.set(0)


def test_a_request_that_cannot_be_met_ends_in_two_lines_and_status_125(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "no_repro.py"
    script.write_text("x = 1\n")
    assert status_of("show", str(script)) == 125
    said = capsys.readouterr()
    assert said.out == ""
    what, todo = said.err.splitlines()
    assert str(script) in what
    assert "minidbg list" in todo


def test_an_unknown_command_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("lst") == 125
    assert capsys.readouterr().err == "minidbg: no command named 'lst'\n  did you mean 'list'?\n"


@pytest.mark.parametrize(
    "arguments", [("check",), ("check", "--devise", "cpu"), ("reduce", "--max-calls", "0")]
)
def test_a_usage_error_names_the_command_and_its_help(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(*arguments) == 125
    what, todo = capsys.readouterr().err.splitlines()
    assert what.startswith(f"minidbg {arguments[0]}: ")
    assert todo == f"  see: minidbg {arguments[0]} --help"


def test_check_allows_what_a_backend_that_computes_in_a_lower_precision_gives(tmp_path: Path) -> None:
    model, inputs = torch.nn.Linear(8, 8), (torch.ones(2, 8),)
    script = str(minidbg.save_repro(model, inputs, computes_in_bfloat16, tmp_path / "r.py"))
    assert status_of("check", script, "--tolerances", "bfloat16") == 0


def test_an_unexpected_exception_is_told_in_two_lines_and_is_never_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An uncaught traceback exits with 1, which means that a repro reproduces."""

    @click.command("demo")
    def broken() -> None:
        raise KeyError("nobody expects this")

    monkeypatch.setattr("minidbg.commands.about.demo", broken)
    assert status_of("demo") == 125
    what, todo = capsys.readouterr().err.splitlines()
    assert "KeyError: 'nobody expects this'" in what
    assert "-v" in todo
    assert status_of("demo", "-v") == 125
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_a_first_sentence_and_q_and_v(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(name, "--help") == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: minidbg {name}")
    command = root.get_command(click.Context(root), name)
    assert (command.help or "").split("\n")[0].endswith(".")
    options = {one for parameter in command.params for one in parameter.opts}
    assert {"-q", "-v"} <= options


def test_no_description_of_a_command_is_cut_off_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert status_of() == 0
    listed = capsys.readouterr().out.partition("From a failure")[2].splitlines()
    assert len(listed) > len(COMMANDS)
    assert [line for line in listed if line.endswith("...") or len(line) > 80] == []


def test_no_color_takes_the_colours_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert output.colour() is None
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.colour() is False


def test_quiet_drops_notes_and_keeps_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output.VERBOSITY.set(-1)
    output.note("a remark")
    assert capsys.readouterr().err == ""
    assert status_of("reduce", "-q", str(tmp_path / "nothing.py")) == 125
    assert capsys.readouterr().err != ""


def test_verbose_logs_our_events_and_touches_no_other_logger(capsys: pytest.CaptureFixture[str]) -> None:
    root_handlers = list(logging.getLogger().handlers)
    with pytest.raises(SystemExit):
        commands.main(["-v", "help", "limits"])
    logging.getLogger("minidbg").info("minidbg: %s nodes", 3)
    assert "minidbg: 3 nodes" in capsys.readouterr().err
    assert logging.getLogger().handlers == root_handlers


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_completes_a_shell_is_printed_by_click(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_MINIDBG_COMPLETE", f"{shell}_source")
    assert status_of() == 0
    assert f"_MINIDBG_COMPLETE={shell}_complete" in capsys.readouterr().out


TAKES_A_REPRO = {
    "show": (), "stages": (), "report": (), "reduce": (), "check": (),
    "bisect": ("GOOD", "BAD"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKES_A_REPRO)
def test_each_command_about_a_repro_takes_a_part_of_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINIDBG_DIR", str(tmp_path))
    (tmp_path / "compile_relu_ab12cd.py").write_text("")
    command = root.get_command(click.Context(root), name)
    context = command.make_context(name, [*TAKES_A_REPRO[name], "relu_ab"])
    found = {
        value for one in context.params.values() for value in (one if isinstance(one, tuple) else (one,))
    }
    assert tmp_path / "compile_relu_ab12cd.py" in found
    assert status_of(name, *TAKES_A_REPRO[name], "tanh") == 125
    assert "no repro's name contains 'tanh'" in capsys.readouterr().err
    assert status_of(name, *TAKES_A_REPRO[name], "relu.py") == 125
    assert "relu.py: no such file" in capsys.readouterr().err
