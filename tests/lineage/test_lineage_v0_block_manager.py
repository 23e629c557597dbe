"""Tests kvpool's interface of vLLM v0's block manager."""

from __future__ import annotations

import enum
from typing import Any

import pytest

import kvpool
from kvpool.lineage.v0.block.interfaces import BlockAllocator, Device
from kvpool.lineage.v0.block_manager import SelfAttnBlockSpaceManager
from kvpool.lineage.v0.block_manager_util import SequenceStatus
from kvpool.lineage.v0.interfaces import AllocStatus
from tests.lineage import rows
from tests.lineage.rows import lineage

GPU, CPU = Device.GPU, Device.CPU
OK, LATER, NEVER = AllocStatus.OK, AllocStatus.LATER, AllocStatus.NEVER
B = 4
BOTH = pytest.mark.parametrize("caching", [False, True])
NoFreeBlocksError = BlockAllocator.NoFreeBlocksError


class Status(enum.Enum):
    """An enum as an engine defines it: with the same names as kvpool's enum, but different values."""

    WAITING = "w"
    RUNNING = "r"
    SWAPPED = "s"
    FINISHED_STOPPED = "f"


class Data:
    def __init__(self) -> None:
        self.computed = 0

    def get_num_computed_tokens(self) -> int:
        return self.computed


class Seq:
    """An engine's sequence."""

    def __init__(self, seq_id: int, tokens: list[int], extra: int | kvpool.ExtraKeys | None = None) -> None:
        self.seq_id, self.tokens, self.extra = seq_id, list(tokens), extra
        self.status: Any = Status.WAITING
        self.prefill, self.data = True, Data()

    def get_token_ids(self) -> list[int]:
        return self.tokens

    def is_prefill(self) -> bool:
        return self.prefill

    def extra_hash(self) -> int | kvpool.ExtraKeys | None:
        return self.extra


class Group:
    """An engine's group."""

    def __init__(self, request_id: str, *seqs: Seq, encoder: Seq | None = None) -> None:
        self.request_id, self.seqs, self.encoder = request_id, list(seqs), encoder

    def get_seqs(self, status: Any = None) -> list[Seq]:
        return [seq for seq in self.seqs if status is None or seq.status == status]

    def is_encoder_decoder(self) -> bool:
        return self.encoder is not None

    def get_encoder_seq(self) -> Seq | None:
        return self.encoder

    def become(self, status: Status) -> None:
        for seq in self.seqs:
            seq.status = status


def manager_of(
    gpu: int = 16, cpu: int = 16, *, caching: bool = False, **more: Any
) -> SelfAttnBlockSpaceManager:
    more = {"watermark": 0.0, **more}
    return SelfAttnBlockSpaceManager(
        B, num_gpu_blocks=gpu, num_cpu_blocks=cpu, enable_caching=caching, **more
    )


def group_of(num_tokens: int, num_seqs: int = 1, *, first_id: int = 1, first: int = 0, **more: Any) -> Group:
    tokens = list(range(first, first + num_tokens))
    return Group(f"request {first_id}", *(Seq(first_id + at, tokens) for at in range(num_seqs)), **more)


def start(manager: SelfAttnBlockSpaceManager, group: Group) -> Group:
    """Allocates the blocks of a group, and marks it as running."""
    manager.allocate(group)
    group.become(Status.RUNNING)
    return group


def decode(
    manager: SelfAttnBlockSpaceManager, seq: Seq, token: int, lookahead: int = 0
) -> list[tuple[int, int]]:
    seq.prefill = False
    seq.data.computed = len(seq.tokens)
    seq.tokens.append(token)
    return manager.append_slots(seq, lookahead)


def free(manager: SelfAttnBlockSpaceManager) -> tuple[int, int]:
    return manager.get_num_free_gpu_blocks(), manager.get_num_free_cpu_blocks()


def observe(manager: SelfAttnBlockSpaceManager) -> Any:
    """Returns everything that can be observed of the core and the tables, to check that a failed call
    has changed nothing.
    """
    tables = {
        seq_id: (list(t.physical_block_ids), t.num_full_slots) for seq_id, t in manager.block_tables.items()
    }
    return rows.observe(manager.block_allocator._tiers), tables, list(manager.cross_block_tables)


@lineage("3.8: constructor and its attributes")
def test_constructor() -> None:
    manager = SelfAttnBlockSpaceManager(16, 100, 50, sliding_window=70)
    assert (manager.block_size, manager.num_total_gpu_blocks, manager.num_total_cpu_blocks) == (16, 100, 50)
    assert (manager.watermark, manager.watermark_blocks, manager.sliding_window) == (0.01, 1, 70)
    assert (manager.max_block_sliding_window, manager.enable_caching) == (70 // 16 + 2, False)
    assert (manager.block_tables, manager.cross_block_tables) == ({}, {})
    assert free(manager) == (100, 50)
    assert SelfAttnBlockSpaceManager(16, 100, 50).max_block_sliding_window is None
    for bad in ({"watermark": -0.1}, {"watermark": float("nan")}, {"sliding_window": -1}):
        with pytest.raises(AssertionError):
            SelfAttnBlockSpaceManager(16, 100, 50, **bad)
    with pytest.raises(AssertionError):
        SelfAttnBlockSpaceManager(0, 100, 50)


@lineage("3.8: can_allocate, OK, LATER, NEVER and the watermark")
@BOTH
@pytest.mark.parametrize("gpu", [4, 10])
@pytest.mark.parametrize("watermark", [0.0, 0.5])
@pytest.mark.parametrize("used", [0, 1, 3])
@pytest.mark.parametrize("lookahead", [0, 5])
def test_can_allocate(caching: bool, gpu: int, watermark: float, used: int, lookahead: int) -> None:
    manager = manager_of(gpu, caching=caching, watermark=watermark)
    if used:
        start(manager, group_of(B * used, first=1000, first_id=50))
    reserve = int(watermark * gpu)
    for num_tokens in range(1, B * (gpu + 2)):
        required = -(-(num_tokens + lookahead) // B)
        want = NEVER if gpu - required < reserve else OK if gpu - used - required >= reserve else LATER
        assert manager.can_allocate(group_of(num_tokens), lookahead) == want


@lineage("3.8: can_allocate OK means that allocate does not fail")
@BOTH
@pytest.mark.parametrize("num_tokens", range(1, 41, 3))
@pytest.mark.parametrize("window", [None, 8])
def test_ok_can_be_allocated(caching: bool, num_tokens: int, window: int | None) -> None:
    manager = manager_of(8, caching=caching, sliding_window=window)
    group = group_of(num_tokens, num_seqs=3)
    if manager.can_allocate(group) is OK:
        manager.allocate(group)
        assert len(manager.get_block_table(group.seqs[0])) == -(-num_tokens // B)
    else:
        before = observe(manager)
        with pytest.raises(NoFreeBlocksError):
            manager.allocate(group)
        assert observe(manager) == before


@lineage("21: can_allocate and allocate agree under a window")
def test_defect_21_the_window_does_not_cap_what_is_allocated() -> None:
    manager = manager_of(6, sliding_window=4)
    assert manager.max_block_sliding_window == 3
    group = group_of(7 * B)  # the ancestor counts 3 blocks, returns OK, and takes 7
    assert manager.can_allocate(group) is NEVER
    manager = manager_of(8, sliding_window=4)
    other = start(manager, group_of(2 * B, first_id=9))
    assert manager.can_allocate(group) is LATER
    manager.free(other.seqs[0])
    assert manager.can_allocate(group) is OK
    manager.allocate(group)


@lineage("3.8: can_allocate without a waiting sequence")
def test_a_group_without_waiting_sequences_is_refused() -> None:
    manager, group = manager_of(), group_of(4)
    group.become(Status.RUNNING)
    for call in (manager.can_allocate, manager.allocate):
        with pytest.raises(AssertionError):
            call(group)


@lineage("3.8: allocate, one table for all waiting sequences")
@BOTH
def test_allocate(caching: bool) -> None:
    manager = manager_of(caching=caching)
    group = group_of(10, num_seqs=3)
    manager.allocate(group)
    assert [manager.get_block_table(seq) for seq in group.seqs] == [[0, 1, 2]] * 3
    assert free(manager) == (13, 16)
    before = observe(manager)
    with pytest.raises(AssertionError, match="block table already exists"):
        manager.allocate(group)
    assert observe(manager) == before
    for seq in group.seqs:
        manager.free(seq)
    assert free(manager) == (16, 16)


@lineage("3.8: the engine's status enum, or kvpool's, by name")
@pytest.mark.parametrize("waiting", [Status.WAITING, SequenceStatus.WAITING, "WAITING"])
def test_states_are_compared_by_name(waiting: Any) -> None:
    manager, group = manager_of(), group_of(4)
    group.seqs[0].status = waiting
    assert manager.can_allocate(group) is OK
    assert not SequenceStatus.is_finished(SequenceStatus.SWAPPED)
    assert SequenceStatus.is_finished(SequenceStatus.FINISHED_IGNORED)


@lineage("3.8: can_append_slots is about all running sequences, without a watermark")
@BOTH
def test_can_append_slots(caching: bool) -> None:
    manager = manager_of(6, caching=caching, watermark=0.5)
    group = start(manager, group_of(8, num_seqs=4))
    for seq in group.seqs:
        seq.tokens.append(77)
    assert manager.can_append_slots(group, 0) is True
    assert manager.can_append_slots(group, 4) is False
    group.seqs[3].status = Status.FINISHED_STOPPED
    group.seqs[2].status = Status.FINISHED_STOPPED
    assert manager.can_append_slots(group, 4) is True
    for seq in group.seqs[:2]:
        manager.append_slots(seq, 4)
    assert manager.get_num_free_gpu_blocks() == 0 if not caching else True


@lineage("3.8: unknown sequences")
def test_unknown_sequences() -> None:
    manager, seq, group = manager_of(), Seq(1, [1]), group_of(4)
    manager.free(seq)
    manager.free_cross(group)
    manager.fork(seq, Seq(2, [1]))
    assert manager.block_tables == {}
    for call in (manager.get_block_table, lambda one: manager.append_slots(one, 0)):
        with pytest.raises(KeyError):
            call(seq)
    with pytest.raises(AssertionError):
        manager.get_cross_block_table(group)


@lineage("3.8: fork onto a sequence that has a table")
@BOTH
def test_fork_onto_a_table(caching: bool) -> None:
    manager = manager_of(caching=caching)
    one, two = start(manager, group_of(6)), start(manager, group_of(6, first_id=2, first=100))
    before = observe(manager)
    with pytest.raises(AssertionError):
        manager.fork(one.seqs[0], two.seqs[0])
    assert observe(manager) == before


@lineage("3.8: get_block_table is the live list")
def test_get_block_table_is_live() -> None:
    manager = manager_of()
    group = start(manager, group_of(4))
    table = manager.get_block_table(group.seqs[0])
    decode(manager, group.seqs[0], 9)
    assert table == [0, 1]


@lineage("3.8: encoder tables")
def test_encoder_tables() -> None:
    manager = manager_of(6)
    group = group_of(6, encoder=Seq(99, list(range(9))))
    assert manager.can_allocate(group) is OK
    manager.allocate(group)
    assert manager.get_block_table(group.seqs[0]) == [0, 1]
    assert manager.get_cross_block_table(group) == [2, 3, 4]
    assert manager.can_allocate(group_of(6, first_id=5, encoder=Seq(98, [1]))) is LATER
    assert manager.can_allocate(group_of(17, first_id=5, encoder=Seq(98, list(range(5))))) is NEVER
    manager.free(group.seqs[0])
    manager.free_cross(group)
    assert free(manager) == (6, 16)


@lineage("13: a group with an encoder is allocated whole or not at all")
def test_defect_13_encoder_tables_are_all_or_nothing() -> None:
    manager = manager_of(4)
    group = group_of(6, encoder=Seq(99, list(range(9))))
    before = observe(manager)
    with pytest.raises(NoFreeBlocksError):
        manager.allocate(group)
    assert observe(manager) == before
    small = group_of(6, encoder=Seq(99, [1, 2]))
    manager.allocate(small)
    manager.free(small.seqs[0])
    before = observe(manager)
    with pytest.raises(AssertionError, match="block table already exists"):
        manager.allocate(small)
    assert observe(manager) == before


@lineage("3.8: encoder-decoder with a window or caching is not implemented")
@pytest.mark.parametrize("setting", [{"sliding_window": 8}, {"caching": True}])
def test_encoder_decoder_restrictions(setting: dict[str, Any]) -> None:
    manager = manager_of(**setting)
    group = group_of(6, encoder=Seq(99, [1]))
    for call in (manager.can_allocate, manager.allocate):
        with pytest.raises(NotImplementedError):
            call(group)


@lineage("3.8: swap out and in, physical ids per device")
@BOTH
@pytest.mark.parametrize("num_tokens", [1, 4, 7, 8])
@pytest.mark.parametrize("lookahead", [0, 3, 9])
def test_swap(caching: bool, num_tokens: int, lookahead: int) -> None:
    """Swaps succeed although the engine never reports that a step has finished."""
    manager = manager_of(caching=caching)
    other = start(manager, group_of(4, first_id=9, first=500))
    group = start(manager, group_of(num_tokens))
    seq = group.seqs[0]
    decode(manager, seq, 50, lookahead)
    before, gpu_blocks = free(manager), list(manager.get_block_table(seq))
    assert manager.can_swap_out(group) is True
    out = manager.swap_out(group)
    assert out == list(zip(gpu_blocks, range(len(gpu_blocks)), strict=True))
    assert free(manager) == (before[0] + len(gpu_blocks), before[1] - len(gpu_blocks))
    group.become(Status.SWAPPED)
    assert manager.get_block_table(seq) == list(range(16, 16 + len(gpu_blocks)))
    assert manager.can_swap_in(group, lookahead) is OK
    back = manager.swap_in(group)
    group.become(Status.RUNNING)
    assert [cpu for cpu, _ in back] == list(range(len(gpu_blocks)))
    assert [gpu for _, gpu in back] == manager.get_block_table(seq)
    assert free(manager) == before
    assert not set(manager.get_block_table(seq)) & set(manager.get_block_table(other.seqs[0]))
    decode(manager, seq, 51)


@lineage("10: a swap that does not fit changes nothing")
@BOTH
def test_defect_10_swaps_are_all_or_nothing(caching: bool) -> None:
    manager = manager_of(8, 5, caching=caching)
    group = start(manager, group_of(24))
    before = observe(manager)
    assert manager.can_swap_out(group) is False
    with pytest.raises(NoFreeBlocksError):
        manager.swap_out(group)
    assert observe(manager) == before
    manager = manager_of(8, 8, caching=caching)
    group = start(manager, group_of(15, num_seqs=2))
    manager.swap_out(group)
    group.become(Status.SWAPPED)
    start(manager, group_of(21, first_id=9, first=500))
    before = observe(manager)
    assert manager.can_swap_in(group, 0) is LATER
    with pytest.raises(NoFreeBlocksError):
        manager.swap_in(group)
    assert observe(manager) == before


@lineage("12: swaps that fit are not refused")
@BOTH
def test_defect_12_shared_blocks_are_counted_once(caching: bool) -> None:
    manager = manager_of(2, 2, caching=caching)
    group = start(manager, group_of(8, num_seqs=4))  # 2 blocks, 8 entries in tables
    assert manager.can_swap_out(group) is True
    manager.swap_out(group)
    group.become(Status.SWAPPED)
    assert manager.can_swap_in(group, 0) is OK
    manager.swap_in(group)
    assert free(manager) == (0, 2)


@lineage("3.8: can_swap_in, watermark, new tokens and lookahead")
@BOTH
def test_can_swap_in(caching: bool) -> None:
    manager = manager_of(10, 10, caching=caching, watermark=0.2)
    group = start(manager, group_of(12))
    seq = group.seqs[0]
    seq.prefill = False
    manager.swap_out(group)
    group.become(Status.SWAPPED)
    seq.tokens.append(50)  # 3 blocks, 1 for the token, 2 stay free
    assert [manager.can_swap_in(group, lookahead) for lookahead in (0, 19, 20)] == [OK, OK, NEVER]
    start(manager, group_of(17, first_id=9, first=500))  # 5 blocks
    assert [manager.can_swap_in(group, lookahead) for lookahead in (0, 19, 20)] == [LATER, LATER, NEVER]


@lineage("3.8: can_swap_in says OK only if the append that follows has its blocks")
@BOTH
@pytest.mark.parametrize("gpu", range(3, 9))
@pytest.mark.parametrize("num_tokens", [5, 7, 8])
def test_swap_in_leaves_room_for_the_append(caching: bool, gpu: int, num_tokens: int) -> None:
    manager = manager_of(gpu, 16, caching=caching)
    group = start(manager, group_of(num_tokens, num_seqs=3))
    manager.swap_out(group)
    group.become(Status.SWAPPED)
    for at, seq in enumerate(group.seqs):
        seq.prefill = False
        seq.tokens.append(100 + at)
    if manager.can_swap_in(group, 0) is OK:
        manager.swap_in(group)
        group.become(Status.RUNNING)
        for seq in group.seqs:
            manager.append_slots(seq, 0)
    else:
        assert gpu < 2 + 3


@lineage("3.8: swap with a sliding window leaves null blocks alone")
@BOTH
def test_swap_of_a_windowed_table(caching: bool) -> None:
    manager = manager_of(caching=caching, sliding_window=4)
    group = start(manager, group_of(16))
    seq = group.seqs[0]
    for token in range(30):
        decode(manager, seq, 100 + token)
    null = manager.block_allocator.allocate_or_get_null_block()
    table = list(manager.get_block_table(seq))
    dropped = table.count(null.block_id or 0)
    assert dropped == 45 // B - 3
    out = manager.swap_out(group)
    assert [src for src, _ in out] == table[dropped:]
    group.become(Status.SWAPPED)
    assert manager.get_block_table(seq)[:dropped] == table[:dropped]
    manager.swap_in(group)
    group.become(Status.RUNNING)
    for token in range(8):
        decode(manager, seq, 200 + token)
    manager.free(seq)
    assert free(manager) == (15, 16)
    assert manager.reset_prefix_cache() is True


@lineage("3.8: append_slots with a window needs the computed tokens")
def test_a_window_needs_the_computed_tokens() -> None:
    manager = manager_of(sliding_window=4)
    group = start(manager, group_of(5))
    seq = group.seqs[0]
    seq.tokens.append(9)
    seq.data = None  # type: ignore[assignment]
    before = observe(manager)
    with pytest.raises(AssertionError):
        manager.append_slots(seq, 0)
    assert observe(manager) == before


@lineage("3.8: access_all_blocks_in_seq decides the eviction order")
def test_accesses_decide_the_eviction_order() -> None:
    manager = manager_of(caching=True)
    groups = [start(manager, group_of(8, first_id=1 + at, first=100 * at)) for at in range(3)]
    for group, now in zip(groups, (30.0, 10.0, 20.0), strict=True):
        manager.access_all_blocks_in_seq(group.seqs[0], now)
        manager.mark_blocks_as_computed(group, 8)
    for group in groups:
        manager.free(group.seqs[0])
    # The least recently accessed sequence is evicted first, and of each sequence the last block first.
    assert manager.block_allocator._tiers.pools[0].diagnose.eviction_order() == [4, 3, 6, 5, 2, 1]
    with pytest.raises(AssertionError):
        manager.access_all_blocks_in_seq(groups[0].seqs[0], 40.0)
    manager_of().access_all_blocks_in_seq(groups[0].seqs[0], 40.0)  # without caching: nothing


@lineage("3.8: free of a swapped sequence that was accessed")
def test_free_of_a_swapped_sequence() -> None:
    manager = manager_of(caching=True)
    group = start(manager, group_of(8))
    manager.access_all_blocks_in_seq(group.seqs[0], 5.0)
    manager.mark_blocks_as_computed(group, 8)
    manager.swap_out(group)
    group.become(Status.SWAPPED)
    manager.free(group.seqs[0])
    assert free(manager) == (16, 16)


@lineage("5, 6: mark_blocks_as_computed goes by the group and its chunk")
@pytest.mark.parametrize("chunks", [[12], [4, 8], [5, 5, 2], [3, 3, 3, 3], [100]])
def test_defect_06_computed_blocks_are_those_of_the_chunk(chunks: list[int]) -> None:
    manager = manager_of(caching=True)
    group, other = start(manager, group_of(12)), start(manager, group_of(12, first_id=5, first=100))
    done = 0
    for chunk in chunks:
        manager.mark_blocks_as_computed(group, chunk)
        done += chunk
        assert manager.get_num_cached_tokens(Seq(70, list(range(12)))) == min(done, 12) // B * B
        manager.remove_seq_from_computed_blocks_tracker(Seq(70, []))
    # The test reported only the blocks of the first group as computed.
    assert manager.get_num_cached_tokens(Seq(71, other.seqs[0].tokens)) == 0


@lineage("3.8: decode marks the blocks that it fills")
def test_decoded_blocks_are_computed() -> None:
    manager = manager_of(caching=True)
    group = start(manager, group_of(6, num_seqs=2))
    manager.mark_blocks_as_computed(group, 6)
    for step in range(7):
        for seq in group.seqs:
            decode(manager, seq, 100 * seq.seq_id + step)
        manager.mark_blocks_as_computed(group, 1)
    for seq in group.seqs:
        assert manager.get_num_cached_tokens(Seq(70 + seq.seq_id, seq.tokens)) == 12


@lineage("3.8: get_common_computed_block_ids")
def test_common_computed_blocks() -> None:
    manager = manager_of(caching=True)
    first = start(manager, group_of(13))
    manager.mark_blocks_as_computed(first, 13)
    second = start(manager, group_of(13, num_seqs=2, first_id=5))
    assert manager.get_common_computed_block_ids(list(second.seqs)) == [0, 1, 2]
    assert manager.get_common_computed_block_ids(list(first.seqs)) == []
    assert manager.get_common_computed_block_ids([]) == []
    assert manager.get_prefix_cache_hit_rate(GPU) == 0.5
    naive = manager_of()
    assert naive.get_common_computed_block_ids(list(start(naive, group_of(8)).seqs)) == []


@lineage("4: what was looked up and evicted before it was allocated is not skipped")
def test_a_prompt_reports_the_hit_at_its_allocation() -> None:
    """In vLLM (vllm#37164), another request can take the cached blocks between lookup and allocation."""
    manager = manager_of(6, caching=True)
    old = start(manager, group_of(16))
    manager.mark_blocks_as_computed(old, 16)
    manager.free(old.seqs[0])
    new = group_of(16, first_id=5)
    assert manager.get_num_cached_tokens(new.seqs[0]) == 16
    thief = start(manager, group_of(16, first_id=9, first=500))  # evicts two of the four
    manager.free(thief.seqs[0])
    start(manager, new)
    assert manager.get_num_cached_tokens(new.seqs[0]) == 8
    assert manager.get_common_computed_block_ids(list(new.seqs)) == manager.get_block_table(new.seqs[0])[:2]


@lineage("4: a preempted prompt is looked up again")
def test_a_preempted_prompt_is_looked_up_again() -> None:
    manager = manager_of(6, caching=True)
    group = start(manager, group_of(16))
    manager.mark_blocks_as_computed(group, 16)
    assert manager.get_num_cached_tokens(group.seqs[0]) == 0
    manager.free(group.seqs[0])  # preempted: to be recomputed
    group.become(Status.WAITING)
    assert manager.get_num_cached_tokens(group.seqs[0]) == 16
    assert manager.can_allocate(group) is OK
    start(manager, group)
    assert manager.get_common_computed_block_ids(list(group.seqs)) == [0, 1, 2, 3]


@lineage("18: what ends a step")
@pytest.mark.parametrize("how", ["mark", "again", "swap", "empty", "end_step"])
def test_what_ends_a_step(how: str) -> None:
    manager = manager_of(8)
    group = start(manager, group_of(3, num_seqs=2))
    first, second = group.seqs
    assert decode(manager, first, 3) == [(0, 1)]
    manager.free(second)
    assert manager.get_num_free_gpu_blocks() == 6  # block 0 is kept
    if how == "mark":
        manager.mark_blocks_as_computed(group, 1)
    elif how == "again":
        decode(manager, first, 4)
    elif how == "end_step":
        manager.end_step()
    elif how == "swap":
        group.seqs = [first]  # the scheduler swaps out nothing that it has appended to in the step
        manager.swap_out(group)
    else:
        manager.free(first)
    assert (
        manager.get_num_free_gpu_blocks()
        == {"mark": 7, "again": 6, "end_step": 7, "swap": 8, "empty": 8}[how]
    )


@lineage("3.8: extra keys of a sequence reach its hashes")
def test_extra_keys() -> None:
    manager = manager_of(32, caching=True)
    extras: list[int | kvpool.ExtraKeys | None] = [
        None,
        5,
        6,
        kvpool.ExtraKeys(adapter="a"),
        kvpool.ExtraKeys(salt="a"),
    ]
    for at, extra in enumerate(extras):
        group = Group(str(at), Seq(at, list(range(9)), extra))
        assert manager.get_num_cached_tokens(group.seqs[0]) == 0
        start(manager, group)
        manager.mark_blocks_as_computed(group, 9)
        assert manager.get_num_cached_tokens(Seq(100 + at, list(range(9)), extra)) == 8
    assert manager.get_num_free_gpu_blocks() == 32 - 3 * len(extras)
