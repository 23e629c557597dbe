"""Journals, which record every operation of a pool or a manager, and replays of journals."""

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
    """Settings for recording the operations of a pool or a manager.

    A journal in a file contains every operation since the pool was made, and can be replayed. A ring keeps
    only the latest operations, in memory. The operations of a ring can always be listed. A ring can be
    replayed only if it has not dropped any operation. ``docs/journal.md`` describes contents and costs.

    Args:
        path: The path of a new file. If the file exists, the constructor of the pool or manager fails.
        ring_bytes: The size of a ring in bytes, instead of a file. At least four times ``frame_bytes``.
        digest_every: The number of operations between two digests of the whole state. 0 records no digests.
            With digests, a replay can locate a difference in the state that does not change the result of any
            call.
        frame_bytes: The number of bytes that are collected in memory before they are written as one frame, 64
            to 2**24. A crash of the process loses at most these bytes.

    Raises:
        InvalidArgumentError: A setting is out of range. Or both or neither of ``path`` and
            ``ring_bytes`` are given.

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
        """The file of the journal. None for a ring."""
    @property
    def ring_bytes(self) -> int | None:
        """The approximate number of bytes that the ring keeps. None for a file."""
    @property
    def digest_every(self) -> int:
        """The number of operations between two digests of the state. 0 without digests."""
    @property
    def frame_bytes(self) -> int:
        """The number of bytes that are collected in memory before they are written as one frame."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class JournalStats:
    """Statistics of a journal."""

    @property
    def operations(self) -> int:
        """The number of recorded operations."""
    @property
    def bytes(self) -> int:
        """Number of bytes written to the file or kept in the ring. Bytes not written yet do not count."""
    @property
    def error(self) -> str | None:
        """The reason why the journal stopped recording, or None if it is recording."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class JournalInfo:
    """The contents of a journal, which were read without a replay."""

    @property
    def subject(self) -> JournalSubject:
        """The kind of the recorded object: pool, manager or vllm-pool."""
    @property
    def version(self) -> str:
        """The version of kvpool that wrote the journal."""
    @property
    def bytes(self) -> int:
        """The number of bytes of the journal, including an incomplete end."""
    @property
    def first_operation(self) -> int:
        """The number of the first operation in the journal. 0, unless a ring has dropped earlier ones."""
    @property
    def operations(self) -> int:
        """The number of the last operation in the journal, plus 1."""
    @property
    def digest_every(self) -> int:
        """The number of operations between two digests of the state. 0 without digests."""
    @property
    def digests(self) -> int:
        """The number of digests of the state in the journal."""
    @property
    def calls(self) -> dict[str, int]:
        """The number of recorded operations for each method of the pool or manager."""
    @property
    def cut_at(self) -> int | None:
        """The position after the last whole frame, if the end of the journal is missing or damaged.

        None if the journal is complete.
        """
    @property
    def cut_bytes(self) -> int:
        """The number of bytes after ``cut_at``, which cannot be read."""
    @property
    def lines(self) -> list[tuple[int, str, str]]:
        """The requested operations and the digests between them: triples of number, call and arguments."""
    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the pool or manager, by name."""

@final
class JournalReport:
    """The result of a replay of a journal."""

    @property
    def operations(self) -> int:
        """The number of operations that were replayed."""
    @property
    def digests(self) -> int:
        """The number of digests of the state that were equal in the journal and the replay."""
    @property
    def difference(self) -> JournalDifference | None:
        """The first difference between the replay and the journal, or None.

        The replay stops at a difference.
        """
    @property
    def cut_at(self) -> int | None:
        """The position after the last whole frame, if the end of the journal is missing or damaged.

        None if the journal is complete.
        """
    @property
    def cut_bytes(self) -> int:
        """The number of bytes after ``cut_at``, which cannot be read."""
    @property
    def is_exact(self) -> bool:
        """Whether the results of all calls, and all digests, were equal."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class JournalDifference:
    """The first difference between the results of a replay and the results in the journal."""

    @property
    def kind(self) -> DifferenceKind:
        """The kind of the difference: the result of a call (``answer``), a digest, or a broken invariant."""
    @property
    def operation(self) -> int:
        """The number of the operation that differs.

        For a digest, the number of operations before the digest.
        """
    @property
    def since(self) -> int | None:
        """For a digest, the number of operations before the last equal digest.

        The operation that causes the difference is between the two digests.
        """
    @property
    def asked(self) -> str | None:
        """The method that the differing operation called, and its arguments."""
    @property
    def found(self) -> str | None:
        """The result of the call in this build, or the broken invariant."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class ShrunkJournal:
    """A shorter journal, whose replay still shows the same failure."""

    @property
    def before(self) -> int:
        """The number of operations of the original journal."""
    @property
    def operations(self) -> list[str]:
        """The remaining operations and their results, as text."""
    @property
    def failure(self) -> str:
        """A description of the failure."""
    @property
    def journal(self) -> bytes:
        """The journal of the remaining operations, as the bytes of a file."""
    @property
    def runs(self) -> int:
        """The number of replays that the search needed."""

def read_journal(
    journal: bytes | str | PathLike[str], *, start: int | None = None, count: int = 0
) -> JournalInfo:
    """Reads the contents of a journal without a replay.

    A file is read one frame at a time, so memory does not grow with it. Other threads continue.
    O(bytes).

    Args:
        journal: The file of the journal, or its bytes.
        start: The number of the first operation in ``lines``. None returns the last operations.
        count: The number of operations in ``lines``.

    Raises:
        JournalError: The data is not a journal, or this version cannot read it.
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
    """Runs the operations of a journal again, and compares all results and all digests of the state.

    Uses a new pool or manager with the journal's settings. If a difference is found, the call does not raise
    an error: the report contains the first difference. The call checks all invariants at the end. Other
    threads continue.

    Args:
        journal: The file of the journal, or its bytes. An incomplete journal is replayed up to its last
            complete frame.
        until: The number of the operation before which the replay stops. None replays all operations.
        check_every: The number of operations between two checks of all invariants, O(blocks) each. 0
            checks only at the end.
        progress: A function that is called every few thousand operations, with the number of operations so
            far. If it raises an exception, the replay stops.

    Raises:
        JournalError: The data is not a journal, or cannot be replayed, for instance because a ring has
            dropped its beginning.
        JournalFileError: The file cannot be read.
        InvalidArgumentError: ``until`` or ``check_every`` is negative.
    """

@final
class JournalView:
    """The statistics of a journal's pool or manager at one moment of its replay."""

    @property
    def operations(self) -> int:
        """The number of operations that the replay has run so far."""
    @property
    def subject(self) -> JournalSubject:
        """The kind of the recorded object: pool, manager or vllm-pool."""
    @property
    def stats(self) -> ManagerStats | None:
        """The counts of the manager. None for a pool."""
    @property
    def pool(self) -> PoolStats:
        """The counts of the pool. For a manager, those of the device's pool."""
    @property
    def host(self) -> PoolStats | None:
        """The counts of the host tier, or None if the manager has no host tier."""
    @property
    def metrics(self) -> list[PoolMetrics]:
        """The metrics of each tier. Empty for vLLM's pools."""
    @property
    def advice(self) -> Advice | None:
        """The estimates of the advisor, or None if the replay has no advisor."""

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
    """Replays a journal with observers. Returns statistics at several moments, and the result of the replay.

    The statistics of one moment are a ``JournalView``. The observers are ``explain``, the advisor and
    metrics. The recorded pool or manager need not have had them, because they change no results. A journal
    does not contain tokens, so a replay uses made-up tokens. Explanations therefore do not contain the token
    within a block at which two prompts differ. Ages are measured on the clock of ``clock.advance``. If the
    journal has no such calls, the metrics have no ages.

    Args:
        journal: The file of the journal, or its bytes.
        every: The number of operations between two views. 0 makes one view at the end.
        until: The number of the operation before which the replay stops. None replays all operations.
        advisor: As for ``CacheManager``. None is the advisor that the journal was recorded with, if
            any.
        explain: As for ``CacheManager``.
        metrics: As for ``CacheManager``.
        progress: As for ``replay_journal``.

    Raises:
        JournalError: As for ``replay_journal``.
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
    """Finds the first operation whose result differs, or after which an invariant is broken.

    If a replay stops at a digest or at the final check, the call searches the operations before it. If only
    digests differ, the report contains the two digests between which the difference arises. O(operations), or
    O(operations log operations) for an invariant.

    Args:
        journal: The file of the journal, or its bytes.
        progress: As for ``replay_journal``. The call may run several replays. In each of them, the number of
            operations begins again at 0.

    Raises:
        JournalError: As for ``replay_journal``.
        JournalFileError: The file cannot be read.
    """

def compare_journals(
    first: bytes | str | PathLike[str], second: bytes | str | PathLike[str]
) -> tuple[int, str | None, str | None] | None:
    """Returns the first record in which two journals differ, or None.

    The result is the number of the operation and the two records, which include the checksums of their
    results. The result is None if one journal is the beginning of the other. The call replays nothing.
    O(bytes).

    Raises:
        JournalError: One of the two is not a journal, or their settings differ.
        JournalFileError: A file cannot be read.
    """

def shrink_journal(
    journal: bytes | str | PathLike[str],
    *,
    operation: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> ShrunkJournal | None:
    """Removes the operations of a journal that are not needed to reproduce its failure.

    The search is delta debugging: it removes operations, at first half of them, as long as the replay still
    fails. Returns None if the replay of the journal does not fail.

    Args:
        journal: The file of the journal, or its bytes.
        operation: The number of an operation whose result in this build must not change. With None, the
            failure is a broken invariant.
        progress: A function that is called after each replay with the number of remaining operations. If it
            raises an exception, the search stops.

    Raises:
        JournalError: As for ``replay_journal``.
        JournalFileError: The file cannot be read.
        InvalidArgumentError: ``operation`` is negative.
    """

@overload
def export_journal(
    journal: bytes | str | PathLike[str], language: ExportLanguage, *, limit: int = 10_000, write: None = None
) -> str:
    """Writes a journal as a test in Rust or Python that makes the same calls and expects the same results.

    The tokens of prompts are made up. Two prompts are equal if the recorded prompts were equal. The expected
    results are those of this build, up to the first result that differs from the journal. If a call was
    refused, the expected result is the error message. Shrink a long journal first. The call replays the
    journal twice. With ``write``, memory does not grow with the length of the test.

    Args:
        journal: The file of the journal, or its bytes.
        language: ``"rust"`` or ``"python"``.
        limit: The largest number of operations of the test.
        write: A function that is called with pieces of the text of up to 64 KiB. With None, the call returns
            the text. If the function raises an exception, the export stops.

    Raises:
        JournalError: As for ``replay_journal``. Or there are more operations than ``limit``, and
            nothing is written. Or Python has no call for an operation of vLLM's pool.
        JournalFileError: The file cannot be read.
        InvalidArgumentError: The language is unknown.

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
