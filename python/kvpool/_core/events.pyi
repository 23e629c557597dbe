"""What routers are told: see kvpool.events."""

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
    r"""Batches of KV events for several sinks: numbers, bytes, what was lost.

    What :class:`kvpool.events.Publisher` drives. It keeps a feed of ``source`` with room for
    ``capacity`` changes, so that a publisher that was made before takes nothing more. No call waits for
    a step, or keeps one waiting.

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
        """Adds a sink, which is told everything with the next flush. Returns its number."""
    def flush(self, now: float, heartbeat: float) -> list[tuple[int, int, bytes]]:
        """Returns batches of what the source told since the last flush: sink, number, bytes of each."""
    def pass_on(self, batch: bytes) -> None:
        """Sends a batch that somebody else has made to every sink with the next flush."""
    def lost(self, sink: int) -> None:
        """Says that a batch of a sink was lost: it is told everything anew."""
    def hold(self, sink: int, held: bool) -> None:
        """Says whether a sink has no room: then nothing is made for it."""
    def replay(
        self, sink: int, start: int, limit: int = 1_048_576, most_bytes: int | None = None
    ) -> list[tuple[int, bytes]]:
        """Returns the batches of a sink from a number on that are kept, at most so many: number and
        bytes of each.

        Together they have at most ``most_bytes``, unless the first has more.
        """
    def snapshot(self, sink: int, now: float) -> tuple[int, int | None, list[bytes]]:
        """Returns all that a sink was told and that is still so: its epoch, its cut, its batches."""
    def counts(self) -> _Counts:
        """Returns what is there by tier, what of it cannot be told, and what was ignored."""
