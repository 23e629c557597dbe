"""Hash chains, which identify the prefix that a block contains.

A :class:`BlockHasher` computes the hash chain of a prompt from its tokens and its :class:`ExtraKeys`.
Both classes are also available as attributes of ``kvpool``. A :class:`HashCursor` holds a prompt to
which tokens can be appended. :meth:`HashChain.from_digests` accepts digests that were computed
elsewhere.

>>> from kvpool.hashing import BlockHasher, hash_algorithms
>>> hash_algorithms()[:3]
['sha256', 'blake3', 'xxh3']
>>> BlockHasher("sha256", block_size=4).cursor(range(9)).chain()
HashChain("sha256", block_size=4, len=2)

Encodings and test vectors: ``docs/hashing.md``.
"""

from kvpool._core.hashing import (
    BlockHasher,
    ChainLink,
    ExtraKeys,
    HashChain,
    HashCursor,
    hash_algorithms,
    verify_modes,
)

__all__ = [
    "BlockHasher",
    "ChainLink",
    "ExtraKeys",
    "HashChain",
    "HashCursor",
    "hash_algorithms",
    "verify_modes",
]
