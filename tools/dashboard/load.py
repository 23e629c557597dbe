"""The load for ``dashboard_check.py``: chat sessions of four tenants, on a manager with all metrics and
a store.

Every prompt is the system prompt of its tenant, followed by the session so far. The device's pool is
too small for all sessions. So blocks are evicted, and are later loaded from the store. At times the
store is slow, full or unavailable, or its objects are damaged. Halfway through the load, more requests
arrive for a while. The random numbers are the same in every run, but the timing depends on the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
import time
from typing import TYPE_CHECKING, Final

import kvpool
from kvpool.errors import OutOfBlocksError
from kvpool.store import Arena, Custom, Namespace, PrefixStore, Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvpool.metrics import Metrics
    from kvpool.store import Prefetch

BLOCK: Final = 16
BLOCK_BYTES: Final = 4096
NAMESPACE: Final = Namespace(
    model="m",
    weights="w",
    kv_dtype="bf16",
    scales="",
    block_size=BLOCK,
    layouts=[],
    layers=(0, 1),
    heads=(0, 1),
    hash_algorithm="sha256",
    hash_seed=b"",
    extra={},
)


class FaultyBackend:
    """A back end in memory that can be slow, fail, and lose or damage objects. See
    ``kvpool.store.CustomBackend``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, bytes]] = {}
        self._draw = random.Random(5)
        #: Whether the back end is unavailable.
        self.down = False

    def _trouble(self) -> float:
        with self._lock:
            drawn = self._draw.random()
        if self.down:
            raise OSError("out of order")
        time.sleep(0.0005 if drawn > 0.002 else 0.7)
        return drawn

    def write(self, name: str, header: bytes, address: int, length: int) -> None:
        self._trouble()
        self._objects[name] = header, ctypes.string_at(address, length)

    def read(self, name: str, address: int, length: int) -> bytes | None:
        drawn = self._trouble()
        found = self._objects.get(name)
        if found is None or drawn > 0.994:
            return None
        header, payload = found
        if drawn > 0.99:
            payload = payload[:-1] + bytes([payload[-1] ^ 1])
        ctypes.memmove(address, payload[:length], min(length, len(payload)))
        return header

    def exist(self, names: list[str]) -> list[bool]:
        self._trouble()
        return [name in self._objects for name in names]

    def remove(self, names: list[str]) -> None:
        for name in names:
            self._objects.pop(name, None)


class Session:
    """One user's conversation with the model so far."""

    def __init__(self, draw: random.Random, number: int) -> None:
        self.tenant = draw.choice((1, 1, 1, 2, 2, 3, 4))
        self.tokens = [self.tenant] * (160 * self.tenant) + [1000 + number]
        self.turns = draw.randrange(4, 14)


class Request:
    """A running turn."""

    def __init__(self, session: Session, answer: int) -> None:
        self.session, self.left = session, answer


class Load:
    """A scheduler that serves the sessions, and the manager and store that it uses."""

    def __init__(self, metrics: Metrics) -> None:
        self._draw = random.Random(7)
        self._manager = kvpool.CacheManager(
            1401,
            BLOCK,
            host_blocks=400,
            retention=True,
            advisor=True,
            explain=True,
            metrics=True,
            watermark=0.02,
        )
        arena = Arena(slots=256, slot_bytes=BLOCK_BYTES)
        self.backend = FaultyBackend()
        self._store = Store(
            Custom(self.backend, 12 << 20),
            arena,
            NAMESPACE,
            admission="always",
            staged=True,
            deadline=0.5,
            workers=8,
            breaker_pause=3.0,
            believed_for=60.0,
        )
        self._prefixes = PrefixStore(
            self._manager, self._store, arena, copy_in=self._copy, copy_out=self._copy
        )
        metrics.add("main", self._manager)
        metrics.add("disk", self._store)
        self._sessions = [Session(self._draw, number) for number in range(120)]
        self._asking: set[int] = set()
        self._waiting: list[tuple[int, Prefetch]] = []
        self._running: dict[int, Request] = {}
        self._preempted: list[int] = []
        self._swapped: list[int] = []
        self._owner: dict[int, int] = {}
        self._number = 0
        self._steps = 0

    def _copy(self, pairs: list[tuple[int, int]]) -> None:
        """Replaces the copy of a block's bytes. It does nothing, because the blocks of this load have
        no bytes.
        """

    def step(self, arrivals: float) -> None:
        """Runs one iteration of the scheduler. ``arrivals`` is the average number of new requests."""
        self._steps += 1
        self._manager.clock.advance(time.monotonic())
        self._prefixes.poll()
        for _ in range(int(arrivals) + (self._draw.random() < arrivals % 1)):
            self._arrive()
        self._admit()
        self._decode()
        self._make_room()

    def _arrive(self) -> None:
        idle = [at for at in range(len(self._sessions)) if at not in self._asking]
        if not idle:
            return
        # Choose a few of the sessions far more often than the others.
        at = idle[min(int(self._draw.paretovariate(0.6)) - 1, self._draw.randrange(len(idle)))]
        session = self._sessions[at]
        if session.turns == 0:
            session = self._sessions[at] = Session(self._draw, 1000 + self._number)
        session.turns -= 1
        session.tokens += [self._draw.randrange(2000, 30000) for _ in range(self._draw.randrange(20, 250))]
        self._asking.add(at)
        self._number += 1
        self._owner[self._number] = at
        self._waiting.append((self._number, self._prefixes.prefetch(session.tokens)))

    def _admit(self) -> None:
        for number, prefetch in self._waiting[:4]:
            session = self._sessions[self._owner[number]]
            hints: list[tuple[int, int | None, kvpool.Retention]] | None = None
            if number % 5 == 0:
                hints = [(0, 160 * session.tenant, kvpool.Retention(80, ttl=20.0))]
            elif number % 7 == 0:
                hints = [(0, None, kvpool.Retention(10))]
            try:
                self._prefixes.admit(number, prefetch, loading=True, tenant=session.tenant, retention=hints)
            except OutOfBlocksError:
                return
            self._waiting.pop(0)
            self._running[number] = Request(session, self._draw.randrange(20, 120))

    def _decode(self) -> None:
        for number in [one for one in self._running if self._manager.request(one).state == "running"]:
            request = self._running[number]
            token = self._draw.randrange(2000, 30000)
            try:
                self._manager.append([number], [token], commit=True)
            except OutOfBlocksError:
                self._manager.preempt(number)
                self._preempted.append(number)
                continue
            request.session.tokens.append(token)
            request.left -= 1
            if request.left <= 0:
                self._prefixes.save(number)
                if request.session.turns == 0:
                    self._manager.retention.end_session(number)
                if number in self._manager:
                    self._manager.release(number)
                del self._running[number]
                self._asking.discard(self._owner.pop(number))

    def _make_room(self) -> None:
        """If many requests run, moves one to the host tier or preempts one. If few run, restores such a
        request.
        """
        running = [one for one in self._running if self._manager.request(one).state == "running"]
        if len(running) > 18 and self._steps % 20 == 0:
            with contextlib.suppress(OutOfBlocksError):
                swap = self._manager.swaps.begin_out(running[-1:])
                self._manager.take_plan()
                self._manager.swaps.complete(swap)
                self._swapped.append(running[-1])
        elif len(running) > 18 and self._steps % 30 == 5:
            self._manager.preempt(running[-1])
            self._preempted.append(running[-1])
        elif len(running) < 14 and self._swapped:
            with contextlib.suppress(OutOfBlocksError):
                swap = self._manager.swaps.begin_in(self._swapped[:1])
                self._manager.take_plan()
                self._manager.swaps.complete(swap)
                self._swapped.pop(0)
        if self._preempted and len(running) < 16:
            with contextlib.suppress(OutOfBlocksError):
                one = self._preempted[0]
                self._manager.resume(one)
                self._manager.commit(one, self._manager.request(one).tokens - 1)
                self._preempted.pop(0)

    def close(self) -> None:
        """Closes the store."""
        self._store.close()


@contextlib.contextmanager
def load(metrics: Metrics, steps_per_second: float = 50) -> Iterator[threading.Event]:
    """Runs the load in a thread until the context ends. Sets the event if the load fails."""
    work, over, failed = Load(metrics), threading.Event(), threading.Event()
    started = time.monotonic()

    def run() -> None:
        try:
            step = 0
            while not over.wait(max(0.0, started + step / steps_per_second - time.monotonic())):
                at = time.monotonic() - started
                work.backend.down = 52 <= at < 55
                work.step(0.6 if 28 <= at < 33 else 0.2)
                step += 1
        except BaseException:
            failed.set()
            raise

    thread = threading.Thread(target=run, name="load")
    thread.start()
    try:
        yield failed
    finally:
        over.set()
        thread.join()
        work.close()
