"""``load_by_path``: the one function of this room whose source text is part of a repro script."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def load_by_path(path: str, name: str = "", package: str = "") -> "ModuleType":
    """The module of the script at ``path``, loaded once per process; its ``__main__`` block does not run.

    ``package`` is what its relative imports start from. Its folder joins the end of ``sys.path``.
    Raises ModuleNotFoundError when the file is not here.
    """
    import hashlib
    import importlib.util
    import os
    import re
    import sys

    stem = re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0])
    name = name or f"{stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    main = sys.modules["__main__"]
    if os.path.abspath(getattr(main, "__file__", None) or "") == path:
        return main
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise ModuleNotFoundError(f"no script at {path}", name=stem, path=path)
    if os.path.dirname(path) not in sys.path:
        sys.path.append(os.path.dirname(path))
    module = importlib.util.module_from_spec(spec)
    if package:
        importlib.import_module(package)
        module.__package__, module.__spec__ = package, None
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
