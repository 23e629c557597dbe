"""The scheduler: which sequences compute which tokens in a step, and with which blocks. Continuous batching on kvpool.

One step of the engine, and what it asks of kvpool:

1. *Settle*: swaps whose copies have ended are completed (``PlanExecutor.poll``).
2. *Append*: every token that the last step sampled gets a slot (``CacheManager.append``, one call for the batch). A
   sequence that shares its last block with other samples gets a copy of it: copy-on-write, planned by the manager.
3. *Admit*: waiting sequences come in, oldest first, as long as there are rows to compute and blocks to hold: new ones
   (``admit``, which finds the cached prefix), preempted ones (``resume``), swapped ones (``begin_swap_in``).
4. *Execute*: the planned copies are made (``PlanExecutor.run``), before anything writes KV. Copy-on-write is done on
   return, swaps go on while the model computes.
5. The engine runs the model over the *chunks*: tokens that have slots and are not computed. A decode is a chunk of one
   token, a prompt is as many chunks as the token budget makes of it, and the two share a batch.
6. *Commit*: what is computed can be hit by others from now on (``commit_batch``). Then tokens are sampled, prompts
   branch into their samples (``fork``), and what is over is released (``release``).

When blocks run out, the youngest running sequence gives way, by swap or by recompute. This cannot go round in circles:

- What does not fit an empty pool is refused when it is submitted.
- Sequences enter in order of age, and the youngest leaves first: all that wait are younger than all that run. So the
  oldest one runs until it is over.
- While copies of swaps are under way, nobody enters and nobody is preempted: who lacks a block sits the step out.
  Copies end, so that is not for long.
"""

from __future__ import annotations

import bisect
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kvpool.errors import OutOfBlocksError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from examples.paged_engine.sampling import Sampling
    from kvpool import Admission, CacheManager
    from kvpool.hashing import HashCursor
    from kvpool.transfer import FinishedSwap, PlanExecutor

__all__ = ["Chunk", "Request", "RequestTooLargeError", "Scheduler", "Sequence"]


class RequestTooLargeError(ValueError):
    """A request that would not fit an otherwise empty pool, however long it waits."""


@dataclass(eq=False, slots=True)
class Request:
    """A prompt, and how it is to be continued."""

    number: int
    prompt: list[int]
    sampling: Sampling
    #: The prompt's block hashes: made once, however often the request has to try.
    hashed: HashCursor
    #: Samples that are not over.
    sequences: list[Sequence] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Sequence:
    """One sample of a request: its tokens, and how far they are. ``computed <= slots <= len(tokens)``."""

    request: Request
    sample: int
    #: The prompt and what was sampled.
    tokens: list[int]
    #: Tokens that have a slot in a block, the ones that the manager knows: all but one that was sampled just now.
    slots: int
    #: Tokens whose KV is written.
    computed: int = 0
    #: The blocks, as the manager has them; empty while preempted or swapped out.
    table: list[int] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Its name in the manager."""
        return f"{self.request.number}.{self.sample}"

    @property
    def age(self) -> tuple[int, int]:
        """Sorts the oldest first."""
        return (self.request.number, self.sample)

    @property
    def left(self) -> int:
        """Tokens that can be computed now."""
        return self.slots - self.computed


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens ``start`` to ``stop`` of a sequence, computed in one step."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def samples(self) -> bool:
        """Whether its last token decides the next one. If that is known, KV that was lost is only computed again."""
        return self.stop == len(self.sequence.tokens)


class Scheduler:
    """Decides what each step computes.

    Args:
        manager: Has the blocks.
        executor: Moves their content.
        preempt: How a sequence gives way: its blocks move to the host tier, or are dropped and computed again.
        token_budget: Tokens that a step computes, at most.
        max_running: Sequences that run at once, at most; the samples of the last admitted request may exceed it.
        prefix_caching: Whether what is computed can be hit by others, and by a sequence that comes back.

    """

    def __init__(
        self,
        manager: CacheManager,
        executor: PlanExecutor,
        *,
        preempt: Literal["swap", "recompute"] = "swap",
        token_budget: int = 256,
        max_running: int = 64,
        prefix_caching: bool = True,
    ) -> None:
        self._manager = manager
        self._executor = executor
        self._preempt_by = preempt
        self._token_budget = token_budget
        self._max_running = max_running
        self._prefix_caching = prefix_caching
        #: Oldest first.
        self.running: list[Sequence] = []
        #: New, preempted or swapped out; oldest first.
        self.waiting: list[Sequence] = []
        #: Sequences on their way from one tier to the other, by the number of their swap.
        self.moving: dict[int, Sequence] = {}
        #: Swaps begun in this step: their copies are in the plan that is executed next.
        self._begun: list[int] = []
        #: Shared blocks that were copied to be written.
        self.cow_copies = 0

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.running or self.waiting or self.moving)

    # --- What requests do ------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queues a request.

        Raises:
            RequestTooLargeError: It could never run.

        """
        # Samples that gave way come back one by one: one of them, alone, has to fit. The last token needs no slot.
        slots = len(request.prompt) + request.sampling.max_tokens - 1
        needed, usable = -(-slots // self._manager.block_size), self._manager.num_blocks - 1
        if needed > usable:
            lengths = f"a prompt of {len(request.prompt)} tokens and {request.sampling.max_tokens} more"
            raise RequestTooLargeError(f"{lengths} need {needed} blocks: the pool has {usable}")
        first = Sequence(request, 0, list(request.prompt), slots=len(request.prompt))
        request.sequences.append(first)
        bisect.insort(self.waiting, first, key=_age)

    def abort(self, request: Request) -> None:
        """Ends a request, wherever its sequences are."""
        for sequence in request.sequences:
            if sequence in self.moving.values():
                continue  # its blocks take part in copies: _settle releases them
            (self.running if sequence in self.running else self.waiting).remove(sequence)
            if sequence.key in self._manager:
                self._manager.release(sequence.key)
        request.sequences.clear()

    # --- One step --------------------------------------------------------------------------------------------------

    def schedule(self) -> list[Chunk]:
        """Says what the step computes: nothing, if all that it could do was to wait for copies."""
        self._settle(self._executor.poll())
        if self._append() and not self.moving:
            self._admit()
        begun, self._begun = self._begun, []
        self._executor.run(begun)
        chunks = self._chunks()
        if not chunks:
            self._settle(self._executor.wait())
        return chunks

    def commit(self, chunks: list[Chunk]) -> None:
        """Says that the chunks' KV is written."""
        # Only what is committed can be hit: never to do so is how prefix caching is switched off.
        if self._prefix_caching:
            self._manager.commit_batch([chunk.sequence.key for chunk in chunks], [chunk.stop for chunk in chunks])
        for chunk in chunks:
            chunk.sequence.computed = chunk.stop

    def branch(self, parent: Sequence) -> list[Sequence]:
        """Makes the samples of a request whose prompt is computed. They share its blocks, the last one included."""
        samples = [parent]
        for sample in range(1, parent.request.sampling.n):
            tokens, table = list(parent.tokens), list(parent.table)
            child = Sequence(parent.request, sample, tokens, parent.slots, parent.computed, table)
            self._manager.fork(parent.key, child.key)
            bisect.insort(self.running, child, key=_age)
            child.request.sequences.append(child)
            samples.append(child)
        return samples

    def finish(self, sequence: Sequence) -> None:
        """Ends a running sequence. What it committed stays cached until the blocks are needed."""
        self._manager.release(sequence.key)
        self.running.remove(sequence)
        sequence.request.sequences.remove(sequence)

    # --- The parts of schedule() -----------------------------------------------------------------------------------

    def _settle(self, finished: Iterable[FinishedSwap]) -> None:
        """Puts sequences where their swaps have brought them."""
        for swap in finished:
            sequence = self.moving.pop(swap.swap)
            if sequence not in sequence.request.sequences:
                self._manager.release(sequence.key)  # aborted on the way
                continue
            if swap.error is not None:
                self._drop(sequence)  # the swap was taken back: its KV is computed again instead
            runs = self._manager.request(sequence.key).state == "running"
            sequence.table = self._manager.block_ids(sequence.key) if runs else []
            bisect.insort(self.running if runs else self.waiting, sequence, key=_age)

    def _append(self) -> bool:
        """Gives the tokens that were sampled their slots. Returns whether there were blocks for all of them."""
        with contextlib.suppress(OutOfBlocksError):
            self._append_batch(self._sampled())
            return True
        while not self.moving:
            self._preempt_youngest()
            with contextlib.suppress(OutOfBlocksError):
                self._append_batch(self._sampled())
                return False
        # Blocks are on their way: who gets none now sits this step out.
        for sequence in self._sampled():
            with contextlib.suppress(OutOfBlocksError):
                self._append_batch([sequence])
        return False

    def _sampled(self) -> list[Sequence]:
        """Sequences that run and whose last token has no slot yet."""
        return [sequence for sequence in self.running if sequence.slots < len(sequence.tokens)]

    def _append_batch(self, batch: list[Sequence]) -> None:
        """Appends the last token of each sequence, all or nothing."""
        changes = self._manager.append([s.key for s in batch], [s.tokens[-1] for s in batch])
        for row, index, block in changes:
            table = batch[row].table
            if index < len(table):
                table[index] = block  # a copy in the place of a shared block
                self.cow_copies += 1
            else:
                table.append(block)
        for sequence in batch:
            sequence.slots += 1

    def _preempt_youngest(self) -> None:
        """Takes a sequence's blocks away. By recompute they are available at once, by swap when the copies are done."""
        assert len(self.running) > 1, "alone, a sequence that submit() has let in finds its blocks"
        victim = self.running.pop()
        if self._preempt_by == "swap" and self._manager.fit_swap_out([victim.key]) == "ok":
            self._begin(self._manager.begin_swap_out([victim.key]), victim)
        else:
            self._drop(victim)
            bisect.insort(self.waiting, victim, key=_age)

    def _drop(self, sequence: Sequence) -> None:
        """Gives up a sequence's blocks, in whichever tier. Its tokens stay, to be computed again."""
        self._manager.preempt(sequence.key)
        sequence.table, sequence.computed = [], 0

    def _begin(self, swap: int, sequence: Sequence) -> None:
        """Notes a swap that the manager has begun."""
        self.moving[swap] = sequence
        self._begun.append(swap)

    def _admit(self) -> None:
        """Lets waiting sequences in. Nobody overtakes: if there is no room for the oldest, all wait."""
        rows = self._token_budget - sum(sequence.left for sequence in self.running)
        while self.waiting and rows > 0 and len(self.running) + len(self.moving) < self._max_running:
            sequence = self.waiting[0]
            try:
                self._enter(sequence)
            except OutOfBlocksError:
                return
            del self.waiting[0]
            rows -= sequence.left

    def _enter(self, sequence: Sequence) -> None:
        """Gets a waiting sequence its blocks, in the way that its state asks for.

        Raises:
            OutOfBlocksError: Too few are available; nothing has changed.

        """
        key, manager = sequence.key, self._manager
        if key not in manager:
            self._start(sequence, manager.admit(key, sequence.request.hashed))
        elif manager.request(key).state == "preempted":
            self._start(sequence, manager.resume(key))
        else:
            self._begin(manager.begin_swap_in([key]), sequence)

    def _start(self, sequence: Sequence, admission: Admission) -> None:
        """Lets a sequence run on the blocks that it got. Cached tokens are computed already."""
        sequence.table, sequence.computed = admission.block_ids, admission.cached_tokens
        bisect.insort(self.running, sequence, key=_age)

    def _chunks(self) -> list[Chunk]:
        """Shares the token budget out: decodes first, then prompts, the oldest first."""
        rows, chunks = self._token_budget, []
        for sequence in sorted(self.running, key=lambda sequence: sequence.left > 1):
            count = min(sequence.left, rows)
            if count > 0:
                chunks.append(Chunk(sequence, sequence.computed, sequence.computed + count))
                rows -= count
        return chunks


def _age(sequence: Sequence) -> tuple[int, int]:
    return sequence.age
