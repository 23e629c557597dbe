"""Tracks the chunks of an offloading tier: which are resident, their slots, readers and order of eviction.

A chunk is a unit of KV that vLLM offloads together. This module does not depend on vLLM. It owns a
``kvpool.BlockPool`` with one block per slot, and the dicts that map keys of chunks to blocks. The pool,
which is written in Rust, owns slots, references, the free list and the order of eviction. It handles a
whole batch per call. The dicts are in Python, because an engine looks up one key at a time, and a dict
is the fastest way to do this.

A block is first *pending*: it is allocated and registered, but not computed, because the chunk is being
stored. Then it is *ready*: computed, and cached-free while no load reads it. Finally it is free. The
number of a slot is its block id minus one, because block 0 is the null block. The pool's hashes
identify slots and not contents. Each slot has its own hash, so that one lookup can acquire a batch of
slots.

With the policy ``"last-accessed"``, chunks are evicted in the order of their times, the earliest first.
The caller provides the times. The time of a chunk never decreases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import kvpool
from kvpool.errors import InvalidArgumentError, InvalidBlockError, InvariantError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from kvpool._core import EvictionPolicy

__all__ = ["ChunkTable", "Stored"]

#: The algorithm has no influence, because a digest here only contains the number of a slot. It only
#: needs digests of 32 bytes.
_ALGORITHM: Final = "sha256"
_DIGEST_BYTES: Final = 32
#: The policy that evicts in the order of the caller's times.
BY_TIME: Final = "last-accessed"


class Stored(NamedTuple):
    """The result of ``ChunkTable.store``.

    Attributes:
        slots: One slot per key, in the order of the keys.
        evicted: The keys of the evicted chunks, in the order of eviction.
    """

    slots: list[int]
    evicted: list[bytes]


class ChunkTable:
    """The resident chunks, by key.

    ``ready`` and ``pending`` map keys to block ids (slot plus one). Callers may read both, but only
    this class may change them.

    Args:
        num_chunks: Number of slots. At least 0.
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
        """Number of free slots, which contain no chunk."""
        return self.num_chunks - len(self.ready) - len(self.pending)

    @property
    def num_held(self) -> int:
        """Number of slots that cannot be evicted: pending ones, and those being read."""
        return self._pool.stats().active

    def store(
        self, keys: Sequence[bytes], times: Sequence[float], keep: Collection[bytes] = ()
    ) -> Stored | None:
        """Takes a slot for each key, and evicts chunks if necessary. Returns None if there is no room.

        If it returns None, nothing has changed. The new chunks are pending and have ``times`` as their
        times. O(keys), and O(log slots) for each victim.

        Args:
            keys: Keys that are not resident. Each may occur only once.
            times: One time per key. Policies that do not order by time ignore them.
            keep: Chunks that this call must not evict. Chunks in it that are not ready are ignored.

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
            # The slot of the last victim is taken first, as in vLLM's manager, whose free list is a
            # stack.
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
        """Acquires ready chunks until ``complete_load``. Returns their slots, in the order of the keys.

        O(keys).

        Several callers may load a chunk at the same time.

        Args:
            keys: Keys of ready chunks.
            times: The times of this use: see ``use``. By default, the times of the chunks do not
                change.

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
        """Records when chunks were used. Times earlier than the known one are ignored. O(log slots) per key.

        Keys that are not resident are ignored, too.
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
        """Adds a reference to the block of each ready chunk."""
        if not blocks:
            return
        self._pool.match_and_acquire(self._chain(blocks))
        if self.by_time:
            # A lookup resets the times of the blocks that it acquires, so they are set again.
            self._mark(blocks, times if times is not None else [self._times[block] for block in blocks])

    def _mark(self, blocks: Sequence[int], times: Sequence[float], *, fresh: bool = False) -> None:
        """Records when blocks were used. ``fresh`` blocks have new content, so any time is valid."""
        known, mark = self._times, self._pool.mark_accessed
        for block, time in zip(blocks, times, strict=True):
            latest = time if fresh or time > known[block] else known[block]
            known[block] = latest
            mark([block], latest)
