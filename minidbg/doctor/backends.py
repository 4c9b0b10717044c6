"""The backends of this environment, each imported in a child: an import that crashes is a finding, not the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata

from minidbg import _torch, workers
from minidbg.doctor.finding import Finding, fine, missing

GROUP = "torch_dynamo_backends"
IMPORT_SECONDS = 120.0

PROBE = """
import sys, json
from importlib import metadata
name = sys.argv[1]
(entry,) = [one for one in metadata.entry_points(group="torch_dynamo_backends") if one.name == name][:1]
try:
    found = entry.load()
    print(json.dumps({"callable": callable(found)}))
except BaseException as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
"""


def backends() -> Iterator[Finding]:
    """Those that torch registers itself, then each that an installed distribution brings."""
    entries = {entry.name: entry for entry in metadata.entry_points(group=GROUP)}
    registered = [name for name in _torch.known_backends() if name not in entries]
    yield fine("backends", f"registered: {', '.join(registered)}")
    for name, entry in sorted(entries.items()):
        yield examined(name, entry)


def examined(name: str, entry: metadata.EntryPoint) -> Finding:
    """The backend of an entry point, loaded in a process of its own."""
    dist = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
    what = f"{name} = {entry.value}{dist}"
    advice = f"torch.compile(backend={name!r}) fails the same way: mend or remove that distribution"
    ended = workers.run_python(["-c", PROBE, name], seconds=IMPORT_SECONDS)
    if ended.timed_out:
        return missing("backend", f"{what}: its import did not end within {IMPORT_SECONDS:g} s", advice)
    try:
        answer = json.loads(ended.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        how = f"signal {ended.signal}" if ended.signal else f"exit status {ended.exit_status}"
        return missing("backend", f"{what}: the process that imported it died ({how})", advice)
    if "error" in answer:
        return missing("backend", f"{what}: {answer['error']}", advice)
    if not answer["callable"]:
        return missing("backend", f"{what}: is no callable", advice)
    return fine("backend", what)
