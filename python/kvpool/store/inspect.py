"""Lists the objects of a back end, page by page, for people and tools.

Engines may use the back end meanwhile.

This module defines how each back end is listed. The core decides whether an object is intact
(``check_object``). For a disk, use ``StoreFolder`` instead, because a disk's folder has slots instead
of named objects and belongs to one engine.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from kvpool._core.store import Redis, StoreServer, check_object
from kvpool.errors import InvalidArgumentError, StoreError, StoreNotFoundError
from kvpool.store.custom import HEADER_BYTES
from kvpool.store.pages import RECORD, TEXT, Page, Seen, parsed
from kvpool.store.urls import backend_from_url, path_of, s3_from_url, scheme_of, without_password

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvpool._core.store import Namespace

__all__ = ["Inspector", "SharedFolderInspector", "StoreServerInspector", "inspector_from_url"]

_PAGE: Final = 256
#: A server may list entries without end. These limits apply to the objects, to the pages, and to
#: consecutive empty pages.
_MOST_OBJECTS: Final = 1 << 24
_MOST_PAGES: Final = 1 << 20
_MOST_EMPTY: Final = 1 << 16
#: The largest number of bytes of an object that is read.
_LONGEST: Final = 1 << 32
#: Number of bytes before the payload in each file of a shared folder. They contain the header.
_FRONT_BYTES: Final = 4096


class Inspector(Protocol):
    """The interface of an object that lists the objects of a back end. Engines do not use it."""

    def total(self) -> int | None:
        """Returns the approximate number of entries on all pages.

        Returns ``None`` if counting requires reading everything.
        """

    def pages(self, *, verify: bool) -> Iterator[Page]:
        """Yields all entries of the back end, each once.

        With ``verify``, all bytes are read and compared with their checksums.

        Raises:
            StoreError: The back end cannot be listed or read.
        """

    def remove(self, names: list[str]) -> None:
        """Removes objects. Missing ones are ignored."""

    def forget(self, digest: str) -> None:
        """Removes the text of a namespace, and the record of its generation."""


class StoreServerInspector:
    """Lists the objects of a Redis or Valkey server."""

    def __init__(self, server: Redis) -> None:
        self._server = StoreServer(server)

    def total(self) -> int:
        """Returns the number of keys in the database."""
        return self._server.keys()

    def pages(self, *, verify: bool) -> Iterator[Page]:
        """See :class:`Inspector`."""
        cursor, seen, cursors, empty = 0, set[int](), set[int](), 0
        while True:
            cursor, objects, namespaces, others = self._server.scan(cursor, verify=verify)
            empty = 0 if objects or namespaces or others else empty + 1
            if cursor in cursors or len(cursors) > _MOST_PAGES or empty > _MOST_EMPTY:
                raise StoreError(
                    f"the server lists its keys without end: it began anew after {len(cursors)} pages"
                )
            if len(seen) > _MOST_OBJECTS:
                raise StoreError(
                    f"the server lists more than {_MOST_OBJECTS:,} objects: no more are looked at"
                )
            cursors.add(cursor)
            # A server may list a key twice while its table grows. To detect this, a 64-bit hash of each
            # key is sufficient.
            once = [one for one in objects if hash(one[0]) not in seen]
            seen.update(hash(one[0]) for one in once)
            yield Page(once, namespaces, others)
            if cursor == 0:
                return

    def remove(self, names: list[str]) -> None:
        """See :class:`Inspector`."""
        self._server.remove(names)

    def forget(self, digest: str) -> None:
        """See :class:`Inspector`."""
        self._server.forget(digest)


class SharedFolderInspector:
    """Lists the objects of a shared folder, which has one file per object."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise StoreNotFoundError(f"{folder} has no objects of a store: no such folder")
        self._folder = folder

    def total(self) -> None:
        """Returns None, because counting the files would require reading all folders."""

    def pages(self, *, verify: bool) -> Iterator[Page]:
        """See :class:`Inspector`."""
        objects: list[Seen] = []
        namespaces: dict[str, Namespace | None] = {}
        others = 0
        for path in self._folder.iterdir():
            text = TEXT.fullmatch(path.name)
            if text:
                namespaces[text[1]] = parsed(text[1], _read(path, 1 << 20) or b"")
            elif path.is_symlink() or not path.is_dir():
                others += RECORD.fullmatch(path.name) is None and path.suffix != ".tmp"
            else:
                parts = (part for part in path.iterdir() if part.is_dir() and not part.is_symlink())
                for file in itertools.chain.from_iterable(part.iterdir() for part in parts):
                    seen = self._seen(path.name, file, verify=verify)
                    if seen is None:
                        others += file.suffix != ".tmp"  # a file that is being written
                    else:
                        objects.append(seen)
                    if len(objects) >= _PAGE:
                        yield Page(objects)
                        objects = []
        yield Page(objects, namespaces, others)

    @staticmethod
    def _seen(namespace: str, file: Path, *, verify: bool) -> Seen | None:
        name = f"{namespace}/{file.name}"
        if check_object(name, b"", 0) is None:
            return None
        try:
            with opened_regular(file) as opened:
                length = os.fstat(opened.fileno()).st_size - _FRONT_BYTES + HEADER_BYTES
                front = opened.read(_FRONT_BYTES)[:HEADER_BYTES]
                payload = opened.read(_LONGEST) if verify else None
        except FileNotFoundError:
            return None  # removed since it was listed
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EINVAL, errno.ENXIO):
                return name, None, 0, 0, "a link, or no regular file: no engine reads it"
            raise StoreError(f"reading {file} failed: {error}") from error
        return check_object(name, front, max(length, 0), payload)

    def remove(self, names: list[str]) -> None:
        """See :class:`Inspector`."""
        for name in names:
            namespace, _, file = name.partition("/")
            if check_object(name, b"", 0) is None:
                raise InvalidArgumentError(f"{name!r} is no name of an object")
            (self._folder / namespace / file[:2] / file).unlink(missing_ok=True)

    def forget(self, digest: str) -> None:
        """See :class:`Inspector`."""
        if not TEXT.fullmatch(f"{digest}.json"):
            raise InvalidArgumentError(f"{digest!r} is no digest of a namespace: 64 hexadecimal digits")
        for ending in ("json", "generation"):
            (self._folder / f"{digest}.{ending}").unlink(missing_ok=True)


def opened_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, without following a link and without waiting for a pipe.

    Raises:
        OSError: The path is a link or not a regular file, or the file is unreadable.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _read(path: Path, most: int) -> bytes | None:
    try:
        with opened_regular(path) as file:
            return file.read(most)
    except OSError:
        return None


def inspector_from_url(url: str) -> Inspector:
    """Return the inspector for the objects of a shared back end, by its URL.

    Args:
        url: A URL that ``backend_from_url`` accepts, except the URL of a disk. For a disk, use
            ``StoreFolder``.

    Raises:
        InvalidArgumentError: The scheme is unknown, or its objects cannot be listed.
        StoreError: The back end cannot be reached.
        MissingPackageError: The package ``obstore`` for S3 is missing.
    """
    match scheme_of(url):
        case "folder":
            return SharedFolderInspector(Path(path_of(url)))
        case "s3" | "gs" | "az":
            return s3_from_url(url)
        case "mooncake":
            from kvpool.store.mooncake_keys import mooncake_from_url

            return mooncake_from_url(url)
    backend = backend_from_url(url, 1 << 30)
    if not isinstance(backend, Redis):
        raise InvalidArgumentError(f"{without_password(url)} is a disk: StoreFolder looks at it")
    return StoreServerInspector(backend)
