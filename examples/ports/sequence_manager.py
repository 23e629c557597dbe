"""A manager over sequence objects, as in nano-vllm: the scheduler asks, the sequence carries its block table.

| the engine's call | here |
|---|---|
| ``can_allocate(seq)`` | ``manager.fit(prompt).fit == "ok"``: the prompt is hashed once, for this and the next call |
| ``allocate(seq)`` | ``manager.admit``, which takes the cached prefix and new blocks, or nothing |
| ``can_append(seq)`` | ``manager.num_available`` |
| ``may_append(seq)`` | ``manager.append``; for the whole batch in one call: ``append_batch`` |
| ``deallocate(seq)`` | ``manager.release``; or ``preempt`` and ``resume``, where that is meant |

When is a block cached? Such a manager says so when the prompt gets its blocks: the step that follows
writes them before anybody reads. The port does the same with ``commit`` in ``allocate``. If your steps
can fail, or overlap, commit when the step is done.
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
    """One request, as the engine has it."""

    number: int
    tokens: list[int]
    num_cached_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    #: The port's: its prompt, hashed.
    hashed: HashCursor | None = None

    def __len__(self) -> int:
        return len(self.tokens)


class Manager(Protocol):
    """What the scheduler calls."""

    def can_allocate(self, seq: Sequence) -> bool: ...  # noqa: D102
    def allocate(self, seq: Sequence) -> None: ...  # noqa: D102
    def can_append(self, seq: Sequence) -> bool: ...  # noqa: D102
    def may_append(self, seq: Sequence) -> None: ...  # noqa: D102
    def deallocate(self, seq: Sequence) -> None: ...  # noqa: D102
    @property
    def num_available(self) -> int: ...  # noqa: D102


class PlainBlockManager:
    """What such managers do themselves: a chain of hashes, a deque of free blocks, reference counts."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._refs = [0] * num_blocks
        #: Blocks without content, and cached ones that nobody holds, the next to be evicted first.
        self._free = deque(range(1, num_blocks))
        self._idle: OrderedDict[int, None] = OrderedDict()
        #: Which blocks hold a content, and the content of a block.
        self._index: dict[bytes, list[int]] = {}
        self._digests: dict[int, bytes] = {}

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out."""
        return len(self._free) + len(self._idle)

    def can_allocate(self, seq: Sequence) -> bool:
        """Whether the prompt finds its blocks."""
        hits = self._match(seq)
        idle = sum(self._refs[block] == 0 for block in hits)
        return -(-len(seq) // self.block_size) - len(hits) <= self.num_available - idle

    def allocate(self, seq: Sequence) -> None:
        """Gives the prompt its blocks: cached ones as far as they go, then new ones."""
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
        """Whether the token sampled last finds a slot."""
        return self.num_available >= ((len(seq) - 1) % self.block_size == 0)

    def may_append(self, seq: Sequence) -> None:
        """Gives the token sampled last its slot. What was full before is cached from now on."""
        if (len(seq) - 1) % self.block_size == 0:
            parent = self._digests[seq.block_table[-2]] if len(seq.block_table) > 1 else b""
            self._register(seq.block_table[-1], _digest(parent, seq.tokens[-1 - self.block_size : -1]))
            seq.block_table.append(self._take())

    def deallocate(self, seq: Sequence) -> None:
        """Takes the blocks back, the last one first."""
        for block in reversed(seq.block_table):
            self._refs[block] -= 1
            if self._refs[block] == 0 and block in self._digests:
                self._idle[block] = None
            elif self._refs[block] == 0:
                self._free.appendleft(block)
        seq.block_table = []

    def _chain(self, tokens: Several[int]) -> list[bytes]:
        """One digest per full block: of its tokens and the digest before."""
        digests, digest = [], b""
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            digest = _digest(digest, tokens[end - self.block_size : end])
            digests.append(digest)
        return digests

    def _match(self, seq: Sequence) -> list[int]:
        """The cached blocks from the start. At least one token is left to compute."""
        hits = []
        for digest in self._chain(seq.tokens[:-1]):
            if digest not in self._index:
                break
            hits.append(self._index[digest][0])
        return hits

    def _take(self) -> int:
        """A block to write to: the content of the longest unused one is forgotten."""
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
    """The same over ``CacheManager``."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.manager = kvpool.CacheManager(num_blocks, block_size)

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out."""
        return self.manager.num_available

    def can_allocate(self, seq: Sequence) -> bool:
        """Whether the prompt finds its blocks."""
        if seq.hashed is None:
            seq.hashed = self.manager.prepare(seq.tokens)
        return self.manager.fit(seq.hashed).fit == "ok"

    def allocate(self, seq: Sequence) -> None:
        """Gives the prompt its blocks, or raises ``OutOfBlocksError`` and has changed nothing."""
        admission = self.manager.admit(seq.number, seq.tokens if seq.hashed is None else seq.hashed)
        seq.num_cached_tokens, seq.block_table = admission.cached_tokens, admission.block_ids
        self.manager.commit(seq.number, len(seq))
        seq.hashed = None

    def can_append(self, seq: Sequence) -> bool:
        """Whether the token sampled last finds a slot."""
        return self.manager.num_available >= ((len(seq) - 1) % self.manager.block_size == 0)

    def may_append(self, seq: Sequence) -> None:
        """Gives the token sampled last its slot."""
        self.append_batch([seq])

    def append_batch(self, seqs: Several[Sequence]) -> None:
        """The same for a whole batch, all or nothing, in one call: what a decode step should use."""
        changes = self.manager.append(
            [seq.number for seq in seqs], [seq.tokens[-1] for seq in seqs], commit=True
        )
        for row, _, block in changes:
            seqs[row].block_table.append(block)

    def deallocate(self, seq: Sequence) -> None:
        """Takes the blocks back."""
        self.manager.release(seq.number)
        seq.block_table = []


def serve(
    manager: Manager, memory: Memory, prompts: Several[list[int]], new_tokens: int
) -> list[tuple[str, int, int]]:
    """A scheduler in that engine's manner: prompts first, then a decode step; the youngest gives way.

    Returns what happened: "prefill" with request and cached tokens, "preempt" and "finish" with request
    and available blocks.
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
