"""``Publisher``: a thread that takes what a manager or a pool has told, and gives it to sinks.

Owns the thread and the order: what is collected goes into the core, what the core makes of it goes to
the sinks, batch by batch. Numbers, bytes and what is made good are the core's
(:class:`kvpool._core.events.EventPublisher`); sockets are the sinks'.

Costs: a turn, every ``interval`` seconds, holds the interpreter for some 20 us and a little per batch;
all work per block is done detached, in one piece: each time that this thread wants the interpreter
back, a scheduler's may wait for it. Replays are sent a few batches at a time, with a pause behind each,
in which nothing is held.
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
#: Bytes of such a part, but for a single batch that is larger: they are copied with the interpreter held.
REPLAY_BYTES = 64 << 10
#: Numbers that there are for each second since 1970.
PER_SECOND_BITS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a sink was told and that is still so.

    Attributes:
        epoch: The first number of this incarnation of the publisher.
        cut: The number of the last batch that is part of it: those that follow have higher ones.
            ``None`` before the first.
        batches: Ordinary batches of stores, parents first, in the sink's form.
    """

    epoch: int
    cut: int | None
    batches: list[bytes]


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """What a publisher has done.

    Attributes:
        contents: Contents that are there, by tier: the device first.
        untold: Contents that are there and cannot be told: their tokens are not known, or what is
            before them is gone.
        batches: Batches that were made.
        lost: Batches that a sink had no room for.
        failures: Turns that ended with an exception, which was logged.
    """

    contents: list[int]
    untold: int
    batches: int
    lost: int
    failures: int


class Publisher:
    """Tells sinks what can be found in a manager or a pool.

    Make it before the first request: of what is registered earlier the tokens are not known. One
    publisher follows a manager; a second one takes what the first would have had.

    Args:
        source: What is followed. Its tiers are told apart: see `docs/events.md`.
        sinks: Where batches go; each has numbers of its own.
        rank: The data-parallel rank, which every batch has.
        base: The first number. By default ``unix seconds << 20``: above all that an earlier incarnation
            can have used.
        interval: Seconds from turn to turn.
        heartbeat: Seconds after which a sink that was sent nothing gets an empty batch.
        capacity: Changes that may wait for a turn. More are dropped, and made good by looking at every block.
        start: Whether a thread turns. Without one, :meth:`flush` does.

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
        #: One turn at a time: batches of a sink go out in the order of their numbers.
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
        # The first turn is now: consumers that are there already know at once that all else is over.
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
                # A publisher that ends for one failed turn leaves routers with what is no longer so.
                logger.exception("a turn failed")
                self._failures += 1
            pause = max(due - time.monotonic(), 0.0)
            if more:
                pause = min(pause, PAUSE)

    def _answer(self) -> bool:
        served = [sink.serve() for sink in self._sinks]  # each of them
        return any(served)

    def _serve(self) -> bool:
        """Answers what was asked of sinks, a part of it. Returns whether there is more."""
        with self._turn:
            return not self._end.is_set() and self._answer()

    def flush(self) -> bool:
        """Sends what has changed. Returns whether a sink has more to answer: then it is worth another
        call at once.
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
        """Sends a batch that somebody else has made to every sink, numbered like its own, with the next turn.

        What it tells is in no snapshot.
        """
        self._owner.check()
        self._core.pass_on(batch)

    def snapshot(self, sink: int = 0) -> Snapshot:
        """All that a sink, by its position, was told and that is still so, in its form. O(contents),
        detached.
        """
        self._owner.check()
        return Snapshot(*self._core.snapshot(sink, time.time()))

    def counts(self) -> Counts:
        """What it has done. O(contents), detached."""
        self._owner.check()
        counts = self._core.counts()
        return Counts(counts["contents"], counts["untold"], self._batches, self._lost, self._failures)

    def close(self) -> None:
        """Ends the thread, and closes the sinks. What has changed since the last turn is not told.
        Idempotent.
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
