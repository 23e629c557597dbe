"""Tests the CPU twin, the engine that copies on the CPU: copies of any layout and mapping equal those
of torch's indexing, wrong calls are refused, and transfers have the documented states.

The tests compare whole buffers, including padding, other blocks, and the memory before and after a
view.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import math
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import assume, event, given
from hypothesis import strategies as st

import kvpool.transfer.ops  # noqa: F401 - registers the ops
from kvpool import errors
from kvpool.transfer import BlockStore, Transfer, TransferEngine
from tests.together import together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Pairs = list[tuple[int, int]]

#: Types of elements: those in which engines store KV, and types of every size.
DTYPES = [
    torch.uint8,
    torch.bool,
    torch.int8,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.int64,
    torch.float64,
    torch.complex128,
]
#: For each size of an element, the type with which the expected result is computed. These types move
#: bits unchanged.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
#: Number of times that a test tries to observe a transfer while it is running. On a busy machine, a try
#: may come too late.
TRIES = 200


@functools.cache
def engine(threads: int = 1) -> TransferEngine:
    """Yields an engine that several tests share. Each test waits for its own transfers."""
    return TransferEngine(threads=threads)


def noise(nbytes: int, seed: int) -> torch.Tensor:
    """Returns bytes that look random but depend only on the seed."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8))


def same_bytes(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


@dataclasses.dataclass(frozen=True)
class Shape:
    """The part of a tensor that belongs to one block. It has ``outer`` dimensions, and at each of their
    positions a piece of contiguous elements with the dimensions ``piece``.
    """

    outer: tuple[int, ...]
    piece: tuple[int, ...]
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where a tensor's elements are in a buffer of bytes. Sizes and strides are those of the dimensions
    [blocks, *outer, *piece].
    """

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    elements: int
    #: The order in which the test passes the tensor's dimensions to the store.
    order: tuple[int, ...]
    block_dim: int

    def tensor(self, buffer: torch.Tensor) -> torch.Tensor:
        """Returns the tensor in a buffer, with its dimensions in the order that the store gets."""
        return buffer.view(self.dtype).as_strided(self.sizes, self.strides, self.offset).permute(self.order)

    def bits(self, buffer: torch.Tensor) -> torch.Tensor:
        """Returns the tensor in a buffer for comparisons. The blocks are the first dimension, and the
        elements have the type that moves bits unchanged.
        """
        return buffer.view(BITS[self.dtype.itemsize]).as_strided(self.sizes, self.strides, self.offset)


@dataclasses.dataclass(frozen=True)
class Side:
    """The source or the target of a copy: several tensors, each in a separate buffer."""

    places: tuple[Placement, ...]
    num_blocks: int

    def buffers(self, seed: int) -> list[torch.Tensor]:
        sizes = [place.elements * place.dtype.itemsize for place in self.places]
        return [noise(size, seed + index) for index, size in enumerate(sizes)]

    def store(self, buffers: list[torch.Tensor]) -> BlockStore:
        tensors = [place.tensor(buffer) for place, buffer in zip(self.places, buffers, strict=True)]
        dims = [place.block_dim for place in self.places]
        return BlockStore.from_tensors(tensors, block_dim=dims[0] if len(set(dims)) == 1 else dims)

    def block(self, buffers: list[torch.Tensor], block: int) -> bytes:
        """Returns the bytes of a block, one region after the other."""
        pieces = [place.bits(buffer)[block] for place, buffer in zip(self.places, buffers, strict=True)]
        return b"".join(
            piece.clone().contiguous().flatten().view(torch.uint8).numpy().tobytes() for piece in pieces
        )


SHAPES = st.builds(
    Shape,
    outer=st.lists(st.integers(1, 3), max_size=2).map(tuple),
    # A piece has at least two elements. The store refuses a piece of a single element if no other element is
    # next to it in memory.
    piece=st.tuples(st.integers(2, 5)) | st.tuples(st.integers(1, 3), st.integers(2, 4), st.integers(1, 3)),
    dtype=st.sampled_from(DTYPES),
)


@st.composite
def placements(draw: st.DrawFn, shape: Shape, num_blocks: int) -> Placement:
    """Draws a tensor with blocks of this shape. The dimension of the blocks is before, between or after
    the ``outer`` dimensions. There may be padding, and the store may get the dimensions in another
    order.
    """
    sizes = [num_blocks, *shape.outer, *shape.piece]
    strides = [0] * len(sizes)
    outer = list(range(1, len(shape.outer) + 1))
    inner = list(range(len(outer) + 1, len(sizes)))
    extent = 1
    for dim in reversed(inner):
        strides[dim] = extent
        extent *= sizes[dim]
    piece = extent
    memory = list(outer)
    memory.insert(draw(st.integers(0, len(outer))), 0)
    for dim in reversed(memory):
        # If pieces of a block had no gap between them, they would be one piece.
        extent += draw(st.integers(1 if dim != 0 and extent == piece else 0, 3))
        strides[dim] = extent
        extent *= sizes[dim]
    # The order of the ``outer`` dimensions does not change, because the order of regions follows from
    # it. The other dimensions may be anywhere.
    order = list(outer)
    for dim in [0, *inner]:
        order.insert(draw(st.integers(0, len(order))), dim)
    block_dim = order.index(0)
    if draw(st.booleans()):
        block_dim -= len(order)
    offset = draw(st.integers(0, 5))
    elements = offset + extent + draw(st.integers(0, 3))
    return Placement(shape.dtype, tuple(sizes), tuple(strides), offset, elements, tuple(order), block_dim)


@st.composite
def sides(draw: st.DrawFn, shapes: Sequence[Shape]) -> Side:
    num_blocks = draw(st.integers(1, 12))
    return Side(tuple(draw(placements(shape, num_blocks)) for shape in shapes), num_blocks)


@st.composite
def mappings(draw: st.DrawFn, sources: int, targets: int) -> Pairs:
    """Draws a mapping in which each destination occurs once. It is a permutation, or has repeated
    sources, or consists of ascending and descending runs.
    """
    length = draw(st.integers(0, min(sources, targets)))
    src, dst = draw(st.integers(0, sources - length)), draw(st.integers(0, targets - length))
    kind = draw(st.sampled_from(["run up", "run down", "crossing", "permutation", "repeating"]))
    event(kind)
    up = [(src + index, dst + index) for index in range(length)]
    if kind == "run up":
        return up
    if kind == "run down":
        return up[::-1]
    if kind == "crossing":
        return [(src + index, dst + length - 1 - index) for index in range(length)]
    written = draw(st.permutations(range(targets)))
    if kind == "permutation":
        return list(zip(draw(st.permutations(range(sources))), written, strict=False))
    read = draw(st.lists(st.integers(0, sources - 1), max_size=targets))
    return list(zip(read, written, strict=False))


def transposed(pairs: Pairs) -> torch.Tensor:
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t().contiguous().t()


def as_array(pairs: Pairs) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def strided_array(pairs: Pairs) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the pairs as an array with strides: every second row and third column of a larger array,
    in reverse order.
    """
    array = np.full((2 * len(pairs), 6), -7, dtype=np.int64)
    view = array[::-2, 5::-3]
    view[:] = as_array(pairs)
    return view


def strided_tensor(pairs: Pairs) -> torch.Tensor:
    tensor = torch.full((3 * len(pairs) + 1, 5), -7, dtype=torch.int64)
    view = tensor[1::3, 1:4:2]
    view.copy_(torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2))
    return view


FORMS: dict[str, Callable[[Pairs], Any]] = {
    "list": list,
    "tuple": tuple,
    "numpy": as_array,
    "numpy, Fortran": lambda pairs: np.asfortranarray(as_array(pairs)),
    "numpy, strided": strided_array,
    "numpy, read-only": lambda pairs: np.frombuffer(as_array(pairs).tobytes(), np.int64).reshape(-1, 2),
    "torch": lambda pairs: torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2),
    "torch, transposed": transposed,
    "torch, strided": strided_tensor,
}


def expected(
    src: Side, dst: Side, sources: list[torch.Tensor], targets: list[torch.Tensor], pairs: Pairs
) -> None:
    """Makes the copy with torch's indexing, as the expected result. Reads all sources before it writes."""
    read, written = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for place, other, source, target in zip(src.places, dst.places, sources, targets, strict=True):
        other.bits(target)[written] = place.bits(source)[read]


@given(data=st.data(), shapes=st.lists(SHAPES, min_size=1, max_size=3), threads=st.integers(1, 4))
def test_any_layout_and_mapping(data: st.DataObject, shapes: list[Shape], threads: int) -> None:
    src, dst = data.draw(sides(shapes), label="source"), data.draw(sides(shapes), label="destination")
    pairs = data.draw(mappings(src.num_blocks, dst.num_blocks), label="mapping")
    form = data.draw(st.sampled_from(sorted(FORMS)), label="form")
    sources, targets = src.buffers(1), dst.buffers(101)
    unchanged, wanted = [one.clone() for one in sources], [one.clone() for one in targets]
    expected(src, dst, unchanged, wanted, pairs)
    source, target = src.store(sources), dst.store(targets)
    each = sum(math.prod(shape.outer) for shape in shapes)
    assert (source.num_regions, target.num_regions) == (each, each)
    assert (source.num_blocks, source.bytes_per_block) == (src.num_blocks, len(src.block(sources, 0)))
    if data.draw(st.booleans(), label="submit"):
        transfer = engine(threads).submit(source, target, FORMS[form](pairs))
        transfer.wait()
        assert (transfer.nbytes, transfer.method) == (len(pairs) * source.bytes_per_block, "cpu")
    else:
        engine(threads).copy(source, target, FORMS[form](pairs))
    assert same_bytes(targets, wanted)
    assert same_bytes(sources, unchanged)


@given(data=st.data(), shapes=st.lists(SHAPES, min_size=1, max_size=3))
def test_a_part_of_the_regions(data: st.DataObject, shapes: list[Shape]) -> None:
    src, dst = data.draw(sides(shapes)), data.draw(sides(shapes))
    pairs = data.draw(mappings(src.num_blocks, dst.num_blocks))
    each = [(index, at) for index, shape in enumerate(shapes) for at in np.ndindex(shape.outer)]
    first = data.draw(st.integers(0, len(each) - 1))
    end = data.draw(st.integers(first + 1, len(each)))
    sources, targets = src.buffers(1), dst.buffers(101)
    wanted = [one.clone() for one in targets]
    for index, at in each[first:end]:
        for read, written in pairs:
            from_piece = src.places[index].bits(sources[index])[(read, *at)]
            dst.places[index].bits(wanted[index])[(written, *at)] = from_piece
    source, target = src.store(sources), dst.store(targets)
    transfer = engine().submit(source, target, pairs, regions=(first, end))
    transfer.wait()
    assert same_bytes(targets, wanted)
    assert transfer.nbytes == len(pairs) * sum(nbytes for _, _, nbytes in source.regions[first:end])


@given(data=st.data(), shapes=st.lists(SHAPES, min_size=1, max_size=3))
def test_host_pools(data: st.DataObject, shapes: list[Shape]) -> None:
    """Copies blocks to a host pool, and from there to another layout. Afterwards the blocks of both
    layouts have equal bytes.
    """
    src, dst = data.draw(sides(shapes)), data.draw(sides(shapes))
    sources, targets = src.buffers(1), dst.buffers(101)
    source, target = src.store(sources), dst.store(targets)
    host = BlockStore.host(data.draw(st.integers(1, 9)), like=source)
    assert (host.num_regions, host.bytes_per_block, host.packed) == (
        source.num_regions,
        source.bytes_per_block,
        True,
    )
    assert (host.device, host.pinned, host.pages) == ("cpu", False, "small")
    assert "cpu" in str(host.why_pageable)
    zeros = bytes(host.bytes_per_block)
    assert [host.read_block(block) for block in range(host.num_blocks)] == [zeros] * host.num_blocks
    out = data.draw(mappings(source.num_blocks, host.num_blocks))
    engine().copy(source, host, out)
    content = dict.fromkeys(range(host.num_blocks), zeros) | {to: src.block(sources, at) for at, to in out}
    assert {block: host.read_block(block) for block in content} == content
    assert [source.read_block(block) for block in range(source.num_blocks)] == [
        src.block(sources, block) for block in range(src.num_blocks)
    ]
    new = data.draw(st.integers(0, host.num_blocks - 1))
    content[new] = noise(host.bytes_per_block, 7).numpy().tobytes()
    host.write_block(new, content[new])
    back = data.draw(mappings(host.num_blocks, target.num_blocks))
    before = [dst.block(targets, block) for block in range(dst.num_blocks)]
    wanted = [one.clone() for one in targets]
    scratch = dst.store(wanted)
    for at, to in back:
        before[to] = content[at]
        scratch.write_block(to, content[at])
    engine().submit(host, target, back).wait()
    assert [dst.block(targets, block) for block in range(dst.num_blocks)] == before
    assert same_bytes(targets, wanted)


BLOCKS, TOKENS, HEADS, SIZE, LAYERS = 7, 4, 2, 8, 3
PIECE = TOKENS * HEADS * SIZE


def cross_layers() -> list[torch.Tensor]:
    return list(torch.zeros(BLOCKS, LAYERS, 2, TOKENS, SIZE).unbind(1))


def padded_pages() -> list[torch.Tensor]:
    return [torch.zeros(BLOCKS, TOKENS + 1, 72)[:, :TOKENS] for _ in range(LAYERS)]


def views_of_one_tensor() -> list[torch.Tensor]:
    return list(torch.split(torch.zeros(LAYERS * BLOCKS + 3, TOKENS, SIZE)[3:], BLOCKS))


def each(*shape: int, seen: tuple[int, int] | None = None) -> Callable[[], list[torch.Tensor]]:
    """Returns a function that makes one tensor per layer. If ``seen`` is given, these two dimensions of
    each tensor are swapped.
    """
    first, second = seen or (0, 0)
    return lambda: [torch.zeros(shape).transpose(first, second) for _ in range(LAYERS)]


#: Each layout has a function that makes its tensors, the dimension of blocks, the number of regions of
#: a layer, and the number of elements in a piece.
LAYOUTS: dict[str, tuple[Callable[[], list[torch.Tensor]], int, int, int]] = {
    "K and V apart": (each(2, BLOCKS, TOKENS, HEADS, SIZE), 1, 2, PIECE),
    "HND": (each(2, BLOCKS, HEADS, TOKENS, SIZE), 1, 2, PIECE),
    "HND seen as NHD": (each(2, BLOCKS, HEADS, TOKENS, SIZE, seen=(2, 3)), -4, 2, PIECE),
    "blocks first": (each(BLOCKS, 2, TOKENS, HEADS, SIZE), 0, 1, 2 * PIECE),
    "blocks first, seen with K and V first": (
        each(BLOCKS, 2, TOKENS, HEADS, SIZE, seen=(0, 1)),
        1,
        1,
        2 * PIECE,
    ),
    "heads outside of blocks": (each(HEADS, BLOCKS, TOKENS, SIZE), 1, HEADS, TOKENS * SIZE),
    "MLA": (each(BLOCKS, TOKENS, 72), 0, 1, TOKENS * 72),
    "a scale per block": (each(BLOCKS), 0, 1, 1),
    "a scale per head and block": (each(HEADS, BLOCKS), 1, HEADS, 1),
    "cross-layer, layer by layer": (cross_layers, 0, 1, 2 * TOKENS * SIZE),
    "padded pages": (padded_pages, 0, 1, TOKENS * 72),
    "views of one tensor": (views_of_one_tensor, 0, 1, TOKENS * SIZE),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_engines(name: str) -> None:
    """Copies blocks, and compares the result with torch's indexing of the original tensors."""
    make, block_dim, regions, piece = LAYOUTS[name]
    sources, targets = make(), make()
    generator = torch.Generator().manual_seed(1)
    for tensor in sources + targets:
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    pairs = [(0, 6), (1, 5), (1, 0), (2, 1), (3, 2)]
    wanted = [tensor.clone() for tensor in targets]
    read, written = map(list, zip(*pairs, strict=True))
    for source, other in zip(sources, wanted, strict=True):
        other.movedim(block_dim, 0)[written] = source.movedim(block_dim, 0)[read]
    here, there = (BlockStore.from_tensors(tensors, block_dim=block_dim) for tensors in (sources, targets))
    assert (here.num_blocks, here.num_regions) == (BLOCKS, regions * LAYERS)
    assert {nbytes for _, _, nbytes in here.regions} == {piece * sources[0].element_size()}
    engine().copy(here, there, pairs)
    assert same_bytes(targets, wanted)


def test_tensors_of_different_sizes_and_types() -> None:
    """A hybrid model has tensors for attention, for MLA in fp8, for scales and for states. The
    dimension of blocks differs between them.
    """

    def tensors(seed: int) -> list[torch.Tensor]:
        return [
            noise(2 * 9 * 4 * 6 * 2, seed).view(torch.bfloat16).reshape(2, 9, 4, 6),
            noise(9 * 96, seed + 1).view(torch.float8_e4m3fn).reshape(9, 96)[:, :80],
            noise(9 * 4, seed + 2).view(torch.float32),
            noise(9 * 4 * 24, seed + 3).view(torch.int64).reshape(3, 4, 9).permute(2, 0, 1).contiguous(),
            noise(9 * 5, seed + 4).view(torch.bool).reshape(9, 5),
        ]

    sources, targets = tensors(1), tensors(2)
    # Compare the tensors as bits, because torch writes every value that is true as the same byte.
    kinds = [BITS[tensor.element_size()] for tensor in sources]
    wanted = [tensor.view(bits).clone() for tensor, bits in zip(targets, kinds, strict=True)]
    dims, pairs = [1, 0, -1, 0, -2], [(8, 0), (0, 8), (3, 3), (3, 4)]
    for each, other, dim, bits in zip(sources, wanted, dims, kinds, strict=True):
        for read, written in pairs:
            other.movedim(dim, 0)[written] = each.view(bits).movedim(dim, 0)[read]
    source, target = (BlockStore.from_tensors(each, block_dim=dims) for each in (sources, targets))
    assert [nbytes for _, _, nbytes in source.regions] == [48, 48, 80, 4, 96, 5]
    engine().submit(source, target, torch.tensor(pairs)).wait()
    assert same_bytes([tensor.view(bits) for tensor, bits in zip(targets, kinds, strict=True)], wanted)


MIB = 1 << 20


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("blocks", "piece", "gap"),
    [(5, 4 * MIB + 13, 0), (5, 4 * MIB + 13, 3), (1, 20 * MIB + 5, 0), (4999, 4099, 0), (4999, 4099, 1)],
    ids=["few, dense", "few, padded", "one", "many, dense", "many, padded"],
)
def test_shares_of_threads(threads: int, blocks: int, piece: int, gap: int) -> None:
    """A copy of 20 MiB is divided among four threads. The shares of the threads end within pieces. The
    test has mappings that can be merged, and others that cannot.
    """
    source, target = (noise(blocks * (piece + gap), seed).reshape(blocks, -1) for seed in (1, 2))
    here, there = (BlockStore.from_tensors([each[:, :piece]]) for each in (source, target))
    for pairs in ([(at, at) for at in range(blocks)], [(at, blocks - 1 - at) for at in range(blocks)]):
        wanted = target.clone()
        wanted[[pair[1] for pair in pairs], :piece] = source[[pair[0] for pair in pairs], :piece]
        engine(threads).copy(here, there, pairs)
        assert torch.equal(target, wanted)
        target.bitwise_not_()


def refusal(pairs: Pairs, sources: int, targets: int) -> type[errors.KvpoolError] | None:
    """Returns the error that the block ids must cause, or None. If several pairs are wrong, the error
    is that of the first one.
    """
    written: set[int] = set()
    for read, to in pairs:
        if not (0 <= read < sources and 0 <= to < targets):
            return errors.BlockIndexError
        if to in written:
            return errors.DuplicateDestinationError
        written.add(to)
    return None


def try_copy(source: BlockStore, target: BlockStore, pairs: Pairs, submit: bool) -> type[Exception] | None:
    try:
        if submit:
            engine().submit(source, target, pairs).wait()
        else:
            engine().copy(source, target, pairs)
    except errors.KvpoolError as error:
        return type(error)
    return None


@given(
    pairs=st.lists(st.tuples(st.integers(-1, 6), st.integers(-1, 6)), max_size=6)
    | st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=5)
    | mappings(6, 6),
    twice=st.booleans(),
    submit=st.booleans(),
)
def test_copies_within_a_store(pairs: Pairs, twice: bool, submit: bool) -> None:
    """A copy within a store is refused and changes nothing, or it equals an assignment that reads
    everything before it writes. Pairs (i, i) are skipped.
    """
    tensor = noise(6 * 2 * 5, 3).reshape(2, 6, 5)
    source = BlockStore.from_tensors([tensor], block_dim=1)
    # A second store over the same blocks counts as the same store: an overlapping copy is refused.
    target = BlockStore.from_tensors([tensor], block_dim=1) if twice else source
    wrong = refusal(pairs, 6, 6)
    moved = {to for read, to in pairs if read != to}
    if wrong is None and any(read in moved for read, to in pairs if read != to):
        wrong = errors.OverlappingCopyError
    event(str(wrong))
    wanted = tensor.clone()
    if wrong is None:
        for read, to in pairs:
            wanted[:, to] = tensor[:, read]
    assert try_copy(source, target, pairs, submit) is wrong
    assert torch.equal(tensor, wanted)


@dataclasses.dataclass(frozen=True)
class View:
    """Blocks in a buffer of ``MEMORY`` bytes, which several stores share."""

    base: int
    stride: int
    num_blocks: int
    #: For each piece of a block, its offset in bytes from ``base``.
    starts: tuple[int, ...]
    nbytes: int

    @property
    def step(self) -> int:
        """Number of bytes from one block to the next. A single block has no next one, so the size of
        its piece is returned.
        """
        return self.stride if self.num_blocks > 1 else self.nbytes

    def piece(self, region: int, block: int) -> slice:
        start = self.base + self.starts[region] + block * self.stride
        return slice(start, start + self.nbytes)

    def bytes_of(self, block: int) -> set[int]:
        pieces = [self.piece(region, block) for region in range(len(self.starts))]
        return {at for piece in pieces for at in range(piece.start, piece.stop)}

    def store(self, memory: torch.Tensor) -> BlockStore:
        regions = [(memory.data_ptr() + self.base + start, self.stride, self.nbytes) for start in self.starts]
        return BlockStore.from_regions(regions, self.num_blocks, keep_alive=memory)


MEMORY = 160


@st.composite
def views(draw: st.DrawFn, regions: int, nbytes: int) -> View:
    """Draws blocks with adjacent pieces, or with regions that follow one another."""
    num_blocks = draw(st.integers(1, 6))
    if draw(st.booleans()):
        gap = draw(st.integers(0, 2))
        starts = [index * (nbytes + gap) for index in range(regions)]
        stride = starts[-1] + nbytes + draw(st.integers(0, 4))
    else:
        stride = nbytes + draw(st.integers(0, 4))
        starts = [index * stride * num_blocks for index in range(regions)]
    starts = draw(st.permutations(starts))
    room = MEMORY - (max(starts) + stride * (num_blocks - 1) + nbytes)
    assume(room >= 0)
    return View(draw(st.integers(0, min(room, 24))), stride, num_blocks, tuple(starts), nbytes)


@given(data=st.data(), regions=st.integers(1, 2), nbytes=st.integers(1, 8), submit=st.booleans())
def test_stores_that_share_memory(data: st.DataObject, regions: int, nbytes: int, submit: bool) -> None:
    """The copy must be refused if some byte is both read and written, and only then. The test checks
    every byte.
    """
    src, dst = data.draw(views(regions, nbytes)), data.draw(views(regions, nbytes))
    read = data.draw(st.lists(st.integers(0, src.num_blocks - 1), max_size=dst.num_blocks))
    pairs = list(zip(read, data.draw(st.permutations(range(dst.num_blocks))), strict=False))
    alike = (src.base, src.step, src.starts) == (dst.base, dst.step, dst.starts)
    moved = [(read, to) for read, to in pairs if read != to] if alike else pairs
    reads = set[int]().union(*(src.bytes_of(read) for read, _ in moved))
    writes = set[int]().union(*(dst.bytes_of(to) for _, to in moved))
    memory = noise(MEMORY, 5)
    wanted = memory.clone()
    wrong = errors.OverlappingCopyError if reads & writes else None
    event(f"{'alike' if alike else 'entangled'}: {wrong}")
    if wrong is None:
        for (start, to), region in itertools.product(moved, range(regions)):
            wanted[dst.piece(region, to)] = memory[src.piece(region, start)]
    assert try_copy(src.store(memory), dst.store(memory), pairs, submit) is wrong
    assert torch.equal(memory, wanted)


def test_an_overlap_of_views_names_pair_and_block() -> None:
    memory = torch.arange(64, dtype=torch.uint8)
    low, high = (
        BlockStore.from_tensors([memory[:48].view(6, 8)]),
        BlockStore.from_tensors([memory[4:52].view(6, 8)]),
    )
    before = memory.clone()
    with pytest.raises(errors.OverlappingCopyError, match=r"pair 1 .* block 4"):
        engine().copy(low, high, [(0, 5), (4, 3)])
    assert torch.equal(memory, before)
    engine().copy(low, high, [(0, 5), (4, 1)])
    assert memory[44:52].tolist() == before[:8].tolist()
    assert memory[12:20].tolist() == before[32:40].tolist()


def test_only_regions_that_are_copied_overlap() -> None:
    """Only the first regions are copied. The second regions share memory, which does not matter."""
    memory = noise(64, 1)
    at = memory.data_ptr()
    source = BlockStore.from_regions([(at, 8, 8), (at + 32, 8, 8)], 2, keep_alive=memory)
    target = BlockStore.from_regions([(at + 16, 8, 8), (at + 36, 8, 8)], 2, keep_alive=memory)
    engine().submit(source, target, [(0, 0)], regions=(0, 1)).wait()
    assert torch.equal(memory[16:24], memory[:8])


@functools.cache
def ballast() -> tuple[BlockStore, BlockStore]:
    """Returns two stores of 32 MiB. A copy between them takes some milliseconds. Meanwhile the next
    transfer of the engine's thread has to wait.
    """
    stores = [BlockStore.from_tensors([torch.zeros(32, MIB, dtype=torch.uint8)]) for _ in range(2)]
    return stores[0], stores[1]


def occupy(on: TransferEngine, times: int = 3) -> Transfer:
    """Starts copies that delay later transfers. Returns the last of them."""
    pairs = [(block, block) for block in range(32)]
    return [on.submit(*ballast(), pairs) for _ in range(times)][-1]


@pytest.fixture
def own() -> Iterator[TransferEngine]:
    with TransferEngine(threads=1) as made:
        yield made


def small(blocks: int = 8) -> tuple[torch.Tensor, BlockStore]:
    tensor = torch.arange(blocks * 4).reshape(blocks, 4)
    return tensor, BlockStore.from_tensors([tensor])


def test_transfers_follow_each_other(own: TransferEngine) -> None:
    """Each transfer reads what the previous transfer has written. The numbers of transfers ascend, and
    they finish in this order.
    """
    tensor, store = small(200)
    first = tensor[0].tolist()
    occupy(own)
    transfers = [own.submit(store, store, [(block, block + 1)]) for block in range(199)]
    assert [one.id for one in transfers] == list(range(transfers[0].id, transfers[0].id + 199))
    while not transfers[-1].done():
        ended = [one.done() for one in reversed(transfers)]
        assert ended == sorted(ended)
    assert tensor.tolist() == [first] * 200
    assert own.in_flight == 0


@pytest.mark.parametrize("same", [True, False], ids=["of this engine", "of another engine"])
def test_after_another_transfer(own: TransferEngine, same: bool) -> None:
    (tensor, store), (other, there) = small(), small()
    with TransferEngine(threads=1) as second:
        for value in range(5):
            tensor.fill_(value)
            other.fill_(-1)
            occupy(own)
            first = own.submit(store, store, [(0, 1)])
            tensor[0] = value  # the value is never -1 from here on, in either order
            then = (own if same else second).submit(store, there, [(1, 0)], after=first)
            then.wait()
            assert first.done()
            assert other[0].tolist() == [value] * 4


def test_a_chain_over_two_engines(own: TransferEngine) -> None:
    """Transfers alternate between two engines, and each waits for the previous one. No transfer may
    wait for a later one.
    """
    tensor, store = small(60)
    wanted = tensor[0].tolist()
    with TransferEngine(threads=1) as second:
        last = occupy(own)
        for block, on in zip(range(59), itertools.cycle([own, second]), strict=False):
            last = on.submit(store, store, [(block, block + 1)], after=last)
        last.wait()
    assert tensor[59].tolist() == wanted


def test_a_wait_that_takes_too_long(own: TransferEngine) -> None:
    _, store = small()
    late: errors.TransferTimeoutError | None = None
    for _ in range(TRIES):
        occupy(own)
        transfer = own.submit(store, store, [(0, 1)])
        try:
            transfer.wait(0)
            transfer.wait(1e-6)
        except errors.TransferTimeoutError as error:
            late = error
            break
    assert isinstance(late, TimeoutError)
    assert f"transfer {transfer.id} " in str(late)
    assert f"Transfer(id={transfer.id}, nbytes=32, method=" in repr(transfer)
    # A signal interrupted the wait, so the end of the transfer was not reported. The transfer continues and
    # ends.
    transfer.wait(60)
    assert (transfer.done(), transfer.error, "ended" in repr(transfer)) == (True, None, True)
    assert transfer.seconds is not None
    assert transfer.seconds >= 0
    transfer.wait(0)
    transfer.wait()


def test_nothing_is_known_before_the_end(own: TransferEngine) -> None:
    _, store = small()
    for _ in range(TRIES):
        occupy(own)
        transfer = own.submit(store, store, [(0, 1)])
        known = (transfer.seconds, transfer.error, own.in_flight > 0, "under way" in repr(transfer))
        if not transfer.done():
            break
        transfer.wait()
    assert known == (None, None, True, True)


def test_each_end_is_reported_once(own: TransferEngine) -> None:
    _, store = small()
    transfers = [own.submit(store, store, [(0, 1)]) for _ in range(20)]
    transfers[3].wait()
    while not transfers[5].done():
        pass
    polled = own.poll()
    own.close()  # waits, and reports nothing
    polled += own.poll()
    wanted = [one.id for index, one in enumerate(transfers) if index not in (3, 5)]
    assert sorted(one.id for one in polled) == wanted
    assert own.poll() == []
    assert all(one.done() and one.error is None for one in transfers)


def test_an_end_after_a_timed_out_wait_is_still_reported(own: TransferEngine) -> None:
    _, store = small()
    told = 0
    for _ in range(TRIES):
        occupy(own)
        transfer = own.submit(store, store, [(0, 1)])
        try:
            transfer.wait(0)
        except errors.TransferTimeoutError:
            own.close()
            told = [one.id for one in own.poll()].count(transfer.id)
            break
    assert told == 1


def test_poll_reports_transfers_without_references(own: TransferEngine) -> None:
    _, store = small()
    for _ in range(63):
        own.submit(store, store, [(0, 1)])
    own.submit(store, store, [(0, 1)]).wait()  # these have ended
    own.submit(store, store, [(0, 1)]).wait()
    assert [one.id for one in own.poll()] == list(range(63))


def test_copies_of_nothing(own: TransferEngine) -> None:
    tensor, store = small()
    before = tensor.clone()
    for pairs in ([], [(2, 2)], torch.empty(0, 2, dtype=torch.int64), np.empty((0, 2), dtype=np.int64)):
        transfer = own.submit(store, store, pairs)
        transfer.wait()
        assert (transfer.nbytes, transfer.error) == (0, None)
        own.copy(store, store, pairs)
    assert torch.equal(tensor, before)


def test_wait_on_any_stream(own: TransferEngine) -> None:
    """On the CPU there are no streams. So the call itself waits, whatever stream is given."""
    tensor, store = small()
    for stream in ("current", None, 0, 7):
        tensor[1] = 0
        occupy(own, 1)
        transfer = own.submit(store, store, [(3, 1)], after=stream)
        transfer.wait_on(stream)
        assert torch.equal(tensor[1], tensor[3])
        assert transfer.done()


def test_closing_an_engine_waits() -> None:
    tensor, store = small(64)
    with TransferEngine(threads=1) as made:
        occupy(made)
        transfers = [made.submit(store, store, [(0, block)]) for block in range(1, 64)]
        assert not made.closed
    assert made.closed
    assert made.in_flight == 0
    assert torch.equal(tensor, tensor[:1].expand(64, 4))
    assert all(one.done() for one in transfers)
    made.close()
    assert isinstance(made.poll(), list)


def test_many_threads_close_an_engine() -> None:
    tensor, store = small(64)
    made = TransferEngine(threads=1)
    occupy(made)
    for block in range(1, 64):
        made.submit(store, store, [(0, block)])

    def close() -> bool:
        made.close()
        return torch.equal(tensor, tensor[:1].expand(64, 4))

    assert together(*[close] * 4) == [True] * 4


def test_transfers_of_a_closed_store_still_end(own: TransferEngine) -> None:
    tensor, store = small()
    occupy(own)
    transfer = own.submit(store, store, [(0, 1)])
    store.close()
    assert store.closed
    transfer.wait()
    assert torch.equal(tensor[0], tensor[1])
    store.close()


def test_a_handle_is_never_used_twice() -> None:
    handles = set()
    for _ in range(50):
        _, store = small()
        handles.add(store.handle)
    assert len(handles) == 50
    handle = store.handle
    del store
    gc.collect()
    _, other = small()
    for pair in ((handle, other.handle), (other.handle, handle)):
        with pytest.raises(errors.ClosedError, match=f"{handle}: it was dropped"):
            torch.ops.kvpool.copy_blocks_by_handle(*pair, torch.tensor([[0, 1]]))


def test_stores_and_tensors_live_until_the_end(own: TransferEngine) -> None:
    """The caller drops stores and tensors while they are copied. They are freed only after the copy has
    finished.
    """
    for _ in range(TRIES):
        source, memory = noise(8 * MIB, 1).reshape(8, MIB), np.zeros((8, MIB), dtype=np.uint8)
        target, content = torch.from_numpy(memory), source.numpy().copy()
        gone = [weakref.ref(source), weakref.ref(target)]
        here, there = BlockStore.from_tensors([source]), BlockStore.from_tensors([target])
        occupy(own)
        transfer = own.submit(here, there, [(block, block) for block in range(8)])
        del source, target, here, there
        dead = [one() is None for one in gone]
        under_way = not transfer.done()
        assert not any(dead) or np.array_equal(memory, content)
        transfer.wait()
        assert np.array_equal(memory, content)
        assert [one() for one in gone] == [None, None]
        if under_way:
            return
    pytest.fail("no transfer was under way when it was looked at")


def test_a_store_keeps_its_keep_alive_object() -> None:
    memory = noise(64, 1)
    store = BlockStore.from_regions([(memory.data_ptr(), 8, 8)], 8, keep_alive=memory)
    gone = weakref.ref(memory)
    del memory
    gc.collect()
    kept = gone()
    assert kept is not None
    assert store.read_block(7) == kept[56:].numpy().tobytes()
    del kept, store
    gc.collect()
    assert gone() is None
    tensor = noise(64, 1).view(8, 8)
    store = BlockStore.from_tensors([tensor], keep_alive=False)
    gone = weakref.ref(tensor)
    del tensor
    assert gone() is None
    assert not store.closed


def test_an_engine_may_be_dropped_under_its_transfers(own: TransferEngine) -> None:
    tensor, store = small()
    gate = occupy(own)
    transfer = TransferEngine(threads=1).submit(store, store, [(0, 1)], after=gate)
    gc.collect()
    gate.wait()
    transfer.wait(300)
    assert torch.equal(tensor[0], tensor[1])


def copy(on: TransferEngine, stores: tuple[BlockStore, BlockStore], pairs: Pairs) -> None:
    on.copy(*stores, pairs)


def submit_and_wait(on: TransferEngine, stores: tuple[BlockStore, BlockStore], pairs: Pairs) -> None:
    on.submit(*stores, pairs).wait()


def op(on: TransferEngine, stores: tuple[BlockStore, BlockStore], pairs: Pairs) -> None:
    torch.ops.kvpool.copy_blocks_by_handle(stores[0].handle, stores[1].handle, torch.tensor(pairs))


@pytest.mark.parametrize("way", [copy, submit_and_wait, op])
def test_other_threads_run_during_a_copy(
    own: TransferEngine, way: Callable[[TransferEngine, tuple[BlockStore, BlockStore], Pairs], None]
) -> None:
    """If the copy holds the interpreter, other threads cannot run. No other call in this test lets them
    run.
    """
    go, went = threading.Lock(), []

    def other() -> None:
        with go:
            went.append(True)

    pairs = [(block, block) for block in range(32)]
    stores = ballast()
    go.acquire()
    thread = threading.Thread(target=other)
    thread.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        go.release()
        for _ in range(TRIES):
            way(own, stores, pairs)
            if went:
                break
        ran = bool(went)
    finally:
        sys.setswitchinterval(before)
        thread.join()
    assert ran


def test_many_threads_on_one_engine(own: TransferEngine) -> None:
    """Each thread copies its own block repeatedly. The end of each transfer is reported to exactly one
    thread.
    """
    workers, rounds = 8, 40
    tensor = noise(workers * (rounds + 1) * 64, 1).reshape(-1, 64)
    store = BlockStore.from_tensors([tensor])
    wanted = tensor[:: rounds + 1].clone()

    def work(worker: int) -> tuple[list[int], list[int]]:
        row = worker * (rounds + 1)
        held: list[Transfer] = []
        told: list[int] = []
        for at in range(row, row + rounds):
            if at % 4 == 0:
                if held:
                    held[-1].wait()
                    told.append(held[-1].id)
                own.copy(store, store, [(at, at + 1)])
            else:
                held.append(own.submit(store, store, [(at, at + 1)]))
            if at % 7 == 0:
                told += [one.id for one in own.poll()]
                assert own.in_flight >= 0
        if held:
            held[-1].wait()
            told.append(held[-1].id)
        return [one.id for one in held], told

    results = together(*[functools.partial(work, worker) for worker in range(workers)])
    for at in range(rounds + 1):
        assert torch.equal(tensor[at :: rounds + 1], wanted)
    ids = sorted(one for held, _ in results for one in held)
    assert ids == list(range(len(ids)))
    own.close()
    told = {one for _, ends in results for one in ends} | {one.id for one in own.poll()}
    assert told == set(ids)


class _InterruptedError(Exception):
    pass


def test_a_wait_reacts_to_signals(own: TransferEngine) -> None:
    def interrupt(*_: object) -> None:
        raise _InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(TRIES):
            transfer = occupy(own, 30)
            with pytest.raises(_InterruptedError):  # noqa: PT012 - the signal may come at any time
                signal.setitimer(signal.ITIMER_REAL, 0.005)
                while True:
                    transfer.wait()
            under_way = not transfer.done()
            transfer.wait()
            if under_way:
                return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    pytest.fail("no wait was interrupted")


FORK = """
    import ctypes, os, signal, sys
    from kvpool import errors
    from kvpool._core.transfer import copy_by_handle
    from kvpool.transfer import BlockStore, TransferEngine

    def store_of(memory, nbytes):
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return BlockStore.from_regions([(address, nbytes, nbytes)], len(memory) // nbytes, keep_alive=memory)

    big = [store_of(bytearray(64 << 20), 1 << 20) for _ in range(2)]
    memory = bytearray(b"abcd")
    store = store_of(memory, 1)
    engine = TransferEngine(threads=1)
    copy_by_handle(store.handle, store.handle, [(0, 0)])  # makes the engine that ops share
    going = [engine.submit(*big, [(at, at) for at in range(64)]) for _ in range(24)]
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a hang ends the child
        code = 1
        try:
            CHILD
            code = 0
        finally:
            if code:
                import traceback

                traceback.print_exc()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    engine.close()
    assert all(one.done() and one.error is None for one in going)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


def in_a_child(code: str) -> None:
    """Forks while an engine has running transfers. Runs code in the child."""
    lines = textwrap.dedent(code).strip().splitlines()
    script = textwrap.dedent(FORK).replace("CHILD", ("\n" + " " * 8).join(lines))
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_engine_after_a_fork() -> None:
    in_a_child("""
        parent = str(os.getppid())
        for call in (engine.submit, engine.copy):
            try:
                call(store, store, [(0, 1)])
            except errors.ClosedError as error:
                assert parent in str(error) and str(os.getpid()) in str(error), error
            else:
                raise AssertionError(call)
        assert memory == b"abcd"
        assert isinstance(engine.poll(), list)
        assert not engine.closed
        # Ops and new engines work.
        copy_by_handle(store.handle, store.handle, [(0, 1)])
        assert memory == b"aacd"
        with TransferEngine(threads=1) as own:
            own.submit(store, store, [(0, 2)]).wait()
            own.copy(store, store, [(0, 3)])
        assert memory == b"aaaa"
        # Neither closing the parent's engine nor dropping it waits for a thread that this process does
        # not have.
        engine.close()
        assert engine.closed
        del engine
    """)


def test_an_engine_after_a_fork_outlives_its_parents() -> None:
    """The child drops the parent's engine first. By then the child's own thread may have the memory
    address of the parent's thread.
    """
    in_a_child("""
        import gc
        own = TransferEngine(threads=1)
        own.submit(store, store, [(0, 1)]).wait()
        del engine, going
        gc.collect()
        copy_by_handle(store.handle, store.handle, [(0, 2)])  # as does the one that ops share
        own.submit(store, store, [(0, 3)])
        own.close()
        assert memory == b"aaaa"
        # Nor is any other thread of the child's lost.
        from threading import Thread
        own = TransferEngine(threads=1)
        own.submit(store, store, [(0, 1)]).wait()
        threads = [Thread(target=own.close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    """)


def test_a_transfer_of_the_parent_cannot_be_awaited_after_a_fork() -> None:
    in_a_child("""
        assert not going[-1].done()
        for timeout in (None, 0, 0.01):
            try:
                going[-1].wait(timeout)
            except errors.ClosedError as error:
                assert str(os.getppid()) in str(error), error
            else:
                raise AssertionError(timeout)
        with TransferEngine(threads=1) as own:
            try:
                own.submit(store, store, [(0, 1)], after=going[-1])
            except errors.ClosedError:
                pass
            else:
                raise AssertionError("after")
            own.submit(store, store, [(0, 1)]).wait()
        assert memory == b"aacd"
    """)
