"""Block tables with a mutable tail, by handle."""

from collections.abc import Sequence
from typing import Self, TypedDict, final, overload, type_check_only

from kvpool._core import Duplicates, EvictionPolicy, Fit, Tokens, _Array
from kvpool._core.hashing import BlockHasher, ExtraKeys, HashCursor
from kvpool._core.pool import BlockEvent, PoolStats
from kvpool._core.tiers import TransferPlan

__all__ = [
    "Sequences",
]

@type_check_only
class SequenceInfo(TypedDict):
    """Counts of tokens and blocks of a sequence, its tier, and the swap that moves it now."""

    tokens: int
    computed_tokens: int
    blocks: int
    registered_blocks: int
    trimmed_blocks: int
    tier: int
    swap: int | None

@final
class Sequences:
    """Block tables by handle, over the pools of one or more tiers.

    For engines that name their sequences themselves. A handle is an int that is refused once its sequence is freed.
    Within a step: append and fork; then ``take_plan``, executed before the step writes KV; then every sequence
    computes its tokens from ``computed_tokens`` on; then ``commit``.

    Args:
        num_blocks: Blocks per tier, null block included.
        hasher: Hashes the prompts; its block size and verification are the pools'.
        duplicates: As in ``BlockPool``.
        eviction: As in ``BlockPool``.
        event_capacity: As in ``BlockPool``.

    Raises:
        InvalidArgumentError: A setting is out of range, or there is no tier.

    >>> sequences = kvpool.Sequences([16, 16], kvpool.BlockHasher(block_size=4))
    >>> a = sequences.admit([1, 2, 3, 4, 5, 6])
    >>> b = sequences.fork(a)
    >>> sequences.append(a, [7])  # a gets a tail of its own: position 1 of its table is block 3
    [(1, 3)]
    >>> sequences.take_plan().transfers
    [((0, 2), (0, 3))]
    >>> sequences.free(b)
    >>> b in sequences
    False
    """

    def __new__(
        cls,
        num_blocks: Sequence[int],
        hasher: BlockHasher,
        *,
        duplicates: Duplicates = "keep",
        eviction: EvictionPolicy = "lru",
        event_capacity: int = 0,
    ) -> Self: ...
    def admit(self, prompt: Tokens | HashCursor, extra: ExtraKeys | None = None, *, tier: int = 0) -> int:
        """Admits a sequence and returns its handle.

        Acquires the cached prefix of its prompt and allocates the rest; the last token is always left to compute.
        O(blocks), and O(tokens) to hash them.

        Raises:
            OutOfBlocksError: The tier has too few blocks.
            InvalidArgumentError: No tokens, another hasher's prompt, no such tier.
            StaleEpochError: The prompt was hashed before the last epoch bump.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
        """
    def fit(self, num_tokens: int, *, tier: int = 0, reserve: int = 0) -> Fit:
        """Says whether so many tokens could be admitted: ok, later or never.

        Assumes that nothing is cached, and leaves ``reserve`` blocks. O(1).

        Raises:
            InvalidArgumentError: There is no such tier.
        """
    def append(self, sequence: int, token_ids: Tokens, *, lookahead: int = 0) -> list[tuple[int, int]]:
        """Appends tokens and makes room for more; returns the positions of the table that changed.

        Pairs of position and block: new blocks at the end, and copies in the place of shared or registered blocks.
        ``take_plan`` hands the copies out. All or nothing. O(tokens).

        Args:
            sequence: Its handle.
            token_ids: The tokens.
            lookahead: Slots behind the tokens that get blocks, too: for drafts.

        Raises:
            OutOfBlocksError: The tier has too few blocks.
            StaleSequenceError: The handle's sequence was freed.
            SwapError: The sequence is being swapped.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
        """
    def commit(self, sequence: int, computed_tokens: int, *, dedupe: bool = False) -> list[tuple[int, int]]:
        """Says that the first tokens are computed; returns the positions of the table that changed.

        Registers the blocks that this fills. With ``dedupe``, exchanges a block whose content is cached already for the
        cached one; without it, the table stays as it is. O(new full blocks).

        Raises:
            InvalidArgumentError: More than its tokens, or fewer than before.
            StaleSequenceError: The handle's sequence was freed.
            SwapError: The sequence is being swapped.
        """
    def truncate(self, sequence: int, num_tokens: int) -> None:
        """Keeps the first tokens.

        For instance after drafts were rejected. Releases the blocks behind, lookahead included. The next append copies
        a registered tail. O(blocks released).

        Raises:
            InvalidArgumentError: More than its tokens, or fewer than the window has left.
            StaleSequenceError: The handle's sequence was freed.
            SwapError: The sequence is being swapped.
        """
    def trim_window(self, sequence: int, window: int) -> int:
        """Releases the blocks that fell out of a window and returns how many.

        Releases blocks whose tokens all lie more than ``window`` tokens before the computed end, and puts block 0 in
        their places. O(blocks released).

        Raises:
            StaleSequenceError: The handle's sequence was freed.
            SwapError: The sequence is being swapped.
        """
    def fork(self, sequence: int) -> int:
        """Makes a second sequence over the same blocks and returns its handle.

        O(blocks + tokens).

        Raises:
            StaleSequenceError: The handle's sequence was freed.
            SwapError: The sequence is being swapped.
        """
    def free(self, sequence: int, *, after_step: int | None = None) -> None:
        """Ends a sequence.

        Its blocks lose one reference each, tail first; with ``after_step`` when that step completes. O(blocks).

        Raises:
            StaleSequenceError: The handle's sequence was freed.
            SwapError: The sequence is being swapped.
        """
    @overload
    def block_ids(self, sequence: int, *, out: None = None) -> list[int]:
        """Returns the block table, or writes it to a buffer and returns its length.

        Trimmed blocks are block 0. O(blocks).

        Raises:
            StaleSequenceError: The handle's sequence was freed.
            InvalidArgumentError: ``out`` is too short.
            ArgumentTypeError: ``out`` is of a type that is not taken.
        """
    @overload
    def block_ids(self, sequence: int, *, out: _Array) -> int: ...
    def info(self, sequence: int) -> SequenceInfo:
        """Returns what is known of a sequence.

        O(1).

        Raises:
            StaleSequenceError: The handle's sequence was freed.
        """
    def take_plan(self) -> TransferPlan:
        """Hands out all planned copies as one plan.

        As ``TieredPool.take_plan``.
        """
    def begin_swap(self, sequences: Sequence[int], to: int) -> int:
        """Begins to move a group of sequences to another tier and returns the swap's number.

        A shared block moves once and stays shared. Until the swap is over, the sequences can only be read. O(blocks).

        Raises:
            OutOfBlocksError: The tier has too few blocks.
            StaleSequenceError: A handle's sequence was freed.
            SwapError: A sequence is being swapped already.
            InvalidArgumentError: A sequence is named twice, they are in several tiers, or there is no such tier.
        """
    def fit_swap(self, sequences: Sequence[int], to: int, *, reserve: int = 0) -> Fit:
        """Says whether a swap would find its blocks: ok, later or never.

        Leaves ``reserve`` blocks in the tier. Changes nothing. O(blocks).

        Raises:
            StaleSequenceError: A handle's sequence was freed.
            SwapError: A sequence is being swapped already.
            InvalidArgumentError: A sequence is named twice, they are in several tiers, or there is no such tier.
        """
    def complete_swap(self, swap: int) -> dict[int, int]:
        """Ends a swap whose copies are done and returns old block -> new block.

        O(blocks).

        Raises:
            SwapError: It is over, or its copies have not been taken with ``take_plan``.
        """
    def abort_swap(self, swap: int) -> None:
        """Aborts a swap.

        Leaves everything as it was before the swap began. O(blocks).

        Raises:
            SwapError: It is over.
        """
    def complete_step(self, step: int) -> int:
        """Ends the fences of a step and of all earlier steps in every tier.

        Returns how many references they held.
        """
    def bump_epoch(self) -> int:
        """Starts a new epoch in every tier and returns its number.

        Sequences go on, and their blocks are never registered. O(blocks).
        """
    def reset(self) -> int:
        """Forgets all cached content of every tier and returns how many blocks were registered.

        Nothing has changed if it is refused. O(blocks).

        Raises:
            BlocksInUseError: Sequences, fences or swaps hold blocks of a tier; ``bump_epoch`` always works.
        """
    def stats(self, *, tier: int = 0) -> PoolStats:
        """Returns the counters and gauges of a tier's pool.

        O(1).

        Raises:
            InvalidArgumentError: There is no such tier.
        """
    def take_events(self, *, tier: int = 0) -> tuple[list[BlockEvent], int]:
        """Returns the events of a tier since the last call, and how many were lost before them.

        As ``BlockPool.take_events``.

        Raises:
            InvalidArgumentError: There is no such tier.
        """
    def check_invariants(self) -> None:
        """Recounts tiers, tables and swaps from scratch.

        O(blocks + tokens).

        Raises:
            InvariantError: One is broken; the message names it.
        """
    def __contains__(self, sequence: int, /) -> bool: ...
    def __len__(self) -> int: ...
