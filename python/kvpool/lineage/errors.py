"""Errors of the lineage modules.

Each is an error of ``kvpool.errors`` and also the builtin that the ancestor raised, so that an
``except`` clause written for the ancestor still catches it. Where an ancestor asserted, the error is
also an ``AssertionError``, and ``python -O`` does not remove it.
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
    """The block is in the wrong state for the call.

    For example, it is not allocated, full, immutable, or of another allocator.
    """


class StaleBlockError(BlockStateError):
    """A handle was used after its block was freed."""


class UnknownBlockError(BlockStateError, KeyError):
    """A block id that this allocator does not own, or a block that is neither held nor cached."""

    def __str__(self) -> str:
        # The str of a KeyError is the repr of its argument, with quotes.
        return str(self.args[0]) if self.args else ""


class UnknownTableError(UnknownRequestError, AssertionError):
    """A sequence or group that has no block table."""


class ContractError(InvalidArgumentError, AssertionError):
    """An argument that the ancestor refused by an assertion."""


class NotSupportedError(KvpoolError, NotImplementedError):
    """A method that the ancestor did not implement for this kind of block. Callers must not rely on it."""


def no_free_blocks(error: OutOfBlocksError, message: str | None = None) -> NoFreeBlocksError:
    """Converts an error of the core to the ancestors' error, with its figures."""
    converted = NoFreeBlocksError(message if message is not None else str(error))
    for figure in ("needed", "available", "missing", "fenced", "can_ever_fit", "fits_in_chunks"):
        setattr(converted, figure, getattr(error, figure))
    return converted
