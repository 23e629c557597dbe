"""The scheduler: which sequences compute which tokens in a step, and with which blocks. Continuous
batching on kvpool.

One step of the engine, and what it asks of kvpool:

1. *Settle*: swaps whose copies have ended are completed (``PlanExecutor.poll``), and the copies are
   made that the last commit and the last forks have planned (``PlanExecutor.run``): until then they
   hold blocks.
2. *Advance*: running sequences get blocks for the *chunks* that they compute now, and the tokens that
   were sampled, in one call for the batch (``CacheManager.append_ragged``). A decode is a chunk of one
   token, a prompt is as many chunks as the token budget makes of it, and the two share a batch. A chunk
   ends where a state can be kept (``next_checkpoint``), and blocks for more must not be asked for:
   whoever has them may have gone on. A sequence that shares its last block with other samples gets a
   copy of it: copy-on-write, planned by the manager.
3. *Admit*: waiting sequences come in, oldest first, as long as there are rows to compute and blocks to
   hold: new ones (``admit``, which finds the cached prefix), preempted ones (``resume``), swapped ones
   (``begin_swap_in``).
4. *Execute*: the planned copies are made (``PlanExecutor.run``), before anything writes KV.
   Copy-on-write is done on return, swaps go on while the model computes.
5. The engine runs the model over the chunks.
6. *Commit*: what is computed can be hit by others from now on (``commit_batch``); windows give up what
   no token to come reads, and copies of states are planned, which the next step makes before it
   overwrites the states. Then tokens are sampled, prompts branch into their samples (``fork``), and
   what is over is released (``release``).

With several KV-cache groups the calls are the same: there is a table for each, and changes of tables
name the group.

When blocks run out, the youngest running sequence gives way, by swap or by recompute. This cannot go
round in circles:

- What does not fit an empty pool is refused when it is submitted.
- Sequences enter in order of age, and the youngest leaves first. So the oldest one that runs does so
  until it is over, and the oldest one that waits is the next to enter.
- While copies of swaps are under way, nobody enters and nobody is preempted: who lacks a block sits the
  step out. Copies end, so that is not for long.
"""

from __future__ import annotations

import bisect
import contextlib
from typing import TYPE_CHECKING, Literal

from examples.paged_engine.request import Chunk, Hit, Request, RequestTooLargeError, Sequence
from kvpool.errors import OutOfBlocksError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from examples.paged_engine.kv_cache import Group
    from kvpool import Admission, CacheManager
    from kvpool.transfer import FinishedSwap, PlanExecutor

__all__ = ["Scheduler"]


class Scheduler:
    """Decides what each step computes.

    Args:
        manager: Has the blocks.
        executor: Moves their content.
        groups: What the model keeps of a request.
        preempt: How a sequence gives way: its blocks move to the host tier, or are dropped and computed
            again.
        token_budget: Tokens that a step computes, at most.
        max_running: Sequences that run at once, at most; the samples of the last admitted request may
            exceed it.
        prefix_caching: Whether what is computed can be hit by others, and by a sequence that comes back.
        on_new_blocks: Called with blocks that sequences have got, before anything is written to them.

    """

    def __init__(
        self,
        manager: CacheManager,
        executor: PlanExecutor,
        groups: list[Group],
        *,
        preempt: Literal["swap", "recompute"] = "swap",
        token_budget: int = 256,
        max_running: int = 64,
        prefix_caching: bool = True,
        on_new_blocks: Callable[[list[int]], None] | None = None,
    ) -> None:
        self._manager = manager
        self._executor = executor
        self._groups = groups
        self._windows = [number for number, group in enumerate(groups) if group.window is not None]
        self._has_states = any(group.state for group in groups)
        self._preempt_by = preempt
        self._token_budget = token_budget
        self._max_running = max_running
        self._prefix_caching = prefix_caching
        self._on_new_blocks = on_new_blocks or (lambda _blocks: None)
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

    # --- What requests do
    # ------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queues a request.

        Raises:
            RequestTooLargeError: It could never run.

        """
        # Samples that gave way come back one by one: one of them, alone, has to fit. The last token
        # needs no slot.
        slots, size = len(request.prompt) + request.sampling.max_tokens - 1, self._manager.block_size
        # Without commits windows give nothing up.
        chunk = min(self._token_budget, slots) if self._prefix_caching else slots
        needed = sum(group.most_blocks(slots, size, chunk) for group in self._groups)
        usable = self._manager.num_blocks - 1
        if needed > usable:
            lengths = f"a prompt of {len(request.prompt)} tokens and {request.sampling.max_tokens} more"
            raise RequestTooLargeError(f"{lengths} need {needed} blocks: the pool has {usable}")
        first = Sequence(request, 0, list(request.prompt), known=len(request.prompt))
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

    # --- One step
    # --------------------------------------------------------------------------------------------------

    def schedule(self) -> list[Chunk]:
        """Says what the step computes: nothing, if all that it could do was to wait for copies."""
        self._settle(self._executor.poll())
        self._executor.run()
        chunks, served = self._advance()
        if served and not self.moving:
            self._admit(chunks)
        begun, self._begun = self._begun, []
        self._executor.run(begun)
        if not chunks:
            self._settle(self._executor.wait())
        return chunks

    def commit(self, chunks: list[Chunk]) -> None:
        """Says that the chunks' KV is written."""
        # Only what is committed can be hit: never to do so is how prefix caching is switched off.
        if self._prefix_caching:
            self._manager.commit_batch(
                [chunk.sequence.key for chunk in chunks], [chunk.stop for chunk in chunks]
            )
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.computed = chunk.stop
            for group in self._windows:  # what they have given up is block 0 now
                sequence.tables[group] = self._manager.block_ids(sequence.key, group=group)

    def branch(self, parent: Sequence) -> list[Sequence]:
        """Makes the samples of a request whose prompt is computed. They share its blocks, the last one
        included.
        """
        samples = [parent]
        for sample in range(1, parent.request.sampling.n):
            child = Sequence(parent.request, sample, list(parent.tokens), parent.known)
            try:
                # Of each state the child gets a copy at once, and for that a block.
                self._manager.fork(parent.key, child.key)
            except OutOfBlocksError:
                bisect.insort(
                    self.waiting, child, key=_age
                )  # its prompt is computed again, but for what is cached
            else:
                child.computed, child.tables = parent.computed, self._tables(child)
                bisect.insort(self.running, child, key=_age)
            child.request.sequences.append(child)
            samples.append(child)
        return samples

    def finish(self, sequence: Sequence) -> None:
        """Ends a sequence. What it committed stays cached until the blocks are needed."""
        if sequence in self.running:
            self._manager.release(sequence.key)
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.request.sequences.remove(sequence)

    # --- The parts of schedule()
    # -----------------------------------------------------------------------------------

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
            sequence.tables = self._tables(sequence) if runs else []
            bisect.insort(self.running if runs else self.waiting, sequence, key=_age)

    def _tables(self, sequence: Sequence) -> list[list[int]]:
        """The block tables of a sequence, group by group."""
        return [self._manager.block_ids(sequence.key, group=group) for group in range(len(self._groups))]

    def _advance(self) -> tuple[list[Chunk], bool]:
        """Shares the token budget out to what runs. Returns the chunks, and whether there were blocks
        for all.
        """
        chunks = self._chunks()
        with contextlib.suppress(OutOfBlocksError):
            self._cover(chunks)
            return chunks, True
        while not self.moving:
            self._preempt_youngest()
            chunks = self._chunks()
            with contextlib.suppress(OutOfBlocksError):
                self._cover(chunks)
                return chunks, False
        # Blocks are on their way: who gets none now sits this step out.
        covered = []
        for chunk in chunks:
            with contextlib.suppress(OutOfBlocksError):
                self._cover([chunk])
                covered.append(chunk)
        return covered, False

    def _chunks(self) -> list[Chunk]:
        """What running sequences could compute: decodes first, then prompts, the oldest first."""
        rows, chunks = self._token_budget, []
        for sequence in sorted(self.running, key=lambda sequence: sequence.left > 1):
            if rows > 0:
                chunks.append(self._chunk(sequence, rows))
                rows -= chunks[-1].rows
        return chunks

    def _chunk(self, sequence: Sequence, rows: int) -> Chunk:
        """The next tokens of a sequence, at most so many."""
        start, stop = sequence.computed, min(len(sequence.tokens), sequence.computed + rows)
        if self._has_states and self._prefix_caching and stop > start + 1:
            stop = min(stop, self._manager.next_checkpoint(sequence.key) or stop)
        return Chunk(sequence, start, stop)

    def _cover(self, chunks: list[Chunk]) -> None:
        """Gets blocks for chunks, and tells the manager of the tokens in them that were sampled; all or
        nothing.

        Raises:
            OutOfBlocksError: Too few are available; nothing has changed.

        """
        sampled, offsets = [], [0]
        for chunk in chunks:
            sampled += chunk.sequence.tokens[chunk.sequence.known : chunk.stop]
            offsets.append(len(sampled))
        keys = [chunk.sequence.key for chunk in chunks]
        changes = self._manager.append_ragged(
            keys, sampled, offsets, covered=[chunk.stop for chunk in chunks]
        )
        # Rows of the call, positions in the table, blocks, and groups, if there are several.
        columns = changes if len(self._groups) > 1 else (*changes, [0] * len(changes[0]))
        for row, index, block, group in zip(*columns, strict=True):
            table = chunks[row].sequence.tables[group]
            if index < len(table):
                table[index] = block  # a copy in the place of a shared block
                self.cow_copies += 1
            else:
                table.append(block)
        self._on_new_blocks(changes[2])
        for chunk in chunks:
            chunk.sequence.known = max(chunk.sequence.known, chunk.stop)

    def _preempt_youngest(self) -> None:
        """Takes a sequence's blocks away. By recompute they are available at once, by swap when the
        copies are done.
        """
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
        sequence.tables, sequence.computed = [], 0

    def _begin(self, swap: int, sequence: Sequence) -> None:
        """Notes a swap that the manager has begun."""
        self.moving[swap] = sequence
        self._begun.append(swap)

    def _admit(self, chunks: list[Chunk]) -> None:
        """Lets waiting sequences in, and adds their chunks. If there is no room for the oldest, all wait."""
        rows = self._token_budget - sum(chunk.rows for chunk in chunks)
        while self.waiting and rows > 0 and len(self.running) + len(self.moving) < self._max_running:
            sequence = self.waiting[0]
            with contextlib.suppress(OutOfBlocksError):
                self._enter(sequence)
            if sequence in self.waiting:
                return
            if sequence in self.running:
                chunk = self._chunk(sequence, rows)
                try:
                    self._cover([chunk])
                except OutOfBlocksError:
                    return  # it runs, and gets its blocks when it is its turn
                chunks.append(chunk)
                rows -= chunk.rows

    def _enter(self, sequence: Sequence) -> None:
        """Gets a waiting sequence what is cached of it, or was swapped out, in the way that its state
        asks for.

        Blocks to be computed are for :meth:`_cover`: where the first chunk ends is known once the hit is.

        Raises:
            OutOfBlocksError: Too few blocks are available; nothing has changed.

        """
        key, manager, request = sequence.key, self._manager, sequence.request
        if key not in manager:
            fits = manager.fit_groups(request.hashed)
            self._start(sequence, manager.admit(key, request.hashed, allocate_tokens=0))
            if request.hit is None:
                request.hit = Hit(sequence.computed, [fit.reach_tokens for fit in fits])
        elif manager.request(key).state == "preempted":
            self._start(sequence, manager.resume(key, allocate_tokens=0))
        else:
            self._begin(manager.begin_swap_in([key]), sequence)
            self.waiting.remove(sequence)

    def _start(self, sequence: Sequence, admission: Admission) -> None:
        """Lets a sequence run on the blocks that it got. Cached tokens are computed already."""
        sequence.tables, sequence.computed = admission.tables, admission.cached_tokens
        for group, table in zip(self._groups, sequence.tables, strict=True):
            if group.state:
                self._on_new_blocks(
                    table
                )  # written by the first step, or by the copy of a state that is kept
        self.waiting.remove(sequence)
        bisect.insort(self.running, sequence, key=_age)


def _age(sequence: Sequence) -> tuple[int, int]:
    return sequence.age
