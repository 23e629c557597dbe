"""vLLM v0's prefix-caching allocator, its block, and its hash of a block.

Differences from the ancestor, vLLM v0 (a number identifies a known defect of the ancestors):

- 1, 2: the core chooses victims. There is no heap that could contain outdated entries.
- 3, 8 to 14, 18 to 20: see the list in ``naive_block``.
- 4: ``find_cached_blocks_prefix`` stops at the first block that is not cached.
- 5: a block is cached only after ``mark_blocks_as_computed``. If it is freed before, its content is
  dropped and cannot be hit.
- 6: ``mark_blocks_as_computed`` marks the blocks with the given ids. Old schedulers pass no ids. Then
  it marks the blocks that were filled since the last call and still have references. A mutable block is
  never computed.
- 7: if a full block follows a block without a hash, it has no hash and is never shared.
- 16: ``get_common_computed_block_ids`` returns a list in every case.
- 23: the access time of a block never decreases. For an unknown block and for a free block, the error
  is the same: ``UnknownBlockError``.
- 24: hashes are SHA-256 chains with tagged extra keys. ``extra_hash`` is an int or
  ``kvpool.ExtraKeys``.
- Tokens are from 0 to 2**32 - 1. The ancestor hashed any int.
- The hit rate does not count allocations that failed.
- A block is registered as soon as it is full. As in the ancestor, it is shared from then on, even if it
  is not computed. All its holders compute it in the same step. Lookups (``find_cached_blocks_prefix``)
  return only computed blocks.
- ``refcounter`` and ``evictor`` are views. ``token_ids`` is a copy. Assertions are replaced by typed
  errors.
- ``bump_epoch`` does not exist in the ancestor. After it, no block that was cached before is found any
  more. Use it after a change of weights, for instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from kvpool.errors import InvalidBlockError
from kvpool.lineage.errors import BlockStateError, ContractError, UnknownBlockError
from kvpool.lineage.v0.block._handle import check_live
from kvpool.lineage.v0.block._hashing import NONE_HASH, ChainedHash, digest_of, hash_block_tokens, hash_chain
from kvpool.lineage.v0.block._prefix_block import (
    BlockTracker,
    CachingAllocator,
    PrefixCachingBlock,
    assert_prefix_caching_block_or_none,
    parent_hash,
)
from kvpool.lineage.v0.block._trackers import ComputedBlocksTracker, LastAccessBlocksTracker
from kvpool.lineage.v0.block._views import PoolEvictor
from kvpool.lineage.v0.block.common import BlockPool, CacheMetricData, common_prefix
from kvpool.lineage.v0.evictor import EvictionPolicy, Evictor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import kvpool
    from kvpool.lineage.v0.block.interfaces import Block, BlockId, ExtraHash

__all__ = [
    "BlockTracker",
    "ComputedBlocksTracker",
    "LastAccessBlocksTracker",
    "PrefixCachingBlock",
    "PrefixCachingBlockAllocator",
    "assert_prefix_caching_block_or_none",
    "hash_block_tokens",
]


class PrefixCachingBlockAllocator(CachingAllocator):
    """Allocates blocks, and shares full blocks that have the same content.

    Blocks without cached content are allocated first, beginning with the one that was freed last. Then
    the least recently used cached block is evicted: see ``mark_blocks_as_accessed``. If blocks have the
    same access time or none, the deepest is evicted first.

    Args:
        num_blocks: Number of blocks.
        block_size: Tokens per block.
        block_ids: The ids of the blocks, from 0 by default. The first id is allocated first.
        eviction_policy: Must be ``EvictionPolicy.LRU``.

    Raises:
        ContractError: The ids are not ``num_blocks`` different ones, a number is negative, or the
            policy is unknown.

    >>> allocator = PrefixCachingBlockAllocator(num_blocks=4, block_size=2)
    >>> first = allocator.allocate_immutable_block(None, [1, 2])
    >>> allocator.mark_blocks_as_computed([])  # the engine has run
    >>> allocator.free(first)
    >>> again = allocator.allocate_immutable_block(None, [1, 2])
    >>> again.block_id, again.computed, allocator.get_prefix_cache_hit_rate()
    (0, True, 0.5)
    """

    _none_hash: ClassVar[int] = NONE_HASH
    _block_type: ClassVar[type[PrefixCachingBlock]] = PrefixCachingBlock

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        block_ids: Iterable[int] | None = None,
        eviction_policy: EvictionPolicy = EvictionPolicy.LRU,
        *,
        _tier: tuple[kvpool.TieredPool, int] | None = None,
    ) -> None:
        if eviction_policy != EvictionPolicy.LRU:
            raise ContractError(f"Unknown cache eviction policy: {eviction_policy}")
        super().__init__(num_blocks, block_size, block_ids, _tier)
        self._block_pool = BlockPool(block_size, self._block_type, self, 4 * max(num_blocks, 1))
        # Blocks that were filled and have not been marked as computed, for mark_blocks_as_computed([]).
        # The pool has this state, too, but cannot list such blocks. Entries that contradict the pool
        # are ignored.
        self._touched: dict[int, bytes] = {}
        self.metric_data = CacheMetricData()
        self.eviction_policy = eviction_policy

    @property
    def evictor(self) -> Evictor:
        """A view of the cached blocks without references. It does not evict any block itself."""
        return PoolEvictor(self)

    def allocate_mutable_block(
        self, prev_block: Block | None, extra_hash: ExtraHash = None, device: object = None
    ) -> Block:
        """Returns an empty block that follows ``prev_block``.

        Raises:
            NoFreeBlocksError: No block is free or can be evicted.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: A device is given, or ``prev_block`` is of another kind.
        """
        self._check_device(device)
        self._check_prev(prev_block)
        return self._make_blocks(prev_block, self._allocate(1), [[]], [None], extra_hash)[0]

    def allocate_immutable_block(
        self,
        prev_block: Block | None,
        token_ids: Sequence[int],
        extra_hash: ExtraHash = None,
        device: object = None,
    ) -> Block:
        """Returns a full block with these tokens. It is a block that already has this content, or a new one.

        Raises:
            NoFreeBlocksError: No block is free or can be evicted.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: The tokens do not fill the block, a device is given, or ``prev_block`` is of
                another kind.
            TokenError: A token is out of range.
        """
        return self.allocate_immutable_blocks(prev_block, [token_ids], extra_hash, device)[0]

    def allocate_immutable_blocks(
        self,
        prev_block: Block | None,
        block_token_ids: Sequence[Sequence[int]],
        extra_hash: ExtraHash = None,
        device: object = None,
    ) -> list[Block]:
        """Returns one full block per chunk of tokens, each after the one before it. All or nothing.

        O(tokens).

        Raises:
            NoFreeBlocksError: Too few blocks are free or can be evicted.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: A chunk does not fill its block, a device is given, or ``prev_block`` is of
                another kind.
            TokenError: A token is out of range.
        """
        self._check_device(device)
        self._check_prev(prev_block)
        for token_ids in block_token_ids:
            if len(token_ids) != self._block_size:
                raise ContractError(f"an immutable block has {self._block_size} tokens, not {len(token_ids)}")
        parent = parent_hash(prev_block)
        hashes = hash_chain(parent, prev_block is None, block_token_ids, extra_hash, self._pool.stats().epoch)
        cores, hits = self._take(hashes)
        blocks = self._make_blocks(prev_block, cores, block_token_ids, hashes, extra_hash)
        for hit in hits:
            self.metric_data.query(hit)
        return blocks

    def _check_prev(self, prev_block: Block | None) -> None:
        assert_prefix_caching_block_or_none(prev_block)
        if prev_block is not None:
            check_live(prev_block)

    def _make_blocks(
        self,
        prev_block: Block | None,
        cores: Sequence[int],
        chunks: Sequence[Sequence[int]],
        hashes: Sequence[ChainedHash | None],
        extra_hash: ExtraHash,
    ) -> list[Block]:
        blocks: list[Block] = []
        try:
            for core, token_ids, hashed in zip(cores, chunks, hashes, strict=True):
                block = self._new_block(prev_block, core, extra_hash)
                if isinstance(block, PrefixCachingBlock):
                    block._fill(token_ids, hashed)
                blocks.append(block)
                prev_block = block
        except BaseException:
            self._pool.release(cores, tail_first=True)
            raise
        return blocks

    def _registered(self, content_hash: int | None) -> int | None:
        """Returns the core's block that is registered under a hash.

        If there are several, prefers a computed one.
        """
        digest = None if content_hash is None else digest_of(content_hash)
        copies = [] if digest is None else self._pool.diagnose.copies(digest)
        return copies[0] if copies else None

    def _take(self, hashes: Sequence[ChainedHash | None]) -> tuple[list[int], list[bool]]:
        """Takes one reference to a block for each content. Returns the blocks, and which of them were cached.

        All or nothing.
        """
        pool = self._pool
        # Everything is checked before a block is taken, because acquiring and releasing a cached block
        # would reset its access time.
        found = [self._registered(hashed) for hashed in hashes]
        idle = {core for core in found if core is not None and pool.ref_count(core) == 0}
        missing = found.count(None)
        if missing + len(idle) > pool.num_available:
            self._allocate(missing + len(idle))  # raises, with the right figures
        cores: list[int | None] = []
        for hashed in hashes:
            current = hashed is not None and hashed.epoch == pool.stats().epoch
            cores.append(pool.acquire(hashed.link) if hashed is not None and current else None)
        hits = [core is not None for core in cores]
        try:
            fresh = iter(self._allocate(hits.count(False)))
        except BaseException:  # another thread was faster
            pool.release([core for core in cores if core is not None])
            raise
        taken: list[int] = []
        for core, hashed in zip(cores, hashes, strict=True):
            taken.append(next(fresh) if core is None else core)
            if core is None and hashed is not None:
                taken[-1] = self._promote(taken[-1], hashed)
        return taken, hits

    def _promote(self, core: int, hashed: ChainedHash) -> int:
        """Registers a referenced block, unless its hash belongs to an earlier epoch.

        Returns the block to which the caller has a reference afterwards.
        """
        pool = self._pool
        if hashed.epoch != pool.stats().epoch or pool.diagnose.is_registered(core):
            return core
        shared = pool.register_link(core, hashed.link)
        if shared == core:
            self._touch(core)
        return shared

    def _touch(self, core: int) -> None:
        digest = self._pool.diagnose.hash_of(core)
        if digest is not None:  # None: a collision, which leaves the block unregistered
            self._touched[core] = digest

    def _released(self, core: int) -> None:
        if core in self._touched and self._pool.diagnose.num_holders(core) == 0:
            del self._touched[core]

    def promote_to_immutable_block(self, block: Block) -> BlockId:
        """Registers a full block. Returns the id that its handle has afterwards.

        This is the same id as before, unless another block with this content is registered already. In
        that case, the own block is released, and the handle changes to the other block.

        Raises:
            StaleBlockError: The handle was freed.
            BlockStateError: The block has no hash, or no id.
        """
        core = self._core_of(block)
        hashed = block.content_hash
        if not isinstance(hashed, ChainedHash):
            raise BlockStateError("only full blocks behind hashed ones can be promoted")
        block_id = self._to_face(self._promote(core, hashed))
        block.block_id = block_id
        return block_id

    def _copy_block(self, block: Block, prev_block: Block | None, core: int) -> Block:
        copied = self._new_block(prev_block, core, block.extra_hash)
        if isinstance(copied, PrefixCachingBlock) and isinstance(block, PrefixCachingBlock):
            copied._fill(block.token_ids, block._hash)
            copied._epoch, copied._tokens_before = block._epoch, block._tokens_before
        return copied

    def _place(self, blocks: Sequence[Block]) -> list[int]:
        contents = [block.content_hash for block in blocks]
        hashes = [hashed if isinstance(hashed, ChainedHash) else None for hashed in contents]
        cores, hits = self._take(hashes)
        for hashed, hit in zip(hashes, hits, strict=True):
            if hashed is not None:
                self.metric_data.query(hit)
        return cores

    def is_block_cached(self, block: Block) -> bool:
        """Returns whether a block with this block's content is registered, computed or not.

        Raises:
            BlockStateError: The block has no hash.
            StaleBlockError: The handle was freed.
        """
        if block.content_hash is None:
            raise BlockStateError("a block without a hash cannot be looked up")
        return self._registered(block.content_hash) is not None

    def block_is_computed(self, block_id: BlockId) -> bool:
        """Returns whether a block is cached and its KV written.

        Raises:
            UnknownBlockError: The id does not belong to this allocator.
        """
        return self._pool.diagnose.is_computed(self._to_core(block_id))

    def mark_blocks_as_accessed(self, block_ids: Sequence[BlockId], now: float) -> None:
        """Records a use of referenced or cached blocks. A time earlier than the known one changes nothing.

        Raises:
            UnknownBlockError: A block does not belong to this allocator, or is neither held nor cached.
        """
        try:
            self._pool.mark_accessed([self._to_core(block_id) for block_id in block_ids], now)
        except UnknownBlockError:
            raise
        except InvalidBlockError as error:
            raise UnknownBlockError(f"a block is neither held nor cached: {error}") from None

    def mark_blocks_as_computed(self, block_ids: Sequence[BlockId]) -> None:
        """Marks blocks as computed: their KV is written. From now on, they remain cached when they are freed.

        Args:
            block_ids: Ids of full, hashed blocks. If empty, all blocks are marked that were filled
                since the last call and still have references.

        Raises:
            UnknownBlockError: A block does not belong to this allocator.
            BlockStateError: A block is not full and hashed.
        """
        pool = self._pool
        if block_ids:
            cores = [self._to_core(block_id) for block_id in block_ids]
            try:
                pool.mark_computed(cores)
            except InvalidBlockError as error:
                raise BlockStateError(f"only full, hashed blocks can be computed: {error}") from None
        else:
            cores = list(self._touched)
            pool.mark_computed([core for core in cores if pool.diagnose.hash_of(core) == self._touched[core]])
        for core in cores:
            self._touched.pop(core, None)

    def get_common_computed_block_ids(self, computed_seq_block_ids: Sequence[list[int]]) -> list[int]:
        """Returns the common prefix of these lists. Empty lists are ignored.

        If there is only one list, it is returned unchanged.
        """
        if len(computed_seq_block_ids) == 1:
            return computed_seq_block_ids[0]
        return common_prefix([ids for ids in computed_seq_block_ids if ids])

    def get_num_full_blocks_touched(self, blocks: Sequence[Block]) -> int:
        """Returns how many free blocks the full blocks among these would take.

        Each physical block counts once.

        A block whose content is cached, computed and referenced here takes no free block.

        Raises:
            StaleBlockError: A block was freed.
        """
        touched: set[tuple[str, int]] = set()
        for block in blocks:
            if not block.is_full:
                continue
            found = self._registered(block.content_hash)
            if (
                found is None
                or not self._pool.diagnose.is_computed(found)
                or self._pool.state(found) == "cached-free"
            ):
                touched.add(("handle", id(block)) if block.block_id is None else ("id", block.block_id))
        return len(touched)

    def find_cached_blocks_prefix(self, block_hashes: list[int]) -> list[int]:
        """Returns the longest prefix of these hashes whose blocks are cached and computed. O(blocks found).

        No references are taken. Allocating the blocks takes them.
        """
        for at, content_hash in enumerate(block_hashes):
            found = self._registered(content_hash)
            if found is None or not self._pool.diagnose.is_computed(found):
                return block_hashes[:at]
        return block_hashes[:]

    def get_prefix_cache_hit_rate(self) -> float:
        """Returns the hits per full block that was allocated or swapped in; 0.0 if there was none yet.

        Calls that failed are not counted, because they changed nothing.
        """
        return self.metric_data.get_hit_rate()

    def reset_prefix_cache(self) -> bool:
        """Drops all cached content and resets the hit rate.

        Returns False, and does nothing, while blocks are in use.
        """
        return self._reset_prefix_cache()

    def _reset_prefix_cache(self, exempt: int = 0) -> bool:
        if not super()._reset_prefix_cache(exempt):
            return False
        self.metric_data = CacheMetricData()
        return True

    def bump_epoch(self) -> int:
        """Begins a new epoch and returns its number. Blocks that are cached now are never found again.

        Blocks with references remain usable by their holders.
        """
        self._touched.clear()
        return self._pool.bump_epoch()
