"""Calls accept integers of every class as ids and counts, and a cursor instead of a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvpool

if TYPE_CHECKING:
    from collections.abc import Callable


class Index:
    """A class of integers other than Python's int."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, Index, int], ids=lambda kind: kind.__name__)
def test_integers_of_every_kind_are_ids_and_counts(kind: Callable[[int], Any]) -> None:
    manager = kvpool.CacheManager(num_blocks=kind(64), block_size=kind(4), host_blocks=kind(16))
    manager.admit(kind(5), [kind(1), kind(2), kind(3)])
    assert kind(5) in manager
    assert 5 in manager
    manager.append([kind(5)], [kind(4)])
    assert manager.commit(kind(5), kind(4)) == 1
    assert manager.block_ids(kind(5)) == manager.block_ids(5) == [1]
    manager.append_ragged([kind(5)], [kind(6)], computed=[kind(4)])
    manager.fork(kind(5), kind(6))
    manager.fork([kind(5)], [kind(7)])
    manager.truncate(kind(7), kind(2))
    manager.take_plan()
    manager.release([kind(6), kind(7)], after_step=kind(1))
    manager.complete_step(kind(1))
    swap = manager.swaps.begin_out([kind(5)])
    manager.take_plan()
    manager.swaps.complete(kind(swap))
    manager.preempt(kind(5))
    with manager.plan_step() as step:
        step.resume(kind(5))
        step.commit()
    assert manager.request(kind(5)).computed_tokens == 4
    manager.release(kind(5))
    assert manager.drop_cached([kind(block) for block in manager.diagnose.eviction_order()]) == 1

    pool = kvpool.BlockPool(kind(64), kind(4))
    blocks = pool.allocate(kind(2))
    pool.acquire([kind(block) for block in blocks])
    assert pool.ref_count(kind(blocks[0])) == 2
    pool.release([kind(block) for block in blocks])
    assert pool.state(kind(blocks[0])) == "active"


def test_a_cursor_stands_for_its_chain_in_every_call() -> None:
    cursor = kvpool.BlockHasher(block_size=4).cursor(range(10))
    used, other = kvpool.BlockPool(16, 4), kvpool.BlockPool(16, 4)
    for pool, chain in ((used, cursor), (other, cursor.chain())):
        blocks = pool.allocate(2)
        assert pool.register(blocks[:1], chain) == 1
        assert pool.register_table(blocks, chain) == []
        assert pool.probe(chain).cached_blocks == 2
        assert pool.lookup(chain).block_ids == blocks
        assert pool.match_and_acquire(chain, 1) == blocks[:1]
        assert pool.adopt([9, 10], chain) == [(0, 1), (1, 2)]
        assert kvpool.Match(chain, blocks) == pool.lookup(chain)
        index = kvpool.parts.PrefixIndex(16, 4)
        assert index.insert(3, chain, 1)
        assert index.copies(chain, 1) == [3]
        index.mark_computed(3)
        assert index.find(chain, 1) == 3
    # The hash cursor has got more tokens since the test made it. The call uses the cursor's current chain, so
    # it finds more blocks.
    cursor.append([10, 11])
    used.register_table(used.allocate(1), cursor, 2)
    assert (used.probe(cursor).cached_blocks, other.probe(cursor).cached_blocks) == (3, 2)
