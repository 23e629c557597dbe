"""Content hashes in vLLM v0's form over kvpool's hash chains.

A content hash is an int, as in the ancestor: a SHA-256 chain digest, read as a big-endian number. The
int carries its ``ChainLink``. So the next block is hashed from it without walking the chain, and no
table from ints to links is needed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import kvpool
from kvpool.lineage.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool.lineage.v0.block.interfaces import ExtraHash

__all__ = ["NONE_HASH", "ChainedHash", "digest_of", "extra_keys", "hash_block_tokens", "hash_chain"]

_DIGEST_BYTES = 32
#: The ancestor's hash of the predecessor of a first block, where an int is required. It differs between
#: processes, so it is not part of any hash: the block after it is a first block, or has no hash.
NONE_HASH = hash("None")
_NO_EXTRA = kvpool.ExtraKeys()


class ChainedHash(int):
    """A content hash that carries its position in the hash chain.

    Attributes:
        link: The block's place in the hash chain.
        extra: The extra keys that it was hashed with.
        The epoch in which it was hashed.
    """

    link: kvpool.hashing.ChainLink
    extra: kvpool.ExtraKeys
    epoch: int

    @classmethod
    def of(cls, link: kvpool.hashing.ChainLink, extra: kvpool.ExtraKeys, epoch: int) -> ChainedHash:
        """Returns the hash of a link."""
        self = cls(int.from_bytes(link.digest, "big"))
        self.link, self.extra, self.epoch = link, extra, epoch
        return self


def digest_of(content_hash: int) -> bytes | None:
    """Returns the digest of a content hash; None for an int that cannot be one."""
    if 0 <= content_hash < 1 << 8 * _DIGEST_BYTES:
        return content_hash.to_bytes(_DIGEST_BYTES, "big")
    return None


@lru_cache(maxsize=64)
def _hasher(block_size: int) -> kvpool.BlockHasher:
    return kvpool.BlockHasher("sha256", block_size)


@lru_cache(maxsize=1024)
def _keys_of_int(extra_hash: int) -> kvpool.ExtraKeys:
    return kvpool.ExtraKeys(user=b"\0extra_hash\0%d" % extra_hash)


def extra_keys(extra_hash: ExtraHash) -> kvpool.ExtraKeys:
    """Returns the extra keys for the ancestor's int, or for kvpool's own keys.

    Raises:
        ContractError: The argument is neither.
    """
    if extra_hash is None:
        return _NO_EXTRA
    if isinstance(extra_hash, kvpool.ExtraKeys):
        return extra_hash
    if isinstance(extra_hash, int):
        return _keys_of_int(extra_hash)
    raise ContractError(f"extra_hash is an int or kvpool.ExtraKeys, not {type(extra_hash).__name__}")


def _graft(
    hasher: kvpool.BlockHasher, tokens: Sequence[int], parent: ChainedHash, extra: kvpool.ExtraKeys
) -> kvpool.hashing.ChainLink:
    """Returns a link whose extra keys differ from its parent's.

    A chain has extra keys only in its root. A change of keys is therefore written into the block where
    it happens, as an item that covers the block. The item names two digests: that of the block after
    its parent (with the multimodal items that overlap it), and that of the block as a new root.
    """
    behind = hasher.link(tokens, parent.link, extra, epoch=parent.epoch)
    rooted = hasher.link(tokens, None, extra, epoch=parent.epoch)
    item = b"\0graft\0" + behind.digest + rooted.digest
    keys = kvpool.ExtraKeys(multimodal=[(item, parent.link.num_tokens, len(tokens))])
    return hasher.link(tokens, parent.link, keys, epoch=parent.epoch)


def hash_block_tokens(
    is_first_block: bool,
    prev_block_hash: int | None,
    cur_block_token_ids: Sequence[int],
    extra_hash: ExtraHash = None,
    *,
    epoch: int = 0,
) -> ChainedHash:
    """Hashes one full block: its tokens, everything before them, and the extra keys of the prompt.

    O(block size).

    Args:
        is_first_block: Whether it is the first of its sequence.
        prev_block_hash: The result of this function for the block before, or that block's
            ``content_hash``. For a first block, None or an allocator's ``_none_hash``. Any other int
            begins a chain of its own that depends on this int.
        cur_block_token_ids: The tokens of the block.
        extra_hash: The ancestor's int, or kvpool's extra keys.
        epoch: The pool's epoch. For a block with a predecessor, the predecessor's epoch is used
            instead.

    Raises:
        ContractError: A first block has a predecessor, another block has none, or there are no tokens.
        HashingError: The block before has another number of tokens.
        TokenError: A token is out of range.
        TokenTypeError: The tokens are of an unsupported type.

    >>> first = hash_block_tokens(True, None, [1, 2])
    >>> first == hash_block_tokens(True, None, [1, 2])
    True
    >>> hash_block_tokens(False, first, [3, 4]) == hash_block_tokens(True, None, [3, 4])
    False
    """
    if prev_block_hash == NONE_HASH:
        prev_block_hash = None
    if is_first_block != (prev_block_hash is None):
        raise ContractError("a first block has no predecessor, every other one has a hashed one")
    if not cur_block_token_ids:
        raise ContractError("a block without tokens has no hash")
    hasher, extra = _hasher(len(cur_block_token_ids)), extra_keys(extra_hash)
    if isinstance(prev_block_hash, ChainedHash):
        parent, epoch = prev_block_hash, prev_block_hash.epoch
        if parent.extra == extra:
            link = hasher.link(cur_block_token_ids, parent.link, extra, epoch=epoch)
        else:
            link = _graft(hasher, cur_block_token_ids, parent, extra)
    elif prev_block_hash is None:
        link = hasher.link(cur_block_token_ids, None, extra, epoch=epoch)
    else:
        rooted = hasher.link(cur_block_token_ids, None, extra, epoch=epoch)
        foreign = b"\0behind\0%d\0" % prev_block_hash + rooted.digest
        link = hasher.link(cur_block_token_ids, None, kvpool.ExtraKeys(user=foreign), epoch=epoch)
    return ChainedHash.of(link, extra, epoch)


def hash_chain(
    parent: int | None, first: bool, chunks: Sequence[Sequence[int]], extra_hash: ExtraHash, epoch: int
) -> list[ChainedHash | None]:
    """Hashes consecutive full blocks. All hashes are None if the first block has an unhashed predecessor."""
    if parent in (None, NONE_HASH) and not first:
        return [None] * len(chunks)
    hashes: list[ChainedHash | None] = []
    for tokens in chunks:
        parent = hash_block_tokens(first, parent, tokens, extra_hash, epoch=epoch)
        hashes.append(parent)
        first = False
    return hashes
