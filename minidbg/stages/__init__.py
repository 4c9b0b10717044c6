"""Which stage of compiling a repro's failure belongs to: found out after the repro was announced, kept in its header."""

from minidbg.stages.finding import find_in_background, find_stages, start_in_background
from minidbg.stages.report import StageReport, keep_stages, stages_of

__all__ = [
    "StageReport",
    "find_in_background",
    "find_stages",
    "keep_stages",
    "stages_of",
    "start_in_background",
]
