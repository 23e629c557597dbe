"""The block of the prefix-caching allocator: its tokens, and its content hash once it is full.

The hash is computed at the moment when the block becomes full, from the hash of its predecessor. If the
predecessor has no hash at that moment, the block never gets one. Whether the block is computed is
stored in the pool.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from kvpool.errors import TokenError
from kvpool.lineage.errors import BlockStateError, ContractError
from kvpool.lineage.v0.block._allocator import PoolAllocator
from kvpool.lineage.v0.block._handle import TokenBlock
from kvpool.lineage.v0.block._hashing import NONE_HASH, ChainedHash, extra_keys, hash_block_tokens, hash_chain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool.lineage.v0.block.interfaces import Block, BlockAllocator, ExtraHash

__all__ = [
    "BlockTracker",
    "CachingAllocator",
    "PrefixCachingBlock",
    "assert_prefix_caching_block_or_none",
    "parent_hash",
]

_NEVER_ACCESSED = -1.0


class CachingAllocator(PoolAllocator):
    """The methods of a caching allocator that its blocks use."""

    @abstractmethod
    def block_is_computed(self, block_id: int) -> bool:
        """Returns whether a block is cached and its KV is written."""


def parent_hash(prev_block: Block | None) -> int | None:
    """Returns the hash of ``prev_block``, on which the hash of the next block depends.

    Returns None if there is no predecessor, or if the predecessor has no hash.
    """
    if prev_block is None:
        return None
    if issubclass(type(prev_block), PrefixCachingBlock):
        # The hash can be read even if the predecessor was freed, for instance by a sliding window,
        # because its content has not changed.
        hashed: ChainedHash | None = prev_block._hash  # type: ignore[attr-defined]
        return hashed
    return prev_block.content_hash


def assert_prefix_caching_block_or_none(block: Block | None) -> None:
    """Checks that ``block`` can be the predecessor of a prefix-caching block.

    Raises:
        ContractError: The block is of another kind. The error is also an ``AssertionError``.
    """
    if block is not None and not isinstance(block, PrefixCachingBlock):
        raise ContractError(f"a prefix-caching block behind a {type(block).__name__}")


def _check_tokens(token_ids: Sequence[int]) -> None:
    """Raises for tokens that cannot be hashed, before anything is changed."""
    for position, token in enumerate(token_ids):
        if not 0 <= token < 2**32:
            raise TokenError(f"token {token} at position {position} is not within 0 .. 2**32 - 1")


class PrefixCachingBlock(TokenBlock):
    """A block that can be found by its content once it is full and its KV is written.

    Args:
        prev_block: The preceding block of the sequence.
        token_ids: The first tokens of the block.
        block_size: Tokens per block.
        allocator: The prefix-caching allocator of the block's memory.
        block_id: The id of the block's memory; None if it has none.
        computed: Whether to mark the block as computed. The block must be cached already.
        extra_hash: Extra keys that identify the prompt in addition to its tokens.

    Raises:
        ContractError: The allocator or the predecessor is of another kind.
        BlockStateError: The tokens do not fit, or ``computed`` is set for a block that is not cached.
    """

    _none_hash: ClassVar[int] = NONE_HASH

    def __init__(
        self,
        prev_block: Block | None,
        token_ids: Sequence[int],
        block_size: int,
        allocator: BlockAllocator,
        block_id: int | None = None,
        computed: bool = False,
        extra_hash: ExtraHash = None,
    ) -> None:
        if not isinstance(allocator, CachingAllocator):
            raise ContractError(f"the block of a {type(allocator).__name__} cannot cache prefixes")
        assert_prefix_caching_block_or_none(prev_block)
        extra_keys(extra_hash)  # raises if it is not an extra hash
        self._caching = True
        self._extra_hash = extra_hash
        self._last_accessed = _NEVER_ACCESSED
        self._hash: ChainedHash | None = None
        self._epoch = 0
        self._tokens_before = 0
        super().__init__(prev_block, token_ids, block_size, allocator, block_id)
        if issubclass(type(allocator), CachingAllocator):  # not for a substitute of an allocator
            self._epoch = allocator._pool.stats().epoch
        _check_tokens(self._token_ids)
        self._hash = self._hash_if_full(self._token_ids)
        self._count_before()
        if computed:
            self.computed = True

    def _hash_if_full(self, token_ids: Sequence[int]) -> ChainedHash | None:
        if len(token_ids) < self._block_size:
            return None
        first, parent = self._prev_block is None, parent_hash(self._prev_block)
        return hash_chain(parent, first, [token_ids], self._extra_hash, self._epoch)[0]

    def _count_before(self) -> None:
        prev_block = self._prev_block
        if prev_block is not None and getattr(prev_block, "_live", True):
            self._tokens_before = prev_block.num_tokens_total

    def _move_to(self, allocator: BlockAllocator, block_id: int) -> None:
        super()._move_to(allocator, block_id)
        self._caching = isinstance(allocator, CachingAllocator)

    def _fill(self, token_ids: Sequence[int], hashed: ChainedHash | None) -> None:
        """Sets the tokens and the hash of a new handle. The block has been hashed before."""
        self._token_ids = list(token_ids)
        self._hash = hashed

    def append_token_ids(self, token_ids: Sequence[int]) -> None:
        """Appends tokens. All or nothing.

        If the block is shared, it is copied first. When the block becomes full, it is registered. If
        another block with the same content is registered already, this handle changes to that block. In
        both cases, ``block_id`` may change.

        Raises:
            NoFreeBlocksError: The block is shared and no block is free for a copy.
            BlockStateError: The block is immutable, or the tokens do not fit.
            StaleBlockError: The block was freed.
            TokenError: A token is out of range.
        """
        filling = self._check_append(token_ids)
        if token_ids:
            self._append(token_ids, self._hash_if_full([*self._token_ids, *token_ids]) if filling else None)

    def _check_append(self, token_ids: Sequence[int]) -> bool:
        """Raises if the tokens cannot be appended. Returns whether the block will be full."""
        empty = self._block_size - len(self._token_ids)
        if not self._live or len(token_ids) > empty:
            self._refuse(token_ids)
        if self._hash is not None or self.computed:
            raise BlockStateError("the block is full and hashed: it is immutable")
        _check_tokens(token_ids)
        return 0 < len(token_ids) == empty

    def _append(self, token_ids: Sequence[int], hashed: ChainedHash | None) -> None:
        """Appends tokens that were checked. If the block is then full and has a hash, registers it."""
        if self._block_id is not None:
            self._block_id = self._allocator.cow_block_if_not_appendable(self)
        before = self._token_ids
        if hashed is not None or not before:
            self._count_before()
        if hashed is None or self._block_id is None:
            before.extend(token_ids)
            self._hash = hashed
            return
        self._token_ids, self._hash = [*before, *token_ids], hashed
        try:
            self._block_id = self._allocator.promote_to_immutable_block(self)
        except BaseException:
            self._token_ids, self._hash = before, None
            raise

    @property
    def computed(self) -> bool:
        """Whether the block is cached and its KV is written. This state is stored in the pool."""
        if not self._live:
            self._check_live()
        if self._block_id is None or not self._caching:
            return False
        # The attribute ``_caching`` is true only if the allocator has the method ``block_is_computed``.
        return self._allocator.block_is_computed(self._block_id) is True  # type: ignore[attr-defined]

    @computed.setter
    def computed(self, value: bool) -> None:
        if value == self.computed:
            return
        if not value:
            raise BlockStateError("a computed block stays computed as long as it is cached")
        if self._block_id is None or self._hash is None:
            raise BlockStateError("only full, hashed blocks with an id can be computed")
        self._allocator.mark_blocks_as_computed([self._block_id])

    @property
    def last_accessed(self) -> float:
        """The latest access time that was set through this handle; -1 if none was set."""
        self._check_live()
        return self._last_accessed

    @last_accessed.setter
    def last_accessed(self, last_accessed_ts: float) -> None:
        self._check_live()
        if self._block_id is not None:
            self._allocator.mark_blocks_as_accessed([self._block_id], last_accessed_ts)
        self._last_accessed = max(self._last_accessed, last_accessed_ts)

    @property
    def num_tokens_total(self) -> int:
        """Number of tokens from the start of the sequence to the end of this block. O(1)."""
        self._check_live()
        return self._tokens_before + len(self._token_ids)

    @property
    def extra_hash(self) -> ExtraHash:
        """Extra keys that identify the prompt in addition to its tokens."""
        self._check_live()
        return self._extra_hash

    @property
    def content_hash(self) -> int | None:
        """The hash of the block and of everything before it.

        It is None unless the block is full and its predecessor had a hash when the block became full.
        """
        self._check_live()
        return self._hash

    @classmethod
    def hash_block_tokens(
        cls,
        is_first_block: bool,
        prev_block_hash: int | None,
        cur_block_token_ids: Sequence[int],
        extra_hash: ExtraHash = None,
    ) -> int:
        """Hashes one full block: see ``kvpool.lineage.v0.block.prefix_caching_block.hash_block_tokens``."""
        return hash_block_tokens(is_first_block, prev_block_hash, cur_block_token_ids, extra_hash)


class BlockTracker:
    """Records the state of one block while it has references. It is for code that keeps such records itself.

    The allocator does not use this class, because the pool keeps the state.
    """

    __slots__ = ("active", "computed", "last_accessed")

    def __init__(self) -> None:
        self.active = False
        self.reset()

    def reset(self) -> None:
        """Resets the record of the block: no access time, and not computed."""
        self.last_accessed: float = _NEVER_ACCESSED
        self.computed = False

    def enable(self) -> None:
        """Begins to record the state of a block that has got its first reference.

        Raises:
            BlockStateError: The block is tracked already.
        """
        if self.active:
            raise BlockStateError("the block is tracked already")
        self.active = True
        self.reset()

    def disable(self) -> None:
        """Ends the record of a block that has lost its last reference.

        Raises:
            BlockStateError: The block is not tracked.
        """
        if not self.active:
            raise BlockStateError("the block is not tracked")
        self.active = False
        self.reset()
