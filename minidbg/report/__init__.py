"""What people read about a repro: its details, as a summary or as a bug report, and its stages."""

from minidbg.report.details import ReproDetails, repro_details, summary

__all__ = ["ReproDetails", "summary", "repro_details"]
