"""Back ends by URL, for command lines and configurations of engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from kvpool._core.store import Custom, Disk, Redis, SharedFolder
from kvpool.errors import InvalidArgumentError

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from kvpool.store.s3 import S3

__all__ = ["backend_from_url", "path_of", "s3_from_url", "scheme_of", "without_password"]

_SCHEMES = (
    "a path, disk:///path, folder:///path, redis://host, rediss://host, redis+unix:///path, s3://bucket, gs://, az://"
)


def backend_from_url(url: str, capacity_bytes: int, **settings: Any) -> Disk | SharedFolder | Redis | Custom:
    """Return the back end that a URL names.

    ======================================================  ========================================================
    ``/path`` or ``disk:///path``                           :class:`Disk`
    ``folder:///path``                                      :class:`SharedFolder`
    ``redis://[[user]:password@]host[:port][/database]``    :class:`Redis`
    ``rediss://`` and the same ``[?ca=/pem]``               :class:`Redis` over TLS; see below
    ``redis+unix://[[user]:password@]/path[?database=n]``   :class:`Redis` on a Unix socket
    ``s3://bucket/prefix``, ``gs://``, ``az://``            :class:`kvpool.store.s3.S3`; the query has its options
    ======================================================  ========================================================

    Of ``rediss://`` the query can have ``ca``, a PEM file of those who may vouch for the server; ``cert`` and ``key``,
    PEM files of this side's certificate; ``name``, that in the server's certificate if it is not the host's.

    Args:
        url: As in the table. Passwords are percent-encoded.
        capacity_bytes: What the objects of one store may take.
        settings: Further arguments of the class; of S3, options of its bucket.

    Raises:
        InvalidArgumentError: No such scheme, or a part that it does not have.
        MissingPackageError: S3 without ``obstore``.

    >>> backend_from_url("/mnt/nvme/kv", 1 << 40)
    Disk("/mnt/nvme/kv", 1099511627776)
    >>> backend_from_url("redis://:secret@cache.internal/1", 1 << 34)
    Redis("cache.internal:6379", 17179869184)
    """
    if "://" not in url:
        return Disk(url, capacity_bytes, **settings)
    parts = urlsplit(url)
    match parts.scheme:
        case "disk":
            return Disk(_path(parts), capacity_bytes, **settings)
        case "folder":
            return SharedFolder(_path(parts), capacity_bytes, **settings)
        case "redis" | "rediss":
            tls = _tls(parts) if parts.scheme == "rediss" else {}
            if (parts.query and not tls) or parts.fragment:
                raise InvalidArgumentError(f"{_shown(parts)} has a query or a fragment: neither means anything there")
            database = _number("the database", parts.path.removeprefix("/") or "0")
            host, port = parts.hostname or "127.0.0.1", _port(parts)
            given = tls | _login(parts) | settings
            return Redis(capacity_bytes, host=host, port=port, database=database, **given)
        case "redis+unix":
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            database = _number("the database", query.pop("database", "0"))
            if query:
                raise InvalidArgumentError(f"{_shown(parts)} has {', '.join(query)}: database can be given there")
            socket = _path(parts)
            return Redis(capacity_bytes, unix_socket=socket, database=database, **_login(parts), **settings)
        case "s3" | "gs" | "az":
            return Custom(s3_from_url(url, **settings), capacity_bytes)
        case scheme:
            raise InvalidArgumentError(f"no back end is called {scheme}: {_SCHEMES}")


def s3_from_url(url: str, **settings: Any) -> S3:
    """Return the bucket that a URL names.

    Raises:
        MissingPackageError: There is no ``obstore``.
    """
    from kvpool.store.s3 import S3

    bucket, _, query = url.partition("?")
    return S3(bucket, **dict(parse_qsl(query)), **settings)


def _tls(parts: SplitResult) -> dict[str, Any]:
    """What a URL says of TLS."""
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    tls: dict[str, Any] = {"tls": True, "tls_ca": query.pop("ca", None), "tls_server_name": query.pop("name", None)}
    own = query.pop("cert", None), query.pop("key", None)
    if any(own):
        if not all(own):
            raise InvalidArgumentError(f"{_shown(parts)} has one of cert and key: they go together")
        tls["tls_certificate"] = own
    if query:
        raise InvalidArgumentError(f"{_shown(parts)} has {', '.join(query)}: ca, cert, key and name can be given there")
    return tls


def scheme_of(url: str) -> str:
    """Return what kind of back end a URL names; a path is a disk.

    >>> scheme_of("/mnt/nvme/kv"), scheme_of("redis://host")
    ('disk', 'redis')
    """
    return urlsplit(url).scheme if "://" in url else "disk"


def path_of(url: str) -> str:
    """Return the path that a URL names, or that it is.

    >>> path_of("folder:///mnt/kv%20cache"), path_of("/mnt/100%")
    ('/mnt/kv cache', '/mnt/100%')
    """
    return _path(urlsplit(url)) if "://" in url else url


def without_password(url: str) -> str:
    """Return a URL as it may be shown.

    >>> without_password("redis://me:secret@host:6379/1?ca=/pem")
    'redis://host:6379/1'
    """
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _shown(parts: SplitResult) -> str:
    """The URL without a password."""
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


def _path(parts: SplitResult) -> str:
    if not parts.path.startswith("/") or (parts.hostname and parts.scheme != "redis+unix"):
        raise InvalidArgumentError(f"{_shown(parts)} has no path: write {parts.scheme}:///path")
    return unquote(parts.path)


def _port(parts: SplitResult) -> int:
    try:
        return parts.port or 6379
    except ValueError:
        raise InvalidArgumentError(f"{_shown(parts)} has a port that is none: it must be from 1 to 65535") from None


def _number(what: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise InvalidArgumentError(f"{what} is {text!r}: must be a number")
    return int(text)


def _login(parts: SplitResult) -> dict[str, Any]:
    login = {"username": parts.username, "password": parts.password}
    return {name: unquote(text) for name, text in login.items() if text}
