"""Compares kvpool in vLLM's KV offloading with models. The calls are random, and all totals are
recomputed after each call.

The models are short lists and dictionaries. Stand-ins replace vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.integrations.offload_stand_ins import (
    PATHS,
    Chunk,
    Context,
    LookupResult,
    Vllm,
    loaded,
    order_request_keys,
    positions,
    prefix,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@pytest.fixture(scope="module")
def vllm() -> Iterator[Vllm]:
    with loaded() as modules:
        yield modules


class PolicyMachine(RuleBasedStateMachine):
    """Compares ``kvpool_lru`` with a model of lists. The calls are those that an offloading manager
    makes.
    """

    policy_type: Any = None
    SLOTS = 5

    def __init__(self) -> None:
        super().__init__()
        self.policy = self.policy_type(self.SLOTS)
        self.chunks: dict[bytes, Chunk] = {}
        self.idle: list[bytes] = []  # met by no running request, next victim first
        self.running: list[tuple[Context, dict[bytes, int]]] = []  # in the order of their start
        self.requests: list[Context] = []

    def model_order(self) -> list[bytes]:
        behind = [sorted(met, key=met.__getitem__, reverse=True) for _, met in self.running]
        return self.idle + [key for keys in behind for key in keys]

    def forget(self, key: bytes) -> None:
        self.idle = [one for one in self.idle if one != key]
        for _, met in self.running:
            met.pop(key, None)

    def met_by(self, context: Context) -> dict[bytes, int]:
        for one, met in self.running:
            if one is context:
                return met
        self.running.append((context, {}))
        return self.running[-1][1]

    def rank_of(self, key: bytes) -> int:
        return next((rank for rank, (_, met) in enumerate(self.running) if key in met), -1)

    def met(self, context: Context, key: bytes, position: int) -> None:
        mine = self.met_by(context)
        if self.rank_of(key) <= self.running.index((context, mine)):
            self.forget(key)
            mine[key] = position

    def check_evict(self, n: int, protected: set[bytes]) -> list[tuple[bytes, Any]] | None:
        before = self.model_order()
        able = [key for key in before if self.chunks[key].ref_cnt == 0 and key not in protected]
        result: list[tuple[bytes, Any]] | None = self.policy.evict(n, protected)
        if len(able) < n:
            assert result is None
            assert self.policy.order() == before
            return None
        assert result is not None
        assert [key for key, _ in result] == able[:n]
        for key, chunk in result:
            assert chunk is self.chunks.pop(key)
            self.forget(key)
        return result

    @rule(path=PATHS, positioned=st.booleans())
    def begin(self, path: str, positioned: bool) -> None:
        self.requests.append(Context(positions(path) if positioned else {}))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), path=PATHS, later=st.booleans(), done=st.booleans())
    def store(self, data: st.DataObject, path: str, later: bool, done: bool) -> None:
        """Stores a prefix as vLLM's manager does. With ``later``, also passes the request's context, as
        vLLM 0.33 does. With ``done``, the transfer is complete at once.
        """
        context = data.draw(st.sampled_from(self.requests))
        offered = prefix(path)
        context.positions.update(positions(path) if context.positions else {})
        new = [key for key in offered if key not in self.chunks]
        if not new:
            return
        self.policy.on_store_miss(new, context)
        short = len(new) - (self.SLOTS - len(self.chunks))
        if short > 0 and self.check_evict(short, set(offered)) is None:
            return
        free = sorted(set(range(self.SLOTS)) - {chunk.chunk_id for chunk in self.chunks.values()})
        for key in new:
            chunk = self.chunks[key] = Chunk(free.pop(0))
            self.policy.insert(key, chunk, *([context] if later else []))
            position = context.positions.get(key)
            if position is None:
                self.idle.append(key)
            else:
                self.met(context, key, position)
        for key in new if done else ():
            self.chunks[key].ref_cnt = 0
            self.policy.mark_evictable(key)

    @rule(pinned=st.booleans())
    def end_or_begin_all(self, pinned: bool) -> None:
        for key, chunk in self.chunks.items():
            if (chunk.ref_cnt == 0) == pinned:
                chunk.ref_cnt = int(pinned)
                (self.policy.mark_non_evictable if pinned else self.policy.mark_evictable)(key)

    @precondition(lambda self: self.chunks)
    @rule(data=st.data(), success=st.booleans())
    def complete_or_pin(self, data: st.DataObject, success: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.chunks)))
        chunk = self.chunks[key]
        if chunk.ref_cnt == -1 and not success:
            self.policy.remove(key)
            del self.chunks[key]
            self.forget(key)
        else:  # stored, and the number of readers changes by one
            chunk.ref_cnt = {-1: 0, 0: 1}.get(chunk.ref_cnt, chunk.ref_cnt + (1 if success else -1))
            (self.policy.mark_non_evictable if chunk.ref_cnt else self.policy.mark_evictable)(key)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        context = data.draw(st.sampled_from(self.requests))
        self.requests.remove(context)
        keys = sorted(context.positions) or prefix("ab")
        mine = self.met_by(context)
        rank = self.running.index((context, mine))
        self.policy.on_request_finished([keys], set(), set(), context)
        known = [
            key
            for key in order_request_keys([keys], context)
            if key in self.chunks and self.rank_of(key) <= rank
        ]
        for key in reversed(known):
            self.forget(key)
            self.idle.append(key)

    @rule(path=PATHS)
    def touch(self, path: str) -> None:
        self.policy.touch(prefix(path), Context())
        for key in reversed([key for key in prefix(path) if key in self.chunks]):
            self.forget(key)
            self.idle.append(key)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), path=PATHS)
    def access(self, data: st.DataObject, path: str) -> None:
        context = data.draw(st.sampled_from(self.requests))
        context.positions.update(positions(path) if context.positions else {})
        self.policy.on_request_access(prefix(path), context)
        for key in prefix(path):
            if key in self.chunks and key in context.positions:
                self.met(context, key, context.positions[key])

    @rule(n=st.integers(0, 4), protected=st.sets(PATHS.map(str.encode), max_size=3))
    def evict(self, n: int, protected: set[bytes]) -> None:
        self.check_evict(n, protected)

    @rule()
    def look(self) -> None:
        assert self.policy.order() == self.model_order()

    @rule()
    def clear(self) -> None:
        self.policy.clear()
        self.chunks.clear()
        self.idle.clear()
        self.running.clear()

    def teardown(self) -> None:
        self.look()

    @invariant()
    def recount(self) -> None:
        self.policy.check_invariants()
        for key in map(str.encode, ("a", "b", "ab", "aba", "bbb", "abab")):
            assert self.policy.get(key) is self.chunks.get(key)


@pytest.mark.longer
def test_policy_against_a_model(vllm: Vllm) -> None:
    machine = type("Machine", (PolicyMachine,), {"policy_type": vllm.policy})
    run_state_machine_as_test(machine)


class ManagerMachine(RuleBasedStateMachine):
    """Compares ``KvpoolOffloadingManager`` with dictionaries. Each chunk is ranked by its request and
    its position in the prompt. The idle chunk with the lowest rank is evicted.
    """

    manager_type: Any = None
    SLOTS = 5

    def __init__(self) -> None:
        super().__init__()
        self.manager = self.manager_type(self.SLOTS)
        self.slots: dict[bytes, int] = {}
        self.refs: dict[bytes, int] = {}  # -1: being stored
        self.ranks: dict[bytes, tuple[int, int]] = {}
        self.loads: list[list[bytes]] = []
        self.requests: list[Context] = []
        self.began: dict[int, int] = {}
        self.met: dict[int, list[bytes]] = {}
        self.clock = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def rank(self, context: Context) -> int:
        """Returns the time at which a request began, which is its first access."""
        self.began[id(context)] = self.began[id(context)] or self.tick()
        return self.began[id(context)]

    def order(self) -> list[bytes]:
        return sorted((key for key, refs in self.refs.items() if refs == 0), key=self.ranks.__getitem__)

    def use(self, keys: Sequence[bytes], request: int) -> None:
        for key in keys:
            if key in self.refs:
                self.ranks[key] = max(self.ranks[key], (request, -len(key)))

    @rule(path=PATHS)
    def begin(self, path: str) -> None:
        context = Context(positions(path + "aaa"))  # no two of its chunks share a position
        self.requests.append(context)
        self.manager.on_new_request(context)
        self.began[id(context)], self.met[id(context)] = 0, []

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), start=st.integers(0, 2), length=st.integers(1, 6), done=st.booleans())
    def store(self, data: st.DataObject, start: int, length: int, done: bool) -> None:
        context = data.draw(st.sampled_from(self.requests))
        path = max(context.positions, key=len).decode()
        offered = prefix(path)[start : start + length]
        new = [key for key in offered if key not in self.refs]
        ready = [key for key in offered if self.refs.get(key, -1) >= 0]
        self.met[id(context)] += ready + new
        if ready or new:
            self.use(ready, self.rank(context))
        able = [key for key in self.order() if key not in offered]
        short = max(0, len(new) - (self.SLOTS - len(self.refs)))
        output = self.manager.prepare_store(offered, context)
        if len(able) < short:
            assert output is None
            return
        assert (output.keys_to_store, output.evicted_keys) == (new, able[:short])
        for key in output.evicted_keys:
            del self.refs[key], self.ranks[key], self.slots[key]
        for key, slot in zip(new, output.store_spec.block_ids, strict=True):
            self.refs[key], self.ranks[key], self.slots[key] = -1, (self.rank(context), -len(key)), slot
        if done:
            self.complete_store(data, True, new)

    @rule(data=st.data(), success=st.booleans())
    def complete_store(self, data: st.DataObject, success: bool, keys: Sequence[bytes] = ()) -> None:
        chosen = keys or data.draw(st.lists(st.sampled_from([*sorted(self.refs), b"?"]), unique=True))
        self.manager.complete_store(chosen, Context(), success)
        for key in chosen:
            if self.refs.get(key) == -1:
                self.refs[key] = 0
                if not success:
                    del self.refs[key], self.ranks[key], self.slots[key]

    @precondition(lambda self: self.requests and any(refs >= 0 for refs in self.refs.values()))
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        context = data.draw(st.sampled_from(self.requests))
        ready = [key for key in context.positions if self.refs.get(key, -1) >= 0]
        if not ready:
            return
        keys = data.draw(st.lists(st.sampled_from(ready), min_size=1, max_size=3, unique=True))
        assert self.manager.prepare_load(keys, context).block_ids == [self.slots[key] for key in keys]
        self.use(keys, self.rank(context))
        self.met[id(context)] += keys
        self.loads.append(keys)
        for key in keys:
            self.refs[key] += 1

    @precondition(lambda self: self.loads)
    @rule(data=st.data())
    def complete_load(self, data: st.DataObject) -> None:
        keys = self.loads.pop(data.draw(st.integers(0, len(self.loads) - 1)))
        self.manager.complete_load(set(keys), Context())
        for key in keys:
            self.refs[key] -= 1

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        context = data.draw(st.sampled_from(self.requests))
        self.requests.remove(context)
        for _ in range(2):  # the second call changes nothing
            self.manager.on_request_finished(context)
        if self.met[id(context)]:
            self.use(self.met[id(context)], self.tick())

    @rule()
    def reset(self) -> None:
        self.manager.reset_cache()
        for state in (self.slots, self.refs, self.ranks, self.loads, self.requests, self.began, self.met):
            state.clear()
        self.clock = 0

    @invariant()
    def recount(self) -> None:
        chunks = self.manager.chunks
        chunks.check_invariants()
        assert chunks.order() == self.order()
        assert {key: block - 1 for key, block in {**chunks.ready, **chunks.pending}.items()} == self.slots
        assert len(set(self.slots.values())) == len(self.slots)
        assert {key: chunks.readers(key) for key in chunks.ready} == {
            k: r for k, r in self.refs.items() if r >= 0
        }
        held = sum(refs != 0 for refs in self.refs.values())
        assert (chunks.num_free, chunks.num_held) == (self.SLOTS - len(self.refs), held)
        for key in map(str.encode, ("a", "b", "ab", "aaa", "bbbb")):
            refs = self.refs.get(key)
            expected = "MISS" if refs is None else "HIT" if refs >= 0 else "HIT_PENDING"
            assert self.manager.lookup(key, Context()) is LookupResult[expected]


@pytest.mark.longer
def test_manager_against_a_model(vllm: Vllm) -> None:
    machine = type("Machine", (ManagerMachine,), {"manager_type": vllm.manager})
    run_state_machine_as_test(machine)
