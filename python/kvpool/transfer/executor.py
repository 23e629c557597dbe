"""``PlanExecutor`` executes the plans of a block manager, and completes or aborts its swaps."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import operator
import warnings
from typing import TYPE_CHECKING, Any, Literal, Protocol

from kvpool.errors import KvpoolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvpool import TransferPlan
    from kvpool._core.transfer import BlockStore, CudaStream, Transfer, TransferEngine

__all__ = ["FinishedSwap", "PlanExecutor", "Planner", "Swaps"]


class Swaps(Protocol):
    """The interface of ``CacheManager.swaps``, with which the executor ends swaps."""

    def complete(self, swap: int) -> dict[int, int]:
        """Ends a swap after its copies have finished."""

    def abort(self, swap: int) -> None:
        """Undoes a swap."""


class Planner(Protocol):
    """The interface of an object that plans copies: a ``CacheManager``, or a class of the caller."""

    def take_plan(self) -> TransferPlan:
        """Returns the planned copies, and removes them from the plan."""

    @property
    def swaps(self) -> Swaps:
        """The object whose methods end the swaps in the plans."""


class _OldSwaps:
    """Ends swaps with ``complete_swap`` and ``abort_swap``, the names of earlier versions."""

    def __init__(self, planner: Any) -> None:
        self.complete = planner.complete_swap
        self.abort = planner.abort_swap


def _old_swaps(planner: Planner) -> _OldSwaps | None:
    """Adapts a planner that defines only the old names, with a warning. Returns None for other planners."""

    def defines(name: str) -> bool:
        return inspect.getattr_static(planner, name, None) is not None

    if defines("swaps") or not defines("complete_swap"):
        return None
    name = type(planner).__name__
    message = f"{name} needs swaps.complete and swaps.abort instead of complete_swap and abort_swap"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return _OldSwaps(planner)


@dataclasses.dataclass(frozen=True, slots=True)
class FinishedSwap:
    """A swap that has ended, successfully or not: an entry of the result of ``poll``."""

    #: Its number.
    swap: int
    #: Maps each block that was copied to its new block. Empty if the swap was aborted.
    blocks: dict[int, int]
    #: The error if the copies failed. The manager is then in the state from before the swap began.
    error: BaseException | None = None


@dataclasses.dataclass(slots=True)
class _Batch:
    """A group of swaps whose copies were started together."""

    swaps: list[int]
    transfers: list[Transfer]


class PlanExecutor:
    """Copies the blocks that a manager plans to copy, and ends its swaps when the copies have finished.

    Copies for copy-on-write are part of the step. When ``run`` returns, they are done (CPU) or enqueued
    on the current stream (CUDA), so that the step may then write KV. Copies for swaps run at the same
    time as the steps. ``poll`` completes the swaps whose copies have finished, and aborts the swaps
    whose copies failed.

    Args:
        manager: A ``CacheManager``, or another object with ``take_plan``, ``swaps.complete`` and
            ``swaps.abort``. In this version, ``complete_swap`` and ``abort_swap`` also work, with a
            ``DeprecationWarning``.
        engine: Copies between the stores.
        stores: The blocks of each tier: device, then host.

    >>> import kvpool
    >>> from kvpool.transfer import BlockStore, TransferEngine
    >>> manager = kvpool.CacheManager(num_blocks=8, block_size=4, host_blocks=8)
    >>> memory = bytearray(8 * 64)
    >>> import ctypes
    >>> address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    >>> device = BlockStore.from_regions([(address, 64, 64)], num_blocks=8, keep_alive=memory)
    >>> host = BlockStore.host(8, like=device)
    >>> with TransferEngine() as engine:
    ...     executor = PlanExecutor(manager, engine, [device, host])
    ...     _ = manager.admit("a", range(8))
    ...     executor.run([manager.swaps.begin_out(["a"])])
    ...     executor.wait()
    [FinishedSwap(swap=0, blocks={1: 1, 2: 2}, error=None)]
    """

    def __init__(self, manager: Planner, engine: TransferEngine, stores: Sequence[BlockStore]) -> None:
        self._manager = manager
        self._old_swaps = _old_swaps(manager)
        self._engine = engine
        self._stores = list(stores)
        self._running: list[_Batch] = []
        self._finished: list[FinishedSwap] = []

    @property
    def in_flight(self) -> int:
        """Number of swaps that are running, or have ended and were not returned by ``poll`` yet."""
        return len(self._finished) + sum(len(batch.swaps) for batch in self._running)

    def run(
        self, swaps: Iterable[int] = (), *, stream: Literal["current"] | CudaStream | int | None = "current"
    ) -> None:
        """Executes the copies that the manager has planned since the last call.

        Call it once per step, after the step was planned and before it writes KV. If the copies of
        swaps cannot be started, the swaps are aborted and ``poll`` reports them. If copy-on-write
        fails, this call raises, because the step must not run.

        Args:
            swaps: The swaps begun since the last call (``swaps.begin_out``, ``swaps.begin_in``). Their
                copies are in the manager's plan.
            stream: The stream of the step. The default is torch's current stream.

        Raises:
            KvpoolError: Copy-on-write failed. The swaps of this call are aborted.
            TypeError: A swap is not an int. The plan was not taken.
        """
        begun = [operator.index(swap) for swap in swaps]
        plan = self._manager.take_plan()
        local = any(src[0] == dst[0] for src, dst in plan.transfers)
        try:
            transfers = self._engine.execute(plan, self._stores, stream=stream)
        except Exception as error:
            self._end(begun, error)
            if local or not begun:
                raise
            return
        if begun or transfers:
            self._running.append(_Batch(begun, transfers))

    def poll(self) -> list[FinishedSwap]:
        """Completes the swaps whose copies have ended, and aborts those whose copies failed.

        Does not wait. Returns the swaps that ended since the last call.
        """
        going = []
        for batch in self._running:
            if all(transfer.done() for transfer in batch.transfers):
                failed = next((transfer.error for transfer in batch.transfers if transfer.error), None)
                self._end(batch.swaps, failed)
            else:
                going.append(batch)
        self._running = going
        over, self._finished = self._finished, []
        return over

    def wait(self) -> list[FinishedSwap]:
        """Waits until all running copies have ended. Returns the result of ``poll``."""
        for batch in self._running:
            for transfer in batch.transfers:
                # The error is ignored here, because ``poll`` reports it.
                with contextlib.suppress(KvpoolError):
                    transfer.wait()
        return self.poll()

    def _end(self, swaps: list[int], error: BaseException | None) -> None:
        for swap in swaps:
            blocks: dict[int, int] = {}
            failure = error
            try:
                if error is None:
                    blocks = (self._old_swaps or self._manager.swaps).complete(swap)
                else:
                    (self._old_swaps or self._manager.swaps).abort(swap)
            except KvpoolError as refusal:
                # Other code has ended the swap already. This counts as a failure of this swap only. The
                # other swaps continue.
                failure = refusal
            self._finished.append(FinishedSwap(swap, blocks, failure))
