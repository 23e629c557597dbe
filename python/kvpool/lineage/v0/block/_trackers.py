"""vLLM v0's trackers. They record how much of each sequence is cached, and when it was last used.

For each sequence, this module keeps the hashes of its full blocks, the number of cached tokens that was
returned for its prompt, and the time of its last use. None of these decides what is allocated or
evicted.

Differences from the ancestor, vLLM v0 (a number identifies a known defect of the ancestors):

- 4: a prefix ends at the first block that is not cached.
- 22: ``ComputedBlocksTracker.remove_seq`` does nothing for a sequence that was never looked up.
- While a prompt waits, blocks that were found may be evicted. The ancestor repeated its first answer,
  so the engine did not compute the tokens of the evicted blocks. Here the answer becomes smaller in
  this case. It never grows.
- ``settle`` does not exist in the ancestor. It sets the answer to the number of computed tokens in the
  blocks that were allocated for the prompt.
- If the epoch of the allocator has changed, a sequence is hashed again.
- Assertions are replaced by typed errors that derive from ``AssertionError``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from kvpool.lineage.errors import ContractError
from kvpool.lineage.v0.block._hashing import NONE_HASH, hash_block_tokens
from kvpool.lineage.v0.block_manager_util import extra_hash_of, is_prefill

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from kvpool.lineage.v0.block.interfaces import BlockId, DeviceAwareBlockAllocator, SeqId
    from kvpool.lineage.v0.block_manager_util import Sequence

__all__ = ["ComputedBlocksTracker", "LastAccessBlocksTracker"]


@dataclass
class _Tracked:
    epoch: int
    hashes: list[int] = field(default_factory=list)
    cached_tokens: int | None = None


class ComputedBlocksTracker:
    """Determines how many tokens of a sequence are cached, without hashing the whole sequence each time.

    Args:
        allocator: The allocator that caches blocks.
        block_size: Tokens per block.
        enable_caching: Whether the allocator caches blocks.
    """

    _none_hash: ClassVar[int] = NONE_HASH

    def __init__(self, allocator: DeviceAwareBlockAllocator, block_size: int, enable_caching: bool) -> None:
        self._allocator = allocator
        self._block_size = block_size
        self._enable_caching = enable_caching
        self._tracked: dict[SeqId, _Tracked] = {}

    def get_num_cached_tokens(self, seq: Sequence) -> int:
        """Returns the number of tokens at the start of a sequence whose blocks are cached and computed.

        While the sequence computes its prompt, the answer never exceeds the first answer, or the number
        that ``settle`` has set. Blocks that were filled or evicted since then are not counted. If the
        first answer is 0, it is final, and the allocator is not queried again. O(tokens added + blocks
        cached). Without caching, the answer is always 0.

        Raises:
            ContractError: The sequence has become shorter.
        """
        if not self._enable_caching:
            return 0
        tracked = self._update(seq)
        if tracked.cached_tokens is None or not is_prefill(seq):
            found = self._allocator.find_cached_blocks_prefix(tracked.hashes)
            tracked.cached_tokens = len(found) * self._block_size
            return tracked.cached_tokens
        known = tracked.hashes[: tracked.cached_tokens // self._block_size]
        return len(self._allocator.find_cached_blocks_prefix(known)) * self._block_size if known else 0

    def _update(self, seq: Sequence) -> _Tracked:
        """Hashes the full blocks that were added since the last call."""
        epoch: int = getattr(self._allocator, "epoch", 0)
        tracked = self._tracked.get(seq.seq_id)
        if tracked is None or tracked.epoch != epoch:
            tracked = _Tracked(epoch)
        tokens, size = seq.get_token_ids(), self._block_size
        start = len(tracked.hashes) * size
        if len(tokens) < start:
            raise ContractError(
                f"sequence {seq.seq_id} has become shorter: {len(tokens)} tokens, {start} were hashed"
            )
        extra_hash = extra_hash_of(seq)
        for at in range(start, len(tokens) - size + 1, size):
            prev_hash = tracked.hashes[-1] if tracked.hashes else None
            chunk = list(tokens[at : at + size])
            tracked.hashes.append(hash_block_tokens(at == 0, prev_hash, chunk, extra_hash, epoch=epoch))
        self._tracked[seq.seq_id] = tracked
        return tracked

    def settle(self, seq: Sequence, num_cached_tokens: int) -> None:
        """Sets the number of tokens that were already computed when blocks were allocated for a prompt."""
        if self._enable_caching:
            self._update(seq).cached_tokens = num_cached_tokens

    def remove_seq(self, seq_id: SeqId) -> None:
        """Stops tracking a sequence. Does nothing if the sequence was never looked up."""
        self._tracked.pop(seq_id, None)


class LastAccessBlocksTracker:
    """Records the time of each sequence's last use.

    When the blocks of a sequence are freed, it passes the time to the allocator.

    Args:
        allocator: The allocator, which evicts blocks in the order of these times.
    """

    def __init__(self, allocator: DeviceAwareBlockAllocator) -> None:
        self._allocator = allocator
        self._seq_last_access: dict[SeqId, float | None] = {}

    def add_seq(self, seq_id: SeqId) -> None:
        """Begins to track a sequence.

        Raises:
            ContractError: The sequence is tracked already.
        """
        if seq_id in self._seq_last_access:
            raise ContractError(f"sequence {seq_id} is tracked already")
        self._seq_last_access[seq_id] = None

    def _check(self, seq_id: SeqId) -> None:
        if seq_id not in self._seq_last_access:
            raise ContractError(f"sequence {seq_id} is not tracked")

    def remove_seq(self, seq_id: SeqId) -> None:
        """Stops tracking a sequence.

        Raises:
            ContractError: The sequence is not tracked.
        """
        self._check(seq_id)
        del self._seq_last_access[seq_id]

    def update_last_access(self, seq_id: SeqId, time: float) -> None:
        """Records a use of a sequence.

        Raises:
            ContractError: The sequence is not tracked.
        """
        self._check(seq_id)
        self._seq_last_access[seq_id] = time

    def update_seq_blocks_last_access(self, seq_id: SeqId, block_ids: Items[BlockId]) -> None:
        """Passes the time of a sequence's last use to its blocks. Does nothing if no use was recorded.

        Raises:
            ContractError: The sequence is not tracked.
            UnknownBlockError: A block is free, or on no device.
        """
        self._check(seq_id)
        time = self._seq_last_access[seq_id]
        if time is not None:
            self._allocator.mark_blocks_as_accessed(block_ids, time)
