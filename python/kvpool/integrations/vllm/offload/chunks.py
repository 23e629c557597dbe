"""The chunks of an offloading tier: which are resident, in which slot, who reads them, which go first.
Knows no vLLM.

Owns a ``kvpool.BlockPool`` with one block per slot, and the dictionaries that lead from a key to its
block. Slots, references, the free list and the order of eviction are the pool's, in Rust, with one call
for a whole batch; the dictionaries are Python's, because an engine asks for keys one at a time and
nothing is faster at that.

A block's life: *pending* (allocated, registered, not computed: it is being stored), *ready* (computed;
cached-free while nobody reads it), free. A slot is a block id minus one, for block 0 is the null block.
The pool's hashes are those of the slots, not of the contents: each slot has one, so that a batch of
slots can be held by one lookup.

Times order eviction where the policy listens to them (``"last-accessed"``): the earliest goes first.
They are the caller's, and those of a chunk never move back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import kvpool
from kvpool.errors import InvalidArgumentError, InvalidBlockError, InvariantError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from kvpool._core import EvictionPolicy

__all__ = ["ChunkTable", "Stored"]

#: Any algorithm will do: its digests are 32 bytes, here the number of a slot.
_ALGORITHM: Final = "sha256"
_DIGEST_BYTES: Final = 32
#: The policy that orders by the caller's times.
BY_TIME: Final = "last-accessed"


class Stored(NamedTuple):
    """What ``ChunkTable.store`` did.

    Attributes:
        slots: One per key, in the order of the keys.
        evicted: Keys of the chunks that made room, first victim first.
    """

    slots: list[int]
    evicted: list[bytes]


class ChunkTable:
    """Resident chunks by key.

    ``ready`` and ``pending`` map keys to blocks (slot plus one); they may be read by anyone and are
    written here.

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
        """Forgets every chunk, pending and read ones included. O(slots)."""
        # A pool has at least one block; with no slot, nothing ever asks for it.
        self._pool = kvpool.BlockPool(max(2, self.num_chunks + 1), 1, eviction=self.eviction)
        self.ready: dict[bytes, int] = {}
        self.pending: dict[bytes, int] = {}
        self._keys: list[bytes | None] = [None] * (self.num_chunks + 1)
        self._times = [0.0] * (self.num_chunks + 1)

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return self.num_chunks - len(self.ready) - len(self.pending)

    @property
    def num_held(self) -> int:
        """Slots that must stay: pending ones, and those that somebody reads."""
        return self._pool.stats().active

    def store(
        self, keys: Sequence[bytes], times: Sequence[float], keep: Collection[bytes] = ()
    ) -> Stored | None:
        """Takes a slot for each key, evicting what must go; None, and nothing changed, if there is no room.

        The chunks are pending, used at their ``times``. O(keys), and O(log slots) for each victim.

        Args:
            keys: Not resident, each once.
            times: One per key; ignored by policies that do not order by time.
            keep: Chunks that must not be evicted by this call; those that are not ready are ignored.

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
                assert key is not None  # noqa: S101 - what is not free holds a key
                evicted.append(key)
                del self.ready[key]
            # What vLLM's manager does, whose free list is a stack: the last victim's slot is taken first.
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
        """Makes pending chunks ready, and returns their keys; the others are ignored. O(keys)."""
        found = self._end_store(keys)
        self._pool.mark_computed(list(found.values()))
        self._pool.release(list(found.values()))
        self.ready.update(found)
        return list(found)

    def abandon_store(self, keys: Iterable[bytes]) -> list[bytes]:
        """Drops pending chunks, and returns their keys; the others are ignored. O(keys)."""
        found = self._end_store(keys)
        blocks = list(found.values())
        for block in blocks:
            self._keys[block] = None
        self._pool.release(blocks)
        return list(found)

    def load(self, keys: Collection[bytes], times: Sequence[float] | None = None) -> list[int]:
        """Holds ready chunks until ``complete_load``, and returns their slots, in the order of the
        keys. O(keys).

        A chunk may be loaded by several at once.

        Args:
            keys: Ready chunks.
            times: When they are used, as in ``use``; by default their times stay.

        Raises:
            InvalidBlockError: A key is not resident, or not ready; the message names it.
        """
        blocks = self._ready_blocks(keys)
        self._hold(blocks, times)
        return [block - 1 for block in blocks]

    def complete_load(self, keys: Collection[bytes]) -> None:
        """Ends one load of each of some chunks. O(keys).

        Raises:
            InvalidBlockError: A key is not resident, or named more often than it is being loaded.
        """
        self._pool.release(self._ready_blocks(keys))

    def use(self, keys: Sequence[bytes], times: Sequence[float]) -> None:
        """Says when resident chunks were used; an earlier time than the one known is ignored. O(log
        slots) per key.

        Keys that are not resident are ignored.
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
        """The keys of what could be evicted, next victim first. O(slots), for tests and tools."""
        return [key for block in self._pool.eviction_order() if (key := self._keys[block]) is not None]

    def readers(self, key: bytes) -> int:
        """How many loads of a ready chunk are under way. O(1).

        Raises:
            InvalidBlockError: The key is not resident, or not ready.
        """
        return self._pool.ref_count(self._ready_blocks([key])[0])

    def check_invariants(self) -> None:
        """Recounts the pool, and that keys and blocks lead to each other. O(slots), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """
        self._pool.check_invariants()
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
            if state not in expected or (key in self.ready) != self._pool.is_computed(block):
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
        """One more reference to each of some ready blocks."""
        if not blocks:
            return
        self._pool.match_and_acquire(self._chain(blocks))
        if self.by_time:
            # The pool forgets the time of a block that a lookup takes.
            self._mark(blocks, times if times is not None else [self._times[block] for block in blocks])

    def _mark(self, blocks: Sequence[int], times: Sequence[float], *, fresh: bool = False) -> None:
        """Says when blocks were used; ``fresh`` ones hold new content, whose time may be any."""
        known, mark = self._times, self._pool.mark_accessed
        for block, time in zip(blocks, times, strict=True):
            latest = time if fresh or time > known[block] else known[block]
            known[block] = latest
            mark([block], latest)
