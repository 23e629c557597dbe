"""Tests the publisher's sockets: live batches, replays in both forms, late joiners, and subscribers
that are slow, dead or send garbage.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.events import Publisher, ZmqSink
from kvpool.events.zmq_replays import AT_ONCE
from tests.events.consumers import Vllm

zmq = pytest.importorskip("zmq")

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 4
END = b"\xff" * 8
#: Largest number of milliseconds that a socket waits, so that a test that hangs ends.
PATIENCE = 30_000


class Client:
    """A ZeroMQ context, and the sockets that a test has opened in it."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.sockets: list[Any] = []

    def close(self) -> None:
        for socket in self.sockets:
            socket.close(0)
        self.context.term()


@pytest.fixture
def context() -> Iterator[Client]:
    made = Client()
    yield made
    made.close()


def local(**more: Any) -> ZmqSink:
    return ZmqSink("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", **more)


def connected(context: Client, kind: int, endpoint: str | None) -> Any:
    socket = context.context.socket(kind)
    context.sockets.append(socket)
    socket.rcvtimeo = socket.sndtimeo = PATIENCE
    socket.linger = 0
    socket.connect(endpoint)
    return socket


def subscribed(context: Client, sink: ZmqSink, publisher: Publisher, topic: bytes = b"") -> Any:
    """Returns a subscriber that has received a batch, so the publisher knows its subscription."""
    socket = connected(context, zmq.SUB, sink.endpoint)
    socket.subscribe(topic)
    # A subscription takes a moment to arrive. Publish heartbeats until one of them is received.
    while not socket.poll(20):
        publisher.flush()
    return socket


def publisher_of(manager: kvpool.CacheManager, sink: ZmqSink, **more: Any) -> Publisher:
    return Publisher(manager, [sink], start=False, base=1 << 20, **{"heartbeat": 1e-9, **more})


def fill(manager: kvpool.CacheManager, request: int, blocks: int = 2) -> None:
    manager.admit(request, [request] * (BLOCK * blocks))
    manager.commit(request, BLOCK * blocks)


def replayed(publisher: Publisher, socket: Any, request: list[bytes]) -> list[list[bytes]]:
    """Requests a replay. Returns all replies up to the last one."""
    socket.send_multipart(request)
    answers: list[list[bytes]] = []
    while not answers or END not in answers[-1]:
        publisher.flush()
        while socket.poll(5):
            answers.append(socket.recv_multipart())
    return answers


def test_a_subscriber_gets_three_frames_in_order(context: Client) -> None:
    manager, sink = kvpool.CacheManager(64, block_size=BLOCK), local(topic="kv@127.0.0.1:8000@m")
    with publisher_of(manager, sink) as publisher:
        socket = subscribed(context, sink, publisher, b"kv@")
        fill(manager, 1)
        publisher.flush()
        topic, number, batch = socket.recv_multipart()
        while b"BlockStored" not in batch:
            last = number
            topic, number, batch = socket.recv_multipart()
            assert struct.unpack(">Q", number)[0] == struct.unpack(">Q", last)[0] + 1
        assert topic == b"kv@127.0.0.1:8000@m"


@pytest.mark.parametrize("empty", [True, False], ids=["three frames", "two frames"])
def test_a_replay_is_answered_in_the_form_in_which_it_was_asked_for(context: Client, empty: bool) -> None:
    manager, sink = kvpool.CacheManager(64, block_size=BLOCK), local()
    with publisher_of(manager, sink) as publisher:
        for request in range(80):
            fill(manager, request % 8)
            publisher.flush()
            manager.release(request % 8)
        last = publisher.snapshot().cut
        assert last is not None
        socket = connected(context, zmq.DEALER, sink.replay_endpoint)
        head = [b""] if empty else []
        answers = replayed(publisher, socket, [*head, struct.pack(">Q", last - 70)])
        assert answers[-1] == [*head, b"", END, b""]
        numbers = [struct.unpack(">Q", answer[-2])[0] for answer in answers[:-1]]
        assert numbers[:71] == list(range(last - 70, last + 1))
        assert all(answer[:-2] == [*head, b""] for answer in answers[:-1])
        # Request all batches from number 0. The number in the first answer shows that no older batch
        # exists.
        answers = replayed(publisher, socket, [*head, bytes(8)])
        assert struct.unpack(">Q", answers[0][-2])[0] == 1 << 20
        reader = Vllm()
        for answer in answers[:-1]:
            reader.take(struct.unpack(">Q", answer[-2])[0], answer[-1])
        assert len(reader.prompts()["GPU"]) == 16


def test_a_replay_is_sent_in_parts_and_ends_though_there_are_always_more_batches(context: Client) -> None:
    # A replay is sent in small parts, because other Python threads wait during each part. It ends at
    # the last batch that existed at the time of the request. All batches before the request are
    # available, whatever their number.
    manager, sink = kvpool.CacheManager(64, block_size=BLOCK), local(replay_batches=1 << 20)
    with publisher_of(manager, sink) as publisher:
        for _ in range(100):
            publisher.flush()
        socket = connected(context, zmq.DEALER, sink.replay_endpoint)
        socket.send_multipart([b"", bytes(8)])
        replays = sink._replays
        assert replays is not None
        while not replays.asked:
            assert publisher.flush() == bool(replays.asked)
        asked, turns = next(iter(replays.asked.values())), 1
        until = asked.until
        assert asked.next - (1 << 20) <= AT_ONCE
        assert until <= (publisher.snapshot().cut or 0)
        answers: list[list[bytes]] = []
        while not answers or END not in answers[-1]:
            # The next part is sent only when the previous part has left the socket. On a busy machine,
            # a flush may have nothing to do until then.
            turns += publisher.flush()
            if socket.poll(1):
                answers.append(socket.recv_multipart())
        assert turns >= 100 // AT_ONCE
        numbers = [struct.unpack(">Q", answer[-2])[0] for answer in answers[:-1]]
        assert numbers == list(range(1 << 20, (1 << 20) + len(numbers)))
        assert until in numbers
        assert publisher._core.replay(0, 0, 100, 1)[0][0] == 1 << 20
        assert len(publisher._core.replay(0, 0, 100, 1)) == 1


def test_a_req_socket_gets_its_first_answer(context: Client) -> None:
    manager, sink = kvpool.CacheManager(64, block_size=BLOCK), local()
    with publisher_of(manager, sink) as publisher:
        publisher.flush()
        socket = connected(context, zmq.REQ, sink.replay_endpoint)
        socket.send(bytes(8))
        while not socket.poll(5):
            publisher.flush()
        assert socket.recv_multipart()[1] == struct.pack(">Q", 1 << 20)


@pytest.mark.parametrize(
    "request_frames",
    [[b"snapshot"], [b"", b"1234567"], [b"x", bytes(8)], [b"", bytes(8), b""], [b""], [b"", b""]],
)
def test_requests_that_are_none_are_counted_and_do_no_harm(
    context: Client, request_frames: list[bytes]
) -> None:
    manager, sink = kvpool.CacheManager(64, block_size=BLOCK), local()
    with publisher_of(manager, sink) as publisher:
        socket = connected(context, zmq.DEALER, sink.replay_endpoint)
        if request_frames == [b"snapshot"]:
            # Any eight bytes are a valid batch number. This number is far beyond the last batch.
            assert replayed(publisher, socket, request_frames)[-1] == [b"", END, b""]
            assert sink.refused == 0
            return
        socket.send_multipart(request_frames)
        while not sink.refused:
            publisher.flush()
        assert replayed(publisher, socket, [bytes(8)])[-1] == [b"", END, b""]


def test_a_late_subscriber_gets_earlier_batches_by_a_replay(context: Client) -> None:
    manager, sink = kvpool.CacheManager(64, block_size=BLOCK), local()
    with publisher_of(manager, sink) as publisher:
        for request in range(3):
            fill(manager, request)
            publisher.flush()
        live = subscribed(context, sink, publisher)
        asked = connected(context, zmq.DEALER, sink.replay_endpoint)
        reader = Vllm()
        for *_, number, batch in replayed(publisher, asked, [b"", bytes(8)])[:-1]:
            reader.take(struct.unpack(">Q", number)[0], batch)
        fill(manager, 9)
        publisher.flush()
        cut = publisher.snapshot().cut or 0
        while (reader.last or 0) < cut:
            _, number, batch = live.recv_multipart()
            at = struct.unpack(">Q", number)[0]
            if at > (reader.last or 0):
                reader.take(at, batch)
        assert reader.prompts()["GPU"] == {(r,) * n for r in (0, 1, 2, 9) for n in (4, 8)}


def test_slow_dead_and_invalid_subscribers_delay_no_one_else(context: Client) -> None:
    manager, sink = kvpool.CacheManager(64, block_size=BLOCK), local(high_water_mark=4)
    with publisher_of(manager, sink) as publisher:
        slow = subscribed(context, sink, publisher)
        dead = subscribed(context, sink, publisher)
        dead.close(0)
        rude = connected(context, zmq.DEALER, sink.replay_endpoint)
        for _ in range(300):
            rude.send_multipart([b"", bytes(8)])
        for request in range(200):
            fill(manager, request)
            publisher.flush()
            manager.release(request)
        counts = publisher.counts()
        assert (counts.lost, counts.failures) == (0, 0)
        # The slow subscriber can request the batches that it has missed.
        asked = connected(context, zmq.DEALER, sink.replay_endpoint)
        reader = Vllm()
        for *_, number, batch in replayed(publisher, asked, [b"", bytes(8)])[:-1]:
            reader.take(struct.unpack(">Q", number)[0], batch)
        assert len(reader.prompts()["GPU"]) == sum(counts.contents)
        slow.close(0)


def test_the_publishers_thread_publishes_without_a_call(context: Client) -> None:
    manager, sink = kvpool.CacheManager(64, block_size=BLOCK), local()
    with Publisher(manager, [sink], interval=0.001, heartbeat=0.01) as publisher:
        socket = connected(context, zmq.SUB, sink.endpoint)
        socket.subscribe(b"")
        socket.recv_multipart()  # a heartbeat: the subscription works from here on
        fill(manager, 1)
        while b"BlockStored" not in socket.recv_multipart()[2]:
            pass
        snapshot = publisher.snapshot()
        assert snapshot.epoch >> 20 > 1_700_000_000
        assert snapshot.cut is not None
        assert snapshot.cut > snapshot.epoch


def test_two_publishers_cannot_have_one_endpoint_and_closing_gives_it_back() -> None:
    manager, sink = kvpool.CacheManager(8), local()
    publisher = publisher_of(manager, sink)
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="cannot be had"):
        publisher_of(kvpool.CacheManager(8), ZmqSink(sink.endpoint))
    publisher.close()
    assert not publisher.flush()
    publisher_of(kvpool.CacheManager(8), ZmqSink(sink.endpoint)).close()


@pytest.mark.parametrize(
    ("endpoint", "bind", "expected"),
    [
        ("tcp://*:5557", None, True),
        ("tcp://127.0.0.1:5557", None, True),
        ("ipc:///tmp/x", None, True),
        ("tcp://router:5557", None, False),
        ("tcp://router:5557", True, True),
        ("tcp://127.0.0.1:5557", False, False),
    ],
)
def test_endpoints_are_bound_or_connected_to(endpoint: str, bind: bool | None, expected: bool) -> None:
    assert ZmqSink(endpoint, bind=bind)._is_bound() is expected


@pytest.mark.parametrize("name", ["high_water_mark", "replay_batches"])
def test_numbers_out_of_range_are_refused(name: str) -> None:
    settings: dict[str, Any] = {name: 0}
    with pytest.raises(kvpool.errors.InvalidArgumentError, match=f"{name} is 0"):
        ZmqSink(**settings)


def test_without_the_package_the_sink_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(kvpool.errors.MissingPackageError, match=r"kvpool\[events\]"):
        ZmqSink()
