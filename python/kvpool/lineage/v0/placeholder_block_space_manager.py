"""vLLM v0's manager for models without KV: pooling and attention-free models. It has no blocks, and no state.

Differences from the ancestor: ``swap_in`` and ``swap_out`` return an empty list. The ancestor returned
None, which its scheduler cannot add to a list of copies.
"""

# ruff: noqa: ARG002  # unused arguments belong to the interface's signatures

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpool.lineage.v0.interfaces import AllocStatus, BlockSpaceManager

if TYPE_CHECKING:
    from kvpool.lineage.v0.block.interfaces import Device
    from kvpool.lineage.v0.block_manager_util import Sequence, SequenceGroup

__all__ = ["PlaceholderBlockSpaceManager"]


class PlaceholderBlockSpaceManager(BlockSpaceManager):
    """A block manager without blocks: every group fits, and no sequence has blocks.

    Args:
        kwargs: The arguments of other block managers. They are ignored.

    >>> manager = PlaceholderBlockSpaceManager(block_size=16, num_gpu_blocks=0, num_cpu_blocks=0)
    >>> manager.get_num_free_gpu_blocks(), manager.get_common_computed_block_ids([])
    (1, [])
    """

    def __init__(self, **kwargs: object) -> None:
        pass

    def can_allocate(self, seq_group: SequenceGroup, num_lookahead_slots: int = 0) -> AllocStatus:
        """Returns OK."""
        return AllocStatus.OK

    def allocate(self, seq_group: SequenceGroup) -> None:
        """Does nothing."""

    def can_append_slots(self, seq_group: SequenceGroup, num_lookahead_slots: int) -> bool:
        """Returns True."""
        return True

    def append_slots(self, seq: Sequence, num_lookahead_slots: int) -> list[tuple[int, int]]:
        """Returns an empty list."""
        return []

    def fork(self, parent_seq: Sequence, child_seq: Sequence) -> None:
        """Does nothing."""

    def can_swap_in(self, seq_group: SequenceGroup, num_lookahead_slots: int) -> AllocStatus:
        """Returns OK."""
        return AllocStatus.OK

    def swap_in(self, seq_group: SequenceGroup) -> list[tuple[int, int]]:
        """Returns an empty list."""
        return []

    def can_swap_out(self, seq_group: SequenceGroup) -> bool:
        """Returns True."""
        return True

    def swap_out(self, seq_group: SequenceGroup) -> list[tuple[int, int]]:
        """Returns an empty list."""
        return []

    def free(self, seq: Sequence) -> None:
        """Does nothing."""

    def get_block_table(self, seq: Sequence) -> list[int]:
        """Returns None, as in the ancestor.

        An attention back end takes None to mean that a sequence has no blocks.
        """
        return None  # type: ignore[return-value]  # the interface knows managers with blocks only

    def get_num_free_gpu_blocks(self) -> int:
        """Returns 1, so that a scheduler does not wait for blocks."""
        return 1

    def get_num_free_cpu_blocks(self) -> int:
        """Returns 1, so that a scheduler does not wait for blocks."""
        return 1

    def access_all_blocks_in_seq(self, seq: Sequence, access_time: float) -> None:
        """Does nothing."""

    def get_common_computed_block_ids(self, seq_group: list[Sequence]) -> list[int]:
        """Returns an empty list."""
        return []

    def mark_blocks_as_computed(self, seq_group: SequenceGroup, token_chunk_size: int) -> None:
        """Does nothing."""

    def get_prefix_cache_hit_rate(self, device: Device) -> float:
        """Returns -1, because nothing is cached."""
        return -1.0

    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        """Returns True, because no block is in use."""
        return True

    def get_num_cached_tokens(self, seq: Sequence) -> int:
        """Returns 0."""
        return 0

    def remove_seq_from_computed_blocks_tracker(self, seq: Sequence) -> None:
        """Does nothing. vLLM 0.9 and later call it."""
