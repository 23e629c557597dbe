"""Events for routers. See ``kvpool.events``."""

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

    Each sink has its own numbering, and keeps batches for a replay. :class:`kvpool.events.Publisher` drives
    this class. It keeps a feed of ``source`` with space for ``capacity`` changes. A publisher that was made
    earlier for this source gets no more changes. No call waits for a step, and none makes a step wait.

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
        """Adds a sink and returns its number. The next flush sends it everything."""
    def flush(self, now: float, heartbeat: float) -> list[tuple[int, int, bytes]]:
        """Returns the batches of the changes since the last flush, as triples of sink, number and bytes."""
    def pass_on(self, batch: bytes) -> None:
        """Sends a batch that another program has made to every sink with the next flush."""
    def lost(self, sink: int) -> None:
        """Reports that a batch of a sink was lost. The next flush sends everything to the sink again."""
    def hold(self, sink: int, held: bool) -> None:
        """Reports whether a sink has no space. Meanwhile no batches are made for it."""
    def replay(
        self, sink: int, start: int, limit: int = 1_048_576, most_bytes: int | None = None
    ) -> list[tuple[int, bytes]]:
        """Returns the kept batches of a sink from a number on, as pairs of number and bytes.

        At most ``limit`` batches. Together they have at most ``most_bytes``, unless the first one has
        more.
        """
    def snapshot(self, sink: int, now: float) -> tuple[int, int | None, list[bytes]]:
        """Returns the current content of a sink, as its epoch, its cut and its batches."""
    def counts(self) -> _Counts:
        """Returns the numbers of contents by tier, of unsent contents, and of ignored changes."""
