"""Lists every object that owns threads, with its calls. test_owners.py forks processes that have such
objects, and lets other processes end that have them.

As a program, this file makes the object that its argument names. It uses the object in a daemon thread,
and ends without closing it.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

warnings.filterwarnings("ignore", "kvpool was built", RuntimeWarning)

import kvpool  # noqa: E402
from kvpool import events, metrics, store  # noqa: E402
from kvpool.transfer import BlockStore, TransferEngine  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

NAMESPACE: dict[str, Any] = {"model": "m", "weights": "w", "kv_dtype": "bf16", "scales": "", "layouts": []}
NAMESPACE |= {
    "block_size": 16,
    "layers": (0, 1),
    "heads": (0, 1),
    "hash_algorithm": "sha256",
    "hash_seed": b"",
}


class Owner(NamedTuple):
    """An object that owns threads: the source file that starts its threads, a function that makes it in
    a folder, and its calls.
    """

    source: str
    make: Callable[[Path], Any]
    calls: dict[str, Callable[[Any], object]]


class Memory:
    """A back end of a store that keeps its objects in a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def write(self, name: str, *_: object) -> None:
        self.objects[name] = b""

    def read(self, name: str, *_: object) -> None:
        return None

    def exist(self, names: list[str]) -> list[bool]:
        return [name in self.objects for name in names]

    def remove(self, names: list[str]) -> None:
        for name in names:
            self.objects.pop(name, None)


def namespace() -> store.Namespace:
    return store.Namespace(**NAMESPACE, extra={})


def opened(backend: Any) -> store.Store:
    return store.Store(backend, store.Arena(4, 64), namespace(), admission="always")


def engine(_: Path) -> tuple[TransferEngine, BlockStore]:
    made = TransferEngine(threads=1)
    blocks = BlockStore.host(4, BlockStore.from_regions([(4096, 64, 64)], 1))
    made.submit(blocks, blocks, [(0, 1)]).wait()
    return made, blocks


def replay(_: Path) -> kvpool.traces.Replay:
    trace = kvpool.traces.Trace.generate(200)
    return kvpool.traces.Replay(trace, threads=1)


def journaled(folder: Path) -> kvpool.CacheManager:
    return kvpool.CacheManager(9, 4, journal=kvpool.journal.Journal(folder / "journal.kvj"))


def admitted(manager: kvpool.CacheManager) -> None:
    manager.admit("a", [1])
    manager.release("a")
    manager.journal.flush()


def publisher(_: Path) -> events.Publisher:
    return events.Publisher(kvpool.CacheManager(9, 4), [events.CallSink(lambda *_: None)])


def sink(_: Path) -> events.CallSink:
    made = events.CallSink(lambda *_: None)
    made.open(lambda *_: [])
    return made


STORE: dict[str, Callable[[Any], object]] = {
    "put": lambda s: s.put([b"a"], [0]),
    "get": lambda s: s.get([b"a"], [1]),
    "probe": lambda s: s.probe([b"a"]),
    "contains": lambda s: s.contains([b"a"]),
    "remove": lambda s: s.remove([b"a"]),
    "touch": lambda s: s.touch([b"a"]),
    "poll": lambda s: s.poll(),
    "wait": lambda s: s.wait(0.1),
    "renew": lambda s: s.renew(namespace()),
    "namespace": lambda s: s.namespace,
    "take_gone": lambda s: s.take_gone(),
    "stats": lambda s: s.stats(),
    "fileno": lambda s: s.fileno(),
    "close": lambda s: s.close(1.0),
}
STORES = "rust/kvpool-store/src/store/mod.rs"
OWNERS = {
    "Store on a disk": Owner(
        STORES, lambda folder: opened(store.Disk(str(folder), 1 << 20, free_floor_bytes=0)), STORE
    ),
    "Store in a folder": Owner(
        STORES, lambda folder: opened(store.SharedFolder(str(folder), 1 << 20)), STORE
    ),
    "Store over Python": Owner(STORES, lambda _: opened(store.Custom(Memory(), 1 << 20)), STORE),
    "TransferEngine": Owner(
        "rust/kvpool-transfer/src/engine/worker.rs",
        engine,
        {
            "submit": lambda made: made[0].submit(made[1], made[1], [(0, 1)]),
            "copy": lambda made: made[0].copy(made[1], made[1], [(0, 1)]),
        },
    ),
    "Replay": Owner(
        "rust/kvpool-replay/src/replay/prefetch.rs",
        replay,
        {
            "advance": lambda made: made.advance(1),
            "report": lambda made: made.report_json(),
            "total": lambda made: made.total,
            "journal": lambda made: made.journal_stats(),
            "invariants": lambda made: made.check_invariants(),
        },
    ),
    "Journal": Owner("rust/kvpool-journal/src/format/writer.rs", journaled, {"flush": admitted}),
    "Publisher": Owner(
        "python/kvpool/events/publisher.py",
        publisher,
        {
            "flush": lambda made: made.flush(),
            "pass_on": lambda made: made.pass_on(b""),
            "snapshot": lambda made: made.snapshot(),
            "counts": lambda made: made.counts(),
            "close": lambda made: made.close(),
        },
    ),
    "CallSink": Owner(
        "python/kvpool/events/sinks.py",
        sink,
        {
            "send": lambda made: made.send(1, b""),
            "has_room": lambda made: made.has_room(),
            "close": lambda made: made.close(),
        },
    ),
    "metrics server": Owner(
        "python/kvpool/metrics/page.py",
        lambda _: metrics.Metrics().start_http(0),
        {"close": lambda made: made.close()},
    ),
}


def main() -> None:
    made = OWNERS[sys.argv[1]]
    begun = threading.Event()
    calls = [call for name, call in made.calls.items() if name != "close"]
    owned = made.make(Path(tempfile.mkdtemp(dir=sys.argv[2])))

    def run() -> None:
        while True:
            for call in calls:
                call(owned)
            begun.set()

    threading.Thread(target=run, daemon=True).start()
    if not begun.wait(60):
        raise SystemExit("the calls never ended")


if __name__ == "__main__":
    main()
