"""The null block of vLLM v0: what stands in a block table where a sequence has dropped a block.

Owns nothing but the handle on the block that lends it an id.
"""

# ruff: noqa: ARG002  # the signatures are the interface's

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpool.lineage.errors import ContractError, NotSupportedError
from kvpool.lineage.v0.block.interfaces import Block

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NullBlock"]


class NullBlock(Block):
    """Stands in block tables for blocks that a sliding window has dropped. It cannot be changed.

    Args:
        proxy: The block that lends it an id.
    """

    def __init__(self, proxy: Block) -> None:
        self._proxy = proxy

    def append_token_ids(self, token_ids: Sequence[int]) -> None:
        """Refuses.

        Raises:
            ContractError: Always; a ``ValueError``.
        """
        raise ContractError("null block should not be modified")

    @property
    def block_id(self) -> int | None:
        """The id: that of a GPU block which nobody else has. To set it is a ``ContractError``, a
        ``ValueError``.
        """
        return self._proxy.block_id

    @block_id.setter
    def block_id(self, value: int | None) -> None:
        raise ContractError("null block should not be modified")

    @property
    def token_ids(self) -> list[int]:
        """None."""
        return self._proxy.token_ids

    @property
    def num_tokens_total(self) -> int:
        """Refuses.

        Raises:
            NotSupportedError: Always.
        """
        raise NotSupportedError("num_tokens_total is not known of the null block")

    @property
    def num_empty_slots(self) -> int:
        """Those of the block behind it; nothing can be appended."""
        return self._proxy.num_empty_slots

    @property
    def is_full(self) -> bool:
        """Whether the block behind it is full: it is not."""
        return self._proxy.is_full

    @property
    def prev_block(self) -> Block | None:
        """None."""
        return self._proxy.prev_block

    @property
    def extra_hash(self) -> None:
        """None."""
        return None

    @property
    def computed(self) -> bool:
        """As of the block behind it."""
        return self._proxy.computed

    @computed.setter
    def computed(self, value: bool) -> None:
        self._proxy.computed = value

    @property
    def last_accessed(self) -> float:
        """As of the block behind it."""
        return self._proxy.last_accessed

    @last_accessed.setter
    def last_accessed(self, last_accessed_ts: float) -> None:
        self._proxy.last_accessed = last_accessed_ts

    @property
    def content_hash(self) -> int | None:
        """None: it is never full."""
        return self._proxy.content_hash
