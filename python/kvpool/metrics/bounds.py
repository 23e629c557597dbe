"""The HTTP server for the page of metrics.

Its use of threads, time and memory is limited, however many clients connect.

If all threads are busy, the server closes the oldest connection that has not sent a complete request.
Slow clients therefore do not block others. The server does not write errors of clients to standard
error.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import logging
import socket
import threading
import time
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["LONGEST_REQUEST", "MOST_THREADS", "SECONDS", "BoundedServer", "BoundedServerOnSix", "Handler"]

logger = logging.getLogger("kvpool.metrics")

#: The largest number of connections that are served at once. Each has its own thread.
MOST_THREADS: Final = 16
#: Seconds after which any connection ends.
SECONDS: Final = 10.0
#: The largest number of bytes of a request line and its headers.
LONGEST_REQUEST: Final = 128 << 10
#: If no thread is free, the server closes a connection and waits this number of seconds for its
#: thread.
_WAIT_SECONDS: Final = 1.0


class BoundedServer(ThreadingMixIn, WSGIServer):
    """Serves each connection with a thread of its own, at most :data:`MOST_THREADS` at once."""

    daemon_threads = True
    #: The largest number of connections that wait to be accepted. Further clients retry after a second.
    request_queue_size = 128

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._free = threading.Semaphore(MOST_THREADS)
        self._lock = threading.Lock()
        #: The time at which each connection ends, the oldest connection first. Connections with a
        #: complete request are also in ``_answered``.
        self._ends: dict[socket.socket, float] = {}
        self._answered: set[socket.socket] = set()
        super().__init__(*arguments, **more)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a connection on its own thread. If no thread is free, an older connection is closed."""
        if not self._free.acquire(blocking=False):
            self._end_one()
            if not self._free.acquire(timeout=_WAIT_SECONDS):
                self.shutdown_request(request)
                return
        with self._lock:
            self._ends[request] = time.monotonic() + SECONDS
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._ended(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a connection on the connection's own thread, and frees the thread afterwards."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def _ended(self, request: socket.socket) -> None:
        with self._lock:
            self._answered.discard(request)
            if self._ends.pop(request, None) is None:
                return
        self._free.release()

    def was_read(self, request: socket.socket) -> None:
        """Records that a request is complete.

        If threads run out, connections without a complete request are closed before this one.
        """
        with self._lock:
            self._answered.add(request)

    def _end_one(self) -> None:
        with self._lock:
            last = sorted(self._ends, key=lambda request: (request in self._answered, self._ends[request]))
            for request in last[:1]:
                _shut(request)

    def service_actions(self) -> None:
        """Closes connections that have reached their time limit.

        The base class calls it about twenty times a second.
        """
        now = time.monotonic()
        with self._lock:
            for request, end in self._ends.items():
                if end > now:
                    break
                _shut(request)

    def server_close(self) -> None:
        """Stops listening, and ends every connection."""
        super().server_close()
        with self._lock:
            for request in self._ends:
                _shut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs a failed connection at level debug, because clients cause such failures."""
        del request
        logger.debug("a request of %s failed", client_address, exc_info=True)


def _shut(request: socket.socket) -> None:
    # This function only ends the transfer. The connection's thread then closes the socket.
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class BoundedServerOnSix(BoundedServer):
    """Like :class:`BoundedServer`, on an IPv6 address."""

    address_family = socket.AF_INET6


class _Limited(io.RawIOBase):
    """Reads lines of a request, and raises when the request exceeds the limit of bytes."""

    def __init__(self, lines: BinaryIO) -> None:
        self._lines, self._left = lines, LONGEST_REQUEST

    def readline(self, size: int | None = -1, /) -> bytes:
        if self._left <= 0:
            raise http.client.HTTPException(f"a request has at most {LONGEST_REQUEST} bytes")
        line = self._lines.readline(self._left if size is None or size < 0 else min(size, self._left))
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._lines.close()
        super().close()


class Handler(WSGIRequestHandler):
    """Reads a request within the limits of time and bytes. Requests are not logged."""

    timeout = SECONDS
    server: BoundedServer

    def setup(self) -> None:
        """Prepares a connection, and limits the bytes that are read from it."""
        super().setup()
        self.rfile: Any = _Limited(self.rfile)

    def parse_request(self) -> bool:
        """Parses a request, and records that it is complete."""
        good = super().parse_request()
        self.server.was_read(self.request)
        return good

    def get_stderr(self) -> Any:
        """Returns a stream that discards the tracebacks that ``wsgiref`` writes."""
        return io.StringIO()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base
        """Writes nothing."""
