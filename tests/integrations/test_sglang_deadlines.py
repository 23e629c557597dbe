"""A call of SGLang has one deadline for all of its host pools together, because SGLang waits at most 10
s for its threads.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.integrations.sglang import pools
from kvpool.integrations.sglang.settings import Settings
from kvpool.integrations.sglang.shelf import Shelf
from kvpool.store import Custom
from kvpool.store.pages import RECORD
from tests.integrations.hicache_stand_ins import (
    MhaPool,
    MlaPool,
    PoolName,
    PoolTransfer,
    StatePool,
    attach,
    content,
    fill,
    indices,
    key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

POOLS = {
    PoolName.KV: lambda: MhaPool(),
    PoolName.SWA: lambda: MhaPool(heads=1),
    PoolName.INDEXER: lambda: MlaPool(),
}
COPIED = {
    PoolName.KV: lambda: MhaPool("layer_first"),
    PoolName.SWA: lambda: MhaPool("layer_first", heads=1),
    PoolName.INDEXER: lambda: MlaPool("layer_first"),
    PoolName.MAMBA: lambda: StatePool(),
}


class Server:
    """A server of objects. While it is stopped, calls wait.

    Args:
        meets: Number of calls that wait until all of them have started.
    """

    def __init__(self, meets: int = 1) -> None:
        self.goes = threading.Event()
        self.goes.set()
        self.meeting = threading.Barrier(meets)
        self.begun: list[str] = []
        self.held: dict[str, tuple[bytes, bytes]] = {}

    def begin(self, pool: str) -> None:
        self.begun.append(pool)
        self.goes.wait()
        self.meeting.wait(timeout=120)


class Part:
    """The objects of one host pool on the server. Reads and writes of the store's generation never
    wait.
    """

    def __init__(self, server: Server, pool: str) -> None:
        self._server, self._pool = server, pool

    def write(self, name: str, header: bytes, address: int, length: int) -> None:
        self._begin(name)
        self._server.held[name] = header, ctypes.string_at(address, length)

    def read(self, name: str, address: int, length: int) -> bytes | None:
        self._begin(name)
        found = self._server.held.get(name)
        if found is not None:
            ctypes.memmove(address, found[1], min(length, len(found[1])))
        return None if found is None else found[0]

    def exist(self, names: list[str]) -> list[bool]:
        self._server.begin(self._pool)
        return [name in self._server.held for name in names]

    def remove(self, names: list[str]) -> None: ...

    def _begin(self, name: str) -> None:
        if not RECORD.fullmatch(name):
            self._server.begin(self._pool)


@pytest.fixture
def opened(storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Attaches a back end that uses a server. At the end, lets waiting calls continue."""
    made: list[tuple[Any, Server]] = []

    def over(server: Server, kinds: dict[PoolName, Any], **changed: Any) -> tuple[Any, dict[PoolName, Any]]:
        def open_backend(settings: Settings, rank: str, pool: str, capacity_bytes: int) -> Custom:
            return Custom(Part(server, pool), capacity_bytes)

        monkeypatch.setattr(pools, "open_backend", open_backend)
        hosts = {name: make() for name, make in kinds.items()}
        others: dict[PoolName, Any] = {name: one for name, one in hosts.items() if name is not PoolName.KV}
        backend = attach(storage, tmp_path, hosts[PoolName.KV], others, interface_v1=1, **changed)
        made.append((backend, server))
        return backend, hosts

    yield over
    for backend, server in made:
        server.goes.set()
        backend.close()


def transfers(hosts: dict[PoolName, Any], page: int = 0) -> list[PoolTransfer]:
    return [PoolTransfer(name, indices(one, page), [key(1)]) for name, one in hosts.items()]


def test_a_call_moves_pages_of_all_pools_at_a_time(opened: Any) -> None:
    """Each transfer waits until the transfers of all other pools have started. If the pools were served
    one after the other, each would take the whole deadline.
    """
    server = Server(meets=5)  # keys and values twice, and latents
    backend, hosts = opened(server, POOLS)
    stored = {name: fill(one, 0, number) for number, (name, one) in enumerate(hosts.items())}
    assert backend.batch_set_v2(transfers(hosts)) == {name: [True] for name in hosts}
    assert backend.batch_get_v2(transfers(hosts, 1)) == {name: [True] for name in hosts}
    assert {name: content(one, 1) for name, one in hosts.items()} == stored


def test_a_stopped_server_takes_the_deadline_once_for_pools_that_are_copied(opened: Any) -> None:
    server = Server()
    backend, hosts = opened(server, COPIED, deadline=2)
    server.goes.clear()
    assert backend.batch_set_v2(transfers(hosts)) == {name: [False] for name in hosts}
    assert set(server.begun) == {"kv"}, "nothing is begun after the deadline of the call"
    server.begun.clear()
    server.goes.set()
    # Repeat the store until it succeeds. The page cannot be stored while the job of the first call
    # still uses it.
    while backend.batch_set_v2(transfers(hosts)) != {name: [True] for name in hosts}:
        pass
    assert set(server.begun) >= {"swa", "indexer", "mamba"}


def test_rounds_of_a_call_have_one_deadline(opened: Any) -> None:
    """A call with more pages than slots needs several rounds. Together they have one deadline."""
    server = Server()
    backend, hosts = opened(server, {PoolName.KV: COPIED[PoolName.KV]}, deadline=0.5, staging_bytes=1)
    server.goes.clear()
    keys = [key(page) for page in range(6)]
    assert backend.batch_set_v1(keys, indices(hosts[PoolName.KV], *range(6))) == [False] * 6
    assert len(server.begun) == 1


def test_a_slot_that_was_left_at_the_deadline_is_not_used_before_the_server_has_ended(opened: Any) -> None:
    server = Server()
    backend, hosts = opened(server, {PoolName.KV: COPIED[PoolName.KV]}, deadline=0.5, staging_bytes=1)
    pool = hosts[PoolName.KV]
    fill(pool, 0, 1)
    server.goes.clear()
    assert backend.batch_set_v1([key(1)], indices(pool, 0)) == [False]
    fill(pool, 1, 2)
    assert backend.batch_set_v1([key(2)], indices(pool, 1)) == [False], "the only slot is taken"
    server.goes.set()
    slots = backend._pools["kv"].pages
    while not (taken := slots.take(1, 60)):
        pass
    slots.give(taken)
    for page in (1, 2):
        loaded = backend.batch_get_v1([key(page)], indices(pool, page + 4))
        assert loaded == [False] or content(pool, page + 4) == content(pool, page - 1)


def test_a_query_of_all_pools_has_one_deadline(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    backend, hosts = opened(server, POOLS, deadline=0.5)
    seen: list[float] = []
    asked = Shelf.has

    def has(self: Shelf, keys: Any, until: float) -> list[bool]:
        seen.append(until)
        asked(self, keys, until)
        return [True] * len(keys)  # otherwise the first unknown pool would end the query

    monkeypatch.setattr(Shelf, "has", has)
    backend.batch_exists_v2([key(1)], [PoolTransfer(name) for name in hosts])
    assert len(seen) == 4
    assert len(set(seen)) == 1


def test_the_end_has_one_deadline_for_all_pools(opened: Any) -> None:
    server = Server()
    backend, hosts = opened(server, POOLS, deadline=0.5)
    server.goes.clear()
    backend.batch_set_v2(transfers(hosts))
    waits: list[float] = []

    def close(closes: Callable[[float], None], until: float) -> None:
        waits.append(until)
        closes(until)

    for pool in backend._pools.values():
        pool.shelf.close = functools.partial(close, pool.shelf.close)
    backend.close()
    assert len(waits) == 3
    assert len(set(waits)) == 1


def test_two_calls_fit_into_the_seconds_that_sglang_waits() -> None:
    """A write-back needs two calls: one for the sidecars (additional pools), and one for keys and
    values. SGLang waits 10 s for both.
    """
    assert 2 * Settings(root_dir="x", capacity_bytes=1).deadline < 10
