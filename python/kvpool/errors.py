"""Exceptions of kvpool.

All have the base class ``KvpoolError``, and each is also a subclass of the matching built-in exception.

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
    """A setting or an argument is invalid. The message contains the value and the values that are allowed."""


class TokenError(KvpoolError, ValueError):
    """A token is outside ``0 .. 2**32 - 1``. The message contains its position and value."""


class TokenTypeError(KvpoolError, TypeError):
    """Tokens have a type or dtype that kvpool does not accept."""


class ArgumentTypeError(KvpoolError, TypeError):
    """A sequence or buffer has a type or dtype that kvpool does not accept.

    The argument can be ids, counts, extra keys, or an ``out`` buffer.
    """


class TooLargeError(KvpoolError, MemoryError):
    """A sequence or buffer does not fit into the available memory. Its declared length is not trusted."""


class HashingError(KvpoolError, ValueError):
    """The hash algorithm cannot represent these settings or extra keys."""


class InvalidBlockError(KvpoolError, ValueError):
    """A block id is unknown, is the null block, is freed twice, or is in the wrong state for the call."""


class OutOfBlocksError(KvpoolError, MemoryError):
    """There are not enough blocks for the call.

    Attributes:
        needed: Number of blocks that the call needed in addition to the cached ones.
        available: Number of blocks that the call could have taken. The blocks that the watermark
            reserves are not included.
        missing: ``needed - available``, the number of blocks that must be released before the call can
            succeed.
        fenced: Number of blocks that become available when running steps complete.
        can_ever_fit: Whether the request fits into an otherwise empty pool. An admission is checked to
            the end of its prompt, computed in chunks of ``allocate_tokens`` tokens. If false, waiting
            does not help.
        fits_in_chunks: For an admission, whether smaller chunks could ever fit. For other calls, equal
            to ``can_ever_fit``.
        fitting_tokens: For an admission, the number of tokens after the cached ones that would fit now.
            ``allocate_tokens`` can be at most this number. 0 for other calls.
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
        # ``str`` of a KeyError is the ``repr`` of its argument, which would put the message in quotes.
        return str(self.args[0]) if self.args else ""


class DuplicateRequestError(KvpoolError, ValueError):
    """A request with this id already exists, or one call names a request twice."""


class RequestStateError(KvpoolError, RuntimeError):
    """The request is in the wrong state: the call needs a running one and it is preempted, or the reverse."""


class StaleEpochError(KvpoolError, RuntimeError):
    """The tokens were hashed in an earlier epoch of the pool. Hash them again."""


class StaleMatchError(KvpoolError, RuntimeError):
    """A block of the match has other content now.

    The message contains the first such block. Look up the prompt again.
    """


class StaleStepError(KvpoolError, RuntimeError):
    """The manager has changed since the step began, or the step has ended. Begin a new step."""


class SwapError(KvpoolError, RuntimeError):
    """The swap has ended already, or its copies were not taken with ``take_plan``."""


class BlocksInUseError(KvpoolError, RuntimeError):
    """The cache cannot be reset while requests hold blocks in any tier."""


class NoRetentionError(KvpoolError, RuntimeError):
    """A retention hint was passed to a pool or manager that was made without ``retention``."""


class PayloadError(KvpoolError, RuntimeError):
    """A payload was passed to a pool made without ``payloads``, or the evicted payloads were not taken."""


class TimeBackwardsError(KvpoolError, ValueError):
    """A clock was set to a time before the time of an earlier call. The message contains both times."""


class PolicyError(KvpoolError, RuntimeError):
    """A Python eviction policy failed, and the pool no longer uses it; or the policy called its own pool.

    The cause of this error is the exception that the policy raised, or a description of its wrong
    answer.
    """


class PoolPoisonedError(KvpoolError, RuntimeError):
    """An internal invariant is broken. The pool refuses all work, and the message contains the reason."""


class InvariantError(KvpoolError, RuntimeError):
    """``check_invariants()`` found a broken invariant. The message names it."""


class TraceError(KvpoolError, ValueError):
    """The trace is invalid. The message contains the line and the field."""


class TraceFileError(KvpoolError, OSError):
    """The trace file cannot be opened or read."""


class BlockIndexError(KvpoolError, IndexError):
    """A mapping of source to destination blocks contains a block that a store does not have.

    The message contains the position of the pair, the side (source or destination), the block, and the
    number of blocks.
    """


class DuplicateDestinationError(KvpoolError, ValueError):
    """A mapping of source to destination blocks writes to the same block twice."""


class OverlappingCopyError(KvpoolError, ValueError):
    """A mapping of source to destination blocks reads and writes the same block.

    This is refused because copies run in any order.
    """


class LayoutError(KvpoolError, ValueError):
    """Memory cannot be copied in blocks: its inner dimensions are not contiguous, or blocks overlap."""


class LayoutMismatchError(KvpoolError, ValueError):
    """The blocks of two stores have different layouts. The message describes both."""


class MappingError(KvpoolError, ValueError):
    """A mapping of source to destination blocks has the wrong shape."""


class MappingTypeError(KvpoolError, TypeError):
    """A mapping of blocks has the wrong type or dtype, or a stream or tensor is invalid."""


class ClosedError(KvpoolError, RuntimeError):
    """The object is closed, belongs to another process, or no longer exists for this handle."""


class CaptureError(KvpoolError, RuntimeError):
    """This call cannot be captured into a CUDA graph. The message lists the calls that can."""


class PinningError(KvpoolError, MemoryError):
    """Host memory cannot be allocated or page-locked."""


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
    """CUDA cannot be used: there is no driver, no such device, or the driver is too old.

    The message contains the reason.
    """


class TransferTimeoutError(KvpoolError, TimeoutError):
    """A transfer takes longer than the caller's timeout."""


class JournalError(KvpoolError, ValueError):
    """A journal cannot be written, read or replayed. The message contains the reason."""


class JournalFileError(KvpoolError, OSError):
    """The file of a journal cannot be created, written or read."""


class JournalExistsError(JournalFileError, FileExistsError):
    """The file for a new journal already exists. Nothing is overwritten."""


class StoreError(KvpoolError, OSError):
    """A store cannot be opened, or its folder cannot be read or changed.

    The message contains the reason. A failure of a single object never raises. It is an outcome in the
    result of ``poll``.
    """


class StoreInUseError(StoreError, BlockingIOError):
    """Another process, or another store of this process, uses the folder. The message names the process."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """The folder contains no objects of a store."""


class MissingPackageError(KvpoolError, ImportError):
    """The call needs an optional package that is not installed."""


class SlotBusyError(KvpoolError, RuntimeError):
    """A transfer is using this slot of the arena."""


class ModelConfigError(KvpoolError, ValueError):
    """A model's ``config.json`` is invalid, or describes layers that kvpool does not support.

    Attributes:
        field: The path of the wrong field, such as ``text_config.layer_types``; ``None`` if the error
            concerns the whole file.
    """

    def __init__(self, message: str = "", field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Raises for a name that this module does not have."""
        raise missing(__name__, name)


def __dir__() -> list[str]:
    return [
        name for name, value in globals().items() if isinstance(value, type) and value.__module__ == __name__
    ]
