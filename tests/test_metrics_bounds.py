"""Tests the metrics page with clients that are slow, send much, or behave unusually. Threads, time and
bytes are bounded, and nothing is printed.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from kvpool import CacheManager
from kvpool.metrics import Metrics, bounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvpool.metrics.page import Server

pytest.importorskip("prometheus_client")

#: Seconds after which a wait fails. It is far longer than any machine needs.
AGES = 60.0


@pytest.fixture
def server() -> Iterator[Server]:
    metrics = Metrics()
    metrics.add("main", CacheManager(16, 4))
    with metrics.start_http(0) as made:
        yield made


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), AGES)


def page(server: Server) -> bytes:
    with urllib.request.urlopen(server.url, timeout=AGES) as answer:
        return bytes(answer.read())


def test_clients_that_are_slow_have_bounded_threads_and_keep_no_other_from_the_page(server: Server) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as slow:
        for _ in range(5 * bounds.MOST_THREADS):
            client = slow.enter_context(connected(server))
            client.sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(3):
            assert b"kvpool_blocks" in page(server)
        assert threading.active_count() - before <= bounds.MOST_THREADS


def test_a_client_that_drips_loses_its_connection_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "SECONDS", 0.3)
    metrics = Metrics()
    metrics.add("main", CacheManager(16, 4))
    with metrics.start_http(0) as server, connected(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\nX: ")
        client.settimeout(0.02)
        # Send a byte whenever nothing has arrived. Each byte is within the timeout of a single read,
        # but the whole request is too late.
        for _ in range(int(AGES / 0.02)):
            try:
                if client.recv(100) == b"":
                    break
            except TimeoutError:
                with contextlib.suppress(OSError):
                    client.sendall(b"a")
            except OSError:
                break
        else:
            pytest.fail("the connection does not end")


def test_a_request_has_bounded_bytes(server: Server) -> None:
    with connected(server) as client:
        with contextlib.suppress(OSError):
            client.sendall(b"GET / HTTP/1.1\r\n" + (b"X: " + b"y" * 60_000 + b"\r\n") * 50)
        answer = b""
        with contextlib.suppress(OSError):
            answer = client.recv(100)
    assert b"200" not in answer
    assert b"kvpool_blocks" in page(server)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\n" * 100,
        b"GET " + b"a" * 70000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"\xff\xfe\0\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /%ff?\xff HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.0\r\nContent-Length: abc\r\n\r\n",
        b"",
    ],
)
def test_odd_requests_write_nothing_to_standard_error(
    server: Server, request_bytes: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with connected(server) as client, contextlib.suppress(OSError):
        client.sendall(request_bytes)
        client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 16):
            pass
    assert b"kvpool_blocks" in page(server)
    assert capfd.readouterr().err == ""


def test_a_page_that_cannot_be_made_is_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    class Broken(Metrics):
        def collect(self) -> Any:
            raise OSError("no counts")

    metrics = Broken()
    metrics.add("main", CacheManager(16, 4))
    log = caplog.at_level(logging.ERROR, "kvpool.metrics")
    with metrics.start_http(0) as server, log, pytest.raises(urllib.error.HTTPError, match="500"):
        page(server)
    assert [record.getMessage() for record in caplog.records] == [
        "the page of metrics cannot be made: OSError: no counts"
    ]
    assert "Traceback" not in capfd.readouterr().err
