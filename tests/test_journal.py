"""Tests journals: committed journals replay exactly, a cut at any byte loses at most one frame, and no
file is overwritten.

In some tests, a journal's header describes another pool than the one that made its operations. So its
replay differs.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kvpool

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvpool._core import ReplayMode, VerifyMode

PINNED = sorted((Path(__file__).parents[1] / "rust/kvpool-journal/tests/pinned").glob("*.journal"))
MAGIC = b"KVPJRN04"
HEAD = 12  # length and checksum of a frame


def ring(every: int = 3, frame_bytes: int = 64) -> kvpool.journal.Journal:
    """Returns a journal in memory that is large enough to drop nothing in these tests."""
    return kvpool.journal.Journal(ring_bytes=1 << 24, digest_every=every, frame_bytes=frame_bytes)


def image_of(recorded: kvpool.BlockPool | kvpool.CacheManager) -> bytes:
    image = recorded.journal.image()
    assert image is not None
    return image


def frames(image: bytes) -> list[bytes]:
    """Returns the frames of a journal. The first frame is the header."""
    assert image.startswith(MAGIC)
    found, at = [], len(MAGIC)
    while at < len(image):
        end = at + HEAD + int.from_bytes(image[at : at + 4], "little")
        found.append(image[at:end])
        at = end
    return found


def spliced(settings_of: bytes, operations_of: bytes) -> bytes:
    """Combines the header of one journal with the operations of another one."""
    return MAGIC + frames(settings_of)[0] + b"".join(frames(operations_of)[1:])


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.stem)
def test_a_pinned_journal_is_read_and_replays_bit_by_bit(path: Path) -> None:
    """Random journals are tested in `rust/kvpool-journal/tests`."""
    report = kvpool.journal.replay_journal(path, check_every=5)
    assert report.is_exact
    info = kvpool.journal.read_journal(path.read_bytes(), count=1000)
    calls = Counter(call for _, call, _ in info.lines)
    digests = calls.pop("digest", 0)
    assert (info.calls, info.operations, info.digests) == (calls, calls.total(), digests)
    assert (report.operations, report.digests) == (info.operations, info.digests)


@pytest.mark.parametrize("verify", kvpool.hashing.verify_modes())
def test_settings_come_back_from_the_header(verify: VerifyMode) -> None:
    retention = kvpool.RetentionConfig(pin_budget=3, tenants=[kvpool.TenantLimits(1, floor=2, ceiling=9)])
    manager = kvpool.CacheManager(
        20, 4, verify=verify, watermark=0.1, host_blocks=8, retention=retention, advisor=True, journal=ring(1)
    )
    manager.clock.advance(0.0)
    manager.admit("a", range(9), tenant=1, retention=[(0, 4, kvpool.Retention(pinned=True))])
    manager.commit("a", 9)
    swap = manager.swaps.begin_out(["a"])
    manager.take_plan()
    manager.swaps.complete(swap)
    image = image_of(manager)
    assert kvpool.journal.replay_journal(image, check_every=1).is_exact
    info = kvpool.journal.read_journal(image, count=9)
    told = info.settings
    assert (told["num_blocks"], told["block_size"], told["verify"], told["host_blocks"]) == (20, 4, verify, 8)
    assert (info.subject, info.version, info.first_operation) == ("manager", kvpool.__version__, 0)
    assert told["retention"] is not None
    assert told["advisor"] is not None
    words = {call: words for _, call, words in info.lines}
    assert "tenant 1; tokens 0 to 4: pinned" in words["admit"]
    assert words["complete_swap"] == f"swap {swap}"


def test_words_name_blocks_by_the_start_of_their_digests() -> None:
    manager = kvpool.CacheManager(20, 4, event_capacity=10, journal=ring())
    manager.admit("a", range(8))
    manager.commit("a", 8)
    stored = [event["hash"].hex()[:16] for event in manager.take_events()[0] if event["type"] == "stored"]
    (_, _, words), *_ = kvpool.journal.read_journal(image_of(manager), start=0, count=1).lines
    assert words == f'"a": 8 tokens, 2 full blocks; 2 new: {stored[0]} {stored[1]}'


def test_a_journal_holds_no_tokens() -> None:
    secret = [0x5EC1_2E75 + number for number in range(64)]
    manager = kvpool.CacheManager(40, 4, verify="tokens", journal=ring())
    manager.admit("a", secret)
    manager.append("a", secret)
    image = image_of(manager)
    assert not [token for token in secret if token.to_bytes(4, "little") in image]


def hundred() -> kvpool.BlockPool:
    """Returns a pool with 100 operations in its journal, with a digest after every tenth operation."""
    pool = kvpool.BlockPool(9, 2, journal=ring(10, frame_bytes=128))
    for _ in range(50):
        pool.release(pool.allocate(2))
    return pool


@pytest.mark.parametrize(
    ("start", "count", "numbers"),
    [
        (None, 0, []),
        (None, 3, [97, 98, 99, 100]),
        (0, 2, [0, 1]),
        (8, 2, [8, 9, 10]),
        (10, 1, [10, 10]),
        (99, 5, [99, 100]),
        (100, 5, [100]),
        (101, 5, []),
        (2**63, 2**63, []),
    ],
)
def test_a_part_is_shown_with_its_digests(start: int | None, count: int, numbers: list[int]) -> None:
    info = kvpool.journal.read_journal(image_of(hundred()), start=start, count=count)
    assert [number for number, _, _ in info.lines] == numbers
    assert (info.operations, info.digests) == (100, 10)


@pytest.mark.parametrize("until", [0, 1, 50, 99, 100, 200])
def test_a_replay_stops_at_the_given_operation(until: int) -> None:
    report = kvpool.journal.replay_journal(image_of(hundred()), until=until)
    assert report.is_exact
    assert report.operations == min(until, 100)


def test_a_cut_at_any_byte_costs_one_frame_at_most() -> None:
    image = image_of(hundred())
    header, *others = frames(image)
    begins = len(MAGIC) + len(header)
    #: For the end of each frame, the number of operations before it, which is also the number of the
    #: next operation.
    ends = {begins: 0}
    for frame, following in zip(others, [*others[1:], None], strict=True):
        begins += len(frame)
        first = None if following is None else int.from_bytes(following[HEAD : HEAD + 8], "little")
        ends[begins] = 100 if first is None else first
    assert begins == len(image)
    assert len(ends) > 5
    for length in range(len(image)):
        if length < min(ends):
            with pytest.raises(kvpool.errors.JournalError, match=r"not a journal|header is damaged"):
                kvpool.journal.replay_journal(image[:length])
            continue
        whole = max(end for end in ends if end <= length)
        report = kvpool.journal.replay_journal(image[:length])
        assert report.is_exact
        assert report.operations == kvpool.journal.read_journal(image[:length]).operations == ends[whole]
        assert (report.cut_at, report.cut_bytes) == (
            (None, 0) if whole == length else (whole, length - whole)
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a journal"),
        (b"{}\n", "not a journal"),
        (MAGIC, "header is damaged or cut off"),
        (b"KVPJRN99" + b"x" * 50, 'format version "99"'),
    ],
)
def test_what_is_no_journal_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.kvj"
    path.write_bytes(content)
    for call in (
        kvpool.journal.read_journal,
        kvpool.journal.replay_journal,
        kvpool.journal.bisect_journal,
        kvpool.journal.shrink_journal,
        lambda source: kvpool.journal.export_journal(source, "rust"),
        lambda source: kvpool.journal.compare_journals(source, source),
    ):
        with pytest.raises(kvpool.errors.JournalError, match=message):
            call(content)
        with pytest.raises(kvpool.errors.JournalError, match=message):
            call(path)
        with pytest.raises(kvpool.errors.JournalFileError, match="No such file"):
            call(tmp_path / "none")


def test_a_file_holds_what_was_flushed_and_all_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run.kvj"
    manager = kvpool.CacheManager(20, 4, journal=kvpool.journal.Journal(path))
    manager.admit("a", range(9))
    assert kvpool.journal.replay_journal(path).operations == 0  # collected, not written
    manager.journal.flush()
    assert kvpool.journal.replay_journal(str(path)).operations == 1
    manager.release("a")
    del manager
    report = kvpool.journal.replay_journal(path)
    assert (report.operations, report.is_exact, report.cut_at) == (2, True, None)


def test_a_ring_and_a_file_hold_the_same(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("file.kvj", "ring.kvj")]
    for path, journal in zip(
        paths, (kvpool.journal.Journal(paths[0]), kvpool.journal.Journal(ring_bytes=1 << 20)), strict=True
    ):
        pool = kvpool.BlockPool(20, 4, journal=journal)
        pool.release(pool.allocate(3))
        if journal.path is None:
            pool.journal.save(path)
            assert path.read_bytes() == pool.journal.image()
        else:
            assert pool.journal.image() is None
            with pytest.raises(kvpool.errors.JournalError, match="no ring to save"):
                pool.journal.save(tmp_path / "other.kvj")
        del pool
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o600, 0o600]
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.kvj"
    path.write_text("mine")
    made: list[Callable[[], object]] = [
        lambda: kvpool.BlockPool(8, 4, journal=kvpool.journal.Journal(path)),
        lambda: kvpool.CacheManager(8, 4, journal=kvpool.journal.Journal(path)),
        lambda: kvpool.traces.Replay(kvpool.traces.Trace.generate(2), journal=kvpool.journal.Journal(path)),
        lambda: kvpool.BlockPool(8, 4, journal=ring()).journal.save(path),
    ]
    for make in made:
        with pytest.raises(kvpool.errors.JournalExistsError, match=f"{path} exists") as caught:
            make()
        assert isinstance(caught.value, FileExistsError)
        assert isinstance(caught.value, kvpool.errors.JournalFileError)
    assert path.read_text() == "mine"
    with pytest.raises(kvpool.errors.JournalFileError, match="No such file or directory"):
        kvpool.BlockPool(8, 4, journal=kvpool.journal.Journal(tmp_path / "no" / "run.kvj"))


def test_a_pool_that_could_not_be_made_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "run.kvj"
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="num_blocks"):
        kvpool.BlockPool(1, 4, journal=kvpool.journal.Journal(path))
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="watermark"):
        kvpool.CacheManager(8, 4, watermark=7, journal=kvpool.journal.Journal(path))
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="max_running"):
        kvpool.traces.Replay(
            kvpool.traces.Trace.generate(2), max_running=0, journal=kvpool.journal.Journal(path)
        )
    assert not path.exists()


def test_a_ring_that_dropped_its_beginning_is_shown_and_not_replayed() -> None:
    pool = kvpool.BlockPool(
        9, 2, journal=kvpool.journal.Journal(ring_bytes=400, frame_bytes=100, digest_every=0)
    )
    for _ in range(200):
        pool.release(pool.allocate(2))
    image = image_of(pool)
    assert len(image) < 600
    info = kvpool.journal.read_journal(image, count=2)
    assert info.operations == 400
    assert 300 < info.first_operation < 400
    assert [(number, call) for number, call, _ in info.lines] == [(398, "allocate"), (399, "release")]
    for call in (kvpool.journal.replay_journal, kvpool.journal.bisect_journal, kvpool.journal.shrink_journal):
        with pytest.raises(kvpool.errors.JournalError, match="can be shown, but not replayed"):
            call(image)


_RECORDER = """
import sys, kvpool
manager = kvpool.CacheManager(200, 4, \
journal=kvpool.journal.Journal(sys.argv[1], frame_bytes=256, digest_every=16))
number = 0
while True:
    manager.admit(number, [number % 5] * 12 + [number] * 8)
    manager.commit(number, 20)
    manager.append([number], [1])
    if number >= 6:
        manager.release(number - 6)
    number += 1
    if number % 10 == 0:
        manager.journal.flush()
        print(manager.journal.stats().operations, flush=True)
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_process_that_is_killed_leaves_a_journal(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "run.kvj"
    command = [sys.executable, "-c", _RECORDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        # Kill the process after a random amount of work. Its file may end at any byte.
        for _ in range(random.Random(seed).randrange(1, 300)):
            flushed = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    report = kvpool.journal.replay_journal(path)
    assert report.is_exact
    assert report.operations >= flushed
    assert report.digests >= flushed // 16


_FORKING = """
import os, sys
import kvpool

def waited(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

path, saved = sys.argv[1:]
pool = kvpool.BlockPool(9, 2, journal=kvpool.journal.Journal(path))
ring = kvpool.BlockPool(9, 2, journal=kvpool.journal.Journal(ring_bytes=1 << 20))
held = pool.allocate(3)
ring.allocate(2)
child = os.fork()
if not child:
    sys.exit(0)  # never uses kvpool, and ends as any process does
assert waited(child) == 0
child = os.fork()
if not child:
    pool.release(held)  # its own pool by now: it goes on, its journal does not
    assert pool.allocate(8)
    try:
        pool.journal.flush()
    except kvpool.errors.JournalFileError as error:
        assert "is a fork of process" in str(error), error
    else:
        raise SystemExit("a fork has written")
    ring.allocate(1)
    ring.journal.save(saved)
    sys.exit(0)
assert waited(child) == 0
pool.release(held)
ring.allocate(4)
pool.journal.flush()
print(pool.journal.stats().operations, ring.journal.stats().operations)
"""


def test_a_fork_writes_nothing(tmp_path: Path) -> None:
    path, saved = tmp_path / "run.kvj", tmp_path / "saved.kvj"
    done = subprocess.run(
        [sys.executable, "-c", _FORKING, str(path), str(saved)], check=False, capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("2 2\n", 0), done.stderr
    report = kvpool.journal.replay_journal(path)
    assert (report.is_exact, report.cut_at, report.operations) == (True, None, 2)
    # Each process has its own journal in memory. The child saves the operations of its own pool.
    report = kvpool.journal.replay_journal(saved)
    assert (report.is_exact, report.operations) == (True, 2)
    assert [
        words for _, call, words in kvpool.journal.read_journal(saved, count=2).lines if call != "digest"
    ] == [
        "2 blocks",
        "1 block",
    ]


def test_operations_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    pool = kvpool.BlockPool(9, 2, journal=ring(0))
    pool.release(pool.allocate(3))
    image = image_of(pool)
    path = tmp_path / "twice.kvj"
    path.write_bytes(image + frames(image)[-1])
    message = (
        r"the frame at byte \d+ begins with operation 0, and operation 2 comes next: operations are repeated"
    )
    readers: list[Callable[[Path], object]] = [
        kvpool.journal.read_journal,
        kvpool.journal.replay_journal,
        kvpool.journal.bisect_journal,
        kvpool.journal.shrink_journal,
        lambda source: kvpool.journal.export_journal(source, "rust"),
    ]
    for read in readers:
        with pytest.raises(kvpool.errors.JournalError, match=message):
            read(path)


_FULL_DISK = """
import resource, sys, kvpool
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
pool = kvpool.BlockPool(64, 4, journal=kvpool.journal.Journal(sys.argv[1], frame_bytes=256))
for _ in range(1000):
    pool.release(pool.allocate(3))
try:
    pool.journal.flush()  # by now the thread that writes has met the end of the disk
except kvpool.errors.JournalFileError as error:
    print(error)
stats = pool.journal.stats()
assert stats.error, stats
pool.release(pool.allocate(3))
assert pool.journal.stats() == stats
pool.diagnose.check_invariants()
"""


def test_a_journal_that_cannot_be_written_stops_and_the_pool_goes_on(tmp_path: Path) -> None:
    assert hasattr(resource, "RLIMIT_FSIZE")
    path = tmp_path / "run.kvj"
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("the journal has stopped: File too large")
    assert path.stat().st_size <= 2000
    report = kvpool.journal.replay_journal(path)
    assert report.is_exact
    assert report.operations > 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "path and ring_bytes: must be one of them, neither is given"),
        ({"path": "x", "ring_bytes": 1 << 20}, "must be one of them, both are given"),
        ({"ring_bytes": 1000}, "ring_bytes is 1000: must be at least four frames, 131072"),
        ({"ring_bytes": -1}, "ring_bytes is -1: must not be negative"),
        ({"path": "x", "frame_bytes": 63}, "frame_bytes is 63: must be 64 to 2\\^24"),
        ({"path": "x", "frame_bytes": 2**24 + 1}, "frame_bytes is 16777217: must be 64 to 2\\^24"),
        ({"path": "x", "digest_every": 2**32}, "digest_every is 4294967296: must be at most 4294967295"),
        ({"path": "x", "digest_every": -1}, "digest_every is -1: must not be negative"),
    ],
)
def test_settings_out_of_range(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(kvpool.errors.InvalidArgumentError, match=message):
        kvpool.journal.Journal(**arguments)


def test_settings_are_values() -> None:
    journal = kvpool.journal.Journal("run.kvj", digest_every=0)
    assert (str(journal.path), journal.ring_bytes, journal.digest_every, journal.frame_bytes) == (
        "run.kvj",
        None,
        0,
        32768,
    )
    assert journal == kvpool.journal.Journal("run.kvj", digest_every=0) != kvpool.journal.Journal("run.kvj")
    assert repr(journal) == 'Journal("run.kvj", digest_every=0, frame_bytes=32768)'
    assert (
        repr(kvpool.journal.Journal(ring_bytes=1 << 20))
        == "Journal(ring_bytes=1048576, digest_every=65536, frame_bytes=32768)"
    )
    with pytest.raises(AttributeError):
        journal.digest_every = 1  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"'run\.kvj', a str: must be a Journal"):
        kvpool.BlockPool(8, 4, journal="run.kvj")  # type: ignore[arg-type]


def test_without_digests_answers_are_compared() -> None:
    pool = kvpool.BlockPool(9, 2, journal=ring(0))
    pool.release(pool.allocate(2))
    report = kvpool.journal.replay_journal(image_of(pool))
    assert (report.operations, report.digests, report.is_exact) == (2, 0, True)


class Newest(kvpool.policies.Policy):
    """A policy that is written in Python and evicts the newest block first."""

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def release(self, block: int) -> None:
        self.blocks.append(block)

    def pop(self) -> int | None:
        return self.blocks.pop() if self.blocks else None

    def forget(self, block: int) -> None:
        self.blocks.remove(block)


def test_a_policy_of_your_own_has_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "run.kvj"
    for make in (kvpool.BlockPool, kvpool.CacheManager):
        with pytest.raises(kvpool.errors.JournalError, match="eviction is a policy of your own"):
            make(8, 4, eviction=Newest(), journal=kvpool.journal.Journal(path))
    assert not path.exists()


def test_without_a_journal_nothing_is_there(tmp_path: Path) -> None:
    tiered = kvpool.TieredPool([8, 8], 4)
    for one in (kvpool.BlockPool(8, 4), kvpool.CacheManager(8, 4), tiered.pools[0]):
        assert one.journal.stats() is None
        assert one.journal.image() is None
        one.journal.flush()
        with pytest.raises(kvpool.errors.JournalError, match="no ring to save"):
            one.journal.save(tmp_path / "run.kvj")
    assert list(tmp_path.iterdir()) == []


def test_the_example_of_the_docs_runs() -> None:
    docs = (Path(__file__).resolve().parent.parent / "docs/journal.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", docs, flags=re.DOTALL)
    exec(compile(example, "docs/journal.md", "exec"), {})


@pytest.mark.parametrize("mode", ["lookup", "engine"])
def test_the_replay_of_a_trace_records(tmp_path: Path, mode: ReplayMode) -> None:
    trace = kvpool.traces.Trace.generate(60, seed=3)
    path = tmp_path / "run.kvj"
    without = kvpool.traces.Replay(trace, mode=mode, capacity_blocks=2000)
    with_journal = kvpool.traces.Replay(
        trace, mode=mode, capacity_blocks=2000, journal=kvpool.journal.Journal(path)
    )
    without.advance()
    with_journal.advance()
    assert with_journal.report_json() == without.report_json()
    with_journal.flush_journal()
    stats = with_journal.journal_stats()
    assert stats is not None
    assert stats.bytes == path.stat().st_size
    assert without.journal_stats() is None
    without.flush_journal()
    report = kvpool.journal.replay_journal(path)
    assert report.is_exact
    assert report.operations == stats.operations > 240
    assert kvpool.journal.read_journal(path).subject == {"lookup": "pool", "engine": "manager"}[mode]


@pytest.fixture(scope="module")
def long() -> bytes:
    """Returns a journal with 20,000 operations."""
    pool = kvpool.BlockPool(9, 2, journal=ring(256, frame_bytes=4096))
    for _ in range(10_000):
        pool.release(pool.allocate(2))
    return image_of(pool)


def test_progress_counts_up_and_what_it_raises_stops(long: bytes) -> None:
    told: list[int] = []
    assert kvpool.journal.replay_journal(long, progress=told.append).operations == 20_000
    assert told == sorted(set(told))
    assert 2 <= len(told) <= 20
    assert told[-1] <= 20_000

    def stop(done: int) -> None:
        raise ZeroDivisionError(done)

    for call in (kvpool.journal.replay_journal, kvpool.journal.bisect_journal):
        with pytest.raises(ZeroDivisionError, match=str(told[0])):
            call(long, progress=stop)


def test_a_signal_stops_a_replay(long: bytes) -> None:
    def handler(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        told: list[int] = []

        def send(done: int) -> None:
            told.append(done)
            if len(told) == 1:
                os.kill(os.getpid(), signal.SIGUSR1)

        with contextlib.suppress(InterruptedError):
            kvpool.journal.replay_journal(long, progress=send)
            pytest.fail("the signal was not noticed")
        assert len(told) <= 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_threads_record_into_one_journal() -> None:
    manager = kvpool.CacheManager(4000, 4, journal=ring(16))

    def work(name: int) -> None:
        for number in range(100):
            request = name * 1000 + number
            manager.admit(request, [name] * 8 + [number] * 8)
            manager.commit(request, 16)
            manager.release(request)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report = kvpool.journal.replay_journal(image_of(manager))
    assert (report.operations, report.is_exact) == (1200, True)


def test_a_state_that_differs_is_reported() -> None:
    large, small = (kvpool.BlockPool(blocks, 2, journal=ring(5)) for blocks in (9, 7))
    for _ in range(20):
        large.release(large.allocate(2))
    image = spliced(image_of(small), image_of(large))
    for report in (kvpool.journal.replay_journal(image), kvpool.journal.bisect_journal(image)):
        difference = report.difference
        assert difference is not None
        assert not report.is_exact
        # The free lists of the two pools differ from the start. So the first digest already differs.
        assert (difference.kind, difference.operation, difference.since) == ("digest", 5, 0)
        assert (difference.asked, difference.found) == (None, None)
        assert repr(difference) == "JournalDifference(kind='digest', operation=5)"
        assert repr(report) == f"JournalReport(operations=5, digests=0, difference={difference!r})"


def refused_in_the_smaller_pool() -> bytes:
    """Makes a journal without digests. In a replay, the answer at operation 40 differs, because the
    smaller pool refuses that allocation.
    """
    large, small = (kvpool.BlockPool(blocks, 2, journal=ring(0)) for blocks in (9, 7))
    for _ in range(20):
        large.release(large.allocate(2))
    large.release(large.allocate(7))
    large.release(large.allocate(1))
    return spliced(image_of(small), image_of(large))


def test_a_difference_is_shrunk_to_the_needed_operations() -> None:
    image = refused_in_the_smaller_pool()
    difference = kvpool.journal.replay_journal(image).difference
    assert difference is not None
    assert (difference.kind, difference.operation, difference.asked) == ("answer", 40, "allocate 7 blocks")
    assert difference.found is not None
    assert "refused" in difference.found
    told: list[int] = []
    shrunk = kvpool.journal.shrink_journal(image, operation=40, progress=told.append)
    assert shrunk is not None
    assert (shrunk.before, len(shrunk.operations), shrunk.failure) == (41, 1, difference.found)
    assert len(told) == shrunk.runs - 1 > 0
    report = kvpool.journal.replay_journal(shrunk.journal)
    assert (report.operations, report.is_exact) == (1, True)  # recorded again, with this build
    assert kvpool.journal.shrink_journal(image) is None  # no invariant is broken
    assert kvpool.journal.shrink_journal(image, operation=41) is None  # not reached


def test_two_journals_are_compared() -> None:
    images = []
    for last in (3, 2):
        pool = kvpool.BlockPool(9, 2, journal=ring(2))
        pool.release(pool.allocate(2))
        pool.release(pool.allocate(last))
        images.append(image_of(pool))
    found = kvpool.journal.compare_journals(*images)
    assert found is not None
    operation, first, second = found
    assert operation == 2
    assert first is not None
    assert first.startswith("allocate 3 blocks, answered ")
    assert second is not None
    assert second.startswith("allocate 2 blocks, answered ")
    assert kvpool.journal.compare_journals(images[0], images[0]) is None
    with pytest.raises(kvpool.errors.JournalError, match="different settings"):
        kvpool.journal.compare_journals(images[0], image_of(kvpool.BlockPool(8, 2, journal=ring(2))))
