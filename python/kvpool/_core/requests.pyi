"""Objects that a manager or a pool returns: steps, admissions, requests, matches and statistics."""

from collections.abc import Iterable
from typing import ClassVar, Literal, Self, TypedDict, final, type_check_only

from kvpool._core import BlockIds, Fit, RequestId, RequestState, Tokens, _Ints
from kvpool._core.hashing import ChainLink, ExtraKeys, HashCursor, _Chain
from kvpool._core.pool import PoolStats
from kvpool._core.retention import HintReport, RetentionStats, _Ranges

__all__ = [
    "Admission",
    "AdmissionFit",
    "ManagerStats",
    "Match",
    "Probe",
    "RequestInfo",
    "ScrubReport",
    "Step",
]

@type_check_only
class AgeHistogram(TypedDict):
    """A histogram of ages. ``counts`` has one entry more than ``bounds``, for ages above the last bound.

    A bucket includes its upper bound.
    """

    bounds: list[float]
    counts: list[int]
    sum: float

@type_check_only
class TenantHits(TypedDict):
    """Numbers of blocks that lookups found or missed.

    With KV-cache groups, in units of ``block_size`` tokens.
    """

    hits: int
    misses: int

@type_check_only
class PoolMetrics(TypedDict):
    """The metrics of one tier. See docs/metrics.md.

    The dict can be written as JSON, except that the keys of ``tenants`` are ints. Counts are in blocks, and
    ages in seconds. ``time`` is the time that ``clock`` was last set to, or None if it was never set.
    ``evicted`` has the number of evictions for each cause: ``policy``, ``priority``, ``end-of-life``,
    ``expired`` and ``tenant-ceiling``.
    """

    time: float | None
    stored: int
    evicted: dict[str, int]
    dropped: int
    cleared: int
    age_at_hit: AgeHistogram
    reuse_gap: AgeHistogram
    lifetime: AgeHistogram
    idle_before_eviction: AgeHistogram
    hits_before_eviction: AgeHistogram
    tenants: dict[int, TenantHits]
    other_tenants: TenantHits
    no_tenant: TenantHits

@final
class Step:
    """A plan of several operations that are committed together or not at all.

    ``CacheManager.plan_step`` returns a step. Planning an operation changes nothing in the manager. Each
    operation is checked against the blocks that the earlier operations of the plan leave available. A refused
    operation does not change the plan. A plan may contain each request at most once. If the manager changes
    in another way, the plan becomes stale and cannot be committed. ``len(step)`` is the number of planned
    operations. In a ``with`` statement, the plan is rolled back at the end unless it was committed.

    >>> manager = kvpool.CacheManager(num_blocks=5, block_size=4)
    >>> _ = manager.admit("old", range(12))
    >>> step = manager.plan_step()
    >>> step.admit("new", range(100, 108))
    Traceback (most recent call last):
    ...
    kvpool.errors.OutOfBlocksError: out of blocks: 2 needed, 1 available, 1 missing
    >>> step.release("old")
    3
    >>> step.admit("new", range(100, 108)), step.available_blocks, len(step)
    (0, 2, 2)
    >>> step.rollback()
    >>> "new" in manager
    False
    """

    def admit(
        self,
        request_id: RequestId,
        prompt: Tokens | HashCursor,
        extra: ExtraKeys | None = None,
        *,
        tenant: int | None = None,
        no_cache: bool = False,
        retention: _Ranges | None = None,
        allocate_tokens: int | None = None,
        external_tokens: int = 0,
        reuse: bool = True,
    ) -> int:
        """Plans an admission, and returns the number of tokens that would be cached.

        The arguments are those of ``CacheManager.admit``. To end a session, call
        ``retention.end_of_life`` before ``plan_step``. O(blocks), plus hashing if the prompt is not
        prepared.

        Raises:
            OutOfBlocksError: The plan leaves too few blocks.
            DuplicateRequestError: Another request has this id, or the step names it already.
            InvalidArgumentError: The prompt is empty or was hashed with other settings, ``extra`` is
                given with a prepared prompt, or a hint is out of range.
            NoRetentionError: Hints are given, and the manager has no retention.
            StaleEpochError: The prompt was prepared before the last epoch bump.
            StaleStepError: The manager has changed, or the step is over.
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
            ArgumentTypeError: The id is neither a str nor an int.
            HashingError: The algorithm cannot represent these extra keys.
        """
    def resume(
        self,
        request_id: RequestId,
        *,
        allocate_tokens: int | None = None,
        external_tokens: int = 0,
        reuse: bool = True,
    ) -> int:
        """Plans to resume a preempted request, and returns the number of tokens that would be cached.

        Tokens that were hashed before the last epoch bump are hashed again. O(blocks), or O(tokens) in
        this case.

        Raises:
            OutOfBlocksError: The plan leaves too few blocks.
            UnknownRequestError: No request has this id.
            RequestStateError: The request is not preempted.
            DuplicateRequestError: The request is named in this step already.
            StaleStepError: The manager has changed, or the step is over.
            ArgumentTypeError: The id is neither a str nor an int.
        """
    def append_ragged(
        self,
        request_ids: Iterable[RequestId],
        token_ids: Tokens,
        offsets: _Ints | None = None,
        *,
        lookahead: int = 0,
        covered: _Ints | None = None,
    ) -> int:
        """Plans to append tokens to each request of a batch, and returns the number of blocks needed.

        A call that fails plans nothing. The arguments are those of ``CacheManager.append_ragged``. The
        operation does not commit computed tokens, so call ``CacheManager.commit`` before ``plan_step``. The
        result of ``commit`` has one outcome per request. O(requests + tokens).

        Raises:
            OutOfBlocksError: The plan leaves too few blocks.
            InvalidArgumentError: The lengths of the lists do not match.
            UnknownRequestError: No request has this id.
            RequestStateError: A request is neither running nor preempted.
            DuplicateRequestError: A request is named in this step already, or twice.
            StaleStepError: The manager has changed, or the step is over.
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
            ArgumentTypeError: Ids, offsets or counts have a type or dtype that is not supported.
        """
    def append(self, request_id: RequestId, token_ids: Tokens, *, lookahead: int = 0) -> int:
        """Plans to append tokens to a request, and returns the number of blocks needed.

        The blocks have space for ``lookahead`` more tokens after them. O(tokens).

        Raises:
            OutOfBlocksError: The plan leaves too few blocks.
            UnknownRequestError: No request has this id.
            RequestStateError: The request is neither running nor preempted.
            DuplicateRequestError: The request is named in this step already.
            StaleStepError: The manager has changed, or the step is over.
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
            ArgumentTypeError: The id is neither a str nor an int.
        """
    def preempt(
        self, request_id: RequestId, *, after_step: int | None = None, until: int | None = None
    ) -> int:
        """Plans to preempt a running request, and returns the number of blocks that become available.

        Fenced blocks become available only when their fence ends. So the call returns 0 with ``until``, and
        with ``after_step`` unless that step is complete. O(blocks).

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is preempted already, or is moving or loading.
            DuplicateRequestError: The request is named in this step already.
            StaleStepError: The manager has changed, or the step is over.
            ArgumentTypeError: The id is neither a str nor an int.
        """
    def release(
        self, request_id: RequestId, *, after_step: int | None = None, until: int | None = None
    ) -> int:
        """Plans to release a request, and returns the number of blocks that become available.

        Blocks that are fenced, or that a swap or a load uses, become available later. So the call returns 0
        with ``until``, and with ``after_step`` unless that step is complete. O(blocks).

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is releasing already.
            DuplicateRequestError: The request is named in this step already.
            StaleStepError: The manager has changed, or the step is over.
            ArgumentTypeError: The id is neither a str nor an int.
        """
    @property
    def available_blocks(self) -> int:
        """The number of blocks that would still be available after the operations planned so far.

        Raises:
            StaleStepError: The step is over.
        """
    def commit(self) -> list[Admission | list[tuple[int, int]] | None]:
        """Executes all planned operations, and ends the step.

        The manager first acquires all hits, then releases blocks, and then allocates blocks. So no allocation
        evicts a block that another operation of the plan hits. O(blocks).

        Returns:
            One outcome per operation, in the order of planning. It is an ``Admission`` for ``admit`` and
                ``resume``, the changes of the block table for ``append``, and None for ``preempt`` and
                ``release``.

        Raises:
            StaleStepError: The manager has changed since the step began, or the step is over.
        """
    def rollback(self) -> None:
        """Drops the plan. The manager does not change.

        Does nothing if the plan was already committed or dropped. O(operations).
        """
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    def __len__(self) -> int: ...

@final
class Admission:
    """The result of an admission."""

    @property
    def cached_tokens(self) -> int:
        """The number of leading tokens whose KV is cached. The engine computes the tokens after them.

        The number is a multiple of the block size, and less than the number of tokens of the prompt.
        """
    @property
    def cached_blocks(self) -> int:
        """The number of leading blocks of the table that are cached and shared. Do not write to them."""
    @property
    def external_tokens(self) -> int:
        """The number of tokens after the cached ones that a connector loads now."""
    @property
    def num_blocks(self) -> int:
        """The number of blocks of the whole block table."""
    @property
    def block_ids(self) -> list[int]:
        """The whole block table. Empty if the call wrote it to the caller's buffer.

        Each access makes a new list. O(blocks).
        """
    @property
    def tables(self) -> list[list[int]]:
        """The block tables of all KV-cache groups, including the first group.

        Each access makes new lists. The first list is empty if the call wrote that table to the caller's
        buffer. O(blocks).
        """
    @property
    def full_tokens(self) -> int:
        """The number of leading tokens that full attention alone has cached.

        The number is larger than ``cached_tokens`` if another group evicted the blocks for a longer hit, or
        never kept them.
        """
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class AdmissionFit:
    """The result of ``fit``: what an admission would find cached, and how much of it would fit."""

    @property
    def fit(self) -> Fit | Literal["in_chunks"]:
        """Whether the request would be admitted: ``"ok"``, ``"later"``, ``"in_chunks"`` or ``"never"``.

        ``"later"`` means that the request does not fit now, and that ``can_ever_fit`` is true.
        ``"in_chunks"`` means that the request never fits with this ``allocate_tokens``, but can fit with
        smaller chunks. ``"never"`` means that a pool of this size is too small.
        """
    @property
    def cached_tokens(self) -> int:
        """The number of leading tokens that are cached."""
    @property
    def new_blocks(self) -> int:
        """The number of blocks that the request would need in addition to cached blocks."""
    @property
    def fitting_tokens(self) -> int:
        """The number of tokens after the cached and external ones that could get blocks now."""
    @property
    def can_ever_fit(self) -> bool:
        """Whether an empty pool of this size could compute the prompt in chunks of ``allocate_tokens``.

        If ``allocate_tokens`` is None, the prompt is one chunk. The result depends only on the groups, the
        number of blocks, the length of the prompt and the arguments. It does not depend on the blocks that
        are cached or in use. So even if ``fit`` is ``"ok"``, the result may be False: the request would be
        admitted now, but could not run to its end.
        """
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class RequestInfo:
    """A snapshot of a request: its state and its token counts."""

    @property
    def state(self) -> RequestState:
        """The state of the request: running, preempted, swapped, moving, loading or releasing."""
    @property
    def tokens(self) -> int:
        """The number of tokens of the request: prompt tokens and appended tokens."""
    @property
    def computed_tokens(self) -> int:
        """The number of tokens whose KV is written, cached tokens included."""
    @property
    def cached_tokens(self) -> int:
        """The number of tokens that were cached when the request was last admitted or resumed."""
    @property
    def external_end(self) -> int:
        """The position after the last token that a connector loads.

        If no connector loads tokens, the position after the computed tokens.
        """
    @property
    def blocks(self) -> int:
        """The number of blocks in the request's block table."""
    @property
    def tier(self) -> int:
        """The tier with the request's blocks: 0 is the device, and 1 the host tier (if swapped out)."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class Match:
    """The cached blocks of a chain that a lookup found. A match holds no references to them.

    ``BlockPool.lookup`` returns matches, and ``BlockPool.acquire`` acquires their blocks. Two matches are
    equal if they begin at the same position and end in the same hash, even if their blocks differ. So a match
    can be a key of a dict, or identify a node of a prefix tree. A match takes about 36 bytes per block.

    Args:
        chain: Hashes of the prompt.
        block_ids: The blocks that may have this content. ``BlockPool.acquire`` checks whether they do.
        start: The position in the chain of the first of these blocks.

    Raises:
        InvalidArgumentError: The chain is too short.

    >>> pool = kvpool.BlockPool(num_blocks=8, block_size=4)
    >>> chain = kvpool.BlockHasher(block_size=4).cursor(range(8)).chain()
    >>> pool.register(pool.allocate(2), chain)
    2
    >>> pool.mark_computed([1, 2])
    >>> pool.release([1, 2], tail_first=True)
    >>> found = pool.lookup(chain)
    >>> found, found.block_ids, found.link.depth
    (Match(start=0, blocks=2), [1, 2], 1)
    >>> pool.acquire(found)
    >>> pool.ref_count(found.block_ids)
    [1, 1]
    """

    def __new__(cls, chain: _Chain, block_ids: BlockIds, start: int = 0) -> Self: ...
    @property
    def start(self) -> int:
        """The position of the first matched block in the chain."""
    @property
    def block_ids(self) -> list[int]:
        """The ids of the blocks when they matched."""
    @property
    def link(self) -> ChainLink | None:
        """The link of the last block.

        None if no block matched, or if the chain was made from digests, with ``HashChain.from_digests``.
        """
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Probe:
    """The numbers of blocks that a lookup would find."""

    @property
    def cached_blocks(self) -> int:
        """Number of blocks from the start of the prompt that a lookup would return."""
    @property
    def idle_blocks(self) -> int:
        """Number of the cached blocks that have no references.

        Acquiring them reduces the number of available blocks by this number.
        """
    @property
    def pending_blocks(self) -> int:
        """Number of registered blocks of the chain after the cached blocks.

        Requests are still computing their KV.
        """
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class ManagerStats:
    """Counters and gauges of a manager, in requests and tokens.

    ``hit_tokens + external_tokens + computed_tokens == prompt_tokens`` at any time. These four counters count
    each request once, at its first admission.
    """

    @property
    def running(self) -> int:
        """Number of running requests."""
    @property
    def preempted(self) -> int:
        """Number of preempted requests, which wait to be resumed."""
    @property
    def swapped(self) -> int:
        """Number of requests whose blocks are in the host tier."""
    @property
    def moving(self) -> int:
        """Number of requests whose blocks a running swap moves between the tiers."""
    @property
    def loading(self) -> int:
        """Number of requests for which a connector is loading external tokens."""
    @property
    def releasing(self) -> int:
        """Number of requests that were released while they were moving or loading."""
    @property
    def admissions(self) -> int:
        """Number of requests admitted so far."""
    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens of the admitted requests."""
    @property
    def hit_tokens(self) -> int:
        """Number of prompt tokens whose KV was cached."""
    @property
    def external_tokens(self) -> int:
        """Number of prompt tokens whose KV a connector loaded."""
    @property
    def computed_tokens(self) -> int:
        """Number of prompt tokens to compute. Includes external tokens that are still loading."""
    @property
    def refusals(self) -> int:
        """Number of admissions and resumptions refused because too few blocks were available."""
    @property
    def unserved_tokens(self) -> int:
        """Number of tokens that full attention had cached, but that another KV-cache group lacked."""
    @property
    def checkpoints(self) -> int:
        """Number of recurrent states that were copied, so that later requests can hit the copies."""
    @property
    def appended_tokens(self) -> int:
        """Number of tokens appended after admission."""
    @property
    def preemptions(self) -> int:
        """Number of requests preempted so far."""
    @property
    def preempted_tokens(self) -> int:
        """Number of computed tokens in blocks that preemptions released, even if the blocks stay cached."""
    @property
    def resumptions(self) -> int:
        """Number of requests resumed so far."""
    @property
    def resumed_tokens(self) -> int:
        """Number of tokens of the resumed requests."""
    @property
    def resumed_hit_tokens(self) -> int:
        """Number of tokens of resumed requests whose KV was still cached."""
    @property
    def resumed_external_tokens(self) -> int:
        """Number of tokens of resumed requests whose KV a connector loaded."""
    @property
    def forks(self) -> int:
        """Number of requests forked from others."""
    @property
    def swapped_out(self) -> int:
        """Number of requests swapped out so far."""
    @property
    def swapped_in(self) -> int:
        """Number of requests swapped in so far."""
    @property
    def copied_blocks(self) -> int:
        """Number of blocks copied so far by transfer plans, for copy-on-write and for swaps."""
    @property
    def block_bytes(self) -> int:
        """Number of bytes of KV per block. 0 if unknown."""
    @property
    def hints(self) -> HintReport:
        """The numbers of blocks for each outcome of all hints so far.

        A hint of a request counts once for each time that it took effect on a block.
        """
    @property
    def retention(self) -> RetentionStats | None:
        """The numbers of blocks by kind of hint, or None without the setting ``retention``."""
    @property
    def misses(self) -> dict[str, int] | None:
        """Number of computed prompt tokens by reason, or None without the setting ``explain``.

        The numbers sum up to ``computed_tokens``. The reasons are those of ``MissSpan.reason``.
        """
    @property
    def resumed_misses(self) -> dict[str, int] | None:
        """Number of recomputed tokens of resumed requests by reason, or None without ``explain``.

        The numbers sum up to ``resumed_tokens - resumed_hit_tokens``.
        """
    @property
    def pool(self) -> PoolStats:
        """The counts of the device's pool."""
    def bytes(self, blocks: int) -> int:
        """Returns the bytes of KV in this number of blocks. 0 if unknown."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class ScrubReport:
    """The result of one call of ``diagnose.scrub``, which checks some blocks for broken invariants."""

    @property
    def position(self) -> int:
        """The block at which the next call begins. For a manager, the block of the device tier."""
    @property
    def blocks(self) -> int:
        """Number of blocks that this call checked in all tiers, the null block included."""
    @property
    def requests(self) -> int:
        """Number of requests whose block tables this call has finished checking. 0 for a pool."""
    @property
    def passes(self) -> int:
        """The number of complete passes over all blocks so far."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
