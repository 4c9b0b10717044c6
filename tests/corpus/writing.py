"""Whether what comes out is written down, in place of being compared: ``MINIDBG_WRITE_CORPUS=1``, which no child is to take for a setting."""

from __future__ import annotations

import os

WRITES = bool(os.environ.pop("MINIDBG_WRITE_CORPUS", ""))
