"""The memory of a simulated engine, with the KV of tokens in the physical blocks of two devices. Also
has enums as an engine defines them.

The KV of a token depends on all tokens before it. So the test notices if a block with another prefix is
read.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SLOT = 4  # bytes per token


class Tokens:
    """The tokens of a sequence, and the KV that each token must have."""

    def __init__(self, tokens: Iterable[int], salt: int = 0) -> None:
        self.ids: list[int] = []
        self.kv: list[bytes] = []
        self._state = 17 + salt
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        self._state = (self._state * 1_000_003 + token + 1) % (1 << 32)
        self.ids.append(token)
        self.kv.append(self._state.to_bytes(SLOT, "big"))


class Memory:
    """The physical blocks of a GPU and of a CPU. At first they contain garbage."""

    def __init__(self, block_size: int, gpu: int, cpu: int = 0) -> None:
        self.block_size = block_size
        self.gpu = [bytearray(b"\xee" * SLOT * block_size) for _ in range(gpu)]
        self.cpu = [bytearray(b"\xdd" * SLOT * block_size) for _ in range(cpu)]

    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        for src, dst in pairs:
            self.gpu[dst][:] = self.cpu[src]

    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        for src, dst in pairs:
            self.cpu[dst][:] = self.gpu[src]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Makes all copies at the same time, as the kernel does: reads every source before it writes."""
        read = [bytes(self.gpu[src]) for src, _ in pairs]
        for (_, dst), content in zip(pairs, read, strict=True):
            self.gpu[dst][:] = content

    def write(self, table: Sequence[int], tokens: Tokens, start: int, end: int) -> None:
        for at in range(start, end):
            where = at % self.block_size * SLOT
            self.gpu[table[at // self.block_size]][where : where + SLOT] = tokens.kv[at]

    def check(self, table: Sequence[int], tokens: Tokens, start: int, end: int, who: object) -> None:
        """Reads these tokens from the blocks of the table, as attention does, and checks their KV."""
        for at in range(start, end):
            where = at % self.block_size * SLOT
            seen = bytes(self.gpu[table[at // self.block_size]][where : where + SLOT])
            assert seen == tokens.kv[at], f"{who}, token {at}, block {table[at // self.block_size]}: wrong KV"


def own_enum(name: str, members: str) -> Any:
    """Returns an enum as an engine defines it: with the same names as kvpool's enum, but a different
    class.
    """
    kind: Any = enum.Enum
    return kind(name, members)
