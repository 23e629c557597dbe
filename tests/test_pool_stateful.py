"""The whole ``BlockPool`` against the reference model: random calls, valid and not.

After each call the result, the class of the error, both orders, every block, the sums, the events, the digest and all
invariants are compared; a call that failed has changed nothing. Under other policies than LRU, and with hints, the
order of eviction is the pool's own: the model takes it over before each call, after a check that the blocks are the
same. Payloads are checked here, without a model: each comes out when its block holds
another hash. Not driven here: journals (tests/test_journal.py) and policies of one's own (tests/test_python_policy.py).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import kvpool
from kvpool.testing import observe_pool
from tests.reference.pool import Content, ReferencePool
from tests.shares import in_shares, run_share

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvpool._core import Duplicates, EvictionPolicy, VerifyMode

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
        verify=st.sampled_from(kvpool.hashing.verify_modes()),
        duplicates=st.sampled_from(["keep", "drop-on-release"]),
        eviction=st.sampled_from(["lru", "lru", "lru", *kvpool.policies.eviction_policies()]),
        retention=st.sampled_from([False, False, True]),
        advisor=st.booleans(),
    )
    def start(
        self,
        num_blocks: int,
        verify: VerifyMode,
        duplicates: Duplicates,
        eviction: EvictionPolicy,
        retention: bool,
        advisor: bool,
    ) -> None:
        retention = retention and eviction != "last-accessed"
        #: Whether the model knows the order of eviction.
        self.lru = eviction == "lru" and not retention
        #: Whether something asks for the time: times to live, or a policy that measures ages.
        self.timed = retention or eviction == "hazard"
        duplicates = duplicates if self.lru else "keep"
        self.hasher = kvpool.BlockHasher(block_size=BLOCK_SIZE, verify=verify)
        self.pool = kvpool.BlockPool(
            num_blocks,
            BLOCK_SIZE,
            verify=verify,
            duplicates=duplicates,
            eviction=eviction,
            retention=kvpool.RetentionConfig(pin_budget=(num_blocks - 1) // 3) if retention else None,
            advisor=advisor,
            event_capacity=10_000,
            digest=True,
            payloads=True,
        )
        self.now: float | None = None
        self.model = ReferencePool(num_blocks, BLOCK_SIZE, drop_duplicates=duplicates != "keep")
        self.tables: list[list[int]] = []
        #: What lookups found, perhaps long ago, and what the blocks held.
        self.found: list[tuple[kvpool.Match, list[Content]]] = []
        #: Payloads by block, with the hash that they hang on.
        self.hung: dict[int, tuple[bytes | None, int | bytes]] = {}
        self.digests: dict[Content, bytes] = {}
        self.matchable: set[bytes] = set()

    def both(self, call: Callable[[], Any], modelled: Callable[[], Any]) -> Any:
        """Runs a call on both; returns the result, or the class of the error."""
        self.follow()
        before = observe_pool(self.pool)
        result, error = attempt(call)
        expected, _ = attempt(modelled)
        if error is not None:
            assert str(error)
            assert observe_pool(self.pool) == before
        if isinstance(error, kvpool.errors.OutOfBlocksError):
            free, cached_free, _, fenced = self.model.sums()
            assert (error.available, error.fenced) == (free + cached_free, fenced)
            assert error.missing == error.needed - error.available > 0
        assert result == expected
        self.compare()
        return result

    def follow(self) -> None:
        """Where the policy chooses, the order is the pool's."""
        if not self.lru:
            assert sorted(self.pool.eviction_order()) == sorted(self.model.evictable)
            self.model.evictable = self.pool.eviction_order()

    def compare(self) -> None:
        pool, model = self.pool, self.model
        pool.check_invariants()
        assert pool.state_digest() == pool.state_digest_from_scratch()
        pool.scrub(3)
        self.follow()
        stats = pool.stats()
        assert (pool.free_order(), pool.eviction_order()) == (model.free, model.evictable)
        assert (stats.free, stats.cached_free, stats.active, stats.fenced) == model.sums()
        assert sum(model.sums()) == stats.usable == pool.num_blocks - 1 == len(model.blocks) - 1
        registered = [block for block in model.blocks if block.content is not None]
        assert stats.registered == len(registered)
        assert stats.registered_active == sum(block.held > 0 for block in registered)
        everything = range(len(model.blocks))
        assert pool.ref_counts(everything) == [block.held for block in model.blocks]
        assert pool.states(everything) == [pool.state(block) for block in everything]
        assert pool.num_available == stats.available == len(model.free) + len(model.evictable)
        assert pool.epoch == model.epoch
        for block, expected in enumerate(model.blocks[1:], 1):
            assert (pool.ref_count(block), pool.is_computed(block)) == (expected.held, expected.computed)
            assert (pool.num_holders(block), pool.is_registered(block)) == (
                expected.held - expected.fenced,
                expected.content is not None,
            )
            digest = None if expected.content is None else self.digests[expected.content]
            assert pool.hash_of(block) == digest
            if expected.held:
                assert pool.state(block) == ("fenced" if expected.held == expected.fenced else "active")
            else:
                assert pool.state(block) == ("free" if block in model.free else "cached-free")
        for content, copies in model.copies.items():
            if content:
                assert pool.copies(self.digests[content]) == copies
        self.replay_events()
        gone = {block: one for block, one in self.hung.items() if pool.hash_of(block) != one[0]}
        taken = pool.take_evicted()
        assert {block: (digest, payload) for block, digest, payload in taken} == gone
        assert len(taken) == len(gone)
        self.hung = {block: one for block, one in self.hung.items() if block not in gone}

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

    def chain(self, salt: str, tokens: list[int]) -> kvpool.hashing.HashChain:
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

    @rule()
    def fence(self) -> None:
        self.both(self.pool.fence, self.model.fence)

    @rule(nth=NTH, ticket=st.integers(0, 3))
    def release_until(self, nth: int, ticket: int) -> None:
        table, number = self.nth(nth), self.ticket(ticket)
        refused = self.both(
            lambda: self.pool.release(table, until=number), lambda: self.model.release_until(table, number)
        )
        if refused is None:
            self.drop(nth)

    @rule(ticket=st.integers(0, 3))
    def end_fence(self, ticket: int) -> None:
        number = self.ticket(ticket)
        self.both(lambda: self.pool.end_fence(number), lambda: self.model.end_fence(number))

    @rule(nth=NTH, salt=SALTS, tokens=TOKENS, start=st.sampled_from([0, 0, 0, 1]))
    def register_computed(self, nth: int, salt: str, tokens: list[int], start: int) -> None:
        table = self.nth(nth)
        part = table[: max(0, len(tokens) // BLOCK_SIZE - start)]
        chain = self.chain(salt, tokens)
        changes = self.both(
            lambda: self.pool.register_table(part, chain, start),
            lambda: self.model.register_table(part, salt, tokens, start),
        )
        if isinstance(changes, list):
            for at, block in changes:
                table[at] = block

    @rule(ids=IDS, salt=SALTS, tokens=TOKENS)
    def register_any(self, ids: list[int], salt: str, tokens: list[int]) -> None:
        chain = self.chain(salt, tokens)
        self.both(lambda: self.pool.register_table(ids, chain), lambda: self.model.register_table(ids, salt, tokens))

    @rule(ids=st.none() | IDS, salt=SALTS, tokens=TOKENS, start=st.sampled_from([0, 0, 0, 1]))
    def adopt(self, ids: list[int] | None, salt: str, tokens: list[int], start: int) -> None:
        """Free blocks, those that are handed out last, or any."""
        fits = max(0, len(tokens) // BLOCK_SIZE - start)
        table = self.model.free[::-1][:fits] if ids is None else list(ids)
        chain = self.chain(salt, tokens)
        changes = self.both(
            lambda: self.pool.adopt(table, chain, start), lambda: self.model.adopt(table, salt, tokens, start)
        )
        if isinstance(changes, list):
            for at, block in changes:
                table[at] = block
            self.take(table)

    @rule(ids=IDS)
    def disown(self, ids: list[int]) -> None:
        self.both(lambda: self.pool.disown(ids), lambda: self.model.disown(ids))

    @rule(nth=NTH)
    def disown_table(self, nth: int) -> None:
        table = self.nth(nth)
        if self.both(lambda: self.pool.disown(table), lambda: self.model.disown(table)) is None:
            self.drop(nth)

    def ticket(self, nth: int) -> int:
        """The nth open ticket, or one that is not open."""
        return [*self.model.tickets, *[self.model.next_ticket] * 4][nth]

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
        self.drop_cached(tables[order[0]])
        self.match(salt, tokens, None)
        for at in order[kept:]:
            self.release(tables[at])

    def register_chain(self, table: list[int], chain: kvpool.hashing.HashChain, salt: str, tokens: list[int]) -> None:
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

    def link(self, salt: str, tokens: list[int]) -> kvpool.hashing.ChainLink:
        link = None
        extra = kvpool.ExtraKeys(salt=salt) if salt else None
        for start in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
            link = self.hasher.link(tokens[start : start + BLOCK_SIZE], link, extra, epoch=self.model.epoch)
            self.digests[self.model.content(salt, tokens, start // BLOCK_SIZE)] = link.digest
        assert link is not None
        return link

    @rule(nth=NTH, at=st.integers(0, 3), salt=SALTS, tokens=TOKENS.filter(lambda tokens: len(tokens) >= BLOCK_SIZE))
    def register_link(self, nth: int, at: int, salt: str, tokens: list[int]) -> None:
        table = self.nth(nth)
        link = self.link(salt, tokens)
        b = table[at % len(table)] if table else at
        held = self.both(lambda: self.pool.register_link(b, link), lambda: self.model.register_link(b, salt, tokens))
        if table and isinstance(held, int):
            table[at % len(table)] = held

    @rule(salt=SALTS, tokens=TOKENS.filter(lambda tokens: len(tokens) >= BLOCK_SIZE))
    def acquire_registered(self, salt: str, tokens: list[int]) -> None:
        link = self.link(salt, tokens)
        held = self.both(
            lambda: self.pool.acquire_registered(link), lambda: self.model.acquire_registered(salt, tokens)
        )
        self.take([held] if held is not None else None)

    def hint(self, call: Callable[[], Any], *, taken: bool | None = None) -> Any:
        """A call that may change the order of eviction and nothing else; refused where nothing takes it."""
        before = observe_pool(self.pool)
        result, _ = attempt(call)
        after = observe_pool(self.pool)
        order = 2  # of what is observed, the order of eviction
        assert (before[:order], before[order + 1 :]) == (after[:order], after[order + 1 :])
        if not (self.pool.retention_stats() is not None if taken is None else taken):
            assert result in {kvpool.errors.NoRetentionError, kvpool.errors.InvalidBlockError}
            assert before == after
        self.compare()
        return result

    @rule(ids=IDS, priority=st.sampled_from([0, 35, 80, 100]), ttl=st.none() | st.sampled_from([0.0, 1.0, 3.0]))
    def retain(self, ids: list[int], priority: int, ttl: float | None) -> None:
        self.hint(lambda: self.pool.retain(ids, kvpool.Retention(priority, ttl=ttl)))

    @rule(nth=NTH, pinned=st.booleans())
    def retain_table(self, nth: int, pinned: bool) -> None:
        retention = kvpool.Retention(pinned=True) if pinned else kvpool.Retention(demoted=True)
        self.hint(lambda: self.pool.retain(self.nth(nth), retention))

    @rule(by=st.sampled_from([0.0, 1.0, 2.0, -1.0]))
    def advance_time(self, by: float) -> None:
        now = (self.now or 0.0) + by
        result = self.hint(lambda: self.pool.advance_time(now), taken=self.timed)
        if isinstance(result, int):
            self.now = now
        elif self.timed:
            assert result is kvpool.errors.TimeBackwardsError
            assert by < 0

    @rule(ids=IDS, time=st.integers(0, 5))
    def mark_accessed(self, ids: list[int], time: int) -> None:
        """Only one policy listens, and to times alone."""
        before = observe_pool(self.pool)
        blocks = [self.model.blocks[b] if 0 < b < len(self.model.blocks) else None for b in ids]
        fine = all(block is not None and (block.held or block.computed) for block in blocks)
        result, _ = attempt(lambda: self.pool.mark_accessed(ids, float(time)))
        assert result is (None if fine else kvpool.errors.InvalidBlockError)
        if self.lru or not fine:
            assert observe_pool(self.pool) == before
        self.compare()

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

    @rule(salt=SALTS, tokens=TOKENS, start=st.integers(0, 2), most=st.none() | st.integers(0, 5), refresh=st.booleans())
    def lookup(self, salt: str, tokens: list[int], start: int, most: int | None, refresh: bool) -> None:
        chain = self.chain(salt, tokens)
        expected = self.model.find_run(salt, tokens, start, most)
        before = observe_pool(self.pool)
        self.follow()
        found = self.pool.lookup(chain, start, most, refresh=refresh)
        if refresh:
            self.model.refresh(expected)
            expected = self.model.find_run(salt, tokens, start, most)  # a copy may have been dropped
        else:
            assert observe_pool(self.pool) == before
        assert (found.start, found.block_ids, len(found)) == (start, expected, len(expected))
        digests = [self.pool.hash_of(block) for block in expected]
        assert (found.link.digest if found.link else None) == (digests[-1] if digests else None)
        contents = [self.model.content(salt, tokens, start + at) for at in range(len(expected))]
        self.found = [*self.found[-7:], (found, contents)]
        self.compare()

    @rule(nth=NTH)
    def acquire_match(self, nth: int) -> None:
        if self.found:
            found, contents = self.found[nth % len(self.found)]
            ids = found.block_ids
            result = self.both(lambda: self.pool.acquire_match(found), lambda: self.model.acquire_match(ids, contents))
            self.take(ids if result is None else None)

    @rule(ids=IDS, number=st.integers(0, 2**64 - 1) | st.binary(max_size=3))
    def set_payloads(self, ids: list[int], number: int | bytes) -> None:
        before = observe_pool(self.pool)
        fine = all(0 < b < len(self.model.blocks) and self.model.blocks[b].content for b in ids)
        result, _ = attempt(lambda: self.pool.set_payloads(ids, [number] * len(ids)))
        assert result is (None if fine else kvpool.errors.InvalidBlockError)
        assert observe_pool(self.pool) == before
        self.hung |= {b: (self.pool.hash_of(b), number) for b in ids if fine}

    @rule(n=st.integers(0, 4))
    def evict(self, n: int) -> None:
        self.both(lambda: self.pool.evict(n), lambda: self.model.evict(n))

    @rule(ids=IDS)
    def drop_cached(self, ids: list[int]) -> None:
        self.both(lambda: self.pool.drop_cached(ids), lambda: self.model.drop_cached(ids))

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
            except kvpool.errors.StaleEpochError:
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
        for ticket in list(self.model.tickets):
            self.both(functools.partial(self.pool.end_fence, ticket), functools.partial(self.model.end_fence, ticket))
        last = max([step for step, _ in self.model.fences], default=0)
        self.both(lambda: self.pool.complete_step(last), lambda: self.model.complete_step(last))
        held = [block for block in range(1, self.pool.num_blocks) for _ in range(self.model.blocks[block].held)]
        self.both(lambda: self.pool.release(held), lambda: self.model.release(held))
        assert self.pool.num_available == self.pool.num_blocks - 1
        self.tables.clear()


@pytest.mark.longer
@in_shares
def test_the_pool_does_what_the_model_does(share: int) -> None:
    # What only a few histories in a hundred meet is found here or nowhere in Python.
    run_share(PoolMachine, share, settings().max_examples * 3 // 2)
