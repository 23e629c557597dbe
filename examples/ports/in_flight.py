"""Asynchronous scheduling: a step is planned while two others run, before their sampled tokens are known.

In these events, the scheduler calls kvpool:

| event | call |
|---|---|
| an unknown token is planned | ``covered=``: a slot after the last known token per step in flight |
| a step's sampled tokens become known | the next ``append_ragged(commit=True)`` contains them |
| a request has ended some steps ago | ``commit``, ``release(after_step=last step planned with it)`` |
| a request is preempted while steps run | ``commit``, ``preempt(after_step=...)``; later its tokens |
| a step has ended | ``complete_step(step)`` frees the blocks that only this step reserved |

The fence reserves the blocks of an ended request, because a step in flight still writes to them.
Without it the next request gets these blocks at once. In this example, a connector loads a prompt into
them on a stream of its own, and then the old step overwrites it. ``Scheduler(fences=False)`` shows
this.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import kvpool
from examples.ports.memory import Memory
from examples.ports.native import next_token
from kvpool.errors import OutOfBlocksError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DEPTH", "END", "Scheduler", "answer", "main"]

#: Number of steps that run while the next one is planned.
DEPTH = 2
#: The token that ends a request. It can occur at any position.
END = 5


def answer(prompt: Sequence[int], most: int) -> list[int]:
    """Returns the prompt with the model's tokens, up to the end token or ``most`` tokens."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + most and (len(tokens) == len(prompt) or tokens[-1] != END):
        tokens.append(next_token(tokens))
    return tokens


@dataclass(eq=False, slots=True)
class Request:
    """A request of this example: its tokens, and what the scheduler knows about it."""

    key: int
    tokens: list[int]
    length: int
    #: Number of the request's tokens that the manager knows.
    known: int = 0
    table: list[int] = field(default_factory=list)
    #: Number of steps in flight that compute a token of the request, and the number of the last such
    #: step.
    pending: int = 0
    last_step: int = 0
    #: The request's tokens on the device. A step reads the token of the step before it there.
    device: list[int] = field(default_factory=list)
    #: Whether the request was preempted and waits until it is resumed.
    preempted: bool = False


class Scheduler:
    """Runs the decode steps of a batch. A connector loads the prompts."""

    def __init__(self, manager: kvpool.CacheManager, memory: Memory, *, fences: bool = True) -> None:
        self.manager = manager
        self.memory = memory
        self.fences = fences
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.done: dict[int, list[int]] = {}
        #: Steps in flight. Each has its number, and its rows: request, block table, position of the
        #: token.
        self.flight: deque[tuple[int, list[tuple[Request, list[int], int]]]] = deque()
        self.number = 0

    @property
    def busy(self) -> bool:
        """Whether any request has not finished."""
        return bool(self.running or self.waiting or self.flight)

    def submit(self, key: int, prompt: list[int], most: int) -> None:
        """Queues a request."""
        self.waiting.append(Request(key, list(prompt), len(prompt) + most))

    def step(self) -> None:
        """Plans a step. If enough steps are in flight, or none can be planned, waits for the oldest one."""
        self._admit()
        if not self.running or not self._plan() or len(self.flight) > DEPTH:
            self._end()

    def _plan(self) -> bool:
        """Passes one step to the manager in a single call.

        Returns False if the step has to wait for blocks that steps in flight reserve.
        """
        rows = list(self.running)
        # If all remaining tokens of a request are in flight, the request skips the step. Its row in the
        # call only passes the tokens that are known by now.
        planned = [request for request in rows if len(request.tokens) + request.pending < request.length]
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
                    commit=True,
                    covered=[len(request.tokens) + request.pending for request in rows],
                )
            except OutOfBlocksError:
                if not self.manager.stats().pool.fenced:
                    self._preempt(self.running.pop())
                if not self.manager.stats().pool.fenced:
                    continue
                # A step in flight will free blocks soon. The refused call has changed nothing, so the
                # next plan passes the same tokens.
                return False
            break
        for row, position, block in zip(*changes, strict=True):
            rows[row].table[position:] = [block]
        for request in rows:
            request.known = len(request.tokens)
        self.number += 1
        batch = [request for request in planned if not request.preempted]
        for request in batch:
            request.pending += 1
            request.last_step = self.number
        # The rows are copied now, because a step in flight is on the device and cannot change any more.
        places = [len(request.tokens) + request.pending - 2 for request in batch]
        self.flight.append(
            (
                self.number,
                [(request, list(request.table), at) for request, at in zip(batch, places, strict=True)],
            )
        )
        return True

    def _preempt(self, request: Request) -> None:
        # Commit here, because the refused call of the step has committed nothing.
        self.manager.commit(request.key, min(request.known, len(request.tokens) - 1))
        self.manager.preempt(request.key, after_step=self._until(request))
        request.preempted, request.table = True, []
        self.waiting.appendleft(request)

    def _until(self, request: Request) -> int | None:
        return request.last_step if self.fences else None

    def _admit(self) -> None:
        """Admits waiting requests. The connector loads the whole prompt, except its last token, at once."""
        while self.waiting and not self.waiting[0].pending:
            request = self.waiting[0]
            external = len(request.tokens) - 1
            try:
                if request.preempted:
                    self.manager.append(request.key, request.tokens[request.known :])
                    request.known = len(request.tokens)
                    admission = self.manager.resume(request.key, external_tokens=external)
                else:
                    admission = self.manager.admit(request.key, request.tokens, external_tokens=external)
            except OutOfBlocksError:
                return
            self.running.append(self.waiting.popleft())
            request.table, request.known, request.preempted = admission.block_ids, len(request.tokens), False
            if external > admission.cached_tokens:
                self.memory.write(request.table, request.tokens, admission.cached_tokens, external)
                self.manager.external_done(request.key)
            request.device = list(request.tokens)

    def _end(self) -> None:
        """Ends the oldest step in flight, and processes its sampled tokens."""
        if not self.flight:
            return
        number, rows = self.flight.popleft()
        for request, table, position in rows:
            self.memory.write(table, request.device[: position + 1], position)
            if request.key not in self.done:  # otherwise it ended before, and the slot is unused
                self.memory.read(table, request.device[: position + 1])
            request.device.append(next_token(request.device[: position + 1]))
        self.manager.complete_step(number)
        for request, _, position in rows:
            request.pending -= 1
            if request.key in self.done:
                continue
            request.tokens.append(request.device[position + 1])
            if request.tokens[-1] == END or len(request.tokens) == request.length:
                self._finish(request)

    def _finish(self, request: Request) -> None:
        if not request.preempted:
            # The steps have computed the KV of all tokens but the last, which was only sampled.
            computed = len(request.tokens) - 1
            if computed > request.known:
                self.manager.append(request.key, request.tokens[request.known : computed])
            self.manager.commit(request.key, computed)
        self.manager.release(request.key, after_step=self._until(request))
        (self.waiting if request.preempted else self.running).remove(request)
        self.done[request.key] = request.tokens


def main() -> None:
    """Serves twenty prompts with fences, and shows the failure without them."""
    prompts = [[*range(12), *[number] * (3 + number % 5)] for number in range(20)]
    for fences in (True, False):
        scheduler = Scheduler(kvpool.CacheManager(30, 4), Memory(30, 4), fences=fences)
        for key, prompt in enumerate(prompts):
            scheduler.submit(key, prompt, most=30)
        try:
            while scheduler.busy:
                scheduler.step()
        except AssertionError as error:
            print(f"fences={fences}: {error}")
            continue
        right = all(scheduler.done[key] == answer(prompt, 30) for key, prompt in enumerate(prompts))
        print(f"fences={fences}: {scheduler.number} steps, all as they should be: {right}")


if __name__ == "__main__":
    main()
