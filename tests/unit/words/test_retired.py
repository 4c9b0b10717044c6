"""What minidbg had and has no more is refused with what to do instead: in a call, a file, a variable and on the command line."""

from __future__ import annotations

import gzip
from pathlib import Path

import click
import pytest

import minidbg
from minidbg.commands.root import cli, main
from minidbg.commands.table import COMMANDS
from minidbg.words import retired, settings
from minidbg.words.errors import BadSetting


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What ``minidbg ARGUMENTS``, which is refused, prints: its two lines as one."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 125
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", retired.SETTINGS)
class TestASettingThatWent:
    def test_in_a_call(self, name: str) -> None:
        with pytest.raises(BadSetting) as refused:
            minidbg.wrap("eager", **{name: "anything"})
        assert str(refused.value) == f"{name!r} (in the arguments): {retired.SETTINGS[name]}"

    def test_in_a_variable(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(f"MINIDBG_{name.upper()}", "anything")
        with pytest.raises(BadSetting, match="in the environment"):
            settings.load()

    def test_in_a_file(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "pyproject.toml").write_text(f'[tool.minidbg]\n{name} = "anything"\n')
        monkeypatch.chdir(tmp_path)
        with pytest.raises(BadSetting, match=r"pyproject.toml\):"):
            settings.load()

    def test_is_none_of_today(self, name: str) -> None:
        assert name not in settings.CONVERT


@pytest.mark.parametrize(("command", "option"), [*retired.OPTIONS, *retired.SHORT])
def test_an_option_that_went(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    instead = retired.of_option(command, option)
    assert instead is not None
    said = f"minidbg {command}: {option}: {instead}".replace("; ", " ", 1)
    assert told([command, option, "anything"], capsys) == said
    assert command in COMMANDS
    context = click.Context(cli)
    found = cli.get_command(context, command)  # type: ignore[attr-defined]
    assert found is None or option not in {name for one in found.params for name in one.opts}


@pytest.mark.parametrize(("group", "command"), retired.COMMANDS)
def test_a_command_that_went(group: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not taken for the name of a repro either."""
    said = f"minidbg {group}: {command}: {retired.COMMANDS[group, command]}".replace("; ", " ", 1)
    assert told([group, command, "history.json.gz"], capsys) == said
    found = cli.get_command(click.Context(cli), group)
    assert isinstance(found, click.Group)
    assert command not in found.commands


@pytest.mark.parametrize("name", ["old.jsonl", "history.json", "history.json.gz"])
def test_a_history_in_json_is_not_imported(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = b'{"minidbg_history":1,"sweeps":[],"results":[],"flips":[],"states":[],"environments":{}}'
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    said = f"minidbg: {tmp_path / name}: {retired.EXPORTED_HISTORY}".replace("; ", " ", 1)
    assert told(["history", "import", str(tmp_path / name), "--folder", str(tmp_path)], capsys) == said
