"""The scheduler: continuous batching on kvpool.

It decides which sequences compute which tokens in a step, and with which blocks.

One step of the engine has these parts. The names in brackets are the calls of kvpool:

1. *Settle*: completes swaps whose copies have ended (``PlanExecutor.poll``). Then it makes the copies
   that the last commit and the last forks have planned (``PlanExecutor.run``). Until then the planned
   copies reserve their blocks.
2. *Advance*: running sequences get blocks for their next *chunks*, and the manager gets the sampled
   tokens, in one call for the batch (``CacheManager.append_ragged``). A decode is a chunk of one token.
   The token budget cuts a prompt into chunks, and both kinds share a batch. A chunk ends where a state
   can be kept (``next_checkpoint``). The call must not cover more than the chunk, because a state is
   kept only where the table ends. A sequence that shares its last block with other samples gets a copy
   of it: copy-on-write, planned by the manager.
3. *Admit*: waiting sequences start, oldest first, while the token budget and blocks are left. New
   sequences use ``admit``, which finds the cached prefix. Preempted ones use ``resume``, and swapped
   ones ``swaps.begin_in``.
4. *Execute*: makes the planned copies (``PlanExecutor.run``) before anything writes KV. Copies for
   copy-on-write are complete on return; copies of swaps run while the model computes.
5. The engine runs the model over the chunks.
6. *Commit*: other sequences can hit the computed blocks from now on (``commit``). Windows release
   the blocks that no later token reads. Copies of states are planned, which the next step makes before
   it overwrites the states. Then tokens are sampled, prompts branch into their samples (``fork``), and
   ended sequences are released (``release``).

With several KV-cache groups the calls are the same. Each group has a table, and each reported change of
a table names its group.

When blocks run out, the youngest running sequence is preempted, by swap or by recompute. This always
makes progress:

- A request that does not fit into an empty pool is refused when it is submitted.
- Sequences start in order of age, and the youngest is preempted first. So the oldest running sequence
  runs until it ends, and the oldest waiting sequence is the next to start.
- While the copies of a swap run, no sequence starts or is preempted. A sequence that lacks a block
  skips the step. Copies end soon, so this does not last long.
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
    """Decides which tokens each step computes.

    Args:
        manager: The manager of the blocks.
        executor: Copies the content of blocks.
        groups: The groups of the model's layers.
        preempt: How a sequence is preempted: its blocks are moved to the host tier, or dropped and
            computed again.
        token_budget: Largest number of tokens that a step computes.
        max_running: Largest number of sequences that run at once; the samples of the last admitted
            request may exceed it.
        prefix_caching: Whether computed blocks can be hit by other sequences, and by a sequence that
            resumes.
        on_new_blocks: Called with new blocks of sequences, before anything is written to them.
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
        #: Running sequences, oldest first.
        self.running: list[Sequence] = []
        #: New, preempted or swapped sequences, oldest first.
        self.waiting: list[Sequence] = []
        #: Sequences whose blocks are being swapped, by the number of the swap.
        self.moving: dict[int, Sequence] = {}
        #: Numbers of the swaps that began in this step. The next executed plan contains their copies.
        self._begun: list[int] = []
        #: Number of shared blocks that the executor copied before a write.
        self.cow_copies = 0

    @property
    def busy(self) -> bool:
        """Whether the scheduler has any sequence that is not finished."""
        return bool(self.running or self.waiting or self.moving)

    def submit(self, request: Request) -> None:
        """Queues a request.

        Raises:
            RequestTooLargeError: The request needs more blocks than the pool has.
        """
        # Only one sample has to fit, because the others can be preempted and resumed one by one. The
        # last token needs no slot, because no token reads it.
        slots, size = len(request.prompt) + request.sampling.max_tokens - 1, self._manager.block_size
        # Windows release blocks only in commits. Without commits the whole request counts as one chunk.
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
        """Ends a request, whether its sequences run, wait or are being swapped."""
        for sequence in request.sequences:
            if sequence in self.moving.values():
                continue  # copies still use its blocks; _settle releases them
            (self.running if sequence in self.running else self.waiting).remove(sequence)
            if sequence.key in self._manager:
                self._manager.release(sequence.key)
        request.sequences.clear()

    def schedule(self) -> list[Chunk]:
        """Returns the chunks of the step. The list is empty if the step can only wait for copies."""
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
        """Records that the KV of these chunks is written."""
        # Only committed blocks can be hit. So the scheduler switches prefix caching off by not
        # committing.
        if self._prefix_caching:
            self._manager.commit([chunk.sequence.key for chunk in chunks], [chunk.stop for chunk in chunks])
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.computed = chunk.stop
            for group in self._windows:  # block 0 replaces released blocks
                sequence.tables[group] = self._manager.block_ids(sequence.key, group=group)

    def branch(self, parent: Sequence) -> list[Sequence]:
        """Makes the other samples of a request whose prompt is computed.

        All samples share the blocks of the prompt, including the last block.
        """
        samples = [parent]
        for sample in range(1, parent.request.sampling.n):
            child = Sequence(parent.request, sample, list(parent.tokens), parent.known)
            try:
                # A fork gives the child a copy of each recurrent state at once. Each copy needs a
                # block.
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
        """Ends a sequence. Its committed blocks remain cached until they are evicted."""
        if sequence in self.running:
            self._manager.release(sequence.key)
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.request.sequences.remove(sequence)

    def _settle(self, finished: Iterable[FinishedSwap]) -> None:
        """Moves sequences whose swaps have completed to the running or the waiting sequences."""
        for swap in finished:
            sequence = self.moving.pop(swap.swap)
            if sequence not in sequence.request.sequences:
                self._manager.release(sequence.key)  # aborted during the swap
                continue
            if swap.error is not None:
                self._drop(sequence)  # the swap was taken back: its KV is computed again instead
            runs = self._manager.request(sequence.key).state == "running"
            sequence.tables = self._tables(sequence) if runs else []
            bisect.insort(self.running if runs else self.waiting, sequence, key=_age)

    def _tables(self, sequence: Sequence) -> list[list[int]]:
        """Returns the block tables of a sequence, one for each KV-cache group."""
        return [self._manager.block_ids(sequence.key, group=group) for group in range(len(self._groups))]

    def _advance(self) -> tuple[list[Chunk], bool]:
        """Distributes the token budget over the running sequences.

        Returns the chunks, and whether all of them got blocks without a preemption.
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
        # Swaps whose copies are still running will free blocks. So a sequence that gets no blocks only skips
        # this step.
        covered = []
        for chunk in chunks:
            with contextlib.suppress(OutOfBlocksError):
                self._cover([chunk])
                covered.append(chunk)
        return covered, False

    def _chunks(self) -> list[Chunk]:
        """Returns the chunks that running sequences could compute: decodes, then prompts, oldest first."""
        rows, chunks = self._token_budget, []
        for sequence in sorted(self.running, key=lambda sequence: sequence.left > 1):
            if rows > 0:
                chunks.append(self._chunk(sequence, rows))
                rows -= chunks[-1].rows
        return chunks

    def _chunk(self, sequence: Sequence, rows: int) -> Chunk:
        """Returns the next chunk of a sequence, of at most ``rows`` tokens."""
        start, stop = sequence.computed, min(len(sequence.tokens), sequence.computed + rows)
        if self._has_states and self._prefix_caching and stop > start + 1:
            stop = min(stop, self._manager.next_checkpoint(sequence.key) or stop)
        return Chunk(sequence, start, stop)

    def _cover(self, chunks: list[Chunk]) -> None:
        """Allocates the blocks of chunks, and passes their sampled tokens to the manager, all or nothing.

        Raises:
            OutOfBlocksError: Too few blocks are available. Nothing has changed.
        """
        sampled, offsets = [], [0]
        for chunk in chunks:
            sampled += chunk.sequence.tokens[chunk.sequence.known : chunk.stop]
            offsets.append(len(sampled))
        keys = [chunk.sequence.key for chunk in chunks]
        changes = self._manager.append_ragged(
            keys, sampled, offsets, covered=[chunk.stop for chunk in chunks]
        )
        # Each change has these columns: row of the call, position in the table, block. With several
        # groups there is a fourth column: the group.
        columns = changes if len(self._groups) > 1 else (*changes, [0] * len(changes[0]))
        for row, index, block, group in zip(*columns, strict=True):
            table = chunks[row].sequence.tables[group]
            if index < len(table):
                table[index] = block  # a copy replaces a shared block
                self.cow_copies += 1
            else:
                table.append(block)
        self._on_new_blocks(changes[2])
        for chunk in chunks:
            chunk.sequence.known = max(chunk.sequence.known, chunk.stop)

    def _preempt_youngest(self) -> None:
        """Preempts the youngest sequence and releases its blocks.

        If it is recomputed later, its blocks are available immediately. If it is swapped, they are
        available after the copies.
        """
        assert len(self.running) > 1, "a sequence that submit() has accepted fits into an empty pool"
        victim = self.running.pop()
        if self._preempt_by == "swap" and self._manager.swaps.fit_out([victim.key]) == "ok":
            self._begin(self._manager.swaps.begin_out([victim.key]), victim)
        else:
            self._drop(victim)
            bisect.insort(self.waiting, victim, key=_age)

    def _drop(self, sequence: Sequence) -> None:
        """Releases the blocks of a sequence on the device or in the host tier.

        Keeps the tokens of the sequence, whose KV will be computed again.
        """
        self._manager.preempt(sequence.key)
        sequence.tables, sequence.computed = [], 0

    def _begin(self, swap: int, sequence: Sequence) -> None:
        self.moving[swap] = sequence
        self._begun.append(swap)

    def _admit(self, chunks: list[Chunk]) -> None:
        """Admits waiting sequences, and adds their chunks to the step.

        If the oldest waiting sequence does not fit, all others wait, too.
        """
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
        """Starts a waiting sequence.

        A new or preempted sequence acquires its cached blocks. For a swapped sequence, begins to copy
        its blocks back to the device. :meth:`_cover` allocates the other blocks later, because the end
        of the first chunk depends on the hit.

        Raises:
            OutOfBlocksError: Too few blocks are available. Nothing has changed.
        """
        key, manager, request = sequence.key, self._manager, sequence.request
        if key not in manager:
            fits = manager.fit(request.hashed, by_group=True)
            self._start(sequence, manager.admit(key, request.hashed, allocate_tokens=0))
            if request.hit is None:
                request.hit = Hit(sequence.computed, [fit.reach_tokens for fit in fits])
        elif manager.request(key).state == "preempted":
            self._start(sequence, manager.resume(key, allocate_tokens=0))
        else:
            self._begin(manager.swaps.begin_in([key]), sequence)
            self.waiting.remove(sequence)

    def _start(self, sequence: Sequence, admission: Admission) -> None:
        """Adds a sequence with these blocks to the running sequences. Its cached tokens count as computed."""
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
