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
Environment=PATH={path}
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
  <key>EnvironmentVariables</key><dict><key>PATH</key><string>{path}</string></dict>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>
  <key>LowPriorityIO</key><true/>
</dict>
</plist>
"""


def unit(kind: str, arguments: Sequence[str], folder: Path) -> str:
    """The service file for ``minidbg`` with these arguments, run in ``folder``; ``kind`` is systemd or launchd."""
    command = [sys.executable, "-m", "minidbg", *arguments]
    path = os.environ.get("PATH", os.defpath)
    if kind == "systemd":
        # systemd takes % for a specifier and $ for a variable
        quoted = shlex.join(command).replace("%", "%%").replace("$", "$$")
        return SYSTEMD.format(
            name=folder.name, folder=str(folder).replace("%", "%%"), command=quoted, path=path
        )
    lines = "\n".join(f"    <string>{escape(word)}</string>" for word in command)
    return LAUNCHD.format(
        name=escape(folder.name), folder=escape(str(folder)), arguments=lines, path=escape(path)
    )


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
