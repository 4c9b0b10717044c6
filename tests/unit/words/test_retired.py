"""What minidbg had and has no more is refused with what to do instead: in a call, a file, a variable and on the command line."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

import minidbg
from minidbg.commands.root import cli, main
from minidbg.commands.table import COMMANDS
from minidbg.words import retired, settings
from minidbg.words.errors import BadSetting


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
    with pytest.raises(SystemExit) as ended:
        main([command, option, "anything"])
    assert ended.value.code == 125
    instead = retired.of_option(command, option)
    assert instead is not None
    assert " ".join(capsys.readouterr().err.split()) == " ".join(
        f"minidbg {command}: {option}: {instead}".replace("; ", " ", 1).split()
    )
    assert command in COMMANDS
    context = click.Context(cli)
    found = cli.get_command(context, command)  # type: ignore[attr-defined]
    assert found is None or option not in {name for one in found.params for name in one.opts}
