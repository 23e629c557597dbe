"""Dynamo's standalone indexer as a process, and what it can be asked."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvpool.events import ZmqSink

#: Seconds after which something that has not come about will not.
PATIENCE: Final = 30.0
MODEL: Final = "model"
#: What the indexer calls tiers, by ours.
TIERS: Final = {"device": 0, "host_pinned": 1, "disk": 2}

#: What a worker holds: tier and the number of each content.
Held = set[tuple[int, int]]


class DifferenceError(Exception):
    """The indexer knows something else than what is so; the message says what."""


class Indexer:
    """A running indexer."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """What it answers: JSON."""
        for attempt in (1, 2):
            if self._connection is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
            try:
                text = None if body is None else json.dumps(body)
                method = "GET" if body is None else "POST"
                self._connection.request(method, path, text, {"content-type": "application/json"})
                answer = self._connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException):
                # It closes connections that were idle for a while.
                self._connection.close()
                self._connection = None
                if attempt == 2:
                    raise
                continue
            if answer.status >= 400:
                raise DifferenceError(f"{path} is answered with {answer.status}: {content[:200]!r}")
            return json.loads(content) if content.startswith((b"{", b"[")) else content.decode()
        return None

    def register(self, worker: int, sink: ZmqSink, block_size: int) -> None:
        """Lets it follow a sink as a worker."""
        self.ask(
            "/register",
            {
                "instance_id": worker,
                "endpoint": sink.endpoint,
                "replay_endpoint": sink.replay_endpoint,
                "model_name": MODEL,
                "block_size": block_size,
                "dp_rank": 0,
            },
        )

    def unregister(self, worker: int) -> None:
        """Lets it forget a worker."""
        self.ask("/unregister", {"instance_id": worker, "model_name": MODEL})

    def dump(self) -> dict[int, Held]:
        """What it knows, by worker."""
        held: dict[int, Held] = {}
        for model in self.ask("/dump").values():
            for entry in model["events"]:
                mine = held.setdefault(entry["worker_id"], set())
                for block in entry["event"]["data"]["stored"]["blocks"]:
                    mine.add((TIERS[entry["storage_tier"]], block["block_hash"]))
        return held

    def found(self, tokens: list[int]) -> int:
        """Tokens of a prompt that it says are found on the device of the best worker."""
        answer = self.ask("/query", {"model_name": MODEL, "token_ids": tokens})
        return max((worker["gpu"] for worker in answer["instances"].values()), default=0)


def free_port() -> int:
    """A port that nobody has."""
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        return int(any_socket.getsockname()[1])


@contextlib.contextmanager
def running(packages: Path) -> Iterator[Indexer]:
    """Starts an indexer, and ends it.

    Raises:
        DifferenceError: It does not start.
    """
    port = free_port()
    command = [sys.executable, "-m", "dynamo.indexer", "--port", str(port), "--threads", "1"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": str(packages)}
        )
        indexer = Indexer(port)
        try:
            until = time.monotonic() + 10 * PATIENCE  # one that has died is seen at once
            while True:
                try:
                    indexer.ask("/health")
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > until:
                        log.seek(0)
                        tail = log.read().decode(errors="replace")[-2000:]
                        raise DifferenceError(f"the indexer does not start: {tail}") from None
                    time.sleep(0.05)
            yield indexer
        finally:
            process.terminate()
            process.wait()
