"""kvpool: the KV-cache block manager for LLM inference engines.

A scheduler calls :class:`CacheManager`; the parts below it are classes of their own:

>>> import kvpool
>>> manager = kvpool.CacheManager(num_blocks=64, block_size=4)
>>> manager.admit("a", list(range(10)))
Admission(cached_tokens=0, cached_blocks=0, num_blocks=3)
>>> manager.commit("a", 10)  # the engine has run the prompt: two full blocks can be shared now
2
>>> manager.append(["a"], [77])  # a sampled token, and the blocks that it needed
[]
>>> manager.admit("b", list(range(10))).cached_tokens
8
>>> manager.release("a"), manager.release("b")
(None, None)

Importing kvpool needs neither torch nor CUDA nor any other package. Every object may be used by several threads; after
a ``fork`` the child makes objects of its own, for another thread may have held a lock at that moment.
"""

from __future__ import annotations

import warnings

from kvpool import _core
from kvpool._core import (
    Admission,
    AdvisorConfig,
    BlockAllocator,
    BlockHasher,
    BlockPool,
    CacheManager,
    ChainLink,
    ExplainConfig,
    Explanation,
    ExtraKeys,
    FreeBlockList,
    HashChain,
    HashCursor,
    HintReport,
    Journal,
    JournalDifference,
    JournalInfo,
    JournalReport,
    JournalStats,
    LruEvictor,
    ManagerStats,
    MissSpan,
    PoolStats,
    PrefixIndex,
    Probe,
    Replay,
    RequestInfo,
    Retention,
    RetentionConfig,
    RetentionStats,
    ScrubReport,
    Sequences,
    ShrunkJournal,
    Step,
    Swap,
    TenantLimits,
    TieredPool,
    Trace,
    TraceReader,
    TransferPlan,
    bisect_journal,
    compare_journals,
    eviction_policies,
    export_journal,
    hash_algorithms,
    read_journal,
    replay_journal,
    shrink_journal,
    trace_formats,
    verify_modes,
)
from kvpool.errors import (
    BlockIndexError,
    BlocksInUseError,
    CaptureError,
    ClosedError,
    CudaError,
    CudaUnavailableError,
    DuplicateDestinationError,
    DuplicateRequestError,
    HashingError,
    InvalidArgumentError,
    InvalidBlockError,
    InvariantError,
    JournalError,
    JournalExistsError,
    JournalFileError,
    KvpoolError,
    LayoutError,
    LayoutMismatchError,
    MappingError,
    MappingTypeError,
    NoRetentionError,
    OutOfBlocksError,
    OverlappingCopyError,
    PinningError,
    PolicyError,
    PoolPoisonedError,
    RequestStateError,
    StaleEpochError,
    StaleSequenceError,
    StaleStepError,
    SwapError,
    TimeBackwardsError,
    TokenError,
    TokenTypeError,
    TooLargeError,
    TraceError,
    TraceFileError,
    TransferTimeoutError,
    UnknownRequestError,
)
from kvpool.policies import Policy

__version__: str = _core.__version__

__all__ = [
    # What a scheduler calls.
    "CacheManager",
    "Step",
    "Admission",
    "RequestInfo",
    "ManagerStats",
    "Probe",
    "ScrubReport",
    # What callers know of the future, and which cached block goes first.
    "Retention",
    "RetentionConfig",
    "TenantLimits",
    "HintReport",
    "RetentionStats",
    "Policy",
    # What a pool's own traffic says of other sizes and policies.
    "AdvisorConfig",
    # Every operation written down, and run again.
    "Journal",
    "JournalStats",
    "JournalInfo",
    "JournalReport",
    "JournalDifference",
    "ShrunkJournal",
    "read_journal",
    "replay_journal",
    "bisect_journal",
    "compare_journals",
    "shrink_journal",
    "export_journal",
    # Why a prompt missed.
    "ExplainConfig",
    "Explanation",
    "MissSpan",
    # Block tables by handle, and what moves between tiers.
    "Sequences",
    "TieredPool",
    "Swap",
    "TransferPlan",
    # Its parts.
    "BlockPool",
    "PoolStats",
    "BlockAllocator",
    "FreeBlockList",
    "PrefixIndex",
    "LruEvictor",
    # Hashing.
    "BlockHasher",
    "ChainLink",
    "ExtraKeys",
    "HashChain",
    "HashCursor",
    "eviction_policies",
    "hash_algorithms",
    "verify_modes",
    # Traces.
    "Trace",
    "TraceReader",
    "trace_formats",
    "Replay",
    # Errors.
    "KvpoolError",
    "BlockIndexError",
    "BlocksInUseError",
    "CaptureError",
    "ClosedError",
    "CudaError",
    "CudaUnavailableError",
    "DuplicateDestinationError",
    "DuplicateRequestError",
    "HashingError",
    "InvalidArgumentError",
    "InvalidBlockError",
    "InvariantError",
    "JournalError",
    "JournalExistsError",
    "JournalFileError",
    "LayoutError",
    "LayoutMismatchError",
    "MappingError",
    "MappingTypeError",
    "NoRetentionError",
    "OutOfBlocksError",
    "OverlappingCopyError",
    "PinningError",
    "PolicyError",
    "PoolPoisonedError",
    "RequestStateError",
    "StaleEpochError",
    "StaleSequenceError",
    "StaleStepError",
    "SwapError",
    "TimeBackwardsError",
    "TokenError",
    "TokenTypeError",
    "TooLargeError",
    "TraceError",
    "TraceFileError",
    "TransferTimeoutError",
    "UnknownRequestError",
    "__version__",
]

if _core.debug_build:
    warnings.warn(
        "kvpool was built without optimisation and is many times slower: build it with --release",
        RuntimeWarning,
        stacklevel=2,
    )
