"""The allocator interfaces of Aphrodite and vLLM 0.4, for code that derives its own classes from them.

This module owns names and signatures, no behaviour.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from kvpool.lineage import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool.lineage.v0.block.interfaces import Block, BlockId, Device

__all__ = ["BlockAllocator", "DeviceAwareBlockAllocator"]


class BlockAllocator(ABC):
    """Blocks of one device."""

    NoFreeBlocksError = errors.NoFreeBlocksError

    @abstractmethod
    def allocate_mutable(self, prev_block: Block | None) -> Block:
        """Returns an empty block after ``prev_block``."""

    @abstractmethod
    def allocate_immutable(self, prev_block: Block | None, token_ids: Sequence[int]) -> Block:
        """Returns a full block with these tokens."""

    @abstractmethod
    def free(self, block: Block) -> None:
        """Frees the handle and its reference to the block."""

    @abstractmethod
    def fork(self, last_block: Block) -> list[Block]:
        """Returns new handles on the blocks of a whole sequence, first to last."""

    @abstractmethod
    def get_num_free_blocks(self) -> int:
        """Returns the number of blocks that can be allocated now."""

    @property
    @abstractmethod
    def all_block_ids(self) -> frozenset[int]:
        """All ids of this allocator."""

    @abstractmethod
    def clear_copy_on_writes(self) -> dict[BlockId, list[BlockId]]:
        """Returns the destinations of each planned copy's source, and clears the plan."""

    @abstractmethod
    def mark_blocks_as_computed(self) -> None:
        """Marks the blocks that were filled as computed: their KV is written."""

    @abstractmethod
    def get_common_computed_block_ids(self, seq_block_ids: Sequence[list[BlockId]]) -> list[BlockId]:
        """Returns the computed blocks that all these tables begin with."""


class DeviceAwareBlockAllocator(ABC):
    """Blocks of several devices. ``Device`` may be the engine's own enum."""

    NoFreeBlocksError = errors.NoFreeBlocksError

    @abstractmethod
    def allocate_mutable(self, prev_block: Block | None, device: Device) -> Block:
        """Returns an empty block of this device that follows ``prev_block``."""

    @abstractmethod
    def allocate_immutable(self, prev_block: Block | None, token_ids: Sequence[int], device: Device) -> Block:
        """Returns a full block of this device with these tokens."""

    @abstractmethod
    def get_num_free_blocks(self, device: Device) -> int:
        """Returns how many blocks of this device can be allocated now."""
