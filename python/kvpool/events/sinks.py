"""Destinations of batches: the protocol of a sink, and a sink that calls a function.

Only the publisher's thread calls a sink, except for :meth:`Sink.close`. Every method returns at once.
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
    """Returns stored batches, so that a sink can answer a replay request."""

    def __call__(self, start: int, limit: int) -> list[tuple[int, bytes]]:
        """Returns at most ``limit`` of the sink's stored batches, from number ``start`` on.

        The list is empty if there are no more.
        list if there are no more.
        """


class Sink(Protocol):
    """Takes numbered batches. No method may wait."""

    @property
    def form(self) -> Form:
        """The form of its events."""

    @property
    def replay_batches(self) -> int:
        """Number of batches that are kept for replays."""

    @property
    def replay_bytes(self) -> int:
        """The most bytes of the kept batches."""

    def open(self, replays: Replays) -> None:
        """Starts the sink. The thread that makes the publisher calls it once."""

    def send(self, number: int, batch: bytes) -> bool:
        """Takes a batch. Returns False if there is no room.

        The batch is then lost, and the publisher calls :meth:`has_room` from now on.
        """

    def has_room(self) -> bool:
        """Returns whether a sink that lost a batch has room for a full resend of the contents."""

    def serve(self) -> bool:
        """Answers a part of the waiting replay requests. Returns True if there is more to do."""

    def close(self) -> None:
        """Releases its resources, and sends nothing more."""


class CallSink:
    """Calls a function with the number and the bytes of each batch, in a thread of its own.

    Args:
        call: The function. An exception is logged, and the batch is lost.
        form: The form of the events.
        room: The most batches that wait for a slow function. A further batch is lost. When the function
            has taken all waiting batches, the contents are sent again in full.
        patience: The most seconds that :meth:`close` waits.
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
        """Queues a batch, unless the queue is full or the last call failed."""
        self._owner.check()
        if self._closed or self._failed.is_set():
            return False
        try:
            self._queue.put_nowait((number, batch))
        except queue.Full:
            return False
        return True

    def has_room(self) -> bool:
        """Returns whether the function has taken all waiting batches."""
        self._owner.check()
        if self._closed or not self._queue.empty():
            return False
        self._failed.clear()
        return True

    def serve(self) -> bool:
        """Does nothing: a function has no replay requests."""
        return False

    def close(self) -> None:
        """Ends the thread after the function has taken the waiting batches.

        Waits for that, at most ``patience`` seconds.
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
