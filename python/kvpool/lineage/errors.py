"""Errors of the lineage faces.

Each is an error of ``kvpool.errors`` and also the builtin that the ancestor raised, so that an
``except`` clause written for the ancestor still catches it. Where an ancestor asserted, the error is an
``AssertionError`` too, and ``python -O`` does not remove it.
"""

from __future__ import annotations

from kvpool.errors import (
    InvalidArgumentError,
    InvalidBlockError,
    KvpoolError,
    OutOfBlocksError,
    UnknownRequestError,
)

__all__ = [
    "BlockStateError",
    "ContractError",
    "NoFreeBlocksError",
    "NotSupportedError",
    "StaleBlockError",
    "UnknownBlockError",
    "UnknownTableError",
    "no_free_blocks",
]


class NoFreeBlocksError(OutOfBlocksError, ValueError):
    """No block is free and none can be evicted. The attributes are those of ``OutOfBlocksError``."""


class BlockStateError(InvalidBlockError, AssertionError):
    """The block is in the wrong state for the call: not allocated, full, immutable, or of another
    allocator.
    """


class StaleBlockError(BlockStateError):
    """A handle that was used after its block was freed."""


class UnknownBlockError(BlockStateError, KeyError):
    """A block id that this allocator does not own, or a block that nobody holds and nothing caches."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, quotes and all.
        return str(self.args[0]) if self.args else ""


class UnknownTableError(UnknownRequestError, AssertionError):
    """A sequence or group that has no block table."""


class ContractError(InvalidArgumentError, AssertionError):
    """An argument that the ancestor refused by an assertion."""


class NotSupportedError(KvpoolError, NotImplementedError):
    """What the ancestor did not implement for this kind of block, and callers must not rely on."""


def no_free_blocks(error: OutOfBlocksError, message: str | None = None) -> NoFreeBlocksError:
    """Returns the ancestors' error for one of the core, with its figures."""
    converted = NoFreeBlocksError(message if message is not None else str(error))
    for figure in ("needed", "available", "missing", "fenced", "can_ever_fit", "fits_in_chunks"):
        setattr(converted, figure, getattr(error, figure))
    return converted
