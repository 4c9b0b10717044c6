"""What people read about a repro: at a glance, as a bug report, in other forms."""

from minidbg.report.story import Story, glance, story_of

__all__ = ["Story", "glance", "story_of"]
