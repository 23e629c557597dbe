"""Groups of sequences, copy-on-write and swap, as in vLLM v0.

Code that imports ``vllm.core`` needs no port: ``kvpool.lineage.v0`` has its names, signatures and
shapes (``docs/lineage.md``). This port is for a scheduler of that kind that you can change.

These calls of kvpool replace the calls of the engine:

| call of the engine | kvpool |
|---|---|
| ``can_allocate(group)``: OK, LATER, NEVER | ``manager.fit(prompt).fit``: "ok", "later", "never" |
| ``allocate(group)`` | ``manager.admit`` for the first sequence, ``manager.fork`` for the others |
| ``can_append_slots``, ``append_slots(seq)`` | ``manager.append`` for the whole batch, all or nothing |
| the copies that ``append_slots`` returns | ``manager.take_plan()``, once per step, before KV is written |
| ``fork(parent, child)``, ``free(seq)`` | ``manager.fork``, ``manager.release`` |
| ``can_swap_out``, ``swap_out(group)`` | ``swaps.fit_out``, ``swaps.begin_out``, ``take_plan``, |
| | ``swaps.complete`` |
| ``mark_blocks_as_computed`` | ``manager.commit``; without it, as here, nothing is cached |

The workers of v0 execute a swap before anything else. This port therefore calls ``swaps.complete`` at
once. If your copies run on a stream of their own, call it when they have finished.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import kvpool
from examples.ports.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool._core import Fit

__all__ = ["BlockSpaceManager", "Group", "Manager", "PlainBlockSpaceManager", "main", "serve"]

Pairs = list[tuple[int, int]]


@dataclass(eq=False, slots=True)
class Group:
    """A prompt and those of its sequences that have not finished, by number of the sequence."""

    number: int
    prompt: list[int]
    sequences: dict[int, list[int]]


class Manager(Protocol):
    """The calls that a scheduler makes on a block manager."""

    @property
    def num_available(self) -> int: ...  # noqa: D102
    def can_allocate(self, group: Group) -> Fit: ...  # noqa: D102
    def allocate(self, group: Group) -> None: ...  # noqa: D102
    def append_slots(self, group: Group) -> Pairs: ...  # noqa: D102
    def table(self, sequence: int) -> list[int]: ...  # noqa: D102
    def free(self, sequence: int) -> None: ...  # noqa: D102
    def swap_out(self, group: Group) -> Pairs: ...  # noqa: D102
    def can_swap_in(self, group: Group) -> Fit: ...  # noqa: D102
    def swap_in(self, group: Group) -> Pairs: ...  # noqa: D102


class PlainBlockSpaceManager:
    """A block manager without kvpool: block tables, reference counts, and a free list per device."""

    def __init__(self, num_blocks: int, block_size: int, num_cpu_blocks: int) -> None:
        self.block_size = block_size
        self._free = [deque(range(1, num_blocks)), deque(range(1, num_cpu_blocks))]
        self._refs: list[dict[int, int]] = [{}, {}]
        self._tables: dict[int, list[int]] = {}
        self._usable = num_blocks - 1

    @property
    def num_available(self) -> int:
        """Number of free blocks of the GPU."""
        return len(self._free[0])

    def can_allocate(self, group: Group) -> Fit:
        """Whether enough blocks for the prompt are free."""
        needed = -(-len(group.prompt) // self.block_size)
        return "never" if needed > self._usable else "ok" if needed <= self.num_available else "later"

    def allocate(self, group: Group) -> None:
        """Allocates blocks for the prompt. All sequences of the group share them."""
        blocks = [self._take(0) for _ in range(-(-len(group.prompt) // self.block_size))]
        for sequence in group.sequences:
            self._tables[sequence] = list(blocks)
        self._refs[0].update(dict.fromkeys(blocks, len(group.sequences)))

    def append_slots(self, group: Group) -> Pairs:
        """Allocates a slot for the last token of each sequence.

        If the slot is in a shared block, the first sequence that writes gets a copy of the block.
        """
        copies = []
        for sequence, tokens in group.sequences.items():
            table = self._tables[sequence]
            if (len(tokens) - 1) % self.block_size == 0:
                table.append(self._take(0))
            elif self._refs[0][table[-1]] > 1:
                shared, table[-1] = table[-1], self._take(0)
                self._refs[0][shared] -= 1
                copies.append((shared, table[-1]))
        return copies

    def table(self, sequence: int) -> list[int]:
        """Returns the block table of a sequence."""
        return self._tables[sequence]

    def free(self, sequence: int) -> None:
        """Ends a sequence."""
        self._give(0, self._tables.pop(sequence))

    def swap_out(self, group: Group) -> Pairs:
        """Moves the blocks of a group to the CPU."""
        return self._swap(group, 0, 1)

    def can_swap_in(self, group: Group) -> Fit:
        """Whether enough blocks of the GPU are free for a group that was swapped out."""
        needed = len({block for sequence in group.sequences for block in self._tables[sequence]})
        return "ok" if needed <= self.num_available else "later"

    def swap_in(self, group: Group) -> Pairs:
        """Moves the blocks of a group back to the GPU."""
        return self._swap(group, 1, 0)

    def _swap(self, group: Group, source: int, destination: int) -> Pairs:
        moved: dict[int, int] = {}
        for sequence in group.sequences:
            old = self._tables[sequence]
            for block in old:
                if block not in moved:
                    moved[block] = self._take(destination)
                    self._refs[destination][moved[block]] = 0
                self._refs[destination][moved[block]] += 1
            self._tables[sequence] = [moved[block] for block in old]
            self._give(source, old)
        return list(moved.items())

    def _take(self, device: int) -> int:
        block = self._free[device].popleft()
        self._refs[device][block] = 1
        return block

    def _give(self, device: int, blocks: list[int]) -> None:
        for block in blocks:
            self._refs[device][block] -= 1
            if self._refs[device][block] == 0:
                self._free[device].append(block)


class BlockSpaceManager:
    """A block manager over ``CacheManager``, with the answers of :class:`PlainBlockSpaceManager`."""

    def __init__(self, num_blocks: int, block_size: int, num_cpu_blocks: int) -> None:
        self.manager = kvpool.CacheManager(num_blocks, block_size, host_blocks=num_cpu_blocks)

    @property
    def num_available(self) -> int:
        """Number of free blocks of the GPU."""
        return self.manager.num_available

    def can_allocate(self, group: Group) -> Fit:
        """Whether enough blocks for the whole prompt are free."""
        fit = self.manager.fit(group.prompt).fit
        return "never" if fit == "in_chunks" else fit

    def allocate(self, group: Group) -> None:
        """Allocates blocks for the prompt. All sequences of the group share them."""
        first, *others = group.sequences
        self.manager.admit(first, group.prompt)
        for sequence in others:
            self.manager.fork(first, sequence)

    def append_slots(self, group: Group) -> Pairs:
        """Allocates a slot for the last token of each sequence.

        One call of ``append`` for all groups of the step would be faster.
        """
        self.manager.append(list(group.sequences), [tokens[-1] for tokens in group.sequences.values()])
        return self._plan()

    def table(self, sequence: int) -> list[int]:
        """Returns the block table of a sequence.

        It would be faster to keep the table, and to apply the changes that ``append`` returns.
        """
        return self.manager.block_ids(sequence)

    def free(self, sequence: int) -> None:
        """Ends a sequence."""
        self.manager.release(sequence)

    def swap_out(self, group: Group) -> Pairs:
        """Moves the blocks of a group to the CPU."""
        return self._complete(self.manager.swaps.begin_out(list(group.sequences)))

    def can_swap_in(self, group: Group) -> Fit:
        """Whether enough blocks of the GPU are free for a group that was swapped out."""
        return self.manager.swaps.fit_in(list(group.sequences))

    def swap_in(self, group: Group) -> Pairs:
        """Moves the blocks of a group back to the GPU."""
        return self._complete(self.manager.swaps.begin_in(list(group.sequences)))

    def _complete(self, swap: int) -> Pairs:
        copies = self._plan()
        self.manager.swaps.complete(swap)
        return copies

    def _plan(self) -> Pairs:
        return [(source, destination) for (_, source), (_, destination) in self.manager.take_plan().transfers]


def serve(
    manager: Manager,
    memory: Memory,
    host: Memory,
    prompts: Sequence[list[int]],
    samples: int,
    new_tokens: int,
) -> list[tuple[str, int, int]]:
    """Runs a scheduler like vLLM v0's: first swapped groups, then prompts, then a token per sequence.

    Returns each event with its group, and the number of available blocks after the event.
    """
    waiting, swapped, running = deque[Group](), list[Group](), list[Group]()
    for number, prompt in enumerate(prompts):
        sequences = {number * samples + sample: list(prompt) for sample in range(samples)}
        waiting.append(Group(number, prompt, sequences))
    log: list[tuple[str, int, int]] = []
    while waiting or swapped or running:
        while swapped and manager.can_swap_in(swapped[0]) == "ok":
            group = swapped.pop(0)
            memory.copy(manager.swap_in(group), host)
            log.append(("swap in", group.number, manager.num_available))
            running.append(group)
        running.sort(key=lambda group: group.number)
        ready = []
        for group in list(running):
            while group in running and manager.num_available < len(group.sequences):
                victim = running.pop()  # the youngest group
                host.copy(manager.swap_out(victim), memory)
                log.append(("swap out", victim.number, manager.num_available))
                swapped.append(victim)
                swapped.sort(key=lambda group: group.number)
            if group in running:
                memory.copy(manager.append_slots(group))
                ready.append(group)
        while not swapped and waiting and (fit := manager.can_allocate(waiting[0])) != "later":
            group = waiting.popleft()
            log.append((f"allocate: {fit}", group.number, manager.num_available))
            if fit == "ok":
                manager.allocate(group)
                running.append(group)
                ready.append(group)
        memory.step(
            (manager.table(sequence), tokens, len(tokens) - 1 if len(tokens) > len(group.prompt) else 0)
            for group in ready
            for sequence, tokens in group.sequences.items()
        )
        for group in ready:
            for sequence, tokens in list(group.sequences.items()):
                tokens.append((sum(tokens[-3:]) + sequence) % 7)
                if len(tokens) == len(group.prompt) + new_tokens - sequence % 2:
                    manager.free(sequence)
                    del group.sequences[sequence]
            if not group.sequences:
                running.remove(group)
                log.append(("finish", group.number, manager.num_available))
    return log


def main() -> None:
    """Serves eight prompts with two samples each on a pool that is too small for all of them."""
    prompts = [[number] * (5 + number) for number in range(8)]
    results = []
    for manager in (PlainBlockSpaceManager(24, 4, 80), BlockSpaceManager(24, 4, 80)):
        log = serve(manager, Memory(24, 4), Memory(80, 4), prompts, samples=2, new_tokens=12)
        swaps = sum(what == "swap out" for what, _, _ in log)
        print(
            f"{type(manager).__name__}: {len(log)} events, {swaps} swaps out, {manager.num_available} "
            "available"
        )
        results.append(log)
    print("the same answers:", results[0] == results[1])


if __name__ == "__main__":
    main()
