"""The oracle: runs a case, compares with eager, judges."""

from minidbg.oracle.execute import execute
from minidbg.oracle.signature import signature_of

__all__ = ["execute", "signature_of"]
