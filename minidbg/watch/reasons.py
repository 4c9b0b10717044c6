"""Why there is to be a sweep: the code differs from what was swept last, or repros were asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from minidbg.watch.snapshot import Root, Snapshot
from minidbg.watch.watched import Watched


@dataclass(slots=True)
class Reasons:
    """What has been swept of the code in ``watched``, and what is to run although the code is the same."""

    watched: Watched
    swept: Snapshot | None = None
    """The code of the last whole sweep that was completed; None when all repros are to run."""
    due: set[str] = field(default_factory=set)
    """Repros that are to run although the code has not changed."""
    again: bool = False
    """Whether all repros were asked for while a sweep was running."""
    compared: tuple[Snapshot | None, Snapshot | None, tuple[str, ...]] = (None, None, ())
    """The last comparison: it is asked for at every turn of the daemon's loop."""

    def wanted(self, repros: Collection[str]) -> bool:
        """Whether there is a reason for a sweep of ``repros``."""
        return self.swept is None or not self.due.isdisjoint(repros) or bool(self.changed_files())

    def changed_files(self) -> tuple[str, ...]:
        """The watched files that differ from the last completed sweep."""
        if self.swept is None:
            return ()
        now, then, found = self.compared
        if now is not self.watched.snapshot or then is not self.swept:
            now, then = self.watched.snapshot, self.swept
            found = now.changes_since(then)
            self.compared = now, then, found
        return found

    def ask_for(self, names: Iterable[str]) -> None:
        """Run these repros."""
        self.due |= set(names)

    def ask_for_all(self, *, during_sweep: bool) -> None:
        """Run every repro, changed or not."""
        self.swept, self.again = None, during_sweep

    def take_due(self, repros: Collection[str], *, whole: bool) -> set[str]:
        """The repros to run now; of those that were asked for, none is any more."""
        names = set(repros) if whole else self.due & set(repros)
        self.due.clear()
        return names

    def swept_whole(self, base: Snapshot, *, edited: bool) -> None:
        """A whole sweep of ``base`` has ended; ``edited``: the code changed meanwhile, so that it judged too little."""
        self.swept = None if edited or self.again else base
        self.again = False

    def adopt_roots(self, roots: Iterable[Root], always: Iterable[str]) -> bool:
        """Watch other roots. What is watched for the first time has not changed; whether anything is new."""
        before = self.watched.snapshot
        if not self.watched.set_roots(tuple(roots), always):
            return False
        self.watched.look(everywhere=True)
        after = self.watched.snapshot.files
        if self.swept is not None:
            known = {
                path: entry
                for path, entry in self.swept.files.items()
                if path in after or path in before.files
            }
            known |= {path: entry for path, entry in after.items() if path not in before.files}
            gone = before.files.keys() - after.keys()
            self.swept = Snapshot({path: entry for path, entry in known.items() if path not in gone})
        return True
