"""Destinations of batches: the protocol of a sink, and a sink that calls a function.

Only the publisher's thread calls the methods of a sink, except for :meth:`Sink.close`. No method may
block.
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

#: The encodings of events: see `docs/events.md`.
Form: TypeAlias = Literal["vllm", "vllm-array", "vllm-bytes", "vllm-array-bytes", "sglang", "sglang-array"]


class Replays(Protocol):
    """A function that returns stored batches. A sink answers replay requests with them."""

    def __call__(self, start: int, limit: int) -> list[tuple[int, bytes]]:
        """Returns at most ``limit`` of the sink's stored batches, starting at number ``start``.

        The list is empty if there are no more batches.
        """


class Sink(Protocol):
    """A destination of numbered batches, such as a socket. No method may block."""

    @property
    def form(self) -> Form:
        """The encoding of the events for this sink."""

    @property
    def replay_batches(self) -> int:
        """The largest number of batches that the publisher stores for replays to this sink."""

    @property
    def replay_bytes(self) -> int:
        """The largest number of bytes of these stored batches."""

    def open(self, replays: Replays) -> None:
        """Starts the sink. The thread that makes the publisher calls it once."""

    def send(self, number: int, batch: bytes) -> bool:
        """Takes a batch. Returns False if the sink has no room.

        The batch is then lost. In later turns, the publisher asks :meth:`has_room` before it sends
        again.
        """

    def has_room(self) -> bool:
        """Returns whether the sink has room again for all cached contents. Only called after a lost batch."""

    def serve(self) -> bool:
        """Answers a part of the waiting replay requests. Returns whether more answers are waiting."""

    def close(self) -> None:
        """Closes the sink, and releases its resources. The sink sends nothing more."""


class CallSink:
    """Calls a function with the number and the bytes of each batch, in its own thread.

    Args:
        call: The function. If it raises, the exception is logged, and the batch is lost.
        form: The encoding of the events.
        room: The largest number of batches that wait for a slow function. Further batches are lost. Once the
            function has taken all waiting batches, all cached contents are sent again.
        patience: The largest number of seconds that :meth:`close` waits.
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
        """Queues a batch for the function.

        Returns False if the queue is full, or if the last call of the function failed.
        """
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
        """Returns False, because a function cannot request replays."""
        return False

    def close(self) -> None:
        """Ends the thread after the function has taken the waiting batches.

        Waits for the function for at most ``patience`` seconds.
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
