"""The calls of vLLM 0.4, of Aphrodite's age, against the face of its allocators, with KV bytes beneath.

A model block manager of our own keeps tables of blocks and calls the allocator as the ancestor's callers did: a prompt
in immutable blocks and a mutable one, ``get_common_computed_block_ids`` with all ids of every table,
``mark_blocks_as_computed()`` without argument once a step is planned, copies fetched once per step as a dict. The model
computes what it is not told to skip, and reads every token.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvpool.lineage import aphrodite
from tests.lineage.model_memory import Memory, Tokens

SIZE = 4


def lineage(item: str) -> pytest.MarkDecorator:
    return pytest.mark.lineage(ancestor="002", item=item)


def allocator_of(kind: str, num_blocks: int) -> Any:
    if kind == "naive":
        return aphrodite.NaiveBlockAllocator(
            create_block=aphrodite.NaiveBlock, num_blocks=num_blocks, block_size=SIZE, block_ids=range(num_blocks)
        )
    return aphrodite.PrefixCachingBlockAllocator(num_blocks=num_blocks, block_size=SIZE, block_ids=range(num_blocks))


both = pytest.mark.parametrize("kind", ["naive", "prefix_caching"])


class Seq:
    """A sequence and its table, as the ancestor's manager kept it: blocks, and how many slots are full."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.computed = Tokens(tokens), 0
        self.blocks: list[Any] = []
        self.full = 0

    @property
    def ids(self) -> list[int]:
        return [block.block_id for block in self.blocks]


class Engine:
    """Scheduler and block manager of vLLM 0.4, without swaps, which it had not: what does not fit is computed again."""

    def __init__(self, seed: int, kind: str, num_blocks: int) -> None:
        self.random, self.kind = random.Random(seed), kind
        self.allocator, self.memory = allocator_of(kind, num_blocks), Memory(SIZE, num_blocks)
        self.waiting: list[list[Seq]] = []
        self.running: list[list[Seq]] = []
        self.prefixes = [[self.random.randrange(40) for _ in range(12)] for _ in range(3)]
        self.skipped = self.ended = 0

    def one_in(self, n: int) -> bool:
        return self.random.randrange(n) == 0

    def add(self) -> None:
        tokens = self.random.choice(self.prefixes)[: self.random.choice([0, 4, 8, 12, 12, 7])]
        tokens = tokens + [self.random.randrange(2) for _ in range(self.random.randint(0 if tokens else 1, 6))]
        self.waiting.append([Seq(tokens)])

    def allocate(self, seq: Seq) -> None:
        prev: Any = None
        for start in range(0, len(seq.tokens.ids), SIZE):
            chunk = seq.tokens.ids[start : start + SIZE]
            if len(chunk) == SIZE:
                prev = self.allocator.allocate_immutable(prev_block=prev, token_ids=chunk)
            else:
                prev = self.allocator.allocate_mutable(prev_block=prev)
                prev.append_token_ids(chunk)
            seq.blocks.append(prev)
        seq.full = len(seq.tokens.ids)

    def append(self, seq: Seq) -> None:
        unseen = seq.tokens.ids[seq.full :]
        if seq.full == len(seq.blocks) * SIZE:
            seq.blocks.append(self.allocator.allocate_mutable(prev_block=seq.blocks[-1]))
        seq.blocks[seq.full // SIZE].append_token_ids(unseen)
        seq.full += len(unseen)

    def free(self, seq: Seq) -> None:
        for block in seq.blocks:
            self.allocator.free(block)
        seq.blocks, seq.full = [], 0

    def preempt(self, group: list[Seq]) -> None:
        for seq in group:
            self.free(seq)
            seq.computed = 0
        self.waiting += [[seq] for seq in group]

    def step(self) -> None:
        allocator = self.allocator
        prompts: list[list[Seq]] = []
        queue, self.running = self.running, []
        if queue and self.one_in(10):
            self.preempt(queue.pop())
        while queue:
            group = queue.pop(0)
            while allocator.get_num_free_blocks() < len(group):
                self.preempt(queue.pop() if queue else group)
                if not group[0].blocks:
                    break
            else:
                for seq in group:
                    self.append(seq)
                self.running.append(group)
        while self.waiting:
            (seq,) = self.waiting[0]
            if allocator.get_num_free_blocks() < -(-len(seq.tokens.ids) // SIZE):
                break
            prompts.append(self.waiting.pop(0))
            self.allocate(seq)
        work = [(seq, seq.computed) for group in self.running for seq in group]
        for group in prompts:
            common = allocator.get_common_computed_block_ids([seq.ids for seq in group])
            for seq in group:
                assert seq.ids[: len(common)] == common
                assert len(common) * SIZE < len(seq.tokens.ids)  # something is left to be computed
                work.append((seq, len(common) * SIZE))
                self.skipped += len(common)
        self.running += prompts
        for _ in self.running:
            allocator.mark_blocks_as_computed()
        copies = allocator.clear_copy_on_writes()
        self.memory.copy([(src, dst) for src, targets in copies.items() for dst in targets])
        for seq, start in work:
            self.memory.write(seq.ids, seq.tokens, start, len(seq.tokens.ids))
        for seq, _ in work:
            self.memory.check(seq.ids, seq.tokens, 0, len(seq.tokens.ids), "sequence")
            seq.computed = len(seq.tokens.ids)
        self.process()

    def process(self) -> None:
        for group in list(self.running):
            for seq in list(group):
                if self.one_in(6) and len(group) < 3:
                    child = Seq(list(seq.tokens.ids))
                    child.computed, child.full = seq.computed, seq.full
                    child.blocks = self.allocator.fork(seq.blocks[-1])
                    group.append(child)
                    child.tokens.append(self.random.randrange(2))
                seq.tokens.append(self.random.randrange(2))
                if self.one_in(7):
                    self.free(seq)
                    group.remove(seq)
                    self.ended += 1
            if not group:
                self.running.remove(group)

    def drain(self) -> None:
        for group in self.running:
            for seq in group:
                self.free(seq)
        assert self.allocator.clear_copy_on_writes() == {}
        assert self.allocator.get_num_free_blocks() == self.allocator.get_num_total_blocks()
        self.allocator._tiers.check_invariants()


@lineage("callers: vLLM 0.4's, with KV bytes: no wrong KV, no lost block")
@pytest.mark.parametrize("seed", range(15))
@both
def test_the_ancestor_s_calls(kind: str, seed: int) -> None:
    engine = Engine(seed, kind, 8 + 2 * seed)
    for _ in range(80):
        if engine.one_in(2) and len(engine.waiting) < 3:
            engine.add()
        engine.step()
    assert engine.ended > 3
    assert (engine.skipped > 0) == (kind == "prefix_caching")
    engine.drain()


@lineage("callers: all ids of every table: right after allocate nothing is computed")
@both
def test_right_after_allocate_nothing_is_computed(kind: str) -> None:
    engine = Engine(0, kind, 8)
    first, second = Seq(list(range(9))), Seq(list(range(9)))
    engine.allocate(first)
    assert engine.allocator.get_common_computed_block_ids([first.ids]) == []
    assert engine.allocator.get_common_computed_block_ids(seq_block_ids=[first.ids, first.ids]) == []
    engine.allocator.mark_blocks_as_computed()
    engine.allocate(second)
    expected = first.ids[:2] if kind == "prefix_caching" else []
    assert engine.allocator.get_common_computed_block_ids([second.ids]) == expected
    assert engine.allocator.get_common_computed_block_ids([first.ids, second.ids]) == expected


@lineage("callers: a prompt that is cached whole has its last block computed again")
def test_the_last_block_of_a_table_is_never_skipped() -> None:
    engine = Engine(0, "prefix_caching", 8)
    seqs = [Seq(list(range(8))) for _ in range(2)]
    engine.allocate(seqs[0])
    engine.allocator.mark_blocks_as_computed()
    engine.allocate(seqs[1])
    assert seqs[0].ids == seqs[1].ids
    assert engine.allocator.get_common_computed_block_ids([seqs[1].ids]) == seqs[1].ids[:1]
    assert engine.allocator.get_common_computed_block_ids([[], seqs[1].ids]) == []
    assert engine.allocator.get_common_computed_block_ids([]) == []


@lineage("callers: a block behind a hole, or of one table alone, is not common")
def test_a_hole_and_a_difference_end_what_is_common() -> None:
    allocator = allocator_of("prefix_caching", 8)
    chain: Any = [allocator.allocate_immutable(None, [0] * SIZE)]
    for n in range(1, 4):
        chain.append(allocator.allocate_immutable(chain[-1], [n] * SIZE))
    ids = [block.block_id for block in chain]
    allocator.mark_blocks_as_computed([ids[0], ids[2], ids[3]])
    assert allocator.get_common_computed_block_ids([ids]) == ids[:1]
    allocator.mark_blocks_as_computed()
    assert allocator.get_common_computed_block_ids([ids]) == ids[:3]
    assert allocator.get_common_computed_block_ids([ids, [*ids[:2], 7, 6]]) == ids[:2]
