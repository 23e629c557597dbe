"""Views of a pool that have the interfaces of the ancestor's reference counter and evictor."""

# ruff: noqa: ARG002  # unused arguments belong to the ancestor's signatures

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpool.lineage.errors import NotSupportedError
from kvpool.lineage.v0.evictor import Evictor

if TYPE_CHECKING:
    from typing import NoReturn

    from kvpool.lineage.v0.block._allocator import PoolAllocator
    from kvpool.lineage.v0.block.interfaces import BlockId, PrefixHash

__all__ = ["Holders", "PoolEvictor"]


class Holders:
    """The reference counts of an allocator's blocks. References for planned copies are not counted."""

    def __init__(self, allocator: PoolAllocator) -> None:
        self._allocator = allocator

    def get(self, block_id: BlockId) -> int:
        """Returns the number of handles on the block."""
        return self._allocator._pool.diagnose.num_holders(self._allocator._to_core(block_id))


class PoolEvictor(Evictor):
    """A view of the cached blocks that have no references."""

    def __init__(self, allocator: PoolAllocator) -> None:
        self._allocator = allocator

    def __contains__(self, block_id: BlockId) -> bool:
        return self._allocator._pool.state(self._allocator._to_core(block_id)) == "cached-free"

    @property
    def num_blocks(self) -> int:
        return self._allocator._pool.stats().cached_free

    def update(self, block_id: BlockId, last_accessed: float) -> None:
        self._allocator.mark_blocks_as_accessed([block_id], last_accessed)

    def _refuse(self) -> NoReturn:
        raise NotSupportedError("the pool decides which blocks can be evicted, and evicts them itself")

    def evict(self) -> tuple[BlockId, PrefixHash]:
        self._refuse()

    def add(
        self, block_id: BlockId, content_hash: PrefixHash, num_hashed_tokens: int, last_accessed: float
    ) -> None:
        self._refuse()

    def remove(self, block_id: BlockId) -> None:
        self._refuse()
