"""The publisher's sockets have limits for all peers together: waiting bytes, connections, requests, and
time.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any
from urllib.parse import urlsplit

import pytest

import kvpool
from kvpool.events import ZmqSink
from kvpool.events.zmq_bounds import LONGEST_FRAME, PATIENCE
from kvpool.events.zmq_replays import MOST_REPLAYS
from tests.events.consumers import Vllm
from tests.events.test_zmq import Client, connected, context, fill, local, publisher_of, replayed, subscribed

zmq = pytest.importorskip("zmq")
__all__ = ["context"]

BLOCKS = 2000
#: Number of bytes that the publisher sends at once in a replay.
PART = 64 << 10


def kept(publisher: kvpool.events.Publisher, manager: kvpool.CacheManager, batches: int) -> None:
    """Publishes batches, which the publisher keeps for replays.

    Each has about 30 KiB, so that a few of them fill the buffers of a socket.
    """
    for request in range(batches):
        fill(manager, request, BLOCKS)
        publisher.flush()
        manager.release(request)
        manager.evict(BLOCKS)


def deaf(context: Client, kind: int, endpoint: str | None) -> Any:
    """Returns a socket with small buffers, which accepts almost no data until the test reads from it."""
    made = context.context.socket(kind)
    context.sockets.append(made)
    made.rcvhwm, made.linger = 1, 0
    made.setsockopt(zmq.RCVBUF, 4096)
    if kind == zmq.SUB:
        made.subscribe(b"")
    made.connect(endpoint)
    return made


def test_unread_replays_have_one_bound_of_bytes_for_all_consumers(context: Client) -> None:
    manager, bound = kvpool.CacheManager(BLOCKS + 1, block_size=4), 1 << 20
    sink = local(waiting_replay_bytes=bound)
    with publisher_of(manager, sink, heartbeat=60.0) as publisher:
        kept(publisher, manager, 60)
        assert sum(len(batch) for _, batch in publisher._core.replay(0, 0, 1000, 1 << 30)) > 2 << 20
        consumers = [deaf(context, zmq.DEALER, sink.replay_endpoint) for _ in range(40)]
        for consumer in consumers:
            consumer.send_multipart([b"", bytes(8)])
        replays = sink._replays
        assert replays is not None
        most = 0
        while len(replays.asked) < len(consumers) or any(
            asked.sent == 0.0 for asked in replays.asked.values()
        ):
            publisher.flush()
            most = max(most, replays.router.waiting.bytes())
            if most >= bound:
                break
        for _ in range(200):
            publisher.flush()
            most = max(most, replays.router.waiting.bytes())
        assert most <= bound + PART
        assert publisher.counts().failures == 0


def test_a_consumer_that_reads_gets_its_replay_beside_those_that_do_not(context: Client) -> None:
    manager = kvpool.CacheManager(BLOCKS + 1, block_size=4)
    sink = local()
    with publisher_of(manager, sink, heartbeat=60.0) as publisher:
        kept(publisher, manager, 20)
        for _ in range(4):
            deaf(context, zmq.DEALER, sink.replay_endpoint).send_multipart([b"", bytes(8)])
        answers = replayed(publisher, connected(context, zmq.DEALER, sink.replay_endpoint), [b"", bytes(8)])
        numbers = [struct.unpack(">Q", answer[-2])[0] for answer in answers[:-1]]
        assert numbers == list(range(1 << 20, (publisher.snapshot().cut or 0) + 1))


def test_a_consumer_that_takes_nothing_loses_its_replay_after_the_patience(context: Client) -> None:
    manager = kvpool.CacheManager(4 * BLOCKS + 1, block_size=4)
    sink = local()
    with publisher_of(manager, sink, heartbeat=60.0) as publisher:
        # Each batch is larger than all buffers between publisher and subscriber, so each one has to
        # wait.
        for request in range(20):
            fill(manager, request, 4 * BLOCKS)
            publisher.flush()
            manager.release(request)
            manager.evict(4 * BLOCKS)
        replays, now = sink._replays, 0.0
        assert replays is not None
        replays._clock = lambda: now
        deaf(context, zmq.DEALER, sink.replay_endpoint).send_multipart([b"", bytes(8)])
        while not replays.asked:
            publisher.flush()
        (asked,) = replays.asked.values()
        # Continue until the publisher cannot send further parts of the replay, because the buffers are
        # full.
        stuck = 0
        while stuck < 100:
            publisher.flush()
            stuck = 0 if all(tracker.done for tracker in asked.part) else stuck + 1
        now = PATIENCE
        publisher.flush()
        assert replays.asked
        now = PATIENCE + 1
        publisher.flush()
        assert not replays.asked


def test_unread_live_batches_have_a_bound_and_readers_get_everything_again(context: Client) -> None:
    manager, bound = kvpool.CacheManager(4 * BLOCKS + 1, block_size=4), 1 << 20
    sink = local(waiting_bytes=bound)
    with publisher_of(manager, sink, heartbeat=60.0) as publisher:
        for _ in range(8):
            deaf(context, zmq.SUB, sink.endpoint)
        most = lost = request = 0
        # Continue until a batch is dropped. The number of bytes that the kernel buffers is unknown.
        while not lost:
            fill(manager, request, 4 * BLOCKS)
            publisher.flush()
            manager.release(request)
            manager.evict(4 * BLOCKS)
            lost, request = publisher.counts().lost, request + 1
            most = max(most, sink._live.waiting.bytes() if sink._live is not None else 0)
        assert most <= bound
        for one in context.sockets:
            one.close(0)
        # The publisher still uses the same endpoint, and a new subscriber gets the whole content of the pool.
        fill(manager, request, 2)
        live = connected(context, zmq.SUB, sink.endpoint)
        live.subscribe(b"")
        while not live.poll(20):
            publisher.pass_on(b"\x93\xcb" + bytes(8) + b"\x90\x00")
            publisher.flush()
        asked = connected(context, zmq.DEALER, sink.replay_endpoint)
        reader, gaps = Vllm(), 0
        for *_, number, batch in replayed(publisher, asked, [b"", bytes(8)])[:-1]:
            at = struct.unpack(">Q", number)[0]
            if reader.last is not None and at != reader.last + 1:
                reader, gaps = Vllm(), gaps + 1
            reader.take(at, batch)
        assert gaps == 1
        assert len(reader.prompts()["GPU"]) == sum(publisher.counts().contents)
        assert publisher.counts().failures == 0


@pytest.mark.parametrize("which", ["live", "replays"])
def test_peers_beyond_the_limit_are_not_accepted_until_others_have_gone(context: Client, which: str) -> None:
    manager, sink = kvpool.CacheManager(64, block_size=4), local(most_peers=4)
    with publisher_of(manager, sink) as publisher:
        endpoint = sink.endpoint if which == "live" else sink.replay_endpoint
        port = urlsplit(str(endpoint)).port
        assert port is not None
        with contextlib.ExitStack() as connections:

            def connection() -> socket.socket:
                return connections.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))

            there = [connection() for _ in range(4)]
            bounded = (
                sink._live if which == "live" else sink._replays.router if sink._replays is not None else None
            )
            assert bounded is not None
            while bounded.peers < 4:
                publisher.flush()
            beyond = [connection() for _ in range(20)]
            while bounded.refused < 20:
                publisher.flush()
            for one in beyond:
                while one.recv(100):
                    pass
            for one in there:
                one.setblocking(False)
                one.recv(1000)  # the greeting
                with pytest.raises(BlockingIOError):  # and no end
                    one.recv(1000)
        if which == "live":
            subscribed(context, sink, publisher)
        else:
            asked = connected(context, zmq.DEALER, sink.replay_endpoint)
            assert replayed(publisher, asked, [b"", bytes(8)])[-1] == [b"", b"", b"\xff" * 8, b""]
        assert publisher.counts().failures == 0


def test_a_request_that_is_too_long_ends_its_connection_alone(context: Client) -> None:
    manager, sink = kvpool.CacheManager(64, block_size=4), local()
    with publisher_of(manager, sink) as publisher:
        asked = connected(context, zmq.DEALER, sink.replay_endpoint)
        long = connected(context, zmq.DEALER, sink.replay_endpoint)
        events = long.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        long.send_multipart([b"", bytes(LONGEST_FRAME + 1)])
        while not events.poll(5):
            publisher.flush()
        events.close(0)
        long.close(0)
        assert sink.refused == 0
        assert replayed(publisher, asked, [b"", bytes(8)])[-1] == [b"", b"", b"\xff" * 8, b""]


def test_consumers_that_may_wait_for_replays_are_bounded(context: Client) -> None:
    manager = kvpool.CacheManager(BLOCKS + 1, block_size=4)
    sink = local(waiting_replay_bytes=1)
    with publisher_of(manager, sink, heartbeat=60.0) as publisher:
        kept(publisher, manager, 20)
        replays = sink._replays
        assert replays is not None
        consumers = [deaf(context, zmq.DEALER, sink.replay_endpoint) for _ in range(MOST_REPLAYS + 8)]
        replays.router.waiting.add(type("Never", (), {"done": False})(), 1)
        for consumer in consumers:
            consumer.send_multipart([b"", bytes(8)])
        while sink.refused < 8:
            publisher.flush()
        assert len(replays.asked) == MOST_REPLAYS


@pytest.mark.parametrize("name", ["waiting_bytes", "waiting_replay_bytes", "most_peers"])
def test_bounds_out_of_range_are_refused(name: str) -> None:
    settings: dict[str, Any] = {name: 0}
    with pytest.raises(kvpool.errors.InvalidArgumentError, match=f"{name} is 0"):
        ZmqSink(**settings)
