"""Selects back ends by URL, for command lines and for configurations of engines."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, unquote_to_bytes, urlsplit

from kvpool._core.store import Custom, Disk, Redis, SharedFolder
from kvpool.errors import InvalidArgumentError, MissingPackageError

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from kvpool.store.s3 import S3

__all__ = [
    "backend_from_url",
    "path_of",
    "query_of",
    "s3_from_url",
    "scheme_of",
    "split_url",
    "without_password",
]

_SCHEMES = (
    "a path, disk:///path, folder:///path, redis://host, rediss://host, redis+unix:///path, "
    "s3://bucket, gs://, az://"
)


def backend_from_url(url: str, capacity_bytes: int, **settings: Any) -> Disk | SharedFolder | Redis | Custom:
    """Return the back end for a URL.

    - ``/path`` or ``disk:///path``: :class:`Disk`
    - ``folder:///path[?group=1]``: :class:`SharedFolder`. With ``group=1``, all users of the folder's
      group can use it.
    - ``redis://[[user]:password@]host[:port][/database]``: :class:`Redis`
    - ``rediss://`` with the same parts, and optionally ``?ca=/pem``: :class:`Redis` over TLS, see below
    - ``redis+unix://[[user]:password@]/path[?database=n]``: :class:`Redis` on a Unix socket
    - ``s3://bucket/prefix``, ``gs://``, ``az://``: :class:`kvpool.store.s3.S3`, with its options in the
      query

    The query of ``rediss://`` may contain ``ca``, a PEM file of the trusted authorities; ``cert`` and
    ``key``, PEM files of the client's certificate; and ``name``, the name in the server's certificate
    if it differs from the host.

    Args:
        url: A URL of one of these forms. Passwords are percent-encoded.
        capacity_bytes: The largest number of bytes that the objects of one store may take.
        settings: Further arguments of the back end's class. For S3, options of the bucket.

    Raises:
        InvalidArgumentError: The scheme is unknown, or the URL has a part that the scheme does not
            allow.
        MissingPackageError: The package ``obstore`` for S3 is missing.

    >>> backend_from_url("/mnt/nvme/kv", 1 << 40)
    Disk("/mnt/nvme/kv", 1099511627776)
    >>> backend_from_url("redis://:secret@cache.internal/1", 1 << 34)
    Redis("cache.internal:6379", 17179869184)
    """
    match scheme_of(url):
        case "disk":
            return Disk(path_of(url), capacity_bytes, **settings)
        case "folder":
            return SharedFolder(path_of(url), capacity_bytes, **(_group(split_url(url)) | settings))
        case "redis" | "rediss" as scheme:
            parts = split_url(url)
            tls = _tls(parts) if scheme == "rediss" else {}
            if (parts.query and not tls) or parts.fragment:
                raise InvalidArgumentError(
                    f"{_shown(parts)} has a query or a fragment: neither means anything there"
                )
            database = _number("the database", parts.path.removeprefix("/") or "0")
            host, port = parts.hostname or "127.0.0.1", _port(parts)
            given = tls | _login(parts) | settings
            return Redis(capacity_bytes, host=host, port=port, database=database, **given)
        case "redis+unix":
            parts = split_url(url)
            query = query_of(parts)
            database = _number("the database", query.pop("database", "0"))
            if parts.fragment:
                raise InvalidArgumentError(f"{_shown(parts)} has a fragment: it means nothing there")
            if query:
                raise InvalidArgumentError(
                    f"{_shown(parts)} has {', '.join(query)}: database can be given there"
                )
            socket = _path(parts)
            return Redis(capacity_bytes, unix_socket=socket, database=database, **_login(parts), **settings)
        case "s3" | "gs" | "az":
            return Custom(s3_from_url(url, **settings), capacity_bytes)
        case scheme:
            raise InvalidArgumentError(f"no back end is called {scheme[:40]}: {_SCHEMES}")


def s3_from_url(url: str, **settings: Any) -> S3:
    """Return the bucket for a URL.

    Raises:
        InvalidArgumentError: ``obstore`` does not accept the URL, or an option.
        MissingPackageError: The package ``obstore`` is missing.
    """
    from kvpool.store.s3 import S3

    parts = split_url(url)
    if parts.fragment or "@" in parts.netloc:
        raise InvalidArgumentError(
            f"{_shown(parts)} has a fragment or a login: give credentials in the environment"
        )
    options = query_of(parts)
    try:
        return S3(f"{parts.scheme}://{parts.netloc}{parts.path}", **(options | settings))
    except Exception as error:
        # obstore has its own error classes. Only the first line of a message is used, because later
        # lines show configurations.
        why = next(iter(str(error).splitlines()), "").strip()
        if isinstance(error, MissingPackageError):
            raise
        raise InvalidArgumentError(f"{_shown(parts)} is not taken: {why or type(error).__name__}") from None


def _tls(parts: SplitResult) -> dict[str, Any]:
    query = query_of(parts)
    tls: dict[str, Any] = {
        "tls": True,
        "tls_ca": query.pop("ca", None),
        "tls_server_name": query.pop("name", None),
    }
    own = query.pop("cert", None), query.pop("key", None)
    if any(own):
        if not all(own):
            raise InvalidArgumentError(f"{_shown(parts)} has one of cert and key: they go together")
        tls["tls_certificate"] = own
    if query:
        raise InvalidArgumentError(
            f"{_shown(parts)} has {', '.join(query)}: ca, cert, key and name can be given there"
        )
    return tls


def scheme_of(url: str) -> str:
    """Return the kind of back end that a URL selects. A path selects a disk.

    >>> scheme_of("/mnt/nvme/kv"), scheme_of("redis://host")
    ('disk', 'redis')
    """
    scheme, there, _ = url.partition("://")
    return scheme.lower() if there else "disk"


def path_of(url: str) -> str:
    """Return the path in a URL, or the path itself.

    >>> path_of("folder:///mnt/kv%20cache"), path_of("/mnt/100%")
    ('/mnt/kv cache', '/mnt/100%')
    """
    if "://" in url:
        parts = split_url(url)
        if scheme_of(url) == "folder":
            _group(parts)
        elif parts.query or parts.fragment:
            what = (
                "a query or a fragment: neither means anything there; write %3F for ? and %23 for # in a path"
            )
            raise InvalidArgumentError(f"{_shown(parts)} has {what}")
        return _path(parts)
    if _TYPO.match(url):
        raise InvalidArgumentError(f"{without_password(url)} is a URL without its slashes: write :// for :")
    if "\0" in url:
        raise InvalidArgumentError("the path has a zero byte: no path has one")
    return url


def without_password(url: str) -> str:
    """Return a URL without login, query and fragment, for errors, logs and tables.

    Never raises. If the URL is malformed, also leaves out everything that may be part of a password.

    >>> without_password("redis://me:secret@host:6379/1?ca=/pem")
    'redis://host:6379/1'
    >>> without_password("redis://me:sec/ret@host")
    'redis://...'
    >>> without_password("/mnt/kv@home")
    '/mnt/kv@home'
    """
    scheme, there, rest = url.partition("://")
    if not there:
        typo = _TYPO.match(url)
        return f"{typo[0]}{_HIDDEN}" if typo else url
    place = re.split("[?#]", rest, maxsplit=1)[0]
    if scheme.lower() in ("disk", "folder"):
        return f"{scheme}://{place}"
    authority = place.partition("/")[0]
    if "@" in rest[len(authority) :]:
        return f"{scheme}://{_HIDDEN}"  # the end of a password that is not percent-encoded is unknown
    return f"{scheme}://{authority.rpartition('@')[2]}{place[len(authority) :]}"


#: The text that replaces a part of a URL in messages, because the part may belong to a password.
_HIDDEN: Final = "..."
#: Matches a URL whose slashes are missing. If it were accepted as a path, messages would show its
#: password.
_TYPO: Final = re.compile(r"(?:rediss?|redis\+unix|s3|gs|az|https?|mooncake|disk|folder):(?!//)")


def split_url(url: str) -> SplitResult:
    """Split a URL.

    Raises:
        InvalidArgumentError: The text is not a URL, or its login is not percent-encoded. The message
            contains no part of the login.
    """
    place = without_password(url)
    if place.endswith(_HIDDEN):
        what = "an @ after its host: write %40 for it, and in passwords %23 for #, %2F for /, %3F for ?"
        raise InvalidArgumentError(f"{place} has {what}")
    if any(letter < " " or letter == "\x7f" for letter in url):
        raise InvalidArgumentError(f"{place!r} has a control character: no URL has one")
    try:
        parts = urlsplit(url)
        parts.hostname, url.encode()
    except ValueError:
        raise InvalidArgumentError(f"{place} is no URL: its host or a letter of it is wrong") from None
    try:
        parts.port  # noqa: B018
    except ValueError:
        raise InvalidArgumentError(f"{place} has a port that is none: it must be from 1 to 65535") from None
    return parts


def _shown(parts: SplitResult) -> str:
    """Return the URL without a password."""
    return without_password(parts.geturl())


def query_of(parts: SplitResult) -> dict[str, str]:
    """Return the options in the query of a URL.

    Raises:
        InvalidArgumentError: An option occurs twice.
    """
    query = parse_qsl(parts.query, keep_blank_values=True)
    if len(dict(query)) < len(query):
        raise InvalidArgumentError(f"{_shown(parts)} has an option twice")
    return dict(query)


def _group(parts: SplitResult) -> dict[str, Any]:
    group = query_of(parts)
    if parts.fragment or group not in ({}, {"group": "0"}, {"group": "1"}):
        what = "a query or a fragment: group=1 alone can be given; write %3F for ? and %23 for # in a path"
        raise InvalidArgumentError(f"{_shown(parts)} has {what}")
    return {"group": True} if group.get("group") == "1" else {}


def _path(parts: SplitResult) -> str:
    if not parts.path.startswith("/") or (parts.hostname and parts.scheme != "redis+unix"):
        raise InvalidArgumentError(f"{_shown(parts)} has no path: write {parts.scheme}:///path")
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if "\0" in path:
        raise InvalidArgumentError(f"{_shown(parts)} has a zero byte: no path has one")
    return path


def _port(parts: SplitResult) -> int:
    if parts.port == 0:
        raise InvalidArgumentError(f"{_shown(parts)} has a port that is none: it must be from 1 to 65535")
    return parts.port or 6379


def _number(what: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise InvalidArgumentError(f"{what} is {text[:40]!r}: must be a number")
    if len(text) > 10 or int(text) >= 1 << 31:
        raise InvalidArgumentError(f"{what} is {text[:12]}: must be below {1 << 31}")
    return int(text)


def _login(parts: SplitResult) -> dict[str, Any]:
    login = {"username": parts.username, "password": parts.password}
    try:
        return {name: unquote(text, errors="strict") for name, text in login.items() if text}
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"{_shown(parts)} has a login that is no UTF-8") from None
