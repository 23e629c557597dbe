"""The cache manager: keeps the block tables of requests, by id, over one block pool."""

from collections.abc import Iterable, Sequence
from typing import Literal, Self, final, overload

from kvpool._core import (
    BlockIds,
    Duplicates,
    EvictionPolicy,
    HashAlgorithm,
    RequestId,
    Tokens,
    VerifyMode,
    _Array,
    _Ints,
)
from kvpool._core.advisor import AdvisorConfig
from kvpool._core.explain import ExplainConfig, Explanation
from kvpool._core.facets import (
    ManagerClock,
    ManagerDiagnose,
    ManagerJournal,
    ManagerRetention,
    ManagerSwaps,
)
from kvpool._core.groups import GroupFit, GroupSpec
from kvpool._core.hashing import ExtraKeys, HashCursor
from kvpool._core.journal import Journal
from kvpool._core.pool import BlockEvent
from kvpool._core.requests import Admission, AdmissionFit, ManagerStats, Probe, RequestInfo, Step
from kvpool._core.retention import RetentionConfig, _Ranges
from kvpool._core.tiers import TransferPlan
from kvpool.policies import Policy as _Policy

__all__ = [
    "CacheManager",
]

@final
class CacheManager:
    """Manages the requests of a scheduler, by id, over one block pool.

    ``admit`` begins a request. In each step, the scheduler then calls ``commit`` for computed tokens and
    ``append`` for sampled tokens. ``release`` ends the request. ``preempt`` takes the blocks of a request
    away, and ``resume`` admits the request again. Other requests can hit a block only after ``commit`` has
    marked all its tokens as computed.

    Methods that engines seldom call are in five attributes, called facets: ``swaps``, ``retention``,
    ``journal``, ``diagnose`` and ``clock``. Some calls accept one request or a batch of requests. If a call
    fails for one request of a batch, it changes nothing for the others.

    Args:
        num_blocks: The number of blocks of the pool, the null block included. Block ids run from 1 to
            ``num_blocks - 1``. At least 2.
        block_size: Tokens per block. At least 1.
        algorithm: The hash algorithm, one of ``hash_algorithms()``.
        verify: How a hit is verified, one of ``verify_modes()``. ``"none"`` is allowed only for cryptographic
            algorithms.
        key: 32 secret bytes that key the hash and the fingerprints. Only for ``"blake3"``.
        seed: The value of ``PYTHONHASHSEED`` that vLLM's encodings include. It also seeds ``"xxh3"`` and the
            fingerprints.
        duplicates: ``"keep"``, or ``"drop-on-release"`` to free a released block if another cached block
            has the same content.
        eviction: The order in which cached-free blocks are evicted: one of ``eviction_policies()``, or
            a ``Policy`` of your own.
        retention: A ``RetentionConfig``, which allows priorities, times to live, pins and limits of tenants.
            True is a ``RetentionConfig`` without pins and limits. Without this setting, hints raise
            ``NoRetentionError``.
        advisor: An ``AdvisorConfig``, or True for the defaults. The advisor estimates, from the lookups, the
            hit rates of other pool sizes and policies. ``diagnose.advice`` returns the estimates.
        explain: An ``ExplainConfig``, or True for the defaults. The manager records which content is cached
            and evicted, so that ``explain`` can report why a prompt missed.
        event_capacity: The largest number of events that the manager keeps until ``take_events`` returns
            them. 0 records no events.
        watermark: The share of the pool that an admission leaves available while other requests run. From
            0.0 to below 1.0.
        host_blocks: The number of blocks of the host tier, the null block included. Requests are
            swapped out to this tier. With 0 there is no host tier.
        block_bytes: Bytes of KV per block over all layers, for ``ManagerStats.bytes``. 0 if unknown.
        groups: The KV-cache groups of a hybrid model, a sequence of ``GroupSpec``. Their block sizes are
            multiples of ``block_size``, and prompts are hashed in blocks of ``block_size``. Needs
            ``verify="none"``. None means one group of full attention. With groups, each change of a block
            table that a call returns has one more item after the block, which is the group.
        journal: A ``Journal`` that records every operation. Not allowed with a ``Policy`` of your own,
            because a replay cannot run that policy.
        digest: Keeps a digest of the state for ``diagnose.state_digest``. ``diagnose.scrub`` then also finds
            reference counts that something other than the manager overwrote in memory. Takes 24 bytes per
            block.
        scrub_blocks: The number of blocks of each tier that every ``complete_step`` scrubs. Scrubbing checks
            that the records of a block are consistent. 0 scrubs no blocks.
        metrics: Counts ages of blocks at hits and evictions, causes of evictions, and hits per tenant, for
            ``diagnose.metrics`` and ``kvpool.metrics``. Takes 24 bytes per block of each tier.
        keep_tokens: Keeps the tokens of cached blocks, so that ``prepare``, ``admit`` and the other calls
            that take a prompt do not hash its cached beginning. A hit then takes 25 ns instead of 105 ns per
            block of 16 tokens. Hashes and hits do not depend on this setting. Takes 101 bytes per block of 16
            tokens; 85 with ``verify="fingerprint"``, and 21 with ``verify="tokens"``. Every prompt
            is hashed with a ``Policy`` of your own, and with groups whose first group does not have full
            attention and blocks of ``block_size`` tokens.

    Raises:
        InvalidArgumentError: A setting is out of range. The message names the setting and its limits.
        HashingError: The algorithm does not accept this key or seed.
        JournalError: A journal and a policy of your own are given together.
        JournalExistsError: The journal's file exists.
        JournalFileError: The journal's file cannot be created.

    >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4)
    >>> manager.admit("a", range(10))
    Admission(cached_tokens=0, cached_blocks=0, num_blocks=3)
    >>> manager.commit("a", 10)
    2
    >>> manager.append(["a"], [77]), manager.append(["a"], [78]), manager.append(["a"], [79])
    ([], [], [(0, 3, 4)])
    >>> manager.block_ids("a")
    [1, 2, 3, 4]
    >>> manager.admit("b", range(10)).cached_tokens
    8
    >>> manager.release("a")
    >>> manager
    CacheManager(running=1, preempted=0, available=60 of 63 blocks)
    """

    def __new__(
        cls,
        num_blocks: int,
        block_size: int = 16,
        *,
        algorithm: HashAlgorithm = "sha256",
        verify: VerifyMode = "none",
        key: bytes | None = None,
        seed: str | None = None,
        duplicates: Duplicates = "keep",
        eviction: EvictionPolicy | _Policy = "lru",
        retention: RetentionConfig | bool | None = None,
        advisor: AdvisorConfig | bool | None = None,
        explain: ExplainConfig | bool | None = None,
        event_capacity: int = 0,
        watermark: float = 0.0,
        host_blocks: int = 0,
        block_bytes: int = 0,
        groups: Sequence[GroupSpec] | None = None,
        journal: Journal | None = None,
        digest: bool = False,
        scrub_blocks: int = 0,
        metrics: bool = False,
        keep_tokens: bool = True,
    ) -> Self: ...

    # Prompts and admissions.

    def prepare(self, tokens: Tokens | HashCursor | RequestId, extra: ExtraKeys | None = None) -> HashCursor:
        """Hashes a prompt in the current epoch, so that ``probe``, ``fit`` and ``admit`` need not hash it.

        The cached beginning of the prompt is not hashed again: see ``keep_tokens``. To compare cached
        tokens, the call holds the manager's lock for at most 2,048 blocks at a time. It hashes without the
        lock, so other threads can use the manager. O(tokens).

        Args:
            tokens: The tokens of a prompt. For a cursor, the call returns a copy of it. For the id of a
                request, it returns a copy of that request's tokens and their hashes.
            extra: Extra keys of the prompt. Only for tokens.

        Raises:
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
            HashingError: The algorithm cannot represent these extra keys.
            UnknownRequestError: No request has this id.
            InvalidArgumentError: ``extra`` is given with a cursor or a request.

        >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4)
        >>> _ = manager.admit("a", manager.prepare(range(10)))
        >>> manager.prepare("a").num_tokens
        10
        """
    def probe(self, prompt: Tokens | HashCursor, extra: ExtraKeys | None = None) -> Probe:
        """Returns how much of this prompt an admission would find cached now, and changes nothing.

        The result contains counts but no block ids, because another request may evict the blocks. O(blocks
        matched), plus hashing if the prompt is not prepared.

        Raises:
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
            HashingError: The algorithm cannot represent these extra keys.
            InvalidArgumentError: The prompt was hashed with other settings, or ``extra`` is given with a
                prepared prompt.
            StaleEpochError: The prompt was prepared before the last epoch bump.
        """
    @overload
    def fit(
        self,
        prompt: Tokens | HashCursor,
        extra: ExtraKeys | None = None,
        *,
        allocate_tokens: int | None = None,
        external_tokens: int = 0,
        reuse: bool = True,
        by_group: Literal[False] = False,
    ) -> AdmissionFit:
        """Returns what an admission of this prompt would find cached, and how much of it would fit now.

        Changes nothing. The arguments and errors are those of ``admit``. Use ``allocate_tokens`` for a prompt
        that is computed in chunks: with a sliding window, a chunk needs fewer blocks than the whole prompt.
        O(blocks matched), plus hashing if the prompt is not prepared.

        Args:
            prompt: As for ``admit``.
            extra: As for ``admit``.
            allocate_tokens: As for ``admit``.
            external_tokens: As for ``admit``.
            reuse: As for ``admit``.
            by_group: Returns instead a list of ``GroupFit``, with the cached tokens that the admission would
                find in each KV-cache group. An admission hits at most the smallest of these numbers.
                O(blocks) per group.

        >>> groups = [kvpool.GroupSpec("full", 4), kvpool.GroupSpec("sliding", 4, window=4)]
        >>> manager = kvpool.CacheManager(num_blocks=10, block_size=4, groups=groups)
        >>> manager.fit(range(24))
        AdmissionFit(fit="in_chunks", cached_tokens=0, new_blocks=12, fitting_tokens=16, can_ever_fit=False)
        >>> manager.fit(range(24), allocate_tokens=4)
        AdmissionFit(fit="ok", cached_tokens=0, new_blocks=2, fitting_tokens=16, can_ever_fit=True)
        >>> len(manager.fit(range(24), by_group=True))
        2
        """
    @overload
    def fit(
        self,
        prompt: Tokens | HashCursor,
        extra: ExtraKeys | None = None,
        *,
        allocate_tokens: int | None = None,
        external_tokens: int = 0,
        reuse: bool = True,
        by_group: Literal[True],
    ) -> list[GroupFit]: ...
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
        out: _Array | None = None,
    ) -> Admission:
        """Admits a request: acquires the cached prefix of its prompt, and allocates the other blocks.

        A call that fails changes nothing. The blocks cover the whole prompt, or its first chunk. At least the
        last prompt token is never a hit, because the engine has to compute it to sample. If a hit needs more
        blocks than are available, the request gets a shorter hit, or none. So an admission succeeds whenever
        it would succeed with an empty cache. The call copies a prepared prompt, so you can use the prompt
        again. O(blocks), plus hashing if the prompt is not prepared.

        Args:
            request_id: A new id.
            prompt: At least one token, or a prompt that ``prepare`` returned.
            extra: Extra keys of the prompt. Not allowed with a prepared prompt, because it already contains
                its extra keys.
            tenant: The tenant of the request. Blocks that the request registers count towards the tenant's
                limits.
            no_cache: For requests whose content will not be used again. Blocks that the request registers are
                evicted before other blocks. Blocks that it hits keep their position in the eviction order.
            retention: Hints for ranges of the prompt's tokens, cached tokens included. See
                ``retention.retain``.
            allocate_tokens: The number of tokens after the cached and external ones that get blocks now. This
                is the first chunk of a chunked prefill, and ``extend`` adds the next. With 0, call
                ``next_checkpoint`` for the end of the first chunk. None allocates blocks for all tokens.
            external_tokens: The number of first prompt tokens whose KV a connector loads, fewer than all. The
                request is loading until ``external_done``. Until then only ``release`` is allowed, and
                lookups do not find the loaded blocks. External tokens that are not cached here get blocks if
                a later token reads them. For the other external tokens, the tables contain block 0, which the
                connector skips. In a group of kind ``"state"``, the connector loads the state after the last
                external token into entry 0 of the table.
            reuse: Whether the request may hit cached content. False computes every token, for instance for
                log probabilities of the prompt. Other requests can still hit the computed blocks.
            out: An int32 buffer that receives the block table of the first group. With a buffer,
                ``Admission.block_ids`` is empty. If the buffer is too short for the whole table, the call
                fails before it changes anything.

        Raises:
            OutOfBlocksError: Too few blocks are available. The attributes of the error contain the number of
                missing blocks, whether the request can ever fit, and how many of its tokens would fit now.
            DuplicateRequestError: Another request has this id.
            InvalidArgumentError: The prompt is empty or was hashed with other settings. Or ``extra`` is given
                with a prepared prompt, ``out`` is too short, or a range ends before it begins. Or a hint has
                a time to live, and ``clock.advance`` has not been called.
            NoRetentionError: Hints are given, and the manager has no retention.
            StaleEpochError: The prompt was prepared before the last epoch bump.
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
            ArgumentTypeError: The request id or ``out`` has a type or dtype that is not supported.
            HashingError: The algorithm cannot represent these extra keys.

        >>> import array
        >>> manager = kvpool.CacheManager(num_blocks=8, block_size=4)
        >>> table = array.array("i", [0] * 4)
        >>> manager.admit(7, array.array("I", [1, 2, 3, 4, 5]), out=table).num_blocks
        2
        >>> table
        array('i', [1, 2, 0, 0])
        """
    def next_checkpoint(self, request_id: RequestId) -> int | None:
        """Returns the token at which the next chunk should end, so that a recurrent state can be kept.

        Returns None if no such token is known. When a commit ends at this token, the manager plans a copy of
        the state, so that later requests can hit it. It does so only if the tables of the request cover no
        later token, because the block would otherwise already contain a later state. Set the chunks with
        ``allocate_tokens`` and ``extend``. ``take_plan`` returns the copy, so call it before the next step or
        the next allocation.

        Raises:
            UnknownRequestError: No request has this id.
        """

    # Methods for requests that a scheduler calls in its steps.

    @overload
    def append(
        self, request_ids: Iterable[RequestId], token_ids: Tokens, *, commit: bool = False
    ) -> list[tuple[int, ...]]:
        """Appends one token to each request of a batch, or several tokens to one request.

        Allocates a block whenever a token needs a new block. A call that fails changes nothing. After a fork,
        the first request that writes to a shared block gets a copy of the block, and ``take_plan`` returns
        the copy. The call hashes only when a token completes a block. For a preempted request, the call
        stores the tokens and allocates no blocks, because ``resume`` allocates blocks for all its tokens.
        O(requests), or O(tokens) for one request.

        Args:
            request_ids: Running or preempted requests. A request may appear only once. Or the id of one
                request, for accepted drafts or streamed input.
            token_ids: One token per request of a batch. For one request, any number of tokens.
            commit: Only for a batch. First commits all tokens that the running requests of the batch already
                have. These tokens must have blocks, and the step that sampled the new tokens has computed
                them.
            lookahead: Only for one request. The number of token slots after the last token for which blocks
                are also allocated, for drafts.
            multimodal: Only for one request. The multimodal items among the tokens, in the form of
                ``HashCursor.append``.

        Returns:
            The changes of block tables, in the order of the requests. For a batch, each change is a triple of
                the position in ``request_ids``, the position in the block table, and the block that is now at
                this position. For one request, a change is a pair of position and block. With groups, the
                group is one more item at the end.

        Raises:
            OutOfBlocksError: Too few blocks are available for the batch as a whole.
            UnknownRequestError: No request has this id.
            RequestStateError: A request is neither running nor preempted.
            DuplicateRequestError: A request is named twice.
            InvalidArgumentError: The lists differ in length. Or with ``commit``, a token of a request has no
                block. Or an argument is given that is only for a batch, or only for one request.
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
        """
    @overload
    def append(
        self,
        request_ids: RequestId,
        token_ids: Tokens,
        *,
        lookahead: int = 0,
        multimodal: Iterable[tuple[bytes | str, int, int]] | None = None,
    ) -> list[tuple[int, ...]]: ...
    @overload
    def append_ragged(
        self,
        request_ids: Iterable[RequestId],
        token_ids: Tokens,
        offsets: _Ints | None = None,
        *,
        commit: bool = False,
        computed: _Ints | None = None,
        lookahead: int = 0,
        covered: _Ints | None = None,
        out: None = None,
    ) -> tuple[list[int], ...]:
        """Commits, appends and allocates for a whole step of a batch, with any number of tokens per request.

        The call commits the tokens that the previous step computed, appends the tokens that it sampled, and
        allocates blocks for the next step. A batch may contain plain decodes, decodes with drafts, and chunks
        of prompts. For a preempted request, the call stores the tokens and allocates no blocks. A call that
        fails changes nothing. O(requests + tokens).

        Args:
            request_ids: Running or preempted requests. A request may appear only once. A single str is not
                allowed.
            token_ids: The tokens of all requests, one request after the other.
            offsets: Request ``i`` gets ``token_ids[offsets[i]:offsets[i + 1]]``, so the number of offsets is
                the number of requests plus 1. None means one token per request.
            commit: For each request that gets tokens, commits all tokens except the last one. The step that
                sampled the last token must have written the KV of all tokens before it, accepted drafts
                included, so these tokens already have blocks. Do not use ``commit`` if the tokens were not
                sampled, as in a chunk of a prompt.
            computed: For each request, the number of its first tokens that are computed, the tokens of this
                call included. These tokens must already have blocks, for instance from an earlier
                ``lookahead``. Not allowed with ``commit``.
            lookahead: The number of token slots after the last token of each request for which blocks are
                also allocated, for drafts. The table of a group of kind ``"state"`` gets one entry for each
                slot.
            covered: For each request, the number of its first tokens that get blocks. Without it, all tokens
                get blocks. Use it for chunks of a prompt, or for drafts of different lengths. The call never
                takes blocks away from a request. Not allowed with ``lookahead``.
            out: A writable int32 buffer of shape (3, n), or (4, n) with groups. It receives the columns of
                the result, one per row. A call with more than n changes fails before it changes anything.

        Returns:
            The changes of block tables, in the order of the requests, as one list per column. The columns are
                positions in ``request_ids``, positions in the block tables, and the blocks that are now at
                these positions. With groups, the fourth column is the group. With ``out``, the call returns
                the number of changes.

        Raises:
            OutOfBlocksError: Too few blocks are available for the batch as a whole.
            UnknownRequestError: No request has this id.
            RequestStateError: A request is neither running nor preempted.
            DuplicateRequestError: A request is named twice.
            InvalidArgumentError: The lengths of the lists do not match. Or a computed count is less than the
                tokens computed before, or includes tokens that are missing or have no block. Or ``out`` is
                too small for the changes.
            TokenError: A token is out of range.
            TokenTypeError: The tokens have a type or dtype that is not supported.
            ArgumentTypeError: Ids, offsets, counts or ``out`` have a type or dtype that is not supported.

        >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4)
        >>> _ = manager.admit("a", range(4)), manager.admit("b", range(10, 17))
        >>> # The step that computes the prompts computes three drafts of each, too: they need slots.
        >>> manager.append_ragged(["a", "b"], [], [0, 0, 0], lookahead=3)
        ([0, 1], [1, 2], [4, 5])
        >>> # Of three drafts two were accepted for "a", none for "b"; three more are to be tried.
        >>> manager.append_ragged(["a", "b"], [70, 71, 72, 80], [0, 3, 4], commit=True, lookahead=3)
        ([0], [2], [6])
        >>> manager.request("a").computed_tokens
        6
        """
    @overload
    def append_ragged(
        self,
        request_ids: Iterable[RequestId],
        token_ids: Tokens,
        offsets: _Ints | None = None,
        *,
        commit: bool = False,
        computed: _Ints | None = None,
        lookahead: int = 0,
        covered: _Ints | None = None,
        out: _Array,
    ) -> int: ...
    def extend(
        self, request_id: RequestId, num_tokens: int, *, encoder: bool = False
    ) -> list[tuple[int, ...]]:
        """Allocates blocks until the block table of a running request covers its first tokens.

        Use it for the next chunk of a chunked prefill, or to get blocks for drafts after the last token. The
        call never shortens the table. A call that fails changes nothing. O(new blocks).

        Args:
            request_id: A running request.
            num_tokens: The number of tokens, counted from the first token, that the table has to cover.
            encoder: Extends the tables of groups of kind ``"cross"`` instead, which contain the output
                of an encoder. The engine writes these blocks once, and they are never cached. The
                request holds them until it is preempted or released.

        Returns:
            The changes of the block table, as pairs of position and block. With groups, the group is the
                third item.

        Raises:
            OutOfBlocksError: Too few blocks are available.
            UnknownRequestError: No request has this id.
            RequestStateError: The request is not running.

        >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4)
        >>> manager.admit("long", range(100), allocate_tokens=8).num_blocks
        2
        >>> _ = manager.commit("long", 8)
        >>> manager.extend("long", 16)
        [(2, 3), (3, 4)]
        """
    def external_done(
        self,
        request_id: RequestId,
        loaded_tokens: int | None = None,
        *,
        failed: Iterable[tuple[int, int]] | None = None,
    ) -> int:
        """Marks the external tokens of a request as loaded, and registers the blocks that they fill.

        Returns the number of newly registered blocks.

        The request is then running. If tokens were not loaded, the engine computes all tokens from the first
        of them. If the next token would read a window or a state that was not loaded, the manager preempts
        the request. ``request`` then returns the state ``preempted``, and ``resume`` admits the request
        again. If the request was released meanwhile, this call completes the release. O(blocks).

        Args:
            request_id: A request that was admitted or resumed with ``external_tokens``.
            loaded_tokens: The number of the request's first tokens whose KV was loaded. None means that all
                external tokens were loaded.
            failed: Ranges of tokens that were not loaded, as pairs of start and end. Not allowed together
                with ``loaded_tokens``.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is not loading.
            InvalidArgumentError: The number of tokens is larger than the number that the request loads, or
                smaller than the number of its cached tokens.

        >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4)
        >>> manager.admit("a", range(19), external_tokens=16).external_tokens
        16
        >>> manager.external_done("a", failed=[(8, 12)])
        2
        >>> manager.request("a").computed_tokens
        8
        """
    @overload
    def commit(self, request_id: RequestId, computed_tokens: int) -> int:
        """Marks the first tokens of a request as computed, and returns the number of newly registered blocks.

        Accepts one request, or a batch. A batch that fails changes nothing. Afterwards lookups find the full
        blocks of these tokens. A block that several forks share is counted once, at its first commit. Blocks
        after a hash collision are never registered. Blocks of requests that were admitted before an epoch
        bump are not registered either. The call allocates no blocks. O(requests + newly full blocks).

        Args:
            request_id: A running request. Or a batch of running requests, in which a request may appear only
                once.
            computed_tokens: The number of tokens, from the start of the sequence, whose KV is written, cached
                tokens included. For a batch, a list of these numbers, or a buffer with one of the dtypes that
                tokens may have.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: A request is not running.
            DuplicateRequestError: A request is named twice.
            InvalidArgumentError: The count is larger than the tokens of the request, or smaller than the
                tokens computed before. Or the lists differ in length.
            ArgumentTypeError: Counts or ids have a type or dtype that is not supported.

        >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4)
        >>> _ = manager.admit("a", range(8)), manager.admit("b", range(20, 28))
        >>> manager.commit("a", 4), manager.commit(["a", "b"], [8, 8])
        (1, 3)
        """
    @overload
    def commit(self, request_id: Iterable[RequestId], computed_tokens: _Ints) -> int: ...
    @overload
    def truncate(
        self,
        request_id: RequestId,
        num_tokens: int,
        *,
        after_step: int | None = None,
        until: int | None = None,
    ) -> None:
        """Shortens a running request to its first tokens, for instance after drafts were rejected.

        Accepts one request, or a batch. A batch that fails changes nothing. Releases the blocks after these
        tokens, including blocks for drafts. If the last remaining block is registered, the next append copies
        it before it writes. If no block is available for the copy, the append drops the block's cached
        content and writes to the block itself. O(requests + blocks released).

        Args:
            request_id: A running request. Or a batch of running requests, in which a request may appear only
                once.
            num_tokens: The number of tokens to keep, at least one. For a batch, one number per request.
            after_step: As for ``release``.
            until: As for ``release``.

        Raises:
            InvalidArgumentError: The number is larger than the tokens of the request, or reaches into
                the blocks that ``trim_window`` released. Or the ticket is not open, or the lists differ
                in length.
            UnknownRequestError: No request has this id.
            RequestStateError: The request is not running.
            DuplicateRequestError: A request is named twice.
            ArgumentTypeError: Ids or counts have a type or dtype that is not supported.
        """
    @overload
    def truncate(
        self,
        request_id: Iterable[RequestId],
        num_tokens: _Ints,
        *,
        after_step: int | None = None,
        until: int | None = None,
    ) -> None: ...
    def trim_window(self, request_id: RequestId, window: int) -> int:
        """Releases the blocks of a running request that are outside a window, and returns how many.

        These are the blocks whose tokens are all more than ``window`` tokens before the end of the computed
        tokens. Block 0 replaces them in the table. O(blocks released).

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is not running.
            InvalidArgumentError: The manager has groups. It then releases the blocks outside each group's
                window by itself.
        """
    @overload
    def fork(self, parent_id: RequestId, child_id: RequestId) -> None:
        """Creates a second request that shares the blocks of a running one, for parallel sampling.

        Accepts one request, or a batch. A batch that fails changes nothing. The child shares all blocks of
        the parent except recurrent states, which are copied. For a step of beam search, fork the surviving
        beams and release the others. O(blocks + tokens).

        Args:
            parent_id: A running request. Or a batch of running requests, in which each request appears once
                per child.
            child_id: The new id of the child. For a batch, one new id per parent, each named once.

        Raises:
            UnknownRequestError: No request has the parent's id.
            DuplicateRequestError: A request has the child's id, or a child is named twice.
            RequestStateError: The parent is not running.
            OutOfBlocksError: Too few blocks are available for the copies of states.
            InvalidArgumentError: The lists differ in length.
        """
    @overload
    def fork(self, parent_id: Iterable[RequestId], child_id: Iterable[RequestId]) -> None: ...
    @overload
    def release(
        self,
        request_id: RequestId,
        *,
        after_step: int | None = None,
        until: int | None = None,
        finish_reason: str | None = None,
        output_tokens: int | None = None,
    ) -> None:
        """Ends a request, finished or aborted, and releases one reference to each of its blocks.

        Accepts one request, or a batch, which is released in its order. A batch that fails changes nothing.
        Committed blocks remain cached until they are evicted. If the engine has computed tokens that the
        manager does not have, call ``append`` and ``commit`` first, so that these tokens are cached.
        docs/porting.md shows how. If a swap is moving the request, or a connector is loading its blocks, the
        request enters the state ``releasing``. It then keeps its blocks and its id until ``swaps.complete``,
        ``swaps.abort`` or ``external_done``. O(blocks).

        Args:
            request_id: A request in any state. Or a batch of requests, in which a request may appear only
                once.
            after_step: The number of a step that may still use the blocks. The blocks are fenced until
                ``complete_step`` of that step.
            until: The ticket of a ``fence``. The blocks are fenced until ``end_fence`` of this ticket. Not
                allowed with ``after_step``.
            finish_reason: How the request ended, in the words of OpenAI's and Anthropic's APIs. This is a
                hint to the policy ``hazard``. For a batch, a sequence with one entry per request.
            output_tokens: The number of tokens that the model generated, also a hint. For a batch, a sequence
                with one entry per request.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is releasing already.
            DuplicateRequestError: A request is named twice.
            InvalidArgumentError: The ticket is not open, a count is out of range, or a sequence does not have
                one entry per request.
        """
    @overload
    def release(
        self,
        request_id: Iterable[RequestId],
        *,
        after_step: int | None = None,
        until: int | None = None,
        finish_reason: Sequence[str | None] | None = None,
        output_tokens: Sequence[int | None] | None = None,
    ) -> None: ...
    def preempt(
        self, request_id: RequestId, *, after_step: int | None = None, until: int | None = None
    ) -> None:
        """Takes the blocks of a running request away and keeps its tokens, so that it can be resumed.

        Committed blocks remain cached until they are evicted, so ``resume`` may hit them. You can still
        append the token that the current step samples. O(blocks).

        Args:
            request_id: A running request. Or a swapped-out request: the call then releases its blocks in the
                host tier.
            after_step: As for ``release``.
            until: As for ``release``.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is preempted already, or is moving or loading.
            InvalidArgumentError: The ticket is not open.
        """
    def resume(
        self,
        request_id: RequestId,
        *,
        allocate_tokens: int | None = None,
        external_tokens: int = 0,
        reuse: bool = True,
    ) -> Admission:
        """Admits a preempted request again, with all its tokens.

        O(blocks). After an epoch bump O(tokens), because the tokens are hashed again.

        Args:
            request_id: A preempted request.
            allocate_tokens: As for ``admit``.
            external_tokens: As for ``admit``.
            reuse: As for ``admit``.

        Raises:
            OutOfBlocksError: Too few blocks are available.
            UnknownRequestError: No request has this id.
            RequestStateError: The request is not preempted.
            InvalidArgumentError: The number of external tokens is not less than the number of tokens of the
                request.
        """

    # Methods for planned steps, fences and planned copies.

    def fence(self) -> int:
        """Opens a fence and returns its ticket.

        Blocks that ``release``, ``preempt`` or ``truncate`` releases with ``until=ticket`` cannot be
        allocated before ``end_fence(ticket)``. Fences can end in any order. O(1).
        """
    def end_fence(self, ticket: int) -> int:
        """Ends a fence and returns how many references it held.

        O(references of the fence).

        Raises:
            InvalidArgumentError: The ticket is not open.
        """
    def complete_step(self, step: int) -> int:
        """Ends the fences of a step and of all earlier steps, and returns the number of their references.

        You may complete a step twice, and you may complete a step without fences. O(references of these
        fences).

        Args:
            step: The engine's number of the step, 0 to ``2**64 - 1``.

        Raises:
            PoolPoisonedError: The pool refuses all work.
        """
    def plan_step(self) -> Step:
        """Begins to plan a step, which is a list of operations that are committed together or not at all.

        O(1).

        >>> manager = kvpool.CacheManager(num_blocks=5, block_size=4)
        >>> _ = manager.admit("old", range(12))
        >>> with manager.plan_step() as step:
        ...     freed = step.preempt("old")
        ...     cached = step.admit("new", range(100, 108))
        ...     outcomes = step.commit()
        >>> freed, cached, outcomes
        (3, 0, [None, Admission(cached_tokens=0, cached_blocks=0, num_blocks=2)])
        """
    def take_plan(self) -> TransferPlan:
        """Returns all planned copies as one plan, and removes them from the manager.

        The plan contains the copies of copy-on-write and of swaps. Execute it before the step writes KV.
        See ``TieredPool.take_plan``.
        """

    # Requests.

    @overload
    def block_ids(self, request_id: RequestId, *, out: None = None, group: int = 0) -> list[int]:
        """Returns the block table of a request, or writes it to a buffer and returns its length.

        The table of a preempted request is empty. O(blocks).

        Args:
            request_id: The request.
            out: An int32 buffer that receives the ids. Optional.
            group: The KV-cache group, from 0 on. An entry that is block 0, the null block, marks a block that
                was released because no later token reads it. The table of a group of kind ``"state"`` has one
                block, which contains the state after the computed tokens. With ``lookahead``, it has one more
                block for each draft.

        Raises:
            UnknownRequestError: No request has this id.
            InvalidArgumentError: ``out`` is too short, or the group does not exist.
            ArgumentTypeError: ``out`` is not a writable, contiguous, 1-D int32 buffer. Or the id is neither a
                str nor an int.
        """
    @overload
    def block_ids(self, request_id: RequestId, *, out: _Array, group: int = 0) -> int: ...
    def request(self, request_id: RequestId) -> RequestInfo:
        """Returns the state and the token counts of a request.

        O(1).

        Raises:
            UnknownRequestError: No request has this id.
        """
    def explain(self, request_id: RequestId) -> Explanation:
        """Returns why a request had to compute tokens when it was last admitted or resumed.

        Works for requests that are not released yet, and for the most recently released requests.
        docs/explain.md describes the reasons, and to whom you may show them. O(spans), and
        O(``ExplainConfig.requests``) for a released request.

        Raises:
            UnknownRequestError: No request has this id, or it was released too long ago.
            InvalidArgumentError: The manager was made without ``explain``.

        >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4, explain=True)
        >>> _ = manager.admit("a", range(12)), manager.commit("a", 12)
        >>> _ = manager.admit("b", [0, 1, 2, 3, 4, 5, 99, 7, 8])
        >>> print(manager.explain("b"))
        request "b", admitted at 2: 4 of 9 tokens cached
          block 1 (tokens 4-7): differs from token 6 on from what was seen before
          block 2 (token 8): too few tokens to fill a block
        >>> manager.explain("b").spans[0].token, manager.stats().misses
        (6, {'behind': 8, 'diverged': 4, 'never-seen': 4, 'too-short': 1})
        """

    # Methods that drop cached content, and that change the size of the pool.

    def bump_epoch(self) -> int:
        """Starts a new epoch, for instance after a change of weights, and returns its number.

        Lookups no longer find content that was cached before. Running requests continue, but their blocks are
        never registered from then on. Preempted requests are hashed again when they resume.
        ``stats().pool.epoch`` is the current epoch. O(usable blocks).

        Raises:
            PoolPoisonedError: The pool refuses all work.
        """
    def reset(self) -> int:
        """Drops all cached content, in the host tier too, and returns how many blocks were registered.

        The call is refused, and changes nothing, while requests or fences hold blocks of a tier, because a
        swapped-out request could bring old content back. Preempted requests hold no blocks, so they do not
        prevent a reset. They resume without hits. O(usable blocks).

        Raises:
            BlocksInUseError: Requests or fences hold blocks. Use ``bump_epoch`` in this case.
        """
    @overload
    def evict(self, n: int, *, out: None = None) -> list[int]:
        """Evicts up to ``n`` cached-free blocks of the device, and returns their ids in eviction order.

        The blocks are then free. The call returns fewer than ``n`` ids if fewer blocks were cached-free. See
        ``BlockPool.evict``. O(1) per block.

        Raises:
            InvalidArgumentError: ``n`` is negative, or ``out`` is too short.
        """
    @overload
    def evict(self, n: int, *, out: _Array) -> int: ...
    def drop_cached(self, block_ids: BlockIds) -> int:
        """Drops the cached content of blocks by id, and returns how many of them were registered.

        Lookups no longer find the content. Cached-free blocks become free. Blocks in use keep their
        references and become free when they are released. O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, or is the null block.
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """
    def resize(self, num_blocks: int) -> None:
        """Grows the pool. Allocations use the new blocks after all other free blocks.

        O(blocks).

        Args:
            num_blocks: The new number of blocks, the null block included. Not less than the current number.

        Raises:
            InvalidArgumentError: The number is less than the current one, or more than a pool supports.
        """

    # Methods and attributes for events, statistics and settings, and the facets.

    def take_events(self) -> tuple[list[BlockEvent], int]:
        """Returns the events since the last call, and how many events were lost before them.

        A consumer that adds each stored pair of hash and group to a set, and removes each removed pair, knows
        which content lookups can find. The manager keeps the latest ``event_capacity`` events and drops older
        ones. If events were lost, the consumer has to start again from a snapshot. Hashes have the same
        length as those of ``HashChain.digests``. O(events).

        >>> manager = kvpool.CacheManager(num_blocks=8, block_size=2, event_capacity=100)
        >>> _ = manager.admit("a", [1, 2, 3])
        >>> _ = manager.commit("a", 3)
        >>> events, lost = manager.take_events()
        >>> [(event["type"], event["depth"], event["block_id"]) for event in events], lost
        ([('stored', 0, 1)], 0)
        """
    def stats(self) -> ManagerStats:
        """Returns the manager's counters and gauges.

        O(1).
        """
    @property
    def num_blocks(self) -> int:
        """The number of blocks of the pool, the null block included."""
    @property
    def block_size(self) -> int:
        """The number of tokens per block."""
    @property
    def groups(self) -> list[GroupSpec]:
        """The KV-cache groups of the manager. Empty if the manager was made without groups."""
    @property
    def num_available(self) -> int:
        """The number of blocks that an allocation can use now: free and cached-free blocks."""
    @property
    def swaps(self) -> ManagerSwaps:
        """Moves requests between the device and the host tier."""
    @property
    def retention(self) -> ManagerRetention:
        """Sets the tenants of requests, and hints for how long to keep cached content."""
    @property
    def journal(self) -> ManagerJournal:
        """The journal of this manager: its statistics, its content as bytes, and flushing."""
    @property
    def diagnose(self) -> ManagerDiagnose:
        """Invariant checks, digests of the state, orders of free and evictable blocks, advice and metrics."""
    @property
    def clock(self) -> ManagerClock:
        """Sets the time on the caller's clock, for times to live and metrics."""
    def __contains__(self, request_id: RequestId, /) -> bool: ...
    def __len__(self) -> int: ...
