"""The page of ``watch``: a file, or served beside the daemon."""
