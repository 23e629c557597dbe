"""Hash chains: what identifies the prefix that a block holds."""

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
    """Names of the hash algorithms.

    A name stands for a hash function and an encoding, and never changes its meaning. ``xxh3`` and vLLM's
    ``xxhash`` variants are not cryptographic: they need ``verify``.

    >>> kvpool.hashing.hash_algorithms()[:3]
    ['sha256', 'blake3', 'xxh3']
    """

def verify_modes() -> list[VerifyMode]:
    """Names of the ways to verify hits, weakest first.

    ``none`` trusts the digest, ``fingerprint`` compares an independent 128-bit fingerprint of the whole
    prefix (16 bytes per block more), ``tokens`` also the tokens of the block (4 bytes per token more).

    >>> kvpool.hashing.verify_modes()
    ['none', 'fingerprint', 'tokens']
    """

@final
class BlockHasher:
    """Hashes blocks of tokens into chains: each digest identifies a whole prefix.

    Equal settings give equal digests in every process: nothing is random, nothing is read from the
    environment.

    Args:
        algorithm: One of ``hash_algorithms()``.
        block_size: Tokens per block. At least 1.
        verify: One of ``verify_modes()``; decides whether fingerprints are computed.
        key: 32 secret bytes, for ``"blake3"`` only: keys the hash and the fingerprints.
        seed: For vLLM's encodings what ``PYTHONHASHSEED`` is there; also seeds ``"xxh3"`` and the
            fingerprints.

    Raises:
        InvalidArgumentError: No algorithm or mode has this name, or the key is not 32 bytes long.
        HashingError: The block size is out of range, or the algorithm cannot work with this key or seed.

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
        """Name of the hash algorithm."""
    @property
    def block_size(self) -> int:
        """Tokens per block."""
    @property
    def verify(self) -> VerifyMode:
        """Name of the way in which hits are verified."""
    def cursor(
        self, tokens: Tokens | None = None, extra: ExtraKeys | None = None, *, epoch: int = 0
    ) -> HashCursor:
        """Returns a cursor: the hash chain of a sequence that may grow.

        O(tokens); other threads go on.

        Args:
            tokens: The first tokens; none by default.
            extra: What identifies the prompt beside its tokens.
            epoch: The pool's epoch.

        Raises:
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
            HashingError: The algorithm cannot represent these extra keys.
        """
    def hash_tokens(self, tokens: Tokens, extra: ExtraKeys | None = None, *, epoch: int = 0) -> list[bytes]:
        """Returns the digests of the full blocks of a prompt.

        16 or 32 bytes each, depending on the algorithm. O(tokens).

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
        """Hashes one full block behind another, or the first of a chain.

        The digest is that of ``HashCursor`` for the same prefix. O(block size).

        Args:
            tokens: Exactly one block of tokens.
            parent: The block before it.
            extra: The extra keys, the same for every block of a chain.
            epoch: The pool's epoch, the same for every block of a chain.

        Raises:
            HashingError: Not one block of tokens; another hasher's or epoch's parent; extra keys that the
                algorithm cannot represent.
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
        """

@final
class ExtraKeys:
    """What identifies a prompt beside its tokens: requests share blocks only if all of it is equal.

    Opaque text (hashed as UTF-8) or bytes, made by the engine or its gateway, never by the user of the
    service. No kind of key can be mistaken for another. vLLM's encodings cannot represent all of them, and
    refuse those.

    Args:
        adapter: Content id of the adapter, such as the digest of its weights; a name that can point to other
            weights is none.
        adapter_path: Where the adapter was loaded from, for encodings that include it.
        salt: Cache salt.
        tenant: The principal that owns the blocks.
        user: The end user, where sharing has to stop at one person.
        multimodal: Items that stand at token positions, in any order: content id, position of the first
            placeholder token, number of placeholder tokens. They reach the blocks from the first that they
            overlap on.

    Raises:
        InvalidArgumentError: ``adapter_path`` without ``adapter``; a negative position or number.
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
        """Pickled and copied by the constructor's arguments."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class HashCursor:
    """The hash chain of a sequence that grows.

    Comes from ``BlockHasher.cursor`` or ``CacheManager.prepare``. Each full block is hashed once, when its
    last token arrives. ``len(cursor)`` is ``num_tokens``.

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
        """Appends tokens, those of a turn with its items, and returns how many blocks they completed.

        O(tokens); hashes completed blocks only. A cursor built in turns is the one built at once.

        Args:
            tokens: The tokens of the turn.
            multimodal: Items that the turn brings, as those of ``ExtraKeys``: positions are counted
                from the start of the sequence. None begins before the end of the tokens so far.

        Raises:
            HashingError: An item begins before the end of the tokens so far, or cannot be represented.
            InvalidArgumentError: A negative position or number.
            ArgumentTypeError: The items are no sequence of tuples.
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
        """
    def truncate(self, num_tokens: int) -> None:
        """Keeps the first tokens; a block that becomes partial loses its hash.

        A multimodal item goes with its first token: to have it again, append it again with its tokens.
        One that begins before the cut stays whole, and so does one that was given ahead of its tokens,
        of which none was there.

        O(tokens dropped). Hashes nothing.

        Raises:
            HashingError: There are fewer tokens.
            InvalidArgumentError: ``num_tokens`` is negative.
        """
    def rebase(self, epoch: int) -> None:
        """Moves the sequence to another epoch, which hashes it again.

        O(tokens); O(1) if the epoch is the same or no part of what is hashed (vLLM's encodings without
        fingerprints).

        Raises:
            HashingError: The algorithm cannot represent the extra keys.
        """
    @property
    def num_tokens(self) -> int:
        """Tokens appended so far, those of the partial block included."""
    @property
    def epoch(self) -> int:
        """The epoch of the sequence."""
    @property
    def tail(self) -> list[int]:
        """The tokens of the last, partial block; fewer than a block.

        A new list at each access: O(block size).
        """
    @property
    def hashed_blocks(self) -> int:
        """Blocks hashed by this cursor since it was made, those hashed again included."""
    def chain(self) -> HashChain:
        """Returns the hash chain of the full blocks as it is now.

        A copy, that later appends do not change: O(tokens).
        """
    def digests(self) -> list[bytes]:
        """Returns the digests of the full blocks.

        16 or 32 bytes each, depending on the algorithm. O(tokens).
        """
    def copy(self) -> HashCursor:
        """Returns an independent copy: a fork of the sequence.

        O(tokens). Hashes nothing.
        """
    def __len__(self) -> int: ...

@final
class HashChain:
    """Digests of consecutive full blocks from the start of a prompt.

    Comes from ``HashCursor.chain`` or ``from_digests``; does not change. ``len(chain)`` is the number of
    blocks.

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

        It has neither tokens nor fingerprints: a pool that verifies hits refuses it. O(blocks).

        Args:
            algorithm: One of ``hash_algorithms()``.
            block_size: Tokens per block.
            digests: One per block, each as long as the algorithm's.
            epoch: The pool's epoch.

        Raises:
            InvalidArgumentError: No algorithm has this name, or ``block_size`` is negative.
            HashingError: A digest has another length, or the block size is out of range.
        """
    @property
    def algorithm(self) -> HashAlgorithm:
        """Name of the hash algorithm."""
    @property
    def block_size(self) -> int:
        """Tokens per block."""
    @property
    def epoch(self) -> int:
        """The epoch of the sequence."""
    def digests(self) -> list[bytes]:
        """Returns one digest per block.

        16 or 32 bytes each, depending on the algorithm. O(blocks).
        """
    def fingerprints(self) -> list[int]:
        """Returns one 128-bit fingerprint per block; none if the hasher was made without verification.

        O(blocks).
        """
    def __len__(self) -> int: ...

@final
class ChainLink:
    """One full block of a hash chain.

    Comes from ``BlockHasher.link``; does not change. For holders of single blocks that have a
    predecessor each.

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

        What is hashed behind it is what would be hashed behind the link that has this digest. It has no
        fingerprint: a pool that verifies hits by one refuses it. O(block size).

        Args:
            algorithm: One of ``hash_algorithms()``.
            digest: The digest of the block and everything before it, as long as the algorithm's.
            tokens: The block's tokens.
            parent: The digest of the block before it; None for the first of a chain.
            depth: Position of the block in its chain, 0 first.
            epoch: The pool's epoch.

        Raises:
            InvalidArgumentError: No algorithm has this name, a number is negative, or only one of
                ``parent`` and ``depth`` says that the block is the first.
            HashingError: A digest has another length, or there are no tokens.
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
        """
    @property
    def digest(self) -> bytes:
        """The digest of the block and everything before it."""
    @property
    def depth(self) -> int:
        """Position of the block in its chain, 0 first."""
    @property
    def num_tokens(self) -> int:
        """Tokens from the start of the chain to the end of the block."""
    @property
    def epoch(self) -> int:
        """The epoch that it was hashed in."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

#: What a pool takes: a chain, or the cursor that grows it, whose chain is not copied.
_Chain: TypeAlias = HashChain | HashCursor
