"""A history carried between machines: what another ``history.sqlite`` holds is added to this one, by SQLite's ATTACH.

Numbers of sweeps mean nothing elsewhere. A sweep is the same one in two files when it began at the same time with the same code; a run
or a flip, when it has the same time, repro and device within a sweep. Merging a file again changes nothing, and the order in which
files are merged does not matter.
"""

from __future__ import annotations

import sqlite3
from dataclasses import asdict, replace
from pathlib import Path

from minidbg.history.records import State
from minidbg.history.store import DamagedHistory, History, known_version
from minidbg.words import retired
from minidbg.words.errors import MinidbgError
from minidbg.words.outcome import Verdict

# What is new, and where both files have a sweep, the words of the one that saw its end or learned its revisions.
SWEEPS = """
insert or replace into main.sweeps(id, started, code, ended, end, files, revisions)
select ours.id, theirs.started, theirs.code, theirs.ended, theirs.end, theirs.files, theirs.revisions
from other.sweeps theirs left join main.sweeps ours using(started, code)
where ours.id is null or (ours.revisions = '{}' and theirs.revisions != '{}')
    or (ours.end in ('running', 'interrupted') and theirs.end not in ('running', 'interrupted'))
order by theirs.started, theirs.id"""
TWINS = """
create temp table twins as select theirs.id as theirs, min(ours.id) as ours
from other.sweeps theirs join main.sweeps ours using(started, code) group by theirs.id"""
RUN = "repro, device, at, seconds, verdict, purpose, stale, script, environment, torch, outcome"
RUNS = f"""
insert into main.results(sweep, {RUN}) select ours, {RUN} from other.results join twins on theirs = sweep
where (ours, repro, device, at) not in (select sweep, repro, device, at from main.results) order by id"""
# As told: the other machine tells of its flips itself.
FLIPS = """
insert into main.flips(sweep, last_before, repro, device, at, kind, before, after, announced)
select one.ours, two.ours, repro, device, at, kind, before, after, 1
from other.flips join twins one on one.theirs = sweep left join twins two on two.theirs = last_before
where (one.ours, repro, device, at) not in (select sweep, repro, device, at from main.flips) order by id"""
# Both times are asked for, since the runs of long ago have been pruned.
SINCE = """
with alike as (select * from results where (repro, device, environment) = (:repro, :device, :environment)),
    flip as (select max(started) as at from flips join alike using(sweep, repro, device) join sweeps on sweeps.id = sweep
        where started <= :seen)
select min(at) from (select at from alike where (script, verdict, stale) = (:script, :verdict, 0) union select :since)
where at >= coalesce((select at from flip), 0)"""


def import_history(history: History, path: Path) -> dict[str, int]:
    """Merge the history at ``path``, which is only read: how much of it was new, or said more. Raises MinidbgError for another file."""
    with path.open("rb") as file:
        if retired.is_exported_history(file.read(2)):
            raise MinidbgError(f"{path}: {retired.EXPORTED_HISTORY}")
    ask = history.connection.execute
    try:
        ask("attach ? as other", (read_only(path),))
        try:
            version = known_version(history.connection, "other")
            if version == 0 or ask("pragma other.quick_check(1)").fetchone() != ("ok",):
                raise ValueError("it is empty or damaged")
            with history.connection:
                ask("begin")  # not immediate: an old SQLite would want to write to both
                return merge(history)
        finally:
            ask("detach other")
    except (sqlite3.Error, DamagedHistory, ValueError, TypeError, KeyError) as error:
        why = error.__cause__ if isinstance(error, DamagedHistory) else error  # which names our own file
        raise MinidbgError(
            f"{path} cannot be imported ({why}), and nothing was changed; update minidbg if a newer one wrote the file, else "
            "copy the history.sqlite in the .minidbg of its repro folder anew"
        ) from error


def read_only(path: Path) -> str:
    """The URI of a database that is not written to; nor is anything written beside it, where all of it is in the file."""
    file = path.resolve()
    return f"{file.as_uri()}?mode=ro{'' if Path(f'{file}-wal').exists() else '&immutable=1'}"


def merge(history: History) -> dict[str, int]:
    ask = history.connection.execute
    for (verdict,) in ask("select verdict from other.results union select after from other.flips"):
        Verdict(verdict)  # raises ValueError for one that a newer minidbg knows
    sweeps = ask(SWEEPS).rowcount
    ask(TWINS)
    runs, flips = ask(RUNS).rowcount, ask(FLIPS).rowcount
    ask("insert or ignore into main.environments select key, facts from other.environments")
    twins = dict(ask("select theirs, ours from twins"))
    ask("drop table twins")
    before = history.every_state()
    states = {(one.repro, one.device, one.environment): one for one in before}
    for one in history.every_state("other"):
        theirs = replace(one, last_sweep=twins.get(one.last_sweep))
        key = theirs.repro, theirs.device, theirs.environment
        states[key] = joined(history, states.get(key, theirs), theirs)
    verdicts = len({*states.values()} - {*before})
    for one in sorted(states.values(), key=lambda one: one.seen) if verdicts else ():
        history.put_state(one)  # in the order of time: the last one is the present state
    return {"sweeps": sweeps, "runs": runs, "flips": flips, "verdicts": verdicts}


def joined(history: History, ours: State, theirs: State) -> State:
    """The state seen last. It holds since its first run after the last flip, whichever file has them."""
    if ours == theirs:
        return ours
    newer = max(ours, theirs, key=lambda one: one.seen)
    (since,) = history.connection.execute(SINCE, asdict(newer)).fetchone()
    return replace(newer, since=newer.since if since is None else since)
