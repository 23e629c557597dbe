"""Where batches go: what a sink is, and one that calls a function.

A sink is driven by its publisher's thread alone, but for :meth:`Sink.close`. Whatever it is asked
returns at once.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from kvpool._owner import Owner
from kvpool.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("kvpool.events")

#: The forms of events: see `docs/events.md`.
Form: TypeAlias = Literal["vllm", "vllm-array", "vllm-bytes", "vllm-array-bytes", "sglang", "sglang-array"]


class Replays(Protocol):
    """What a sink can ask its publisher for."""

    def __call__(self, start: int, limit: int) -> list[tuple[int, bytes]]:
        """At most ``limit`` batches of the sink that are kept, from number ``start`` on; none if there
        are no more.
        """


class Sink(Protocol):
    """Takes numbered batches. Nothing here may wait."""

    @property
    def form(self) -> Form:
        """The form of its events."""

    @property
    def replay_batches(self) -> int:
        """Batches that are kept for replays."""

    @property
    def replay_bytes(self) -> int:
        """Bytes that these have at most."""

    def open(self, replays: Replays) -> None:
        """Begins. Called once, by whoever makes the publisher."""

    def send(self, number: int, batch: bytes) -> bool:
        """Takes a batch. False if there is no room: then it is lost, and :meth:`has_room` is asked from
        now on.
        """

    def has_room(self) -> bool:
        """Whether a sink that lost a batch can be told everything anew."""

    def serve(self) -> bool:
        """Answers what was asked meanwhile, a part of it. True if there is more to do."""

    def close(self) -> None:
        """Gives up what it holds, and sends nothing more."""


class CallSink:
    """Calls a function with the number and the bytes of each batch, in a thread of its own.

    Args:
        call: What is called. An exception is logged, and the batch is lost.
        form: The form of the events.
        room: Batches that wait for a slow function, at most. One more is lost, and when all have been
            taken the function is told everything anew.
        patience: Seconds that :meth:`close` waits at most.
    """

    replay_batches = 1
    replay_bytes = 0

    def __init__(
        self,
        call: Callable[[int, bytes], object],
        *,
        form: Form = "vllm",
        room: int = 1000,
        patience: float = 5.0,
    ) -> None:
        if room < 1:
            raise InvalidArgumentError(f"room is {room}: must be at least 1 batch")
        self.form: Form = form
        self._owner = Owner("the sink")
        self._call = call
        self._queue: queue.Queue[tuple[int, bytes] | None] = queue.Queue(room)
        self._failed = threading.Event()
        self._closed = False
        self._patience = patience
        self._thread = threading.Thread(target=self._run, name="kvpool-events-call", daemon=True)

    def open(self, replays: Replays) -> None:
        """Starts the thread."""
        del replays
        self._thread.start()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._call(*item)
            except Exception:
                logger.exception("batch %d was not taken", item[0])
                self._failed.set()

    def send(self, number: int, batch: bytes) -> bool:
        """Queues a batch, if there is room and the last one did not fail."""
        self._owner.check()
        if self._closed or self._failed.is_set():
            return False
        try:
            self._queue.put_nowait((number, batch))
        except queue.Full:
            return False
        return True

    def has_room(self) -> bool:
        """Whether all that waited was taken."""
        self._owner.check()
        if self._closed or not self._queue.empty():
            return False
        self._failed.clear()
        return True

    def serve(self) -> bool:
        """Nothing is asked of a function, but whether it failed."""
        return False

    def close(self) -> None:
        """Ends the thread when the function has taken what waits, and waits for that, as far as its
        patience goes.
        """
        self._owner.check()
        if self._closed or not self._thread.is_alive():
            return
        self._closed = True
        until = time.monotonic() + self._patience
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=self._patience)
        if threading.current_thread() is not self._thread:
            self._thread.join(max(0.0, until - time.monotonic()))
