"""``Shelf``: the store of one host pool. It loads and stores pages under SGLang's keys.

The store has one object for each part of a page. The parts of a page have the same key and different
groups. A page is present if all of its parts are. SGLang calls from its own threads and expects the
result when the call returns, so calls wait here. At any time, one of the waiting threads waits for the
store and processes ended jobs for all threads. The class is thread-safe. If a back end fails, the
result is an outcome and never an exception.

If a call moves pages of several host pools, it starts all transfers first, and then waits for all of
them until the deadline of the call. A lent page is a slot in SGLang's own memory. Transfers of lent
pages are staged (copied by the store's workers), because SGLang reuses a page as soon as the call
returns. A call with lent pages therefore waits until the store has ended the job. The store's own
deadline limits this time. Copied pages use slots that belong to kvpool, so a call can abandon its job
at the deadline. If a back end still uses a slot then, the slot is reused only later.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvpool.integrations.sglang.pages import Copied, Lent
from kvpool.store import Disk, Store, backend_from_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvpool._core.store import Outcome, StoreStats
    from kvpool.integrations.sglang.settings import Settings
    from kvpool.store import Custom, Namespace, Redis, SharedFolder

    Backend = Disk | SharedFolder | Redis | Custom

__all__ = ["Shelf", "digest_of", "is_shared", "left", "open_backend"]

#: The largest number of seconds for which one thread waits for the store before another thread may take over.
_WAIT_SECONDS: Final = 1.0
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def digest_of(key: str) -> bytes:
    """Returns the store's key for a key of SGLang: 32 bytes.

    A key of SGLang is usually a SHA-256 digest in hexadecimal, which is used as it is. Any other
    string, such as one with a suffix, is hashed by SHA-256. Otherwise, a shorter key would be padded,
    and could then equal another key.
    """
    if _DIGEST.fullmatch(key):
        return bytes.fromhex(key)
    return hashlib.sha256(b"kvpool sglang key\0" + key.encode("utf-8", "surrogatepass")).digest()


def open_backend(settings: Settings, folder: str, pool: str, capacity_bytes: int) -> Backend:
    """Returns the back end for the pages of a host pool.

    The back end is a folder of the rank, or a back end that all ranks share. In a shared back end, the
    namespaces separate ranks and pools.
    """
    if settings.url is not None:
        return backend_from_url(settings.url, capacity_bytes)
    path = Path(settings.root_dir or "").expanduser() / folder / pool
    return Disk(path, capacity_bytes, free_floor_bytes=settings.free_floor_bytes)


def is_shared(settings: Settings) -> bool:
    """Returns whether a rank finds pages that another rank wrote."""
    return settings.url is not None


def left(until: float) -> float:
    """Returns the seconds until a time of ``time.monotonic``; 0 if it has passed."""
    return max(0.0, until - time.monotonic())


class _Jobs:
    """The jobs of one store, for which several threads wait.

    Args:
        store: The store. Its deadline ends every job.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ended: dict[int, list[Outcome]] = {}
        self._abandoned: set[int] = set()
        self._has_waiter = False
        self._changed = threading.Condition()

    def outcomes(self, job: int, until: float | None = None) -> list[Outcome]:
        """Waits until a job ends. Returns its outcomes, or an empty list if it has not ended by ``until``.

        If ``until`` is None, there is no time limit.

        Raises:
            ClosedError: The store was closed during the wait.
        """
        self._take(self._store.poll())
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: job in self._ended or not self._has_waiter,
                    None if until is None else left(until),
                )
                if job in self._ended:
                    return self._ended.pop(job)
                if until is not None and not left(until):
                    self._abandoned.add(job)
                    return []
                if self._has_waiter:
                    continue
                self._has_waiter = True
            ended: list[tuple[int, list[Outcome]]] = []
            try:
                ended = self._store.wait(_WAIT_SECONDS if until is None else min(_WAIT_SECONDS, left(until)))
            finally:
                with self._changed:
                    self._has_waiter = False
                self._take(ended)

    def _take(self, ended: list[tuple[int, list[Outcome]]]) -> None:
        with self._changed:
            for job, outcomes in ended:
                if job in self._abandoned:
                    self._abandoned.remove(job)
                else:
                    self._ended[job] = outcomes
            self._changed.notify_all()


class Shelf:
    """The store of one host pool.

    Args:
        pages: The pages of the pool.
        settings: The settings.
        namespace: The namespace of the pages.
        backend: The back end that keeps them.

    Raises:
        InvalidArgumentError: A setting is out of range.
        StoreError: The folder cannot be used, or another rank uses it.
    """

    def __init__(
        self, pages: Lent | Copied, settings: Settings, namespace: Namespace, backend: Backend
    ) -> None:
        self.pages = pages
        self._store = Store(
            backend,
            pages.arena,
            namespace,
            eviction=settings.eviction,
            # Every page is stored at the first offer. SGLang's write policy has already chosen it, and
            # SGLang offers a page only once and then assumes that it is stored.
            admission="always",
            workers=settings.workers,
            queue=settings.queue,
            deadline=settings.deadline,
            staged=isinstance(pages, Lent),
        )
        self._jobs = _Jobs(self._store)

    def has(self, keys: Sequence[str], until: float) -> list[bool]:
        """Returns which pages can be loaded. O(keys).

        If the back end is shared, queries it in one call for the pages of unknown state, and waits
        until ``until`` at most.
        """
        parts = self.pages.parts
        digests, groups = self._objects(keys)
        known = self._store.contains(digests, groups=groups)
        there = [presence == "here" for presence in known]
        unknown = [at for at, presence in enumerate(known) if presence == "unknown"]
        if unknown:
            job = self._store.probe([digests[at] for at in unknown], groups=[groups[at] for at in unknown])
            # If the deadline has passed, the list of outcomes is empty, and the unknown pages count as
            # missing.
            for at, outcome in zip(unknown, self._jobs.outcomes(job, until), strict=False):
                there[at] = outcome == "ok"
        return [all(there[at : at + parts]) for at in range(0, len(there), parts)]

    def load(
        self, keys: Sequence[str], first_indices: Sequence[int], until: float
    ) -> Callable[[], list[bool]]:
        """Begins to load pages to the given indices of the host pool.

        Returns a function that waits for them and returns which of them are loaded. The memory of a
        page that is not loaded has undefined content.
        """
        pages = self.pages
        if isinstance(pages, Copied):
            return lambda: self._load_copied(pages, keys, first_indices, pages.write, until)
        digests, groups = self._objects(keys)
        job = self._store.get(digests, pages.slots(first_indices), groups=groups, lengths=pages.part_bytes)
        return lambda: self._pages(keys, self._jobs.outcomes(job))

    def save(
        self, keys: Sequence[str], first_indices: Sequence[int], position: int, until: float
    ) -> Callable[[], list[bool]]:
        """Begins to store pages of the host pool.

        Returns a function that waits for them and returns which of them are stored.

        Args:
            keys: The keys of the pages, which follow each other in a prompt.
            first_indices: The index of each page's first token in the host pool.
            position: The position of the first page's first token in its prompt.
            until: The deadline of the call, a time of ``time.monotonic``.
        """
        pages = self.pages
        if isinstance(pages, Copied):
            return lambda: self._save_copied(pages, keys, first_indices, pages.read, position, until)
        job = self._put(keys, pages.slots(first_indices), position)
        return lambda: self._pages(keys, self._jobs.outcomes(job))

    def load_tensors(self, keys: Sequence[str], tensors: Sequence[Any], until: float) -> list[bool]:
        """Like ``load``, but into flat tensors, one per page.

        If pages are lent, nothing is loaded, because there are no slots to copy from.
        """
        if not isinstance(self.pages, Copied):
            return [False] * len(keys)
        return self._load_copied(self.pages, keys, tensors, self.pages.copy_out, until)

    def save_tensors(self, keys: Sequence[str], tensors: Sequence[Any], until: float) -> list[bool]:
        """Like the method ``save``, but stores flat tensors, one per page."""
        if not isinstance(self.pages, Copied):
            return [False] * len(keys)
        return self._save_copied(self.pages, keys, tensors, self.pages.copy_in, 0, until)

    def _load_copied(
        self,
        pages: Copied,
        keys: Sequence[str],
        places: Sequence[Any],
        copy: Callable[[int, Any], None],
        until: float,
    ) -> list[bool]:
        def move(keys: Sequence[str], slots: list[int], places: Sequence[Any]) -> list[bool]:
            digests, groups = self._objects(keys)
            job = self._store.get(digests, slots, groups=groups, lengths=self.pages.part_bytes)
            loaded = self._pages(keys, self._jobs.outcomes(job, until))
            for slot, place, there in zip(slots, places, loaded, strict=True):
                if there:
                    copy(slot, place)
            return loaded

        return self._in_rounds(pages, keys, places, move, until)

    def _save_copied(
        self,
        pages: Copied,
        keys: Sequence[str],
        places: Sequence[Any],
        copy: Callable[[int, Any], None],
        position: int,
        until: float,
    ) -> list[bool]:
        done = 0

        def move(keys: Sequence[str], slots: list[int], places: Sequence[Any]) -> list[bool]:
            nonlocal done
            for slot, place in zip(slots, places, strict=True):
                copy(slot, place)
            job = self._put(keys, slots, position + done * self.pages.page_size)
            done += len(keys)
            return self._pages(keys, self._jobs.outcomes(job, until))

        return self._in_rounds(pages, keys, places, move, until)

    def _in_rounds(
        self,
        pages: Copied,
        keys: Sequence[str],
        places: Sequence[Any],
        move: Callable[[Sequence[str], list[int], Sequence[Any]], list[bool]],
        until: float,
    ) -> list[bool]:
        """Moves the pages in rounds, each with as many pages as there are slots.

        Starts no round after ``until``.
        """
        done: list[bool] = []
        while len(done) < len(keys) and left(until):
            first = len(done)
            slots = pages.take(len(keys) - first, left(until))
            if not slots:
                break
            last = first + len(slots)
            try:
                done += move(keys[first:last], slots, places[first:last])
            finally:
                pages.give(slots)
        return done + [False] * (len(keys) - len(done))

    def _put(self, keys: Sequence[str], slots: Sequence[int], position: int) -> int:
        digests, groups = self._objects(keys)
        parts, page_size = self.pages.parts, self.pages.page_size
        tokens = [(position + at // parts * page_size, page_size) for at in range(len(digests))]
        return self._store.put(digests, slots, groups=groups, lengths=self.pages.part_bytes, tokens=tokens)

    def _objects(self, keys: Sequence[str]) -> tuple[list[bytes], list[int]]:
        parts = self.pages.parts
        digests = [digest for key in keys for digest in [digest_of(key)] * parts]
        return digests, list(range(parts)) * len(keys)

    def _pages(self, keys: Sequence[str], outcomes: Sequence[Outcome]) -> list[bool]:
        """Returns for each page whether all of its parts succeeded.

        An empty list of outcomes means that the job was abandoned.
        """
        parts = self.pages.parts
        if not outcomes:
            return [False] * len(keys)
        return [
            all(one == "ok" for one in outcomes[at : at + parts]) for at in range(0, len(outcomes), parts)
        ]

    def renew(self, namespace: Namespace) -> None:
        """Drops all stored pages, and uses another namespace from now on."""
        self._store.renew(namespace)

    def stats(self) -> StoreStats:
        """Returns the statistics of the store."""
        return self._store.stats()

    def close(self, until: float) -> None:
        """Closes the store. Waits for running writes, at most until ``until``."""
        self._store.close(left(until))
