"""Requests by id over one block pool: what a scheduler calls."""

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Self, final, overload

from kvpool._core import (
    BlockIds,
    Duplicates,
    EvictionPolicy,
    Fit,
    HashAlgorithm,
    RequestId,
    Tokens,
    VerifyMode,
    _Array,
    _Ints,
)
from kvpool._core.advisor import Advice, AdvisorConfig
from kvpool._core.explain import ExplainConfig, Explanation
from kvpool._core.groups import GroupFit, GroupSpec
from kvpool._core.hashing import ExtraKeys, HashCursor
from kvpool._core.journal import Journal, JournalStats
from kvpool._core.pool import BlockEvent, PoolStats
from kvpool._core.requests import (
    Admission,
    AdmissionFit,
    ManagerStats,
    PoolMetrics,
    Probe,
    RequestInfo,
    ScrubReport,
    Step,
)
from kvpool._core.retention import HintReport, RetentionConfig, RetentionStats, _Ranges
from kvpool._core.tiers import TransferPlan
from kvpool.policies import Policy as _Policy

__all__ = [
    "CacheManager",
]

@final
class CacheManager:
    """Requests by id over one block pool: what a scheduler calls.

    The life of a request: ``admit``, then ``commit`` and ``append`` step by step, then ``release``; or
    ``preempt`` and later ``resume``. Blocks that are committed can be hit by other requests, and no earlier.

    Args:
        num_blocks: Blocks of the pool, null block included; ids run from 1 to ``num_blocks - 1``. At least 2.
        block_size: Tokens per block. At least 1.
        algorithm: One of ``hash_algorithms()``.
        verify: One of ``verify_modes()``. An algorithm that is not cryptographic needs more than ``"none"``.
        key: 32 secret bytes, for ``"blake3"`` only: keys the hash and the fingerprints.
        seed: ``PYTHONHASHSEED`` of vLLM's encodings; also seeds ``"xxh3"`` and the fingerprints.
        duplicates: ``"keep"``, or ``"drop-on-release"`` to free a released block whose content another
            cached block holds.
        eviction: The order in which cached-free blocks are evicted: one of ``eviction_policies()``, or
            a ``Policy`` of your own.
        retention: Priorities, times to live, pins and tenants' limits: a ``RetentionConfig``, or True
            for one without pins and limits. Without it, hints raise ``NoRetentionError``.
        advisor: Estimates other sizes and policies from the lookups: an ``AdvisorConfig``, or True for
            the defaults. ``advice`` returns the estimates.
        explain: Records what comes and goes, so that ``explain`` can say why a prompt missed: an
            ``ExplainConfig``, or True for the defaults.
        event_capacity: Events kept until ``take_events``; 0 records none.
        watermark: Share of the pool, 0.0 to below 1.0, that an admission leaves available while other
            requests run.
        host_blocks: Blocks of the host tier, null block included, where requests are swapped out to; 0
            for none.
        block_bytes: Bytes of KV per block over all layers, for ``ManagerStats.bytes``; 0 if unknown.
        groups: The KV-cache groups of a hybrid model: a sequence of ``GroupSpec`` whose block sizes are
            multiples of ``block_size``, in which prompts are hashed. Needs ``verify="none"``. None is
            one group of full attention. What tells of changes of block tables names the group, too,
            behind the block.
        journal: Records every operation: a ``Journal``. Refused with a ``Policy`` of your own, which no
            replay could run.
        digest: Keeps a digest of the state, for ``state_digest``, and lets ``scrub`` find reference
            counts that were changed behind the manager's back. 24 bytes per block.
        scrub_blocks: Blocks of each tier that every ``complete_step`` scrubs; 0 for none.
        metrics: Counts ages of blocks at hits and evictions, causes, and hits of tenants, for ``metrics`` and
            ``kvpool.metrics``. 24 bytes per block of each tier.

    Raises:
        InvalidArgumentError: A setting is out of range; the message says which, and what is allowed.
        HashingError: The algorithm cannot work with this key or seed.
        JournalError: A journal of a policy of your own.
        JournalExistsError: The journal's file exists.
        JournalFileError: The journal's file cannot be made.

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
    ) -> Self: ...
    def prepare(self, tokens: Tokens, extra: ExtraKeys | None = None) -> HashCursor:
        """Hashes a prompt in the current epoch, to be probed and admitted without hashing it again.

        O(tokens), without the manager's lock: other threads go on. Given a cursor, returns a copy of it.

        Raises:
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
            HashingError: The algorithm cannot represent these extra keys.
        """
    def probe(self, prompt: Tokens | HashCursor, extra: ExtraKeys | None = None) -> Probe:
        """Says what an admission of this prompt would find cached now, and changes nothing.

        O(blocks matched), plus hashing if not prepared. Counts, not ids: another request may take the blocks.

        Raises:
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
            HashingError: The algorithm cannot represent these extra keys.
            InvalidArgumentError: The prompt was hashed with other settings, or ``extra`` is given with a
                prepared one.
            StaleEpochError: The prompt was prepared before the last epoch bump.
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
        out: _Array | None = None,
    ) -> Admission:
        """Admits a request: acquires the cached prefix of its prompt and allocates the rest, all or nothing.

        Allocates blocks for the whole prompt, or for a first chunk of it. Always leaves the last prompt
        token to compute. If a hit needs more blocks than are available, the request gets a shorter hit,
        or none: an admission succeeds whenever it would with nothing cached. A prepared prompt is
        copied and can be used again. O(blocks), plus hashing if the prompt is not prepared.

        Args:
            request_id: A new id.
            prompt: At least one token, or what ``prepare`` returned.
            extra: Extra keys of the prompt; not with a prepared one, which has its own.
            tenant: The blocks that the request registers count towards the limits of this tenant.
            no_cache: For scans: blocks that the request registers are evicted first. Blocks that it
                hits keep their place.
            retention: Ranges of its tokens, hits included: see ``retain``.
            allocate_tokens: Tokens that get blocks now, behind the cached and external ones: the first
                chunk of a chunked prefill, or 0 to ask ``next_checkpoint`` for its end. ``extend`` is
                for the next. None is all.
            external_tokens: The number of the prompt's first tokens whose KV a connector has, fewer
                than all. The request is loading until ``external_done``: nothing of them can be matched
                before, and nothing else be done with the request but ``release``. Those that are not
                cached here get blocks where a later token reads them; other entries of the tables are
                block 0, which the connector skips. Entry 0 of a group of states receives the state
                after the last external token.
            reuse: Whether the request may hit cached content. False computes every token, for instance
                for log probabilities of the prompt. Other requests can hit what it computes.
            out: An int32 buffer that receives the block table, of the first group. Without room for all
                of it the call fails before anything changes. ``Admission.block_ids`` is then empty.

        Raises:
            OutOfBlocksError: Too few blocks are available; its attributes say how many are missing,
                whether the request can ever fit, and how many of its tokens would fit now.
            DuplicateRequestError: The id is known already.
            InvalidArgumentError: The prompt is empty or was hashed with other settings; ``extra`` is
                given with a prepared prompt; ``out`` is too short; a range ends before it begins; there
                is a time to live and was no ``advance_time``.
            NoRetentionError: There are hints, and the manager has no retention.
            StaleEpochError: The prompt was prepared before the last epoch bump.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
            ArgumentTypeError: Request id or ``out`` is of a type or dtype that is not taken.
            HashingError: The algorithm cannot represent these extra keys.

        >>> import array
        >>> manager = kvpool.CacheManager(num_blocks=8, block_size=4)
        >>> table = array.array("i", [0] * 4)
        >>> manager.admit(7, array.array("I", [1, 2, 3, 4, 5]), out=table).num_blocks
        2
        >>> table
        array('i', [1, 2, 0, 0])
        """
    def fit(
        self,
        prompt: Tokens | HashCursor,
        extra: ExtraKeys | None = None,
        *,
        allocate_tokens: int | None = None,
        external_tokens: int = 0,
        reuse: bool = True,
    ) -> AdmissionFit:
        """Says what an admission of this prompt would find, and how much of it would fit now, and
        changes nothing.

        O(blocks matched), plus hashing if the prompt is not prepared. Arguments and errors are those of
        ``admit``.

        A model with a window needs fewer blocks for a chunk than for the whole prompt:

        >>> groups = [kvpool.GroupSpec("full", 4), kvpool.GroupSpec("sliding", 4, window=4)]
        >>> manager = kvpool.CacheManager(num_blocks=10, block_size=4, groups=groups)
        >>> manager.fit(range(24))
        AdmissionFit(fit="in_chunks", cached_tokens=0, new_blocks=12, fitting_tokens=16, can_ever_fit=False)
        >>> manager.fit(range(24), allocate_tokens=4)
        AdmissionFit(fit="ok", cached_tokens=0, new_blocks=2, fitting_tokens=16, can_ever_fit=True)
        """
    def fit_groups(
        self,
        prompt: Tokens | HashCursor,
        extra: ExtraKeys | None = None,
        *,
        allocate_tokens: int | None = None,
        external_tokens: int = 0,
        reuse: bool = True,
    ) -> list[GroupFit]:
        """Says what an admission would find in each KV-cache group, and changes nothing.

        An admission hits the least reach at most. O(blocks) for each group, plus hashing if the prompt
        is not prepared. Arguments and errors are those of ``fit``.
        """
    def next_checkpoint(self, request_id: RequestId) -> int | None:
        """Says where the next chunk of a request should end so that a recurrent state can be kept, or None.

        A copy of the state is kept when a commit ends there, and the request's tables cover no more:
        for the block of the state would hold a later one. Give chunks by ``allocate_tokens`` and
        ``extend``. Take the plan before the next step or call for blocks: the copy is in it. None if no
        place is known. Raises UnknownRequestError.
        """
    def extend_encoder(self, request_id: RequestId, num_tokens: int) -> list[tuple[int, ...]]:
        """Makes the tables of an encoder's output cover its first tokens, and returns what changed in them.

        For groups of kind ``"cross"``. They are written once, nothing of them is cached, and the
        request holds them until it is preempted or released. Otherwise as ``extend``.
        """
    def append(
        self, request_ids: Iterable[RequestId], token_ids: Tokens, *, commit: bool = False
    ) -> list[tuple[int, ...]]:
        """Appends one token to each request of a batch, with blocks where needed, all or nothing.

        After a fork, the first request that writes to a shared block gets a copy of it; ``take_plan``
        hands the copy out. Hashes only when a token completes a block. A preempted request gets its
        token, too, and no block: ``resume`` has blocks for all its tokens. O(requests).

        Args:
            request_ids: Running or preempted requests, each named once. Not a str.
            token_ids: One token per request.
            commit: Commits every token that the running ones of these requests already have: the step
                that sampled the new tokens has computed them. They had blocks before this call.

        Returns:
            What changed in block tables, in the order of the call: triples of position in
            ``request_ids``, position in the block table, and the block that is there now, new or a
            copy. With groups, the group is the fourth.

        Raises:
            OutOfBlocksError: Too few blocks are available for the batch as a whole.
            UnknownRequestError: No request has this id.
            RequestStateError: A request neither runs nor is preempted.
            DuplicateRequestError: A request is named twice.
            InvalidArgumentError: The lists differ in length; with ``commit``, a token of a request has
                no block.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
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
        out: None = None,
    ) -> tuple[list[int], ...]:
        """A whole step of a batch: any number of tokens for each request, all or nothing.

        Commits what the step before has computed, appends what it sampled, and makes room for what the
        next one computes. Plain decode, decode with drafts and chunks of prompts go into one call. A
        preempted request gets its tokens, too, and nothing else. O(requests + tokens).

        Args:
            request_ids: Running or preempted requests, each named once. Not a str.
            token_ids: The tokens of all requests, one after the other.
            offsets: ``token_ids[offsets[i]:offsets[i + 1]]`` are those of request ``i``: one more than
                requests. None is one token each.
            commit: Of each request that gets tokens, all but the last are computed: the step that
                sampled that one has written the KV of all before, accepted drafts included, into blocks
                that they had before this call. Wrong for tokens that no step has sampled.
            computed: Of each request its first so many tokens are computed, those of this call
                included. They had blocks before this call: slots of an earlier ``lookahead``, for
                drafts. Not with ``commit``.
            lookahead: Slots after the last token of each request that get blocks, too: for drafts. The
                table of a group of states gets an entry for each of them.
            covered: Of each request its first so many tokens get blocks, instead of all: chunks of a
                prompt, or drafts of different lengths. Blocks that a request has it keeps. Not with
                ``lookahead``.
            out: A writable int32 buffer of shape (3, n), or (4, n) with groups: receives the answer row
                by row. A call with more than n changes fails before anything changes.

        Returns:
            What changed in block tables, in the order of the call: positions in ``request_ids``,
            positions in the block tables, and the blocks there now, new or copies; with groups, the
            groups. With ``out``, their number.

        Raises:
            OutOfBlocksError: Too few blocks are available for the batch as a whole.
            UnknownRequestError: No request has this id.
            RequestStateError: A request neither runs nor is preempted.
            DuplicateRequestError: A request is named twice.
            InvalidArgumentError: The lists do not fit each other; a computed count is below what was
                computed, or above what has tokens, or had blocks before the call; ``out`` has no room
                for the changes.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
            ArgumentTypeError: Ids, offsets, counts or ``out`` are of a type or dtype that is not taken.

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
    def extend(self, request_id: RequestId, num_tokens: int) -> list[tuple[int, ...]]:
        """Makes the block table of a running request cover its first tokens, and returns what changed in it.

        The next chunk of a chunked prefill; or slots behind the last token, for drafts. Covers no less
        than before, all or nothing. O(new blocks).

        Args:
            request_id: A running request.
            num_tokens: Tokens that are to have blocks, from the first on.

        Returns:
            Pairs of position and block. With groups, the group is the third.

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
        """Says which external tokens of a request have arrived, and returns how many blocks that registered.

        The request runs from now on; the engine computes all tokens from the first that failed. If a
        window or a state that the next token reads has not arrived, the request is preempted instead
        (see ``request``), and ``resume`` admits it again. For a request that was released meanwhile it
        ends the release. O(blocks).

        Args:
            request_id: A request that was admitted or resumed with ``external_tokens``.
            loaded_tokens: The number of its first tokens whose KV has arrived. None is all.
            failed: Not with ``loaded_tokens``: ranges of tokens that did not arrive, as pairs of start
                and end.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request loads nothing.
            InvalidArgumentError: More tokens than were to be loaded, or fewer than were cached.

        >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4)
        >>> manager.admit("a", range(19), external_tokens=16).external_tokens
        16
        >>> manager.external_done("a", failed=[(8, 12)])
        2
        >>> manager.request("a").computed_tokens
        8
        """
    def fence(self) -> int:
        """Opens a fence and returns its ticket.

        What is released, preempted or truncated ``until`` it stays out of reach until ``end_fence``.
        Tickets end in any order. O(1).
        """
    def end_fence(self, ticket: int) -> int:
        """Ends a fence and returns how many references it held.

        O(those references).

        Raises:
            InvalidArgumentError: The ticket is not open.
        """
    def append_tokens(
        self,
        request_id: RequestId,
        token_ids: Tokens,
        *,
        lookahead: int = 0,
        multimodal: Iterable[tuple[bytes | str, int, int]] | None = None,
    ) -> list[tuple[int, ...]]:
        """Appends several tokens to one request, all or nothing, and returns what changed in its block table.

        For accepted drafts, or streamed input. Returns pairs of position and block, new or a copy. A
        preempted request gets its tokens, and no blocks. O(tokens).

        Args:
            request_id: A running or preempted request.
            token_ids: The tokens.
            lookahead: Slots behind the tokens that get blocks, too.
            multimodal: Items that this turn brings, as for ``HashCursor.append``.

        Raises:
            OutOfBlocksError: Too few blocks are available.
            UnknownRequestError: No request has this id.
            RequestStateError: The request neither runs nor is preempted.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
        """
    def fork(self, parent_id: RequestId, child_id: RequestId) -> None:
        """Makes a second request over the blocks of a running one: parallel sampling, beam search.

        It shares all but states, of which it gets copies, or OutOfBlocksError without blocks. O(blocks
        + tokens).

        Raises:
            UnknownRequestError: No request has the parent's id.
            DuplicateRequestError: A request has the child's id.
            RequestStateError: The parent is not running.
        """
    def fork_batch(self, parent_ids: Iterable[RequestId], child_ids: Iterable[RequestId]) -> None:
        """Makes a second request of each of a batch, all or nothing.

        As ``fork``; a step of beam search is this and ``release_batch`` of the beams that end. O(blocks
        + tokens).

        Args:
            parent_ids: Running requests, each as often as it has children here. Not a str.
            child_ids: The ids of the children, one per parent, each named once.

        Raises:
            DuplicateRequestError: A request has a child's id, or a child is named twice; and as ``fork``.
            InvalidArgumentError: The lists differ in length.
        """
    def truncate(
        self,
        request_id: RequestId,
        num_tokens: int,
        *,
        after_step: int | None = None,
        until: int | None = None,
    ) -> None:
        """Keeps the first tokens of a running request.

        At least one; for instance after drafts were rejected. Releases the blocks behind, lookahead
        included. The next append copies a registered tail, or drops its content if no block is
        available. O(blocks released).

        Args:
            request_id: A running request.
            num_tokens: Tokens to keep.
            after_step: As for ``release``.
            until: As for ``release``.

        Raises:
            InvalidArgumentError: More than its tokens, or fewer than the window has left; the ticket is
                not open.
            UnknownRequestError: No request has this id.
            RequestStateError: The request is not running.
        """
    def truncate_batch(
        self,
        request_ids: Iterable[RequestId],
        num_tokens: _Ints,
        *,
        after_step: int | None = None,
        until: int | None = None,
    ) -> None:
        """Keeps the first tokens of each request of a batch, all or nothing.

        O(requests + blocks released).

        Args:
            request_ids: Running requests, each named once. Not a str.
            num_tokens: Tokens to keep, one number per request.
            after_step: As for ``release``.
            until: As for ``release``.

        Raises:
            InvalidArgumentError: The lists differ in length; and as ``truncate``.
            DuplicateRequestError: A request is named twice.
            ArgumentTypeError: Ids or counts are of a type or dtype that is not taken.
        """
    def trim_window(self, request_id: RequestId, window: int) -> int:
        """Releases the blocks of a running request that fell out of a window and returns how many.

        Releases blocks whose tokens all lie more than ``window`` tokens before the computed end, and
        puts block 0 in their places. O(blocks released).

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is not running.
            InvalidArgumentError: The manager has groups, which say themselves what they give up.
        """
    def take_plan(self) -> TransferPlan:
        """Hands out all planned copies as one plan.

        Copies of copy-on-write and of swaps. Execute the plan before the step writes KV. As
        ``TieredPool.take_plan``.
        """
    def begin_swap_out(self, request_ids: Iterable[RequestId]) -> int:
        """Begins to preempt running requests by swap and returns the swap's number.

        Moves their blocks to the host tier; a shared block moves once. ``take_plan`` hands the copies
        out. When they are done, ``complete_swap`` frees the device's blocks. All or nothing. O(blocks).

        Raises:
            OutOfBlocksError: The host tier has too few blocks.
            InvalidArgumentError: There is no host tier, or no request is named.
            UnknownRequestError: No request has this id.
            RequestStateError: A request is not running.
            DuplicateRequestError: A request is named twice.
        """
    def begin_swap_in(self, request_ids: Iterable[RequestId]) -> int:
        """Begins to bring swapped requests back and returns the swap's number.

        Content that the device still caches is not copied. All or nothing. O(blocks).

        Raises:
            OutOfBlocksError: The device has too few blocks, the watermark respected while others run.
            InvalidArgumentError: There is no host tier, or no request is named.
            UnknownRequestError: No request has this id.
            RequestStateError: A request is not swapped out.
            DuplicateRequestError: A request is named twice.
        """
    def fit_swap_out(self, request_ids: Iterable[RequestId]) -> Fit:
        """Says whether a swap out would find its blocks: ok, later or never.

        Changes nothing. Errors are those of ``begin_swap_out``, but for blocks. O(blocks).
        """
    def fit_swap_in(self, request_ids: Iterable[RequestId]) -> Fit:
        """Says whether a swap in would find its blocks: ok, later or never.

        Keeps to the watermark while others run. Changes nothing. Errors as ``begin_swap_in`` but for
        blocks. O(blocks).
        """
    def complete_swap(self, swap: int) -> dict[int, int]:
        """Ends a swap whose copies are done and returns old block -> new block.

        Requests swapped out wait in the host tier, requests swapped in run again. O(blocks).

        Raises:
            SwapError: It is over, or its copies have not been taken with ``take_plan``.
        """
    def abort_swap(self, swap: int) -> None:
        """Aborts a swap.

        Leaves everything as it was before the swap began. O(blocks).

        Raises:
            SwapError: It is over.
        """
    def host_stats(self) -> PoolStats | None:
        """Returns the counters and gauges of the host tier's pool, or None if there is none."""
    def commit(self, request_id: RequestId, computed_tokens: int) -> int:
        """Says that the first tokens of a request are computed, and returns how many blocks that registered.

        From now on lookups find the full blocks among them. A block that forks share is counted once,
        at its first commit. Blocks behind a hash collision, and blocks of requests admitted before an
        epoch bump, are never registered. Needs no free block. O(newly full blocks).

        Args:
            request_id: A running request.
            computed_tokens: Tokens from the start of the sequence whose KV is written, cached ones included.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is preempted.
            InvalidArgumentError: More tokens than the request has, or fewer than were computed before.
        """
    def commit_batch(self, request_ids: Iterable[RequestId], computed_tokens: _Ints) -> int:
        """Commits a whole batch, all or nothing, and returns how many blocks that registered.

        O(requests + newly full blocks).

        Args:
            request_ids: Running requests, each named once. Not a str.
            computed_tokens: For each, what ``commit`` takes: a list of ints, or a buffer of the dtypes
                of tokens.

        Raises:
            DuplicateRequestError: A request is named twice; and as ``commit``.
            InvalidArgumentError: The lists differ in length, or a count is out of range.
            ArgumentTypeError: Counts or ids are of a type or dtype that is not taken.
        """
    def release(
        self,
        request_id: RequestId,
        *,
        after_step: int | None = None,
        until: int | None = None,
        finish_reason: str | None = None,
        output_tokens: int | None = None,
    ) -> None:
        """Ends a request, finished or aborted: its blocks lose one reference each.

        Committed blocks stay cached until evicted. Computed tokens that the manager does not know are
        cached only if ``append_tokens`` and ``commit`` name them before: docs/porting.md shows it.
        While a swap moves the request, or a connector loads into its blocks, it is releasing: it gives
        them up, and its id, when ``complete_swap``, ``abort_swap`` or ``external_done`` ends that.
        O(blocks).

        Args:
            request_id: A request in any state.
            after_step: A step that may still touch the blocks: they are fenced until ``complete_step`` of it.
            until: The ticket of a ``fence`` that holds the blocks back until ``end_fence``. Not with
                ``after_step``.
            finish_reason: How it ended, in words of OpenAI's and Anthropic's APIs: a hint to the policy
                ``hazard``.
            output_tokens: Tokens that the model answered with: such a hint, too.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: It is releasing already.
            InvalidArgumentError: The ticket is not open, or the count is out of range.
        """
    def release_batch(
        self,
        request_ids: Iterable[RequestId],
        *,
        after_step: int | None = None,
        until: int | None = None,
        finish_reasons: Sequence[str | None] | None = None,
        output_tokens: Sequence[int | None] | None = None,
    ) -> None:
        """Releases a whole batch, all or nothing.

        As ``release``, in the order of the batch: requests in any state, each named once; for each of
        them a reason and a count, where these are given. O(blocks of all).

        Raises:
            DuplicateRequestError: A request is named twice; and as ``release``.
        """
    def end_session(
        self, request_id: RequestId, *, after_step: int | None = None, until: int | None = None
    ) -> HintReport:
        """Ends a request and its session: its cached blocks that nobody else holds are evicted first.

        ``release``, and what the request has cached will not be used again. A block still waits for the
        cached blocks behind it, such as other sessions on a shared system prompt. A hit takes that
        back. A block that a truncation cut into stays as it is. For a preempted or swapped-out request,
        applies to what is still cached; for one that is moving or loading, when it gives its blocks up.
        ``after_step`` and ``until`` as for ``release``. O(blocks).

        Returns:
            What became of it, by blocks.

        Raises:
            NoRetentionError: The manager has no retention.
            UnknownRequestError: No request has this id.
            RequestStateError: It is releasing already.
            InvalidArgumentError: The ticket is not open.

        >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4, retention=True)
        >>> _ = manager.admit("chat", range(12)), manager.commit("chat", 12)
        >>> manager.end_session("chat")
        HintReport(accepted=3, clipped=0, ignored=0)
        """
    def retain(self, request_id: RequestId, ranges: _Ranges) -> HintReport:
        """Says how long ranges of a request's tokens are worth keeping, and returns what became of it.

        Applies to its registered blocks now, hits included, and to others when ``commit`` registers
        them. A block belongs to the range of its last token. Where ranges overlap, the later range or
        call wins. Hints survive preemption and swaps, and a fork inherits them. An absolute time to
        live counts from this call. O(their blocks).

        Args:
            request_id: A request.
            ranges: Triples of first token, token after the last (None: all that come), and ``Retention``.

        Returns:
            Counts of the registered blocks that the request holds on the device now.

        Raises:
            UnknownRequestError: No request has this id.
            InvalidArgumentError: A range ends before it begins; there is a time to live and was no
                ``advance_time``.
            NoRetentionError: The manager has no retention.

        >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4, retention=True)
        >>> _ = manager.admit("chat", range(12)), manager.commit("chat", 12)
        >>> manager.retain("chat", [(0, 8, kvpool.Retention(80)), (8, None, kvpool.Retention(20))])
        HintReport(accepted=3, clipped=0, ignored=0)
        """
    def set_tenant(self, request_id: RequestId, tenant: int) -> None:
        """Sets the tenant of a request: blocks that it registers count towards the tenant's limits.

        Blocks that it registered before count, too, unless they have a tenant already. Tenants without
        limits are not counted. O(blocks).

        Raises:
            UnknownRequestError: No request has this id.
            NoRetentionError: The manager has no retention.
        """
    def end_of_life(self, request_id: RequestId, start_token: int = 0) -> HintReport:
        """Says that a request's tokens from one on will not be used again.

        For example a dropped branch, or reasoning that the next turn leaves out. The request goes on.
        Once its blocks are released and nobody else holds them, they are evicted first. O(blocks from
        there).

        Raises:
            UnknownRequestError: No request has this id.
            NoRetentionError: The manager has no retention.
        """
    def retain_prefix(
        self, prompt: Tokens | HashCursor, ranges: _Ranges, extra: ExtraKeys | None = None
    ) -> HintReport:
        """Says how long ranges of cached content are worth keeping, whoever computed it.

        As ``retain``, for content whose request is gone. Reaches only what is cached now; other blocks
        of the ranges count as ignored. O(blocks), plus hashing if the prompt is not prepared.

        Raises:
            InvalidArgumentError: As for ``retain``; the prompt was hashed with other settings, or
                ``extra`` is given with a prepared one.
            NoRetentionError: The manager has no retention.
            StaleEpochError: The prompt was prepared before the last epoch bump.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
            HashingError: The algorithm cannot represent these extra keys.

        >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4, retention=kvpool.RetentionConfig(pin_budget=1))
        >>> _ = manager.admit("chat", range(12)), manager.commit("chat", 12), manager.release("chat")
        >>> manager.retain_prefix(range(12), [(0, 8, kvpool.Retention(pinned=True))])
        HintReport(accepted=1, clipped=1, ignored=0)
        """
    def end_of_life_of(
        self, prompt: Tokens | HashCursor, start_token: int = 0, extra: ExtraKeys | None = None
    ) -> HintReport:
        """Says that cached content will not be used again, whoever computed it.

        Every copy that nobody holds is evicted first. It raises what ``retain_prefix`` does. O(blocks),
        plus hashing if the prompt is not prepared.
        """
    def advance_time(self, now: float) -> int:
        """Lets time pass, in seconds on a clock of the caller's, and returns how many retentions ran out.

        Times to live count from the time that was given last, and ``hazard`` measures ages on this
        clock. O(log blocks) for each that runs out.

        Raises:
            TimeBackwardsError: An earlier call gave a later time.
            InvalidArgumentError: Not a number.
            NoRetentionError: The manager has no retention, and its policy needs no clock.
        """
    def tenant_blocks(self, tenant: int) -> int:
        """Returns how many blocks of a tenant with limits are cached or in use.

        0 for a tenant without limits. O(log tenants).

        Raises:
            NoRetentionError: The manager has no retention.
        """
    def retention_stats(self) -> RetentionStats | None:
        """Returns how many blocks are retained how, or None without retention."""
    def advice(self) -> Advice | None:
        """Returns what the manager's traffic says of other sizes, policies and tenants; None without an
        advisor.

        Takes some 50 us; other threads go on. docs/advisor.md explains the answer.

        >>> manager = kvpool.CacheManager(num_blocks=9, block_size=4, advisor=True)
        >>> for turn in range(20):  # two prompts in turn, too large for the cache together
        ...     admission = manager.admit(turn, [turn % 2] * 25)
        ...     committed = manager.commit(turn, 25)
        ...     manager.release(turn)
        >>> advice = manager.advice()
        >>> advice["block_hit_rate"], {point["blocks"]: point["block_hit_rate"] for point in advice["curve"]}[12]
        (0.15, 0.9)
        """
    def metrics(self) -> list[PoolMetrics]:
        """Returns what was counted in each tier, the device first; an empty list without metrics.

        O(buckets and tenants). docs/metrics.md says what each number means.
        """
    def observe_time(self, now: float) -> None:
        """Says what time it is for the metrics, in seconds on a clock of the caller's.

        With retention ``advance_time`` says it too. In no journal, for it changes no answer. O(tiers).

        Raises:
            TimeBackwardsError: An earlier call gave a later time.
            InvalidArgumentError: Not a number.
        """
    def explain(self, request_id: RequestId) -> Explanation:
        """Says why a request had to compute what it did when it was admitted or resumed last.

        Works for known requests and for the last released ones. O(spans), and for a released one
        O(``ExplainConfig.requests``). docs/explain.md says what the reasons mean, and who may see them.

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
    def check_policy(self) -> None:
        """Raises ``PolicyError`` if the manager's policy is written in Python and has failed.

        ``kvpool.policies`` says what counts as a failure. O(1).

        Raises:
            PolicyError: The policy is used no more; the cause says why.
        """
    def preempt(
        self, request_id: RequestId, *, after_step: int | None = None, until: int | None = None
    ) -> None:
        """Takes the blocks of a running request away and keeps its tokens, for resume.

        Committed blocks stay cached until evicted, so ``resume`` may find them again. The token that
        the step under way samples can be appended meanwhile. O(blocks).

        Args:
            request_id: A running request, or a swapped-out one, whose blocks in the host tier are released.
            after_step: As for ``release``.
            until: As for ``release``.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is preempted already, being swapped, or loading.
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

        O(blocks); after an epoch bump O(tokens), because they are hashed again.

        Args:
            request_id: A preempted request.
            allocate_tokens: As for ``admit``.
            external_tokens: As for ``admit``.
            reuse: As for ``admit``.

        Raises:
            OutOfBlocksError: Too few blocks are available.
            UnknownRequestError: No request has this id.
            RequestStateError: The request is not preempted.
            InvalidArgumentError: As many external tokens as it has tokens, or more.
        """
    def complete_step(self, step: int) -> int:
        """Ends the fences of a step and of all earlier steps, and returns how many references they held.

        O(those references). Completing a step twice, or one that fenced nothing, is fine.

        Args:
            step: The engine's number of the step, 0 to ``2**64 - 1``.

        Raises:
            PoolPoisonedError: The pool refuses all work.
        """
    def plan_step(self) -> Step:
        """Begins to plan a step: several operations that are committed together or not at all.

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
    @overload
    def block_ids(self, request_id: RequestId, *, out: None = None, group: int = 0) -> list[int]:
        """Returns the block table of a request, or writes it to a buffer and returns its length.

        O(blocks). A preempted request has none.

        Args:
            request_id: The request.
            out: Receives the ids, if given.
            group: The KV-cache group, from 0 on. Block 0, the null block, is where a group has given up
                what no token to come reads. The table of a group of states has the block of the state
                after the computed tokens, and with ``lookahead`` one for each draft after it.

        Raises:
            UnknownRequestError: No request has this id.
            InvalidArgumentError: ``out`` is too short; there is no such group.
            ArgumentTypeError: ``out`` is not a writable, contiguous, 1-D int32 buffer, or the id
                neither a str nor an int.
        """
    @overload
    def block_ids(self, request_id: RequestId, *, out: _Array, group: int = 0) -> int: ...
    def cursor(self, request_id: RequestId) -> HashCursor:
        """Returns a copy of a request's tokens and their hashes. O(tokens)."""
    def request(self, request_id: RequestId) -> RequestInfo:
        """Returns state and token counts of a request.

        O(1).

        Raises:
            UnknownRequestError: No request has this id.
        """
    def bump_epoch(self) -> int:
        """Starts a new epoch, for instance after a change of weights, and returns its number.

        No lookup finds what was cached before. Running requests go on, and their blocks are never
        registered. Preempted requests are hashed again when they resume. O(usable blocks).

        Raises:
            PoolPoisonedError: The pool refuses all work.
        """
    def reset(self) -> int:
        """Forgets all cached content, of the host tier too, and returns how many blocks were registered.

        Refused, with nothing changed, while requests or fences hold blocks of either tier: a
        swapped-out request would bring old content back. Preempted requests hold no blocks, and resume
        without hits. O(usable blocks).

        Raises:
            BlocksInUseError: Requests or fences hold blocks; ``bump_epoch`` always works.
        """
    @overload
    def evict(self, n: int, *, out: None = None) -> list[int]:
        """Evicts cached-free blocks of the device, up to a number, and returns their ids in the order
        of eviction.

        They are free then; fewer than ``n`` are all that were cached-free. As ``BlockPool.evict``. O(1)
        per block.

        Raises:
            InvalidArgumentError: ``n`` is negative; ``out`` is too short.
        """
    @overload
    def evict(self, n: int, *, out: _Array) -> int: ...
    def drop_cached(self, block_ids: BlockIds) -> int:
        """Forgets the contents of blocks by id and returns how many were registered.

        No lookup finds them any more. Cached-free blocks become free. Held blocks stay with their
        holders and become free when released. O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, or the null block.
            ArgumentTypeError: The ids are of a type or dtype that is not taken.
        """
    def resize(self, num_blocks: int) -> None:
        """Grows the pool; the new blocks are handed out last.

        O(blocks).

        Args:
            num_blocks: The new number of blocks, null block included; not fewer than now.

        Raises:
            InvalidArgumentError: Fewer blocks than now, or more than a pool can have.
        """
    def take_events(self) -> tuple[list[BlockEvent], int]:
        """Returns the events since the last call, and how many were lost before them.

        Replaying the events into a set of hashes and groups gives what lookups can find. Events are lost when
        more than ``event_capacity`` wait: start again from a snapshot then. O(events). Hashes are as long as
        those of ``HashChain.digests``.

        >>> manager = kvpool.CacheManager(num_blocks=8, block_size=2, event_capacity=100)
        >>> _ = manager.admit("a", [1, 2, 3])
        >>> _ = manager.commit("a", 3)
        >>> events, lost = manager.take_events()
        >>> [(event["type"], event["depth"], event["block_id"]) for event in events], lost
        ([('stored', 0, 1)], 0)
        """
    def stats(self) -> ManagerStats:
        """Returns the manager's counters and gauges."""
    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, null block included."""
    @property
    def block_size(self) -> int:
        """Tokens per block."""
    @property
    def num_groups(self) -> int:
        """KV-cache groups: 1 without any."""
    @property
    def groups(self) -> list[GroupSpec]:
        """The KV-cache groups that it was made with; none without any."""
    @property
    def num_available(self) -> int:
        """Blocks that an allocation can take now: free and cached-free."""
    @property
    def epoch(self) -> int:
        """The current epoch: 0, plus one per bump."""
    def free_order(self) -> list[int]:
        """Returns the free blocks in the order in which they will be handed out.

        O(free blocks), for tests and tools.
        """
    def eviction_order(self) -> list[int]:
        """Returns the cached-free blocks in the order in which they would be evicted.

        O(cached-free blocks), for tests and tools.
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
        """Returns what a ring holds, as the bytes of a file; None without a ring. O(bytes)."""
    def save_journal(self, path: str | PathLike[str]) -> None:
        """Writes what a ring holds to a new file.

        O(bytes).

        Raises:
            JournalError: There is no ring.
            JournalExistsError: The file exists.
            JournalFileError: It cannot be written.
        """
    def state_digest(self) -> int | None:
        """One number for the state of the manager, or None without digest=True.

        Equal histories give equal digests, on any host. O(blocks that changed since the last call).

        >>> one, other = (kvpool.CacheManager(num_blocks=100, digest=True) for _ in range(2))
        >>> one.state_digest() == other.state_digest() == one.state_digest_from_scratch()
        True
        """
    def state_digest_from_scratch(self) -> int:
        """Returns the same digest, counted anew from every block. O(blocks), with ``digest=True`` or
        without.
        """
    def scrub(self, blocks: int) -> ScrubReport:
        """Checks the next blocks and table entries of each tier; a broken invariant poisons the manager.

        For production: a few blocks per step, round and round, by this call or by ``scrub_blocks``. As
        ``BlockPool.scrub``, and: each table is as long as its tokens need, of blocks that are held; and
        all references are those of tables, fences, planned copies and swaps, so that a leak is found.
        O(``blocks``), and O(requests) once a pass.

        Raises:
            PoolPoisonedError: An invariant is broken; the message names it. Every later operation
                raises it, too.

        >>> kvpool.CacheManager(num_blocks=64).scrub(64)
        ScrubReport(position=0, blocks=64, requests=0, passes=1)
        """
    @property
    def poison_reason(self) -> str | None:
        """Why the manager refuses all work, if it does."""
    def check_invariants(self) -> None:
        """Recounts the pool and every request from scratch.

        O(blocks + tokens), for tests and scrubbing.

        Raises:
            InvariantError: The first broken invariant.
        """
    def __contains__(self, request_id: RequestId, /) -> bool: ...
    def __len__(self) -> int: ...
