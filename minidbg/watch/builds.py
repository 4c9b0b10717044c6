"""The build before a sweep."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from minidbg.history import History
from minidbg.watch import events
from minidbg.watch.announce import Announcer
from minidbg.watch.watched import Mark, Watched
from minidbg.workers.build import Build, Built


@dataclass(slots=True)
class Builds:
    """When the build command runs, and what its end means for sweeps."""

    listener: Callable[[Built], None]
    watched: Watched
    history: History
    announce: Announcer
    current: Build | None = None
    repeated: bool = False
    """Whether the build was begun once more because of an edit under it."""

    def begin(self) -> bool:
        command = self.watched.settings.build
        if not command or not self.watched.needs_build:
            return False
        self.watched.mark(Mark.BUILD)
        self.watched.marks.pop(Mark.BUILT, None)
        self.current = Build(command, self.watched.settings.folder, self.listener)
        self.announce(events.BuildStarted(command))
        return True

    def ended(self, message: Built) -> bool:
        """Hear of a build; whether it went well. A file edited under it may have been missed: then another one is needed, once."""
        if message.build is not self.current:
            return False
        self.current = None
        self.watched.look(everywhere=True)
        seconds = round(message.seconds, 3)
        if message.status != 0:
            self.watched.mark(Mark.BUILD_FAILED)
            self.announce(events.BuildFailed(message.status, seconds, message.output, message.error))
            number = self.history.start_sweep(time.time(), code=self.watched.snapshot.digest(), files=[])
            self.history.end_sweep(number, time.time(), "build_failed")
            return False
        self.watched.marks.pop(Mark.BUILD_FAILED, None)
        self.announce(events.BuildFinished(seconds))
        edited = set(self.watched.changed_since(Mark.BUILD)) - self.watched.always
        self.repeated = bool(edited) and not self.repeated
        if not self.repeated:
            self.watched.mark(Mark.BUILT)
        return True

    def cancel(self) -> None:
        if self.current is not None:
            self.current.cancel()
            self.current = None
