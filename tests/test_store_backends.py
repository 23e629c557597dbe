"""Tests the back ends that several engines share, in Python: folders, Redis, S3, and back ends that a
user writes.

The crate's tests damage objects and stop servers. The tests here check that each back end behaves as a
store requires.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvpool.errors import ArgumentTypeError, InvalidArgumentError, StoreError
from kvpool.store import Arena, Custom, Disk, Redis, SharedFolder, Store, backend_from_url
from kvpool.store.urls import without_password
from tests.store_servers import cannot_be_had, redis_server
from tests.test_store import AGES, PATIENT, SLOT, finish, key, namespace, payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROOM = 64 * (SLOT + 4096)


class Dictionary:
    """A back end over a dictionary, as a user might write it."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.threads: set[int] = set()

    @property
    def objects(self) -> dict[str, bytes]:
        """Returns all stored values except the records of generations."""
        return {name: value for name, value in self.values.items() if not name.endswith("/0")}

    def _enter(self) -> None:
        self.threads.add(threading.get_ident())
        if self.error is not None:
            raise self.error

    def write(self, name: str, header: bytes, address: int, length: int) -> None:
        self._enter()
        self.values[name] = header + ctypes.string_at(address, length)

    def read(self, name: str, address: int, length: int) -> bytes | None:
        self._enter()
        value = self.values.get(name)
        if value is None:
            return None
        ctypes.memmove(address, value[112:], min(length, len(value) - 112))
        return value[:112]

    def exist(self, names: list[str]) -> list[bool]:
        self._enter()
        return [name in self.values for name in names]

    def remove(self, names: list[str]) -> None:
        self._enter()
        for name in names:
            self.values.pop(name, None)


Backend = Disk | SharedFolder | Redis | Custom
KINDS = ["folder", "redis", "custom", "s3"]


@pytest.fixture(scope="module")
def redis_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with redis_server(tmp_path_factory.mktemp("redis")) as path:
        yield path


@pytest.fixture(params=KINDS)
def backends(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Backend]:
    """Returns a function that makes back ends. All of them use the same storage, which is empty at
    first.
    """
    match request.param:
        case "folder":
            return lambda: SharedFolder(tmp_path, ROOM)
        case "redis":
            database = next(DATABASES)
            path = request.getfixturevalue("redis_socket")
            return lambda: Redis(
                ROOM, unix_socket=path, database=database, protocol=2 + database % 2, timeout=AGES
            )
        case "custom":
            kept = Dictionary()
            return lambda: Custom(kept, ROOM)
        case _:
            try:
                memory = importlib.import_module("obstore.store").MemoryStore()
                bucket = importlib.import_module("kvpool.store.s3").S3(memory)
            except ImportError as error:
                cannot_be_had(str(error))
            return lambda: Custom(bucket, ROOM)


DATABASES = itertools.cycle(range(16))


def opened(backend: Backend, **settings: Any) -> tuple[Store, Arena]:
    arena = Arena(4, SLOT)
    return Store(backend, arena, namespace(), **PATIENT | {"believed_for": AGES} | settings), arena


def put(store: Store, arena: Arena, number: int) -> list[str]:
    arena.write(0, payload(number))
    return finish(store, store.put([key(number)], [0]))


def get(store: Store, arena: Arena, number: int) -> list[str]:
    arena.write(1, bytes(SLOT))
    outcome = finish(store, store.get([key(number)], [1]))
    assert arena.read(1) == (payload(number) if outcome == ["ok"] else bytes(SLOT))
    return outcome


def test_a_probe_finds_objects_of_other_engines(backends: Callable[[], Backend]) -> None:
    one, arena = opened(backends())
    with one:
        assert [put(one, arena, number) for number in range(3)] == [["ok"]] * 3
        other, memory = opened(backends())
        with other:
            keys = [key(number) for number in range(4)]
            assert finish(other, other.probe(keys)) == ["ok", "ok", "ok", "absent"]
            assert other.contains(keys) == ["here", "here", "here", "absent"]
            assert get(other, memory, 2) == ["ok"]
            assert put(other, memory, 1) == ["ok"]
            assert (other.stats().writes, other.stats().known) == (0, 1), "it is there already"
            other.remove([key(0)])
            assert finish(other, other.probe([key(0)])) == ["absent"]
        assert finish(one, one.probe(keys)) == ["absent", "ok", "ok", "absent"]
        assert one.contains(keys[:2]) == ["absent", "here"]
        with Store(backends(), memory, namespace(weights="other"), **PATIENT) as stranger:
            assert finish(stranger, stranger.probe(keys)) == ["absent"] * 4
            assert get(stranger, memory, 1) == ["absent"]
            assert stranger.stats().damaged == 0


def test_the_bound_is_kept(backends: Callable[[], Backend]) -> None:
    store, arena = opened(backends(), eviction="lru")
    with store:
        count = store.stats().capacity_bytes // SLOT + 5
        for number in range(count):
            assert put(store, arena, number) == ["ok"]
        stats = store.stats()
        assert stats.evicted > 0
        assert stats.bytes <= stats.capacity_bytes <= ROOM
    asker, _ = opened(backends())
    with asker:
        there = finish(asker, asker.probe([key(number) for number in range(count)])).count("ok")
        assert there == stats.objects == count - stats.evicted


@given(
    operations=st.lists(
        st.tuples(st.sampled_from("pgrnx"), st.integers(0, 1), st.integers(0, 4)), max_size=40
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@pytest.mark.longer
def test_two_stores_and_what_they_share(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int, int]]
) -> None:
    """Makes random calls on two stores, and compares the results with a dictionary of the objects that
    the stores share.
    """
    shared = Dictionary()
    stores = [opened(Custom(shared, ROOM), believed_for=0.0) for _ in range(2)]
    spaces = [0, 0]
    there: set[tuple[int, int]] = set()
    own: list[set[int]] = [set(), set()]
    for step, (what, who, number) in enumerate(operations):
        (store, arena), space = stores[who], spaces[who]
        match what:
            case "p":
                assert put(store, arena, number) == ["ok"]
                if number not in own[who]:
                    there.add((space, number))
                own[who].add(number)
            case "g":
                found = (space, number) in there
                assert get(store, arena, number) == (["ok"] if found else ["absent"])
                own[who] -= set() if found else {number}
            case "r":
                assert store.remove([key(number)]) == (number in own[who])
                there.discard((space, number))
                own[who].discard(number)
            case "n":
                store.renew(namespace(weights=f"{who} {step}"))
                there -= {(space, one) for one in own[who]}
                spaces[who], own[who] = step + 1, set()
            case _:
                keys = [key(one) for one in range(5)]
                answers = finish(store, store.probe(keys))
                assert answers == ["ok" if (space, one) in there else "absent" for one in range(5)]
                own[who] = {one for one in own[who] if (space, one) in there}
        settle(store)
    for store, _ in stores:
        store.close()


def settle(store: Store) -> None:
    """Waits until no removal or other transfer of the store is running."""
    while store.stats().in_flight:
        store.wait(60)


def test_an_exception_is_a_failure_and_no_room_is_none() -> None:
    shared = Dictionary()
    store, arena = opened(Custom(shared, ROOM), breaker_failures=1 << 30)
    with store:
        shared.threads.clear()
        shared.error = OSError(errno.ENOSPC, "no space")
        assert put(store, arena, 1) == ["full"]
        shared.error = RuntimeError("the bucket is on fire")
        assert get(store, arena, 2) == ["failed"]
        assert "failed: RuntimeError: the bucket is on fire" in str(store.stats().last_error)
        assert finish(store, store.probe([key(1), key(2)])) == ["failed", "failed"]
        shared.error = None
        settle(store)  # the object whose write failed is removed
        assert put(store, arena, 1) == ["ok"]
        (name,) = shared.objects
        digest = store.namespace.digest.hex()
        assert name == f"{digest}/{key(1).ljust(32, bytes(1)).hex()}-0"
        shared.values[name] = shared.values[name][:-1] + b"?"
        assert get(store, arena, 1) == ["damaged"]
        settle(store)
        assert not shared.objects
        shared.values[name] = b"short"
        assert get(store, arena, 1) == ["absent"]
    assert threading.get_ident() not in shared.threads


@pytest.mark.parametrize("answer", [7, "text", [b"header"], object()])
def test_a_back_end_that_answers_nonsense_fails(answer: object) -> None:
    class Nonsense(Dictionary):
        def read(self, name: str, address: int, length: int) -> Any:
            # Do not damage the record of the generation, because without it a store cannot be opened.
            return super().read(name, address, length) if name.endswith("/0") else answer

        def exist(self, names: list[str]) -> Any:
            return answer

    store, arena = opened(Custom(Nonsense(), ROOM))
    with store:
        assert get(store, arena, 1) == ["failed"]
        assert finish(store, store.probe([key(1)])) == ["failed"]
        assert put(store, arena, 1) == ["ok"]


def test_a_back_end_may_say_less_than_it_was_asked() -> None:
    class Short(Dictionary):
        def exist(self, names: list[str]) -> list[bool]:
            return super().exist(names)[:1]

    store, arena = opened(Custom(Short(), ROOM))
    with store:
        put(store, arena, 1)
        assert finish(store, store.probe([key(1), key(1)])) == ["ok", "absent"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/a/b", 'Disk("/a/b", 1073741824)'),
        ("disk:///a%20b", 'Disk("/a b", 1073741824)'),
        ("folder:///a/b", 'SharedFolder("/a/b", 1073741824)'),
        ("folder:///a/b?group=1", 'SharedFolder("/a/b", 1073741824)'),
        ("redis://", 'Redis("127.0.0.1:6379", 1073741824)'),
        ("redis://me:p%40ss@host:7000/3", 'Redis("host:7000", 1073741824)'),
        ("redis://[::1]:7000", 'Redis("::1:7000", 1073741824)'),
        ("redis+unix:///run/redis?database=2", 'Redis("/run/redis", 1073741824)'),
    ],
)
def test_urls_name_back_ends(url: str, shown: str) -> None:
    assert repr(backend_from_url(url, 1 << 30)) == shown


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host", "no back end is called ftp: a path, disk:///path"),
        ("ftp://host", "no back end is called ftp"),
        ("disk://host/path", "has no path: write disk:///path"),
        ("redis+unix://:secret@host", "has no path: write redis+unix:///path"),
        ("redis://host/one", "the database is 'one': must be a number"),
        ("redis://host:0x/1", "has a port that is none"),
        ("redis://me:secret@host?a=1", "redis://host has a query"),
        ("redis+unix:///run/redis?db=1", "has db: database can be given there"),
        ("disk:///a?direct=0", "has a query or a fragment: neither means anything there"),
        ("disk:///a#b", "has a query or a fragment"),
        ("folder:///a?x", "has a query or a fragment"),
        ("folder:///a?group=2", "group=1 alone can be given"),
        ("folder:///a?group=1#b", "has a query or a fragment"),
        ("redis+unix:///run/redis#secret", "has a fragment"),
        ("redis+unix:///run/redis?database=1&database=2", "has an option twice"),
        ("redis://[::1", "is no URL"),
        ("redis://[foo]/", "is no URL"),
        ("redis://\ud800/", "is no URL"),
        ("redis://h\0/", "has a control character"),
        ("redis://host:0", "has a port that is none"),
        ("redis://host/" + "9" * 5000, "the database is 999999999999: must be below 2147483648"),
        ("redis+unix:///s?database=" + "9" * 5000, "must be below 2147483648"),
        ("redis://:%ff@host", "has a login that is no UTF-8"),
        ("redis://me:se#secret@host", "redis://... has an @ after its host"),
        ("redis://me:se/secret@host", "redis://... has an @ after its host"),
        ("redis://me:se?secret@host", "redis://... has an @ after its host"),
        ("redis://:12/secret@host/0", "redis://... has an @ after its host"),
        ("redis:me:secret@host", "redis:... is a URL without its slashes"),
        ("disk:///a%00b", "has a zero byte"),
        ("/a\0b", "has a zero byte"),
        ("s3://me:secret@bucket/x", "s3://bucket/x has a fragment or a login"),
        ("s3://bucket?nonsense=secret", "s3://bucket is not taken"),
    ],
)
def test_urls_that_name_none_are_refused_without_their_password(url: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        backend_from_url(url, 1 << 30)
    assert message in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:secret@host:6379/1?ca=/pem#secret", "redis://host:6379/1"),
        ("redis://me:sec@ret@host/1", "redis://host/1"),
        ("rediss://host/1?password=secret", "rediss://host/1"),
        ("redis+unix://:secret@/run/redis", "redis+unix:///run/redis"),
        ("redis://me:se#secret@host", "redis://..."),
        ("redis://[secret:@", "redis://"),
        ("http://host:9400/metrics?token=secret", "http://host:9400/metrics"),
        ("redis:me:secret@host", "redis:..."),
        ("folder:///mnt/kv@home", "folder:///mnt/kv@home"),
        ("/mnt/kv@home", "/mnt/kv@home"),
    ],
)
def test_what_is_shown_of_a_url_has_no_part_of_a_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
    assert "secret" not in shown


def test_settings_are_checked(tmp_path: Path) -> None:
    arena = Arena(1, SLOT)
    for make, message in (
        (lambda: Redis(1 << 30, port=0), "port is 0"),
        (lambda: Redis(1 << 30, host="a", unix_socket="b"), "both given"),
        (lambda: Redis(1 << 30, database=-1), "database is -1"),
        (lambda: Redis(1 << 30, timeout=-1.0), "timeout is -1"),
        (lambda: Store(Redis(100), arena, namespace()), "capacity_bytes is 100"),
        (lambda: Store(SharedFolder(tmp_path, 100), arena, namespace()), "capacity_bytes is 100"),
        (lambda: Store(Custom(Dictionary(), 100), arena, namespace()), "places is 0"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            make()
    with pytest.raises((ArgumentTypeError, TypeError)):
        Store("redis://host", arena, namespace())  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="asking the server failed"):
        Store(Redis(1 << 30, unix_socket=tmp_path / "none"), arena, namespace())
    assert "secret" not in repr(Redis(1 << 30, password="secret"))
