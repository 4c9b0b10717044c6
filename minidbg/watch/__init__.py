"""The daemon that runs the repros again on each change of their backends."""
