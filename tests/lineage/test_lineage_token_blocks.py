"""Tests ancestor 000, Aphrodite's token blocks. There is one test for each class of its interface, each
behaviour and each defect.
"""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import threading

import pytest

import kvpool
from kvpool.lineage.errors import BlockStateError, ContractError, StaleBlockError
from kvpool.lineage.token_blocks import (
    _BLANK_TOKEN_ID,
    DEFAULT_LAST_ACCESSED_TIME,
    BlockPool,
    BlockTable,
    LogicalTokenBlock,
    PhysicalTokenBlock,
    TokensBlock,
)


@pytest.mark.lineage(ancestor="000", item="constants: blank token and time of the first access")
def test_constants() -> None:
    assert (_BLANK_TOKEN_ID, DEFAULT_LAST_ACCESSED_TIME) == (-1, -1)


@pytest.mark.lineage(ancestor="000", item="LogicalTokenBlock: every member")
def test_logical_block_from_empty_to_full() -> None:
    block = LogicalTokenBlock(block_number=7, block_size=4)
    assert (block.block_number, block.block_size, block.num_tokens) == (7, 4, 0)
    assert block.is_empty()
    assert not block.is_full()
    assert (block.get_num_empty_slots(), block.get_token_ids()) == (4, [])
    block.append_tokens([5, 6])
    assert block.token_ids == [5, 6, -1, -1]
    assert (block.num_tokens, block.get_num_empty_slots(), block.get_last_token_id()) == (2, 2, 6)
    assert (block.is_empty(), block.is_full()) == (False, False)
    block.append_tokens([])
    block.append_tokens([7, 8])
    assert (block.is_full(), block.get_num_empty_slots()) == (True, 0)
    assert block.get_token_ids() == [5, 6, 7, 8]


@pytest.mark.lineage(ancestor="000", item="LogicalTokenBlock: get_token_ids and token_ids are copies")
def test_tokens_are_copies() -> None:
    block = LogicalTokenBlock(0, 2)
    block.append_tokens([1])
    block.get_token_ids().append(9)
    block.token_ids[0] = 9
    assert (block.get_token_ids(), block.token_ids) == ([1], [1, -1])


@pytest.mark.lineage(ancestor="000", item="overfull append is a typed error that changes nothing")
def test_overfull_append() -> None:
    block = LogicalTokenBlock(0, 2)
    block.append_tokens([1])
    with pytest.raises(ContractError, match="2 tokens do not fit 1") as caught:
        block.append_tokens([2, 3])
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, kvpool.KvpoolError)
    assert block.token_ids == [1, -1]


@pytest.mark.lineage(ancestor="000", item="last token of an empty block is a typed error")
def test_last_token_of_an_empty_block() -> None:
    with pytest.raises(BlockStateError, match="has no token") as caught:
        LogicalTokenBlock(3, 2).get_last_token_id()
    assert isinstance(caught.value, AssertionError)


@pytest.mark.lineage(ancestor="000", item="PhysicalTokenBlock: metadata and repr")
def test_physical_block() -> None:
    block = PhysicalTokenBlock("GPU", 3, 16, 99, 48)
    assert (block.device, block.block_number, block.block_size) == ("GPU", 3, 16)
    assert (block.block_hash, block.num_hashed_tokens) == (99, 48)
    assert (block.ref_count, block.last_accessed, block.computed) == (0, -1, False)
    block.ref_count += 2
    block.last_accessed, block.computed = 1.5, True
    assert repr(block) == (
        "PhysicalTokenBlock(device=GPU, block_number=3, num_hashed_tokens=48, ref_count=2, "
        "last_accessed=1.5, computed=True)"
    )
    table: BlockTable = [block]
    assert table == [block]


@pytest.mark.lineage(ancestor="000", item="PhysicalTokenBlock: the older form without hash")
def test_physical_block_of_three_arguments() -> None:
    block = PhysicalTokenBlock(device="CPU", block_number=0, block_size=8)
    assert (block.block_hash, block.num_hashed_tokens) == (None, 0)


@pytest.mark.lineage(ancestor="000", item="BlockPool: alloc_block and del_block reuse buffers by size")
def test_buffers_are_reused_by_size() -> None:
    pool = BlockPool()
    four, two = pool.alloc_block(4), pool.alloc_block(2)
    assert (four, two) == ([-1] * 4, [-1] * 2)
    pool.del_block(four)
    pool.del_block(two)
    assert pool.alloc_block(2) is two
    assert pool.alloc_block(2) is not two
    assert pool.alloc_block(4) is four
    assert (pool.pool, pool.num_idle_tokens) == ({}, 0)


@pytest.mark.lineage(
    ancestor="000", item="TokensBlock, del_block(block=), alloc_block(0), num_tokens can be lowered"
)
def test_names_and_shapes_of_the_ancestor() -> None:
    pool = BlockPool()
    tokens: TokensBlock = pool.alloc_block(2)
    pool.del_block(block=tokens)
    assert pool.alloc_block(2) is tokens
    empty = pool.alloc_block(0)
    assert empty == []
    pool.del_block(empty)
    pool.del_block(empty)
    assert pool.alloc_block(0) is not empty
    assert pool.num_idle_tokens == 0
    block = LogicalTokenBlock(0, 4, pool=pool)
    block.append_tokens([1, 2, 3])
    block.num_tokens = 1
    assert (block.num_tokens, block.get_token_ids(), block.token_ids) == (1, [1], [1, -1, -1, -1])
    for wrong in (-1, 2):
        with pytest.raises(AssertionError, match="from 0 to 1"):
            block.num_tokens = wrong
    block.append_tokens([4, 5, 6])
    assert block.token_ids == [1, 4, 5, 6]
    with pytest.raises(kvpool.errors.InvalidArgumentError):
        LogicalTokenBlock(0, 0)


@pytest.mark.lineage(ancestor="000", item="BlockPool: a buffer is returned once, sizes are not negative")
def test_returning_a_buffer_twice_is_an_error() -> None:
    pool = BlockPool()
    tokens = pool.alloc_block(2)
    pool.del_block(tokens)
    with pytest.raises(StaleBlockError, match="returned twice"):
        pool.del_block(tokens)
    assert pool.alloc_block(2) is tokens
    assert pool.alloc_block(2) is not tokens
    for call in (lambda: pool.alloc_block(-1), lambda: BlockPool(max_idle_tokens=-1)):
        with pytest.raises(kvpool.errors.InvalidArgumentError):
            call()


@pytest.mark.lineage(ancestor="000", item="defect: recycled buffers keep the previous request's tokens")
def test_defect_000_recycled_buffers_show_no_tokens_of_their_previous_owner() -> None:
    pool = BlockPool()
    first = LogicalTokenBlock(0, 4, pool=pool)
    first.append_tokens([11, 12, 13])
    first.release()
    assert pool.pool == {4: [[-1] * 4]}
    second = LogicalTokenBlock(0, 4, pool=pool)
    assert pool.pool == {}
    assert second.token_ids == [-1] * 4
    second.append_tokens([1])
    assert second.token_ids == [1, -1, -1, -1]


@pytest.mark.lineage(ancestor="000", item="defect: a buffer that its owner kept is blank for the next one")
def test_defect_000_late_writes_of_the_previous_owner_are_gone() -> None:
    pool = BlockPool()
    kept = pool.alloc_block(3)
    pool.del_block(kept)
    kept[0] = 77
    kept.append(78)
    assert pool.alloc_block(3) == [-1] * 3


@pytest.mark.lineage(ancestor="000", item="defect: release by a finalizer on any thread")
def test_defect_000_release_is_deterministic() -> None:
    pool = BlockPool()
    dropped = LogicalTokenBlock(0, 4, pool=pool)
    del dropped
    gc.collect()
    assert pool.pool == {}
    with LogicalTokenBlock(0, 4, pool=pool) as block:
        block.append_tokens([1])
        assert pool.pool == {}
    assert pool.pool == {4: [[-1] * 4]}


@pytest.mark.lineage(ancestor="000", item="defect: the pool is unbounded")
def test_defect_000_the_pool_is_bounded() -> None:
    pool = BlockPool(max_idle_tokens=8)
    buffers = [pool.alloc_block(4) for _ in range(3)]
    for tokens in buffers:
        tokens[0] = 5
        pool.del_block(tokens)
    assert (len(pool.pool[4]), pool.num_idle_tokens) == (2, 8)
    assert buffers[2] == [-1] * 4  # dropped, and blank all the same
    for size in range(1, 5):
        pool.alloc_block(size)
    assert pool.num_idle_tokens == 4


@pytest.mark.lineage(ancestor="000", item="defect: the pool is unlocked")
def test_defect_000_threads_never_share_a_buffer() -> None:
    pool = BlockPool()
    wrong: list[list[int]] = []

    def work(me: int) -> None:
        for _ in range(300):
            blocks = [LogicalTokenBlock(0, 3, pool=pool) for _ in range(3)]
            for block in blocks:
                block.append_tokens([me, me])
            wrong.extend(block.token_ids for block in blocks if block.token_ids != [me, me, -1])
            for block in blocks:
                block.release()

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert pool.num_idle_tokens == 3 * len(pool.pool[3]) <= 3 * 12


@pytest.mark.lineage(ancestor="000", item="defect: the pool of the process survives a fork under its lock")
def test_defect_000_fork_while_a_thread_holds_the_lock() -> None:
    code = """
import os
from kvpool.lineage.token_blocks import _BLOCK_POOL, LogicalTokenBlock
with _BLOCK_POOL._lock:
    child = os.fork()
    if child == 0:
        LogicalTokenBlock(0, 2).release()
        os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.lineage(ancestor="000", item="a released block is an error, not an alias")
def test_use_after_release_is_an_error() -> None:
    pool = BlockPool()
    block = LogicalTokenBlock(5, 2, pool=pool)
    block.append_tokens([1, 2])
    block.release()
    heir = LogicalTokenBlock(0, 2, pool=pool)
    heir.append_tokens([3])
    calls = (
        lambda: block.num_tokens,
        lambda: block.token_ids,
        block.is_empty,
        block.is_full,
        block.get_num_empty_slots,
        block.get_token_ids,
        block.get_last_token_id,
        lambda: block.append_tokens([9]),
        block.content_hash,
        block.release,
        lambda: copy.copy(block),
    )
    for call in calls:
        with pytest.raises(StaleBlockError, match="logical block 5 was released"):
            call()
    assert (heir.token_ids, pool.pool) == ([3, -1], {})
    assert "released" in repr(block)


@pytest.mark.lineage(ancestor="000", item="copies of a sequence own their buffers")
def test_copies_have_buffers_of_their_own() -> None:
    pool = BlockPool()
    block = LogicalTokenBlock(4, 3, pool=pool)
    block.append_tokens([1, 2])
    for twin in (copy.copy(block), copy.deepcopy([block])[0], pickle.loads(pickle.dumps(block))):
        twin.append_tokens([3])
        assert (twin.block_number, twin.get_token_ids()) == (4, [1, 2, 3])
        twin.release()
    assert block.token_ids == [1, 2, -1]
    assert pool.num_idle_tokens == 6  # of both copies that stayed in the process


@pytest.mark.lineage(ancestor="000", item="extra keys reach the block hash; only full blocks have one")
def test_content_hash_is_that_of_the_core() -> None:
    extra = kvpool.ExtraKeys(salt="tenant")
    blocks = [LogicalTokenBlock(number, 2) for number in range(3)]
    for block, tokens in zip(blocks, ([1, 2], [3, 4], [5]), strict=True):
        block.append_tokens(tokens)
    first = blocks[0].content_hash()
    salted = blocks[0].content_hash(extra=extra)
    assert first is not None
    assert salted is not None
    second, other = blocks[1].content_hash(first), blocks[1].content_hash(salted, extra=extra)
    assert second is not None
    assert other is not None
    hasher = kvpool.BlockHasher(block_size=2)
    assert [first.digest, second.digest] == hasher.hash_tokens([1, 2, 3, 4])
    assert [salted.digest, other.digest] == hasher.hash_tokens([1, 2, 3, 4], extra)
    assert blocks[2].content_hash(second) is None
    blake = kvpool.BlockHasher("blake3", block_size=2)
    chosen = blocks[0].content_hash(hasher=blake)
    assert chosen is not None
    assert [chosen.digest] == blake.hash_tokens([1, 2])
