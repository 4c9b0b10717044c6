"""When a burst of events is over. No clock in here: each question brings its ``now``, in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from minidbg.watch.revisions import GitWork

STEPPING_QUIET_S = 3.0
"""A rebase applies its next commit sooner than this; one that is quiet for longer waits for a person."""
LOCKED_MAX_S = 60.0
"""A lock older than this was left by a git that died."""


@dataclass(slots=True)
class Debounce:
    """Collects the hinted paths of a burst until it has been quiet for ``quiet_s``, or goes on for ``max_wait_s``."""

    quiet_s: float = 0.2
    max_wait_s: float = 5.0
    first: float | None = None
    last: float = 0.0
    paths: dict[str, None] = field(default_factory=dict)
    lost: bool = False
    """Whether events were lost or too many to list: everything must be looked at."""

    LIMIT = 5_000

    def note(self, now: float, path: str | None) -> None:
        """An event for ``path`` has arrived; None when events were lost."""
        self.first = now if self.first is None else self.first
        self.last = now
        if path is None or len(self.paths) >= self.LIMIT:
            self.lost = True
        else:
            self.paths[path] = None

    def deadline(self, work: GitWork = GitWork.NONE) -> float | None:
        """When the burst will be over if nothing more arrives; None without a burst."""
        if self.first is None:
            return None
        if work is GitWork.LOCKED:
            return self.last + LOCKED_MAX_S
        if work is GitWork.STEPPING:
            return self.last + STEPPING_QUIET_S
        return min(self.last + self.quiet_s, self.first + self.max_wait_s)

    def is_due(self, now: float, work: GitWork = GitWork.NONE) -> bool:
        """Whether the burst is over."""
        deadline = self.deadline(work)
        return deadline is not None and now >= deadline

    def take(self) -> tuple[tuple[str, ...], bool]:
        """The burst's paths and whether some were lost; the next burst begins empty."""
        taken = tuple(self.paths), self.lost
        self.first, self.paths, self.lost = None, {}, False
        return taken
