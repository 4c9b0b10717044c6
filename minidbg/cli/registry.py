"""Every command, and where it is: the one place where a command is registered.

A module is imported when its command runs or when help is printed, so it imports torch, or anything slow, inside
its functions only. To add a command, write it in a file of this folder, or of a room below, and name it here.
"""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "From a failure to a repro": {
        "run": "minidbg.cli.running:run",
        "reduce": "minidbg.cli.reducing:reduce",
        "demo": "minidbg.cli.about:demo",
    },
    "Repros": {
        "list": "minidbg.watch.commands:list_repros",
        "show": "minidbg.cli.showing:show",
        "report": "minidbg.cli.sharing:report",
        "export": "minidbg.cli.sharing:export",
        "check": "minidbg.cli.checking:check",
        "stages": "minidbg.cli.staging:stages",
    },
    "Watching": {
        "watch": "minidbg.watch.commands:watch",
        "status": "minidbg.watch.commands:status",
        "history": "minidbg.watch.commands:history",
        "accept": "minidbg.watch.commands:accept",
        "bisect": "minidbg.watch.commands:bisect",
    },
    "This installation": {
        "config": "minidbg.cli.config:config",
        "doctor": "minidbg.cli.about:doctor",
        "completion": "minidbg.cli.about:completion",
        "help": "minidbg.cli.about:help_topic",
    },
}
"""Heading in ``minidbg --help`` -> command -> ``module:attribute``."""

PLACES: Mapping[str, str] = {
    name: place for commands in SECTIONS.values() for name, place in commands.items()
}
