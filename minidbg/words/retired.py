"""Settings, options and commands' words that minidbg had and has no more: what to do instead, one sentence each.

Each is refused with its sentence, never ignored and never taken for something else. A row stays as long as somebody may have the old
word in a file; a test goes through them.
"""

from __future__ import annotations

import re

DATA_INSTEAD = (
    "'minidbg show REPRO --json' and 'minidbg report REPRO --json' give the data for a form of your own"
)
SETTINGS = {
    "workers": "it went: questions are always asked in forks of an interpreter of minidbg's own, never of the program; leave it out",
    "stages": "it went: 'minidbg stages REPRO' finds out the guilty stage when it is asked, and 'minidbg report' does; leave it out",
    "templates": f"templates of one's own went; {DATA_INSTEAD}",
}
"""By the setting's name, in a call, a file, or a variable ``MINIDBG_NAME``."""
OPTIONS = {
    ("export", "--standalone"): (
        "it went: a script judges itself in a few lines, and where they do not do it asks minidbg; 'minidbg export REPRO' "
        "writes that, and 'minidbg check REPRO' judges any"
    ),
    ("export", "--template"): f"it went; 'minidbg report REPRO' writes the bug report, and {DATA_INSTEAD}",
}
"""By command and option; of a short option the long name."""
SHORT = {("export", "-t"): "--template"}

HISTORY_INSTEAD = (
    "the file 'history.sqlite' in the .minidbg of a repro folder is the whole history once 'minidbg watch' has ended: keep "
    "that in CI's cache, and merge others with 'minidbg history import OTHER.sqlite'"
)
COMMANDS = {("history", "export"): f"it went; {HISTORY_INSTEAD}"}
"""By group and command."""
EXPORTED_HISTORY = f"histories in JSON went; {HISTORY_INSTEAD}"


def is_exported_history(head: bytes) -> bool:
    """Whether a file that begins with ``head`` is what ``history export`` of an earlier version wrote, compressed or not."""
    return head.startswith((b"{", b"\x1f\x8b"))


RECIPES = (
    "recipes (desktop, slack:, matrix:, webhook:, github:) went; on_flip is a shell command that gets flips as JSON Lines on stdin, "
    "and 'minidbg help watch' shows one for a chat, a desktop and a GitHub summary"
)


def is_recipe(text: str) -> bool:
    """Whether an entry of ``on_flip`` is one of an earlier version, which a shell must not run by mistake."""
    return text == "desktop" or re.match(r"(slack|matrix|webhook|github):|\w+:https?://", text) is not None


def of_setting(name: str) -> str | None:
    """What to do instead of the setting ``name``; None for a name that minidbg never had."""
    return SETTINGS.get(name)


def of_command(group: str, command: str) -> str | None:
    """What to do instead of ``minidbg GROUP COMMAND``; None for what it never had."""
    return COMMANDS.get((group, command))


def of_option(command: str, option: str) -> str | None:
    """What to do instead of ``option`` of ``minidbg COMMAND``, as ``--name`` or ``-n``; None for what it never had."""
    return OPTIONS.get((command, SHORT.get((command, option), option)))
