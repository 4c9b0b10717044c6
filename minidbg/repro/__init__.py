"""Repro scripts: written, published, read, run."""

from minidbg.repro.folder import (
    captures as captures,
    discard as discard,
    drafts as drafts,
    file_name as file_name,
    folder_of as folder_of,
    keep_capture as keep_capture,
    move_script as move_script,
    publish as publish,
    reduction_folder as reduction_folder,
    case_to_keep as case_to_keep,
    write as write,
)
from minidbg.repro.header import read_header as read_header
from minidbg.repro.loading import load as load
from minidbg.repro.render import (
    NOT_JUDGED_HERE as NOT_JUDGED_HERE,
    Form as Form,
    Script as Script,
    render as render,
)
from minidbg.repro.running import standby_plan as standby_plan, run as run, run_alone as run_alone
from minidbg.repro.selfcheck import NoShortForm as NoShortForm
from minidbg.codegen.inputs import Exactness as Exactness
