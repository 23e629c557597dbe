"""The base class of block handles: tokens, predecessor, id, and whether the handle is still valid.

Whether the block of a handle is shared, cached or computed is not stored in the handle. The allocator
knows this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpool.lineage.errors import BlockStateError, ContractError, StaleBlockError
from kvpool.lineage.v0.block.interfaces import Block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool.lineage.v0.block.interfaces import BlockAllocator

__all__ = ["TokenBlock", "check_live", "retire"]


class TokenBlock(Block):
    """A handle on one block in a sequence.

    After an allocator has freed the handle, ``block_id`` is None, and all other uses raise
    ``StaleBlockError``. Handles are never recycled, so an old handle cannot become a handle on another
    sequence's block.
    """

    def __init__(
        self,
        prev_block: Block | None,
        token_ids: Sequence[int],
        block_size: int,
        allocator: BlockAllocator,
        block_id: int | None,
    ) -> None:
        if block_size < 1:
            raise ContractError(f"a block of {block_size} tokens")
        self._prev_block = prev_block
        self._block_size = block_size
        self._allocator = allocator
        self._block_id = block_id
        self._token_ids: list[int] = []
        self._live = True
        # Handles that shared a block when they were swapped out have the same object here. When they
        # are swapped in, they share a block again.
        self._home: object | None = None
        self.pool_id: int | None = None
        self._check_fits(token_ids)
        self._token_ids.extend(token_ids)

    def _check_live(self) -> None:
        if not self._live:
            raise StaleBlockError("the block was freed: this handle is stale")

    def _check_fits(self, token_ids: Sequence[int]) -> None:
        empty = self._block_size - len(self._token_ids)
        if len(token_ids) > empty:
            raise BlockStateError(
                f"{len(token_ids)} tokens do not fit: {empty} of {self._block_size} slots are empty"
            )

    def _refuse(self, token_ids: Sequence[int]) -> None:
        """Raises the error that explains why these tokens cannot be appended."""
        self._check_live()
        self._check_fits(token_ids)

    def _retire(self) -> None:
        self._live = False
        self._block_id = None
        self._home = None
        self._token_ids = []

    def _move_to(self, allocator: BlockAllocator, block_id: int) -> None:
        """Points the handle to a block of another allocator, to which a swap has moved its content."""
        self._allocator, self._block_id, self._home = allocator, block_id, None

    @property
    def block_id(self) -> int | None:
        """The id of the block; None before it is allocated, and after the handle was freed."""
        return self._block_id

    @block_id.setter
    def block_id(self, value: int | None) -> None:
        self._check_live()
        self._block_id = value

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._block_size

    @property
    def token_ids(self) -> list[int]:
        """A copy of the tokens in the block."""
        self._check_live()
        return self._token_ids[:]

    @property
    def num_empty_slots(self) -> int:
        """Number of further tokens that fit into the block."""
        self._check_live()
        return self._block_size - len(self._token_ids)

    @property
    def is_full(self) -> bool:
        """Whether the block is full."""
        return self.num_empty_slots == 0

    @property
    def prev_block(self) -> Block | None:
        """The preceding block of the sequence."""
        self._check_live()
        return self._prev_block

    def __repr__(self) -> str:
        state = (
            f"block_id={self._block_id}, {len(self._token_ids)}/{self._block_size} tokens"
            if self._live
            else "freed"
        )
        return f"{type(self).__name__}({state})"


def check_live(block: Block) -> None:
    """Checks that a handle was not freed.

    Raises:
        StaleBlockError: The handle was freed.
    """
    if not getattr(block, "_live", True):
        raise StaleBlockError("the block was freed: this handle is stale")


def retire(block: Block) -> None:
    """Makes a handle invalid."""
    if isinstance(block, TokenBlock):
        block._retire()
    else:
        block.block_id = None
