"""vLLM v0's allocator over two devices: one ``kvpool.TieredPool``, GPU blocks in tier 0 and CPU blocks
in tier 1.

Owns which device an id belongs to, the null block, and the lists of transfers that were taken from the
core and not yet fetched by the engine. Swaps and copies themselves are planned by the core.

Differences from the ancestor:

- 9, 12: ``swap`` goes by physical block. Handles that shared a block share one on the other device, and
  no more blocks are taken there than different ones are moved.
- 10: ``swap`` moves all blocks or none.
- 13, 14: see ``naive_block`` and ``prefix_caching_block``.
- 15: ``reset_prefix_cache`` works although there is a null block, and resets every device, also after
  one that is in use.
- 16: ``get_common_computed_block_ids`` returns a list in every case.
- 18: a copy that was planned and is swept up by a swap of the same step keeps source and destination
  fenced until ``clear_copy_on_writes``; the source of a swap is the block that has the bytes, even if a
  copy to it is still planned.
- 19: ``get_physical_block_id`` is O(1).
- The null block is outside of the usable count: once it exists, ``get_num_total_blocks`` has one block
  fewer. It is a block of the GPU, not the core's block 0: the memory of the ancestor's workers has one
  block per id from 0 on, kernels read what stands in a block table, and so it needs an id that has
  memory and is nobody else's.
- A block whose content the other device caches already is not copied: ``swap`` returns it,
  ``get_and_reset_swaps`` does not.
- ``mark_blocks_as_accessed`` takes ids of either device: blocks of a group that is swapped out are used, too.
- Assertions are typed errors that derive from ``AssertionError``.

The order of a step is the ancestor's: workers execute swaps in, swaps out, copies, then the model. As
the ancestor's scheduler never swaps in within a step that swaps out, and never swaps out what it has
appended to within the step, neither must another caller who runs all transfers of a step in that order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import kvpool
from kvpool.lineage.errors import BlockStateError, ContractError
from kvpool.lineage.v0.block._null_block import NullBlock
from kvpool.lineage.v0.block._two_devices import TIERS, TwoDevices
from kvpool.lineage.v0.block.interfaces import Device, DeviceAwareBlockAllocator
from kvpool.lineage.v0.block.naive_block import NaiveBlock, NaiveBlockAllocator
from kvpool.lineage.v0.block.prefix_caching_block import PrefixCachingBlockAllocator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool.lineage.v0.block._allocator import PoolAllocator
    from kvpool.lineage.v0.block.interfaces import Block, BlockId, ExtraHash

__all__ = ["CpuGpuBlockAllocator", "NullBlock"]


class CpuGpuBlockAllocator(TwoDevices, DeviceAwareBlockAllocator):
    """Blocks of a GPU and of a CPU.

    Args:
        cpu_block_allocator: The CPU's. The two are moved to one common pool unless they are on one already.
        gpu_block_allocator: The GPU's.

    Raises:
        ContractError: They have an id in common, or differ in block size.
        BlockStateError: They are on different pools and in use.

    >>> allocator = CpuGpuBlockAllocator.create("naive", num_gpu_blocks=4, num_cpu_blocks=4, block_size=2)
    >>> block = allocator.allocate_immutable_block(None, [1, 2], Device.GPU)
    >>> allocator.swap([block], Device.GPU, Device.CPU), block.block_id
    ({0: 4}, 4)
    """

    @staticmethod
    def create(
        allocator_type: str, num_gpu_blocks: int, num_cpu_blocks: int, block_size: int
    ) -> CpuGpuBlockAllocator:
        """Returns an allocator with GPU ids from 0 and CPU ids behind them.

        Args:
            allocator_type: ``"naive"`` or ``"prefix_caching"``.
            num_gpu_blocks: Blocks of the GPU.
            num_cpu_blocks: Blocks of the CPU.
            block_size: Tokens per block.

        Raises:
            InvalidArgumentError: No allocator has this name; a ``ValueError``.
            ContractError: A number is negative.
        """
        if allocator_type not in ("naive", "prefix_caching"):
            raise kvpool.errors.InvalidArgumentError(
                f"Unknown allocator type allocator_type={allocator_type!r}: 'naive' or 'prefix_caching' is expected"
            )
        numbers = (num_gpu_blocks, num_cpu_blocks)
        if min(numbers) < 0:
            raise ContractError(f"{num_gpu_blocks} GPU blocks and {num_cpu_blocks} CPU blocks")
        tiers = _common_pool(numbers, block_size)
        ids = (range(num_gpu_blocks), range(num_gpu_blocks, num_gpu_blocks + num_cpu_blocks))
        made: list[PoolAllocator] = []
        for tier in TIERS.values():
            if allocator_type == "naive":
                made.append(
                    NaiveBlockAllocator(
                        NaiveBlock, numbers[tier], block_size, block_ids=ids[tier], _tier=(tiers, tier)
                    )
                )
            else:
                made.append(
                    PrefixCachingBlockAllocator(
                        numbers[tier], block_size, block_ids=ids[tier], _tier=(tiers, tier)
                    )
                )
        gpu, cpu = made
        return CpuGpuBlockAllocator(cpu_block_allocator=cpu, gpu_block_allocator=gpu)

    def __init__(self, cpu_block_allocator: PoolAllocator, gpu_block_allocator: PoolAllocator) -> None:
        common = cpu_block_allocator.all_block_ids & gpu_block_allocator.all_block_ids
        if common:
            raise ContractError(f"CPU and GPU have ids in common: {sorted(common)[:8]}")
        allocators = {Device.GPU: gpu_block_allocator, Device.CPU: cpu_block_allocator}
        if cpu_block_allocator._tiers is not gpu_block_allocator._tiers:
            sizes = {allocator._pool.block_size for allocator in allocators.values()}
            if len(sizes) > 1:
                raise ContractError(f"blocks of {sorted(sizes)} tokens cannot be swapped")
            tiers = _common_pool([a.get_num_total_blocks() for a in allocators.values()], sizes.pop())
            for device, allocator in allocators.items():
                allocator._bind(tiers, TIERS[device])
        super().__init__(allocators, gpu_block_allocator._tiers)
        # Not fetched yet; None if more were made than one step can have, because nobody fetches them.
        self._swaps: list[tuple[BlockId, BlockId]] | None = []
        self._most_swaps = 2 * sum(allocator.get_num_total_blocks() for allocator in allocators.values())

    def allocate_or_get_null_block(self) -> Block:
        """Returns the null block: what stands in a block table where a sequence has dropped a block.

        Made on first use, from a block of the GPU, and never freed.

        Raises:
            NoFreeBlocksError: It does not exist yet and no block is free.
        """
        if self._null_block is None:
            self._null_block = NullBlock(self.allocate_mutable_block(None, Device.GPU))
        return self._null_block

    def allocate_mutable_block(
        self, prev_block: Block | None, device: Device, extra_hash: ExtraHash = None
    ) -> Block:
        """Returns an empty block of a device behind ``prev_block``.

        Raises:
            NoFreeBlocksError: No block is free.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: There is no such device.
        """
        return self._on(device).allocate_mutable_block(prev_block, extra_hash)

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: Sequence[int], device: Device, extra_hash: ExtraHash = None
    ) -> Block:
        """Returns a full block of a device with these tokens.

        Raises:
            NoFreeBlocksError: No block is free.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: The tokens do not fill the block, or there is no such device.
        """
        return self._on(device).allocate_immutable_block(prev_block, token_ids, extra_hash)

    def allocate_immutable_blocks(
        self,
        prev_block: Block | None,
        block_token_ids: Sequence[Sequence[int]],
        device: Device,
        extra_hash: ExtraHash = None,
    ) -> list[Block]:
        """Returns one full block of a device per chunk of tokens. All or nothing.

        Raises:
            NoFreeBlocksError: Too few blocks are free.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: A chunk does not fill its block, or there is no such device.
        """
        return self._on(device).allocate_immutable_blocks(prev_block, block_token_ids, extra_hash)

    def free(self, block: Block) -> None:
        """Gives up a handle and its reference to the block; of the null block nothing.

        Raises:
            StaleBlockError: The handle was freed before.
            BlockStateError: The handle has no block.
        """
        if not isinstance(block, NullBlock):
            self._of(block).free(block)

    def fork(self, last_block: Block) -> list[Block]:
        """Returns new handles on the blocks of the sequence that ends with this one, first to last.
        O(blocks).

        Raises:
            ContractError: It is the null block.
            StaleBlockError: A block of the sequence was freed, by a sliding window for instance: fork the
                ``BlockTable``.
            BlockStateError: A block has no id.
        """
        if isinstance(last_block, NullBlock):
            raise ContractError("the null block is not part of a sequence that could be forked")
        return self._of(last_block).fork(last_block)

    def get_num_free_blocks(self, device: Device) -> int:
        """Returns the number of blocks of a device that can be allocated now.

        Raises:
            ContractError: There is no such device.
        """
        return self._on(device).get_num_free_blocks()

    def get_num_total_blocks(self, device: Device) -> int:
        """Returns how many blocks of a device can be used: all but the null block, once it exists.

        Raises:
            ContractError: There is no such device.
        """
        return self._on(device).get_num_total_blocks() - self._num_null(device)

    def get_physical_block_id(self, device: Device, absolute_id: int) -> int:
        """Returns where in the memory of its device a block is. O(1).

        Raises:
            UnknownBlockError: The device has no such block.
            ContractError: There is no such device.
        """
        return self._on(device).get_physical_block_id(absolute_id)

    @property
    def all_block_ids(self) -> frozenset[int]:
        """All ids of both devices. O(blocks)."""
        return self._on(Device.GPU).all_block_ids | self._on(Device.CPU).all_block_ids

    def clear_copy_on_writes(self) -> list[tuple[BlockId, BlockId]]:
        """Returns the planned copies of GPU blocks, (source, destination) in order, and ends their pins
        and fences.
        """
        copies = self._take_copies()
        self.end_step()
        return copies

    def mark_blocks_as_accessed(self, block_ids: Sequence[int], now: float) -> None:
        """Says that blocks were used at a time. An access is never moved back.

        Raises:
            UnknownBlockError: A block is free, or on no device; nothing was marked on the device that
                it is on.
        """
        by_device: dict[int, list[int]] = {}
        owners = {id(allocator): allocator for allocator in self._allocators.values()}
        for block_id in block_ids:
            by_device.setdefault(id(self._owner(block_id)), []).append(block_id)
        for owner, ids in by_device.items():
            owners[owner].mark_blocks_as_accessed(ids, now)

    def mark_blocks_as_computed(self, block_ids: Sequence[int]) -> None:
        """Says that the KV of GPU blocks is written; without ids, of those filled since the last call.

        Raises:
            UnknownBlockError: An id is not of the GPU, or the block has no references.
        """
        self._on(Device.GPU).mark_blocks_as_computed(block_ids)

    def get_common_computed_block_ids(self, computed_seq_block_ids: Sequence[list[int]]) -> list[int]:
        """Returns the common prefix of the sequences' computed blocks."""
        return self._on(Device.GPU).get_common_computed_block_ids(computed_seq_block_ids)

    def get_num_full_blocks_touched(self, blocks: Sequence[Block], device: Device) -> int:
        """Returns how many blocks of a device the full ones among these would take, each counted once.

        Raises:
            StaleBlockError: A block was freed.
            ContractError: There is no such device.
        """
        live = [block for block in blocks if not isinstance(block, NullBlock)]
        return self._on(device).get_num_full_blocks_touched(live)

    def swap(self, blocks: Sequence[Block], src_device: Device, dst_device: Device) -> dict[int, int]:
        """Moves blocks from one device to the other. All or nothing; null blocks stay what they are.
        O(blocks).

        The handles have the new ids and belong to the other device. The bytes are to be copied by the
        pairs of ``get_and_reset_swaps``.

        Returns:
            Old id to new id, each physical block once.

        Raises:
            NoFreeBlocksError: The other device has too few blocks.
            StaleBlockError: A handle was freed.
            BlockStateError: A handle has no block, or is named twice.
            UnknownBlockError: A block is not of ``src_device``.
            ContractError: There is no such device, or both are the same.
        """
        mapping, swaps = self._move(blocks, src_device, dst_device)
        if self._swaps is not None:
            self._swaps += swaps
            if len(self._swaps) > self._most_swaps:
                self._swaps = None
        return mapping

    def get_and_reset_swaps(self) -> list[tuple[BlockId, BlockId]]:
        """Returns the copies that ``swap`` made necessary, (source, destination) in order, and forgets them.

        Ids tell the direction: GPU and CPU have none in common. For engines that do not take them from
        what ``swap`` returns; to be called every step.

        Raises:
            BlockStateError: So many were made since the last call that they were not kept; those of
                this step are lost.
        """
        swaps, self._swaps = self._swaps, []
        if swaps is None:
            raise BlockStateError(
                f"more than {self._most_swaps} copies of swaps were not fetched: fetch them every step"
            )
        return swaps

    def get_prefix_cache_hit_rate(self, device: Device) -> float:
        """Returns hits per query of a device, or -1 if nothing is cached there.

        Raises:
            ContractError: There is no such device.
        """
        return self._on(device).get_prefix_cache_hit_rate()

    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        """Drops all cached content of a device, or of every device; the null block is no hindrance.

        Returns:
            False if blocks of a device are in use: that one was not reset, the others were.

        Raises:
            ContractError: There is no such device.
        """
        devices = list(self._allocators) if device is None else [device]
        done = [self._on(one)._reset_prefix_cache(self._num_null(one)) for one in devices]
        return all(done)

    def find_cached_blocks_prefix(self, block_hashes: list[int], device: Device = Device.GPU) -> list[int]:
        """Returns the longest prefix of these hashes that is cached and computed on a device.

        Raises:
            ContractError: There is no such device.
        """
        return self._on(device).find_cached_blocks_prefix(block_hashes)

    @property
    def epoch(self) -> int:
        """The epoch in which blocks are hashed. New."""
        return self._on(Device.GPU)._pool.epoch


def _common_pool(numbers: Sequence[int], block_size: int) -> kvpool.TieredPool:
    # A tier has a block at least; the allocator of none keeps it for good.
    return kvpool.TieredPool([max(number, 1) + 1 for number in numbers], block_size, eviction="last-accessed")
