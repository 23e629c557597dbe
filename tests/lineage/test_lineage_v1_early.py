"""Tests ancestor 001, the first block queue and hashes of vLLM V1. There is one test for each class of
its interface, each behaviour and each defect.
"""

from __future__ import annotations

import copy
import pickle
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.lineage.errors import NoFreeBlocksError
from kvpool.lineage.v1_early import (
    BlockHashType,
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    hash_block_tokens,
    hash_request_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def blocks_of(n: int) -> list[KVCacheBlock]:
    return [KVCacheBlock(block_id) for block_id in range(n)]


def ids(queue: FreeKVCacheBlockQueue) -> list[int]:
    assert len(queue.get_all_free_blocks()) == queue.num_free_blocks
    return [block.block_id for block in queue.get_all_free_blocks()]


@pytest.mark.lineage(ancestor="001", item="KVCacheBlock: fields and reset")
def test_block_fields_and_reset() -> None:
    block = KVCacheBlock(block_id=3)
    assert (block.block_id, block.ref_cnt, block.token_ids, block.block_hash, block.num_hashed_tokens) == (
        3,
        0,
        [],
        None,
        0,
    )
    block.ref_cnt += 1
    block.token_ids.extend([1, 2])
    block.block_hash = hash_block_tokens(None, (1, 2))
    block.num_hashed_tokens = 2
    assert KVCacheBlock(3).token_ids == []
    block.reset()
    assert block == KVCacheBlock(3)
    assert "block_id=3" in repr(block)


@pytest.mark.lineage(
    ancestor="001",
    item="FreeKVCacheBlockQueue: popleft, remove, append, get_all_free_blocks, num_free_blocks",
)
def test_queue_order() -> None:
    blocks = blocks_of(5)
    queue = FreeKVCacheBlockQueue(blocks)
    assert (ids(queue), queue.num_free_blocks) == ([0, 1, 2, 3, 4], 5)
    assert queue.popleft() is blocks[0]
    queue.remove(blocks[2])
    queue.remove(blocks[4])
    queue.remove(blocks[1])
    assert ids(queue) == [3]
    for number in (1, 0, 4):
        queue.append(blocks[number])
    assert ids(queue) == [3, 1, 0, 4]
    assert queue.popleft() is blocks[3]
    assert queue.get_all_free_blocks() == [blocks[1], blocks[0], blocks[4]]


@pytest.mark.lineage(
    ancestor="001", item="FreeKVCacheBlockQueue: starts in the order given, whatever the numbers"
)
def test_queue_keeps_the_order_of_the_list() -> None:
    queue = FreeKVCacheBlockQueue([KVCacheBlock(n) for n in (40, 7, 2_000_000_000)])
    assert [queue.popleft().block_id for _ in range(3)] == [40, 7, 2_000_000_000]


@pytest.mark.lineage(
    ancestor="001", item="order: least recently used first, of one sequence the deepest first"
)
def test_deepest_block_of_a_sequence_goes_first() -> None:
    queue = FreeKVCacheBlockQueue(blocks_of(6))
    old, new = ([queue.popleft() for _ in range(3)] for _ in range(2))
    queue.append_sequence(old)
    queue.append_sequence(new)
    assert ids(queue) == [2, 1, 0, 5, 4, 3]
    queue.remove(old[1])  # a hit
    queue.append(old[1])
    assert ids(queue) == [2, 0, 5, 4, 3, 1]


@pytest.mark.lineage(ancestor="001", item="append_sequence: all or none")
def test_append_sequence_is_all_or_none() -> None:
    blocks = blocks_of(4)
    queue = FreeKVCacheBlockQueue(blocks)
    taken = [queue.popleft(), queue.popleft()]
    for wrong in ([*taken, blocks[3]], [*taken, taken[0]], [*taken, KVCacheBlock(2)]):
        with pytest.raises(kvpool.errors.InvalidBlockError):
            queue.append_sequence(wrong)
        assert ids(queue) == [2, 3]


@pytest.mark.lineage(ancestor="001", item="empty queue: popleft is a ValueError")
def test_popleft_of_an_empty_queue() -> None:
    queue = FreeKVCacheBlockQueue(blocks_of(1))
    queue.popleft()
    for _ in range(2):
        with pytest.raises(NoFreeBlocksError, match="No free blocks available") as caught:
            queue.popleft()
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, kvpool.errors.OutOfBlocksError)
    assert (queue.num_free_blocks, queue.get_all_free_blocks()) == (0, [])


@pytest.mark.lineage(ancestor="001", item="defect: a queue of no blocks fails on blocks[0]")
def test_defect_001_a_queue_of_no_blocks() -> None:
    queue = FreeKVCacheBlockQueue([])
    assert (queue.num_free_blocks, queue.get_all_free_blocks()) == (0, [])
    with pytest.raises(ValueError, match="No free blocks available"):
        queue.popleft()
    blocks = blocks_of(9)
    for block in blocks:
        queue.append(block)
    assert ids(queue) == list(range(9))
    queue.remove(blocks[4])
    assert [queue.popleft().block_id for _ in range(8)] == [0, 1, 2, 3, 5, 6, 7, 8]


@pytest.mark.lineage(ancestor="001", item="defect: removing a non-member corrupts the count")
def test_defect_001_removing_a_non_member_changes_nothing() -> None:
    blocks = blocks_of(4)
    queue = FreeKVCacheBlockQueue(blocks)
    taken = queue.popleft()
    for wrong in (
        taken,
        KVCacheBlock(9),
        KVCacheBlock(2),
    ):  # taken, unknown, another object with a known number
        with pytest.raises(kvpool.errors.InvalidBlockError):
            queue.remove(wrong)
        assert ids(queue) == [1, 2, 3]
    queue.remove(blocks[2])
    with pytest.raises(kvpool.errors.InvalidBlockError, match="block 2 is not in the queue"):
        queue.remove(blocks[2])
    assert ids(queue) == [1, 3]


@pytest.mark.lineage(ancestor="001", item="appending a member is an error that changes nothing")
def test_appending_a_member() -> None:
    blocks = blocks_of(3)
    queue = FreeKVCacheBlockQueue(blocks)
    for wrong in (blocks[1], KVCacheBlock(1)):
        with pytest.raises(kvpool.errors.InvalidBlockError):
            queue.append(wrong)
    assert ids(queue) == [0, 1, 2]
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="number 1"):
        FreeKVCacheBlockQueue([KVCacheBlock(1), KVCacheBlock(1)])


@pytest.mark.lineage(ancestor="001", item="the order lives in the core: equal to a plain list for any calls")
def test_queue_is_a_list_for_any_calls() -> None:
    draw = random.Random(1)
    blocks = blocks_of(40)
    queue, model = FreeKVCacheBlockQueue(blocks[:8]), list(range(8))
    for _ in range(2000):
        block = blocks[draw.randrange(40)]
        if draw.random() < 0.2 and model:
            assert queue.popleft().block_id == model.pop(0)
        elif block.block_id in model:
            queue.remove(block)
            model.remove(block.block_id)
        else:
            queue.append(block)
            model.append(block.block_id)
        assert ids(queue) == model


@pytest.mark.lineage(ancestor="001", item="hash_block_tokens and hash_request_tokens: digests of the core")
def test_hashes_are_those_of_the_core() -> None:
    keys = hash_request_tokens(block_size=3, token_ids=list(range(9)))
    digests = kvpool.BlockHasher(block_size=3).hash_tokens(range(9))
    assert [key.hash_value for key in keys] == [int.from_bytes(digest, "big") for digest in digests]
    assert [key.token_ids for key in keys] == [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    first = hash_block_tokens(None, (0, 1, 2))
    assert first == keys[0]
    assert hash_block_tokens(first, [3, 4, 5]) == hash_block_tokens(first.hash_value, (3, 4, 5)) == keys[1]
    assert hash_block_tokens(parent_block_hash=None, curr_block_token_ids=(3, 4, 5)) != keys[1]


@pytest.mark.lineage(ancestor="001", item="only full blocks are hashed")
def test_only_full_blocks_are_hashed() -> None:
    assert hash_request_tokens(4, []) == []
    assert hash_request_tokens(4, [1, 2, 3]) == []
    assert len(hash_request_tokens(4, range(11))) == 2
    (parent,) = hash_request_tokens(4, [1, 2, 3, 4])
    for tokens in ([5, 6, 7], [5, 6, 7, 8, 9], []):
        with pytest.raises(kvpool.errors.HashingError, match="only full blocks"):
            hash_block_tokens(parent, tokens)
    with pytest.raises(kvpool.errors.HashingError, match="only full blocks"):
        hash_block_tokens(None, [])
    with pytest.raises(kvpool.errors.InvalidArgumentError):
        hash_request_tokens(0, [1])
    with pytest.raises(kvpool.errors.TokenError):
        hash_request_tokens(2, [1, -1])


@pytest.mark.lineage(ancestor="001", item="a hit can be verified by its tokens")
def test_a_hit_is_verified_by_its_tokens() -> None:
    (key,) = hash_request_tokens(2, [1, 2])
    cache = {key: "block 7"}
    collision = BlockHashType(key.hash_value, (1, 3))
    assert hash(collision.hash_value) == hash(key.hash_value)
    assert collision not in cache
    assert cache[hash_request_tokens(2, [1, 2])[0]] == "block 7"
    assert key[0] == key.hash_value
    assert key[1] == (1, 2)


@pytest.mark.lineage(ancestor="001", item="24: hash() of ints is unkeyed and differs by process")
def test_defect_24_hashes_are_digests_and_equal_in_every_process() -> None:
    (key,) = hash_request_tokens(2, [1, 2])
    code = "from kvpool.lineage.v1_early import *; print(int(hash_request_tokens(2, [1, 2])[0].hash_value))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == key.hash_value
    assert key.hash_value.bit_length() > 64
    # In CPython, hash(-1) == hash(-2), and the hash of an int is the int modulo 2**61 - 1.
    assert hash_block_tokens(None, (0, 1)) != hash_block_tokens(None, (2**31, 1))
    assert hash_block_tokens(-1, (1, 2)) != hash_block_tokens(-2, (1, 2))


@pytest.mark.lineage(ancestor="001", item="a parent that is a bare int starts a chain of its own")
def test_bare_ints_start_chains_of_their_own() -> None:
    key = hash_block_tokens(123, (1, 2, 3))
    assert isinstance(key, BlockHashType)
    assert key == hash_block_tokens(123, (1, 2, 3))
    values = [0, 1, -1, 123, 2**32, 2**64, 2**256 - 1]
    keys = {hash_block_tokens(value, (1, 2, 3)).hash_value for value in values}
    assert len(keys) == len(values)
    # No prompt has one of these hashes, not even a prompt that contains the int as a token.
    prompts = [[0, 1, 123, 1, 2, 3], [0, 1, 123], [123, 1, 2, 3], [1, 2, 3]]
    assert not {k.hash_value for prompt in prompts for k in hash_request_tokens(3, prompt)} & keys
    child = hash_block_tokens(key, (4, 5, 6))
    assert child == hash_block_tokens(key.hash_value, (4, 5, 6))
    assert hash_block_tokens(123, (1,)) != hash_block_tokens(123, (2,))


@pytest.mark.lineage(ancestor="001", item="extra keys reach every hash")
def test_extra_keys_reach_every_hash() -> None:
    red, blue = kvpool.ExtraKeys(tenant="red"), kvpool.ExtraKeys(tenant="blue")
    plain, of_red, of_blue = (hash_request_tokens(2, range(6), extra) for extra in (None, red, blue))
    for keys in zip(plain, of_red, of_blue, strict=True):
        assert len(set(keys)) == 3
    assert [k.hash_value.to_bytes(32, "big") for k in of_red] == kvpool.BlockHasher(block_size=2).hash_tokens(
        range(6), red
    )
    assert hash_block_tokens(of_red[0], (2, 3)) == of_red[1]
    assert hash_block_tokens(of_red[0], (2, 3), extra=kvpool.ExtraKeys(tenant="red")) == of_red[1]
    for parent in (of_red[0], plain[0]):
        with pytest.raises(kvpool.errors.HashingError, match="those of its parent"):
            hash_block_tokens(parent, (2, 3), blue)
    image = [hash_request_tokens(2, range(6), kvpool.ExtraKeys(multimodal=[(name, 2, 2)])) for name in "ab"]
    assert image[0][0] == image[1][0]
    assert image[0][1] != image[1][1]
    assert image[0][2] != image[1][2]
    assert hash_block_tokens(7, (1, 2), red) != hash_block_tokens(7, (1, 2), blue)


@pytest.mark.lineage(ancestor="001", item="a key that was copied or pickled is the same parent")
@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, *(lambda key, n=n: pickle.loads(pickle.dumps(key, n)) for n in range(2, 6))],
    ids=["copy", "deepcopy", *(f"pickle {n}" for n in range(2, 6))],
)
def test_a_copied_key_has_the_same_children(again: Callable[[BlockHashType], BlockHashType]) -> None:
    image = kvpool.ExtraKeys(adapter="a", adapter_path="/a", salt="s", multimodal=[("image", 3, 2)])
    for extra in (None, image):
        keys = hash_request_tokens(2, range(8), extra)
        for at, key in enumerate(keys[:-1]):
            for parent in (again(key), again(key).hash_value, again(again(key))):
                assert hash_block_tokens(parent, (2 * at + 2, 2 * at + 3)) == keys[at + 1]
        with pytest.raises(kvpool.errors.HashingError, match="those of its parent"):
            hash_block_tokens(again(keys[0]), (2, 3), kvpool.ExtraKeys(salt="other"))
    foreign = hash_block_tokens(2**70, (1, 2))
    assert hash_block_tokens(again(foreign), (3, 4)) == hash_block_tokens(foreign, (3, 4))


@pytest.mark.lineage(ancestor="001", item="a parent may be any pair of hash value and tokens")
def test_a_plain_tuple_is_a_parent() -> None:
    first, second = hash_request_tokens(2, range(4))
    assert hash_block_tokens((first.hash_value, (0, 1)), (2, 3)) == second
    assert hash_block_tokens((123, (0, 1)), (2, 3)) == hash_block_tokens(123, (2, 3))
    wrong: Any
    for wrong in ("key", (1, 2, 3), 1.5, ((1,), 2), (None, (0, 1))):
        with pytest.raises(AssertionError, match="a parent is"):
            hash_block_tokens(wrong, (2, 3))


@pytest.mark.lineage(ancestor="001", item="free_list_head, free_list_tail; blocks take further attributes")
def test_ends_of_the_queue_and_further_attributes() -> None:
    blocks = blocks_of(3)
    queue = FreeKVCacheBlockQueue(blocks)
    assert (queue.free_list_head, queue.free_list_tail) == (blocks[0], blocks[2])
    queue.remove(blocks[2])
    queue.popleft()
    assert queue.free_list_head is queue.free_list_tail is blocks[1]
    queue.popleft()
    ends: Any = (queue.free_list_head, queue.free_list_tail)
    assert ends == (None, None)
    block: Any = blocks[0]
    block.engine_note = "mine"
    block.reset()
    assert block.engine_note == "mine"


@pytest.mark.lineage(ancestor="001", item="long prompts: no recursion")
def test_long_prompts() -> None:
    assert len({key.hash_value for key in hash_request_tokens(1, range(5000))}) == 5000
