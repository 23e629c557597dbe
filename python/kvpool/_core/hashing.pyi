"""Hash chains. Each hash in a chain identifies a block together with all blocks before it."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self, TypeAlias, final

from kvpool._core import HashAlgorithm, Tokens, VerifyMode

__all__ = [
    "BlockHasher",
    "ChainLink",
    "ExtraKeys",
    "HashChain",
    "HashCursor",
    "hash_algorithms",
    "verify_modes",
]

def hash_algorithms() -> list[HashAlgorithm]:
    """Returns the names of the hash algorithms.

    A name stands for a hash function together with an encoding of the block. Its meaning never changes.
    ``xxh3`` and vLLM's ``xxhash`` variants are not cryptographic, so they need ``verify``.

    >>> kvpool.hashing.hash_algorithms()[:3]
    ['sha256', 'blake3', 'xxh3']
    """

def verify_modes() -> list[VerifyMode]:
    """Returns the names of the ways to verify hits, the weakest first.

    ``none`` compares only digests. ``fingerprint`` also compares an independent 128-bit fingerprint of the
    whole prefix, and takes 16 more bytes per block. ``tokens`` also compares the tokens of the block, and
    takes 4 more bytes per token.

    >>> kvpool.hashing.verify_modes()
    ['none', 'fingerprint', 'tokens']
    """

@final
class BlockHasher:
    """Hashes blocks of tokens into chains. Each digest identifies a whole prefix.

    Equal settings give equal digests in every process. The hasher uses no random numbers and no
    environment variables.

    Args:
        algorithm: One of ``hash_algorithms()``.
        block_size: Tokens per block. At least 1.
        verify: One of ``verify_modes()``. It determines whether fingerprints are computed.
        key: 32 secret bytes that key the hash and the fingerprints. Only for ``"blake3"``.
        seed: The value of ``PYTHONHASHSEED`` in vLLM's encodings. It also seeds ``"xxh3"`` and the
            fingerprints.

    Raises:
        InvalidArgumentError: No algorithm or mode has this name, or the key does not have 32 bytes.
        HashingError: The block size is out of range, or the algorithm does not work with this key or
            seed.

    >>> hasher = kvpool.BlockHasher("sha256", block_size=4)
    >>> a, b = hasher.hash_tokens([1, 2, 3, 4, 5, 6, 7, 8, 9])  # two full blocks
    >>> a.hex()[:16], len(b)
    ('94e6beb994a0b45c', 32)
    >>> tenant = kvpool.ExtraKeys(tenant="team-a")
    >>> hasher.hash_tokens([1, 2, 3, 4], tenant) == [a]
    False
    """

    def __new__(
        cls,
        algorithm: HashAlgorithm = "sha256",
        block_size: int = 16,
        *,
        verify: VerifyMode = "none",
        key: bytes | None = None,
        seed: str | None = None,
    ) -> Self: ...
    @property
    def algorithm(self) -> HashAlgorithm:
        """The name of the hash algorithm."""
    @property
    def block_size(self) -> int:
        """The number of tokens per block."""
    @property
    def verify(self) -> VerifyMode:
        """The name of the way in which hits are verified."""
    def cursor(
        self, tokens: Tokens | None = None, extra: ExtraKeys | None = None, *, epoch: int = 0
    ) -> HashCursor:
        """Returns a cursor, which computes the hash chain of a sequence that may grow.

        Other threads continue. O(tokens).

        Args:
            tokens: The first tokens. Empty by default.
            extra: The extra keys, which identify the prompt in addition to its tokens.
            epoch: The pool's epoch.

        Raises:
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
            HashingError: The algorithm cannot represent these extra keys.
        """
    def hash_tokens(self, tokens: Tokens, extra: ExtraKeys | None = None, *, epoch: int = 0) -> list[bytes]:
        """Returns the digests of the full blocks of a prompt.

        A digest has 16 or 32 bytes, depending on the algorithm. O(tokens).

        Raises:
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
            HashingError: The algorithm cannot represent these extra keys.
        """
    def link(
        self,
        tokens: Tokens,
        parent: ChainLink | None = None,
        extra: ExtraKeys | None = None,
        *,
        epoch: int = 0,
    ) -> ChainLink:
        """Hashes one full block that follows another block, or the first block of a chain.

        The digest is the same as that of a ``HashCursor`` for the same prefix. O(block size).

        Args:
            tokens: Exactly one block of tokens.
            parent: The link of the block before it. None for the first block of a chain.
            extra: The extra keys, the same for every block of a chain.
            epoch: The pool's epoch, the same for every block of a chain.

        Raises:
            HashingError: The tokens are not exactly one block. Or the parent has another hasher or
                epoch, or the algorithm cannot represent the extra keys.
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
        """

@final
class ExtraKeys:
    """Properties that identify a prompt in addition to its tokens.

    Requests share blocks only if all are equal.

    The keys are text (hashed as UTF-8) or bytes, which kvpool does not interpret. Let the engine or its
    gateway set them, never a user of the service. Keys of different kinds never collide. vLLM's encodings
    cannot represent all keys. They raise ``HashingError`` for the others.

    Args:
        adapter: The content id of the adapter, such as the digest of its weights. Do not use a name
            that can later mean other weights.
        adapter_path: The path from which the adapter was loaded, for encodings that include it.
        salt: The cache salt.
        tenant: The tenant that owns the blocks.
        user: The end user, if users must not share blocks.
        multimodal: Items at token positions, in any order, as triples of content id, position of the
            first placeholder token, and number of placeholder tokens. An item affects all blocks from
            the first one that it overlaps.

    Raises:
        InvalidArgumentError: ``adapter_path`` is given without ``adapter``, or a position or number is
            negative.
        ArgumentTypeError: A key is neither a str nor bytes.

    >>> kvpool.ExtraKeys(salt="s") == kvpool.ExtraKeys(salt=b"s")
    True
    >>> kvpool.ExtraKeys(salt="s") == kvpool.ExtraKeys(tenant="s")
    False
    >>> extra = kvpool.ExtraKeys(multimodal=[("digest of the image", 5, 576)])
    """

    def __new__(
        cls,
        *,
        adapter: str | bytes | None = None,
        adapter_path: str | None = None,
        salt: str | bytes | None = None,
        tenant: str | bytes | None = None,
        user: str | bytes | None = None,
        multimodal: Iterable[tuple[str | bytes, int, int]] | None = None,
    ) -> Self: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        """Returns the arguments of the constructor, for pickle and ``copy``."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class HashCursor:
    """The hash chain of a sequence that grows.

    ``BlockHasher.cursor`` and ``CacheManager.prepare`` return cursors. Each full block is hashed once,
    when its last token is appended. ``len(cursor)`` is ``num_tokens``.

    >>> cursor = kvpool.BlockHasher(block_size=4).cursor([1, 2, 3, 4, 5, 6])
    >>> cursor.tail, cursor.append([7]), cursor.append([8])
    ([5, 6], 0, 1)
    >>> cursor.truncate(6)  # a rejected draft: nothing is hashed again
    >>> len(cursor), len(cursor.chain())
    (6, 1)
    """

    def append(
        self, tokens: Tokens, *, multimodal: Iterable[tuple[str | bytes, int, int]] | None = None
    ) -> int:
        """Appends tokens, with their multimodal items, and returns the number of newly full blocks.

        Hashes only the blocks that became full. Several appends give the same chain as one append of all
        tokens. O(tokens).

        Args:
            tokens: The tokens to append.
            multimodal: Multimodal items among these tokens, in the form of ``ExtraKeys``. Positions count
                from the start of the sequence. No item may begin before the end of the previous tokens.

        Raises:
            HashingError: An item begins before the end of the tokens so far, or cannot be represented.
            InvalidArgumentError: A position or number is negative.
            ArgumentTypeError: The items are not a sequence of tuples.
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
        """
    def truncate(self, num_tokens: int) -> None:
        """Keeps the first ``num_tokens`` tokens. A block that becomes partial loses its hash.

        If the first token of a multimodal item is removed, the item is removed, too. To use the item again,
        append it with its tokens. The cursor keeps an item that begins before the cut. It also keeps an item
        that was given before any of its tokens were appended. The call hashes nothing. O(tokens dropped).

        Raises:
            HashingError: The sequence has fewer tokens.
            InvalidArgumentError: ``num_tokens`` is negative.
        """
    def rebase(self, epoch: int) -> None:
        """Moves the sequence to another epoch, and computes its hashes again.

        O(tokens). O(1) if the epoch is the same or is not part of the hash (vLLM's encodings without
        fingerprints).

        Raises:
            HashingError: The algorithm cannot represent the extra keys.
        """
    @property
    def num_tokens(self) -> int:
        """The number of tokens so far, including those of the partial block."""
    @property
    def epoch(self) -> int:
        """The epoch of the pool for which the sequence is hashed."""
    @property
    def tail(self) -> list[int]:
        """The tokens of the last, partial block. Empty if the last block is full.

        Each access makes a new list. O(block size).
        """
    @property
    def hashed_blocks(self) -> int:
        """The number of blocks that this cursor has hashed, including blocks that it hashed again."""
    def chain(self) -> HashChain:
        """Returns the current hash chain of the full blocks.

        The chain is a copy, so later appends do not change it. O(tokens).
        """
    def digests(self) -> list[bytes]:
        """Returns the digests of the full blocks.

        A digest has 16 or 32 bytes, depending on the algorithm. O(tokens).
        """
    def copy(self) -> HashCursor:
        """Returns an independent copy, for instance for a fork of the sequence.

        Hashes nothing. O(tokens).
        """
    def __len__(self) -> int: ...

@final
class HashChain:
    """The digests of consecutive full blocks from the start of a prompt.

    ``HashCursor.chain`` and ``from_digests`` make chains. A chain does not change. ``len(chain)`` is
    the number of blocks.

    >>> hasher = kvpool.BlockHasher(block_size=4)
    >>> chain = kvpool.hashing.HashChain.from_digests("sha256", 4, hasher.hash_tokens(range(9)))
    >>> chain
    HashChain("sha256", block_size=4, len=2)
    >>> chain.digests() == hasher.cursor(range(9)).digests()
    True
    """

    @staticmethod
    def from_digests(
        algorithm: HashAlgorithm, block_size: int, digests: Sequence[bytes], *, epoch: int = 0
    ) -> HashChain:
        """Makes a chain of digests that were computed elsewhere.

        The chain has neither tokens nor fingerprints, so a pool that verifies hits refuses it.
        O(blocks).

        Args:
            algorithm: One of ``hash_algorithms()``.
            block_size: Tokens per block.
            digests: One digest per block, with the length of the algorithm's digests.
            epoch: The pool's epoch.

        Raises:
            InvalidArgumentError: No algorithm has this name, or ``block_size`` is negative.
            HashingError: A digest has another length, or the block size is out of range.
        """
    @property
    def algorithm(self) -> HashAlgorithm:
        """The name of the hash algorithm."""
    @property
    def block_size(self) -> int:
        """Tokens per block."""
    @property
    def epoch(self) -> int:
        """The epoch of the pool for which the sequence is hashed."""
    def digests(self) -> list[bytes]:
        """Returns one digest per block.

        A digest has 16 or 32 bytes, depending on the algorithm. O(blocks).
        """
    def fingerprints(self) -> list[int]:
        """Returns one 128-bit fingerprint per block. Empty if the hasher was made without verification.

        O(blocks).
        """
    def __len__(self) -> int: ...

@final
class ChainLink:
    """One full block of a hash chain.

    ``BlockHasher.link`` makes links. A link does not change. Use links in data structures that keep single
    blocks, each with a pointer to the block before it, such as a tree.

    >>> hasher = kvpool.BlockHasher(block_size=2)
    >>> first = hasher.link([1, 2])
    >>> second = hasher.link([3, 4], first)
    >>> [first.digest, second.digest] == hasher.hash_tokens([1, 2, 3, 4])
    True
    """

    @staticmethod
    def from_digest(
        algorithm: HashAlgorithm,
        digest: bytes,
        tokens: Tokens,
        *,
        parent: bytes | None = None,
        depth: int = 0,
        epoch: int = 0,
    ) -> ChainLink:
        """Makes a link whose digest was computed elsewhere.

        Blocks that are hashed after this link get the same digests as after a link that was hashed here. The
        link has no fingerprint, so a pool that verifies hits by fingerprint refuses it. O(block size).

        Args:
            algorithm: One of ``hash_algorithms()``.
            digest: The digest of the block and all blocks before it, with the length of the algorithm's
                digests.
            tokens: The tokens of the block.
            parent: The digest of the block before it. None for the first block of a chain.
            depth: The position of the block in its chain, from 0 on.
            epoch: The pool's epoch.

        Raises:
            InvalidArgumentError: No algorithm has this name, or a number is negative. Or only one of
                ``parent`` and ``depth`` is that of a first block.
            HashingError: The digest has another length, or there are no tokens.
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
        """
    @property
    def digest(self) -> bytes:
        """The digest that identifies the block together with all blocks before it."""
    @property
    def depth(self) -> int:
        """The position of the block in its chain, from 0 on."""
    @property
    def num_tokens(self) -> int:
        """The number of tokens from the start of the chain to the end of the block."""
    @property
    def epoch(self) -> int:
        """The epoch of the pool for which the block is hashed."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

# Methods of a pool accept a chain, or a cursor with its chain. They do not copy the cursor's chain.
_Chain: TypeAlias = HashChain | HashCursor
