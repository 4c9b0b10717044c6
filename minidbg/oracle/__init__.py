"""Questions about a case, each answered in a child: one ``ask_all``, whatever the cases."""

from minidbg.oracle.ask import ask as ask
from minidbg.oracle.ask import ask_all as ask_all
from minidbg.oracle.ask import forked_from as forked_from
from minidbg.oracle.ask import taken_device as taken_device
from minidbg.oracle.ask import unless_the_machine_failed as unless_the_machine_failed
from minidbg.oracle.execute import execute as execute
from minidbg.oracle.parcel import packed as packed
from minidbg.oracle.parcel import pickled_for_children as pickled_for_children
from minidbg.oracle.parcel import unpacked as unpacked
from minidbg.oracle.parcel import warmup_for as warmup_for
