"""The base class of vLLM v0's allocators: a tier of a ``kvpool.TieredPool`` with the ancestor's ids.

This module owns the map between the ancestor's ids and the core's ids, and the map from handles to
blocks. Reference counts, the free list, the prefix index, the eviction order and pending copies belong
to the core.

``cpu_gpu_block_allocator`` uses these private names: ``_tiers``, ``_tier``, ``_pool``, ``_surplus``,
``_to_core``, ``_to_face`` (from the core's id to the ancestor's), ``_core_of``, ``_bind``,
``_fork_blocks``, ``_adopt``, ``_touch`` and ``_reset_prefix_cache``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

import kvpool
from kvpool.lineage.errors import BlockStateError, ContractError, UnknownBlockError, no_free_blocks
from kvpool.lineage.v0.block._handle import TokenBlock, check_live
from kvpool.lineage.v0.block._views import Holders
from kvpool.lineage.v0.block.common import BlockPool, ReadOnlyRefCounter, get_all_blocks_recursively
from kvpool.lineage.v0.block.interfaces import Block, BlockAllocator

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvpool._core import EvictionPolicy
    from kvpool.lineage.v0.block.interfaces import BlockId, ExtraHash

__all__ = ["PoolAllocator"]

_LOGGER = logging.getLogger("kvpool.lineage")


class _IdMap:
    """Maps the allocator's block ids, in the given order, to the core's ids 1, 2, 3 and so on.

    Also maps each id to its rank, which is its position among the sorted ids. O(1) per id.
    """

    def __init__(self, num_blocks: int, block_ids: Iterable[int] | None) -> None:
        ids: Sequence[int] = range(num_blocks) if block_ids is None else list(block_ids)
        if len(ids) != num_blocks or (block_ids is not None and len(set(ids)) != num_blocks):
            raise ContractError(f"{num_blocks} blocks need as many different ids: {len(set(ids))} were given")
        self.ids = ids
        self._first = ids[0] if ids else 0
        if list(ids) == list(range(self._first, self._first + num_blocks)):
            # If the ids are consecutive, which is usual, the core's ids are computed without a table.
            self.ids = range(self._first, self._first + num_blocks)
            self._cores: dict[int, int] | None = None
            self._ranks: dict[int, int] = {}
        else:
            self._cores = {block_id: at for at, block_id in enumerate(ids, 1)}
            self._ranks = {block_id: rank for rank, block_id in enumerate(sorted(ids))}

    def _unknown(self, block_id: object) -> UnknownBlockError:
        return UnknownBlockError(f"block {block_id!r} is none of this allocator's {len(self.ids)} blocks")

    def to_core(self, block_id: int) -> int:
        if self._cores is None:
            if block_id not in self.ids:  # a range: O(1)
                raise self._unknown(block_id)
            return block_id - self._first + 1
        core = self._cores.get(block_id)
        if core is None:
            raise self._unknown(block_id)
        return core

    def to_face(self, core: int) -> int:
        return self.ids[core - 1]

    def rank(self, block_id: int) -> int:
        if self._cores is None:
            return self.to_core(block_id) - 1
        if block_id not in self._ranks:
            raise self._unknown(block_id)
        return self._ranks[block_id]


class PoolAllocator(BlockAllocator):
    """The methods that the allocators with and without prefix caching have in common."""

    _eviction: ClassVar[EvictionPolicy] = "last-accessed"

    _block_pool: BlockPool

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        block_ids: Iterable[int] | None,
        tier: tuple[kvpool.TieredPool, int] | None,
    ) -> None:
        if num_blocks < 0:
            raise ContractError(f"an allocator of {num_blocks} blocks")
        self._ids = _IdMap(num_blocks, block_ids)
        self._to_core, self._to_face = self._ids.to_core, self._ids.to_face
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._all_block_ids: frozenset[int] | None = None
        if tier is None:
            tier = kvpool.TieredPool([max(num_blocks, 1) + 1], block_size, eviction=self._eviction), 0
        self._attach(*tier)

    def _attach(self, tiers: kvpool.TieredPool, tier: int) -> None:
        pool = tiers.pools[tier]
        # A pool has at least one usable block. If the allocator was made for 0 blocks, it holds that
        # block forever.
        surplus = pool.num_blocks - 1 - self._num_blocks
        if surplus < 0 or pool.block_size != self._block_size:
            raise ContractError(
                f"tier {tier} has {pool.num_blocks - 1} blocks of {pool.block_size} tokens, "
                f"{self._num_blocks} of {self._block_size} are needed"
            )
        if surplus:
            pool.release(pool.allocate(pool.num_blocks - 1)[: self._num_blocks], tail_first=True)
        self._tiers, self._tier, self._pool, self._surplus = tiers, tier, pool, surplus

    def _bind(self, tiers: kvpool.TieredPool, tier: int) -> None:
        """Moves an allocator that has no referenced and no cached blocks to a tier of another pool.

        Raises:
            BlockStateError: The allocator holds or caches blocks.
            ContractError: The tier has another size.
        """
        stats = self._pool.stats()
        if stats.active + stats.fenced + stats.registered > self._surplus:
            raise BlockStateError("the allocator is in use: its blocks cannot move to another pool")
        self._attach(tiers, tier)

    def _core_of(self, block: Block) -> int:
        block_id = block.block_id
        if block_id is None:
            check_live(block)
            raise BlockStateError("the block has no id: it was never allocated, or its memory was given up")
        return self._to_core(block_id)

    def _allocate(self, n: int) -> list[int]:
        try:
            return self._pool.allocate(n)
        except kvpool.errors.OutOfBlocksError as error:
            raise no_free_blocks(error) from None

    def _new_block(self, prev_block: Block | None, core: int, extra_hash: ExtraHash) -> Block:
        return self._block_pool.init_block(prev_block, [], self._block_size, self._to_face(core), extra_hash)

    def _check_device(self, device: object) -> None:
        if device is not None:
            raise ContractError(f"this allocator has one device and cannot choose {device}")

    def _released(self, core: int) -> None:
        """A hook of subclasses: called after a reference to the block was dropped."""

    def _touch(self, core: int) -> None:
        """A hook of subclasses: called after a block was registered. The block is not computed yet."""

    @property
    def refcounter(self) -> ReadOnlyRefCounter:
        """A read-only view of the reference counts. Only handles change them."""
        return ReadOnlyRefCounter(Holders(self))

    @property
    def all_block_ids(self) -> frozenset[int]:
        """The ids of all blocks of this allocator."""
        if self._all_block_ids is None:
            self._all_block_ids = frozenset(self._ids.ids)
        return self._all_block_ids

    def get_num_total_blocks(self) -> int:
        """Returns the number of blocks that this allocator has."""
        return self._num_blocks

    def get_num_free_blocks(self, device: object = None) -> int:
        """Returns the number of blocks that can be allocated now.

        These are the free blocks, and the cached blocks without references.

        Raises:
            ContractError: A device is given.
        """
        self._check_device(device)
        return self._pool.num_available

    def get_physical_block_id(self, absolute_id: int) -> int:
        """Returns the position of a block id among the sorted ids. O(1).

        Raises:
            UnknownBlockError: The id does not belong to this allocator.
        """
        return self._ids.rank(absolute_id)

    def free(self, block: Block, keep_block_object: bool = False) -> None:
        """Releases the handle, and its reference to the block.

        Args:
            block: The handle. It is invalid afterwards.
            keep_block_object: Whether the handle instead remains valid, with its tokens and without a
                block.

        Raises:
            StaleBlockError: The handle was freed before.
            BlockStateError: The handle has no block.
            UnknownBlockError: Its block belongs to another allocator.
        """
        core = self._core_of(block)
        self._pool.release([core])
        self._released(core)
        if keep_block_object:
            block.block_id = None
        else:
            self._block_pool.free_block(block)

    def fork(self, last_block: Block) -> list[Block]:
        """Returns new handles on all blocks of the sequence that ends with ``last_block``.

        They are in the order of the sequence. O(blocks).

        Raises:
            StaleBlockError: A block of the sequence was freed.
            BlockStateError: A block of the sequence has no id.
        """
        return self._fork_blocks(get_all_blocks_recursively(last_block))

    def _fork_blocks(self, blocks: Sequence[Block]) -> list[Block]:
        """Returns new handles on consecutive blocks.

        The first new handle has the same predecessor as the first given block.
        """
        cores = [self._core_of(block) for block in blocks]
        self._pool.acquire(cores)
        forked: list[Block] = []
        try:
            prev_block = blocks[0].prev_block if blocks else None
            for block, core in zip(blocks, cores, strict=True):
                prev_block = self._copy_block(block, prev_block, core)
                forked.append(prev_block)
        except BaseException:
            self._pool.release(cores)
            raise
        return forked

    def _copy_block(self, block: Block, prev_block: Block | None, core: int) -> Block:
        return self._block_pool.init_block(prev_block, block.token_ids, self._block_size, self._to_face(core))

    def cow_block_if_not_appendable(self, block: Block) -> BlockId:
        """Makes a handle's block writable, by a copy if necessary. Returns the id of the handle's block.

        The handle keeps its block if the block has no other references and no cached content.
        Otherwise, it gets a new block, and a copy is planned. The source and the destination of the
        copy remain pinned until ``clear_copy_on_writes``.

        Raises:
            NoFreeBlocksError: No block is free for a copy. Nothing has changed.
            StaleBlockError: The handle was freed.
            BlockStateError: The handle has no block.
        """
        core = self._core_of(block)
        try:
            writable = self._tiers.copy_on_write(core, tier=self._tier, fences=False)
        except kvpool.errors.OutOfBlocksError as error:
            raise no_free_blocks(error) from None
        if writable != core:
            self._released(core)
            block.block_id = self._to_face(writable)
        return self._to_face(writable)

    def clear_copy_on_writes(self) -> list[tuple[BlockId, BlockId]]:
        """Returns the planned copies as pairs (source, destination), in order, and unpins their blocks.

        Raises:
            ContractError: Swaps, or copies of other devices, are also planned. In this case, take the
                plan of all devices together.
        """
        if any(place[0] != self._tier for copy in self._tiers.pending_copies() for place in copy):
            raise ContractError("other devices have copies planned: take those of all devices at once")
        transfers = self._tiers.take_plan().transfers
        return [(self._to_face(src), self._to_face(dst)) for (_, src), (_, dst) in transfers]

    def swap_out(self, blocks: Sequence[Block]) -> None:
        """Frees the blocks of handles. The handles remain valid. All or nothing.

        If handles share a block, they share a block again when they are swapped in together.

        Raises:
            StaleBlockError: A handle was freed.
            BlockStateError: A handle has no block, or is named twice.
            UnknownBlockError: A block belongs to another allocator.
        """
        cores = [self._core_of(block) for block in blocks]
        self._check_distinct(blocks)
        self._pool.release(cores)
        homes = {core: object() for core in cores}
        for block, core in zip(blocks, cores, strict=True):
            self._released(core)
            block.block_id = None
            if isinstance(block, TokenBlock):
                block._home = homes[core]

    def swap_in(self, blocks: Sequence[Block]) -> None:
        """Allocates blocks for handles that have none. The handles then belong to this allocator.

        All or nothing.

        Raises:
            NoFreeBlocksError: Too few blocks are free.
            StaleBlockError: A handle was freed.
            BlockStateError: A handle has a block, or is named twice.
        """
        self._check_distinct(blocks)
        groups: dict[int, list[Block]] = {}
        for block in blocks:
            check_live(block)
            if block.block_id is not None:
                raise BlockStateError(f"block {block.block_id} was not swapped out")
            home = getattr(block, "_home", None)
            groups.setdefault(id(block if home is None else home), []).append(block)
        cores = self._place([members[0] for members in groups.values()])
        for core, members in zip(cores, groups.values(), strict=True):
            self._pool.acquire([core] * (len(members) - 1))
            for block in members:
                self._adopt(block, core)

    def _place(self, blocks: Sequence[Block]) -> list[int]:
        """Takes one block for the content of each handle, with one reference each. All or nothing."""
        return self._allocate(len(blocks))

    def _adopt(self, block: Block, core: int) -> None:
        """Points a handle to a block of this allocator. The handle takes over the block's reference."""
        if isinstance(block, TokenBlock):
            block._move_to(self, self._to_face(core))
        else:
            block.block_id = self._to_face(core)

    def _check_distinct(self, blocks: Sequence[Block]) -> None:
        if len({id(block) for block in blocks}) != len(blocks):
            raise BlockStateError("a block is named twice")

    def _reset_prefix_cache(self, exempt: int = 0) -> bool:
        """Drops all cached content, unless more than ``exempt`` blocks are in use."""
        stats = self._pool.stats()
        in_use = stats.active + stats.fenced - self._surplus - exempt
        if in_use > 0:
            _LOGGER.warning("the prefix cache was not reset: %d blocks are in use", in_use)
            return False
        self._pool.drop_cached(self._pool.diagnose.eviction_order())
        return True
