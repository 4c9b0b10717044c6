"""What this machine has of what minidbg needs, and what to do about the rest."""

from minidbg.doctor.finding import Finding, State
from minidbg.doctor.rounds import examine

__all__ = ["Finding", "State", "examine"]
