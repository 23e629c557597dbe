"""The whole ``BlockPool`` against the reference model: random calls, valid and not.

After each call the result, the class of the error, both orders, every block, the sums, the events and all invariants
are compared; a call that failed has changed nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import kvpool
from kvpool.testing import Content, ReferencePool, observe_pool

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_SIZE = 2
LARGEST = 14
SALTS = st.sampled_from(["", "", "", "s"])
#: Few different prompts, so that prefixes are shared.
TOKENS = st.lists(st.sampled_from([0, 0, 0, 1]), max_size=9)
#: Some are null, unknown, not held, or named twice.
IDS = st.lists(st.integers(0, LARGEST + 2), max_size=4)
NTH = st.integers(0, 7)
#: Steps, counted from the one that was completed last.
STEPS = st.integers(-2, 3)


def attempt(call: Callable[[], Any]) -> tuple[Any, kvpool.KvpoolError | None]:
    """The result of a call, or the class of its error and the error."""
    try:
        return call(), None
    except kvpool.KvpoolError as error:
        return type(error), error


class PoolMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(3, LARGEST),
        verify=st.sampled_from(kvpool.verify_modes()),
        duplicates=st.sampled_from(["keep", "drop-on-release"]),
    )
    def start(self, num_blocks: int, verify: str, duplicates: str) -> None:
        self.hasher = kvpool.BlockHasher(block_size=BLOCK_SIZE, verify=verify)
        self.pool = kvpool.BlockPool(
            num_blocks, BLOCK_SIZE, verify=verify, duplicates=duplicates, event_capacity=10_000
        )
        self.model = ReferencePool(num_blocks, BLOCK_SIZE, drop_duplicates=duplicates != "keep")
        self.tables: list[list[int]] = []
        self.digests: dict[Content, bytes] = {}
        self.matchable: set[bytes] = set()

    def both(self, call: Callable[[], Any], modelled: Callable[[], Any]) -> Any:
        """Runs a call on both; returns the result, or the class of the error."""
        before = observe_pool(self.pool)
        result, error = attempt(call)
        expected, _ = attempt(modelled)
        if error is not None:
            assert str(error)
            assert observe_pool(self.pool) == before
        if isinstance(error, kvpool.OutOfBlocksError):
            free, cached_free, _, fenced = self.model.sums()
            assert (error.available, error.fenced) == (free + cached_free, fenced)
            assert error.missing == error.needed - error.available > 0
        assert result == expected
        self.compare()
        return result

    def compare(self) -> None:
        pool, model = self.pool, self.model
        pool.check_invariants()
        stats = pool.stats()
        assert (pool.free_order(), pool.eviction_order()) == (model.free, model.evictable)
        assert (stats.free, stats.cached_free, stats.active, stats.fenced) == model.sums()
        assert sum(model.sums()) == stats.usable == pool.num_blocks - 1 == len(model.blocks) - 1
        assert stats.registered == sum(block.content is not None for block in model.blocks)
        assert pool.num_available == stats.available == len(model.free) + len(model.evictable)
        assert pool.epoch == model.epoch
        for block, expected in enumerate(model.blocks[1:], 1):
            assert (pool.ref_count(block), pool.is_computed(block)) == (expected.held, expected.computed)
            digest = None if expected.content is None else self.digests[expected.content]
            assert pool.hash_of(block) == digest
            if expected.held:
                assert pool.state(block) == ("fenced" if expected.held == expected.fenced else "active")
            else:
                assert pool.state(block) == ("free" if block in model.free else "cached-free")
        self.replay_events()

    def replay_events(self) -> None:
        """Events replayed into a set are the hashes that can be matched."""
        events, lost = self.pool.take_events()
        assert lost == 0
        for event in events:
            if event["type"] == "stored":
                assert event["hash"] not in self.matchable
                self.matchable.add(event["hash"])
            elif event["type"] == "removed":
                self.matchable.remove(event["hash"])
            else:
                self.matchable.clear()
        assert self.matchable == {self.digests[content] for content in self.model.matchable()}

    def chain(self, salt: str, tokens: list[int]) -> kvpool.HashChain:
        extra = kvpool.ExtraKeys(salt=salt) if salt else None
        chain = self.hasher.cursor(tokens, extra, epoch=self.model.epoch).chain()
        for position, digest in enumerate(chain.digests()):
            self.digests[self.model.content(salt, tokens, position)] = digest
        return chain

    def nth(self, nth: int) -> list[int]:
        return self.tables[nth % len(self.tables)] if self.tables else []

    def take(self, result: Any) -> None:
        """A table that the test holds from now on."""
        if isinstance(result, list) and result:
            self.tables.append(result)

    def drop(self, nth: int) -> None:
        if self.tables:
            del self.tables[nth % len(self.tables)]

    @rule(n=st.integers(0, 6))
    def allocate(self, n: int) -> None:
        self.obtain(n)

    def obtain(self, n: int) -> list[int]:
        result = self.both(lambda: self.pool.allocate(n), lambda: self.model.allocate(n))
        self.take(result)
        return result if isinstance(result, list) else []

    @rule(ids=IDS)
    def acquire(self, ids: list[int]) -> None:
        if self.both(lambda: self.pool.acquire(ids), lambda: self.model.acquire(ids)) is None:
            self.take(ids)

    @rule(nth=NTH)
    def acquire_table(self, nth: int) -> None:
        table = list(self.nth(nth))
        if self.both(lambda: self.pool.acquire(table), lambda: self.model.acquire(table)) is None:
            self.take(table)

    @rule(ids=IDS)
    def release(self, ids: list[int]) -> None:
        self.both(lambda: self.pool.release(ids), lambda: self.model.release(ids))

    @rule(nth=NTH)
    def release_table(self, nth: int) -> None:
        table = self.nth(nth)
        self.both(lambda: self.pool.release_table(table), lambda: self.model.release(table[::-1]))
        self.drop(nth)

    @rule(nth=NTH, offset=STEPS)
    def release_after(self, nth: int, offset: int) -> None:
        table, step = self.nth(nth), max(0, self.model.completed + offset)
        self.both(lambda: self.pool.release_after(table, step), lambda: self.model.release_after(table, step))
        self.drop(nth)

    @rule(offset=STEPS)
    def complete_step(self, offset: int) -> None:
        step = max(0, self.model.completed + offset)
        self.both(lambda: self.pool.complete_step(step), lambda: self.model.complete_step(step))

    @rule(nth=NTH, salt=SALTS, tokens=TOKENS, start=st.sampled_from([0, 0, 0, 1]), compute=st.booleans())
    def register_table(self, nth: int, salt: str, tokens: list[int], start: int, compute: bool) -> None:
        table = self.nth(nth)[: max(0, len(tokens) // BLOCK_SIZE - start)]
        chain = self.chain(salt, tokens)
        registered = self.both(
            lambda: self.pool.register(table, chain, start), lambda: self.model.register(table, salt, tokens, start)
        )
        if compute and registered == len(table):
            self.mark_computed(table)

    @rule(salt=SALTS, token=st.integers(0, 1), order=st.permutations(range(3)), kept=st.integers(0, 2))
    def race(self, salt: str, token: int, order: list[int], kept: int) -> None:
        """Three requests compute the same block at once, in any order; those behind `kept` end."""
        tokens = [token] * BLOCK_SIZE
        chain = self.chain(salt, tokens)
        tables = [self.obtain(1) for _ in order]
        for table in tables:
            if table:
                self.register_chain(table, chain, salt, tokens)
        for at in order:
            self.mark_computed(tables[at])
            self.match(salt, tokens, None)
        self.evict(tables[order[0]])
        self.match(salt, tokens, None)
        for at in order[kept:]:
            self.release(tables[at])

    def register_chain(self, table: list[int], chain: kvpool.HashChain, salt: str, tokens: list[int]) -> None:
        self.both(lambda: self.pool.register(table, chain), lambda: self.model.register(table, salt, tokens))

    @rule(order=st.permutations(range(1, 4)), done=STEPS)
    def fence_several(self, order: list[int], done: int) -> None:
        """Several steps run at once, requests end in any of them, and some of the steps complete."""
        for offset in order:
            self.obtain(1)
            self.release_after(len(self.tables) - 1, offset)
        self.complete_step(done)

    @rule(ids=IDS, salt=SALTS, tokens=TOKENS)
    def register(self, ids: list[int], salt: str, tokens: list[int]) -> None:
        chain = self.chain(salt, tokens)
        self.register_chain(ids, chain, salt, tokens)

    @rule(ids=IDS)
    def mark_computed(self, ids: list[int]) -> None:
        self.both(lambda: self.pool.mark_computed(ids), lambda: self.model.mark_computed(ids))

    @rule(nth=NTH)
    def mark_table(self, nth: int) -> None:
        self.mark_computed(self.nth(nth))

    @rule(salt=SALTS, tokens=TOKENS, most=st.none() | st.integers(0, 5))
    def match(self, salt: str, tokens: list[int], most: int | None) -> None:
        chain = self.chain(salt, tokens)
        found, pending = self.model.lookup(salt, tokens, most)
        idle = sum(self.model.blocks[block].held == 0 for block in found)
        before = observe_pool(self.pool)
        probe = self.pool.probe(chain, most)
        assert (probe.cached_blocks, probe.idle_blocks, probe.pending_blocks) == (len(found), idle, pending)
        assert observe_pool(self.pool) == before
        self.take(
            self.both(
                lambda: self.pool.match_and_acquire(chain, most),
                lambda: self.model.match_and_acquire(salt, tokens, most),
            )
        )

    @rule(ids=IDS)
    def evict(self, ids: list[int]) -> None:
        self.both(lambda: self.pool.evict(ids), lambda: self.model.evict(ids))

    @rule()
    def reset(self) -> None:
        self.both(self.pool.reset, self.model.reset)

    @rule(salt=SALTS, tokens=TOKENS)
    def bump_epoch(self, salt: str, tokens: list[int]) -> None:
        stale = self.chain(salt, tokens)
        self.both(self.pool.bump_epoch, self.model.bump_epoch)
        for call in (self.pool.match_and_acquire, self.pool.probe, lambda chain: self.pool.register([], chain)):
            before = observe_pool(self.pool)
            try:
                call(stale)
            except kvpool.StaleEpochError:
                assert observe_pool(self.pool) == before
            else:
                raise AssertionError("a chain of an earlier epoch was taken")

    @rule(by=st.integers(-1, 1))
    def resize(self, by: int) -> None:
        size = min(self.pool.num_blocks + by, LARGEST)
        self.both(lambda: self.pool.resize(size), lambda: self.model.resize(size))

    @precondition(lambda self: self.tables)
    @rule()
    def release_everything(self) -> None:
        """Whatever happened, releasing and completing all brings every block back."""
        last = max([step for step, _ in self.model.fences], default=0)
        self.both(lambda: self.pool.complete_step(last), lambda: self.model.complete_step(last))
        held = [block for block in range(1, self.pool.num_blocks) for _ in range(self.model.blocks[block].held)]
        self.both(lambda: self.pool.release(held), lambda: self.model.release(held))
        assert self.pool.num_available == self.pool.num_blocks - 1
        self.tables.clear()


TestPool = PoolMachine.TestCase
