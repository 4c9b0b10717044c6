"""Repro scripts: written, published, read, run."""

from minidbg.graphs.specs import Exactness
from minidbg.repro.files import discard, write, write_script
from minidbg.repro.folder import captures, drafts, file_name, folder_of, keep_capture, publish
from minidbg.repro.header import Header, read_header
from minidbg.repro.render import Script, render

__all__ = [
    "Exactness",
    "Header",
    "Script",
    "captures",
    "discard",
    "drafts",
    "file_name",
    "folder_of",
    "keep_capture",
    "publish",
    "read_header",
    "render",
    "write",
    "write_script",
]
