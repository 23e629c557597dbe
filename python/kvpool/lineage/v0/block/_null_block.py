"""The null block of vLLM v0. It takes the place of blocks that a sequence has dropped from its block table.

This module owns only the handle. The null block uses the id of an ordinary block.
"""

# ruff: noqa: ARG002  # unused arguments belong to the interface's signatures

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpool.lineage.errors import ContractError, NotSupportedError
from kvpool.lineage.v0.block.interfaces import Block

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NullBlock"]


class NullBlock(Block):
    """Takes the place of blocks that a sliding window has dropped from a block table. It cannot be changed.

    Args:
        proxy: The block whose id the null block uses.
    """

    def __init__(self, proxy: Block) -> None:
        self._proxy = proxy

    def append_token_ids(self, token_ids: Sequence[int]) -> None:
        """Always raises, because the null block cannot be changed.

        Raises:
            ContractError: Always. The error is also a ``ValueError``.
        """
        raise ContractError("null block should not be modified")

    @property
    def block_id(self) -> int | None:
        """The id, which belongs to a GPU block that nothing else uses.

        Setting it raises ``ContractError``, which is also a ``ValueError``.
        """
        return self._proxy.block_id

    @block_id.setter
    def block_id(self, value: int | None) -> None:
        raise ContractError("null block should not be modified")

    @property
    def token_ids(self) -> list[int]:
        """An empty list."""
        return self._proxy.token_ids

    @property
    def num_tokens_total(self) -> int:
        """Always raises, because the null block has no place in a sequence.

        Raises:
            NotSupportedError: Always.
        """
        raise NotSupportedError("num_tokens_total is not known of the null block")

    @property
    def num_empty_slots(self) -> int:
        """Number of empty slots of the underlying block. Tokens cannot be appended nevertheless."""
        return self._proxy.num_empty_slots

    @property
    def is_full(self) -> bool:
        """Whether the underlying block is full, which is always false."""
        return self._proxy.is_full

    @property
    def prev_block(self) -> Block | None:
        """Always None."""
        return self._proxy.prev_block

    @property
    def extra_hash(self) -> None:
        """Always None."""
        return None

    @property
    def computed(self) -> bool:
        """Whether the underlying block is computed."""
        return self._proxy.computed

    @computed.setter
    def computed(self, value: bool) -> None:
        self._proxy.computed = value

    @property
    def last_accessed(self) -> float:
        """The last access time of the underlying block."""
        return self._proxy.last_accessed

    @last_accessed.setter
    def last_accessed(self, last_accessed_ts: float) -> None:
        self._proxy.last_accessed = last_accessed_ts

    @property
    def content_hash(self) -> int | None:
        """Always None, because the block is never full."""
        return self._proxy.content_hash
