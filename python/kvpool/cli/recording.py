"""Records KV events from a socket as lines of a trace.

This module owns the subscription: which batches count as missed, when a replay is requested, and which
fields are written. A line has hashes, sizes and times. Tokens, adapters and salts of events are
dropped, so a recording contains no prompts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
import time
from typing import IO, TYPE_CHECKING, Any, Final

from kvpool.cli.problems import UsageError
from kvpool.errors import MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Counts", "Recorder", "endpoint_of", "line_of"]

#: Maximum number of batches that wait for this process, and of bytes of a batch. With these limits, a
#: publisher cannot fill the memory.
_MOST_WAITING: Final = 10_000
_LARGEST_BATCH: Final = 16 << 20
#: The batch number with which a publisher ends a replay.
_END: Final = (1 << 64) - 1
#: A replay of missed batches is ended after the first number of seconds without an answer, and after the
#: second number of seconds in total.
_PATIENCE: Final = 5.0
_LONGEST_REPLAY: Final = 60.0
#: Fields of an event that a trace needs, with their positions in vLLM's older form, which is an array.
_STORED: Final = {"block_hashes": 1, "parent_block_hash": 2, "block_size": 4, "medium": 6, "group_idx": 9}
_REMOVED: Final = {"block_hashes": 1, "medium": 2, "group_idx": 3}
_FIELDS: Final = {"BlockStored": _STORED, "BlockRemoved": _REMOVED}


@dataclasses.dataclass(slots=True)
class Counts:
    """The counts that a recorder reports."""

    #: Number of batches in the recording, including batches from replays.
    batches: int = 0
    #: Number of batches that the publisher sent before the recording began, and that no replay returned.
    before: int = 0
    #: Number of batches that were lost during the recording, and that no replay returned.
    missed: int = 0
    #: Number of batches that are not KV events.
    unreadable: int = 0
    #: Number of times that the publisher restarted, so that its batch numbers began again.
    restarts: int = 0


def endpoint_of(text: str, option: str = "ENDPOINT") -> str:
    """Return the ZeroMQ address for a text. HOST:PORT becomes a TCP address.

    Raises:
        UsageError: The text is not an address of ZeroMQ.

    >>> endpoint_of("localhost:5557"), endpoint_of("ipc:///tmp/events")
    ('tcp://localhost:5557', 'ipc:///tmp/events')
    """
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    if "://" not in text or text.startswith("tcp://"):
        if not (host and colon and port.isdecimal() and 0 < int(port) < 1 << 16) or "/" in text.removeprefix(
            "tcp://"
        ):
            raise UsageError(
                f"{option} is {text!r}: must be like tcp://127.0.0.1:5557",
                "vLLM publishes at port 5557 unless --kv-events-config names another",
            )
        return f"tcp://{'127.0.0.1' if host == '*' else host}:{port}"
    if not text.startswith("ipc://"):
        raise UsageError(
            f"{option} is {text!r}: must begin with tcp:// or ipc://", "tcp://127.0.0.1:5557 for instance"
        )
    return text


def line_of(batch: bytes) -> bytes | None:
    """Return a batch as a line of a trace. ``None`` if it is not a batch of KV events."""
    import msgpack

    try:
        value = msgpack.unpackb(batch, raw=False, strict_map_key=False)
        if isinstance(value, dict):
            value = [value["ts"], value["events"], value.get("data_parallel_rank")]
        ts, events, *rest = value
        line = {"ts": float(ts), "events": [_plain(event) for event in events]}
        if rest and rest[0] is not None:
            line["data_parallel_rank"] = int(rest[0])
        return json.dumps(line, default=_hexadecimal, allow_nan=False).encode() + b"\n"
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        RecursionError,
        msgpack.UnpackException,
    ):
        return None


def _plain(event: Any) -> dict[str, Any]:
    """Return a dict of an event's type and of the fields that a trace needs."""
    kind = str(event["type"] if isinstance(event, dict) else event[0])
    found = {"type": kind}
    for name, place in _FIELDS.get(kind, {}).items():
        value = event.get(name) if isinstance(event, dict) else event[place] if place < len(event) else None
        if value is not None:
            found[name] = value
    return found


def _hexadecimal(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} in an event")
    return value.hex()


class Recorder:
    """A subscription to one publisher of KV events.

    Args:
        endpoint: Address of the publisher's PUB socket.
        replay: Address of its socket for replays. Without one, missed batches are only counted.
        topic: The topic. Batches of other topics are ignored.
        output: The file for the lines.

    Raises:
        MissingPackageError: The package ``pyzmq`` or ``msgpack`` is missing.
        UsageError: ZeroMQ refuses an address.

    """

    def __init__(self, endpoint: str, replay: str | None, topic: str, output: IO[bytes]) -> None:
        try:
            import msgpack  # noqa: F401 - line_of needs it
            import zmq
        except ImportError as error:
            raise MissingPackageError(
                "kvpool trace record needs pyzmq and msgpack: pip install 'kvpool[events]'"
            ) from error
        self._zmq = zmq
        self._output = output
        self._context = zmq.Context()
        self._replay: Any = None
        self.counts = Counts()
        #: The number of the next batch to record, and of the last batch that was received live, not by a
        #: replay.
        self._next: int | None = None
        self._live = -1
        try:
            self._socket = self._made(zmq.SUB)
            self._socket.subscribe(topic.encode())
            self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            self._connect(self._socket, endpoint)
            if replay is not None:
                self._replay = self._made(zmq.DEALER)
                self._connect(self._replay, replay)
        except BaseException:
            self.close()
            raise

    def _made(self, kind: int) -> Any:
        socket = self._context.socket(kind)
        socket.linger, socket.rcvhwm, socket.maxmsgsize = 0, _MOST_WAITING, _LARGEST_BATCH
        return socket

    def _connect(self, socket: Any, address: str) -> None:
        try:
            socket.connect(address)
        except self._zmq.ZMQError as error:
            raise UsageError(f"{address}: {error}", "tcp://127.0.0.1:5557 for instance") from None

    def advance(self, seconds: float) -> bool:
        """Wait for batches, at most ``seconds``, and record them. Returns whether any arrived."""
        if self._socket.poll(int(seconds * 1000)) == 0:
            return False
        with contextlib.suppress(self._zmq.Again):
            while True:
                frames = self._socket.recv_multipart(self._zmq.NOBLOCK)
                if len(frames) < 2 or len(frames[-2]) != 8:
                    self.counts.unreadable += 1
                    continue
                self._take(struct.unpack(">Q", frames[-2])[0], frames[-1])
        self._output.flush()
        return True

    def _take(self, number: int, batch: bytes) -> None:
        if number <= self._live:
            # The publisher has restarted, so its earlier blocks no longer exist.
            self.counts.restarts += 1
            self._output.write(b'{"type": "AllBlocksCleared"}\n')
            self._next = 0
        self._live = number
        if self._next is None or number > self._next:
            first = 0 if self._next is None else self._next
            lost = number - first - self._replayed(first, number)
            if self._next is None:
                self.counts.before += lost
            else:
                self.counts.missed += lost
        if self._next is None or number >= self._next:
            self._write(batch)
            self._next = number + 1

    def _write(self, batch: bytes) -> None:
        line = line_of(batch)
        if line is None:
            self.counts.unreadable += 1
        else:
            self.counts.batches += 1
            self._output.write(line)

    def _replayed(self, first: int, end: int) -> int:
        """Request and record the batches from ``first`` to ``end - 1`` that the publisher still has.

        Returns their number.
        """
        found = 0
        for number, batch in self._answers(first):
            if first <= number < end:
                self._write(batch)
                first = number + 1
                found += 1
        return found

    def _answers(self, first: int) -> Iterator[tuple[int, bytes]]:
        if self._replay is None:
            return
        with contextlib.suppress(self._zmq.Again):
            self._replay.send_multipart((b"", struct.pack(">Q", first)), self._zmq.NOBLOCK)
        end = time.monotonic() + _LONGEST_REPLAY
        while time.monotonic() < end and self._replay.poll(int(_PATIENCE * 1000)):
            frames = self._replay.recv_multipart()
            number = struct.unpack(">Q", frames[-2])[0] if len(frames) > 1 and len(frames[-2]) == 8 else _END
            if number == _END:
                return
            yield number, frames[-1]

    def is_connected(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the connection to the publisher. Returns whether it is made."""
        return bool(self._monitor.poll(int(seconds * 1000)))

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(linger=0)
