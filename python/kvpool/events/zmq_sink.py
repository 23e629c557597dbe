"""``ZmqSink``: publishes batches on a ZeroMQ PUB socket, and answers replay requests on a ROUTER socket.

A replay sends a consumer the batches that it missed.

The frames are those of vLLM: topic, batch number (8 bytes, big-endian), batch. A replay request
contains the first batch number to send. An empty frame may precede it: a REQ socket writes one, and
AIBrix's client does not. Each batch is answered in the same form. The replay ends with a number of all
ones and an empty batch.

A PUB socket never waits. ZeroMQ drops the batches that a slow or disconnected subscriber cannot take.
Such a subscriber sees a gap in the numbers and requests a replay. The sink sends replays a few batches
at a time, between live batches.

The bytes that wait for all consumers together are limited, and so is the number of connections
(:mod:`kvpool.events.zmq_bounds`). If the waiting live batches reach their limit, the sink closes the
PUB socket. This drops all waiting batches and all connections. The sink then opens the socket again,
and the publisher sends all cached contents.

Events contain the tokens of prompts, and the sockets use neither encryption nor authentication.
Therefore the default is the loopback interface. Use another interface only if everyone who can connect
to it may read the prompts.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Any

from kvpool._owner import Owner
from kvpool._text import utf8
from kvpool.errors import InvalidArgumentError, MissingPackageError

from .zmq_bounds import BoundedSocket
from .zmq_replays import ReplaySocket

if TYPE_CHECKING:
    from .sinks import Form, Replays

logger = logging.getLogger("kvpool.events")

#: An endpoint that contains one of these texts is bound by default, as in vLLM and SGLang.
BOUND = ("*", "::", "0.0.0.0", "ipc://", "inproc://")  # noqa: S104


class ZmqSink:
    """Publishes batches on a ZeroMQ PUB socket.

    Needs the package ``pyzmq``: ``pip install 'kvpool[events]'``.

    Args:
        endpoint: The address of the PUB socket. A port of ``*`` or 0 means any free port.
            ``tcp://*:5557`` means every interface: see the warning in the module's documentation.
        replay_endpoint: The address for replay requests; ``None`` for no replays. It is always bound.
        topic: The first frame. llm-d requires ``kv@HOST:PORT@MODEL``; all other consumers accept any
            topic.
        form: The encoding of the events.
        bind: Whether to bind the endpoint or to connect to it. By default, the sink binds endpoints
            that have a wildcard, are on the loopback interface, or are ``ipc`` or ``inproc``.
        high_water_mark: The largest number of batches that wait for one subscriber.
        replay_batches: The largest number of batches that are stored for replays.
        replay_bytes: The largest number of bytes of these stored batches.
        waiting_bytes: The largest number of bytes of live batches that wait for all subscribers together. A
            batch that would exceed this limit is lost.
        waiting_replay_bytes: The largest number of bytes of replays that wait for all consumers together.
        most_peers: The largest number of connections that each of the two sockets accepts.

    Raises:
        MissingPackageError: The package ``pyzmq`` is missing.
        InvalidArgumentError: A number is out of range, or an endpoint cannot be opened.
    """

    def __init__(
        self,
        endpoint: str = "tcp://127.0.0.1:5557",
        replay_endpoint: str | None = None,
        *,
        topic: str = "",
        form: Form = "vllm",
        bind: bool | None = None,
        high_water_mark: int = 100_000,
        replay_batches: int = 10_000,
        replay_bytes: int = 64 << 20,
        waiting_bytes: int = 256 << 20,
        waiting_replay_bytes: int = 16 << 20,
        most_peers: int = 128,
    ) -> None:
        for name, value in (
            ("high_water_mark", high_water_mark),
            ("replay_batches", replay_batches),
            ("waiting_bytes", waiting_bytes),
            ("waiting_replay_bytes", waiting_replay_bytes),
            ("most_peers", most_peers),
        ):
            if not 0 < value < 1 << 31:
                raise InvalidArgumentError(f"{name} is {value}: must be from 1 to {(1 << 31) - 1}")
        try:
            import zmq
        except ImportError as error:
            raise MissingPackageError("kvpool.events needs pyzmq: pip install 'kvpool[events]'") from error
        self._owner = Owner("the sink")
        self._zmq = zmq
        self.form: Form = form
        self.replay_batches = replay_batches
        self.replay_bytes = replay_bytes
        #: The address. Once the socket is open, a wildcard port is replaced by the actual number.
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        self._bind = bind
        self._topic = utf8(topic, "topic")
        self._high_water_mark = high_water_mark
        self._waiting_bytes = waiting_bytes
        self._waiting_replay_bytes = waiting_replay_bytes
        self._most_peers = most_peers
        self._context: Any = None
        self._live: BoundedSocket | None = None
        self._replays: ReplaySocket | None = None
        self._last = -1

    @property
    def refused(self) -> int:
        """Number of refused replay requests: malformed ones, and those beyond the limit of consumers."""
        return 0 if self._replays is None else self._replays.refused

    def _is_bound(self) -> bool:
        if self._bind is not None:
            return self._bind
        loopback = "127.0.0.1", "localhost"
        return any(part in self.endpoint for part in (*BOUND, *loopback))

    def open(self, replays: Replays) -> None:
        """Opens the sockets, unless they are open."""
        self._owner.check()
        if self._context is not None:
            if self._replays is not None:
                self._replays.replace(replays)
            return
        # The sink has its own context, so that closing it does not affect other sockets.
        self._context = self._zmq.Context()
        try:
            self._live = self._open_live()
            self.endpoint = self._live.endpoint
            if self.replay_endpoint is not None:
                self._replays = ReplaySocket(
                    self._zmq,
                    self._context,
                    self.replay_endpoint,
                    replays,
                    topic=self._topic,
                    most_bytes=self._waiting_replay_bytes,
                    most_peers=self._most_peers,
                )
                self.replay_endpoint = self._replays.router.endpoint
        except BaseException:
            self.close()
            raise

    def _open_live(self) -> BoundedSocket:
        return BoundedSocket(
            self._zmq,
            self._context,
            self._zmq.PUB,
            self.endpoint,
            bound=self._is_bound(),
            high_water_mark=self._high_water_mark,
            most_peers=self._most_peers,
        )

    def send(self, number: int, batch: bytes) -> bool:
        """Passes a batch to ZeroMQ, which sends it to the connected subscribers."""
        self._owner.check()
        if self._live is None:
            return False
        self._last = number
        waits = self._live.waiting.bytes()
        if waits and waits + len(batch) > self._waiting_bytes:
            logger.warning(
                "%d bytes wait for subscribers that do not read: all connections are closed", waits
            )
            self._live.close()
            self._live = None
            return False
        try:
            self._live.send([self._topic, struct.pack(">Q", number)], batch)
        except self._zmq.ZMQError as error:
            logger.warning("batch %d was not sent: %s", number, error)
            return False
        return True

    def has_room(self) -> bool:
        """Returns whether the PUB socket is open. Opens it again after all connections were closed."""
        if self._live is None and self._context is not None:
            try:
                self._live = self._open_live()
            except InvalidArgumentError as error:
                # ZeroMQ closes sockets in the background, so the endpoint may still be in use. The next
                # turn tries again.
                logger.debug("%s", error)
        return self._live is not None

    def serve(self) -> bool:
        """Reads replay requests, and sends the next part of one waiting replay."""
        self._owner.check()
        if self._live is not None:
            self._live.watch()
        return self._replays is not None and self._replays.serve(self._last)

    def close(self) -> None:
        """Closes the sockets."""
        self._owner.check()
        if self._live is not None:
            self._live.close()
        if self._replays is not None:
            self._replays.close()
        self._live = self._replays = None
        if self._context is not None:
            self._context.term()
            self._context = None
