"""Searches a backend for failures before a program meets them: torch's own operator samples."""
