"""The chunks of an offloading tier: residency, slots, readers and order of eviction. Independent of vLLM.

This module owns a ``kvpool.BlockPool`` with one block per slot, and the dicts that map keys to blocks.
The pool, in Rust, owns slots, references, the free list and the order of eviction, with one call for a
whole batch. The dicts are in Python, because an engine looks up one key at a time, and nothing is
faster for that.

A block is *pending* (allocated, registered, not computed: it is being stored), then *ready* (computed;
cached-free while it has no readers), then free. A slot is a block id minus one, because block 0 is the
null block. The pool's hashes identify slots, not contents: each slot has one, so that one lookup can
hold a batch of slots.

If the policy is ``"last-accessed"``, times decide the order of eviction: the earliest is evicted first.
The caller provides the times, and the time of a chunk never moves back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import kvpool
from kvpool.errors import InvalidArgumentError, InvalidBlockError, InvariantError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from kvpool._core import EvictionPolicy

__all__ = ["ChunkTable", "Stored"]

#: Any algorithm with digests of 32 bytes works. The digest is the number of a slot.
_ALGORITHM: Final = "sha256"
_DIGEST_BYTES: Final = 32
#: The policy that orders by the caller's times.
BY_TIME: Final = "last-accessed"


class Stored(NamedTuple):
    """The result of ``ChunkTable.store``.

    Attributes:
        slots: One slot per key, in the order of the keys.
        evicted: Keys of the evicted chunks, first victim first.
    """

    slots: list[int]
    evicted: list[bytes]


class ChunkTable:
    """Resident chunks by key.

    ``ready`` and ``pending`` map keys to blocks (slot plus one). Callers may read them; only this class
    writes them.

    Args:
        num_chunks: Slots. At least 0.
        eviction: A policy of ``kvpool.BlockPool``.

    Raises:
        InvalidArgumentError: A setting is out of range, or no policy has this name.

    >>> chunks = ChunkTable(3)
    >>> chunks.store([b"a", b"b", b"c"], [1.0, 0.9, 0.8])  # one prefix: later times nearer to its head
    Stored(slots=[0, 1, 2], evicted=[])
    >>> chunks.complete_store([b"a", b"b", b"c"])
    [b'a', b'b', b'c']
    >>> chunks.load([b"c"])
    [2]
    >>> chunks.store([b"d"], [2.0])  # c is being read
    Stored(slots=[1], evicted=[b'b'])
    """

    def __init__(self, num_chunks: int, eviction: EvictionPolicy = BY_TIME) -> None:
        if num_chunks < 0:
            raise InvalidArgumentError(f"num_chunks is {num_chunks}: must be at least 0")
        self.num_chunks = num_chunks
        self.eviction = eviction
        self.by_time: Final = eviction == BY_TIME
        self._digests = [slot.to_bytes(_DIGEST_BYTES, "big") for slot in range(num_chunks + 1)]
        self.clear()

    def clear(self) -> None:
        """Drops every chunk, also pending ones and those being read. O(slots)."""
        # A pool has at least one block. Without slots, this block is never used.
        self._pool = kvpool.BlockPool(max(2, self.num_chunks + 1), 1, eviction=self.eviction)
        self.ready: dict[bytes, int] = {}
        self.pending: dict[bytes, int] = {}
        self._keys: list[bytes | None] = [None] * (self.num_chunks + 1)
        self._times = [0.0] * (self.num_chunks + 1)

    @property
    def num_free(self) -> int:
        """Number of slots without content."""
        return self.num_chunks - len(self.ready) - len(self.pending)

    @property
    def num_held(self) -> int:
        """Number of slots that cannot be evicted: pending ones, and those being read."""
        return self._pool.stats().active

    def store(
        self, keys: Sequence[bytes], times: Sequence[float], keep: Collection[bytes] = ()
    ) -> Stored | None:
        """Takes a slot for each key, evicting chunks if necessary. Returns None if there is no room.

        If it returns None, nothing has changed. The new chunks are pending, with ``times`` as their
        times. O(keys), and O(log slots) for each victim.

        Args:
            keys: Keys that are not resident, each once.
            times: One per key; ignored by policies that do not order by time.
            keep: Chunks that this call must not evict. Chunks that are not ready are ignored.

        Raises:
            InvalidBlockError: A key is resident, or named twice.
        """
        wanted = len(keys)
        if len(set(keys)) != wanted or any(key in self.ready or key in self.pending for key in keys):
            raise InvalidBlockError("a chunk to be stored is resident already, or named twice")
        free = self.num_free
        if wanted <= free:
            blocks = self._pool.allocate(wanted)
        else:
            kept = [block for key in keep if (block := self.ready.get(key)) is not None]
            self._hold(kept)
            possible = wanted <= min(self._pool.num_available, self.num_chunks)
            blocks = self._pool.allocate(wanted) if possible else []
            self._pool.release(kept)
            if not possible:
                return None
        evicted: list[bytes] = []
        if wanted > free:
            victims = blocks[free:]
            for block in victims:
                key = self._keys[block]
                assert key is not None  # noqa: S101 - a block that is not free has a key
                evicted.append(key)
                del self.ready[key]
            # As in vLLM's manager, whose free list is a stack: the last victim's slot is taken first.
            victims.reverse()
            blocks[free:] = victims
        self._pool.register(blocks, self._chain(blocks))
        for key, block in zip(keys, blocks, strict=True):
            self._keys[block] = key
        self.pending.update(zip(keys, blocks, strict=True))
        if self.by_time:
            self._mark(blocks, times, fresh=True)
        return Stored([block - 1 for block in blocks], evicted)

    def complete_store(self, keys: Iterable[bytes]) -> list[bytes]:
        """Makes pending chunks ready. Returns their keys, and ignores other keys. O(keys)."""
        found = self._end_store(keys)
        self._pool.mark_computed(list(found.values()))
        self._pool.release(list(found.values()))
        self.ready.update(found)
        return list(found)

    def abandon_store(self, keys: Iterable[bytes]) -> list[bytes]:
        """Drops pending chunks. Returns their keys, and ignores other keys. O(keys)."""
        found = self._end_store(keys)
        blocks = list(found.values())
        for block in blocks:
            self._keys[block] = None
        self._pool.release(blocks)
        return list(found)

    def load(self, keys: Collection[bytes], times: Sequence[float] | None = None) -> list[int]:
        """Holds ready chunks until ``complete_load``. Returns their slots, in the order of the keys. O(keys).

        Several callers may load one chunk at the same time.

        Args:
            keys: Ready chunks.
            times: The times of the use, see ``use``. By default, their times do not change.

        Raises:
            InvalidBlockError: A key is not resident, or not ready. The message contains it.
        """
        blocks = self._ready_blocks(keys)
        self._hold(blocks, times)
        return [block - 1 for block in blocks]

    def complete_load(self, keys: Collection[bytes]) -> None:
        """Ends one load of each chunk. O(keys).

        Raises:
            InvalidBlockError: A key is not resident, or named more often than it is loaded.
        """
        self._pool.release(self._ready_blocks(keys))

    def use(self, keys: Sequence[bytes], times: Sequence[float]) -> None:
        """Records when chunks were used. A time earlier than the known one is ignored. O(log slots) per key.

        Ignores keys that are not resident.
        """
        if not self.by_time:
            return
        known = [
            (block, time)
            for key, time in zip(keys, times, strict=True)
            if (block := self.ready.get(key) or self.pending.get(key)) is not None
        ]
        self._mark([block for block, _ in known], [time for _, time in known])

    def order(self) -> list[bytes]:
        """Returns the keys of evictable chunks, next victim first. O(slots), for tests and tools."""
        return [
            key for block in self._pool.diagnose.eviction_order() if (key := self._keys[block]) is not None
        ]

    def readers(self, key: bytes) -> int:
        """Returns the number of running loads of a ready chunk. O(1).

        Raises:
            InvalidBlockError: The key is not resident, or not ready.
        """
        return self._pool.ref_count(self._ready_blocks([key])[0])

    def check_invariants(self) -> None:
        """Checks the pool, and that keys and blocks match. O(slots), for tests.

        Raises:
            InvariantError: An invariant is broken; the error describes the first one.
        """
        self._pool.diagnose.check_invariants()
        both = {**self.ready, **self.pending}
        by_block = {block: key for block, key in enumerate(self._keys) if key is not None}
        if (
            len(both) != len(self.ready) + len(self.pending)
            or {block: key for key, block in both.items()} != by_block
        ):
            raise InvariantError("the keys by block are not those of the resident chunks")
        for block in range(1, self.num_chunks + 1):
            state = self._pool.state(block)
            key = by_block.get(block)
            expected = (
                {"free"} if key is None else {"active"} if key in self.pending else {"active", "cached-free"}
            )
            if state not in expected or (key in self.ready) != self._pool.diagnose.is_computed(block):
                raise InvariantError(f"slot {block - 1} is {state} in the pool and holds {key!r}")

    def _ready_blocks(self, keys: Iterable[bytes]) -> list[int]:
        try:
            return [self.ready[key] for key in keys]
        except KeyError as error:
            key = error.args[0]
            what = "not ready: it is being stored" if key in self.pending else "not resident"
            raise InvalidBlockError(f"chunk {key!r} is {what}") from None

    def _end_store(self, keys: Iterable[bytes]) -> dict[bytes, int]:
        pending = self.pending
        return {key: pending.pop(key) for key in keys if key in pending}

    def _chain(self, blocks: list[int]) -> kvpool.hashing.HashChain:
        digests = self._digests
        return kvpool.hashing.HashChain.from_digests(_ALGORITHM, 1, [digests[block] for block in blocks])

    def _hold(self, blocks: list[int], times: Sequence[float] | None = None) -> None:
        """Adds a reference to each of the ready blocks."""
        if not blocks:
            return
        self._pool.match_and_acquire(self._chain(blocks))
        if self.by_time:
            # A lookup clears the times of the blocks that it takes.
            self._mark(blocks, times if times is not None else [self._times[block] for block in blocks])

    def _mark(self, blocks: Sequence[int], times: Sequence[float], *, fresh: bool = False) -> None:
        """Records when blocks were used. ``fresh`` blocks have new content, so any time is valid."""
        known, mark = self._times, self._pool.mark_accessed
        for block, time in zip(blocks, times, strict=True):
            latest = time if fresh or time > known[block] else known[block]
            known[block] = latest
            mark([block], latest)
