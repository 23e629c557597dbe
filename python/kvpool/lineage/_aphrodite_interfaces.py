"""The allocator interfaces of Aphrodite and vLLM 0.4, as base classes for the caller's own classes.

This module only defines names and signatures.
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
    """The interface of an allocator for one device."""

    NoFreeBlocksError = errors.NoFreeBlocksError

    @abstractmethod
    def allocate_mutable(self, prev_block: Block | None) -> Block:
        """Returns an empty block that follows ``prev_block``."""

    @abstractmethod
    def allocate_immutable(self, prev_block: Block | None, token_ids: Sequence[int]) -> Block:
        """Returns a full block with these tokens."""

    @abstractmethod
    def free(self, block: Block) -> None:
        """Releases the handle, and its reference to the block."""

    @abstractmethod
    def fork(self, last_block: Block) -> list[Block]:
        """Returns new handles on all blocks of a sequence, from the first to the last."""

    @abstractmethod
    def get_num_free_blocks(self) -> int:
        """Returns the number of blocks that can be allocated now."""

    @property
    @abstractmethod
    def all_block_ids(self) -> frozenset[int]:
        """The ids of all blocks of this allocator."""

    @abstractmethod
    def clear_copy_on_writes(self) -> dict[BlockId, list[BlockId]]:
        """Returns the planned copies, as lists of destinations by source, and clears the plan."""

    @abstractmethod
    def mark_blocks_as_computed(self) -> None:
        """Marks all blocks that were filled as computed, which means that their KV is written."""

    @abstractmethod
    def get_common_computed_block_ids(self, seq_block_ids: Sequence[list[BlockId]]) -> list[BlockId]:
        """Returns the computed blocks at the beginning that all these tables have in common."""


class DeviceAwareBlockAllocator(ABC):
    """The interface of an allocator for several devices. ``Device`` may be the engine's own enum."""

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
