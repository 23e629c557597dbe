"""Moving the bytes of blocks: see kvpool.transfer."""

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

    A store is a list of regions: for each piece of a block an address, a stride from block to block,
    and a length in bytes. Copies move opaque bytes between stores whose regions are alike: any dtype,
    NHD or HND, per layer or cross-layer, MLA, padded pages. Made by ``from_tensors``, ``from_regions``
    or ``host``.

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

        O(regions). The order of the tensors is that of the regions. Do not resize a tensor's storage
        under a store.

        Args:
            tensors: At least one, on one device, with equally many blocks each.
            block_dim: The dimension that counts blocks, for all tensors or for each; negative ones
                count from the end. Contiguous inner dimensions make a piece, the others are enumerated.
            keep_alive: Whether the store keeps the tensors. If not, the caller does, until the last
                copy has ended.

        Raises:
            LayoutError: No tensor, another device, inner dimensions that are not contiguous, blocks
                that overlap.
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
            regions: For each piece of a block its address in block 0, the bytes from block to block,
                and its bytes.
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
            hugepages: Back it with huge pages: reserved ones, else transparent ones, else none
                (``pages`` says which).
            registration_limit: Bytes page-locked by one call, 64 GiB by default: one call of 512 GiB fails.

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

        O(bytes). Waits while a transfer or another call writes to the block.

        Raises:
            BlockIndexError: There is no such block.
            LayoutMismatchError: The store is on a device.
            ClosedError: The store is closed.
        """
    def write_block(self, block: int, data: bytes) -> None:
        """Writes the bytes of a block of a host store, piece by piece.

        O(bytes). Waits while a transfer or another call reads the block or writes to it.

        Raises:
            BlockIndexError: There is no such block.
            LayoutMismatchError: Too few or too many bytes, or the store is on a device.
            ClosedError: The store is closed.
        """

@final
class TransferEngine:
    """Copies blocks between the stores of one device and the host.

    ``submit`` returns at once, and transfers of one direction end in the order in which they were
    submitted: on a device they run on streams of the engine's own, on the CPU on a thread. ``copy``
    goes in the order of the caller's stream. Everything that can be refused is refused before anything
    is enqueued.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        threads: Threads of a copy by the processor, 1 to 1024: by default one per core, at most 8.
        staging_bytes: Bytes of each staging buffer on the device, 4 KiB to 1 TiB: two per direction,
            made when first used.
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

        O(pairs * regions) to enqueue; with method ``kernel`` O(pairs). An engine keeps at most 131,072
        transfers, under way or ended and not polled: who submits more waits first, until 32,768 are
        under way.

        Args:
            src: What is read.
            dst: What is written; its regions are like those of ``src``.
            mapping: Source and destination block of each copy. Not on a device.
            after: What it waits for: by default what is on torch's current stream now (KV must be
                written before it is read); a stream, an event, another transfer, or None for nothing.
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

        A mapping on the device takes the kernel, and the host does not read it (keep it until the copy
        is done, if the stream is not torch's current one): rows with -1 and ids out of range are
        skipped; ``poll`` reports the latter. A call that a CUDA graph captures replays with the
        mapping's values then; the stores have to stay open as long as the graph.

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

        Leaves out transfers whose ``wait`` or ``done`` has reported the end. Keeps the last 65,536
        ends. O(transfers under way).

        Raises:
            BlockIndexError: A mapping on the device held ids out of range; the next call goes on.
        """
    def wait(self, timeout: float | None = None) -> None:
        """Waits until everything that was submitted so far has ended, well or not.

        ``poll`` says how they ended. Other threads go on, and Ctrl-C interrupts.

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
            InvalidArgumentError: The engine is of the CPU; the file cannot be written, or is none of
                calibrations.
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
