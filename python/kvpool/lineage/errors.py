"""The errors of the lineage modules.

Each class derives from an error of ``kvpool.errors`` and from the built-in exception that the ancestor
raised, so that ``except`` clauses written for the ancestor still work. Where an ancestor used an
assertion, the error also derives from ``AssertionError``. Unlike an assertion, it is raised under
``python -O``, too.
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
    """No block is free, and none can be evicted. It has the attributes of ``OutOfBlocksError``."""


class BlockStateError(InvalidBlockError, AssertionError):
    """The block is in the wrong state for the call.

    For example, the block is not allocated, is full, is immutable, or belongs to another allocator.
    """


class StaleBlockError(BlockStateError):
    """A handle was used after its block was freed."""


class UnknownBlockError(BlockStateError, KeyError):
    """This allocator does not have the block id, or the block is neither referenced nor cached."""

    def __str__(self) -> str:
        # ``str`` of a KeyError is the ``repr`` of its argument, which would put the message in quotes.
        return str(self.args[0]) if self.args else ""


class UnknownTableError(UnknownRequestError, AssertionError):
    """A sequence or group has no block table."""


class ContractError(InvalidArgumentError, AssertionError):
    """An argument is invalid. The ancestor had an assertion for this case."""


class NotSupportedError(KvpoolError, NotImplementedError):
    """A method or a feature is not supported. The ancestor did not support it either."""


def no_free_blocks(error: OutOfBlocksError, message: str | None = None) -> NoFreeBlocksError:
    """Converts an ``OutOfBlocksError`` of the core to the ancestors' error, with the same numbers."""
    converted = NoFreeBlocksError(message if message is not None else str(error))
    for figure in ("needed", "available", "missing", "fenced", "can_ever_fit", "fits_in_chunks"):
        setattr(converted, figure, getattr(error, figure))
    return converted
