"""vLLM v0's block manager against real bytes: what is written to a sequence is what it reads, step after step.

A scheduler like the ancestor's decides; a worker like the ancestor's executes: swaps in, swaps out, copies, the model.
The KV of a token is a function of the whole prefix, so a block of another prefix is noticed. The model skips what it is
told to be computed already, so a wrong promise is noticed, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from kvpool.lineage.v0.block.interfaces import Device
from kvpool.lineage.v0.block_manager import SelfAttnBlockSpaceManager
from kvpool.lineage.v0.block_manager_util import SequenceStatus
from kvpool.lineage.v0.interfaces import AllocStatus
from tests.lineage.model_memory import Memory, Tokens
from tests.lineage.rows import lineage

if TYPE_CHECKING:
    from collections.abc import Callable

WAITING, RUNNING, SWAPPED = SequenceStatus.WAITING, SequenceStatus.RUNNING, SequenceStatus.SWAPPED


class Seq:
    """An engine's sequence."""

    def __init__(self, seq_id: int, tokens: list[int]) -> None:
        self.seq_id, self.tokens = seq_id, Tokens(tokens)
        self.status = WAITING
        self.computed = 0  # tokens whose KV was written before this step
        self.prompt = len(tokens)

    def get_token_ids(self) -> list[int]:
        return self.tokens.ids

    def is_prefill(self) -> bool:
        return self.computed < self.prompt

    def get_num_computed_tokens(self) -> int:
        return self.computed


class Group:
    """An engine's group."""

    def __init__(self, request_id: str, seqs: list[Seq]) -> None:
        self.request_id, self.seqs = request_id, seqs

    def get_seqs(self, status: Any = None) -> list[Seq]:
        return [seq for seq in self.seqs if status is None or seq.status == status]

    def become(self, status: SequenceStatus) -> None:
        for seq in self.seqs:
            seq.status = status

    @property
    def prefill(self) -> bool:
        return self.seqs[0].is_prefill()


@dataclass
class Step:
    """What a step has decided."""

    swap_in: list[tuple[int, int]] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    # Groups of the step, with the tokens to be computed of each of their sequences.
    scheduled: list[tuple[Group, int]] = field(default_factory=list)
    preempted: bool = False


class Engine:
    """A scheduler in the ancestor's manner, and the memory of its worker."""

    def __init__(
        self,
        draw: Callable[..., Any],
        gpu: int,
        cpu: int,
        *,
        block_size: int,
        caching: bool,
        window: int | None,
        marks: bool,
    ) -> None:
        self.draw, self.marks, self.window = draw, marks, window
        self.manager = SelfAttnBlockSpaceManager(
            block_size, gpu, cpu, watermark=0.0, sliding_window=window, enable_caching=caching
        )
        self.memory = Memory(block_size, gpu, cpu)
        self.waiting: list[Group] = []
        self.running: list[Group] = []
        self.swapped: list[Group] = []
        self.next_id, self.now = 0, 0.0

    def maybe(self, one_in: int) -> bool:
        return bool(self.draw(st.integers(0, one_in - 1)) == 0)

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def add(self, tokens: list[int], num_seqs: int) -> None:
        seqs = [Seq(self.new_id(), list(tokens)) for _ in range(num_seqs)]
        self.waiting.append(Group(f"r{self.next_id}", seqs))

    def preempt(self, group: Group, step: Step) -> None:
        step.preempted = True
        if self.manager.can_swap_out(group) and not self.maybe(4):
            step.swap_out += self.manager.swap_out(group)
            group.become(SWAPPED)
            self.swapped.append(group)
            return
        for seq in group.seqs:
            self.manager.free(seq)
            seq.computed, seq.prompt = 0, len(seq.tokens.ids)
        group.become(WAITING)
        # What has diverged is computed again one by one.
        self.waiting += [Group(group.request_id, [seq]) for seq in group.seqs]

    def append(self, group: Group, step: Step) -> None:
        if group.prefill:
            left = group.seqs[0].prompt - group.seqs[0].computed
            step.scheduled.append((group, self.draw(st.integers(1, left))))
            return
        for seq in group.seqs:
            step.copies += self.manager.append_slots(seq, 0)
        step.scheduled.append((group, 1))

    def schedule(self) -> Step:
        step, manager = Step(), self.manager
        queue, self.running = self.running, []
        if queue and self.maybe(6):
            self.preempt(queue.pop(), step)
        while queue:
            group = queue.pop(0)
            while not group.prefill and not manager.can_append_slots(group, 0):
                if queue:
                    self.preempt(queue.pop(), step)
                    continue
                self.preempt(group, step)
                break
            else:
                self.append(group, step)
                self.running.append(group)
        if not step.preempted:
            while self.swapped and manager.can_swap_in(self.swapped[0], 0) is AllocStatus.OK:
                group = self.swapped.pop(0)
                step.swap_in += manager.swap_in(group)
                group.become(RUNNING)
                self.append(group, step)
                self.running.append(group)
            # As in the ancestor, a prompt may be looked up long before it is allocated.
            for group in self.waiting:
                manager.get_num_cached_tokens(group.seqs[0])
            while self.waiting and not self.swapped:
                group = self.waiting[0]
                status = manager.can_allocate(group)
                if status is AllocStatus.LATER:
                    break
                self.waiting.pop(0)
                if status is AllocStatus.OK:
                    manager.allocate(group)
                    group.become(RUNNING)
                    self.append(group, step)
                    self.running.append(group)
        return step

    def execute(self, step: Step) -> None:
        manager, memory = self.manager, self.memory
        tables: dict[int, list[int]] = {}
        skip: dict[int, int] = {}
        self.now += 1.0
        for group, _ in step.scheduled:
            for seq in group.seqs:
                tables[seq.seq_id] = list(manager.get_block_table(seq))
                manager.access_all_blocks_in_seq(seq, self.now)
                cached = len(manager.get_common_computed_block_ids([seq])) * memory.block_size
                skip[seq.seq_id] = cached if seq.is_prefill() else 0
        if self.marks:
            for group, chunk in step.scheduled:
                manager.mark_blocks_as_computed(group, chunk)
        memory.swap_in(step.swap_in)
        memory.swap_out(step.swap_out)
        memory.copy(step.copies)
        batch = [(seq, chunk) for group, chunk in step.scheduled for seq in group.seqs]
        for seq, chunk in batch:
            start = max(seq.computed, skip[seq.seq_id])
            memory.write(tables[seq.seq_id], seq.tokens, start, seq.computed + chunk)
        for seq, chunk in batch:
            seq.computed += chunk
            self.read(seq, tables[seq.seq_id])

    def read(self, seq: Seq, table: list[int]) -> None:
        blocks = self.manager.block_tables[seq.seq_id].blocks
        null = self.manager.block_allocator._null_block
        for at in range(seq.computed):
            if blocks[at // self.memory.block_size] is null:
                assert self.window is not None
                assert at < seq.computed - self.window
                continue
            self.memory.check(table, seq.tokens, at, at + 1, f"sequence {seq.seq_id}")

    def sample(self) -> None:
        """Each sequence that is past its prompt gets a token; some fork, some end."""
        for group in list(self.running):
            for seq in list(group.seqs):
                if seq.is_prefill():
                    continue
                if self.maybe(5) and len(group.seqs) < 4:
                    child = Seq(self.new_id(), seq.tokens.ids)
                    child.status, child.computed, child.prompt = RUNNING, seq.computed, seq.prompt
                    self.manager.fork(seq, child)
                    group.seqs.append(child)
                    child.tokens.append(self.draw(st.integers(0, 1)))
                if self.maybe(7):
                    self.manager.free(seq)
                    self.manager.remove_seq_from_computed_blocks_tracker(seq)
                    group.seqs.remove(seq)
                else:
                    seq.tokens.append(self.draw(st.integers(0, 1)))
            if not group.seqs:
                self.running.remove(group)

    def step(self) -> None:
        step = self.schedule()
        note(f"{step.swap_in=} {step.swap_out=} {step.copies=}")
        self.execute(step)
        self.sample()
        self.manager.block_allocator._tiers.check_invariants()

    def finish(self) -> None:
        for group in [*self.running, *self.swapped]:
            for seq in group.seqs:
                self.manager.free(seq)
        allocator = self.manager.block_allocator
        free = [allocator.get_num_free_blocks(device) for device in (Device.GPU, Device.CPU)]
        assert free == [allocator.get_num_total_blocks(device) for device in (Device.GPU, Device.CPU)]
        assert self.manager.block_tables == {}
        assert self.manager.reset_prefix_cache() is True
        allocator._tiers.check_invariants()


@lineage("bytes: every sequence reads back what was written, in the ancestor's order of work")
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("window", [None, 3])
@given(data=st.data())
def test_bytes(caching: bool, window: int | None, data: st.DataObject) -> None:
    draw = data.draw
    engine = Engine(
        draw,
        gpu=draw(st.integers(5, 14)),
        cpu=draw(st.integers(0, 12)),
        block_size=draw(st.sampled_from([2, 4])),
        caching=caching,
        window=window,
        marks=caching or draw(st.booleans()),
    )
    for _ in range(draw(st.integers(1, 12))):
        if engine.maybe(2):
            engine.add(draw(st.lists(st.integers(0, 1), min_size=1, max_size=9)), draw(st.integers(1, 3)))
        engine.step()
    engine.finish()


def constant(*values: int) -> Callable[..., int]:
    """Decisions that were made beforehand; after them always the last one."""
    queue = list(values)
    return lambda _: queue.pop(0) if len(queue) > 1 else queue[0]


@lineage("18: end to end: two forks append the same tokens, then a swap in of the same step")
def test_defect_18_a_swap_in_does_not_overwrite_the_source_of_a_copy() -> None:
    engine = Engine(constant(1), 8, 8, block_size=4, caching=True, window=None, marks=True)
    manager = engine.manager
    forks = Group("forks", [Seq(1, [0, 1, 0]), Seq(2, [0, 1, 0])])
    other = Group("other", [Seq(3, [1, 1, 1, 1])])
    for group in (forks, other):
        manager.allocate(group)
        group.become(RUNNING)
    engine.execute(Step(scheduled=[(forks, 3), (other, 4)]))
    engine.execute(Step(swap_out=manager.swap_out(other)))
    other.become(SWAPPED)
    manager.end_step()
    gpu = manager.block_allocator._tiers.pools[0]
    gpu.drop_cached(gpu.eviction_order())  # so that the way back is a copy
    step = Step()
    for seq in forks.seqs:
        seq.tokens.append(1)
        step.copies += manager.append_slots(seq, 0)
    ((src, dst),) = step.copies
    assert [manager.get_block_table(seq) for seq in forks.seqs] == [[dst], [dst]]
    step.swap_in += manager.swap_in(other)
    assert src not in dict(step.swap_in).values()
    other.become(RUNNING)
    other.seqs[0].tokens.append(0)
    step.copies += manager.append_slots(other.seqs[0], 0)
    step.scheduled = [(forks, 1), (other, 1)]
    engine.execute(step)
    assert all(seq.computed == len(seq.tokens.ids) for group in (forks, other) for seq in group.seqs)


@lineage("bytes: a block given up for one that a prompt is still computing, chunk by chunk")
def test_a_block_that_is_given_up_for_one_not_computed_yet() -> None:
    engine = Engine(constant(1), 8, 8, block_size=4, caching=True, window=None, marks=True)
    manager = engine.manager
    short, long = Group("short", [Seq(1, [0, 1, 0])]), Group("long", [Seq(2, [0, 1, 0, 1, 1, 1])])
    manager.allocate(short)
    short.become(RUNNING)
    engine.execute(Step(scheduled=[(short, 3)]))
    manager.allocate(long)
    long.become(RUNNING)
    engine.execute(Step(scheduled=[(long, 1)]))
    short.seqs[0].tokens.append(1)  # its block is full, and has the content of the other's first
    copies = manager.append_slots(short.seqs[0], 0)
    assert manager.get_block_table(short.seqs[0]) == manager.get_block_table(long.seqs[0])[:1]
    assert copies == [(0, 1)]
    engine.execute(Step(copies=copies, scheduled=[(short, 1), (long, 1)]))
    engine.execute(Step(scheduled=[(long, 4)]))
    assert manager.get_num_free_gpu_blocks() == 6


@lineage("9: end to end: a forked group is swapped out and in, and goes on")
@pytest.mark.parametrize("caching", [False, True])
def test_defect_09_a_forked_group_reads_its_tokens_after_a_swap(caching: bool) -> None:
    engine = Engine(constant(1), 6, 6, block_size=4, caching=caching, window=None, marks=True)
    manager = engine.manager
    group = Group("forks", [Seq(at, [0, 1, 0, 1, 1, 0]) for at in range(3)])
    manager.allocate(group)
    group.become(RUNNING)
    engine.execute(Step(scheduled=[(group, 6)]))
    out = manager.swap_out(group)
    assert len(out) == 2
    group.become(SWAPPED)
    engine.execute(Step(swap_out=out))
    for block in engine.memory.gpu:
        block[:] = bytes(len(block))  # another request has used it
    manager.reset_prefix_cache(Device.GPU)
    step = Step(swap_in=manager.swap_in(group), scheduled=[(group, 1)])
    group.become(RUNNING)
    for at, seq in enumerate(group.seqs):
        seq.tokens.append(at)
        step.copies += manager.append_slots(seq, 0)
    assert (len(step.swap_in), len(step.copies)) == (2, 2)
    engine.execute(step)


@pytest.mark.slow
@lineage("bytes: long runs")
@pytest.mark.parametrize("caching", [False, True])
@settings(max_examples=1000)
@given(data=st.data())
def test_bytes_of_long_runs(caching: bool, data: st.DataObject) -> None:
    draw = data.draw
    engine = Engine(draw, 12, 12, block_size=2, caching=caching, window=draw(st.sampled_from([None, 4])), marks=True)
    for _ in range(60):
        if engine.maybe(3):
            engine.add(draw(st.lists(st.integers(0, 1), min_size=1, max_size=12)), draw(st.integers(1, 3)))
        engine.step()
    engine.finish()
