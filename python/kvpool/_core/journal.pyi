"""Journals: every operation recorded, and run again."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, final, overload

from kvpool._core import DifferenceKind, ExportLanguage, JournalSubject
from kvpool._core.advisor import Advice, AdvisorConfig
from kvpool._core.explain import ExplainConfig
from kvpool._core.pool import PoolStats
from kvpool._core.requests import ManagerStats, PoolMetrics

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

@final
class Journal:
    """How the operations of a pool or a manager are recorded.

    A journal in a file holds every operation since the pool was made, and can be replayed. A ring keeps
    the latest operations in memory. It can always be shown, and be replayed while it has dropped
    nothing. Contents and costs: ``docs/journal.md``.

    Args:
        path: A new file. One that exists is refused when the pool or manager is made.
        ring_bytes: Instead of a file: bytes of memory, at least four frames.
        digest_every: Operations between two digests of the whole state; 0 for none. Digests narrow down
            a difference that no answer shows.
        frame_bytes: Bytes that are collected before they are written, 64 to 2**24. A crash of the
            process loses at most these.

    Raises:
        InvalidArgumentError: A setting is out of range; or both or none of ``path`` and ``ring_bytes``
            are given.

    >>> manager = kvpool.CacheManager(64, 4, journal=kvpool.journal.Journal(ring_bytes=1 << 20))
    >>> manager.admit("a", range(10)).num_blocks
    3
    >>> manager.release("a")
    >>> image = manager.journal.image()
    >>> kvpool.journal.replay_journal(image)
    JournalReport(operations=2, digests=0, difference=None)
    """

    def __new__(
        cls,
        path: str | PathLike[str] | None = None,
        *,
        ring_bytes: int | None = None,
        digest_every: int = 65536,
        frame_bytes: int = 32768,
    ) -> Self: ...
    @property
    def path(self) -> Path | None:
        """The file that it goes to; None for a ring."""
    @property
    def ring_bytes(self) -> int | None:
        """Bytes that the ring keeps, or so; None for a file."""
    @property
    def digest_every(self) -> int:
        """Operations from one digest of the state to the next; 0 for none."""
    @property
    def frame_bytes(self) -> int:
        """Bytes that are collected before they are written."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class JournalStats:
    """How far a journal has come."""

    @property
    def operations(self) -> int:
        """Operations recorded."""
    @property
    def bytes(self) -> int:
        """Bytes written, or kept in the ring; what is collected or waits to be written is not counted."""
    @property
    def error(self) -> str | None:
        """Why it stopped recording, or None."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class JournalInfo:
    """What is in a journal, without running it."""

    @property
    def subject(self) -> JournalSubject:
        """What was recorded: pool, manager or vllm-pool."""
    @property
    def version(self) -> str:
        """The version of kvpool that wrote it."""
    @property
    def bytes(self) -> int:
        """Its bytes, those of a cut end included."""
    @property
    def first_operation(self) -> int:
        """The number of the first operation that it holds: 0, unless a ring dropped what was before."""
    @property
    def operations(self) -> int:
        """The number of the operation behind the last."""
    @property
    def digest_every(self) -> int:
        """Operations from one digest of the state to the next; 0 for none."""
    @property
    def digests(self) -> int:
        """Digests of the state that it holds."""
    @property
    def calls(self) -> dict[str, int]:
        """Operations by call."""
    @property
    def cut_at(self) -> int | None:
        """The byte behind the last whole frame of a journal whose end is cut off or damaged; None if it
        is complete.
        """
    @property
    def cut_bytes(self) -> int:
        """Bytes that are left behind it."""
    @property
    def lines(self) -> list[tuple[int, str, str]]:
        """The operations that were asked for, and the digests between them: number, call, what it was
        asked.
        """
    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the pool or manager, by name."""

@final
class JournalReport:
    """What the replay of a journal found."""

    @property
    def operations(self) -> int:
        """Operations run."""
    @property
    def digests(self) -> int:
        """Digests of the state that were the same."""
    @property
    def difference(self) -> JournalDifference | None:
        """The first difference, behind which nothing was run; None if there is none."""
    @property
    def cut_at(self) -> int | None:
        """The byte behind the last whole frame of a journal whose end is cut off or damaged; None if it
        is complete.
        """
    @property
    def cut_bytes(self) -> int:
        """Bytes that are left behind it."""
    @property
    def is_exact(self) -> bool:
        """Whether every answer and every digest was the same."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class JournalDifference:
    """Where a replay and its journal differ first."""

    @property
    def kind(self) -> DifferenceKind:
        """What differs: answer, digest or invariant."""
    @property
    def operation(self) -> int:
        """The number of the operation; of a digest, how many operations are before it."""
    @property
    def since(self) -> int | None:
        """Of a digest: the operations until the last one that was the same. The cause lies between the
        two.
        """
    @property
    def asked(self) -> str | None:
        """What was asked."""
    @property
    def found(self) -> str | None:
        """What this build answers, or which invariant is broken."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class ShrunkJournal:
    """A journal made smaller."""

    @property
    def before(self) -> int:
        """Operations before."""
    @property
    def operations(self) -> list[str]:
        """Operations that are left, and what each was answered, as text."""
    @property
    def failure(self) -> str:
        """What goes wrong."""
    @property
    def journal(self) -> bytes:
        """The journal of them, as the bytes of a file."""
    @property
    def runs(self) -> int:
        """Runs that it took."""

def read_journal(
    journal: bytes | str | PathLike[str], *, start: int | None = None, count: int = 0
) -> JournalInfo:
    """Says what is in a journal, without running it.

    O(bytes); other threads go on. A file is read a frame at a time: memory does not grow with it.

    Args:
        journal: Its file, or its bytes.
        start: The number of the first operation in ``lines``; by default ``lines`` has the last ones.
        count: How many.

    Raises:
        JournalError: It is no journal, or one that this version does not read.
        JournalFileError: The file cannot be read.
        InvalidArgumentError: ``start`` or ``count`` is negative.

    >>> pool = kvpool.BlockPool(64, 4, journal=kvpool.journal.Journal(ring_bytes=1 << 20))
    >>> pool.release(pool.allocate(3))
    >>> kvpool.journal.read_journal(pool.journal.image(), count=2).lines
    [(0, 'allocate', '3 blocks'), (1, 'release', '3 blocks: 1 2 3')]
    """

def replay_journal(
    journal: bytes | str | PathLike[str],
    *,
    until: int | None = None,
    check_every: int = 0,
    progress: Callable[[int], object] | None = None,
) -> JournalReport:
    """Runs the operations of a journal again and compares every answer and every digest of the state.

    Uses a new pool or manager with the journal's settings. A difference is no error: the report has the
    first one. Recounts all invariants at the end. Other threads go on.

    Args:
        journal: Its file, or its bytes. One that was cut is replayed up to the cut.
        until: The operation to stop before; by default the end.
        check_every: Operations between two recounts of all invariants, O(blocks) each; 0 recounts at
            the end alone.
        progress: Called every few thousand operations with how many were run; what it raises stops the
            replay.

    Raises:
        JournalError: It is no journal, or one that cannot be replayed: a ring that has dropped its
            beginning, for instance.
        JournalFileError: The file cannot be read.
        InvalidArgumentError: ``until`` or ``check_every`` is negative.
    """

@final
class JournalView:
    """What a journal's pool or manager says of itself at a moment of its replay."""

    @property
    def operations(self) -> int:
        """Operations so far."""
    @property
    def subject(self) -> JournalSubject:
        """What was recorded: pool, manager or vllm-pool."""
    @property
    def stats(self) -> ManagerStats | None:
        """The manager's counts; None of a pool."""
    @property
    def pool(self) -> PoolStats:
        """The pool's own counts; of a manager the device's."""
    @property
    def host(self) -> PoolStats | None:
        """Those of the host tier, or None if there is none."""
    @property
    def metrics(self) -> list[PoolMetrics]:
        """What was counted in each tier; empty for vLLM's pools."""
    @property
    def advice(self) -> Advice | None:
        """What the advisor says, or None without one."""

def observe_journal(
    journal: bytes | str | PathLike[str],
    *,
    every: int = 0,
    until: int | None = None,
    advisor: AdvisorConfig | bool | None = None,
    explain: ExplainConfig | bool | None = None,
    metrics: bool = True,
    progress: Callable[[int], object] | None = None,
) -> tuple[list[JournalView], JournalReport]:
    """Replays a journal, watched, and returns what its subject says on the way, and what the replay found.

    With observers that it was recorded without: they change no answer. The tokens of a replay are made
    up, so no explanation says from which token inside of a block on two prompts differ; ages are on the
    clock of ``clock.advance``, and where nobody called it there are none.

    Args:
        journal: Its file, or its bytes.
        every: Operations from one view to the next; 0 for one at the end alone.
        until: The operation to stop before; None is the end.
        advisor: As of ``CacheManager``; None is the one that the journal was recorded with, if any.
        explain: As of ``CacheManager``.
        metrics: As of ``CacheManager``.
        progress: As in ``replay_journal``.

    Raises:
        JournalError: As in ``replay_journal``.
        JournalFileError: The file cannot be read.
        InvalidArgumentError: A number is negative.

    >>> pool = kvpool.BlockPool(64, 4, journal=kvpool.journal.Journal(ring_bytes=1 << 20))
    >>> pool.release(pool.allocate(3))
    >>> views, report = kvpool.journal.observe_journal(pool.journal.image(), every=1)
    >>> [(view.operations, view.pool.active) for view in views], report.is_exact
    ([(1, 3), (2, 0)], True)
    """

def bisect_journal(
    journal: bytes | str | PathLike[str], *, progress: Callable[[int], object] | None = None
) -> JournalReport:
    """Finds the first operation that goes wrong: answered otherwise, or followed by a broken invariant.

    Where a replay stops at a digest or at the last recount, searches the operations before it. A
    difference that only digests show is found to within two digests. O(operations), or O(operations log
    operations) for an invariant.

    Args:
        journal: Its file, or its bytes.
        progress: As in ``replay_journal``; counts from the start again for each run.

    Raises:
        JournalError: As in ``replay_journal``.
        JournalFileError: The file cannot be read.
    """

def compare_journals(
    first: bytes | str | PathLike[str], second: bytes | str | PathLike[str]
) -> tuple[int, str | None, str | None] | None:
    """Returns the first record in which two journals differ, or None if one is a beginning of the other.

    The number of the operation, and what each holds there, with the check of the answer. Nothing is
    run. O(bytes).

    Raises:
        JournalError: One is no journal, or they are of different settings.
        JournalFileError: A file cannot be read.
    """

def shrink_journal(
    journal: bytes | str | PathLike[str],
    *,
    operation: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> ShrunkJournal | None:
    """Leaves out what is not needed to make a journal go wrong.

    Delta debugging: leaves operations out, halves first, while the journal still goes wrong. Returns
    None if it does not go wrong.

    Args:
        journal: Its file, or its bytes.
        operation: Keep what this build answers to the operation with this number; without it, a broken
            invariant.
        progress: Called after each run with the operations that are left; what it raises stops the shrinking.

    Raises:
        JournalError: As in ``replay_journal``.
        JournalFileError: The file cannot be read.
        InvalidArgumentError: ``operation`` is negative.
    """

@overload
def export_journal(
    journal: bytes | str | PathLike[str], language: ExportLanguage, *, limit: int = 10_000, write: None = None
) -> str:
    """Writes a journal as a test that makes the same calls and expects the same answers: rust or python.

    Prompts are made-up tokens, equal where the recorded ones were equal. Expected answers are those of
    this build, up to the first that differs from the journal; of a refusal, its message. Shrink a long
    journal first. Runs the journal twice. With ``write``, memory does not grow with the test.

    Args:
        journal: Its file, or its bytes.
        language: ``"rust"`` or ``"python"``.
        limit: Operations of the longest test.
        write: Called with pieces of the text of up to 64 KiB; without it the text is returned. An
            exception that it raises ends the export.

    Raises:
        JournalError: As in ``replay_journal``; there are more operations than ``limit``, before
            anything is written; an operation of vLLM's pool that Python has no call for.
        JournalFileError: The file cannot be read.
        InvalidArgumentError: Another language.

    >>> pool = kvpool.BlockPool(64, 4, journal=kvpool.journal.Journal(ring_bytes=1 << 20))
    >>> pool.release(pool.allocate(3))
    >>> test = kvpool.journal.export_journal(pool.journal.image(), "python")
    >>> "assert answer(pool.allocate, 3) == [1, 2, 3]" in test
    True
    """

@overload
def export_journal(
    journal: bytes | str | PathLike[str],
    language: ExportLanguage,
    *,
    limit: int = 10_000,
    write: Callable[[str], object],
) -> None: ...
