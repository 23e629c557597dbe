"""A scheduler written on ``CacheManager``, with one call per step.

It has continuous batching, chunked prefill and rejected drafts.

A row of ``append_ragged`` contains three facts about a request: the tokens that the last step has
added, the number of computed tokens, and the end of the slots that the next step needs.

| state of the request | its tokens in the row | ``computed`` | ``covered`` |
|---|---|---|---|
| in its prompt | none | end of the last chunk | end of the next chunk |
| decoding | the sampled one | all but that one | all |
| decoding, drafts | accepted drafts and the sampled one | all but the last | all, and the next drafts |
| preempted just now | as above; the manager keeps them for ``resume`` | ignored | ignored |

A row commits the tokens of the step before. A request that ends or is preempted has no later row,
so the scheduler calls ``commit`` before ``release`` and before ``preempt``.

Rejected drafts need no call. They were never tokens of the request, only slots after its last token,
which the next step overwrites.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import kvpool
from examples.ports.memory import Memory
from kvpool.errors import OutOfBlocksError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Request", "Scheduler", "continuation", "main", "next_token"]


def next_token(tokens: Sequence[int]) -> int:
    """Stands for the model: returns the next token of a sequence."""
    return (3 * sum(tokens[-4:]) + len(tokens)) % 11


def continuation(prompt: Sequence[int], new_tokens: int) -> list[int]:
    """Returns the prompt, followed by the tokens that the model generates."""
    tokens = list(prompt)
    for _ in range(new_tokens):
        tokens.append(next_token(tokens))
    return tokens


@dataclass(eq=False, slots=True)
class Request:
    """The scheduler's data about one request. ``computed <= known <= len(tokens)``."""

    key: int
    tokens: list[int]
    #: Number of tokens, prompt included, at which the request ends.
    length: int
    #: Number of tokens that the manager knows, and number of tokens whose KV is written.
    known: int = 0
    computed: int = 0
    table: list[int] = field(default_factory=list)
    #: Draft tokens that the next step computes after the last token, to see whether the model agrees.
    drafts: list[int] = field(default_factory=list)
    #: Position at which the next step stops computing, without drafts.
    end: int = 0


class Scheduler:
    """A scheduler with continuous batching.

    Args:
        manager: The manager of the blocks.
        memory: The memory that steps write and read.
        budget: Largest number of tokens that a step computes, without drafts.
        drafts: Number of draft tokens after each sampled one.
    """

    def __init__(self, manager: kvpool.CacheManager, memory: Memory, *, budget: int, drafts: int = 0) -> None:
        self.manager = manager
        self.memory = memory
        self.budget = budget
        self.drafts = drafts
        #: Running requests, oldest first.
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.done: dict[int, list[int]] = {}
        self.preemptions = 0

    def submit(self, key: int, prompt: list[int], new_tokens: int) -> None:
        """Queues a request."""
        self.waiting.append(Request(key, list(prompt), len(prompt) + new_tokens))

    def step(self) -> None:
        """Plans a step, runs it, and processes the tokens that it sampled."""
        left = self._grow()
        self._admit(left)
        batch = [request for request in self.running if request.end > request.computed]
        self.memory.step(
            (request.table, request.tokens[: request.end] + request.drafts, request.computed)
            for request in batch
        )
        for request in batch:
            self._sample(request)

    def _grow(self) -> int:
        """Passes one step to the manager in a single call. Returns the rest of the token budget."""
        left = self._share()
        rows = list(self.running)
        tokens: list[int] = []
        offsets = [0]
        for request in rows:
            tokens += request.tokens[request.known :]
            offsets.append(len(tokens))
        while True:
            try:
                changes = self.manager.append_ragged(
                    [request.key for request in rows],
                    tokens,
                    offsets,
                    computed=[request.computed for request in rows],
                    covered=[request.end + len(request.drafts) for request in rows],
                )
            except OutOfBlocksError:
                self._preempt(self.running.pop())  # the youngest; its row stays in the call
                continue
            break
        for row, position, block in zip(*changes, strict=True):
            rows[row].table[position:] = [block]
        for request in rows:
            request.known = len(request.tokens)
        return left

    def _share(self) -> int:
        """Distributes the token budget: first to decodes, then to chunks of prompts, oldest first."""
        left = self.budget
        for request in sorted(self.running, key=lambda request: len(request.tokens) - request.computed > 1):
            request.end = request.computed + min(len(request.tokens) - request.computed, left)
            left -= request.end - request.computed
            samples = request.end == len(request.tokens) and request.end > request.computed
            most = min(self.drafts, request.length - request.end - 1) if samples else 0
            # This draft model is poor on purpose: every third token is wrong.
            guess = continuation(request.tokens, most)[len(request.tokens) :]
            request.drafts = [
                (token + (len(request.tokens) + i) % 3 // 2) % 11 for i, token in enumerate(guess)
            ]
        return left

    def _preempt(self, request: Request) -> None:
        """Preempts a request.

        Commits the tokens of the last step first, because the refused call has committed nothing.
        Otherwise ``resume`` would compute these tokens again.
        """
        self.manager.commit(request.key, min(request.computed, request.known))
        self.manager.preempt(request.key)
        self.waiting.appendleft(request)
        self.preemptions += 1
        request.table, request.drafts = [], []
        request.computed = request.end = 0

    def _admit(self, left: int) -> None:
        """Admits waiting requests, with blocks for their first chunk."""
        while self.waiting and left > 0:
            request = self.waiting[0]
            try:
                if request.key in self.manager:
                    admission = self.manager.resume(request.key, allocate_tokens=left)
                else:
                    admission = self.manager.admit(request.key, request.tokens, allocate_tokens=left)
            except OutOfBlocksError:
                return
            self.running.append(self.waiting.popleft())
            request.table, request.computed = admission.block_ids, admission.cached_tokens
            request.known = len(request.tokens)
            request.end = min(len(request.tokens), request.computed + left)
            left -= request.end - request.computed

    def _sample(self, request: Request) -> None:
        """Accepts the correct drafts of a request, and samples one more token.

        Does nothing if the prompt is not completely computed.
        """
        request.computed = request.end
        if request.end < len(request.tokens):
            return
        drafts, request.drafts = request.drafts, []
        for draft in [*drafts, -1]:
            token = next_token(request.tokens)
            request.tokens.append(token)
            if token != draft:
                break
            request.computed += 1
        if len(request.tokens) >= request.length:
            self._finish(request)
            self.running.remove(request)
            self.done[request.key] = request.tokens

    def _finish(self, request: Request) -> None:
        """Ends a request. Commits the tokens of its last step first, because no later call does so."""
        if request.computed > request.known:  # accepted drafts
            self.manager.append(request.key, request.tokens[request.known : request.computed])
        self.manager.commit(request.key, request.computed)
        self.manager.release(request.key)


def main() -> None:
    """Serves twenty prompts with a common prefix: first plainly, then with chunks, drafts and few blocks."""
    prompts = [[*range(24), *[number] * (3 + 2 * number)] for number in range(20)]
    for blocks, budget, drafts in ((400, 10_000, 0), (60, 32, 3)):
        # The watermark is the share of blocks that admissions leave free for running requests. It
        # avoids preemptions.
        manager = kvpool.CacheManager(blocks, 4, watermark=0.05)
        scheduler = Scheduler(manager, Memory(blocks, 4), budget=budget, drafts=drafts)
        for key, prompt in enumerate(prompts):
            scheduler.submit(key, prompt, new_tokens=20)
        steps = 0
        while scheduler.running or scheduler.waiting:
            scheduler.step()
            steps += 1
        right = all(scheduler.done[key] == continuation(prompt, 20) for key, prompt in enumerate(prompts))
        stats = scheduler.manager.stats()
        print(
            f"{blocks} blocks, {budget} tokens a step, {drafts} drafts: {steps} steps, {stats.hit_tokens} "
            "tokens "
            f"cached, {scheduler.preemptions} preemptions, all as they should be: {right}"
        )


if __name__ == "__main__":
    main()
