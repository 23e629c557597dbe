"""Checks copies at offsets beyond 2^31 and 2^32 bytes, where products of 32-bit numbers would overflow."""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING

from kvpool.transfer import BlockStore

from .memory import DeviceMemory
from .session import GIB, KIB, METHODS, Skip, expect, rng

if TYPE_CHECKING:
    from collections.abc import Callable

    from .session import Method, Session

_ALWAYS: tuple[Method, ...] = ("kernel", "memcpy")
_PIECE = 256 * KIB
_BORDERS = (0, (1 << 31) // _PIECE, (1 << 32) // _PIECE)
_NUM_BLOCKS = _BORDERS[-1] + 16
#: Blocks near each border of 2^31 or 2^32 bytes. Some are copied, and their neighbours must not change.
_WATCHED = sorted({border + step for border in _BORDERS for step in range(-3, 5) if border + step >= 0})


class _Mapped:
    """Host memory that only uses the pages that are written. In a dry run it replaces device memory."""

    def __init__(self, nbytes: int) -> None:
        self.map = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))


def _large(session: Session, nbytes: int) -> tuple[int, object]:
    """Return the address of large device memory, and the object that keeps it allocated."""
    if session.dry_run and session.driver.is_fake:
        mapped = _Mapped(nbytes)
        return mapped.address, mapped
    free = session.driver.free_memory
    if free < nbytes + GIB:
        raise Skip(f"needs {nbytes / GIB:.1f} GiB on the device; {free / GIB:.1f} GiB are free")
    memory = DeviceMemory(session.driver, nbytes)
    return memory.address, memory


def host_has(nbytes: int) -> bool:
    """Return whether this number of bytes can be page-locked without slowing the machine down."""
    with open("/proc/meminfo") as lines:  # noqa: PTH123  # no file of ours
        fields = dict(line.split(":") for line in lines)
    return int(fields["MemAvailable"].split()[0]) * KIB > 2 * nbytes


class _Blocks:
    """A store, the functions that read and write its blocks, and the expected content of each block."""

    def __init__(
        self, store: BlockStore, read: Callable[[int], bytes], write: Callable[[int, bytes], None]
    ) -> None:
        self.store, self.read, self.write = store, read, write
        self.wanted: dict[int, bytes] = {}

    def assign(self, block: int, data: bytes) -> None:
        """Write a block."""
        self.write(block, data)
        self.wanted[block] = data

    def differ(self) -> list[int]:
        """Return the blocks whose content differs from the expected content."""
        return [block for block, data in self.wanted.items() if self.read(block) != data]


def _on_device(session: Session) -> _Blocks:
    address, memory = _large(session, _NUM_BLOCKS * _PIECE)
    store = BlockStore.from_regions(
        [(address, _PIECE, _PIECE)], _NUM_BLOCKS, device=session.device, keep_alive=memory
    )
    return _Blocks(
        store,
        lambda block: session.driver.take(address + block * _PIECE, _PIECE),
        lambda block, data: session.driver.put(address + block * _PIECE, data),
    )


def _copy(session: Session, src: _Blocks, dst: _Blocks, method: Method, salt: int) -> None:
    """Copy some of the watched blocks, and check all of them."""
    numbers = rng((method, salt))
    ids = numbers.sample(_WATCHED, len(_WATCHED))
    half = len(ids) // 2
    pairs = list(zip(ids[:half], ids[half:], strict=False))
    for number in ids:
        for one in (src, dst):
            one.assign(number, numbers.randbytes(64) * (_PIECE // 64))
    session.finish(session.engine.submit(src.store, dst.store, pairs, after=None, method=method))
    for source, target in pairs:
        dst.wanted[target] = src.wanted[source]
    wrong = src.differ() + dst.differ()
    expect(not wrong, f"{method} from {src.store} to {dst.store}: blocks {wrong[:8]} are wrong")


def _far_blocks(session: Session) -> None:
    with session.check("offsets beyond 2^31 and 2^32 bytes") as notes:
        device = _on_device(session)
        ends: list[tuple[_Blocks, _Blocks]] = [(device, device)]
        if host_has(_NUM_BLOCKS * _PIECE) or session.dry_run:
            pool = BlockStore.host(_NUM_BLOCKS, device.store, pinned=True)
            host = _Blocks(pool, pool.read_block, pool.write_block)
            ends += [(device, host), (host, device)]
        else:
            notes.append("NOT over the link: too little host memory")
        for salt, (src, dst) in enumerate(ends):
            for method in METHODS:
                if (method != "batch" or session.driver.has_batch) and (method != "staged" or src is not dst):
                    _copy(session, src, dst, method, salt)
                session.clock.tick()


def _wide_stride(session: Session) -> None:
    with session.check("a stride of more than 2^32 bytes"):
        stride = (1 << 32) + 8 * KIB
        address, memory = _large(session, stride + _PIECE)
        store = BlockStore.from_regions(
            [(address, stride, _PIECE)], 2, device=session.device, keep_alive=memory
        )
        data = rng("stride").randbytes(_PIECE)
        for method in _ALWAYS:
            for src, dst in ((0, 1), (1, 0)):
                session.driver.put(address + src * stride, data)
                session.driver.put(address + dst * stride, bytes(_PIECE))
                session.engine.submit(store, store, [(src, dst)], after=None, method=method).wait(60)
                found = session.driver.take(address + dst * stride, _PIECE)
                expect(found == data, f"{method} of block {src} to block {dst} went elsewhere")


def _large_piece(session: Session) -> None:
    with session.check("a piece of more than 2^32 bytes"):
        if session.dry_run:
            raise Skip("dry run: it would touch 8 GiB")
        nbytes = (1 << 32) + 48 * KIB
        address, memory = _large(session, 2 * nbytes)
        store = BlockStore.from_regions(
            [(address, nbytes, nbytes)], 2, device=session.device, keep_alive=memory
        )
        marks = [0, 16 * KIB - 64, (1 << 31) - 64, 1 << 31, (1 << 32) - 64, 1 << 32, nbytes - 64]
        numbers = rng("piece")
        for mark in marks:
            session.driver.put(address + mark, numbers.randbytes(64))
        session.engine.submit(store, store, [(0, 1)], after=None, method="kernel").wait(60)
        for mark in marks:
            same = session.driver.take(address + mark, 64) == session.driver.take(address + nbytes + mark, 64)
            expect(same, f"the 64 bytes at {mark} were not copied")


def check(session: Session) -> None:
    """Run the checks."""
    _far_blocks(session)
    _wide_stride(session)
    _large_piece(session)
