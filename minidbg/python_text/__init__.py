"""Python's own text: read, quoted, run as a module."""
