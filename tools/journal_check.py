#!/usr/bin/env python3
"""Checks the journal with a trace: replays the whole recording, cut recordings and killed recordings.

    python tools/journal_check.py TRACE

- The whole journal: the trace runs through a CacheManager as in a continuous-batching server. Few
  requests run at once, so that there are many operations. Then every operation is replayed, and every
  answer and digest is compared.
- Cuts: the file is cut at a random byte. The remaining file has to replay exactly, and at most one
  frame may be lost.
- Kills: another process makes the same recording and gets SIGKILL after its file has passed a random
  byte. The file has to be the beginning of the whole journal, and has to replay exactly.

Exits with 1 if anything differs. `cargo bench -p kvpool-benches --bench journal` measures the cost of
recording.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import kvpool

OPERATIONS = 1_000_000
MAX_RUNNING = 4
#: Number of times that the journal is cut, and number of times that a recording is killed.
TIMES = 20


def record(trace: Path, journal: Path) -> kvpool.journal.JournalStats:
    """Records the run of the trace until it ends, or until ``OPERATIONS`` operations are recorded."""
    settings = kvpool.journal.Journal(journal)
    replay = kvpool.traces.Replay(
        kvpool.traces.Trace.read(trace), mode="engine", max_running=MAX_RUNNING, journal=settings
    )
    while replay.advance(1) < replay.total:
        stats = replay.journal_stats()
        if stats is not None and stats.operations >= OPERATIONS:
            break
    replay.flush_journal()
    stats = replay.journal_stats()
    if stats is None or stats.error is not None:
        sys.exit(f"the journal stopped: {stats}")
    return stats


def must_replay(journal: Path | bytes, what: str) -> kvpool.journal.JournalReport:
    report = kvpool.journal.replay_journal(journal)
    if not report.is_exact:
        sys.exit(f"{what}: differs: {report.difference!r}")
    return report


def frame_ends(journal: bytes) -> list[int]:
    """Returns the positions in the journal at which its frames end. The first frame is the header,
    without which the file is not a journal.
    """
    ends, at = [], 8
    while at < len(journal):
        at += 12 + int.from_bytes(journal[at : at + 4], "little")
        ends.append(at)
    return ends


def cut(whole: bytes, at: int) -> None:
    """Cuts the journal after ``at`` bytes. Checks that the rest replays to the end of its last whole
    frame.
    """
    report = must_replay(whole[:at], f"cut at byte {at:,}")
    if at - report.cut_bytes != max(end for end in frame_ends(whole) if end <= at):
        sys.exit(f"cut at byte {at:,}: {report.cut_bytes:,} bytes are lost")
    print(
        f"  cut at byte {at:>11,}: {report.operations:>9,} operations replay, {report.cut_bytes:>6,} bytes "
        "are lost"
    )


def kill(whole: bytes, at: int, trace: Path, folder: Path) -> None:
    """Kills a recording when its file has ``at`` bytes. Checks that the file equals the beginning of
    the journal.
    """
    path = folder / f"killed-{at}.kvj"
    child = multiprocessing.get_context("spawn").Process(target=record, args=(trace, path))
    child.start()
    while child.is_alive() and (not path.exists() or path.stat().st_size < at):
        time.sleep(0.0005)
    if child.pid is not None and child.is_alive():
        os.kill(child.pid, signal.SIGKILL)
    child.join()
    left = path.read_bytes()
    path.unlink()
    if not whole.startswith(left):
        sys.exit(f"killed at byte {at:,}: what is left is not the beginning of the journal")
    report = must_replay(left, f"killed at byte {at:,}")
    how = "finished" if child.exitcode == 0 else f"ended by {signal.Signals(-(child.exitcode or 0)).name}"
    print(
        f"  {how} behind byte {at:>11,}: {len(left):>11,} bytes are left, {report.operations:>9,} "
        "operations replay"
    )


def main() -> int:
    trace = Path(sys.argv[1])
    shuffled = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "run.kvj"
        began = time.perf_counter()
        stats = record(trace, path)
        print(
            f"recorded: {stats.operations:,} operations, {stats.bytes:,} bytes, "
            f"{stats.bytes / stats.operations:.2f} per operation, {time.perf_counter() - began:.1f} s"
        )
        if stats.operations < OPERATIONS:
            print(f"the trace has no {OPERATIONS:,} operations")
        began = time.perf_counter()
        report = must_replay(path, "the whole")
        if report.operations != stats.operations or report.cut_at is not None:
            sys.exit(f"the whole: {report!r} is not what was recorded")
        print(
            f"replayed: {report.operations:,} operations and {report.digests:,} digests, bit-exact, "
            f"{time.perf_counter() - began:.1f} s"
        )
        whole = path.read_bytes()
        header = frame_ends(whole)[0]
        for _ in range(TIMES):
            cut(whole, shuffled.randrange(header, len(whole)))
        for _ in range(TIMES):
            kill(whole, shuffled.randrange(header, len(whole)), trace, folder)
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
