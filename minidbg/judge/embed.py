"""The judge as text for a standalone script, for the kind of failure that it shows.

A script that embeds it defines, above the text:

- the PEP 723 header, whose ``[tool.minidbg]`` table holds ``RunSpec.to_table()`` (and whatever else the writer wants);
- ``import torch``, and no name that the harness defines (``harness_names(kind)`` lists them);
- ``backend()``: runs the imports that register the backend and the graph's custom ops, device plugins first, and
  returns what ``torch.compile(backend=)`` takes. An ImportError is tried again with the header's ``paths`` on
  ``sys.path``, and then means 125. ``inputs`` and the model are used only after it.
- ``Repro``, a ``torch.nn.Module`` class (call path ``torch.compile``), or ``graph()``, which builds the
  ``fx.GraphModule`` (call path ``direct``);
- ``inputs(device)``: a tuple of fresh inputs at each call, the same values each time.

And below it:

    def test_repro():
        check_with_pytest(globals())

    if __name__ == "__main__":
        sys.exit(main(globals()))

``harness_imports(kind)`` are the import statements that the text needs; ``harness_source`` does not repeat them.
"""

from __future__ import annotations

import ast
import symtable
from functools import cache
from pathlib import Path

from minidbg.words.outcome import Kind
from minidbg.words.run_spec import CallPath

MARK = "# --- embedded from here ---\n"
ROOM = Path(__file__).parent


def parts_of(kind: str, call: str = CallPath.DIRECT) -> tuple[str, ...]:
    """The files of this room whose text a script of that kind and call path carries, in order."""
    extra = {
        Kind.ACCURACY: (
            "../torch_internals/memory.py",
            "snapshot.py",
            "arithmetic.py",
            "compare.py",
            "undefined.py",
            "precision.py",
            "agreement.py",
        ),
        Kind.CRASH: ("child.py",),
        Kind.HANG: ("child.py",),
    }
    direct = ("direct.py",) if call == CallPath.DIRECT else ()
    words = tuple(f"../words/{name}.py" for name in ("script_header", "literals", "outcome", "run_spec"))
    shared = (*words, "signature.py", "../torch_internals/thread_state.py")
    return (*shared, *extra.get(Kind(kind), ()), *direct, "harness.py", "script.py")


@cache
def harness_source(kind: str, call: str = CallPath.DIRECT) -> str:
    """The text to embed for a case of that kind: definitions only, no import of minidbg.

    What only direct calls need is left out for the other call path.
    """
    return "\n".join(body_of(ROOM / part) for part in parts_of(kind, call))


@cache
def harness_imports(kind: str, call: str = CallPath.DIRECT) -> tuple[str, ...]:
    """The import statements that ``harness_source(kind, call)`` needs, sorted, ``import torch`` among them."""
    found: set[str] = set()
    for part in parts_of(kind, call):
        for node in ast.parse((ROOM / part).read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom) and "minidbg" not in ast.unparse(node):
                found.add(ast.unparse(node))
    return tuple(sorted(found, key=lambda line: ("torch" in line, line)))


@cache
def harness_names(kind: str) -> frozenset[str]:
    """The global names that the text defines or imports: a script must not use them for anything else."""
    text = "\n".join([*harness_imports(kind), harness_source(kind)])
    symbols = symtable.symtable(text, "harness", "exec").get_symbols()
    return frozenset(one.get_name() for one in symbols if one.is_assigned() or one.is_imported())


def body_of(path: Path) -> str:
    """The file without its docstring, its imports and its remarks for linters."""
    text = path.read_text()
    if MARK in text:
        text = text.partition(MARK)[2]
    else:
        nodes = ast.parse(text).body
        last = max(
            i for i, node in enumerate(nodes) if i == 0 or isinstance(node, ast.Import | ast.ImportFrom)
        )
        text = "\n".join(text.splitlines()[nodes[last].end_lineno or 0 :])
    lines = (line.partition("  # noqa")[0].partition("  # type: ignore")[0] for line in text.splitlines())
    return "\n".join(lines).strip().replace("\n\n\n", "\n\n") + "\n"  # one blank line is enough down there
