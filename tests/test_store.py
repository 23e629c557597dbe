"""Tests the parts of ``kvpool.store`` that Python adds to the crate. The crate's tests use a back end
that fails, hangs and returns wrong data.
"""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.errors import (
    ArgumentTypeError,
    ClosedError,
    InvalidArgumentError,
    KvpoolError,
    SlotBusyError,
    StoreError,
    StoreInUseError,
    StoreNotFoundError,
)
from kvpool.store import Arena, Disk, Namespace, Store, StoreFolder
from kvpool.store.replicas import open_replica

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SLOT = 8192
#: The time limit of every wait. It is far longer than any machine needs, so no test measures time with
#: it.
AGES = 120.0
# Settings with which even a slow machine loses no load. By default, a load that is late is a miss,
# which only the tests of deadlines need.
PATIENT: dict[str, Any] = {"admission": "always", "deadline": AGES}
FIELDS: dict[str, Any] = {
    "model": "llama",
    "weights": "rev-1",
    "kv_dtype": "bf16",
    "scales": "",
    "layouts": [(0, "LKNHD", [1, 2, 16, 8, 16], [4096, 2048, 128, 16, 1])],
    "block_size": 16,
    "layers": (0, 32),
    "heads": (0, 8),
    "hash_algorithm": "sha256",
    "hash_seed": b"",
    "extra": {},
}


def namespace(**changed: object) -> Namespace:
    return Namespace(**FIELDS | changed)


def key(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


def payload(number: int, length: int = SLOT) -> bytes:
    return (b"%08d" % number) * (length // 8) + b"x" * (length % 8)


def disk(folder: Path, objects: int = 8) -> Disk:
    return Disk(folder, objects * (SLOT + 4096), free_floor_bytes=0)


def opened(folder: Path, arena: Arena | None = None, **settings: Any) -> tuple[Store, Arena]:
    arena = Arena(4, SLOT) if arena is None else arena
    return Store(disk(folder), arena, namespace(), **PATIENT | settings), arena


def finish(store: Store, job: int) -> list[str]:
    end = time.monotonic() + AGES
    while time.monotonic() < end:
        for ended, outcomes in store.wait(AGES):
            if ended == job:
                return list(outcomes)
    raise AssertionError(f"job {job} never ended: {store.stats().last_error}")


def fill(store: Store, arena: Arena, numbers: range) -> None:
    for number in numbers:
        arena.write(0, payload(number))
        assert finish(store, store.put([key(number)], [0], tokens=[(16 * number, 16)])) == ["ok"]


def test_what_is_put_is_there_for_another_process(tmp_path: Path) -> None:
    store, arena = opened(tmp_path)
    with store:
        fill(store, arena, range(3))
        stats = store.stats()
        assert (stats.objects, stats.writes, stats.written_bytes) == (3, 3, 3 * SLOT)
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from tests.test_store import *
store, arena = opened(Path({str(tmp_path)!r}))
assert store.stats().restored == 3
assert finish(store, store.get([key(2), key(0), key(7)], [1, 2, 3])) == ["ok", "ok", "absent"]
assert arena.read(1) == payload(2) and arena.read(2) == payload(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=AGES)


def test_objects_of_groups_and_lengths_are_apart(tmp_path: Path) -> None:
    store, arena = opened(tmp_path)
    with store:
        for group, length in ((0, SLOT), (1, 100)):
            arena.write(group, payload(group, length))
        job = store.put([key(1)] * 2, [0, 1], groups=[0, 1], lengths=[SLOT, 100])
        assert finish(store, job) == ["ok", "ok"]
        assert store.contains([key(1)] * 3, groups=[0, 1, 2]) == ["here", "here", "absent"]
        assert finish(store, store.get([key(1)], [2], groups=1, lengths=100)) == ["ok"]
        assert arena.read(2, 100) == payload(1, 100)
        # An object whose length differs from the expected one is wrong. The load returns no bytes, and
        # the object is removed.
        assert finish(store, store.get([key(1)], [2], groups=1)) == ["damaged"]
        assert store.contains([key(1)] * 2, groups=[0, 1]) == ["here", "absent"]
        assert store.remove([key(1)] * 2, groups=[0, 1]) == 1


def test_what_is_offered_once_is_not_written(tmp_path: Path) -> None:
    store, arena = opened(tmp_path, admission="second_touch")
    with store:
        arena.write(0, payload(1))
        assert finish(store, store.put([key(1)], [0])) == ["not_admitted"]
        assert finish(store, store.put([key(1)], [0])) == ["ok"]
        assert finish(store, store.put([key(2)], [0], admit="always")) == ["ok"]
        assert [finish(store, store.put([key(3)], [0], admit="never")) for _ in range(2)] == [
            ["not_admitted"]
        ] * 2


def test_another_namespace_is_a_cold_start(tmp_path: Path) -> None:
    store, arena = opened(tmp_path)
    with store:
        fill(store, arena, range(2))
    digests = set()
    for changed in ({"weights": "rev-2"}, {"heads": (8, 8)}, {"extra": {"engine": "2"}}, {"hash_seed": b"0"}):
        other = namespace(**changed)
        with Store(disk(tmp_path), arena, other, **PATIENT) as cold:
            assert cold.stats().foreign == 2
            assert finish(cold, cold.get([key(0)], [0])) == ["absent"]
        digests.add(other.digest)
    assert len(digests | {namespace().digest}) == 5
    with opened(tmp_path)[0] as warm:
        assert warm.stats().restored == 2


def test_a_namespace_is_determined_by_its_text() -> None:
    one = namespace(extra={"engine": "vllm 0.33"}, hash_seed=b"\x00\xff")
    again = Namespace.from_json(one.to_json())
    assert again == one
    assert hash(again) == hash(one)
    assert len(one.digest) == 32
    assert one != namespace()
    assert repr(one) == f"Namespace({one.digest.hex()})"
    for wrong in ("", "{}", one.to_json().replace('"heads"', '"tails"'), "[" * 100_000):
        with pytest.raises(InvalidArgumentError, match="no namespace"):
            Namespace.from_json(wrong)
    for name in FIELDS:  # a missing field has no default
        with pytest.raises(TypeError):
            Namespace(**{field: value for field, value in FIELDS.items() if field != name})


@pytest.mark.parametrize("slot_bytes", [SLOT, 1000])
def test_an_engine_lends_its_memory(tmp_path: Path, slot_bytes: int) -> None:
    numpy = pytest.importorskip("numpy")
    memory = numpy.zeros((4, slot_bytes), numpy.int8)
    arena = Arena.over(memory, slot_bytes)
    assert (arena.slots, arena.slot_bytes, arena.stride) == (4, slot_bytes, slot_bytes)
    assert arena.address == memory.ctypes.data
    memory[1] = 7
    store, _ = opened(tmp_path, arena)
    with store:
        assert finish(store, store.put([key(1)], [1])) == ["ok"]
        assert finish(store, store.get([key(1)], [2])) == ["ok"]
    assert memory.sum(axis=1).tolist() == [0, 7 * slot_bytes, 7 * slot_bytes, 0]
    del store, arena  # the memory belongs to the engine again
    memory.resize((5, slot_bytes), refcheck=False)


def test_what_is_no_memory_is_refused() -> None:
    for wrong in (b"12345678", memoryview(bytearray(16))[::2], [1, 2], "text", None):
        with pytest.raises(ArgumentTypeError, match="memory is"):
            Arena.over(wrong, 8)  # type: ignore[arg-type]
    for memory, slot_bytes in ((bytearray(10), 8), (bytearray(0), 8), (bytearray(8), 0)):
        with pytest.raises(InvalidArgumentError, match="slot"):
            Arena.over(memory, slot_bytes)
    lent = bytearray(16)
    arena = Arena.over(lent, 8)
    with pytest.raises(BufferError):
        lent.append(0)
    assert arena.read(1) == bytes(8)


def test_slots_that_transfers_have_cannot_be_taken(tmp_path: Path) -> None:
    store, arena = opened(tmp_path)
    with store:
        with pytest.raises(SlotBusyError, match="slot 0 is in use"):
            store.get([key(1), key(2)], [0, 0])
        arena.write(0, b"free again")  # the refused call has changed nothing
        assert store.poll() == []
        assert store.stats().in_flight == 0


WRONG: list[tuple[str, Callable[[Store], object], type[Exception]]] = [
    ("no such slot", lambda store: store.get([key(1)], [4]), InvalidArgumentError),
    ("a negative slot", lambda store: store.get([key(1)], [-1]), InvalidArgumentError),
    ("too few slots", lambda store: store.put([key(1)] * 2, [0]), InvalidArgumentError),
    ("too many groups", lambda store: store.put([key(1)], [0], groups=[0, 1]), InvalidArgumentError),
    ("too few tokens", lambda store: store.put([key(1)], [0], tokens=[]), InvalidArgumentError),
    ("no length", lambda store: store.put([key(1)], [0], lengths=0), InvalidArgumentError),
    ("more than a slot", lambda store: store.put([key(1)], [0], lengths=SLOT + 1), InvalidArgumentError),
    ("an empty digest", lambda store: store.contains([b""]), InvalidArgumentError),
    ("a long digest", lambda store: store.contains([bytes(33)]), InvalidArgumentError),
    (
        "an unknown admission",
        lambda store: store.put([key(1)], [0], admit="maybe"),  # type: ignore[arg-type]
        InvalidArgumentError,
    ),
    ("a key that is text", lambda store: store.contains(["a"]), ArgumentTypeError),  # type: ignore[list-item]
    ("keys in one", lambda store: store.contains(b"digest"), ArgumentTypeError),  # type: ignore[arg-type]
    (
        "tokens that are none",
        lambda store: store.put([key(1)], [0], tokens=[1]),  # type: ignore[list-item]
        ArgumentTypeError,
    ),
    ("a time that cannot pass", lambda store: store.wait(-1.0), InvalidArgumentError),
    ("no number", lambda store: store.wait(float("nan")), InvalidArgumentError),
]


@pytest.mark.parametrize(("call", "error"), [wrong[1:] for wrong in WRONG], ids=[wrong[0] for wrong in WRONG])
def test_wrong_calls_change_nothing(
    tmp_path: Path, call: Callable[[Store], object], error: type[Exception]
) -> None:
    store, arena = opened(tmp_path)
    with store:
        fill(store, arena, range(1))
        before = store.stats()
        with pytest.raises(error):
            call(store)
        assert store.stats() == before
        arena.write(0, b"free")


def test_settings_out_of_range_are_named(tmp_path: Path) -> None:
    arena = Arena(1, SLOT)
    wrong: list[dict[str, Any]] = [
        {"workers": 0},
        {"queue": 0},
        {"breaker_failures": 0},
        {"deadline": -1.0},
        {"workers": -1},
    ]
    for settings in wrong:
        with pytest.raises(InvalidArgumentError, match=next(iter(settings)).replace("breaker_", "breaker.")):
            Store(disk(tmp_path), arena, namespace(), **settings)
    with pytest.raises(InvalidArgumentError, match="eviction"):
        Store(disk(tmp_path), arena, namespace(), eviction="none")  # type: ignore[arg-type]
    # The store cannot use this policy, because no call passes the time at which an object was last
    # used.
    with pytest.raises(InvalidArgumentError, match="last-accessed: must be a policy that defines an order"):
        Store(disk(tmp_path), arena, namespace(), eviction="last-accessed")
    with pytest.raises(StoreError, match=f"{tmp_path}: the disk has room for 0 of .* each replica on a disk"):
        Store(Disk(tmp_path, 1 << 20, free_floor_bytes=1 << 62), arena, namespace())
    for capacity in (0, 1):
        with pytest.raises(
            InvalidArgumentError,
            match=f"capacity_bytes is {capacity}: must be at least the bytes of one object",
        ):
            Store(Disk(tmp_path, capacity, free_floor_bytes=0), arena, namespace())
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="making the folder failed"):
        Store(Disk(tmp_path / "file", 1 << 20, free_floor_bytes=0), arena, namespace())
    # Another store can open the folder, because none of the refused stores has kept its lock.
    Store(disk(tmp_path), arena, namespace()).close()


def test_a_capacity_above_the_room_of_the_disk_is_a_warning(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    floor, arena = max(0, free - (1 << 30)), Arena(1, SLOT)
    small = Disk(tmp_path, 1 << 50, free_floor_bytes=floor)
    with pytest.warns(RuntimeWarning, match=f"{tmp_path}: the disk has room for [0-9]+ of"):
        Store(small, arena, namespace()).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Store(disk(tmp_path), arena, namespace()).close()


def test_replicas_take_the_first_folder_that_no_engine_has(tmp_path: Path) -> None:
    """Engines may restart in any order. Together they find all stored objects."""

    def start() -> Store:
        arena = Arena(8, SLOT)
        store = open_replica(
            str(tmp_path), lambda folder: Store(disk(Path(folder)), arena, namespace(), **PATIENT)
        )
        fill(store, arena, range(3))
        return store

    engines = [start() for _ in range(3)]
    assert [one.name for one in sorted(tmp_path.glob("**/lock"))] == ["lock"] * 3
    assert sorted(one.parent.name for one in tmp_path.glob("*/lock")) == ["replica-1", "replica-2"]
    engines[1].close()
    engines[1] = start()
    assert engines[1].stats().restored == 3, "the one that is free"
    for engine in engines:
        engine.close()
    assert [start().stats().restored for _ in range(3)] == [3] * 3

    def in_use(folder: str) -> Store:
        raise StoreInUseError(folder)

    with pytest.raises(StoreInUseError, match="in use by 4 engines"):
        open_replica(str(tmp_path), in_use, most=4)


def test_one_store_has_a_folder(tmp_path: Path) -> None:
    store, arena = opened(tmp_path)
    with store, pytest.raises(StoreInUseError, match="in use by process"):
        opened(tmp_path, arena)
    opened(tmp_path, arena)[0].close()


def test_a_closed_store_refuses_calls_by_name(tmp_path: Path) -> None:
    store, arena = opened(tmp_path)
    arena.write(0, payload(1))
    store.put([key(1)], [0])
    store.close(AGES)
    store.close()
    assert repr(store) == "Store(closed)"
    for call in (store.poll, store.wait, store.stats, lambda: store.contains([key(1)])):
        with pytest.raises(ClosedError, match="the store is closed"):
            call()
    with opened(tmp_path)[0] as again:
        assert again.stats().restored == 1, "what was on its way was not waited for"


def test_an_event_loop_is_notified_of_ends(tmp_path: Path) -> None:
    store, arena = opened(tmp_path)
    with store:
        assert select.select([store], [], [], 0) == ([], [], [])
        arena.write(0, payload(1))
        job = store.put([key(1)], [0])
        assert select.select([store], [], [], AGES)[0] == [store]
        assert store.poll() == [(job, ["ok"])]
        assert select.select([store], [], [], 0) == ([], [], [])


def test_threads_share_a_store(tmp_path: Path) -> None:
    """Each thread has a slot of its own. Whichever thread polls gets the results of all, and passes
    them on.
    """
    threads, rounds = 4, 25
    store, arena = opened(tmp_path, queue=64)
    ends: dict[int, list[str]] = {}
    lock = threading.Lock()
    wrong: list[str] = []

    def finished(job: int) -> list[str]:
        end = time.monotonic() + AGES
        while time.monotonic() < end:
            polled = store.wait(0.01)
            with lock:
                ends.update((ended, list(outcomes)) for ended, outcomes in polled)
                if job in ends:
                    return ends.pop(job)
        raise AssertionError(job)

    def work(thread: int) -> None:
        for number in range(thread * rounds, (thread + 1) * rounds):
            arena.write(thread, payload(number))
            if finished(store.put([key(number)], [thread])) != ["ok"]:
                continue
            arena.write(thread, bytes(SLOT))
            outcome = finished(store.get([key(number)], [thread]))
            if outcome == ["ok"] and arena.read(thread) != payload(number):
                wrong.append(f"{number}: {arena.read(thread, 16)!r}")

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    with store:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(AGES)
        assert not any(worker.is_alive() for worker in workers)
        assert wrong == []
        stats = store.stats()
        assert stats.loads > 0
        assert stats.bytes <= stats.capacity_bytes


def carried(texts: Mapping[str, Namespace | None], of: Namespace) -> str:
    """Returns the digest that the objects of a namespace carry. It covers the text of the namespace and
    a generation.
    """

    def plain(text: Namespace) -> Any:
        fields = json.loads(text.to_json())
        fields["extra"].pop("kvpool generation", None)
        return fields

    (digest,) = [digest for digest, text in texts.items() if text is not None and plain(text) == plain(of)]
    return digest


def test_a_folder_is_looked_at_cleared_and_forgotten(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError) as found:
        StoreFolder(tmp_path / "none")
    assert isinstance(found.value, FileNotFoundError)
    assert isinstance(found.value, KvpoolError)
    store, arena = opened(tmp_path)
    with store:
        fill(store, arena, range(3))
        folder = StoreFolder(tmp_path)
        digest = store.namespace.digest.hex()
        assert [one[1:] for one in folder.objects(0, 99)] == [(digest, 0, SLOT, None)] * 3
        assert folder.namespaces() == {digest: store.namespace}
        assert carried(folder.namespaces(), namespace()) == digest
        with pytest.raises(StoreError, match="opened for reading only"):
            folder.clear([0])
        with pytest.raises(StoreInUseError):
            StoreFolder(tmp_path, exclusive=True)
    slab = next(tmp_path.glob("*.slab"))
    folder = StoreFolder(tmp_path, exclusive=True)
    places = [one[0] for one in folder.objects(0, folder.places)]
    with slab.open("r+b") as file:
        file.seek(places[1] * folder.object_bytes + 4096 + 5)
        file.write(b"\x00")
    assert [one[4] is None for one in folder.objects(0, folder.places)] == [True] * 3, "headers are intact"
    problems = [one[4] for one in folder.objects(0, folder.places, verify=True)]
    assert problems[0] is None
    assert "checksum" in (problems[1] or "")
    assert problems[2] is None
    with pytest.raises(InvalidArgumentError, match="place 8 is outside"):
        folder.clear([places[1], 8])
    folder.clear(places[1:2])
    folder.forget(digest)
    assert (len(folder.objects(0, 99)), folder.namespaces()) == (2, {})
    with pytest.raises(InvalidArgumentError, match="not the digest of a namespace"):
        folder.forget("../lock")
    del folder
    with opened(tmp_path)[0] as store:
        assert (store.stats().restored, store.stats().foreign) == (2, 0)


#: A program that forbids io_uring and no other system call, as many containers do. It installs a
#: permanent filter (seccomp).
WITHOUT_IO_URING = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
IO_URING_SETUP, EPERM = 425, 1
# Load the number of the call; return EPERM for that one, let the others pass.
program = [(0x20, 0, 0, 0), (0x15, 0, 1, IO_URING_SETUP), (0x06, 0, 0, 0x00050000 | EPERM), \
(0x06, 0, 0, 0x7FFF0000)]
class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), \
("k", ctypes.c_uint)]
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]
filters = (Filter * 4)(*(Filter(*one) for one in program))
# PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(Program(4, filters)), 0, 0):
    sys.exit(f"no filter: {ctypes.get_errno()}")
"""


def test_without_io_uring_threads_are_used_and_reported(tmp_path: Path) -> None:
    program = f"""{WITHOUT_IO_URING}
sys.path[:0] = {sys.path!r}
from pathlib import Path
from tests.test_store import *
store, arena = opened(Path({str(tmp_path)!r}))
fill(store, arena, range(3))
assert finish(store, store.get([key(2)], [1])) == ["ok"] and arena.read(1) == payload(2)
print(store.io)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=AGES
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("threads (no io_uring: ")
    assert "not permitted" in done.stdout
    store, arena = opened(tmp_path)
    with store:
        assert store.io == StoreFolder(tmp_path).io
        assert store.io.startswith(("io_uring", "threads (no io_uring: "))
        assert finish(store, store.get([key(1)], [1])) == ["ok"]
        assert arena.read(1) == payload(1)
    switched_off = Disk(tmp_path, 8 * (SLOT + 4096), free_floor_bytes=0, io_uring=False)
    with Store(switched_off, arena, namespace(), **PATIENT) as store:
        assert store.io == "threads (no io_uring: switched off)"
