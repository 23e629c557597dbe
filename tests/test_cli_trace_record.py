"""Tests ``kvpool trace record``. It makes a trace and a size from a publisher's KV events, and stores
no other data.
"""

from __future__ import annotations

import contextlib
import json
import signal
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

import kvpool
from kvpool.cli import main
from kvpool.cli.recording import Recorder, endpoint_of, line_of
from tests.command import ENVIRONMENT, json_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

zmq = pytest.importorskip("zmq")
pytestmark = pytest.mark.usefixtures("plain_output")

BLOCK = 4
SECRET = 777_777


def stored(first: int, count: int, parent: int | None, **more: Any) -> dict[str, Any]:
    """Returns an event as vLLM 0.32 publishes it."""
    return {
        "type": "BlockStored",
        "block_hashes": [first + nth for nth in range(count)],
        "parent_block_hash": parent,
        "token_ids": [SECRET] * count * BLOCK,
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": f"adapter-{SECRET}",
        "extra_keys": [[f"salt-{SECRET}"]] * count,
        "group_idx": 0,
        **more,
    }


def batch(ts: float, *events: Any) -> bytes:
    return bytes(msgpack.packb([ts, list(events), 0]))


class Publisher:
    """Sends messages as vLLM does, on sockets of its own. Waits for a subscriber before it sends."""

    def __init__(self, keeps: int = 0) -> None:
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.XPUB)
        self.router = self.context.socket(zmq.ROUTER)
        self.port, self.replay_port = (
            one.bind_to_random_port("tcp://127.0.0.1") for one in (self.live, self.router)
        )
        self.kept: dict[int, bytes] = {}
        self.keeps = keeps
        self.asked: list[int] = []
        self.thread: threading.Thread | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def replay(self) -> str:
        return f"tcp://127.0.0.1:{self.replay_port}"

    def send(self, number: int, data: bytes, *, lost: bool = False) -> None:
        self.kept[number] = data
        if not lost:
            self.live.send_multipart((b"", struct.pack(">Q", number), data))

    def after_subscription(self, then: Callable[[], None]) -> None:
        def run() -> None:
            assert self.live.poll(20_000)
            assert self.live.recv() == b"\x01"
            then()
            while self.keeps and self.router.poll(2_000):
                name, empty, number = self.router.recv_multipart()
                self.asked.append(struct.unpack(">Q", number)[0])
                for kept, data in sorted(self.kept.items()):
                    if kept >= self.asked[-1]:
                        self.router.send_multipart((name, empty, b"", struct.pack(">Q", kept), data))
                self.router.send_multipart((name, empty, b"", b"\xff" * 8, b""))

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def close(self) -> None:
        if self.thread is not None:
            self.thread.join(30)
        self.context.destroy(linger=0)


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    made = Publisher()
    try:
        yield made
    finally:
        made.close()


def recorded(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert main(["trace", "record", *map(str, arguments), "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def three_requests(publisher: Publisher) -> None:
    """Sends the events of three requests: a prompt of 3 blocks, one that shares 2 of them, and one that
    shares none.
    """
    publisher.send(0, batch(1.0, stored(1, 3, None)))
    publisher.send(1, batch(11.0, stored(20, 2, 2)))
    publisher.send(
        2, batch(12.0, stored(30, 2, None), {"type": "BlockRemoved", "block_hashes": [3], "medium": "GPU"})
    )


@pytest.mark.parametrize("name", ["day.jsonl", "day.jsonl.gz"])
def test_events_on_a_socket_become_a_trace_and_a_size(
    publisher: Publisher, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    publisher.after_subscription(lambda: three_requests(publisher))
    facts = recorded(capsys, publisher.endpoint, path, "--batches", "3")
    assert (facts["batches"], facts["requests"], facts["block_tokens"]) == (3, 3, BLOCK)
    assert (facts["before"], facts["missed"], facts["unreadable"], facts["restarts"]) == (0, 0, 0, 0)
    stats = json_of(capsys, "trace", "stats", path)
    assert (stats["format"], stats["unique_blocks"], stats["block_references"]) == ("kv-events", 7, 9)
    assert stats["ideal_block_hit_rate"] == facts["ideal_token_hit_rate"] == pytest.approx(2 / 9)
    sized = json_of(capsys, "size", path, "--capacities", "100%", "--policies", "lru", "--no-progress")
    assert sized["policies"][0]["hits"][0]["block_hit_rate"] == pytest.approx(2 / 9)


def test_a_recording_has_no_tokens_adapters_or_salts(
    publisher: Publisher, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "day.jsonl"
    publisher.after_subscription(lambda: three_requests(publisher))
    recorded(capsys, publisher.endpoint, path, "--batches", "3")
    assert str(SECRET) not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_got_lost_is_counted_and_said(
    publisher: Publisher, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def send() -> None:
        publisher.send(5, batch(1.0, stored(1, 1, None)))
        publisher.send(6, batch(2.0, stored(2, 1, 1)), lost=True)
        publisher.send(7, b"\xc1 no msgpack")
        publisher.send(8, batch(3.0, stored(3, 1, None)))

    publisher.after_subscription(send)
    assert main(["trace", "record", publisher.endpoint, str(tmp_path / "t.jsonl"), "--batches", "2"]) == 0
    out = capsys.readouterr().out
    assert "5 batches came before the recording" in out
    assert "1 batches were lost on the way" in out
    assert "1 messages were no KV events" in out
    assert "requests whose blocks were all cached are not in it" in out


def test_a_replay_brings_earlier_and_lost_batches(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    publisher = Publisher(keeps=9)

    def send() -> None:
        publisher.send(2, batch(3.0, stored(3, 1, None)))
        publisher.send(3, batch(4.0, stored(4, 1, 3)), lost=True)
        publisher.send(4, batch(5.0, stored(5, 1, 4)))

    publisher.kept = {0: batch(1.0, stored(1, 1, None)), 1: batch(2.0, stored(2, 1, 1))}
    publisher.after_subscription(send)
    with contextlib.closing(publisher):
        path = tmp_path / "t.jsonl"
        facts = recorded(capsys, publisher.endpoint, path, "--replay", publisher.replay, "--batches", "5")
    assert (facts["batches"], facts["before"], facts["missed"]) == (5, 0, 0)
    assert publisher.asked[0] == 0
    assert [json.loads(line)["ts"] for line in path.read_text().splitlines()] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_server_that_begins_again_has_an_empty_cache(
    publisher: Publisher, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def send() -> None:
        publisher.send(7, batch(1.0, stored(1, 2, None)))
        publisher.send(0, batch(2.0, stored(1, 2, None)))

    publisher.after_subscription(send)
    facts = recorded(capsys, publisher.endpoint, tmp_path / "t.jsonl", "--batches", "2")
    assert (facts["restarts"], facts["missed"], facts["requests"]) == (1, 0, 2)
    assert "AllBlocksCleared" in (tmp_path / "t.jsonl").read_text()


def test_the_share_of_the_requests_is_stated(
    publisher: Publisher, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = iter(((10, 1000, 300), (14, 1060, 345)))

    def read(_url: str, _timeout: float, names: tuple[str, ...]) -> Any:
        values = zip(names, next(pages), strict=True)
        found = {name.removesuffix("_total"): [({"model": "m"}, float(value))] for name, value in values}
        return type("Reading", (), {"values": found})

    monkeypatch.setattr("kvpool.cli.trace_record.read_url", read)
    publisher.after_subscription(lambda: three_requests(publisher))
    arguments = [
        publisher.endpoint,
        str(tmp_path / "t.jsonl"),
        "--batches",
        "3",
        "--metrics",
        "http://server/metrics",
    ]
    assert main(["trace", "record", *arguments]) == 0
    out = capsys.readouterr().out
    assert "the server finished 4 requests meanwhile: 75.0 % are in the trace" in out
    assert "the server found 75.0 % of prompt tokens cached; an endless cache would find 22.2 %" in out


def test_without_a_stored_block_there_is_no_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    endpoint = f"ipc://{tmp_path}/nobody"
    assert main(["trace", "record", endpoint, str(path), "--seconds", "0.001"]) == 1
    error = capsys.readouterr().err
    assert f"{endpoint} does not answer yet" in error
    assert "error: no stored block came from" in error
    assert "--kv-events-config" in error
    assert not path.exists()


def test_ctrl_c_ends_a_recording_and_keeps_it(publisher: Publisher, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    command = [sys.executable, "-m", "kvpool", "trace", "record", publisher.endpoint, str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        assert process.stderr is not None
        assert b"recording" in process.stderr.readline()
        publisher.after_subscription(lambda: three_requests(publisher))
        assert publisher.thread is not None
        publisher.thread.join(30)
        while not path.exists() or path.read_bytes().count(b"\n") < 3:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"3 requests in blocks of 4 tokens" in out


def test_a_file_that_exists_is_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("mine")
    assert main(["trace", "record", "127.0.0.1:1", str(path)]) == 2
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        *map(msgpack.packb, (7, [1.0], [1.0, 5], {"a": 1}, [1.0, [7]], ["x", []], [float("nan"), []])),
        msgpack.packb([1.0, [["BlockStored"]]]) + b"more",
    ],
)
def test_a_message_that_is_no_batch_gives_none(data: bytes) -> None:
    assert line_of(data) is None


def test_both_forms_of_events_are_the_same_line() -> None:
    event = stored(1, 2, 9)
    array = ["BlockStored", [1, 2], 9, event["token_ids"], BLOCK, None, "GPU", None, None, 0]
    assert line_of(batch(1.5, event)) == line_of(batch(1.5, array))
    digest = json.loads(line_of(batch(1.5, stored(1, 1, None, block_hashes=[b"\x00\xff"]))) or b"")
    assert digest["events"][0]["block_hashes"] == ["00ff"]


def test_addresses() -> None:
    assert endpoint_of("tcp://*:5557") == "tcp://127.0.0.1:5557"
    recorder = Recorder("tcp://127.0.0.1:1", None, "", sys.stdout.buffer)
    assert not recorder.is_connected(0.001)
    recorder.close()


def test_kvpools_own_publisher_can_be_recorded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from kvpool.events import Publisher as Own
    from kvpool.events import ZmqSink

    manager = kvpool.CacheManager(64, block_size=4)
    sink = ZmqSink("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
    own = Own(manager, [sink])
    with contextlib.closing(own):
        manager.admit("a", list(range(12)))
        manager.commit("a", 12)
        own.flush()
        done = threading.Event()
        thread = threading.Thread(target=keep_publishing, args=(manager, own, done))
        thread.start()
        try:
            assert sink.replay_endpoint is not None
            facts = recorded(
                capsys,
                sink.endpoint,
                tmp_path / "t.jsonl",
                "--replay",
                sink.replay_endpoint,
                "--batches",
                "4",
            )
        finally:
            done.set()
            thread.join(30)
    assert facts["block_tokens"] == 4
    assert facts["missed"] == facts["unreadable"] == 0
    assert facts["requests"] >= 2


def keep_publishing(manager: kvpool.CacheManager, own: Any, done: threading.Event) -> None:
    number = 0
    while not done.wait(0.01) and number < 14:
        number += 1
        manager.admit(f"b{number}", [1000 * number + token for token in range(4)])
        manager.commit(f"b{number}", 4)
        own.flush()
