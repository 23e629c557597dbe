"""The block pool: allocation, prefix cache and eviction of one tier."""

from collections.abc import Sequence
from os import PathLike
from typing import ClassVar, Literal, Self, TypeAlias, TypedDict, final, overload, type_check_only

from kvpool._core import BlockIds, BlockState, Duplicates, EvictionPolicy, VerifyMode, _Array
from kvpool._core.advisor import Advice, AdvisorConfig
from kvpool._core.hashing import ChainLink, _Chain
from kvpool._core.journal import Journal, JournalStats
from kvpool._core.requests import Match, PoolMetrics, Probe, ScrubReport
from kvpool._core.retention import HintReport, Retention, RetentionConfig, RetentionStats
from kvpool.policies import Policy as _Policy

__all__ = [
    "BlockPool",
    "PoolStats",
]

@type_check_only
class StoredEvent(TypedDict):
    """The first computed copy of a content has appeared: lookups can find its hash in its KV-cache
    group from now on.

    In groups other than full attention ``parent`` is None, and ``depth`` may be 0.
    """

    type: Literal["stored"]
    hash: bytes
    group: int
    parent: bytes | None
    depth: int
    block_id: int

@type_check_only
class RemovedEvent(TypedDict):
    """The last computed copy of a content is gone: lookups no longer find its hash in its KV-cache group."""

    type: Literal["removed"]
    hash: bytes
    group: int
    block_id: int

@type_check_only
class ClearedEvent(TypedDict):
    """Everything was forgotten, by a reset or because this epoch has begun."""

    type: Literal["cleared"]
    epoch: int

BlockEvent: TypeAlias = StoredEvent | RemovedEvent | ClearedEvent

@final
class BlockPool:
    """Blocks of one tier: allocation, prefix cache and eviction.

    For engines that keep their own block tables; others use ``CacheManager``. Every operation is all or
    nothing.

    Args:
        num_blocks: Blocks, null block included; ids run from 1 to ``num_blocks - 1``. At least 2.
        block_size: Tokens per block. At least 1.
        verify: One of ``verify_modes()``; chains must come from a hasher with at least this mode.
        duplicates: ``"keep"``, or ``"drop-on-release"`` to free a released block whose content another
            cached block holds.
        eviction: The order in which cached-free blocks are evicted: one of ``eviction_policies()``, or
            a ``Policy`` of your own. ``"last-accessed"`` orders by ``mark_accessed``.
        retention: Priorities, times to live, pins and tenants' limits: a ``RetentionConfig``, or True
            for one without pins and limits. Without it, hints raise ``NoRetentionError``.
        advisor: Estimates other sizes and policies from the lookups: an ``AdvisorConfig``, or True for
            the defaults. ``advice`` returns the estimates.
        event_capacity: Events kept until ``take_events``; 0 records none.
        journal: Records every operation: a ``Journal``. Refused with a ``Policy`` of your own, which no
            replay could run.
        digest: Keeps a digest of the state, for ``state_digest``, and lets ``scrub`` find reference
            counts that were changed behind the pool's back. 24 bytes per block.
        payloads: Contents can have payloads, for ``set_payloads``. Some 90 bytes per block that has one.
        metrics: Counts ages of blocks at hits and evictions, causes, and hits of tenants, for ``metrics`` and
            ``kvpool.metrics``. 24 bytes per block.

    Raises:
        InvalidArgumentError: A setting is out of range; the message says which, and what is allowed.
        JournalError: A journal of a policy of your own.
        JournalExistsError: The journal's file exists.
        JournalFileError: The journal's file cannot be made.

    >>> hasher = kvpool.BlockHasher(block_size=4)
    >>> pool = kvpool.BlockPool(num_blocks=100, block_size=4)
    >>> chain = hasher.cursor(range(8)).chain()
    >>> blocks = pool.allocate(2)
    >>> pool.register(blocks, chain)
    2
    >>> pool.mark_computed(blocks)  # the engine has written their KV
    >>> pool.release_table(blocks)  # cached-free now
    >>> pool.match_and_acquire(chain)
    [1, 2]
    """

    def __new__(
        cls,
        num_blocks: int,
        block_size: int = 16,
        *,
        verify: VerifyMode = "none",
        duplicates: Duplicates = "keep",
        eviction: EvictionPolicy | _Policy = "lru",
        retention: RetentionConfig | bool | None = None,
        advisor: AdvisorConfig | bool | None = None,
        event_capacity: int = 0,
        journal: Journal | None = None,
        digest: bool = False,
        payloads: bool = False,
        metrics: bool = False,
    ) -> Self: ...
    @property
    def num_blocks(self) -> int:
        """Blocks, null block included."""
    @property
    def block_size(self) -> int:
        """Tokens per block."""
    @property
    def num_available(self) -> int:
        """Blocks that an allocation can take now: free and cached-free."""
    @property
    def epoch(self) -> int:
        """The current epoch: 0, plus one per bump."""
    @overload
    def allocate(self, n: int, *, out: None = None) -> list[int]:
        """Takes blocks, each with one reference: returns their ids, or writes them and returns how many.

        Free blocks first, then the evictor's victims. O(1) per block.

        Args:
            n: How many.
            out: Receives the ids, if given.

        Raises:
            OutOfBlocksError: Fewer are free or cached-free.
            InvalidArgumentError: ``out`` is too short.
            ArgumentTypeError: ``out`` is not a writable, contiguous, 1-D int32 buffer.

        >>> import array
        >>> pool = kvpool.BlockPool(num_blocks=100)
        >>> table = array.array("i", [0] * 4)
        >>> pool.allocate(3, out=table), table
        (3, array('i', [1, 2, 3, 0]))
        """
    @overload
    def allocate(self, n: int, *, out: _Array) -> int: ...
    def acquire(self, block_ids: BlockIds) -> None:
        """Adds one reference per id to blocks that somebody holds: a second holder of a block table.

        O(1) per block. Only a lookup takes cached-free blocks.

        Raises:
            InvalidBlockError: An id is unknown, the null block, or a block that nobody holds.
            ArgumentTypeError: The ids are of a type or dtype that is not taken.
        """
    def release(self, block_ids: BlockIds, *, until: int | None = None) -> None:
        """Drops one reference per id.

        Blocks without further references become cached-free if they are registered and computed, else
        free. With a ticket they become so when it ends, and a hit on them succeeds until then. O(1) per
        block.

        Args:
            block_ids: The blocks; one that is named twice loses two references.
            until: A ticket of ``fence``: the step or transfer that may still touch the blocks.

        Raises:
            InvalidBlockError: An id is unknown, the null block, or named more often than it has references (a
                double free).
            InvalidArgumentError: The ticket is not open.
            ArgumentTypeError: The ids are of a type or dtype that is not taken.
        """
    def fence(self) -> int:
        """Opens a fence and returns its ticket.

        Blocks that are released ``until`` the ticket cannot be allocated before ``end_fence``. Tickets
        end in any order. O(1).

        >>> import kvpool
        >>> pool = kvpool.BlockPool(num_blocks=4, block_size=16)
        >>> ticket = pool.fence()
        >>> pool.release(pool.allocate(3), until=ticket)
        >>> pool.stats().fenced
        3
        >>> pool.end_fence(ticket)
        3

        Raises:
            PoolPoisonedError: The pool refuses all work.
        """
    def end_fence(self, ticket: int) -> int:
        """Ends a fence and returns how many references it held.

        O(those references).

        Raises:
            InvalidArgumentError: The ticket is not open: it has ended already, or is of another pool.
            PoolPoisonedError: The pool refuses all work.
        """
    def release_table(self, block_ids: BlockIds) -> None:
        """Releases a block table, tail first: what becomes free is handed out again in table order.

        O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, the null block, or named more often than it has references (a
                double free).
            ArgumentTypeError: The ids are of a type or dtype that is not taken.
        """
    def release_after(self, block_ids: BlockIds, step: int) -> None:
        """Releases blocks that a running step may still touch: they are fenced until it completes.

        Until then lookups still find them. If the step is complete already, they are released at once.
        O(1) per block.

        Args:
            block_ids: The blocks.
            step: The engine's number of the step, 0 to ``2**64 - 1``.

        Raises:
            InvalidBlockError: An id is unknown, the null block, or named more often than it has references (a
                double free).
            ArgumentTypeError: The ids are of a type or dtype that is not taken.
        """
    def complete_step(self, step: int) -> int:
        """Ends the fences of a step and of all earlier steps, and returns how many references they held.

        O(those references). Completing a step twice, or one that fenced nothing, is fine.

        Raises:
            PoolPoisonedError: The pool refuses all work.
        """
    def register(self, block_ids: BlockIds, chain: _Chain, start: int = 0) -> int:
        """Registers held blocks under the hashes of a chain and returns how many: they are immutable now.

        No lookup finds them before ``mark_computed``. Fewer than given means a hash collision, which is
        counted: the blocks from there on stay usable and are not cached. O(1) per block.

        Args:
            block_ids: Held blocks, in the order of the chain.
            chain: Hashes of the prompt.
            start: Position in the chain of the first of the blocks.

        Raises:
            InvalidBlockError: An id is unknown, the null block, not held, or registered already.
            InvalidArgumentError: The chain is too short, or of another block size, algorithm or verification
                than what is registered, or a position is 2^28 or more.
            StaleEpochError: The chain belongs to another epoch.
            ArgumentTypeError: The ids are of a type or dtype that is not taken.
        """
    def register_table(self, block_ids: BlockIds, chain: _Chain, start: int = 0) -> list[tuple[int, int]]:
        """Registers held blocks as computed ones, or exchanges them for cached ones; returns the changes.

        Where another computed block has the content already, the caller gets a reference to that one
        and loses its own block's: a pair of the position in ``block_ids`` and the id that is there now.
        A block in its place already stays. A hash collision stops it and is counted: the blocks from
        there on are as they were. O(n log n).

        Args:
            block_ids: Held blocks whose KV is written, in the order of the chain.
            chain: Hashes of the prompt.
            start: Position in the chain of the first of the blocks.

        Raises:
            InvalidBlockError: An id is unknown, the null block, not held, named twice, or registered
                with another content.
            InvalidArgumentError: As ``register``.
            StaleEpochError: The chain belongs to another epoch.
            ArgumentTypeError: The ids are of a type or dtype that is not taken.
        """
    def adopt(self, block_ids: BlockIds, chain: _Chain, start: int = 0) -> list[tuple[int, int]]:
        """Takes free ids of an engine's own allocator as cached blocks; returns the positions that
        another id has.

        For engines that own the ids and use the pool as an index: they never call ``allocate``, and to
        the pool an id of theirs is free. Each is held by one reference then, registered and computed.
        Where another computed block has the content already, the caller gets a reference to that one,
        and its own id stays free. ``evict`` and ``disown`` give ids back. A hash collision stops it and
        is counted: the ids from there on stay free. O(n log n).

        Raises:
            InvalidBlockError: An id is unknown, the null block, not free, or named twice.
            InvalidArgumentError: As ``register``.
            StaleEpochError: The chain belongs to another epoch.
            ArgumentTypeError: The ids are of a type or dtype that is not taken.

        >>> pool = kvpool.BlockPool(num_blocks=100, block_size=4)
        >>> chain = kvpool.BlockHasher(block_size=4).cursor(range(8)).chain()
        >>> pool.adopt([70, 30], chain), pool.adopt([41, 42], chain)  # computed twice: 41 and 42 stay the engine's
        ([], [(0, 70), (1, 30)])
        >>> pool.release_table([70, 30]), pool.release_table([70, 30])
        (None, None)
        >>> found = pool.lookup(chain)
        >>> pool.acquire_match(found)
        >>> pool.release_table(found.block_ids)
        >>> pool.evict(2)  # the engine's again
        [30, 70]
        """
    def disown(self, block_ids: BlockIds) -> None:
        """Gives ids back to an engine's own allocator, contents and all: only the caller may hold them.

        O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, the null block, named twice, fenced, or held by nobody
                or by others.
            ArgumentTypeError: The ids are of a type or dtype that is not taken.
        """
    def mark_computed(self, block_ids: BlockIds) -> None:
        """Says that the KV of registered blocks is written: lookups may return them.

        O(1) per block. A computed block stays computed.

        Raises:
            InvalidBlockError: An id is unknown, the null block, or not registered.
            ArgumentTypeError: The ids are of a type or dtype that is not taken.
        """
    @overload
    def match_and_acquire(
        self, chain: _Chain, max_blocks: int | None = None, *, tenant: int | None = None, out: None = None
    ) -> list[int]:
        """Finds the longest cached prefix of a chain and acquires it: one reference per block for the caller.

        Only computed blocks match; the walk stops at the first that does not. O(blocks matched).

        Args:
            chain: Hashes of the prompt: a chain, or the cursor that has it.
            max_blocks: The longest match wanted; all of the chain by default. An engine that must compute the
                last prompt token asks for ``(tokens - 1) // block_size``.
            tenant: The tenant that the advisor counts the lookup for.
            out: Receives the ids, if given, and the call returns their number. It has room for
                ``max_blocks`` ids, or for all blocks of the chain if those are fewer.

        Raises:
            InvalidArgumentError: The chain is of another block size, algorithm or verification than the
                pool; the tenant is not a number of 32 bits; ``out`` is too short.
            StaleEpochError: The chain belongs to another epoch.
            ArgumentTypeError: ``out`` is not a writable, contiguous, 1-D int32 buffer; ``chain`` is of
                another type.
        """
    @overload
    def match_and_acquire(
        self, chain: _Chain, max_blocks: int | None = None, *, tenant: int | None = None, out: _Array
    ) -> int: ...
    def lookup(
        self, chain: _Chain, start: int = 0, max_blocks: int | None = None, *, refresh: bool = False
    ) -> Match:
        """Finds the cached blocks of a chain, and returns a match that holds none of them.

        Only computed blocks match; the walk ends at the first that does not. Another call may take,
        evict or drop the blocks: ``acquire_match`` acquires them if all are still what they were.
        Counts neither hits nor misses, and without ``refresh`` changes nothing and is in no journal.
        O(blocks matched).

        Args:
            chain: Hashes of the prompt.
            start: Position where the walk begins: blocks before it are not asked for.
            max_blocks: The longest match wanted; all of the chain by default.
            refresh: Counts as a use: as if just released. Refresh what is before ``start``, too: it is not.

        Raises:
            InvalidArgumentError: The chain is of another block size, algorithm or verification than the pool.
            StaleEpochError: The chain belongs to another epoch.
        """
    def acquire_match(self, found: Match) -> None:
        """Acquires what matched, one reference per block, if all of it is still there.

        Takes held and cached-free blocks, and counts them as hits. O(1) per block.

        Raises:
            StaleMatchError: A block is not cached any more or holds something else, or the epoch has ended.
            InvalidBlockError: A block has as many references as can be counted.
        """
    def probe(self, chain: _Chain, max_blocks: int | None = None) -> Probe:
        """Says what a lookup would find now; changes nothing and counts nothing.

        O(blocks matched).

        Raises:
            InvalidArgumentError: The chain is of another block size, algorithm or verification than the pool.
            StaleEpochError: The chain belongs to another epoch.
        """
    def drop_cached(self, block_ids: BlockIds) -> int:
        """Forgets the contents of blocks by id and returns how many were registered.

        No lookup finds them any more. Cached-free blocks become free. Held blocks stay with their
        holders and become free when released. O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, or the null block.
            ArgumentTypeError: The ids are of a type or dtype that is not taken.
        """
    @overload
    def evict(self, n: int, *, out: None = None) -> list[int]:
        """Evicts cached-free blocks, up to a number, and returns their ids in the order of eviction.

        They are free then, and handed out next, in that order; fewer than ``n`` are all that were
        cached-free. For engines that allocate elsewhere; ``allocate`` evicts by itself what it needs.
        Counted and told as any eviction. ``out`` receives the ids, if given, and the call returns their
        number. It has room for ``n``. O(1) per block.

        Raises:
            InvalidArgumentError: ``n`` is negative; ``out`` is too short.
            ArgumentTypeError: ``out`` is not a writable, contiguous, 1-D int32 buffer.

        >>> pool = kvpool.BlockPool(num_blocks=8, block_size=4)
        >>> blocks = pool.allocate(3)
        >>> pool.register(blocks, kvpool.BlockHasher(block_size=4).cursor(range(12)).chain())
        3
        >>> pool.mark_computed(blocks)
        >>> pool.release_table(blocks)
        >>> pool.evict(2), pool.states(blocks)
        ([3, 2], ['cached-free', 'free', 'free'])
        """
    @overload
    def evict(self, n: int, *, out: _Array) -> int: ...
    def reset(self) -> int:
        """Forgets all cached content of every tier and returns how many blocks were registered.

        Nothing has changed if it is refused. O(usable blocks).

        Raises:
            BlocksInUseError: Blocks of a tier are active or fenced; ``bump_epoch`` always works.
        """
    def bump_epoch(self) -> int:
        """Starts a new epoch in every tier, for instance after a change of weights, and returns its number.

        No lookup finds what was registered before, and chains of earlier epochs are refused. O(usable
        blocks).

        Raises:
            PoolPoisonedError: The pool refuses all work.
        """
    def resize(self, num_blocks: int) -> None:
        """Grows the pool; the new blocks are handed out last.

        O(blocks).

        Args:
            num_blocks: The new number of blocks, null block included; not fewer than now.

        Raises:
            InvalidArgumentError: Fewer blocks than now, or more than a pool can have.
        """
    def ref_count(self, block_id: int) -> int:
        """Returns the references of a block, those of fences included.

        O(1).

        Raises:
            InvalidBlockError: The id is outside the pool.
        """
    @overload
    def ref_counts(self, block_ids: BlockIds, *, out: None = None) -> list[int]:
        """Returns the references of blocks, those of fences included, or writes them and returns how many.

        ``ref_count`` of each, in one call. Takes the null block, which has none. O(1) per block.

        Args:
            block_ids: The blocks, in any order; one may be named twice.
            out: Receives the counts, if given; one above ``2**31 - 1`` is written as that.

        Raises:
            InvalidBlockError: An id is outside the pool.
            InvalidArgumentError: ``out`` is too short.
            ArgumentTypeError: The ids are of a type or dtype that is not taken, or ``out`` is not a writable,
                contiguous, 1-D int32 buffer.

        >>> pool = kvpool.BlockPool(num_blocks=100)
        >>> table = pool.allocate(2)
        >>> pool.acquire(table[:1])
        >>> pool.ref_counts([1, 2, 3]), pool.states([1, 2, 3])
        ([2, 1, 0], ['active', 'active', 'free'])
        """
    @overload
    def ref_counts(self, block_ids: BlockIds, *, out: _Array) -> int: ...
    def states(self, block_ids: BlockIds) -> list[BlockState]:
        """Returns where blocks are in their lives.

        ``state`` of each, in one call. O(1) per block.

        Raises:
            InvalidBlockError: An id is outside the pool.
            ArgumentTypeError: The ids are of a type or dtype that is not taken.
        """
    def num_holders(self, block_id: int) -> int:
        """Returns the references of a block outside of fences and planned copies.

        O(1).

        Raises:
            InvalidBlockError: The id is outside the pool.
        """
    def is_registered(self, block_id: int) -> bool:
        """Says whether a block is registered: full, hashed, indexed and immutable.

        O(1).

        Raises:
            InvalidBlockError: The id is outside the pool.
        """
    def copies(self, digest: bytes) -> list[int]:
        """Returns the blocks registered under a digest, computed ones first; holds none.

        O(copies). Computed blocks come in the order in which they were computed; a lookup returns the
        first. Another call may take a block of the answer: ``match_and_acquire`` and
        ``acquire_registered`` hold what they return.

        Raises:
            HashingError: The digest is not as long as those of the pool's algorithm.
        """
    def register_link(self, block_id: int, link: ChainLink) -> int:
        """Registers a held, full block under its link, or exchanges it for the block registered there.

        If another block is registered under the link, computed or being computed, acquires that block,
        releases the caller's, and returns the other id. A hash collision is counted and leaves the
        block unregistered. O(1).

        Raises:
            InvalidBlockError: Nobody holds the block, it is registered already, or the id is unknown.
            StaleEpochError: The link was hashed in another epoch.
            InvalidArgumentError: Another algorithm or block size than the pool's, or no fingerprint to
                verify.
        """
    def acquire_registered(self, link: ChainLink) -> int | None:
        """Acquires the block registered under a link, computed or not, or returns None.

        An uncomputed block is only for holders that all compute what they share, as in vLLM v0;
        ``match_and_acquire`` never returns one. O(1).

        Raises:
            StaleEpochError: The link was hashed in another epoch.
            InvalidArgumentError: Another algorithm or block size than the pool's, or no fingerprint to
                verify.
        """
    def mark_accessed(self, block_ids: BlockIds, time: float) -> None:
        """Says when blocks were accessed, for policies that order by it.

        Takes held and cached-free blocks. An earlier time than the recorded one is ignored. Only
        ``"last-accessed"`` uses it. O(log blocks) per block.

        Raises:
            InvalidBlockError: A block is free, or its id unknown.
            InvalidArgumentError: The time is not a number.
        """
    def signal(
        self, block_ids: BlockIds, *, finish_reason: str | None = None, output_tokens: int | None = None
    ) -> None:
        """Says of blocks in use how the request that releases them next ended.

        A hint to policies that can use it (``hazard``): see ``CacheManager.release``. O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown.
            InvalidArgumentError: The count is out of range.
        """
    def retain(self, block_ids: BlockIds, retention: Retention) -> HintReport:
        """Says how long blocks are worth keeping, and returns what became of it.

        Takes held and cached-free blocks. Ignores blocks without cached content and, for an end of
        life, blocks with several holders. A hint holds while the content is cached, or until the next
        hint. O(1) per block, O(log blocks) with a time to live.

        Raises:
            InvalidBlockError: An id is unknown, or the null block.
            InvalidArgumentError: There is a time to live and was no ``advance_time``.
            NoRetentionError: The pool has no retention.
            ArgumentTypeError: The ids are of a type or dtype that is not taken.

        >>> pool = kvpool.BlockPool(num_blocks=8, block_size=4, retention=True)
        >>> blocks = pool.allocate(2)
        >>> pool.register(blocks, kvpool.BlockHasher(block_size=4).cursor(range(8)).chain())
        2
        >>> pool.mark_computed(blocks)
        >>> pool.retain(blocks[:1], kvpool.Retention(90))
        HintReport(accepted=1, clipped=0, ignored=0)
        >>> pool.release_table(blocks)
        >>> pool.eviction_order()
        [2, 1]
        """
    def assign_tenant(self, block_ids: BlockIds, tenant: int) -> None:
        """Assigns blocks to a tenant: they count towards its limits while their content is cached.

        A block that has a tenant keeps it. Blocks without cached content, and tenants without limits,
        are ignored. O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, or the null block.
            InvalidArgumentError: The tenant is not a number of 32 bits.
            NoRetentionError: The pool has no retention.
            ArgumentTypeError: The ids are of a type or dtype that is not taken.
        """
    def advance_time(self, now: float) -> int:
        """Lets time pass, in seconds on a clock of the caller's, and returns how many retentions ran out.

        Times to live count from the time that was given last, and ``hazard`` measures ages on this
        clock. O(log blocks) for each that runs out.

        Raises:
            TimeBackwardsError: An earlier call gave a later time.
            InvalidArgumentError: Not a number.
            NoRetentionError: The pool has no retention, and its policy needs no clock.
        """
    def tenant_blocks(self, tenant: int) -> int:
        """Returns how many blocks of a tenant with limits are cached or in use.

        0 for a tenant without limits. O(log tenants).

        Raises:
            InvalidArgumentError: The tenant is not a number of 32 bits.
            NoRetentionError: The pool has no retention.
        """
    def retention_stats(self) -> RetentionStats | None:
        """Returns how many blocks are retained how, or None without retention."""
    def advice(self) -> Advice | None:
        """Returns what the pool's traffic says of other sizes, policies and tenants; None without an advisor.

        Takes some 50 us; other threads go on. docs/advisor.md explains the answer.
        """
    def metrics(self) -> PoolMetrics | None:
        """Returns what was counted since the pool was made; None without metrics.

        O(buckets and tenants). docs/metrics.md says what each number means.

        >>> pool = kvpool.BlockPool(num_blocks=9, block_size=4, metrics=True)
        >>> chain = kvpool.BlockHasher(block_size=4).cursor(range(4)).chain()
        >>> pool.observe_time(100.0)
        >>> blocks = pool.allocate(1)
        >>> registered = pool.register(blocks, chain)
        >>> pool.mark_computed(blocks)
        >>> pool.observe_time(104.0)
        >>> hit = pool.match_and_acquire(chain)
        >>> pool.metrics()["age_at_hit"]["sum"], pool.metrics()["no_tenant"]
        (4.0, {'hits': 1, 'misses': 0})
        """
    def observe_time(self, now: float) -> None:
        """Says what time it is for the metrics, in seconds on a clock of the caller's.

        With retention ``advance_time`` says it too. In no journal, for it changes no answer. O(1).

        Raises:
            TimeBackwardsError: An earlier call gave a later time.
            InvalidArgumentError: Not a number.
        """
    def check_policy(self) -> None:
        """Raises ``PolicyError`` if the pool's policy is written in Python and has failed.

        ``kvpool.policies`` says what counts as a failure. O(1).

        Raises:
            PolicyError: The policy is used no more; the cause says why.
        """
    def state(self, block_id: int) -> BlockState:
        """Returns where a block is in its life: null, free, cached-free, active or fenced.

        O(1).

        Raises:
            InvalidBlockError: The id is outside the pool.
        """
    def is_computed(self, block_id: int) -> bool:
        """Says whether a block is registered and its KV written.

        O(1).

        Raises:
            InvalidBlockError: The id is outside the pool.
        """
    def hash_of(self, block_id: int) -> bytes | None:
        """Returns the hash under which a block is registered, or None.

        As long as the algorithm's digests. O(1).

        Raises:
            InvalidBlockError: The id is outside the pool.
        """
    def free_order(self) -> list[int]:
        """Returns the free blocks in the order in which they will be handed out.

        O(free blocks), for tests and tools.
        """
    def eviction_order(self) -> list[int]:
        """Returns the cached-free blocks in the order in which they would be evicted.

        O(cached-free blocks), for tests and tools.
        """
    def take_events(self) -> tuple[list[BlockEvent], int]:
        """Returns the events since the last call, and how many were lost before them.

        Replaying the events into a set gives the hashes that lookups can find. Events are lost when
        more than ``event_capacity`` wait: start again from a snapshot then. O(events). Hashes are those of
        ``hash_of``, always 32 bytes.
        """
    def set_payloads(self, block_ids: BlockIds, payloads: Sequence[int | bytes]) -> None:
        """Hangs a payload on what each block holds, until the content leaves the block.

        For what an engine keeps of a cached block: a node of its tree, a place in another store. It
        stays with the block, is in no journal and no digest, and is handed out by ``take_evicted``; one
        that is replaced is not. Takes held and cached-free blocks. O(1) per block.

        Args:
            block_ids: Registered blocks.
            payloads: For each an int of 64 bits without a sign, or bytes.

        Raises:
            PayloadError: The pool was made without ``payloads``; or as many as it has blocks wait to be
                taken.
            InvalidBlockError: A block is not registered, or its id unknown.
            InvalidArgumentError: Not as many payloads as blocks, or an int out of range.
            ArgumentTypeError: The ids or the payloads are of a type that is not taken.
        """
    def take_evicted(self) -> list[tuple[int, bytes, int | bytes]]:
        """Returns the payloads of contents that have left their blocks since the last call.

        Each with its block and the hash that the block held, in the order in which they left: evicted,
        dropped by name, as a duplicate or uncomputed, or all at once by a reset or a new epoch, then by
        block. None is lost: while as many wait as the pool has blocks, ``set_payloads`` is refused.
        O(payloads).

        >>> pool = kvpool.BlockPool(num_blocks=8, block_size=4, payloads=True)
        >>> chain = kvpool.BlockHasher(block_size=4).cursor(range(8)).chain()
        >>> pool.adopt([3, 5], chain)
        []
        >>> pool.set_payloads([3, 5], [77, b"node"])
        >>> pool.release_table([3, 5])
        >>> pool.evict(1), [(block, payload) for block, _, payload in pool.take_evicted()]
        ([5], [(5, b'node')])
        """
    def stats(self) -> PoolStats:
        """Returns the pool's counters and gauges.

        O(1).
        """
    def journal_stats(self) -> JournalStats | None:
        """Returns how far the journal has come, or None without one.

        A journal never fails an operation: one that cannot be written stops, and ``error`` says why. O(1).
        """
    def flush_journal(self) -> None:
        """Writes what the journal has collected: what a crash would lose.

        Without a journal nothing happens. It is also flushed when the object goes, and when an
        invariant breaks.

        Raises:
            JournalFileError: The journal has stopped recording; the message says why.
        """
    def journal_image(self) -> bytes | None:
        """Returns what a ring holds, as the bytes of a file; None without a ring.

        O(bytes).
        """
    def save_journal(self, path: str | PathLike[str]) -> None:
        """Writes what a ring holds to a new file.

        O(bytes).

        Raises:
            JournalError: There is no ring.
            JournalExistsError: The file exists.
            JournalFileError: It cannot be written.
        """
    def state_digest(self) -> int | None:
        """One number for the state of the pool, or None without digest=True.

        Equal histories give equal digests, on any host. O(blocks that changed since the last call).

        >>> one, other = (kvpool.BlockPool(num_blocks=100, digest=True) for _ in range(2))
        >>> one.state_digest() == other.state_digest() == one.state_digest_from_scratch()
        True
        """
    def state_digest_from_scratch(self) -> int:
        """Returns the same digest, counted anew from every block.

        O(blocks), with ``digest=True`` or without.
        """
    def scrub(self, blocks: int) -> ScrubReport:
        """Checks the next blocks against all that is known of them; a broken invariant poisons the pool.

        For production: a few blocks per step, round and round. Each block is in exactly one place, its
        links are mirrored by its neighbours, the index leads to it, and the sums of the pool hold; with
        ``digest=True`` its references and content are what the last operation left. O(``blocks``).

        Args:
            blocks: How many, the null block included; never a block twice in one call.

        Raises:
            PoolPoisonedError: An invariant is broken; the message names it. Every later operation
                raises it, too.

        >>> kvpool.BlockPool(num_blocks=100).scrub(64)
        ScrubReport(position=64, blocks=64, requests=0, passes=0)
        """
    @property
    def poison_reason(self) -> str | None:
        """Why the pool refuses all work, if it does."""
    def check_invariants(self) -> None:
        """Recounts every invariant of the pool and its parts from scratch.

        O(blocks), for tests and scrubbing.

        Raises:
            InvariantError: The first broken invariant.
        """

@final
class PoolStats:
    """Counts of a pool, in blocks.

    ``free + cached_free + active + fenced == usable``, always.
    """

    @property
    def usable(self) -> int:
        """All blocks but the null block."""
    @property
    def free(self) -> int:
        """Blocks without cached content that nobody holds."""
    @property
    def cached_free(self) -> int:
        """Blocks that nobody holds and a hit can take: evictable, as engines call it."""
    @property
    def active(self) -> int:
        """Blocks held by at least one block table."""
    @property
    def fenced(self) -> int:
        """Blocks that are released, but a running step may still touch them."""
    @property
    def registered(self) -> int:
        """Registered blocks, held or not."""
    @property
    def registered_active(self) -> int:
        """Registered blocks with a reference: protected, as engines call it.

        That of a fence or of a planned copy counts. ``registered`` less ``cached_free``, exact at any time.
        """
    @property
    def available(self) -> int:
        """Blocks that an allocation can take: free and cached-free."""
    @property
    def usage(self) -> float:
        """Share of the usable blocks that is active or fenced, 0.0 to 1.0."""
    @property
    def block_size(self) -> int:
        """Tokens per block."""
    @property
    def epoch(self) -> int:
        """The current epoch."""
    @property
    def allocated(self) -> int:
        """Blocks handed out so far."""
    @property
    def evicted(self) -> int:
        """Blocks whose cached content made way: for those handed out, or by evict."""
    @property
    def hits(self) -> int:
        """Blocks that matched and were acquired."""
    @property
    def misses(self) -> int:
        """Blocks that were looked up to be acquired and did not match."""
    @property
    def collisions(self) -> int:
        """Hits and registrations refused because other content stood behind an equal hash."""
    @property
    def duplicates_dropped(self) -> int:
        """Released duplicates that were freed at once because another copy was cached."""
    def tokens(self, blocks: int) -> int:
        """Returns how many tokens fit in this many blocks."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
