"""Objects in S3, or what is like it: Google Cloud Storage, Azure, MinIO, a Ceph gateway.

Needs the package ``obstore``. One object of the bucket per object, ``PREFIX/NAMESPACE/HASH-GROUP``: a
header and the payload, in one request each way. Requests wait in the store's workers, so have many: 32
and more. What engines leave behind is the bucket's to expire: give it a lifecycle rule.

>>> import obstore.store
>>> from kvpool.store import Arena, Custom
>>> from kvpool.store.s3 import S3
>>> backend = Custom(S3(obstore.store.MemoryStore()), capacity_bytes=1 << 30)
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
from typing import TYPE_CHECKING, Any

from kvpool.errors import MissingPackageError, StoreError
from kvpool.store.custom import HEADER_BYTES
from kvpool.store.pages import RECORD, TEXT, Page, checked, named, parsed

try:
    import obstore
    import obstore.exceptions
except ImportError as error:
    raise MissingPackageError("kvpool.store.s3 needs obstore: pip install obstore") from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore.store import ObjectStore

__all__ = ["S3"]

#: Objects that are asked for at once, to be listed.
_PAGE = 256
#: Requests that are on their way at once to say which objects are there.
_AT_ONCE = 64
#: Bytes of the longest text of a namespace, and of the longest object, that are read to be looked at.
_LONGEST_TEXT = 1 << 20
_LONGEST = 1 << 32


class S3:
    """A bucket, as :class:`kvpool.store.Custom` wants it.

    Args:
        bucket: An object store of ``obstore``, or a URL: ``s3://bucket/prefix``, ``gs://``, ``az://``.
        prefix: What names begin with, inside of the bucket.
        options: For a URL: what ``obstore.store.from_url`` takes, ``region`` or ``endpoint`` for
            example. A request ends after 10 seconds, and is tried again twice, unless
            ``client_options`` and ``retry_config`` say otherwise.

    Raises:
        MissingPackageError: There is no ``obstore``.
    """

    def __init__(self, bucket: ObjectStore | str, *, prefix: str = "kvpool", **options: Any) -> None:
        if isinstance(bucket, str):
            options.setdefault("client_options", {"timeout": "10 seconds"})
            options.setdefault("retry_config", {"max_retries": 2})
            bucket = obstore.store.from_url(bucket, **options)
        self._bucket: Any = bucket
        self._prefix = prefix

    def _path(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def describe(self, digest: str, text: str) -> None:
        """Keep the text of a namespace, for people."""
        obstore.put(self._bucket, self._path(f"{digest}.json"), text.encode(), use_multipart=False)

    def write(self, name: str, header: bytes, address: int, length: int) -> None:
        """Keep an object."""
        payload = (ctypes.c_char * length).from_address(address)
        obstore.put(self._bucket, self._path(name), b"".join((header, payload)), use_multipart=False)

    def read(self, name: str, address: int, length: int) -> bytes | None:
        """Write an object's payload to an address, and return its header."""
        try:
            value = memoryview(self._front(name, HEADER_BYTES + length))
        except FileNotFoundError:
            return None
        payload = bytes(value[HEADER_BYTES : HEADER_BYTES + length])
        ctypes.memmove(address, payload, len(payload))
        return bytes(value[:HEADER_BYTES])

    def exist(self, names: list[str]) -> list[bool]:
        """Say which objects are there, with :data:`_AT_ONCE` requests at once."""
        return asyncio.run(self._exist(names))

    async def _exist(self, names: list[str]) -> list[bool]:
        connections = asyncio.Semaphore(_AT_ONCE)

        async def exists(name: str) -> bool:
            try:
                async with connections:
                    await obstore.head_async(self._bucket, self._path(name))
            except FileNotFoundError:
                return False
            return True

        return await asyncio.gather(*map(exists, names))

    def remove(self, names: list[str]) -> None:
        """Remove objects."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(self._bucket, self._path(name))

    def pages(self, *, verify: bool) -> Iterator[Page]:
        """See :class:`kvpool.store.inspect.Inspector`.

        What an object is its name and size say; only with ``verify`` it is read.
        """
        listing = obstore.list(self._bucket, self._path(""), chunk_size=_PAGE)
        while (listed := _listed(listing)) is not None:
            page = Page()
            others = 0
            for meta in listed:
                name = meta["path"].removeprefix(self._path(""))
                text = TEXT.fullmatch(name)
                if text:
                    found = self._whole(name, _LONGEST_TEXT)
                    if found is not None:
                        page.namespaces[text[1]] = parsed(text[1], found)
                    continue
                if RECORD.fullmatch(name):
                    continue
                value = self._whole(name, _LONGEST) if verify else None
                seen = named(name, meta["size"]) if value is None else checked(name, value)
                if seen is None:
                    others += 1
                else:
                    page.objects.append(seen)
            yield dataclasses.replace(page, others=others)

    def total(self) -> None:
        """Nobody knows."""

    def forget(self, digest: str) -> None:
        """Remove the text of a namespace, and the record of its generation."""
        self.remove([f"{digest}.json", f"{digest}/0"])

    def _front(self, name: str, most: int) -> bytes:
        """An object, or its first bytes if it has more: what it claims does not take memory."""
        answer = obstore.get(self._bucket, self._path(name))
        if answer.meta["size"] <= most:
            return bytes(answer.bytes())
        return bytes(obstore.get_range(self._bucket, self._path(name), start=0, length=most))

    def _whole(self, name: str, most: int) -> bytes | None:
        try:
            return self._front(name, most)
        except FileNotFoundError:
            return None  # gone meanwhile

    def __repr__(self) -> str:
        return f"S3({self._bucket!r}, {self._prefix!r})"


def _listed(listing: Any) -> Any:
    """The next page of a listing, ``None`` at its end."""
    try:
        return next(listing, None)
    except obstore.exceptions.BaseError as error:
        # The lines after the first are a dump of the library's objects.
        raise StoreError(f"listing the bucket failed: {str(error).splitlines()[0]}") from error
