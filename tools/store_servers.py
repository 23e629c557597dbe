#!/usr/bin/env python3
"""Tests kvpool.store with real servers on this machine, which are stopped, killed and emptied during
the test.

    python tools/store_servers.py                     # Redis, S3 (moto), Mooncake
    python tools/store_servers.py --packages target/store-servers

For each server, the program checks the following. A store finds and reads the objects that another
store wrote. A server that is stopped during loads causes misses, and no call in the caller's thread
waits for the server. A server that is killed and restarts without content causes misses. Every loaded
byte is compared. The table shows the latencies of calls while the server was stopped.

Packages of the servers are taken from --packages, where ``make store-servers-check`` installs them.
Exit code 0: all checks passed. 1: a check failed. 2: bad usage. 3: no check failed, but a server is
unavailable; if CI is set in the environment, the code is then 1. 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from kvpool.store import Arena, Custom, Namespace, Redis, Store  # noqa: E402
from kvpool.store.mooncake import Mooncake  # noqa: E402
from tests.store_servers import binary, connects, free_port, running  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_Answer = TypeVar("_Answer")

OBJECTS: Final = 48
SLOTS: Final = 16
OBJECT_BYTES: Final = 1 << 20
#: Number of calls that are timed while a server is stopped. Every EVERY-th call also starts a transfer.
CALLS: Final = 2000
EVERY: Final = 16
#: Seconds after which the store stops waiting for a transfer. Largest number of seconds for a round of
#: checks.
DEADLINE: Final = 1.0
AGES: Final = 120.0


class ServersError(Exception):
    """A check failed; the message describes it."""


class MissingError(Exception):
    """A server is unavailable; the message states what is missing."""


@dataclasses.dataclass
class Server:
    """A server process, and the functions that open back ends on it."""

    name: str
    command: list[str]
    answers: Callable[[], bool]
    backend: Callable[[Arena, int], Redis | Custom]
    folder: Path
    prepare: Callable[[], object] = lambda: None
    process: Any = None
    stack: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    def start(self) -> None:
        self.process = self.stack.enter_context(running(self.command, self.answers, self.folder))
        self.prepare()

    def kill(self) -> None:
        self.process.kill()
        self.stack.close()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


def redis(folder: Path) -> Server:
    try:
        program = binary("redis-server", "valkey-server")
    except BaseException as error:  # pytest raises its own exception to skip
        raise MissingError(str(error)) from error
    path = str(folder / "socket")
    return Server(
        "redis",
        [program, "--port", "0", "--save", "", "--unixsocket", path],
        lambda: connects(path),
        lambda _, capacity: Redis(capacity, unix_socket=path, timeout=2.0),
        folder,
    )


def s3(folder: Path) -> Server:
    try:
        boto3, _, obstore = map(importlib.import_module, ("boto3", "moto", "obstore.store"))
        storage = importlib.import_module("kvpool.store.s3").S3
    except ImportError as error:
        raise MissingError(str(error)) from error
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    def open_bucket(_: Arena, capacity: int) -> Custom:
        bucket = obstore.S3Store(
            "kvpool", endpoint=url, region="us-east-1", access_key_id="a", secret_access_key="b",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True, "timeout": "2 seconds"}, retry_config={"max_retries": 0},
        )  # fmt: skip
        return Custom(storage(bucket), capacity)

    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}

    def make_bucket() -> None:
        boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket="kvpool")

    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    return Server("s3", command, lambda: connects(("127.0.0.1", port)), open_bucket, folder, make_bucket)


def mooncake(folder: Path, packages: Path | None) -> Server:
    try:
        distributed = importlib.import_module("mooncake.store").MooncakeDistributedStore
    except ImportError as error:
        raise MissingError(str(error)) from error
    program = next((path for path in (packages or Path()).glob("bin/mooncake_master")), None)
    if program is None:
        raise MissingError("mooncake_master is not in --packages")
    port, metrics = free_port(), free_port()

    def connect(arena: Arena, capacity: int) -> Custom:
        store = distributed()
        code = store.setup(
            "127.0.0.1", "P2PHANDSHAKE", 2 * capacity, 64 << 20, "tcp", "", f"127.0.0.1:{port}"
        )
        if code != 0:
            raise ServersError(f"Mooncake is not set up: error {code}")
        return Custom(Mooncake(store, arena), capacity)

    command = [
        str(program), "--port", str(port), "--rpc_address", "127.0.0.1", "--metrics_host", "127.0.0.1",
        "--metrics_port", str(metrics),
    ]  # fmt: skip
    return Server("mooncake", command, lambda: connects(("127.0.0.1", port)), connect, folder)


class Engine:
    """A store with slots for transfers. The bytes of each object are computed from the object's number."""

    def __init__(self, server: Server, object_bytes: int) -> None:
        self.bytes = object_bytes
        # The first slots are for loads of several objects, and the others for single transfers.
        self.arena = Arena(SLOTS + CALLS // EVERY, object_bytes)
        namespace = Namespace(
            model="check", weights="", kv_dtype="", scales="", layouts=[], block_size=16, layers=(0, 1),
            heads=(0, 1), hash_algorithm="sha256", hash_seed=b"", extra={},
        )  # fmt: skip
        capacity = (OBJECTS + CALLS // EVERY) * (object_bytes + 4096)
        self.store = Store(
            server.backend(self.arena, capacity), self.arena, namespace, admission="always",
            deadline=DEADLINE, breaker_failures=1000, believed_for=0.0, staged=False,
        )  # fmt: skip

        #: Results of ended jobs that no caller has fetched yet, by number of the job.
        self.ended: dict[int, list[str]] = {}
        #: Single loads that were started: number of the job, slot, and number of the object.
        self.loads: list[tuple[int, int, int]] = []

    def note(self, ended: Sequence[tuple[int, Sequence[str]]]) -> None:
        self.ended.update((job, list(outcomes)) for job, outcomes in ended)

    def payload(self, number: int) -> bytes:
        return random.Random(number).randbytes(4096) * (self.bytes // 4096)

    def finish(self, job: int) -> list[str]:
        end = time.monotonic() + AGES
        while time.monotonic() < end:
            self.note(self.store.wait(1.0))
            if job in self.ended:
                return self.ended.pop(job)
        raise ServersError(f"a job never ended: {self.store.stats().last_error}")

    def settle(self) -> None:
        end = time.monotonic() + AGES
        while self.store.stats().in_flight:
            self.store.wait(1.0)
            if time.monotonic() > end:
                raise ServersError(f"transfers never ended: {self.store.stats().last_error}")

    def fill(self, numbers: Sequence[int]) -> int:
        """Stores objects on the server. Returns the number of objects that were stored."""
        kept = 0
        for first in range(0, len(numbers), SLOTS):
            some = numbers[first : first + SLOTS]
            for slot, number in enumerate(some):
                self.arena.write(slot, self.payload(number))
            kept += self.finish(self.store.put([key(one) for one in some], list(range(len(some))))).count(
                "ok"
            )
            self.settle()
        return kept

    def fill_at_length(self, numbers: Sequence[int]) -> int:
        """Stores objects, and repeats the attempt for those that were not stored. On a busy machine the
        first attempt may fail without a fault of the server.
        """
        end = time.monotonic() + AGES
        while (kept := self.fill(numbers)) < len(numbers) and time.monotonic() < end:
            pass
        return kept

    def load(self, numbers: Sequence[int], between: Callable[[], None] = lambda: None) -> dict[int, str]:
        """Loads objects, and compares the bytes of those that were found."""
        found: dict[int, str] = {}
        for first in range(0, len(numbers), SLOTS):
            some = numbers[first : first + SLOTS]
            self.settle()
            job = self.store.get([key(one) for one in some], list(range(len(some))))
            between()
            for slot, (number, outcome) in enumerate(zip(some, self.finish(job), strict=True)):
                found[number] = outcome
                if outcome == "ok" and self.arena.read(slot) != self.payload(number):
                    raise ServersError(f"wrong bytes of object {number}")
        return found

    def eventually(self, numbers: Sequence[int]) -> dict[int, str]:
        """Loads objects, and repeats the misses. On a busy machine a deadline may pass although the
        server works.
        """
        found = self.load(numbers)
        end = time.monotonic() + AGES
        while (left := [number for number in numbers if found[number] != "ok"]) and time.monotonic() < end:
            found |= self.load(left)
        return found

    def calls(self) -> dict[str, list[float]]:
        """Returns the times in microseconds of single calls that a scheduler makes, by name of the
        call.
        """
        keys = [key(number) for number in range(100)]
        lookups: dict[str, Callable[[], object]] = {
            "contains": lambda: self.store.contains(keys),
            "probe": lambda: self.store.probe(keys),
            "poll": lambda: self.note(self.store.poll()),
            "touch": lambda: self.store.touch(keys),
        }
        spent: dict[str, list[float]] = {name: [] for name in (*lookups, "put", "get")}

        def timed(name: str, call: Callable[[], _Answer]) -> _Answer:
            began = time.perf_counter()
            answer = call()
            spent[name].append(1e6 * (time.perf_counter() - began))
            return answer

        loads: list[tuple[int, int, int]] = []
        for nth in range(CALLS):
            if nth % EVERY != 0:
                name = list(lookups)[nth % len(lookups)]
                timed(name, lookups[name])
                continue
            number, slot = nth // EVERY, SLOTS + nth // EVERY
            if number % 2 == 0:
                new = [key(OBJECTS + number)]
                timed("put", lambda new=new, at=slot: self.store.put(new, [at]))  # type: ignore[misc]
            else:
                wanted = number % OBJECTS
                old = [key(wanted)]
                job = timed("get", lambda old=old, at=slot: self.store.get(old, [at]))  # type: ignore[misc]
                loads.append((job, slot, wanted))
        self.loads += loads
        return spent

    def compare(self) -> None:
        """Compares the bytes of the single loads that have succeeded with the expected bytes."""
        for job, slot, number in self.loads:
            if self.finish(job) == ["ok"] and self.arena.read(slot) != self.payload(number):
                raise ServersError(f"wrong bytes of object {number}")
        self.loads.clear()


def key(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise ServersError(what)


def check(server: Server, object_bytes: int) -> list[str]:
    """Runs all checks with one server. Returns the server's row of the table."""
    everything = list(range(OBJECTS))
    server.start()
    one = Engine(server, object_bytes)
    expect(
        one.fill_at_length(everything) == OBJECTS,
        f"not all objects were stored: {one.store.stats().last_error}",
    )
    other = Engine(server, object_bytes)
    there = other.finish(other.store.probe([key(number) for number in [*everything, 999]]))
    expect(there == ["ok"] * OBJECTS + ["absent"], f"another store gets the answers {there}")
    random.Random(1).shuffle(everything)
    expect(
        set(other.eventually(everything).values()) == {"ok"}, "another store does not read the stored objects"
    )

    by_call: dict[str, list[float]] = {}

    def stop() -> None:
        server.signal(signal.SIGSTOP)
        by_call.update(other.calls())

    stopped = other.load(everything[:SLOTS], stop)
    server.signal(signal.SIGCONT)
    expect(set(stopped.values()) <= {"ok", "timed_out", "failed", "unavailable"}, f"stopped: {stopped}")
    other.compare()
    again = other.load(everything)
    expect(set(again.values()) <= {"ok", "failed", "timed_out"}, f"going on: {again}")
    expect(
        set(other.eventually(everything).values()) == {"ok"},
        "after the server continues, not all objects are read",
    )

    def kill() -> None:
        server.kill()

    killed = other.load(everything[:SLOTS], kill)
    server.start()
    other.settle()
    empty = other.load(everything)
    expect("ok" not in empty.values() or server.name == "mooncake", f"killed and empty: {empty}")
    other.settle()
    written = other.fill_at_length(everything[:SLOTS])
    expect(written == SLOTS, f"nothing is stored after a restart: {other.store.stats().last_error}")
    loaded = other.eventually(everything[:SLOTS])
    expect(set(loaded.values()) == {"ok"}, f"after a restart: {loaded}")
    spent = sorted(us for of in by_call.values() for us in of)
    for engine in (one, other):
        engine.store.close(1.0)
    server.kill()
    counted = {word: list(stopped.values()).count(word) for word in dict.fromkeys(stopped.values())}
    return [
        server.name,
        ", ".join(f"{count} {word}" for word, count in counted.items()),
        f"{list(killed.values()).count('ok')} of {SLOTS} ok",
        f"{percentile(spent, 50):.1f}",
        f"{percentile(spent, 99):.1f}",
        f"{spent[-1]:.0f}",
        *(f"{percentile(sorted(of), 50):.1f}, {percentile(sorted(of), 99):.1f}" for of in by_call.values()),
    ]


def percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[(len(ordered) - 1) * percent // 100]


def servers(packages: Path | None, folder: Path) -> Iterator[tuple[str, Callable[[], Server]]]:
    makers: dict[str, Callable[[Path], Server]] = {
        "redis": redis,
        "s3": s3,
        "mooncake": lambda inside: mooncake(inside, packages),
    }
    for name in makers:
        inside = folder / name
        inside.mkdir()
        yield name, lambda name=name, inside=inside: makers[name](inside)  # type: ignore[misc]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--packages", type=lambda text: Path(text).resolve(), help="a folder with packages of the servers"
    )
    options = parser.parse_args(arguments)
    if options.packages:
        sys.path.append(str(options.packages))
        paths = [str(options.packages), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    table = Table(
        "server", "stopped", "killed", "p50 us", "p99 us", "max us",
        "contains 100", "probe 100", "poll", "touch 100", "put 1", "get 1",
        title="calls while the server is stopped: all, and p50 and p99 of each",
    )  # fmt: skip
    code = 0
    with tempfile.TemporaryDirectory(prefix="kvpool-") as folder:
        for name, make in servers(options.packages, Path(folder)):
            try:
                table.add_row(*check(make(), OBJECT_BYTES))
            except MissingError as missing:
                console.print(f"NOT CHECKED: {name}: {missing}")
                code = max(code, 1 if os.environ.get("CI") else 3)
            except ServersError as error:
                console.print(f"{name}: {error}")
                code = 1
    console.print(table)
    return code


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
