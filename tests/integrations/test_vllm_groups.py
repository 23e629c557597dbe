"""``VllmGroups``: allocations, caching and frees of requests, against vLLM's managers in plain Python.

Two worlds with the same calls: in one vLLM's managers do everything, in the other ``VllmGroups`` does what it can, on
the same kind of state, with the managers behind it. After each call results, tables, counts, references and the order
of reuse are the same.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvpool import _core, errors
from kvpool.integrations.vllm.settings import EVICTIONS
from tests.integrations.fake_vllm import Request, RequestStatus

UNIT = 2
WAITING = [int(RequestStatus.WAITING), int(RequestStatus.PREEMPTED)]
MAX_LEN = 40


class Result:
    """vLLM's ``KVCacheBlocks``."""

    def __init__(self, blocks: tuple[Any, ...]) -> None:
        self.blocks = blocks


def hashes_of(tokens: list[int]) -> list[bytes]:
    ends = range(UNIT, len(tokens) + 1, UNIT)
    return [hashlib.sha256(repr(tokens[:end]).encode()).digest() for end in ends]


def ids(blocks: Any) -> list[int]:
    return [block.block_id for block in blocks]


def num_idle(blocks: list[Any]) -> int:
    """Blocks that nobody holds."""
    return len([block for block in blocks if block.ref_cnt == 0 and not block.is_null])


def up(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


class Manager:
    """What vLLM's managers of one group have in common, and windows, chunks and states without alignment."""

    def __init__(self, pool: Any, number: int, kind: str, block_size: int, reads: int, retained: int) -> None:
        self.pool, self.number, self.kind, self.block_size = pool, number, kind, block_size
        self.reads, self.retained = reads, retained
        self.most = up(reads, block_size) + 2 if kind in ("sliding", "chunked") else None
        self.tables: dict[str, list[Any]] = {}
        self.num_cached: dict[str, int] = {}
        self.new_block_ids: list[int] = []
        self.null = pool.blocks[0]

    def skipped(self, computed: int) -> int:
        """Tokens that the next one does not read."""
        if self.kind == "sliding":
            return max(0, computed - self.reads + 1 - self.retained)
        if self.kind == "chunked":
            return computed // self.reads * self.reads
        return max(0, computed - 1) if self.kind == "state" else 0

    def remove_skipped(self, name: str, settled: int) -> None:
        table = self.tables.setdefault(name, [])
        freed = []
        for at in range(min(self.skipped(settled) // self.block_size, len(table)) - 1, -1, -1):
            if table[at].is_null:
                break
            freed.append(table[at])
            table[at] = self.null
        self.pool.free(freed)

    def to_allocate(self, name: str, slots: int, hits: list[Any], total: int, *, whole: bool = False) -> int:
        required = up(slots, self.block_size)
        if whole and self.most is not None:
            required = min(required, self.most)
        held = len(self.tables.get(name, ()))
        if name in self.num_cached:
            return max(required - held, 0)
        skipped = self.skipped(total) // self.block_size
        kept = hits[max(0, skipped - held) :]
        return max(required - max(skipped, len(hits) + held), 0) + num_idle(kept)

    def add_hits(self, name: str, hits: list[Any], total: int) -> None:
        skipped = self.skipped(total) // self.block_size
        kept = hits[skipped:]
        self.pool.touch([block for block in kept if not block.is_null])
        self.tables[name] = [self.null] * skipped + kept
        self.num_cached[name] = len(self.tables[name])

    def take(self, n: int) -> list[Any]:
        blocks, _ = self.pool.allocate(n)
        self.new_block_ids += ids(blocks)
        return list(blocks)

    def allocate_new(self, name: str, slots: int) -> list[Any]:
        table = self.tables.setdefault(name, [])
        new = self.take(max(up(slots, self.block_size) - len(table), 0))
        table += new
        return new

    def cache_blocks(self, request: Request, tokens: int, retention_interval: None = None, **_: Any) -> None:
        name = request.request_id
        known, full = self.num_cached.get(name, 0), tokens // self.block_size
        if known >= full:
            return
        scale = self.block_size // UNIT
        table = self.tables.setdefault(name, [])
        full = min(full, len(request.block_hashes) // scale)
        if known < full:
            self.pool.cache_full(
                table, request.block_hashes, known, full, self.block_size, self.number, None, scale, False
            )
            self.num_cached[name] = full

    def free(self, name: str) -> None:
        self.pool.free(list(reversed(self.tables.pop(name, []))))
        self.num_cached.pop(name, None)

    def config(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "block_size": self.block_size,
            "reads": self.reads,
            "retained": self.retained,
            "more_slots": 0,
            "most": self.most,
            "group": self.number,
            "scale": self.block_size // UNIT,
            "cached": True,
            "tables": self.tables,
            "num_cached": self.num_cached,
            "zeroed": self,
            "cached_by": None,
            "prompt_tail": None,
            "states": None,
        }


class AlignedStates(Manager):
    """vLLM's manager of Mamba states in the mode ``align``, without speculation and checkpoints inside of chunks."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.allocated: set[str] = set()
        self.retired: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.shared: dict[str, Any] = {}

    def remove_skipped(self, name: str, settled: int) -> None:
        table = self.tables.setdefault(name, [])
        end = min(self.skipped(settled) // self.block_size, len(table))
        if self.retired.get(name, 0) < end:
            freed = []
            for at in range(end - 1, self.retired.get(name, 0) - 1, -1):
                if not table[at].is_null:
                    freed.append(table[at])
                    table[at] = self.null
            self.pool.free(freed)
            self.retired[name] = end
        last = self.last.get(name)
        if last is not None and last < up(settled, self.block_size) - 1 and not table[last].is_null:
            self.pool.free([table[last]])
            table[last] = self.null

    def to_allocate(self, name: str, slots: int, hits: list[Any], total: int, *, whole: bool = False) -> int:
        missing = up(slots, self.block_size) - len(hits) - len(self.tables.get(name, ()))
        return min(max(missing, 0), 1) + num_idle(hits)

    def allocate_new(self, name: str, slots: int) -> list[Any]:
        table = self.tables.setdefault(name, [])
        required, before = up(slots, self.block_size), len(table)
        if required > before:
            if name in self.allocated or before:
                self.last[name] = before - 1
            table += [self.null] * (required - 1 - before)
            table += self.take(1)
        self.allocated.add(name)
        return table[before:]

    def free(self, name: str) -> None:
        self.allocated.discard(name)
        self.retired.pop(name, None)
        self.last.pop(name, None)
        super().free(name)

    def config(self) -> dict[str, Any]:
        states = {
            "speculative": 0,
            "allocated": self.allocated,
            "retired": self.retired,
            "last": self.last,
            "partial": self.shared,
            "checkpoints": {},
        }
        return {**super().config(), "cached_by": self, "states": states}


class Stock:
    """vLLM's ``KVCacheManager`` and its coordinator, over groups that are described by kind, block size and reach."""

    def __init__(
        self,
        num_blocks: int,
        groups: list[tuple[str, int, int, int]],
        watermark: int = 0,
        recomputed: int = 0,
        eviction: str = "lru",
    ) -> None:
        self.pool = _core.vllm.VllmPool(num_blocks, True, eviction)
        self.watermark, self.recomputed = watermark, recomputed
        self.empty = Result(tuple(() for _ in groups))
        self.managers = [
            (AlignedStates if kind == "aligned" else Manager)(
                self.pool, number, "state" if kind == "aligned" else kind, size, reads, retained
            )
            for number, (kind, size, reads, retained) in enumerate(groups)
        ]
        self.passed_on = 0

    def allocate_slots(
        self,
        request: Request,
        new: int,
        hit: int,
        hits: Any,
        lookahead: int,
        external: int,
        delay: bool,
        encoder: int,
        whole: bool,
        reserved: int,
        scheduled: bool,
        skip_zeroing: Any = (),
    ) -> Any:
        assert (external, encoder, skip_zeroing) == (0, 0, ())
        self.passed_on += 1
        name = request.request_id
        found = [list(blocks) for blocks in (hits or self.empty).blocks]
        total = min(request.num_computed_tokens + hit, MAX_LEN)
        watermark = self.watermark if scheduled and int(request.status) in WAITING else 0

        def need(slots: int, main: int, **how: bool) -> int:
            needed = watermark
            for manager, blocks in zip(self.managers, found, strict=True):
                of = main if isinstance(manager, AlignedStates) else slots
                needed += manager.to_allocate(name, of, blocks, total, **how)
            return needed

        full = min(request.num_tokens, MAX_LEN)
        if whole and need(full, full, whole=True) > self.pool.num_free:
            return None
        # States have no slots for what is looked ahead.
        main = total + new
        slots = min(main + lookahead, MAX_LEN)
        for manager in self.managers:
            manager.remove_skipped(name, max(0, total - request.num_in_flight_tokens))
        if need(slots, main) > self.pool.num_free - reserved:
            return None
        if hits is not None and hits is not self.empty:
            for manager, blocks in zip(self.managers, found, strict=True):
                manager.add_hits(name, blocks, total)
        taken = tuple(m.allocate_new(name, main if isinstance(m, AlignedStates) else slots) for m in self.managers)
        if not delay:
            self.cache_blocks(request, min(main, request.num_tokens))
        return Result(taken) if any(taken) else self.empty

    def cache_blocks(self, request: Request, tokens: int) -> None:
        for manager in self.managers:
            manager.cache_blocks(request, max(0, tokens - self.recomputed))

    def free(self, name: str) -> bool:
        for manager in self.managers:
            manager.free(name)
        return True

    def hit(self, hashes: list[bytes], limit: int) -> tuple[int, list[list[int]]]:
        """The longest hit whose blocks are all there, and its blocks: none left of what is read."""
        alignment = max(manager.block_size for manager in self.managers)
        for length in range(limit // alignment * alignment, 0, -alignment):
            tables = [self._blocks(manager, hashes, length) for manager in self.managers]
            if all(table is not None for table in tables):
                return length, [table for table in tables if table is not None]
        return 0, [[] for _ in self.managers]

    def _blocks(self, manager: Manager, hashes: list[bytes], length: int) -> list[int] | None:
        first = manager.skipped(length) // manager.block_size
        table = [0] * first
        for at in range(first, length // manager.block_size):
            unit = (at + 1) * manager.block_size // UNIT - 1
            found = self.pool.find(hashes[unit], [manager.number])
            if not found:
                return None
            table.append(found[0].block_id)
        return table

    def state(self) -> tuple[Any, ...]:
        blocks = [(block.ref_cnt, block.block_hash, block.block_hash_num_tokens) for block in self.pool.blocks]
        groups = [
            (
                {name: ids(table) for name, table in manager.tables.items() if table},
                dict(manager.num_cached),
                list(manager.new_block_ids),
                vars(manager).get("retired"),
                vars(manager).get("last"),
                vars(manager).get("allocated"),
            )
            for manager in self.managers
        ]
        return self.pool.order(), blocks, groups, set(self.pool.keys())


def groups_of(stock: Stock, **more: Any) -> _core.vllm.VllmGroups:
    return _core.vllm.VllmGroups(
        stock.pool,
        [manager.config() for manager in stock.managers],
        max_model_len=MAX_LEN,
        recomputed=stock.recomputed,
        watermark=stock.watermark,
        waiting=WAITING,
        blocks_class=Result,
        empty=stock.empty,
        fallback=stock.allocate_slots,
        **more,
    )


def specs() -> st.SearchStrategy[list[tuple[str, int, int, int]]]:
    size = st.sampled_from([2, 2, 4])
    one = st.one_of(
        st.tuples(st.just("full"), size, st.just(0), st.just(0)),
        st.tuples(st.just("sliding"), size, st.integers(1, 9), st.sampled_from([0, 0, 3])),
        st.tuples(st.just("chunked"), size, st.sampled_from([4, 6, 8]), st.just(0)),
        st.tuples(st.sampled_from(["state", "aligned"]), size, st.just(0), st.just(0)),
    )
    return st.lists(one, min_size=1, max_size=3)


class GroupsMachine(RuleBasedStateMachine):
    """A scheduler that does everything, in any order, in both worlds."""

    @initialize(
        num_blocks=st.integers(4, 40),
        groups=specs(),
        watermark=st.integers(0, 2),
        recomputed=st.sampled_from([0, 0, 3]),
        eviction=st.sampled_from(["lru", "lru", *EVICTIONS]),
    )
    def begin(self, groups: list[tuple[str, int, int, int]], **settings: Any) -> None:
        self.stock, self.behind = (Stock(groups=groups, **settings) for _ in range(2))
        self.calls = groups_of(self.behind)
        groups_of(self.stock)  # says which groups are chains, as vLLM's first lookup does
        self.has_states = any(kind == "aligned" for kind, *_ in groups)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.count = 0

    def allocate(self, request: Request, new: int, hit: int, tables: list[list[int]] | None, **how: Any) -> bool:
        answers = []
        for world in (self.stock, self.behind):
            hits = None if tables is None else world.empty
            if hit and tables is not None:
                hits = Result(tuple([world.pool.blocks[one] for one in table] for table in tables))
            call = world.allocate_slots if world is self.stock else self.calls.allocate_slots
            answer = call(
                request,
                new,
                hit,
                hits,
                how["lookahead"],
                0,
                how["delay"],
                0,
                how["whole"],
                how["reserved"],
                how["scheduled"],
                (),
            )
            shown = "nothing" if answer is world.empty else answer and [ids(blocks) for blocks in answer.blocks]
            answers.append(shown)
        assert answers[0] == answers[1]
        return answers[0] is not None

    @rule(seeds=st.lists(st.integers(0, 1), min_size=1, max_size=3), length=st.integers(0, 24))
    def arrive(self, seeds: list[int], length: int) -> None:
        self.count += 1
        tokens = [*seeds, *[0] * length]
        request = Request(f"r{self.count}", tokens, hashes_of(tokens), status=RequestStatus.WAITING)
        self.waiting.append(request)

    @precondition(lambda self: self.waiting)
    @rule(
        nth=st.sampled_from([0, 0, 1]),
        chunk=st.integers(1, 20),
        empty=st.booleans(),
        delay=st.sampled_from([False, False, True]),
        whole=st.booleans(),
        reserved=st.sampled_from([0, 0, 1]),
        scheduled=st.booleans(),
        lookahead=st.integers(0, 2),
    )
    def admit(self, nth: int, chunk: int, empty: bool, **how: Any) -> None:
        request = self.waiting[nth % len(self.waiting)]
        hit, tables = self.stock.hit(request.block_hashes, request.num_tokens - 1)
        new = min(chunk, request.num_tokens - hit)
        if self.allocate(request, new, hit, tables if hit or empty else None, **how):
            request.num_computed_tokens = hit + new
            request.num_in_flight_tokens += new
            request.status = RequestStatus.RUNNING
            self.waiting.remove(request)
            self.running.append(request)

    @precondition(lambda self: self.running)
    @rule(
        nth=st.integers(0, 5),
        chunk=st.integers(1, 6),
        lookahead=st.integers(0, 3),
        reserved=st.sampled_from([0, 0, 2]),
        delay=st.sampled_from([False, False, True]),
    )
    def step(self, nth: int, chunk: int, **how: Any) -> None:
        """A chunk of a prompt, or some tokens that are decoded."""
        request = self.running[nth % len(self.running)]
        if request.num_computed_tokens + chunk > MAX_LEN:
            return
        left = request.num_tokens - request.num_computed_tokens
        if self.allocate(request, chunk, 0, None, whole=False, scheduled=True, **how):
            request.num_computed_tokens += chunk
            request.num_in_flight_tokens += chunk
            more = max(chunk - left, 0)
            request._all_token_ids += [7] * more
            request.block_hashes = hashes_of(request._all_token_ids)

    @precondition(lambda self: self.running)
    @rule(nth=st.integers(0, 5), cache=st.booleans())
    def settle(self, nth: int, cache: bool) -> None:
        """What is in flight has come."""
        request = self.running[nth % len(self.running)]
        request.num_in_flight_tokens = 0
        if cache:
            self.stock.cache_blocks(request, request.num_computed_tokens)
            self.calls.cache_blocks(request, request.num_computed_tokens)

    @precondition(lambda self: self.running)
    @rule(nth=st.integers(0, 5))
    def end(self, nth: int) -> None:
        request = self.running.pop(nth % len(self.running))
        self.stock.free(request.request_id)
        if self.calls.free(request.request_id):
            assert not self.has_states
        else:
            assert self.has_states
            self.behind.free(request.request_id)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "calls"):
            assert self.behind.state() == self.stock.state()


TestGroups = GroupsMachine.TestCase
TestGroups.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def run(groups: list[tuple[str, int, int, int]], steps: int) -> tuple[Stock, Request, _core.vllm.VllmGroups]:
    """One request, a token a step, all of it settled at once."""
    stock = Stock(200, groups)
    calls = groups_of(stock)
    tokens = list(range(8))
    request = Request("r", tokens, hashes_of(tokens), status=RequestStatus.WAITING)
    calls.allocate_slots(request, 8)
    request.num_computed_tokens = 8
    for _ in range(steps):
        request._all_token_ids.append(7)
        request.block_hashes = hashes_of(request._all_token_ids)
        calls.allocate_slots(request, 1)
        request.num_computed_tokens += 1
    return stock, request, calls


@pytest.mark.parametrize(
    ("group", "kept"),
    [
        (("full", 2, 0, 0), 14),
        (("sliding", 2, 4, 0), 3),
        (("sliding", 2, 4, 4), 5),
        (("chunked", 2, 8, 0), 2),
        (("state", 2, 0, 0), 2),
    ],
)
def test_plain_steps_never_go_to_vllm(group: tuple[str, int, int, int], kept: int) -> None:
    stock, request, _ = run([("full", 2, 0, 0), group], 19)
    assert stock.passed_on == 0
    table = stock.managers[1].tables[request.request_id]
    assert sum(not block.is_null for block in table) == kept


def test_a_whole_request_needs_no_more_than_its_window_holds_at_once() -> None:
    stock = Stock(10, [("sliding", 2, 4, 0)])
    calls = groups_of(stock)
    long = Request("long", list(range(30)), hashes_of(list(range(30))), status=RequestStatus.WAITING)
    assert calls.allocate_slots(long, 8, full_sequence_must_fit=True) is not None
    other = Request("other", list(range(30)), hashes_of(list(range(30))), status=RequestStatus.WAITING)
    assert calls.allocate_slots(other, 8, full_sequence_must_fit=True) is not None
    third = Request("third", list(range(30)), hashes_of(list(range(30))), status=RequestStatus.WAITING)
    assert calls.allocate_slots(third, 2, full_sequence_must_fit=True) is None  # one block is free
    assert stock.passed_on == 0


def test_aligned_states_go_to_vllm_when_they_come_and_to_be_cached() -> None:
    stock, _request, _ = run([("full", 2, 0, 0), ("aligned", 4, 0, 0)], 20)
    assert stock.passed_on == 1  # its admission
    states = stock.managers[1]
    assert sum(not block.is_null for block in states.tables["r"]) <= 2
    assert states.num_cached["r"] == 7


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "linear"}, 'kind is "linear": must be full, sliding, chunked or state'),
        ({"block_size": 0}, "block_size is 0: must be at least 1"),
        ({"scale": 0}, "scale is 0: must be at least 1"),
        ({"block_size": 3, "scale": 2}, "block_size is 3: must be a multiple of scale, 2"),
    ],
)
def test_a_group_that_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    stock = Stock(4, [("full", 2, 0, 0)])
    config = {**stock.managers[0].config(), **wrong}
    stock.managers[0].config = lambda: config  # type: ignore[method-assign]
    with pytest.raises(errors.InvalidArgumentError, match=message):
        groups_of(stock)


def test_what_is_out_of_the_ordinary_goes_to_vllm_as_it_came() -> None:
    stock = Stock(40, [("full", 2, 0, 0), ("sliding", 2, 4, 0)])
    seen: list[tuple[Any, ...]] = []
    calls = _core.vllm.VllmGroups(
        stock.pool,
        [manager.config() for manager in stock.managers],
        max_model_len=MAX_LEN,
        recomputed=0,
        watermark=0,
        waiting=WAITING,
        blocks_class=Result,
        empty=stock.empty,
        fallback=lambda *arguments: seen.append(arguments),
    )
    request = Request("r", [1] * 9, hashes_of([1] * 9), status=RequestStatus.WAITING)
    before = stock.state()
    calls.allocate_slots(request, 9, num_external_computed_tokens=2)
    calls.allocate_slots(request, 9, num_encoder_tokens=3)
    calls.allocate_slots(request, 0, 4)
    odd = Result(([stock.pool.blocks[1]], [stock.pool.blocks[2]]))
    calls.allocate_slots(request, 9, 1, odd)  # a hit inside a block
    request.num_computed_tokens = 2
    calls.allocate_slots(request, 9)  # computed tokens without blocks
    assert [arguments[1:4] for arguments in seen] == [
        (9, 0, None),
        (9, 0, None),
        (0, 4, None),
        (9, 1, odd),
        (9, 0, None),
    ]
    assert all(len(arguments) == 12 for arguments in seen)
    assert stock.state() == before
