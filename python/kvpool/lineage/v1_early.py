"""The free-block queue and the hashes of early vLLM V1 (ancestor 001), over the core's free list and hasher.

This module only owns the numbering of block objects. A ``kvpool.parts.FreeBlockList`` keeps the order
of the free blocks, and ``kvpool.BlockHasher`` computes the digests. As before, the caller counts
references in ``KVCacheBlock.ref_cnt``.

Intended differences from the original (a number identifies a known defect):

- 001: ``FreeKVCacheBlockQueue([])`` is a queue without blocks. The original failed on ``blocks[0]``.
- 001: removing a block that is not in the queue raises ``InvalidBlockError`` and changes nothing. So
  does appending a block that is in the queue. The original got a wrong count in these cases. Another
  object with the number of a known block is refused, too.
- 001: the core keeps the links between free blocks. Therefore blocks have no ``prev_free_block`` and
  ``next_free_block``, and comparing two blocks does not walk the queue.
- 24: hash values are digests of 256 bits. They are the same in every process, and equal to those of
  kvpool's own chains. The tokens are part of the key, so a hit is verified. A parent may be a plain int
  that these functions did not return. It starts a separate chain, whose hashes differ from those of all
  prompts.
- Extra keys (adapter, salt, multimodal items) are part of every hash: see ``extra``. A block has the
  extra keys of its parent.
- A pickled key contains its extra keys, including salts.
- Tokens are from 0 to 2**32 - 1. The original accepted any hashable object.
- ``free_list_head`` and ``free_list_tail`` are read-only. Use the methods of the queue to change them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import kvpool
from kvpool.errors import HashingError, InvalidArgumentError, InvalidBlockError, OutOfBlocksError
from kvpool.lineage.errors import ContractError, NoFreeBlocksError, no_free_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BlockHashType",
    "FreeKVCacheBlockQueue",
    "HashValue",
    "KVCacheBlock",
    "NoFreeBlocksError",
    "hash_block_tokens",
    "hash_request_tokens",
]


class HashValue(int):
    """The digest of a block and of everything before it, as a number with a position in the hash chain.

    Copies and pickles include this position, the tokens and the extra keys. A copy can therefore be
    used as a parent in any process.
    """

    link: kvpool.hashing.ChainLink
    extra: kvpool.ExtraKeys | None
    tokens: tuple[int, ...]
    parent: bytes | None

    @classmethod
    def of(
        cls,
        link: kvpool.hashing.ChainLink,
        extra: kvpool.ExtraKeys | None,
        tokens: tuple[int, ...],
        parent: bytes | None,
    ) -> HashValue:
        """Makes the hash value of a block from its link in the hash chain.

        ``extra`` are the extra keys with which the block was hashed. ``parent`` is the digest of the
        preceding block.
        """
        value = cls.from_bytes(link.digest, "big")
        value.link, value.extra, value.tokens, value.parent = link, extra, tokens, parent
        return value

    @property
    def epoch(self) -> int:
        """The epoch in which the block was hashed."""
        return self.link.epoch

    def __copy__(self) -> HashValue:
        return self

    def __deepcopy__(self, _memo: dict[int, object]) -> HashValue:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        link = self.link
        return _restore, (link.digest, self.tokens, self.parent, link.depth, link.epoch, self.extra)


def _restore(
    digest: bytes,
    tokens: tuple[int, ...],
    parent: bytes | None,
    depth: int,
    epoch: int,
    extra: kvpool.ExtraKeys | None,
) -> HashValue:
    link = kvpool.hashing.ChainLink.from_digest(
        "sha256", digest, tokens, parent=parent, depth=depth, epoch=epoch
    )
    return HashValue.of(link, extra, tokens, parent)


class BlockHashType(NamedTuple):
    """The key of a block's content. Two keys are equal only if the tokens of the blocks are also equal."""

    hash_value: int
    token_ids: tuple[int, ...]


@dataclass
class KVCacheBlock:
    """Metadata of one block. An engine may set further attributes; ``reset`` does not change them."""

    block_id: int
    #: Number of references to the block. The caller counts them, not the queue.
    ref_cnt: int = 0
    token_ids: list[int] = field(default_factory=list)
    #: The key of the content. Only full blocks have one.
    block_hash: BlockHashType | None = None
    #: Number of tokens from the start of the prompt to the end of the block.
    num_hashed_tokens: int = 0

    def reset(self) -> None:
        """Resets all fields except the number."""
        self.ref_cnt = 0
        self.token_ids = []
        self.block_hash = None
        self.num_hashed_tokens = 0


class FreeKVCacheBlockQueue:
    """The free blocks, the least recently freed block first. Any block can be removed in O(1).

    A block that was never in the queue may be appended. The queue then adds it to its numbering.

    Args:
        blocks: The free blocks, in the order in which they are to be used.

    Raises:
        InvalidArgumentError: Two blocks have the same number.
    """

    def __init__(self, blocks: list[KVCacheBlock]) -> None:
        #: The blocks by their numbers in the core's list: number ``n`` is the ``n``-th block that was
        #: added. Number 0 is the null block of the core.
        self._blocks: list[KVCacheBlock] = []
        self._numbers: dict[int, int] = {}
        for block in blocks:
            if block.block_id in self._numbers:
                raise InvalidArgumentError(f"two blocks have the number {block.block_id}")
            self._number(block)
        self._capacity = max(len(blocks), 1)
        self._free = kvpool.parts.FreeBlockList(self._capacity + 1)
        if not blocks:
            self._free.pop_front_n(1)

    def _number(self, block: KVCacheBlock) -> int:
        self._blocks.append(block)
        return self._numbers.setdefault(block.block_id, len(self._blocks))

    def _find(self, block: KVCacheBlock) -> int | None:
        number = self._numbers.get(block.block_id)
        if number is not None and self._blocks[number - 1] is not block:
            raise InvalidBlockError(f"another block has the number {block.block_id}")
        return number

    @property
    def num_free_blocks(self) -> int:
        """Number of free blocks in the queue."""
        return len(self._free)

    @property
    def free_list_head(self) -> KVCacheBlock | None:
        """The block that is taken next, or None. O(free blocks), for tests and tools."""
        return self._at(0)

    @property
    def free_list_tail(self) -> KVCacheBlock | None:
        """The block that is taken last, or None. O(free blocks), for tests and tools."""
        return self._at(-1)

    def _at(self, position: int) -> KVCacheBlock | None:
        order = self._free.order()
        return self._blocks[order[position] - 1] if order else None

    def popleft(self) -> KVCacheBlock:
        """Removes the first free block from the queue, and returns it.

        Raises:
            NoFreeBlocksError: The queue is empty.
        """
        try:
            (number,) = self._free.pop_front_n(1)
        except OutOfBlocksError as error:
            raise no_free_blocks(error, "No free blocks available") from None
        return self._blocks[number - 1]

    def remove(self, block: KVCacheBlock) -> None:
        """Removes a block from anywhere in the queue.

        Raises:
            InvalidBlockError: The block is not in the queue. Nothing has changed.
        """
        number = self._find(block)
        if number is None or number not in self._free:
            raise InvalidBlockError(f"block {block.block_id} is not in the queue")
        self._free.remove(number)

    def append(self, block: KVCacheBlock) -> None:
        """Adds a block at the end of the queue, so that it is used last.

        Raises:
            InvalidBlockError: The block is in the queue, or another block has its number.
        """
        self.append_sequence([block])

    def append_sequence(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Adds the blocks of a sequence at the end: either all or none.

        The deepest block is added first, so that it is used first.

        Args:
            blocks: The blocks in the order of the sequence's block table.

        Raises:
            InvalidBlockError: A block is in the queue or named twice, or another block has its number.
        """
        seen: set[int] = set()
        for block in blocks:
            number = self._find(block)
            if block.block_id in seen or (number is not None and number in self._free):
                raise InvalidBlockError(f"block {block.block_id} is in the queue already")
            seen.add(block.block_id)
        for block in reversed(blocks):
            number = self._find(block)
            if number is None:
                number = self._number(block)
                self._grow()
            self._free.push_back(number)

    def _grow(self) -> None:
        """Makes room for one more block number.

        The room is doubled each time, so this costs O(1) per block over the life of the queue.
        """
        if len(self._blocks) <= self._capacity:
            return
        self._capacity *= 2
        order, self._free = self._free.order(), kvpool.parts.FreeBlockList(self._capacity + 1)
        self._free.pop_front_n(self._capacity)
        for number in order:
            self._free.push_back(number)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Returns the free blocks in order. O(free blocks), for tests and tools."""
        return [self._blocks[number - 1] for number in self._free.order()]


ParentHash: TypeAlias = "tuple[int, Sequence[int]] | int | None"


@functools.lru_cache(maxsize=64)
def _hasher(block_size: int) -> kvpool.BlockHasher:
    return kvpool.BlockHasher(block_size=block_size)


def hash_block_tokens(
    parent_block_hash: ParentHash, curr_block_token_ids: Sequence[int], extra: kvpool.ExtraKeys | None = None
) -> BlockHashType:
    """Returns the key of a full block.

    Args:
        parent_block_hash: The key of the preceding block, as any pair of hash value and tokens, or only
            its ``hash_value``. None for the first block. Any other int starts a separate chain.
        curr_block_token_ids: The tokens of the block. Their number is the block size.
        extra: Extra keys of the prompt. By default, those of the parent.

    Raises:
        HashingError: The parent has another block size or other extra keys, or there is no token.
        ContractError: The parent has none of these forms.
        TokenError: A token is out of range.
        TokenTypeError: The tokens are not ints.
    """
    tokens = tuple(curr_block_token_ids)
    if not tokens:
        raise HashingError("only full blocks are hashed: this one has no token")
    hasher, parent = _hasher(len(tokens)), parent_block_hash
    if isinstance(parent, tuple) and len(parent) == 2 and isinstance(parent[0], int):
        parent = parent[0]
    if parent is None:
        return BlockHashType(HashValue.of(hasher.link(tokens, None, extra), extra, tokens, None), tokens)
    if not isinstance(parent, int):
        raise ContractError(
            f"a parent is a block's key, its hash value, or None: not {type(parent).__name__}"
        )
    if not isinstance(parent, HashValue):
        parent = _foreign_root(parent, hasher, extra)
    block_size = parent.link.num_tokens // (parent.link.depth + 1)
    if len(tokens) != block_size:
        raise HashingError(
            f"only full blocks are hashed: {len(tokens)} tokens, and the parent has {block_size}"
        )
    if extra is not None and (parent.extra is None or extra != parent.extra):
        raise HashingError("the extra keys of a block are those of its parent")
    link = hasher.link(tokens, parent.link, parent.extra, epoch=parent.epoch)
    return BlockHashType(HashValue.of(link, parent.extra, tokens, parent.link.digest), tokens)


#: The epoch of chains that start at a plain int. No pool reaches this epoch, so these chains share no
#: digest with a prompt.
_FOREIGN_EPOCH: Final = 2**64 - 1


def _foreign_root(value: int, hasher: kvpool.BlockHasher, extra: kvpool.ExtraKeys | None) -> HashValue:
    """Hashes an int that these functions did not return, as the root of a separate chain.

    The hash covers the sign of the int, its length and its 32-bit words, padded to whole blocks.
    """
    size = (value.bit_length() + 31) // 32
    words = [int(value < 0), size, *((abs(value) >> 32 * at) & 0xFFFF_FFFF for at in range(size))]
    words += [0] * (-len(words) % hasher.block_size)
    blocks = [tuple(words[at : at + hasher.block_size]) for at in range(0, len(words), hasher.block_size)]
    link, before = hasher.link(blocks[0], None, extra, epoch=_FOREIGN_EPOCH), None
    for block in blocks[1:]:
        before, link = link.digest, hasher.link(block, link, extra, epoch=_FOREIGN_EPOCH)
    return HashValue.of(link, extra, blocks[-1], before)


def hash_request_tokens(
    block_size: int, token_ids: Sequence[int], extra: kvpool.ExtraKeys | None = None
) -> list[BlockHashType]:
    """Returns the keys of the full blocks of a prompt. Tokens after the last full block have no key.

    O(tokens).

    Args:
        block_size: Tokens per block.
        token_ids: The prompt.
        extra: Extra keys of the prompt.

    Raises:
        InvalidArgumentError: ``block_size`` is less than 1.
        HashingError: The extra keys cannot be represented.
        TokenError: A token is out of range.
        TokenTypeError: The tokens are not ints.
    """
    if block_size < 1:
        raise InvalidArgumentError(f"block_size is {block_size}: must be at least 1")
    keys: list[BlockHashType] = []
    for end in range(block_size, len(token_ids) + 1, block_size):
        keys.append(hash_block_tokens(keys[-1] if keys else None, token_ids[end - block_size : end], extra))
    return keys
