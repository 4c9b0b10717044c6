"""``Trail``: what has been collected on the way to an expression that gives an object back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minidbg.case import BackendRef
from minidbg.references.homes import is_foreign, top_level
from minidbg.references.installed import installed


class Trail:
    """Imports and their surroundings, each once and in order, while the parts of a backend are being found.

    Names are given out so that two objects of one name from two modules stay apart.
    """

    def __init__(self, start: BackendRef | None = None) -> None:
        self.setup: dict[str, None] = dict.fromkeys(start.setup if start else ())
        self.embedded: str = start.embedded if start else ""
        self.files: dict[str, None] = dict.fromkeys(start.files if start else ())
        self.paths: dict[str, None] = dict.fromkeys(start.paths if start else ())
        self.requirements: dict[str, None] = dict.fromkeys(start.requirements if start else ())
        self.remarks: dict[str, None] = dict.fromkeys(start.remarks if start else ())
        self.modules: dict[str, None] = dict.fromkeys(start.modules if start else ())
        self._names: dict[str, tuple[str, str]] = {}

    def name_for(self, module: str, name: str) -> str:
        """A name in the script for ``name`` of ``module``: the same each time, no other object's."""
        wanted, number = name, 1
        while self._names.setdefault(wanted, (module, name)) != (module, name):
            number += 1
            wanted = f"{name}_{number}"
        return wanted

    def import_from(self, module: str, name: str) -> str:
        """``from module import name``; what it is called in the script."""
        known = self.name_for(module, name)
        renamed = f" as {known}" if known != name else ""
        self.setup[f"from {module} import {name}{renamed}"] = None
        self.uses(module)
        return known

    def import_module(self, module: str, why: str = "") -> None:
        """``import module  # why``, unless that module is imported already."""
        plain = f"import {module}"
        if not any(line == plain or line.startswith(plain + " ") for line in self.setup):
            self.setup[f"{plain}  # {why}" if why else plain] = None
        self.uses(module)

    def uses(self, module: str) -> None:
        """``module`` is part of the backend: what it needs to be installed, and what there is to watch."""
        top = top_level(module)
        if top == "torch" or is_foreign(module):
            self.modules[top] = None
        if is_foreign(module):
            self.requires(module)

    def requires(self, module: str) -> None:
        """Note what a fresh process needs in order to import ``module``."""
        found = installed(module)
        if found.requirement:
            self.requirements[found.requirement] = None
        if found.remark:
            self.remarks[found.remark] = None
        self.paths |= dict.fromkeys(found.paths)

    def reference(
        self, name: str, expression: str, options: Mapping[str, Any], mode: str | None
    ) -> BackendRef:
        """All of it as one value."""
        return BackendRef(
            name=name,
            expression=expression,
            setup=tuple(self.setup),
            embedded=self.embedded,
            files=tuple(self.files),
            paths=tuple(self.paths),
            options=dict(options),
            mode=mode,
            requirements=tuple(self.requirements),
            remarks=tuple(self.remarks),
            modules=tuple(self.modules),
        )
