"""Wraps a backend: transparent until it fails, then a case, a report, the user's own exception."""

from minidbg.wrapper.process import Report as Report
from minidbg.wrapper.process import Stats as Stats
from minidbg.wrapper.process import report_of as report_of
from minidbg.wrapper.process import stats as stats
from minidbg.wrapper.wrapper import entry_point as entry_point
from minidbg.wrapper.wrapper import wrap as wrap
from minidbg.wrapper.wrapper import wrap_compiler as wrap_compiler
