"""Replays on a ROUTER socket: consumers request batches that they missed, and this module sends them again.

For each consumer, at most one part of its replay is being sent at a time, and the bytes of all parts
together are limited. A consumer that does not read therefore delays only its own replay. It does not
delay other consumers, and does not fill the memory. After :data:`~kvpool.events.zmq_bounds.PATIENCE`
seconds, it loses its replay, and over TCP also its connection.
"""

from __future__ import annotations

import dataclasses
import logging
import struct
import time
from typing import TYPE_CHECKING, Any, Final

from .zmq_bounds import PATIENCE, BoundedSocket

if TYPE_CHECKING:
    from collections.abc import Callable

    from .sinks import Replays

__all__ = ["AT_ONCE", "END", "MOST_REPLAYS", "ReplaySocket"]

logger = logging.getLogger("kvpool.events")

#: The batch number that marks the end of a replay.
END: Final = b"\xff" * 8
#: Number of batches in one part of a replay. The GIL is held while a part is sent.
AT_ONCE: Final = 8
#: The largest number of consumers that may wait for replays. Further requests are dropped without an answer.
#: A second request of the same consumer replaces its first one.
MOST_REPLAYS: Final = 64
#: For this number of seconds after sending a part, the next turn comes early to check whether the part
#: was taken.
_EAGER_SECONDS: Final = 0.1
#: The largest number of messages that wait for one consumer: a part, its end, and messages that ZeroMQ has
#: not yet counted as sent.
_HIGH_WATER_MARK: Final = 8 * AT_ONCE


@dataclasses.dataclass(slots=True)
class _ReplayRequest:
    """The latest request of a consumer, and the state of its replay."""

    #: The frames with which each answer to this consumer begins: its name, and an empty frame if it sent one.
    head: list[bytes]
    #: The number of the next batch to send.
    next: int
    #: The number of the last batch at the time of the request. The consumer receives later batches
    #: live.
    until: int
    #: The trackers of the part that was sent last, which show whether ZeroMQ has sent it, and the time
    #: of sending.
    part: list[Any] = dataclasses.field(default_factory=list)
    sent: float = 0.0


class ReplaySocket:
    """Answers requests for replays.

    Args:
        zmq: The module ``zmq``.
        context: The context in which to create the socket.
        endpoint: The endpoint. The socket is always bound to it.
        replays: Returns the stored batches.
        topic: The frame before a batch.
        most_bytes: The largest number of bytes of replays that wait to be sent, for all consumers together.
            One more part may exceed the limit. A part has up to 64 KiB, or consists of one larger batch.
        most_peers: The largest number of connections.
        clock: Returns the time in seconds.

    Raises:
        InvalidArgumentError: The endpoint is not available.
    """

    def __init__(
        self,
        zmq: Any,
        context: Any,
        endpoint: str,
        replays: Replays,
        *,
        topic: bytes,
        most_bytes: int,
        most_peers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._zmq, self._replays, self._topic = zmq, replays, topic
        self._most_bytes, self._clock = most_bytes, clock
        self.router = BoundedSocket(
            zmq,
            context,
            zmq.ROUTER,
            endpoint,
            bound=True,
            high_water_mark=_HIGH_WATER_MARK,
            most_peers=most_peers,
        )
        # With this option, sending to a disconnected consumer is an error. The error ends its replay.
        self.router.socket.router_mandatory = True
        self.asked: dict[bytes, _ReplayRequest] = {}
        #: Number of requests that were refused, because they were malformed or exceeded the limit of
        #: consumers.
        self.refused = 0

    def replace(self, replays: Replays) -> None:
        """Uses another function for reading stored batches from now on."""
        self._replays = replays

    def serve(self, last: int) -> bool:
        """Reads requests, and sends one part of one replay.

        Args:
            last: The number of the batch that was published last.

        Returns:
            Whether another part can be sent soon. Consumers that read nothing do not count.
        """
        self.router.watch()
        self._read(last)
        if not self.asked:
            return False
        now = self._clock()
        ready = [name for name, asked in self.asked.items() if all(tracker.done for tracker in asked.part)]
        for name in set(self.asked).difference(ready):
            if now - self.asked[name].sent > PATIENCE:
                del self.asked[name]
                logger.warning(
                    "a consumer took nothing of its replay for %g seconds: its replay ends", PATIENCE
                )
        if ready and self.router.waiting.bytes() < self._most_bytes:
            asked = self.asked.pop(ready[0])
            try:
                if self._send(asked, now):
                    self.asked[ready[0]] = asked
            except self._zmq.ZMQError as error:
                # The consumer is disconnected, or its queue is full. Its replay ends, but it may request
                # another one.
                logger.warning("a replay ended early: %s", error)
        return any(now - asked.sent < _EAGER_SECONDS or name in ready for name, asked in self.asked.items())

    def _send(self, asked: _ReplayRequest, now: float) -> bool:
        """Sends the next part of a consumer's replay. Returns whether more parts follow."""
        batches = self._replays(asked.next, AT_ONCE)
        asked.part, asked.sent = [], now
        for number, batch in batches:
            asked.part.append(self.router.send([*asked.head, self._topic, struct.pack(">Q", number)], batch))
            asked.next = number + 1
        if batches and batches[-1][0] < asked.until:
            return True
        self.router.send([*asked.head, b"", END], b"")
        return False

    def _read(self, last: int) -> None:
        for _ in range(MOST_REPLAYS):
            if not self.router.has_message():
                return
            frames = self.router.socket.recv_multipart(self._zmq.NOBLOCK)
            # The first frame is the consumer's name. An empty frame may follow, and then the batch
            # number.
            well = len(frames) == 2 or (len(frames) == 3 and not frames[1])
            full = len(self.asked) >= MOST_REPLAYS and frames[0] not in self.asked
            if not well or len(frames[-1]) != 8 or full:
                self.refused += 1
                continue
            before = self.asked.get(frames[0])
            asked = _ReplayRequest(frames[:-1], struct.unpack(">Q", frames[-1])[0], last)
            if before is not None:
                # The consumer has sent a second request. Its next part waits until the part for the
                # first request has been sent.
                asked.part, asked.sent = before.part, before.sent
            self.asked[frames[0]] = asked

    def close(self) -> None:
        """Closes the socket."""
        self.router.close()
