"""What a manager answers: steps, admissions, requests, figures."""

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
    """Values in buckets: ``counts`` has one more than ``bounds``, whose numbers belong to the bucket
    that they end.
    """

    bounds: list[float]
    counts: list[int]
    sum: float

@type_check_only
class TenantHits(TypedDict):
    """Blocks that lookups asked for; with KV-cache groups stretches of ``block_size`` tokens."""

    hits: int
    misses: int

@type_check_only
class PoolMetrics(TypedDict):
    """What was counted of one tier: see docs/metrics.md. It is JSON, but for tenants, who are ints.

    All in blocks, but for ages, in seconds. ``time`` is what was told last, None before. ``evicted`` is
    by cause: ``policy``, ``priority``, ``end-of-life``, ``expired``, ``tenant-ceiling``.
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
    """A step being planned: operations that are committed together or not at all.

    Comes from ``CacheManager.plan_step``. Planning changes nothing: each operation is checked against
    what the plan leaves available, and a refused one leaves the plan as it was. A step names each
    request once. Any other change of the manager makes it stale. ``len(step)`` is the number of
    operations planned. As a context manager it rolls back on exit unless it was committed.

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
        """Plans an admission and returns how many tokens would be cached.

        O(blocks), plus hashing if the prompt is not prepared. Arguments are those of
        ``CacheManager.admit``. To end a session, call ``end_of_life`` before ``plan_step``.

        Raises:
            OutOfBlocksError: Too few blocks are left by the plan.
            DuplicateRequestError: The id is known already, or named in this step.
            InvalidArgumentError: The prompt is empty or was hashed with other settings, ``extra`` is
                given with a prepared prompt, or a hint is out of range.
            NoRetentionError: There are hints, and the manager has no retention.
            StaleEpochError: The prompt was prepared before the last epoch bump.
            StaleStepError: The manager has changed, or the step is over.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
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
        """Plans to resume a preempted request and returns how many tokens would be cached.

        Tokens that were hashed before the last epoch bump are hashed again. O(blocks); O(tokens) with such.

        Raises:
            OutOfBlocksError: Too few blocks are left by the plan.
            UnknownRequestError: No request has this id.
            RequestStateError: The request is running.
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
        """Plans to append tokens to each request of a batch, all or nothing, and returns how many
        blocks that adds.

        O(requests + tokens). Arguments are those of ``CacheManager.append_ragged``. Commits nothing:
        commit before ``plan_step``. Adds an outcome per request.

        Raises:
            OutOfBlocksError: Too few blocks are left by the plan.
            InvalidArgumentError: The lists do not fit each other.
            UnknownRequestError: No request has this id.
            RequestStateError: A request neither runs nor is preempted.
            DuplicateRequestError: A request is named in this step already, or twice.
            StaleStepError: The manager has changed, or the step is over.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
            ArgumentTypeError: Ids, offsets or counts are of a type or dtype that is not taken.
        """
    def append(self, request_id: RequestId, token_ids: Tokens, *, lookahead: int = 0) -> int:
        """Plans to append tokens to a request and returns how many blocks that adds.

        With room for ``lookahead`` tokens more. O(tokens).

        Raises:
            OutOfBlocksError: Too few blocks are left by the plan.
            UnknownRequestError: No request has this id.
            RequestStateError: The request neither runs nor is preempted.
            DuplicateRequestError: The request is named in this step already.
            StaleStepError: The manager has changed, or the step is over.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
            ArgumentTypeError: The id is neither a str nor an int.
        """
    def preempt(
        self, request_id: RequestId, *, after_step: int | None = None, until: int | None = None
    ) -> int:
        """Plans to preempt a running request and returns how many blocks that makes available.

        O(blocks). Fenced blocks become available later: returns 0 with ``until``, and with
        ``after_step`` unless that step is complete.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is preempted already.
            DuplicateRequestError: The request is named in this step already.
            StaleStepError: The manager has changed, or the step is over.
            ArgumentTypeError: The id is neither a str nor an int.
        """
    def release(
        self, request_id: RequestId, *, after_step: int | None = None, until: int | None = None
    ) -> int:
        """Plans to release a request and returns how many blocks that makes available.

        O(blocks). Blocks that are fenced, moved or loaded become available later: returns 0 with
        ``until``, and with ``after_step`` unless that step is complete.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is releasing already.
            DuplicateRequestError: The request is named in this step already.
            StaleStepError: The manager has changed, or the step is over.
            ArgumentTypeError: The id is neither a str nor an int.
        """
    @property
    def available_blocks(self) -> int:
        """Blocks that would still be available after the operations so far.

        Raises:
            StaleStepError: The step is over.
        """
    def commit(self) -> list[Admission | list[tuple[int, int]] | None]:
        """Does all that is planned, and ends the step.

        First acquires all hits, then releases blocks, then allocates, so that no planned hit is
        evicted. O(blocks).

        Returns:
            One outcome per operation, in the order of planning: an ``Admission`` for ``admit`` and
            ``resume``, what changed in the block table for ``append``, None for ``preempt`` and ``release``.

        Raises:
            StaleStepError: The manager has changed since the step was begun, or the step is over.
        """
    def rollback(self) -> None:
        """Drops the plan: nothing has happened.

        O(operations). Does nothing if the step is over.
        """
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    def __len__(self) -> int: ...

@final
class Admission:
    """What an admitted request got."""

    @property
    def cached_tokens(self) -> int:
        """Leading tokens whose KV is cached: the engine computes from here on.

        A multiple of the block size, and less than the prompt.
        """
    @property
    def cached_blocks(self) -> int:
        """Leading blocks of the block table that are cached, shared, and not to be written."""
    @property
    def external_tokens(self) -> int:
        """Tokens behind the cached ones that a connector loads now."""
    @property
    def num_blocks(self) -> int:
        """Blocks of the whole block table."""
    @property
    def block_ids(self) -> list[int]:
        """The whole block table; empty if it was written to a buffer of the caller.

        A new list at each access: O(blocks).
        """
    @property
    def tables(self) -> list[list[int]]:
        """The block tables of all KV-cache groups, the first included.

        New lists at each access: O(blocks). The first is empty if it was written to a buffer of the caller.
        """
    @property
    def full_tokens(self) -> int:
        """How far full attention alone would have gone.

        More than ``cached_tokens`` if another group had given up, or never kept, what a longer hit needs.
        """
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class AdmissionFit:
    """The answer of ``fit``: what an admission would find, and how much of it would fit."""

    @property
    def fit(self) -> Fit | Literal["in_chunks"]:
        """Whether it would be admitted: ok, later, ``in_chunks`` or never.

        ``"later"``: not now, and ``can_ever_fit``. ``"in_chunks"``: never with this
        ``allocate_tokens``, and with smaller chunks it could. ``"never"``: not in a pool of this size.
        """
    @property
    def cached_tokens(self) -> int:
        """Leading tokens that are cached."""
    @property
    def new_blocks(self) -> int:
        """Blocks that it would take besides."""
    @property
    def fitting_tokens(self) -> int:
        """Tokens behind the cached and external ones that could get blocks now."""
    @property
    def can_ever_fit(self) -> bool:
        """Whether an empty pool of this size could compute the prompt in chunks of ``allocate_tokens``.

        As a whole if ``allocate_tokens`` is None. It depends on the groups, the number of blocks, the
        length of the prompt and the arguments alone, not on what is cached or in use. An admission that
        is ``"ok"`` now can still be one that cannot run to its end.
        """
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class RequestInfo:
    """What the manager knows of a request."""

    @property
    def state(self) -> RequestState:
        """Whether it holds blocks, and where: running, preempted, swapped, moving, loading or releasing."""
    @property
    def tokens(self) -> int:
        """Its tokens: prompt and appended ones."""
    @property
    def computed_tokens(self) -> int:
        """Tokens whose KV is written, cached ones included."""
    @property
    def cached_tokens(self) -> int:
        """Tokens that were cached when it was last admitted."""
    @property
    def external_end(self) -> int:
        """The token behind the last one that a connector loads, or behind the computed ones if it loads
        none.
        """
    @property
    def blocks(self) -> int:
        """Blocks in its block table."""
    @property
    def tier(self) -> int:
        """The tier of its blocks: 0, or 1 if it is swapped out."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class Match:
    """Cached blocks of a chain as a lookup found them; it holds none.

    ``BlockPool.lookup`` makes them, and ``acquire`` acquires what they name. Two are equal if
    they begin at one position and end in one hash, wherever their blocks are: they serve as keys and as
    handles of nodes. Some 36 bytes per block.

    Args:
        chain: Hashes of the prompt.
        block_ids: Blocks that are said to hold its blocks; ``acquire`` compares.
        start: Position in the chain of the first of them.

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
        """Position in the chain of the first block."""
    @property
    def block_ids(self) -> list[int]:
        """The blocks, as they were when they matched."""
    @property
    def link(self) -> ChainLink | None:
        """The link of the last block, or None.

        None if no block matched, and of a chain whose digests were computed elsewhere.
        """
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Probe:
    """What a lookup would find: counts, not ids."""

    @property
    def cached_blocks(self) -> int:
        """Blocks from the start of the prompt that a lookup would return."""
    @property
    def idle_blocks(self) -> int:
        """Of the cached blocks, those that nobody holds: acquiring them uses up as many available ones."""
    @property
    def pending_blocks(self) -> int:
        """Blocks behind the cached ones that are registered and being computed now."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class ManagerStats:
    """Counts of a manager, in requests and tokens.

    ``hit_tokens + external_tokens + computed_tokens == prompt_tokens``, always: each request counts
    once, at its first admission.
    """

    @property
    def running(self) -> int:
        """Requests that hold blocks now."""
    @property
    def preempted(self) -> int:
        """Requests that wait to be resumed."""
    @property
    def swapped(self) -> int:
        """Requests whose blocks are in the host tier."""
    @property
    def moving(self) -> int:
        """Requests that a swap moves now."""
    @property
    def loading(self) -> int:
        """Requests whose external tokens are on their way."""
    @property
    def releasing(self) -> int:
        """Requests that were released while they were moving or loading."""
    @property
    def admissions(self) -> int:
        """Requests admitted so far."""
    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of the admitted requests."""
    @property
    def hit_tokens(self) -> int:
        """Of the prompt tokens, those whose KV was cached."""
    @property
    def external_tokens(self) -> int:
        """Of the prompt tokens, those whose KV a connector brought."""
    @property
    def computed_tokens(self) -> int:
        """Of the prompt tokens, those that the engine had to compute; external ones until they are there."""
    @property
    def refusals(self) -> int:
        """Admissions and resumptions refused for want of blocks."""
    @property
    def unserved_tokens(self) -> int:
        """Tokens that full attention had cached, and another KV-cache group could not serve."""
    @property
    def checkpoints(self) -> int:
        """States of recurrent groups that were copied to be kept."""
    @property
    def appended_tokens(self) -> int:
        """Tokens appended after admission."""
    @property
    def preemptions(self) -> int:
        """Requests preempted so far."""
    @property
    def preempted_tokens(self) -> int:
        """Computed tokens that preemptions gave up, cached again or not."""
    @property
    def resumptions(self) -> int:
        """Requests resumed so far."""
    @property
    def resumed_tokens(self) -> int:
        """Tokens of the resumed requests."""
    @property
    def resumed_hit_tokens(self) -> int:
        """Of the resumed tokens, those whose KV was still cached."""
    @property
    def resumed_external_tokens(self) -> int:
        """Of the resumed tokens, those whose KV a connector brought."""
    @property
    def forks(self) -> int:
        """Requests forked from others."""
    @property
    def swapped_out(self) -> int:
        """Requests swapped out so far."""
    @property
    def swapped_in(self) -> int:
        """Requests swapped in so far."""
    @property
    def copied_blocks(self) -> int:
        """Blocks handed out to be copied: by copy-on-write and by swaps."""
    @property
    def block_bytes(self) -> int:
        """Bytes of KV per block; 0 if unknown."""
    @property
    def hints(self) -> HintReport:
        """What became of the hints so far, by blocks.

        A request's hints count once for each time that they took effect on a block.
        """
    @property
    def retention(self) -> RetentionStats | None:
        """How many blocks are retained how, or None without retention."""
    @property
    def misses(self) -> dict[str, int] | None:
        """Prompt tokens that were computed, by reason, or None for a manager that does not explain.

        They sum up to ``computed_tokens``. The reasons are those of ``MissSpan.reason``.
        """
    @property
    def resumed_misses(self) -> dict[str, int] | None:
        """The same of resumed tokens.

        They sum up to ``resumed_tokens`` less ``resumed_hit_tokens``.
        """
    @property
    def pool(self) -> PoolStats:
        """The pool's own counts."""
    def bytes(self, blocks: int) -> int:
        """Returns the bytes of KV in this many blocks; 0 if unknown."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class ScrubReport:
    """What a call of a scrubber did."""

    @property
    def position(self) -> int:
        """The block that the next call begins with; of a manager, on the device."""
    @property
    def blocks(self) -> int:
        """Blocks checked by this call, the null block included, in all tiers."""
    @property
    def requests(self) -> int:
        """Requests whose block tables this call has finished checking; 0 for a pool."""
    @property
    def passes(self) -> int:
        """How often everything has been checked so far."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
