"""The page of ``minidbg watch --serve``."""
