"""The interface of a block manager for vLLM v0's scheduler.

This module also exports the names of ``block.interfaces``, because they were here in earlier versions.

It only defines names and signatures. Sequences and groups belong to the engine. The engine's own enums
can be used: members of ``AllocStatus`` are compared by name with ``==``, and a ``Device`` may be a
member of the engine's own enum. Members of the two enums are not identical (``is``).
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from kvpool.errors import InvalidArgumentError
from kvpool.lineage._enums import NamedEnum
from kvpool.lineage.v0.block.interfaces import (
    Block,
    BlockAllocator,
    BlockId,
    Device,
    DeviceAwareBlockAllocator,
    EncoderSeqId,
    ExtraHash,
    PrefixHash,
    SeqId,
)

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from kvpool.lineage.v0.block_manager_util import Sequence, SequenceGroup

__all__ = [
    "AllocStatus",
    "Block",
    "BlockAllocator",
    "BlockId",
    "BlockSpaceManager",
    "Device",
    "DeviceAwareBlockAllocator",
    "EncoderSeqId",
    "ExtraHash",
    "PrefixHash",
    "SeqId",
]


class AllocStatus(NamedEnum):
    """Whether a group can be allocated: now, later (when other groups have finished), or never."""

    OK = enum.auto()
    LATER = enum.auto()
    NEVER = enum.auto()


class BlockSpaceManager(ABC):
    """The methods of a block manager that a scheduler calls.

    A block manager has the block tables of sequences.
    """

    @staticmethod
    def get_block_space_manager_class(version: str) -> type[BlockSpaceManager]:
        """Returns the manager class of a name: ``"selfattn"``, or ``"placeholder"`` for models without KV.

        Raises:
            InvalidArgumentError: No manager has this name. The error is also a ``ValueError``.
        """
        if version.lower() == "selfattn":
            from kvpool.lineage.v0.block_manager import SelfAttnBlockSpaceManager

            return SelfAttnBlockSpaceManager
        if version.lower() == "placeholder":
            from kvpool.lineage.v0.placeholder_block_space_manager import PlaceholderBlockSpaceManager

            return PlaceholderBlockSpaceManager
        raise InvalidArgumentError(f"Unknown version {version!r}: 'selfattn' and 'placeholder' are known")

    @abstractmethod
    def can_allocate(self, seq_group: SequenceGroup, num_lookahead_slots: int = 0) -> AllocStatus:
        """Returns whether a waiting group can get its blocks."""

    @abstractmethod
    def allocate(self, seq_group: SequenceGroup) -> None:
        """Allocates the blocks of a waiting group."""

    @abstractmethod
    def can_append_slots(self, seq_group: SequenceGroup, num_lookahead_slots: int) -> bool:
        """Returns whether all running sequences of a group can get slots for their new tokens."""

    @abstractmethod
    def append_slots(self, seq: Sequence, num_lookahead_slots: int) -> list[tuple[int, int]]:
        """Appends the tokens that a sequence's table lacks. Returns the copies that this requires."""

    @abstractmethod
    def fork(self, parent_seq: Sequence, child_seq: Sequence) -> None:
        """Shares the blocks of one sequence with another."""

    @abstractmethod
    def can_swap_in(self, seq_group: SequenceGroup, num_lookahead_slots: int) -> AllocStatus:
        """Returns whether a swapped group can return to the GPU."""

    @abstractmethod
    def swap_in(self, seq_group: SequenceGroup) -> list[tuple[int, int]]:
        """Moves a swapped group to the GPU, and returns the copies."""

    @abstractmethod
    def can_swap_out(self, seq_group: SequenceGroup) -> bool:
        """Returns whether the CPU has room for a running group."""

    @abstractmethod
    def swap_out(self, seq_group: SequenceGroup) -> list[tuple[int, int]]:
        """Moves a running group to the CPU, and returns the copies."""

    @abstractmethod
    def free(self, seq: Sequence) -> None:
        """Frees the blocks of a sequence."""

    @abstractmethod
    def get_block_table(self, seq: Sequence) -> list[int]:
        """Returns the ids of a sequence's blocks."""

    @abstractmethod
    def get_num_free_gpu_blocks(self) -> int:
        """Returns the number of GPU blocks that can be allocated now."""

    @abstractmethod
    def get_num_free_cpu_blocks(self) -> int:
        """Returns the number of CPU blocks that can be allocated now."""

    @abstractmethod
    def access_all_blocks_in_seq(self, seq: Sequence, access_time: float) -> None:
        """Records the time at which a sequence was used."""

    @abstractmethod
    def get_common_computed_block_ids(self, seqs: list[Sequence]) -> Items[int]:
        """Returns the computed blocks at the beginning that all these sequences share."""

    @abstractmethod
    def mark_blocks_as_computed(self, seq_group: SequenceGroup, token_chunk_size: int) -> None:
        """Marks the tokens as computed that a group computes in the planned step."""

    @abstractmethod
    def get_prefix_cache_hit_rate(self, device: Device) -> float:
        """Returns hits per query of a device, or -1 if nothing is cached there."""

    @abstractmethod
    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        """Drops all cached content of one device, or of all. Returns False if blocks are in use."""

    @abstractmethod
    def get_num_cached_tokens(self, seq: Sequence) -> int:
        """Returns the number of tokens, from the start of a sequence, that are cached and computed."""
