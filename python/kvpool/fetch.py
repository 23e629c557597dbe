"""Fetches pages over HTTP for the command line, with one deadline and one limit of bytes for each page.

The timeout of a plain socket starts again with every byte that arrives. Here each read, also of
headers, has only the time that is left until the deadline.
"""

from __future__ import annotations

import functools
import http.client
import io
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FetchError", "Page", "fetch"]


class FetchError(Exception):
    """A page is unavailable, late, or too long. The message does not contain its URL."""


@dataclass(frozen=True)
class Page:
    """A page that was fetched.

    Attributes:
        body: The bytes of the page.
        content_type: The header ``Content-Type``; empty if the response has none.
    """

    body: bytes
    content_type: str


class _Bounded(io.RawIOBase):
    """Reads the bytes of a socket until a deadline. The deadline is a value of ``time.monotonic``."""

    def __init__(self, socket: Any, file: Any, until: float) -> None:
        # The reference to the socket keeps it open while the response is read.
        self._socket, self._file, self._until = socket, file, until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the page does not end in time")
        self._socket.settimeout(left)
        return int(self._socket.recv_into(buffer))

    def close(self) -> None:
        self._file.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """A response that can be read until a deadline."""

    def __init__(self, until: float, socket: Any, *arguments: Any, **more: Any) -> None:
        super().__init__(socket, *arguments, **more)
        self.fp = io.BufferedReader(_Bounded(socket, self.fp, until))


def _connection(kind: Any, until: float, host: str, **settings: Any) -> Any:
    connection = kind(host, **settings)
    connection.response_class = functools.partial(_Response, until)
    return connection


class _Http(urllib.request.HTTPHandler):
    def __init__(self, until: float) -> None:
        super().__init__()
        self._until = until

    def http_open(self, request: Any) -> Any:
        connect: Any = functools.partial(_connection, http.client.HTTPConnection, self._until)
        return self.do_open(connect, request)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, until: float) -> None:
        super().__init__()
        self._until = until

    def https_open(self, request: Any) -> Any:
        connect: Any = functools.partial(_connection, http.client.HTTPSConnection, self._until)
        return self.do_open(connect, request)


def fetch(
    url: str,
    *,
    seconds: float,
    most_bytes: int,
    headers: Mapping[str, str] | None = None,
    direct: bool = False,
) -> Page:
    """Returns the page of a URL.

    Args:
        url: A URL that begins with ``http://`` or ``https://``.
        seconds: The largest number of seconds for the whole page, redirections included. The system's name
            resolution does not count.
        most_bytes: The largest number of bytes of the page.
        headers: Headers of the request.
        direct: Whether to ignore the proxies that environment variables define.

    Raises:
        FetchError: The page is unavailable, does not end in time, or is too long.
    """
    until = time.monotonic() + seconds
    proxies = [urllib.request.ProxyHandler({})] if direct else []
    opener = urllib.request.build_opener(_Http(until), _Https(until), *proxies)
    try:
        # Callers pass only URLs that begin with ``http://`` or ``https://``, so the linter's warning
        # does not apply.
        request = urllib.request.Request(url, headers=dict(headers or {}))  # noqa: S310
        with opener.open(request, timeout=seconds) as answer:
            body = answer.read(most_bytes + 1)
            content_type = answer.headers.get("Content-Type", "")
    except urllib.error.HTTPError as error:
        error.close()
        raise FetchError(f"status {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise FetchError(str(error.reason)) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise FetchError(str(error) or type(error).__name__) from error
    if len(body) > most_bytes:
        raise FetchError(f"more than {most_bytes >> 20} MiB")
    return Page(body, content_type)
