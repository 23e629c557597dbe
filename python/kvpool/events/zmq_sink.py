"""``ZmqSink``: a PUB socket for live batches, and a ROUTER for those that a consumer missed.

The frames are vLLM's: topic, number (8 bytes, big-endian), batch. A replay is asked for with a number,
behind an empty frame as a REQ socket writes it or without one, as AIBrix's client does, and answered in
the same form, batch by batch; then comes a number of all ones, with an empty batch.

A PUB socket never waits: what a subscriber that is slow or gone cannot take, ZeroMQ drops. Such a
subscriber sees a gap in the numbers and asks for a replay. Replays are sent a few batches at a time,
between live ones.

What waits for consumers has a bound in bytes for all of them together, and so has the number of
connections (:mod:`kvpool.events.zmq_bounds`). If live batches reach their bound, the socket drops all
of them and all connections, opens again, and consumers are sent everything anew.

Events have the tokens of prompts, and ZeroMQ as used here neither encrypts nor asks who is there. So
the default is the loopback interface: say another one only where everybody who can connect may read
prompts.
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

#: Endpoints that are bound if nothing else is said: as vLLM and SGLang have it.
BOUND = ("*", "::", "0.0.0.0", "ipc://", "inproc://")  # noqa: S104


class ZmqSink:
    """Publishes batches on a ZeroMQ PUB socket.

    Needs the package ``pyzmq``: ``pip install 'kvpool[events]'``.

    Args:
        endpoint: Where; a port ``*`` or 0 is any free one. ``tcp://*:5557`` is every interface: see the
            module.
        replay_endpoint: Where replays are asked for; ``None`` has none. Always bound.
        topic: The first frame. llm-d wants ``kv@HOST:PORT@MODEL``; all others take any.
        form: The form of the events.
        bind: Whether the endpoint is bound, or connected to. By default bound if it has a wildcard, is
            on the loopback interface, or is ``ipc`` or ``inproc``.
        high_water_mark: Batches that wait for one subscriber, at most.
        replay_batches: Batches that are kept for replays.
        replay_bytes: Bytes that these have at most.
        waiting_bytes: Bytes of live batches that wait for all subscribers together. A batch beyond them
            is lost.
        waiting_replay_bytes: Bytes of replays that wait for all consumers together.
        most_peers: Connections that each of the two sockets accepts.

    Raises:
        MissingPackageError: There is no ``pyzmq``.
        InvalidArgumentError: A number is out of range, or an endpoint cannot be had.
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
        #: Where it is, once it is open: ports that were any free ones are numbers then.
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
        """Requests for replays that are malformed, or beyond the limit of consumers."""
        return 0 if self._replays is None else self._replays.refused

    def _is_bound(self) -> bool:
        if self._bind is not None:
            return self._bind
        loopback = "127.0.0.1", "localhost"
        return any(part in self.endpoint for part in (*BOUND, *loopback))

    def open(self, replays: Replays) -> None:
        """Opens the sockets, unless they are."""
        self._owner.check()
        if self._context is not None:
            if self._replays is not None:
                self._replays.replace(replays)
            return
        # A context of its own: closing it leaves the sockets of others alone.
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
        """Hands a batch to ZeroMQ, which sends it to who is there."""
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
        """Whether there is a socket. Opens one again after all connections were closed."""
        if self._live is None and self._context is not None:
            try:
                self._live = self._open_live()
            except InvalidArgumentError as error:
                # ZeroMQ closes sockets in the background: the next turn tries again.
                logger.debug("%s", error)
        return self._live is not None

    def serve(self) -> bool:
        """Reads what was asked for, and sends some of it."""
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
