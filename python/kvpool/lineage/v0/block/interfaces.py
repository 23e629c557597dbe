"""The interfaces of vLLM v0's blocks and allocators.

This module only defines names and signatures. ``naive_block``, ``prefix_caching_block`` and
``cpu_gpu_block_allocator`` implement them with kvpool's pools. Each parameter of type ``Device`` also
accepts a member of the engine's own enum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kvpool.lineage import errors
from kvpool.lineage._enums import Device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool import ExtraKeys

__all__ = [
    "Block",
    "BlockAllocator",
    "BlockId",
    "Device",
    "DeviceAwareBlockAllocator",
    "EncoderSeqId",
    "ExtraHash",
    "PrefixHash",
    "SeqId",
]

BlockId: TypeAlias = int
#: A content hash: ``int.from_bytes`` of a cryptographic digest.
PrefixHash: TypeAlias = int
SeqId: TypeAlias = int
EncoderSeqId: TypeAlias = str
#: Identifies a prompt in addition to its tokens: the ancestor's int, or kvpool's own extra keys.
ExtraHash: TypeAlias = "int | ExtraKeys | None"


class Block(ABC):
    """A handle on one block of a sequence: its tokens, its predecessor, and the id of its memory."""

    class Factory(Protocol):
        """A function that makes blocks for an allocator. A class of blocks is such a function."""

        def __call__(
            self,
            prev_block: Block | None,
            token_ids: Sequence[int],
            block_size: int,
            allocator: BlockAllocator,
            block_id: int | None = None,
            *,
            extra_hash: ExtraHash = None,
        ) -> Block:
            """Returns a new block."""

    @abstractmethod
    def append_token_ids(self, token_ids: Sequence[int]) -> None:
        """Appends tokens.

        ``block_id`` may change, because a shared block is copied or a full block is registered.
        """

    @property
    @abstractmethod
    def block_id(self) -> int | None:
        """Id of the physical block; None if the handle has none."""

    @block_id.setter
    @abstractmethod
    def block_id(self, value: int | None) -> None:
        """Points the handle to another physical block."""

    @property
    @abstractmethod
    def token_ids(self) -> list[int]:
        """The tokens in the block."""

    @property
    @abstractmethod
    def num_tokens_total(self) -> int:
        """Number of tokens from the start of the sequence to the end of this block."""

    @property
    @abstractmethod
    def num_empty_slots(self) -> int:
        """Number of further tokens that fit into the block."""

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether the block is full."""

    @property
    @abstractmethod
    def prev_block(self) -> Block | None:
        """The preceding block of the sequence."""

    @property
    @abstractmethod
    def extra_hash(self) -> ExtraHash:
        """Extra keys of the prompt."""

    @property
    @abstractmethod
    def computed(self) -> bool:
        """Whether the engine has written the block's KV."""

    @computed.setter
    @abstractmethod
    def computed(self, value: bool) -> None:
        """Marks the block as computed: its KV is written."""

    @property
    @abstractmethod
    def last_accessed(self) -> float:
        """The time of the last use that was recorded through this handle; -1 if none was recorded."""

    @last_accessed.setter
    @abstractmethod
    def last_accessed(self, last_accessed_ts: float) -> None:
        """Records a use of the block."""

    @property
    @abstractmethod
    def content_hash(self) -> int | None:
        """The hash of the block and of everything before it.

        It is None unless the block is full and its predecessor has a hash.
        """


class _AnyAllocator(ABC):
    """The methods that allocators of one device and of several devices have in common."""

    NoFreeBlocksError = errors.NoFreeBlocksError

    @abstractmethod
    def free(self, block: Block) -> None:
        """Releases the handle, and its reference to the block."""

    @abstractmethod
    def fork(self, last_block: Block) -> list[Block]:
        """Returns new handles on all blocks of a sequence, from the first to the last."""

    @property
    @abstractmethod
    def all_block_ids(self) -> frozenset[int]:
        """The ids of all blocks of this allocator, on all of its devices."""

    @abstractmethod
    def clear_copy_on_writes(self) -> list[tuple[int, int]]:
        """Returns the pending copies as pairs (source, destination), and clears the list."""

    @abstractmethod
    def mark_blocks_as_accessed(self, block_ids: Sequence[int], now: float) -> None:
        """Records a use of blocks."""

    @abstractmethod
    def mark_blocks_as_computed(self, block_ids: Sequence[int]) -> None:
        """Marks blocks as computed: their KV is written."""

    @abstractmethod
    def get_common_computed_block_ids(self, computed_seq_block_ids: Sequence[list[int]]) -> list[int]:
        """Returns the common prefix of the sequences' computed blocks."""


class BlockAllocator(_AnyAllocator):
    """The interface of an allocator for one device."""

    @abstractmethod
    def allocate_mutable_block(self, prev_block: Block | None, extra_hash: ExtraHash = None) -> Block:
        """Returns an empty block that follows ``prev_block``."""

    @abstractmethod
    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: Sequence[int], extra_hash: ExtraHash = None
    ) -> Block:
        """Returns a full block with these tokens."""

    @abstractmethod
    def allocate_immutable_blocks(
        self, prev_block: Block | None, block_token_ids: Sequence[Sequence[int]], extra_hash: ExtraHash = None
    ) -> list[Block]:
        """Returns one full block for each chunk of tokens. Each block follows the one before it."""

    @abstractmethod
    def get_num_total_blocks(self) -> int:
        """Returns the number of blocks that this allocator has."""

    @abstractmethod
    def get_num_free_blocks(self) -> int:
        """Returns the number of blocks that can be allocated now."""

    @abstractmethod
    def get_physical_block_id(self, absolute_id: int) -> int:
        """Returns the position of a block id among the sorted ids of this allocator."""

    @abstractmethod
    def swap_out(self, blocks: Sequence[Block]) -> None:
        """Frees the memory of blocks. Their handles remain valid."""

    @abstractmethod
    def swap_in(self, blocks: Sequence[Block]) -> None:
        """Allocates memory for the blocks of handles that have none."""

    @abstractmethod
    def cow_block_if_not_appendable(self, block: Block) -> BlockId:
        """Returns the id of a block that may be written to: that of the given block, or of a copy."""

    @abstractmethod
    def promote_to_immutable_block(self, block: Block) -> BlockId:
        """Registers a full block by its content. Returns the id that the block has afterwards."""

    @abstractmethod
    def get_num_full_blocks_touched(self, blocks: Sequence[Block]) -> int:
        """Returns how many blocks of this allocator the full blocks among these would take."""

    @abstractmethod
    def get_prefix_cache_hit_rate(self) -> float:
        """Returns the hits per query, or -1 if this allocator does not cache."""

    @abstractmethod
    def reset_prefix_cache(self) -> bool:
        """Drops all cached content. Returns False if blocks are in use."""

    @abstractmethod
    def find_cached_blocks_prefix(self, block_hashes: list[int]) -> list[int]:
        """Returns the longest prefix of these hashes that is cached."""


class DeviceAwareBlockAllocator(_AnyAllocator):
    """The interface of an allocator for several devices."""

    @abstractmethod
    def allocate_mutable_block(
        self, prev_block: Block | None, device: Device, extra_hash: ExtraHash = None
    ) -> Block:
        """Returns an empty block of this device that follows ``prev_block``."""

    @abstractmethod
    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: Sequence[int], device: Device, extra_hash: ExtraHash = None
    ) -> Block:
        """Returns a full block of this device with these tokens."""

    @abstractmethod
    def allocate_immutable_blocks(
        self,
        prev_block: Block | None,
        block_token_ids: Sequence[Sequence[int]],
        device: Device,
        extra_hash: ExtraHash = None,
    ) -> list[Block]:
        """Returns one full block of this device for each chunk of tokens."""

    @abstractmethod
    def get_num_free_blocks(self, device: Device) -> int:
        """Returns how many blocks of this device can be allocated now."""

    @abstractmethod
    def get_num_total_blocks(self, device: Device) -> int:
        """Returns the number of blocks of this device."""

    @abstractmethod
    def get_num_full_blocks_touched(self, blocks: Sequence[Block], device: Device) -> int:
        """Returns how many blocks of this device the full blocks among these would take."""

    @abstractmethod
    def swap(self, blocks: Sequence[Block], src_device: Device, dst_device: Device) -> dict[int, int]:
        """Moves blocks between devices. Returns a map from source ids to destination ids."""

    @abstractmethod
    def get_physical_block_id(self, device: Device, absolute_id: int) -> int:
        """Returns the position of a block id among the sorted ids of this device."""

    @abstractmethod
    def allocate_or_get_null_block(self) -> Block:
        """Returns the null block, which takes the place of blocks that a sequence has dropped."""

    @abstractmethod
    def get_prefix_cache_hit_rate(self, device: Device) -> float:
        """Returns the hits per query of this device, or -1 if its allocator does not cache."""

    @abstractmethod
    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        """Drops all cached content of one device, or of all."""

    @abstractmethod
    def find_cached_blocks_prefix(self, block_hashes: list[int], device: Device = Device.GPU) -> list[int]:
        """Returns the longest prefix of these hashes that is cached on this device."""
