"""Prefill and decode on two machines. Transfers of KV may be late, end in any order, or lose blocks.

In these events, the scheduler calls kvpool:

| event | call |
|---|---|
| the prompt is computed and has to be transferred | ``release(until=fence())`` reserves its blocks |
| a transfer has ended, in any order | ``end_fence(ticket)`` |
| the decode side allocates blocks, except for the last token | ``admit(external_tokens=len(prompt) - 1)`` |
| all blocks have arrived | ``external_done(request)``: they are cached, and the request runs |
| blocks are missing | ``external_done(request, failed=[(first token, end)])``: they are computed here |
| the request is aborted during its transfer | ``release(request)``: "releasing" until ``external_done`` |
| a decode step | ``append(requests, tokens, commit=True)`` |
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import kvpool
from examples.ports.memory import Memory
from examples.ports.native import next_token
from kvpool.errors import OutOfBlocksError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Service", "main"]


@dataclass(eq=False, slots=True)
class Transfer:
    """A transfer of the KV of one prompt from the prefill side to the decode side.

    The copy is made at the end of the transfer. Until then, no other request may get the source blocks.
    """

    key: int
    tokens: list[int]
    ticket: int
    source: list[int]
    target: list[int]
    #: Positions in the decode side's block table at which KV has to arrive.
    wanted: range


class Service:
    """A prefill side and a decode side, each with a manager and a memory, and the transfers between them.

    Args:
        blocks: Number of blocks of the prefill side, and of the decode side.
        block_size: Number of tokens per block.
        lost: Share of the blocks that a transfer loses.
        seed: Seed of the random numbers that choose the lost blocks and the order in which transfers
            end.
    """

    def __init__(self, blocks: tuple[int, int], block_size: int, *, lost: float = 0.0, seed: int = 0) -> None:
        self.managers = tuple(kvpool.CacheManager(number, block_size) for number in blocks)
        self.memories = tuple(Memory(number, block_size) for number in blocks)
        self.lost = lost
        self.random = random.Random(seed)  # noqa: S311  # a workload
        self.waiting: list[tuple[int, list[int], int]] = []
        self.transfers: list[Transfer] = []
        #: Decoding requests. Each has its tokens so far, and its length at the end.
        self.running: dict[int, tuple[list[int], int]] = {}
        self.lengths: dict[int, int] = {}
        self.done: dict[int, list[int]] = {}
        self.computed_again = 0

    @property
    def busy(self) -> bool:
        """Whether any request has not finished."""
        return bool(self.waiting or self.transfers or self.running)

    def submit(self, key: int, prompt: list[int], new_tokens: int) -> None:
        """Queues a request."""
        self.waiting.append((key, prompt, new_tokens))

    def abort(self, key: int) -> None:
        """Ends a request, whether it waits, is being transferred or decodes."""
        self.waiting = [row for row in self.waiting if row[0] != key]
        if key in self.managers[1] and self.managers[1].request(key).state != "releasing":
            self.managers[1].release(key)
            self.running.pop(key, None)

    def step(self) -> None:
        """Prefills requests that fit on both sides, ends at most one transfer, and decodes all requests."""
        while self.waiting and self._prefill(*self.waiting[0]):
            del self.waiting[0]
        if self.transfers and (not self.running or self.random.random() < 0.5):
            self._arrive(self.transfers.pop(self.random.randrange(len(self.transfers))))
        self._decode()

    def _prefill(self, key: int, prompt: list[int], new_tokens: int) -> bool:
        here, there = self.managers
        # Check that the request fits at its final length, so that no decode step lacks a block.
        if there.fit(prompt).fit != "ok" or not self._has_room(len(prompt) + new_tokens):
            return False
        try:
            admission = here.admit(key, prompt)
        except OutOfBlocksError:
            return False
        self.memories[0].step([(admission.block_ids, prompt, admission.cached_tokens)])
        here.commit(key, len(prompt))
        ticket = here.fence()
        here.release(key, until=ticket)
        target = there.admit(key, prompt, external_tokens=len(prompt) - 1)
        # The decode side already has the blocks that it found in its cache, so the transfer leaves them out.
        wanted = range(
            target.cached_blocks, target.cached_blocks - -target.external_tokens // there.block_size
        )
        self.lengths[key] = len(prompt) + new_tokens
        self.transfers.append(Transfer(key, prompt, ticket, admission.block_ids, target.block_ids, wanted))
        return True

    def _has_room(self, length: int) -> bool:
        manager = self.managers[1]
        size, usable = manager.block_size, manager.num_blocks - 1
        held = [
            *(row[1] for row in self.running.values()),
            *(self.lengths[transfer.key] for transfer in self.transfers),
        ]
        return sum(-(-tokens // size) for tokens in [*held, length]) <= usable

    def _arrive(self, transfer: Transfer) -> None:
        """Ends a transfer. If blocks were lost, the decode side computes them."""
        here, there = self.managers
        size = there.block_size
        arrived = [block for block in transfer.wanted if self.random.random() >= self.lost]
        self.memories[1].copy(((transfer.source[i], transfer.target[i]) for i in arrived), self.memories[0])
        here.end_fence(transfer.ticket)
        if transfer.wanted and transfer.key in there:
            failed = [(i * size, (i + 1) * size) for i in transfer.wanted if i not in arrived]
            there.external_done(transfer.key, failed=failed)
        if transfer.key not in there:
            return  # aborted during the transfer; the release has ended now
        info = there.request(transfer.key)
        self.computed_again += len(transfer.tokens) - 1 - info.computed_tokens
        self.memories[1].step([(transfer.target, transfer.tokens, info.computed_tokens)])
        there.commit(transfer.key, len(transfer.tokens))
        self.running[transfer.key] = (
            [*transfer.tokens, next_token(transfer.tokens)],
            self.lengths[transfer.key],
        )

    def _decode(self) -> None:
        there = self.managers[1]
        for key, (tokens, length) in list(self.running.items()):
            if len(tokens) == length:
                there.release(key)
                del self.running[key]
                self.done[key] = tokens
        there.append(list(self.running), [tokens[-1] for tokens, _ in self.running.values()], commit=True)
        self.memories[1].step(
            (there.block_ids(key), tokens, len(tokens) - 1) for key, (tokens, _) in self.running.items()
        )
        for tokens, _ in self.running.values():
            tokens.append(next_token(tokens))


def serve(service: Service, prompts: Sequence[list[int]], new_tokens: int) -> int:
    """Runs all requests. Returns the number of steps."""
    for key, prompt in enumerate(prompts):
        service.submit(key, list(prompt), new_tokens)
    steps = 0
    while service.busy:
        service.step()
        steps += 1
    return steps


def main() -> None:
    """Serves twenty prompts, without losses and with transfers that lose a tenth of the blocks."""
    prompts = [[*range(12), *[number] * (3 + number)] for number in range(20)]
    for lost in (0.0, 0.1):
        service = Service((40, 60), 4, lost=lost)
        steps = serve(service, prompts, 10)
        stats = service.managers[1].stats()
        print(
            f"{lost:.0%} lost: {steps} steps, {stats.external_tokens} tokens transferred, "
            f"{stats.hit_tokens} cached, "
            f"{service.computed_again} computed again"
        )


if __name__ == "__main__":
    main()
