"""Tests the evictor of ancestor 004, vLLM v0 (section 3.7 of its description): its order, its errors,
and the defects of its lazy heap.
"""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvpool
from kvpool.lineage.v0.evictor import BlockMetaData, EvictionPolicy, Evictor, LRUEvictor, make_evictor
from tests.lineage.model_memory import own_enum


def drain(evictor: Evictor) -> list[tuple[int, int]]:
    return [evictor.evict() for _ in range(evictor.num_blocks)]


@pytest.mark.lineage(ancestor="004", item="Evictor: the interface; make_evictor, EvictionPolicy")
def test_make_evictor() -> None:
    assert inspect.isabstract(Evictor)
    assert [policy.name for policy in EvictionPolicy] == ["LRU"]
    assert isinstance(make_evictor(EvictionPolicy.LRU), LRUEvictor)
    with pytest.raises(ValueError, match="Unknown cache eviction policy: FIFO"):
        make_evictor("FIFO")  # type: ignore[arg-type]


@pytest.mark.lineage(ancestor="004", item="LRUEvictor: oldest first, on ties deepest first, then lowest id")
def test_order() -> None:
    evictor = LRUEvictor()
    for block, tokens, time in ((5, 16, 2.0), (4, 16, 1.0), (3, 32, 2.0), (2, 16, 2.0), (1, 16, -1)):
        evictor.add(block, content_hash=block * 11, num_hashed_tokens=tokens, last_accessed=time)
    assert evictor.num_blocks == 5
    assert 3 in evictor
    assert 6 not in evictor
    assert drain(evictor) == [(1, 11), (4, 44), (3, 33), (2, 22), (5, 55)]
    assert (evictor.num_blocks, 3 in evictor) == (0, False)


@pytest.mark.lineage(ancestor="004", item="LRUEvictor: evict of nothing, remove and update of unknown blocks")
def test_errors() -> None:
    evictor = LRUEvictor()
    with pytest.raises(ValueError, match="No usable cache memory left") as refused:
        evictor.evict()
    assert isinstance(refused.value, kvpool.errors.OutOfBlocksError)
    with pytest.raises(ValueError, match="Attempting to remove block that's not in the evictor"):
        evictor.remove(3)
    with pytest.raises(KeyError):
        evictor.update(3, 1.0)
    with pytest.raises(ValueError, match="nan"):
        evictor.add(1, 1, 1, float("nan"))
    assert evictor.num_blocks == 0


@pytest.mark.lineage(ancestor="004", item="LRUEvictor: remove")
def test_remove() -> None:
    evictor = LRUEvictor()
    for block in (1, 2, 3):
        evictor.add(block, block, 16, 0.0)
    evictor.remove(2)
    assert (2 in evictor, evictor.num_blocks) == (False, 2)
    assert drain(evictor) == [(1, 1), (3, 3)]


@pytest.mark.lineage(ancestor="004", item="1: update leaves the block evictable")
def test_defect_01_an_updated_block_can_be_evicted() -> None:
    evictor = LRUEvictor()
    evictor.add(7, content_hash=0xA, num_hashed_tokens=16, last_accessed=1.0)
    evictor.update(7, 5.0)
    assert evictor.num_blocks == 1
    assert evictor.evict() == (7, 0xA)  # the ancestor: ValueError, although num_blocks is 1


@pytest.mark.lineage(ancestor="004", item="1: update changes the order")
def test_update_moves_a_block_back() -> None:
    evictor = LRUEvictor()
    evictor.add(1, 1, 16, 1.0)
    evictor.add(2, 2, 16, 2.0)
    evictor.update(1, 3.0)
    assert drain(evictor) == [(2, 2), (1, 1)]


@pytest.mark.lineage(ancestor="004", item="2: remove and add at the same time gives the new hash")
def test_defect_02_a_block_added_again_has_its_new_hash() -> None:
    evictor = LRUEvictor()
    evictor.add(7, content_hash=0xA, num_hashed_tokens=16, last_accessed=1.0)
    evictor.remove(7)
    evictor.add(7, content_hash=0xB, num_hashed_tokens=16, last_accessed=1.0)
    assert drain(evictor) == [(7, 0xB)]
    with pytest.raises(ValueError, match="No usable"):
        evictor.evict()  # the old entry is no block


@pytest.mark.lineage(ancestor="004", item="23: update never moves an access back in time")
def test_defect_23_an_update_does_not_lower_a_time() -> None:
    evictor = LRUEvictor()
    evictor.add(1, 1, 16, 5.0)
    evictor.add(2, 2, 16, 4.0)
    evictor.update(1, 3.0)
    assert drain(evictor) == [(2, 2), (1, 1)]


@pytest.mark.lineage(ancestor="004", item="LRUEvictor: CLEANUP_THRESHOLD bounds the heap")
def test_the_heap_is_bounded() -> None:
    evictor = LRUEvictor()
    evictor.add(1, 1, 16, 0.0)
    for time in range(10 * LRUEvictor.CLEANUP_THRESHOLD):
        evictor.update(1, float(time))
        assert len(evictor.priority_queue) <= LRUEvictor.CLEANUP_THRESHOLD + 1
    assert drain(evictor) == [(1, 1)]


calls = st.lists(
    st.tuples(
        st.sampled_from(["add", "update", "remove", "evict"]),
        st.integers(0, 4),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=60,
)


@pytest.mark.lineage(ancestor="004", item="LRUEvictor: decides as a sorted list does")
@given(calls=calls)
def test_against_a_sorted_list(calls: list[tuple[str, int, int, int]]) -> None:
    evictor, model = LRUEvictor(), dict[int, tuple[int, int, int]]()
    for at, (call, block, time, tokens) in enumerate(calls):
        if call == "add":
            evictor.add(block, at, tokens, time)
            model[block] = (time, -tokens, at)
        elif call == "evict" and model:
            first = min(model, key=lambda b: (*model[b][:2], b))
            assert evictor.evict() == (first, model.pop(first)[2])
        elif call == "update" and block in model:
            evictor.update(block, time)
            model[block] = (max(time, model[block][0]), *model[block][1:])
        elif call == "remove" and block in model:
            evictor.remove(block)
            del model[block]
        assert evictor.num_blocks == len(model)
        assert all((b in evictor) == (b in model) for b in range(5))
    assert [block for block, _ in drain(evictor)] == sorted(model, key=lambda b: (*model[b][:2], b))


@pytest.mark.lineage(
    ancestor="004", item="LRUEvictor.free_table, BlockMetaData; an engine's own EvictionPolicy"
)
def test_free_table() -> None:
    own = own_enum("EvictionPolicy", "LRU")
    evictor = make_evictor(own["LRU"])
    assert isinstance(evictor, LRUEvictor)
    evictor.add(4, content_hash=44, num_hashed_tokens=16, last_accessed=1.0)
    evictor.add(5, content_hash=55, num_hashed_tokens=32, last_accessed=2.0)
    evictor.update(4, 3.0)
    assert list(evictor.free_table) == [4, 5]
    assert evictor.free_table[4] == BlockMetaData(content_hash=44, num_hashed_tokens=16, last_accessed=3.0)
    assert evictor.evict() == (5, 55)
    assert list(evictor.free_table) == [4]
    evictor.remove(4)
    assert evictor.free_table == {}
