"""Copies blocks between the memory of tiers. See ``kvpool.transfer``."""

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any, Literal, Protocol, Self, TypeAlias, final, type_check_only

from kvpool._core import _Array
from kvpool._core.tiers import TransferPlan

__all__ = [
    "BlockStore",
    "Transfer",
    "TransferEngine",
    "copy_by_handle",
    "cuda_driver_version",
]

@type_check_only
class Tensor(Protocol):
    """The attributes of a torch tensor that a store needs, on any device."""

    @property
    def shape(self) -> Sequence[int]:
        """The number of elements in each dimension."""
    def data_ptr(self) -> int:
        """The address of the first element."""
    def stride(self) -> Any:
        """The distance from one index to the next in each dimension, in elements."""
    def element_size(self) -> int:
        """The number of bytes of an element."""

@type_check_only
class CudaStream(Protocol):
    """A ``torch.cuda.Stream``, or another object that has the handle of a stream."""

    @property
    def cuda_stream(self) -> int:
        """The handle of this object in the CUDA driver."""

@type_check_only
class CudaEvent(Protocol):
    """A recorded ``torch.cuda.Event``, or another object that has the handle of a recorded event."""

    @property
    def cuda_event(self) -> int:
        """The handle of this object in the CUDA driver."""

#: Source block and destination block of each copy: pairs, or int64 of shape [n, 2].
Mapping: TypeAlias = Sequence[tuple[int, int]] | Sequence[list[int]] | _Array | Tensor

Method: TypeAlias = Literal["auto", "kernel", "batch", "staged", "memcpy", "cpu"]

@final
class BlockStore:
    """The memory of the blocks of one tier.

    A store is a list of regions. Each region describes one piece of every block: the address of the piece in
    block 0, the stride from block to block, and the length of the piece in bytes. Copies move bytes between
    stores whose regions are alike, and do not interpret them. So any layout works: any dtype, NHD or HND, per
    layer or cross-layer, MLA, padded pages. ``from_tensors``, ``from_regions`` and ``host`` make stores.

    >>> import torch
    >>> # Four layers, with K and V apart.
    >>> kv = [torch.zeros(2, 100, 16, 8, 128, dtype=torch.bfloat16) for _ in range(4)]
    >>> kvpool.transfer.BlockStore.from_tensors(kv, block_dim=1)
    BlockStore(device="cpu", num_blocks=100, bytes_per_block=262144, num_regions=8)
    """

    @staticmethod
    def from_tensors(
        tensors: Iterable[Tensor], *, block_dim: int | Sequence[int] = 0, keep_alive: bool = True
    ) -> BlockStore:
        """Returns a store over tensors, which it keeps alive.

        The regions are in the order of the tensors. Do not resize the storage of a tensor that a store
        uses. O(regions).

        Args:
            tensors: At least one tensor. All are on one device and have the same number of blocks.
            block_dim: The dimension whose index is the block, one number for all tensors or one for each.
                Negative numbers count from the last dimension. Contiguous inner dimensions form one piece.
                Each index of the other dimensions is a separate piece.
            keep_alive: Whether the store keeps the tensors alive. If not, the caller must keep them alive
                until the last copy has ended.

        Raises:
            LayoutError: There is no tensor, or tensors are on different devices. Or inner dimensions
                are not contiguous, or blocks overlap.
            MappingTypeError: The objects are not tensors, or one tensor is given instead of a list.
            InvalidArgumentError: The numbers of tensors and block dimensions differ.
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
        """Returns a store over memory that is given by address, for callers without tensors.

        The call cannot check an address. A wrong address makes copies read or overwrite other memory.

        Args:
            regions: For each piece of a block, its address in block 0, the bytes from block to block,
                and its bytes.
            num_blocks: The number of blocks, 1 to ``2**31 - 1``.
            device: ``cpu``, ``cuda`` or ``cuda:N``.
            pinned: Whether the memory is page-locked. Each region must then be within one allocation.
            keep_alive: An object that stays alive as long as the store is used.

        Raises:
            LayoutError: There is no region, or a region has no bytes. Or blocks or regions overlap, or
                a region exceeds the address space.
            InvalidArgumentError: A number is negative, or the device does not exist.
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
        """Returns a pool of host memory for blocks like those of another store, each in one piece.

        Page-locking takes about 0.1 s per GB. If page-locking fails, the pool is pageable: copies are
        correct, but slower.

        Args:
            num_blocks: The number of blocks, 1 to ``2**31 - 1``.
            like: The store on the device with which the pool exchanges blocks.
            pinned: Whether the pool is page-locked. ``"auto"`` tries to page-lock the pool. If that fails,
                ``why_pageable`` contains the reason.
            numa_node: The NUMA node of the memory. ``"auto"`` is the node nearest to the device. None does
                not choose a node.
            hugepages: Whether to use huge pages. The call tries reserved huge pages, then transparent huge
                pages, then small pages. ``pages`` returns the result.
            registration_limit: The largest number of bytes that one call of the driver page-locks, 64 GiB by
                default. The driver fails to page-lock very large memory, such as 512 GiB, in one call.

        Raises:
            PinningError: The memory cannot be allocated, or cannot be page-locked although ``pinned``
                is True.
            LayoutError: The number of blocks is 0 or too large.
            InvalidArgumentError: A setting is out of range.
        """
    @property
    def num_blocks(self) -> int:
        """The number of blocks."""
    @property
    def bytes_per_block(self) -> int:
        """The number of bytes of a block, summed over all regions."""
    @property
    def num_regions(self) -> int:
        """The number of separate pieces of memory of which each block consists."""
    @property
    def regions(self) -> list[tuple[int, int, int]]:
        """For each piece of a block, its address in block 0, the bytes from block to block, and its bytes."""
    @property
    def device(self) -> str:
        """The device of the memory: cpu or cuda:N."""
    @property
    def pinned(self) -> bool:
        """Whether the host memory of the store is page-locked."""
    @property
    def why_pageable(self) -> str | None:
        """The reason why a host pool is not page-locked although the caller allowed it, or None."""
    @property
    def pages(self) -> Literal["small", "transparent", "huge"] | None:
        """The kind of memory pages of a host pool: small, transparent or huge. None for other memory."""
    @property
    def packed(self) -> bool:
        """Whether each block is one contiguous piece of memory."""
    @property
    def handle(self) -> int:
        """The number that identifies the store in ``copy_by_handle``."""
    @property
    def closed(self) -> bool:
        """Whether the store is closed."""
    def close(self) -> None:
        """Closes the store. It refuses new work, and frees its memory when the last transfer has ended."""
    def read_block(self, block: int) -> bytes:
        """Returns the bytes of a block of a host store, piece by piece.

        Waits while a transfer or another call writes to the block. O(bytes).

        Raises:
            BlockIndexError: The block does not exist.
            LayoutMismatchError: The store is on a device.
            ClosedError: The store is closed.
        """
    def write_block(self, block: int, data: bytes) -> None:
        """Writes the bytes of a block of a host store, piece by piece.

        Waits while a transfer or another call reads or writes the block. O(bytes).

        Raises:
            BlockIndexError: The block does not exist.
            LayoutMismatchError: The number of bytes is not that of a block, or the store is on a
                device.
            ClosedError: The store is closed.
        """

@final
class TransferEngine:
    """Copies blocks between the stores of one device and the host.

    ``submit`` returns at once. Transfers of one direction end in the order in which they were submitted. With
    a CUDA device, they run on streams of the engine. With the CPU, they run on a thread. ``copy`` runs in the
    order of the caller's stream. A refused call enqueues nothing.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        threads: The number of threads that copy with the processor, 1 to 1024. None uses one thread per core,
            at most 8.
        staging_bytes: The number of bytes of each staging buffer on the device, 4 KiB to 1 TiB. There are two
            buffers per direction, which are allocated at their first use.
        calibration: A file that ``calibrate`` wrote. It contains the thresholds between copy methods for this
            card.

    Raises:
        CudaUnavailableError: There is no driver, or it is too old, or the device does not exist.
        CudaError: The driver refused.
        InvalidArgumentError: A setting is out of range, or the file has no thresholds for this card.

    >>> import torch
    >>> a, b = torch.arange(12).reshape(3, 4), torch.zeros(3, 4, dtype=torch.int64)
    >>> source, target = (kvpool.transfer.BlockStore.from_tensors([one]) for one in (a, b))
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
        """The number of transfers that have not ended."""
    @property
    def closed(self) -> bool:
        """Whether the engine is closed."""
    @property
    def card(self) -> tuple[str, str, int] | None:
        """The name, bus address and driver version of the device, or None for the CPU."""
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

        O(pairs * regions) to enqueue, or O(pairs) with the method ``kernel``. An engine keeps at most 131,072
        transfers that are running, or that have ended and were not polled. If there are more, the next call
        waits until only 32,768 transfers are running.

        Args:
            src: The store that is read.
            dst: The store that is written. Its regions must have the lengths of those of ``src``.
            mapping: The source and destination block of each copy. It cannot be on a device.
            after: The work after which the copy begins. ``"current"`` is the work that is now on torch's
                current stream, because KV must be written before it is copied. You can also pass a stream, an
                event or another transfer. With None, the copy does not wait.
            regions: The first region to copy and the region after the last, for instance to copy one layer at
                a time. None copies all regions.
            method: Forces one method, for tests and benchmarks.

        Raises:
            BlockIndexError: A block is outside its store.
            DuplicateDestinationError: A block is written twice.
            OverlappingCopyError: A block is read that another pair writes.
            LayoutMismatchError: Regions or dtypes differ, or a store is on another device than the
                engine.
            MappingError: The mapping has a wrong shape.
            MappingTypeError: The mapping has a wrong dtype, or is on a device.
            ClosedError: A store or the engine is closed, or the process was forked.
            CaptureError: The stream is being captured. Use ``copy``.
            InvalidArgumentError: The method does not support this copy, or the regions do not exist.
            CudaError: The driver refused, and nothing was enqueued.
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
        """Copies blocks in the order of a stream. If both stores are on the CPU, the copy is done on return.

        If the mapping is on the device, a kernel copies the blocks, and the host does not read the mapping.
        Keep such a mapping alive until the copy is done, unless the stream is torch's current stream. The
        kernel skips rows with -1 and rows with ids out of range. ``poll`` reports ids out of range. If a CUDA
        graph captures the call, a replay of the graph uses the values that the mapping has at that time. The
        stores must remain open as long as the graph exists.

        Args:
            src: The store that is read.
            dst: The store that is written. Its regions must have the lengths of those of ``src``.
            mapping: The source and destination block of each copy.
            stream: By default torch's current stream. None is the legacy default stream.
            method: Forces one method, for tests and benchmarks.

        Raises:
            KvpoolError: As for ``submit``.
            CaptureError: This method cannot be captured.
        """
    def execute(
        self,
        plan: TransferPlan,
        stores: Sequence[BlockStore],
        *,
        stream: Literal["current"] | CudaStream | int | None = "current",
        scratch: Sequence[tuple[int, int]] | None = None,
    ) -> list[Transfer]:
        """Executes a plan. Copies within a store run in the order of a stream. Other copies are transfers.

        The transfers wait for the work that is now on the stream. The rounds of the plan run one after the
        other.

        Args:
            plan: The plan that ``take_plan`` returned.
            stores: The store of each tier.
            stream: By default torch's current stream. None is the legacy default stream.
            scratch: As for ``TransferPlan.rounds``.

        Raises:
            KvpoolError: As for ``submit``. Nothing was enqueued.
            InvalidArgumentError: A cycle has no scratch block, or a tier has no store.
        """
    def poll(self) -> list[Transfer]:
        """Returns the transfers that have ended since the last call, failed ones included.

        The result does not contain transfers whose end ``wait`` or ``done`` of the transfer has already
        reported. The engine keeps the last 65,536 ended transfers. O(running transfers).

        Raises:
            BlockIndexError: A mapping on the device contained ids out of range. The next call returns the
                transfers.
        """
    def wait(self, timeout: float | None = None) -> None:
        """Waits until all transfers submitted so far have ended, successfully or not.

        ``poll`` returns their results. Other threads continue, and Ctrl-C interrupts the call.

        Raises:
            TransferTimeoutError: A transfer has not ended after ``timeout`` seconds.
            ClosedError: The process was forked since.
            InvalidArgumentError: The timeout is negative.
        """
    def calibrate(self, save: str | PathLike[str] | None = None) -> dict[str, Any]:
        """Measures the copy methods of the device, uses the resulting thresholds, and returns a dict of them.

        Takes some seconds, a quarter of a GiB on the device, and a quarter of a GiB of pinned memory. The
        dict can be written as JSON.

        Args:
            save: A file to which the result is added. Pass it as ``calibration`` later.

        Raises:
            PinningError: Host memory cannot be page-locked.
            CudaError: The driver refused.
            InvalidArgumentError: The engine has no device. Or the file cannot be written, or is not a file
                of calibrations.
        """
    def close(self) -> None:
        """Refuses new work, waits for the running transfers, and ends the worker thread."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Transfer:
    """A submitted copy.

    The transfer keeps both stores open until it has ended.
    """

    @property
    def id(self) -> int:
        """The number of the transfer. An engine numbers its transfers in the order of ``submit``."""
    @property
    def nbytes(self) -> int:
        """The number of bytes to copy."""
    @property
    def method(self) -> Method:
        """The name of the method that copies the bytes."""
    @property
    def seconds(self) -> float | None:
        """The number of seconds that the copy took, or None before its end."""
    @property
    def error(self) -> BaseException | None:
        """The exception if the transfer failed, or None."""
    def done(self) -> bool:
        """Returns whether the transfer has ended, successfully or not."""
    def wait(self, timeout: float | None = None) -> None:
        """Waits until the transfer has ended.

        Other threads continue, and Ctrl-C interrupts the call.

        Raises:
            TransferTimeoutError: The transfer has not ended after ``timeout`` seconds.
            ClosedError: The process was forked since.
            CudaError: The transfer failed.
            InvalidArgumentError: The timeout is negative.
        """
    def wait_on(self, stream: Literal["current"] | CudaStream | int | None = "current") -> None:
        """Makes a stream wait until the transfer has ended.

        Copies of pageable memory are queued on the engine's thread. If such a copy has not begun, this call
        waits for it.

        Raises:
            CaptureError: The stream is being captured, and the copy began outside of the capture.
            CudaError: The transfer failed, or the driver refused.
        """

def copy_by_handle(src: int, dst: int, mapping: Mapping) -> None:
    """Copies blocks between two stores, given by handle, in the order of torch's current stream.

    All such calls for a device share one engine.

    Raises:
        ClosedError: A store does not exist.
        KvpoolError: As for ``TransferEngine.copy``.
    """

def cuda_driver_version() -> int:
    """Returns the version of the CUDA driver, as 1000 * major + 10 * minor.

    Raises:
        CudaUnavailableError: No driver works. The message contains the reason.
    """
