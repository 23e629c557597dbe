"""``ZmqSink``: a PUB socket for live batches, and a ROUTER for those that a consumer missed.

The frames are vLLM's: topic, number (8 bytes, big-endian), batch. A replay is asked for with a number, behind an empty
frame as a REQ socket writes it or without one, as AIBrix's client does, and answered in the same form, batch by batch;
then comes a number of all ones, with an empty batch.

A PUB socket never waits: what a subscriber that is slow or gone cannot take, ZeroMQ drops. Such a subscriber sees a gap
in the numbers and asks for a replay. Replays are sent a few batches at a time, between live ones.

Events have the tokens of prompts, and ZeroMQ as used here neither encrypts nor asks who is there. So the default is the
loopback interface: say another one only where everybody who can connect may read prompts.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Any

from kvpool._owner import Owner
from kvpool._text import utf8
from kvpool.errors import InvalidArgumentError, MissingPackageError

if TYPE_CHECKING:
    from .sinks import Form, Replays

logger = logging.getLogger("kvpool.events")

#: The number behind a replay.
END = b"\xff" * 8
#: Batches of replays that are sent at once: the interpreter is held meanwhile.
AT_ONCE = 8
#: Consumers that may wait for replays; more are refused, unanswered. A consumer that asks again means that.
MOST_REPLAYS = 256
#: Endpoints that are bound if nothing else is said: as vLLM and SGLang have it.
BOUND = ("*", "::", "0.0.0.0", "ipc://", "inproc://")  # noqa: S104


class ZmqSink:
    """Publishes batches on a ZeroMQ PUB socket.

    Needs the package ``pyzmq``: ``pip install 'kvpool[events]'``.

    Args:
        endpoint: Where; a port ``*`` or 0 is any free one. ``tcp://*:5557`` is every interface: see the module.
        replay_endpoint: Where replays are asked for; ``None`` has none. Always bound.
        topic: The first frame. llm-d wants ``kv@HOST:PORT@MODEL``; all others take any.
        form: The form of the events.
        bind: Whether the endpoint is bound, or connected to. By default bound if it has a wildcard, is on the loopback
            interface, or is ``ipc`` or ``inproc``.
        high_water_mark: Batches that wait for one subscriber, at most.
        replay_batches: Batches that are kept for replays.
        replay_bytes: Bytes that these have at most.

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
    ) -> None:
        for name, value in (("high_water_mark", high_water_mark), ("replay_batches", replay_batches)):
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
        self._context: Any = None
        self._live: Any = None
        self._router: Any = None
        self._replays: Replays | None = None
        #: The latest that each consumer asked for: the frames that its answers begin with, the next number, and the
        #: last that there was when it asked. What came since has come to it live.
        self._asked: dict[bytes, tuple[list[bytes], int, int]] = {}
        self._last = -1
        #: Requests that are none.
        self.refused = 0

    def _is_bound(self) -> bool:
        if self._bind is not None:
            return self._bind
        loopback = "127.0.0.1", "localhost"
        return any(part in self.endpoint for part in (*BOUND, *loopback))

    def open(self, replays: Replays) -> None:
        """Opens the sockets, unless they are."""
        self._owner.check()
        zmq = self._zmq
        self._replays = replays
        if self._context is not None:
            return
        # A context of its own: closing it leaves the sockets of others alone.
        self._context = zmq.Context()
        try:
            self._live = self._socket(zmq.PUB, self._high_water_mark)
            self.endpoint = self._attach(self._live, self.endpoint, self._is_bound())
            if self.replay_endpoint is not None:
                # Room for all that is kept, and the end, twice.
                self._router = self._socket(zmq.ROUTER, 2 * (self.replay_batches + 1))
                self.replay_endpoint = self._attach(self._router, self.replay_endpoint, True)
        except BaseException:
            self.close()
            raise

    def _socket(self, kind: int, high_water_mark: int) -> Any:
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.sndhwm = high_water_mark
        return socket

    def _attach(self, socket: Any, endpoint: str, bound: bool) -> str:
        try:
            if not bound:
                socket.connect(endpoint)
                return endpoint
            socket.bind(endpoint[:-2] + ":*" if endpoint.endswith(":0") else endpoint)
        except self._zmq.ZMQError as error:
            raise InvalidArgumentError(f"{endpoint} cannot be had: {error}") from error
        return str(socket.getsockopt(self._zmq.LAST_ENDPOINT).decode())

    def send(self, number: int, batch: bytes) -> bool:
        """Hands a batch to ZeroMQ, which sends it to who is there."""
        self._owner.check()
        if self._live is None:
            return False
        self._last = number
        try:
            self._live.send_multipart((self._topic, struct.pack(">Q", number), batch), self._zmq.NOBLOCK, copy=True)
        except self._zmq.ZMQError as error:
            logger.warning("batch %d was not sent: %s", number, error)
            return False
        return True

    def has_room(self) -> bool:
        """Whether there is a socket."""
        return self._live is not None

    def serve(self) -> bool:
        """Reads what was asked for, and sends some of it."""
        self._owner.check()
        if self._router is None:
            return False
        self._read()
        if not self._asked:
            return False
        name = next(iter(self._asked))
        head, start, until = self._asked.pop(name)
        assert self._replays is not None  # noqa: S101
        batches = self._replays(start, AT_ONCE)
        try:
            for number, batch in batches:
                self._router.send_multipart([*head, self._topic, struct.pack(">Q", number), batch], self._zmq.NOBLOCK)
            if batches and batches[-1][0] < until:
                self._asked[name] = head, batches[-1][0] + 1, until
            else:
                self._router.send_multipart([*head, b"", END, b""], self._zmq.NOBLOCK)
        except self._zmq.ZMQError as error:
            # Whoever asked is gone, or takes nothing: it may ask again.
            logger.warning("a replay ended early: %s", error)
        return bool(self._asked)

    def _read(self) -> None:
        for _ in range(MOST_REPLAYS):
            try:
                frames = self._router.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.ZMQError:
                return
            # Behind the name of who asks: an empty frame and a number, or a number alone.
            well = len(frames) == 2 or (len(frames) == 3 and not frames[1])
            full = len(self._asked) >= MOST_REPLAYS and frames[0] not in self._asked
            if not well or len(frames[-1]) != 8 or full:
                self.refused += 1
                continue
            self._asked[frames[0]] = frames[:-1], struct.unpack(">Q", frames[-1])[0], self._last

    def close(self) -> None:
        """Closes the sockets."""
        self._owner.check()
        for socket in (self._live, self._router):
            if socket is not None:
                socket.close(0)
        self._live = self._router = None
        if self._context is not None:
            self._context.term()
            self._context = None
