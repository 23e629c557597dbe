"""A back end that keeps objects in a Mooncake Store: in the memory of many machines, over RDMA or TCP.

It needs the package ``mooncake-transfer-engine``, or its ``-non-cuda`` version, and a running master.
Payloads move directly between Mooncake and the arena's slots, because the arena's memory is registered
with Mooncake. Staged payloads are copied through memory that each worker registers. Mooncake may drop
any object at any time, and verifies no content. kvpool's own headers and checksums do this.

    master:  mooncake_master --port 50051 --metrics_host 127.0.0.1
    engine:  store = MooncakeDistributedStore()
             store.setup("127.0.0.1", "P2PHANDSHAKE", 4 << 30, 64 << 20, "tcp", "", "127.0.0.1:50051")
             backend = Custom(Mooncake(store, arena), capacity_bytes=4 << 30)
"""

from __future__ import annotations

import ctypes
import errno
import threading
from typing import TYPE_CHECKING, Any, Final

from kvpool.errors import StoreError
from kvpool.store.custom import HEADER_BYTES

if TYPE_CHECKING:
    from kvpool.store import Arena

__all__ = ["Mooncake"]

#: Mooncake's error codes for: no room; no such object; an object of another length than requested.
_NO_ROOM: Final = -200
_ABSENT: Final = -704
_OTHER_LENGTH: Final = -600


class Mooncake:
    """Adapts a Mooncake Store to the interface that :class:`kvpool.store.Custom` needs.

    Args:
        store: A ``MooncakeDistributedStore`` after its ``setup``.
        arena: The slots between which and Mooncake the store copies. The memory is registered until
            ``close``.
        config: The ``ReplicateConfig`` of Mooncake for writes. The default is Mooncake's own default.
        prefix: The beginning of the names of all objects.
    """

    def __init__(self, store: Any, arena: Arena, *, config: Any = None, prefix: str = "kvpool") -> None:
        self._store = store
        self._arena = arena
        self._range = range(arena.address, arena.address + arena.stride * arena.slots)
        self._config = () if config is None else (config,)
        self._prefix = prefix
        self._own = threading.local()
        self._lock = threading.Lock()
        self._record: list[str] = []
        self._registered: list[tuple[int, Any]] = []
        self._register(arena.address, arena.stride * arena.slots, arena)

    def _register(self, address: int, length: int, owner: Any) -> None:
        code = self._store.register_buffer(address, length)
        if code != 0:
            raise StoreError(f"Mooncake does not register {length:,} bytes: error {code}")
        with self._lock:
            self._registered.append((address, owner))

    def _scratch(self, kind: str, length: int) -> int:
        """Returns the address of a buffer that this thread owns and has registered."""
        buffer = getattr(self._own, kind, None)
        if buffer is None or len(buffer) < length:
            buffer = (ctypes.c_char * length)()
            self._register(ctypes.addressof(buffer), length, buffer)
            setattr(self._own, kind, buffer)
        return ctypes.addressof(buffer)

    def _is_registered(self, address: int, length: int) -> bool:
        return address in self._range and address + length <= self._range.stop

    def _uses(self, name: str) -> None:
        """Remembers the name of a namespace's record, if ``name`` is such a name.

        Every query for objects then includes this record. Otherwise, Mooncake might drop it as unused.
        """
        if name.endswith("/0"):
            self._record = [self._name(name)]

    def _name(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def describe(self, digest: str, text: str) -> None:
        """Stores the JSON text of a namespace, which people and tools read.

        The store itself does not need it.
        """
        code = self._store.put(self._name(f"{digest}.json"), text.encode(), *self._config)
        if code != 0:
            raise StoreError(f"Mooncake does not put the text of a namespace: error {code}")

    def write(self, name: str, header: bytes, address: int, length: int) -> None:
        """Stores an object."""
        self._uses(name)
        front = self._scratch("header", HEADER_BYTES)
        ctypes.memmove(front, header, HEADER_BYTES)
        if not self._is_registered(address, length):
            staged = self._scratch("payload", length)
            ctypes.memmove(staged, address, length)
            address = staged
        (code,) = self._store.batch_put_from_multi_buffers(
            [self._name(name)], [[front, address]], [[HEADER_BYTES, length]], *self._config
        )
        if code == _NO_ROOM:
            raise OSError(errno.ENOSPC, "Mooncake has no room left")
        if code != 0:
            raise StoreError(f"Mooncake does not put {length:,} bytes: error {code}")

    def read(self, name: str, address: int, length: int) -> bytes | None:
        """Reads an object's payload into memory at an address, and returns its header."""
        self._uses(name)
        front = self._scratch("header", HEADER_BYTES)
        direct = self._is_registered(address, length)
        into = address if direct else self._scratch("payload", length)
        (code,) = self._store.batch_get_into_multi_buffers(
            [self._name(name)], [[front, into]], [[HEADER_BYTES, length]]
        )
        if code in (_ABSENT, _OTHER_LENGTH):
            return None
        if code < HEADER_BYTES:
            raise StoreError(f"Mooncake does not get {length:,} bytes: error {code}")
        if not direct:
            ctypes.memmove(address, into, min(length, code - HEADER_BYTES))
        return ctypes.string_at(front, HEADER_BYTES)

    def exist(self, names: list[str]) -> list[bool]:
        """Returns for each name whether the object exists."""
        asked = [self._name(name) for name in names]
        codes = self._store.batch_is_exist(asked + self._record)[: len(asked)]
        if any(code < 0 for code in codes):
            raise StoreError(f"Mooncake does not say what it has: error {min(codes)}")
        return [code == 1 for code in codes]

    def remove(self, names: list[str]) -> None:
        """Removes objects."""
        codes = self._store.batch_remove([self._name(name) for name in names], True)
        failed = [code for code in codes if code not in (0, _ABSENT)]
        if failed:
            raise StoreError(f"Mooncake does not remove {len(failed)} objects: error {failed[0]}")

    def close(self) -> None:
        """Unregisters the memory. Call it after closing the store that uses this back end."""
        with self._lock:
            registered, self._registered = self._registered, []
        for address, _ in registered:
            self._store.unregister_buffer(address)

    def __repr__(self) -> str:
        return f"Mooncake({self._prefix!r})"
