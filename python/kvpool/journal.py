"""Journals: record every operation of a pool or a manager, and replay them.

To record, pass a :class:`Journal` to ``BlockPool`` or ``CacheManager`` as ``journal``:

>>> import kvpool
>>> from kvpool.journal import Journal, replay_journal
>>> pool = kvpool.BlockPool(num_blocks=64, journal=Journal(ring_bytes=1 << 20))
>>> pool.release(pool.allocate(3))
>>> replay_journal(pool.journal.image())
JournalReport(operations=2, digests=0, difference=None)

The command ``kvpool journal`` works on journals, too. ``docs/journal.md`` describes the contents and
the costs of a journal.
"""

from kvpool._core.journal import (
    Journal,
    JournalDifference,
    JournalInfo,
    JournalReport,
    JournalStats,
    JournalView,
    ShrunkJournal,
    bisect_journal,
    compare_journals,
    export_journal,
    observe_journal,
    read_journal,
    replay_journal,
    shrink_journal,
)

__all__ = [
    "Journal",
    "JournalDifference",
    "JournalInfo",
    "JournalReport",
    "JournalStats",
    "JournalView",
    "ShrunkJournal",
    "bisect_journal",
    "compare_journals",
    "export_journal",
    "observe_journal",
    "read_journal",
    "replay_journal",
    "shrink_journal",
]
