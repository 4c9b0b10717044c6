"""``minidbg run``: an unmodified program with every ``torch.compile`` in it wrapped, and what is left of it if it dies.

Nothing is imported here: ``run.inside`` is imported while torch itself is still being imported.
"""
