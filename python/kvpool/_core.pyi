"""The Rust core of kvpool.

Conventions of every class here:

- **Tokens** are ints from 0 to ``2**32 - 1``: a list (fastest of the sequences), any other sequence, or a 1-D
  buffer of int32, uint32 or int64 (``array.array``, numpy, any strides). A CPU torch tensor lends its memory.
  ``bytes`` and ``str`` are refused. Other types raise ``TokenTypeError``, values out of range ``TokenError``.
- **Block ids** are ints, given in the same forms. Block 0 is the null block: never handed out, never
  accepted. Methods with ``out`` write ids to the front of a writable, contiguous, 1-D int32 buffer of the
  caller and make no list. A torch tensor is passed there as ``tensor.numpy()``.
- **Request ids** are a str, or an int of 64 bits. ``1`` and ``"1"`` are two requests.
- **Numbers** of blocks and tokens must not be negative: ``InvalidArgumentError``.
- **Errors** are those of ``kvpool.errors``. A call that raises one has changed nothing.
- **Threads**: objects may be shared. Each call is atomic; long ones let go of the interpreter.
- **Costs** are per call unless it says otherwise, and never depend on the size of the pool unless it says so.
"""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import (
    Any,
    ClassVar,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    TypedDict,
    final,
    overload,
    type_check_only,
)

from _typeshed import SupportsWrite
from typing_extensions import Buffer

from kvpool.policies import Policy as _Policy

__all__ = [
    "Admission",
    "AdvisorConfig",
    "BlockAllocator",
    "BlockHasher",
    "BlockPool",
    "BlockStore",
    "CacheManager",
    "ChainLink",
    "ExplainConfig",
    "Explanation",
    "ExtraKeys",
    "FreeBlockList",
    "HashChain",
    "HashCursor",
    "HintReport",
    "HitCurve",
    "Journal",
    "JournalDifference",
    "JournalInfo",
    "JournalReport",
    "JournalStats",
    "LruEvictor",
    "ManagerStats",
    "MissSpan",
    "PolicyRun",
    "PoolStats",
    "PrefixIndex",
    "Probe",
    "References",
    "Replay",
    "RequestInfo",
    "Retention",
    "RetentionConfig",
    "RetentionStats",
    "ScrubReport",
    "Sequences",
    "ShrunkJournal",
    "Step",
    "Swap",
    "TenantLimits",
    "TieredPool",
    "Trace",
    "TraceReader",
    "Transfer",
    "TransferEngine",
    "TransferPlan",
    "VllmBlock",
    "VllmHasher",
    "VllmPool",
    "VllmSlots",
    "__version__",
    "bisect_journal",
    "compare_journals",
    "copy_by_handle",
    "cuda_driver_version",
    "debug_build",
    "eviction_policies",
    "export_journal",
    "hash_algorithms",
    "read_journal",
    "replay_journal",
    "sampled_lru",
    "shrink_journal",
    "trace_formats",
    "verify_modes",
    "vllm_block_ids",
]

# Types of the signatures. They exist for type checkers only: import them under TYPE_CHECKING.

@type_check_only
class NumpyArray(Protocol):
    """What tells a numpy array, whose own annotations call it a buffer from Python 3.12 on only."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Describes the array."""

_Array: TypeAlias = Buffer | NumpyArray

@type_check_only
class CpuTensor(Protocol):
    """What kvpool needs of a CPU torch tensor."""

    def data_ptr(self) -> int:
        """Marks a tensor."""
    def numpy(self) -> _Array:
        """Lends the memory."""

_Ints: TypeAlias = Sequence[int] | _Array | CpuTensor
Tokens: TypeAlias = _Ints
BlockIds: TypeAlias = _Ints
RequestId: TypeAlias = str | int
_Ranges: TypeAlias = Sequence[tuple[int, int | None, Retention]]

@type_check_only
class StoredEvent(TypedDict):
    """The first computed copy of a content has appeared: lookups can find its hash from now on."""

    type: Literal["stored"]
    hash: bytes
    parent: bytes | None
    depth: int
    block_id: int

@type_check_only
class RemovedEvent(TypedDict):
    """The last computed copy of a content is gone: lookups no longer find its hash."""

    type: Literal["removed"]
    hash: bytes
    block_id: int

@type_check_only
class ClearedEvent(TypedDict):
    """Everything was forgotten, by a reset or because this epoch has begun."""

    type: Literal["cleared"]
    epoch: int

BlockEvent: TypeAlias = StoredEvent | RemovedEvent | ClearedEvent

#: Source and destination of a copy, each a tier and a block.
BlockMove: TypeAlias = tuple[tuple[int, int], tuple[int, int]]

@type_check_only
class AdvicePoint(TypedDict):
    """A hit rate, 0 to 1, at a size."""

    blocks: int
    block_hit_rate: float

@type_check_only
class PolicyAdvice(TypedDict):
    """What a policy would hit in the pool's place, at the pool's size.

    ``references`` are those of the window since its ghost cache was empty: after a resize it is filled anew.
    """

    name: str
    block_hit_rate: float
    references: int

@type_check_only
class TenantAdvice(TypedDict):
    """One tenant's part of the traffic.

    ``block_hit_rate`` is measured; ``curve`` is what it would hit in LRU caches of other sizes that it shares with
    everybody, as now; ``curve_alone`` in one of its own, up to the pool's size.
    """

    tenant: int
    references: int
    sampled_references: int
    block_hit_rate: float
    curve: list[AdvicePoint]
    curve_alone: list[AdvicePoint]

@type_check_only
class Advice(TypedDict):
    """What a pool's own traffic says of sizes, policies and tenants: see docs/advisor.md. It is JSON.

    Rates are shares of block references, 0 to 1, and 0 where there were none. All counts and rates but
    ``references_ever`` are of the window: every ``window_references`` they are halved. ``capacity_blocks`` are the
    usable blocks of the pool, ``sample_rate`` is the share of the blocks that is sampled, ``block_hit_rate`` is what
    the pool itself hit, measured; ``curve`` what LRU caches of an eighth to eight times its size would hit.
    ``untracked_references`` are those of tenants beyond ``max_tenants``.
    """

    capacity_blocks: int
    sample_rate: float
    window_references: int
    references_ever: int
    references: int
    sampled_references: int
    block_hit_rate: float
    curve: list[AdvicePoint]
    policies: list[PolicyAdvice]
    tenants: list[TenantAdvice]
    untracked_references: int
    memory_bytes: int

@type_check_only
class SequenceInfo(TypedDict):
    """What is known of a sequence: counts of tokens and blocks, its tier, and the swap that moves it now."""

    tokens: int
    computed_tokens: int
    blocks: int
    published_blocks: int
    trimmed_blocks: int
    tier: int
    swap: int | None

@type_check_only
class TraceSummary(TypedDict):
    """Figures of a trace: tokens, block references by id, and milliseconds."""

    requests: int
    span_ms: float
    input_tokens: int
    output_tokens: int
    longest_input: int
    block_references: int
    partial_blocks: int
    unique_blocks: int
    block_tokens: int

@type_check_only
class ReadNotes(TypedDict):
    """What was noticed while a trace was read; docs/traces.md says what each counts."""

    records: int
    reordered: int
    unchained: int
    regrouped: int
    untimed: int
    skipped_events: int
    unknown_parents: int

__version__: str
debug_build: bool

def hash_algorithms() -> list[str]:
    """Names of the hash algorithms.

    A name stands for a hash function and an encoding, and never changes its meaning. ``xxh3`` and vLLM's
    ``xxhash`` variants are not cryptographic: they need ``verify``.

    >>> kvpool.hash_algorithms()[:3]
    ['sha256', 'blake3', 'xxh3']
    """

def verify_modes() -> list[str]:
    """Names of the ways to verify hits, weakest first.

    ``none`` trusts the digest, ``fingerprint`` compares an independent 128-bit fingerprint of the whole
    prefix (16 bytes per block more), ``tokens`` also the tokens of the block (4 bytes per token more).

    >>> kvpool.verify_modes()
    ['none', 'fingerprint', 'tokens']
    """

def eviction_policies() -> list[str]:
    """Names of the eviction policies: ``eviction`` of a pool or a manager, ``policy`` of a sizing run.

    >>> "lru" in kvpool.eviction_policies()
    True
    """

def trace_formats() -> list[str]:
    """Names of the trace formats.

    >>> kvpool.trace_formats()
    ['mooncake', 'mooncake-sessions', 'bailian', 'kv-cache-tester', 'block-rows', 'kv-events']
    """

@final
class Journal:
    """How the operations of a pool or a manager are recorded.

    A journal in a file holds every operation since the pool was made, and can be replayed. A ring keeps the latest
    operations in memory; while it has dropped nothing it can be replayed, and shown ever after. What is in it and
    what it costs: ``docs/journal.md``.

    Args:
        path: A new file. One that exists is refused when the pool or manager is made.
        ring_bytes: Instead of a file: bytes of memory, at least four frames.
        digest_every: Operations from one digest of the whole state to the next; 0 for none. Narrows down a
            difference that no answer shows.
        frame_bytes: Bytes that are collected before they are written, 64 to 2**24: what a crash of the process
            loses at most.

    Raises:
        InvalidArgumentError: A setting is out of range; or both or none of ``path`` and ``ring_bytes`` are given.

    >>> manager = kvpool.CacheManager(64, 4, journal=kvpool.Journal(ring_bytes=1 << 20))
    >>> manager.admit("a", range(10)).num_blocks
    3
    >>> manager.release("a")
    >>> image = manager.journal_image()
    >>> kvpool.replay_journal(image)
    JournalReport(operations=2, digests=0, difference=None)
    """

    def __new__(
        cls,
        path: str | PathLike[str] | None = None,
        *,
        ring_bytes: int | None = None,
        digest_every: int = 65536,
        frame_bytes: int = 32768,
    ) -> Self: ...
    @property
    def path(self) -> Path | None:
        """The file that it goes to; None for a ring."""
    @property
    def ring_bytes(self) -> int | None:
        """Bytes that the ring keeps, or so; None for a file."""
    @property
    def digest_every(self) -> int:
        """Operations from one digest of the state to the next; 0 for none."""
    @property
    def frame_bytes(self) -> int:
        """Bytes that are collected before they are written."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class JournalStats:
    """How far a journal has come."""

    @property
    def operations(self) -> int:
        """Operations recorded."""
    @property
    def bytes(self) -> int:
        """Bytes written, or kept in the ring; what is collected for the next frame is not counted."""
    @property
    def error(self) -> str | None:
        """Why it stopped recording, or None."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class JournalInfo:
    """What is in a journal, without running it."""

    @property
    def subject(self) -> str:
        """What was recorded: pool, manager or vllm-pool."""
    @property
    def version(self) -> str:
        """The version of kvpool that wrote it."""
    @property
    def bytes(self) -> int:
        """Its bytes, those of a cut end included."""
    @property
    def first_operation(self) -> int:
        """The number of the first operation that it holds: 0, unless a ring dropped what was before."""
    @property
    def operations(self) -> int:
        """The number of the operation behind the last."""
    @property
    def digest_every(self) -> int:
        """Operations from one digest of the state to the next; 0 for none."""
    @property
    def digests(self) -> int:
        """Digests of the state that it holds."""
    @property
    def calls(self) -> dict[str, int]:
        """Operations by call."""
    @property
    def cut_at(self) -> int | None:
        """The byte behind the last whole frame of a journal whose end is cut off or damaged; None if it is complete."""
    @property
    def cut_bytes(self) -> int:
        """Bytes that are left behind it."""
    @property
    def lines(self) -> list[tuple[int, str, str]]:
        """The operations that were asked for, and the digests between them: number, call, what it was asked."""
    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the pool or manager, by name."""

@final
class JournalDifference:
    """Where a replay and its journal differ first."""

    @property
    def kind(self) -> str:
        """What differs: answer, digest or invariant."""
    @property
    def operation(self) -> int:
        """The number of the operation; of a digest, how many operations are before it."""
    @property
    def since(self) -> int | None:
        """Of a digest: the operations until the last one that was the same. The cause lies between the two."""
    @property
    def asked(self) -> str | None:
        """What was asked."""
    @property
    def found(self) -> str | None:
        """What this build answers, or which invariant is broken."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class JournalReport:
    """What the replay of a journal found."""

    @property
    def operations(self) -> int:
        """Operations run."""
    @property
    def digests(self) -> int:
        """Digests of the state that were the same."""
    @property
    def difference(self) -> JournalDifference | None:
        """The first difference, behind which nothing was run; None if there is none."""
    @property
    def cut_at(self) -> int | None:
        """The byte behind the last whole frame of a journal whose end is cut off or damaged; None if it is complete."""
    @property
    def cut_bytes(self) -> int:
        """Bytes that are left behind it."""
    @property
    def is_exact(self) -> bool:
        """Whether every answer and every digest was the same."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

def read_journal(journal: bytes | str | PathLike[str], *, start: int | None = None, count: int = 0) -> JournalInfo:
    """Says what is in a journal, without running it.

    O(bytes); other threads go on.

    Args:
        journal: Its file, or its bytes.
        start: The number of the first operation to be told in ``lines``; by default the last ones are.
        count: How many.

    Raises:
        JournalError: It is no journal, or one that this version does not read.
        JournalFileError: The file cannot be read.
        InvalidArgumentError: ``start`` or ``count`` is negative.

    >>> pool = kvpool.BlockPool(64, 4, journal=kvpool.Journal(ring_bytes=1 << 20))
    >>> pool.release(pool.allocate(3))
    >>> kvpool.read_journal(pool.journal_image(), count=2).lines
    [(0, 'allocate', '3 blocks'), (1, 'release', '3 blocks: 1 2 3')]
    """

def replay_journal(
    journal: bytes | str | PathLike[str],
    *,
    until: int | None = None,
    check_every: int = 0,
    progress: Callable[[int], object] | None = None,
) -> JournalReport:
    """Runs the operations of a journal again and compares every answer and every digest of the state.

    On a new pool or manager with the journal's settings. A difference is no error: the report has the first one. At the
    end all invariants are recounted. Other threads go on.

    Args:
        journal: Its file, or its bytes. One that was cut is replayed up to the cut.
        until: The operation to stop before; by default the end.
        check_every: Operations from one recount of all invariants to the next, O(blocks) each; 0 recounts at the end
            alone.
        progress: Called every few thousand operations with how many were run; what it raises stops the replay.

    Raises:
        JournalError: It is no journal, or one that cannot be replayed: a ring that has dropped its beginning, for
            instance.
        JournalFileError: The file cannot be read.
        InvalidArgumentError: ``until`` or ``check_every`` is negative.
    """

def bisect_journal(
    journal: bytes | str | PathLike[str], *, progress: Callable[[int], object] | None = None
) -> JournalReport:
    """Finds the first operation that goes wrong: answered otherwise, or followed by a broken invariant.

    Where a replay stops at a digest, or at the recount at the end, this goes through the operations before it. A
    difference that only digests show is known as closely as they were written. O(operations), or
    O(operations log operations) for an invariant.

    Args:
        journal: Its file, or its bytes.
        progress: As in ``replay_journal``; counts from the start again for each run.

    Raises:
        JournalError: As in ``replay_journal``.
        JournalFileError: The file cannot be read.
    """

def compare_journals(
    first: bytes | str | PathLike[str], second: bytes | str | PathLike[str]
) -> tuple[int, str | None, str | None] | None:
    """Returns the first record in which two journals differ, or None if one is a beginning of the other.

    The number of the operation, and what each holds there, with the check of the answer. Nothing is run. O(bytes).

    Raises:
        JournalError: One is no journal, or they are of different settings.
        JournalFileError: A file cannot be read.
    """

@final
class ShrunkJournal:
    """A journal made smaller."""

    @property
    def before(self) -> int:
        """Operations before."""
    @property
    def operations(self) -> list[str]:
        """Operations that are left, and what each was answered, as text."""
    @property
    def failure(self) -> str:
        """What goes wrong."""
    @property
    def journal(self) -> bytes:
        """The journal of them, as the bytes of a file."""
    @property
    def runs(self) -> int:
        """Runs that it took."""

def shrink_journal(
    journal: bytes | str | PathLike[str],
    *,
    operation: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> ShrunkJournal | None:
    """Leaves out what is not needed to make a journal go wrong.

    Delta debugging: operations are left out, halves first, as long as it still goes wrong. Returns None if nothing
    does.

    Args:
        journal: Its file, or its bytes.
        operation: Keep what this build answers to the operation with this number; without it, a broken invariant.
        progress: Called after each run with the operations that are left; what it raises stops the shrinking.

    Raises:
        JournalError: As in ``replay_journal``.
        JournalFileError: The file cannot be read.
        InvalidArgumentError: ``operation`` is negative.
    """

@overload
def export_journal(
    journal: bytes | str | PathLike[str], language: str, *, limit: int = 10_000, write: None = None
) -> str:
    """Writes a journal as a test that makes the same calls and expects the same answers: rust or python.

    Prompts are made-up tokens, equal where the recorded ones were. The answers are those of this build, up to the first
    that the journal has otherwise; of a refusal, what it says. For journals of a few operations: shrink it first.
    Runs the journal twice. With ``write``, memory does not grow with the test.

    Args:
        journal: Its file, or its bytes.
        language: ``"rust"`` or ``"python"``.
        limit: Operations of the longest test.
        write: Is given the text in pieces of up to 64 KiB, as it is made; without it the text is returned. What it
            raises ends the export.

    Raises:
        JournalError: As in ``replay_journal``; there are more operations than ``limit``, before anything is written; an
            operation of vLLM's pool that Python has no call for.
        JournalFileError: The file cannot be read.
        InvalidArgumentError: Another language.

    >>> pool = kvpool.BlockPool(64, 4, journal=kvpool.Journal(ring_bytes=1 << 20))
    >>> pool.release(pool.allocate(3))
    >>> "assert answer(pool.allocate, 3) == [1, 2, 3]" in kvpool.export_journal(pool.journal_image(), "python")
    True
    """

@overload
def export_journal(
    journal: bytes | str | PathLike[str], language: str, *, limit: int = 10_000, write: Callable[[str], object]
) -> None: ...

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
        seed: For vLLM's encodings what ``PYTHONHASHSEED`` is there; also seeds ``"xxh3"`` and the
            fingerprints.
        duplicates: What happens to a released block whose content another cached block holds: ``"keep"``, or
            ``"drop-on-release"``.
        eviction: Which cached-free block is reused first: one of ``eviction_policies()``, or a ``Policy`` of your own.
        retention: Priorities, times to live, pins and tenants' limits: a ``RetentionConfig``, or True for one without
            pins and limits. Without it hints are refused, and cost nothing.
        advisor: Estimates other sizes and policies from the lookups: an ``AdvisorConfig``, or True for the defaults.
            ``advice`` says what it found. Without one it costs nothing.
        explain: Remembers what came and went, so that ``explain`` can say why a prompt missed: an ``ExplainConfig``, or
            True for the defaults. Without one it costs nothing.
        event_capacity: Events kept until ``take_events``; 0 records none.
        watermark: Share of the pool, 0.0 to below 1.0, that an admission leaves available while other
            requests run.
        host_blocks: Blocks of the host tier, null block included, where requests are swapped out to; 0 for none.
        block_bytes: Bytes of KV per block over all layers, for ``ManagerStats.bytes``; 0 if unknown.
        journal: Records every operation: a ``Journal``. Not for a ``Policy`` of your own, which could not be replayed.
        digest: Keeps a digest of the state, for ``state_digest``, and lets ``scrub`` find reference counts that were
            changed behind the manager's back. 24 bytes per block.
        scrub_blocks: Blocks of each tier that every ``complete_step`` scrubs; 0 for none.

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
        algorithm: str = "sha256",
        verify: str = "none",
        key: bytes | None = None,
        seed: str | None = None,
        duplicates: str = "keep",
        eviction: str | _Policy = "lru",
        retention: RetentionConfig | bool | None = None,
        advisor: AdvisorConfig | bool | None = None,
        explain: ExplainConfig | bool | None = None,
        event_capacity: int = 0,
        watermark: float = 0.0,
        host_blocks: int = 0,
        block_bytes: int = 0,
        journal: Journal | None = None,
        digest: bool = False,
        scrub_blocks: int = 0,
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

        O(blocks matched), plus hashing if the prompt is not prepared. Counts, not ids: another request may
        take the blocks meanwhile.

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
        out: _Array | None = None,
    ) -> Admission:
        """Admits a request: acquires the cached prefix of its prompt and allocates the rest, all or nothing.

        O(blocks), plus hashing if the prompt is not prepared (a prepared one is copied, and can be used
        again). Blocks for the whole prompt are allocated at once; the last prompt token is always left to
        compute.

        Args:
            request_id: A new id.
            prompt: At least one token, or what ``prepare`` returned.
            extra: Extra keys of the prompt; not with a prepared one, which has its own.
            tenant: Whose the blocks are that the request registers: they count towards the tenant's limits.
            no_cache: It is a scan: the blocks that it registers are the first to be evicted; what it hits is not.
            retention: Ranges of its tokens, hits included: see ``retain``.
            out: Receives the block table, if given: ``ceil(tokens / block_size)`` ids.
                ``Admission.block_ids`` is then empty.

        Raises:
            OutOfBlocksError: Too few blocks are available; its attributes say how many are missing and
                whether the request can ever fit.
            DuplicateRequestError: The id is known already.
            InvalidArgumentError: The prompt is empty or was hashed with other settings; ``extra`` is given
                with a prepared prompt; ``out`` is too short; a range ends before it begins; there is a time to live
                and was no ``advance_time``.
            NoRetentionError: There are hints, and the manager has no retention.
            StaleEpochError: The prompt was prepared before the last epoch bump.
            TokenError: A token is out of range.
            TokenTypeError: Tokens, request id or ``out`` are of a type or dtype that is not taken.
            HashingError: The algorithm cannot represent these extra keys.

        >>> import array
        >>> manager = kvpool.CacheManager(num_blocks=8, block_size=4)
        >>> table = array.array("i", [0] * 4)
        >>> manager.admit(7, array.array("I", [1, 2, 3, 4, 5]), out=table).num_blocks
        2
        >>> table
        array('i', [1, 2, 0, 0])
        """
    def append(
        self, request_ids: Iterable[RequestId], token_ids: Tokens, *, commit: bool = False
    ) -> list[tuple[int, int, int]]:
        """Appends one token to each request of a batch, with blocks where needed, all or nothing.

        After a fork, whoever writes to a shared block first gets a copy of it, which is planned (``take_plan``).
        O(requests). A token that completes no block is hashed by nobody and touches no block.

        Args:
            request_ids: Running requests, each named once. Not a str.
            token_ids: One token per request.
            commit: Commits every token that these requests had before, first: the step that sampled the new
                tokens has computed them.

        Returns:
            What changed in block tables, in the order of the call: triples of position in ``request_ids``, position
            in the block table, and the block that is there now, new or a copy.

        Raises:
            OutOfBlocksError: Too few blocks are available for the batch as a whole.
            UnknownRequestError: No request has this id.
            RequestStateError: A request is preempted.
            DuplicateRequestError: A request is named twice.
            InvalidArgumentError: The lists differ in length.
            TokenError: A token is out of range.
            TokenTypeError: Tokens or ids are of a type or dtype that is not taken.
        """
    def append_tokens(self, request_id: RequestId, token_ids: Tokens, *, lookahead: int = 0) -> list[tuple[int, int]]:
        """Appends several tokens to one request, all or nothing, and returns what changed in its block table.

        For accepted drafts, or a chunk of streamed input. Pairs of position and block, new or a copy. O(tokens).

        Args:
            request_id: A running request.
            token_ids: The tokens.
            lookahead: Slots behind them that get blocks, too.

        Raises:
            OutOfBlocksError: Too few blocks are available.
            UnknownRequestError: No request has this id.
            RequestStateError: The request is preempted.
            TokenError: A token is out of range.
            TokenTypeError: Tokens or id are of a type or dtype that is not taken.
        """
    def fork(self, parent_id: RequestId, child_id: RequestId) -> None:
        """Makes a second request over the blocks of a running one: parallel sampling, beam search.

        It shares every block. O(blocks + tokens).

        Raises:
            UnknownRequestError: No request has the parent's id.
            DuplicateRequestError: A request has the child's id.
            RequestStateError: The parent is not running.
            TokenTypeError: An id is neither a str nor an int.
        """
    def truncate(self, request_id: RequestId, num_tokens: int) -> None:
        """Keeps the first tokens of a running request.

        At least one; for instance after drafts were rejected. Blocks behind are released, lookahead included. A
        registered tail is copied by the next append. O(blocks released).

        Raises:
            InvalidArgumentError: More than its tokens, or fewer than the window has left.
            UnknownRequestError: No request has this id.
            RequestStateError: The request is not running.
            TokenTypeError: The id is neither a str nor an int.
        """
    def trim_window(self, request_id: RequestId, window: int) -> int:
        """Releases the blocks of a running request that fell out of a window and returns how many.

        Those wholly more than ``window`` tokens before its computed end; block 0 takes their places.
        O(blocks released).

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is not running.
            TokenTypeError: The id is neither a str nor an int.
        """
    def take_plan(self) -> TransferPlan:
        """Hands out all planned copies as one plan.

        Those of copy-on-write and of swaps; to be executed before the step writes KV. As ``TieredPool.take_plan``.
        """
    def begin_swap_out(self, request_ids: Iterable[RequestId]) -> int:
        """Begins to preempt running requests by swap and returns the swap's number.

        Their blocks move to the host tier, what they share once. The copies are planned (``take_plan``); when they
        are done, ``complete_swap`` frees the device's blocks. All or nothing. O(blocks).

        Raises:
            OutOfBlocksError: The host tier has too few blocks.
            InvalidArgumentError: There is no host tier, or no request is named.
            UnknownRequestError: No request has this id.
            RequestStateError: A request is not running.
            DuplicateRequestError: A request is named twice.
            TokenTypeError: Ids are of a type or dtype that is not taken.
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
            TokenTypeError: Ids are of a type or dtype that is not taken.
        """
    def fit_swap_out(self, request_ids: Iterable[RequestId]) -> Literal["ok", "later", "never"]:
        """Says whether a swap out would find its blocks: ok, later or never.

        Changes nothing. O(blocks).

        Raises:
            InvalidArgumentError: There is no host tier, or no request is named.
            UnknownRequestError: No request has this id.
            RequestStateError: A request is not running.
            DuplicateRequestError: A request is named twice.
            TokenTypeError: Ids are of a type or dtype that is not taken.
        """
    def fit_swap_in(self, request_ids: Iterable[RequestId]) -> Literal["ok", "later", "never"]:
        """Says whether a swap in would find its blocks: ok, later or never.

        The watermark respected while others run. Changes nothing. O(blocks).

        Raises:
            InvalidArgumentError: There is no host tier, or no request is named.
            UnknownRequestError: No request has this id.
            RequestStateError: A request is not swapped out.
            DuplicateRequestError: A request is named twice.
            TokenTypeError: Ids are of a type or dtype that is not taken.
        """
    def complete_swap(self, swap: int) -> dict[int, int]:
        """Ends a swap whose copies are done and returns old block -> new block.

        Requests swapped out wait in the host tier, requests swapped in run again. O(blocks).

        Raises:
            SwapError: It is over, or its copies have not been taken with ``take_plan``.
        """
    def abort_swap(self, swap: int) -> None:
        """Takes a swap back.

        Everything is as before it was begun. O(blocks).

        Raises:
            SwapError: It is over.
        """
    def host_stats(self) -> PoolStats | None:
        """Returns the counters and gauges of the host tier's pool, or None if there is none.

        O(1).
        """
    def commit(self, request_id: RequestId, computed_tokens: int) -> int:
        """Says that the first tokens of a request are computed, and returns how many blocks that registered.

        Full blocks among them can be hit from now on; a block that forks share is counted once, by whoever commits
        it first. Needs no free block. O(newly full blocks). Requests admitted before an epoch bump, and blocks behind
        a hash collision, are never registered.

        Args:
            request_id: A running request.
            computed_tokens: Tokens from the start of the sequence whose KV is written, cached ones included.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is preempted.
            InvalidArgumentError: More tokens than the request has, or fewer than were computed before.
            TokenTypeError: The id is neither a str nor an int.
        """
    def commit_batch(self, request_ids: Iterable[RequestId], computed_tokens: _Ints) -> int:
        """Commits a whole batch, all or nothing, and returns how many blocks that registered.

        O(requests + newly full blocks).

        Args:
            request_ids: Running requests, each named once. Not a str.
            computed_tokens: For each, what ``commit`` takes: a list of ints, or a buffer of the dtypes of
                tokens.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: A request is preempted.
            DuplicateRequestError: A request is named twice.
            InvalidArgumentError: The lists differ in length, or a count is out of range.
            TokenTypeError: Counts or ids are of a type or dtype that is not taken.
        """
    @overload
    def release(
        self, request_id: RequestId, *, after_step: int | None = None, end_of_life: Literal[False] = False
    ) -> None:
        """Ends a request, finished or aborted: its blocks lose one reference each.

        What it committed stays cached until evicted. O(blocks).

        Args:
            request_id: A running or preempted request.
            after_step: A step that may still touch the blocks: they are fenced until ``complete_step`` of it.
            end_of_life: Its session has ended: cached blocks of it that nobody else holds are the first to be evicted
                (but after cached blocks that hang on them, such as other sessions on a shared system prompt). A hit
                takes that back. Of a request that is preempted or swapped out, what is still cached.

        Returns:
            What became of the end of life, or None.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: A swap moves it.
            NoRetentionError: With ``end_of_life``, and the manager has no retention.
            TokenTypeError: The id is neither a str nor an int.

        >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4, retention=True)
        >>> _ = manager.admit("chat", range(12)), manager.commit("chat", 12)
        >>> manager.release("chat", end_of_life=True)
        HintReport(accepted=3, clipped=0, ignored=0)
        """
    @overload
    def release(
        self, request_id: RequestId, *, after_step: int | None = None, end_of_life: Literal[True]
    ) -> HintReport: ...
    @overload
    def release(
        self, request_id: RequestId, *, after_step: int | None = None, end_of_life: bool
    ) -> HintReport | None: ...
    def retain(self, request_id: RequestId, ranges: _Ranges) -> HintReport:
        """Says how long ranges of a request's tokens are worth keeping, and returns what became of it.

        Of its registered blocks now, hits included, and of others when ``commit`` registers them. A block belongs to
        a range if its last token does. Later ranges, and later calls, win where they overlap; what is said survives
        preemption and swaps, and a fork starts with it. An absolute time to live counts from this call. O(blocks of
        the ranges).

        Args:
            request_id: A request.
            ranges: Triples of first token, token after the last (None: all that come), and ``Retention``.

        Returns:
            Counts of the registered blocks that the request holds on the device now.

        Raises:
            UnknownRequestError: No request has this id.
            InvalidArgumentError: A range ends before it begins; there is a time to live and was no ``advance_time``.
            NoRetentionError: The manager has no retention.
            TokenTypeError: The id is neither a str nor an int.

        >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4, retention=True)
        >>> _ = manager.admit("chat", range(12)), manager.commit("chat", 12)
        >>> manager.retain("chat", [(0, 8, kvpool.Retention(80)), (8, None, kvpool.Retention(20))])
        HintReport(accepted=3, clipped=0, ignored=0)
        """
    def set_tenant(self, request_id: RequestId, tenant: int) -> None:
        """Says whose a request is: the blocks that it registers count towards the limits of the tenant.

        Those that it has registered, too, unless they are somebody's already. Tenants without limits are not counted.
        O(blocks).

        Raises:
            UnknownRequestError: No request has this id.
            InvalidArgumentError: The tenant is not a number of 32 bits.
            NoRetentionError: The manager has no retention.
        """
    def end_of_life(self, request_id: RequestId, start_token: int = 0) -> HintReport:
        """Says that a request's tokens from one on will not be used again.

        A branch that was dropped, reasoning that the next turn leaves out. The request goes on as before; blocks that
        nobody else holds are the first to be evicted once they are released, others if nobody else holds them then.
        O(blocks from there).

        Raises:
            UnknownRequestError: No request has this id.
            NoRetentionError: The manager has no retention.
            TokenTypeError: The id is neither a str nor an int.
        """
    def retain_prefix(self, prompt: Tokens | HashCursor, ranges: _Ranges, extra: ExtraKeys | None = None) -> HintReport:
        """Says how long ranges of cached content are worth keeping, whoever computed it.

        As ``retain``, for content whose request is gone. Only what is cached now is reached: blocks of the ranges that
        are not count as ignored. O(blocks), plus hashing if the prompt is not prepared.

        Raises:
            InvalidArgumentError: As for ``retain``; the prompt was hashed with other settings, or ``extra`` is given
                with a prepared one.
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

        Every copy of it that nobody holds is the first to be evicted. O(blocks), plus hashing if the prompt is not
        prepared.

        Raises:
            InvalidArgumentError: The prompt was hashed with other settings, or ``extra`` is given with a prepared one.
            NoRetentionError: The manager has no retention.
            StaleEpochError: The prompt was prepared before the last epoch bump.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
            HashingError: The algorithm cannot represent these extra keys.
        """
    def advance_time(self, now: float) -> int:
        """Lets time pass, in seconds on a clock of the caller's, and returns how many retentions ran out.

        Times to live count from the time that was given last. O(log blocks) for each that runs out.

        Raises:
            TimeBackwardsError: An earlier call gave a later time.
            InvalidArgumentError: Not a number.
            NoRetentionError: The manager has no retention.
        """
    def tenant_blocks(self, tenant: int) -> int:
        """Returns how many blocks of a tenant with limits are cached or in use.

        0 for a tenant without limits. O(log tenants).

        Raises:
            InvalidArgumentError: The tenant is not a number of 32 bits.
            NoRetentionError: The manager has no retention.
        """
    def retention_stats(self) -> RetentionStats | None:
        """Returns how many blocks are retained how, or None without retention."""
    def advice(self) -> Advice | None:
        """Says what the manager's traffic tells of other sizes, policies and tenants; None without an advisor.

        Some 50 us, while other threads go on. docs/advisor.md says how to read it.

        >>> manager = kvpool.CacheManager(num_blocks=9, block_size=4, advisor=True)
        >>> for turn in range(20):  # two prompts in turn, too large for the cache together
        ...     admission = manager.admit(turn, [turn % 2] * 25)
        ...     committed = manager.commit(turn, 25)
        ...     manager.release(turn)
        >>> advice = manager.advice()
        >>> advice["block_hit_rate"], {point["blocks"]: point["block_hit_rate"] for point in advice["curve"]}[12]
        (0.15, 0.9)
        """
    def explain(self, request_id: RequestId) -> Explanation:
        """Says why a request had to compute what it did when it was admitted or resumed last.

        Of requests that are known, and of the last ones that were released. O(spans), and for a released one
        O(``ExplainConfig.requests``). docs/explain.md says what the reasons mean, and to whom they may be shown.

        Raises:
            UnknownRequestError: No request has this id, or it was released too long ago.
            InvalidArgumentError: The manager was made without ``explain``.
            TokenTypeError: The id is neither a str nor an int.

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
        """Raises what ended the manager's policy, if that is one written in Python and has failed.

        ``kvpool.policies`` says what counts as a failure. O(1).

        Raises:
            PolicyError: The policy is used no more; the cause says why.
        """
    def preempt(self, request_id: RequestId, *, after_step: int | None = None) -> None:
        """Takes the blocks of a running request away and keeps its tokens, for resume.

        What it committed stays cached until evicted, so that resuming may find it again. O(blocks).

        Args:
            request_id: A running request, or one that was swapped out: its blocks in the host tier are given up.
            after_step: As for ``release``.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is preempted already, or being swapped.
            TokenTypeError: The id is neither a str nor an int.
        """
    def resume(self, request_id: RequestId) -> Admission:
        """Admits a preempted request again, with all its tokens.

        O(blocks); after an epoch bump O(tokens), because they are hashed again.

        Raises:
            OutOfBlocksError: Too few blocks are available.
            UnknownRequestError: No request has this id.
            RequestStateError: The request is running.
            TokenTypeError: The id is neither a str nor an int.
        """
    def complete_step(self, step: int) -> int:
        """Ends the fences of a step and of all earlier steps, and returns how many references they held.

        O(those references). Completing a step twice, or one that fenced nothing, is fine.

        Args:
            step: The engine's number of the step, 0 to ``2**64 - 1``.

        Raises:
            PoolPoisonedError: The pool refuses all work.
        """
    def begin_step(self) -> Step:
        """Begins to plan a step: several operations that are committed together or not at all.

        O(1).

        >>> manager = kvpool.CacheManager(num_blocks=5, block_size=4)
        >>> _ = manager.admit("old", range(12))
        >>> with manager.begin_step() as step:
        ...     freed = step.preempt("old")
        ...     cached = step.admit("new", range(100, 108))
        ...     outcomes = step.commit()
        >>> freed, cached, outcomes
        (3, 0, [None, Admission(cached_tokens=0, cached_blocks=0, num_blocks=2)])
        """
    @overload
    def block_ids(self, request_id: RequestId, *, out: None = None) -> list[int]:
        """Returns the block table of a request, or writes it to a buffer and returns its length.

        O(blocks). A preempted request has none.

        Args:
            request_id: The request.
            out: Receives the ids, if given.

        Raises:
            UnknownRequestError: No request has this id.
            InvalidArgumentError: ``out`` is too short.
            TokenTypeError: ``out`` is not a writable, contiguous, 1-D int32 buffer, or the id neither a str
                nor an int.
        """
    @overload
    def block_ids(self, request_id: RequestId, *, out: _Array) -> int: ...
    def request(self, request_id: RequestId) -> RequestInfo:
        """Returns state and token counts of a request.

        O(1).

        Raises:
            UnknownRequestError: No request has this id.
            TokenTypeError: The id is neither a str nor an int.
        """
    def bump_epoch(self) -> int:
        """Starts a new epoch, for instance after a change of weights, and returns its number.

        Nothing that was cached before is ever matched again. Running requests go on and are never registered
        again; preempted ones are hashed anew when they resume. O(usable blocks).

        Raises:
            PoolPoisonedError: The pool refuses all work.
        """
    def reset(self) -> int:
        """Forgets all cached content, of the host tier too, and returns how many blocks were registered.

        What the host kept could be swapped in again, and a request that is swapped out would bring its blocks back:
        while requests or fences hold blocks of either tier the call is refused, and nothing has changed. Requests that
        are preempted hold none, and resume without any. O(usable blocks).

        Raises:
            BlocksInUseError: Requests or fences hold blocks; ``bump_epoch`` always works.
        """
    def evict(self, block_ids: BlockIds) -> int:
        """Drops blocks from the prefix index by id and returns how many were registered.

        Cached-free ones become free; held ones stay with their holders. O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, or the null block.
            TokenTypeError: The ids are of a type or dtype that is not taken.
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

        Replaying the events into a set gives the hashes that lookups can find. Events are lost when
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
        """Returns the manager's counters and gauges.

        O(1).
        """
    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, null block included."""
    @property
    def block_size(self) -> int:
        """Tokens per block."""
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

        Without a journal nothing happens. It is also flushed when the object goes, and when an invariant breaks.

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
        """One number for the state of the manager, or None without digest=True.

        Equal histories give equal digests, on any host. O(blocks that changed since the last call).

        >>> one, other = (kvpool.CacheManager(num_blocks=100, digest=True) for _ in range(2))
        >>> one.state_digest() == other.state_digest() == one.state_digest_from_scratch()
        True
        """
    def state_digest_from_scratch(self) -> int:
        """Returns the same digest, counted anew from every block.

        O(blocks), with ``digest=True`` or without.
        """
    def scrub(self, blocks: int) -> ScrubReport:
        """Checks the next blocks and table entries of each tier; a broken invariant poisons the manager.

        For production: a few blocks per step, round and round, by this call or by ``scrub_blocks``. As
        ``BlockPool.scrub``, and: each table is as long as its tokens need, of blocks that are held; and all
        references are those of tables, fences, planned copies and swaps, so that a leak is found. O(``blocks``), and
        O(requests) once a pass.

        Raises:
            PoolPoisonedError: An invariant is broken; the message names it. Every later operation raises it, too.

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

@final
class Step:
    """A step being planned: operations that are committed together or not at all.

    Comes from ``CacheManager.begin_step``. Planning touches nothing: each operation is checked against what
    the plan leaves available, and refused without harm to the plan. A step names each request once, and is
    stale as soon as the manager changes otherwise. ``len(step)`` is the number of operations planned. As a
    context manager it rolls back on exit unless it was committed.

    >>> manager = kvpool.CacheManager(num_blocks=5, block_size=4)
    >>> _ = manager.admit("old", range(12))
    >>> step = manager.begin_step()
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
    ) -> int:
        """Plans an admission and returns how many tokens would be cached.

        O(blocks), plus hashing if the prompt is not prepared. Hints are those of ``CacheManager.admit``. To end a
        session in a step, say ``end_of_life`` before the step is begun.

        Raises:
            OutOfBlocksError: Too few blocks are left by the plan.
            DuplicateRequestError: The id is known already, or named in this step.
            InvalidArgumentError: The prompt is empty or was hashed with other settings, ``extra`` is given with a
                prepared prompt, or a hint is out of range.
            NoRetentionError: There are hints, and the manager has no retention.
            StaleEpochError: The prompt was prepared before the last epoch bump.
            StaleStepError: The manager has changed, or the step is over.
            TokenError: A token is out of range.
            TokenTypeError: Tokens or id are of a type or dtype that is not taken.
            HashingError: The algorithm cannot represent these extra keys.
        """
    def resume(self, request_id: RequestId) -> int:
        """Plans to resume a preempted request and returns how many tokens would be cached.

        Tokens that were hashed before the last epoch bump are hashed again. O(blocks); O(tokens) with such.

        Raises:
            OutOfBlocksError: Too few blocks are left by the plan.
            UnknownRequestError: No request has this id.
            RequestStateError: The request is running.
            DuplicateRequestError: The request is named in this step already.
            StaleStepError: The manager has changed, or the step is over.
            TokenTypeError: The id is neither a str nor an int.
        """
    def append(self, request_id: RequestId, token_ids: Tokens) -> int:
        """Plans to append tokens to a running request and returns how many blocks that adds.

        O(tokens).

        Raises:
            OutOfBlocksError: Too few blocks are left by the plan.
            UnknownRequestError: No request has this id.
            RequestStateError: The request is preempted.
            DuplicateRequestError: The request is named in this step already.
            StaleStepError: The manager has changed, or the step is over.
            TokenError: A token is out of range.
            TokenTypeError: Tokens or id are of a type or dtype that is not taken.
        """
    def preempt(self, request_id: RequestId, *, after_step: int | None = None) -> int:
        """Plans to preempt a running request and returns how many blocks that makes available.

        O(blocks). Fenced blocks become available later: with ``after_step`` the answer is 0, unless that step
        is complete.

        Raises:
            UnknownRequestError: No request has this id.
            RequestStateError: The request is preempted already.
            DuplicateRequestError: The request is named in this step already.
            StaleStepError: The manager has changed, or the step is over.
            TokenTypeError: The id is neither a str nor an int.
        """
    def release(self, request_id: RequestId, *, after_step: int | None = None) -> int:
        """Plans to release a request and returns how many blocks that makes available.

        O(blocks). Fenced blocks become available later: with ``after_step`` the answer is 0, unless that step
        is complete.

        Raises:
            UnknownRequestError: No request has this id.
            DuplicateRequestError: The request is named in this step already.
            StaleStepError: The manager has changed, or the step is over.
            TokenTypeError: The id is neither a str nor an int.
        """
    @property
    def available_blocks(self) -> int:
        """Blocks that would still be available after the operations so far.

        Raises:
            StaleStepError: The step is over.
        """
    def commit(self) -> list[Admission | list[tuple[int, int]] | None]:
        """Does all that is planned, and ends the step.

        All hits are acquired first, then blocks are released, then allocated, so that no planned hit is
        evicted on the way. O(blocks).

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
    def num_blocks(self) -> int:
        """Blocks of the whole block table."""
    @property
    def block_ids(self) -> list[int]:
        """The whole block table; empty if it was written to a buffer of the caller.

        A new list at each access: O(blocks).
        """
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class RequestInfo:
    """What the manager knows of a request."""

    @property
    def state(self) -> Literal["running", "preempted", "swapped", "moving"]:
        """Whether it holds blocks, and where: running, preempted, swapped or moving."""
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
    def blocks(self) -> int:
        """Blocks in its block table."""
    @property
    def tier(self) -> int:
        """The tier of its blocks: 0, or 1 if it is swapped out."""
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
class Retention:
    """How much blocks are worth keeping, and until when.

    Blocks are evicted in this order: demoted ones; those of tenants above their ceilings; by priority, lowest first,
    where 35 is left to the pool's policy; those of tenants at or under their floors; pinned ones. In all of them a
    block waits for the cached blocks that hang on it. docs/retention.md has the whole story.

    Args:
        priority: From 0, evicted first, to 100. 35 is what blocks have that nobody said anything of.
        ttl: Seconds after which this ends, on the clock of ``advance_time``; None is as long as the content is cached.
            What would end beyond the largest float ends with it.
        idle: Whether the seconds pass only while nobody uses the block: from its last release, anew after each use.
        then: What comes after: ``"normal"``, as if nothing had been said, or ``"demote"``, the first to go.
        pinned: The last to go; beyond the budget of ``RetentionConfig`` it is priority 100.
        demoted: The first to go: it will not be used again. A hit takes that back.

    Raises:
        InvalidArgumentError: A priority above 100, a ``ttl`` that is negative or not a number, ``idle`` without one, or
            more than one of priority, pinned and demoted.

    >>> kvpool.Retention(80, ttl=300, idle=True)
    Retention(80, ttl=300.0, idle=True)
    >>> kvpool.Retention(pinned=True, ttl=3600, then="demote")
    Retention(pinned=True, ttl=3600.0, then='demote')
    """

    def __new__(
        cls,
        priority: int = 35,
        *,
        ttl: float | None = None,
        idle: bool = False,
        then: Literal["normal", "demote"] = "normal",
        pinned: bool = False,
        demoted: bool = False,
    ) -> Self: ...
    @property
    def priority(self) -> int | None:
        """From 0, evicted first, to 100; 35 is left to the pool's policy. None if pinned or demoted."""
    @property
    def ttl(self) -> float | None:
        """Seconds after which it ends, or None."""
    @property
    def idle(self) -> bool:
        """Whether the seconds count from the last use, not from the hint."""
    @property
    def then(self) -> Literal["normal", "demote"]:
        """What comes after the ttl: normal or demote."""
    @property
    def pinned(self) -> bool:
        """Whether the blocks go last, within the budget."""
    @property
    def demoted(self) -> bool:
        """Whether the blocks go first."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class TenantLimits:
    """What a tenant may count on, and what it may take while others need blocks.

    Args:
        tenant: The tenant, a number of 32 bits of the caller's.
        floor: Blocks that others do not evict while anything else is evictable.
        ceiling: Blocks above which its own are evicted first; None is no ceiling.

    Raises:
        InvalidArgumentError: A number is out of range.

    >>> kvpool.TenantLimits(7, floor=100, ceiling=400)
    TenantLimits(7, floor=100, ceiling=400)
    """

    def __new__(cls, tenant: int, *, floor: int = 0, ceiling: int | None = None) -> Self: ...
    @property
    def tenant(self) -> int:
        """Whose."""
    @property
    def floor(self) -> int:
        """Blocks that others do not evict while anything else is evictable."""
    @property
    def ceiling(self) -> int | None:
        """Blocks above which its own are evicted first, or None."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class RetentionConfig:
    """Settings of retention.

    Args:
        pin_budget: The most blocks that are pinned at once; pins beyond it are kept at priority 100.
        tenants: Limits by tenant, at most 200. Tenants that are not named have none.

    Raises:
        InvalidArgumentError: A number is negative. Whether pins and floors fit is checked by the pool that is made
            with it.

    >>> retention = kvpool.RetentionConfig(pin_budget=8, tenants=[kvpool.TenantLimits(1, ceiling=32)])
    >>> kvpool.BlockPool(num_blocks=64, retention=retention).retention_stats()
    RetentionStats(demoted=0, below_normal=0, above_normal=0, pinned=0, with_ttl=0, expired=0)
    """

    def __new__(cls, *, pin_budget: int = 0, tenants: Sequence[TenantLimits] = ()) -> Self: ...
    @property
    def pin_budget(self) -> int:
        """The most blocks that are pinned at once."""
    @property
    def tenants(self) -> list[TenantLimits]:
        """Limits by tenant."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class AdvisorConfig:
    """Settings of the advisor of a pool.

    Args:
        max_sampled_blocks: Blocks that are followed at most, 64 to ``2**24``. An eighth of it stands for the pool: the
            estimates' error falls with its square root.
        sample_every: Samples at most one block in so many, 1 or more: less work on a small pool.
        policies: Names of the policies that a ghost cache of the pool's size is kept of, each once; not
            ``"last-accessed"``, which needs access times.
        max_tenants: Tenants that are counted apart at once, 0 to 1024.
        window: Block references after which all that was counted is halved, 1 or more; None is 16 times the pool's
            blocks, and 65,536 at least.
        seed: Picks the sample; all values are equally good.

    Raises:
        InvalidArgumentError: A setting is out of range; a policy is unknown, named twice or needs access times.

    >>> pool = kvpool.BlockPool(num_blocks=4097, advisor=kvpool.AdvisorConfig(policies=["lru", "arc"]))
    >>> advice = pool.advice()
    >>> advice["capacity_blocks"], advice["sample_rate"], [policy["name"] for policy in advice["policies"]]
    (4096, 0.5, ['lru', 'arc'])
    """

    def __new__(
        cls,
        *,
        max_sampled_blocks: int = 16384,
        sample_every: int = 1,
        policies: Iterable[str] = ("lru", "s3-fifo", "arc", "lfu-da", "adaptive"),
        max_tenants: int = 8,
        window: int | None = None,
        seed: int = 0,
    ) -> Self: ...
    @property
    def max_sampled_blocks(self) -> int:
        """Blocks that are followed at most; an eighth of them stands for the pool."""
    @property
    def sample_every(self) -> int:
        """Samples at most one block in so many."""
    @property
    def policies(self) -> list[str]:
        """Names of the policies that a ghost cache of the pool's size is kept of."""
    @property
    def max_tenants(self) -> int:
        """Tenants that are counted apart at once."""
    @property
    def window(self) -> int | None:
        """Block references after which all that was counted is halved; None leaves it to the pool."""
    @property
    def seed(self) -> int:
        """Picks the sample."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class ExplainConfig:
    """Settings of what is remembered to explain misses.

    Args:
        records: Contents of blocks that are remembered, 16 to ``2**24``, each in 95 bytes and 4 per token; None is
            twice the pool's usable blocks, 1,024 at least and ``2**20`` at most.
        requests: Released requests that can still be explained, at most ``2**20``.

    Raises:
        InvalidArgumentError: A setting is out of range.

    >>> kvpool.CacheManager(num_blocks=64, explain=kvpool.ExplainConfig(records=4096)).stats().misses
    {}
    """

    def __new__(cls, *, records: int | None = None, requests: int = 1024) -> Self: ...
    @property
    def records(self) -> int | None:
        """Contents of blocks that are remembered; None leaves it to the pool."""
    @property
    def requests(self) -> int:
        """Released requests that can still be explained."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class MissSpan:
    """Blocks, one after the other, that had to be computed for the same reason.

    ``str`` is a line for a person.
    """

    @property
    def blocks(self) -> tuple[int, int]:
        """The first block's position in the block table, and the position after the last."""
    @property
    def tokens(self) -> tuple[int, int]:
        """The first token's position in the prompt, and the position after the last."""
    @property
    def reason(self) -> str:
        """The name of the reason.

        One of ``never-seen``, ``not-remembered``, ``diverged``, ``evicted``, ``expired``, ``end-of-life``,
        ``tenant-ceiling``, ``dropped-by-id``, ``reset``, ``other-epoch``, ``other-salt``, ``other-adapter``,
        ``other-keys``, ``being-computed``, ``not-computed``, ``collision``, ``unreachable``, ``behind``,
        ``last-token`` and ``too-short``.
        """
    @property
    def token(self) -> int | None:
        """The first token that differs from what was seen before, or None."""
    @property
    def epoch(self) -> int | None:
        """The epoch that it was seen in, or None."""
    @property
    def admission(self) -> int | None:
        """Admissions and resumptions until it left the cache, or None.

        Of several blocks that of the first, which of a chain goes last.
        """
    @property
    def time(self) -> float | None:
        """The time that retention had been told when it left the cache, or None."""
    @property
    def policy(self) -> str | None:
        """The policy that evicted it, or None.

        ``"priority"`` if retention had put it in a rank of its own.
        """
    @property
    def request(self) -> RequestId | None:
        """The request that it was evicted for, or that computes it, or None."""
    @property
    def another(self) -> bool:
        """Whether that is a request of another tenant, salt or user, whose id is not told."""
    def to_dict(self) -> dict[str, Any]:
        """Returns the span as a dict, without what is None."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class Explanation:
    """Why a request had to compute what it did.

    ``str`` is a text for a person: a line for the request, and one per span.
    """

    @property
    def request_id(self) -> RequestId:
        """The id of the request."""
    @property
    def admission(self) -> int:
        """Which admission it was, resumptions included, counted from 1."""
    @property
    def resumed(self) -> bool:
        """Whether the request was resumed: its tokens are those that it had by then."""
    @property
    def block_size(self) -> int:
        """Tokens per block."""
    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompt."""
    @property
    def cached_tokens(self) -> int:
        """Of the prompt's tokens, those whose KV was cached."""
    @property
    def spans(self) -> list[MissSpan]:
        """What was missed, from the first missed block to the end of the prompt."""
    def to_dict(self) -> dict[str, Any]:
        """Returns the explanation as a dict of numbers, names and lists."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class HintReport:
    """What became of a hint, by blocks."""

    @property
    def accepted(self) -> int:
        """Blocks on which it took effect as asked."""
    @property
    def clipped(self) -> int:
        """Blocks on which it took effect in part: pins beyond the budget are kept at the highest priority."""
    @property
    def ignored(self) -> int:
        """Blocks on which it had no effect: not cached, or held by others when their end of life was said."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class RetentionStats:
    """How many blocks are retained how, now."""

    @property
    def demoted(self) -> int:
        """Blocks demoted, held ones included."""
    @property
    def below_normal(self) -> int:
        """Blocks below the normal priority."""
    @property
    def above_normal(self) -> int:
        """Blocks above the normal priority."""
    @property
    def pinned(self) -> int:
        """Blocks pinned."""
    @property
    def with_ttl(self) -> int:
        """Times to live that are running: idle ones of blocks in use are not."""
    @property
    def expired(self) -> int:
        """Times to live that have run out so far."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class ManagerStats:
    """Counts of a manager, in requests and tokens.

    ``hit_tokens + computed_tokens == prompt_tokens``, always: each request counts once, at its first
    admission.
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
    def admissions(self) -> int:
        """Requests admitted so far."""
    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of the admitted requests."""
    @property
    def hit_tokens(self) -> int:
        """Of the prompt tokens, those whose KV was cached."""
    @property
    def computed_tokens(self) -> int:
        """Of the prompt tokens, those that the engine had to compute."""
    @property
    def refusals(self) -> int:
        """Admissions and resumptions refused for want of blocks."""
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
        """Blocks that nobody holds and a hit can take; an allocation may evict them."""
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
        """Of the blocks handed out, those that held cached content until then."""
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

@final
class BlockPool:
    """Blocks of one tier: allocation, prefix cache and eviction.

    For engines that keep their own block tables; others use ``CacheManager``. Every operation is all or
    nothing.

    Args:
        num_blocks: Blocks, null block included; ids run from 1 to ``num_blocks - 1``. At least 2.
        block_size: Tokens per block. At least 1.
        verify: One of ``verify_modes()``; chains must come from a hasher with at least this mode.
        duplicates: What happens to a released block whose content another cached block holds: ``"keep"``, or
            ``"drop-on-release"``.
        eviction: Which cached-free block is reused first: one of ``eviction_policies()``, or a ``Policy`` of your own.
            With ``"last-accessed"``, ``mark_accessed`` says.
        retention: Priorities, times to live, pins and tenants' limits: a ``RetentionConfig``, or True for one without
            pins and limits. Without it hints are refused, and cost nothing.
        advisor: Estimates other sizes and policies from the lookups: an ``AdvisorConfig``, or True for the defaults.
            ``advice`` says what it found. Without one it costs nothing.
        event_capacity: Events kept until ``take_events``; 0 records none.
        journal: Records every operation: a ``Journal``. Not for a ``Policy`` of your own, which could not be replayed.
        digest: Keeps a digest of the state, for ``state_digest``, and lets ``scrub`` find reference counts that were
            changed behind the pool's back. 24 bytes per block.

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
        verify: str = "none",
        duplicates: str = "keep",
        eviction: str | _Policy = "lru",
        retention: RetentionConfig | bool | None = None,
        advisor: AdvisorConfig | bool | None = None,
        event_capacity: int = 0,
        journal: Journal | None = None,
        digest: bool = False,
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
            TokenTypeError: ``out`` is not a writable, contiguous, 1-D int32 buffer.

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
            TokenTypeError: The ids are of a type or dtype that is not taken.
        """
    def release(self, block_ids: BlockIds, *, until: int | None = None) -> None:
        """Drops one reference per id.

        Blocks without further references become cached-free if they are registered and computed, else free. With a
        ticket they become so when it ends, and a hit on them succeeds until then. O(1) per block.

        Args:
            block_ids: The blocks; one that is named twice loses two references.
            until: A ticket of ``fence``: the step or transfer that may still touch the blocks.

        Raises:
            InvalidBlockError: An id is unknown, the null block, or named more often than it has references (a
                double free).
            InvalidArgumentError: The ticket is not open.
            TokenTypeError: The ids are of a type or dtype that is not taken.
        """
    def fence(self) -> int:
        """Opens a fence and returns its ticket.

        Blocks that are released ``until`` the ticket cannot be allocated before ``end_fence``. Tickets end in any
        order. O(1).

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
        """Ends a fence and returns how many references it held. O(those references).

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
            TokenTypeError: The ids are of a type or dtype that is not taken.
        """
    def release_after(self, block_ids: BlockIds, step: int) -> None:
        """Releases blocks that a running step may still touch: they are fenced until it completes.

        Until then a hit on them still succeeds. If the step is complete already they are released at once.
        O(1) per block.

        Args:
            block_ids: The blocks.
            step: The engine's number of the step, 0 to ``2**64 - 1``.

        Raises:
            InvalidBlockError: An id is unknown, the null block, or named more often than it has references (a
                double free).
            TokenTypeError: The ids are of a type or dtype that is not taken.
        """
    def complete_step(self, step: int) -> int:
        """Ends the fences of a step and of all earlier steps, and returns how many references they held.

        O(those references). Completing a step twice, or one that fenced nothing, is fine.

        Raises:
            PoolPoisonedError: The pool refuses all work.
        """
    def register(self, block_ids: BlockIds, chain: HashChain, start: int = 0) -> int:
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
            TokenTypeError: The ids are of a type or dtype that is not taken.
        """
    def mark_computed(self, block_ids: BlockIds) -> None:
        """Says that the KV of registered blocks is written: lookups may return them.

        O(1) per block. A block that is computed stays so.

        Raises:
            InvalidBlockError: An id is unknown, the null block, or not registered.
            TokenTypeError: The ids are of a type or dtype that is not taken.
        """
    def match_and_acquire(
        self, chain: HashChain, max_blocks: int | None = None, *, tenant: int | None = None
    ) -> list[int]:
        """Finds the longest cached prefix of a chain and acquires it: one reference per block for the caller.

        Only computed blocks match; the walk stops at the first that does not. O(blocks matched).

        Args:
            chain: Hashes of the prompt.
            max_blocks: The longest match wanted; all of the chain by default. An engine that must compute the
                last prompt token asks for ``(tokens - 1) // block_size``.
            tenant: Whom the advisor counts it for.

        Raises:
            InvalidArgumentError: The chain is of another block size, algorithm or verification than the pool; the
                tenant is not a number of 32 bits.
            StaleEpochError: The chain belongs to another epoch.
        """
    def probe(self, chain: HashChain, max_blocks: int | None = None) -> Probe:
        """Says what a lookup would find now; changes nothing and counts nothing.

        O(blocks matched).

        Raises:
            InvalidArgumentError: The chain is of another block size, algorithm or verification than the pool.
            StaleEpochError: The chain belongs to another epoch.
        """
    def evict(self, block_ids: BlockIds) -> int:
        """Drops blocks from the prefix index by id and returns how many were registered.

        Cached-free ones become free; held ones stay with their holders and become free when released. O(1)
        per block.

        Raises:
            InvalidBlockError: An id is unknown, or the null block.
            TokenTypeError: The ids are of a type or dtype that is not taken.
        """
    def reset(self) -> int:
        """Forgets all cached content of every tier and returns how many blocks were registered.

        Nothing has changed if it is refused. O(usable blocks).

        Raises:
            BlocksInUseError: Blocks of a tier are active or fenced; ``bump_epoch`` always works.
        """
    def bump_epoch(self) -> int:
        """Starts a new epoch in every tier, for instance after a change of weights, and returns its number.

        Nothing registered before is ever matched again, and chains of earlier epochs are refused. O(usable
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
        """Returns the blocks registered under a digest, computed ones first: a look, not a hold.

        O(copies). Computed ones are in the order in which they became so: lookups return the first, and when that
        one goes the next. Another call may take a block of the answer: ``match_and_acquire`` and
        ``acquire_registered`` hold what they return.

        Raises:
            HashingError: The digest is not as long as those of the pool's algorithm.
        """
    def promote(self, block_id: int, link: ChainLink) -> int:
        """Registers a held, full block under its link, or exchanges it for one that holds the content already.

        If the content is registered, by a block that is computed or that a holder is computing, that block is
        acquired, the caller's is released, and the other id is returned. A collision is counted and leaves the
        block unregistered. O(1).

        Raises:
            InvalidBlockError: Nobody holds the block, it is registered already, or the id is unknown.
            StaleEpochError: The link was hashed in another epoch.
            InvalidArgumentError: Another algorithm or block size than the pool's, or no fingerprint to verify.
        """
    def acquire_registered(self, link: ChainLink) -> int | None:
        """Acquires the block registered under a link, computed or not, or returns None.

        One that is not computed yet is for holders that all compute what they share, as vLLM v0's do;
        ``match_and_acquire`` never returns one. O(1).

        Raises:
            StaleEpochError: The link was hashed in another epoch.
            InvalidArgumentError: Another algorithm or block size than the pool's, or no fingerprint to verify.
        """
    def mark_accessed(self, block_ids: BlockIds, time: float) -> None:
        """Says when blocks were accessed, for policies that order by it.

        Held and cached-free blocks only. An access is never moved back in time; policies other than
        ``"last-accessed"`` ignore it. O(log blocks) per block.

        Raises:
            InvalidBlockError: A block is free, or its id unknown.
            InvalidArgumentError: The time is not a number.
        """
    def retain(self, block_ids: BlockIds, retention: Retention) -> HintReport:
        """Says how long blocks are worth keeping, and returns what became of it.

        Held or cached-free. Blocks without cached content are ignored, and so are those that several hold, if their
        end of life is said. What is said holds as long as the content is cached, or until something else is. O(1) per
        block, O(log blocks) with a time to live.

        Raises:
            InvalidBlockError: An id is unknown, or the null block.
            InvalidArgumentError: There is a time to live and was no ``advance_time``.
            NoRetentionError: The pool has no retention.
            TokenTypeError: The ids are of a type or dtype that is not taken.

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
        """Says whose blocks are: they count towards the limits of the tenant while their content is cached.

        A block that is somebody's already stays so; blocks without cached content, and tenants without limits, are
        ignored. O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, or the null block.
            InvalidArgumentError: The tenant is not a number of 32 bits.
            NoRetentionError: The pool has no retention.
            TokenTypeError: The ids are of a type or dtype that is not taken.
        """
    def advance_time(self, now: float) -> int:
        """Lets time pass, in seconds on a clock of the caller's, and returns how many retentions ran out.

        Times to live count from the time that was given last. O(log blocks) for each that runs out.

        Raises:
            TimeBackwardsError: An earlier call gave a later time.
            InvalidArgumentError: Not a number.
            NoRetentionError: The pool has no retention.
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
        """Says what the pool's traffic tells of other sizes, policies and tenants; None without an advisor.

        Some 50 us, while other threads go on. docs/advisor.md says how to read it.
        """
    def check_policy(self) -> None:
        """Raises what ended the pool's policy, if that is one written in Python and has failed.

        ``kvpool.policies`` says what counts as a failure. O(1).

        Raises:
            PolicyError: The policy is used no more; the cause says why.
        """
    def state(self, block_id: int) -> Literal["null", "free", "cached-free", "active", "fenced"]:
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

        Without a journal nothing happens. It is also flushed when the object goes, and when an invariant breaks.

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

        For production: a few blocks per step, round and round. Each block is in exactly one place, its links are
        mirrored by its neighbours, the index leads to it, and the sums of the pool hold; with ``digest=True`` its
        references and content are what the last operation left. O(``blocks``).

        Args:
            blocks: How many, the null block included; never a block twice in one call.

        Raises:
            PoolPoisonedError: An invariant is broken; the message names it. Every later operation raises it, too.

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
class TieredPool:
    """Several pools, one per tier, and the copies between their blocks.

    Tier 0 is the device. A copy is planned by the call that makes it necessary; its source and destination are
    pinned, neither freed nor handed out, until ``take_plan`` has handed the copy out. ``bump_epoch`` and ``reset``
    of any of the pools are for all of them.

    Args:
        num_blocks: Blocks per tier, null block included.
        block_size: Tokens per block. At least 1.
        verify: As in ``BlockPool``.
        duplicates: As in ``BlockPool``.
        eviction: As in ``BlockPool``.
        event_capacity: As in ``BlockPool``.

    Raises:
        InvalidArgumentError: A setting is out of range, or there is no tier.

    >>> tiers = kvpool.TieredPool([8, 8], block_size=4)
    >>> device, host = tiers.pools
    >>> table = device.allocate(2)
    >>> device.acquire(table)  # a second holder
    >>> tiers.copy_on_write(table[1])  # one of them writes
    3
    >>> swap = tiers.begin_swap([1, 1, 2, 3], src=0, dst=1)  # one entry per reference
    >>> tiers.take_plan().transfers  # to be executed before the step writes; block 3 is still block 2 then
    [((0, 2), (0, 3)), ((0, 1), (1, 1)), ((0, 2), (1, 2)), ((0, 2), (1, 3))]
    >>> swap.complete()
    {1: 1, 2: 2, 3: 3}
    >>> host.ref_count(1)
    2
    """

    def __new__(
        cls,
        num_blocks: Sequence[int],
        block_size: int = 16,
        *,
        verify: str = "none",
        duplicates: str = "keep",
        eviction: str = "lru",
        event_capacity: int = 0,
    ) -> Self: ...
    @property
    def pools(self) -> tuple[BlockPool, ...]:
        """The tiers' pools, over the same state and lock."""
    def copy_on_write(self, block_id: int, *, tier: int = 0, fences: bool = True) -> int:
        """Returns the block that a holder of this one may write to: itself, or a copy that is planned.

        Itself if nobody else holds it, no running step may still touch it, and it is not registered. Else a new
        block; the caller's reference to the old one is given up. O(1).

        Args:
            block_id: A block that the caller holds.
            tier: Its tier.
            fences: Whether a fence forbids to write. Not for callers whose fences only keep blocks from being handed
                out.

        Raises:
            OutOfBlocksError: There is no block for the copy.
            InvalidBlockError: Nobody holds the block, or the id is unknown.
            InvalidArgumentError: There is no such tier.
        """
    def pending_copies(self) -> list[BlockMove]:
        """Returns the copies that are planned and not yet handed out, in order.

        O(copies).
        """
    def take_plan(self) -> TransferPlan:
        """Hands out all planned copies as one plan.

        Copies whose destination nobody holds any more are left out. Execute it before anything else of the step
        writes to a block: from now on its sources may be freed and handed out. O(copies).
        """
    def begin_swap(self, block_ids: BlockIds, *, src: int, dst: int) -> Swap:
        """Begins to move references from one tier to another.

        One entry per reference: a block that two tables share is named twice, moves once and is shared there too.
        Content that the destination caches is not copied; null blocks are skipped. The source references stay
        until ``Swap.complete``, and must not be released before. O(blocks).

        Raises:
            OutOfBlocksError: The destination has too few blocks.
            InvalidBlockError: An id is unknown, or named more often than it has holders.
            InvalidArgumentError: There is no such tier, or both are one.
        """
    def fit_swap(self, block_ids: BlockIds, *, src: int, dst: int, reserve: int = 0) -> Literal["ok", "later", "never"]:
        """Says whether a swap would find its blocks: ok, later or never.

        With ``reserve`` blocks to be left in the destination. Changes nothing. O(blocks).

        Raises:
            InvalidBlockError: An id is unknown, or named more often than it has holders.
            InvalidArgumentError: There is no such tier, or both are one.
        """
    def check_invariants(self) -> None:
        """Recounts pools, planned copies and swaps from scratch.

        O(blocks).

        Raises:
            InvariantError: One is broken; the message names it.
        """
    def __len__(self) -> int: ...

@final
class Swap:
    """A swap: begun, and to be completed or aborted.

    Comes from ``TieredPool.begin_swap``. ``len(swap)`` is the number of distinct blocks.
    """

    @property
    def mapping(self) -> dict[int, int]:
        """Source block -> destination block, in order of first appearance."""
    @property
    def copies(self) -> list[tuple[int, int]]:
        """The pairs of the mapping whose bytes have to be copied."""
    def complete(self) -> dict[int, int]:
        """Ends the swap after its copies are done: the destination blocks take over.

        The source references are dropped; registered blocks are registered in the destination, and stay cached in
        the source until they are evicted. Returns the mapping. O(blocks).

        Raises:
            SwapError: It is over, or its copies have not been taken with ``take_plan``.
            InvalidBlockError: A source reference was released meanwhile.
        """
    def abort(self) -> None:
        """Takes the swap back.

        The destination blocks are released; everything is as before it was begun. O(blocks).

        Raises:
            SwapError: It is over.
        """
    def __len__(self) -> int: ...

@final
class TransferPlan:
    """Copies of one step, as plain data.

    They are one simultaneous assignment: each reads what its source held before any was written. ``len(plan)`` is
    the number of transfers. Plans with the same transfers are equal.

    Args:
        transfers: Pairs of source and destination, each a pair of tier and block.

    Raises:
        InvalidArgumentError: A block is written twice, or is the null block.

    >>> plan = kvpool.TransferPlan([((0, 1), (0, 2)), ((0, 2), (0, 3))])
    >>> plan.rounds()  # block 2 is read before it is written
    [[((0, 2), (0, 3))], [((0, 1), (0, 2))]]
    """

    def __new__(cls, transfers: Sequence[BlockMove]) -> Self: ...
    @property
    def transfers(self) -> list[BlockMove]:
        """The transfers in the order in which they were planned."""
    def rounds(self, scratch: Sequence[tuple[int, int]] | None = None) -> list[list[BlockMove]]:
        """Splits the plan into rounds that are executed one after the other.

        Within a round nothing is read that the round writes: any order, or all at once. O(n log n).

        Args:
            scratch: Blocks whose content may be lost, one for each cycle of the plan.

        Raises:
            InvalidArgumentError: Too few scratch blocks, or one that the plan uses.
        """
    def runs(
        self, scratch: Sequence[tuple[int, int]] | None = None
    ) -> list[list[tuple[tuple[int, int], tuple[int, int], int]]]:
        """The rounds, with consecutive blocks merged: source, destination, length.

        O(n log n).

        Args:
            scratch: As in ``rounds``.

        Raises:
            InvalidArgumentError: As in ``rounds``.
        """
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...

@final
class Sequences:
    """Block tables by handle, over the pools of one or more tiers.

    For engines that name their sequences themselves. A handle is an int that is refused once its sequence is freed.
    Within a step: append and fork; then ``take_plan``, executed before the step writes KV; then every sequence
    computes its tokens from ``computed_tokens`` on; then ``commit``.

    Args:
        num_blocks: Blocks per tier, null block included.
        hasher: Hashes the prompts; its block size and verification are the pools'.
        duplicates: As in ``BlockPool``.
        eviction: As in ``BlockPool``.
        event_capacity: As in ``BlockPool``.

    Raises:
        InvalidArgumentError: A setting is out of range, or there is no tier.

    >>> sequences = kvpool.Sequences([16, 16], kvpool.BlockHasher(block_size=4))
    >>> a = sequences.admit([1, 2, 3, 4, 5, 6])
    >>> b = sequences.fork(a)
    >>> sequences.append(a, [7])  # a gets a tail of its own: position 1 of its table is block 3
    [(1, 3)]
    >>> sequences.take_plan().transfers
    [((0, 2), (0, 3))]
    >>> sequences.free(b)
    >>> b in sequences
    False
    """

    def __new__(
        cls,
        num_blocks: Sequence[int],
        hasher: BlockHasher,
        *,
        duplicates: str = "keep",
        eviction: str = "lru",
        event_capacity: int = 0,
    ) -> Self: ...
    def admit(self, prompt: Tokens | HashCursor, extra: ExtraKeys | None = None, *, tier: int = 0) -> int:
        """Admits a sequence and returns its handle.

        Acquires the cached prefix of its prompt and allocates the rest; the last token is always left to compute.
        O(blocks), and O(tokens) to hash them.

        Raises:
            OutOfBlocksError: The tier has too few blocks.
            InvalidArgumentError: No tokens, another hasher's prompt, no such tier.
            StaleEpochError: The prompt was hashed before the last epoch bump.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
        """
    def fit(self, num_tokens: int, *, tier: int = 0, reserve: int = 0) -> Literal["ok", "later", "never"]:
        """Says whether so many tokens could be admitted: ok, later or never.

        Nothing of them cached, and with ``reserve`` blocks to be left. O(1).

        Raises:
            InvalidArgumentError: There is no such tier.
        """
    def append(self, sequence: int, token_ids: Tokens, *, lookahead: int = 0) -> list[tuple[int, int]]:
        """Appends tokens and makes room for more; returns the positions of the table that changed.

        Pairs of position and block: new blocks at the end, and copies in the place of shared or registered blocks,
        which are planned. All or nothing. O(tokens).

        Args:
            sequence: Its handle.
            token_ids: The tokens.
            lookahead: Slots behind them that get blocks, too: for drafts.

        Raises:
            OutOfBlocksError: The tier has too few blocks.
            StaleSequenceError: The handle's sequence was freed.
            SwapError: The sequence is being swapped.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
        """
    def commit(self, sequence: int, computed_tokens: int, *, dedupe: bool = False) -> list[tuple[int, int]]:
        """Says that the first tokens are computed; returns the positions of the table that changed.

        Blocks that this fills are registered. With ``dedupe`` a block whose content is cached already is exchanged
        for the cached one; else nothing changes. O(new full blocks).

        Raises:
            InvalidArgumentError: More than its tokens, or fewer than before.
            StaleSequenceError: The handle's sequence was freed.
            SwapError: The sequence is being swapped.
        """
    def truncate(self, sequence: int, num_tokens: int) -> None:
        """Keeps the first tokens.

        For instance after drafts were rejected. Blocks behind are released, lookahead included. A registered tail
        is copied by the next append. O(blocks released).

        Raises:
            InvalidArgumentError: More than its tokens, or fewer than the window has left.
            StaleSequenceError: The handle's sequence was freed.
            SwapError: The sequence is being swapped.
        """
    def trim_window(self, sequence: int, window: int) -> int:
        """Releases the blocks that fell out of a window and returns how many.

        Those wholly more than ``window`` tokens before the computed end; block 0 takes their places.
        O(blocks released).

        Raises:
            StaleSequenceError: The handle's sequence was freed.
            SwapError: The sequence is being swapped.
        """
    def fork(self, sequence: int) -> int:
        """Makes a second sequence over the same blocks and returns its handle.

        O(blocks + tokens).

        Raises:
            StaleSequenceError: The handle's sequence was freed.
            SwapError: The sequence is being swapped.
        """
    def free(self, sequence: int, *, after_step: int | None = None) -> None:
        """Ends a sequence.

        Its blocks lose one reference each, tail first; with ``after_step`` when that step completes. O(blocks).

        Raises:
            StaleSequenceError: The handle's sequence was freed.
            SwapError: The sequence is being swapped.
        """
    @overload
    def block_ids(self, sequence: int, *, out: None = None) -> list[int]:
        """Returns the block table, or writes it to a buffer and returns its length.

        Trimmed blocks are block 0. O(blocks).

        Raises:
            StaleSequenceError: The handle's sequence was freed.
            InvalidArgumentError: ``out`` is too short.
            TokenTypeError: ``out`` is of a type that is not taken.
        """
    @overload
    def block_ids(self, sequence: int, *, out: _Array) -> int: ...
    def info(self, sequence: int) -> SequenceInfo:
        """Returns what is known of a sequence.

        O(1).

        Raises:
            StaleSequenceError: The handle's sequence was freed.
        """
    def take_plan(self) -> TransferPlan:
        """Hands out all planned copies as one plan.

        As ``TieredPool.take_plan``.
        """
    def begin_swap(self, sequences: Sequence[int], to: int) -> int:
        """Begins to move a group of sequences to another tier and returns the swap's number.

        What they share moves once and stays shared. Until the swap is over they can only be looked at. O(blocks).

        Raises:
            OutOfBlocksError: The tier has too few blocks.
            StaleSequenceError: A handle's sequence was freed.
            SwapError: A sequence is being swapped already.
            InvalidArgumentError: A sequence is named twice, they are in several tiers, or there is no such tier.
        """
    def fit_swap(self, sequences: Sequence[int], to: int, *, reserve: int = 0) -> Literal["ok", "later", "never"]:
        """Says whether a swap would find its blocks: ok, later or never.

        With ``reserve`` blocks to be left in the tier. Changes nothing. O(blocks).

        Raises:
            StaleSequenceError: A handle's sequence was freed.
            SwapError: A sequence is being swapped already.
            InvalidArgumentError: A sequence is named twice, they are in several tiers, or there is no such tier.
        """
    def complete_swap(self, swap: int) -> dict[int, int]:
        """Ends a swap whose copies are done and returns old block -> new block.

        O(blocks).

        Raises:
            SwapError: It is over, or its copies have not been taken with ``take_plan``.
        """
    def abort_swap(self, swap: int) -> None:
        """Takes a swap back.

        Everything is as before it was begun. O(blocks).

        Raises:
            SwapError: It is over.
        """
    def complete_step(self, step: int) -> int:
        """Ends the fences of a step and of all earlier steps in every tier.

        Returns how many references they held.
        """
    def bump_epoch(self) -> int:
        """Starts a new epoch in every tier and returns its number.

        Sequences go on and are never published again. O(blocks).
        """
    def reset(self) -> int:
        """Forgets all cached content of every tier and returns how many blocks were registered.

        Nothing has changed if it is refused. O(blocks).

        Raises:
            BlocksInUseError: Sequences, fences or swaps hold blocks of a tier; ``bump_epoch`` always works.
        """
    def stats(self, *, tier: int = 0) -> PoolStats:
        """Returns the counters and gauges of a tier's pool.

        O(1).

        Raises:
            InvalidArgumentError: There is no such tier.
        """
    def take_events(self, *, tier: int = 0) -> tuple[list[BlockEvent], int]:
        """Returns the events of a tier since the last call, and how many were lost before them.

        As ``BlockPool.take_events``.

        Raises:
            InvalidArgumentError: There is no such tier.
        """
    def check_invariants(self) -> None:
        """Recounts tiers, tables and swaps from scratch.

        O(blocks + tokens).

        Raises:
            InvariantError: One is broken; the message names it.
        """
    def __contains__(self, sequence: int, /) -> bool: ...
    def __len__(self) -> int: ...

@final
class BlockAllocator:
    """Reference counts over a free list: a pool without a prefix cache.

    Args:
        num_blocks: Blocks, null block included. At least 2.

    Raises:
        InvalidArgumentError: ``num_blocks`` is out of range.

    >>> allocator = kvpool.BlockAllocator(5)
    >>> allocator.allocate(3)
    [1, 2, 3]
    >>> allocator.acquire([1])
    >>> allocator.release([3, 2, 1])
    >>> allocator.free_order(), allocator.ref_count(1)
    ([2, 3, 4], 1)
    """

    def __new__(cls, num_blocks: int) -> Self: ...
    @property
    def num_blocks(self) -> int:
        """Blocks, null block included."""
    @property
    def num_free(self) -> int:
        """Blocks on the free list."""
    @property
    def num_held(self) -> int:
        """Blocks with at least one reference."""
    def allocate(self, n: int) -> list[int]:
        """Takes free blocks, each with one reference.

        O(1) per block.

        Raises:
            OutOfBlocksError: Fewer are free.
        """
    def acquire(self, block_ids: BlockIds) -> None:
        """Adds one reference per id to blocks that somebody holds.

        O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, the null block, or a block that nobody holds.
            TokenTypeError: The ids are of a type or dtype that is not taken.
        """
    def release(self, block_ids: BlockIds) -> None:
        """Drops one reference per id; blocks without further references become free.

        The last of them is handed out first. O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, the null block, or named more often than it has references (a
                double free).
            TokenTypeError: The ids are of a type or dtype that is not taken.
        """
    def ref_count(self, block_id: int) -> int:
        """Returns the references of a block.

        O(1).

        Raises:
            InvalidBlockError: The id is outside the pool.
        """
    def free_order(self) -> list[int]:
        """Returns the free blocks in the order in which they will be handed out.

        O(free blocks), for tests and tools.
        """
    def check_invariants(self) -> None:
        """Recounts references and free list from scratch.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """

@final
class FreeBlockList:
    """The free blocks of a pool, in the order in which they are handed out.

    An index-linked list: O(1) per block, removal from the middle included. Starts with every block but the
    null block, in ascending order. ``len(free)`` counts the free blocks, ``block_id in free`` asks for one.

    Args:
        num_blocks: Blocks of the pool, null block included. At least 2.

    Raises:
        InvalidArgumentError: ``num_blocks`` is out of range.

    >>> free = kvpool.FreeBlockList(5)
    >>> free.pop_front_n(2)
    [1, 2]
    >>> free.push_front(2)
    >>> free.remove(3)
    >>> free.order(), len(free), 3 in free
    ([2, 4], 2, False)
    """

    def __new__(cls, num_blocks: int) -> Self: ...
    def pop_front_n(self, n: int) -> list[int]:
        """Takes the next free blocks.

        O(1) per block.

        Raises:
            OutOfBlocksError: Fewer are free.
        """
    def push_front(self, block_id: int) -> None:
        """Frees a block; it will be handed out next.

        O(1).

        Raises:
            InvalidBlockError: The id is unknown, the null block, or a block that is free already.
        """
    def push_back(self, block_id: int) -> None:
        """Frees a block; it will be handed out last.

        O(1).

        Raises:
            InvalidBlockError: The id is unknown, the null block, or a block that is free already.
        """
    def push_front_n(self, block_ids: BlockIds) -> None:
        """Frees blocks, all or none, as if pushed to the front one after the other.

        O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, the null block, named twice, or a block that is free already.
            TokenTypeError: The ids are of a type or dtype that is not taken.
        """
    def remove(self, block_id: int) -> None:
        """Takes a block from wherever it is on the list.

        O(1).

        Raises:
            InvalidBlockError: The id is unknown, the null block, or a block that is not free.
        """
    def order(self) -> list[int]:
        """Returns the free blocks in the order in which they will be handed out.

        O(free blocks).
        """
    def check_invariants(self) -> None:
        """Recounts the list from its links.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """
    def __contains__(self, block_id: int, /) -> bool: ...
    def __len__(self) -> int: ...

@final
class PrefixIndex:
    """The prefix index: block hash to the blocks that hold this content.

    Several blocks may hold one content: lookups find the oldest computed copy. Knows nothing of reference
    counts. ``block_id in index`` asks whether a block is registered. O(1) per block.

    Args:
        num_blocks: Blocks of the pool, null block included. At least 2.
        block_size: Tokens per block. At least 1.
        verify: One of ``verify_modes()``; chains must come from a hasher with at least this mode.

    Raises:
        InvalidArgumentError: A setting is out of range.

    >>> chain = kvpool.BlockHasher(block_size=2).cursor([1, 2, 3, 4, 5]).chain()
    >>> index = kvpool.PrefixIndex(num_blocks=8, block_size=2)
    >>> index.insert(3, chain, 0)
    True
    >>> index.find(chain, 0)  # registered, not computed
    >>> index.mark_computed(3)
    >>> index.find(chain, 0)
    3
    """

    def __new__(cls, num_blocks: int, block_size: int = 16, *, verify: str = "none") -> Self: ...
    def insert(self, block_id: int, chain: HashChain, position: int) -> bool:
        """Registers a block as one block of a chain, not yet computed; False means a hash collision.

        O(1).

        Args:
            block_id: A block that is not registered.
            chain: Hashes of a prompt.
            position: Which block of the chain, from 0.

        Raises:
            InvalidBlockError: The id is unknown, the null block, or registered already.
            InvalidArgumentError: The chain is too short, or of another block size, algorithm or verification.
        """
    def mark_computed(self, block_id: int) -> None:
        """Says that the KV of a registered block is written: lookups may return it.

        O(1).

        Raises:
            InvalidBlockError: The id is unknown, the null block, or not registered.
        """
    def find(self, chain: HashChain, position: int) -> int | None:
        """Returns a computed block that holds this block of a chain, or None.

        O(1). A collision, and a position behind the chain, are misses.

        Raises:
            InvalidArgumentError: The chain is of another block size, algorithm or verification.
        """
    def remove(self, block_id: int) -> bool:
        """Takes a block out of the index and returns whether it was registered.

        O(1).

        Raises:
            InvalidBlockError: The id does not fit 32 bits.
        """
    def clear(self) -> None:
        """Forgets everything.

        O(blocks).
        """
    def copies(self, chain: HashChain, position: int) -> list[int]:
        """Returns the blocks registered under this hash of a chain, computed ones first.

        O(copies). Computed ones are in the order in which they became so, the others in the order in which they
        were registered. Does not verify, and is empty behind the chain.
        """
    @property
    def num_registered(self) -> int:
        """Blocks that are registered, computed or not."""
    @property
    def num_hashes(self) -> int:
        """Different hashes among the registered blocks."""
    def check_invariants(self) -> None:
        """Recounts the index from scratch.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """
    def __contains__(self, block_id: int, /) -> bool: ...

@final
class LruEvictor:
    """The least-recently-used order of cached-free blocks.

    ``len(evictor)`` counts the blocks held, ``block_id in evictor`` asks for one. O(1) per block.

    Args:
        num_blocks: Blocks of the pool, null block included. At least 2.

    Raises:
        InvalidArgumentError: ``num_blocks`` is out of range.

    >>> evictor = kvpool.LruEvictor(10)
    >>> evictor.insert([(1, 0), (2, 1), (3, 2)])  # one chain: its deepest block goes first
    >>> evictor.order()
    [3, 2, 1]
    >>> evictor.remove(2), evictor.evict(), len(evictor)
    (True, 3, 1)
    """

    def __new__(cls, num_blocks: int) -> Self: ...
    def insert(self, candidates: Sequence[tuple[int, int]]) -> None:
        """Takes blocks that one release made cached-free: pairs of block id and depth in the chain.

        They count as used at the same moment, and the deeper is evicted before the shallower. Blocks held
        already are ignored. O(1) per block if sorted by falling depth, else O(log n).

        Raises:
            InvalidBlockError: An id is unknown, or the null block.
            InvalidArgumentError: A depth is negative.
        """
    def remove(self, block_id: int) -> bool:
        """Gives up one block, because it was hit or dropped, and returns whether it was held.

        O(1).

        Raises:
            InvalidBlockError: The id does not fit 32 bits.
        """
    def evict(self) -> int | None:
        """Gives up the next victim, or returns None if there is none.

        O(1).
        """
    def order(self) -> list[int]:
        """Returns the blocks in the order in which they would be evicted.

        O(blocks held).
        """
    def check_invariants(self) -> None:
        """Recounts the order from its links.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """
    def __contains__(self, block_id: int, /) -> bool: ...
    def __len__(self) -> int: ...

@final
class BlockHasher:
    """Hashes blocks of tokens into chains: each digest identifies a whole prefix.

    Equal settings give equal digests in every process: nothing is random, nothing is read from the
    environment.

    Args:
        algorithm: One of ``hash_algorithms()``.
        block_size: Tokens per block. At least 1.
        verify: One of ``verify_modes()``; decides whether fingerprints are computed.
        key: 32 secret bytes, for ``"blake3"`` only: keys the hash and the fingerprints.
        seed: For vLLM's encodings what ``PYTHONHASHSEED`` is there; also seeds ``"xxh3"`` and the
            fingerprints.

    Raises:
        InvalidArgumentError: No algorithm or mode has this name, or the key is not 32 bytes long.
        HashingError: The block size is out of range, or the algorithm cannot work with this key or seed.

    >>> hasher = kvpool.BlockHasher("sha256", block_size=4)
    >>> a, b = hasher.hash_tokens([1, 2, 3, 4, 5, 6, 7, 8, 9])  # two full blocks
    >>> a.hex()[:16], len(b)
    ('94e6beb994a0b45c', 32)
    >>> tenant = kvpool.ExtraKeys(tenant="team-a")
    >>> hasher.hash_tokens([1, 2, 3, 4], tenant) == [a]
    False
    """

    def __new__(
        cls,
        algorithm: str = "sha256",
        block_size: int = 16,
        *,
        verify: str = "none",
        key: bytes | None = None,
        seed: str | None = None,
    ) -> Self: ...
    @property
    def algorithm(self) -> str:
        """Name of the hash algorithm."""
    @property
    def block_size(self) -> int:
        """Tokens per block."""
    @property
    def verify(self) -> str:
        """Name of the way in which hits are verified."""
    def cursor(self, tokens: Tokens | None = None, extra: ExtraKeys | None = None, *, epoch: int = 0) -> HashCursor:
        """Returns a cursor: the hash chain of a sequence that may grow.

        O(tokens); other threads go on.

        Args:
            tokens: The first tokens; none by default.
            extra: What identifies the prompt beside its tokens.
            epoch: The pool's epoch.

        Raises:
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
            HashingError: The algorithm cannot represent these extra keys.
        """
    def hash_tokens(self, tokens: Tokens, extra: ExtraKeys | None = None, *, epoch: int = 0) -> list[bytes]:
        """Returns the digests of the full blocks of a prompt.

        16 or 32 bytes each, depending on the algorithm. O(tokens).

        Raises:
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
            HashingError: The algorithm cannot represent these extra keys.
        """
    def link(
        self, tokens: Tokens, parent: ChainLink | None = None, extra: ExtraKeys | None = None, *, epoch: int = 0
    ) -> ChainLink:
        """Hashes one full block behind another, or the first of a chain.

        The digest is that of ``HashCursor`` for the same prefix. O(block size).

        Args:
            tokens: Exactly one block of tokens.
            parent: The block before it.
            extra: The extra keys, the same for every block of a chain.
            epoch: The pool's epoch, the same for every block of a chain.

        Raises:
            HashingError: Not one block of tokens; another hasher's or epoch's parent; extra keys that the
                algorithm cannot represent.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
        """

@final
class ChainLink:
    """One full block of a hash chain.

    Comes from ``BlockHasher.link``; does not change. For holders of single blocks that have a predecessor each.

    >>> hasher = kvpool.BlockHasher(block_size=2)
    >>> first = hasher.link([1, 2])
    >>> second = hasher.link([3, 4], first)
    >>> [first.digest, second.digest] == hasher.hash_tokens([1, 2, 3, 4])
    True
    """

    @staticmethod
    def from_digest(
        algorithm: str,
        digest: bytes,
        tokens: Tokens,
        *,
        parent: bytes | None = None,
        depth: int = 0,
        epoch: int = 0,
    ) -> ChainLink:
        """Makes a link whose digest was computed elsewhere.

        What is hashed behind it is what would be hashed behind the link that has this digest. It has no fingerprint: a
        pool that verifies hits by one refuses it. O(block size).

        Args:
            algorithm: One of ``hash_algorithms()``.
            digest: The digest of the block and everything before it, as long as the algorithm's.
            tokens: The block's tokens.
            parent: The digest of the block before it; None for the first of a chain.
            depth: Position of the block in its chain, 0 first.
            epoch: The pool's epoch.

        Raises:
            InvalidArgumentError: No algorithm has this name, a number is negative, or only one of ``parent`` and
                ``depth`` says that the block is the first.
            HashingError: A digest has another length, or there are no tokens.
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
        """
    @property
    def digest(self) -> bytes:
        """The digest of the block and everything before it."""
    @property
    def depth(self) -> int:
        """Position of the block in its chain, 0 first."""
    @property
    def num_tokens(self) -> int:
        """Tokens from the start of the chain to the end of the block."""
    @property
    def epoch(self) -> int:
        """The epoch that it was hashed in."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class ExtraKeys:
    """What identifies a prompt beside its tokens: requests share blocks only if all of it is equal.

    Opaque text (hashed as UTF-8) or bytes, made by the engine or its gateway, never by the user of the
    service. No kind of key can be mistaken for another. vLLM's encodings cannot represent all of them, and
    refuse those.

    Args:
        adapter: Content id of the adapter, such as the digest of its weights; a name that can point to other
            weights is none.
        adapter_path: Where the adapter was loaded from, for encodings that include it.
        salt: Cache salt.
        tenant: The principal that owns the blocks.
        user: The end user, where sharing has to stop at one person.
        multimodal: Items that stand at token positions, in any order: content id, position of the first
            placeholder token, number of placeholder tokens. They reach the blocks from the first that they
            overlap on.

    Raises:
        InvalidArgumentError: ``adapter_path`` without ``adapter``; a negative position or number.
        TokenTypeError: A key is neither a str nor bytes.

    >>> kvpool.ExtraKeys(salt="s") == kvpool.ExtraKeys(salt=b"s")
    True
    >>> kvpool.ExtraKeys(salt="s") == kvpool.ExtraKeys(tenant="s")
    False
    >>> extra = kvpool.ExtraKeys(multimodal=[("digest of the image", 5, 576)])
    """

    def __new__(
        cls,
        *,
        adapter: str | bytes | None = None,
        adapter_path: str | None = None,
        salt: str | bytes | None = None,
        tenant: str | bytes | None = None,
        user: str | bytes | None = None,
        multimodal: Iterable[tuple[str | bytes, int, int]] | None = None,
    ) -> Self: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        """Pickled and copied by the constructor's arguments."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class HashCursor:
    """The hash chain of a sequence that grows.

    Comes from ``BlockHasher.cursor`` or ``CacheManager.prepare``. Each full block is hashed once, when its
    last token arrives. ``len(cursor)`` is ``num_tokens``.

    >>> cursor = kvpool.BlockHasher(block_size=4).cursor([1, 2, 3, 4, 5, 6])
    >>> cursor.tail, cursor.append([7]), cursor.append([8])
    ([5, 6], 0, 1)
    >>> cursor.truncate(6)  # a rejected draft: nothing is hashed again
    >>> len(cursor), len(cursor.chain())
    (6, 1)
    """

    def append(self, tokens: Tokens) -> int:
        """Appends tokens and returns how many blocks they completed.

        O(tokens); hashes completed blocks only.

        Raises:
            TokenError: A token is out of range.
            TokenTypeError: The tokens are of a type or dtype that is not taken.
        """
    def truncate(self, num_tokens: int) -> None:
        """Keeps the first tokens; a block that becomes partial loses its hash.

        O(tokens dropped). Hashes nothing.

        Raises:
            HashingError: There are fewer tokens.
            InvalidArgumentError: ``num_tokens`` is negative.
        """
    def rebase(self, epoch: int) -> None:
        """Moves the sequence to another epoch, which hashes it again.

        O(tokens); O(1) if the epoch is the same or no part of what is hashed (vLLM's encodings without
        fingerprints).

        Raises:
            HashingError: The algorithm cannot represent the extra keys.
        """
    @property
    def num_tokens(self) -> int:
        """Tokens appended so far, those of the partial block included."""
    @property
    def epoch(self) -> int:
        """The epoch of the sequence."""
    @property
    def tail(self) -> list[int]:
        """The tokens of the last, partial block; fewer than a block.

        A new list at each access: O(block size).
        """
    @property
    def hashed_blocks(self) -> int:
        """Blocks hashed by this cursor since it was made, those hashed again included."""
    def chain(self) -> HashChain:
        """Returns the hash chain of the full blocks as it is now.

        A copy, that later appends do not change: O(tokens).
        """
    def digests(self) -> list[bytes]:
        """Returns the digests of the full blocks.

        16 or 32 bytes each, depending on the algorithm. O(tokens).
        """
    def copy(self) -> HashCursor:
        """Returns an independent copy: a fork of the sequence.

        O(tokens). Hashes nothing.
        """
    def __len__(self) -> int: ...

@final
class HashChain:
    """Digests of consecutive full blocks from the start of a prompt.

    Comes from ``HashCursor.chain`` or ``from_digests``; does not change. ``len(chain)`` is the number of
    blocks.

    >>> hasher = kvpool.BlockHasher(block_size=4)
    >>> chain = kvpool.HashChain.from_digests("sha256", 4, hasher.hash_tokens(range(9)))
    >>> chain
    HashChain("sha256", block_size=4, len=2)
    >>> chain.digests() == hasher.cursor(range(9)).digests()
    True
    """

    @staticmethod
    def from_digests(algorithm: str, block_size: int, digests: Sequence[bytes], *, epoch: int = 0) -> HashChain:
        """Makes a chain of digests that were computed elsewhere.

        It has neither tokens nor fingerprints: a pool that verifies hits refuses it. O(blocks).

        Args:
            algorithm: One of ``hash_algorithms()``.
            block_size: Tokens per block.
            digests: One per block, each as long as the algorithm's.
            epoch: The pool's epoch.

        Raises:
            InvalidArgumentError: No algorithm has this name, or ``block_size`` is negative.
            HashingError: A digest has another length, or the block size is out of range.
        """
    @property
    def algorithm(self) -> str:
        """Name of the hash algorithm."""
    @property
    def block_size(self) -> int:
        """Tokens per block."""
    @property
    def epoch(self) -> int:
        """The epoch of the sequence."""
    def digests(self) -> list[bytes]:
        """Returns one digest per block.

        16 or 32 bytes each, depending on the algorithm. O(blocks).
        """
    def fingerprints(self) -> list[int]:
        """Returns one 128-bit fingerprint per block; none if the hasher was made without verification.

        O(blocks).
        """
    def __len__(self) -> int: ...

@final
class Trace:
    """A request trace in memory.

    Requests in order of arrival, each with ``timestamp`` (ms), ``input_length`` and ``output_length`` (tokens), and
    ``hash_ids``, one chained id per block of the prompt. ``len(trace)`` is the number of requests. docs/traces.md
    describes the formats that it can be read from.

    >>> trace = kvpool.Trace.generate(requests=100, seed=1)
    >>> trace
    Trace(requests=100, block_tokens=512)
    >>> len(kvpool.Trace.parse(trace.to_jsonl(), limit=10))
    10
    """

    @staticmethod
    def read(
        path: str | PathLike[str],
        *,
        format: str = "auto",  # noqa: A002
        block_tokens: int | None = None,
        limit: int | None = None,
        check_prefixes: bool = True,
        sort: bool = False,
        sessions_at_once: int | None = None,
        event_gap_s: float = 5.0,
    ) -> Trace:
        """Reads a trace file or a folder of them, plain or gzip.

        O(block references); other threads go on. ``TraceReader`` does the same in slices.

        Args:
            path: The file; ``"-"`` is standard input; of a folder, all .json and .jsonl files, plain or .gz.
            format: One of ``trace_formats()``; ``"auto"`` tells it from the first record.
            block_tokens: Tokens that one id stands for, at least 1. By default what the trace says, else 512, or
                16 for ``"bailian"``. Where the trace says another size, its blocks are made into blocks of this one.
            limit: Stop after this many requests. At least 1.
            check_prefixes: Check that every id has one parent; off saves 40 to 80 bytes per different id.
            sort: Put requests in order of arrival instead of refusing disorder.
            sessions_at_once: Of ``"kv-cache-tester"``: sessions that run at a time; all begin at once by default.
            event_gap_s: Of ``"kv-events"``: up to this many seconds after it was stored, the end of a chain may be
                continued by the same request.

        Raises:
            TraceFileError: The file cannot be opened or read.
            TraceError: A line is not a request, or breaks the order of times or ids (the message names line
                and field); there is no request; an option is 0.
            InvalidArgumentError: An option is negative, or the format unknown.
        """
    @staticmethod
    def parse(
        data: bytes,
        *,
        format: str = "auto",  # noqa: A002
        block_tokens: int | None = None,
        limit: int | None = None,
        check_prefixes: bool = True,
        sort: bool = False,
        sessions_at_once: int | None = None,
        event_gap_s: float = 5.0,
    ) -> Trace:
        """Reads a trace from bytes, plain or gzip.

        O(block references); other threads go on. The options are those of ``read``.

        Raises:
            TraceError: A line is not a request, or breaks the order of times or ids (the message names line
                and field); there is no request; an option is 0.
            InvalidArgumentError: An option is negative, or the format unknown.
        """
    @staticmethod
    def generate(
        requests: int = 2000,
        *,
        seed: int = 0,
        block_tokens: int = 512,
        rate_per_s: float | None = None,
        chat_fraction: float | None = None,
        agent_fraction: float | None = None,
    ) -> Trace:
        """Makes up a trace: chats, agents and one-shot requests over shared system prompts.

        Equal arguments give equal traces, to the last byte, on every host. O(block references).

        Args:
            requests: How many. At least 1.
            seed: Seed of the random draws, 0 to ``2**64 - 1``.
            block_tokens: Tokens that one id stands for.
            rate_per_s: Mean arrivals per second of trace time; 4 by default.
            chat_fraction: Share of the requests that are turns of chats; 0.5 by default.
            agent_fraction: Share of the requests that are steps of agents; 0.3 by default. The rest are
                one-shot.

        Raises:
            InvalidArgumentError: An argument is out of range; the message says which.
        """
    def to_jsonl(self, format: str = "mooncake") -> bytes:  # noqa: A002
        """Returns the trace as JSON lines of a format.

        Parsing it again, with the same ``block_tokens``, gives the same requests. O(block references).

        Args:
            format: ``"mooncake"``, ``"mooncake-sessions"`` or ``"bailian"``; docs/traces.md says what each loses.

        Raises:
            InvalidArgumentError: The format is unknown, or only read.
        """
    def write_jsonl(self, file: SupportsWrite[bytes], format: str = "mooncake") -> None:  # noqa: A002
        """Writes the trace as JSON lines of a format, piece by piece.

        The bytes are those of ``to_jsonl``, and never all in memory: pieces of 64 KiB. O(block references);
        other threads go on, and Ctrl-C is heeded between two pieces.

        Args:
            file: Whatever has a ``write`` for bytes: a binary file, a ``gzip.GzipFile``, ``sys.stdout.buffer``.
            format: As in ``to_jsonl``.

        Raises:
            InvalidArgumentError: The format is unknown, or only read.
            Exception: What ``write`` raises; a part may have been written.

        >>> import io
        >>> trace, out = kvpool.Trace.generate(requests=10), io.BytesIO()
        >>> trace.write_jsonl(out)
        >>> out.getvalue() == trace.to_jsonl()
        True
        """
    def with_block_tokens(self, block_tokens: int) -> Trace:
        """Returns the same workload in blocks of another size.

        Larger blocks hit as a whole or not at all; smaller ones hit the same tokens. Ids are new. O(block references).

        Args:
            block_tokens: A multiple or a divisor of this trace's.

        Raises:
            InvalidArgumentError: Neither size divides the other, or it is negative.
            TraceError: It is 0, or gives more than ``2**30`` block references, or more than there is memory for, 8
                bytes each.

        >>> trace = kvpool.Trace.generate(requests=10)
        >>> trace.with_block_tokens(64)
        Trace(requests=10, block_tokens=64)
        """
    def summary(self) -> TraceSummary:
        """Returns counts of requests, tokens and blocks.

        O(block references).
        """
    def stats_json(self) -> str:
        """Returns counts, percentiles and ideal hit rates, as a JSON object.

        What a cache that never evicts would hit, by blocks, by tokens, by full blocks only and in the last half;
        how long until blocks are used again; arrivals, sessions, kinds. O(block references).

        >>> import json
        >>> stats = json.loads(kvpool.Trace.generate(requests=100).stats_json())
        >>> stats["requests"], 0 < stats["ideal_token_hit_rate"] < 100
        (100, True)
        """
    @property
    def format(self) -> str | None:
        """The format that it was read from; None if it was made up."""
    @property
    def block_tokens(self) -> int:
        """Tokens that one id stands for."""
    def notes(self) -> ReadNotes:
        """Returns what was noticed while it was read.

        O(1); all 0 for a trace that was made up.
        """
    def __len__(self) -> int: ...

@final
class TraceReader:
    """A trace on its way in.

    Reads in slices what ``Trace.read`` reads at once, so that a caller can show progress or stop.

    Args:
        path: As in ``Trace.read``, and so are the other arguments.
        format: The format, or ``"auto"``.
        block_tokens: Tokens that one id stands for.
        limit: Stop after this many requests.
        check_prefixes: Check that every id has one parent.
        sort: Put requests in order of arrival.
        sessions_at_once: Sessions that run at a time.
        event_gap_s: Seconds in which a stored chain may be continued by the same request.

    Raises:
        TraceFileError: The file cannot be opened or read.
        TraceError: An option is 0.
        InvalidArgumentError: An option is negative, or the format unknown.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "trace.jsonl")
    >>> size = path.write_bytes(kvpool.Trace.generate(requests=100).to_jsonl())
    >>> reader = kvpool.TraceReader(path)
    >>> while not reader.advance(1000):
    ...     assert reader.bytes_read <= reader.total_bytes == size
    >>> reader.finish()
    Trace(requests=100, block_tokens=512)
    """

    def __new__(
        cls,
        path: str | PathLike[str],
        *,
        format: str = "auto",  # noqa: A002
        block_tokens: int | None = None,
        limit: int | None = None,
        check_prefixes: bool = True,
        sort: bool = False,
        sessions_at_once: int | None = None,
        event_gap_s: float = 5.0,
    ) -> Self: ...
    def advance(self, size: int = 4_194_304) -> bool:
        """Reads on for about this many bytes, and returns whether all is read.

        O(bytes); other threads go on. Formats without an order of arrival are put in order in the last call.

        Args:
            size: Bytes of the file, before decompression.

        Raises:
            TraceError: As ``Trace.read``.
            TraceFileError: Reading failed.
            KvpoolError: The reader has given its trace, or has failed.
            InvalidArgumentError: ``size`` is negative.
        """
    @property
    def bytes_read(self) -> int:
        """Bytes read so far, before decompression."""
    @property
    def total_bytes(self) -> int | None:
        """Bytes of the file or folder; None for standard input."""
    def finish(self) -> Trace:
        """Reads what is left, and returns the trace.

        O(block references); other threads go on.

        Raises:
            TraceError: As ``Trace.read``.
            TraceFileError: Reading failed.
            KvpoolError: The reader has given its trace, or has failed.
        """

@final
class Replay:
    """A trace on its way through a pool or a manager.

    In ``"lookup"`` mode each request is looked up, stored and released at once: the definition behind
    published hit rates. In ``"engine"`` mode requests arrive, wait, prefill in chunks, decode and are
    preempted in virtual time, as in a server.

    Args:
        trace: The requests.
        mode: ``"lookup"`` or ``"engine"``.
        block_size: Tokens per block; in lookup mode a divisor of the trace's block tokens.
        capacity_blocks: Usable blocks of the pool, the null block not counted. At least 1.
        algorithm: One of ``hash_algorithms()``.
        verify: One of ``verify_modes()``.
        seed: Seed of the hash algorithm, where it takes one.
        eviction: ``"lru"``.
        explain: Engine mode: the report says of computed tokens why they had to be, as ``misses``.
        watermark: Engine mode: share of the pool that an admission leaves available while other requests run.
        max_running: Engine mode: requests that run at once, at most.
        step_tokens: Engine mode: tokens that one step computes, at most.
        step_ms: Engine mode: virtual milliseconds per step, before its prefill tokens.
        prefill_tokens_per_s: Engine mode: prefill tokens per virtual second, added to ``step_ms``.
        threads: Threads that hash prompts ahead; 0 takes the number of cores. The result does not depend on
            it.
        journal: Records what the pool or manager is asked: a ``Journal``.

    Raises:
        InvalidArgumentError: A setting is out of range; the message says which, and what is allowed.
        HashingError: The algorithm cannot work with this seed.
        JournalExistsError: The journal's file exists.
        JournalFileError: The journal's file cannot be made.

    >>> import json
    >>> replay = kvpool.Replay(kvpool.Trace.generate(requests=50), capacity_blocks=50_000)
    >>> while replay.advance(20) < replay.total:
    ...     pass
    >>> report = json.loads(replay.report_json())
    >>> report["mode"], report["hits"]["requests"], 0 < report["token_hit_rate"] < 100
    ('lookup', 50, True)
    """

    def __new__(
        cls,
        trace: Trace,
        *,
        mode: str = "lookup",
        block_size: int = 16,
        capacity_blocks: int = 100_000,
        algorithm: str = "sha256",
        verify: str = "none",
        seed: str | None = None,
        eviction: str = "lru",
        explain: bool = False,
        watermark: float = 0.0,
        max_running: int = 256,
        step_tokens: int = 8192,
        step_ms: float = 20.0,
        prefill_tokens_per_s: float = 50_000.0,
        threads: int = 0,
        journal: Journal | None = None,
    ) -> Self: ...
    @property
    def total(self) -> int:
        """Requests of the trace."""
    def advance(self, requests: int | None = None) -> int:
        """Runs on until this many more requests are finished, or all are, and returns how many are finished.

        O(blocks) of those requests; other threads go on.

        Args:
            requests: How many more; all by default.

        Raises:
            TraceError: The ids of a request do not give tokens.
            InvalidArgumentError: ``requests`` is negative.
        """
    def report_json(self) -> str:
        """Returns what has been measured so far, as a JSON object.

        Settings; counts of requests, blocks and tokens with their hits, over all requests and over the last
        half; hit rates in percent; in engine mode, times and preemptions. O(1).
        """
    def journal_stats(self) -> JournalStats | None:
        """Returns how far the journal has come, or None without one.

        A journal never fails an operation: one that cannot be written stops, and ``error`` says why. O(1).
        """
    def flush_journal(self) -> None:
        """Writes what the journal has collected: what a crash would lose.

        Without a journal nothing happens. It is also flushed when the replay goes.

        Raises:
            JournalFileError: The journal has stopped recording; the message says why.
        """
    def check_invariants(self) -> None:
        """Recounts the invariants of the pool or manager that is replayed.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """

# Sizing: see kvpool.sizing.

@type_check_only
class SizingWindow(TypedDict):
    """What arrives in one window of a trace, and what of it a cache hits."""

    start_s: float
    requests: int
    references: int
    block_hits: int
    tokens: int
    token_hits: int

@type_check_only
class SizingWorth(TypedDict):
    """What a cache of one size in GiB saves."""

    gib: float
    blocks: int
    token_hits: int
    block_hit_rate: float
    token_hit_rate: float
    seconds_saved: float

@final
class References:
    """A trace as block references: what all estimators of sizes work on.

    One definition for all: whole prompts one after the other, without time; a block is a hit only if all blocks
    before it in its prompt are. One hash-map step per reference to make; 4 bytes per reference, 24 per request, 20
    per run of reuses.

    Args:
        trace: The trace, at its own block size.
        blocks: ``"all"``: partial last blocks count, the definition of published hit rates. ``"full"``: only blocks
            that their prompt fills, which is all that an engine can find again.

    Raises:
        TraceError: The trace was read without the check of prefixes and would not have passed it.
        InvalidArgumentError: More than ``2**32 - 2`` references.

    >>> from kvpool.sizing import References
    >>> references = References(kvpool.Trace.generate(500))
    >>> references.requests
    500
    >>> references.lru().at(700)[0] == references.run("lru", 700).block_hit_rate
    True
    """

    def __new__(cls, trace: Trace, *, blocks: str = "all") -> Self: ...
    @property
    def requests(self) -> int:
        """Requests of the trace."""
    @property
    def references(self) -> int:
        """Block references: hits and misses together."""
    @property
    def unique_blocks(self) -> int:
        """Different blocks."""
    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, in blocks or not: what token hit rates are a share of."""
    @property
    def block_tokens(self) -> int:
        """Tokens of a full block."""
    def lru(self) -> HitCurve:
        """Returns what LRU hits at every capacity, exact, in one pass.

        Mattson et al., 1970. O(runs log requests).
        """
    def run(self, policy: str, capacity_blocks: int, *, form: str = "pool") -> PolicyRun:
        """Runs one policy at one capacity.

        20 to 150 ns per reference; other threads go on.

        Args:
            policy: One of ``kvpool.eviction_policies()``.
            capacity_blocks: Blocks that the cache holds.
            form: ``"pool"``: the shipped evictor, whole requests at a time, prefix-closed: what the pool does in
                lookup mode. ``"stream"``: each block for itself, last block first: what papers simulate.

        Raises:
            InvalidArgumentError: An unknown policy or form; a capacity out of range.
        """
    def optimal(self, capacity_blocks: int) -> PolicyRun:
        """Runs the clairvoyant optimum at one capacity.

        Prefix-closed, and it need not store everything (Belady, 1966).

        Raises:
            InvalidArgumentError: ``capacity_blocks`` is negative.
        """
    def lru_with_hints(self, capacity_blocks: int, accuracy: float, *, seed: int = 0) -> PolicyRun:
        """Runs LRU that is told of a dead block, with this probability, that it is dead.

        Raises:
            InvalidArgumentError: An accuracy that is not 0 to 1; a negative capacity or seed.
        """
    def over_time(self, run: PolicyRun, window_s: float) -> list[SizingWindow]:
        """Cuts what a run hit into windows of so many seconds, empty ones included.

        Raises:
            InvalidArgumentError: A window that is not above 0, or so short that there are more than a million.
        """

def sampled_lru(
    trace: Trace, *, rate: float = 1.0, max_blocks: int | None = None, seed: int = 0, blocks: str = "all"
) -> HitCurve:
    """Estimates what LRU hits at every capacity from a sample of the blocks, in bounded memory.

    SHARDS (Waldspurger et al., 2015). 100 to 400 ns per sampled reference, 54 to 110 bytes per block that is followed;
    other threads go on. The error falls with the blocks followed: with 8,192 it is below a point.

    Args:
        trace: The trace, at its own block size.
        rate: Share of the blocks to follow, above 0, at most 1; with ``max_blocks`` the share to begin with.
        max_blocks: Blocks to follow at most, 1 to ``2**30``: the rate falls as it has to. None keeps the rate.
        seed: Picks the sample; all values are equally good.
        blocks: As in ``References``.

    Raises:
        InvalidArgumentError: A setting out of range.

    >>> from kvpool.sizing import References, sampled_lru
    >>> trace = kvpool.Trace.generate(2000)
    >>> estimate, exact = sampled_lru(trace, max_blocks=4000), References(trace).lru()
    >>> abs(estimate.at(2000)[0] - exact.at(2000)[0]) < 0.03
    True
    """

@final
class HitCurve:
    """What LRU hits at every capacity.

    Points are (capacity in blocks, block hit rate, token hit rate), rates 0 to 1.
    """

    @property
    def sample_rate(self) -> float:
        """The share of the blocks that it is estimated from: 1.0 is all, and exact."""
    @property
    def references(self) -> int:
        """Block references of the trace: counted, not estimated."""
    def at(self, capacity_blocks: int) -> tuple[float, float]:
        """Returns block and token hit rate at a capacity."""
    def ceiling(self) -> tuple[int, float, float]:
        """Returns the smallest capacity that hits all there is to hit, with both rates."""
    def points(self, most: int = 200) -> list[tuple[int, float, float]]:
        """Returns at most so many points, evenly spread over the logarithm of the capacity."""
    def capacity_for(self, share: float) -> tuple[int, float, float] | None:
        """Returns the smallest capacity with this share (0 to 1) of the token hits of ``ceiling()``."""
    def knee(self, most_blocks: int | None = None) -> tuple[int, float, float, float] | None:
        """Returns the point where the curve bends most, and by how much; None if it does not bend.

        Without a bend the largest cache is the best. Satopaa et al., "Kneedle", 2011.
        """
    def worth(
        self, bytes_per_token: int, gib: Sequence[float], *, prefill_tokens_per_s: float = 1.0
    ) -> list[SizingWorth]:
        """Returns what caches of rising sizes in GiB save.

        Raises:
            InvalidArgumentError: Sizes that do not rise; a speed that is not above 0.
        """
    def distances(self) -> list[tuple[int, int, int]]:
        """Returns uses of blocks again by distance: (from, to, references), distances in different blocks."""
    def distance_quantile(self, fraction: float) -> int | None:
        """Returns the distance within which this fraction (0 to 1) of the reuses lies; None without any."""

@final
class PolicyRun:
    """What one cache of one capacity did with a trace."""

    @property
    def capacity_blocks(self) -> int:
        """Blocks that it holds."""
    @property
    def block_hits(self) -> int:
        """References that it hit."""
    @property
    def token_hits(self) -> int:
        """Prompt tokens in them."""
    @property
    def block_hit_rate(self) -> float:
        """Hits of all references, 0 to 1."""
    @property
    def token_hit_rate(self) -> float:
        """Hit tokens of all prompt tokens, 0 to 1."""
    @property
    def evictions(self) -> int | None:
        """Blocks evicted; None for the optimum and for hints, which are not simulated block by block."""
    @property
    def turnover(self) -> float | None:
        """Resident turnover, 0 to 1: the mean of ``turnovers``; None if the trace ends before the first window."""
    @property
    def turnovers(self) -> list[float]:
        """Of each capacity's worth of insertions, the share of the resident blocks that came with it.

        Down towards 0 the cache has stagnated: what comes in goes out again at once.
        """

# Moving bytes: see kvpool.transfer.

@type_check_only
class Tensor(Protocol):
    """What a store needs to know of a torch tensor, on any device."""

    @property
    def shape(self) -> Sequence[int]:
        """Elements per dimension."""
    def data_ptr(self) -> int:
        """Address of the first element."""
    def stride(self) -> Any:
        """Elements from one index to the next, per dimension."""
    def element_size(self) -> int:
        """Bytes of an element."""

@type_check_only
class CudaStream(Protocol):
    """A ``torch.cuda.Stream``, or anything with a stream's handle."""

    @property
    def cuda_stream(self) -> int:
        """The driver's handle."""

@type_check_only
class CudaEvent(Protocol):
    """A ``torch.cuda.Event`` that was recorded, or anything with an event's handle."""

    @property
    def cuda_event(self) -> int:
        """The driver's handle."""

#: Source block and destination block of each copy: pairs, or int64 of shape [n, 2].
Mapping: TypeAlias = Sequence[tuple[int, int]] | Sequence[list[int]] | _Array | Tensor
Method: TypeAlias = Literal["auto", "kernel", "batch", "staged", "memcpy", "cpu"]

@final
class BlockStore:
    """Blocks of one tier, wherever they lie.

    A store is a list of regions: for each piece of a block an address, a stride from block to block, and a length in
    bytes. Copies move opaque bytes between stores whose regions are alike: any dtype, NHD or HND, per layer or
    cross-layer, MLA, padded pages. Made by ``from_tensors``, ``from_regions`` or ``host``.

    >>> import torch
    >>> kv = [torch.zeros(2, 100, 16, 8, 128, dtype=torch.bfloat16) for _ in range(4)]  # K and V apart, 4 layers
    >>> kvpool.transfer.BlockStore.from_tensors(kv, block_dim=1)
    BlockStore(device="cpu", num_blocks=100, bytes_per_block=262144, num_regions=8)
    """

    @staticmethod
    def from_tensors(
        tensors: Iterable[Tensor], *, block_dim: int | Sequence[int] = 0, keep_alive: bool = True
    ) -> BlockStore:
        """A store of tensors, which it keeps alive.

        O(regions). The order of the tensors is that of the regions. Do not resize a tensor's storage under a store.

        Args:
            tensors: At least one, on one device, with equally many blocks each.
            block_dim: The dimension that counts blocks, for all tensors or for each; negative ones count from the end.
                Contiguous inner dimensions make a piece, the others are enumerated.
            keep_alive: Whether the store keeps the tensors. If not, the caller does, until the last copy has ended.

        Raises:
            LayoutError: No tensor, another device, inner dimensions that are not contiguous, blocks that overlap.
            MappingTypeError: Not tensors, or one tensor alone.
            InvalidArgumentError: Not one block dimension per tensor.
            CudaUnavailableError: A tensor is on a device, and the driver is too old.
            CudaError: The driver refused.
        """
    @staticmethod
    def from_regions(
        regions: Sequence[tuple[int, int, int]],
        num_blocks: int,
        *,
        device: str = "cpu",
        pinned: bool = False,
        keep_alive: object = None,
    ) -> BlockStore:
        """A store of memory by address, for whoever has no tensors.

        Nothing can check an address: a wrong one reads or overwrites memory of others.

        Args:
            regions: For each piece of a block its address in block 0, the bytes from block to block, and its bytes.
            num_blocks: 1 to ``2**31 - 1``.
            device: ``cpu``, ``cuda`` or ``cuda:N``.
            pinned: Whether the memory is page-locked, each region within one allocation.
            keep_alive: Kept as long as the store is used.

        Raises:
            LayoutError: No region, no bytes, blocks or regions that overlap, an end beyond the address space.
            InvalidArgumentError: A negative number, or no such device.
            CudaUnavailableError: There is no driver for a store on a device.
            CudaError: The driver refused.
        """
    @staticmethod
    def host(
        num_blocks: int,
        like: BlockStore,
        *,
        pinned: bool | Literal["auto"] = "auto",
        numa_node: int | Literal["auto"] | None = None,
        hugepages: bool = False,
        registration_limit: int = 68719476736,
    ) -> BlockStore:
        """A pool of host memory for blocks like those of another store, each in one piece.

        Page-locking takes some 0.1 s per GB. Where it is refused, a pool is pageable: slower, and as correct.

        Args:
            num_blocks: 1 to ``2**31 - 1``.
            like: A store of the device that the pool is for.
            pinned: Whether it is page-locked; ``"auto"`` if it can be (``why_pageable`` says why it was not).
            numa_node: Bind it to this node; ``"auto"`` for the one nearest to the device.
            hugepages: Back it with huge pages: reserved ones, else transparent ones, else none (``pages`` says which).
            registration_limit: Bytes page-locked by one call, 64 GiB unless told otherwise: one of 512 GiB fails.

        Raises:
            PinningError: The memory cannot be had, or not page-locked as it was asked for.
            LayoutError: No blocks, or too many.
            InvalidArgumentError: A setting is out of range.
        """
    @property
    def num_blocks(self) -> int:
        """Blocks."""
    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block over all regions."""
    @property
    def num_regions(self) -> int:
        """Pieces of a block."""
    @property
    def regions(self) -> list[tuple[int, int, int]]:
        """Address of block 0, bytes from block to block, and bytes, of each piece of a block."""
    @property
    def device(self) -> str:
        """Where its memory lives: cpu or cuda:N."""
    @property
    def pinned(self) -> bool:
        """Whether its host memory is page-locked."""
    @property
    def why_pageable(self) -> str | None:
        """Why a host pool is not page-locked although that was not forbidden, or None."""
    @property
    def pages(self) -> Literal["small", "transparent", "huge"] | None:
        """The pages of a host pool: small, transparent or huge; None for memory of others."""
    @property
    def packed(self) -> bool:
        """Whether each block is one contiguous piece of memory."""
    @property
    def handle(self) -> int:
        """Names the store in calls by handle."""
    @property
    def closed(self) -> bool:
        """Whether it was closed."""
    def close(self) -> None:
        """Refuses new work; the memory is given back when the last transfer has ended."""
    def read_block(self, block: int) -> bytes:
        """Returns the bytes of a block of a host store, piece by piece.

        O(bytes). Nothing keeps a transfer from writing to it meanwhile.

        Raises:
            BlockIndexError: There is no such block.
            LayoutMismatchError: The store is on a device.
            ClosedError: The store is closed.
        """
    def write_block(self, block: int, data: bytes) -> None:
        """Writes the bytes of a block of a host store, piece by piece.

        O(bytes).

        Raises:
            BlockIndexError: There is no such block.
            LayoutMismatchError: Too few or too many bytes, or the store is on a device.
            ClosedError: The store is closed.
        """

@final
class TransferEngine:
    """Copies blocks between the stores of one device and the host.

    ``submit`` returns at once, and transfers of one direction end in the order in which they were submitted: on a
    device they run on streams of the engine's own, on the CPU on a thread. ``copy`` goes in the order of the caller's
    stream. Everything that can be refused is refused before anything is enqueued.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        threads: Threads of a copy by the processor, 1 to 1024: by default one per core, at most 8.
        staging_bytes: Bytes of each staging buffer on the device, 4 KiB to 1 TiB: two per direction, made when first
            used.
        calibration: A file that ``calibrate`` wrote, with thresholds for this card.

    Raises:
        CudaUnavailableError: There is no driver, no such device, or too old a driver.
        CudaError: The driver refused.
        InvalidArgumentError: A setting is out of range, or the file has no thresholds for this card.

    >>> import torch
    >>> a, b = torch.arange(12).reshape(3, 4), torch.zeros(3, 4, dtype=torch.int64)
    >>> source, target = kvpool.transfer.BlockStore.from_tensors([a]), kvpool.transfer.BlockStore.from_tensors([b])
    >>> with kvpool.transfer.TransferEngine() as engine:
    ...     engine.submit(source, target, [(0, 2), (2, 0)]).wait()
    >>> b.tolist()
    [[8, 9, 10, 11], [0, 0, 0, 0], [0, 1, 2, 3]]
    """

    def __new__(
        cls,
        device: str = "cpu",
        *,
        threads: int | None = None,
        staging_bytes: int = 33554432,
        calibration: str | PathLike[str] | None = None,
    ) -> Self: ...
    @property
    def device(self) -> str:
        """The device: cpu or cuda:N."""
    @property
    def in_flight(self) -> int:
        """Transfers that have not ended."""
    @property
    def closed(self) -> bool:
        """Whether it was closed."""
    @property
    def card(self) -> tuple[str, str, int] | None:
        """Name, bus address and driver version of the device, or None for the CPU."""
    def submit(
        self,
        src: BlockStore,
        dst: BlockStore,
        mapping: Mapping,
        *,
        after: Literal["current"] | CudaStream | CudaEvent | Transfer | int | None = "current",
        regions: tuple[int, int] | None = None,
        method: Method = "auto",
    ) -> Transfer:
        """Starts a copy and returns at once.

        O(pairs * regions) to enqueue; with method ``kernel`` O(pairs). An engine keeps at most 131,072 transfers, under
        way or ended and not polled: who submits more waits first, until 32,768 are under way.

        Args:
            src: What is read.
            dst: What is written; its regions are like those of ``src``.
            mapping: Source and destination block of each copy. Not on a device.
            after: What it waits for: by default what is on torch's current stream now (KV must be written before it is
                read); a stream, an event, another transfer, or None for nothing.
            regions: First and end of the regions that are copied, if not all: a layer at a time.
            method: Forces a way, for tests and benches.

        Raises:
            BlockIndexError: A block that a store does not have.
            DuplicateDestinationError: A block is written twice.
            OverlappingCopyError: A block is read that another pair writes.
            LayoutMismatchError: Regions or dtypes differ, or a store is on another device than the engine.
            MappingError: A mapping of the wrong shape.
            MappingTypeError: A mapping of the wrong dtype, or on a device.
            ClosedError: A store or the engine is closed, or the process was forked.
            CaptureError: The stream is being captured: use ``copy``.
            InvalidArgumentError: The method cannot do this copy, or no such regions.
            CudaError: The driver refused; nothing is under way.
        """
    def copy(
        self,
        src: BlockStore,
        dst: BlockStore,
        mapping: Mapping,
        *,
        stream: Literal["current"] | CudaStream | int | None = "current",
        method: Method = "auto",
    ) -> None:
        """Copies in the order of a stream; done on return if both stores are on the CPU.

        A mapping on the device takes the kernel, and the host does not read it (keep it until the copy is done, if the
        stream is not torch's current one): rows with -1 and ids out of range are
        skipped; ``poll`` reports the latter. A call that a CUDA graph captures replays with the mapping's values
        then; the stores have to stay open as long as the graph.

        Args:
            src: What is read.
            dst: What is written; its regions are like those of ``src``.
            mapping: Source and destination block of each copy.
            stream: By default torch's current one; None for the legacy default stream.
            method: Forces a way, for tests and benches.

        Raises:
            KvpoolError: As ``submit``.
            CaptureError: This way cannot be captured.
        """
    def execute(
        self,
        plan: TransferPlan,
        stores: Sequence[BlockStore],
        *,
        stream: Literal["current"] | CudaStream | int | None = "current",
        scratch: Sequence[tuple[int, int]] | None = None,
    ) -> list[Transfer]:
        """Executes a plan: copies within a store in the order of a stream, the others as transfers.

        The transfers wait for what is on the stream now. Rounds of a plan follow each other.

        Args:
            plan: What ``take_plan`` returned.
            stores: The store of each tier.
            stream: By default torch's current one; None for the legacy default stream.
            scratch: As in ``TransferPlan.rounds``.

        Raises:
            KvpoolError: As ``submit``; nothing is under way.
            InvalidArgumentError: A cycle without a scratch block, or a tier without a store.
        """
    def poll(self) -> list[Transfer]:
        """Returns the transfers that ended since the last time, failed ones included.

        Those whose ``wait`` or ``done`` told of it are left out; who does neither loses the oldest of more than 65,536
        ends. O(transfers under way).

        Raises:
            BlockIndexError: A mapping on the device held ids out of range; the next call goes on.
        """
    def wait(self, timeout: float | None = None) -> None:
        """Waits until everything that was submitted so far has ended, well or not.

        ``poll`` tells how. Other threads run meanwhile, and Ctrl-C is heard.

        Raises:
            TransferTimeoutError: Something goes on for longer than ``timeout`` seconds.
            ClosedError: The process was forked since.
            InvalidArgumentError: A negative timeout.
        """
    def calibrate(self, save: str | PathLike[str] | None = None) -> dict[str, Any]:
        """Measures the device, goes by what follows from now on, and returns it as JSON.

        Some seconds, and a quarter of a GiB on the device and pinned.

        Args:
            save: A file to add it to, for ``calibration``.

        Raises:
            PinningError: Host memory cannot be page-locked.
            CudaError: The driver refused.
            InvalidArgumentError: The engine is of the CPU; the file cannot be written, or is none of calibrations.
        """
    def close(self) -> None:
        """Refuses new work, waits for what is under way, and ends the worker thread."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Transfer:
    """A copy that was submitted.

    It keeps both stores until it has ended.
    """

    @property
    def id(self) -> int:
        """Its number: an engine's transfers are numbered as they are submitted."""
    @property
    def nbytes(self) -> int:
        """Bytes that it copies."""
    @property
    def method(self) -> Method:
        """How it copies them."""
    @property
    def seconds(self) -> float | None:
        """Seconds that the copy took, or None before its end."""
    @property
    def error(self) -> BaseException | None:
        """The exception that it failed with, or None."""
    def done(self) -> bool:
        """Says whether it has ended, successfully or not."""
    def wait(self, timeout: float | None = None) -> None:
        """Waits until it has ended.

        Other threads run meanwhile, and Ctrl-C is heard.

        Raises:
            TransferTimeoutError: It goes on for longer than ``timeout`` seconds.
            ClosedError: The process was forked since.
            CudaError: It failed.
            InvalidArgumentError: A negative timeout.
        """
    def wait_on(self, stream: Literal["current"] | CudaStream | int | None = "current") -> None:
        """Makes a stream wait until it has ended.

        What still is with the engine's thread (copies of pageable memory) is waited for here.

        Raises:
            CaptureError: The stream is being captured, and the copy was begun outside.
            CudaError: It failed, or the driver refused.
        """

def copy_by_handle(src: int, dst: int, mapping: Mapping) -> None:
    """Copies blocks between two stores by handle, in the order of torch's current stream.

    By an engine of the device that all such calls share.

    Raises:
        ClosedError: There is no such store.
        KvpoolError: As ``TransferEngine.copy``.
    """

def cuda_driver_version() -> int:
    """Returns the version of the CUDA driver, 1000 * major + 10 * minor.

    Raises:
        CudaUnavailableError: There is none that works; the message says why.
    """

# What kvpool.integrations.vllm is made of. vLLM's words: a digest is what a hash function makes of a block, 16 or 32
# bytes; a key is a digest and its KV-cache group as 4 bytes, big endian: at most 39 bytes.

@final
class VllmBlock:
    """A block of vLLM's pool, with the attributes of vLLM's own block class.

    One object per block for the life of the pool: ``is`` and ``==`` agree, and like vLLM's it cannot be hashed.
    Attributes are read from the pool at the moment of the call, O(1) unless it says otherwise. ``_block_hash`` can be
    written.
    """

    __hash__: ClassVar[None]  # type: ignore[assignment]

    @property
    def block_id(self) -> int:
        """Its id, 0 to the number of blocks less one."""
    @property
    def ref_cnt(self) -> int:
        """References; of the null block 0.

        Writing it moves the block nowhere: the queue does not follow.
        """
    @ref_cnt.setter
    def ref_cnt(self, count: int) -> None: ...
    @property
    def pool(self) -> Any | None:
        """The object that ``VllmPool.bind`` named, or None if it is gone."""
    @property
    def is_null(self) -> bool:
        """Whether it is block 0, which stands for no block."""
    @property
    def block_hash(self) -> bytes | None:
        """The key of what it holds, or None."""
    @property
    def block_hash_num_tokens(self) -> int | None:
        """Tokens of the prefix that its hash stands for, or None if there is none or it was not told."""
    @property
    def prev_free_block(self) -> Any | None:
        """The free block that is reused before it, the queue's head sentinel, or None if it is not free.

        O(free blocks), for tests.
        """
    @property
    def next_free_block(self) -> Any | None:
        """The free block that is reused after it, the queue's tail sentinel, or None if it is not free.

        O(free blocks), for tests.
        """
    def set_block_hash(self, block_hash: bytes, num_tokens: int | None = None) -> None:
        """Writes its hash; what leads to the block stays.

        Raises:
            InvalidArgumentError: More than 39 bytes.
        """
    def reset_hash(self) -> None:
        """Forgets its hash; what leads to the block stays."""
    def __eq__(self, other: object, /) -> bool: ...

@final
class VllmPool:
    """The state of one vLLM block pool: references, keys, and the order of reuse.

    Behind ``kvpool.integrations.vllm``, which makes vLLM's ``BlockPool`` of it. Blocks go in and out as ``VllmBlock``;
    digests, keys and ids are vLLM's. One of another pool raises ``TypeError``. Block 0 is the null block: never free,
    never counted.

    Costs: 5 to 100 ns per block and key; 300 bytes per block, and 80 more per cached key.

    Args:
        num_blocks: Blocks of the pool, null block included. At least 1.
        caching: Whether blocks keep their hash when they are freed.
        policy: The order in which cached blocks are given up, one of ``eviction_policies()``; ``"lru"`` is vLLM's.
        journal: Where its operations are recorded; keys are in it whole, and no digests of its state.

    Raises:
        InvalidArgumentError: ``num_blocks`` is out of range, or there is no such policy.
        JournalFileError: The journal's file cannot be made.

    >>> pool = kvpool._core.VllmPool(4, True)
    >>> blocks, _ = pool.allocate(2)
    >>> pool.insert_hash(bytes(32) + bytes(4), blocks[0].block_id, 16)
    True
    >>> pool.free(reversed(blocks))
    >>> pool.order()  # block 2 carries no hash; block 1 can be hit until everything else is in use
    [2, 3, 1]
    >>> pool.find(bytes(32), [0]) == [blocks[0]]
    True
    """

    def __new__(cls, num_blocks: int, caching: bool, policy: str = "lru", journal: Journal | None = None) -> Self: ...
    def journal_stats(self) -> JournalStats | None:
        """Returns how far the journal has come, or None without one."""
    def journal_image(self) -> bytes | None:
        """Writes what the journal has collected. Returns the bytes that a ring holds; None without a ring."""
    def bind(self, owner: object) -> None:
        """Names the object that blocks give as their pool; a second one is not taken.

        It is held weakly.
        """
    @property
    def blocks(self) -> list[VllmBlock]:
        """The blocks, by id: always the same list."""
    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, cached ones included."""
    def set_num_free(self, count: int) -> None:
        """Writes how many blocks count as free; the queue stays as it is.

        Allocations and :attr:`num_free` see the count, which goes up and down with the queue from there on, not below
        0. With the length of the queue everything counts again. O(1).

        Raises:
            InvalidArgumentError: ``count`` is negative, or above the length of the queue.
        """
    def owns(self, block: object) -> bool:
        """Says whether it is a block of this pool."""
    @overload
    def allocate(self, n: int, observed: Literal[False] = False) -> tuple[list[VllmBlock], None]:
        """Takes the next free blocks, each with one reference; what they were cached for is evicted.

        Returns the blocks and, if ``observed``, the keys that led to them, in order, each with whether it leads nowhere
        now. O(n).

        Raises:
            InvalidArgumentError: Fewer are free.
        """
    @overload
    def allocate(self, n: int, observed: Literal[True]) -> tuple[list[VllmBlock], list[tuple[bytes, bool]]]: ...
    def claim(self, blocks: Iterable[VllmBlock]) -> list[tuple[bytes, bool]]:
        """Gives blocks that were taken by hand a reference each; returns the keys that led to them.

        Behind :meth:`queue_pop`, what :meth:`allocate` does at once. Each key comes with whether it leads nowhere now.
        O(blocks).
        """
    def touch(self, blocks: Iterable[VllmBlock]) -> None:
        """Adds one reference to each block; those that were free are so no longer.

        O(blocks).
        """
    def free(self, blocks: Iterable[Any]) -> list[Any] | None:
        """Drops one reference of each block; returns those that are not of this pool, or None.

        Blocks without further references become free in the order given: those without a hash are reused next, the
        first of them first; the others last. O(blocks).

        Raises:
            InvalidBlockError: A block has no references.
        """
    def unpin(self, blocks: Iterable[VllmBlock]) -> None:
        """Drops one reference of each block; those without further ones are reused last, hash or not.

        O(blocks), if they are few.

        Raises:
            InvalidBlockError: A block has no references, or is the null block.
        """
    def find(self, digest: bytes, groups: Sequence[int]) -> list[VllmBlock] | None:
        """Returns the block cached first for a digest in each of the groups, or None if one has none.

        O(groups).

        Raises:
            InvalidArgumentError: A digest of more than 35 bytes.
        """
    def find_run(
        self, hashes: Sequence[bytes], max_blocks: int, groups: Sequence[int], scale: int = 1
    ) -> tuple[list[VllmBlock], ...]:
        """Returns the longest run of cached blocks from the first, a list per group.

        O(blocks found * groups).

        Args:
            hashes: The digests of a request, ``scale`` for each block, of which the last stands for it.
            max_blocks: The most to return; never more than there are digests for.
            groups: A block counts as cached if all of them have it.
            scale: Digests per block, at least 1.

        Raises:
            InvalidArgumentError: A digest of more than 35 bytes.
        """
    def find_window(
        self,
        hashes: Sequence[bytes],
        max_blocks: int,
        groups: Sequence[int],
        need: int,
        block_size: int,
        alignment: int,
        shift: int,
        scale: int = 1,
    ) -> tuple[tuple[list[VllmBlock], ...], bool]:
        """Returns the rightmost run of cached blocks that a sliding window can attend from, a list per group.

        Null blocks stand before it. The run from the first block counts at any length; the flag says whether the run
        is as long as needed. O(blocks), one probe per window where nothing is cached.

        Args:
            hashes: As in ``find_run``; there must be enough for ``max_blocks``.
            max_blocks: Blocks to look at.
            groups: As in ``find_run``.
            need: Blocks of a run.
            block_size: Tokens per block.
            alignment: Tokens; ``(end - shift) * block_size`` must be a multiple of it, where ``end`` is one past the
                run, unless it is ``block_size``.
            shift: Blocks that are dropped from the end of a hit.
            scale: As in ``find_run``.

        Raises:
            InvalidArgumentError: A digest of more than 35 bytes.
        """
    def cache_full(
        self,
        blocks: Sequence[object],
        hashes: Sequence[bytes],
        first: int,
        end: int,
        block_size: int,
        group: int,
        mask: Sequence[bool] | None = None,
        scale: int = 1,
        observed: bool = False,
    ) -> tuple[list[tuple[bytes, bool]], list[bool | None]] | None:
        """Caches the blocks first..end of a request's table, which are full; None if one is not of this pool.

        Null blocks are left out. A block that is cached for fewer tokens loses those keys. Returns the keys that gave
        way, as ``allocate`` does, and, if ``observed``, for each block whether its key is new to the index, or None for
        one that was left out. O(end - first).

        Args:
            blocks: The table.
            hashes: As in ``find_run``.
            first: The first block to cache.
            end: One past the last.
            block_size: Tokens per block.
            group: The KV-cache group.
            mask: For each of the blocks, whether to cache it.
            scale: As in ``find_run``.
            observed: Whether to tell what is new.

        Raises:
            InvalidBlockError: A block is cached for as many tokens, or more.
            InvalidArgumentError: A digest of more than 35 bytes.
        """
    def insert_hash(
        self, key: bytes, block: int, num_tokens: int | None = None, depth: int = 0, parent: bytes | None = None
    ) -> bool:
        """Caches a block under a key, as its hash if it has none; returns whether the key is new to the index.

        ``num_tokens`` are those of the prefix that the key stands for, ``depth`` is the block's position in its table,
        ``parent`` the key of the block before it. O(1).

        Raises:
            InvalidArgumentError: More than 39 bytes.
        """
    def chain_group(self, group: int) -> None:
        """Takes a block of a group to be of no use without the block before it: in full attention it is none.

        Where the pool keeps a history, no block cached later is evicted before what is cached behind it. O(1).
        """
    @property
    def keeps_history(self) -> bool:
        """Whether the order depends on what blocks hold and who uses them: with lru it does not."""
    def remove_hashes(self, block: int) -> list[tuple[bytes, bool]]:
        """Takes all keys from a block, its hash first, and returns them as allocate does.

        O(keys).
        """
    def move_hashes(self, from_block: int, to_block: int) -> None:
        """Gives the keys of one block to another, which must carry none.

        O(keys).

        Raises:
            InvalidBlockError: ``to_block`` carries a hash, or one of them is unknown.
        """
    def evict(self, block: int, reuse_first: bool) -> list[tuple[bytes, bool]]:
        """Takes all keys from a block, in use or not, and returns them as allocate does.

        With ``reuse_first`` a free one that had any is handed out next. O(keys).

        Raises:
            InvalidBlockError: It is unknown.
        """
    def reset(self) -> bool:
        """Forgets everything that is cached; refused, with False, while a block is in use.

        The order of reuse stays. O(blocks).
        """
    def peek(self, n: int) -> list[VllmBlock]:
        """Returns the next free blocks without taking them, or as many as there are.

        O(n), or O(free blocks) where cached ones are among them.
        """
    def queue_pop(self, n: int) -> list[VllmBlock]:
        """Takes the next blocks out of the queue, or as many as there are, and changes nothing else.

        O(n).
        """
    def queue_remove(self, block: int) -> bool:
        """Takes a block out of the queue, and returns whether it was there.

        O(1).
        """
    def queue_push(self, blocks: Iterable[VllmBlock], front: bool) -> None:
        """Puts blocks that are not in the queue at its front or its back, in this order.

        O(blocks).
        """
    def order(self) -> list[int]:
        """Returns the ids of the free blocks in the order of reuse.

        O(free blocks).
        """
    def copies(self, key: bytes) -> list[int]:
        """Returns the ids of the blocks under a key, the oldest first.

        O(copies).
        """
    def was_shared(self, key: bytes) -> bool:
        """Says whether a key led to more than one block at once since it led nowhere.

        O(1).
        """
    def keys(self) -> list[bytes]:
        """Returns every key that leads to a block, in no order.

        O(keys).
        """
    def num_keys(self) -> int:
        """Returns how many keys lead to a block.

        O(1).
        """
    def index_insert(self, key: bytes, block: int) -> None:
        """Makes a key lead to a block that does not carry it.

        O(copies).

        Raises:
            InvalidArgumentError: More than 39 bytes.
        """
    def index_remove(self, key: bytes, block: int) -> bool:
        """Makes a key no longer lead to a block, and returns whether it did; the block keeps what it carries.

        O(copies).
        """
    def index_clear(self) -> None:
        """Makes every key lead nowhere; blocks keep what they carry.

        O(keys).
        """
    def further_keys(self, block: int) -> list[bytes]:
        """Returns the keys of a block beyond its hash, in the order in which they were added.

        O(keys of the block).
        """
    def blocks_with_further_keys(self) -> list[int]:
        """Returns the ids of the blocks that have keys beyond their hash, ascending.

        O(n log n) in their number.
        """
    def num_evictable(self, blocks: Iterable[VllmBlock]) -> int:
        """Returns how many of these blocks are free, and would be so no longer when touched.

        O(blocks).
        """
    def check_invariants(self) -> None:
        """Recounts everything from scratch.

        O(blocks + keys), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """

@final
class VllmHasher:
    """Computes the block hashes that a vLLM request has not yet, bit for bit vLLM's.

    ``hasher(request)`` returns them as a list of ``bytes``. It reads ``block_hashes``, ``_all_token_ids`` (a list),
    ``mm_features``, ``lora_request``, ``prompt_embeds`` and ``cache_salt``. Blocks with extra keys, and with tokens
    that are no 32-bit numbers, take ``utils.generate_block_hash_extra_keys`` and ``utils.hash_block_tokens``.

    Costs: 80 ns if no block has become full; 30 to 200 ns per block of 16 tokens then. From 1,024 new tokens on other
    threads run meanwhile.

    Args:
        algorithm: A vLLM encoding of ``hash_algorithms()``: ``"vllm-sha256"``, ``"vllm-sha256-cbor"``,
            ``"vllm-xxhash"`` or ``"vllm-xxhash-cbor"``.
        block_size: Tokens per block.
        utils: ``vllm.v1.core.kv_cache_utils``; its ``NONE_HASH`` is the parent of the first block, read at each call.
        hash_fn: vLLM's hash function of that algorithm, for what the core cannot encode.

    Raises:
        InvalidArgumentError: There is no such algorithm.
        HashingError: It is none of vLLM's, or a block size of 0.

    >>> import hashlib, pickle, types
    >>> utils = types.ModuleType("kv_cache_utils")
    >>> utils.NONE_HASH = bytes(32)
    >>> request = types.SimpleNamespace(
    ...     block_hashes=[], _all_token_ids=[1, 2, 3], mm_features=[], lora_request=None, prompt_embeds=None,
    ...     cache_salt=None,
    ... )
    >>> hasher = kvpool._core.VllmHasher("vllm-sha256", 2, utils, None)
    >>> hasher(request) == [hashlib.sha256(pickle.dumps((bytes(32), (1, 2), None), 5)).digest()]
    True
    """

    def __new__(cls, algorithm: str, block_size: int, utils: ModuleType, hash_fn: Any) -> Self: ...
    def __call__(self, request: Any) -> list[bytes]:
        """Computes what is missing at the end of ``request.block_hashes``."""

@final
class VllmSlots:
    """The calls that vLLM's scheduler makes for every request and step, for one group of full attention.

    It keeps no requests: their tables are vLLM's own lists in vLLM's own dictionaries. A call that is out of the
    ordinary (external or encoder tokens, hits of a running request, nothing to compute) goes to ``fallback`` before
    anything has changed.

    Args:
        core: The pool.
        block_size: Tokens per block, and per digest.
        max_model_len: Tokens that a request may have.
        group: The KV-cache group.
        caching: Whether blocks are cached.
        drop_last: Whether the last block of a hit is dropped.
        recomputed: Tokens at the end that are not cached, for a later step may compute them again.
        watermark: Blocks that must stay free when a waiting request is admitted.
        waiting: The values of ``request.status`` that this is for.
        tables: Request id to its list of ``VllmBlock``.
        num_cached: Request id to the number of its blocks that are cached.
        blocks_class: Makes a result of a tuple of one list of blocks.
        empty: The result without blocks.
        fallback: vLLM's ``allocate_slots``; gets all arguments by position.
        on_removed: Called with evicted keys, as ``VllmPool.allocate`` returns them.
        on_cached: Called instead of caching, with the arguments of vLLM's ``cache_full_blocks``.

    Raises:
        InvalidArgumentError: ``block_size`` is 0.

    >>> from types import SimpleNamespace
    >>> slots = kvpool._core.VllmSlots(
    ...     kvpool._core.VllmPool(4, True), block_size=2, max_model_len=8, group=0, caching=True, drop_last=False,
    ...     recomputed=0, watermark=0, waiting=[], tables={}, num_cached={}, blocks_class=tuple, empty=None,
    ...     fallback=None,
    ... )
    >>> request = SimpleNamespace(
    ...     request_id="a", num_computed_tokens=0, _all_token_ids=[1, 2, 3], block_hashes=[bytes(32)], status=0
    ... )
    >>> (blocks,) = slots.allocate_slots(request, 3)
    >>> [block.block_id for block in blocks]
    [1, 2]
    >>> slots.free("a"), slots.lookup([bytes(32)], 2)[1]
    (True, 2)
    """

    def __new__(
        cls,
        core: VllmPool,
        *,
        block_size: int,
        max_model_len: int,
        group: int,
        caching: bool,
        drop_last: bool,
        recomputed: int,
        watermark: int,
        waiting: Sequence[int],
        tables: dict[Any, Any],
        num_cached: dict[Any, int],
        blocks_class: Callable[[tuple[list[VllmBlock]]], Any],
        empty: Any,
        fallback: Any,
        on_removed: Callable[[list[tuple[bytes, bool]]], object] | None = None,
        on_cached: Callable[..., object] | None = None,
    ) -> Self: ...
    def lookup(self, hashes: Sequence[bytes], max_length: int) -> tuple[Any, int]:
        """Returns the cached blocks of a request and the tokens they hold.

        The last result is kept while no key is removed, and found again by the digest of its last block: O(1) and a
        list then, O(blocks found) otherwise.

        Args:
            hashes: The digests of the request's full blocks.
            max_length: Tokens that may be hit.

        Raises:
            InvalidArgumentError: A digest of more than 35 bytes.
        """
    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: Any | None = None,
    ) -> Any:
        """Takes the blocks that a request needs next and caches those that are full; None if too few are free.

        vLLM's ``KVCacheManager.allocate_slots``. O(new blocks + hits).

        Raises:
            InvalidBlockError: A block that is to be cached is cached already.
        """
    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Caches the blocks of a request that are full with so many tokens.

        O(new full blocks).

        Raises:
            InvalidBlockError: A block that is to be cached is cached already.
        """
    def free(self, id: object) -> bool:  # noqa: A002
        """Frees the blocks of a request, the last first; False, and nothing done, if one is not of the pool.

        O(blocks).

        Raises:
            InvalidBlockError: A block has no references.
        """
    def cached_tokens(self, id: object) -> int:  # noqa: A002
        """Returns the most tokens that a block of a request's table is cached for.

        O(blocks).
        """

def vllm_block_ids(groups: tuple[Iterable[Any], ...]) -> tuple[list[int], ...]:
    """Returns the ids of the blocks of each group.

    ``KVCacheBlocks.get_block_ids`` in one call. Blocks are ``VllmBlock``, or have a ``block_id``. O(blocks).
    """
