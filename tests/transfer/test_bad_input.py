"""Tests wrong calls of stores, engines and transfers. Each raises a typed error that names the value,
and changes no byte.

If Python's own argument parsing refuses a value, it raises a plain ``TypeError``. Every other wrong
value raises a ``KvpoolError``.
"""

from __future__ import annotations

import dataclasses
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

#: An integer with more bits than any argument of kvpool accepts.
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
    """Two stores of eight blocks of 32 bytes, and an engine."""

    src: torch.Tensor
    dst: torch.Tensor
    source: BlockStore
    target: BlockStore
    engine: TransferEngine

    def content(self) -> tuple[bytes, bytes]:
        return self.src.numpy().tobytes(), self.dst.numpy().tobytes()

    def transfer(self) -> Transfer:
        """Returns a transfer that has finished and whose end was already reported."""
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
    """Checks that the call raises exactly this error, and that its message contains these words. No
    byte may have been copied, and no copy may be running.
    """
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
    """Checks that Python's argument parsing refuses the call."""
    before = on.content() if on else None
    with pytest.raises(TypeError):
        call()
    if on:
        assert on.content() == before


def f(*shape: int, **kwargs: Any) -> torch.Tensor:
    return torch.zeros(shape, **kwargs)


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
    (
        "windows",
        lambda: [f(16).as_strided((4, 4), (2, 1))],
        0,
        LAYOUT,
        ["blocks overlap", "8 bytes", "16 bytes"],
    ),
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
    (
        "no such negative dimension of one",
        lambda: [f(8, 4), f(8, 4)],
        [0, -9],
        LAYOUT,
        ["tensor 1", "numbered -9"],
    ),
    ("dimension beyond 128 bits", lambda: [f(8, 4)], WIDE, ARGUMENT, [WIDE]),
    ("dimension of one beyond 128 bits", lambda: [f(8, 4)], [-WIDE], ARGUMENT, [-WIDE]),
    ("too few dimensions", lambda: [f(8, 4)] * 2, [0], ARGUMENT, ["1 block dimensions for 2 tensors"]),
    ("too many dimensions", lambda: [f(8, 4)], [0, 0], ARGUMENT, ["2 block dimensions for 1 tensors"]),
    ("no dimensions", lambda: [f(8, 4)], [], ARGUMENT, ["0 block dimensions for 1 tensors"]),
]


@pytest.mark.parametrize(
    ("make", "dim", "refusal", "words"), [one[1:] for one in TENSORS], ids=[t[0] for t in TENSORS]
)
def test_tensors(make: Callable[[], Any], dim: Any, refusal: Refusal, words: list[object]) -> None:
    refused(lambda: BlockStore.from_tensors(make(), block_dim=dim), refusal, *words)


@pytest.mark.parametrize("tensors", [None, 5, 1.5, Ellipsis], ids=repr)
def test_tensors_that_are_no_iterable(tensors: Any) -> None:
    mistyped(lambda: BlockStore.from_tensors(tensors))


@pytest.mark.parametrize("dim", ["0", 1.0, ["a"], [0.5], [None], {}, Ellipsis, [[0]]], ids=repr)
def test_block_dimensions_of_other_types(dim: Any) -> None:
    mistyped(lambda: BlockStore.from_tensors([f(8, 4)], block_dim=dim))


REGIONS: list[tuple[list[Any], Any, Refusal, list[object]]] = [
    ([], 1, LAYOUT, ["at least one region"]),
    ([(4096, 8, 0)], 1, LAYOUT, ["region 0", "no bytes"]),
    ([(4096, 8, 8), (8192, 0, 0)], 1, LAYOUT, ["region 1", "no bytes"]),
    ([(4096, 8, 16)], 2, LAYOUT, ["region 0", "8 bytes", "16 bytes"]),
    ([(4096, 0, 16)], 2, LAYOUT, ["region 0", "0 bytes", "16 bytes"]),
    ([(4096, 16, 16)], 0, LAYOUT, ["0 blocks", 2**31 - 1]),
    ([(4096, 16, 16)], 2**31, LAYOUT, [2**31]),
    ([(4096, 16, 16)], 2**64 - 1, LAYOUT, [2**64 - 1]),
    ([(4096, 16, 16)], WIDE, ARGUMENT, [WIDE]),
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


def test_devices_that_are_not_there() -> None:
    refused(lambda: TransferEngine("cuda:4294967295"), NO_CUDA, "4294967295")
    refused(lambda: BlockStore.from_regions([(4096, 16, 16)], 1, device="cuda:1000"), NO_CUDA, "1000")


HOSTS: list[tuple[Any, dict[str, Any], Refusal, list[object]]] = [
    (0, {}, LAYOUT, ["0 blocks", 2**31 - 1]),
    (2**31, {}, LAYOUT, [2**31]),
    (2**63, {}, LAYOUT, [2**63]),
    (4, {"pinned": True}, PINNING, ["2048 bytes", "cpu"]),
    (4, {"numa_node": 1024}, PINNING, ["node 1024", 1023]),
    (4, {"numa_node": 1000}, PINNING, ["node 1000"]),
]


@pytest.mark.parametrize(("num_blocks", "settings", "refusal", "words"), HOSTS, ids=range(len(HOSTS)))
def test_host_pools(
    num_blocks: Any, settings: dict[str, Any], refusal: Refusal, words: list[object], world: World
) -> None:
    refused(lambda: BlockStore.host(num_blocks, world.source, **settings), refusal, *words)


def test_a_host_pool_beyond_all_memory() -> None:
    """The regions have made-up addresses, which are never read. A pool for blocks of this size cannot
    be allocated.
    """
    large = BlockStore.from_regions([(0, 2**40, 2**40)], 1)
    refused(lambda: BlockStore.host(2**12, large), PINNING, f"{2**52} bytes")
    refused(lambda: BlockStore.host(2**30, large), PINNING, 2**30)
    # Together these regions cover the whole address space. If their size were rounded up, it would
    # overflow to 0.
    whole = BlockStore.from_regions([(0, 2**63, 2**63), (2**63, 2**63, 2**63 - 1)], 1)
    refused(lambda: BlockStore.host(1, whole), PINNING)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threads": 0}, ["threads is 0", "1 to 1024"]),
        ({"threads": 1025}, ["threads is 1025"]),
        ({"staging_bytes": 4095}, ["staging_bytes is 4095", "4 KiB to 1 TiB"]),
        ({"staging_bytes": 2**40 + 1}, ["staging_bytes", 2**40 + 1]),
        ({"calibration": "calibration.json"}, ["links to CUDA devices"]),
    ],
    ids=str,
)
def test_settings_of_an_engine(settings: dict[str, Any], words: list[object]) -> None:
    refused(lambda: TransferEngine(**settings), ARGUMENT, *words)


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
    (
        "tensor, destination",
        lambda: torch.tensor([[0, 1], [1, 99]]),
        INDEX,
        ["pair 1", "destination block 99"],
    ),
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


@pytest.mark.parametrize(
    ("make", "refusal", "words"), [one[1:] for one in MAPPINGS], ids=[m[0] for m in MAPPINGS]
)
def test_mappings(make: Callable[[], Any], refusal: Refusal, words: list[object], world: World) -> None:
    source, target, engine = world.source, world.target, world.engine
    refused(lambda: engine.submit(source, target, make()), refusal, *words, on=world)
    refused(lambda: engine.copy(source, target, make()), refusal, *words, on=world)
    refused(lambda: copy_by_handle(source.handle, target.handle, make()), refusal, *words, on=world)


def test_overlaps(world: World) -> None:
    for pairs in ([(0, 1), (1, 2)], [(0, 1), (1, 0)], [(3, 2), (4, 3), (2, 7)]):
        refused(partial(world.engine.copy, world.target, world.target, pairs), OVERLAP, "reads", on=world)
    refused(
        lambda: world.engine.submit(world.target, world.target, [(0, 1), (5, 6), (1, 2)]),
        OVERLAP,
        "pair 2",
        on=world,
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


DIFFERENT: list[tuple[str, Callable[[], BlockStore], list[object]]] = [
    (
        "regions",
        lambda: BlockStore.from_tensors([f(8, 8), f(8, 8)]),
        ["regions", 1, 2],
    ),
    ("size", lambda: BlockStore.from_tensors([f(8, 3, dtype=torch.int64)]), ["region 0", "32", "24"]),
    ("dtype", lambda: BlockStore.from_tensors([f(8, 8)]), ["torch.int64", "torch.float32"]),
    ("size, unknown dtype", lambda: BlockStore.from_regions([(4096, 40, 40)], 8), ["region 0", "32", "40"]),
    (
        "pool",
        lambda: BlockStore.host(8, BlockStore.from_tensors([f(8, 8)])),
        ["torch.int64", "torch.float32"],
    ),
]


@pytest.mark.parametrize(("make", "words"), [one[1:] for one in DIFFERENT], ids=[one[0] for one in DIFFERENT])
def test_stores_that_differ(make: Callable[[], BlockStore], words: list[object], world: World) -> None:
    """The message names the stores as source and destination, even if no block is copied."""
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
    """In one store a block has pieces of 8 and then 16 bytes, and in the other store of 16 and then 8
    bytes.
    """
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
    refused(
        lambda: copy_by_handle(handle, world.target.handle, [(0, 1)]), CLOSED, f"handle {handle}", on=world
    )
    refused(
        lambda: copy_by_handle(world.source.handle, handle, [(0, 1)]), CLOSED, f"handle {handle}", on=world
    )


@pytest.mark.parametrize("handle", [None, "1", 1.0, [1]], ids=repr)
def test_handles_of_other_types(handle: Any, world: World) -> None:
    mistyped(lambda: copy_by_handle(handle, world.target.handle, [(0, 1)]), on=world)
    mistyped(lambda: copy_by_handle(world.source, world.target, [(0, 1)]), on=world)  # type: ignore[arg-type]


@dataclasses.dataclass
class Planned:
    """A manager in which request "a" and its fork "b" have blocks. So tests can plan a swap and a
    copy-on-write.
    """

    manager: kvpool.CacheManager
    world: World
    host: BlockStore

    def begin_swap(self) -> int:
        return self.manager.swaps.begin_out(["a"])

    def copy_on_write(self) -> None:
        self.manager.append(["a", "b"], [1, 2])

    def executor(self, *stores: BlockStore) -> PlanExecutor:
        return PlanExecutor(self.manager, self.world.engine, stores)

    def aborted(self, executor: PlanExecutor, swap: int, refusal: Refusal, *words: object) -> None:
        """Checks that the failed swap is reported once with its error, that the request is in its old
        tier, and that no byte was copied.
        """
        assert executor.in_flight == 1
        (over,) = executor.poll()
        assert (over.swap, over.blocks) == (swap, {})
        assert type(over.error) is refusal[0]
        assert isinstance(over.error, refusal[1])
        assert [str(word) for word in words if str(word) not in str(over.error)] == []
        assert (executor.poll(), executor.in_flight) == ([], 0)
        with pytest.raises(errors.SwapError):
            self.manager.swaps.complete(swap)
        self.manager.diagnose.check_invariants()
        assert self.manager.swaps.begin_out(["a"]) > swap


@pytest.fixture
def planned(world: World) -> Planned:
    manager = kvpool.CacheManager(8, 4, host_blocks=8)
    manager.admit("a", range(10))
    manager.commit("a", 8)
    manager.fork("a", "b")
    return Planned(manager, world, BlockStore.host(8, world.source))


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
    refused(
        lambda: world.engine.execute(plan, [world.target, planned.host]),
        CLOSED,
        world.target.handle,
        on=world,
    )
    world.engine.close()
    refused(lambda: world.engine.execute(plan, [world.source, planned.host]), CLOSED, "engine", on=world)
    assert planned.host.read_block(1) == bytes(32)


@pytest.mark.parametrize(
    ("fault", "refusal", "words"),
    [
        ("no store of the host", ARGUMENT, ["1 stores"]),
        ("a store of another layout", MISMATCH, ["torch.int64", "torch.float32"]),
        ("a closed engine", CLOSED, ["engine"]),
    ],
)
def test_swaps_that_cannot_be_executed_are_aborted(
    fault: str, refusal: Refusal, words: list[str], planned: Planned
) -> None:
    world = planned.world
    hosts: dict[str, list[BlockStore]] = {
        "no store of the host": [],
        "a store of another layout": [BlockStore.from_tensors([f(8, 8)])],
    }
    executor, swap = planned.executor(world.source, *hosts.get(fault, [planned.host])), planned.begin_swap()
    before = world.content()
    if fault == "a closed engine":
        world.engine.close()
    executor.run([swap])
    planned.aborted(executor, swap, refusal, *words)
    assert world.content() == before


def test_copy_on_write_that_fails_is_raised(planned: Planned) -> None:
    """The step must not run, because its blocks do not have their content. Swaps of the same plan are
    aborted.
    """
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
    """The refused call has not taken the plan, so the caller may repeat it."""
    executor, swap = planned.executor(planned.world.source, planned.host), planned.begin_swap()
    mistyped(lambda: executor.run([swap, wrong]), on=planned.world)
    assert (executor.in_flight, executor.poll()) == (0, [])
    executor.run([swap])
    (over,) = executor.wait()
    assert (over.swap, over.error, len(over.blocks)) == (swap, None, 3)
    assert planned.host.read_block(over.blocks[1]) == planned.world.source.read_block(1)


def test_one_tensor_is_no_list_of_them(world: World) -> None:
    with pytest.raises(kvpool.errors.MappingTypeError, match="list of them"):
        BlockStore.from_tensors(world.src)


def test_a_block_named_alone_is_refused_alone(world: World) -> None:
    with pytest.raises(
        kvpool.errors.BlockIndexError, match=r"^block 99 is out of range: the store has 8 blocks, 0 to 7$"
    ):
        world.source.read_block(99)
