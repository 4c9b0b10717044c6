"""Repro scripts: written, published, read, run."""

from minidbg.repro.folder import (
    captures,
    discard,
    drafts,
    file_name,
    folder_of,
    keep_capture,
    move_script,
    neighbours,
    publish,
    reduction_folder,
    to_keep,
    write,
    write_script,
)
from minidbg.repro.header import Header, read_header
from minidbg.repro.loading import load
from minidbg.repro.render import NOT_JUDGED, Form, Script, render
from minidbg.repro.running import interpreter_ahead, run, run_alone
from minidbg.repro.selfcheck import NoShortForm
from minidbg.source.inputs import Exactness

__all__ = [
    "NOT_JUDGED",
    "Exactness",
    "Form",
    "Header",
    "NoShortForm",
    "Script",
    "captures",
    "discard",
    "drafts",
    "file_name",
    "folder_of",
    "interpreter_ahead",
    "keep_capture",
    "load",
    "move_script",
    "neighbours",
    "publish",
    "read_header",
    "reduction_folder",
    "render",
    "run",
    "run_alone",
    "to_keep",
    "write",
    "write_script",
]
