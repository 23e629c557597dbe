"""Content hashes in the form of vLLM v0, computed as kvpool's hash chains.

As in the ancestor, a content hash is an int. Here it is a SHA-256 chain digest, read as a big-endian
number. The int object also contains its ``ChainLink``. The next block can therefore be hashed without
walking the chain, and without a table from ints to links.
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
#: A placeholder for the hash of the block before a first block, where the ancestor's interface requires
#: an int. It differs between processes, so no hash depends on it. A block after the placeholder is a
#: first block, or has no hash.
NONE_HASH = hash("None")
_NO_EXTRA = kvpool.ExtraKeys()


class ChainedHash(int):
    """A content hash that also contains its position in the hash chain.

    Attributes:
        link: The link of the block in the hash chain.
        extra: The extra keys with which the block was hashed.
        epoch: The epoch in which the block was hashed.
    """

    link: kvpool.hashing.ChainLink
    extra: kvpool.ExtraKeys
    epoch: int

    @classmethod
    def of(cls, link: kvpool.hashing.ChainLink, extra: kvpool.ExtraKeys, epoch: int) -> ChainedHash:
        """Makes the content hash of a block from its link in the hash chain."""
        self = cls(int.from_bytes(link.digest, "big"))
        self.link, self.extra, self.epoch = link, extra, epoch
        return self


def digest_of(content_hash: int) -> bytes | None:
    """Returns the digest of a content hash, or None if the int is out of the range of digests."""
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
    """Converts the ancestor's int to extra keys. kvpool's own keys are returned unchanged.

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
    """Makes a link for a block whose extra keys differ from those of its parent.

    In a chain, only the root has extra keys. If the keys change at a block, the change is recorded as a
    multimodal item that covers this block. The item contains two digests: that of the block as a child
    of its parent (with the multimodal items that overlap it), and that of the block as a new root.
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
        is_first_block: Whether the block is the first of its sequence.
        prev_block_hash: The hash of the preceding block: the result of this function, or the
            ``content_hash`` of that block. For a first block, None or an allocator's ``_none_hash``.
            Any other int begins a separate chain that depends on this int.
        cur_block_token_ids: The tokens of the block.
        extra_hash: The ancestor's int, or kvpool's extra keys.
        epoch: The epoch of the pool. If the block has a predecessor, the predecessor's epoch is used
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
    """Hashes consecutive full blocks. If the block before the first has no hash, all results are None."""
    if parent in (None, NONE_HASH) and not first:
        return [None] * len(chunks)
    hashes: list[ChainedHash | None] = []
    for tokens in chunks:
        parent = hash_block_tokens(first, parent, tokens, extra_hash, epoch=epoch)
        hashes.append(parent)
        first = False
    return hashes
