"""Imported first by each Python process under ``minidbg run``: this folder leads PYTHONPATH.

So the program is started as it would be without us, and so are the Python processes that it starts.
Nothing is done but to wait for torch's compiler to be imported. The ``sitecustomize`` that would be
here without us is run as well.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

TYPE_CHECKING = False  # typing itself is not imported into every process
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

HOOK_FOLDER = os.path.dirname(os.path.abspath(__file__))
COMPILER = "torch._dynamo.eval_frame"


class Watcher:
    """A finder that tells ``minidbg.commands.run.inside`` when torch's compiler is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != COMPILER:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader)  # type: ignore[assignment]  # has the methods
        return spec


class Loader:
    """The module's own loader, and a word to us when it is done."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self.own.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self.own
        self.own.exec_module(module)
        try:
            from minidbg.commands.run import inside

            inside.compiler_is_here(module)
        except Exception as trouble:  # noqa: BLE001 - the program goes on without us
            why = f"{type(trouble).__name__}: {trouble}"
            sys.stderr.write(f"minidbg: torch.compile is not wrapped ({why})\n")
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Watcher)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


def leave_no_trace() -> None:
    """Take this folder off sys.path, and run the sitecustomize behind it."""
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != HOOK_FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if "MINIDBG__RUN" in os.environ and "MINIDBG__JUDGING" not in os.environ:
    sys.meta_path.insert(0, Watcher())
leave_no_trace()
