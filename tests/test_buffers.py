"""Tests every kind of sequence and buffer as tokens and block ids, and the calls that write block ids
into a caller's buffer.
"""

from __future__ import annotations

import array
import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvpool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL = list(range(40))
LARGE = [0, 1, 2**15, 2**16, 2**31 - 1, 2**31 - 2, 7, 7]
#: Tokens that need 32 bits without a sign.
UNSIGNED = [2**31, 2**32 - 1, 0, 3]


class Tensor:
    """Has the methods of a CPU tensor of torch that kvpool uses, but no buffer of its own."""

    def __init__(self, values: Any) -> None:
        self.values = values
        self.lent = 0

    def data_ptr(self) -> int:
        return 0

    def numpy(self) -> Any:
        self.lent += 1
        return self.values

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("a tensor is not to be iterated over")


class Index:
    """A class of integers other than Python's int, which calls must accept as tokens and ids."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class Ints(list[int]):
    """A subclass of list, which calls must accept like a list."""


def strided(values: list[int]) -> Any:
    wide = np.full(2 * len(values), 99, dtype=np.int64)
    wide[::2] = values
    return wide[::2]


KINDS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "subclass": Ints,
    "index": lambda values: [Index(value) for value in values],
    "array i": lambda values: array.array("i", values),
    "array I": lambda values: array.array("I", values),
    "array l": lambda values: array.array("l", values),
    "array q": lambda values: array.array("q", values),
    "int32": lambda values: np.array(values, dtype=np.int32),
    "uint32": lambda values: np.array(values, dtype=np.uint32),
    "int64": lambda values: np.array(values, dtype=np.int64),
    "numpy scalars": lambda values: list(np.array(values, dtype=np.int64)),
    "strided": strided,
    "reversed": lambda values: np.array(values[::-1], dtype=np.int32)[::-1],
    "memoryview": lambda values: memoryview(array.array("i", values)),
    "memoryview, strided": lambda values: memoryview(strided(values)),
    "read-only": lambda values: memoryview(array.array("i", values)).toreadonly(),
    "ctypes": lambda values: (ctypes.c_int64 * len(values))(*values),
    "tensor int32": lambda values: Tensor(np.array(values, dtype=np.int32)),
    "tensor int64": lambda values: Tensor(np.array(values, dtype=np.int64)),
}
UNSIGNED_KINDS = [
    "list",
    "tuple",
    "index",
    "array I",
    "array l",
    "array q",
    "uint32",
    "int64",
    "tensor int64",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("values", [SMALL, LARGE, [], [5]], ids=["small", "large", "empty", "one"])
def test_tokens_of_every_kind_give_the_same_digests(kind: str, values: list[int]) -> None:
    hasher = kvpool.BlockHasher(block_size=4)
    assert hasher.hash_tokens(KINDS[kind](values)) == hasher.hash_tokens(list(values))
    cursor = hasher.cursor(KINDS[kind](values[:3]))
    cursor.append(KINDS[kind](values[3:]))
    assert (cursor.digests(), cursor.tail) == (hasher.hash_tokens(values), values[len(values) // 4 * 4 :])


@pytest.mark.parametrize("kind", UNSIGNED_KINDS)
def test_tokens_beyond_31_bits_keep_their_value(kind: str) -> None:
    cursor = kvpool.BlockHasher(block_size=8).cursor(KINDS[kind](UNSIGNED))
    assert cursor.tail == UNSIGNED


def test_a_range_is_a_sequence() -> None:
    hasher = kvpool.BlockHasher(block_size=4)
    assert hasher.hash_tokens(range(3, 90, 5)) == hasher.hash_tokens(list(range(3, 90, 5)))


@pytest.mark.parametrize("code", ["L", "Q"])
def test_unsigned_arrays_are_taken_if_they_have_32_bits(code: str) -> None:
    hasher, values = kvpool.BlockHasher(block_size=4), array.array(code, SMALL)
    if values.itemsize == 4:
        assert hasher.hash_tokens(values) == hasher.hash_tokens(SMALL)
    else:
        with pytest.raises(kvpool.errors.TokenTypeError, match=code if code == "L" else '"Q"'):
            hasher.hash_tokens(values)


def test_a_tensor_lends_its_memory_once() -> None:
    tensor = Tensor(np.arange(16, dtype=np.int64))
    assert kvpool.BlockHasher(block_size=4).hash_tokens(tensor) == kvpool.BlockHasher(
        block_size=4
    ).hash_tokens(range(16))
    assert tensor.lent == 1


@pytest.mark.parametrize(
    "values", [np.arange(4, dtype=np.float32), np.zeros((2, 2), dtype=np.int64)], ids=["float", "2-D"]
)
def test_a_tensor_of_a_wrong_type_is_refused(values: Any) -> None:
    with pytest.raises(kvpool.errors.TokenTypeError):
        kvpool.BlockHasher(block_size=4).hash_tokens(Tensor(values))


def test_an_error_of_the_tensor_is_passed_on() -> None:
    class OnDevice(Tensor):
        def numpy(self) -> Any:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

    with pytest.raises(TypeError, match="cuda:0"):
        kvpool.BlockHasher(block_size=4).hash_tokens(OnDevice(None))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_every_kind_reach_the_manager(kind: str) -> None:
    make = KINDS[kind]
    manager = kvpool.CacheManager(64, 4)
    manager.admit("list", SMALL)
    manager.commit("list", 40)
    assert manager.probe(make(SMALL)).cached_blocks == 9
    assert manager.admit("other", make(SMALL)).cached_tokens == 36
    assert manager.append("other", make([1, 2, 3, 4, 5])) == [(10, 12), (11, 13)]
    assert manager.append(["list", "other"], make([3, 4])) == [(0, 10, 14)]
    with manager.plan_step() as step:
        assert step.admit("third", make(SMALL)) == 36
        assert step.append("list", make([1, 2, 3, 4])) == 1
        step.commit()
    manager.diagnose.check_invariants()


@pytest.mark.parametrize("kind", KINDS)
def test_block_ids_and_counts_of_every_kind(kind: str) -> None:
    make = KINDS[kind]
    pool = kvpool.BlockPool(16, 4)
    pool.allocate(6)
    pool.acquire(make([1, 2, 2]))
    assert [pool.ref_count(block) for block in range(1, 7)] == [2, 3, 1, 1, 1, 1]
    chain = kvpool.BlockHasher(block_size=4).cursor(SMALL).chain()
    assert pool.register(make([3, 4]), chain) == 2
    pool.mark_computed(make([4, 3]))
    pool.release(make([1, 2, 1]))
    pool.release(make([3, 4]), tail_first=True)
    pool.release(make([2, 2]), after_step=1)
    assert pool.diagnose.eviction_order() == [4, 3]
    assert pool.drop_cached(make([4])) == 1
    manager = kvpool.CacheManager(16, 4)
    manager.admit(1, range(8))
    manager.admit(2, range(50, 58))
    assert manager.commit([1, 2], make([8, 4])) == 3


def test_request_ids_from_an_int64_buffer() -> None:
    manager = kvpool.CacheManager(64, 4)
    names = np.arange(10, 18, dtype=np.int64)
    for name in names.tolist():
        manager.admit(name, [name] * 3)
    assert manager.append(names, np.arange(8, dtype=np.int32)) == []
    assert manager.append(names[::2], np.arange(4), commit=True) == [(row, 1, 9 + row) for row in range(4)]
    assert manager.append(tuple(names.tolist()), range(8)) == [(1, 1, 13), (3, 1, 14), (5, 1, 15), (7, 1, 16)]
    assert manager.commit(names, np.full(8, 4)) == 4
    manager.diagnose.check_invariants()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_counts_of_every_kind(kind: str) -> None:
    """The arguments are the tokens, the offsets, and the computed and covered counts of a step, and the
    lengths of a truncation.
    """
    make = KINDS[kind]
    manager = kvpool.CacheManager(64, 4)
    for name in (1, 2, 3):
        manager.admit(name, range(4 * name, 4 * name + 5))
    names, tokens, offsets = [1, 2, 3], make([7, 8, 9, 7, 8, 9, 7]), make([0, 3, 3, 7])
    changes = manager.append_ragged(
        names, tokens, offsets, computed=make([7, 5, 0]), covered=make([8, 12, 13])
    )
    assert changes == ([1, 2, 2], [2, 2, 3], [7, 8, 9])
    assert [(manager.request(name).tokens, manager.request(name).computed_tokens) for name in names] == [
        (8, 7),
        (5, 5),
        (9, 0),
    ]
    manager.truncate(names, make([6, 4, 9]))
    assert [manager.request(name).tokens for name in names] == [6, 4, 9]
    with manager.plan_step() as step:
        assert step.append_ragged(names, tokens, offsets, covered=make([0, 4, 17])) == 2
        step.commit()
    assert [len(manager.block_ids(name)) for name in names] == [2, 1, 5]  # row 0 keeps its block
    manager.diagnose.check_invariants()


OUTS: dict[str, Callable[[int], Any]] = {
    "numpy": lambda n: np.full(n, -1, dtype=np.int32),
    "array": lambda n: array.array("i", [-1] * n),
    "memoryview": lambda n: memoryview(array.array("i", [-1] * n)),
    "row of a table": lambda n: np.full((3, n), -1, dtype=np.int32)[1],
    "ctypes": lambda n: (ctypes.c_int32 * n)(*[-1] * n),
}


@pytest.mark.parametrize("kind", OUTS)
def test_block_ids_go_to_the_front_of_the_buffer(kind: str) -> None:
    make = OUTS[kind]
    pool, out = kvpool.BlockPool(16, 4), make(5)
    assert pool.allocate(3, out=out) == 3
    assert list(out) == [1, 2, 3, -1, -1]
    assert pool.allocate(0, out=out) == 0
    assert pool.allocate(5, out=out) == 5
    assert list(out) == [4, 5, 6, 7, 8]

    manager, table = kvpool.CacheManager(16, 4), make(6)
    admission = manager.admit("a", range(10), out=table)
    assert (admission.num_blocks, admission.block_ids) == (3, [])
    assert list(table) == [1, 2, 3, -1, -1, -1]
    manager.append("a", range(7))
    table = make(6)
    assert manager.block_ids("a", out=table) == 5
    assert list(table) == [*manager.block_ids("a"), -1]
    exact = make(5)
    assert manager.block_ids("a", out=exact) == 5
    assert list(exact) == manager.block_ids("a")
    manager.preempt("a")
    assert manager.block_ids("a", out=make(1)) == 0


def test_rows_of_one_table_are_filled_in_place() -> None:
    manager = kvpool.CacheManager(64, 4)
    tables = np.zeros((4, 8), dtype=np.int32)
    for row in range(4):
        manager.admit(row, range(4 * row + 1), out=tables[row])
    assert tables.tolist() == [
        [*(table := manager.block_ids(row)), *[0] * (8 - len(table))] for row in range(4)
    ]


def test_the_buffer_is_free_after_the_call() -> None:
    out = array.array("i", [0] * 4)
    kvpool.BlockPool(16, 4).allocate(2, out=out)
    out.append(5)  # an exported array cannot grow
    tokens = array.array("i", SMALL)
    kvpool.BlockHasher(block_size=4).hash_tokens(tokens)
    tokens.append(5)
    assert (len(out), len(tokens)) == (5, 41)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_unaligned_buffers_are_refused_or_read_right(dtype: type) -> None:
    values: Any = np.arange(8, dtype=dtype)
    unaligned: Any = np.frombuffer(b"\xff" + values.tobytes(), dtype=dtype, offset=1)
    hasher = kvpool.BlockHasher(block_size=4)
    try:
        digests = hasher.hash_tokens(unaligned)
    except kvpool.errors.TokenTypeError:
        return
    assert digests == hasher.hash_tokens(range(8))


def test_an_unaligned_out_is_refused_or_written_right() -> None:
    pool = kvpool.BlockPool(16, 4)
    out = np.frombuffer(bytearray(b"\xff" * 17), dtype=np.int32, offset=1)
    try:
        pool.allocate(2, out=out)
    except kvpool.errors.ArgumentTypeError:
        assert pool.num_available == 15
    else:
        assert out.tolist() == [1, 2, -1, -1]


CHANGES: dict[str, Callable[[int], Any]] = {
    "numpy, rows": lambda n: np.full((3, n), -1, dtype=np.int32),
    "numpy, flat": lambda n: np.full(3 * n, -1, dtype=np.int32),
    "array": lambda n: array.array("i", [-1] * 3 * n),
    "memoryview": lambda n: memoryview(array.array("i", [-1] * 3 * n)),
    "memoryview, rows": lambda n: memoryview(array.array("i", [-1] * 3 * n)).cast("B").cast("i", (3, n)),
    "front of a longer one": lambda n: np.full((5, n), -1, dtype=np.int32)[:3],
    "ctypes": lambda n: (ctypes.c_int32 * (3 * n))(*[-1] * 3 * n),
    "ctypes, rows": lambda n: ((ctypes.c_int32 * n) * 3)(*[(ctypes.c_int32 * n)(*[-1] * n)] * 3),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_changes_go_to_the_front_of_each_row(kind: str) -> None:
    """Rows, positions and blocks are written to the beginnings of the three thirds of the buffer. The
    rest of each third is unchanged.
    """
    manager, out = kvpool.CacheManager(64, 4), CHANGES[kind](4)
    for name in (1, 2):
        manager.admit(name, range(4 * name, 4 * name + 4))
    assert manager.append_ragged([1, 2], [7, 8, 9], [0, 2, 3], lookahead=3, out=out) == 3
    changes = [0, 0, 1, -1], [1, 2, 1, -1], [3, 4, 5, -1]
    assert np.array(out).reshape(3, 4).tolist() == list(changes)
    assert manager.append_ragged([1, 2], [7, 8], out=out) == 0
    assert np.array(out).reshape(3, 4).tolist() == list(changes)
    # Copy-on-write changes the table of the first request that writes to a shared block. The call
    # reports that, too.
    manager.fork(1, 3)
    assert manager.append_ragged([1, 3], [7, 8], out=out) == 1
    assert np.array(out).reshape(3, 4)[:, 0].tolist() == [0, 1, 6]
    exact = CHANGES[kind](2)
    assert manager.append_ragged([2, 3], [5] * 5, [0, 3, 5], lookahead=2, out=exact) == 2
    assert np.array(exact).reshape(3, 2).tolist() == [[0, 1], [2, 2], [7, 8]]
    manager.diagnose.check_invariants()


@pytest.mark.parametrize("shape", [0, (3, 0)], ids=str)
def test_a_buffer_of_no_room_takes_no_changes(shape: Any) -> None:
    manager, out = kvpool.CacheManager(64, 4), np.zeros(shape, dtype=np.int32)
    manager.admit(1, range(3))
    assert manager.append_ragged([1], [7], out=out) == 0
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="room for 0"):
        manager.append_ragged([1], [7], out=out)
    assert manager.request(1).tokens == 4


def test_unaligned_changes_are_refused_or_written_right() -> None:
    manager = kvpool.CacheManager(64, 4)
    manager.admit(1, range(4))
    out = np.frombuffer(bytearray(b"\xff" * 25), dtype=np.int32, offset=1)
    try:
        manager.append_ragged([1], [7], out=out)
    except kvpool.errors.ArgumentTypeError:
        assert manager.request(1).tokens == 4
    else:
        assert out.tolist() == [0, -1, 1, -1, 2, -1]


@pytest.mark.parametrize("dtype", [">i4", "<i4"])
def test_changes_in_a_named_byte_order_are_refused_or_written_right(dtype: str) -> None:
    manager = kvpool.CacheManager(64, 4)
    manager.admit(1, range(4))
    out = np.full((3, 2), -1, dtype=dtype)
    try:
        manager.append_ragged([1], [7], out=out)
    except kvpool.errors.ArgumentTypeError:
        assert manager.request(1).tokens == 4
        assert (out == -1).all()
    else:
        assert out.tolist() == [[0, -1], [1, -1], [2, -1]]
