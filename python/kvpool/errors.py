"""Exceptions of kvpool. All have one base class, and each is also the builtin that callers expect.

A call that raises one of these has changed nothing.

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
    """Base class of all exceptions that kvpool raises deliberately."""


class InvalidArgumentError(KvpoolError, ValueError):
    """A setting or an argument outside its range; the message names the value and what is allowed."""


class TokenError(KvpoolError, ValueError):
    """A token outside ``0 .. 2**32 - 1``; the message names its position and value."""


class TokenTypeError(KvpoolError, TypeError):
    """Tokens of a type or dtype that kvpool does not accept."""


class ArgumentTypeError(KvpoolError, TypeError):
    """A sequence or buffer of a type or dtype that kvpool does not accept.

    It can be ids, counts, extra keys, or an ``out`` buffer.
    """


class TooLargeError(KvpoolError, MemoryError):
    """A sequence or buffer that does not fit into the available memory, whatever its declared length."""


class HashingError(KvpoolError, ValueError):
    """Settings or extra keys that a hash algorithm cannot represent."""


class InvalidBlockError(KvpoolError, ValueError):
    """An unknown block id, the null block, a double free, or a block in the wrong state."""


class OutOfBlocksError(KvpoolError, MemoryError):
    """Not enough blocks.

    Attributes:
        needed: Blocks that the call needed beyond the cached ones.
        available: Blocks that it could have taken, without those of the watermark.
        missing: ``needed - available``, the number of blocks that must be released first.
        fenced: Blocks that become available when running steps complete.
        can_ever_fit: Whether the request fits into an otherwise empty pool. For an admission, this is
            in chunks of its ``allocate_tokens`` to the end of its prompt. If not, waiting does not
            help.
        fits_in_chunks: For an admission, whether smaller chunks could ever fit. For other calls, it
            equals ``can_ever_fit``.
        fitting_tokens: For an admission, the tokens after the cached ones that would fit now: the most
            that ``allocate_tokens`` can be. 0 for other calls.
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
        # The str of a KeyError is the repr of its argument, with quotes.
        return str(self.args[0]) if self.args else ""


class DuplicateRequestError(KvpoolError, ValueError):
    """A request with this id already exists, or one call names a request twice."""


class RequestStateError(KvpoolError, RuntimeError):
    """The request is running or preempted, and the call needs the other."""


class StaleEpochError(KvpoolError, RuntimeError):
    """Tokens that were hashed before the last epoch bump. Hash them again."""


class StaleMatchError(KvpoolError, RuntimeError):
    """A match whose block has other content by now.

    The message names the first such block; look it up again.
    """


class StaleStepError(KvpoolError, RuntimeError):
    """The manager has changed since the step was begun, or the step has ended. Begin a new one."""


class SwapError(KvpoolError, RuntimeError):
    """A swap that has ended, or whose copies were not taken."""


class BlocksInUseError(KvpoolError, RuntimeError):
    """A reset while blocks are held, in any tier."""


class NoRetentionError(KvpoolError, RuntimeError):
    """A hint for a pool or manager that was made without ``retention``."""


class PayloadError(KvpoolError, RuntimeError):
    """A payload for a pool made without ``payloads``, or a pool whose evicted payloads were not taken."""


class TimeBackwardsError(KvpoolError, ValueError):
    """A time before an earlier one. The message contains both."""


class PolicyError(KvpoolError, RuntimeError):
    """An eviction policy in Python failed and is not used any more, or it called into its own pool.

    The cause is the exception that it raised, or the error in its answer.
    """


class PoolPoisonedError(KvpoolError, RuntimeError):
    """An internal invariant is broken. The pool refuses all work, and the message contains the reason."""


class InvariantError(KvpoolError, RuntimeError):
    """``check_invariants()`` found a broken invariant. The message names it."""


class TraceError(KvpoolError, ValueError):
    """A trace that cannot be read. The message names line and field."""


class TraceFileError(KvpoolError, OSError):
    """A trace file that cannot be opened or read."""


class BlockIndexError(KvpoolError, IndexError):
    """A mapping contains a block that a store does not have.

    The message names pair, side, block and limit.
    """


class DuplicateDestinationError(KvpoolError, ValueError):
    """A mapping writes a block twice."""


class OverlappingCopyError(KvpoolError, ValueError):
    """A mapping writes to a block that it also reads. Its copies run in any order."""


class LayoutError(KvpoolError, ValueError):
    """Memory that cannot be copied by blocks: its inner dimensions are not contiguous, or blocks overlap."""


class LayoutMismatchError(KvpoolError, ValueError):
    """Two stores whose blocks differ. The message names both sides."""


class MappingError(KvpoolError, ValueError):
    """A mapping of the wrong shape."""


class MappingTypeError(KvpoolError, TypeError):
    """A mapping of the wrong type or dtype, or an invalid stream or tensor."""


class ClosedError(KvpoolError, RuntimeError):
    """A store or engine that is closed or belongs to another process, or a handle without a store."""


class CaptureError(KvpoolError, RuntimeError):
    """A call that cannot be captured into a CUDA graph. The message says which calls can."""


class PinningError(KvpoolError, MemoryError):
    """Host memory that cannot be allocated or page-locked."""


class CudaError(KvpoolError, RuntimeError):
    """The CUDA driver refused a call, or accepted work failed.

    Attributes:
        code: The driver's result code, or 0.
        name: The name of the code, such as ``CUDA_ERROR_OUT_OF_MEMORY``.
        call: The driver's function.
    """

    code: int = 0
    name: str = ""
    call: str = ""


class CudaUnavailableError(KvpoolError, RuntimeError):
    """There is no CUDA driver, no such device, or too old a driver. The message contains which of these."""


class TransferTimeoutError(KvpoolError, TimeoutError):
    """A transfer takes longer than the caller's timeout."""


class JournalError(KvpoolError, ValueError):
    """A journal that cannot be kept, read or replayed. The message contains the reason."""


class JournalFileError(KvpoolError, OSError):
    """A journal's file that cannot be created, written or read."""


class JournalExistsError(JournalFileError, FileExistsError):
    """The file for a new journal already exists. Nothing is overwritten."""


class StoreError(KvpoolError, OSError):
    """A store that cannot be opened, or a folder that cannot be read or changed.

    The message contains the reason. Failures of one object are never exceptions: they are outcomes in
    the result of ``poll``.
    """


class StoreInUseError(StoreError, BlockingIOError):
    """Another process, or another store of this process, uses the folder. The message names the process."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """A folder without objects of a store."""


class MissingPackageError(KvpoolError, ImportError):
    """An optional package that this call needs is not installed."""


class SlotBusyError(KvpoolError, RuntimeError):
    """A slot of an arena that a transfer is using."""


class ModelConfigError(KvpoolError, ValueError):
    """A ``config.json`` that is invalid, or that describes layers which kvpool does not know.

    Attributes:
        field: The path of the wrong field, such as ``text_config.layer_types``; ``None`` for the whole
            file.
    """

    def __init__(self, message: str = "", field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Raises for a name that this module does not have."""
        raise missing(__name__, name)


def __dir__() -> list[str]:
    """Lists the classes of this module."""
    return [
        name for name, value in globals().items() if isinstance(value, type) and value.__module__ == __name__
    ]
