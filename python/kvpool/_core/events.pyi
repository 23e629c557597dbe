"""Encodes KV events, to which routers subscribe. See ``kvpool.events``."""

from typing import TypedDict, final, type_check_only

from kvpool._core.manager import CacheManager
from kvpool._core.pool import BlockPool
from kvpool._core.vllm import VllmFeed

__all__ = ["EventPublisher"]

@type_check_only
class _Counts(TypedDict):
    contents: list[int]
    untold: int
    ignored: int

@final
class EventPublisher:
    r"""Encodes KV events in batches for several sinks.

    A sink is a receiver of batches, with its own event format and batch numbers. The publisher keeps the
    latest batches of each sink, to send them again. :class:`kvpool.events.Publisher` calls this class and
    sends the batches. An ``EventPublisher`` makes its source record changes. If the same source had an
    earlier publisher, that publisher gets no more changes. The calls do not wait for steps of the
    scheduler, and steps do not wait for the calls.

    Args:
        source: The manager, pool or feed whose changes are published.
        base: The number of the first batch, 0 to ``2**63 - 1``.
        rank: The data-parallel rank, 0 to ``2**32 - 1``.
        capacity: The largest number of changes that the source keeps until the next ``flush``.

    Raises:
        InvalidArgumentError: A number is out of range, or the feed has no groups.
        ArgumentTypeError: The source has another type.

    >>> from kvpool import CacheManager
    >>> from kvpool.events import EventPublisher
    >>> manager = CacheManager(8, block_size=4)
    >>> publisher = EventPublisher(manager, base=7)
    >>> publisher.add_sink("vllm-array")
    0
    >>> [(sink, number, batch[10:]) for sink, number, batch in publisher.flush(1.0, 5.0)]
    [(0, 7, b'\x91\x91\xb0AllBlocksCleared\x00')]
    """

    def __new__(
        cls,
        source: CacheManager | BlockPool | VllmFeed,
        base: int,
        *,
        rank: int = 0,
        capacity: int = 1_048_576,
    ) -> EventPublisher: ...
    def add_sink(
        self, form: str = "vllm", *, replay_batches: int = 10_000, replay_bytes: int = 67_108_864
    ) -> int:
        """Adds a sink and returns its number. The next flush reports all current content to it.

        Args:
            form: The form of the events, such as ``"vllm"`` or ``"sglang"``. docs/events.md lists the
                forms.
            replay_batches: The number of batches that are kept for replays.
            replay_bytes: The largest size of these batches, in bytes. The latest batch is always kept.

        Raises:
            InvalidArgumentError: The form is unknown, or a number is negative.
        """
    def flush(self, now: float, heartbeat: float) -> list[tuple[int, int, bytes]]:
        """Returns the batches of the changes since the last flush.

        Each batch is a triple of sink, number and bytes. If a sink has received nothing for ``heartbeat``
        seconds, it gets an empty batch. ``now`` is the time in seconds.
        """
    def pass_on(self, batch: bytes) -> None:
        """Adds a batch that another program has encoded. The next flush sends it to every sink."""
    def lost(self, sink: int) -> None:
        """Records that a batch did not reach a sink. The next flush reports all current content to it."""
    def hold(self, sink: int, held: bool) -> None:
        """Pauses or resumes a sink.

        A paused sink gets no batches, and changes in this time are not kept for it.
        """
    def replay(
        self, sink: int, start: int, limit: int = 1_048_576, most_bytes: int | None = None
    ) -> list[tuple[int, bytes]]:
        """Returns the kept batches of a sink from number ``start`` on, as pairs of number and bytes.

        Returns at most ``limit`` batches. Together they have at most ``most_bytes`` bytes, unless the first
        batch alone has more.
        """
    def snapshot(self, sink: int, now: float) -> tuple[int, int | None, list[bytes]]:
        """Returns all content that was reported to a sink and is still valid.

        The result is the ``base`` of the publisher, the number of the last batch that the snapshot
        covers, and the batches of the content. The number is None before the first batch.
        """
    def counts(self) -> _Counts:
        """Returns counts: cached contents by tier, contents that cannot be reported, and ignored changes.

        A content cannot be reported if its tokens are unknown or its parent is missing. A change is ignored
        if its group or tier is unknown.
        """
