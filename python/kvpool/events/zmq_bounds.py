"""Bounds of a ZeroMQ socket for all of its peers together: connections, and bytes that wait to be sent.

ZeroMQ itself bounds the number of messages that wait for one peer. It bounds neither the number of
peers nor the bytes. Its options do the rest: a frame that is too long, a handshake that takes too long,
and a TCP peer that takes no bytes for :data:`PATIENCE` seconds end their connection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket as sockets
import struct
from typing import Any, Final
from urllib.parse import urlsplit

from kvpool.errors import InvalidArgumentError

__all__ = ["LONGEST_FRAME", "PATIENCE", "BoundedSocket", "Waiting"]

logger = logging.getLogger("kvpool.events")

# : Bytes of the longest frame that a peer may send. Requests have 8, handshakes and subscriptions some
# hundreds.
LONGEST_FRAME: Final = 1024
#: Seconds after which a peer that takes no bytes loses its replay, and over TCP its connection.
PATIENCE: Final = 10.0
#: Seconds that a peer has for its handshake.
_HANDSHAKE: Final = 5.0
#: Messages of one peer that wait to be read: more wait in the kernel.
_REQUESTS: Final = 16
#: Bytes that the kernel buffers for each connection, in each direction.
_KERNEL_BYTES: Final = 256 << 10


class Waiting:
    """Counts the bytes that ZeroMQ has not yet passed to the kernel, each message once however many
    peers it is for.
    """

    def __init__(self) -> None:
        self._sent: list[tuple[Any, int]] = []

    def add(self, tracker: Any, length: int) -> None:
        """Counts a message. Its tracker is ``done`` when the message has left."""
        self._sent.append((tracker, length))

    def bytes(self) -> int:
        """Returns the bytes that wait. O(messages that wait)."""
        if not self._sent:
            return 0
        self._sent = [(tracker, length) for tracker, length in self._sent if not tracker.done]
        return sum(length for _, length in self._sent)


class BoundedSocket:
    """A socket with at most ``most_peers`` connections. Those beyond are closed with the next turn.

    Args:
        zmq: The package.
        context: The context of the socket.
        kind: ``zmq.PUB`` or ``zmq.ROUTER``.
        endpoint: The endpoint; a port ``*`` or 0 is any free one.
        bound: Whether the socket is bound, or connected.
        high_water_mark: Messages that wait for one peer.
        most_peers: Connections that the socket keeps.

    Raises:
        InvalidArgumentError: The endpoint is not available.
    """

    def __init__(
        self,
        zmq: Any,
        context: Any,
        kind: int,
        endpoint: str,
        *,
        bound: bool,
        high_water_mark: int,
        most_peers: int,
    ) -> None:
        self._zmq, self._most_peers = zmq, most_peers
        # Numbers: a turn is short, and enumerations are slow.
        self._events, self._readable = int(zmq.EVENTS), int(zmq.POLLIN)
        self._peers: set[int] = set()
        #: Connections that were closed, because others were there first.
        self.refused = 0
        self.waiting = Waiting()
        self.socket = context.socket(kind)
        self._monitor: Any = None
        try:
            self._limit(high_water_mark)
            if bound:
                events = f"inproc://events-{id(self)}"
                self.socket.monitor(events, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
                self._monitor = context.socket(zmq.PAIR)
                # The thread that accepts connections never waits for a reader of these events.
                self._monitor.rcvhwm = 0
                self._monitor.connect(events)
            self.endpoint = self._attach(endpoint, bound)
        except BaseException:
            self.close()
            raise

    def _limit(self, high_water_mark: int) -> None:
        zmq, socket = self._zmq, self.socket
        socket.linger = 0
        socket.sndhwm = high_water_mark
        socket.rcvhwm = _REQUESTS
        socket.setsockopt(zmq.MAXMSGSIZE, LONGEST_FRAME)
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(_HANDSHAKE * 1000))
        socket.setsockopt(zmq.TCP_MAXRT, int(PATIENCE * 1000))
        socket.setsockopt(zmq.SNDBUF, _KERNEL_BYTES)
        socket.setsockopt(zmq.RCVBUF, _KERNEL_BYTES)
        # Every message is counted until it has left, also a small one.
        socket.copy_threshold = 0

    def _attach(self, endpoint: str, bound: bool) -> str:
        zmq = self._zmq
        try:
            if not bound:
                self.socket.connect(endpoint)
                return endpoint
            self.socket.bind(endpoint[:-2] + ":*" if endpoint.endswith(":0") else endpoint)
        except zmq.ZMQError as error:
            raise InvalidArgumentError(f"{endpoint} cannot be had: {error}") from error
        return str(self.socket.getsockopt(zmq.LAST_ENDPOINT).decode())

    def send(self, head: list[bytes], batch: bytes) -> Any:
        """Sends a message, and counts its last frame.

        Returns a tracker: ``done`` says that the message has left.

        Raises:
            zmq.ZMQError: The socket does not take the message. It takes no frame of it then.
        """
        flags = self._zmq.NOBLOCK
        for frame in head:
            self.socket.send(frame, flags | self._zmq.SNDMORE)
        tracker = self.socket.send(batch, flags, copy=False, track=True)
        self.waiting.add(tracker, len(batch))
        return tracker

    def has_message(self, socket: Any = None) -> bool:
        """Whether a message can be read. Costs half of a read that fails."""
        return bool((self.socket if socket is None else socket).getsockopt(self._events) & self._readable)

    def watch(self) -> None:
        """Counts connections, and closes those beyond the limit."""
        while self._monitor is not None and self.has_message(self._monitor):
            kind, descriptor = struct.unpack("=HI", self._monitor.recv_multipart(self._zmq.NOBLOCK)[0])
            if kind == self._zmq.EVENT_DISCONNECTED:
                self._peers.discard(descriptor)
            elif len(self._peers) < self._most_peers:
                self._peers.add(descriptor)
            else:
                self.refused += 1
                if self.refused == 1:
                    logger.warning("%s has %d peers: others are refused", self.endpoint, len(self._peers))
                _shut(descriptor, self.endpoint)

    @property
    def peers(self) -> int:
        """The connections of a bound socket, as of the last :meth:`watch`."""
        return len(self._peers)

    def close(self) -> None:
        """Closes the socket, and gives up what waits."""
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        self.socket.close(0)


def _shut(descriptor: int, endpoint: str) -> None:
    """Ends a connection that ZeroMQ has accepted at an endpoint.

    ZeroMQ may have closed the descriptor already, and the process may use its number for another file.
    So this looks at a duplicate, and leaves everything alone that is no connection of the endpoint.
    """
    with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(descriptor)) as connection:
        connection.getpeername()
        name = connection.getsockname()
        parts = urlsplit(endpoint)
        own = parts.port if parts.scheme == "tcp" else endpoint.removeprefix("ipc://")
        if (name[1] if isinstance(name, tuple) else name) == own:
            connection.shutdown(sockets.SHUT_RDWR)
