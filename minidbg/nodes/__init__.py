"""``minidbg nodes``: what a backend computes node by node, beside eager, a row for each.

``command`` is the command, ``walk`` asks children for rows, ``child`` makes them there, ``row`` is
a row.
"""
