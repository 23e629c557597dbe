"""Runs Dynamo's standalone indexer as a process, and queries it."""

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

#: Seconds to wait for an expected change before it counts as missing.
PATIENCE: Final = 30.0
MODEL: Final = "model"
#: Names of tiers in the indexer, and kvpool's number of each.
TIERS: Final = {"device": 0, "host_pinned": 1, "disk": 2}

#: The blocks of a worker in the indexer. Each is a tier and the number that stands for a block hash.
Held = set[tuple[int, int]]


class DifferenceError(Exception):
    """The indexer's content differs from the expected content; the message describes the difference."""


class Indexer:
    """A running indexer."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Sends a request and returns the JSON of the answer."""
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
                # The indexer has closed an idle connection. Connect again.
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
        """Subscribes the indexer to a sink's endpoint, as the worker with the number ``worker``."""
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
        self.ask("/unregister", {"instance_id": worker, "model_name": MODEL})

    def dump(self) -> dict[int, Held]:
        """Returns the blocks that each worker has according to the indexer."""
        held: dict[int, Held] = {}
        for model in self.ask("/dump").values():
            for entry in model["events"]:
                mine = held.setdefault(entry["worker_id"], set())
                for block in entry["event"]["data"]["stored"]["blocks"]:
                    mine.add((TIERS[entry["storage_tier"]], block["block_hash"]))
        return held

    def found(self, tokens: list[int]) -> int:
        """Returns how many tokens of a prompt are on the device of the worker that has most of them,
        according to the indexer.
        """
        answer = self.ask("/query", {"model_name": MODEL, "token_ids": tokens})
        return max((worker["gpu"] for worker in answer["instances"].values()), default=0)


def free_port() -> int:
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        return int(any_socket.getsockname()[1])


@contextlib.contextmanager
def running(packages: Path) -> Iterator[Indexer]:
    """Starts an indexer, and stops it at the end of the context.

    Raises:
        DifferenceError: The indexer does not start.
    """
    port = free_port()
    command = [sys.executable, "-m", "dynamo.indexer", "--port", str(port), "--threads", "1"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": str(packages)}
        )
        indexer = Indexer(port)
        try:
            until = time.monotonic() + 10 * PATIENCE  # a process that has ended is detected at once
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
