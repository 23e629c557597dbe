"""Exceptions of kvpool: one base class, and each also the builtin that callers would catch.

Whatever call raises one of these has changed nothing.

>>> import kvpool
>>> pool = kvpool.BlockPool(num_blocks=4)
>>> try:
...     pool.allocate(5)
... except kvpool.errors.OutOfBlocksError as error:
...     print(error.needed, error.available, isinstance(error, MemoryError))
5 3 True
>>> pool.num_available
3
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpool._removed import missing


class KvpoolError(Exception):
    """Base class of every exception that kvpool raises on purpose."""


class InvalidArgumentError(KvpoolError, ValueError):
    """A setting or an argument outside its range; the message names the value and what is allowed."""


class TokenError(KvpoolError, ValueError):
    """A token outside ``0 .. 2**32 - 1``; the message names its position and value."""


class TokenTypeError(KvpoolError, TypeError):
    """Tokens of a type or dtype that kvpool does not take."""


class ArgumentTypeError(KvpoolError, TypeError):
    """Ids, counts, extra keys, an ``out`` buffer or another sequence of a type or dtype that kvpool
    does not take.
    """


class TooLargeError(KvpoolError, MemoryError):
    """A sequence or buffer that does not fit the memory that is left, whatever it says of its length."""


class HashingError(KvpoolError, ValueError):
    """Settings or extra keys that a hash algorithm cannot represent."""


class InvalidBlockError(KvpoolError, ValueError):
    """An unknown block id, the null block, a double free, or a block in the wrong state."""


class OutOfBlocksError(KvpoolError, MemoryError):
    """Not enough blocks.

    Attributes:
        needed: blocks that the call needed beyond the cached ones.
        available: blocks that it could have taken, the watermark respected.
        missing: ``needed - available``: blocks that must be released first.
        fenced: blocks that become available when running steps complete.
        can_ever_fit: whether the request fits an otherwise empty pool: of an admission, in chunks of its
            ``allocate_tokens`` to the end of its prompt. If not, waiting does not help.
        fits_in_chunks: of an admission, whether smaller chunks could ever fit; of other calls, as
            ``can_ever_fit``.
        fitting_tokens: of an admission, the tokens behind the cached ones that would fit now: the most that
            ``allocate_tokens`` can be. 0 for other calls.
    """

    needed: int = 0
    available: int = 0
    missing: int = 0
    fenced: int = 0
    can_ever_fit: bool = True
    fits_in_chunks: bool = True
    fitting_tokens: int = 0


class UnknownRequestError(KvpoolError, KeyError):
    """No request has this id."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, quotes and all.
        return str(self.args[0]) if self.args else ""


class DuplicateRequestError(KvpoolError, ValueError):
    """A request with this id is known already, or one call names a request twice."""


class RequestStateError(KvpoolError, RuntimeError):
    """The request is running or preempted, and the call needs the other."""


class StaleEpochError(KvpoolError, RuntimeError):
    """Tokens that were hashed before the last epoch bump: hash them again."""


class StaleMatchError(KvpoolError, RuntimeError):
    """A match whose block no longer holds what it did: the message names the first; look it up again."""


class StaleStepError(KvpoolError, RuntimeError):
    """The manager has changed since the step was begun, or the step is over: begin a new one."""


class SwapError(KvpoolError, RuntimeError):
    """A swap that is over, or whose copies were not taken."""


class BlocksInUseError(KvpoolError, RuntimeError):
    """A reset while blocks are held, in any tier."""


class NoRetentionError(KvpoolError, RuntimeError):
    """A hint for a pool or manager that was made without ``retention``."""


class PayloadError(KvpoolError, RuntimeError):
    """A payload for a pool that was made without ``payloads``, or whose evicted ones wait to be taken."""


class TimeBackwardsError(KvpoolError, ValueError):
    """A time before one that was given already; the message names both."""


class PolicyError(KvpoolError, RuntimeError):
    """An eviction policy written in Python failed and is used no more, or called into its own pool.

    The exception that it raised, or what was wrong with its answer, is the cause.
    """


class PoolPoisonedError(KvpoolError, RuntimeError):
    """An internal invariant broke: the pool refuses all work and says why."""


class InvariantError(KvpoolError, RuntimeError):
    """``check_invariants()`` found a broken invariant; the message names it."""


class TraceError(KvpoolError, ValueError):
    """A trace that cannot be read; the message names line and field."""


class TraceFileError(KvpoolError, OSError):
    """A trace file that cannot be opened or read."""


class BlockIndexError(KvpoolError, IndexError):
    """A mapping names a block that a store does not have; the message names pair, side, block and limit."""


class DuplicateDestinationError(KvpoolError, ValueError):
    """A mapping writes a block twice."""


class OverlappingCopyError(KvpoolError, ValueError):
    """A mapping reads what it writes: its copies run in any order."""


class LayoutError(KvpoolError, ValueError):
    """Memory that cannot be copied by blocks: inner dimensions that are not contiguous, blocks that
    overlap.
    """


class LayoutMismatchError(KvpoolError, ValueError):
    """Two stores whose blocks differ; the message names both sides."""


class MappingError(KvpoolError, ValueError):
    """A mapping of the wrong shape."""


class MappingTypeError(KvpoolError, TypeError):
    """A mapping of the wrong type or dtype, or a stream or tensor that is none."""


class ClosedError(KvpoolError, RuntimeError):
    """A store or an engine that was closed or belongs to another process, or a handle of none."""


class CaptureError(KvpoolError, RuntimeError):
    """What cannot be captured into a CUDA graph; the message says what can."""


class PinningError(KvpoolError, MemoryError):
    """Host memory that cannot be had or page-locked."""


class CudaError(KvpoolError, RuntimeError):
    """The CUDA driver refused, or work that it had accepted failed.

    Attributes:
        code: the driver's result code, or 0.
        name: its name, such as ``CUDA_ERROR_OUT_OF_MEMORY``.
        call: the driver's function.
    """

    code: int = 0
    name: str = ""
    call: str = ""


class CudaUnavailableError(KvpoolError, RuntimeError):
    """There is no CUDA driver, no such device, or too old a driver; the message says which."""


class TransferTimeoutError(KvpoolError, TimeoutError):
    """A transfer goes on for longer than the caller would wait."""


class JournalError(KvpoolError, ValueError):
    """A journal that cannot be kept, read or replayed; the message says why."""


class JournalFileError(KvpoolError, OSError):
    """A journal's file that cannot be made, written or read."""


class JournalExistsError(JournalFileError, FileExistsError):
    """A journal was to go to a file that exists: nothing is overwritten."""


class StoreError(KvpoolError, OSError):
    """A store that cannot be opened, or a folder that cannot be read or changed; the message says why.

    What happens to one object is never an exception: it is a word in the answer of ``poll``.
    """


class StoreInUseError(StoreError, BlockingIOError):
    """Another process, or another store of this one, has the folder; the message names the process."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """A folder that has no objects of a store."""


class MissingPackageError(KvpoolError, ImportError):
    """A package that kvpool needs for this, and does without otherwise, is not installed."""


class SlotBusyError(KvpoolError, RuntimeError):
    """A slot of an arena that a transfer has."""


class ModelConfigError(KvpoolError, ValueError):
    """A ``config.json`` that is none, or that describes layers which kvpool does not know.

    Attributes:
        field: the field that is wrong, with those around it: ``text_config.layer_types``; ``None`` if
            it is the whole file.
    """

    def __init__(self, message: str = "", field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Refuses a name that this module does not have."""
        raise missing(__name__, name)


def __dir__() -> list[str]:
    """Lists the classes of this module."""
    return [
        name for name, value in globals().items() if isinstance(value, type) and value.__module__ == __name__
    ]
