"""A store beneath a scheduler's own :class:`kvpool.CacheManager`: loaded ahead of admission, written behind commits.

Owns: which slot of the arena is whose. The manager decides what is cached on the device, the store what is kept beneath
it; content may be in both. Between them bytes go through slots, copied by the engine. One KV-cache group.

>>> from kvpool.store import Arena, Disk, Namespace, PrefixStore, Store
>>> import tempfile
>>> folder, device = tempfile.TemporaryDirectory(), {}
>>> namespace = Namespace(
...     model="m", weights="w", kv_dtype="bf16", scales="", layouts=[], block_size=4, layers=(0, 1), heads=(0, 1),
...     hash_algorithm="sha256", hash_seed=b"", extra={},
... )
>>> manager, arena = kvpool.CacheManager(num_blocks=16, block_size=4), Arena(8, 4096)
>>> store = Store(Disk(folder.name, 1 << 20, free_floor_bytes=0), arena, namespace, admission="always", staged=True)
>>> def copy_out(pairs):
...     for block, slot in pairs:
...         arena.write(slot, device[block])
>>> def copy_in(pairs):
...     for slot, block in pairs:
...         device[block] = arena.read(slot)
>>> prefixes = PrefixStore(manager, store, arena, copy_in=copy_in, copy_out=copy_out)
>>> admission = manager.admit("a", range(10))
>>> device |= {block: bytes([block]) * 4096 for block in admission.block_ids}
>>> manager.commit("a", 10), prefixes.save("a")  # 2 blocks are registered, and offered to the store
(2, 2)
>>> manager.release("a")
>>> prefixes.wait(60)
>>> manager.evict(16)  # the device forgets
[2, 1]
>>> prefetch = prefixes.prefetch(range(10))  # while the request waits in the queue
>>> prefixes.wait(60)
>>> prefetch.tokens
8
>>> prefixes.admit("b", prefetch).external_tokens, manager.request("b").computed_tokens
(8, 8)
>>> store.close()
>>> folder.cleanup()
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from kvpool._core.hashing import HashCursor
from kvpool.errors import InvalidArgumentError, RequestStateError, SlotBusyError, StaleEpochError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvpool import CacheManager, ExtraKeys
    from kvpool._core import RequestId
    from kvpool._core.requests import Admission
    from kvpool._core.store import Arena, Namespace, Outcome, Store

    Pairs = list[tuple[int, int]]

__all__ = ["Prefetch", "PrefixStore"]


class Prefetch:
    """A prompt whose cached prefix is being completed from the store. Made by ``PrefixStore.prefetch``."""

    __slots__ = ("_asked", "_block_size", "_digests", "_done", "_first", "_jobs", "_slots", "cursor")

    def __init__(self, cursor: HashCursor, block_size: int, first: int, digests: list[bytes]) -> None:
        #: The prepared prompt.
        self.cursor = cursor
        self._block_size = block_size
        self._first = first  # blocks that the device had
        self._digests = digests  # of the blocks behind them, as far as the store may have them
        self._slots: list[int] = []
        self._asked = False
        self._jobs = 0
        self._done = False

    @property
    def done(self) -> bool:
        """Whether nothing of it is on its way any more: admitting it loads all that it can."""
        return self._jobs == 0

    @property
    def tokens(self) -> int:
        """Tokens of the prompt that the device had, and those that were loaded behind them: a hit of that length."""
        return (self._first + len(self._slots)) * self._block_size if self.done else 0


class PrefixStore:
    """What a scheduler puts between its manager and a store.

    No call but ``wait`` waits for the store; copies are the engine's, made inside of ``admit`` and ``save``.

    Args:
        manager: With one KV-cache group.
        store: Over ``arena``, with ``staged=True``: slots are used again as soon as their jobs have ended.
        arena: A slot is at least a block's bytes. As many blocks can be on their way, or loaded and not admitted yet.
        copy_in: Copies slots to blocks of the device: pairs of both. It returns when the slots may be written to
            again, and when what reads the blocks later is ordered behind it.
        copy_out: Copies blocks of the device to slots: pairs of both. It returns when the bytes are there.
        block_bytes: Bytes of a block; a whole slot by default.

    Raises:
        InvalidArgumentError: The manager has several KV-cache groups; a block is larger than a slot.
    """

    def __init__(
        self,
        manager: CacheManager,
        store: Store,
        arena: Arena,
        *,
        copy_in: Callable[[Pairs], object],
        copy_out: Callable[[Pairs], object],
        block_bytes: int | None = None,
    ) -> None:
        if manager.num_groups != 1:
            raise InvalidArgumentError(f"the manager has {manager.num_groups} KV-cache groups: must be one")
        if not 1 <= (block_bytes or 1) <= arena.slot_bytes:
            raise InvalidArgumentError(f"block_bytes is {block_bytes}: must be from 1 to a slot's {arena.slot_bytes}")
        self._manager, self._store, self._arena = manager, store, arena
        self._copy_in, self._copy_out = copy_in, copy_out
        self._block_bytes = block_bytes or arena.slot_bytes
        self._epoch = manager.epoch
        self._free = collections.deque(range(arena.slots))
        #: By job: what it is of, and the slots that it has.
        self._jobs: dict[int, tuple[Prefetch | None, list[int]]] = {}

    @property
    def free_slots(self) -> int:
        """Slots that nothing has."""
        return len(self._free)

    def prefetch(self, prompt: Sequence[int] | HashCursor, extra: ExtraKeys | None = None) -> Prefetch:
        """Begins to load what the store has of a prompt behind what the device has.

        For a request that waits to be admitted; ``poll`` goes on with it. Loads as many blocks as there are free slots.
        The last token of a prompt is never loaded, for it has to be computed. O(blocks), plus hashing. A prefetch that
        is not admitted MUST be dropped.

        Args:
            prompt: Its tokens, or what ``CacheManager.prepare`` returned.
            extra: Extra keys of the prompt; not with a prepared one.

        Raises:
            ClosedError: The store is closed.
            StaleEpochError: The prompt is of an epoch before; or the manager's epoch was changed without ``renew``.
            InvalidArgumentError, TokenError, HashingError: As ``CacheManager.prepare``.
        """
        self._check_epoch()
        cursor = prompt if isinstance(prompt, HashCursor) else self._manager.prepare(prompt, extra)
        first = self._manager.probe(cursor).cached_blocks
        block_size = self._manager.block_size
        whole = (max(len(cursor), 1) - 1) // block_size
        started = Prefetch(cursor, block_size, first, cursor.digests()[first:whole])
        self._go_on(started)
        return started

    def _go_on(self, started: Prefetch) -> None:
        """Loads what is there, from the first block on; a shared back end is asked once for what is not known."""
        digests = started._digests
        there = len(digests)
        if not started._asked:
            known = self._store.contains(digests)
            if "unknown" in known:
                started._asked = True
                started._jobs += 1
                self._jobs[self._store.probe(digests)] = (started, [])
                return
            there = next((at for at, presence in enumerate(known) if presence != "here"), there)
        slots = self._take(there)
        if slots:
            started._jobs += 1
            started._slots = slots
            job = self._store.get(digests[: len(slots)], slots, lengths=self._block_bytes)
            self._jobs[job] = (started, slots)

    def admit(self, request_id: RequestId, started: Prefetch, **settings: Any) -> Admission:
        """Admits the request of a prefetch: cached blocks of the device, then those that were loaded, then new ones.

        What is still on its way is not waited for, and not used. If the device has forgotten meanwhile what the loaded
        blocks follow, they are not used either. ``manager.request(request_id).computed_tokens`` is where the engine
        goes on. O(blocks).

        Args:
            request_id: A new id.
            started: Its prefetch. It is used up by this; if the admission is refused, it can be admitted again.
            settings: As of ``CacheManager.admit``, but for ``out`` and ``external_tokens``.

        Raises:
            OutOfBlocksError, DuplicateRequestError, InvalidArgumentError: As ``CacheManager.admit``.
        """
        if started._done:
            raise InvalidArgumentError("this prefetch was admitted or dropped already")
        block_size = self._manager.block_size
        first, slots = started._first, started._slots if started.done else []
        cached, end = self._manager.probe(started.cursor).cached_blocks, first + len(slots)
        external = end * block_size if first <= cached < end else 0
        admission = self._manager.admit(request_id, started.cursor, external_tokens=external, **settings)
        if external:
            loaded = range(admission.cached_blocks, end)
            copied = False
            try:
                self._copy_in([(slots[at - first], admission.block_ids[at]) for at in loaded])
                copied = True
            finally:
                # Of a copy that failed nothing is taken: the engine computes it.
                self._manager.external_done(request_id, None if copied else admission.cached_tokens)
        self.drop(started)
        return admission

    def drop(self, started: Prefetch) -> None:
        """Gives up a prefetch: what it has loaded is let go, what is on its way when it has ended."""
        if not started._done:
            started._done = True
            if started.done:
                self._free.extend(started._slots)
                started._slots = []

    def save(self, request_id: RequestId) -> int:
        """Offers the computed blocks of a request that the store does not have, and returns how many.

        Call it after each commit, and a block is written as soon as it is full; or before ``release`` alone. Copies the
        blocks to slots first; without a free slot the rest is left out, to be offered the next time. Blocks that the
        store admits at the second offer are copied twice. Of a request from before ``renew`` nothing is offered: its KV
        is of other weights. O(tokens).

        Args:
            request_id: A request that holds its blocks on the device.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: It holds no blocks on the device.
            StaleEpochError: The manager's epoch was changed without ``renew``.
            ClosedError: The store is closed.
        """
        self._check_epoch()
        cursor = self._manager.cursor(request_id)
        info = self._manager.request(request_id)
        if info.state != "running":
            raise RequestStateError(f"request {request_id!r} is {info.state}: only running ones are saved")
        if cursor.epoch != self._epoch:
            return 0
        block_size = self._manager.block_size
        digests = cursor.digests()[: info.computed_tokens // block_size]
        missing = [at for at, known in enumerate(self._store.contains(digests)) if known in ("absent", "unknown")]
        slots = self._take(len(missing))
        missing = missing[: len(slots)]
        if missing:
            table = self._manager.block_ids(request_id)
            try:
                self._copy_out([(table[at], slot) for at, slot in zip(missing, slots, strict=True)])
            except BaseException:
                self._free.extend(slots)
                raise
            tokens_of = [(at * block_size, block_size) for at in missing]
            job = self._store.put([digests[at] for at in missing], slots, lengths=self._block_bytes, tokens=tokens_of)
            self._jobs[job] = (None, slots)
        return len(missing)

    def poll(self) -> None:
        """Takes in what has ended. Call it every step: it waits for nothing."""
        self._take_in(self._store.poll())

    def wait(self, timeout: float = 1.0) -> None:
        """As ``poll``, until nothing is on its way, each time at most for ``timeout`` seconds."""
        while self._jobs:
            ended = self._store.wait(timeout)
            if not ended:
                return
            self._take_in(ended)

    def _take_in(self, ended: list[tuple[int, list[Outcome]]]) -> None:
        for job, outcomes in ended:
            started, slots = self._jobs.pop(job)
            if started is None:
                self._free.extend(slots)
                continue
            started._jobs -= 1
            loaded = next((at for at, outcome in enumerate(outcomes) if outcome != "ok"), len(outcomes))
            if slots:
                started._slots = slots[:loaded]
                self._free.extend(slots[loaded:])
            if started._done:
                self._free.extend(started._slots)
                started._slots = []
            elif not slots:
                started._digests = started._digests[:loaded]
                self._go_on(started)

    def renew(self, namespace: Namespace) -> None:
        """Other weights: nothing of before is found any more, on the device (``bump_epoch``) and in the store."""
        self._epoch = self._manager.bump_epoch()
        self._store.renew(namespace)

    def _check_epoch(self) -> None:
        if self._manager.epoch != self._epoch:
            # What is stored now would be found by a process that has the weights of before.
            raise StaleEpochError(
                f"the manager is in epoch {self._manager.epoch}, the store in {self._epoch}: call renew, not bump_epoch"
            )

    def _take(self, wanted: int) -> list[int]:
        """Free slots, as many as are wanted and there; none that a transfer which timed out still has."""
        taken: list[int] = []
        for _ in range(len(self._free)):
            if len(taken) == wanted:
                break
            slot = self._free.popleft()
            try:
                self._arena.write(slot, b"")
            except SlotBusyError:
                self._free.append(slot)
            else:
                taken.append(slot)
        return taken
