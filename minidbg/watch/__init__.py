"""The daemon that runs the repros again on each change of their backends: from a save to its
verdict, and what is changed where.

1. ``watched.py``: ``FileEvents`` says "rescan" once it is quiet: ``FilesChanged``, put into the
   inbox by ``daemon.py``: ``run_daemon``. There: the debounce, how soon and how often is rescanned.
2. ``daemon.py``: ``Daemon.run``, ``dispatch``, ``step``, one loop over one inbox. There: what each
   message makes the daemon do.
3. ``watched.py``: ``Watched.rescan``, ``wants_sweep``; ``files.py``: ``scan``. There: which files
   count, and when one has changed.
4. ``daemon.py``: ``begin_sweep`` (a job is a repro on a device), ``fill``; ``sweep.py``:
   ``Sweep.in_order``, ``next_run``. There: the order of jobs, and who gets a free slot.
5. ``runner.py``: ``Runner.submit``. There: how a repro, a canary (one op) and a build are run, and
   how long.
6. ``workers/client.py``: ``Scripts.submit``; what a fork does is in ``ARCHITECTURE.md``.
7. ``daemon.py``: ``run_ended``; ``files.py``: ``are_stale``; ``runner.py``: ``outcome_of_job``.
   There: whether a run counts.
8. ``sweep.py``: ``Sweep.saw``, held until ``saw_canary``; ``states.py``: ``decide``. There: when a
   flip is confirmed, what is flaky.
9. ``daemon.py``: ``publish``, stored and then told; ``events.py``: ``Judged``, ``Flipped``. There:
   a new event.
10. ``views.py``: ``Announcer``, then ``show`` of each view. There: who hears. A new key, and all
    that is drawn: ``terminal.py``.

A setting is added in ``settings.py``, and its option in ``commands/watching.py``. ``queries.py`` is
``list`` and ``history``;
``bisecting.py`` is ``bisect``; ``sources.py`` finds the trees of a backend; ``repros.py`` reads a
script without running it.
"""
