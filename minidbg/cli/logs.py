"""Logging for the command line. As a library minidbg configures nothing: only a command with -v or -q comes here."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structlog.typing import Processor


def configure(verbosity: int) -> None:
    """Send what the logger ``minidbg`` gets to stderr; other loggers, the root included, stay as they are.

    ``verbosity``: -1 and less errors only, 1 what is done, 2 and more everything.
    """
    import structlog

    from minidbg.cli.manners import colour

    logger = logging.getLogger("minidbg")
    logger.setLevel(logging.ERROR if verbosity < 0 else logging.DEBUG if verbosity > 1 else logging.INFO)
    for handler in [one for one in logger.handlers if getattr(one, "of_the_command_line", False)]:
        logger.removeHandler(handler)
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
        structlog.stdlib.PositionalArgumentsFormatter(),
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.of_the_command_line = True  # type: ignore[attr-defined]  # how it is found again
    colours = colour() is not False and sys.stderr.isatty()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processor=structlog.dev.ConsoleRenderer(colors=colours), foreign_pre_chain=shared
        )
    )
    logger.addHandler(handler)
    logger.propagate = False
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
