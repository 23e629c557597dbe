"""A back end in S3 or a similar service: Google Cloud Storage, Azure, MinIO, a Ceph gateway.

It needs the package ``obstore``. Each object of the store is one object of the bucket,
``PREFIX/NAMESPACE/HASH-GROUP``. It contains a header and the payload, and one request reads or writes
both. The store's workers wait for the requests, so configure 32 workers or more. The store does not
delete the objects of engines that have ended. Configure a lifecycle rule of the bucket that expires
them.

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

#: Number of objects per page of a listing.
_PAGE = 256
#: The largest number of concurrent requests that check which objects exist.
_AT_ONCE = 64
#: The largest number of bytes of a namespace's text, and of an object, that inspection reads.
_LONGEST_TEXT = 1 << 20
_LONGEST = 1 << 32


class S3:
    """Adapts a bucket to the interface that :class:`kvpool.store.Custom` needs.

    Args:
        bucket: An object store of ``obstore``, or a URL: ``s3://bucket/prefix``, ``gs://``, ``az://``.
        prefix: The beginning of the names of all objects in the bucket.
        options: If ``bucket`` is a URL: the options of ``obstore.store.from_url``, for example
            ``region`` or ``endpoint``. By default, a request ends after 10 seconds and is retried
            twice. The options ``client_options`` and ``retry_config`` change this.

    Raises:
        MissingPackageError: The package ``obstore`` is missing.
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
        """Stores the JSON text of a namespace, which people and tools read.

        The store itself does not need it.
        """
        obstore.put(self._bucket, self._path(f"{digest}.json"), text.encode(), use_multipart=False)

    def write(self, name: str, header: bytes, address: int, length: int) -> None:
        """Stores an object."""
        payload = (ctypes.c_char * length).from_address(address)
        obstore.put(self._bucket, self._path(name), b"".join((header, payload)), use_multipart=False)

    def read(self, name: str, address: int, length: int) -> bytes | None:
        """Reads an object's payload into memory at an address, and returns its header."""
        try:
            value = memoryview(self._front(name, HEADER_BYTES + length))
        except FileNotFoundError:
            return None
        payload = bytes(value[HEADER_BYTES : HEADER_BYTES + length])
        ctypes.memmove(address, payload, len(payload))
        return bytes(value[:HEADER_BYTES])

    def exist(self, names: list[str]) -> list[bool]:
        """Returns for each name whether the object exists, by up to :data:`_AT_ONCE` requests at a time."""
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
        """Removes objects."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(self._bucket, self._path(name))

    def pages(self, *, verify: bool) -> Iterator[Page]:
        """See :class:`kvpool.store.inspect.Inspector`.

        The name and size describe an object. It is read only with ``verify``.
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
        """Returns None, because the number of objects is unknown."""

    def forget(self, digest: str) -> None:
        """Removes the text of a namespace, and the record of its generation."""
        self.remove([f"{digest}.json", f"{digest}/0"])

    def _front(self, name: str, most: int) -> bytes:
        """Returns an object, or its first ``most`` bytes if it is longer.

        The limit prevents a large object from filling the memory.
        """
        answer = obstore.get(self._bucket, self._path(name))
        if answer.meta["size"] <= most:
            return bytes(answer.bytes())
        return bytes(obstore.get_range(self._bucket, self._path(name), start=0, length=most))

    def _whole(self, name: str, most: int) -> bytes | None:
        try:
            return self._front(name, most)
        except FileNotFoundError:
            return None  # removed since it was listed

    def __repr__(self) -> str:
        return f"S3({self._bucket!r}, {self._prefix!r})"


def _listed(listing: Any) -> Any:
    """Returns the next page of a listing, or ``None`` at its end."""
    try:
        return next(listing, None)
    except obstore.exceptions.BaseError as error:
        # Only the first line of an error of obstore is its message. The other lines show internal
        # objects.
        raise StoreError(f"listing the bucket failed: {str(error).splitlines()[0]}") from error
