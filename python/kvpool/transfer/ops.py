"""Block copies as torch ops: ``torch.ops.kvpool.copy_blocks``, ``swap_blocks``, ``copy_blocks_by_handle``.

Importing this module registers the ops. They are defined by their schemas
(``torch.library.Library.define``), which costs one microsecond per call; a ``custom_op`` costs ten.
They have kernels for CPU, CUDA and Meta, so that they can be compiled and traced.

A block mapping is an int64 tensor of shape [n, 2]. Each row contains a source block and a destination
block. A mapping in CPU memory is checked completely before any copy is enqueued. A mapping in device
memory is never read by the host. Rows with -1 are skipped: a captured graph always replays the same n
rows, and -1 fills the unused ones. Rows with ids out of range are skipped, too, and the engine's next
``poll`` reports them.

``copy_blocks(Tensor[] src, Tensor(a!)[] dst, Tensor block_mapping, int block_dim=0) -> ()``
    Copies between blocks of one device.

``swap_blocks(Tensor[] src, Tensor(a!)[] dst, Tensor block_mapping, int src_block_dim=0, int
dst_block_dim=0) -> ()``
    Copies between device and host, or between any two lists of tensors with equal blocks.

``swap_blocks.vllm(Tensor src, Tensor(a!) dst, int block_size_in_bytes, Tensor block_mapping) -> ()``
    Has the signature of vLLM's ``swap_blocks`` (csrc/cache_kernels.cu): contiguous tensors, and the
    bytes of a block.

``copy_blocks_by_handle(int src, int dst, Tensor block_mapping) -> ()``
    Copies between stores that are given by ``BlockStore.handle``. It is the fastest op, because it
    passes no list of tensors. The compiler knows that the op has an effect, but not which tensors it
    reads and writes. In compiled code that uses the same tensors, use ``copy_blocks`` instead.

The ops are for inference: no gradients flow through a copy, and autograd's version counters do not
change.

The ops without handles find the store of their tensors by address, shape and strides. They remember the
last 64 stores, and do not keep the tensors alive.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeAlias

import torch

from kvpool._core.transfer import BlockStore, copy_by_handle
from kvpool.errors import LayoutError, LayoutMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["copy_blocks", "copy_blocks_by_handle", "swap_blocks", "swap_blocks_vllm"]

_LIBRARY = torch.library.Library("kvpool", "DEF")
_LIBRARY.define("copy_blocks(Tensor[] src, Tensor(a!)[] dst, Tensor block_mapping, int block_dim=0) -> ()")
_LIBRARY.define(
    "swap_blocks(Tensor[] src, Tensor(a!)[] dst, Tensor block_mapping, int src_block_dim=0, int "
    "dst_block_dim=0) -> ()"
)
_LIBRARY.define(
    "swap_blocks.vllm(Tensor src, Tensor(a!) dst, int block_size_in_bytes, Tensor block_mapping) -> ()"
)
_LIBRARY.define("copy_blocks_by_handle(int src, int dst, Tensor block_mapping) -> ()")

#: The properties of a tensor that determine its blocks, and whether its memory is pinned.
_Geometry: TypeAlias = "tuple[int, torch.Size, tuple[int, ...], torch.dtype, torch.device, bool]"


class _Tensors:
    """A list of tensors as a key of the cache of stores. Two lists are equal if their geometries are.

    The key does not keep the tensors alive.
    """

    __slots__ = ("geometry", "tensors")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors: Sequence[Tensor] | None = tensors
        # Before torch has initialized CUDA, no memory is pinned, so ``is_pinned`` is not called.
        cuda = torch.cuda.is_initialized()
        self.geometry: list[_Geometry] = [
            (t.data_ptr(), t.shape, t.stride(), t.dtype, t.device, cuda and t.is_pinned()) for t in tensors
        ]

    def __hash__(self) -> int:
        return hash(self.geometry[0][0]) if self.geometry else 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Tensors) and self.geometry == other.geometry


@functools.lru_cache(maxsize=64)
def _store_of(key: _Tensors, block_dim: int) -> BlockStore:
    tensors, key.tensors = key.tensors, None
    return BlockStore.from_tensors(tensors or (), block_dim=block_dim, keep_alive=False)


@functools.lru_cache(maxsize=64)
def _flat_store_of(key: _Tensors, block_bytes: int) -> BlockStore:
    """Returns a store that divides one tensor of any shape into consecutive blocks."""
    tensors, key.tensors = key.tensors, None
    (tensor,) = tensors or ()
    size = tensor.numel() * tensor.element_size()
    if not tensor.is_contiguous() or block_bytes < 1 or size == 0 or size % block_bytes:
        raise LayoutError(
            f"block_size_in_bytes is {block_bytes}, of a tensor of {size} bytes and strides "
            f"{tuple(tensor.stride())}: it has to be contiguous, and a whole number of blocks"
        )
    pinned = tensor.device.type == "cpu" and tensor.is_pinned()
    region = (tensor.data_ptr(), block_bytes, block_bytes)
    return BlockStore.from_regions([region], size // block_bytes, device=str(tensor.device), pinned=pinned)


def _copy_blocks(
    src: Sequence[Tensor], dst: Sequence[Tensor], block_mapping: Tensor, block_dim: int = 0
) -> None:
    source, target = _store_of(_Tensors(src), block_dim), _store_of(_Tensors(dst), block_dim)
    if source.device != target.device:
        raise LayoutMismatchError(
            f"copy_blocks copies within one device: the source is on {source.device}, the destination on "
            f"{target.device}; use swap_blocks"
        )
    copy_by_handle(source.handle, target.handle, block_mapping)


def _swap_blocks(
    src: Sequence[Tensor],
    dst: Sequence[Tensor],
    block_mapping: Tensor,
    src_block_dim: int = 0,
    dst_block_dim: int = 0,
) -> None:
    source, target = _store_of(_Tensors(src), src_block_dim), _store_of(_Tensors(dst), dst_block_dim)
    copy_by_handle(source.handle, target.handle, block_mapping)


def _swap_blocks_vllm(src: Tensor, dst: Tensor, block_size_in_bytes: int, block_mapping: Tensor) -> None:
    if src.dtype != dst.dtype:
        raise LayoutMismatchError(f"the source is of {src.dtype}, the destination of {dst.dtype}")
    source = _flat_store_of(_Tensors([src]), block_size_in_bytes)
    target = _flat_store_of(_Tensors([dst]), block_size_in_bytes)
    copy_by_handle(source.handle, target.handle, block_mapping)


def _nothing(*args: object) -> None:
    """The kernel for ``meta`` tensors, which have no memory.

    Raises if some of the tensors have memory, because the op would then silently copy nothing.
    """
    given = [one for arg in args for one in (arg if isinstance(arg, list) else [arg])]
    devices = {one.device.type for one in given if isinstance(one, torch.Tensor)}
    if devices - {"meta"}:
        raise LayoutMismatchError(
            f"tensors are on {', '.join(sorted(devices))}: those on meta have no memory to copy"
        )


for _name, _kernel in (
    ("copy_blocks", _copy_blocks),
    ("swap_blocks", _swap_blocks),
    ("swap_blocks.vllm", _swap_blocks_vllm),
    ("copy_blocks_by_handle", copy_by_handle),
):
    for _key in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _kernel, _key)
    _LIBRARY.impl(_name, _nothing, "Meta")

# The op writes to none of its arguments, so without this line a compiler would remove it.
torch.fx.node.has_side_effect(torch.ops.kvpool.copy_blocks_by_handle.default)

copy_blocks = torch.ops.kvpool.copy_blocks.default
swap_blocks = torch.ops.kvpool.swap_blocks.default
swap_blocks_vllm = torch.ops.kvpool.swap_blocks.vllm
copy_blocks_by_handle = torch.ops.kvpool.copy_blocks_by_handle.default
