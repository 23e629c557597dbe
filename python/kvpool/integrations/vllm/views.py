"""Views of a pool's state for vLLM's internal attributes: the free queue, and the map of hashes.

The views have no state of their own. They have the methods of vLLM's ``FreeKVCacheBlockQueue`` and
``BlockHashToBlockMap``. Reading a whole queue or map takes time in proportion to its size. It is meant
for tests and for offloading.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pool import BlockPool


class QueueEnd:
    """A sentinel in the free queue. One precedes the first free block, and one follows the last."""

    block_id = -1
    ref_cnt = 0
    is_null = False

    def __init__(self, queue: FreeBlockQueue, *, head: bool) -> None:
        self._queue, self._head = queue, head

    @property
    def next_free_block(self) -> Any:
        """The first free block, or the other sentinel; ``None`` after the last."""
        if not self._head:
            return None
        first = self._queue.pool.core.peek(1)
        return first[0] if first else self._queue.fake_free_list_tail

    @property
    def prev_free_block(self) -> Any:
        """The last free block, or the other sentinel; ``None`` before the first."""
        if self._head:
            return None
        order = self._queue.pool.core.order()
        return self._queue.pool.blocks[order[-1]] if order else self._queue.fake_free_list_head


class FreeBlockQueue:
    """The attribute ``BlockPool.free_block_queue``: the free blocks, in the order of reuse."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.fake_free_list_head = QueueEnd(self, head=True)
        self.fake_free_list_tail = QueueEnd(self, head=False)

    @property
    def num_free_blocks(self) -> int:
        """The number of blocks that can be allocated.

        As in vLLM, it can be assigned. The pool then behaves as if this number of blocks were free.
        Allocating and freeing blocks change the number from there. No block leaves the queue, so
        assigning the real number of blocks in the queue restores the original state. A negative number
        raises ``ValueError``, and so does a number above the number of blocks in the queue. vLLM
        detects the latter only when it allocates the blocks.
        """
        return self.pool.core.num_free

    @num_free_blocks.setter
    def num_free_blocks(self, count: int) -> None:
        self.pool.core.set_num_free(count)

    def popleft(self) -> Any:
        """Takes the next block out of the queue. Raises ``ValueError`` if the queue is empty."""
        found = self.pool.core.queue_pop(1)
        if not found:
            raise ValueError("No free blocks available")
        return found[0]

    def popleft_n(self, n: int) -> list[Any]:
        """Takes the next ``n`` free blocks out of the queue, and returns them."""
        if n > self.num_free_blocks:
            raise ValueError(f"Cannot get {n} free blocks from the queue: it has {self.num_free_blocks}")
        return self.pool.core.queue_pop(n)

    def remove(self, block: Any) -> None:
        """Takes a block out of the queue. Raises ``RuntimeError`` if it is not in the queue."""
        if not self.pool.core.queue_remove(block.block_id):
            raise RuntimeError(f"remove() called on an invalid block: {block}")

    def append(self, block: Any) -> None:
        """Adds a block at the end of the queue."""
        self.append_n([block])

    def append_n(self, blocks: list[Any]) -> None:
        """Adds blocks at the end of the queue, in this order."""
        self.pool.core.queue_push(blocks, front=False)

    def prepend_n(self, blocks: list[Any]) -> None:
        """Adds blocks at the front of the queue, in this order."""
        self.pool.core.queue_push(blocks, front=True)

    def get_all_free_blocks(self) -> list[Any]:
        """Returns all free blocks. O(free blocks)."""
        blocks = self.pool.blocks
        return [blocks[block] for block in self.pool.core.order()]

    def iter_blocks_after(self, cursor: Any | None) -> Iterator[Any]:
        """Returns the blocks after ``cursor``, or all blocks, at the time of the call. O(free blocks)."""
        order = self.pool.core.order()
        blocks = self.pool.blocks
        start = 0 if cursor is None else order.index(cursor.block_id) + 1
        return (blocks[block] for block in order[start:])


class HashMapping(MutableMapping[bytes, Any]):
    """The attribute ``_cache`` of vLLM's ``BlockHashToBlockMap``.

    It maps a key to its block. If several blocks have had the key, it maps the key to ``{block id:
    block}``.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def __getitem__(self, key: bytes) -> Any:
        copies = self._pool.blocks_of(key)
        if not copies:
            raise KeyError(key)
        if len(copies) == 1 and not self._pool.core.was_shared(key):
            return copies[0]
        return {block.block_id: block for block in copies}

    def __setitem__(self, key: bytes, value: Any) -> None:
        self.pop(key, None)
        for block in value.values() if isinstance(value, dict) else [value]:
            self._pool.index_insert(key, block)

    def __delitem__(self, key: bytes) -> None:
        copies = self._pool.blocks_of(key)
        if not copies:
            raise KeyError(key)
        for block in copies:
            self._pool.index_pop(key, block.block_id)

    def __iter__(self) -> Iterator[bytes]:
        return iter(
            [*self._pool.core.keys(), *(key for key in self._pool.loose if not self._pool.core.copies(key))]
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __copy__(self) -> dict[bytes, Any]:
        """Returns a dict of the current content. A copied view would change with the pool."""
        return dict(self)

    def clear(self) -> None:
        """Removes all keys from the pool's index. The blocks themselves keep their hashes."""
        self._pool.core.index_clear()
        self._pool.loose.clear()

    def __eq__(self, other: object) -> bool:
        return dict(self) == other if isinstance(other, dict) else self is other

    __hash__ = None  # type: ignore[assignment]


class HashToBlockMap:
    """The attribute ``BlockPool.cached_block_hash_to_block``, which maps keys to blocks."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._cache = HashMapping(pool)

    def get_one_block(self, key: bytes) -> Any | None:
        """Returns the block that was cached first under ``key`` and is still cached, or ``None``."""
        copies = self._pool.blocks_of(key)
        return copies[0] if copies else None

    def contain(self, key: bytes, block_id: int) -> bool:
        """Returns whether this block is cached under ``key``."""
        return any(block.block_id == block_id for block in self._pool.blocks_of(key))

    def insert(self, key: bytes, block: Any) -> None:
        """Adds ``block`` under ``key`` to the map. Does not change the block itself."""
        self._pool.index_insert(key, block)

    def pop(self, key: bytes, block_id: int) -> Any | None:
        """Removes a block under ``key`` from the map. Returns ``None`` if the block was not there."""
        return self._pool.index_pop(key, block_id)

    def __len__(self) -> int:
        return len(self._cache) if self._pool.loose else self._pool.core.num_keys()
