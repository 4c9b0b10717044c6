"""FX graphs: written to source, read back, copied, measured, edited."""

from minidbg.graphs.copying import NoGraph, capture_by_dynamo, copy_graph_module
from minidbg.graphs.size import call_nodes, canonical_text
from minidbg.graphs.source import ModuleSource, instantiate, write_module

__all__ = [
    "ModuleSource",
    "NoGraph",
    "call_nodes",
    "canonical_text",
    "capture_by_dynamo",
    "copy_graph_module",
    "instantiate",
    "write_module",
]
