"""Whether a run shows the failure: run, compared with every legal run of eager, judged."""

from minidbg.judge.signature import signature_of

__all__ = ["signature_of"]
