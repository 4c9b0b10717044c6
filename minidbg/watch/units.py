"""Service files that keep ``minidbg watch`` running for a person: a systemd user unit, a launchd agent."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

SYSTEMD = """\
# Save as ~/.config/systemd/user/minidbg-{name}.service, then: systemctl --user enable --now minidbg-{name}
[Unit]
Description=minidbg watch in {folder}

[Service]
WorkingDirectory={folder}
{environment}
ExecStart={command}
Restart=on-failure
RestartSec=10
KillMode=mixed
TimeoutStopSec=20
Nice=5

[Install]
WantedBy=default.target
"""

LAUNCHD = """\
<?xml version="1.0" encoding="UTF-8"?>
<!-- Save as ~/Library/LaunchAgents/minidbg.{name}.plist, then: launchctl load ~/Library/LaunchAgents/minidbg.{name}.plist -->
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key><string>minidbg.{name}</string>
  <key>ProgramArguments</key>
  <array>
{arguments}
  </array>
  <key>WorkingDirectory</key><string>{folder}</string>
  <key>EnvironmentVariables</key><dict>{environment}</dict>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>
  <key>LowPriorityIO</key><true/>
</dict>
</plist>
"""


def unit(kind: str, arguments: Sequence[str], folder: Path) -> str:
    """The service file for ``minidbg`` with these arguments, run in ``folder``; ``kind`` is systemd or launchd."""
    command = [sys.executable, "-m", "minidbg", *arguments]
    # A backend that is only on PYTHONPATH must be found there too.
    variables = {"PATH": os.environ.get("PATH", os.defpath)}
    variables |= {name: os.environ[name] for name in ("PYTHONPATH", "MINIDBG_DIR") if os.environ.get(name)}
    if kind == "systemd":
        # systemd takes % for a specifier and $ for a variable
        quoted = shlex.join(command).replace("%", "%%").replace("$", "$$")
        return SYSTEMD.format(
            name=folder.name,
            folder=str(folder).replace("%", "%%"),
            command=quoted,
            environment="\n".join(
                f'Environment="{name}={escaped(value)}"' for name, value in variables.items()
            ),
        )
    lines = "\n".join(f"    <string>{escape(word)}</string>" for word in command)
    return LAUNCHD.format(
        name=escape(folder.name),
        folder=escape(str(folder)),
        arguments=lines,
        environment="".join(
            f"<key>{name}</key><string>{escape(value)}</string>" for name, value in variables.items()
        ),
    )


def escaped(value: str) -> str:
    """A value between systemd's double quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def without_option(arguments: Sequence[str], name: str) -> list[str]:
    """``arguments`` without the option ``name`` and its value, given as one word or two."""
    kept: list[str] = []
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word == name:
            skip = True
        elif not word.startswith(name + "="):
            kept.append(word)
    return kept
