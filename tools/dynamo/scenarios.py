"""Scenarios with a worker, that is a manager with a publisher of KV events, and Dynamo's indexer. Each
scenario ends with a comparison of their contents.

The expected content is computed from the manager's own events, and not from the publisher. Blocks whose
parents are missing are excluded. A manager with tiers below the device does not report the changes of
these tiers in Python. In that case the publisher's snapshot is the expected content. The tests of
kvpool-observe compare this snapshot with the pools, block by block.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import kvpool
from kvpool.events import Publisher, ZmqSink
from tests.events.consumers import Vllm
from tools.dynamo.indexer import PATIENCE, DifferenceError, Held, Indexer, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kvpool.events import Form

BLOCK: Final = 4
#: Number of random histories after which a new worker replaces the old one, as after a restart.
PER_LIFE: Final = 50


class Leaky(ZmqSink):
    """A sink of events that can lose batches, as a socket does if its subscriber reads too slowly."""

    drops = False
    full = False

    def send(self, number: int, batch: bytes) -> bool:
        """Sends a batch, loses it, or refuses it, depending on the attributes of this sink."""
        if self.full:
            return False
        return True if self.drops else super().send(number, batch)

    def has_room(self) -> bool:
        """Returns whether the sink may accept another batch."""
        return not self.full


class Worker:
    """A manager, its publisher, and the content that the indexer should have."""

    # Start time of the most recent worker, in seconds. The start times of two workers differ by at
    # least a second, as those of restarted processes do.
    lives = int(time.time())

    def __init__(
        self,
        number: int,
        *,
        form: Form = "vllm",
        endpoints: tuple[str, str | None] = ("tcp://127.0.0.1:*", "tcp://127.0.0.1:*"),
        base: int | None = None,
        blocks: int = 64,
        host: int = 0,
        capacity: int = 1 << 20,
    ) -> None:
        self.number = number
        self.form = form
        self.host = host
        self.manager = kvpool.CacheManager(blocks, block_size=BLOCK, host_blocks=host, event_capacity=1 << 20)
        self.sink = Leaky(*endpoints, form=form)
        Worker.lives += 1
        self.publisher = Publisher(
            self.manager,
            [self.sink],
            base=Worker.lives << 20 if base is None else base,
            heartbeat=0.05,
            capacity=capacity,
            start=False,
        )
        #: The blocks that the manager has reported: each hash, with the hash of the block before it.
        self._cached: dict[bytes, bytes | None] = {}
        self._requests = 0

    def close(self) -> None:
        """Closes the worker after all requests for lost batches are answered. A closed worker cannot
        answer, and the indexer would wait forever.
        """
        quiet = 0
        while quiet < 40:  # counted in turns, not in seconds, so that a slow machine cannot shorten it
            quiet = 0 if self.publisher.flush() else quiet + 1
            time.sleep(0.005)
        self.publisher.close()

    def endpoints(self) -> tuple[str, str | None]:
        return self.sink.endpoint, self.sink.replay_endpoint

    def serve(self, prompt: list[int], *, keep: bool = False) -> int:
        """Computes a prompt. Releases its request unless ``keep`` is set. Returns the request."""
        self._requests += 1
        self.manager.admit(self._requests, prompt)
        self.manager.commit(self._requests, len(prompt))
        if not keep:
            self.manager.release(self._requests)
        return self._requests

    def number_of(self, digest: bytes) -> int:
        """Returns a block hash as the unsigned number that the indexer prints for this format of
        events.
        """
        return int.from_bytes(digest[:8] if self.form.startswith("sglang") else digest[-8:], "big")

    def holds(self) -> Held:
        """Returns the blocks of the worker's pools whose parents are present, too."""
        if self.host:
            return self._snapshot()
        events, lost = self.manager.take_events()
        if lost:
            raise DifferenceError("the manager's own events overflowed")
        for event in events:
            if event["type"] == "stored":
                self._cached[event["hash"]] = event["parent"]
            elif event["type"] == "removed":
                del self._cached[event["hash"]]
            else:
                self._cached.clear()
        reached: Held = set()
        for digest in self._cached:
            at: bytes | None = digest
            while at is not None and at in self._cached:
                at = self._cached[at]
            if at is None:
                reached.add((0, self.number_of(digest)))
        return reached

    def _snapshot(self) -> Held:
        reader = Vllm()
        self.publisher.flush()
        for number, batch in enumerate(self.publisher.snapshot().batches):
            reader.take(number, batch)
        media = {"GPU": 0, "CPU": 1, "STORAGE": 2}
        return {(media[medium], one) for medium, hashes in reader.held.items() for one in hashes}


def differs(indexer: Indexer, worker: Worker, patience: float = PATIENCE) -> str | None:
    """Compares the indexer's content with a worker's until they are equal, and then returns ``None``.
    If they still differ after ``patience`` seconds, returns the difference.

    Meanwhile the worker only sends heartbeats. A consumer that has missed a message can recover only
    from these.
    """
    until = time.monotonic() + patience
    wanted = worker.holds()
    while True:
        worker.publisher.flush()
        known = indexer.dump().get(worker.number, set())
        if known == wanted:
            return None
        if time.monotonic() > until:
            ghosts, missing = len(known - wanted), len(wanted - known)
            return f"of {len(wanted)} contents {missing} are not known, and {ghosts} are known that are gone"
        time.sleep(0.001)


def compare(indexer: Indexer, worker: Worker, when: str) -> None:
    difference = differs(indexer, worker)
    if difference:
        raise DifferenceError(f"{when}: {difference}")


@contextlib.contextmanager
def followed(indexer: Indexer, worker: Worker) -> Iterator[Worker]:
    """Subscribes the indexer to a worker until the end of the context."""
    indexer.register(worker.number, worker.sink, BLOCK)
    try:
        compare(indexer, worker, "registered")
        yield worker
    finally:
        worker.close()
        indexer.unregister(worker.number)


def prompt_of(start: int, blocks: int) -> list[int]:
    return list(range(start, start + blocks * BLOCK))


def late_join(indexer: Indexer) -> None:
    """The indexer starts late. With the first heartbeat it requests the blocks that were published
    before.
    """
    worker = Worker(1)
    for start in range(0, 2000, 100):
        worker.serve(prompt_of(start, 2))
        worker.publisher.flush()
    with followed(indexer, worker):
        if not worker.holds() or indexer.found(prompt_of(1900, 2)) != 2 * BLOCK:
            raise DifferenceError("a late joiner finds nothing")


def gap(indexer: Indexer) -> None:
    """The indexer requests lost batches again. The batches store or remove blocks."""
    with followed(indexer, Worker(1)) as worker:
        for turn in range(8):
            worker.serve(prompt_of(turn * 100, 5))
            worker.sink.drops = turn % 2 == 0
            worker.manager.evict(turn)
            worker.publisher.flush()
        worker.sink.drops = False
        compare(indexer, worker, "behind gaps")


def restart(indexer: Indexer) -> None:
    """After a warm or a cold restart, the indexer has removed the blocks of the old worker, and has
    those of the new worker.
    """
    worker = Worker(1)
    with followed(indexer, worker):
        worker.serve(prompt_of(0, 6))
        compare(indexer, worker, "before the restart")
        for warm in (True, False):
            endpoints = worker.endpoints()
            worker.close()
            worker = Worker(1, endpoints=endpoints)
            if warm:
                worker.serve(prompt_of(0, 2) + prompt_of(500, 1))
            compare(indexer, worker, f"restarted, {'warm' if warm else 'cold'}")
        worker.serve(prompt_of(0, 3))
        compare(indexer, worker, "served again")
        worker.close()


def overflow(indexer: Indexer) -> None:
    """The indexer recovers after its sink was full for a while, and after the publisher's buffer of
    events overflowed.
    """
    with followed(indexer, Worker(1, capacity=16)) as worker:
        worker.serve(prompt_of(0, 6))
        compare(indexer, worker, "before")
        worker.sink.full = True
        for start in range(100, 500, 100):
            worker.serve(prompt_of(start, 4))
            worker.publisher.flush()
            worker.manager.evict(3)
        worker.sink.full = False
        compare(indexer, worker, "a sink that was full")
        if not worker.publisher.counts().lost:
            raise DifferenceError("the sink was not full")
        for start in range(1000, 3000, 100):
            worker.serve(prompt_of(start, 3))
        compare(indexer, worker, "a feed that overflowed")


def tiers(indexer: Indexer) -> None:
    """For blocks that move to host memory and back, the indexer knows the current tier."""
    with followed(indexer, Worker(1, host=32)) as worker:
        request = worker.serve(prompt_of(0, 6), keep=True)
        other = worker.serve(prompt_of(0, 3) + prompt_of(200, 3), keep=True)
        compare(indexer, worker, "on the device")
        for moved in (request, other):
            swap = worker.manager.swaps.begin_out([moved])
            worker.manager.take_plan()
            worker.manager.swaps.complete(swap)
            compare(indexer, worker, "swapped out")
        worker.manager.evict(64)
        compare(indexer, worker, "gone from the device")
        if any(tier == 0 for tier, _ in worker.holds()) or not worker.holds():
            raise DifferenceError("nothing was moved")
        swap = worker.manager.swaps.begin_in([other])
        worker.manager.take_plan()
        worker.manager.swaps.complete(swap)
        compare(indexer, worker, "swapped in")
        worker.manager.release(other)
        worker.manager.release(request)
        worker.manager.reset()
        compare(indexer, worker, "reset")


def storms(indexer: Indexer) -> None:
    """Every prompt evicts all blocks of an earlier prompt. So many blocks of a prompt are removed at
    once, sometimes from its middle.
    """
    numbers = random.Random(1)
    with followed(indexer, Worker(1, blocks=48)) as worker:
        for turn in range(60):
            worker.serve([numbers.randrange(3) for _ in range(BLOCK)] + prompt_of(turn * 1000, 30))
            if turn % 7 == 0:
                for block in range(1, 48, 5):
                    with contextlib.suppress(kvpool.KvpoolError):
                        worker.manager.drop_cached([block])
            worker.publisher.flush()
        compare(indexer, worker, "behind the storm")


def forms(indexer: Indexer) -> None:
    """The indexer gets the same content, whichever format the events have."""
    names: tuple[Form, ...] = ("vllm", "vllm-array", "sglang", "sglang-array")
    for number, form in enumerate(names, 1):
        with followed(indexer, Worker(number, form=form)) as worker:
            worker.serve(prompt_of(0, 4))
            worker.serve(prompt_of(0, 2) + prompt_of(100, 2))
            worker.manager.evict(1)
            compare(indexer, worker, form)
            if indexer.found(prompt_of(0, 2)) != 2 * BLOCK:
                raise DifferenceError(f"{form}: a query finds nothing")


def control(indexer: Indexer) -> None:
    """A worker restarts its message numbers, so stale blocks remain in the indexer. The comparison must
    find them.
    """
    worker = Worker(1)
    with followed(indexer, worker):
        worker.serve(prompt_of(0, 6))
        compare(indexer, worker, "before the restart")
        endpoints = worker.endpoints()
        worker.close()
        worker = Worker(1, endpoints=endpoints, base=0)
        difference = differs(indexer, worker, patience=2.0)
        worker.close()
        if difference is None:
            raise DifferenceError(
                "numbers that begin at 0 again left no stale blocks: the comparison finds no defect"
            )


def history(indexer: Indexer, worker: Worker, numbers: random.Random, name: str) -> None:
    """Runs a random sequence of prompts, releases, evictions, drops, swaps and lost batches. Compares
    the contents several times in between, and at the end.
    """
    running: list[int] = []
    swapped: list[int] = []
    for _ in range(numbers.randrange(5, 40)):
        choice = numbers.random()
        with contextlib.suppress(kvpool.KvpoolError):
            if choice < 0.5:
                prompt = [numbers.randrange(2) for _ in range(numbers.randrange(1, 40))]
                running.append(worker.serve(prompt, keep=True))
            elif choice < 0.65 and running:
                worker.manager.release(running.pop(numbers.randrange(len(running))))
            elif choice < 0.75 and worker.host:
                swap_one(worker, numbers, running, swapped)
            elif choice < 0.82:
                worker.manager.evict(numbers.randrange(12))
            elif choice < 0.88:
                worker.manager.drop_cached([numbers.randrange(1, 40)])
            elif choice < 0.92:
                worker.sink.drops = not worker.sink.drops
            elif choice < 0.94:
                worker.sink.full = not worker.sink.full
            elif choice < 0.97:
                worker.publisher.flush()
            elif choice < 0.98:
                worker.sink.drops = worker.sink.full = False
                compare(indexer, worker, name)
    worker.sink.drops = worker.sink.full = False
    compare(indexer, worker, name)
    for request in [*running, *swapped]:
        worker.manager.release(request)
    if numbers.random() < 0.5:
        worker.manager.reset()


def swap_one(worker: Worker, numbers: random.Random, running: list[int], swapped: list[int]) -> None:
    out = numbers.random() < 0.5
    here, there = (running, swapped) if out else (swapped, running)
    if not here:
        return
    request = here[numbers.randrange(len(here))]
    manager = worker.manager
    swap = manager.swaps.begin_out([request]) if out else manager.swaps.begin_in([request])
    manager.take_plan()
    manager.swaps.complete(swap)
    here.remove(request)
    there.append(request)


def histories(indexer: Indexer, count: int, seed: int) -> None:
    """Runs random histories. After every `PER_LIFE` of them, a new worker with an empty pool and the
    same endpoints replaces the old one. Every other worker has a host tier.
    """
    numbers = random.Random(seed)
    first = Worker(1, blocks=40)
    with followed(indexer, first):
        worker = first
        for at in range(count):
            if at and at % PER_LIFE == 0:
                endpoints = worker.endpoints()
                worker.close()
                worker = Worker(1, endpoints=endpoints, blocks=40, host=0 if at // PER_LIFE % 2 == 0 else 24)
            history(indexer, worker, numbers, f"history {at} of seed {seed}")
        worker.close()


SCENARIOS: Final[tuple[Callable[[Indexer], None], ...]] = (
    late_join,
    gap,
    restart,
    overflow,
    tiers,
    storms,
    forms,
    control,
)


def run(packages: Path, count: int, seed: int) -> int:
    checks: list[tuple[str, Callable[[Indexer], Any]]] = [
        (scenario.__name__.replace("_", " "), scenario) for scenario in SCENARIOS
    ]
    checks.append((f"{count} random histories, seed {seed}", lambda indexer: histories(indexer, count, seed)))
    failed = 0
    with running(packages) as indexer:
        for name, check in checks:
            begun = time.monotonic()
            try:
                check(indexer)
                result = "ok"
            except DifferenceError as error:
                failed += 1
                result = f"FAILED: {error}"
            print(f"{name}: {result} ({time.monotonic() - begun:.1f} s)", flush=True)
    if failed:
        print(f"dynamo_check: {failed} of {len(checks)} failed", file=sys.stderr)
    return 1 if failed else 0
