"""Programs and what must come out of them: whatever version of minidbg makes of a row is held against what is written down.

Nothing here imports more of minidbg than its public names and its command, so that every version can be asked.
"""
