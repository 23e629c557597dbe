"""``Publisher``: a thread that collects the changes of a manager or a pool, and sends them to sinks.

This module owns the thread and the order: it passes changes to the core, and the core's batches to the
sinks. The core (:class:`kvpool._core.events.EventPublisher`) owns numbers, bytes, and recovery after
losses. The sinks own sockets.

Costs: a turn, every ``interval`` seconds, holds the GIL for about 20 us plus a little per batch. All
work per block runs without the GIL, in one piece, because a scheduler may have to wait each time that
this thread needs the GIL again. Replays are sent a few batches at a time, with a pause after each part,
in which the GIL is free.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING, Self

from kvpool import errors
from kvpool._core.events import EventPublisher
from kvpool._owner import Owner

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from kvpool import BlockPool, CacheManager
    from kvpool._core.vllm import VllmFeed

    from .sinks import Replays, Sink

logger = logging.getLogger("kvpool.events")

#: Seconds between two parts of a replay.
PAUSE = 0.001
#: Bytes of such a part, unless a single batch is larger. They are copied while the GIL is held.
REPLAY_BYTES = 64 << 10
#: Each second since 1970 has two to this power of batch numbers.
PER_SECOND_BITS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """All contents that were reported to a sink and are still cached.

    Attributes:
        epoch: The first number of this incarnation of the publisher.
        cut: The number of the last batch that the snapshot covers. Later batches have higher numbers.
            ``None`` before the first batch.
        batches: Ordinary batches of stores, parents first, in the sink's form.
    """

    epoch: int
    cut: int | None
    batches: list[bytes]


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """Counters of a publisher.

    Attributes:
        contents: Number of cached contents per tier, the device first.
        untold: Number of cached contents that cannot be reported, because their tokens are unknown or
            their parent is gone.
        batches: Number of batches that were made.
        lost: Number of batches that a sink had no room for.
        failures: Number of turns that ended with an exception, which was logged.
    """

    contents: list[int]
    untold: int
    batches: int
    lost: int
    failures: int


class Publisher:
    """Notifies sinks of the cached contents of a manager or a pool.

    Make it before the first request: the tokens of blocks that are registered earlier are unknown. Each
    manager can have one publisher. A second one would take changes away from the first.

    Args:
        source: The manager, pool or feed to observe. Its tiers are distinguished: see `docs/events.md`.
        sinks: Destinations of batches. Each sink has its own numbers.
        rank: The data-parallel rank, which every batch contains.
        base: The first number. By default ``unix seconds << 20``, which is above all numbers that an
            earlier incarnation can have used.
        interval: Seconds between turns.
        heartbeat: Seconds without a batch after which a sink gets an empty one.
        capacity: The most changes that may wait for a turn. Further ones are dropped, and the next turn
            compares every block to make up for them.
        start: Whether to start the thread. Without it, call :meth:`flush`.

    Raises:
        InvalidArgumentError: A setting is out of its range.
        ArgumentTypeError: ``source`` is something else.
        MissingPackageError: A sink needs a package that is not there.
        ClosedError: A call in a forked child.
    """

    def __init__(
        self,
        source: CacheManager | BlockPool | VllmFeed,
        sinks: Iterable[Sink],
        *,
        rank: int = 0,
        base: int | None = None,
        interval: float = 0.01,
        heartbeat: float = 5.0,
        capacity: int = 1 << 20,
        start: bool = True,
    ) -> None:
        for name, value in (("interval", interval), ("heartbeat", heartbeat)):
            if not 0 < value < threading.TIMEOUT_MAX:
                raise errors.InvalidArgumentError(f"{name} is {value}: must be a positive number of seconds")
        self._owner = Owner("the publisher")
        self._sinks = list(sinks)
        self._interval = interval
        self._heartbeat = heartbeat
        self._core = EventPublisher(
            source,
            int(time.time()) << PER_SECOND_BITS if base is None else base,
            rank=rank,
            capacity=capacity,
        )
        self._without_room: set[int] = set()
        self._batches = self._lost = self._failures = 0
        #: Held during a turn: batches of a sink are sent in the order of their numbers.
        self._turn = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        opened: list[Sink] = []
        try:
            for sink in self._sinks:
                number = self._core.add_sink(
                    sink.form, replay_batches=sink.replay_batches, replay_bytes=sink.replay_bytes
                )
                sink.open(self._replays_of(number))
                opened.append(sink)
        except BaseException:
            for sink in opened:
                sink.close()
            raise
        if start:
            self._thread = threading.Thread(target=self._run, name="kvpool-events", daemon=True)
            self._thread.start()

    def _replays_of(self, number: int) -> Replays:
        return lambda start, limit: self._core.replay(number, start, limit, REPLAY_BYTES)

    def _run(self) -> None:
        # The first turn comes at once. It lets running consumers know that earlier contents are gone.
        due, pause = time.monotonic(), 0.0
        while not self._end.wait(pause):
            more = False
            try:
                if time.monotonic() >= due:
                    due = time.monotonic() + self._interval
                    more = self.flush()
                else:
                    more = self._serve()
            except Exception:
                # The publisher continues after a failed turn. If it ended, routers would keep outdated
                # contents.
                logger.exception("a turn failed")
                self._failures += 1
            pause = max(due - time.monotonic(), 0.0)
            if more:
                pause = min(pause, PAUSE)

    def _answer(self) -> bool:
        served = [sink.serve() for sink in self._sinks]  # calls every sink
        return any(served)

    def _serve(self) -> bool:
        """Serves a part of the sinks' replay requests. Returns whether there is more."""
        with self._turn:
            return not self._end.is_set() and self._answer()

    def flush(self) -> bool:
        """Sends all changes since the last turn.

        Returns whether a sink has more to send; if so, call it again at once.
        """
        self._owner.check()
        with self._turn:
            if self._end.is_set():
                return False
            for number in list(self._without_room):
                if self._sinks[number].has_room():
                    self._without_room.discard(number)
                    self._core.hold(number, False)
            for number, at, batch in self._core.flush(time.time(), self._heartbeat):
                self._batches += 1
                if number not in self._without_room and self._sinks[number].send(at, batch):
                    continue
                self._lost += 1
                if number not in self._without_room:
                    self._without_room.add(number)
                    self._core.lost(number)
                    self._core.hold(number, True)
            return self._answer()

    def pass_on(self, batch: bytes) -> None:
        """Sends a batch that other code has made to every sink, with the next turn.

        The batch gets a number like any other.

        Snapshots do not contain its events.
        """
        self._owner.check()
        self._core.pass_on(batch)

    def snapshot(self, sink: int = 0) -> Snapshot:
        """Returns all contents that were reported to a sink and are still cached, in the sink's form.

        ``sink`` is its position. O(contents), without the GIL.
        """
        self._owner.check()
        return Snapshot(*self._core.snapshot(sink, time.time()))

    def counts(self) -> Counts:
        """Returns the publisher's counters. O(contents), without the GIL."""
        self._owner.check()
        counts = self._core.counts()
        return Counts(counts["contents"], counts["untold"], self._batches, self._lost, self._failures)

    def close(self) -> None:
        """Ends the thread, and closes the sinks. Changes since the last turn are not sent. Idempotent."""
        self._owner.check()
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        with self._turn:
            for sink in self._sinks:
                sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
