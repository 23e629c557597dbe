"""The base class of ``CpuGpuBlockAllocator``: two allocators of vLLM v0 over one ``kvpool.TieredPool``.

This module owns the assignment of blocks to devices. It also owns the copies that the core has planned
and the engine has not fetched yet. Fences keep the blocks of these copies until the copies are
executed. The core plans copies and swaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import kvpool
from kvpool.errors import OutOfBlocksError
from kvpool.lineage._enums import member
from kvpool.lineage.errors import BlockStateError, ContractError, UnknownBlockError, no_free_blocks
from kvpool.lineage.v0.block._hashing import ChainedHash, hash_chain
from kvpool.lineage.v0.block._null_block import NullBlock
from kvpool.lineage.v0.block.interfaces import Device
from kvpool.lineage.v0.block.prefix_caching_block import PrefixCachingBlock, PrefixCachingBlockAllocator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvpool.lineage.v0.block._allocator import PoolAllocator
    from kvpool.lineage.v0.block.common import BlockList
    from kvpool.lineage.v0.block.interfaces import Block, BlockId, ExtraHash

__all__ = ["TIERS", "TwoDevices"]

TIERS: Final = {Device.GPU: 0, Device.CPU: 1}


class TwoDevices:
    """Two allocators, one for the GPU and one for the CPU, over a common pool.

    Args:
        allocators: The allocator of each device.
        tiers: The common pool.
    """

    def __init__(self, allocators: Mapping[Device, PoolAllocator], tiers: kvpool.TieredPool) -> None:
        self._allocators = allocators
        self._gpu: PoolAllocator = allocators[Device.GPU]
        self._tiers = tiers
        self._null_block: NullBlock | None = None
        # The copies that the core has planned and the engine has not fetched yet.
        self._copies: list[tuple[BlockId, BlockId]] = []
        # The number of the step whose copies are fenced, and the core's ids of the GPU blocks to which
        # these copies write.
        self._step = 0
        self._targets: set[int] = set()

    def _allocator_on(self, device: Device) -> PoolAllocator:
        if device is Device.GPU:
            return self._gpu
        return self._allocators[member(Device, device)]

    def _of(self, block: Block) -> PoolAllocator:
        block_id = block.block_id
        if getattr(block, "_allocator", None) is self._gpu and block_id is not None:
            return self._allocator_on(Device.GPU)
        if block_id is None:
            if not getattr(block, "_live", True):
                self._allocator_on(Device.GPU)._core_of(block)  # raises, because the handle is stale
            raise BlockStateError("the block has no id: it was never allocated")
        return self._owner(block_id)

    def _owner(self, block_id: BlockId) -> PoolAllocator:
        for allocator in self._allocators.values():
            if block_id in allocator.all_block_ids:
                return allocator
        raise UnknownBlockError(f"block {block_id!r} is on no device")

    def _fork_blocks(self, blocks: Sequence[Block]) -> list[Block]:
        """Returns new handles on consecutive blocks of one device. All or nothing."""
        return self._of(blocks[-1])._fork_blocks(blocks) if blocks else []

    def _num_null(self, device: Device) -> int:
        return int(device == Device.GPU and self._null_block is not None)

    def _take_copies(self, *, fence: bool = False) -> list[tuple[BlockId, BlockId]]:
        """Returns the planned copies. With ``fence``, their blocks remain unavailable until ``end_step``."""
        if self._tiers.pending_copies():
            if fence:
                self._fence_copies()
            self._take_plan()
        copies, self._copies = self._copies, []
        return copies

    def _fence_copies(self) -> None:
        # The core unpins the blocks of a copy when the plan is taken. The copy is executed later, so
        # its blocks have to be kept until then. As in the plan, copies to blocks without references are
        # left out.
        holders = self._allocator_on(Device.GPU)._pool.diagnose.num_holders
        copies = [(src[1], dst[1]) for src, dst in self._tiers.pending_copies() if src[0] == dst[0] == 0]
        self._fence([(src, dst) for src, dst in copies if holders(dst)])

    def _fence(self, copies: Sequence[tuple[int, int]]) -> None:
        """Keeps the source and destination blocks of copies on the GPU until ``end_step``.

        Ids are the core's.
        """
        blocks = [block for copy in copies for block in copy]
        if blocks:
            pool = self._allocator_on(Device.GPU)._pool
            pool.acquire(blocks)
            pool.release(blocks, after_step=self._step)
            self._targets.update(dst for _, dst in copies)

    def _append(self, blocks: BlockList, at: int, token_ids: Sequence[int]) -> None:
        """Appends tokens to a block that may already have KV.

        When the block becomes full, another sequence's block may have the same content. If that block
        is not computed yet, because its prompt is computed in chunks, the running step would not find
        KV in it. Therefore the KV of the own block is copied to that block.
        """
        block, gpu = blocks[at], self._gpu
        if not isinstance(block, PrefixCachingBlock) or not block._check_append(token_ids):
            blocks.append_token_ids(at, token_ids)
            return
        hashed = block._hash_if_full([*block._token_ids, *token_ids])
        shared = gpu._registered(hashed) if isinstance(gpu, PrefixCachingBlockAllocator) else None
        if shared is None or gpu._pool.diagnose.is_computed(shared):
            block._append(token_ids, hashed)
            blocks[at] = block
            return
        own = gpu._core_of(block)
        if gpu._pool.diagnose.num_holders(own) > 1 and not gpu._pool.num_available:
            gpu._allocate(1)  # raises, with the right figures, before anything is fenced
        written = shared in self._targets or any(
            dst == (0, shared) for _, dst in self._tiers.pending_copies()
        )
        self._fence([(own, shared)])
        block._append(token_ids, hashed)
        blocks[at] = block
        if not written and gpu._core_of(block) == shared:
            self._copies.append((gpu._to_face(own), gpu._to_face(shared)))

    def _take_plan(self) -> list[tuple[BlockId, BlockId]]:
        """Takes the core's plan of copies and swaps.

        Keeps the copies for ``clear_copy_on_writes``, and returns the swaps.
        """
        faces = {TIERS[device]: allocator._to_face for device, allocator in self._allocators.items()}
        swaps: list[tuple[BlockId, BlockId]] = []
        for src, dst in self._tiers.take_plan().transfers:
            pair = (faces[src[0]](src[1]), faces[dst[0]](dst[1]))
            (self._copies if src[0] == dst[0] else swaps).append(pair)
        return swaps

    def end_step(self) -> None:
        """Releases the fences of the copies that have been passed to the engine.

        Call it after these copies were executed, or when no other work can run before them any more.

        The ancestor has no such method. ``SelfAttnBlockSpaceManager`` calls it.
        """
        if self._targets:
            self._allocator_on(Device.GPU)._pool.complete_step(self._step)
            self._step += 1
            self._targets.clear()

    def _move(
        self, blocks: Sequence[Block], src_device: Device, dst_device: Device
    ) -> tuple[dict[int, int], list[tuple[BlockId, BlockId]]]:
        """Does the work of ``swap``. Also returns the pairs of blocks whose bytes have to be copied."""
        src, dst = self._allocator_on(src_device), self._allocator_on(dst_device)
        if src is dst:
            raise ContractError(f"a swap from {src_device} to itself")
        live = [block for block in blocks if not isinstance(block, NullBlock)]
        src._check_distinct(live)
        cores = [src._core_of(block) for block in live]
        if not cores:
            return {}, []
        try:
            swap = self._tiers.begin_swap(cores, src=src._tier, dst=dst._tier)
        except OutOfBlocksError as error:
            raise no_free_blocks(error) from None
        self._fence_copies()
        swaps = self._take_plan()
        # These references determine the order in which the swap frees the blocks. The block that is
        # freed last is reused first.
        src._pool.acquire(cores)
        try:
            moved = swap.complete()
        finally:
            src._pool.release(cores)
        to_copy = {core for core, _ in swap.copies}
        for block, core in zip(live, cores, strict=True):
            src._released(core)
            dst._adopt(block, moved[core])
            if isinstance(dst, PrefixCachingBlockAllocator):
                self._register(block, moved[core], dst, hit=core not in to_copy)
                to_copy.discard(core)  # a further handle finds the content that the first one has brought
        return {src._to_face(old): dst._to_face(new) for old, new in moved.items()}, swaps

    @staticmethod
    def _register(block: Block, core: int, allocator: PrefixCachingBlockAllocator, *, hit: bool) -> None:
        # A computed block keeps its registration when it moves. A block that is not computed is
        # registered again, unless another block has the same content. The handle cannot change to that
        # other block, because this block is the destination of a copy.
        hashed = block.content_hash
        if not isinstance(hashed, ChainedHash):
            return
        allocator.metric_data.query(hit)
        if allocator._registered(hashed) is None:
            allocator._promote(core, hashed)

    def _fit(self, blocks: Sequence[Block], src_device: Device, dst_device: Device, reserve: int) -> str:
        """Returns whether a swap of these blocks would fit: ok, later or never. Changes nothing."""
        src, dst = self._allocator_on(src_device), self._allocator_on(dst_device)
        cores = [src._core_of(block) for block in blocks if not isinstance(block, NullBlock)]
        fit = self._tiers.fit_swap(cores, src=src._tier, dst=dst._tier, reserve=reserve)
        # ``fit_swap`` counts blocks that are never free: the null block, and the block that a tier must have
        # even if its device has none. If the swap could not fit even without other sequences, "later" would
        # be wrong. Adding these blocks to the reserve makes the answer "never".
        unusable = self._num_null(dst_device) + dst._surplus
        if fit == "later" and unusable:
            fit = self._tiers.fit_swap(cores, src=src._tier, dst=dst._tier, reserve=reserve + unusable)
        return fit

    def _num_to_take(
        self, chunks: Sequence[Sequence[int]], device: Device, extra_hash: ExtraHash, *, at_most: int
    ) -> int:
        """Returns how many available blocks a new sequence of these full chunks would take.

        Changes nothing.

        Hashes the chunks only if there are more than ``at_most``. Only then does it matter which of
        them are cached.
        """
        allocator = self._allocator_on(device)
        if len(chunks) <= at_most or not isinstance(allocator, PrefixCachingBlockAllocator):
            return len(chunks)
        pool = allocator._pool
        found = [
            allocator._registered(one)
            for one in hash_chain(None, True, chunks, extra_hash, pool.stats().epoch)
        ]
        return found.count(None) + len(
            {core for core in found if core is not None and pool.ref_count(core) == 0}
        )

    def _check_tokens(self, token_ids: Sequence[int]) -> None:
        """Raises for tokens that cannot be hashed, before anything has changed."""
        caching = isinstance(self._allocator_on(Device.GPU), PrefixCachingBlockAllocator)
        if caching and token_ids and not (min(token_ids) >= 0 and max(token_ids) < 1 << 32):
            raise kvpool.errors.TokenError(
                f"tokens are from 0 to {(1 << 32) - 1}: {min(token_ids)} to {max(token_ids)} given"
            )

    def _num_to_copy(self, blocks: Sequence[Block]) -> int:
        """Returns how many of these blocks are shared.

        A shared block has to be copied before it is written to.
        """
        return sum(
            self._of(one)._pool.diagnose.num_holders(self._of(one)._core_of(one)) > 1 for one in blocks
        )

    def _num_freed(self, blocks: Sequence[Block]) -> int:
        """Returns how many blocks would become available if these handles were freed."""
        return sum(self._of(one)._pool.ref_count(self._of(one)._core_of(one)) == 1 for one in blocks)

    def _is_on(self, block: Block, device: Device) -> bool:
        return self._of(block) is self._allocator_on(device)

    def _mark_filled(self, blocks: Sequence[Block]) -> None:
        """Marks the given GPU blocks as computed.

        Leaves out blocks that are not registered by their content.
        """
        gpu = self._allocator_on(Device.GPU)
        if isinstance(gpu, PrefixCachingBlockAllocator):
            cores = [gpu._core_of(one) for one in blocks if not isinstance(one, NullBlock)]
            ids = [gpu._to_face(core) for core in cores if gpu._pool.diagnose.is_registered(core)]
            if ids:  # an empty list would mean the blocks filled since the last call
                gpu.mark_blocks_as_computed(ids)
