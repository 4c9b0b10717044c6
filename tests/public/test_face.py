"""face.txt is the face of today: a landing shows in its diff what users will notice."""

from __future__ import annotations

import click
import pytest
from face import ASKED, ELSEWHERE, FILE, face, parts_of

from minidbg.commands import cli

AGAIN = "write it with: python tests/public/face.py"


def test_names_commands_settings_and_events_are_those_of_the_file() -> None:
    written = parts_of(FILE.read_text(encoding="utf-8"))
    for part, text in parts_of(face("names", "commands", "settings", "events")).items():
        assert text.splitlines() == written[part].splitlines(), AGAIN


@pytest.mark.slow
def test_the_keys_of_each_command_are_those_of_the_file() -> None:
    written = parts_of(FILE.read_text(encoding="utf-8"))
    assert parts_of(face("keys"))["keys"].splitlines() == written["keys"].splitlines(), AGAIN


def test_each_command_with_json_is_asked_for_its_keys_or_named() -> None:
    context = click.Context(cli)
    named = {
        name
        for name in cli.list_commands(context)
        if any("--json" in one.opts for one in cli.get_command(context, name).params)  # type: ignore[union-attr]
    }
    assert named == {*ASKED, *ELSEWHERE}
