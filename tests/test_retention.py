"""Retention from Python: the order of eviction against a small model, hints at the manager, examples of the docs.

The model keeps what was said of every cached content, and says who goes next: of the blocks that nobody holds the one
of the lowest rank, and of equal ranks the one released longest ago. One on which cached blocks hang waits for them when
its turn comes; when the last of them is gone, it is the next of its rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import kvpool
from kvpool import CacheManager, HintReport, Retention, RetentionConfig, TenantLimits

if TYPE_CHECKING:
    from kvpool._core import EvictionPolicy

DEMOTED, NORMAL, HIGHEST, PINNED = -1, 35, 100, 101
HASHER = kvpool.BlockHasher(block_size=1)

RETENTIONS = st.builds(
    lambda keep, ttl, then: Retention(**keep, **ttl, then=then),
    st.one_of(
        st.sampled_from([{"pinned": True}, {"demoted": True}, {}]),
        st.integers(0, 100).map(lambda priority: {"priority": priority}),
    ),
    st.one_of(st.just({}), st.builds(lambda ttl, idle: {"ttl": ttl, "idle": idle}, st.integers(0, 4), st.booleans())),
    st.sampled_from(["normal", "demote"]),
)


@dataclass
class Content:
    """What the model knows of a block with a cached content."""

    parent: int | None
    depth: int
    holders: int = 1
    rank: int = NORMAL
    #: Its place in its rank, lowest first: the last at its release, or when its rank changed; the first after a wait.
    turn: int = 0
    #: Its turn has come, and it waits for what hangs on it.
    waits: bool = False
    #: An idle one; its deadline is there while nobody holds the block.
    ttl: float | None = None
    deadline: float | None = None
    then: str = "normal"


class OrderMachine(RuleBasedStateMachine):
    """Chains, random hints and pressure on one pool."""

    @initialize(usable=st.integers(3, 12), budget=st.integers(0, 3))
    def start(self, usable: int, budget: int) -> None:
        self.budget = min(budget, usable)
        retention = RetentionConfig(pin_budget=self.budget)
        self.pool = kvpool.BlockPool(usable + 1, 1, retention=retention)
        self.usable = usable
        self.known: dict[int, Content] = {}
        #: Tables of chains, and blocks without a content.
        self.tables: list[list[int]] = []
        self.anonymous: list[int] = []
        #: The last and the first place of all that were given.
        self.last = self.first = 0
        self.now = 0.0
        self.expired = 0
        self.pool.advance_time(0.0)

    # What happens to the pool.

    @rule(chain=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def store(self, chain: list[int]) -> None:
        chain_of = HASHER.cursor(chain).chain()
        table = self.pool.match_and_acquire(chain_of)
        for block in table:
            self.hit(block)
        missing = len(chain) - len(table)
        new = self.allocate(missing)
        if new is None:
            return self.drop(table)
        start = len(table)
        table += new
        self.pool.register(new, chain_of, start)
        self.pool.mark_computed(new)
        for depth in range(start, len(chain)):
            self.known[table[depth]] = Content(table[depth - 1] if depth else None, depth)
        self.tables.append(table)
        return None

    @rule(nth=st.integers(0, 99))
    def release(self, nth: int) -> None:
        if self.tables:
            self.drop(self.tables.pop(nth % len(self.tables)))

    @rule(n=st.integers(0, 5))
    def press(self, n: int) -> None:
        self.anonymous += self.allocate(n) or []

    @rule()
    def relax(self) -> None:
        self.pool.release(self.anonymous)
        self.anonymous = []

    @rule(ids=st.lists(st.integers(1, 3), max_size=3), retention=RETENTIONS)
    def retain(self, ids: list[int], retention: Retention) -> None:
        counts = {"accepted": 0, "clipped": 0, "ignored": 0}
        for block in ids:
            counts[self.say(block, retention)] += 1
        report = self.pool.retain(ids, retention)
        assert {name: getattr(report, name) for name in counts} == counts

    @rule(seconds=st.integers(0, 3))
    def advance(self, seconds: int) -> None:
        self.now += seconds
        due = [(c.deadline, b) for b, c in self.known.items() if c.deadline is not None and c.deadline <= self.now]
        assert self.pool.advance_time(self.now) == len(due)
        for _, block in sorted(due):
            self.expired += 1
            then = self.known[block].then
            self.say(block, Retention(demoted=True) if then == "demote" else Retention(), by_clock=True)

    # What the model makes of it.

    def allocate(self, n: int) -> list[int] | None:
        """Takes blocks of both; None if there are too few, and then, and only then, the pool refuses."""
        free, idle = len(self.pool.free_order()), sum(content.holders == 0 for content in self.known.values())
        if n > free + idle:
            with pytest.raises(kvpool.errors.OutOfBlocksError):
                self.pool.allocate(n)
            return None
        taken = self.pool.allocate(n)
        assert taken[min(n, free) :] == [self.evict() for _ in range(n - free)]
        return taken

    def hit(self, block: int) -> None:
        content = self.known[block]
        content.holders += 1
        content.waits = False
        if content.rank == DEMOTED:
            content.rank = NORMAL
        if content.ttl is not None:
            content.deadline = None  # it runs while nobody holds the block

    def drop(self, table: list[int]) -> None:
        self.pool.release_table(table)
        for block in reversed(table):
            content = self.known[block]
            content.holders -= 1
            if content.holders == 0:
                self.put_last(content)
                if content.ttl is not None:
                    content.deadline = self.now + content.ttl

    def put_last(self, content: Content) -> None:
        self.last += 1
        content.turn = self.last

    def end_wait(self, content: Content) -> None:
        if content.waits:
            content.waits = False
            self.first -= 1
            content.turn = self.first

    def say(self, block: int, retention: Retention, *, by_clock: bool = False) -> str:
        content = self.known.get(block)
        if content is None or (retention.demoted and content.holders > 1 and not by_clock):
            return "ignored"
        self.end_wait(content)
        pinned = sum(other.rank == PINNED for other in self.known.values())
        clipped = retention.pinned and content.rank != PINNED and pinned >= self.budget
        before = content.rank
        if retention.pinned:
            content.rank = HIGHEST if clipped else PINNED
        else:
            content.rank = DEMOTED if retention.demoted else retention.priority or 0
        if content.rank != before:
            self.put_last(content)
        content.ttl = retention.ttl if retention.idle else None
        runs = retention.ttl is not None and not (retention.idle and content.holders)
        content.deadline = self.now + (retention.ttl or 0) if runs else None
        content.then = retention.then
        return "clipped" if clipped else "accepted"

    def evict(self) -> int:
        """The next block that nobody holds (property 12); those asked before it wait for what hangs on them."""
        while True:
            idle = [block for block, content in self.known.items() if content.holders == 0 and not content.waits]
            victim = min(idle, key=lambda block: (self.known[block].rank, self.known[block].turn))
            if not self.is_needed(victim):
                break
            self.known[victim].waits = True
        parent = self.known.pop(victim).parent
        if parent is not None and not self.is_needed(parent):
            self.end_wait(self.known[parent])
        return victim

    def is_needed(self, block: int) -> bool:
        return any(content.parent == block and content.holders == 0 for content in self.known.values())

    def order(self) -> list[int]:
        before, first = self.known, self.first
        self.known = {block: replace(content) for block, content in before.items()}
        order = [self.evict() for content in before.values() if content.holders == 0]
        self.known, self.first = before, first
        return order

    @invariant()
    def same(self) -> None:
        self.pool.check_invariants()
        assert self.pool.eviction_order() == self.order()
        ranks = [content.rank for content in self.known.values()]
        stats = self.pool.retention_stats()
        assert stats is not None
        assert stats.pinned == ranks.count(PINNED) <= self.budget
        assert stats.demoted == ranks.count(DEMOTED)
        assert stats.below_normal == sum(DEMOTED < rank < NORMAL for rank in ranks)
        assert stats.above_normal == sum(NORMAL < rank < PINNED for rank in ranks)
        assert stats.with_ttl == sum(content.deadline is not None for content in self.known.values())
        assert stats.expired == self.expired


TestOrder = OrderMachine.TestCase


def test_a_block_that_waited_is_the_next_of_its_rank() -> None:
    """The model put it back to where its release had put it, behind others of its rank whose wait had ended before."""
    machine = OrderMachine()
    machine.start(usable=11, budget=0)
    history: list[tuple[Any, ...]] = [
        (machine.store, [1, 0]),
        (machine.store, [2, 0, 0]),
        (machine.press, 3),
        (machine.release, 0),
        (machine.release, 0),
        (machine.store, [0, 0, 0, 0]),
        (machine.store, [2, 0, 0, 0]),
        (machine.release, 0),
        (machine.store, [0]),
        (machine.retain, [1, 2], Retention(pinned=True)),  # clipped
        (machine.release, 0),
        (machine.press, 1),
        (machine.retain, [1], Retention(demoted=True)),
    ]
    for step, *arguments in history:
        step(*arguments)
        machine.same()
    # Both chains had their turn, and waited for a tail of priority 100. That of 11 went first; now that of 5 goes.
    assert machine.pool.eviction_order() == [1, 5, 4, 3, 11, 10]


class HintsMachine(RuleBasedStateMachine):
    """Requests of tenants with random hints, under every policy.

    Hints never cost an allocation (property 23), and never change what a lookup returns.
    """

    @initialize(usable=st.integers(4, 10), eviction=st.sampled_from(kvpool.policies.eviction_policies()))
    def start(self, usable: int, eviction: EvictionPolicy) -> None:
        tenants = [TenantLimits(1, floor=1, ceiling=3), TenantLimits(2, floor=1)]
        retention = RetentionConfig(pin_budget=2, tenants=tenants)
        if eviction == "last-accessed":
            eviction = "lru"
        self.manager = CacheManager(usable + 1, 2, eviction=eviction, retention=retention)
        self.manager.advance_time(0.0)
        self.now = 0.0
        self.running: set[int] = set()

    ids = st.integers(0, 3)
    ranges = st.lists(st.tuples(st.integers(0, 8), st.none() | st.integers(9, 12), RETENTIONS), max_size=2)

    @rule(
        request=ids,
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        tenant=st.none() | st.integers(1, 3),
        no_cache=st.booleans(),
        ranges=ranges,
    )
    def admit(self, request: int, tokens: list[int], tenant: int | None, no_cache: bool, ranges: list[Any]) -> None:
        if request in self.running:
            return
        probe = self.manager.probe(tokens)
        needed = -(-len(tokens) // 2) - probe.cached_blocks
        fits = needed + probe.idle_blocks <= self.manager.num_available
        try:
            admission = self.manager.admit(request, tokens, tenant=tenant, no_cache=no_cache, retention=ranges)
        except kvpool.errors.OutOfBlocksError:
            assert not fits
            return
        assert fits
        assert admission.cached_blocks == probe.cached_blocks
        self.running.add(request)
        self.manager.commit(request, len(tokens))

    @rule(request=ids, ranges=ranges)
    def retain(self, request: int, ranges: list[Any]) -> None:
        if request in self.running:
            self.manager.retain(request, ranges)

    @rule(request=ids, start=st.integers(0, 6))
    def end(self, request: int, start: int) -> None:
        if request in self.running:
            self.manager.end_of_life(request, start)

    @rule(request=ids, end_of_life=st.booleans())
    def release(self, request: int, end_of_life: bool) -> None:
        if request in self.running:
            self.running.remove(request)
            (self.manager.end_session if end_of_life else self.manager.release)(request)

    @rule(tokens=st.lists(st.integers(0, 1), max_size=9), ranges=ranges)
    def retain_prefix(self, tokens: list[int], ranges: list[Any]) -> None:
        self.manager.retain_prefix(tokens, ranges)

    @rule(tokens=st.lists(st.integers(0, 1), max_size=9), start=st.integers(0, 6))
    def end_prefix(self, tokens: list[int], start: int) -> None:
        before = self.manager.probe([*tokens, 9]).cached_blocks
        self.manager.end_of_life_of(tokens, start)
        assert self.manager.probe([*tokens, 9]).cached_blocks == before

    @rule(seconds=st.integers(0, 3))
    def advance(self, seconds: int) -> None:
        self.now += seconds
        self.manager.advance_time(self.now)

    @invariant()
    def sound(self) -> None:
        self.manager.check_invariants()
        stats = self.manager.stats()
        order = self.manager.eviction_order()
        assert len(order) == stats.pool.cached_free
        held = {block for request in self.running for block in self.manager.block_ids(request)}
        assert not held & set(order)  # property 12
        assert stats.retention == self.manager.retention_stats()
        assert stats.retention is not None
        assert stats.retention.pinned <= 2


TestHints = HintsMachine.TestCase


# --------------------------------------------------------------------------------------------------- named cases


def chat(manager: CacheManager, name: str, tokens: list[int], **hints: Any) -> list[int]:
    """Admits, computes and releases a request; returns its full blocks."""
    table = manager.admit(name, tokens, **hints).block_ids
    manager.commit(name, len(tokens))
    manager.release(name)
    return table[: len(tokens) // manager.block_size]


def test_the_order_of_eviction_is_the_documented_one() -> None:
    retention = RetentionConfig(pin_budget=1, tenants=[TenantLimits(1, ceiling=0), TenantLimits(2, floor=1)])
    manager = CacheManager(16, 1, retention=retention)
    pinned = chat(manager, "pinned", [1], retention=[(0, None, Retention(pinned=True))])
    clipped = chat(manager, "clipped", [2], retention=[(0, None, Retention(pinned=True))])
    sheltered = chat(manager, "floor", [3], tenant=2)
    high = chat(manager, "high", [4], retention=[(0, None, Retention(60))])
    normal = chat(manager, "normal", [5])
    low = chat(manager, "low", [6], retention=[(0, None, Retention(0))])
    greedy = chat(manager, "ceiling", [7], tenant=1, retention=[(0, None, Retention(90))])
    scan = chat(manager, "scan", [8], no_cache=True)
    order = scan + greedy + low + normal + high + clipped + sheltered + pinned
    assert manager.eviction_order() == order
    # And they are evicted in that order, whatever it is that they are.
    manager.admit("all", list(range(100, 115)))
    manager.check_invariants()
    assert set(manager.block_ids("all")) >= set(order)


def test_a_later_hint_takes_an_earlier_one_back() -> None:
    manager = CacheManager(16, 2, retention=True)
    chat(manager, "a", [1, 2, 3, 4])
    assert manager.end_of_life_of([1, 2, 3, 4]) == manager.retain_prefix([1, 2, 3, 4], [(0, None, Retention())])
    assert manager.retention_stats() == CacheManager(16, retention=True).retention_stats()


def test_the_end_of_a_session_and_the_return_of_its_prompt() -> None:
    manager = CacheManager(16, 2, retention=True)
    manager.admit("a", [1, 2, 3, 4, 5, 6])
    manager.commit("a", 6)
    report = manager.end_session("a")
    assert (report.accepted, report.clipped, report.ignored) == (3, 0, 0)
    assert manager.admit("b", [1, 2, 3, 4, 9]).cached_tokens == 4
    stats = manager.retention_stats()
    assert stats is not None
    assert stats.demoted == 1


def test_a_request_keeps_its_retention_however_long_it_runs() -> None:
    """An idle ttl went on during the use: a request longer than that lost the retention of its own blocks."""
    manager = CacheManager(16, 2, retention=True)
    manager.advance_time(0)
    hints = [(0, None, Retention(80, ttl=10, idle=True))]

    def kept() -> tuple[int, int]:
        stats = manager.retention_stats()
        assert stats is not None
        return stats.above_normal, stats.with_ttl

    manager.admit("a", [1, 2, 3, 4], retention=hints)
    manager.commit("a", 4)
    assert (manager.advance_time(1000), kept()) == (0, (2, 0))
    manager.release("a")
    assert (manager.advance_time(1009), kept()) == (0, (2, 2))
    manager.admit("b", [1, 2, 3, 4, 5])  # a hit ends what ran
    assert (manager.advance_time(2000), kept()) == (0, (2, 0))
    manager.release("b")
    assert (manager.advance_time(2010), kept()) == (2, (0, 0))


def test_a_step_admits_with_hints() -> None:
    manager = CacheManager(16, 2, retention=True)
    with manager.plan_step() as step:
        step.admit("a", [1, 2, 3], no_cache=True, tenant=5, retention=[(0, 1, Retention(80))])
        step.commit()
    manager.commit("a", 3)
    stats = manager.retention_stats()
    assert stats is not None
    assert (stats.demoted, stats.above_normal) == (1, 0)
    with manager.plan_step() as step, pytest.raises(kvpool.errors.InvalidArgumentError, match=r"range is 3\.\.3"):
        step.admit("b", [1], retention=[(3, 3, Retention())])


def test_classes_are_values() -> None:
    assert Retention(80, ttl=5) == Retention(80, ttl=5.0)
    assert Retention(80) != Retention(81)
    assert (Retention().priority, Retention(pinned=True).priority, Retention(demoted=True).demoted) == (35, None, True)
    for retention in (Retention(), Retention(0, ttl=0.5, idle=True, then="demote"), Retention(pinned=True, ttl=1)):
        assert eval(repr(retention), {"Retention": Retention}) == retention
    limits = TenantLimits(3, floor=1, ceiling=2)
    config = RetentionConfig(pin_budget=3, tenants=(limits,))
    assert eval(repr(config), vars(kvpool)) == config
    assert (config.pin_budget, config.tenants, limits.tenant, limits.floor, limits.ceiling) == (3, [limits], 3, 1, 2)
    with pytest.raises(AttributeError):
        config.pin_budget = 4  # type: ignore[misc]


def test_true_is_retention_without_pins_and_limits() -> None:
    for config in (True, RetentionConfig()):
        assert kvpool.BlockPool(8, retention=config).retention_stats() is not None
    for none in (None, False):
        assert kvpool.BlockPool(8, retention=none).retention_stats() is None
        assert CacheManager(8, retention=none).stats().retention is None


def test_figures_of_the_manager_count_hints() -> None:
    manager = CacheManager(16, 2, retention=RetentionConfig(pin_budget=1))
    chat(manager, "a", [1, 2, 3, 4], retention=[(0, None, Retention(pinned=True))])
    manager.end_of_life_of([5, 6])
    hints = manager.stats().hints
    assert (hints.accepted, hints.clipped, hints.ignored) == (1, 1, 1)


def test_tenants_are_counted() -> None:
    manager = CacheManager(16, 2, retention=RetentionConfig(tenants=[TenantLimits(1, ceiling=9)]))
    chat(manager, "a", [1, 2, 3, 4], tenant=1)
    manager.admit("b", [1, 2, 3, 4, 5, 6, 7])  # hits two blocks of tenant 1, and has one of its own
    manager.commit("b", 7)
    manager.set_tenant("b", 1)
    assert (manager.tenant_blocks(1), manager.tenant_blocks(2)) == (3, 0)


# ------------------------------------------------------------------------------------------------------ the docs

DOCS = (Path(__file__).resolve().parent.parent / "docs" / "retention.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCS, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_of_the_docs_run(number: int) -> None:
    names: dict[str, Any] = {"kvpool": kvpool}
    exec(compile(EXAMPLES[number], f"docs/retention.md, example {number}", "exec"), names)
    managers = [value for value in names.values() if isinstance(value, CacheManager)]
    for manager in managers:
        manager.check_invariants()


def test_the_docs_have_examples() -> None:
    assert len(EXAMPLES) >= 5
    assert isinstance(CacheManager(8, retention=True).end_of_life_of([1]), HintReport)
