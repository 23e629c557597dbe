"""Order between streams: producers, copies and consumers without a wait by the host; and many copies at once."""

from __future__ import annotations

import functools
import resource
import time
import zlib
from typing import TYPE_CHECKING

from kvpool.errors import InvalidArgumentError
from kvpool.transfer import BlockStore

from .memory import DeviceMemory, Region
from .session import KIB, METHODS, MIB, expect, expect_refused, rng

if TYPE_CHECKING:
    from kvpool.transfer import Transfer

    from .session import Method, Session

_REGIONS, _PIECE = 2, 8 * KIB
_BLOCK = _REGIONS * _PIECE
_PATTERNS, _BLOCKS = 64, 4
_STALE = 0xEE
#: None and 1 are the legacy default stream, 2 is the thread's own.
_ON_SPECIAL_STREAMS: tuple[tuple[int | None, Method], ...] = (
    (None, "auto"),
    (1, "auto"),
    (2, "auto"),
    (None, "staged"),
    (2, "batch"),
)


def _planes(address: int, num_blocks: int) -> list[Region]:
    return [(address + region * num_blocks * _PIECE, _PIECE, _PIECE) for region in range(_REGIONS)]


def _packed(address: int) -> list[Region]:
    return [(address + region * _PIECE, _BLOCK, _PIECE) for region in range(_REGIONS)]


class _Patterns:
    """Blocks of known bytes on the device, and their checksums."""

    def __init__(self, session: Session) -> None:
        memory = DeviceMemory(session.driver, _PATTERNS * _BLOCK)
        blocks = [rng(("pattern", number)).randbytes(_BLOCK) for number in range(_PATTERNS)]
        memory.write(b"".join(blocks))
        self.sums = [zlib.crc32(block) for block in blocks]
        self.store = BlockStore.from_regions(
            _packed(memory.address), _PATTERNS, device=session.device, keep_alive=memory
        )


class _Lane:
    """A producer and a consumer with memory of their own, one round under way at a time."""

    def __init__(self, session: Session, patterns: _Patterns, scratch: DeviceMemory) -> None:
        self._session, self._patterns, self._scratch = session, patterns, scratch
        self._producer, self._consumer = session.driver.stream(), session.driver.stream()
        self._written = DeviceMemory(session.driver, _BLOCKS * _BLOCK)
        self._seen = DeviceMemory(session.driver, _BLOCKS * _BLOCK)
        back = DeviceMemory(session.driver, _BLOCKS * _BLOCK)

        def store(regions: list[Region], memory: DeviceMemory) -> BlockStore:
            return BlockStore.from_regions(regions, _BLOCKS, device=session.device, keep_alive=memory)

        self._device = store(_planes(self._written.address, _BLOCKS), self._written)
        self._back = store(_planes(back.address, _BLOCKS), back)
        self._result = store(_packed(self._seen.address), self._seen)
        self._host = BlockStore.host(_BLOCKS, self._device, pinned=True)
        self._copies: list[Transfer] = []
        self._wanted: list[int] = []
        self._method = ""

    def begin(self, number: int, method: Method) -> None:
        """Enqueues a round; nothing in it waits for the host.

        A kernel writes blocks late, a transfer takes them to the host, and the consumer overwrites them when it may;
        another transfer takes them back, and a kernel of the consumer's copies them to where they are looked at.
        """
        session, engine = self._session, self._session.engine
        numbers = rng(("round", number))
        chosen = numbers.sample(range(_PATTERNS), _BLOCKS)
        self._wanted = [self._patterns.sums[one] for one in chosen]
        self._method = method
        half = self._scratch.nbytes // 2
        session.driver.copy(self._scratch.address + half, self._scratch.address, half, self._producer)
        engine.copy(
            self._patterns.store, self._device, list(zip(chosen, range(_BLOCKS), strict=True)), stream=self._producer
        )
        same = [(block, block) for block in range(_BLOCKS)]
        out = engine.submit(self._device, self._host, same, after=self._producer, method=method)
        out.wait_on(self._consumer)
        session.driver.memset(self._written.address, _STALE, self._written.nbytes, self._consumer)
        back = engine.submit(self._host, self._back, same, after=out, method=method)
        back.wait_on(self._consumer)
        engine.copy(self._back, self._result, same, stream=self._consumer)
        # The next producer writes what this consumer overwrites.
        session.driver.follow(self._producer, self._consumer)
        self._copies = [out, back]

    def end(self) -> None:
        """Waits for the round, and looks at its checksums."""
        if not self._copies:
            return
        self._session.driver.synchronize(self._consumer)
        for transfer in self._copies:
            expect(transfer.done(), f"{transfer} is waited for by the consumer, and has not ended")
        host = [zlib.crc32(self._host.read_block(block)) for block in range(_BLOCKS)]
        expect(host == self._wanted, f"by {self._method}: the host's blocks are not what the producer wrote")
        bytes_seen = self._seen.read(0, self._seen.nbytes)
        seen = [zlib.crc32(bytes_seen[block * _BLOCK : (block + 1) * _BLOCK]) for block in range(_BLOCKS)]
        expect(seen == self._wanted, f"by {self._method}: the consumer has not seen what the producer wrote")
        self._copies = []

    def close(self) -> None:
        """Gives the streams back."""
        for stream in (self._producer, self._consumer):
            self._session.driver.close_stream(stream)


def _producers_and_consumers(session: Session) -> None:
    with session.check("producer, copies, consumer") as notes:
        methods = [method for method in METHODS if method != "batch" or session.driver.has_batch]
        scratch = DeviceMemory(session.driver, 2 * session.effort.delay)
        patterns = _Patterns(session)
        lanes = [_Lane(session, patterns, scratch) for _ in range(2)]
        end = time.monotonic() + min(session.effort.round_seconds, session.clock.left)
        rounds = 0
        while rounds < session.effort.rounds and (time.monotonic() < end or rounds < len(methods)):
            lane = lanes[rounds % 2]
            lane.end()
            lane.begin(rounds, methods[rounds // 2 % len(methods)])
            rounds += 1
        for lane in lanes:
            lane.end()
            lane.close()
        notes.append(f"{rounds} rounds over two pairs of streams, by {', '.join(methods)}")


def _special_streams(session: Session) -> None:
    with session.check("legacy and per-thread default stream"):
        patterns = _Patterns(session)
        host = BlockStore.host(_PATTERNS, patterns.store, pinned=True)
        ids = [(block, block ^ 1) for block in range(_PATTERNS)]
        for legacy in (None, 0, 1):
            batch = functools.partial(session.engine.copy, patterns.store, host, ids, stream=legacy, method="batch")
            expect_refused(InvalidArgumentError, f"a batch on stream {legacy}", batch)
        for handle, method in _ON_SPECIAL_STREAMS:
            if method == "batch" and not session.driver.has_batch:
                continue
            for block in range(_PATTERNS):
                host.write_block(block, bytes(_BLOCK))
            session.engine.copy(patterns.store, host, ids, stream=handle, method=method)
            session.driver.synchronize(handle or 0)
            found = [zlib.crc32(host.read_block(dst)) for _, dst in ids]
            expect(found == patterns.sums, f"{method} on stream {handle}: bytes differ")


def _resident() -> int:
    """Bytes of this process that were in memory at once, at the most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


class _Soak:
    """Copies at random. What is read is never written: nothing here waits for anything."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._numbers = rng("soak")
        self._source = _Patterns(session).store
        memory = DeviceMemory(session.driver, _PATTERNS * _BLOCK)
        self._sink = BlockStore.from_regions(
            _packed(memory.address), _PATTERNS, device=session.device, keep_alive=memory
        )
        hosts = [[BlockStore.host(_PATTERNS, self._source, pinned=one) for one in (True, False)] for _ in range(2)]
        self._host_sources, self._host_sinks = hosts
        self.submitted = 0

    def round(self) -> None:
        """Thirty-two transfers under way together, and their end."""
        numbers, engine = self._numbers, self._session.engine
        for _ in range(32):
            src, dst = self._source, numbers.choice(self._host_sinks)
            if numbers.random() < 0.5:
                src, dst = numbers.choice(self._host_sources), self._sink
            count = numbers.choice((1, 8, _PATTERNS))
            ids = (numbers.sample(range(_PATTERNS), count) for _ in range(2))
            engine.submit(src, dst, list(zip(*ids, strict=True)), after=None)
            self.submitted += 1
        while engine.in_flight:
            errors = [transfer.error for transfer in engine.poll() if transfer.error]
            expect(not errors, f"transfers failed: {errors[:3]}")


def _soak(session: Session) -> None:
    with session.check("many copies at once, for a while") as notes:
        soak = _Soak(session)
        soak.round()
        soak.round()
        free, resident = session.driver.free_memory, _resident()
        end = time.monotonic() + min(session.effort.soak_seconds, session.clock.left)
        while time.monotonic() < end:
            soak.round()
        taken, grown = free - session.driver.free_memory, _resident() - resident
        notes.append(f"{soak.submitted} transfers")
        notes.append(f"device memory {taken / MIB:+.1f} MiB, process {grown / MIB:+.1f} MiB")
        expect(taken < 16 * MIB, f"{taken} bytes of the device were not given back")
        expect(grown < 64 * MIB, f"the process has grown by {grown} bytes")


def check(session: Session) -> None:
    """Runs the section."""
    _producers_and_consumers(session)
    _special_streams(session)
    _soak(session)
