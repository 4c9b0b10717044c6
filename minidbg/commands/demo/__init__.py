"""The program of ``minidbg demo``: a transformer, a backend with a bug, and one line of minidbg."""
