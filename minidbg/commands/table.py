"""Every command: the one place outside ``extras/`` that names an extra.

A module is imported when it is needed, so a command's module imports torch, or anything slow,
inside its functions only. To add a command, write it in a file of this folder, or of an extra, and
name it in ``SECTIONS`` and in README.
"""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "From a failure to a repro": {
        "run": "minidbg.commands.reducing:run",
        "reduce": "minidbg.commands.reducing:reduce",
        "demo": "minidbg.commands.about:demo",
    },
    "Before the model breaks": {
        "hunt": "minidbg.extras.hunt.commands:hunt",
        "nodes": "minidbg.nodes.command:nodes",
    },
    "Repros": {
        "list": "minidbg.commands.watching:list_repros",
        "show": "minidbg.commands.showing:show",
        "report": "minidbg.commands.showing:report",
        "check": "minidbg.commands.showing:check",
        "stages": "minidbg.commands.showing:stages",
    },
    "Watching": {
        "watch": "minidbg.commands.watching:watch",
        "history": "minidbg.commands.watching:history",
        "bisect": "minidbg.commands.watching:bisect",
        "worker": "minidbg.extras.cluster.commands:worker",
    },
    "This installation": {
        "config": "minidbg.commands.showing:config",
        "doctor": "minidbg.commands.about:doctor",
        "help": "minidbg.commands.about:help_topic",
    },
}
"""Heading in ``minidbg --help`` -> command -> ``module:attribute``."""

COMMANDS: Mapping[str, str] = {
    name: where for commands in SECTIONS.values() for name, where in commands.items()
}

WATCH: Mapping[str, str] = {
    "cluster": "minidbg.extras.cluster.commands:pool_of",
    "serve": "minidbg.extras.page:PageServer",
}
"""Option of ``watch`` -> what turns its value into a pool of machines, or the page."""
