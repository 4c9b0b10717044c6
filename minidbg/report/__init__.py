"""What people read about a repro: at a glance, as a bug report, as a page, in other forms."""

from minidbg.report.glance import glance
from minidbg.report.story import Story, find_script, story_of

__all__ = ["Story", "find_script", "glance", "story_of"]
