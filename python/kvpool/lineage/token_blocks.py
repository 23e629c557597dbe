"""Aphrodite's token blocks (ancestor 000): buffers of tokens, and metadata of logical and physical blocks.

This module owns the idle token buffers, and has no part in the KV cache. The ``ref_count`` of a
physical block is only metadata that the engine sets. The reference counts that take effect are those of
``kvpool.BlockPool``.

Intended differences from the original (the number 000 identifies its known defects):

- 000: a recycled buffer never contains tokens of its previous owner. The pool clears a buffer when it
  is returned. It clears the buffer again when it is allocated, because the previous owner may have
  written to it. A block never exposes its buffer: ``token_ids`` is a copy.
- 000: a buffer returns to the pool only when its owner releases it (``LogicalTokenBlock.release`` or
  ``with``). There is no finalizer, so none runs in another thread or at interpreter exit. If a block is
  dropped without ``release``, its buffer is garbage-collected with it.
- 000: the pool has a size limit and a lock, and need not be global, because a block may be given its
  own pool.
- Typed errors replace the ancestor's undefined behaviour. They are raised if a buffer is returned
  twice, a released block is used, too many tokens are appended, or the last token of an empty block is
  read. If the ancestor had an assertion, the error is also an ``AssertionError``.
- Extra keys are part of the block's hash: see ``LogicalTokenBlock.content_hash``.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import kvpool
from kvpool.errors import InvalidArgumentError
from kvpool.lineage.errors import BlockStateError, ContractError, StaleBlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BlockPool",
    "BlockTable",
    "DEFAULT_LAST_ACCESSED_TIME",
    "LogicalTokenBlock",
    "PhysicalTokenBlock",
    "TokensBlock",
]

#: The content of an empty slot of a token buffer.
_BLANK_TOKEN_ID: Final = -1
#: The access time of a block that was never used.
DEFAULT_LAST_ACCESSED_TIME: Final = -1

#: A buffer of tokens with as many slots as a block. Slots after the last token are empty.
TokensBlock: TypeAlias = list[int]


class BlockPool:
    """Keeps idle token buffers for reuse. Several threads may share a pool.

    Args:
        max_idle_tokens: The largest number of token slots of all idle buffers together. A buffer that would
            exceed this limit is dropped when it is returned.

    Raises:
        InvalidArgumentError: ``max_idle_tokens`` is negative.
    """

    def __init__(self, *, max_idle_tokens: int = 1 << 20) -> None:
        if max_idle_tokens < 0:
            raise InvalidArgumentError(f"max_idle_tokens is {max_idle_tokens}: must not be negative")
        self.max_idle_tokens = max_idle_tokens
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        #: The idle buffers, by size. The buffer that was returned last is reused first.
        self.pool: dict[int, list[TokensBlock]] = {}
        self._idle: set[int] = set()
        self._idle_tokens = 0

    @property
    def num_idle_tokens(self) -> int:
        """Number of token slots of all idle buffers."""
        return self._idle_tokens

    def alloc_block(self, block_size: int) -> TokensBlock:
        """Returns a blank buffer: an idle one of this size, or a new one.

        For size 0, returns a new empty list.

        Raises:
            InvalidArgumentError: ``block_size`` is negative.
        """
        if block_size < 0:
            raise InvalidArgumentError(f"block_size is {block_size}: must not be negative")
        with self._lock:
            idle = self.pool.get(block_size)
            if not idle:
                return [_BLANK_TOKEN_ID] * block_size
            tokens = idle.pop()
            if not idle:
                del self.pool[block_size]
            self._idle.remove(id(tokens))
            self._idle_tokens -= block_size
        # The buffer is cleared again, because the previous owner may have kept the list and written to
        # it.
        tokens[:] = [_BLANK_TOKEN_ID] * block_size
        return tokens

    def del_block(self, block: TokensBlock) -> None:
        """Takes back a buffer and clears it. The caller must not use it afterwards. Ignores empty buffers.

        Raises:
            StaleBlockError: The buffer is idle already.
        """
        with self._lock:
            if id(block) in self._idle:
                raise StaleBlockError(f"a buffer of {len(block)} tokens is returned twice")
            size = len(block)
            block[:] = [_BLANK_TOKEN_ID] * size
            if size and self._idle_tokens + size <= self.max_idle_tokens:
                self.pool.setdefault(size, []).append(block)
                self._idle.add(id(block))
                self._idle_tokens += size


#: The pool of token buffers that all blocks use if the caller gives no other pool.
_BLOCK_POOL: Final = BlockPool()
# In a forked child, the pool is emptied and gets a new lock, because a thread that does not exist there
# may hold the old one.
os.register_at_fork(after_in_child=_BLOCK_POOL._forget)


@functools.lru_cache(maxsize=64)
def _hasher(block_size: int) -> kvpool.BlockHasher:
    return kvpool.BlockHasher(block_size=block_size)


class LogicalTokenBlock:
    """Consecutive tokens of a sequence. The block is filled from left to right.

    It is also a context manager, which releases the block on exit. Copies (``copy``, ``deepcopy``) have
    their own buffers.

    Args:
        block_number: The position of the block in its sequence.
        block_size: Tokens per block.
        pool: The pool from which the buffer is taken. By default, a pool of the whole process.

    Raises:
        InvalidArgumentError: ``block_size`` is less than 1.
    """

    def __init__(self, block_number: int, block_size: int, *, pool: BlockPool | None = None) -> None:
        if block_size < 1:
            raise InvalidArgumentError(f"block_size is {block_size}: must be at least 1")
        self.block_number = block_number
        self.block_size = block_size
        self._pool = _BLOCK_POOL if pool is None else pool
        self._tokens: TokensBlock | None = self._pool.alloc_block(block_size)
        self._num_tokens = 0

    def _buffer(self) -> TokensBlock:
        if self._tokens is None:
            raise StaleBlockError(f"logical block {self.block_number} was released")
        return self._tokens

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the block.

        Assigning a smaller number removes tokens at the end.

        Raises:
            StaleBlockError: The block was released. All members below raise it, too.
            ContractError: The assigned number is negative, or greater than the present number of
                tokens.
        """
        self._buffer()
        return self._num_tokens

    @num_tokens.setter
    def num_tokens(self, num_tokens: int) -> None:
        before = self.num_tokens
        if not 0 <= num_tokens <= before:
            raise ContractError(
                f"num_tokens set to {num_tokens}: must be from 0 to {before}, append_tokens adds more"
            )
        self._buffer()[num_tokens:before] = [_BLANK_TOKEN_ID] * (before - num_tokens)
        self._num_tokens = num_tokens

    @property
    def token_ids(self) -> list[int]:
        """A copy of the buffer: the tokens, and ``-1`` in every empty slot."""
        return list(self._buffer())

    def is_empty(self) -> bool:
        """Returns whether the block has no token."""
        return self.num_tokens == 0

    def get_num_empty_slots(self) -> int:
        """Returns the number of further tokens that fit into the block."""
        return self.block_size - self.num_tokens

    def is_full(self) -> bool:
        """Returns whether the block is full."""
        return self.num_tokens == self.block_size

    def append_tokens(self, token_ids: Sequence[int]) -> None:
        """Appends tokens.

        Raises:
            ContractError: There are more tokens than empty slots. None is appended.
        """
        start, end = self.num_tokens, self.num_tokens + len(token_ids)
        if end > self.block_size:
            raise ContractError(f"{len(token_ids)} tokens do not fit {self.block_size - start} empty slots")
        self._buffer()[start:end] = token_ids
        self._num_tokens = end

    def get_token_ids(self) -> list[int]:
        """Returns a copy of the tokens, without empty slots."""
        return self._buffer()[: self._num_tokens]

    def get_last_token_id(self) -> int:
        """Returns the last token.

        Raises:
            BlockStateError: The block has no token.
        """
        if self.is_empty():
            raise BlockStateError(f"logical block {self.block_number} has no token")
        return self._buffer()[self._num_tokens - 1]

    def content_hash(
        self,
        parent: kvpool.hashing.ChainLink | None = None,
        *,
        extra: kvpool.ExtraKeys | None = None,
        hasher: kvpool.BlockHasher | None = None,
    ) -> kvpool.hashing.ChainLink | None:
        """Returns the block's link in the hash chain of its sequence, or None if the block is not full.

        Args:
            parent: The link of the preceding block; None for the first block.
            extra: Extra keys of the prompt. They must be the same for all blocks of the prompt.
            hasher: The hasher, which determines the algorithm. SHA-256 by default.

        Raises:
            HashingError: ``parent`` comes from another hasher or block size, or the extra keys cannot
                be represented.
            TokenError: A token is out of range.
        """
        if not self.is_full():
            return None
        return (hasher or _hasher(self.block_size)).link(self._buffer(), parent, extra)

    def release(self) -> None:
        """Returns the buffer to the pool. Afterwards, the block cannot be used.

        Raises:
            StaleBlockError: The block was released before.
        """
        tokens, self._tokens = self._buffer(), None
        self._pool.del_block(tokens)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._tokens is not None:
            self.release()

    def __copy__(self) -> LogicalTokenBlock:
        # The copy gets its own buffer. Otherwise, both blocks would return the same buffer to the pool.
        twin = type(self)(self.block_number, self.block_size, pool=self._pool)
        twin.append_tokens(self.get_token_ids())
        return twin

    def __deepcopy__(self, _memo: dict[int, Any]) -> LogicalTokenBlock:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        # Only the content of the block is pickled, because a pool cannot be transferred to another
        # process.
        return _unpickle, (self.block_number, self.block_size, self.get_token_ids())

    def __repr__(self) -> str:
        tokens = "released" if self._tokens is None else f"num_tokens={self._num_tokens}"
        return f"LogicalTokenBlock(block_number={self.block_number}, block_size={self.block_size}, {tokens})"


def _unpickle(block_number: int, block_size: int, token_ids: list[int]) -> LogicalTokenBlock:
    block = LogicalTokenBlock(block_number, block_size)
    block.append_tokens(token_ids)
    return block


class PhysicalTokenBlock:
    """Metadata that an engine keeps about a block of KV memory. It is not checked.

    Args:
        device: The device of the block.
        block_number: The number of the block on that device.
        block_size: Tokens per block.
        block_hash: A hash of the content, of any type that the engine uses.
        num_hashed_tokens: Number of tokens from the start of the prompt to the end of the block.
    """

    def __init__(
        self,
        device: Any,
        block_number: int,
        block_size: int,
        block_hash: Any = None,
        num_hashed_tokens: int = 0,
    ) -> None:
        self.device = device
        self.block_number = block_number
        self.block_size = block_size
        self.block_hash = block_hash
        self.num_hashed_tokens = num_hashed_tokens
        self.ref_count = 0
        self.last_accessed: float = DEFAULT_LAST_ACCESSED_TIME
        self.computed = False

    def __repr__(self) -> str:
        return (
            f"PhysicalTokenBlock(device={self.device}, block_number={self.block_number}, "
            f"num_hashed_tokens={self.num_hashed_tokens}, ref_count={self.ref_count}, "
            f"last_accessed={self.last_accessed}, computed={self.computed})"
        )


#: The physical blocks of a sequence, in order.
BlockTable: TypeAlias = list[PhysicalTokenBlock]
