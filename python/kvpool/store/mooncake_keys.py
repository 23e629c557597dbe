"""Lists the objects of a Mooncake Store, for ``kvpool store show mooncake://host:50051``.

A client of Mooncake cannot list keys, but Mooncake's master can, on the port of its metrics. This
module gets the list from the master. It reads and removes objects as a client that provides no memory.
It needs the package ``mooncake-transfer-engine``, or its ``-non-cuda`` version.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any, Final

from kvpool.errors import InvalidArgumentError, MissingPackageError, StoreError
from kvpool.fetch import FetchError, fetch
from kvpool.store.pages import RECORD, TEXT, Page, checked, named, parsed
from kvpool.store.urls import query_of, split_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MooncakeInspector", "keys_of_master", "mooncake_from_url"]

_PAGE: Final = 256
#: The largest number of seconds that the master may take to send its list of keys.
_SECONDS: Final = 60.0
#: The largest number of bytes of a namespace's text, and of an object, that inspection reads.
_LONGEST_TEXT: Final = 1 << 20
_LONGEST_VALUE: Final = 1 << 32
#: The largest number of bytes of the list of keys, enough for about two million keys.
_LONGEST: Final = 256 << 20


class MooncakeInspector:
    """Lists the objects of a Mooncake Store.

    Args:
        store: A ``MooncakeDistributedStore`` after its ``setup``.
        keys: A function that returns all keys, including those of other users.
        prefix: The beginning of the names of objects.
    """

    def __init__(self, store: Any, keys: Callable[[], list[str]], *, prefix: str = "kvpool") -> None:
        self._store, self._keys, self._prefix = store, keys, f"{prefix}/"

    def total(self) -> int:
        """Returns the number of keys."""
        return len(self._keys())

    def pages(self, *, verify: bool) -> Iterator[Page]:
        """See :class:`kvpool.store.inspect.Inspector`.

        Without ``verify``, no object is read: its name and its size are sufficient to list it.
        """
        page, others = Page(), 0
        for key in self._keys():
            name = key.removeprefix(self._prefix) if key.startswith(self._prefix) else ""
            text = TEXT.fullmatch(name)
            if text:
                found = self._value(key, _LONGEST_TEXT)
                if found:
                    page.namespaces[text[1]] = parsed(text[1], found)
            elif named(name, 0) is None:
                others += RECORD.fullmatch(name) is None
            else:
                value = self._value(key, _LONGEST_VALUE) if verify else b""
                size = len(value) if verify else self._store.get_size(key)
                seen = checked(name, value) if verify else named(name, size)
                if size > 0 and seen is not None:  # it still exists
                    page.objects.append(seen)
            if len(page.objects) + others >= _PAGE:
                yield Page(page.objects, page.namespaces, others)
                page, others = Page(), 0
        yield Page(page.objects, page.namespaces, others)

    def _value(self, key: str, most: int) -> bytes:
        """Returns the value of a key, or empty bytes if the value is longer than ``most`` bytes."""
        return bytes(self._store.get(key)) if self._store.get_size(key) <= most else b""

    def remove(self, names: list[str]) -> None:
        """See :class:`kvpool.store.inspect.Inspector`."""
        for name in names:
            if named(name, 0) is None:
                raise InvalidArgumentError(f"{name!r} is no name of an object")
        self._store.batch_remove([self._prefix + name for name in names], True)

    def forget(self, digest: str) -> None:
        """See :class:`kvpool.store.inspect.Inspector`."""
        if not TEXT.fullmatch(f"{digest}.json"):
            raise InvalidArgumentError(f"{digest!r} is no digest of a namespace: 64 hexadecimal digits")
        self._store.batch_remove([f"{self._prefix}{digest}{end}" for end in (".json", "/0")], True)


def keys_of_master(host: str, port: int) -> list[str]:
    """Returns all keys of a master.

    Raises:
        StoreError: The master does not answer in time, or its answer is not a list.
    """
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/get_all_keys"
    try:
        page = fetch(url, seconds=_SECONDS, most_bytes=_LONGEST, direct=True)
    except FetchError as error:
        raise StoreError(f"Mooncake's master lists no keys at {host}:{port}: {error}") from error
    return [line for line in page.body.decode(errors="replace").split("\n") if line]


def mooncake_from_url(url: str) -> MooncakeInspector:
    """Returns the inspector of a master's store.

    The URL is ``mooncake://host[:50051][?metrics=9003&protocol=tcp&local=host]``.

    Raises:
        InvalidArgumentError: The URL has an unknown part.
        MissingPackageError: Mooncake's package is missing.
        StoreError: The master cannot be reached.
    """
    parts = split_url(url)
    query = query_of(parts)
    metrics, protocol = query.pop("metrics", "9003"), query.pop("protocol", "tcp")
    host, local = parts.hostname, query.pop("local", "127.0.0.1")
    is_port = re.fullmatch("[0-9]{1,5}", metrics) and 0 < int(metrics) < 1 << 16
    if query or not host or parts.path.strip("/") or parts.fragment or parts.port == 0 or not is_port:
        raise InvalidArgumentError(
            f"mooncake://{host or ''} must be mooncake://host:50051?metrics=9003&protocol=tcp"
        )
    try:
        client = importlib.import_module("mooncake.store").MooncakeDistributedStore
    except ImportError as error:
        why = "mooncake:// needs mooncake-transfer-engine, or mooncake-transfer-engine-non-cuda"
        raise MissingPackageError(f"{why}: {error}") from error
    master = f"{host}:{parts.port or 50051}"
    store = client()
    code = store.setup(local, "P2PHANDSHAKE", 0, 64 << 20, protocol, "", master)
    if code != 0:
        raise StoreError(f"Mooncake is not set up with {master}: error {code}")
    return MooncakeInspector(store, lambda: keys_of_master(host, int(metrics)))
