"""What tests of several folders share: programs as people start them, daemons, cases that travel, the table of constructs.

Backends with one bug each are not in here: repro scripts name them by their module (``planted_backends:raises_on_relu``), so
they are top-level modules of ``PLANTED``, the one folder that pyproject.toml puts on the path of tests.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PLANTED = TESTS / "planted"
"""On the ``PYTHONPATH`` of a child, it lets the child import the backends that its program or its repro names."""
