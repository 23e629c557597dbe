"""The facets of ``CacheManager`` and ``BlockPool``: methods that engines seldom call, by topic.

Each facet is an attribute of a manager or a pool, such as ``manager.swaps``. A facet has no state of its own.
You can store it, or read the attribute again at each use.
"""

from collections.abc import Iterable
from os import PathLike
from typing import final

from kvpool._core import BlockIds, Fit, RequestId, Tokens
from kvpool._core.advisor import Advice
from kvpool._core.hashing import ExtraKeys, HashCursor
from kvpool._core.journal import JournalStats
from kvpool._core.pool import PoolStats
from kvpool._core.requests import PoolMetrics, ScrubReport
from kvpool._core.retention import HintReport, Retention, RetentionStats, _Ranges

__all__ = [
    "ManagerClock",
    "ManagerDiagnose",
    "ManagerJournal",
    "ManagerRetention",
    "ManagerSwaps",
    "PoolClock",
    "PoolDiagnose",
    "PoolJournal",
    "PoolRetention",
]

@final
class ManagerSwaps:
    """Moves requests between the device and the host tier: ``manager.swaps``.

    ``begin_out`` or ``begin_in`` begins a swap. ``CacheManager.take_plan`` returns its copies, the engine
    executes them, and ``complete`` ends the swap. ``abort`` undoes a swap. The manager must be made with
    ``host_blocks``.

    >>> manager = kvpool.CacheManager(num_blocks=9, block_size=4, host_blocks=9)
    >>> _ = manager.admit("a", range(8)), manager.commit("a", 8)
    >>> swap = manager.swaps.begin_out(["a"])
    >>> len(manager.take_plan())  # the engine copies these blocks
    2
    >>> manager.swaps.complete(swap), manager.request("a").state
    ({1: 1, 2: 2}, 'swapped')
    """

    def fit_out(self, request_ids: Iterable[RequestId]) -> Fit:
        """Returns whether the host tier has the blocks for a swap out: ``"ok"``, ``"later"`` or ``"never"``.

        Changes nothing. The errors are those of ``begin_out``, except ``OutOfBlocksError``. O(blocks).
        """
    def begin_out(self, request_ids: Iterable[RequestId]) -> int:
        """Begins to swap running requests out to the host tier, and returns the number of the swap.

        A block that several of these requests share is copied once. ``CacheManager.take_plan`` returns the
        copies. When they are done, ``complete`` releases the blocks on the device. A call that fails changes
        nothing. O(blocks).

        Raises:
            OutOfBlocksError: The host tier has too few blocks.
            InvalidArgumentError: There is no host tier, or no request is named.
            UnknownRequestError: No request has this id.
            RequestStateError: A request is not running.
            DuplicateRequestError: A request is named twice.
        """
    def fit_in(self, request_ids: Iterable[RequestId]) -> Fit:
        """Returns whether the device has enough blocks for a swap in: ``"ok"``, ``"later"`` or ``"never"``.

        While other requests run, the swap must leave the blocks of the watermark available. Changes nothing.
        The errors are those of ``begin_in``, except ``OutOfBlocksError``. O(blocks).
        """
    def begin_in(self, request_ids: Iterable[RequestId]) -> int:
        """Begins to swap requests back in to the device, and returns the number of the swap.

        Content that the device still caches is not copied. A call that fails changes nothing. O(blocks).

        Raises:
            OutOfBlocksError: The device has too few blocks, or would have fewer than the watermark while
                other requests run.
            InvalidArgumentError: There is no host tier, or no request is named.
            UnknownRequestError: No request has this id.
            RequestStateError: A request is not swapped out.
            DuplicateRequestError: A request is named twice.
        """
    def complete(self, swap: int) -> dict[int, int]:
        """Ends a swap whose copies are done, and returns a dict of old block to new block.

        After a swap out, the state of the requests is ``swapped``, and their blocks are in the host tier.
        After a swap in, they are running. O(blocks).

        Raises:
            SwapError: The swap has ended, or its copies have not been taken with ``CacheManager.take_plan``.
        """
    def abort(self, swap: int) -> None:
        """Aborts a swap, and restores the state before the swap began.

        O(blocks).

        Raises:
            SwapError: The swap has ended.
        """
    def host_stats(self) -> PoolStats | None:
        """Returns the counters and gauges of the host tier's pool, or None if there is no host tier.

        O(1).
        """

@final
class ManagerRetention:
    """Sets the tenants of requests, and hints for how long to keep content: ``manager.retention``.

    Hints need a manager that was made with ``retention``. docs/retention.md describes priorities, times to
    live, pins and limits of tenants.
    """

    def retain(
        self, target: RequestId | Tokens | HashCursor, ranges: _Ranges, extra: ExtraKeys | None = None
    ) -> HintReport:
        """Sets hints for ranges of tokens, and returns the numbers of blocks to which they apply.

        For a request, the hints apply at once to its registered blocks, hits included, and to its other
        blocks when ``commit`` registers them. They remain after a preemption or a swap, and a fork inherits
        them. For a prompt, the hints apply to the content that is cached now, no matter which request
        computed it. A block belongs to the range of its last token. If ranges overlap, the later range or
        call applies. A time to live begins at this call. O(blocks), plus hashing if a prompt is not prepared.

        Args:
            target: The id of a request. Or the tokens of a prompt, or a prepared prompt.
            ranges: Triples of the first token, the token after the last, and a ``Retention``. With None as
                the end, the range includes all later tokens.
            extra: Extra keys of a prompt. Only allowed if ``target`` is tokens.

        Returns:
            A report with the number of blocks for each outcome. For a request, the report counts the
                registered blocks that it holds on the device. For a prompt, blocks of the ranges that are not
                cached count as ignored.

        Raises:
            UnknownRequestError: No request has this id.
            InvalidArgumentError: A range ends before it begins. Or a hint has a time to live, and
                ``clock.advance`` has not been called. Or the prompt was hashed with other settings, or
                ``extra`` is not allowed.
            NoRetentionError: The manager has no retention.
            StaleEpochError: The prompt was prepared before the last epoch bump.
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
            HashingError: The algorithm cannot represent these extra keys.

        >>> config = kvpool.RetentionConfig(pin_budget=1)
        >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4, retention=config)
        >>> _ = manager.admit("chat", range(12)), manager.commit("chat", 12)
        >>> manager.retention.retain("chat", [(0, 8, kvpool.Retention(80)), (8, None, kvpool.Retention(20))])
        HintReport(accepted=3, clipped=0, ignored=0)
        >>> manager.release("chat")
        >>> manager.retention.retain(range(12), [(0, 8, kvpool.Retention(pinned=True))])
        HintReport(accepted=1, clipped=1, ignored=0)
        """
    def end_of_life(
        self,
        target: RequestId | Tokens | HashCursor,
        start_token: int = 0,
        extra: ExtraKeys | None = None,
    ) -> HintReport:
        """Marks content from one token on as no longer useful, so that it is evicted before other content.

        Use it for a request when, for example, a branch is dropped, or the next turn will leave out the
        reasoning. The request continues. Its marked blocks are evicted early after they are released, unless
        they have other references. For a prompt, the mark applies to every cached block with this content
        that has no references. O(blocks from that token on), plus hashing if a prompt is not prepared.

        Args:
            target: The id of a request. Or the tokens of a prompt, or a prepared prompt.
            start_token: The first token that is not used again.
            extra: As for ``retain``.

        Raises:
            UnknownRequestError: No request has this id.
            NoRetentionError: The manager has no retention.
            InvalidArgumentError: The prompt was hashed with other settings, or ``extra`` is not allowed.
            StaleEpochError: The prompt was prepared before the last epoch bump.
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
            HashingError: The algorithm cannot represent these extra keys.
        """
    def end_session(
        self, request_id: RequestId, *, after_step: int | None = None, until: int | None = None
    ) -> HintReport:
        """Ends a request and its session. Its cached blocks without other references are evicted early.

        The call works like ``CacheManager.release``, and also marks the cached content of the request as no
        longer useful. A block is still evicted after the cached blocks that continue it, such as those of
        other sessions with the same system prompt. A hit removes the mark. If ``truncate`` has cut the
        request inside a registered block, that block is not marked. For a preempted or swapped-out request,
        the mark applies to the content that is still cached. For a moving or loading request, it applies when
        the request releases its blocks. O(blocks).

        Args:
            request_id: A request in any state.
            after_step: As for ``CacheManager.release``.
            until: As for ``CacheManager.release``.

        Returns:
            The numbers of blocks by outcome.

        Raises:
            NoRetentionError: The manager has no retention.
            UnknownRequestError: No request has this id.
            RequestStateError: The request is releasing already.
            InvalidArgumentError: The ticket is not open.

        >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4, retention=True)
        >>> _ = manager.admit("chat", range(12)), manager.commit("chat", 12)
        >>> manager.retention.end_session("chat")
        HintReport(accepted=3, clipped=0, ignored=0)
        """
    def set_tenant(self, request_id: RequestId, tenant: int) -> None:
        """Sets the tenant of a request. Blocks that the request registers count towards the tenant's limits.

        Blocks that the request has already registered count, too, unless they have another tenant. The
        manager does not count blocks of tenants without limits. O(blocks).

        Raises:
            UnknownRequestError: No request has this id.
            InvalidArgumentError: The tenant is not a number of 32 bits.
            NoRetentionError: The manager has no retention.
        """
    def tenant_blocks(self, tenant: int) -> int:
        """Returns how many blocks of a tenant with limits are cached or in use.

        The result is 0 for a tenant without limits. O(log tenants).

        Raises:
            InvalidArgumentError: The tenant is not a number of 32 bits.
            NoRetentionError: The manager has no retention.
        """
    def stats(self) -> RetentionStats | None:
        """Returns the numbers of blocks by kind of hint, or None without the setting ``retention``.

        O(1).
        """

@final
class ManagerJournal:
    """The journal of a manager, which records its calls: ``manager.journal``.

    Without a journal, ``stats`` and ``image`` return None.
    """

    def stats(self) -> JournalStats | None:
        """Returns the statistics of the journal, such as its length, or None if there is no journal.

        A journal never makes an operation fail. If it cannot be written, it stops recording, and ``error`` of
        the statistics contains the reason. O(1).
        """
    def flush(self) -> None:
        """Writes the collected records of the journal to its file, so that a crash does not lose them.

        Without a journal the call does nothing. The journal is also flushed when the manager is destroyed,
        and when an invariant breaks.

        Raises:
            JournalFileError: The journal has stopped recording. The message contains the reason.
        """
    def image(self) -> bytes | None:
        """Returns the content of a ring (a journal in memory) as a journal file, or None if there is no ring.

        O(bytes).
        """
    def save(self, path: str | PathLike[str]) -> None:
        """Writes the content of a ring (a journal in memory) to a new file.

        O(bytes).

        Raises:
            JournalError: There is no ring.
            JournalExistsError: The file exists.
            JournalFileError: The file cannot be written.
        """

@final
class ManagerDiagnose:
    """Checks a manager, and describes its state: ``manager.diagnose``.

    This facet has invariant checks, digests, orders of free and evictable blocks, advice and metrics.
    """

    def check_invariants(self) -> None:
        """Recomputes the state of the pool and of every request, and compares it with the stored state.

        For tests and offline checks. O(blocks + tokens).

        Raises:
            InvariantError: The first broken invariant.
        """
    def check_policy(self) -> None:
        """Raises ``PolicyError`` if the manager's policy is written in Python and has failed.

        ``kvpool.policies`` describes what counts as a failure. O(1).

        Raises:
            PolicyError: The policy is no longer used. The cause of the error is the reason.
        """
    @property
    def poison_reason(self) -> str | None:
        """The reason why the manager refuses all work, or None if it does not."""
    def scrub(self, blocks: int) -> ScrubReport:
        """Checks the next blocks and table entries of each tier. A broken invariant poisons the manager.

        The call is cheap enough for production. Check a few blocks per step, by this call or by the setting
        ``scrub_blocks``. After the last block, the next call begins again at the first. The call makes the
        checks of ``BlockPool.diagnose.scrub``, and two more. First, each block table has the length that its
        tokens need, and its blocks are in use. Second, each reference belongs to a table, a fence, a planned
        copy or a swap. So the call also finds references that were never released. O(``blocks``), and
        O(requests) once per pass.

        Raises:
            PoolPoisonedError: An invariant is broken, and the message names it. Every later operation raises
                this error, too.

        >>> kvpool.CacheManager(num_blocks=64).diagnose.scrub(64)
        ScrubReport(position=0, blocks=64, requests=0, passes=1)
        """
    def state_digest(self) -> int | None:
        """Returns a hash of the manager's state, or None if the manager was made without ``digest=True``.

        Managers with the same settings and the same calls have equal digests on any host. O(blocks that
        changed since the last call).

        >>> one, other = (kvpool.CacheManager(num_blocks=100, digest=True).diagnose for _ in range(2))
        >>> one.state_digest() == other.state_digest() == one.state_digest_from_scratch()
        True
        """
    def state_digest_from_scratch(self) -> int:
        """Returns the same digest as ``state_digest``, but computes it from every block.

        O(blocks). Works with and without ``digest=True``.
        """
    def free_order(self) -> list[int]:
        """Returns the free blocks in the order in which allocations will use them.

        For tests and tools. O(free blocks).
        """
    def eviction_order(self) -> list[int]:
        """Returns the cached-free blocks in the order in which they would be evicted.

        For tests and tools. O(cached-free blocks).
        """
    def advice(self) -> Advice | None:
        """Returns estimates for other pool sizes, policies and tenants, or None if there is no advisor.

        The estimates are computed from the manager's traffic. docs/advisor.md explains them. The call takes
        about 50 us, and other threads continue.

        >>> manager = kvpool.CacheManager(num_blocks=9, block_size=4, advisor=True)
        >>> for turn in range(20):  # two prompts in turn, too large for the cache together
        ...     admission = manager.admit(turn, [turn % 2] * 25)
        ...     committed = manager.commit(turn, 25)
        ...     manager.release(turn)
        >>> advice = manager.diagnose.advice()
        >>> rates = {point["blocks"]: point["block_hit_rate"] for point in advice["curve"]}
        >>> advice["block_hit_rate"], rates[12]
        (0.15, 0.9)
        """
    def metrics(self) -> list[PoolMetrics]:
        """Returns the metrics of each tier, the device first. Empty if the manager has no metrics.

        docs/metrics.md describes each number. O(histogram buckets + tenants).
        """

@final
class ManagerClock:
    """The caller's clock, which a manager uses for times to live and metrics: ``manager.clock``."""

    def advance(self, now: float) -> int:
        """Sets the current time, and returns the number of retentions that expired.

        A time to live begins at the time of the latest call. The policy ``hazard`` measures ages on this
        clock, too. O(log blocks) for each retention that expires.

        Args:
            now: Seconds on a clock that the caller chooses.

        Raises:
            TimeBackwardsError: An earlier call gave a later time.
            InvalidArgumentError: The time is not a finite number.
            NoRetentionError: The manager has no retention, and its policy needs no clock.
        """
    def observe(self, now: float) -> None:
        """Sets the current time for the metrics only.

        ``advance`` also sets this time if there is retention. The journal does not record this call, because
        no result of another call depends on it, except metrics. O(tiers).

        Args:
            now: Seconds on a clock that the caller chooses.

        Raises:
            TimeBackwardsError: An earlier call gave a later time.
            InvalidArgumentError: The time is not a finite number.
        """

@final
class PoolRetention:
    """Sets the tenants of blocks, and hints for how long to keep cached blocks: ``pool.retention``.

    Hints need a pool that was made with ``retention``.
    """

    def retain(self, block_ids: BlockIds, retention: Retention) -> HintReport:
        """Sets a hint for blocks, and returns the numbers of blocks to which it applies.

        Accepts blocks in use and cached-free blocks. Ignores blocks without cached content. A hint that
        demotes (an end of life) is also ignored for blocks with several references. A hint applies until the
        content is dropped or another hint replaces it. O(1) per block, O(log blocks) with a time to live.

        Raises:
            InvalidBlockError: An id is unknown, or is the null block.
            InvalidArgumentError: The hint has a time to live, and ``clock.advance`` has not been called.
            NoRetentionError: The pool has no retention.
            ArgumentTypeError: The ids have a type or dtype that is not supported.

        >>> pool = kvpool.BlockPool(num_blocks=8, block_size=4, retention=True)
        >>> blocks = pool.allocate(2)
        >>> pool.register(blocks, kvpool.BlockHasher(block_size=4).cursor(range(8)).chain())
        2
        >>> pool.mark_computed(blocks)
        >>> pool.retention.retain(blocks[:1], kvpool.Retention(90))
        HintReport(accepted=1, clipped=0, ignored=0)
        >>> pool.release(blocks, tail_first=True)
        >>> pool.diagnose.eviction_order()
        [2, 1]
        """
    def assign_tenant(self, block_ids: BlockIds, tenant: int) -> None:
        """Assigns blocks to a tenant. They count towards its limits while their content is cached.

        A block that already has a tenant keeps it. The call ignores blocks without cached content, and does
        nothing for tenants without limits. O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, or is the null block.
            InvalidArgumentError: The tenant is not a number of 32 bits.
            NoRetentionError: The pool has no retention.
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """
    def tenant_blocks(self, tenant: int) -> int:
        """Returns how many blocks of a tenant with limits are cached or in use.

        The result is 0 for a tenant without limits. O(log tenants).

        Raises:
            InvalidArgumentError: The tenant is not a number of 32 bits.
            NoRetentionError: The pool has no retention.
        """
    def stats(self) -> RetentionStats | None:
        """Returns the numbers of blocks by kind of hint, or None without the setting ``retention``.

        O(1).
        """

@final
class PoolJournal:
    """The journal of a pool, which records its calls: ``pool.journal``.

    Without a journal, ``stats`` and ``image`` return None.
    """

    def stats(self) -> JournalStats | None:
        """Returns the statistics of the journal, such as its length, or None if there is no journal.

        A journal never makes an operation fail. If it cannot be written, it stops recording, and ``error`` of
        the statistics contains the reason. O(1).
        """
    def flush(self) -> None:
        """Writes the collected records of the journal to its file, so that a crash does not lose them.

        Without a journal the call does nothing. The journal is also flushed when the pool is destroyed, and
        when an invariant breaks.

        Raises:
            JournalFileError: The journal has stopped recording. The message contains the reason.
        """
    def image(self) -> bytes | None:
        """Returns the content of a ring (a journal in memory) as a journal file, or None if there is no ring.

        O(bytes).
        """
    def save(self, path: str | PathLike[str]) -> None:
        """Writes the content of a ring (a journal in memory) to a new file.

        O(bytes).

        Raises:
            JournalError: There is no ring.
            JournalExistsError: The file exists.
            JournalFileError: The file cannot be written.
        """

@final
class PoolDiagnose:
    """Checks a pool, and describes its state: ``pool.diagnose``.

    This facet has invariant checks, digests, orders of free and evictable blocks, advice and metrics.
    """

    def check_invariants(self) -> None:
        """Recomputes the state of the pool and of its parts, and compares it with the stored state.

        For tests and offline checks. O(blocks).

        Raises:
            InvariantError: The first broken invariant.
        """
    def check_policy(self) -> None:
        """Raises ``PolicyError`` if the pool's policy is written in Python and has failed.

        ``kvpool.policies`` describes what counts as a failure. O(1).

        Raises:
            PolicyError: The policy is no longer used. The cause of the error is the reason.
        """
    @property
    def poison_reason(self) -> str | None:
        """The reason why the pool refuses all work, or None if it does not."""
    def scrub(self, blocks: int) -> ScrubReport:
        """Checks that the records of the next blocks are consistent. A broken invariant poisons the pool.

        The call is cheap enough for production. Check a few blocks per step. After the last block, the next
        call begins again at the first. The call checks that each block is in exactly one list, and that its
        neighbours in the list link back to it. It also checks that the index contains the registered blocks,
        and that the totals of the pool are correct. With ``digest=True``, it also checks that nothing but the
        pool has changed the references and the content of the block. O(``blocks``).

        Args:
            blocks: The number of blocks to check, the null block included. One call checks no block twice.

        Raises:
            PoolPoisonedError: An invariant is broken, and the message names it. Every later operation raises
                this error, too.

        >>> kvpool.BlockPool(num_blocks=100).diagnose.scrub(64)
        ScrubReport(position=64, blocks=64, requests=0, passes=0)
        """
    def state_digest(self) -> int | None:
        """Returns a hash of the pool's state, or None if the pool was made without ``digest=True``.

        Pools with the same settings and the same calls have equal digests on any host. O(blocks that
        changed since the last call).

        >>> one, other = (kvpool.BlockPool(num_blocks=100, digest=True).diagnose for _ in range(2))
        >>> one.state_digest() == other.state_digest() == one.state_digest_from_scratch()
        True
        """
    def state_digest_from_scratch(self) -> int:
        """Returns the same digest as ``state_digest``, but computes it from every block.

        O(blocks). Works with and without ``digest=True``.
        """
    def free_order(self) -> list[int]:
        """Returns the free blocks in the order in which allocations will use them.

        For tests and tools. O(free blocks).
        """
    def eviction_order(self) -> list[int]:
        """Returns the cached-free blocks in the order in which they would be evicted.

        For tests and tools. O(cached-free blocks).
        """
    def num_holders(self, block_id: int) -> int:
        """Returns the number of references to a block, without references of fences and planned copies.

        O(1).

        Raises:
            InvalidBlockError: The id is outside the pool.
        """
    def is_registered(self, block_id: int) -> bool:
        """Returns whether a block is registered: full, hashed, indexed and immutable.

        O(1).

        Raises:
            InvalidBlockError: The id is outside the pool.
        """
    def is_computed(self, block_id: int) -> bool:
        """Returns whether a block is registered and its KV is written.

        O(1).

        Raises:
            InvalidBlockError: The id is outside the pool.
        """
    def hash_of(self, block_id: int) -> bytes | None:
        """Returns the hash under which a block is registered, or None if it is not registered.

        The hash has the length of the algorithm's digests. O(1).

        Raises:
            InvalidBlockError: The id is outside the pool.
        """
    def copies(self, digest: bytes) -> list[int]:
        """Returns the blocks that are registered under a digest, computed blocks first, and acquires none.

        Computed blocks are in the order in which they were marked as computed. A lookup returns the first of
        them. Another call may evict one of these blocks at any time. Use ``BlockPool.match_and_acquire`` or
        ``BlockPool.acquire`` to get references. O(copies).

        Raises:
            HashingError: The length of the digest is not that of the pool's algorithm.
        """
    def advice(self) -> Advice | None:
        """Returns estimates for other pool sizes, policies and tenants, or None if there is no advisor.

        The estimates are computed from the pool's traffic. docs/advisor.md explains them. The call takes
        about 50 us, and other threads continue.
        """
    def metrics(self) -> PoolMetrics | None:
        """Returns the metrics of the pool since it was made, or None if the pool collects none.

        docs/metrics.md describes each number. O(histogram buckets + tenants).

        >>> pool = kvpool.BlockPool(num_blocks=9, block_size=4, metrics=True)
        >>> chain = kvpool.BlockHasher(block_size=4).cursor(range(4)).chain()
        >>> pool.clock.observe(100.0)
        >>> blocks = pool.allocate(1)
        >>> registered = pool.register(blocks, chain)
        >>> pool.mark_computed(blocks)
        >>> pool.clock.observe(104.0)
        >>> hit = pool.match_and_acquire(chain)
        >>> metrics = pool.diagnose.metrics()
        >>> metrics["age_at_hit"]["sum"], metrics["no_tenant"]
        (4.0, {'hits': 1, 'misses': 0})
        """

@final
class PoolClock:
    """The caller's clock, which a pool uses for times to live and metrics: ``pool.clock``."""

    def advance(self, now: float) -> int:
        """Sets the current time, and returns the number of retentions that expired.

        A time to live begins at the time of the latest call. The policy ``hazard`` measures ages on this
        clock, too. O(log blocks) for each retention that expires.

        Args:
            now: Seconds on a clock that the caller chooses.

        Raises:
            TimeBackwardsError: An earlier call gave a later time.
            InvalidArgumentError: The time is not a finite number.
            NoRetentionError: The pool has no retention, and its policy needs no clock.
        """
    def observe(self, now: float) -> None:
        """Sets the current time for the metrics only.

        ``advance`` also sets this time if there is retention. The journal does not record this call, because
        no result of another call depends on it, except metrics. O(1).

        Args:
            now: Seconds on a clock that the caller chooses.

        Raises:
            TimeBackwardsError: An earlier call gave a later time.
            InvalidArgumentError: The time is not a finite number.
        """
