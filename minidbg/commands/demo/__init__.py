"""The program that ``minidbg demo`` runs: a transformer, a backend with a bug, and one line of minidbg."""
