"""``PrefixStore``: adds a store to a scheduler that uses :class:`kvpool.CacheManager`.

Blocks are loaded from the store before admission, and written to it after commits.

This module owns the transfers between device, host memory and store. The manager decides which blocks
are cached on the device, and the store decides which blocks it keeps. Bytes move between the two
through slots of host memory. The engine copies between device and slots. With ``host``, the slots keep
their bytes, so that the same content may be in all three places. Only one KV-cache group is supported.

>>> from kvpool.store import Arena, Disk, Namespace, PrefixStore, Store
>>> import tempfile
>>> folder, device = tempfile.TemporaryDirectory(), {}
>>> namespace = Namespace(
...     model="m", weights="w", kv_dtype="bf16", scales="", layouts=[], block_size=4,
...     layers=(0, 1), heads=(0, 1), hash_algorithm="sha256", hash_seed=b"", extra={},
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

from typing import TYPE_CHECKING, Any, Literal

from kvpool._core.hashing import HashCursor
from kvpool._core.store import block_names, offer_blocks
from kvpool.errors import InvalidArgumentError, StaleEpochError
from kvpool.store.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvpool import CacheManager, ExtraKeys
    from kvpool._core import RequestId
    from kvpool._core.requests import Admission
    from kvpool._core.store import Arena, Namespace, Outcome, Store

    Pairs = list[tuple[int, int]]

__all__ = ["Prefetch", "PrefixStore"]

#: The most blocks that one job writes back.
_BATCH = 256

#: The supported kinds of groups. Their block tables contain a block, or the null block, for each
#: digest of a prompt.
_KINDS = ("full", "sliding", "chunked")


class Prefetch:
    """The prefix of a prompt that is being loaded from the store. Made by ``PrefixStore.prefetch``."""

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
        #: The prompt, whose block hashes are computed.
        self.cursor = cursor
        self._block_size = block_size
        self._first = first  # number of blocks cached on the device
        self._digests = digests  # of the next blocks, as far as the store may contain them
        self._slots: list[int] = []
        self._asked = False
        self._jobs = 0
        self._done = False
        #: The request that was admitted while its blocks were still being loaded, and its admission.
        self._admitted: tuple[RequestId, Admission] | None = None

    @property
    def done(self) -> bool:
        """Whether no transfer of this prefetch is running.

        If so, an admission uses every block that could be loaded.
        """
        return self._jobs == 0

    @property
    def tokens(self) -> int:
        """Number of tokens that were cached on the device, plus the tokens that were loaded after them.

        This is the length of the hit. 0 while a transfer is running.
        """
        return (self._first + len(self._slots)) * self._block_size if self.done else 0


class PrefixStore:
    """Connects a scheduler's manager with a store.

    Only ``wait``, ``flush`` and ``renew`` wait for the store. The functions that copy run inside
    ``admit``, ``save`` and ``poll``.

    Args:
        manager: A manager with one KV-cache group, which has full attention, a window or chunks. The
            group's block size must equal the number of tokens per digest.
        store: A store over ``arena``, made with ``staged=True``. Staging is necessary because slots are
            reused as soon as their jobs have ended.
        arena: The slots. Each must be able to hold one block. The number of slots limits how many
            blocks can be in transfer, loaded but not yet admitted, or, with ``host``, kept.
        copy_in: A function that copies slots to blocks of the device. It gets a list of (slot, block)
            pairs. It returns when the slots may be overwritten, and when all later reads of the blocks
            see the copy.
        copy_out: A function that copies blocks of the device to slots. It gets a list of (block, slot)
            pairs. It returns when the bytes are in the slots.
        block_bytes: Bytes of a block. The default is the size of a slot.
        host: Whether unused slots keep their content, so that host memory is a tier between device and
            store. Kept content needs no load, and is not copied out again. The least recently used
            content is evicted first.
        write: When blocks are written to the store. ``through``: when they are saved. ``back``, which
            needs ``host``: when less than a quarter of the slots is free. Blocks that are written back
            are always stored; the store's admission policy does not apply.

    Raises:
        InvalidArgumentError: The manager has several KV-cache groups, or a group of another kind or
            block size; a block is larger than a slot; ``write`` is unknown; or it is ``back`` without
            ``host``.
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
        if len(manager.groups) > 1:
            raise InvalidArgumentError(f"the manager has {len(manager.groups)} KV-cache groups: must be one")
        for group in manager.groups:
            if group.kind not in _KINDS or group.block_size != manager.block_size:
                raise InvalidArgumentError(
                    f"the manager's group is {group.kind!r} with blocks of {group.block_size} tokens: must "
                    f"be one of {', '.join(_KINDS)} with blocks of {manager.block_size}, the tokens that "
                    "have a digest"
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
        self._epoch = manager.stats().pool.epoch
        self._slots = Slots(arena, keeps=host)
        self._host, self._writes_back = host, write == "back"
        #: With ``write="back"``, the number of slots that should be available. If fewer are, dirty blocks are
        #: written back.
        self._ready = max(1, arena.slots // 4)
        #: For each job: its prefetch, its slots, and a number for each slot: for a load, the position of the
        #: block in the prefetch; for blocks that are written back, the position of the first token.
        self._jobs: dict[int, tuple[Prefetch | None, list[int], list[int]]] = {}

    @property
    def free_slots(self) -> int:
        """A lower bound of the number of slots that can be taken now.

        Free slots can be taken, and so can slots whose kept content has been written to the store.
        """
        return self._slots.reclaimable

    def prefetch(self, prompt: Sequence[int] | HashCursor, extra: ExtraKeys | None = None) -> Prefetch:
        """Begins to load those blocks of a prompt that are in host memory or in the store.

        The load starts after the blocks that are cached on the device.

        Call it for a request that waits for admission. ``poll`` continues the load. At most one block
        per free slot is loaded. The last token of a prompt is never loaded, because it has to be
        computed. O(blocks), plus hashing. A prefetch that is not admitted MUST be dropped with
        ``drop``.

        Args:
            prompt: The tokens, or the result of ``CacheManager.prepare``.
            extra: The extra keys of the prompt. Not allowed if the prompt is prepared.

        Raises:
            ClosedError: The store is closed.
            StaleEpochError: The prompt was prepared in an earlier epoch, or the manager's epoch was
                changed without ``renew``.
            InvalidArgumentError, TokenError, HashingError: As ``CacheManager.prepare``.
        """
        self._check_epoch()
        cursor = prompt if isinstance(prompt, HashCursor) else self._manager.prepare(prompt, extra)
        first = self._manager.probe(cursor).cached_blocks
        block_size = self._manager.block_size
        whole = (max(len(cursor), 1) - 1) // block_size
        names = block_names(self._store, cursor, self._manager.num_blocks)
        started = Prefetch(cursor, block_size, first, names[first:whole])
        self._continue(started)
        return started

    def _continue(self, started: Prefetch) -> None:
        """Takes blocks from host memory and loads the others, starting with the first block.

        If it is unknown whether the store has a block, queries the store once.
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
        # Mark the kept slots as in use first. Otherwise, taking slots for loads could evict them.
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
        """Admits the request of a prefetch.

        It uses cached blocks of the device, then loaded blocks, then new ones.

        Without ``loading``, loads that are still running are not used. If the device has evicted the
        blocks before the loaded ones, the loaded blocks are not used either. The engine computes from
        the token ``manager.request(request_id).computed_tokens`` on. O(blocks).

        Args:
            request_id: A new id.
            started: The prefetch of the request. It can be admitted only once. If the admission is
                refused, it can be tried again.
            loading: Whether the request waits for running loads. It then already has its blocks, and
                its state is ``loading``. It runs once ``poll`` has copied the loaded blocks to the
                device. It may be released before that.
            settings: Arguments of ``CacheManager.admit``, except ``out`` and ``external_tokens``.

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
        """Copies the loaded blocks of a request to the device, and reports them to the manager."""
        first, end = started._first, started._first + len(started._slots)
        brought = admission.cached_tokens
        try:
            if end > admission.cached_blocks:
                loaded = range(admission.cached_blocks, end)
                pairs = [(started._slots[at - first], admission.block_ids[at]) for at in loaded]
                # The manager allocates no blocks outside a window. The table has the null block, block
                # 0, at their positions.
                self._copy_in([(slot, block) for slot, block in pairs if block != 0])
                brought = end * self._manager.block_size
        finally:
            # If the copy fails, none of its blocks count as computed, so the engine computes them.
            self._manager.external_done(request_id, brought)

    def drop(self, started: Prefetch) -> None:
        """Drops a prefetch.

        The slots that are loaded become free now, and those of running loads when the loads end.

        Has no effect if a request in the state ``loading`` waits for the prefetch. Release that request
        instead.
        """
        if not started._done and not started._admitted:
            started._done = True
            if started.done:
                self._release(started)

    def _release(self, started: Prefetch) -> None:
        self._slots.leave(started._slots)
        started._slots = []

    def save(self, request_id: RequestId) -> int:
        """Offers the computed blocks of a request to the store.

        Skips blocks that the store already has. Returns the number of blocks that were offered.

        To write each block as soon as it is full, call this after each commit. Alternatively, call it
        once, before ``release``. Blocks are first copied to slots. If there are not enough free slots,
        the remaining blocks are left out until the next call. If the store admits a block only at the
        second offer, the block is copied twice, unless ``host`` keeps it. With ``host``, blocks that
        the store already has are copied to host memory, too. With ``write="back"``, blocks are only
        marked, and are written later.

        Each call offers only the blocks that no earlier call has offered for the same prefix, and the
        blocks that the store does not have although they were offered. The store may have refused,
        evicted or removed such a block, or its write may have failed. If a shared back end loses a block,
        the block is offered again once a load or a probe of this store has missed it. Blocks that were
        offered earlier stay where they are in the order of eviction of ``host``. After a restart, the
        first call for a prefix looks at all of its blocks.

        If the request began before ``renew``, none of its blocks is offered, because its KV belongs to
        other weights. Blocks that a window has dropped (``trim_window``) are not offered either.

        O(new blocks + blocks that the store lost since the previous call for this prefix). Blocks that
        remain refused, left out or dropped count as new in each call.

        Args:
            request_id: A request that holds its blocks on the device.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request holds no blocks on the device.
            StaleEpochError: The manager's epoch was changed without ``renew``.
            ClosedError: The store is closed.
        """
        count, job, slots = offer_blocks(
            self._store,
            self._manager,
            request_id,
            self._epoch,
            self._block_bytes,
            not self._writes_back,
            self._to_slots,
        )
        if job is not None:
            self._jobs[job] = (None, slots, [])
        self._write_back()
        return count

    def _to_slots(
        self, positions: list[int], digests: list[bytes], blocks: list[int], lacking: list[bool]
    ) -> list[int | None]:
        """Copies blocks to slots, if they are not in host memory.

        Returns the slot of each block that is in a slot now.

        Args:
            positions: The positions of the blocks in the request.
            digests: Their names in the store.
            blocks: Their ids on the device. The null block, block 0, replaces blocks that the request has
                dropped.
            lacking: Whether the store lacks the block. The slots of these blocks stay in use, unless they
                are written back later.
        """
        slots = [self._slots.find(digest) for digest in digests]
        for slot in slots:
            if slot is not None:
                self._slots.use(slot)
        wanted = [
            at
            for at, slot in enumerate(slots)
            if slot is None and blocks[at] != 0 and (lacking[at] or self._host)
        ]
        taken = self._slots.take(len(wanted))
        wanted = wanted[: len(taken)]
        if wanted:
            try:
                self._copy_out([(blocks[at], slot) for at, slot in zip(wanted, taken, strict=True)])
            except BaseException:
                self._slots.leave(taken)
                self._slots.leave([slot for slot in slots if slot is not None])
                raise
        for at, slot in zip(wanted, taken, strict=True):
            slots[at] = slot
            if self._host:
                self._slots.keep(slot, digests[at])
        block_size, unused = self._manager.block_size, []
        for position, slot, lacks in zip(positions, slots, lacking, strict=True):
            if slot is not None and lacks and self._writes_back:
                self._slots.mark_dirty(slot, position * block_size)
            if slot is not None and (self._writes_back or not lacks):
                unused.append(slot)
        self._slots.leave(unused)
        return slots

    def poll(self) -> None:
        """Processes the jobs that have ended, and writes back blocks if slots are scarce.

        Call it in every step. It does not wait.
        """
        self._handle_ended(self._store.poll())
        self._write_back()

    def wait(self, timeout: float = 1.0) -> None:
        """Like ``poll``, but waits until no job is running.

        Returns early if no job ends for ``timeout`` seconds.
        """
        self._write_back()
        while self._jobs:
            ended = self._store.wait(timeout)
            if not ended:
                return
            # If the queue of the store refused all blocks, it would refuse them again at once.
            if self._handle_ended(ended):
                self._write_back()

    def flush(self, timeout: float = 1.0) -> None:
        """Writes back every dirty block, and waits. Call it before the engine ends.

        A dirty block is one that is not in the store yet. Returns early if no job ends for ``timeout``
        seconds, or if the store refuses all of these blocks.
        """
        dirty = self._slots.dirty + 1
        while self._slots.dirty < dirty:
            dirty = self._slots.dirty
            self._write_back(all_of_it=True)
            self.wait(timeout)
            if self._jobs:
                return

    def _write_back(self, *, all_of_it: bool = False) -> None:
        """Offers dirty blocks to the store, the oldest first, until enough slots are or will be free."""
        if not self._writes_back or not self._slots.dirty:
            return
        coming = sum(len(slots) for started, slots, _ in self._jobs.values() if started is None)
        wanted = _BATCH if all_of_it else self._ready - self._slots.reclaimable - coming
        dirty = self._slots.take_dirty(min(wanted, _BATCH)) if wanted > 0 else []
        if not dirty:
            return
        slots, digests, first_tokens = map(list, zip(*dirty, strict=True))
        tokens = [(first, self._manager.block_size) for first in first_tokens]
        job = self._store.put(digests, slots, lengths=self._block_bytes, tokens=tokens, admit="always")
        self._jobs[job] = (None, slots, first_tokens)

    def _handle_ended(self, ended: list[tuple[int, list[Outcome]]]) -> bool:
        """Processes ended jobs. Returns whether the store's queue accepted at least one of their blocks."""
        for job, outcomes in ended:
            started, slots, loads = self._jobs.pop(job)
            if started is None:
                if loads:
                    # The queue of the store was full. Write the blocks back later.
                    for slot, first_token, outcome in zip(slots, loads, outcomes, strict=True):
                        if outcome == "busy":
                            self._slots.mark_dirty(slot, first_token)
                self._slots.leave(slots, touch=not loads)
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
                self._continue(started)
        return any(outcome != "busy" for _, outcomes in ended for outcome in outcomes)

    def _has(self, digest: bytes) -> bool:
        return self._slots.find(digest) is not None

    def _loaded(self, started: Prefetch, slots: list[int], loads: list[int], outcomes: list[Outcome]) -> None:
        """Processes a load that has ended.

        Drops the blocks after the first block that was not loaded, because a prefix needs all of its
        blocks.
        """
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
                self._release(started)

    def renew(self, namespace: Namespace) -> None:
        """Switches to other weights.

        From now on, blocks of the earlier weights are not found on the device (``bump_epoch``), in host
        memory or in the store.

        Waits for the back end to record the change: see ``Store.renew``.

        Raises:
            StoreError: The back end has not recorded the change. This object still finds no earlier
                block; call ``renew`` again.
            ClosedError: The store is closed.
        """
        self._epoch = self._manager.bump_epoch()
        self._slots.forget_all()
        self._store.renew(namespace)

    def _check_epoch(self) -> None:
        if self._manager.stats().pool.epoch != self._epoch:
            # Blocks that are stored now have KV of the new weights, but a process with the earlier
            # weights could find them.
            raise StaleEpochError(
                f"the manager is in epoch {self._manager.stats().pool.epoch}, the store in {self._epoch}: "
                "call renew, not bump_epoch"
            )
