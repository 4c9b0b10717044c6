"""The only importer of torch's private names. Each function says in which versions its names were seen."""

from __future__ import annotations
