"""Arguments are integers of every kind, chains, cursors and buffers; an argument of another type is a typed error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvpool
from kvpool import errors

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS: list[tuple[Callable[[], object], str, tuple[str, ...]]] = [
    (lambda: kvpool.BlockHasher(16), "algorithm", ("16", "sha256", "BlockHasher(block_size=16)")),  # type: ignore[arg-type]
    (lambda: kvpool.BlockHasher(block_size="16"), "block_size", ("'16'", "str", "an int")),  # type: ignore[arg-type]
    (lambda: kvpool.CacheManager("64"), "num_blocks", ("'64'", "str", "an int")),  # type: ignore[arg-type]
    (lambda: kvpool.CacheManager(64, 16.0), "block_size", ("16.0", "float", "an int")),  # type: ignore[arg-type]
    (lambda: kvpool.CacheManager(64, np.array([1, 2])), "block_size", ("ndarray", "an int")),  # type: ignore[arg-type]
    (lambda: kvpool.CacheManager(64, algorithm=256), "algorithm", ("256", "int", "a str")),  # type: ignore[arg-type]
    (lambda: kvpool.CacheManager(64, seed=0), "seed", ("0", "int", "a str")),  # type: ignore[arg-type]
    (lambda: kvpool.CacheManager(64, key="k" * 32), "key", ("str", "bytes")),  # type: ignore[arg-type]
    (lambda: kvpool.CacheManager(64, digest="yes"), "digest", ("'yes'", "a bool")),  # type: ignore[arg-type]
    (lambda: kvpool.CacheManager(64, watermark="x"), "watermark", ("'x'", "a float")),  # type: ignore[arg-type]
    (lambda: kvpool.CacheManager(64, journal="a.kvj"), "journal", ("'a.kvj'", "a Journal")),  # type: ignore[arg-type]
    (lambda: kvpool.BlockPool(None), "num_blocks", ("None", "an int")),  # type: ignore[arg-type]
    (lambda: kvpool.BlockPool(64, verify=1), "verify", ("1", "a str")),  # type: ignore[arg-type]
    (lambda: kvpool.GroupSpec("full", "16"), "block_size", ("'16'", "an int")),  # type: ignore[arg-type]
    (lambda: kvpool.GroupSpec(16), "kind", ("16", "a str")),  # type: ignore[arg-type]
    (lambda: kvpool.parts.FreeBlockList("9"), "num_blocks", ("'9'", "an int")),  # type: ignore[arg-type]
    (lambda: kvpool.TieredPool([8], verify=2), "verify", ("2", "a str")),  # type: ignore[arg-type]
    (lambda: kvpool.BlockPool(8).probe([b"x"]), "chain", ("list", "HashChain", "HashCursor")),  # type: ignore[arg-type]
    (lambda: kvpool.BlockPool(8).acquire_match([1]), "found", ("[1]", "a Match")),  # type: ignore[arg-type]
    (lambda: kvpool.BlockPool(8).allocate("2"), "n", ("'2'", "an int")),  # type: ignore[call-overload]
    (lambda: kvpool.CacheManager(8).evict(1.5), "n", ("1.5", "an int")),  # type: ignore[call-overload]
    (lambda: kvpool.CacheManager(8).admit(1, [1], extra="salt"), "extra", ("'salt'", "an ExtraKeys")),  # type: ignore[arg-type]
    (lambda: kvpool.CacheManager(8).admit(1, [1], reuse=0), "reuse", ("0", "a bool")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(
    ("call", "argument", "words"), SETTINGS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_argument_of_another_type_is_refused_with_its_name_its_value_and_what_to_write(
    call: Callable[[], object], argument: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(errors.ArgumentTypeError) as raised:
        call()
    assert isinstance(raised.value, TypeError)
    assert all(word in str(raised.value) for word in (argument, *words)), str(raised.value)


class Index:
    """A class of integers that is not Python's."""

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
    manager.fork_batch([kind(5)], [kind(7)])
    manager.truncate(kind(7), kind(2))
    manager.take_plan()
    manager.release_batch([kind(6), kind(7)], after_step=kind(1))
    manager.complete_step(kind(1))
    swap = manager.begin_swap_out([kind(5)])
    manager.take_plan()
    manager.complete_swap(kind(swap))
    manager.preempt(kind(5))
    with manager.plan_step() as step:
        step.resume(kind(5))
        step.commit()
    assert manager.request(kind(5)).computed_tokens == 4
    manager.release(kind(5))
    assert manager.drop_cached([kind(block) for block in manager.eviction_order()]) == 1

    pool = kvpool.BlockPool(kind(64), kind(4))
    blocks = pool.allocate(kind(2))
    pool.acquire([kind(block) for block in blocks])
    assert pool.ref_count(kind(blocks[0])) == 2
    pool.release([kind(block) for block in blocks])
    assert pool.state(kind(blocks[0])) == "active"


class Failing:
    """An int that fails."""

    def __index__(self) -> int:
        raise RuntimeError("no")


def test_what_an_id_of_a_caller_raises_is_raised() -> None:
    manager = kvpool.CacheManager(64)
    for call in (lambda: manager.admit(Failing(), [1]), lambda: manager.append([Failing()], [1])):
        with pytest.raises(RuntimeError, match="no"):
            call()
    with pytest.raises(errors.ArgumentTypeError, match="not a ndarray"):
        manager.admit(np.array([1, 2]), [1])
    assert len(manager) == 0


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
    # The chain of the moment: a cursor that has grown has more.
    cursor.append([10, 11])
    used.register_table(used.allocate(1), cursor, 2)
    assert (used.probe(cursor).cached_blocks, other.probe(cursor).cached_blocks) == (3, 2)
