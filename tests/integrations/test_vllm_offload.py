"""Tests kvpool in vLLM's KV offloading over stand-ins for vLLM: the order of eviction, errors, events,
metrics and configuration.

tools/vllm_conformance.py runs vLLM's own tests, and test_vllm_offload_models.py runs random operations.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.integrations.vllm.offload import POLICIES, SPEC, TIER, register
from kvpool.integrations.vllm.offload.chunks import ChunkTable
from kvpool.integrations.vllm.offload.order import VictimOrder
from tests.integrations.offload_stand_ins import (
    METRICS,
    OFFLOAD,
    Chunk,
    Context,
    Vllm,
    loaded,
    positions,
    prefix,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@pytest.fixture(scope="module")
def vllm() -> Iterator[Vllm]:
    with loaded() as modules:
        yield modules


def test_what_is_left_of_a_prefix_is_a_prefix(vllm: Vllm) -> None:
    """The last chunks of a prompt are evicted first, even if the prompt was stored in several batches.
    Chunks of other requests are evicted before.
    """
    path = "abababab"
    for batches in ([prefix(path)], [[key] for key in prefix(path)], [prefix(path)[4:], prefix(path)[:4]]):
        manager = vllm.manager(12)
        other, context = Context(positions("bbb")), Context(positions(path))
        manager.prepare_store(prefix("bbb"), other)
        manager.complete_store(prefix("bbb"), other)
        for batch in batches:
            manager.prepare_store(batch, context)
            manager.complete_store(set(batch), context)
        victims = []
        for i in range(9):
            pressure = Context({b"new %d" % i: 16})
            victims += manager.prepare_store([b"new %d" % i], pressure).evicted_keys
        assert victims == [b"bbb", b"bb", b"b", *prefix(path)[:2:-1]][: len(victims)]
        assert len(victims) == 8


def store(manager: Any, keys: Sequence[bytes], context: Context | None = None) -> Any:
    context = context or Context()
    output = manager.prepare_store(keys, context)
    manager.complete_store(keys, context)
    return output


def test_an_older_request_takes_nothing_from_a_newer_one(vllm: Vllm) -> None:
    policy = vllm.policy(4)
    old, new = Context({b"a": 16, b"ab": 32}), Context({b"a": 16, b"ac": 32})
    for slot, (context, key) in enumerate([(old, b"ab"), (new, b"a"), (new, b"ac")]):
        policy.insert(key, Chunk(slot, 0), context)
    policy.on_request_access([b"a"], old)
    assert policy.order() == [b"ab", b"ac", b"a"]
    policy.on_request_finished([[b"a", b"ab"]], set(), set(), old)
    assert policy.order() == [b"ab", b"ac", b"a"]
    policy.on_request_finished([[b"a", b"ac"]], set(), set(), new)
    assert policy.order() == [b"ab", b"ac", b"a"]


def test_policy_refuses_slots_that_cannot_be(vllm: Vllm) -> None:
    policy = vllm.policy(2)
    policy.insert(b"a", Chunk(0))
    for slot in (-1, 2, 0):
        with pytest.raises(kvpool.errors.InvalidBlockError, match="slot"):
            policy.insert(b"b", Chunk(slot))
    policy.insert(b"a", Chunk(1))  # inserted again: the later chunk counts
    policy.check_invariants()
    assert policy.order() == [b"a"]
    with pytest.raises(KeyError):
        policy.remove(b"b")
    assert vllm.policy(0).evict(1, set()) is None


def test_any_evictor_will_do() -> None:
    class Newest:
        """A policy that evicts the most recently stored block first, unlike LRU."""

        def __init__(self, num_blocks: int, /) -> None:
            self.held: list[int] = []

        def insert(self, candidates: Sequence[tuple[int, int]]) -> None:
            self.held += [block for block, _ in candidates]

        def remove(self, block_id: int) -> bool:
            held = block_id in self.held
            self.held = [block for block in self.held if block != block_id]
            return held

        def evict(self) -> int | None:
            return self.held.pop() if self.held else None

        def order(self) -> list[int]:
            return self.held[::-1]

        def check_invariants(self) -> None: ...
        def __contains__(self, block_id: int, /) -> bool:
            return block_id in self.held

        def __len__(self) -> int:
            return len(self.held)

    order = VictimOrder(Newest(9))
    order.append([(1, 0), (2, 0), (3, 0)])
    assert order.find(1, lambda block: block < 3) == [2]
    order.append([(4, 0)])
    assert order.order() == [3, 2, 4, 1]  # chosen victims stay in front
    assert order.drop(2)
    assert not order.drop(2)
    assert (order.order(), len(order)) == ([3, 4, 1], 3)
    order.check_invariants()


def test_manager_says_what_is_wrong_and_changes_nothing(vllm: Vllm) -> None:
    manager = vllm.manager(3)
    store(manager, [b"a"])
    manager.prepare_store([b"b"], Context())
    for keys, message in [([b"a", b"b"], "b'b' is not ready"), ([b"a", b"c"], "b'c' is not resident")]:
        with pytest.raises(kvpool.errors.InvalidBlockError, match=message):
            manager.prepare_load(keys, Context())
        with pytest.raises(kvpool.errors.InvalidBlockError, match=message):
            manager.complete_load(keys, Context())
    with pytest.raises(kvpool.errors.InvalidBlockError):
        manager.complete_load([b"a"], Context())
    assert manager.chunks.readers(b"a") == 0
    manager.chunks.check_invariants()
    for arguments in [(-1,), (3, "newest")]:
        with pytest.raises(kvpool.errors.InvalidArgumentError):
            vllm.manager(*arguments)
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="max_tracker_size"):
        vllm.manager(3, max_tracker_size=0)
    table = ChunkTable(2)
    for wrong in ([b"a", b"a"], [b"x"]):
        table.store([b"x"], [1.0]) if wrong == [b"x"] else None
        with pytest.raises(kvpool.errors.InvalidBlockError):
            table.store(wrong, [1.0] * len(wrong))


def test_no_slots_and_too_few(vllm: Vllm) -> None:
    assert vllm.manager(0).prepare_store([b"a"], Context()) is None
    manager = vllm.manager(2)
    assert manager.prepare_store(prefix("aaa"), Context()) is None
    assert manager.prepare_store([], Context()).keys_to_store == []
    assert store(manager, [b"x", b"y"]).store_spec.block_ids == [0, 1]
    assert manager.prepare_store([b"x", b"y", b"z"], Context()) is None  # the offered keys stay cached
    assert manager.chunks.order() == [b"x", b"y"]


def test_duplicates_of_an_offer_are_stored_once(vllm: Vllm) -> None:
    output = vllm.manager(3).prepare_store([b"a", b"a", b"b"], Context())
    assert (output.keys_to_store, output.store_spec.block_ids) == ([b"a", b"b"], [0, 1])


@pytest.mark.parametrize("eviction", ["lru", "last-accessed"])
def test_policies_of_the_pool_by_name(vllm: Vllm, eviction: str) -> None:
    manager = vllm.manager(2, eviction)
    store(manager, [b"a"])
    store(manager, [b"b"])
    manager.prepare_load([b"a"], Context())
    manager.complete_load([b"a"], Context())
    manager.touch([b"a"], Context())
    context = Context()
    output = store(manager, [b"c"], context)
    manager.on_request_finished(context)
    assert output.evicted_keys == [b"b"]
    assert manager.chunks.order() == [b"a", b"c"]
    manager.chunks.check_invariants()


def test_touch_and_requests_without_positions(vllm: Vllm) -> None:
    manager = vllm.manager(4)
    context = Context()
    store(manager, [b"a", b"b", b"c"], context)
    assert manager.chunks.order() == [b"a", b"b", b"c"]
    manager.touch([b"a", b"b", b"?"], Context())
    assert manager.chunks.order() == [b"c", b"b", b"a"]
    manager.on_request_finished(context)
    assert manager.chunks.order() == [b"c", b"b", b"a"]
    manager.on_request_finished(Context())


def test_admission_by_reuse(vllm: Vllm) -> None:
    manager = vllm.manager(4, store_threshold=2, max_tracker_size=2)
    assert manager.prepare_store([b"a", b"b", b"c"], Context()).keys_to_store == []
    assert list(manager.counts) == [b"a", b"b"]  # an offer does not evict the count that it raises
    assert manager.prepare_store([b"a"], Context()).keys_to_store == [b"a"]
    assert manager.get_stats().skipped == 3
    manager.prepare_store([b"d"], Context())
    assert list(manager.counts) == [b"a", b"d"]
    assert manager.get_stats().skipped == 1


def test_events(vllm: Vllm) -> None:
    manager = vllm.manager(1, enable_events=True)
    store(manager, [b"a"])
    store(manager, [b"b"])
    assert [(event.keys, event.removed) for event in manager.take_events()] == [
        ([b"a"], False),
        ([b"a"], True),
        ([b"b"], False),
    ]
    manager.prepare_store([b"c"], Context())
    manager.complete_store([b"c"], Context(), success=False)
    manager.prepare_store([b"c"], Context())  # again, before the events are taken
    assert [event.keys for event in manager.take_events()] == [[b"b"]]
    manager.complete_store([b"c"], Context(), success=False)
    assert [(event.keys, event.metadata_only) for event in manager.take_events()] == [([b"c"], True)]
    assert list(vllm.manager(1).take_events()) == []


def test_metrics(vllm: Vllm) -> None:
    manager = vllm.manager(4)
    store(manager, [b"a", b"b"])
    manager.prepare_load([b"a"], Context())
    manager.prepare_store([b"c"], Context())
    stats = manager.get_stats()
    assert stats.gauges == dict(zip(METRICS, (0.5, 0.25, 0.25), strict=False))
    assert (stats.sizes, stats.skipped) == ([2, 1], None)
    assert manager.get_stats().sizes == []
    assert manager.get_load_source(b"a", Context()) == "host"
    assert list(manager.config_info()) == [{}]


def test_configuration(vllm: Vllm) -> None:
    spec = vllm.spec({})
    manager = spec.get_manager()
    assert spec.get_manager() is manager
    assert (manager.chunks.num_chunks, manager.chunks.eviction, manager.counts) == (4, "last-accessed", None)
    assert manager.events == []
    manager = vllm.spec(
        {"eviction_policy": "lru", "store_threshold": "2", "max_tracker_size": 7}
    ).get_manager()
    assert (manager.chunks.eviction, manager.store_threshold, manager.max_tracker_size) == ("lru", 2, 7)
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="newest"):
        vllm.spec({"eviction_policy": "newest"}).get_manager()
    for _ in range(2):
        register()
    assert vllm.policies.known == {name: (f"{OFFLOAD}.policies", name) for name in POLICIES}
    assert vllm.specs.known == {SPEC: (f"{OFFLOAD}.spec", SPEC)}
    assert vllm.tiers.known == {TIER: (f"{OFFLOAD}.tier", TIER)}
    for module, name in (
        *vllm.policies.known.values(),
        *vllm.specs.known.values(),
        *vllm.tiers.known.values(),
    ):
        assert getattr(sys.modules[module], name).__name__ == name


def test_importing_the_package_imports_no_vllm() -> None:
    modules = ", ".join([OFFLOAD, *(f"{OFFLOAD}.{name}" for name in ("order", "chunks", "namespace"))])
    code = f"import sys, {modules}; assert 'vllm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
