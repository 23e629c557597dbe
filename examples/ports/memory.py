"""KV memory that knows the expected content of each slot, and so detects wrong KV.

The KV of a token depends on every token before it. So the content of a slot is a number that is
computed from the whole prefix. A step writes the slots of the tokens that it computes, and reads the
slots of all tokens before them. If a block is cached too early, reused too soon, or written while it is
shared, a reader finds another number than it expects.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Memory", "WrongKVError"]


class WrongKVError(AssertionError):
    """A slot of the memory does not contain the KV of the token that a step expects there."""


class Memory:
    """Memory with one number per slot, for ``num_blocks`` blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._slots = [[-1] * block_size for _ in range(num_blocks)]

    def write(self, table: Sequence[int], tokens: Sequence[int], start: int, stop: int | None = None) -> None:
        """Writes the KV of tokens ``start`` to ``stop``, as a step does.

        By default ``stop`` is the last token.
        """
        marks = _marks(tokens[:stop])
        for position in range(start, len(marks)):
            block, slot = divmod(position, self.block_size)
            self._slots[table[block]][slot] = marks[position]

    def read(self, table: Sequence[int], tokens: Sequence[int]) -> None:
        """Reads the KV of all these tokens, as a step does that attends to them.

        Raises:
            WrongKVError: A slot has another content than expected.
        """
        for position, mark in enumerate(_marks(tokens)):
            block, slot = divmod(position, self.block_size)
            if self._slots[table[block]][slot] != mark:
                raise WrongKVError(f"token {position}: block {table[block]} holds other KV in slot {slot}")

    def step(self, rows: Iterable[tuple[Sequence[int], Sequence[int], int]]) -> None:
        """Runs a step with several rows.

        Each row has a block table, tokens, and the first token to compute. All rows write, then all
        rows read.
        """
        batch = list(rows)
        for table, tokens, start in batch:
            self.write(table, tokens, start)
        for table, tokens, _ in batch:
            self.read(table, tokens)

    def copy(self, pairs: Iterable[tuple[int, int]], source: Memory | None = None) -> None:
        """Copies whole blocks. Reads all sources before it writes.

        Each pair is a block of ``source`` (by default of this memory), and a destination block of this
        memory.
        """
        blocks = self._slots if source is None else source._slots
        for destination, content in [(destination, list(blocks[block])) for block, destination in pairs]:
            self._slots[destination] = content


def _marks(tokens: Sequence[int]) -> list[int]:
    """Returns the expected content of each token's slot, computed from the token and all tokens before it."""
    return list(
        accumulate(tokens, lambda mark, token: (mark * 1_000_003 + token + 1) % (2**61 - 1), initial=7)
    )[1:]
