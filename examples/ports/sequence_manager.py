"""A manager over sequence objects, as in nano-vllm.

The scheduler calls the manager, and each sequence object contains its block table.

These calls of kvpool replace the calls of the engine:

| call of the engine | kvpool |
|---|---|
| ``can_allocate(seq)`` | ``manager.fit(prompt).fit == "ok"``; the prompt is hashed once for both calls |
| ``allocate(seq)`` | ``manager.admit``: the cached prefix and new blocks, or nothing |
| ``can_append(seq)`` | ``manager.num_available`` |
| ``may_append(seq)`` | ``manager.append``; for the whole batch in one call: ``append_batch`` |
| ``deallocate(seq)`` | ``manager.release``; for a preemption ``preempt`` and ``resume`` |

Such a manager caches the blocks of a prompt when it allocates them, because the next step writes them
before any request reads them. The port does the same with ``commit`` in ``allocate``. If your steps can fail
or overlap, commit after the step.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import kvpool
from examples.ports.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Sequence as Several

    from kvpool.hashing import HashCursor

__all__ = ["BlockManager", "Manager", "PlainBlockManager", "Sequence", "main", "serve"]


@dataclass(eq=False, slots=True)
class Sequence:
    """One request with its tokens and its block table, as in the engine."""

    number: int
    tokens: list[int]
    num_cached_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    #: The hashed prompt. Only the port over kvpool uses this field.
    hashed: HashCursor | None = None

    def __len__(self) -> int:
        return len(self.tokens)


class Manager(Protocol):
    """The calls that a scheduler makes on a block manager."""

    def can_allocate(self, seq: Sequence) -> bool: ...  # noqa: D102
    def allocate(self, seq: Sequence) -> None: ...  # noqa: D102
    def can_append(self, seq: Sequence) -> bool: ...  # noqa: D102
    def may_append(self, seq: Sequence) -> None: ...  # noqa: D102
    def deallocate(self, seq: Sequence) -> None: ...  # noqa: D102
    @property
    def num_available(self) -> int: ...  # noqa: D102


class PlainBlockManager:
    """A block manager without kvpool: a chain of hashes, a deque of free blocks, and reference counts."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._refs = [0] * num_blocks
        #: Blocks without content (``_free``), and cached blocks without references (``_idle``). Both
        #: are used from the front.
        self._free = deque(range(1, num_blocks))
        self._idle: OrderedDict[int, None] = OrderedDict()
        #: The blocks with each content, by the content's digest. The content of each block.
        self._index: dict[bytes, list[int]] = {}
        self._digests: dict[int, bytes] = {}

    @property
    def num_available(self) -> int:
        """Number of blocks that can be allocated: free blocks, and cached blocks without references."""
        return len(self._free) + len(self._idle)

    def can_allocate(self, seq: Sequence) -> bool:
        """Whether enough blocks for the prompt can be allocated."""
        hits = self._match(seq)
        idle = sum(self._refs[block] == 0 for block in hits)
        return -(-len(seq) // self.block_size) - len(hits) <= self.num_available - idle

    def allocate(self, seq: Sequence) -> None:
        """Allocates the blocks of the prompt: first the cached ones, then new ones."""
        table = self._match(seq)
        seq.num_cached_tokens = len(table) * self.block_size
        for block in table:
            self._idle.pop(block, None)
            self._refs[block] += 1
        table += [self._take() for _ in range(len(table), -(-len(seq) // self.block_size))]
        seq.block_table = table
        for position, digest in enumerate(self._chain(seq.tokens)):
            self._register(table[position], digest)

    def can_append(self, seq: Sequence) -> bool:
        """Whether the last sampled token has a slot or can get a block."""
        return self.num_available >= ((len(seq) - 1) % self.block_size == 0)

    def may_append(self, seq: Sequence) -> None:
        """Allocates the slot of the last sampled token.

        If the last block is full, it becomes cached.
        """
        if (len(seq) - 1) % self.block_size == 0:
            parent = self._digests[seq.block_table[-2]] if len(seq.block_table) > 1 else b""
            self._register(seq.block_table[-1], _digest(parent, seq.tokens[-1 - self.block_size : -1]))
            seq.block_table.append(self._take())

    def deallocate(self, seq: Sequence) -> None:
        """Releases the blocks of a sequence, the last block first."""
        for block in reversed(seq.block_table):
            self._refs[block] -= 1
            if self._refs[block] == 0 and block in self._digests:
                self._idle[block] = None
            elif self._refs[block] == 0:
                self._free.appendleft(block)
        seq.block_table = []

    def _chain(self, tokens: Several[int]) -> list[bytes]:
        """Returns one digest per full block. It covers the block's tokens and the previous block's digest."""
        digests, digest = [], b""
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            digest = _digest(digest, tokens[end - self.block_size : end])
            digests.append(digest)
        return digests

    def _match(self, seq: Sequence) -> list[int]:
        """Returns the blocks of the longest cached prefix of the prompt.

        At least one token is left to compute.
        """
        hits = []
        for digest in self._chain(seq.tokens[:-1]):
            if digest not in self._index:
                break
            hits.append(self._index[digest][0])
        return hits

    def _take(self) -> int:
        """Takes a block that will be written.

        If none is free, evicts the least recently used cached block.
        """
        if self._free:
            block = self._free.popleft()
        else:
            block, _ = self._idle.popitem(last=False)
            digest = self._digests.pop(block)
            self._index[digest].remove(block)
            if not self._index[digest]:
                del self._index[digest]
        self._refs[block] = 1
        return block

    def _register(self, block: int, digest: bytes) -> None:
        if block not in self._digests:
            self._digests[block] = digest
            self._index.setdefault(digest, []).append(block)


def _digest(parent: bytes, tokens: Several[int]) -> bytes:
    return hashlib.sha256(parent + array("I", tokens).tobytes()).digest()


class BlockManager:
    """A block manager over ``CacheManager``, with the answers of :class:`PlainBlockManager`."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.manager = kvpool.CacheManager(num_blocks, block_size)

    @property
    def num_available(self) -> int:
        """Number of blocks that can be allocated: free blocks, and cached blocks without references."""
        return self.manager.num_available

    def can_allocate(self, seq: Sequence) -> bool:
        """Whether enough blocks for the prompt can be allocated."""
        if seq.hashed is None:
            seq.hashed = self.manager.prepare(seq.tokens)
        return self.manager.fit(seq.hashed).fit == "ok"

    def allocate(self, seq: Sequence) -> None:
        """Allocates the blocks of the prompt.

        Raises ``OutOfBlocksError`` if there are too few. Then nothing has changed.
        """
        admission = self.manager.admit(seq.number, seq.tokens if seq.hashed is None else seq.hashed)
        seq.num_cached_tokens, seq.block_table = admission.cached_tokens, admission.block_ids
        self.manager.commit(seq.number, len(seq))
        seq.hashed = None

    def can_append(self, seq: Sequence) -> bool:
        """Whether the last sampled token has a slot or can get a block."""
        return self.manager.num_available >= ((len(seq) - 1) % self.manager.block_size == 0)

    def may_append(self, seq: Sequence) -> None:
        """Allocates the slot of the last sampled token."""
        self.append_batch([seq])

    def append_batch(self, seqs: Several[Sequence]) -> None:
        """Allocates the slots of a whole batch in one call, all or nothing.

        In a decode step this is faster than a call per sequence.
        """
        changes = self.manager.append(
            [seq.number for seq in seqs], [seq.tokens[-1] for seq in seqs], commit=True
        )
        for row, _, block in changes:
            seqs[row].block_table.append(block)

    def deallocate(self, seq: Sequence) -> None:
        """Releases the blocks."""
        self.manager.release(seq.number)
        seq.block_table = []


def serve(
    manager: Manager, memory: Memory, prompts: Several[list[int]], new_tokens: int
) -> list[tuple[str, int, int]]:
    """Runs a scheduler like nano-vllm's: each step computes prompts, or decodes one token per sequence.

    If blocks run out, preempts the youngest sequence. Returns the events: "prefill" with the request
    and its cached tokens, "preempt" and "finish" with the request and the number of available blocks.
    """
    waiting = deque(Sequence(number, list(prompt)) for number, prompt in enumerate(prompts))
    running: deque[Sequence] = deque()
    lengths = [len(prompt) + new_tokens for prompt in prompts]
    log = []
    while waiting or running:
        batch: list[Sequence] = []
        while waiting and manager.can_allocate(waiting[0]):
            seq = waiting.popleft()
            manager.allocate(seq)
            log.append(("prefill", seq.number, seq.num_cached_tokens))
            batch.append(seq)
        rows = [(seq.block_table, seq.tokens, seq.num_cached_tokens) for seq in batch]
        if not batch:
            while running:
                seq = running.popleft()
                fits = manager.can_append(seq)
                while not fits:
                    victim = running.pop() if running else seq
                    manager.deallocate(victim)
                    waiting.appendleft(victim)
                    log.append(("preempt", victim.number, manager.num_available))
                    if victim is seq:
                        break
                    fits = manager.can_append(seq)
                else:
                    manager.may_append(seq)
                    batch.append(seq)
            rows = [(seq.block_table, seq.tokens, len(seq) - 1) for seq in batch]
        memory.step(rows)
        for seq in batch:
            seq.tokens.append(sum(seq.tokens[-3:]) % 7)
            if len(seq) < lengths[seq.number]:
                running.append(seq)
            else:
                manager.deallocate(seq)
                log.append(("finish", seq.number, manager.num_available))
    return log


def main() -> None:
    """Serves twelve prompts with a common start on a pool that is too small for all of them."""
    prompts = [[*range(100, 112), *range(number, number + 5)] for number in range(12)]
    results = []
    for manager in (PlainBlockManager(24, 4), BlockManager(24, 4)):
        log = serve(manager, Memory(24, 4), prompts, new_tokens=8)
        cached = sum(number for what, _, number in log if what == "prefill")
        preemptions = sum(what == "preempt" for what, _, _ in log)
        print(
            f"{type(manager).__name__}: {len(log)} events, {cached} tokens cached, {preemptions} preemptions"
        )
        results.append(log)
    print("the same answers:", results[0] == results[1])


if __name__ == "__main__":
    main()
