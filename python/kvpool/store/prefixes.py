"""A store beneath a scheduler's own :class:`kvpool.CacheManager`: loaded ahead of admission, written
behind commits.

Owns: what is on its way between device, host and store. The manager decides what is cached on the
device, the store what is kept beneath it, and between them bytes go through slots of host memory,
copied by the engine; with ``host`` they stay there, too. Content may be in all three. One KV-cache
group.

>>> from kvpool.store import Arena, Disk, Namespace, PrefixStore, Store
>>> import tempfile
>>> folder, device = tempfile.TemporaryDirectory(), {}
>>> namespace = Namespace(
...     model="m", weights="w", kv_dtype="bf16", scales="", layouts=[], block_size=4, layers=(0, 1), heads=(0, 1),
...     hash_algorithm="sha256", hash_seed=b"", extra={},
... )
>>> manager, arena = kvpool.CacheManager(num_blocks=16, block_size=4), Arena(8, 4096)
>>> disk = Disk(folder.name, 1 << 20, free_floor_bytes=0)
>>> store = Store(disk, arena, namespace, admission="always", deadline=60, staged=True)
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
from typing import TYPE_CHECKING, Any, Literal

from kvpool._core.hashing import HashCursor
from kvpool.errors import InvalidArgumentError, RequestStateError, StaleEpochError
from kvpool.store.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvpool import CacheManager, ExtraKeys
    from kvpool._core import RequestId
    from kvpool._core.requests import Admission
    from kvpool._core.store import Arena, Namespace, Outcome, Store

    Pairs = list[tuple[int, int]]

__all__ = ["Prefetch", "PrefixStore"]

#: Kinds of groups whose tables have a block, or the null block, for each digest of a prompt.
_KINDS = ("full", "sliding", "chunked")


class Prefetch:
    """A prompt whose cached prefix is being completed from the store. Made by ``PrefixStore.prefetch``."""

    __slots__ = (
        "_admitted",
        "_asked",
        "_block_size",
        "_digests",
        "_done",
        "_first",
        "_jobs",
        "_slots",
        "cursor",
    )

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
        #: The request that was admitted while this was on its way, and its admission.
        self._admitted: tuple[RequestId, Admission] | None = None

    @property
    def done(self) -> bool:
        """Whether nothing of it is on its way any more: admitting it loads all that it can."""
        return self._jobs == 0

    @property
    def tokens(self) -> int:
        """Tokens of the prompt that the device had, and those that were loaded behind them: a hit of
        that length.
        """
        return (self._first + len(self._slots)) * self._block_size if self.done else 0


class _Names:
    """What the store calls blocks: their digests as an engine has them that was never renewed.

    A manager's digests contain its epoch, which counts the renewals of one process. The namespace says
    which weights stored blocks are of, so names leave the epoch out, and other processes find them.
    Costs a second hash of each block that is new, once the manager has an epoch.

    Args:
        most: Names that are remembered.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        #: By digest, the one that was used last at the end.
        self._known: collections.OrderedDict[bytes, bytes] = collections.OrderedDict()

    def of(self, cursor: HashCursor) -> list[bytes]:
        """Returns the name of each full block. O(tokens)."""
        digests = cursor.digests()
        if cursor.epoch == 0:
            return digests
        known = [self._known.get(digest) for digest in digests]
        names = [name for name in known if name is not None]
        if len(names) < len(digests):
            plain = cursor.copy()
            plain.rebase(0)
            names = plain.digests()
        for digest, name in zip(digests, names, strict=True):
            self._known[digest] = name
            self._known.move_to_end(digest)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return names


class PrefixStore:
    """What a scheduler puts between its manager and a store.

    No call but ``wait`` waits for the store; copies are the engine's, made inside of ``admit``,
    ``save`` and ``poll``.

    Args:
        manager: With one KV-cache group, of full attention, a window or chunks, whose blocks are those
            that are hashed.
        store: Over ``arena``, with ``staged=True``: slots are used again as soon as their jobs have ended.
        arena: A slot is at least a block's bytes. As many blocks can be on their way, loaded and not
            admitted yet, or, with ``host``, kept.
        copy_in: Copies slots to blocks of the device: pairs of both. It returns when the slots may be
            written to again, and when what reads the blocks later is ordered behind it.
        copy_out: Copies blocks of the device to slots: pairs of both. It returns when the bytes are there.
        block_bytes: Bytes of a block; a whole slot by default.
        host: Whether slots that nobody has keep what they have: host memory is a tier between device
            and store. What is there needs no load, and is not copied out again; what was used last goes
            last.
        write: When blocks go to the store: ``through``, when they are saved, or ``back``, when a
            quarter of the slots is not free any more; with ``host`` alone. What goes back is written at
            once, whatever the store admits.

    Raises:
        InvalidArgumentError: The manager has several KV-cache groups, or one of another kind or block
            size; a block is larger than a slot; ``write`` is neither, or ``back`` without ``host``.
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
        host: bool = False,
        write: Literal["through", "back"] = "through",
    ) -> None:
        if manager.num_groups != 1:
            raise InvalidArgumentError(f"the manager has {manager.num_groups} KV-cache groups: must be one")
        for group in manager.groups:
            if group.kind not in _KINDS or group.block_size != manager.block_size:
                raise InvalidArgumentError(
                    f"the manager's group is {group.kind!r} with blocks of {group.block_size} tokens: must be one of "
                    f"{', '.join(_KINDS)} with blocks of {manager.block_size}, the tokens that have a digest"
                )
        if not 1 <= (block_bytes or 1) <= arena.slot_bytes:
            raise InvalidArgumentError(
                f"block_bytes is {block_bytes}: must be from 1 to a slot's {arena.slot_bytes}"
            )
        if write not in ("through", "back") or (write == "back" and not host):
            raise InvalidArgumentError(
                f"write is {write!r} and host {host}: must be through, or back with host"
            )
        self._manager, self._store = manager, store
        self._copy_in, self._copy_out = copy_in, copy_out
        self._block_bytes = block_bytes or arena.slot_bytes
        self._epoch = manager.epoch
        self._names = _Names(2 * manager.num_blocks)
        self._slots = Slots(arena, keeps=host)
        self._host, self._back = host, write == "back"
        #: Slots that a store that is written back has ready.
        self._ready = max(1, arena.slots // 4)
        # : By job: what it is of, the slots that it has, and, of a load, the blocks behind the device's
        # that they are.
        self._jobs: dict[int, tuple[Prefetch | None, list[int], list[int]]] = {}

    @property
    def free_slots(self) -> int:
        """Slots that could be taken now, at least: those that nothing has, and what was kept and is
        written.
        """
        return self._slots.reclaimable

    def prefetch(self, prompt: Sequence[int] | HashCursor, extra: ExtraKeys | None = None) -> Prefetch:
        """Begins to load what host and store have of a prompt behind what the device has.

        For a request that waits to be admitted; ``poll`` goes on with it. Loads as many blocks as there
        are free slots. The last token of a prompt is never loaded, for it has to be computed.
        O(blocks), plus hashing. A prefetch that is not admitted MUST be dropped.

        Args:
            prompt: Its tokens, or what ``CacheManager.prepare`` returned.
            extra: Extra keys of the prompt; not with a prepared one.

        Raises:
            ClosedError: The store is closed.
            StaleEpochError: The prompt is of an epoch before; or the manager's epoch was changed
                without ``renew``.
            InvalidArgumentError, TokenError, HashingError: As ``CacheManager.prepare``.
        """
        self._check_epoch()
        cursor = prompt if isinstance(prompt, HashCursor) else self._manager.prepare(prompt, extra)
        first = self._manager.probe(cursor).cached_blocks
        block_size = self._manager.block_size
        whole = (max(len(cursor), 1) - 1) // block_size
        started = Prefetch(cursor, block_size, first, self._names.of(cursor)[first:whole])
        self._go_on(started)
        return started

    def _go_on(self, started: Prefetch) -> None:
        """Takes what host memory has and loads the rest, from the first block on; what is not known is
        asked once.
        """
        digests = started._digests
        kept = [self._slots.find(digest) for digest in digests]
        if not started._asked:
            known = self._store.contains(digests)
            if any(
                slot is None and presence == "unknown" for slot, presence in zip(kept, known, strict=True)
            ):
                started._asked = True
                started._jobs += 1
                self._jobs[self._store.probe(digests)] = (started, [], [])
                return
            there = zip(kept, known, strict=True)
            end = next(
                (at for at, (slot, of) in enumerate(there) if slot is None and of != "here"), len(digests)
            )
            kept = kept[:end]
        # What is kept is held first: room for what is loaded is made of something else.
        for slot in kept:
            if slot is not None:
                self._slots.use(slot)
        loads = [at for at, slot in enumerate(kept) if slot is None]
        taken = self._slots.take(len(loads))
        if len(taken) < len(loads):
            end = loads[len(taken)]
            self._slots.leave([slot for slot in kept[end:] if slot is not None])
            kept = kept[:end]
        loads = loads[: len(taken)]
        into = iter(taken)
        started._slots = [next(into) if slot is None else slot for slot in kept]
        if loads:
            started._jobs += 1
            job = self._store.get([digests[at] for at in loads], taken, lengths=self._block_bytes)
            self._jobs[job] = (started, taken, loads)

    def admit(
        self, request_id: RequestId, started: Prefetch, *, loading: bool = False, **settings: Any
    ) -> Admission:
        """Admits the request of a prefetch: cached blocks of the device, then those that were loaded,
        then new ones.

        What is still on its way is not waited for, and not used, unless ``loading`` is set. If the
        device has forgotten meanwhile what the loaded blocks follow, they are not used either.
        ``manager.request(request_id)`` says as ``computed_tokens`` where the engine goes on. O(blocks).

        Args:
            request_id: A new id.
            started: Its prefetch. It is used up by this; if the admission is refused, it can be
                admitted again.
            loading: Whether what is on its way is waited for by the request: it has its blocks, is
                ``loading``, and runs once ``poll`` has copied in what has arrived. It may be released
                meanwhile.
            settings: As of ``CacheManager.admit``, but for ``out`` and ``external_tokens``.

        Raises:
            OutOfBlocksError, DuplicateRequestError, InvalidArgumentError: As ``CacheManager.admit``.
        """
        if started._done or started._admitted:
            raise InvalidArgumentError("this prefetch was admitted or dropped already")
        block_size = self._manager.block_size
        first, slots = started._first, started._slots if started.done or loading else []
        cached, end = self._manager.probe(started.cursor).cached_blocks, first + len(slots)
        external = end * block_size if first <= cached < end else 0
        admission = self._manager.admit(request_id, started.cursor, external_tokens=external, **settings)
        if external and not started.done:
            started._admitted = request_id, admission
        elif external:
            self._bring_in(request_id, admission, started)
            self.drop(started)
        else:
            self.drop(started)
        return admission

    def _bring_in(self, request_id: RequestId, admission: Admission, started: Prefetch) -> None:
        """Copies in what was loaded for a request, and says so to the manager."""
        first, end = started._first, started._first + len(started._slots)
        brought = admission.cached_tokens
        try:
            if end > admission.cached_blocks:
                loaded = range(admission.cached_blocks, end)
                pairs = [(started._slots[at - first], admission.block_ids[at]) for at in loaded]
                # What a window does not read has no block: block 0 is there in its place.
                self._copy_in([(slot, block) for slot, block in pairs if block != 0])
                brought = end * self._manager.block_size
        finally:
            # Of a copy that failed nothing is taken: the engine computes it.
            self._manager.external_done(request_id, brought)

    def drop(self, started: Prefetch) -> None:
        """Gives up a prefetch: what it has loaded is let go, what is on its way when it has ended.

        Of one that a loading request waits for, nothing: release the request.
        """
        if not started._done and not started._admitted:
            started._done = True
            if started.done:
                self._let_go(started)

    def _let_go(self, started: Prefetch) -> None:
        self._slots.leave(started._slots)
        started._slots = []

    def save(self, request_id: RequestId) -> int:
        """Offers the computed blocks of a request that the store does not have, and returns how many.

        Call it after each commit, and a block is written as soon as it is full; or before ``release``
        alone. Copies the blocks to slots first; without a free slot the rest is left out, to be offered
        the next time. Blocks that the store admits at the second offer are copied twice, but from host
        memory. With ``host`` what the store has is copied to host memory, too; with ``write="back"``
        nothing is offered now. Of a request from before ``renew`` nothing is offered: its KV is of
        other weights. What a window has given up (``trim_window``) is not offered either. O(tokens).

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
        digests = self._names.of(cursor)[: info.computed_tokens // block_size]
        table = self._manager.block_ids(request_id)
        known = self._store.contains(digests)
        kept = [self._slots.find(digest) for digest in digests]
        for slot in kept:
            if slot is not None:
                self._slots.use(slot)
        offered = [presence in ("absent", "unknown") for presence in known]
        # Block 0, the null block, is what a table has where the request has given a block up.
        lacking = [at for at, slot in enumerate(kept) if slot is None and table[at] != 0]
        wanted = [at for at in lacking if offered[at] or self._host]
        taken = self._slots.take(len(wanted))
        wanted = wanted[: len(taken)]
        if wanted:
            try:
                self._copy_out([(table[at], slot) for at, slot in zip(wanted, taken, strict=True)])
            except BaseException:
                self._slots.leave(taken)
                self._slots.leave([slot for slot in kept if slot is not None])
                raise
            for at, slot in zip(wanted, taken, strict=True):
                kept[at] = slot
                if self._host:
                    self._slots.keep(slot, digests[at])
        if self._back:
            for at, slot in zip(wanted, taken, strict=True):
                if offered[at]:
                    self._slots.soil(slot, at * block_size)
            self._slots.leave([slot for slot in kept if slot is not None])
            self._write_back()
            return sum(offered[at] for at in wanted)
        going = [(at, slot) for at, slot in enumerate(kept) if slot is not None and offered[at]]
        self._slots.leave([slot for at, slot in enumerate(kept) if slot is not None and not offered[at]])
        if going:
            places, slots = [at for at, _ in going], [slot for _, slot in going]
            tokens_of = [(at * block_size, block_size) for at in places]
            job = self._store.put(
                [digests[at] for at in places], slots, lengths=self._block_bytes, tokens=tokens_of
            )
            self._jobs[job] = (None, slots, [])
        return len(going)

    def poll(self) -> None:
        """Takes in what has ended, and writes back what has to make room. Every step: it waits for
        nothing.
        """
        self._take_in(self._store.poll())
        self._write_back()

    def wait(self, timeout: float = 1.0) -> None:
        """As ``poll``, until nothing is on its way, each time at most for ``timeout`` seconds."""
        self._write_back()
        while self._jobs:
            ended = self._store.wait(timeout)
            if not ended:
                return
            self._take_in(ended)
            self._write_back()

    def flush(self, timeout: float = 1.0) -> None:
        """Writes back everything, and waits: before the engine ends."""
        self._write_back(all_of_it=True)
        self.wait(timeout)

    def _write_back(self, *, all_of_it: bool = False) -> None:
        """Offers what is dirty, the oldest first, until enough slots are or will be free."""
        block_size = self._manager.block_size
        coming = sum(len(slots) for started, slots, _ in self._jobs.values() if started is None)
        while self._back and (all_of_it or self._slots.reclaimable + coming < self._ready):
            dirty = self._slots.next_dirty()
            if dirty is None:
                return
            slot, digest, first_token = dirty
            tokens = [(first_token, block_size)]
            job = self._store.put([digest], [slot], lengths=self._block_bytes, tokens=tokens, admit="always")
            self._jobs[job] = (None, [slot], [])
            coming += 1

    def _take_in(self, ended: list[tuple[int, list[Outcome]]]) -> None:
        for job, outcomes in ended:
            started, slots, loads = self._jobs.pop(job)
            if started is None:
                self._slots.leave(slots)
                continue
            started._jobs -= 1
            if slots:
                self._loaded(started, slots, loads, outcomes)
                continue
            if not started._done:
                there = zip(started._digests, outcomes, strict=True)
                lacking = (
                    at for at, (of, outcome) in enumerate(there) if outcome != "ok" and not self._has(of)
                )
                started._digests = started._digests[: next(lacking, None)]
                self._go_on(started)

    def _has(self, digest: bytes) -> bool:
        return self._slots.find(digest) is not None

    def _loaded(self, started: Prefetch, slots: list[int], loads: list[int], outcomes: list[Outcome]) -> None:
        """A load has ended. Behind the first block that is not there nothing is of use."""
        for slot, at, outcome in zip(slots, loads, outcomes, strict=True):
            if outcome == "ok" and self._host and started.cursor.epoch == self._epoch:
                self._slots.keep(slot, started._digests[at])
        end = next(
            (at for at, outcome in zip(loads, outcomes, strict=True) if outcome != "ok"), len(started._slots)
        )
        self._slots.leave(started._slots[end:])
        started._slots = started._slots[:end]
        admitted, started._admitted = started._admitted, None
        started._done |= admitted is not None
        try:
            if admitted is not None and self._manager.request(admitted[0]).state == "loading":
                self._bring_in(*admitted, started)
            elif admitted is not None:
                self._manager.external_done(
                    admitted[0], admitted[1].cached_tokens
                )  # released meanwhile: it ends now
        finally:
            if started._done:
                self._let_go(started)

    def renew(self, namespace: Namespace) -> None:
        """Other weights: nothing of before is found any more, on the device (``bump_epoch``), in host
        and store.

        Waits for the back end, which records it: see ``Store.renew``.

        Raises:
            StoreError: The back end has not recorded it. Nothing of before is found here all the same;
                call it again.
            ClosedError: The store is closed.
        """
        self._epoch = self._manager.bump_epoch()
        self._slots.forget_all()
        self._store.renew(namespace)

    def _check_epoch(self) -> None:
        if self._manager.epoch != self._epoch:
            # What is stored now would be found by a process that has the weights of before.
            raise StaleEpochError(
                f"the manager is in epoch {self._manager.epoch}, the store in {self._epoch}: call renew, not bump_epoch"
            )
