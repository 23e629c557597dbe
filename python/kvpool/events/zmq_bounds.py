"""Limits a ZeroMQ socket's connections and waiting bytes, over all of its peers together.

ZeroMQ itself limits only the number of messages that wait for one peer. It limits neither the number of
peers nor the waiting bytes, so this module does. ZeroMQ's options limit three further things. ZeroMQ
closes the connection of a peer that sends too long a frame, or takes too long for its handshake. Over
TCP, it also closes the connection of a peer that reads nothing for :data:`PATIENCE` seconds.
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

#: The longest frame that a peer may send, in bytes. Requests have 8 bytes; handshakes and
#: subscriptions have a few hundred.
LONGEST_FRAME: Final = 1024
#: A peer that reads nothing for this number of seconds loses its replay, and over TCP its connection.
PATIENCE: Final = 10.0
#: Seconds that a peer may take for ZeroMQ's handshake. After that, its connection is closed.
_HANDSHAKE: Final = 5.0
#: The largest number of messages of one peer that ZeroMQ queues for reading. Further messages wait in the
#: kernel.
_REQUESTS: Final = 16
#: Bytes that the kernel buffers for each connection, in each direction.
_KERNEL_BYTES: Final = 256 << 10


class Waiting:
    """Counts the bytes of messages that ZeroMQ has not yet passed to the kernel.

    A message counts once, no matter how many peers receive it.
    """

    def __init__(self) -> None:
        self._sent: list[tuple[Any, int]] = []

    def add(self, tracker: Any, length: int) -> None:
        """Counts a message until its tracker is ``done``, which means that ZeroMQ has sent it."""
        self._sent.append((tracker, length))

    def bytes(self) -> int:
        """Returns the number of bytes that wait to be sent. O(waiting messages)."""
        if not self._sent:
            return 0
        self._sent = [(tracker, length) for tracker, length in self._sent if not tracker.done]
        return sum(length for _, length in self._sent)


class BoundedSocket:
    """A socket with at most ``most_peers`` connections. Further connections are closed in the next turn.

    Args:
        zmq: The module ``zmq``.
        context: The context in which to create the socket.
        kind: ``zmq.PUB`` or ``zmq.ROUTER``.
        endpoint: The endpoint. A port of ``*`` or 0 means any free port.
        bound: Whether to bind the socket; otherwise it connects.
        high_water_mark: The largest number of messages that wait for one peer.
        most_peers: The largest number of connections.

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
        # Plain ints are used in every turn, because comparing members of zmq's enumerations is slow.
        self._events, self._readable = int(zmq.EVENTS), int(zmq.POLLIN)
        self._peers: set[int] = set()
        #: Number of connections that this object closed because the socket already had ``most_peers``
        #: connections.
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
                # The monitor socket has no limit on waiting events. With a limit, the thread of ZeroMQ
                # that accepts connections could block until the events are read.
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
        # ZeroMQ copies short messages, and cannot track copies. With a threshold of 0, it copies none,
        # so the bytes of every message can be counted until it is sent.
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
        """Sends a message, and counts the bytes of its last frame as waiting.

        Returns a tracker. Its ``done`` is true once the message has been sent.

        Raises:
            zmq.ZMQError: The socket does not accept the message. In this case, it accepts none of the
                message's frames.
        """
        flags = self._zmq.NOBLOCK
        for frame in head:
            self.socket.send(frame, flags | self._zmq.SNDMORE)
        tracker = self.socket.send(batch, flags, copy=False, track=True)
        self.waiting.add(tracker, len(batch))
        return tracker

    def has_message(self, socket: Any = None) -> bool:
        """Returns whether a message can be read. Costs half as much as a read that fails."""
        return bool((self.socket if socket is None else socket).getsockopt(self._events) & self._readable)

    def watch(self) -> None:
        """Updates the number of connections, and closes those beyond the limit."""
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
        """Number of connections of a bound socket at the time of the latest call of :meth:`watch`."""
        return len(self._peers)

    def close(self) -> None:
        """Closes the socket, and drops the waiting messages."""
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        self.socket.close(0)


def _shut(descriptor: int, endpoint: str) -> None:
    """Closes a connection that ZeroMQ has accepted at an endpoint.

    ZeroMQ may have closed the descriptor already, and the process may have reused its number for
    another file. Therefore this function duplicates the descriptor and checks its address. It does not
    touch any other connection or file.
    """
    with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(descriptor)) as connection:
        connection.getpeername()
        name = connection.getsockname()
        parts = urlsplit(endpoint)
        own = parts.port if parts.scheme == "tcp" else endpoint.removeprefix("ipc://")
        if (name[1] if isinstance(name, tuple) else name) == own:
            connection.shutdown(sockets.SHUT_RDWR)
