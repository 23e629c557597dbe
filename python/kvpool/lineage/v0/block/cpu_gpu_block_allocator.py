"""vLLM v0's allocator for two devices.

It uses one ``kvpool.TieredPool``: GPU blocks are in tier 0, and CPU blocks are in tier 1.

This module owns the assignment of ids to devices, the null block, and the lists of transfers that the
core has planned and the engine has not fetched yet. The core plans swaps and copies.

Differences from the ancestor, vLLM v0 (a number identifies a known defect of the ancestors):

- 9, 12: ``swap`` moves physical blocks. Handles that share a block also share one on the other device.
  The other device needs one block for each different block that is moved.
- 10: ``swap`` moves either all blocks or none.
- 13, 14: see ``naive_block`` and ``prefix_caching_block``.
- 15: ``reset_prefix_cache`` works even if there is a null block. If blocks of one device are in use,
  the other device is reset nevertheless.
- 16: ``get_common_computed_block_ids`` returns a list in every case.
- 18: if a swap in the same step moves a block of a planned copy, the copy's source and destination
  remain fenced until ``clear_copy_on_writes``. The source of a swap is the block that contains the
  bytes, even if a copy to this block is still planned.
- 19: ``get_physical_block_id`` is O(1).
- The null block does not count as usable. Once it exists, ``get_num_total_blocks`` is smaller by one.
  The null block is a block of the GPU, and not the core's block 0. The ancestor's workers allocate
  memory for each id from 0 on, and kernels read the blocks of a table. Therefore the null block needs
  an id that has memory and no other use.
- If the other device has already cached the content of a block, the block is not copied. ``swap``
  returns it, but ``get_and_reset_swaps`` does not.
- ``mark_blocks_as_accessed`` accepts ids of both devices, because the blocks of a swapped-out group can
  also be used.
- Assertions are replaced by typed errors that derive from ``AssertionError``.

The order within a step is the ancestor's: workers execute swaps in, swaps out, copies, and then the
model. The ancestor's scheduler never swaps in and out in the same step, and never swaps out a block to
which it has appended in the same step. Any other caller that executes all transfers of a step in this
order must follow the same two rules.
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
    """An allocator for the blocks of a GPU and of a CPU.

    Args:
        cpu_block_allocator: The allocator for the CPU. Both allocators are moved to a common pool,
            unless they already have one.
        gpu_block_allocator: The allocator for the GPU.

    Raises:
        ContractError: The allocators have an id in common, or differ in block size.
        BlockStateError: The allocators are on different pools and in use.

    >>> allocator = CpuGpuBlockAllocator.create("naive", num_gpu_blocks=4, num_cpu_blocks=4, block_size=2)
    >>> block = allocator.allocate_immutable_block(None, [1, 2], Device.GPU)
    >>> allocator.swap([block], Device.GPU, Device.CPU), block.block_id
    ({0: 4}, 4)
    """

    @staticmethod
    def create(
        allocator_type: str, num_gpu_blocks: int, num_cpu_blocks: int, block_size: int
    ) -> CpuGpuBlockAllocator:
        """Returns an allocator. GPU ids begin at 0, and the CPU ids follow.

        Args:
            allocator_type: ``"naive"`` or ``"prefix_caching"``.
            num_gpu_blocks: Number of GPU blocks.
            num_cpu_blocks: Number of CPU blocks.
            block_size: Tokens per block.

        Raises:
            InvalidArgumentError: No allocator has this name. The error is also a ``ValueError``.
            ContractError: A number is negative.
        """
        if allocator_type not in ("naive", "prefix_caching"):
            raise kvpool.errors.InvalidArgumentError(
                f"Unknown allocator type allocator_type={allocator_type!r}: 'naive' or 'prefix_caching' is "
                "expected"
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
        # The swaps that the engine has not fetched yet. ``None`` after there were more swaps than one
        # step can have, until the engine calls ``get_and_reset_swaps``.
        self._swaps: list[tuple[BlockId, BlockId]] | None = []
        self._most_swaps = 2 * sum(allocator.get_num_total_blocks() for allocator in allocators.values())

    def allocate_or_get_null_block(self) -> Block:
        """Returns the null block, which takes the place of blocks that a sequence has dropped from its table.

        The first call makes it from a block of the GPU. It is never freed.

        Raises:
            NoFreeBlocksError: The null block does not exist yet, and no block is free.
        """
        if self._null_block is None:
            self._null_block = NullBlock(self.allocate_mutable_block(None, Device.GPU))
        return self._null_block

    def allocate_mutable_block(
        self, prev_block: Block | None, device: Device, extra_hash: ExtraHash = None
    ) -> Block:
        """Returns an empty block of a device that follows ``prev_block``.

        Raises:
            NoFreeBlocksError: No block is free.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: There is no such device.
        """
        return self._allocator_on(device).allocate_mutable_block(prev_block, extra_hash)

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: Sequence[int], device: Device, extra_hash: ExtraHash = None
    ) -> Block:
        """Returns a full block of a device with these tokens.

        Raises:
            NoFreeBlocksError: No block is free.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: The tokens do not fill the block, or there is no such device.
        """
        return self._allocator_on(device).allocate_immutable_block(prev_block, token_ids, extra_hash)

    def allocate_immutable_blocks(
        self,
        prev_block: Block | None,
        block_token_ids: Sequence[Sequence[int]],
        device: Device,
        extra_hash: ExtraHash = None,
    ) -> list[Block]:
        """Returns one full block of a device for each chunk of tokens. All or nothing.

        Raises:
            NoFreeBlocksError: Too few blocks are free.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: A chunk does not fill its block, or there is no such device.
        """
        return self._allocator_on(device).allocate_immutable_blocks(prev_block, block_token_ids, extra_hash)

    def free(self, block: Block) -> None:
        """Releases a handle, and its reference to the block. Does nothing for the null block.

        Raises:
            StaleBlockError: The handle was freed before.
            BlockStateError: The handle has no block.
        """
        if not isinstance(block, NullBlock):
            self._of(block).free(block)

    def fork(self, last_block: Block) -> list[Block]:
        """Returns new handles on all blocks of the sequence that ends with ``last_block``.

        They are in the order of the sequence. O(blocks).

        Raises:
            ContractError: ``last_block`` is the null block.
            StaleBlockError: A block of the sequence was freed, for instance by a sliding window. Fork
                the ``BlockTable`` instead.
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
        return self._allocator_on(device).get_num_free_blocks()

    def get_num_total_blocks(self, device: Device) -> int:
        """Returns the number of usable blocks of a device. The null block is not counted once it exists.

        Raises:
            ContractError: There is no such device.
        """
        return self._allocator_on(device).get_num_total_blocks() - self._num_null(device)

    def get_physical_block_id(self, device: Device, absolute_id: int) -> int:
        """Returns the position of a block in the memory of its device. O(1).

        Raises:
            UnknownBlockError: The device has no such block.
            ContractError: There is no such device.
        """
        return self._allocator_on(device).get_physical_block_id(absolute_id)

    @property
    def all_block_ids(self) -> frozenset[int]:
        """The ids of all blocks of both devices. O(blocks)."""
        return self._allocator_on(Device.GPU).all_block_ids | self._allocator_on(Device.CPU).all_block_ids

    def clear_copy_on_writes(self) -> list[tuple[BlockId, BlockId]]:
        """Returns the planned copies of GPU blocks as pairs (source, destination), in order.

        Unpins their blocks and releases their fences.
        """
        copies = self._take_copies()
        self.end_step()
        return copies

    def mark_blocks_as_accessed(self, block_ids: Sequence[int], now: float) -> None:
        """Records that blocks were used at time ``now``. An earlier time than the recorded one is ignored.

        Raises:
            UnknownBlockError: A block is free, or on no device. In this case, no use is recorded for any
                block of its device.
        """
        by_device: dict[int, list[int]] = {}
        owners = {id(allocator): allocator for allocator in self._allocators.values()}
        for block_id in block_ids:
            by_device.setdefault(id(self._owner(block_id)), []).append(block_id)
        for owner, ids in by_device.items():
            owners[owner].mark_blocks_as_accessed(ids, now)

    def mark_blocks_as_computed(self, block_ids: Sequence[int]) -> None:
        """Marks GPU blocks as computed, which means that their KV is written.

        Without ids, marks the blocks that were filled since the last call.

        Raises:
            UnknownBlockError: An id does not belong to the GPU, or the block has no references.
        """
        self._allocator_on(Device.GPU).mark_blocks_as_computed(block_ids)

    def get_common_computed_block_ids(self, computed_seq_block_ids: Sequence[list[int]]) -> list[int]:
        """Returns the common prefix of these lists of computed blocks."""
        return self._allocator_on(Device.GPU).get_common_computed_block_ids(computed_seq_block_ids)

    def get_num_full_blocks_touched(self, blocks: Sequence[Block], device: Device) -> int:
        """Returns how many blocks of a device the full blocks among these would take, without duplicates.

        Raises:
            StaleBlockError: A block was freed.
            ContractError: There is no such device.
        """
        live = [block for block in blocks if not isinstance(block, NullBlock)]
        return self._allocator_on(device).get_num_full_blocks_touched(live)

    def swap(self, blocks: Sequence[Block], src_device: Device, dst_device: Device) -> dict[int, int]:
        """Moves blocks from one device to the other. All or nothing. Null blocks do not change. O(blocks).

        Afterwards, the handles have new ids and belong to the other device. The caller has to copy the
        bytes of each pair that ``get_and_reset_swaps`` returns.

        Returns:
            The new id of each old id. Each physical block occurs once.

        Raises:
            NoFreeBlocksError: The other device has too few blocks.
            StaleBlockError: A handle was freed.
            BlockStateError: A handle has no block, or is named twice.
            UnknownBlockError: A block is not on ``src_device``.
            ContractError: There is no such device, or both are the same.
        """
        mapping, swaps = self._move(blocks, src_device, dst_device)
        if self._swaps is not None:
            self._swaps += swaps
            if len(self._swaps) > self._most_swaps:
                self._swaps = None
        return mapping

    def get_and_reset_swaps(self) -> list[tuple[BlockId, BlockId]]:
        """Returns the copies that ``swap`` requires, as pairs (source, destination), and clears the list.

        The ids show the direction, because no id belongs to both devices. Use this method instead of
        the results of ``swap``, and call it in every step.

        Raises:
            BlockStateError: There were too many copies since the last call, so they were dropped. The
                copies of this step are lost.
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
        return self._allocator_on(device).get_prefix_cache_hit_rate()

    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        """Drops all cached content of one device, or of both. The null block does not prevent this.

        Returns:
            False if blocks of a device are in use. That device was not reset, but the other one was.

        Raises:
            ContractError: There is no such device.
        """
        devices = list(self._allocators) if device is None else [device]
        done = [self._allocator_on(one)._reset_prefix_cache(self._num_null(one)) for one in devices]
        return all(done)

    def find_cached_blocks_prefix(self, block_hashes: list[int], device: Device = Device.GPU) -> list[int]:
        """Returns the longest prefix of these hashes that is cached and computed on a device.

        Raises:
            ContractError: There is no such device.
        """
        return self._allocator_on(device).find_cached_blocks_prefix(block_hashes)

    @property
    def epoch(self) -> int:
        """The epoch in which blocks are hashed. The ancestor has no such attribute."""
        return self._allocator_on(Device.GPU)._pool.stats().epoch


def _common_pool(numbers: Sequence[int], block_size: int) -> kvpool.TieredPool:
    # A tier has at least one usable block. The allocator of a device with 0 blocks holds that block
    # forever.
    return kvpool.TieredPool([max(number, 1) + 1 for number in numbers], block_size, eviction="last-accessed")
