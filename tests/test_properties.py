"""Historical bugs of KV-cache systems as properties, as far as Python sees them: one test each or more.

The numbers are those of the list of 25 that the design was made from. Each test fails on the behaviour of the bug.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvpool
from kvpool.testing import observe_manager, observe_pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

B = 2
HASHER = kvpool.BlockHasher(block_size=B)


def chain_of(tokens: Sequence[int], epoch: int = 0) -> kvpool.HashChain:
    return HASHER.cursor(tokens, epoch=epoch).chain()


def fill(pool: kvpool.BlockPool, tokens: Sequence[int]) -> list[int]:
    """Takes blocks for the tokens, registers them, marks them computed."""
    blocks = pool.allocate(len(tokens) // B)
    pool.register(blocks, chain_of(tokens, pool.epoch))
    pool.mark_computed(blocks)
    return blocks


def cache(pool: kvpool.BlockPool, tokens: Sequence[int]) -> list[int]:
    blocks = fill(pool, tokens)
    pool.release_table(blocks)
    return blocks


def recount(pool: kvpool.BlockPool) -> tuple[int, int, int, int]:
    """Free, cached-free, active, fenced: from the lists and the blocks alone."""
    states = [pool.state(block) for block in range(1, pool.num_blocks)]
    assert len(pool.free_order()) == states.count("free")
    assert len(pool.eviction_order()) == states.count("cached-free")
    held = sum(pool.ref_count(block) > 0 for block in range(1, pool.num_blocks))
    assert held == states.count("active") + states.count("fenced")
    free, cached_free, active, fenced = (states.count(s) for s in ("free", "cached-free", "active", "fenced"))
    return free, cached_free, active, fenced


def sums(stats: kvpool.PoolStats) -> tuple[int, int, int, int]:
    return stats.free, stats.cached_free, stats.active, stats.fenced


@pytest.mark.parametrize("cached", [False, True])
def test_property_01_a_block_freed_twice_in_one_call_is_queued_once(cached: bool) -> None:
    """vllm#42571, dynamo#13398: freeing [b, b] put b on the queue twice."""
    calls = [call for length in range(6) for call in itertools.product([1, 2, 3], repeat=length)]
    assert len(calls) == 364
    for call in calls:
        pool = kvpool.BlockPool(6, B)
        assert (fill(pool, range(6)) if cached else pool.allocate(3)) == [1, 2, 3]
        pool.acquire([2, 3, 3])
        fits = all(call.count(block) <= block for block in (1, 2, 3))
        if fits:
            pool.release(call)
        else:
            with pytest.raises(kvpool.InvalidBlockError):
                pool.release(call)
        left = [block - call.count(block) if fits else block for block in (1, 2, 3)]
        assert [pool.ref_count(block) for block in (1, 2, 3)] == left
        queue = pool.eviction_order() if cached else pool.free_order()
        assert len(set(queue)) == len(queue)
        idle = left.count(0)
        expected = (2, idle, 3 - idle, 0) if cached else (2 + idle, 0, 3 - idle, 0)
        assert sums(pool.stats()) == recount(pool) == expected
        pool.check_invariants()  # walks every list in both directions


@pytest.mark.parametrize("fence", [True, False])
def test_property_02_a_block_is_on_one_list_and_an_unheld_block_cannot_be_released(fence: bool) -> None:
    """trtllm#14937: a block on two lists at once, after a release of what nobody held."""
    pool = kvpool.BlockPool(7, B)
    cache(pool, range(4))
    assert pool.allocate(2) == [3, 4]
    pool.release_after([3], 1)
    if not fence:
        pool.complete_step(1)

    def places(block: int) -> int:
        lists = [*pool.free_order(), *pool.eviction_order()]
        return lists.count(block) + (pool.ref_count(block) > 0)

    states = {1: "cached-free", 2: "cached-free", 3: "fenced" if fence else "free", 4: "active", 5: "free", 6: "free"}
    for block, state in states.items():
        assert (pool.state(block), places(block)) == (state, 1)
        if state == "active":
            continue
        before = observe_pool(pool)
        for call in ([block], [4, block], [block, 4]):
            for release in (pool.release, pool.release_table, lambda ids: pool.release_after(ids, 9)):
                with pytest.raises(kvpool.InvalidBlockError, match=f"block {block} has 0 references"):
                    release(call)
                assert observe_pool(pool) == before
        assert places(block) == 1
    with pytest.raises(kvpool.InvalidBlockError):
        pool.release([0])
    assert places(0) == 0


@pytest.mark.parametrize("cached", [0, 1, 2])
@pytest.mark.parametrize("held", [0, 1, 2])
def test_property_03_an_impossible_allocation_changes_nothing(cached: int, held: int) -> None:
    """ascend#14283, lmcache#987: allocating 0, a negative number or more than there is changed the counts."""
    pool = kvpool.BlockPool(7, B)
    cache(pool, range(cached * B))
    table = pool.allocate(held)
    pool.release_after(table[:1], 7)
    available = pool.num_available
    assert available == 6 - held
    before = observe_pool(pool)
    assert pool.allocate(0) == []
    assert observe_pool(pool) == before
    for n in (available + 1, 7, 2**31, 2**62):
        with pytest.raises(kvpool.OutOfBlocksError) as refused:
            pool.allocate(n)
        error = refused.value
        assert (error.needed, error.available, error.fenced) == (n, available, min(held, 1))
        assert observe_pool(pool) == before
    for n in (-1, -(2**31), -(2**63)):
        with pytest.raises(kvpool.InvalidArgumentError):
            pool.allocate(n)
        assert observe_pool(pool) == before
    assert len(pool.allocate(available)) == available
    assert sums(pool.stats()) == recount(pool)
    assert all(0 <= figure <= 6 for figure in recount(pool))


def interleavings(programs: int, steps: int) -> Iterator[list[int]]:
    """Which program runs next, in every order."""

    def go(left: tuple[int, ...]) -> Iterator[list[int]]:
        if not any(left):
            yield []
        for at, n in enumerate(left):
            if n:
                for rest in go((*left[:at], n - 1, *left[at + 1 :])):
                    yield [at, *rest]

    yield from go((steps,) * programs)


def test_property_05_a_matched_block_is_never_handed_out() -> None:
    """vllm#37164, vllm#10507: a block found by one request was allocated to another before it was held.

    Three requests look up, allocate and release in every order; two share a prefix.
    """
    prompts = [[0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 3, 3], [9, 9, 8, 8, 7, 7]]
    orders = list(interleavings(3, 3))
    assert len(orders) == 1680
    for order in orders:
        pool = kvpool.BlockPool(9, B)
        cache(pool, prompts[0][:4])
        cache(pool, prompts[2])
        tables: dict[int, list[int]] = {}
        shared: dict[int, int] = {}
        done = [0, 0, 0]
        for who in order:
            phase, done[who] = done[who], done[who] + 1
            if phase == 0:
                tables[who] = pool.match_and_acquire(chain_of(prompts[who]), 2)
                shared[who] = len(tables[who])
            elif phase == 1:
                try:
                    fresh = pool.allocate(3 - len(tables[who]))
                except kvpool.OutOfBlocksError:
                    continue
                assert not set(fresh) & {block for table in tables.values() for block in table}
                tables[who] += fresh
            else:
                pool.release_table(tables.pop(who))
            holders: dict[int, set[int]] = {}
            for holder, table in tables.items():
                for block in table:
                    holders.setdefault(block, set()).add(holder)
            for block, names in holders.items():
                assert pool.ref_count(block) == len(names)
                # More than one holder only by the same hash at the same place.
                if len(names) > 1:
                    places = {tables[name].index(block) for name in names}
                    assert len(places) == 1
                    assert all(tables[name].index(block) < shared[name] for name in names)
        assert recount(pool)[2:] == (0, 0)
        pool.check_invariants()


def test_property_05_an_admission_does_not_evict_its_own_hit() -> None:
    """vllm#10507: the blocks behind a hit were allocated from the hit itself."""
    manager = kvpool.CacheManager(6, B)
    manager.admit("a", [1, 1, 2, 2])
    manager.commit("a", 4)
    manager.release("a")
    # Five blocks, two of them cached. Six tokens hit two blocks and need one; ten hit two and need three.
    admission = manager.admit("b", [1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    assert (admission.cached_blocks, admission.block_ids[:2]) == (2, [1, 2])
    assert len(set(admission.block_ids)) == 5
    manager.release("b")
    with pytest.raises(kvpool.OutOfBlocksError) as refused:
        manager.admit("c", [1, 1, 2, 2, *range(8)])
    assert (refused.value.needed, refused.value.available) == (4, 3)
    assert manager.probe([1, 1, 2, 2, 0]).cached_blocks == 2


@given(cached=st.integers(0, 6), held=st.integers(0, 6), n=st.integers(0, 12))
def test_property_06_a_cached_block_is_taken_only_when_no_free_one_is_left(cached: int, held: int, n: int) -> None:
    """vllm#42948, vllm#42656: cached content was evicted while free blocks were left."""
    pool = kvpool.BlockPool(13, B)
    for one in range(cached):
        cache(pool, [one, one])
    pool.allocate(held)
    free, cached_free, _, _ = recount(pool)
    if n > free + cached_free:
        return
    live = set(pool.eviction_order())
    taken = pool.allocate(n)
    assert len(live & set(taken)) == max(0, n - free) == pool.stats().evicted
    assert all(pool.hash_of(block) is None for block in taken)


def test_property_06_a_released_block_without_content_is_reused_first() -> None:
    """vllm#42948: blocks without a hash queued behind those that had one."""
    pool = kvpool.BlockPool(5, B)
    table = pool.allocate(4)
    pool.register(table[:2], chain_of(range(4)))
    pool.mark_computed(table[:2])
    pool.release(table)
    assert set(pool.allocate(2)) == set(table[2:])
    assert pool.stats().evicted == 0


@given(
    fenced=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    completions=st.lists(st.integers(0, 6), max_size=5),
    cached=st.booleans(),
)
def test_property_07_a_fenced_block_is_allocatable_exactly_when_its_step_completes(
    fenced: list[int], completions: list[int], cached: bool
) -> None:
    """vllm#45357, tpu-inference#3449: a block freed while a step ran was overwritten by that step."""
    pool = kvpool.BlockPool(len(fenced) + 1, B)
    tables = [fill(pool, [one, one]) if cached else pool.allocate(1) for one in range(len(fenced))]
    for table, step in zip(tables, fenced, strict=True):
        pool.release_after(table, step)
    last = -1
    for completed in [*completions, 6]:
        waiting = sum(step > last for step in fenced)
        assert sums(pool.stats()) == recount(pool)
        assert (pool.stats().fenced, pool.num_available) == (waiting, len(fenced) - waiting)
        for table, step in zip(tables, fenced, strict=True):
            assert (pool.state(table[0]) == "fenced") == (step > last)
        with pytest.raises(kvpool.OutOfBlocksError) as refused:
            pool.allocate(len(fenced) - waiting + 1)
        assert refused.value.fenced == waiting
        ended = pool.complete_step(completed)
        assert ended == sum(last < step <= completed for step in fenced)
        last = max(last, completed)
    assert pool.num_available == len(fenced)
    assert sorted(pool.allocate(len(fenced))) == sorted(table[0] for table in tables)


def test_property_07_a_hit_on_a_fenced_block_succeeds_and_outlives_the_fence() -> None:
    """tpu-inference#3449: a block in flight was either lost or freed under its new holder."""
    manager = kvpool.CacheManager(6, B)
    manager.admit("a", [1, 1, 2, 2, 3])
    manager.commit("a", 4)
    manager.release("a", after_step=3)
    assert manager.stats().pool.fenced == 3
    assert manager.admit("b", [1, 1, 2, 2, 9]).block_ids == [1, 2, 4]
    assert manager.complete_step(3) == 3
    assert manager.stats().pool.active == 3
    assert manager.free_order()[0] == 3
    # A step that has completed already fences nothing.
    manager.release("b", after_step=2)
    assert manager.num_available == 5


STATES = ["admitted", "half computed", "computed", "decoding", "preempted", "resumed", "fenced before"]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("after", [None, 4])
@pytest.mark.parametrize("late", [False, True])
def test_property_10_aborting_in_any_state_gives_everything_back(state: str, after: int | None, late: bool) -> None:
    """vllm#46283, vllm#41269, vllm#44100: an abort at the wrong moment leaked blocks, or freed them twice."""
    manager = kvpool.CacheManager(20, B)
    manager.admit("other", [5, 5, 6, 6, 7])
    manager.commit("other", 5)
    before = (manager.stats().pool.active, manager.num_available)
    manager.admit("a", [5, 5, 6, 6, 8, 8, 9])
    if state != "admitted":
        manager.commit("a", 5)
    if state not in {"admitted", "half computed"}:
        manager.commit("a", 7)
    if state in {"decoding", "preempted", "resumed", "fenced before"}:
        for token in range(4):
            manager.append(["a"], [token], commit=True)
    if state in {"preempted", "resumed"}:
        manager.preempt("a", after_step=1)
    if state == "resumed":
        manager.resume("a")
    if state == "fenced before":
        manager.preempt("a", after_step=3)
        manager.resume("a")
    if not late:
        manager.complete_step(3)
    manager.release("a", after_step=after)
    # The engine reports the end again, or a message about the request comes late.
    for call in (manager.release, manager.preempt, manager.resume, lambda name: manager.commit(name, 1)):
        with pytest.raises(kvpool.UnknownRequestError):
            call("a")
    for step in (4, 4, 3, 5):
        manager.complete_step(step)
        manager.check_invariants()
    assert (manager.stats().pool.active, manager.num_available) == before
    assert manager.block_ids("other") == [1, 2, 3]
    manager.admit("a", [1])  # the id is free again


def replayed(live: set[bytes], events: Sequence[Any]) -> None:
    for event in events:
        if event["type"] == "stored":
            assert event["hash"] not in live
            # Its parent is the digest before it, and can be matched, too.
            assert (event["parent"] is None) == (event["depth"] == 0)
            live.add(event["hash"])
        elif event["type"] == "removed":
            live.remove(event["hash"])
        else:
            live.clear()


@given(st.lists(st.tuples(st.sampled_from("ccrraeb"), st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_property_13_events_tell_exactly_what_can_be_matched(script: list[tuple[str, int, int]]) -> None:
    """vllm#55092: a removal was reported while another copy was resident."""
    prompts = [[0, 0, 1, 1], [0, 0, 2, 2], [0, 0], [3, 3, 4, 4, 5, 5]]
    pool = kvpool.BlockPool(10, B, event_capacity=1000)
    held: list[list[int]] = []
    live: set[bytes] = set()
    for what, which, other in script:
        if what == "c" and pool.num_available >= len(prompts[which]) // B:
            held.append(fill(pool, prompts[which]))
        elif what == "r" and held:
            pool.release_table(held.pop(other % len(held)))
        elif what == "a" and other <= pool.num_available:
            pool.release(pool.allocate(other))
        elif what == "e":
            pool.evict([which + 1, other + 5])
        elif what == "b":
            pool.bump_epoch()
        events, lost = pool.take_events()
        assert lost == 0
        replayed(live, events)
        blocks = range(1, pool.num_blocks)
        assert live == {pool.hash_of(block) for block in blocks if pool.is_computed(block)}
        for prompt in prompts:
            chain = chain_of(prompt, pool.epoch)
            matched = list(itertools.takewhile(live.__contains__, chain.digests()))
            assert pool.probe(chain).cached_blocks == len(matched)


def test_property_13_one_event_for_the_first_copy_and_one_for_the_last() -> None:
    """vllm#55092, step by step."""
    pool = kvpool.BlockPool(10, B, event_capacity=100)
    (digest,) = chain_of([1, 1]).digests()
    first, second, third = fill(pool, [1, 1]), fill(pool, [1, 1]), fill(pool, [1, 1])
    assert pool.take_events() == (
        [{"type": "stored", "hash": digest, "parent": None, "depth": 0, "block_id": first[0]}],
        0,
    )
    pool.evict(first)
    pool.evict(third)
    assert pool.take_events() == ([], 0)
    pool.evict(second)
    assert pool.take_events() == ([{"type": "removed", "hash": digest, "block_id": second[0]}], 0)


def test_property_13_lost_events_are_counted() -> None:
    """A log that nobody drains says that it lost events, and never grows."""
    pool = kvpool.BlockPool(20, B, event_capacity=4)
    for one in range(10):
        fill(pool, [one, one])
    events, lost = pool.take_events()
    assert (len(events), lost) == (2, 8)
    assert pool.take_events() == ([], 0)


@given(
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    edits=st.lists(st.tuples(st.integers(0, 12), st.lists(st.integers(0, 2), max_size=5)), max_size=5),
)
def test_property_16_a_rejected_draft_leaves_the_chain_of_the_tokens_kept(
    prompt: list[int], edits: list[tuple[int, list[int]]]
) -> None:
    """vllm#49377: blocks were indexed under the hash of tokens that had been rejected."""
    cursor, tokens = HASHER.cursor(prompt), list(prompt)
    for keep, more in edits:
        kept = min(keep, len(tokens))
        cursor.truncate(kept)
        cursor.append(more)
        tokens = tokens[:kept] + more
        assert cursor.digests() == HASHER.hash_tokens(tokens)


@given(
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=9),
    rounds=st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=4), st.integers(0, 5)), max_size=6),
)
def test_property_16_what_is_indexed_is_what_was_committed(
    prompt: list[int], rounds: list[tuple[list[int], int]]
) -> None:
    """vllm#49377: for every indexed block, its hash is that of the tokens really committed to it."""
    manager = kvpool.CacheManager(30, B, event_capacity=1000)
    manager.admit("a", prompt)
    tokens, computed, stored = list(prompt), 0, dict[int, bytes]()
    for more, behind in rounds:
        manager.append_tokens("a", more)
        tokens += more
        computed = max(computed, len(tokens) - behind)
        manager.commit("a", computed)
        for event in manager.take_events()[0]:
            assert event["type"] == "stored"
            stored[event["block_id"]] = event["hash"]
        digests = HASHER.hash_tokens(tokens)
        table = manager.block_ids("a")
        # No block is matchable before every token of it is computed.
        assert stored == dict(zip(table[: computed // B], digests, strict=False))
        fork = manager.prepare([*tokens, 7])
        assert manager.probe(fork).cached_blocks == computed // B
        manager.check_invariants()


@pytest.mark.parametrize("algorithm", ["sha256", "blake3", "xxh3"])
def test_property_18_equal_strings_in_different_fields_never_share(algorithm: str) -> None:
    """vllm#44701, vllm#30931, vllm#3264: a salt equal to an adapter's name gave the other tenant's blocks."""
    extras: list[kvpool.ExtraKeys | None] = [
        None,
        kvpool.ExtraKeys(adapter="x"),
        kvpool.ExtraKeys(adapter="x", adapter_path="x"),
        kvpool.ExtraKeys(salt="x"),
        kvpool.ExtraKeys(tenant="x"),
        kvpool.ExtraKeys(user="x"),
        kvpool.ExtraKeys(salt=""),
        kvpool.ExtraKeys(tenant=""),
        kvpool.ExtraKeys(salt="x", tenant="x"),
        kvpool.ExtraKeys(salt="xx"),
        kvpool.ExtraKeys(multimodal=[("x", 0, 1)]),
        kvpool.ExtraKeys(multimodal=[("x", 0, 2)]),
        kvpool.ExtraKeys(multimodal=[("x", 1, 1)]),
    ]
    manager = kvpool.CacheManager(200, B, algorithm=algorithm, verify="none" if algorithm != "xxh3" else "tokens")
    prompt = [1, 1, 2, 2, 3]
    for name, extra in enumerate(extras):
        assert manager.probe(prompt, extra).cached_blocks == 0
        assert manager.admit(name, prompt, extra).cached_tokens == 0
        manager.commit(name, 5)
    for name, extra in enumerate(extras):
        assert manager.probe(prompt, extra).cached_blocks == 2
        assert manager.admit(f"again {name}", prompt, extra).block_ids[:2] == manager.block_ids(name)[:2]
    assert manager.stats().pool.collisions == 0


def test_property_19_digests_are_equal_across_processes_and_hash_seeds() -> None:
    """lmcache#2136, DingoCache#77: keys depended on the process, so that no store could be shared."""
    code = (
        "import kvpool\n"
        "for name in kvpool.hash_algorithms():\n"
        "    hasher = kvpool.BlockHasher(name, 4, seed=None if name == 'blake3' else '7')\n"
        "    print(name, hasher.hash_tokens(range(64), kvpool.ExtraKeys(salt='s'))[-1].hex())\n"
    )
    here = "".join(
        f"{name} "
        + kvpool.BlockHasher(name, 4, seed=None if name == "blake3" else "7")
        .hash_tokens(range(64), kvpool.ExtraKeys(salt="s"))[-1]
        .hex()
        + "\n"
        for name in kvpool.hash_algorithms()
    )
    for seed in ("0", "12345", "random"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        assert done.stdout == here


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("how", ["evict", "allocate"])
@pytest.mark.parametrize("duplicates", ["keep", "drop-on-release"])
def test_property_20_duplicates_leave_in_any_order(order: tuple[int, ...], how: str, duplicates: str) -> None:
    """kvcached#401, nano#219: evicting one duplicate made the others unreachable, or left a dangling entry."""
    pool = kvpool.BlockPool(5, B, duplicates=duplicates)
    copies = [fill(pool, [1, 1])[0] for _ in range(3)]
    other = pool.allocate(1)
    chain = chain_of([1, 1])
    for at in order:
        pool.release([copies[at]])
        assert pool.probe(chain).cached_blocks == 1
        pool.check_invariants()
    cached = [copies[at] for at in order] if duplicates == "keep" else [copies[order[-1]]]
    assert pool.eviction_order() == cached
    pool.allocate(len(pool.free_order()))
    for gone in range(1, len(cached) + 1):
        if how == "evict":
            assert pool.evict([cached[gone - 1]]) == 1
            pool.allocate(1)
        else:
            assert pool.allocate(1) == [cached[gone - 1]]
        left = len(cached) - gone
        assert (pool.probe(chain).cached_blocks, pool.stats().registered) == (min(left, 1), left)
        if left:
            found = pool.match_and_acquire(chain)
            assert pool.hash_of(found[0]) == chain.digests()[0]
            assert found[0] in cached[gone:]
            # A hit makes it the last to go.
            cached = cached[:gone] + [block for block in cached[gone:] if block != found[0]] + found
            pool.release(found)
            assert pool.eviction_order() == cached[gone:]
        pool.check_invariants()
    assert pool.match_and_acquire(chain) == []
    pool.release(other)


@given(script=st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), max_size=25), n=st.integers(0, 9))
def test_property_23_what_is_evictable_can_be_allocated(script: list[tuple[int, bool, bool]], n: int) -> None:
    """vllm#55461, mooncake#2286, mooncake#3028: retained blocks made an allocation fail though enough were idle."""
    pool = kvpool.BlockPool(10, B)
    held: list[list[int]] = []
    for which, release, hit in script:
        if hit:
            held.append(pool.match_and_acquire(chain_of([which, which, 1, 1])))
        elif pool.num_available >= 2:
            held.append(fill(pool, [which, which, 1, 1]))
        if release and held:
            pool.release_table(held.pop(0))
    free, cached_free, active, _ = recount(pool)
    assert pool.num_available == free + cached_free == 9 - active
    if n <= free + cached_free:
        table = pool.allocate(n)
        assert len(set(table)) == n
        assert not set(table) & {block for one in held for block in one}
    else:
        with pytest.raises(kvpool.OutOfBlocksError) as refused:
            pool.allocate(n)
        assert refused.value.missing == n - free - cached_free
    pool.check_invariants()


def test_property_24_blocks_of_an_aborted_request_are_never_matchable() -> None:
    """trtllm#15018: blocks allocated for a failed step were stored and reused."""
    prompt = [1, 1, 2, 2, 3, 3, 4]
    for computed in range(8):
        for end in ("release", "preempt", "step"):
            manager = kvpool.CacheManager(20, B)
            manager.admit("a", prompt)
            assert manager.probe(prompt).cached_blocks == 0
            manager.commit("a", computed)
            if end == "release":
                manager.release("a")
            elif end == "preempt":
                manager.preempt("a")
            else:
                with manager.begin_step() as step:
                    step.append("a", [9, 9, 9, 9])
                manager.release("a", after_step=1)
            assert manager.probe([*prompt, 9, 9, 9]).cached_blocks == computed // B
            assert manager.stats().pool.registered == computed // B


def test_property_24_nothing_committed_before_an_epoch_bump_is_found_after_it() -> None:
    """lmdeploy#4917, NeMo-RL#4018: after a change of weights, requests that ran on published old KV."""
    manager = kvpool.CacheManager(40, B)
    prompt = [1, 1, 2, 2, 3, 3, 4]
    for name in ("cached", "running", "preempted"):
        manager.admit(name, prompt)
    manager.commit("cached", 7)
    manager.release("cached")
    manager.commit("running", 3)
    manager.preempt("preempted")
    old = manager.prepare(prompt)
    step = manager.begin_step()
    assert manager.bump_epoch() == 1
    assert manager.probe(prompt).cached_blocks == 0
    # Running requests go on, and what they compute is never found.
    assert manager.commit("running", 7) == 0
    for token in range(6):
        manager.append(["running"], [token], commit=True)
    manager.release("running")
    assert manager.probe(prompt).cached_blocks == 0
    assert manager.stats().pool.registered == 0
    before = observe_manager(manager, ["preempted"])
    for call in (lambda: manager.admit("new", old), lambda: manager.probe(old)):
        with pytest.raises(kvpool.StaleEpochError):
            call()
    with pytest.raises(kvpool.StaleStepError):
        step.admit("new", old)
    assert observe_manager(manager, ["preempted"]) == before
    # What is computed in the new epoch is found again, by the preempted one, too.
    manager.admit("new", prompt)
    manager.commit("new", 7)
    assert manager.resume("preempted").cached_tokens == 6
    manager.check_invariants()


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=6),
    script=st.lists(st.tuples(st.sampled_from("accprtx"), st.integers(0, 5)), max_size=50),
    num_blocks=st.integers(4, 14),
)
def test_property_25_hits_and_computed_tokens_are_the_prompt_tokens(
    prompts: list[list[int]], script: list[tuple[str, int]], num_blocks: int
) -> None:
    """vllm#25780, vllm#43736: each retry and each preemption counted the prompt's hits again."""
    manager = kvpool.CacheManager(num_blocks, B)
    admitted: dict[int, int] = {}
    refusals = 0
    for what, at in script:
        name = at % len(prompts)
        try:
            if what == "a" and name not in admitted:
                admitted[name] = manager.admit(name, prompts[name]).cached_tokens
            elif what == "c":
                manager.commit(name, manager.request(name).tokens)
            elif what == "p":
                manager.preempt(name)
            elif what == "r":
                manager.resume(name)
            elif what == "t":
                manager.append([name], [at])
            elif what == "x":
                manager.release(name)
        except kvpool.OutOfBlocksError:
            refusals += what in "ar"
        except (kvpool.UnknownRequestError, kvpool.RequestStateError):
            continue
        stats = manager.stats()
        assert stats.admissions == len(admitted)
        assert stats.prompt_tokens == sum(len(prompts[name]) for name in admitted)
        assert stats.hit_tokens == sum(admitted.values())
        assert stats.hit_tokens + stats.computed_tokens == stats.prompt_tokens
        assert stats.refusals == refusals
        assert stats.resumed_hit_tokens <= stats.resumed_tokens
