"""Makes the calls of vLLM 0.8.5's scheduler to kvpool's interface of vLLM v0, with real KV bytes.

A simulated scheduler makes the same calls as vLLM's, in the same order, with its own enums. A simulated
worker executes swaps in, swaps out and copies. It writes the KV of the tokens of the step, and reads
every token that attention would read. It does not compute tokens that the manager reports as computed.
So a wrong report leads to wrong KV, which the test detects.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.lineage.v0.interfaces import BlockSpaceManager
from tests.lineage.model_memory import Memory, Tokens, own_enum
from tests.lineage.rows import lineage

if TYPE_CHECKING:
    from kvpool.lineage.v0.block_manager import SelfAttnBlockSpaceManager

SIZE = 4


class Device(enum.Enum):
    """An enum that the simulated engine defines itself. It does not use kvpool's enum of the same name."""

    GPU = enum.auto()
    CPU = enum.auto()


class AllocStatus(enum.Enum):
    """An enum that the simulated engine defines itself. It does not use kvpool's enum of the same name."""

    OK = enum.auto()
    LATER = enum.auto()
    NEVER = enum.auto()


class SequenceStatus(enum.IntEnum):
    """An enum that the simulated engine defines itself. It does not use kvpool's enum of the same name."""

    WAITING = 0
    RUNNING = 1
    SWAPPED = 2
    FINISHED_STOPPED = 3
    FINISHED_ABORTED = 5
    FINISHED_IGNORED = 6


class Data:
    """The engine's record of how many tokens of a sequence are computed."""

    def __init__(self) -> None:
        self.computed = 0

    def get_num_computed_tokens(self) -> int:
        return self.computed


class Seq:
    """The engine's sequence."""

    def __init__(self, seq_id: int, tokens: list[int], extra: int | None) -> None:
        self.seq_id, self.tokens, self.extra = seq_id, Tokens(tokens, extra or 0), extra
        self.status, self.data, self.prompt = SequenceStatus.WAITING, Data(), len(tokens)

    def get_token_ids(self) -> list[int]:
        return self.tokens.ids

    def is_prefill(self) -> bool:
        return self.data.computed < self.prompt

    def extra_hash(self) -> int | None:
        return self.extra


@dataclass
class Group:
    """A group of sequences as the engine defines it."""

    request_id: str
    seqs: list[Seq]
    encoder: Seq | None = None
    is_encdec: bool = False

    def get_seqs(self, status: SequenceStatus | None = None) -> list[Seq]:
        return [seq for seq in self.seqs if status is None or seq.status == status]

    def is_encoder_decoder(self) -> bool:
        return self.is_encdec

    def get_encoder_seq(self) -> Seq | None:
        return self.encoder

    def become(self, status: SequenceStatus) -> None:
        for seq in self.seqs:
            seq.status = status


@dataclass
class Step:
    """The decisions of the scheduler for one step."""

    swap_in: list[tuple[int, int]] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    scheduled: list[tuple[Group, int]] = field(default_factory=list)
    preempted: bool = False


class Scheduler:
    """The part of vLLM's scheduler that calls the block manager."""

    def __init__(
        self, seed: int, gpu: int, cpu: int, *, caching: bool, window: int | None = None, encdec: bool = False
    ) -> None:
        self.random = random.Random(seed)
        self.window, self.encdec = window, encdec
        # Multi-step and speculative decoding use lookahead. They cannot be combined with a window.
        self.lookahead = self.random.choice([0, 0, 3]) if window is None else 0
        cls: Any = BlockSpaceManager.get_block_space_manager_class("selfattn")
        self.manager: SelfAttnBlockSpaceManager = cls(
            block_size=SIZE,
            num_gpu_blocks=gpu,
            num_cpu_blocks=cpu,
            sliding_window=window,
            enable_caching=caching,
        )
        self.caching = caching
        # If ``copies_first`` is set, copies are made before swaps in. If ``whole_prompts`` is set,
        # prompts are not chunked. Some managers need both.
        self.copies_first = self.whole_prompts = False
        # Whether two sequences of a waiting request may have the same prompt.
        self.twins = not encdec
        self.memory = Memory(SIZE, gpu, cpu)
        self.waiting: list[Group] = []
        self.running: list[Group] = []
        self.swapped: list[Group] = []
        self.ids, self.now, self.ended = 0, 0.0, 0
        self.prefixes = [[self.random.randrange(50) for _ in range(12)] for _ in range(3)]

    def one_in(self, n: int) -> bool:
        return self.random.randrange(n) == 0

    def new_seq(self, tokens: list[int], extra: int | None) -> Seq:
        self.ids += 1
        return Seq(self.ids, tokens, extra)

    def group_of(self, tokens: list[int]) -> Group:
        seq = self.new_seq(tokens, None)
        seq.status = SequenceStatus.RUNNING
        return Group(f"r{seq.seq_id}", [seq])

    def add(self) -> None:
        tokens = [self.random.randrange(2) for _ in range(self.random.randint(1, 7))]
        tokens = self.random.choice(self.prefixes)[: self.random.randrange(13)] + tokens
        if self.one_in(40):
            tokens *= 20  # larger than any pool of these tests
        extra = self.random.choice([None, None, 5]) if self.caching else None
        seq = self.new_seq(tokens, extra)
        group = Group(f"r{seq.seq_id}", [seq])
        if self.twins and self.one_in(5):
            group.seqs.append(self.new_seq(list(tokens), extra))
        if self.encdec and self.one_in(2):
            prompt = [
                self.random.randrange(9) for _ in range(self.random.choice([0, 0, 5]))
            ]  # text-only: no images
            group.is_encdec, group.encoder = True, self.new_seq(prompt, None)
        self.waiting.append(group)

    def end(self, group: Group, seq: Seq, status: SequenceStatus) -> None:
        """Ends a sequence in any state with a single call of ``free``, as vLLM does."""
        seq.status = status
        self.manager.free(seq)
        group.seqs.remove(seq)
        self.ended += 1
        if not group.seqs and group.is_encoder_decoder():
            self.manager.free_cross(group)

    def abort(self, group: Group) -> None:
        for queue in (self.waiting, self.running, self.swapped):
            if group in queue:
                queue.remove(group)
        for seq in list(group.seqs):
            self.end(group, seq, SequenceStatus.FINISHED_ABORTED)

    def preempt(self, group: Any, step: Step) -> None:
        step.preempted = True
        # A group of several sequences is preempted by swap, as in vLLM. A group of one sequence is
        # sometimes swapped, too.
        if (
            (len(group.seqs) > 1 or self.one_in(2))
            and self.manager.can_swap_out(group)
            and not group.is_encdec
        ):
            step.swap_out += self.manager.swap_out(group)
            group.become(SequenceStatus.SWAPPED)
            self.swapped.append(group)
        elif len(group.seqs) > 1 or group.is_encdec:
            self.abort(group)  # as the ancestor, which has no alternative
        else:
            (seq,) = group.seqs
            seq.status = SequenceStatus.WAITING
            self.manager.free(seq)
            seq.data.computed, seq.prompt = 0, len(seq.tokens.ids)
            self.waiting.insert(0, group)

    def take(self, group: Any, step: Step) -> None:
        """Adds a group to this step, with a chunk of its prompt or one token of each of its sequences."""
        self.running.append(group)
        if group.seqs[0].is_prefill():
            seq = group.seqs[0]
            cached = self.manager.get_num_cached_tokens(seq)
            left = seq.prompt - seq.data.computed
            chunk = left if self.whole_prompts or self.one_in(2) else self.random.randint(1, left)
            if seq.data.computed < cached:  # what is cached takes no budget
                chunk = min(left, max(chunk, cached - seq.data.computed))
            step.scheduled.append((group, chunk))
            return
        for seq in group.get_seqs(SequenceStatus.RUNNING):
            step.copies += self.manager.append_slots(seq, self.lookahead)
        step.scheduled.append((group, 1))

    def schedule(self) -> Step:
        step, manager = Step(), self.manager
        queue, self.running = self.running, []
        if queue and self.one_in(12):
            self.preempt(queue.pop(), step)
        while queue:
            group: Any = queue.pop(0)
            while not group.seqs[0].is_prefill() and not manager.can_append_slots(group, self.lookahead):
                if not queue:
                    self.preempt(group, step)
                    break
                self.preempt(queue.pop(), step)
            else:
                self.take(group, step)
        while self.swapped and not step.preempted:
            group = self.swapped[0]
            status = manager.can_swap_in(group, self.lookahead)
            if status == AllocStatus.LATER:
                break
            self.swapped.pop(0)
            if status == AllocStatus.NEVER:
                for seq in list(group.seqs):
                    self.end(group, seq, SequenceStatus.FINISHED_IGNORED)
                continue
            assert status == AllocStatus.OK
            step.swap_in += manager.swap_in(group)
            group.become(SequenceStatus.RUNNING)
            self.take(group, step)
        if self.one_in(3):  # a prompt may be looked up long before it is allocated
            for group in self.waiting:
                manager.get_num_cached_tokens(group.seqs[0])
        while self.waiting and not step.preempted and not self.swapped:
            group = self.waiting[0]
            manager.get_num_cached_tokens(group.seqs[0])
            status = manager.can_allocate(group, num_lookahead_slots=self.lookahead)
            if status == AllocStatus.LATER:
                break
            self.waiting.pop(0)
            if status == AllocStatus.NEVER:
                # If a request can never fit, vLLM only sets its status, and does not call the manager.
                group.become(SequenceStatus.FINISHED_IGNORED)
                self.ended += 1
                continue
            assert status == AllocStatus.OK
            manager.allocate(group)
            group.become(SequenceStatus.RUNNING)
            self.take(group, step)
        return step

    def execute(self, step: Step) -> None:
        manager: Any = self.manager
        self.now += 1.0
        work: list[tuple[Group, Seq, list[int], int, int]] = []
        for group, chunk in step.scheduled:
            seqs = group.get_seqs(SequenceStatus.RUNNING)
            common: list[int] = []
            for seq in seqs:
                manager.access_all_blocks_in_seq(seq, self.now)
            if self.caching:
                common = manager.get_common_computed_block_ids(seqs)
            for seq in seqs:
                table = list(manager.get_block_table(seq))
                skip = len(common) * SIZE if seq.is_prefill() else 0
                assert table[: len(common)] == common or not seq.is_prefill()
                work.append((group, seq, table, max(seq.data.computed, skip), seq.data.computed + chunk))
        for group, chunk in step.scheduled:
            manager.mark_blocks_as_computed(group, chunk)
        if not self.copies_first:
            self.memory.swap_in(step.swap_in)
        self.memory.swap_out(step.swap_out)
        self.memory.copy(step.copies)
        if self.copies_first:
            self.memory.swap_in(step.swap_in)
        cross: list[tuple[list[int], Seq]] = []
        for group, seq, table, start, end in work:
            self.memory.write(table, seq.tokens, start, end)
            if group.encoder is not None:
                cross.append((list(manager.get_cross_block_table(group)), group.encoder))
                if seq.data.computed == 0:
                    self.memory.write(cross[-1][0], group.encoder.tokens, 0, len(group.encoder.tokens.ids))
        for _, seq, table, _, end in work:
            start = 0 if self.window is None else max(0, end - self.window)
            self.memory.check(table, seq.tokens, start, end, f"sequence {seq.seq_id}")
            seq.data.computed = end
        for table, encoder in cross:
            assert len(table) == -(-len(encoder.tokens.ids) // SIZE)
            self.memory.check(table, encoder.tokens, 0, len(encoder.tokens.ids), f"encoder {encoder.seq_id}")

    def process(self) -> None:
        """Samples a token for each sequence whose prompt is computed. Some sequences fork or finish,
        and some requests are aborted.
        """
        for group in list(self.running):
            for seq in list(group.seqs):
                if seq.is_prefill():
                    continue
                if self.one_in(8) and len(group.seqs) < 3 and not group.is_encdec:
                    child = self.new_seq(list(seq.tokens.ids), seq.extra)
                    child.status, child.prompt, child.data.computed = (
                        seq.status,
                        seq.prompt,
                        seq.data.computed,
                    )
                    self.manager.fork(seq, child)
                    group.seqs.append(child)
                    child.tokens.append(self.random.randrange(2))
                seq.tokens.append(self.random.randrange(2))
                if self.one_in(6):
                    self.end(group, seq, SequenceStatus.FINISHED_STOPPED)
            if not group.seqs:
                self.running.remove(group)
        if self.one_in(10):
            groups = [*self.waiting, *self.running, *self.swapped]
            if groups:
                self.abort(self.random.choice(groups))

    def step(self) -> None:
        step = self.schedule()
        self.execute(step)
        self.process()

    def entries(self) -> dict[str, int]:
        """Returns how many entries for sequences each of the manager's data structures has."""
        manager: Any = self.manager
        return {
            "computed": len(manager._computed_blocks_tracker._tracked),
            "last access": len(manager._last_access_blocks_tracker._seq_last_access),
            "tables": len(manager.block_tables) + len(manager.cross_block_tables),
            "progress": len(manager._num_computed),
            "copies": len(manager.block_allocator._copies),
        }

    def drain(self) -> None:
        """Aborts all remaining requests. Afterwards the manager may hold no block and know no sequence."""
        for group in [*self.waiting, *self.running, *self.swapped]:
            self.abort(group)
        manager, allocator = self.manager, self.manager.block_allocator
        free = [manager.get_num_free_gpu_blocks(), manager.get_num_free_cpu_blocks()]
        devices: Any = (Device.GPU, Device.CPU)
        assert free == [allocator.get_num_total_blocks(device) for device in devices]
        assert set(self.entries().values()) == {0}
        allocator._tiers.check_invariants()


@lineage("callers: vLLM 0.8.5's scheduler, with KV bytes: no wrong KV, no lost block")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "setting",
    [{"caching": False}, {"caching": True}, {"caching": False, "window": 6}, {"caching": True, "window": 9}],
    ids=["plain", "caching", "window", "caching-window"],
)
def test_the_scheduler_s_calls(seed: int, setting: dict[str, Any]) -> None:
    scheduler = Scheduler(seed, 8 + seed * 3, 5 * (seed % 3), **setting)
    for _ in range(80):
        if scheduler.one_in(2):
            scheduler.add()
        scheduler.step()
    assert scheduler.ended > 5
    scheduler.drain()
    assert scheduler.manager.reset_prefix_cache() is True


@pytest.mark.slow
@lineage("callers: vLLM 0.8.5's scheduler, with KV bytes, in long runs")
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("caching", [False, True])
def test_long_runs(caching: bool, window: int | None) -> None:
    for seed in range(100, 160):
        scheduler = Scheduler(seed, 8 + seed % 24, 4 * (seed % 4), caching=caching, window=window)
        for _ in range(200):
            if scheduler.one_in(2):
                scheduler.add()
            scheduler.step()
        scheduler.drain()


@lineage("callers: encoder-decoder groups, with text-only requests among them")
@pytest.mark.parametrize("seed", range(6))
def test_encoder_decoder_groups(seed: int) -> None:
    scheduler = Scheduler(seed, 20, 8, caching=False, encdec=True)
    for _ in range(80):
        if scheduler.one_in(2):
            scheduler.add()
        scheduler.step()
    scheduler.drain()


@lineage("callers: an empty encoder prompt has an empty table, and leaks nothing")
def test_an_empty_encoder_prompt() -> None:
    scheduler = Scheduler(0, 8, 0, caching=False)
    manager: Any = scheduler.manager
    for _ in range(5):
        group = Group("text", [scheduler.new_seq([1] * 9, None)], scheduler.new_seq([], None), is_encdec=True)
        assert manager.can_allocate(group) == AllocStatus.OK
        manager.allocate(group)
        assert manager.get_cross_block_table(group) == []
        assert manager.get_num_free_gpu_blocks() == 5
        manager.free(group.seqs[0])
        manager.free_cross(group)
        assert manager.get_num_free_gpu_blocks() == 8
    assert manager.cross_block_tables == {}


@lineage("callers: the trackers forget every sequence by free alone: 600 of them")
def test_what_is_known_of_sequences_is_flat() -> None:
    scheduler = Scheduler(3, 24, 8, caching=True)
    most = dict.fromkeys(scheduler.entries(), 0)
    while scheduler.ended < 600:
        if len(scheduler.waiting) < 4:
            scheduler.add()
        scheduler.step()
        alive = sum(len(group.seqs) for group in [*scheduler.waiting, *scheduler.running, *scheduler.swapped])
        for place, number in scheduler.entries().items():
            assert number <= alive, (place, number, alive)
            most[place] = max(most[place], number)
    assert most["computed"] > 0
    assert most["last access"] > 0
    scheduler.drain()


@lineage("callers: the engine's own AllocStatus and Device")
def test_the_engine_s_own_enums() -> None:
    scheduler = Scheduler(0, 8, 4, caching=True)
    manager: Any = scheduler.manager
    large, small = (Group(name, [scheduler.new_seq([1] * n, None)]) for name, n in (("l", 33), ("s", 30)))
    assert manager.can_allocate(large) == AllocStatus.NEVER
    assert manager.can_allocate(large) == AllocStatus.NEVER
    assert manager.can_allocate(large) != AllocStatus.OK
    assert manager.can_allocate(large) != AllocStatus.OK
    assert manager.can_allocate(small) == AllocStatus.OK
    assert {AllocStatus.OK: "go"}[manager.can_allocate(small)] == "go"
    manager.allocate(small)
    assert manager.can_allocate(small) == AllocStatus.LATER
    allocator = manager.block_allocator
    assert [allocator.get_num_free_blocks(device) for device in Device] == [0, 4]
    assert manager.get_prefix_cache_hit_rate(Device.GPU) == allocator.get_prefix_cache_hit_rate(Device.GPU)
    assert manager.reset_prefix_cache(Device.CPU) is True
    assert isinstance(manager, BlockSpaceManager)

    class Other(enum.Enum):
        GPU = enum.auto()

    assert manager.can_allocate(large) != Other.GPU
    disk = own_enum("Device", "DISK")
    with pytest.raises(AssertionError, match="GPU, CPU are known"):
        allocator.get_num_free_blocks(disk["DISK"])


def running(scheduler: Scheduler, *prompts: list[int]) -> Group:
    """Returns a new group that is allocated and running."""
    manager: Any = scheduler.manager
    group = Group("group", [scheduler.new_seq(list(prompt), None) for prompt in prompts])
    manager.allocate(group)
    group.become(SequenceStatus.RUNNING)
    return group


@lineage("18: end to end: two forks append the same tokens, then a swap in of the same step")
def test_defect_18_a_swap_in_does_not_overwrite_the_source_of_a_copy() -> None:
    scheduler = Scheduler(0, 8, 8, caching=True)
    manager: Any = scheduler.manager
    forks, other = running(scheduler, [0, 1, 0], [0, 1, 0]), running(scheduler, [1, 1, 1, 1])
    scheduler.execute(Step(scheduled=[(forks, 3), (other, 4)]))
    scheduler.execute(Step(swap_out=manager.swap_out(other)))
    other.become(SequenceStatus.SWAPPED)
    manager.end_step()
    gpu = manager.block_allocator._tiers.pools[0]
    gpu.drop_cached(gpu.diagnose.eviction_order())  # so that the way back is a copy
    step = Step()
    for seq in forks.seqs:
        seq.tokens.append(1)
        step.copies += manager.append_slots(seq, 0)
    ((src, dst),) = step.copies
    assert [manager.get_block_table(seq) for seq in forks.seqs] == [[dst], [dst]]
    step.swap_in += manager.swap_in(other)
    assert src not in dict(step.swap_in).values()
    other.become(SequenceStatus.RUNNING)
    other.seqs[0].tokens.append(0)
    step.copies += manager.append_slots(other.seqs[0], 0)
    step.scheduled = [(forks, 1), (other, 1)]
    scheduler.execute(step)


@lineage("callers: a block given up for one that a prompt is still computing, chunk by chunk")
def test_a_block_that_is_given_up_for_one_not_computed_yet() -> None:
    scheduler = Scheduler(0, 8, 8, caching=True)
    manager: Any = scheduler.manager
    short = running(scheduler, [0, 1, 0])
    scheduler.execute(Step(scheduled=[(short, 3)]))
    long = running(scheduler, [0, 1, 0, 1, 1, 1])
    scheduler.execute(Step(scheduled=[(long, 1)]))
    short.seqs[0].tokens.append(1)  # its block is full, and has the content of the other's first
    copies = manager.append_slots(short.seqs[0], 0)
    assert manager.get_block_table(short.seqs[0]) == manager.get_block_table(long.seqs[0])[:1]
    assert copies == [(0, 1)]
    scheduler.execute(Step(copies=copies, scheduled=[(short, 1), (long, 1)]))
    scheduler.execute(Step(scheduled=[(long, 4)]))
    assert manager.get_num_free_gpu_blocks() == 6


@lineage("9: end to end: a forked group is swapped out and in, and goes on")
@pytest.mark.parametrize("caching", [False, True])
def test_defect_09_a_forked_group_reads_its_tokens_after_a_swap(caching: bool) -> None:
    scheduler = Scheduler(0, 6, 6, caching=caching)
    manager: Any = scheduler.manager
    group = running(scheduler, *[[0, 1, 0, 1, 1, 0]] * 3)
    scheduler.execute(Step(scheduled=[(group, 6)]))
    out = manager.swap_out(group)
    assert len(out) == 2
    group.become(SequenceStatus.SWAPPED)
    scheduler.execute(Step(swap_out=out))
    for block in scheduler.memory.gpu:
        block[:] = bytes(len(block))  # another request has used it
    manager.reset_prefix_cache(Device.GPU)
    step = Step(swap_in=manager.swap_in(group), scheduled=[(group, 1)])
    group.become(SequenceStatus.RUNNING)
    for at, seq in enumerate(group.seqs):
        seq.tokens.append(at)
        step.copies += manager.append_slots(seq, 0)
    assert (len(step.swap_in), len(step.copies)) == (2, 2)
    scheduler.execute(step)
