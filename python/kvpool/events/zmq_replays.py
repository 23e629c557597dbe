"""Replays on a ROUTER socket: requests for batches that a consumer missed, and the answers.

A consumer has one part of its replay on the way at a time. The parts of all consumers together have a
bound in bytes: a consumer that reads nothing holds its part, and neither the others up nor the memory.
After :data:`~kvpool.events.zmq_bounds.PATIENCE` seconds it loses its replay, and over TCP its
connection.
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

#: The number behind a replay.
END: Final = b"\xff" * 8
#: Batches of replays that are sent at once: the interpreter is held meanwhile.
AT_ONCE: Final = 8
# : Consumers that may wait for replays; more are refused, unanswered. A consumer that asks again
# replaces its request.
MOST_REPLAYS: Final = 64
#: Seconds after a part was sent in which its consumer is polled often.
_EAGER: Final = 0.1
#: Messages that wait for one consumer: a part, its end, and what ZeroMQ has not yet counted as sent.
_HIGH_WATER_MARK: Final = 8 * AT_ONCE


@dataclasses.dataclass(slots=True)
class _Asked:
    """The latest request of a consumer."""

    #: The frames that its answers begin with.
    head: list[bytes]
    #: The next number.
    next: int
    #: The last number at the time of the request. The consumer gets later batches live.
    until: int
    #: Trackers of the part that was sent last, and its time.
    part: list[Any] = dataclasses.field(default_factory=list)
    sent: float = 0.0


class ReplaySocket:
    """Answers requests for replays.

    Args:
        zmq: The package.
        context: The context of the socket.
        endpoint: The endpoint. Always bound.
        replays: Returns batches that are kept.
        topic: The frame in front of a batch.
        most_bytes: Bytes of replays that wait, of all consumers together. One more part may be on top
            of them: 64 KiB, or one batch that is larger.
        most_peers: Connections.
        clock: Seconds.

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
        # A send to a consumer that is gone is an error, and the end of its replay.
        self.router.socket.router_mandatory = True
        self.asked: dict[bytes, _Asked] = {}
        #: Requests that are malformed, or beyond the limit of consumers.
        self.refused = 0

    def replace(self, replays: Replays) -> None:
        """Answers from other batches from now on."""
        self._replays = replays

    def serve(self, last: int) -> bool:
        """Reads requests, and sends one part of one replay.

        Args:
            last: The number of the last batch.

        Returns:
            Whether another part can be sent soon. A consumer that takes nothing does not count.
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
                # The consumer is gone, or takes nothing: it may ask again.
                logger.warning("a replay ended early: %s", error)
        return any(now - asked.sent < _EAGER or name in ready for name, asked in self.asked.items())

    def _send(self, asked: _Asked, now: float) -> bool:
        """Sends a part. Returns whether there is more."""
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
            # Behind the name of who asks: an empty frame and a number, or a number alone.
            well = len(frames) == 2 or (len(frames) == 3 and not frames[1])
            full = len(self.asked) >= MOST_REPLAYS and frames[0] not in self.asked
            if not well or len(frames[-1]) != 8 or full:
                self.refused += 1
                continue
            before = self.asked.get(frames[0])
            asked = _Asked(frames[:-1], struct.unpack(">Q", frames[-1])[0], last)
            if before is not None:
                # A consumer that asks again gets no second part before its first has left.
                asked.part, asked.sent = before.part, before.sent
            self.asked[frames[0]] = asked

    def close(self) -> None:
        """Closes the socket."""
        self.router.close()
