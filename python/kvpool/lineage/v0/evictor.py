"""vLLM v0's evictor: chooses which unreferenced block is evicted first.

The prefix-caching allocator does not use it: the core chooses the allocator's victims, by the same rule
(``eviction="last-accessed"``). ``LRUEvictor`` is for code that orders blocks of its own. It contains
only the order, and no blocks.

Differences from the ancestor, vLLM v0 (a number identifies a known defect of the ancestors):

- 1: ``update`` keeps the block evictable.
- 2: if a block is removed and added again, even with the same access time, ``evict`` returns its new
  hash.
- 23: ``update`` never moves an access back in time.
- For an unknown block, ``update`` and ``remove`` raise ``UnknownBlockError``, which is both a
  ``ValueError`` and a ``KeyError``.
- ``add`` replaces the entry of a block that is already there, as in the ancestor.
"""

from __future__ import annotations

import enum
import heapq
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvpool.lineage._enums import NamedEnum
from kvpool.lineage.errors import ContractError, NoFreeBlocksError, UnknownBlockError

if TYPE_CHECKING:
    from kvpool.lineage.v0.block.interfaces import BlockId, PrefixHash

__all__ = ["BlockMetaData", "EvictionPolicy", "Evictor", "LRUEvictor", "make_evictor"]


class EvictionPolicy(NamedEnum):
    """The order in which blocks are evicted."""

    LRU = enum.auto()


class Evictor(ABC):
    """The interface of an evictor: the blocks that can be evicted, in the order of eviction."""

    @abstractmethod
    def __contains__(self, block_id: BlockId) -> bool: ...

    @abstractmethod
    def evict(self) -> tuple[BlockId, PrefixHash]:
        """Evicts the next block, and returns its id and content hash."""

    @abstractmethod
    def add(
        self, block_id: BlockId, content_hash: PrefixHash, num_hashed_tokens: int, last_accessed: float
    ) -> None:
        """Adds a block."""

    @abstractmethod
    def update(self, block_id: BlockId, last_accessed: float) -> None:
        """Records a use of a block."""

    @abstractmethod
    def remove(self, block_id: BlockId) -> None:
        """Removes a block from the evictor, because it has a reference again."""

    @property
    @abstractmethod
    def num_blocks(self) -> int:
        """Number of evictable blocks."""


@dataclass(slots=True)
class BlockMetaData:
    """The facts about one evictable block that an evictor stores."""

    content_hash: PrefixHash
    #: Number of tokens from the start of the prompt to the end of the block.
    num_hashed_tokens: int
    last_accessed: float


class LRUEvictor(Evictor):
    """Evicts the least recently used block.

    Among blocks used at the same time, evicts the one with the longest prefix, then the one with the
    lowest id. O(log n) per call, amortized.

    >>> evictor = LRUEvictor()
    >>> evictor.add(1, content_hash=11, num_hashed_tokens=16, last_accessed=1.0)
    >>> evictor.add(2, content_hash=22, num_hashed_tokens=32, last_accessed=1.0)
    >>> evictor.update(2, last_accessed=2.0)
    >>> evictor.evict(), evictor.num_blocks
    ((1, 11), 1)
    """

    #: The heap is rebuilt, without outdated entries, when it has more than this number of entries per block.
    CLEANUP_THRESHOLD: ClassVar[int] = 50

    def __init__(self) -> None:
        #: The blocks that can be evicted. Callers may read the dict, but only the methods change it.
        self.free_table: dict[BlockId, BlockMetaData] = {}
        #: A heap of (last access, minus hashed tokens, block, content hash). An entry is valid while
        #: ``free_table`` has the same values; ``evict`` skips the others. Only the methods change it.
        self.priority_queue: list[tuple[float, int, BlockId, PrefixHash]] = []

    def __contains__(self, block_id: BlockId) -> bool:
        return block_id in self.free_table

    @property
    def num_blocks(self) -> int:
        """Number of evictable blocks."""
        return len(self.free_table)

    def _unknown(self, what: str) -> UnknownBlockError:
        return UnknownBlockError(f"Attempting to {what} block that's not in the evictor")

    def _entry(self, block_id: BlockId) -> tuple[float, int, BlockId, PrefixHash]:
        known = self.free_table[block_id]
        return known.last_accessed, -known.num_hashed_tokens, block_id, known.content_hash

    def _push(self, block_id: BlockId) -> None:
        if len(self.priority_queue) > self.CLEANUP_THRESHOLD * len(self.free_table):
            self.priority_queue = [self._entry(block) for block in self.free_table]
            heapq.heapify(self.priority_queue)
        else:
            heapq.heappush(self.priority_queue, self._entry(block_id))

    def add(
        self, block_id: BlockId, content_hash: PrefixHash, num_hashed_tokens: int, last_accessed: float
    ) -> None:
        """Adds a block, or replaces its entry.

        Args:
            block_id: The block.
            content_hash: Hash of its content.
            num_hashed_tokens: Tokens of its prefix, its own included.
            last_accessed: Time of its last use.

        Raises:
            ContractError: The time is not a number.
        """
        if last_accessed != last_accessed:  # NaN has no place in an order
            raise ContractError(f"a last access at {last_accessed}")
        self.free_table[block_id] = BlockMetaData(content_hash, num_hashed_tokens, last_accessed)
        self._push(block_id)

    def update(self, block_id: BlockId, last_accessed: float) -> None:
        """Records a use of a block. A time earlier than the known one changes nothing.

        Raises:
            UnknownBlockError: The block is not in the evictor. The error is also a ``KeyError``.
        """
        known = self.free_table.get(block_id)
        if known is None:
            raise self._unknown("update")
        if last_accessed > known.last_accessed:
            self.add(block_id, known.content_hash, known.num_hashed_tokens, last_accessed)

    def remove(self, block_id: BlockId) -> None:
        """Removes a block from the evictor, because it has a reference again.

        Raises:
            UnknownBlockError: The block is not in the evictor. The error is also a ``ValueError``.
        """
        if block_id not in self.free_table:
            raise self._unknown("remove")
        del self.free_table[block_id]

    def evict(self) -> tuple[BlockId, PrefixHash]:
        """Evicts the next block, and returns its id and content hash.

        Raises:
            NoFreeBlocksError: The evictor is empty. The error is also a ``ValueError``.
        """
        while self.priority_queue:
            entry = heapq.heappop(self.priority_queue)
            _, _, block_id, content_hash = entry
            if block_id in self.free_table and entry == self._entry(block_id):
                del self.free_table[block_id]
                return block_id, content_hash
        raise NoFreeBlocksError("No usable cache memory left")


def make_evictor(eviction_policy: EvictionPolicy) -> Evictor:
    """Returns an evictor.

    Raises:
        ContractError: The policy is unknown. The error is also a ``ValueError``.
    """
    if eviction_policy == EvictionPolicy.LRU:
        return LRUEvictor()
    raise ContractError(f"Unknown cache eviction policy: {eviction_policy}")
