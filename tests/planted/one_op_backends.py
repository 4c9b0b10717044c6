"""Backends of ``one_op`` that a command line can name."""

from one_op import on_op

softmax_off = on_op("softmax", "values")
