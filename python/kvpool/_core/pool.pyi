"""The block pool: allocation, prefix cache and eviction of one tier."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self, TypeAlias, TypedDict, final, overload, type_check_only

from kvpool._core import BlockIds, BlockState, Duplicates, EvictionPolicy, VerifyMode, _Array
from kvpool._core.advisor import AdvisorConfig
from kvpool._core.facets import PoolClock, PoolDiagnose, PoolJournal, PoolRetention
from kvpool._core.hashing import ChainLink, _Chain
from kvpool._core.journal import Journal
from kvpool._core.requests import Match, Probe
from kvpool._core.retention import RetentionConfig
from kvpool.policies import Policy as _Policy

__all__ = [
    "BlockPool",
    "PoolStats",
]

@type_check_only
class StoredEvent(TypedDict):
    """An event: a content is now cached. Its first computed block has been registered.

    Lookups in the KV-cache group ``group`` now find its hash. In groups other than full attention, ``parent``
    is None and ``depth`` may be 0.
    """

    type: Literal["stored"]
    hash: bytes
    group: int
    parent: bytes | None
    depth: int
    block_id: int

@type_check_only
class RemovedEvent(TypedDict):
    """An event: a content is no longer cached, because the only remaining computed block with it was removed.

    Lookups in the KV-cache group ``group`` no longer find its hash.
    """

    type: Literal["removed"]
    hash: bytes
    group: int
    block_id: int

@type_check_only
class ClearedEvent(TypedDict):
    """An event: all cached content was dropped, by a reset or because the epoch ``epoch`` began."""

    type: Literal["cleared"]
    epoch: int

BlockEvent: TypeAlias = StoredEvent | RemovedEvent | ClearedEvent

@final
class BlockPool:
    """Manages the blocks of one tier: allocation, prefix cache and eviction.

    Use it in an engine that keeps its own block tables. Other engines use ``CacheManager``. A call that fails
    changes nothing. Methods that engines seldom call are in four attributes, called facets: ``retention``,
    ``journal``, ``diagnose`` and ``clock``.

    Args:
        num_blocks: The number of blocks, the null block included. Block ids run from 1 to ``num_blocks - 1``.
            At least 2.
        block_size: Tokens per block. At least 1.
        verify: How a hit is verified, one of ``verify_modes()``. The ``BlockHasher`` that makes the chains
            must have this mode or a stronger one.
        duplicates: ``"keep"``, or ``"drop-on-release"`` to free a released block if another cached block
            has the same content.
        eviction: The order in which cached-free blocks are evicted: one of ``eviction_policies()``, or
            a ``Policy`` of your own. ``"last-accessed"`` orders by the times of ``mark_accessed``.
        retention: A ``RetentionConfig``, which allows priorities, times to live, pins and limits of tenants.
            True is a ``RetentionConfig`` without pins and limits. Without this setting, hints raise
            ``NoRetentionError``.
        advisor: An ``AdvisorConfig``, or True for the defaults. The advisor estimates, from the lookups, the
            hit rates of other pool sizes and policies. ``diagnose.advice`` returns the estimates.
        event_capacity: The largest number of events that the pool keeps until ``take_events`` returns them. 0
            records no events.
        journal: A ``Journal`` that records every operation. Not allowed with a ``Policy`` of your own,
            because a replay cannot run that policy.
        digest: Keeps a digest of the state for ``diagnose.state_digest``. ``diagnose.scrub`` then also finds
            reference counts that something other than the pool overwrote in memory. Takes 24 bytes per block.
        payloads: Allows the engine to attach payloads to cached content with ``set_payloads``. Takes about 90
            bytes per block with a payload.
        metrics: Counts ages of blocks at hits and evictions, causes of evictions, and hits per tenant, for
            ``diagnose.metrics`` and ``kvpool.metrics``. Takes 24 bytes per block.

    Raises:
        InvalidArgumentError: A setting is out of range. The message names the setting and its limits.
        JournalError: A journal and a policy of your own are given together.
        JournalExistsError: The journal's file exists.
        JournalFileError: The journal's file cannot be created.

    >>> hasher = kvpool.BlockHasher(block_size=4)
    >>> pool = kvpool.BlockPool(num_blocks=100, block_size=4)
    >>> chain = hasher.cursor(range(8)).chain()
    >>> blocks = pool.allocate(2)
    >>> pool.register(blocks, chain)
    2
    >>> pool.mark_computed(blocks)  # the engine has written their KV
    >>> pool.release(blocks, tail_first=True)  # cached-free now
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
        """The number of blocks, the null block included."""
    @property
    def block_size(self) -> int:
        """The number of tokens per block."""
    @property
    def num_available(self) -> int:
        """The number of blocks that an allocation can use now: free and cached-free blocks."""

    # References.

    @overload
    def allocate(self, n: int, *, out: None = None) -> list[int]:
        """Allocates blocks with one reference each. Returns their ids, or writes the ids to ``out``.

        Uses free blocks before it evicts cached-free ones. O(1) per block.

        Args:
            n: The number of blocks.
            out: An int32 buffer that receives the ids. The call then returns the number of ids. Optional.

        Raises:
            OutOfBlocksError: Fewer than ``n`` blocks are free or cached-free.
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
    @overload
    def acquire(self, block_ids: BlockIds | Match) -> None:
        """Adds one reference to each block of a table, of a match, or of a link.

        Blocks that are given by id must be in use already, because a cached-free block may be evicted at any
        time. A match of ``lookup`` may contain cached-free blocks. For a match, the call succeeds if all of
        its blocks still have the content that matched, and counts them as hits. For a link, the call acquires
        the block that is registered under the link, computed or not. Use an uncomputed block only if every
        request that shares the block computes its content itself, as in vLLM v0. ``match_and_acquire`` never
        returns an uncomputed block. O(1) per block.

        Args:
            block_ids: Ids of blocks in use. Or a ``Match``, or a ``ChainLink``.

        Returns:
            None. For a link, the id of the block, or None if no block is registered under the link.

        Raises:
            InvalidBlockError: An id is unknown, is the null block, or has no references. Or a block already
                has the largest possible number of references.
            StaleMatchError: A block of a match is no longer cached or has other content, or a new epoch has
                begun.
            StaleEpochError: The link was hashed in another epoch.
            InvalidArgumentError: The link has another algorithm or block size than the pool, or no
                fingerprint to verify.
            ArgumentTypeError: The ids have a type or dtype that is not supported.

        >>> pool = kvpool.BlockPool(num_blocks=8, block_size=4)
        >>> chain = kvpool.BlockHasher(block_size=4).cursor(range(8)).chain()
        >>> pool.register(pool.allocate(2), chain)
        2
        >>> pool.mark_computed([1, 2])
        >>> pool.release([1, 2], tail_first=True)
        >>> found = pool.lookup(chain)
        >>> pool.acquire(found)
        >>> pool.ref_count(found.block_ids)
        [1, 1]
        """
    @overload
    def acquire(self, block_ids: ChainLink) -> int | None: ...
    def release(
        self,
        block_ids: BlockIds,
        *,
        after_step: int | None = None,
        until: int | None = None,
        tail_first: bool = False,
    ) -> None:
        """Releases one reference to each block.

        A block without further references becomes cached-free if it is registered and computed, and free
        otherwise. With ``after_step`` or ``until``, the reference is released when the step or the fence
        ends. Until then the block is fenced, and lookups still find it. O(1) per block.

        Args:
            block_ids: The blocks. A block that is named twice loses two references.
            after_step: The number of a step that may still use the blocks, 0 to ``2**64 - 1``. If the step is
                already complete, the blocks are released at once.
            until: A ticket of ``fence``. Use it if a step or transfer may still use the blocks. Not allowed
                with ``after_step``.
            tail_first: Releases the last block of a table before the others. Free blocks of the table are
                then allocated again in table order, and the tail is evicted before the head. Not allowed with
                ``after_step`` or ``until``.

        Raises:
            InvalidBlockError: An id is unknown, is the null block, or is named more often than it has
                references (a double free).
            InvalidArgumentError: The ticket is not open, or two arguments exclude each other.
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """

    # Fences and steps.

    def fence(self) -> int:
        """Opens a fence and returns its ticket.

        Blocks that are released with ``until=ticket`` cannot be allocated before ``end_fence(ticket)``.
        Fences can end in any order. O(1).

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

        O(references of the fence).

        Raises:
            InvalidArgumentError: The ticket is not open: its fence has ended already, or it belongs to
                another pool.
            PoolPoisonedError: The pool refuses all work.
        """
    def complete_step(self, step: int) -> int:
        """Ends the fences of a step and of all earlier steps, and returns the number of their references.

        You may complete a step twice, and you may complete a step without fences. O(references of these
        fences).

        Raises:
            PoolPoisonedError: The pool refuses all work.
        """

    # Methods that register the content of blocks, and lookups.

    def register(self, block_ids: BlockIds, chain: _Chain, start: int = 0) -> int:
        """Registers blocks in use under the hashes of a chain, and returns the number of registered blocks.

        The content of a registered block must not change. Lookups find a block only after ``mark_computed``.
        If the call returns a smaller number than the number of blocks, a hash collided, and the pool counts
        the collision. The block that collided and all blocks after it remain usable, but are not cached. O(1)
        per block.

        Args:
            block_ids: Blocks in use, in the order of the chain.
            chain: Hashes of the prompt.
            start: The position in the chain of the first of the blocks.

        Raises:
            InvalidBlockError: An id is unknown, is the null block, has no references, or is registered
                already.
            InvalidArgumentError: The chain is too short. Or its block size, algorithm or verification differs
                from the registered content, or a position is 2^28 or more.
            StaleEpochError: The chain belongs to another epoch.
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """
    def register_table(self, block_ids: BlockIds, chain: _Chain, start: int = 0) -> list[tuple[int, int]]:
        """Registers computed blocks in use, or exchanges them for cached blocks. Returns the exchanges.

        If another computed block already has the content, the caller gets a reference to that block and loses
        the reference to its own. A block that is already registered at its position is not exchanged. A hash
        collision ends the call: the pool counts it, and the colliding block and the blocks after it do not
        change. O(n log n).

        Args:
            block_ids: Blocks in use whose KV is written, in the order of the chain.
            chain: Hashes of the prompt.
            start: The position in the chain of the first of the blocks.

        Returns:
            The exchanged blocks, as pairs of the position in ``block_ids`` and the id that is there now.

        Raises:
            InvalidBlockError: An id is unknown, is the null block, has no references, is named twice, or is
                registered with other content.
            InvalidArgumentError: As for ``register``.
            StaleEpochError: The chain belongs to another epoch.
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """
    def register_link(self, block_id: int, link: ChainLink) -> int:
        """Registers a full block in use under a link, or exchanges it. Returns the id of the block to use.

        If another block is registered under the link, computed or not, the call acquires that block, releases
        the caller's block, and returns the id of the other block. If the hash collides, the pool counts the
        collision and does not register the block. O(1).

        Raises:
            InvalidBlockError: The id is unknown, or the block has no references or is registered already.
            StaleEpochError: The link was hashed in another epoch.
            InvalidArgumentError: The link has another algorithm or block size than the pool, or no
                fingerprint to verify.
        """
    def adopt(self, block_ids: BlockIds, chain: _Chain, start: int = 0) -> list[tuple[int, int]]:
        """Adds blocks of an engine's own allocator to the pool, as cached blocks.

        Use it in an engine that allocates block ids itself and uses the pool only as an index. Such an engine
        never calls ``allocate``, so the pool considers the engine's ids free. After this call, each block has
        one reference, and is registered and computed. If another computed block already has the content, the
        caller gets a reference to that block, and its own id remains free. ``evict`` and ``disown`` return
        ids to the engine. A hash collision ends the call: the pool counts it, and the colliding id and the
        ids after it remain free. O(n log n).

        Returns:
            The exchanged blocks, as pairs of the position in ``block_ids`` and the id of the other
                block.

        Raises:
            InvalidBlockError: An id is unknown, is the null block, is not free, or is named twice.
            InvalidArgumentError: As for ``register``.
            StaleEpochError: The chain belongs to another epoch.
            ArgumentTypeError: The ids have a type or dtype that is not supported.

        >>> pool = kvpool.BlockPool(num_blocks=100, block_size=4)
        >>> chain = kvpool.BlockHasher(block_size=4).cursor(range(8)).chain()
        >>> pool.adopt([70, 30], chain), pool.adopt([41, 42], chain)  # 41 and 42 stay the engine's
        ([], [(0, 70), (1, 30)])
        >>> pool.release([70, 30], tail_first=True), pool.release([70, 30], tail_first=True)
        (None, None)
        >>> found = pool.lookup(chain)
        >>> pool.acquire(found)
        >>> pool.release(found.block_ids, tail_first=True)
        >>> pool.evict(2)  # the engine's again
        [30, 70]
        """
    def disown(self, block_ids: BlockIds) -> None:
        """Returns ids and their contents to an engine's own allocator.

        Lookups no longer find the contents. The caller must hold the only reference to each block. O(1) per
        block.

        Raises:
            InvalidBlockError: An id is unknown, is the null block, is named twice, is fenced, or has no
                reference or several.
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """
    def mark_computed(self, block_ids: BlockIds) -> None:
        """Marks registered blocks as computed: their KV is written, and lookups may return them.

        Calling it again for a computed block changes nothing. O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, is the null block, or is not registered.
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """
    @overload
    def match_and_acquire(
        self, chain: _Chain, max_blocks: int | None = None, *, tenant: int | None = None, out: None = None
    ) -> list[int]:
        """Finds the longest cached prefix of a chain and acquires it, with one reference per block.

        Only computed blocks match, and the walk ends at the first block that does not. O(blocks matched).

        Args:
            chain: Hashes of the prompt, as a chain or as the cursor that contains it.
            max_blocks: The largest number of blocks to match. None is the whole chain. An engine that must
                compute the last prompt token passes ``(tokens - 1) // block_size``.
            tenant: The tenant for which the advisor counts the lookup.
            out: An int32 buffer that receives the ids. The call then returns their number. The buffer needs
                space for ``max_blocks`` ids, or for all blocks of the chain if the chain is shorter.

        Raises:
            InvalidArgumentError: The chain has another block size, algorithm or verification than the pool.
                Or the tenant is not a number of 32 bits, or ``out`` is too short.
            StaleEpochError: The chain belongs to another epoch.
            ArgumentTypeError: ``out`` is not a writable, contiguous, 1-D int32 buffer, or ``chain`` has
                another type.
        """
    @overload
    def match_and_acquire(
        self, chain: _Chain, max_blocks: int | None = None, *, tenant: int | None = None, out: _Array
    ) -> int: ...
    def lookup(
        self, chain: _Chain, start: int = 0, max_blocks: int | None = None, *, refresh: bool = False
    ) -> Match:
        """Finds the cached blocks of a chain, and returns a match that holds no references.

        Only computed blocks match, and the walk ends at the first block that does not. Another call may later
        allocate, evict or drop the blocks. ``acquire(match)`` acquires the blocks if all of them still have
        their content. The call counts neither hits nor misses. Without ``refresh`` it changes nothing, and no
        journal records it. O(blocks matched).

        Args:
            chain: Hashes of the prompt.
            start: The position in the chain of the first block to look up.
            max_blocks: The largest number of blocks to match. None is the whole chain.
            refresh: Marks the matched blocks as just used, as if they had just been released, so that they
                are evicted later. Does not refresh blocks before ``start``. Use another call for them.

        Raises:
            InvalidArgumentError: The chain has another block size, algorithm or verification than the pool.
            StaleEpochError: The chain belongs to another epoch.
        """
    def probe(self, chain: _Chain, max_blocks: int | None = None) -> Probe:
        """Returns the number of blocks that a lookup would find now. Changes and counts nothing.

        O(blocks matched).

        Raises:
            InvalidArgumentError: The chain has another block size, algorithm or verification than the pool.
            StaleEpochError: The chain belongs to another epoch.
        """

    # Methods that drop cached content, and that change the size of the pool.

    def drop_cached(self, block_ids: BlockIds) -> int:
        """Drops the cached content of blocks by id, and returns how many of them were registered.

        Lookups no longer find the content. Cached-free blocks become free. Blocks in use keep their
        references and become free when they are released. O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, or is the null block.
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """
    @overload
    def evict(self, n: int, *, out: None = None) -> list[int]:
        """Evicts up to ``n`` cached-free blocks, and returns their ids in eviction order.

        The blocks are then free, and allocations use them next, in that order. The call returns fewer than
        ``n`` ids if fewer blocks were cached-free. Use it only if the engine has its own allocator, because
        ``allocate`` evicts blocks by itself. The evictions appear in counters and events like all other
        evictions. O(1) per block.

        Args:
            n: The largest number of blocks to evict.
            out: An int32 buffer with space for ``n`` ids. The call then returns the number of ids.

        Raises:
            InvalidArgumentError: ``n`` is negative, or ``out`` is too short.
            ArgumentTypeError: ``out`` is not a writable, contiguous, 1-D int32 buffer.

        >>> pool = kvpool.BlockPool(num_blocks=8, block_size=4)
        >>> blocks = pool.allocate(3)
        >>> pool.register(blocks, kvpool.BlockHasher(block_size=4).cursor(range(12)).chain())
        3
        >>> pool.mark_computed(blocks)
        >>> pool.release(blocks, tail_first=True)
        >>> pool.evict(2), pool.state(blocks)
        ([3, 2], ['cached-free', 'free', 'free'])
        """
    @overload
    def evict(self, n: int, *, out: _Array) -> int: ...
    def reset(self) -> int:
        """Drops all cached content of every tier, and returns how many blocks were registered.

        A refused call changes nothing. O(usable blocks).

        Raises:
            BlocksInUseError: Blocks of a tier are active or fenced. Use ``bump_epoch`` in this case.
        """
    def bump_epoch(self) -> int:
        """Starts a new epoch in every tier, for instance after a change of weights, and returns its number.

        Lookups no longer find content that was registered before, and the pool refuses chains of earlier
        epochs. ``stats().epoch`` is the current epoch. O(usable blocks).

        Raises:
            PoolPoisonedError: The pool refuses all work.
        """
    def resize(self, num_blocks: int) -> None:
        """Grows the pool. Allocations use the new blocks after all other free blocks.

        O(blocks).

        Args:
            num_blocks: The new number of blocks, the null block included. Not less than the current number.

        Raises:
            InvalidArgumentError: The number is less than the current one, or more than a pool supports.
        """

    # Methods and attributes for single blocks, events and statistics, and the facets.

    @overload
    def ref_count(self, block_id: int, *, out: None = None) -> int:
        """Returns the number of references to a block, including references of fences.

        Accepts one block, or a batch. For a batch, the call returns a list, or writes the counts to ``out``
        and returns their number. The null block has no references. O(1) per block.

        Args:
            block_id: The block. Or a batch of blocks in any order, in which a block may appear twice.
            out: Only for a batch. An int32 buffer that receives the counts. A count above ``2**31 - 1`` is
                written as that number.

        Raises:
            InvalidBlockError: An id is outside the pool.
            InvalidArgumentError: ``out`` is too short, or is given with one block.
            ArgumentTypeError: The ids have a type or dtype that is not supported. Or ``out`` is not a
                writable, contiguous, 1-D int32 buffer.

        >>> pool = kvpool.BlockPool(num_blocks=100)
        >>> table = pool.allocate(2)
        >>> pool.acquire(table[:1])
        >>> pool.ref_count(1), pool.ref_count([1, 2, 3]), pool.state([1, 2, 3])
        (2, [2, 1, 0], ['active', 'active', 'free'])
        """
    @overload
    def ref_count(self, block_id: BlockIds, *, out: None = None) -> list[int]: ...
    @overload
    def ref_count(self, block_id: BlockIds, *, out: _Array) -> int: ...
    @overload
    def state(self, block_id: int) -> BlockState:
        """Returns the state of a block: null, free, cached-free, active or fenced.

        Accepts one block, or a batch. For a batch, the call returns a list. O(1) per block.

        Raises:
            InvalidBlockError: An id is outside the pool.
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """
    @overload
    def state(self, block_id: BlockIds) -> list[BlockState]: ...
    def mark_accessed(self, block_ids: BlockIds, time: float) -> None:
        """Records when blocks were accessed, for policies that order by this time.

        Accepts blocks in use and cached-free blocks. Ignores a time that is earlier than the recorded
        one. Only the policy ``"last-accessed"`` uses the time. O(log blocks) per block.

        Raises:
            InvalidBlockError: A block is free, or its id is unknown.
            InvalidArgumentError: The time is not a number.
        """
    def signal(
        self, block_ids: BlockIds, *, finish_reason: str | None = None, output_tokens: int | None = None
    ) -> None:
        """Records how a request ended. The caller releases the request's blocks next.

        This is a hint to the policy ``hazard``. ``CacheManager.release`` describes the arguments. O(1) per
        block.

        Raises:
            InvalidBlockError: An id is unknown.
            InvalidArgumentError: The count is out of range.
        """
    def take_events(self) -> tuple[list[BlockEvent], int]:
        """Returns the events since the last call, and how many events were lost before them.

        A consumer that adds stored hashes to a set, and removes the others from it, knows which hashes
        lookups can find. The pool keeps the latest ``event_capacity`` events and drops older ones. If events
        were lost, the consumer has to start again from a snapshot. Hashes are those of ``diagnose.hash_of``,
        always in 32 bytes. O(events).
        """
    def set_payloads(self, block_ids: BlockIds, payloads: Sequence[int | bytes]) -> None:
        """Attaches a payload to the content of each block, until the content leaves the block.

        A payload is data of the engine, such as a node of its prefix tree or an address in another store. The
        pool does not read it. Journals and digests do not contain it. ``take_evicted`` returns the payloads
        of contents that have left their blocks. It does not return a payload that another payload replaced.
        Accepts blocks in use and cached-free blocks. O(1) per block.

        Args:
            block_ids: Registered blocks.
            payloads: One payload per block, an unsigned int of 64 bits or bytes.

        Raises:
            PayloadError: The pool was made without ``payloads``. Or the number of payloads that wait
                for ``take_evicted`` equals the number of blocks.
            InvalidBlockError: A block is not registered, or its id is unknown.
            InvalidArgumentError: The numbers of payloads and blocks differ, or an int is out of range.
            ArgumentTypeError: The ids or the payloads have a type that is not supported.
        """
    def take_evicted(self) -> list[tuple[int, bytes, int | bytes]]:
        """Returns the payloads of contents that have left their blocks since the last call.

        Each payload comes with its block and the hash that the block had. Payloads are in the order in which
        their contents were evicted or dropped (by id, as duplicates, or as uncomputed). After a reset or a
        new epoch, they are in the order of the block ids. No payload is lost: ``set_payloads`` is refused
        while the number of waiting payloads equals the number of blocks. O(payloads).

        >>> pool = kvpool.BlockPool(num_blocks=8, block_size=4, payloads=True)
        >>> chain = kvpool.BlockHasher(block_size=4).cursor(range(8)).chain()
        >>> pool.adopt([3, 5], chain)
        []
        >>> pool.set_payloads([3, 5], [77, b"node"])
        >>> pool.release([3, 5], tail_first=True)
        >>> pool.evict(1), [(block, payload) for block, _, payload in pool.take_evicted()]
        ([5], [(5, b'node')])
        """
    def stats(self) -> PoolStats:
        """Returns the pool's counters and gauges.

        O(1).
        """
    @property
    def retention(self) -> PoolRetention:
        """Sets the tenants of blocks, and hints for how long to keep cached blocks."""
    @property
    def journal(self) -> PoolJournal:
        """The journal of this pool: its statistics, its content as bytes, and flushing."""
    @property
    def diagnose(self) -> PoolDiagnose:
        """Invariant checks, digests of the state, orders of free and evictable blocks, advice and metrics."""
    @property
    def clock(self) -> PoolClock:
        """Sets the time on the caller's clock, for times to live and metrics."""

@final
class PoolStats:
    """Counts of a pool, in blocks.

    ``free + cached_free + active + fenced == usable`` at any time.
    """

    @property
    def usable(self) -> int:
        """Number of all blocks except the null block."""
    @property
    def free(self) -> int:
        """Number of blocks without references and without cached content."""
    @property
    def cached_free(self) -> int:
        """Number of cached blocks without references, which a hit can use.

        Some engines call them evictable.
        """
    @property
    def active(self) -> int:
        """Number of blocks that at least one block table contains."""
    @property
    def fenced(self) -> int:
        """Number of released blocks that a running step or transfer may still use."""
    @property
    def registered(self) -> int:
        """Number of registered blocks, with or without references."""
    @property
    def registered_active(self) -> int:
        """Number of registered blocks with at least one reference. Some engines call them protected.

        References of fences and of planned copies count, too. The number always equals ``registered -
        cached_free``.
        """
    @property
    def available(self) -> int:
        """Number of blocks that an allocation can use: free and cached-free blocks."""
    @property
    def usage(self) -> float:
        """The share of the usable blocks that is active or fenced, 0.0 to 1.0."""
    @property
    def block_size(self) -> int:
        """The number of tokens per block."""
    @property
    def epoch(self) -> int:
        """The current epoch. It begins at 0, and each ``bump_epoch`` adds 1."""
    @property
    def allocated(self) -> int:
        """Number of blocks allocated so far."""
    @property
    def evicted(self) -> int:
        """Number of evictions of cached content so far, by an allocation or by ``evict``."""
    @property
    def hits(self) -> int:
        """Number of hits so far: blocks that a lookup found and acquired."""
    @property
    def misses(self) -> int:
        """Number of misses so far: blocks that a lookup should have acquired, but did not find."""
    @property
    def collisions(self) -> int:
        """Number of hits and registrations refused because an equal hash belonged to other content."""
    @property
    def duplicates_dropped(self) -> int:
        """Number of released blocks that became free, because another cached block had the same content."""
    def tokens(self, blocks: int) -> int:
        """Returns how many tokens fit in this number of blocks."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
