"""``Publisher``: a thread that collects the changes of a manager or a pool, and sends them to sinks.

This module owns the thread and the order of calls. It passes changes to the core, and passes the core's
batches to the sinks. The core (:class:`kvpool._core.events.EventPublisher`) owns the batch numbers, the
encoded bytes, and the recovery after lost batches. The sinks own the sockets.

The thread does one *turn* every ``interval`` seconds. A turn holds the GIL for about 20 us, plus a
little per batch. All work per block runs without the GIL, in one piece, because the scheduler may have
to wait each time this thread takes the GIL again. Replays (batches that a consumer requests again) are
sent a few batches at a time. The thread pauses after each part, so that other threads can take the GIL.
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

#: Seconds that the thread pauses between two parts of a replay.
PAUSE = 0.001
#: The largest number of bytes that one part of a replay contains. A larger batch is sent as a part of its
#: own. The GIL is held while the bytes are copied.
REPLAY_BYTES = 64 << 10
#: The default first batch number is the Unix time in seconds, shifted left by this number of bits.
PER_SECOND_BITS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """The cached contents that were reported to a sink and are still cached.

    Attributes:
        epoch: The first batch number of this run of the publisher.
        cut: The number of the last batch that the snapshot covers. Apply only later batches on top of
            it. ``None`` before the first batch.
        batches: Batches of store events in the sink's form. A parent block always comes before its
            children.
    """

    epoch: int
    cut: int | None
    batches: list[bytes]


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """Counters of a publisher.

    Attributes:
        contents: Number of cached blocks in each tier, the device first.
        untold: Number of cached blocks that cannot be reported, because their tokens are unknown or
            their parent block is gone.
        batches: Number of batches that were made.
        lost: Number of batches that were dropped because a sink had no room.
        failures: Number of turns that ended with an exception. Each exception was logged.
    """

    contents: list[int]
    untold: int
    batches: int
    lost: int
    failures: int


class Publisher:
    """Sends the changes in a manager's or pool's cached contents to sinks.

    Make the publisher before the first request, because it does not know the tokens of blocks that were
    registered earlier. A manager can have only one publisher. A second one would consume changes that
    the first one then misses.

    Args:
        source: The manager, pool or feed to observe. Events contain the tier of each block: see
            `docs/events.md`.
        sinks: The destinations of batches. Each sink has its own sequence of batch numbers.
        rank: The data-parallel rank. Every batch contains it.
        base: The first batch number. The default is ``unix seconds << 20``, which is above all numbers
            that an earlier run can have used.
        interval: Seconds between turns.
        heartbeat: Seconds without a batch after which a sink gets an empty batch.
        capacity: The largest number of changes that may wait for a turn. Further changes are dropped. The
            next turn then compares every block to make up for them.
        start: Whether to start the thread. Without the thread, call :meth:`flush` yourself.

    Raises:
        InvalidArgumentError: A setting is out of its range.
        ArgumentTypeError: ``source`` has another type.
        MissingPackageError: A sink needs a package that is not installed.
        ClosedError: The call is made in a forked child.
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
        #: The thread holds this lock during a turn, so that the batches of a sink are sent in the order
        #: of their numbers.
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
        # The first turn starts immediately. It informs running consumers that the contents that an earlier
        # run of this publisher reported no longer exist.
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
        """Answers a part of the sinks' replay requests. Returns whether more answers are waiting."""
        with self._turn:
            return not self._end.is_set() and self._answer()

    def flush(self) -> bool:
        """Does one turn: sends all changes since the last turn.

        Returns whether a sink has more to send. If so, call this method again at once.
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
        """Sends a batch that other code has made to every sink, in the next turn.

        The batch gets a number like any other batch. Snapshots do not contain its events.
        """
        self._owner.check()
        self._core.pass_on(batch)

    def snapshot(self, sink: int = 0) -> Snapshot:
        """Returns the cached contents that were reported to a sink, in the form of that sink.

        ``sink`` is its position in ``sinks``. O(cached blocks), without the GIL.
        """
        self._owner.check()
        return Snapshot(*self._core.snapshot(sink, time.time()))

    def counts(self) -> Counts:
        """Returns the publisher's counters. O(cached blocks), without the GIL."""
        self._owner.check()
        counts = self._core.counts()
        return Counts(counts["contents"], counts["untold"], self._batches, self._lost, self._failures)

    def close(self) -> None:
        """Ends the thread and closes the sinks. Changes since the last turn are not sent.

        May be called twice.
        """
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
