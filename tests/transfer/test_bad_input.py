"""Bad calls of stores, engines and transfers: a typed error that names the value, and not a byte is changed.

What Python's own parsing of arguments refuses is a plain ``TypeError``; everything else is a ``KvpoolError``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import kvpool
from kvpool import errors
from kvpool._core.transfer import copy_by_handle
from kvpool.transfer import BlockStore, PlanExecutor, Transfer, TransferEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: More bits than any number of kvpool has.
WIDE = 2**200
Refusal = tuple[type[kvpool.KvpoolError], type[Exception]]

ARGUMENT: Refusal = (errors.InvalidArgumentError, ValueError)
LAYOUT: Refusal = (errors.LayoutError, ValueError)
MISMATCH: Refusal = (errors.LayoutMismatchError, ValueError)
INDEX: Refusal = (errors.BlockIndexError, IndexError)
TWICE: Refusal = (errors.DuplicateDestinationError, ValueError)
OVERLAP: Refusal = (errors.OverlappingCopyError, ValueError)
SHAPE: Refusal = (errors.MappingError, ValueError)
TYPE: Refusal = (errors.MappingTypeError, TypeError)
CLOSED: Refusal = (errors.ClosedError, RuntimeError)
PINNING: Refusal = (errors.PinningError, MemoryError)
NO_CUDA: Refusal = (errors.CudaUnavailableError, RuntimeError)


@dataclasses.dataclass
class World:
    """Eight blocks of 32 bytes, twice, and an engine."""

    src: torch.Tensor
    dst: torch.Tensor
    source: BlockStore
    target: BlockStore
    engine: TransferEngine

    def content(self) -> tuple[bytes, bytes]:
        return self.src.numpy().tobytes(), self.dst.numpy().tobytes()

    def transfer(self) -> Transfer:
        """One that has ended, and was told."""
        transfer = self.engine.submit(self.source, self.target, [])
        transfer.wait()
        return transfer


@pytest.fixture
def world() -> Iterator[World]:
    src, dst = torch.arange(32).reshape(8, 4), torch.arange(32).reshape(8, 4) * -1
    stores = [BlockStore.from_tensors([tensor]) for tensor in (src, dst)]
    with TransferEngine() as engine:
        yield World(src, dst, stores[0], stores[1], engine)


def refused(call: Callable[[], object], refusal: Refusal, *words: object, on: World | None = None) -> None:
    """The call raises exactly this error, whose message has these words; nothing was copied or is under way."""
    before = on.content() if on else None
    error, builtin = refusal
    with pytest.raises(error) as raised:
        call()
    assert raised.type is error
    assert isinstance(raised.value, builtin)
    assert [str(word) for word in words if str(word) not in str(raised.value)] == [], str(raised.value)
    if on:
        assert on.engine.poll() == []
        assert on.engine.in_flight == 0
        assert on.content() == before


def mistyped(call: Callable[[], object], on: World | None = None) -> None:
    """Python's parsing of arguments refuses."""
    before = on.content() if on else None
    with pytest.raises(TypeError):
        call()
    if on:
        assert on.content() == before


def f(*shape: int, **kwargs: Any) -> torch.Tensor:
    return torch.zeros(shape, **kwargs)


# --- Stores of tensors --------------------------------------------------------------------------------

TENSORS: list[tuple[str, Callable[[], Any], Any, Refusal, list[object]]] = [
    ("none", list, 0, LAYOUT, ["at least one"]),
    ("none, by dimension", tuple, [], LAYOUT, ["at least one"]),
    ("numbers", lambda: [1, 2], 0, TYPE, ["int"]),
    ("nothing", lambda: [f(2, 2), None], 0, TYPE, ["NoneType"]),
    ("text", lambda: "tensors", 0, TYPE, ["str"]),
    ("arrays", lambda: [np.zeros((2, 2))], 0, TYPE, ["ndarray"]),
    ("stores", lambda: [BlockStore.from_tensors([f(2, 2)])], 0, TYPE, ["BlockStore"]),
    ("lists", lambda: [[f(2, 2)]], 0, TYPE, ["list"]),
    ("sparse", lambda: [f(2, 2).to_sparse()], 0, TYPE, ["Tensor"]),
    ("0-d", lambda: [f()], 0, LAYOUT, ["tensor 0", "shape []", "no dimension 0"]),
    ("empty", lambda: [f(0, 4)], 0, LAYOUT, ["shape [0, 4]", "empty"]),
    ("empty blocks", lambda: [f(4, 4), f(4, 0)], 0, LAYOUT, ["tensor 1", "shape [4, 0]", "empty"]),
    ("expanded", lambda: [f(1, 4).expand(4, 4)], 0, LAYOUT, ["strides [0, 1]", "share memory"]),
    ("expanded blocks", lambda: [f(4, 1).expand(4, 4)], 0, LAYOUT, ["strides [1, 0]", "share memory"]),
    ("windows", lambda: [f(16).as_strided((4, 4), (2, 1))], 0, LAYOUT, ["blocks overlap", "8 bytes", "16 bytes"]),
    ("scattered", lambda: [f(8, 8)[:, ::2]], 0, LAYOUT, ["strides [8, 2]", "contiguous()"]),
    ("every second", lambda: [f(4, 4, 2)[:, :, 1]], 0, LAYOUT, ["strides [8, 2]", "contiguous()"]),
    ("too many pieces", lambda: [f(2, 2**17, 3)[:, :, :2]], 0, LAYOUT, [2**16, "pieces"]),
    ("on meta", lambda: [f(4, 4, device="meta")], 0, LAYOUT, ["meta", "cpu or cuda"]),
    ("on cpu and meta", lambda: [f(4, 4), f(4, 4, device="meta")], 0, LAYOUT, ["meta"]),
    ("numbers of blocks", lambda: [f(8, 4), f(8, 4), f(7, 4)], 0, LAYOUT, ["0 has 8 blocks", "2 has 7"]),
    ("numbers of blocks by dimension", lambda: [f(8, 4), f(8, 4)], [0, 1], LAYOUT, ["0 has 8", "1 has 4"]),
    ("twice", lambda: [f(8, 4)] * 2, 0, LAYOUT, ["regions 0 and 1"]),
    ("overlapping", lambda: [one := f(8, 4), one[:, 2:]], 0, LAYOUT, ["regions 0 and 1"]),
    ("no such dimension", lambda: [f(8, 4)], 2, LAYOUT, ["no dimension 2"]),
    ("no such dimension by far", lambda: [f(8, 4)], 2**62, LAYOUT, [2**62]),
    ("no such negative dimension", lambda: [f(8, 4)], -3, LAYOUT, ["tensor 0", "numbered -3"]),
    ("no such negative dimension of one", lambda: [f(8, 4), f(8, 4)], [0, -9], LAYOUT, ["tensor 1", "numbered -9"]),
    ("dimension beyond 128 bits", lambda: [f(8, 4)], WIDE, ARGUMENT, [WIDE]),
    ("dimension of one beyond 128 bits", lambda: [f(8, 4)], [-WIDE], ARGUMENT, [-WIDE]),
    ("too few dimensions", lambda: [f(8, 4)] * 2, [0], ARGUMENT, ["1 block dimensions for 2 tensors"]),
    ("too many dimensions", lambda: [f(8, 4)], [0, 0], ARGUMENT, ["2 block dimensions for 1 tensors"]),
    ("no dimensions", lambda: [f(8, 4)], [], ARGUMENT, ["0 block dimensions for 1 tensors"]),
]


@pytest.mark.parametrize(("make", "dim", "refusal", "words"), [one[1:] for one in TENSORS], ids=[t[0] for t in TENSORS])
def test_tensors(make: Callable[[], Any], dim: Any, refusal: Refusal, words: list[object]) -> None:
    refused(lambda: BlockStore.from_tensors(make(), block_dim=dim), refusal, *words)


@pytest.mark.parametrize("tensors", [None, 5, 1.5, Ellipsis], ids=repr)
def test_tensors_that_are_no_iterable(tensors: Any) -> None:
    mistyped(lambda: BlockStore.from_tensors(tensors))


@pytest.mark.parametrize("dim", ["0", 1.0, ["a"], [0.5], [None], {}, Ellipsis, [[0]]], ids=repr)
def test_block_dimensions_of_other_types(dim: Any) -> None:
    mistyped(lambda: BlockStore.from_tensors([f(8, 4)], block_dim=dim))


# --- Stores of regions --------------------------------------------------------------------------------

REGIONS: list[tuple[list[Any], Any, Refusal, list[object]]] = [
    ([], 1, LAYOUT, ["at least one region"]),
    ([(4096, 8, 0)], 1, LAYOUT, ["region 0", "no bytes"]),
    ([(4096, 8, 8), (8192, 0, 0)], 1, LAYOUT, ["region 1", "no bytes"]),
    ([(4096, 8, 16)], 2, LAYOUT, ["region 0", "8 bytes", "16 bytes"]),
    ([(4096, 0, 16)], 2, LAYOUT, ["region 0", "0 bytes", "16 bytes"]),
    ([(4096, 16, 16)], 0, LAYOUT, ["0 blocks", 2**31 - 1]),
    ([(4096, 16, 16)], 2**31, LAYOUT, [2**31]),
    ([(4096, 16, 16)], 2**64 - 1, LAYOUT, [2**64 - 1]),
    ([(4096, 16, 16)], 2**64, ARGUMENT, ["num_blocks", 2**64]),
    ([(4096, 16, 16)], WIDE, ARGUMENT, [WIDE]),
    ([(4096, 16, 16)], -1, ARGUMENT, ["num_blocks is -1"]),
    ([(4096, 16, 16)], -WIDE, ARGUMENT, [-WIDE]),
    ([(-1, 16, 16)], 1, ARGUMENT, ["base is -1"]),
    ([(4096, -16, 16)], 1, ARGUMENT, ["stride is -16"]),
    ([(4096, 16, -16)], 1, ARGUMENT, ["nbytes is -16"]),
    ([(WIDE, 16, 16)], 1, ARGUMENT, [WIDE]),
    ([(4096, WIDE, 16)], 1, ARGUMENT, [WIDE]),
    ([(4096, 16, -WIDE)], 1, ARGUMENT, [-WIDE]),
    ([(2**64 - 8, 16, 16)], 1, LAYOUT, ["region 0", "0xfffffffffffffff8", "address space"]),
    ([(2**63, 2**62, 16)], 3, LAYOUT, ["address space"]),
    ([(0, 2**64 - 1, 16)], 2**31 - 1, LAYOUT, ["address space"]),
    ([(4096, 64, 32), (4112, 64, 32)], 4, LAYOUT, ["regions 0 and 1 overlap"]),
    ([(4096, 64, 32), (4096, 64, 32)], 1, LAYOUT, ["regions 0 and 1 overlap"]),
    ([(4096, 64, 32), (4128, 96, 32)], 4, LAYOUT, ["regions 0 and 1 overlap, or interleave"]),
]


@pytest.mark.parametrize(("regions", "num_blocks", "refusal", "words"), REGIONS, ids=range(len(REGIONS)))
def test_regions(regions: list[Any], num_blocks: Any, refusal: Refusal, words: list[object]) -> None:
    refused(lambda: BlockStore.from_regions(regions, num_blocks), refusal, *words)


@pytest.mark.parametrize("regions", [None, 5, "abc", {}], ids=repr)
def test_regions_of_other_types(regions: Any) -> None:
    mistyped(lambda: BlockStore.from_regions(regions, 1))


@pytest.mark.parametrize(
    "row", [None, 5, "abc", (1, 2), (1, 2, 3, 4), (), ("a", 1, 1), (1.5, 1, 1), (1, None, 1)], ids=repr
)
def test_regions_that_are_not_three_numbers(row: Any) -> None:
    refused(lambda: BlockStore.from_regions([(4096, 8, 8), row], 1), ARGUMENT, "regions", row)


@pytest.mark.parametrize("num_blocks", [None, "1", 1.0, [1]], ids=repr)
def test_numbers_of_blocks_of_other_types(num_blocks: Any, world: World) -> None:
    mistyped(lambda: BlockStore.from_regions([(4096, 16, 16)], num_blocks))
    mistyped(lambda: BlockStore.host(num_blocks, world.source))


DEVICES = ["", "meta", "CPU", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:4294967296", "cuda0", " cpu", "xpu", "cüda"]


@pytest.mark.parametrize("device", DEVICES)
def test_devices(device: str) -> None:
    refused(lambda: BlockStore.from_regions([(4096, 16, 16)], 1, device=device), ARGUMENT, f'device is "{device}"')
    refused(lambda: TransferEngine(device), ARGUMENT, f'device is "{device}"', "cpu, cuda or cuda:N")


@pytest.mark.parametrize("device", [None, 0, b"cpu", torch.device("cpu")], ids=repr)
def test_devices_of_other_types(device: Any) -> None:
    mistyped(lambda: BlockStore.from_regions([(4096, 16, 16)], 1, device=device))
    mistyped(lambda: TransferEngine(device))


def test_devices_that_are_not_there() -> None:
    refused(lambda: TransferEngine("cuda:4294967295"), NO_CUDA, "4294967295")
    refused(lambda: BlockStore.from_regions([(4096, 16, 16)], 1, device="cuda:1000"), NO_CUDA, "1000")


# --- Pools of the host --------------------------------------------------------------------------------

HOSTS: list[tuple[Any, dict[str, Any], Refusal, list[object]]] = [
    (0, {}, LAYOUT, ["0 blocks", 2**31 - 1]),
    (2**31, {}, LAYOUT, [2**31]),
    (2**63, {}, LAYOUT, [2**63]),
    (2**64, {}, ARGUMENT, ["num_blocks", 2**64]),
    (-1, {}, ARGUMENT, ["num_blocks is -1"]),
    (WIDE, {}, ARGUMENT, [WIDE]),
    (-WIDE, {}, ARGUMENT, [-WIDE]),
    (4, {"pinned": True}, PINNING, ["2048 bytes", "cpu"]),
    (4, {"pinned": "yes"}, ARGUMENT, ["pinned is 'yes'", '"auto"']),
    (4, {"pinned": 1}, ARGUMENT, ["pinned is 1"]),
    (4, {"pinned": math.nan}, ARGUMENT, ["pinned is nan"]),
    (4, {"numa_node": -1}, ARGUMENT, ["numa_node is -1"]),
    (4, {"numa_node": WIDE}, ARGUMENT, ["numa_node", WIDE]),
    (4, {"numa_node": "far"}, ARGUMENT, ["numa_node is 'far'"]),
    (4, {"numa_node": 0.5}, ARGUMENT, ["numa_node is 0.5"]),
    (4, {"numa_node": 1024}, PINNING, ["node 1024", 1023]),
    (4, {"numa_node": 1000}, PINNING, ["node 1000"]),
    (4, {"registration_limit": -1}, ARGUMENT, ["registration_limit is -1"]),
    (4, {"registration_limit": WIDE}, ARGUMENT, [WIDE]),
]


@pytest.mark.parametrize(("num_blocks", "settings", "refusal", "words"), HOSTS, ids=range(len(HOSTS)))
def test_host_pools(
    num_blocks: Any, settings: dict[str, Any], refusal: Refusal, words: list[object], world: World
) -> None:
    refused(lambda: BlockStore.host(num_blocks, world.source, **settings), refusal, *words)


def test_host_pools_of_other_types(world: World) -> None:
    wrong: Any
    for wrong in (None, [], f(8, 4), 5):
        mistyped(partial(BlockStore.host, 4, wrong))
    for settings in ({"hugepages": 1}, {"hugepages": None}, {"registration_limit": None}, {"registration_limit": 1.5}):
        mistyped(partial(BlockStore.host, 4, world.source, **settings))


def test_a_host_pool_beyond_all_memory() -> None:
    """Pieces at some address: nobody reads them, and a pool for them cannot be had."""
    large = BlockStore.from_regions([(0, 2**40, 2**40)], 1)
    refused(lambda: BlockStore.host(2**12, large), PINNING, f"{2**52} bytes")
    refused(lambda: BlockStore.host(2**30, large), PINNING, 2**30)
    # All addresses there are: rounded up, its size would be nothing.
    whole = BlockStore.from_regions([(0, 2**63, 2**63), (2**63, 2**63, 2**63 - 1)], 1)
    refused(lambda: BlockStore.host(1, whole), PINNING)


# --- Bytes of a block ---------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [8, -1, 2**31, 2**32, 2**63 - 1, -(2**63), 2**64, WIDE, -WIDE])
def test_blocks_that_a_store_does_not_have(block: int, world: World) -> None:
    refused(lambda: world.source.read_block(block), INDEX, f"block {block}", "range", on=world)
    refused(lambda: world.target.write_block(block, bytes(32)), INDEX, f"block {block}", "range", on=world)


@pytest.mark.parametrize("size", [0, 1, 31, 33, 64])
def test_bytes_of_another_size(size: int, world: World) -> None:
    refused(lambda: world.target.write_block(0, b"x" * size), MISMATCH, f"{size} bytes", "block of 32", on=world)


@pytest.mark.parametrize("block", [None, "1", 1.0, [1], True], ids=repr)
def test_blocks_of_other_types(block: Any, world: World) -> None:
    refused(lambda: world.source.read_block(block), TYPE, type(block).__name__, on=world)
    refused(lambda: world.target.write_block(block, bytes(32)), TYPE, type(block).__name__, on=world)


@pytest.mark.parametrize("content", [None, "x" * 32, 32, [0] * 32], ids=lambda content: type(content).__name__)
def test_bytes_of_other_types(content: Any, world: World) -> None:
    mistyped(lambda: world.target.write_block(0, content), on=world)


# --- Engines ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threads": 0}, ["threads is 0", "1 to 1024"]),
        ({"threads": -1}, ["threads is -1"]),
        ({"threads": 1025}, ["threads is 1025"]),
        ({"threads": 2**64}, ["threads", 2**64]),
        ({"threads": WIDE}, [WIDE]),
        ({"staging_bytes": 0}, ["staging_bytes is 0", "4 KiB to 1 TiB"]),
        ({"staging_bytes": 4095}, ["staging_bytes is 4095"]),
        ({"staging_bytes": 2**40 + 1}, ["staging_bytes", 2**40 + 1]),
        ({"staging_bytes": 2**64}, ["staging_bytes", 2**64]),
        ({"staging_bytes": -1}, ["staging_bytes is -1"]),
        ({"staging_bytes": WIDE}, [WIDE]),
    ],
    ids=str,
)
def test_settings_of_an_engine(settings: dict[str, Any], words: list[object]) -> None:
    refused(lambda: TransferEngine(**settings), ARGUMENT, *words)


@pytest.mark.parametrize(
    "settings",
    [
        {"threads": "2"},
        {"threads": 1.0},
        {"staging_bytes": None},
        {"staging_bytes": "1"},
        {"calibration": 5},
        {"gpu": 1},
    ],
    ids=str,
)
def test_settings_of_an_engine_of_other_types(settings: dict[str, Any]) -> None:
    mistyped(lambda: TransferEngine(**settings))


def test_what_only_a_device_can_do(world: World) -> None:
    refused(world.engine.calibrate, ARGUMENT, "cpu", on=world)
    for method in ("kernel", "batch", "staged", "memcpy"):
        for call in (world.engine.submit, world.engine.copy):
            refused(
                partial(call, world.source, world.target, [(0, 1)], method=method),
                ARGUMENT,
                f"method {method}",
                "both stores are on the cpu",
                on=world,
            )


# --- Mappings -----------------------------------------------------------------------------------------

I64 = np.int64
MAPPINGS: list[tuple[str, Callable[[], Any], Refusal, list[object]]] = [
    ("source", lambda: [(0, 1), (8, 2)], INDEX, ["pair 1", "source block 8", "8 blocks, 0 to 7"]),
    ("destination", lambda: [(0, 8)], INDEX, ["pair 0", "destination block 8", "0 to 7"]),
    ("negative source", lambda: [(-1, 0)], INDEX, ["source block -1"]),
    ("negative destination", lambda: [(0, -1)], INDEX, ["destination block -1"]),
    ("32 bits", lambda: [(2**32, 1)], INDEX, ["source block", 2**32]),
    ("64 bits", lambda: [(2**63 - 1, 1)], INDEX, ["source block", 2**63 - 1]),
    ("64 bits and a sign", lambda: [(0, -(2**63))], INDEX, ["destination block", -(2**63)]),
    ("beyond 64 bits", lambda: [(0, 2**64)], INDEX, [f"block {2**64}"]),
    ("beyond 128 bits", lambda: [(0, 1), (WIDE, 2)], INDEX, [f"block {WIDE}"]),
    ("beyond 128 bits and a sign", lambda: [(0, -WIDE)], INDEX, [f"block {-WIDE}"]),
    ("array, source", lambda: np.array([[0, 1], [1, 2], [-5, 3]]), INDEX, ["pair 2", "source block -5"]),
    ("tensor, destination", lambda: torch.tensor([[0, 1], [1, 99]]), INDEX, ["pair 1", "destination block 99"]),
    ("again", lambda: [(0, 1), (2, 3), (4, 1)], TWICE, ["pair 2", "block 1"]),
    ("the same pair", lambda: [(0, 1), (0, 1)], TWICE, ["pair 1", "block 1"]),
    ("array, again", lambda: np.array([[0, 7], [1, 7]]), TWICE, ["pair 1", "block 7"]),
    ("None", lambda: None, TYPE, ["NoneType"]),
    ("number", lambda: 5, TYPE, ["int"]),
    ("object", object, TYPE, ["object"]),
    ("text", lambda: "01", TYPE, ["str"]),
    ("no text", lambda: "", TYPE, ["str"]),
    ("floats", lambda: [(0.0, 1)], TYPE, ["float"]),
    ("text within", lambda: [("0", "1")], TYPE, ["str"]),
    ("bools", lambda: [(False, True)], TYPE, ["bool"]),
    ("None within", lambda: [(0, None)], TYPE, ["NoneType"]),
    ("numbers", lambda: [0, 1], SHAPE, ["[n, 2]", "no pairs"]),
    ("None for a pair", lambda: [(0, 1), None], SHAPE, ["no pairs"]),
    ("one of three", lambda: [(0, 1, 2)], SHAPE, ["no pairs"]),
    ("one of one", lambda: [(0,)], SHAPE, ["no pairs"]),
    ("one of none", lambda: [()], SHAPE, ["no pairs"]),
    ("bytes", lambda: bytes(16), SHAPE, ["[16]"]),
    ("flat array", lambda: np.zeros(2, I64), SHAPE, ["[2]"]),
    ("wide array", lambda: np.zeros((2, 3), I64), SHAPE, ["[2, 3]"]),
    ("deep array", lambda: np.zeros((1, 2, 2), I64), SHAPE, ["[1, 2, 2]"]),
    ("0-d array", lambda: np.zeros((), I64), TYPE, ["ndarray"]),
    ("int32 array", lambda: np.zeros((1, 2), np.int32), TYPE, ['"i"']),
    ("uint64 array", lambda: np.zeros((1, 2), np.uint64), TYPE, ['"L"']),
    ("float64 array", lambda: np.zeros((1, 2)), TYPE, ['"d"']),
    ("bool array", lambda: np.zeros((1, 2), np.bool_), TYPE, ['"?"']),
    ("array of objects", lambda: np.zeros((1, 2), np.object_), TYPE, ['"O"']),
    ("foreign byte order", lambda: np.zeros((1, 2), ">i8"), TYPE, ['">q"']),
    ("flat tensor", lambda: f(2, dtype=torch.int64), SHAPE, ["[2]"]),
    ("wide tensor", lambda: f(1, 3, dtype=torch.int64), SHAPE, ["[1, 3]"]),
    ("deep tensor", lambda: f(1, 1, 2, dtype=torch.int64), SHAPE, ["[1, 1, 2]"]),
    ("0-d tensor", lambda: torch.tensor(1), SHAPE, ["[]"]),
    ("int32 tensor", lambda: f(1, 2, dtype=torch.int32), TYPE, ["torch.int32"]),
    ("uint64 tensor", lambda: f(1, 2, dtype=torch.uint64), TYPE, ["torch.uint64"]),
    ("float tensor", lambda: f(1, 2), TYPE, ["torch.float32"]),
    ("bool tensor", lambda: f(1, 2, dtype=torch.bool), TYPE, ["torch.bool"]),
    ("sparse tensor", lambda: f(1, 2, dtype=torch.int64).to_sparse(), TYPE, ["tensor"]),
    ("meta tensor", lambda: f(1, 2, dtype=torch.int64, device="meta"), TYPE, ["meta"]),
]


@pytest.mark.parametrize(("make", "refusal", "words"), [one[1:] for one in MAPPINGS], ids=[m[0] for m in MAPPINGS])
def test_mappings(make: Callable[[], Any], refusal: Refusal, words: list[object], world: World) -> None:
    source, target, engine = world.source, world.target, world.engine
    refused(lambda: engine.submit(source, target, make()), refusal, *words, on=world)
    refused(lambda: engine.copy(source, target, make()), refusal, *words, on=world)
    refused(lambda: copy_by_handle(source.handle, target.handle, make()), refusal, *words, on=world)


def test_a_long_mapping_with_one_bad_pair(world: World) -> None:
    """Nothing of it is copied, wherever the bad pair is."""
    for at in (0, 3, 7):
        pairs = [(block, block) for block in range(8)]
        pairs[at] = (8, at)
        for mapping in (pairs, np.array(pairs), torch.tensor(pairs)):
            wrong: Any = mapping
            refused(
                partial(world.engine.submit, world.source, world.target, wrong),
                INDEX,
                f"pair {at} ",
                "block 8",
                on=world,
            )


def test_overlaps(world: World) -> None:
    for pairs in ([(0, 1), (1, 2)], [(0, 1), (1, 0)], [(3, 2), (4, 3), (2, 7)]):
        refused(partial(world.engine.copy, world.target, world.target, pairs), OVERLAP, "reads", on=world)
    refused(
        lambda: world.engine.submit(world.target, world.target, [(0, 1), (5, 6), (1, 2)]), OVERLAP, "pair 2", on=world
    )


def test_errors_of_the_caller_come_through(world: World) -> None:
    def broken() -> Iterator[tuple[int, int]]:
        yield 0, 1
        raise LookupError("mine")

    for call in (world.engine.submit, world.engine.copy):
        before = world.content()
        with pytest.raises(LookupError, match="mine"):
            call(world.source, world.target, broken())  # type: ignore[arg-type]
        assert world.content() == before
    with pytest.raises(LookupError, match="mine"):
        BlockStore.from_tensors(broken())  # type: ignore[arg-type]


# --- Other arguments of submit, copy and wait ---------------------------------------------------------


def test_regions_of_a_copy(world: World) -> None:
    pair = [BlockStore.from_tensors([tensor[:, :2], tensor[:, 2:]]) for tensor in (world.src, world.dst)]

    def submit(regions: Any) -> Callable[[], object]:
        return lambda: world.engine.submit(pair[0], pair[1], [(0, 1)], regions=regions)

    for regions in ((0, 0), (2, 2), (1, 0), (0, 3), (2, 3), (0, 2**63), (2**64 - 1, 2**64 - 1)):
        refused(submit(regions), ARGUMENT, f"regions is {regions}", "2 regions", on=world)
    for regions in ((-1, 1), (0, -1), (0, 2**64), (-(2**127), 1)):
        refused(submit(regions), ARGUMENT, "regions is", next(one for one in regions if one not in (0, 1)), on=world)
    for regions in ((WIDE, 1), (0, WIDE), (0, -WIDE)):
        refused(submit(regions), ARGUMENT, WIDE, on=world)
    for wrong in (1, "01", ("0", "1"), (0.0, 1.0), (0, None), (0,), (0, 1, 2), ()):
        refused(submit(wrong), ARGUMENT, f"regions is {wrong}", on=world)


@pytest.mark.parametrize("method", ["", "x", "CPU", "Auto", "cpu ", "nul\0"])
def test_methods(method: Any, world: World) -> None:
    for call in (world.engine.submit, world.engine.copy):
        refused(
            partial(call, world.source, world.target, [(0, 1)], method=method),
            ARGUMENT,
            "method is",
            "auto, kernel, batch, staged, memcpy, cpu",
            on=world,
        )


@pytest.mark.parametrize("stream", ["x", "", -1, 2**64, WIDE, -WIDE, 1.5, math.nan, [], {}, b"current", f(1)], ids=repr)
def test_streams(stream: Any, world: World) -> None:
    transfer = world.transfer()
    plan = kvpool.CacheManager(8, 4).take_plan()
    words = ["a stream is", type(stream).__name__]
    refused(lambda: world.engine.submit(world.source, world.target, [(0, 1)], after=stream), TYPE, *words, on=world)
    refused(lambda: world.engine.copy(world.source, world.target, [(0, 1)], stream=stream), TYPE, *words, on=world)
    refused(lambda: world.engine.execute(plan, [world.source], stream=stream), TYPE, *words, on=world)
    refused(lambda: transfer.wait_on(stream), TYPE, *words, on=world)


@pytest.mark.parametrize("wrong", [None, 1, "store", f(8, 4), []], ids=lambda wrong: type(wrong).__name__)
def test_stores_of_other_types(wrong: Any, world: World) -> None:
    for call in (world.engine.submit, world.engine.copy):
        mistyped(partial(call, wrong, world.target, [(0, 1)]), on=world)
        mistyped(partial(call, world.source, wrong, [(0, 1)]), on=world)
    mistyped(lambda: world.engine.submit(world.source, world.target), on=world)  # type: ignore[call-arg]
    if not isinstance(wrong, str):
        mistyped(lambda: world.engine.submit(world.source, world.target, [(0, 1)], method=wrong), on=world)


@pytest.mark.parametrize("timeout", [-1, -1e-9, -math.inf, math.nan, math.inf, 1e300, WIDE, -WIDE, 2**64, 2**2000])
def test_timeouts(timeout: float, world: World) -> None:
    transfer = world.transfer()
    refused(lambda: transfer.wait(timeout), ARGUMENT, "timeout is", "seconds, 0 or more, or None", on=world)


@pytest.mark.parametrize("timeout", ["1", [], {}, Ellipsis, 1j], ids=repr)
def test_timeouts_of_other_types(timeout: Any, world: World) -> None:
    transfer = world.transfer()
    mistyped(lambda: transfer.wait(timeout), on=world)


# --- Stores that differ, stores and engines that are closed -------------------------------------------

DIFFERENT: list[tuple[str, Callable[[], BlockStore], list[object]]] = [
    (
        "regions",
        lambda: BlockStore.from_tensors([f(8, 8), f(8, 8)]),
        ["regions", 1, 2],
    ),
    ("size", lambda: BlockStore.from_tensors([f(8, 3, dtype=torch.int64)]), ["region 0", "32", "24"]),
    ("dtype", lambda: BlockStore.from_tensors([f(8, 8)]), ["torch.int64", "torch.float32"]),
    ("size, unknown dtype", lambda: BlockStore.from_regions([(4096, 40, 40)], 8), ["region 0", "32", "40"]),
    ("pool", lambda: BlockStore.host(8, BlockStore.from_tensors([f(8, 8)])), ["torch.int64", "torch.float32"]),
]


@pytest.mark.parametrize(("make", "words"), [one[1:] for one in DIFFERENT], ids=[one[0] for one in DIFFERENT])
def test_stores_that_differ(make: Callable[[], BlockStore], words: list[object], world: World) -> None:
    """The message names both sides, each by its side; so does that of a copy of nothing."""
    other = make()
    for pair in ((world.source, other), (other, world.source)):
        for mapping in ([(0, 1)], []):
            for call in (world.engine.submit, world.engine.copy):
                refused(
                    partial(call, *pair, mapping),
                    MISMATCH,
                    "source",
                    "destination",
                    *words,
                    on=world,
                )


def test_regions_of_other_orders_differ(world: World) -> None:
    """Pieces of 8 and of 16 bytes, and the other way round."""
    one = BlockStore.from_tensors([f(4, 8, dtype=torch.uint8), f(4, 16, dtype=torch.uint8)])
    other = BlockStore.from_tensors([f(4, 16, dtype=torch.uint8), f(4, 8, dtype=torch.uint8)])
    words = ["region 0", "8 bytes in the source", "16 in the destination"]
    refused(lambda: world.engine.copy(one, other, [(0, 1)]), MISMATCH, *words)


@pytest.mark.parametrize("which", ["source", "target"])
def test_closed_stores(which: str, world: World) -> None:
    store = world.source if which == "source" else world.target
    store.close()
    words = [f"store {store.handle} is closed"]
    for mapping in ([(0, 1)], [], [(99, 99)]):
        for call in (world.engine.submit, world.engine.copy):
            refused(partial(call, world.source, world.target, mapping), CLOSED, *words, on=world)
        handles = (world.source.handle, world.target.handle)
        refused(partial(copy_by_handle, *handles, mapping), CLOSED, *words, on=world)
    refused(lambda: store.read_block(0), CLOSED, *words, on=world)
    refused(lambda: store.write_block(0, bytes(32)), CLOSED, *words, on=world)


def test_a_closed_engine(world: World) -> None:
    world.engine.close()
    for mapping in ([(0, 1)], [], [(99, 99)]):
        for call in (world.engine.submit, world.engine.copy):
            refused(partial(call, world.source, world.target, mapping), CLOSED, "engine", on=world)


@pytest.mark.parametrize("handle", [0, -1, 2**62, -(2**63), 2**63 - 1, 2**63, WIDE, -WIDE])
def test_handles_of_no_store(handle: int, world: World) -> None:
    refused(lambda: copy_by_handle(handle, world.target.handle, [(0, 1)]), CLOSED, f"handle {handle}", on=world)
    refused(lambda: copy_by_handle(world.source.handle, handle, [(0, 1)]), CLOSED, f"handle {handle}", on=world)


@pytest.mark.parametrize("handle", [None, "1", 1.0, [1]], ids=repr)
def test_handles_of_other_types(handle: Any, world: World) -> None:
    mistyped(lambda: copy_by_handle(handle, world.target.handle, [(0, 1)]), on=world)
    mistyped(lambda: copy_by_handle(world.source, world.target, [(0, 1)]), on=world)  # type: ignore[arg-type]


# --- Plans --------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Planned:
    """Request "a" and its fork "b" hold blocks; a swap and a copy-on-write can be planned."""

    manager: kvpool.CacheManager
    world: World
    host: BlockStore

    def begin_swap(self) -> int:
        return self.manager.begin_swap_out(["a"])

    def copy_on_write(self) -> None:
        self.manager.append(["a", "b"], [1, 2])

    def executor(self, *stores: BlockStore) -> PlanExecutor:
        return PlanExecutor(self.manager, self.world.engine, stores)

    def aborted(self, executor: PlanExecutor, swap: int, refusal: Refusal, *words: object) -> None:
        """The swap is told once, with its error; the request is where it was, and no byte has moved."""
        assert executor.in_flight == 1
        (over,) = executor.poll()
        assert (over.swap, over.blocks) == (swap, {})
        assert type(over.error) is refusal[0]
        assert isinstance(over.error, refusal[1])
        assert [str(word) for word in words if str(word) not in str(over.error)] == []
        assert (executor.poll(), executor.in_flight) == ([], 0)
        with pytest.raises(errors.SwapError):
            self.manager.complete_swap(swap)
        self.manager.check_invariants()
        assert self.manager.begin_swap_out(["a"]) > swap


@pytest.fixture
def planned(world: World) -> Planned:
    manager = kvpool.CacheManager(8, 4, host_blocks=8)
    manager.admit("a", range(10))
    manager.commit("a", 8)
    manager.fork("a", "b")
    return Planned(manager, world, BlockStore.host(8, world.source))


def test_arguments_of_execute(planned: Planned) -> None:
    world, plan = planned.world, planned.manager.take_plan()
    wrong: Any
    for wrong in (None, [], 5, "plan", planned.manager):
        mistyped(partial(world.engine.execute, wrong, [world.source, planned.host]), on=world)
    for wrong in (None, 5, world.source, "ab", [None], [world.source, 5]):
        mistyped(partial(world.engine.execute, plan, wrong), on=world)
    for wrong in (5, "a", [(None, 1)]):
        mistyped(partial(world.engine.execute, plan, [world.source], scratch=wrong), on=world)
    for wrong in ([(WIDE, 1)], [(0, -1)]):
        with pytest.raises(kvpool.KvpoolError):
            world.engine.execute(plan, [world.source], scratch=wrong)


def test_scratch_blocks_that_are_no_pairs(planned: Planned) -> None:
    wrong: Any = [(1, 1, 1)]
    plan = planned.manager.take_plan()
    refused(lambda: planned.world.engine.execute(plan, [planned.world.source], scratch=wrong), ARGUMENT, "no block of")


def test_plans_that_cannot_be_executed(planned: Planned) -> None:
    world = planned.world
    planned.copy_on_write()
    planned.begin_swap()
    plan = planned.manager.take_plan()
    other = BlockStore.from_tensors([f(8, 8)])
    few = BlockStore.from_tensors([world.dst[:2]])
    for stores, refusal, word in (
        ([], ARGUMENT, "stores is 0 stores"),
        ([world.target], ARGUMENT, "stores is 1 stores"),
        ([world.target, other], MISMATCH, "torch.float32"),
        ([few, planned.host], INDEX, "2 blocks, 0 to 1"),
    ):
        refused(partial(world.engine.execute, plan, stores), refusal, word, on=world)
    world.target.close()
    refused(lambda: world.engine.execute(plan, [world.target, planned.host]), CLOSED, world.target.handle, on=world)
    world.engine.close()
    refused(lambda: world.engine.execute(plan, [world.source, planned.host]), CLOSED, "engine", on=world)
    assert planned.host.read_block(1) == bytes(32)


def test_an_executor_without_a_store_of_the_host(planned: Planned) -> None:
    executor, swap = planned.executor(planned.world.source), planned.begin_swap()
    before = planned.world.content()
    executor.run([swap])
    planned.aborted(executor, swap, ARGUMENT, "1 stores")
    assert planned.world.content() == before


def test_an_executor_with_a_store_of_another_layout(planned: Planned) -> None:
    executor = planned.executor(planned.world.source, BlockStore.from_tensors([f(8, 8)]))
    swap = planned.begin_swap()
    executor.run([swap])
    planned.aborted(executor, swap, MISMATCH, "torch.int64", "torch.float32")


def test_an_executor_with_a_closed_engine(planned: Planned) -> None:
    executor, swap = planned.executor(planned.world.source, planned.host), planned.begin_swap()
    planned.world.engine.close()
    executor.run([swap])
    planned.aborted(executor, swap, CLOSED, "engine")


def test_copy_on_write_that_fails_is_raised(planned: Planned) -> None:
    """The step must not run; swaps of the same plan are aborted."""
    world = planned.world
    executor = planned.executor(world.target, planned.host)
    planned.copy_on_write()
    swap = planned.begin_swap()
    world.target.close()
    refused(lambda: executor.run([swap]), CLOSED, f"store {world.target.handle} is closed", on=world)
    planned.aborted(executor, swap, CLOSED, "closed")
    assert planned.host.read_block(1) == bytes(32)


@pytest.mark.parametrize("swap", [99, -1, WIDE])
def test_swaps_that_were_never_begun(swap: int, planned: Planned) -> None:
    executor, real = planned.executor(planned.world.source, planned.host), planned.begin_swap()
    executor.run([swap, real])
    told = {one.swap: one for one in executor.wait()}
    assert isinstance(told[swap].error, kvpool.KvpoolError)
    assert told[swap].blocks == {}
    assert told[real].error is None
    assert len(told[real].blocks) == 3
    assert executor.poll() == []


def test_arguments_of_an_executor(planned: Planned) -> None:
    world = planned.world
    wrong: Any
    for wrong in (None, 5):
        mistyped(partial(PlanExecutor, planned.manager, world.engine, wrong))
        mistyped(partial(planned.executor(world.source).run, wrong))


@pytest.mark.parametrize("wrong", ["swap", None, 0.5], ids=repr)
def test_swaps_of_other_types(wrong: Any, planned: Planned) -> None:
    """The plan is not taken: the call may be made again."""
    executor, swap = planned.executor(planned.world.source, planned.host), planned.begin_swap()
    mistyped(lambda: executor.run([swap, wrong]), on=planned.world)
    assert (executor.in_flight, executor.poll()) == (0, [])
    executor.run([swap])
    (over,) = executor.wait()
    assert (over.swap, over.error, len(over.blocks)) == (swap, None, 3)
    assert planned.host.read_block(over.blocks[1]) == planned.world.source.read_block(1)


# --- Anything -----------------------------------------------------------------------------------------

JUNK: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**63, -(2**63), 2**64, 10**30, -(10**30), WIDE),
    *(0.0, -0.5, math.nan, math.inf, 1j, "", "cpu", "current", "auto", b"", b"01", bytearray(16)),
    *([], (), {}, set(), [None], [(0, 1)], [(1, 1, 1)], [[0, 1]], {(0, 1)}, range(2), object(), int, Ellipsis),
    *(np.zeros((1, 2), I64), np.zeros(2), np.int64(1), torch.device("cpu"), torch.int64),
    *(torch.zeros(0, 2, dtype=torch.int64), torch.tensor(1), f(2, 2), f(1, 2, device="meta")),
]


def good(name: str, world: World) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """A call that succeeds, and touches no memory but the world's."""
    source, target, engine = world.source, world.target, world.engine
    plan = kvpool.CacheManager(8, 4).take_plan()
    address = world.src.data_ptr()
    calls: dict[str, tuple[Callable[..., Any], list[Any], dict[str, Any]]] = {
        "from_tensors": (BlockStore.from_tensors, [[world.src]], {"block_dim": 0, "keep_alive": True}),
        "from_regions": (
            BlockStore.from_regions,
            [[(address, 32, 32)], 8],
            {"device": "cpu", "pinned": False, "keep_alive": world.src},
        ),
        "host": (
            BlockStore.host,
            [4, source],
            {"pinned": False, "numa_node": None, "hugepages": False, "registration_limit": 2**30},
        ),
        "read_block": (source.read_block, [0], {}),
        "write_block": (target.write_block, [0, bytes(32)], {}),
        "engine": (TransferEngine, ["cpu"], {"threads": 1, "staging_bytes": 4096, "calibration": None}),
        "submit": (engine.submit, [source, target, [(0, 1)]], {"after": None, "regions": None, "method": "auto"}),
        "copy": (engine.copy, [source, target, [(0, 1)]], {"stream": None, "method": "auto"}),
        "execute": (engine.execute, [plan, [source]], {"stream": None, "scratch": None}),
        "wait": (world.transfer().wait, [None], {}),
        "wait_on": (world.transfer().wait_on, [None], {}),
        "copy_by_handle": (copy_by_handle, [source.handle, target.handle, [(0, 1)]], {}),
    }
    return calls[name]


CALLS = ["from_tensors", "from_regions", "host", "read_block", "write_block", "engine"]
CALLS += ["submit", "copy", "execute", "wait", "wait_on", "copy_by_handle"]


@pytest.mark.parametrize("name", CALLS)
def test_any_arguments(name: str, world: World) -> None:
    """Each argument of a good call is replaced by junk of all kinds: a typed error or a result, never a panic."""
    call, args, kwargs = good(name, world)
    call(*args, **kwargs)
    places: list[int | str] = [*range(len(args)), *kwargs]
    for place, junk in itertools.product(places, JUNK):
        some = [junk if at == place else one for at, one in enumerate(args)]
        try:
            call(*some, **{key: junk if key == place else one for key, one in kwargs.items()})
        except (kvpool.KvpoolError, TypeError):
            pass
        except (ValueError, RuntimeError) as error:
            # What torch says of its own tensors that are no numbers comes through.
            assert isinstance(junk, torch.Tensor), (place, junk, error)  # noqa: PT017
    call(*args, **kwargs)


def test_a_calibration_is_of_a_device() -> None:
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="links to CUDA devices"):
        TransferEngine(calibration="calibration.json")


def test_one_tensor_is_no_list_of_them(world: World) -> None:
    with pytest.raises(kvpool.errors.MappingTypeError, match="list of them"):
        BlockStore.from_tensors(world.src)


def test_a_block_named_alone_is_refused_alone(world: World) -> None:
    with pytest.raises(
        kvpool.errors.BlockIndexError, match=r"^block 99 is out of range: the store has 8 blocks, 0 to 7$"
    ):
        world.source.read_block(99)
