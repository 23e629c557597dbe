"""Memory of every kind, random layouts of blocks in it, and a twin of each layout on the host.

Each copy is made twice: on the device, and by the CPU twin over the same bytes. Afterwards all bytes of
both memories have to be equal, including the bytes around and between the blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from typing import TYPE_CHECKING, Protocol

from kvpool.transfer import BlockStore

from .driver import DriverError
from .session import expect

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from .driver import Driver

#: The pieces that all blocks have in one region of memory: the address of block 0's piece, the bytes
#: from one block's piece to the next, and the bytes of a piece.
Region = tuple[int, int, int]

#: Number of bytes at each end of a layout that belong to no block. A wrong copy might change them.
GUARD = 256


class Memory(Protocol):
    """A piece of memory of some kind. Python frees the memory together with this object."""

    address: int
    nbytes: int

    def write(self, data: bytes) -> None:
        """Copy bytes to the start of the memory."""

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read a part."""


def _give_back(driver: Driver, free: Callable[[int], None], address: int) -> None:
    """Free memory, from any thread. If the context is lost, its memory is already freed."""
    with contextlib.suppress(DriverError):
        driver.enter()
        free(address)


class DeviceMemory:
    """Memory on the device."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self.nbytes = nbytes
        self._driver = driver
        self.address = driver.alloc(nbytes)

    def write(self, data: bytes) -> None:
        """Copy bytes to the start of the memory."""
        self._driver.put(self.address, data)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read a part."""
        return self._driver.take(self.address + offset, nbytes)

    def __del__(self) -> None:
        if address := getattr(self, "address", 0):
            _give_back(self._driver, self._driver.free, address)


class HostMemory:
    """Memory of this process. If there is a driver, it is page-locked."""

    def __init__(self, nbytes: int, driver: Driver | None = None) -> None:
        self.nbytes = nbytes
        self._driver = driver
        if driver is None:
            self._buffer = ctypes.create_string_buffer(nbytes)
            self.address = ctypes.addressof(self._buffer)
        else:
            self.address = driver.host_alloc(nbytes)

    def write(self, data: bytes) -> None:
        """Copy bytes to the start of the memory."""
        ctypes.memmove(self.address, data, len(data))

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read a part."""
        return ctypes.string_at(self.address + offset, nbytes)

    def __del__(self) -> None:
        if self._driver is not None and (address := getattr(self, "address", 0)):
            _give_back(self._driver, self._driver.host_free, address)


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Where the pieces of all blocks are in some memory."""

    name: str
    #: Regions of the layout. They have offsets from the start of the memory instead of addresses.
    regions: tuple[Region, ...]
    num_blocks: int
    #: Number of bytes of the whole memory, including the guards at both ends.
    nbytes: int

    def at(self, address: int) -> list[Region]:
        """Return the regions of this layout in memory that begins at an address."""
        return [(address + offset, stride, nbytes) for offset, stride, nbytes in self.regions]

    def owner(self, offset: int) -> str:
        """Describe the region and the block that contain a byte, for messages."""
        for index, (base, stride, nbytes) in enumerate(self.regions):
            block, within = divmod(offset - base, stride)
            if 0 <= block < self.num_blocks and within < nbytes:
                return f"byte {within} of region {index} of block {block}"
        return "a byte of no block"


@dataclasses.dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of each block: the number of bytes of each piece, a multiple of the element's size."""

    element: int
    sizes: tuple[int, ...]


def random_pieces(rng: random.Random, limit: int) -> Pieces:
    """Choose random pieces for blocks of at most ``limit`` bytes."""
    element = rng.choice((1, 2, 4, 8))
    count = rng.choice((1, 2, 3, 8))

    def size() -> int:
        return rng.choice((1, 3, 16)) * rng.choice((1, 2, 8)) * rng.choice((1, 5, 64, 128, 576)) * element

    # Sometimes choose pieces of different sizes, because the layers of some models differ in size.
    sizes = [size() for _ in range(count)] if rng.random() < 0.25 else [size()] * count
    most = limit // count // element * element
    return Pieces(element, tuple(min(one, most) for one in sizes))


def random_layout(
    rng: random.Random, pieces: Pieces, limit: int, shape: str = "", num_blocks: int | None = None
) -> Layout:
    """Choose a layout that an engine might use for blocks of these pieces.

    Args:
        rng: The source of random numbers.
        pieces: The pieces of a block.
        limit: Approximate size of the memory in bytes.
        shape: ``planes`` (each piece in a separate plane), ``side by side`` (the pieces of a block next
            to each other, with unused bytes between them), or ``packed`` (without unused bytes). None
            chooses one at random.
        num_blocks: The number of blocks. If given, ``limit`` does not apply.
    """
    shape = shape or rng.choice(("planes", "planes", "side by side", "packed"))
    if num_blocks is None:
        num_blocks = max(2, min(rng.choice((3, 17, 64, 700)), limit // sum(pieces.sizes)))
    # Elements are aligned to their size, but blocks need not be aligned.
    start = GUARD + pieces.element * rng.choice((0, 0, 1, 3))
    hole = 0 if shape == "packed" else pieces.element * rng.choice((0, 0, 1, 16, 48))
    regions: list[Region] = []
    if shape == "planes":
        for nbytes in pieces.sizes:
            stride = nbytes + hole
            regions.append((start, stride, nbytes))
            start += num_blocks * stride + hole
        end = start
    else:
        stride = sum(pieces.sizes) + hole * len(pieces.sizes)
        end = start + num_blocks * stride
        for nbytes in pieces.sizes:
            regions.append((start, stride, nbytes))
            start += nbytes + hole
    return Layout(shape, tuple(regions), num_blocks, end + GUARD)


class Blocks(Protocol):
    """A store, and its twin on the host that has the same bytes."""

    name: str
    store: BlockStore
    twin: BlockStore

    def refill(self, rng: random.Random) -> None:
        """Write the same new random bytes to the store and to its twin."""

    def check(self) -> None:
        """Fail unless all bytes of the store and of its twin are equal."""


class LaidOut:
    """Blocks with a random layout in memory. Their check compares every byte of the memory."""

    def __init__(self, memory: Memory, layout: Layout, kind: str, device: str = "cpu") -> None:
        self.name = f"{kind}, {layout.name}"
        self._layout, self._memory, self._copy = layout, memory, HostMemory(layout.nbytes)
        self.store = BlockStore.from_regions(
            layout.at(memory.address),
            layout.num_blocks,
            device=device,
            pinned=kind == "pinned",
            keep_alive=memory,
        )
        self.twin = BlockStore.from_regions(
            layout.at(self._copy.address), layout.num_blocks, keep_alive=self._copy
        )

    def refill(self, rng: random.Random) -> None:
        """Write the same new random bytes to the store and to its twin."""
        data = rng.randbytes(self._layout.nbytes)
        self._memory.write(data)
        self._copy.write(data)

    def check(self) -> None:
        """Fail unless all bytes of the store and of its twin are equal."""
        found = self._memory.read(0, self._layout.nbytes)
        wanted = self._copy.read(0, self._layout.nbytes)
        if found != wanted:
            at = next(
                index
                for index, (mine, theirs) in enumerate(zip(found, wanted, strict=True))
                if mine != theirs
            )
            count = sum(mine != theirs for mine, theirs in zip(found, wanted, strict=True))
            expect(False, f"{self.name}: {count} bytes differ, first {self._layout.owner(at)}")


class Pool:
    """Blocks of a host pool that kvpool allocated."""

    def __init__(self, num_blocks: int, like: BlockStore, *, pinned: bool) -> None:
        self.name = "pinned pool" if pinned else "pageable pool"
        self.store = BlockStore.host(num_blocks, like, pinned=pinned)
        self.twin = BlockStore.host(num_blocks, like, pinned=False)

    def refill(self, rng: random.Random) -> None:
        """Write the same new random bytes to the store and to its twin."""
        for block in range(self.store.num_blocks):
            data = rng.randbytes(self.store.bytes_per_block)
            self.store.write_block(block, data)
            self.twin.write_block(block, data)

    def check(self) -> None:
        """Fail unless all bytes of the store and of its twin are equal."""
        differ = [
            block
            for block in range(self.store.num_blocks)
            if self.store.read_block(block) != self.twin.read_block(block)
        ]
        expect(not differ, f"{self.name}: blocks {differ[:8]} differ")


def random_pairs(rng: random.Random, sources: Sequence[int], targets: Sequence[int]) -> list[tuple[int, int]]:
    """Return a mapping in which no block occurs twice.

    The pairs are scattered, or form ascending or descending runs of adjacent blocks.
    """
    most = min(len(sources), len(targets))
    count = rng.choice((1, min(3, most), most, most))
    src, dst = rng.sample(sources, count), rng.sample(targets, count)
    if rng.random() < 0.4:
        first, to = rng.randrange(len(sources) - count + 1), rng.randrange(len(targets) - count + 1)
        src, dst = list(sources[first : first + count]), list(targets[to : to + count])
        if rng.random() < 0.5:
            src.reverse()
            dst.reverse()
    return list(zip(src, dst, strict=True))
