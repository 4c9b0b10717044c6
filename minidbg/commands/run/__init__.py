"""``minidbg run``: an unmodified program, each ``torch.compile`` wrapped, and what a death leaves.

Nothing is imported here: ``run.inside`` is imported while torch itself is still being imported.
"""
