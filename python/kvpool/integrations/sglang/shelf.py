"""The store of one host pool: pages in and out, by SGLang's keys.

A page is an object per part, in the same key's groups; it is there if all of them are. SGLang calls from threads of its
own, and wants to know when it returns, so calls wait here, for the store's deadline at most: whichever thread waits
takes in what has ended, for all. Thread safe. What a back end does is an outcome and never an exception.

Transfers of lent pages are staged: SGLang reuses a page as soon as it is told, and what hangs has let it go by then.
Slots of copied pages are kvpool's own; one that a back end still has is not used.
"""

from __future__ import annotations

import hashlib
import re
import threading
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

__all__ = ["Shelf", "digest_of", "is_shared", "open_backend"]

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def digest_of(key: str) -> bytes:
    """The store's key of one of SGLang's: 32 bytes.

    SGLang's keys are SHA-256 in hexadecimal: the digest is the key. Any other string, such as one with a suffix, is
    hashed by SHA-256; a shorter digest as it is would be padded, and could be mistaken for another.
    """
    if _DIGEST.fullmatch(key):
        return bytes.fromhex(key)
    return hashlib.sha256(b"kvpool sglang key\0" + key.encode("utf-8", "surrogatepass")).digest()


def open_backend(settings: Settings, folder: str, pool: str, capacity_bytes: int) -> Backend:
    """Where a rank keeps the pages of a host pool: in a folder of its own, or in a back end that all share.

    Of a shared one nothing here tells ranks and pools apart; their namespaces do.
    """
    if settings.url is not None:
        return backend_from_url(settings.url, capacity_bytes)
    return Disk(
        Path(settings.root_dir or "") / folder / pool, capacity_bytes, free_floor_bytes=settings.free_floor_bytes
    )


def is_shared(settings: Settings) -> bool:
    """Whether a rank finds what another one wrote."""
    return settings.url is not None


class _Jobs:
    """The jobs of a store, which several threads wait for.

    Args:
        store: The store.
        deadline: Seconds after which a job has ended, whatever the back end does.
    """

    def __init__(self, store: Store, deadline: float) -> None:
        self._store, self._deadline = store, deadline
        self._ended: dict[int, list[Outcome]] = {}
        self._someone_waits = False
        self._changed = threading.Condition()

    def outcomes(self, job: int) -> list[Outcome]:
        """Waits for a job to end.

        Raises:
            ClosedError: The store was closed meanwhile.
        """
        self._take(self._store.poll())
        while True:
            with self._changed:
                self._changed.wait_for(lambda: job in self._ended or not self._someone_waits)
                if job in self._ended:
                    return self._ended.pop(job)
                self._someone_waits = True
            ended: list[tuple[int, list[Outcome]]] = []
            try:
                ended = self._store.wait(self._deadline)
            finally:
                with self._changed:
                    self._someone_waits = False
                self._take(ended)

    def _take(self, ended: list[tuple[int, list[Outcome]]]) -> None:
        with self._changed:
            self._ended.update(ended)
            self._changed.notify_all()


class Shelf:
    """The store of one host pool.

    Args:
        pages: How its pages lie.
        settings: The settings.
        namespace: Whose they are.
        backend: Where they are kept.

    Raises:
        InvalidArgumentError: A setting is out of range.
        StoreError: The folder cannot be used; another rank has it.
    """

    def __init__(self, pages: Lent | Copied, settings: Settings, namespace: Namespace, backend: Backend) -> None:
        self.pages = pages
        self._deadline = settings.deadline
        self._store = Store(
            backend,
            pages.arena,
            namespace,
            eviction=settings.eviction,
            # SGLang offers a page once and takes it for stored: what is worth it, its write policy decides.
            admission="always",
            workers=settings.workers,
            queue=settings.queue,
            deadline=settings.deadline,
            staged=isinstance(pages, Lent),
        )
        self._jobs = _Jobs(self._store, settings.deadline)

    def has(self, keys: Sequence[str]) -> list[bool]:
        """Which pages can be loaded. A shared back end is asked, in one call, for what is not known; waits. O(keys)."""
        parts = self.pages.parts
        digests, groups = self._objects(keys)
        known = self._store.contains(digests, groups=groups)
        there = [presence == "here" for presence in known]
        unknown = [at for at, presence in enumerate(known) if presence == "unknown"]
        if unknown:
            job = self._store.probe([digests[at] for at in unknown], groups=[groups[at] for at in unknown])
            for at, outcome in zip(unknown, self._jobs.outcomes(job), strict=True):
                there[at] = outcome == "ok"
        return [all(there[at : at + parts]) for at in range(0, len(there), parts)]

    def load(self, keys: Sequence[str], first_indices: Sequence[int]) -> list[bool]:
        """Loads pages to where they begin in the host pool; waits.

        The memory of a page that is not loaded has no meaning.
        """
        if isinstance(self.pages, Copied):
            return self._load_copied(self.pages, keys, first_indices, self.pages.write)
        digests, groups = self._objects(keys)
        job = self._store.get(digests, self.pages.slots(first_indices), groups=groups, lengths=self.pages.part_bytes)
        return self._pages(self._jobs.outcomes(job))

    def save(self, keys: Sequence[str], first_indices: Sequence[int], position: int) -> list[bool]:
        """Stores pages of the host pool; waits.

        Args:
            keys: Of the pages, which follow each other in a prompt.
            first_indices: Where each begins.
            position: Of the first page's first token in its prompt.
        """
        if isinstance(self.pages, Copied):
            return self._save_copied(self.pages, keys, first_indices, self.pages.read, position)
        return self._put(keys, self.pages.slots(first_indices), position)

    def load_tensors(self, keys: Sequence[str], tensors: Sequence[Any]) -> list[bool]:
        """As ``load``, into flat tensors of a page each. Nothing, if pages are lent: then there are no slots for it."""
        if not isinstance(self.pages, Copied):
            return [False] * len(keys)
        return self._load_copied(self.pages, keys, tensors, self.pages.copy_out)

    def save_tensors(self, keys: Sequence[str], tensors: Sequence[Any]) -> list[bool]:
        """As ``save``, of flat tensors."""
        if not isinstance(self.pages, Copied):
            return [False] * len(keys)
        return self._save_copied(self.pages, keys, tensors, self.pages.copy_in, 0)

    def _load_copied(
        self, pages: Copied, keys: Sequence[str], places: Sequence[Any], copy: Callable[[int, Any], None]
    ) -> list[bool]:
        def move(keys: Sequence[str], slots: list[int], places: Sequence[Any]) -> list[bool]:
            digests, groups = self._objects(keys)
            job = self._store.get(digests, slots, groups=groups, lengths=self.pages.part_bytes)
            loaded = self._pages(self._jobs.outcomes(job))
            for slot, place, there in zip(slots, places, loaded, strict=True):
                if there:
                    copy(slot, place)
            return loaded

        return self._in_rounds(pages, keys, places, move)

    def _save_copied(
        self,
        pages: Copied,
        keys: Sequence[str],
        places: Sequence[Any],
        copy: Callable[[int, Any], None],
        position: int,
    ) -> list[bool]:
        done = 0

        def move(keys: Sequence[str], slots: list[int], places: Sequence[Any]) -> list[bool]:
            nonlocal done
            for slot, place in zip(slots, places, strict=True):
                copy(slot, place)
            saved = self._put(keys, slots, position + done * self.pages.page_size)
            done += len(keys)
            return saved

        return self._in_rounds(pages, keys, places, move)

    def _in_rounds(
        self,
        pages: Copied,
        keys: Sequence[str],
        places: Sequence[Any],
        move: Callable[[Sequence[str], list[int], Sequence[Any]], list[bool]],
    ) -> list[bool]:
        """Moves as many pages at a time as there are slots."""
        done: list[bool] = []
        while len(done) < len(keys):
            first = len(done)
            slots = pages.take(len(keys) - first, self._deadline)
            if not slots:
                break
            last = first + len(slots)
            try:
                done += move(keys[first:last], slots, places[first:last])
            finally:
                pages.give(slots)
        return done + [False] * (len(keys) - len(done))

    def _put(self, keys: Sequence[str], slots: Sequence[int], position: int) -> list[bool]:
        digests, groups = self._objects(keys)
        parts, page_size = self.pages.parts, self.pages.page_size
        tokens = [(position + at // parts * page_size, page_size) for at in range(len(digests))]
        job = self._store.put(digests, slots, groups=groups, lengths=self.pages.part_bytes, tokens=tokens)
        return self._pages(self._jobs.outcomes(job))

    def _objects(self, keys: Sequence[str]) -> tuple[list[bytes], list[int]]:
        parts = self.pages.parts
        digests = [digest for key in keys for digest in [digest_of(key)] * parts]
        return digests, list(range(parts)) * len(keys)

    def _pages(self, outcomes: Sequence[Outcome]) -> list[bool]:
        parts = self.pages.parts
        return [all(one == "ok" for one in outcomes[at : at + parts]) for at in range(0, len(outcomes), parts)]

    def renew(self, namespace: Namespace) -> None:
        """Forgets everything, and serves another namespace from now on."""
        self._store.renew(namespace)

    def stats(self) -> StoreStats:
        """What the store did and has."""
        return self._store.stats()

    def close(self) -> None:
        """Ends the store; what is being written is waited for, at most for the deadline."""
        self._store.close(self._deadline)
