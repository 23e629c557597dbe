"""Bad input: the right exception (KvpoolError and builtin), a message that names the value, nothing changed."""

from __future__ import annotations

import array
import ctypes
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvpool
import kvpool.transfer
from kvpool import _core, errors
from kvpool.testing import observe_manager, observe_pool

if TYPE_CHECKING:
    from collections.abc import Callable

HUGE = [2**63, 2**64, 10**30]
Subject = kvpool.CacheManager | kvpool.BlockPool


@pytest.fixture
def manager() -> kvpool.CacheManager:
    """ "run" holds blocks 1 to 3 (two computed), "wait" is preempted, block 4 is fenced until step 5."""
    manager = kvpool.CacheManager(12, 4)
    manager.admit("run", range(10))
    manager.commit("run", 8)
    manager.admit("fenced", [7])
    manager.release("fenced", after_step=5)
    manager.admit("wait", range(50, 60))
    manager.preempt("wait")
    return manager


@pytest.fixture
def pool() -> kvpool.BlockPool:
    """1 and 2 are active, 2 has two references, 3 is fenced until step 5, 4 is cached-free."""
    pool = kvpool.BlockPool(10, 4)
    pool.allocate(4)
    pool.acquire([2])
    pool.release_after([3], 5)
    pool.register([4], chain())
    pool.mark_computed([4])
    pool.release([4])
    return pool


def chain(blocks: int = 1) -> kvpool.hashing.HashChain:
    return kvpool.BlockHasher(block_size=4).cursor(range(4 * blocks)).chain()


def observe(subject: Subject) -> object:
    names: list[str | int] = ["run", "wait", "fenced", "new", 1]
    return observe_pool(subject) if isinstance(subject, kvpool.BlockPool) else observe_manager(subject, names)


def refused(
    call: Callable[[], object],
    error: type[kvpool.KvpoolError],
    builtin: type[Exception],
    *words: object,
    on: Subject | None = None,
) -> kvpool.KvpoolError:
    """The call raises exactly this error, whose message has these words; what it was called on is unchanged."""
    before = observe(on) if on is not None else None
    with pytest.raises(error) as raised:
        call()
    assert raised.type is error
    assert isinstance(raised.value, builtin)
    assert isinstance(raised.value, kvpool.KvpoolError)
    for word in words:
        assert str(word) in str(raised.value)
    if on is not None:
        assert observe(on) == before
        on.check_invariants()
    return raised.value


# --- Settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [0, 1, -1, 2**32 - 1, 2**40, 2**63 - 1, *HUGE, -(10**30)])
@pytest.mark.parametrize(
    "make",
    [
        kvpool.BlockPool,
        kvpool.CacheManager,
        kvpool.parts.BlockAllocator,
        kvpool.parts.FreeBlockList,
        kvpool.parts.PrefixIndex,
        kvpool.parts.LruEvictor,
    ],
    ids=lambda make: make.__name__,
)
def test_number_of_blocks(make: Callable[[int], object], num_blocks: int) -> None:
    refused(lambda: make(num_blocks), errors.InvalidArgumentError, ValueError, "num_blocks", num_blocks)


@pytest.mark.parametrize("block_size", [0, -1, 2**32, 2**63 - 1, *HUGE])
def test_block_size(block_size: int) -> None:
    for make in (kvpool.BlockPool, kvpool.CacheManager):
        wrong = errors.InvalidArgumentError
        refused(lambda make=make: make(10, block_size), wrong, ValueError, "block_size", block_size)  # type: ignore[misc]
    with pytest.raises(kvpool.KvpoolError, match=f"block_size.*{block_size}") as raised:
        kvpool.BlockHasher("sha256", block_size)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"algorithm": "md5"}, errors.InvalidArgumentError, ["md5", "sha256"]),
        ({"algorithm": ""}, errors.InvalidArgumentError, ['""']),
        ({"verify": "maybe"}, errors.InvalidArgumentError, ["maybe", "fingerprint"]),
        ({"duplicates": "drop"}, errors.InvalidArgumentError, ['"drop"', "drop-on-release"]),
        ({"eviction": "newest"}, errors.InvalidArgumentError, ["newest", *kvpool.policies.eviction_policies()]),
        ({"watermark": 1.0}, errors.InvalidArgumentError, ["watermark", "1"]),
        ({"watermark": -0.5}, errors.InvalidArgumentError, ["watermark", "-0.5"]),
        ({"watermark": float("nan")}, errors.InvalidArgumentError, ["watermark", "NaN"]),
        ({"watermark": float("inf")}, errors.InvalidArgumentError, ["watermark", "inf"]),
        ({"event_capacity": -1}, errors.InvalidArgumentError, ["event_capacity", "-1"]),
        ({"event_capacity": 2**63}, errors.InvalidArgumentError, ["event_capacity", 2**63]),
        ({"block_bytes": -3}, errors.InvalidArgumentError, ["block_bytes", "-3"]),
        ({"key": b"short"}, errors.InvalidArgumentError, ["key", "5 bytes", "32"]),
        ({"key": b"k" * 32}, errors.HashingError, ["sha256", "blake3"]),
        ({"algorithm": "vllm-xxhash", "verify": "tokens"}, errors.HashingError, ["vllm-xxhash", "seed"]),
        ({"algorithm": "xxh3"}, errors.InvalidArgumentError, ["xxh3", "verify"]),
        ({"algorithm": "vllm-xxhash", "seed": "0"}, errors.InvalidArgumentError, ["vllm-xxhash", "verify"]),
    ],
    ids=str,
)
def test_settings(settings: dict[str, Any], error: type[kvpool.KvpoolError], words: list[object]) -> None:
    refused(lambda: kvpool.CacheManager(10, 4, **settings), error, ValueError, *words)


# --- Counts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [-1, -(2**31), -(2**63)])
def test_negative_numbers(pool: kvpool.BlockPool, manager: kvpool.CacheManager, n: int) -> None:
    step = manager.plan_step()

    def check(call: Callable[[], object], name: str, on: Subject) -> None:
        refused(call, errors.InvalidArgumentError, ValueError, f"{name} is {n}", on=on)

    check(lambda: pool.allocate(n), "n", pool)
    check(lambda: pool.match_and_acquire(chain(), n), "max_blocks", pool)
    check(lambda: pool.probe(chain(), n), "max_blocks", pool)
    check(lambda: pool.release_after([1], n), "step", pool)
    check(lambda: pool.complete_step(n), "step", pool)
    check(lambda: pool.resize(n), "num_blocks", pool)
    check(lambda: pool.register([1], chain(), n), "start", pool)
    check(lambda: pool.register_table([1], chain(), n), "start", pool)
    check(lambda: pool.adopt([5], chain(), n), "start", pool)
    check(lambda: kvpool.Match(chain(), [1], n), "start", pool)
    check(lambda: pool.lookup(chain(), n), "start", pool)
    check(lambda: pool.lookup(chain(), 0, n, refresh=True), "max_blocks", pool)
    check(lambda: pool.evict(n), "n", pool)
    check(lambda: manager.evict(n), "n", manager)
    check(lambda: manager.commit("run", n), "computed_tokens", manager)
    check(lambda: manager.release("run", after_step=n), "after_step", manager)
    check(lambda: manager.preempt("run", after_step=n), "after_step", manager)
    check(lambda: manager.complete_step(n), "step", manager)
    for leave in (manager.release, manager.preempt, step.release, step.preempt):
        check(functools.partial(leave, "run", until=n), "until", manager)
    for place in (functools.partial(manager.admit, "new", [1]), functools.partial(manager.fit, [1])):
        check(functools.partial(place, allocate_tokens=n), "allocate_tokens", manager)
        check(functools.partial(place, external_tokens=n), "external_tokens", manager)
    check(lambda: manager.resume("wait", allocate_tokens=n), "allocate_tokens", manager)
    check(lambda: step.resume("wait", external_tokens=n), "external_tokens", manager)
    check(lambda: step.admit("new", [1], external_tokens=n), "external_tokens", manager)
    check(lambda: manager.external_done("run", n), "loaded_tokens", manager)
    check(lambda: manager.external_done("run", failed=[(0, 1), (n, 1)]), "start", manager)
    check(lambda: manager.external_done("run", failed=[(1, n)]), "end", manager)
    check(lambda: manager.end_fence(n), "ticket", manager)
    check(lambda: manager.extend("run", n), "num_tokens", manager)
    check(lambda: manager.truncate("run", n), "num_tokens", manager)
    check(lambda: manager.truncate("run", 9, until=n), "until", manager)
    check(lambda: manager.truncate_batch(["run"], [9], after_step=n), "after_step", manager)
    check(lambda: manager.append_ragged(["run"], [1], lookahead=n), "lookahead", manager)
    check(lambda: step.append("run", [1], lookahead=n), "lookahead", manager)
    check(lambda: step.append_ragged(["run"], [1], lookahead=n), "lookahead", manager)
    check(lambda: manager.resize(n), "num_blocks", manager)
    refused(lambda: manager.commit_batch(["run"], [n]), errors.InvalidArgumentError, ValueError, n, on=manager)


@pytest.mark.parametrize("n", [10, 2**31, 2**32, 2**63 - 1])
def test_more_blocks_than_there_are(pool: kvpool.BlockPool, n: int) -> None:
    error = refused(lambda: pool.allocate(n), errors.OutOfBlocksError, MemoryError, n, on=pool)
    assert isinstance(error, errors.OutOfBlocksError)
    assert (error.needed, error.available, error.missing, error.fenced) == (n, 6, n - 6, 1)
    assert pool.allocate(6) == [5, 6, 7, 8, 9, 4]


@pytest.mark.parametrize("n", [2**32, 2**63 - 1, *HUGE])
def test_huge_numbers(pool: kvpool.BlockPool, manager: kvpool.CacheManager, n: int) -> None:
    before = observe(pool)
    with pytest.raises(kvpool.KvpoolError, match=str(n)):
        pool.allocate(n)
    assert observe(pool) == before
    wrong = errors.InvalidArgumentError
    refused(lambda: pool.register([1], chain(), n), wrong, ValueError, n, on=pool)
    refused(lambda: pool.register_table([1], chain(), n), wrong, ValueError, n, on=pool)
    refused(lambda: pool.adopt([5], chain(), n), wrong, ValueError, n, on=pool)
    refused(lambda: kvpool.Match(chain(), [1], n), wrong, ValueError, n, on=pool)
    refused(lambda: pool.resize(n), wrong, ValueError, n, on=pool)
    refused(lambda: manager.commit("run", n), wrong, ValueError, n, on=manager)
    refused(lambda: manager.commit_batch(["run"], [n]), wrong, ValueError, n, on=manager)
    refused(lambda: manager.resize(n), wrong, ValueError, n, on=manager)


def test_steps_have_64_bits(pool: kvpool.BlockPool, manager: kvpool.CacheManager) -> None:
    last = 2**64 - 1
    pool.release_after([1], last)
    assert (pool.complete_step(last - 1), pool.state(1)) == (1, "fenced")
    assert (pool.complete_step(last), pool.state(1)) == (1, "free")
    manager.release("run", after_step=last)
    assert (manager.complete_step(last - 1), manager.complete_step(last)) == (1, 3)
    refused(lambda: manager.complete_step(2**64), errors.InvalidArgumentError, ValueError, 2**64, on=manager)


# --- Tokens -------------------------------------------------------------------------------------------

OUT_OF_RANGE: list[tuple[Any, object, int]] = [
    ([1, -1], -1, 1),
    ([2**32], 2**32, 0),
    ([0, 1, 10**30], 10**30, 2),
    ((3, -(2**70)), -(2**70), 1),
    (range(-2, 1), -2, 0),
    (np.array([5, -1], dtype=np.int32), -1, 1),
    (np.array([5, 6, -(2**63)], dtype=np.int64), -(2**63), 2),
    (np.array([2**32], dtype=np.int64), 2**32, 0),
    (np.array([1, 2**63 - 1], dtype=np.int64), 2**63 - 1, 1),
    (array.array("i", [-7]), -7, 0),
]
WRONG_TYPE: list[tuple[Any, str]] = [
    ([True], "bool"),
    ([1, False], "position 1"),
    ([np.bool_(True)], "bool"),
    ([1.0], "float"),
    ([np.float32(1)], "float32"),
    (["1"], "str"),
    ([b"1"], "bytes"),
    ([None], "NoneType"),
    ([[1]], "list"),
    ([1, (2,)], "tuple"),
    ([np.array([1])], "position 0"),
    ("abc", "str"),
    ("", "str"),
    (b"abc", "bytes"),
    (bytearray(b"abc"), '"B"'),
    (memoryview(b"abcd"), '"B"'),
    (5, "int"),
    (1.0, "float"),
    (object(), "object"),
    (np.array([1.0], dtype=np.float32), '"f"'),
    (np.array([1.0], dtype=np.float64), '"d"'),
    (np.array([1], dtype=np.int8), '"b"'),
    (np.array([1], dtype=np.int16), '"h"'),
    (np.array([1], dtype=np.uint16), '"H"'),
    (np.array([1], dtype=np.uint64), '"L"'),
    (np.array([1], dtype=np.complex64), '"Zf"'),
    (np.array([True]), '"?"'),
    (np.array([1, 2], dtype=object), '"O"'),
    (np.array(["a"]), "format"),
    (array.array("h", [1]), '"h"'),
    (array.array("f", [1.0]), '"f"'),
    (np.array([[1, 2]], dtype=np.int32), "2 dimensions"),
    (np.array([[[1]]], dtype=np.int64), "3 dimensions"),
    (np.array(1, dtype=np.int32), "ndarray"),
]


def token_calls(manager: kvpool.CacheManager, tokens: Any) -> list[Callable[[], object]]:
    step = manager.plan_step()
    cursor = manager.prepare([1])
    return [
        lambda: manager.prepare(tokens),
        lambda: manager.probe(tokens),
        lambda: manager.admit("new", tokens),
        lambda: manager.append_tokens("run", tokens),
        lambda: manager.append(["run"], tokens),
        lambda: manager.append_ragged(["run"], tokens),
        lambda: manager.fit(tokens),
        lambda: step.append_ragged(["run"], tokens),
        lambda: step.admit("new", tokens),
        lambda: step.append("run", tokens),
        lambda: cursor.append(tokens),
        lambda: kvpool.BlockHasher().hash_tokens(tokens),
        lambda: kvpool.BlockHasher().cursor(tokens),
    ]


@pytest.mark.parametrize(("tokens", "value", "position"), OUT_OF_RANGE, ids=str)
def test_tokens_out_of_range(manager: kvpool.CacheManager, tokens: Any, value: object, position: int) -> None:
    for call in token_calls(manager, tokens):
        refused(call, errors.TokenError, ValueError, f"token {value} at position {position} ", 2**32 - 1, on=manager)


@pytest.mark.parametrize(
    ("tokens", "word"), WRONG_TYPE, ids=lambda one: one if isinstance(one, str) else type(one).__name__
)
def test_tokens_of_a_wrong_type(manager: kvpool.CacheManager, tokens: Any, word: str) -> None:
    for call in token_calls(manager, tokens)[:4]:
        refused(call, errors.TokenTypeError, TypeError, word, "int32", on=manager)
    for call in token_calls(manager, tokens)[4:]:
        refused(call, errors.TokenTypeError, TypeError, word, "int32", on=manager)


def test_no_tokens_at_all(manager: kvpool.CacheManager) -> None:
    for call in (lambda: manager.admit("new", None), lambda: manager.append_tokens("run", None)):  # type: ignore[arg-type]
        refused(call, errors.TokenTypeError, TypeError, "NoneType", on=manager)


def test_only_tokens_raise_the_error_of_tokens(manager: kvpool.CacheManager, pool: kvpool.BlockPool) -> None:
    """Beside tokens in the same call, and where nothing but a sequence is asked for."""
    cursor = kvpool.BlockHasher(block_size=4).cursor([1])
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: manager.append([None], [1]), "request id"),  # type: ignore[list-item]
        (lambda: manager.admit("new", [1], out=[0]), "out is"),  # type: ignore[arg-type]
        (lambda: manager.commit_batch(["run"], ["9"]), "count at position 0 is a str"),  # type: ignore[list-item]
        (lambda: manager.commit_batch(["run"], 9), "counts are"),  # type: ignore[arg-type]
        (lambda: pool.acquire(["2"]), "block id"),  # type: ignore[list-item]
        (lambda: kvpool.TransferPlan([5]), "item 0 of transfers"),  # type: ignore[list-item]
        (lambda: kvpool.TransferPlan([(5, (1, 1))]), "5 is no block of a tier"),  # type: ignore[list-item]
        (lambda: kvpool.TransferPlan(5), "must be a sequence"),  # type: ignore[arg-type]
        (lambda: kvpool.hashing.HashChain.from_digests("sha256", 4, ["a"]), "must be bytes"),  # type: ignore[list-item]
        (lambda: kvpool.TieredPool("ab"), "num_blocks"),  # type: ignore[arg-type]
        (lambda: manager.retain("run", [(0, 1)]), "retention"),  # type: ignore[list-item]
        (lambda: cursor.append([1], multimodal=[(b"a", 1)]), "item 0 of multimodal"),  # type: ignore[list-item]
        (lambda: cursor.append([1], multimodal=[(5, 1, 1)]), "identifier"),  # type: ignore[list-item]
        (lambda: cursor.append([1], multimodal="items"), "multimodal is a str"),  # type: ignore[arg-type]
    ]
    for call, word in wrong:
        refused(call, errors.ArgumentTypeError, TypeError, word, on=manager)
    refused(lambda: cursor.append("x", multimodal=[(5, 1, 1)]), errors.TokenTypeError, TypeError, "tokens are")  # type: ignore[arg-type, list-item]
    assert len(cursor) == 1


@pytest.mark.parametrize("dtype", [">i4", ">u4", ">i8"])
@pytest.mark.parametrize("values", [[1, 2, 3, 4], [2**24, 0, 1, 2**31 - 1]])
def test_big_endian_tokens_are_refused_or_read_right(dtype: str, values: list[int]) -> None:
    hasher = kvpool.BlockHasher(block_size=4)
    try:
        digests = hasher.hash_tokens(np.array(values, dtype=dtype))
    except errors.TokenTypeError:
        return
    assert digests == hasher.hash_tokens(values)


@pytest.mark.parametrize("dtype", [">i4", ">u4", ">i8"])
def test_big_endian_block_ids_are_refused_or_read_right(pool: kvpool.BlockPool, dtype: str) -> None:
    try:
        pool.acquire(np.array([2, 2], dtype=dtype))
    except errors.ArgumentTypeError:
        return
    assert pool.ref_count(2) == 4


def test_little_endian_tokens_with_their_byte_order_named() -> None:
    hasher = kvpool.BlockHasher(block_size=4)
    values = (ctypes.c_int32 * 4)(1, 2, 3, 4)
    assert memoryview(values).format == "<i"
    assert hasher.hash_tokens(values) == hasher.hash_tokens([1, 2, 3, 4])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("cut", [slice(None, None, 2), slice(None, None, -1), slice(3, 17, 3), slice(0, 0)])
def test_strided_tokens_are_taken(dtype: type, cut: slice) -> None:
    values: Any = np.arange(40, dtype=dtype)
    hasher = kvpool.BlockHasher(block_size=2)
    assert hasher.hash_tokens(values[cut]) == hasher.hash_tokens(values[cut].tolist())
    column: Any = np.arange(60, dtype=dtype).reshape(20, 3)[:, 1]
    assert hasher.hash_tokens(column) == hasher.hash_tokens(column.tolist())


def test_read_only_tokens_are_taken() -> None:
    values = np.arange(8, dtype=np.int32)
    values.setflags(write=False)
    hasher = kvpool.BlockHasher(block_size=4)
    assert hasher.hash_tokens(values) == hasher.hash_tokens(range(8))


# --- out ----------------------------------------------------------------------------------------------


def read_only() -> Any:
    out = np.zeros(8, dtype=np.int32)
    out.setflags(write=False)
    return out


WRONG_OUT: list[Any] = [
    read_only(),
    np.zeros(8, dtype=np.int64),
    np.zeros(8, dtype=np.uint32),
    np.zeros(8, dtype=np.float32),
    np.zeros((4, 2), dtype=np.int32),
    np.zeros(16, dtype=np.int32)[::2],
    [0] * 8,
    bytearray(32),
    bytes(32),
    "out",
    5,
]


@pytest.mark.parametrize("out", WRONG_OUT, ids=lambda out: f"{type(out).__name__} {out!r}"[:30])
def test_out_of_a_wrong_type(pool: kvpool.BlockPool, manager: kvpool.CacheManager, out: Any) -> None:
    before = bytes(out) if isinstance(out, bytearray | np.ndarray) else None
    refused(lambda: pool.allocate(2, out=out), errors.ArgumentTypeError, TypeError, "out", "int32", on=pool)
    refused(lambda: manager.admit("new", [1], out=out), errors.ArgumentTypeError, TypeError, "out", on=manager)
    refused(lambda: manager.block_ids("run", out=out), errors.ArgumentTypeError, TypeError, "out", on=manager)
    refused(lambda: pool.ref_counts([1, 2], out=out), errors.ArgumentTypeError, TypeError, "out", "int32", on=pool)
    assert before is None or bytes(out) == before


def test_out_too_short(pool: kvpool.BlockPool, manager: kvpool.CacheManager) -> None:
    out = np.full(2, -1, dtype=np.int32)
    wrong = errors.InvalidArgumentError
    refused(lambda: pool.allocate(3, out=out), wrong, ValueError, "2 ids", "3 are needed", on=pool)
    refused(lambda: pool.ref_counts([1, 2, 3], out=out), wrong, ValueError, "2 ids", "3 are needed", on=pool)
    refused(lambda: manager.admit("new", range(9), out=out), wrong, ValueError, "2 ids", "3 are", on=manager)
    refused(lambda: manager.block_ids("run", out=out), wrong, ValueError, "2 ids", "3 are needed", on=manager)
    assert out.tolist() == [-1, -1]


def test_out_is_untouched_if_the_call_fails(pool: kvpool.BlockPool, manager: kvpool.CacheManager) -> None:
    out = np.full(100, -1, dtype=np.int32)
    refused(lambda: pool.allocate(50, out=out), errors.OutOfBlocksError, MemoryError, on=pool)
    refused(lambda: pool.ref_counts([1, 10], out=out), errors.InvalidBlockError, ValueError, 10, on=pool)
    refused(lambda: manager.admit("new", range(200), out=out), errors.OutOfBlocksError, MemoryError, on=manager)
    refused(lambda: manager.admit("run", [1], out=out), errors.DuplicateRequestError, ValueError, on=manager)
    assert set(out.tolist()) == {-1}


def test_big_endian_out_is_refused_or_written_right(pool: kvpool.BlockPool, manager: kvpool.CacheManager) -> None:
    out = np.zeros(4, dtype=">i4")
    try:
        pool.allocate(2, out=out)
    except errors.ArgumentTypeError:
        pass
    else:
        assert out.tolist() == [5, 6, 0, 0]
    out = np.zeros(4, dtype=">i4")
    try:
        manager.block_ids("run", out=out)
    except errors.ArgumentTypeError:
        pass
    else:
        assert out.tolist() == [1, 2, 3, 0]


# --- Request ids ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [None, 1.0, b"run", True, ("run",), ["run"], Ellipsis], ids=str)
def test_request_ids_of_a_wrong_type(manager: kvpool.CacheManager, name: Any) -> None:
    step = manager.plan_step()
    calls: list[Callable[[], object]] = [
        lambda: manager.admit(name, [1]),
        lambda: manager.append([name], [1]),
        lambda: manager.append_tokens(name, [1]),
        lambda: manager.commit(name, 1),
        lambda: manager.commit_batch(["run", name], [8, 1]),
        lambda: manager.release(name),
        lambda: manager.release_batch(["run", name]),
        lambda: manager.fork_batch(["run", name], ["new", "other"]),
        lambda: manager.fork_batch(["run", "run"], ["new", name]),
        lambda: manager.preempt(name),
        lambda: manager.resume(name),
        lambda: manager.request(name),
        lambda: manager.block_ids(name),
        lambda: name in manager,
        lambda: manager.extend(name, 1),
        lambda: manager.external_done(name),
        lambda: manager.truncate(name, 1),
        lambda: manager.truncate_batch(["run", name], [9, 1]),
        lambda: manager.append_ragged([name], [1]),
        lambda: step.append_ragged([name], [1]),
        lambda: step.resume(name),
        lambda: step.admit(name, [1]),
        lambda: step.release(name),
    ]
    for call in calls:
        refused(call, errors.ArgumentTypeError, TypeError, "request id", type(name).__name__, on=manager)


@pytest.mark.parametrize("name", [2**64, -(2**63) - 1, 10**30, -(10**30)])
def test_request_ids_out_of_range(manager: kvpool.CacheManager, name: int) -> None:
    limits = "from -9223372036854775808 to 18446744073709551615"
    for call in (lambda: manager.admit(name, [1]), lambda: manager.release(name), lambda: manager.append([name], [1])):
        refused(call, errors.InvalidArgumentError, ValueError, name, limits, on=manager)


def test_every_number_of_64_bits_is_a_request_of_its_own() -> None:
    names = [0, -1, 2**31, 2**63 - 1, -(2**63), 2**63, 2**64 - 1]
    manager = kvpool.CacheManager(16, 4, explain=True)
    for tokens, name in enumerate(names, 1):
        manager.admit(name, range(tokens))
        twice = functools.partial(manager.admit, name, [1])
        refused(twice, errors.DuplicateRequestError, ValueError, name)
    assert [manager.request(name).tokens for name in names] == list(range(1, len(names) + 1))
    manager.append(names, [5] * len(names))
    assert [manager.explain(name).request_id for name in names] == names
    for name in names:
        manager.release(name)
        assert name not in manager


@pytest.mark.parametrize("names", ["ab", b"ab", None, 5], ids=str)
def test_batches_of_request_ids_of_a_wrong_type(manager: kvpool.CacheManager, names: Any) -> None:
    manager.admit(97, [1])
    manager.admit(98, [1])
    refused(lambda: manager.append(names, [1, 2]), errors.ArgumentTypeError, TypeError, on=manager)
    refused(lambda: manager.commit_batch(names, [1, 1]), errors.ArgumentTypeError, TypeError, on=manager)
    refused(lambda: manager.append_ragged(names, [1, 2]), errors.ArgumentTypeError, TypeError, on=manager)
    refused(lambda: manager.truncate_batch(names, [1, 1]), errors.ArgumentTypeError, TypeError, on=manager)
    refused(lambda: manager.release_batch(names), errors.ArgumentTypeError, TypeError, on=manager)
    refused(lambda: manager.fork_batch(names, [1, 2]), errors.ArgumentTypeError, TypeError, on=manager)
    refused(lambda: manager.fork_batch([97, 98], names), errors.ArgumentTypeError, TypeError, on=manager)
    step = manager.plan_step()
    refused(lambda: step.append_ragged(names, [1, 2]), errors.ArgumentTypeError, TypeError, on=manager)


def test_batches_of_request_ids_have_one_dimension(manager: kvpool.CacheManager) -> None:
    manager.admit(1, [1])
    manager.admit(2, [1])
    names = np.array([[1, 2]], dtype=np.int64)
    refused(lambda: manager.append(names, [5, 6]), errors.ArgumentTypeError, TypeError, on=manager)


def test_big_endian_request_ids_are_refused_or_read_right(manager: kvpool.CacheManager) -> None:
    manager.admit(1, [1])
    try:
        manager.append(np.array([1], dtype=">i8"), [5])
    except errors.ArgumentTypeError:
        return
    assert manager.request(1).tokens == 2


@pytest.mark.parametrize("name", ["nobody", 77, "", "1"])
def test_unknown_requests(manager: kvpool.CacheManager, name: str | int) -> None:
    manager.admit(1, [1])
    step = manager.plan_step()
    calls: list[Callable[[], object]] = [
        lambda: manager.append(["run", name], [1, 2]),
        lambda: manager.append_tokens(name, [1]),
        lambda: manager.commit(name, 0),
        lambda: manager.commit_batch(["run", name], [10, 0]),
        lambda: manager.release(name),
        lambda: manager.release(name, after_step=3),
        lambda: manager.release(name, until=3),
        lambda: manager.extend(name, 4),
        lambda: manager.external_done(name),
        lambda: manager.truncate(name, 1),
        lambda: manager.truncate_batch(["run", name], [9, 1]),
        lambda: manager.release_batch(["run", name]),
        lambda: manager.fork_batch(["run", name], ["fork", "other"]),
        lambda: manager.append_ragged(["run", name], [1, 2, 3], [0, 2, 3]),
        lambda: step.append_ragged(["run", name], [1, 2, 3], [0, 2, 3]),
        lambda: manager.preempt(name),
        lambda: manager.resume(name),
        lambda: manager.request(name),
        lambda: manager.block_ids(name),
        lambda: step.append(name, [1]),
        lambda: step.preempt(name),
        lambda: step.resume(name),
        lambda: step.release(name),
    ]
    for call in calls:
        quoted = f'"{name}"' if isinstance(name, str) else name
        refused(call, errors.UnknownRequestError, KeyError, quoted, on=manager)
    assert name not in manager


def test_requests_named_twice(manager: kvpool.CacheManager) -> None:
    wrong = errors.DuplicateRequestError
    refused(lambda: manager.admit("run", [1]), wrong, ValueError, '"run"', on=manager)
    refused(lambda: manager.admit("wait", [1]), wrong, ValueError, '"wait"', on=manager)
    refused(lambda: manager.append(["run", "run"], [1, 2]), wrong, ValueError, '"run"', "twice", on=manager)
    refused(lambda: manager.commit_batch(["run", "run"], [9, 10]), wrong, ValueError, '"run"', on=manager)
    refused(lambda: manager.truncate_batch(["run", "run"], [9, 8]), wrong, ValueError, '"run"', on=manager)
    refused(lambda: manager.append_ragged(["wait", "run", "wait"], [1, 2, 3]), wrong, ValueError, '"wait"', on=manager)
    refused(lambda: manager.release_batch(["wait", "run", "wait"]), wrong, ValueError, '"wait"', on=manager)
    refused(lambda: manager.fork_batch(["run"] * 2, ["fork", "wait"]), wrong, ValueError, '"wait"', on=manager)
    refused(lambda: manager.fork_batch(["run"] * 2, ["fork"] * 2), wrong, ValueError, '"fork"', "twice", on=manager)
    step = manager.plan_step()
    refused(lambda: step.append_ragged(["wait", "run", "wait"], [1, 2, 3]), wrong, ValueError, '"wait"', on=manager)
    assert len(step) == 0
    step.append("run", [1])
    step.admit("new", [1])
    refused(lambda: step.admit("run", [1]), wrong, ValueError, '"run"', on=manager)
    refused(lambda: step.admit("new", [1]), wrong, ValueError, '"new"', on=manager)
    refused(lambda: step.release("run"), wrong, ValueError, '"run"', on=manager)
    refused(lambda: step.append_ragged(["wait", "run"], [1, 2]), wrong, ValueError, '"run"', on=manager)
    assert len(step) == 2


def test_requests_in_the_wrong_state(manager: kvpool.CacheManager) -> None:
    step = manager.plan_step()
    calls: list[Callable[[], object]] = [
        lambda: manager.commit("wait", 0),
        lambda: manager.commit_batch(["run", "wait"], [10, 0]),
        lambda: manager.preempt("wait"),
        lambda: manager.extend("wait", 4),
        lambda: manager.external_done("wait"),
        lambda: manager.truncate("wait", 9),
        lambda: manager.truncate_batch(["run", "wait"], [9, 9]),
        lambda: manager.fork_batch(["run", "wait"], ["fork", "other"]),
        lambda: step.preempt("wait"),
    ]
    for call in calls:
        refused(call, errors.RequestStateError, RuntimeError, '"wait"', "preempted", on=manager)
    # A preempted request takes the tokens that the step under way samples.
    assert manager.append(["run", "wait"], [1, 2]) == []
    assert (manager.append_tokens("wait", [1]), manager.request("wait").tokens) == ([], 12)
    step = manager.plan_step()
    for call in (
        lambda: manager.resume("run"),
        lambda: manager.external_done("run"),
        lambda: step.resume("run"),
    ):
        refused(call, errors.RequestStateError, RuntimeError, '"run"', "running", on=manager)


def test_lists_of_different_length(manager: kvpool.CacheManager) -> None:
    wrong = errors.InvalidArgumentError
    refused(lambda: manager.append(["run"], [1, 2]), wrong, ValueError, "1 requests", "2 tokens", on=manager)
    refused(lambda: manager.append(["run"], []), wrong, ValueError, "1 requests", "0 tokens", on=manager)
    refused(lambda: manager.append([], [1]), wrong, ValueError, "0 requests", "1 tokens", on=manager)
    refused(lambda: manager.commit_batch(["run"], [1, 2]), wrong, ValueError, "1 requests", "2 counts", on=manager)


@pytest.mark.parametrize("computed", [7, 11, 0])
def test_computed_counts_out_of_range(manager: kvpool.CacheManager, computed: int) -> None:
    wrong = errors.InvalidArgumentError
    refused(lambda: manager.commit("run", computed), wrong, ValueError, "10 tokens", computed, on=manager)
    refused(lambda: manager.commit_batch(["run"], [computed]), wrong, ValueError, computed, on=manager)


# --- Prompts --------------------------------------------------------------------------------------------


def test_empty_prompts(manager: kvpool.CacheManager) -> None:
    step = manager.plan_step()
    prompts: list[Any] = [[], (), range(0), np.array([], dtype=np.int32), manager.prepare([])]
    for prompt in prompts:
        for admit in (manager.admit, step.admit):
            call = functools.partial(admit, "new", prompt)
            refused(call, errors.InvalidArgumentError, ValueError, '"new"', "no tokens", on=manager)
    assert "new" not in manager


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "blake3"},
        {"block_size": 8},
        {"verify": "tokens"},
        {"seed": "other"},
        {"algorithm": "blake3", "key": b"k" * 32},
    ],
    ids=str,
)
def test_foreign_cursors(manager: kvpool.CacheManager, settings: dict[str, Any]) -> None:
    foreign = kvpool.BlockHasher(**{"block_size": 4, **settings}).cursor(range(9))
    step = manager.plan_step()
    for call in (
        lambda: manager.probe(foreign),
        lambda: manager.admit("new", foreign),
        lambda: step.admit("new", foreign),
    ):
        refused(call, errors.InvalidArgumentError, ValueError, on=manager)
    own = kvpool.BlockHasher(block_size=4).cursor(range(9))
    assert manager.admit("new", own).cached_tokens == 8


def test_extra_keys_given_twice(manager: kvpool.CacheManager) -> None:
    extra = kvpool.ExtraKeys(salt="s")
    cursor = manager.prepare(range(9), extra)
    step = manager.plan_step()
    for call in (
        lambda: manager.probe(cursor, extra),
        lambda: manager.admit("new", cursor, extra),
        lambda: manager.prepare(cursor, extra),  # type: ignore[arg-type]
        lambda: step.admit("new", cursor, extra),
    ):
        refused(call, errors.InvalidArgumentError, ValueError, "extra keys", on=manager)


@pytest.mark.parametrize(
    ("keys", "error", "words"),
    [
        ({"salt": 5}, errors.ArgumentTypeError, ["salt", "int"]),
        ({"tenant": 1.5}, errors.ArgumentTypeError, ["tenant", "float"]),
        ({"user": ["a"]}, errors.ArgumentTypeError, ["user", "list"]),
        ({"adapter": True}, errors.ArgumentTypeError, ["adapter", "bool"]),
        ({"adapter_path": "/a"}, errors.InvalidArgumentError, ["adapter_path"]),
        ({"multimodal": [("a", -1, 1)]}, errors.InvalidArgumentError, ["offset", "-1"]),
        ({"multimodal": [("a", 1, -2)]}, errors.InvalidArgumentError, ["length", "-2"]),
        ({"multimodal": [(3, 1, 2)]}, errors.ArgumentTypeError, ["identifier", "int"]),
    ],
    ids=str,
)
def test_extra_keys(keys: dict[str, Any], error: type[kvpool.KvpoolError], words: list[str]) -> None:
    builtin = TypeError if error is errors.ArgumentTypeError else ValueError
    refused(lambda: kvpool.ExtraKeys(**keys), error, builtin, *words)


# --- Block ids ------------------------------------------------------------------------------------------


def id_calls(pool: kvpool.BlockPool, ids: Any) -> list[Callable[[], object]]:
    return [
        lambda: pool.acquire(ids),
        lambda: pool.release(ids),
        lambda: pool.release_table(ids),
        lambda: pool.release_after(ids, 9),
        lambda: pool.register(ids, chain(4)),
        lambda: pool.mark_computed(ids),
        lambda: pool.drop_cached(ids),
    ]


@pytest.mark.parametrize("block", [-1, 0, 10, 2**31, 2**32 - 1, 2**32, 10**30])
def test_block_ids_out_of_range(pool: kvpool.BlockPool, manager: kvpool.CacheManager, block: int) -> None:
    for ids in ([block], [1, block], (block, 1)):
        for call in id_calls(pool, ids):
            refused(call, errors.InvalidBlockError, ValueError, on=pool)
    for call in [*id_calls(pool, [block]), *id_calls(pool, [1, block])[:5], *id_calls(pool, [4, block])[5:]]:
        refused(call, errors.InvalidBlockError, ValueError, block, on=pool)
    for look in (pool.ref_count, pool.state, pool.is_computed, pool.hash_of):
        if block != 0:
            refused(lambda look=look: look(block), errors.InvalidBlockError, ValueError, block, on=pool)  # type: ignore[misc]
    outside = block if block != 10 else 12
    refused(lambda: manager.drop_cached([outside]), errors.InvalidBlockError, ValueError, outside, on=manager)


@pytest.mark.parametrize("block", [-1, 10, 2**31, 2**32 - 1, 2**32, 10**30])
def test_block_ids_of_tables_out_of_range(pool: kvpool.BlockPool, block: int) -> None:
    wrong = errors.InvalidBlockError
    refused(lambda: pool.register_table([1, block], chain(4)), wrong, ValueError, block, on=pool)
    refused(lambda: pool.adopt([5, block], chain(4)), wrong, ValueError, block, on=pool)
    refused(lambda: pool.disown([1, block]), wrong, ValueError, block, on=pool)
    refused(lambda: pool.ref_counts([0, block]), wrong, ValueError, block, on=pool)
    refused(lambda: pool.states([0, block]), wrong, ValueError, block, on=pool)
    if 0 <= block < 2**32:
        found = kvpool.Match(chain(4), [4, block])
        refused(lambda: pool.acquire_match(found), errors.StaleMatchError, RuntimeError, block, "block 1", on=pool)
    else:
        refused(lambda: kvpool.Match(chain(4), [4, block]), wrong, ValueError, block, on=pool)


def test_tables_in_the_wrong_state(pool: kvpool.BlockPool) -> None:
    wrong = errors.InvalidBlockError
    for block, state in ((1, "active"), (3, "fenced"), (4, "cached-free")):
        refused(lambda block=block: pool.adopt([5, block], chain(4)), wrong, ValueError, state, block, on=pool)  # type: ignore[misc]
    refused(lambda: pool.adopt([5, 5], chain(4)), wrong, ValueError, "named twice", on=pool)
    refused(lambda: pool.adopt([0], chain(4)), wrong, ValueError, "block 0", on=pool)
    refused(lambda: pool.disown([0]), wrong, ValueError, "block 0", on=pool)
    refused(lambda: pool.disown([1, 2]), wrong, ValueError, "held by others", on=pool)
    refused(lambda: pool.disown([1, 1]), wrong, ValueError, "block 1", on=pool)
    refused(lambda: pool.disown([3]), wrong, ValueError, "fenced", on=pool)
    refused(lambda: pool.disown([4]), wrong, ValueError, "0 references", on=pool)
    for block in (3, 4, 5):
        refused(lambda block=block: pool.register_table([1, block], chain(4)), wrong, ValueError, block, on=pool)  # type: ignore[misc]
    refused(lambda: pool.register_table([1, 1], chain(4)), wrong, ValueError, "already", on=pool)
    pool.register([1], chain())
    other = kvpool.BlockHasher(block_size=4).cursor(range(50, 58)).chain()
    refused(lambda: pool.register_table([2, 1], other), wrong, ValueError, "already", on=pool)
    refused(lambda: pool.register_table([1, 2], chain()), errors.InvalidArgumentError, ValueError, "2 blocks", on=pool)


def test_matches_that_are_stale(pool: kvpool.BlockPool) -> None:
    found = pool.lookup(chain())
    assert (found.block_ids, found.start, len(found)) == ([4], 0, 1)
    assert found == kvpool.Match(chain(), [7])
    assert found != pool.lookup(chain(), 1)
    assert len({found, kvpool.Match(chain(), [7]), pool.lookup(chain(), 0, 0)}) == 2
    assert pool.evict(9) == [4]
    refused(lambda: pool.acquire_match(found), errors.StaleMatchError, RuntimeError, "block 4", on=pool)
    pool.bump_epoch()
    refused(lambda: pool.acquire_match(found), errors.StaleMatchError, RuntimeError, "block 4", on=pool)
    for refresh in (False, True):
        look = functools.partial(pool.lookup, chain(), refresh=refresh)
        refused(look, errors.StaleEpochError, RuntimeError, on=pool)
    nothing = kvpool.Match(chain(), [])
    assert (nothing.link, len(nothing)) == (None, 0)
    pool.acquire_match(nothing)


def test_payloads() -> None:
    pool = kvpool.BlockPool(4, 4, payloads=True)
    pool.adopt([1, 2], chain(2))
    wrong = errors.InvalidBlockError
    refused(lambda: pool.set_payloads([1, 3], [7, 8]), wrong, ValueError, "block 3", "position 1", on=pool)
    refused(lambda: pool.set_payloads([0], [7]), wrong, ValueError, "block 0", on=pool)
    refused(lambda: pool.set_payloads([9], [7]), wrong, ValueError, "block 9", on=pool)
    amiss = errors.InvalidArgumentError
    refused(lambda: pool.set_payloads([1], [7, 8]), amiss, ValueError, "2 payloads for 1 blocks", on=pool)
    for number in (-1, 2**64, 2**200):
        refused(lambda number=number: pool.set_payloads([1], [number]), amiss, ValueError, number, on=pool)  # type: ignore[misc]
    no_payloads: list[Any] = [1.0, "1", None, True, [1], bytearray(b"1")]
    for wrong_one in no_payloads:
        call = functools.partial(pool.set_payloads, [1, 2], [1, wrong_one])
        refused(call, errors.ArgumentTypeError, TypeError, "item 1", "int or bytes", on=pool)
    no_lists: list[Any] = [b"12", "12", {1, 2}, 5, None]
    for no_list in no_lists:
        refused(functools.partial(pool.set_payloads, [1, 2], no_list), errors.ArgumentTypeError, TypeError, on=pool)
    assert pool.take_evicted() == []
    numbers: list[int | bytes] = [0, 2**64 - 1, b"", b"\x00node"]
    for payload in numbers:
        pool.set_payloads([2], [payload])
        pool.disown([2])
        pool.adopt([2], chain(2), 1)
    refused(lambda: pool.set_payloads([1], [7]), errors.PayloadError, RuntimeError, "4 payloads", on=pool)
    assert pool.take_evicted() == [(2, chain(2).digests()[1], payload) for payload in numbers]
    pool.set_payloads([1], [7])
    none = kvpool.BlockPool(4, 4)
    refused(lambda: none.set_payloads([], []), errors.PayloadError, RuntimeError, "keeps no payloads", on=none)
    assert none.take_evicted() == []


def test_the_null_block(pool: kvpool.BlockPool) -> None:
    for call in id_calls(pool, [0]):
        refused(call, errors.InvalidBlockError, ValueError, "block 0", on=pool)
    assert (pool.state(0), pool.ref_count(0), pool.hash_of(0), pool.is_computed(0)) == ("null", 0, None, False)


@pytest.mark.parametrize(
    ("ids", "word"),
    [
        ([True], "bool"),
        ([1.0], "float"),
        (["1"], "str"),
        ([None], "NoneType"),
        ("12", "str"),
        (b"12", "bytes"),
        (1, "int"),
        (np.array([1.0]), '"d"'),
        (np.array([[1]], dtype=np.int32), "2 dimensions"),
    ],
    ids=str,
)
def test_block_ids_of_a_wrong_type(pool: kvpool.BlockPool, ids: Any, word: str) -> None:
    for call in id_calls(pool, ids):
        refused(call, errors.ArgumentTypeError, TypeError, word, "block id", on=pool)


@pytest.mark.parametrize("ids", [[1, 1], [2, 2, 2], [2, 1, 2, 2], [3], [4], [5], [1, 5], [5, 1]], ids=str)
def test_release_of_what_is_not_held(pool: kvpool.BlockPool, ids: list[int]) -> None:
    for call in (
        lambda: pool.release(ids),
        lambda: pool.release_table(ids),
        lambda: pool.release_after(ids, 9),
    ):
        refused(call, errors.InvalidBlockError, ValueError, "references", on=pool)


@pytest.mark.parametrize("ids", [[4], [5], [1, 4], [9, 1]], ids=str)
def test_acquire_of_what_nobody_holds(pool: kvpool.BlockPool, ids: list[int]) -> None:
    refused(lambda: pool.acquire(ids), errors.InvalidBlockError, ValueError, "0 references", on=pool)


def test_registration_of_what_cannot_be_registered(pool: kvpool.BlockPool) -> None:
    wrong = errors.InvalidBlockError
    refused(lambda: pool.register([1, 2, 1], chain(3)), wrong, ValueError, "block 1", "already", on=pool)
    refused(lambda: pool.register([5], chain()), wrong, ValueError, "block 5", "0 references", on=pool)
    refused(lambda: pool.mark_computed([1]), wrong, ValueError, "block 1", "not registered", on=pool)
    short = errors.InvalidArgumentError
    refused(lambda: pool.register([1, 2], chain(1)), short, ValueError, "2 blocks", "1 full", on=pool)
    refused(lambda: pool.register([1], chain(1), 1), short, ValueError, "position 1", on=pool)
    pool.register([1], chain())
    refused(lambda: pool.register([2, 1], chain(2)), wrong, ValueError, "block 1", "already", on=pool)
    other = kvpool.BlockHasher(block_size=8).cursor(range(8)).chain()
    refused(lambda: pool.register([2], other), short, ValueError, "8 tokens", "4", on=pool)


# --- Steps ----------------------------------------------------------------------------------------------


def test_stale_steps(manager: kvpool.CacheManager) -> None:
    step = manager.plan_step()
    step.append("run", [1])
    manager.append_tokens("run", [2])
    calls: list[Callable[[], object]] = [
        step.commit,
        lambda: step.admit("new", [1]),
        lambda: step.append("run", [1]),
        lambda: step.release("run"),
        lambda: step.preempt("run"),
        lambda: step.resume("wait"),
        lambda: step.append_ragged(["run"], [1]),
    ]
    for call in calls:
        refused(call, errors.StaleStepError, RuntimeError, "begin a new one", on=manager)


def test_finished_steps(manager: kvpool.CacheManager) -> None:
    committed, rolled_back = manager.plan_step(), manager.plan_step()
    rolled_back.release("run")
    rolled_back.rollback()
    rolled_back.rollback()
    with manager.plan_step() as left:
        left.release("run")
    assert "run" in manager
    committed.append("run", [1])
    committed.commit()
    for step in (committed, rolled_back, left):
        assert len(step) == 0
        for call in (
            step.commit,
            functools.partial(step.release, "run"),
            functools.partial(getattr, step, "available_blocks"),
        ):
            refused(call, errors.StaleStepError, RuntimeError, "over", on=manager)


# --- Reset, resize --------------------------------------------------------------------------------------


def test_reset_in_use(manager: kvpool.CacheManager, pool: kvpool.BlockPool) -> None:
    wrong = errors.BlocksInUseError
    refused(manager.reset, wrong, RuntimeError, "3 blocks are active", "1 fenced", on=manager)
    refused(pool.reset, wrong, RuntimeError, "2 blocks are active", "1 fenced", on=pool)
    manager.release("run")
    refused(manager.reset, wrong, RuntimeError, "0 blocks are active", "1 fenced", on=manager)
    manager.complete_step(5)
    assert manager.reset() == 2
    assert manager.stats().pool.free == 11


def test_shrinking(manager: kvpool.CacheManager, pool: kvpool.BlockPool) -> None:
    refused(lambda: manager.resize(11), errors.InvalidArgumentError, ValueError, "12", "11", on=manager)
    refused(lambda: pool.resize(0), errors.InvalidArgumentError, ValueError, "10", "0", on=pool)


def test_requests_too_large(manager: kvpool.CacheManager) -> None:
    error = refused(lambda: manager.admit("new", range(45)), errors.OutOfBlocksError, MemoryError, 7, on=manager)
    assert isinstance(error, errors.OutOfBlocksError)
    # Two of its 12 blocks are cached; 3 blocks are held and 1 is fenced.
    assert (error.needed, error.available, error.missing, error.fenced) == (10, 7, 3, 1)
    assert not error.can_ever_fit
    assert manager.stats().refusals == 1


RETAINED = kvpool.RetentionConfig(pin_budget=1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: kvpool.Retention(101), ["priority", 101, "0 to 100"]),
        (lambda: kvpool.Retention(-1), ["priority", -1, "0 to 100"]),
        (lambda: kvpool.Retention(10**30), ["priority", 10**30]),
        (lambda: kvpool.Retention(ttl=-1), ["ttl", "-1"]),
        (lambda: kvpool.Retention(ttl=float("nan")), ["ttl", "NaN"]),
        (lambda: kvpool.Retention(ttl=float("inf"), idle=True), ["ttl", "inf"]),
        (lambda: kvpool.Retention(idle=True), ["idle", "ttl"]),
        (lambda: kvpool.Retention(ttl=1, then="gone"), ["then", "gone", "demote"]),  # type: ignore[arg-type]
        (lambda: kvpool.Retention(50, pinned=True), ["priority", "pinned"]),
        (lambda: kvpool.Retention(pinned=True, demoted=True), ["pinned", "demoted"]),
        (lambda: kvpool.TenantLimits(-1), ["tenant", -1]),
        (lambda: kvpool.TenantLimits(2**32), ["tenant", 2**32, 2**32 - 1]),
        (lambda: kvpool.TenantLimits(1, floor=-1), ["floor", -1]),
        (lambda: kvpool.TenantLimits(1, ceiling=-5), ["ceiling", -5]),
        (lambda: kvpool.RetentionConfig(pin_budget=-1), ["pin_budget", -1]),
    ],
)
def test_retention_out_of_range(make: Callable[[], object], words: list[object]) -> None:
    refused(make, errors.InvalidArgumentError, ValueError, *words)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"pin_budget": 10}, ["pin_budget", 10, "at most", 9]),
        ({"pin_budget": 5, "tenants": [kvpool.TenantLimits(1, floor=5)]}, ["floors", 10, 9]),
        ({"tenants": [kvpool.TenantLimits(3, floor=4, ceiling=2)]}, ["ceiling", 2, "tenant 3", 4]),
        ({"tenants": [kvpool.TenantLimits(3), kvpool.TenantLimits(3)]}, ["tenant 3 twice"]),
        ({"tenants": [kvpool.TenantLimits(each) for each in range(201)]}, ["tenants", 201, 200]),
    ],
    ids=str,
)
def test_impossible_budgets(config: dict[str, Any], words: list[object]) -> None:
    retention = kvpool.RetentionConfig(**config)
    for make in (kvpool.BlockPool, kvpool.CacheManager):
        wrong = errors.InvalidArgumentError
        refused(lambda make=make: make(10, retention=retention), wrong, ValueError, *words)  # type: ignore[misc]


def test_retention_with_an_order_of_its_own() -> None:
    settings: dict[str, Any] = {"eviction": "last-accessed", "retention": True}
    refused(lambda: kvpool.BlockPool(10, **settings), errors.InvalidArgumentError, ValueError, "last-accessed")


@pytest.mark.parametrize("eviction", ["", "LRU", "mru"])
def test_an_unknown_policy_lists_the_known(eviction: str) -> None:
    known = kvpool.policies.eviction_policies()
    wrong = errors.InvalidArgumentError
    for make in (kvpool.BlockPool, kvpool.CacheManager):
        refused(lambda make=make: make(10, eviction=eviction), wrong, ValueError, *known)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("eviction", "instead"),
    [
        ("fifo", "lru"),
        ("lfu", "s3-fifo"),
        ("lfu-da", "arc"),
        ("sieve", "s3-fifo"),
        ("2q", "s3-fifo"),
        ("lrfu", "arc"),
        ("gdsf", "arc"),
    ],
)
def test_a_removed_policy_is_refused_with_the_policy_to_use_instead(eviction: str, instead: str) -> None:
    words = [*kvpool.sizing.POLICIES, f"kvpool no longer has {eviction}, use {instead}"]
    trace = kvpool.traces.Trace.generate(3)
    calls: list[Callable[[Any], object]] = [
        lambda name: kvpool.BlockPool(10, eviction=name),
        lambda name: kvpool.CacheManager(10, eviction=name),
        lambda name: kvpool.TieredPool([10, 10], eviction=name),
        lambda name: kvpool.AdvisorConfig(policies=["lru", name]),
        lambda name: kvpool.sizing.References(trace).run(name, 8),
        lambda name: kvpool.traces.Replay(trace, eviction=name),
        lambda name: _core.vllm.VllmPool(8, True, name),
        lambda name: kvpool.sizing.check_sizing(policies=["lru", name]),
    ]
    for call in calls:
        refused(lambda call=call: call(eviction), errors.InvalidArgumentError, ValueError, *words)  # type: ignore[misc]


def test_time_that_goes_backwards() -> None:
    for made in (kvpool.BlockPool(10, retention=RETAINED), kvpool.CacheManager(10, retention=RETAINED)):
        made.advance_time(5.5)
        made.advance_time(5.5)
        refused(lambda made=made: made.advance_time(5.25), errors.TimeBackwardsError, ValueError, 5.25, 5.5)  # type: ignore[misc]
        for time in (float("nan"), float("inf")):
            call = lambda made=made, time=time: made.advance_time(time)  # noqa: E731
            refused(call, errors.InvalidArgumentError, ValueError, "now")
        assert made.advance_time(6) == 0


def test_hints_without_retention() -> None:
    pool, manager = kvpool.BlockPool(10), kvpool.CacheManager(10, 2)
    blocks = pool.allocate(1)
    manager.admit("a", [1, 2, 3])
    normal = kvpool.Retention()
    calls: list[Callable[[], object]] = [
        lambda: pool.retain(blocks, normal),
        lambda: pool.assign_tenant(blocks, 1),
        lambda: pool.advance_time(1),
        lambda: pool.tenant_blocks(1),
        lambda: manager.admit("b", [1], tenant=1),
        lambda: manager.admit("b", [1], no_cache=True),
        lambda: manager.admit("b", [1], retention=[(0, None, normal)]),
        lambda: manager.retain("a", []),
        lambda: manager.set_tenant("a", 1),
        lambda: manager.end_of_life("a"),
        lambda: manager.retain_prefix([1, 2], []),
        lambda: manager.end_of_life_of([1, 2]),
        lambda: manager.end_session("a"),
        lambda: manager.advance_time(1),
        lambda: manager.tenant_blocks(1),
        lambda: manager.plan_step().admit("b", [1], no_cache=True),
    ]
    for call in calls:
        refused(call, errors.NoRetentionError, RuntimeError, "retention")
    assert (pool.retention_stats(), manager.retention_stats(), len(manager)) == (None, None, 1)
    manager.release("a")


def test_wrong_hints_change_nothing() -> None:
    manager = kvpool.CacheManager(10, 2, retention=RETAINED)
    manager.admit("a", [1, 2, 3])
    manager.commit("a", 3)
    timed, wrong = kvpool.Retention(ttl=1), errors.InvalidArgumentError
    refused(lambda: manager.retain("a", [(0, None, timed)]), wrong, ValueError, "ttl", "advance_time")
    refused(lambda: manager.retain("a", [(5, 5, timed)]), wrong, ValueError, "range", "5..5")
    refused(lambda: manager.retain("a", [(-1, 5, timed)]), wrong, ValueError, "start", -1)
    refused(lambda: manager.retain("a", [(0, -5, timed)]), wrong, ValueError, "end", -5)
    refused(lambda: manager.end_of_life("a", -1), wrong, ValueError, "start_token", -1)
    refused(lambda: manager.set_tenant("a", -1), wrong, ValueError, "tenant", -1)
    refused(lambda: manager.retain("b", []), errors.UnknownRequestError, KeyError, "b")
    refused(lambda: manager.end_of_life("b"), errors.UnknownRequestError, KeyError, "b")
    refused(lambda: manager.admit("b", [1], retention=[(2, 1, timed)]), wrong, ValueError, "2..1")
    for ranges in (3, [3], [(0, 1)], [(0, 1, 2)], [("0", 1, timed)], "abc"):
        with pytest.raises(TypeError):
            manager.retain("a", ranges)  # type: ignore[arg-type]
    for retention in (3, "yes", {"pin_budget": 1}):
        with pytest.raises(TypeError, match="retention is a"):
            kvpool.BlockPool(10, retention=retention)  # type: ignore[arg-type]
    pool = kvpool.BlockPool(10, retention=True)
    for block in (0, 10):
        refused(lambda block=block: pool.retain([block], timed), errors.InvalidBlockError, ValueError, block)  # type: ignore[misc]
    stats = manager.retention_stats()
    assert stats is not None
    assert (stats.with_ttl, stats.demoted, "b" in manager) == (0, 0, False)


# --- Text without UTF-8, wide ints, long ids ----------------------------------------------------------


LONE = "chat-\ud800"


def test_ids_that_are_no_text(manager: kvpool.CacheManager) -> None:
    """Half of a surrogate pair, as careless slicing of UTF-16 or surrogateescape leaves it."""
    calls: list[Callable[[], object]] = [
        lambda: manager.admit(LONE, [1]),
        lambda: manager.append([LONE], [1]),
        lambda: manager.append_tokens(LONE, [1]),
        lambda: manager.fork("run", LONE),
        lambda: manager.fork(LONE, "new"),
        lambda: manager.release(LONE),
        lambda: manager.request(LONE),
        lambda: manager.block_ids(LONE),
        lambda: manager.begin_swap_out([LONE]),
        lambda: LONE in manager,
        lambda: manager.plan_step().admit(LONE, [1]),
    ]
    for call in calls:
        refused(call, errors.InvalidArgumentError, ValueError, "a request id", "UTF-8", on=manager)


@pytest.mark.parametrize(
    "keys",
    [
        {"salt": LONE},
        {"tenant": LONE},
        {"adapter": LONE},
        {"adapter": "a", "adapter_path": LONE},
        {"multimodal": [(LONE, 0, 1)]},
    ],
    ids=str,
)
def test_extra_keys_that_are_no_text(keys: dict[str, Any]) -> None:
    refused(lambda: kvpool.ExtraKeys(**keys), errors.InvalidArgumentError, ValueError, "UTF-8")


@pytest.mark.parametrize(
    "make", [kvpool.BlockHasher, functools.partial(kvpool.CacheManager, 10)], ids=["hasher", "manager"]
)
def test_a_seed_that_is_no_text(make: Callable[..., object]) -> None:
    refused(lambda: make(seed=LONE), errors.InvalidArgumentError, ValueError, "UTF-8")


@pytest.mark.parametrize(
    "wide", [2**127, -(2**127) - 1, 2**200, 10**5000], ids=["2^127", "-2^127 - 1", "2^200", "10^5000"]
)
def test_ints_of_more_than_128_bits(pool: kvpool.BlockPool, manager: kvpool.CacheManager, wide: int) -> None:
    hasher = kvpool.BlockHasher(block_size=4)
    trace = kvpool.traces.Trace.generate(4)
    calls: list[Callable[[], object]] = [
        lambda: kvpool.BlockPool(wide),
        lambda: kvpool.BlockPool(8, wide),
        lambda: kvpool.BlockPool(8, event_capacity=wide),
        lambda: kvpool.CacheManager(8, wide),
        lambda: kvpool.CacheManager(8, host_blocks=wide),
        lambda: kvpool.CacheManager(8, block_bytes=wide),
        lambda: kvpool.CacheManager(8, scrub_blocks=wide),
        lambda: kvpool.CacheManager(8, event_capacity=wide),
        lambda: kvpool.BlockHasher(block_size=wide),
        lambda: hasher.cursor([1], epoch=wide),
        lambda: hasher.hash_tokens([1], epoch=wide),
        lambda: hasher.link([1, 2, 3, 4], epoch=wide),
        lambda: kvpool.hashing.HashChain.from_digests("sha256", wide, []),
        lambda: kvpool.parts.PrefixIndex(8, wide),
        lambda: kvpool.TieredPool([8], wide),
        lambda: kvpool.TieredPool([wide]),
        lambda: pool.allocate(wide),
        lambda: pool.register([1], chain(), wide),
        lambda: pool.scrub(wide),
        lambda: manager.append_tokens("run", [1], lookahead=wide),
        lambda: manager.append_ragged(["run"], [1], lookahead=wide),
        lambda: manager.append_ragged(["run"], [1], [0, wide]),
        lambda: manager.append_ragged(["run"], [1], covered=[wide]),
        lambda: manager.append_ragged(["run"], [1], computed=[wide]),
        lambda: manager.extend("run", wide),
        lambda: manager.admit("new", [1], allocate_tokens=wide),
        lambda: manager.admit("new", [1], external_tokens=wide),
        lambda: manager.fit([1], allocate_tokens=wide),
        lambda: manager.external_done("run", wide),
        lambda: manager.external_done("run", failed=[(0, wide)]),
        lambda: manager.end_fence(wide),
        lambda: manager.release("run", until=wide),
        lambda: manager.truncate("run", wide),
        lambda: manager.truncate_batch(["run"], [wide]),
        lambda: manager.admit(wide, [1]),
        lambda: kvpool.traces.Trace.generate(wide),
        lambda: kvpool.traces.Trace.parse(b"", block_tokens=wide),
        lambda: trace.with_block_tokens(wide),
        lambda: kvpool.traces.Replay(trace, capacity_blocks=wide),
        lambda: kvpool.Retention(wide),
    ]
    for call in calls:
        error = refused(call, errors.InvalidArgumentError, ValueError)
        assert len(str(error)) < 400
        if abs(wide) < 10**60:
            assert "128 bits" in str(error) or str(wide) in str(error)
    pool.check_invariants()
    manager.check_invariants()


def test_ints_that_no_float_holds(pool: kvpool.BlockPool) -> None:
    wide, hits = 10**400, _core.sizing.References(kvpool.traces.Trace.generate(4)).lru()
    calls: list[Callable[[], object]] = [
        lambda: kvpool.CacheManager(8, watermark=wide),
        lambda: kvpool.traces.Trace.generate(4, rate_per_s=wide),
        lambda: kvpool.traces.Trace.parse(b"", event_gap_s=wide),
        lambda: kvpool.traces.Replay(kvpool.traces.Trace.generate(4), step_ms=wide),
        lambda: kvpool.Retention(ttl=wide),
        lambda: pool.advance_time(wide),
        lambda: pool.mark_accessed([1], wide),
        lambda: hits.worth(8, [wide]),
        lambda: hits.capacity_for(wide),
    ]
    for call in calls:
        error = refused(call, errors.InvalidArgumentError, ValueError, "0" * 60, "401 characters")
        assert len(str(error)) < 400
    pool.check_invariants()


def test_an_out_without_dimensions(pool: kvpool.BlockPool, manager: kvpool.CacheManager) -> None:
    for out in (np.array(5, dtype=np.int32), ctypes.c_int32(5)):
        calls: list[tuple[Callable[[Any], object], Subject]] = [
            (lambda out: pool.allocate(1, out=out), pool),
            (lambda out: pool.allocate(0, out=out), pool),
            (lambda out: manager.block_ids("run", out=out), manager),
            (lambda out: manager.admit("new", [1], out=out), manager),
        ]
        for call, on in calls:
            once = functools.partial(call, out)
            refused(once, errors.ArgumentTypeError, TypeError, "out is", "one-dimensional", on=on)


LONG_ID = "x" * 10_000_000


def test_errors_do_not_quote_a_long_id_whole(manager: kvpool.CacheManager) -> None:
    def check(call: Callable[[], object]) -> None:
        with pytest.raises(kvpool.KvpoolError) as raised:
            call()
        assert "x" * 60 in str(raised.value)
        assert "10000000 characters" in str(raised.value)
        assert len(str(raised.value)) < 400

    check(lambda: manager.release(LONG_ID))
    check(lambda: manager.append([LONG_ID], [1]))
    manager.admit(LONG_ID, [1])
    check(lambda: manager.admit(LONG_ID, [1]))
    check(lambda: manager.commit(LONG_ID, 5))
    check(lambda: manager.resume(LONG_ID))
    check(lambda: manager.append([LONG_ID, LONG_ID], [1, 2]))
    check(lambda: kvpool.BlockHasher(LONG_ID))  # type: ignore[arg-type]
    check(lambda: kvpool.BlockPool(8, eviction=LONG_ID))  # type: ignore[arg-type]
    check(lambda: kvpool.transfer.TransferEngine(LONG_ID))
    # Up to 64 characters an id is quoted as it is.
    with pytest.raises(errors.UnknownRequestError, match='"' + "y" * 64 + '"'):
        manager.release("y" * 64)
