"""The Rust core of kvpool.

The following conventions apply to every class of this package:

- **Tokens** are ints from 0 to ``2**32 - 1``: a list (fastest of the sequences), any other sequence, or a 1-D
  buffer of int32, uint32 or int64 (``array.array``, numpy, any strides). A CPU torch tensor is read without a
  copy. Other types, including ``bytes`` and ``str``, raise ``TokenTypeError``. Values that are out of range
  raise ``TokenError``.
- **Block ids** are ints, and may have the same types as tokens. Block 0 is the null block, which is never
  allocated and never accepted. Methods with ``out`` write ids to the beginning of a writable, contiguous, 1-D
  int32 buffer of the caller instead of making a list. Pass a torch tensor as ``tensor.numpy()``.
- **Request ids** are a str, or an int from ``-2**63`` to ``2**64 - 1``. ``1`` and ``"1"`` are two different
  requests.
- **Ints** may have any type with ``__index__``, such as the integer types of numpy. This includes ids, tokens
  and numbers.
- **Numbers** of blocks and tokens must not be negative. A negative number raises ``InvalidArgumentError``.
- **Errors** are those of ``kvpool.errors``. A call that raises an error changes nothing. A value with a type
  that is not supported raises ``ArgumentTypeError``. Tokens raise ``TokenTypeError`` instead.
- **Threads** may share objects. Each call is atomic. Long calls release Python's global interpreter lock
  (GIL).
- **Costs** in the documentation are for one call. They do not depend on the size of the pool, unless
  documented otherwise.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, SupportsIndex, TypeAlias, type_check_only

from typing_extensions import Buffer

from kvpool._core import (
    advisor,
    events,
    explain,
    facets,
    groups,
    hashing,
    journal,
    manager,
    parts,
    policies,
    pool,
    requests,
    retention,
    sizing,
    store,
    tiers,
    traces,
    transfer,
    vllm,
)

__all__ = [
    "__version__",
    "advisor",
    "debug_build",
    "events",
    "explain",
    "facets",
    "groups",
    "hashing",
    "journal",
    "manager",
    "parts",
    "policies",
    "pool",
    "requests",
    "retention",
    "sizing",
    "store",
    "tiers",
    "traces",
    "transfer",
    "vllm",
]

# Types that the signatures use. They exist only for type checkers: import them under TYPE_CHECKING.

@type_check_only
class NumpyArray(Protocol):
    """A numpy array. numpy's annotations declare it as a buffer only from Python 3.12 on."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The address, shape, strides and dtype of the array."""

_Array: TypeAlias = Buffer | NumpyArray

@type_check_only
class CpuTensor(Protocol):
    """The methods of a CPU torch tensor that kvpool uses."""

    def data_ptr(self) -> int:
        """The address of the data. kvpool only checks that this method exists."""
    def numpy(self) -> _Array:
        """Returns an array over the memory of the tensor."""

_Ints: TypeAlias = Sequence[int] | _Array | CpuTensor

Tokens: TypeAlias = _Ints

BlockIds: TypeAlias = _Ints

RequestId: TypeAlias = str | SupportsIndex

# Names that are fixed when kvpool is built. tests/test_names.py compares them with the names in the binary.

HashAlgorithm: TypeAlias = Literal[
    "sha256", "blake3", "xxh3", "vllm-sha256", "vllm-sha256-cbor", "vllm-xxhash", "vllm-xxhash-cbor"
]
VerifyMode: TypeAlias = Literal["none", "fingerprint", "tokens"]
Duplicates: TypeAlias = Literal["keep", "drop-on-release"]
EvictionPolicy: TypeAlias = Literal["lru", "last-accessed", "s3-fifo", "arc", "adaptive", "hazard"]
ExpiredAs: TypeAlias = Literal["normal", "demote"]
TraceFormat: TypeAlias = Literal[
    "mooncake", "mooncake-sessions", "bailian", "kv-cache-tester", "block-rows", "kv-events"
]
ReplayMode: TypeAlias = Literal["lookup", "engine"]
SizingBlocks: TypeAlias = Literal["all", "full"]
SizingForm: TypeAlias = Literal["pool", "stream"]
ExportLanguage: TypeAlias = Literal["rust", "python"]

BlockState: TypeAlias = Literal["null", "free", "cached-free", "active", "fenced"]
RequestState: TypeAlias = Literal["running", "preempted", "swapped", "moving", "loading", "releasing"]
Fit: TypeAlias = Literal["ok", "later", "never"]
MissReason: TypeAlias = Literal[
    "never-seen",
    "not-remembered",
    "diverged",
    "evicted",
    "expired",
    "end-of-life",
    "tenant-ceiling",
    "dropped-by-id",
    "reset",
    "other-epoch",
    "other-salt",
    "other-adapter",
    "other-keys",
    "being-computed",
    "not-computed",
    "collision",
    "unreachable",
    "behind",
    "last-token",
    "too-short",
    "unserved",
    "not-kept",
]
JournalSubject: TypeAlias = Literal["pool", "manager", "vllm-pool"]
DifferenceKind: TypeAlias = Literal["answer", "digest", "invariant", "other"]

__version__: str
debug_build: bool
