"""Stores for tests. They have the layouts of engines over CPU tensors, some of which the fake driver
treats as device memory.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import torch

from kvpool.transfer import BlockStore

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from tests.transfer.fake_cuda.driver import FakeCuda

#: Factor for the number of random cases. It is 10 in ``make test-slow``.
MORE = 10 if os.environ.get("HYPOTHESIS_PROFILE") == "slow" else 1
DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int64, torch.float16)


@dataclasses.dataclass(frozen=True)
class Shape:
    """The number of layers, tokens, heads and elements in a block."""

    layers: int
    tokens: int
    heads: int
    elements: int


def _bytes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def _as(raw: Tensor, dtype: torch.dtype) -> Tensor:
    return raw.view(dtype)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A layout of KV in an engine: a function that makes its tensors for a number of blocks, and the
    dimension of the blocks.
    """

    name: str
    make: Callable[[Shape, int, torch.dtype], Sequence[Tensor]]
    block_dim: int


def _per_layer_apart(s: Shape, blocks: int, dtype: torch.dtype) -> list[Tensor]:
    size = dtype.itemsize
    return [_as(_bytes(2, blocks, s.tokens, s.heads, s.elements * size), dtype) for _ in range(s.layers)]


def _per_layer_block_first(s: Shape, blocks: int, dtype: torch.dtype) -> list[Tensor]:
    size = dtype.itemsize
    return [_as(_bytes(blocks, 2, s.tokens, s.heads, s.elements * size), dtype) for _ in range(s.layers)]


def _hnd_seen_as_nhd(s: Shape, blocks: int, dtype: torch.dtype) -> list[Tensor]:
    size = dtype.itemsize
    raw = [_as(_bytes(2, blocks, s.heads, s.tokens, s.elements * size), dtype) for _ in range(s.layers)]
    return [one.transpose(2, 3) for one in raw]


def _heads_outside(s: Shape, blocks: int, dtype: torch.dtype) -> list[Tensor]:
    size = dtype.itemsize
    return [_as(_bytes(s.heads, blocks, s.tokens, s.elements * size), dtype) for _ in range(s.layers)]


def _cross_layer(s: Shape, blocks: int, dtype: torch.dtype) -> list[Tensor]:
    return [_as(_bytes(blocks, s.layers, 2, s.tokens, s.heads * s.elements * dtype.itemsize), dtype)]


def _latent(s: Shape, blocks: int, dtype: torch.dtype) -> list[Tensor]:
    return [_as(_bytes(blocks, s.tokens, s.elements * dtype.itemsize), dtype) for _ in range(s.layers)]


def _padded_pages(s: Shape, blocks: int, dtype: torch.dtype) -> list[Tensor]:
    """Returns pages that end with unused bytes. Before the first block there is other memory."""
    inner = s.tokens * s.elements
    raw = [_as(_bytes(blocks + 2, (inner + 48) * dtype.itemsize), dtype) for _ in range(s.layers)]
    return [
        torch.as_strided(one, (blocks, s.tokens, s.elements), (inner + 48, s.elements, 1), inner + 48)
        for one in raw
    ]


def _unlike_layers(s: Shape, blocks: int, dtype: torch.dtype) -> list[Tensor]:
    """Returns layers of several sizes, one after the other."""
    size = dtype.itemsize
    widths = [s.elements * (1 + layer % 3) for layer in range(s.layers)]
    return [_as(_bytes(2, blocks, s.tokens, width * size), dtype) for width in widths]


LAYOUTS = (
    Layout("per layer, K and V apart", _per_layer_apart, 1),
    Layout("per layer, block first", _per_layer_block_first, 0),
    Layout("HND seen as NHD", _hnd_seen_as_nhd, 1),
    Layout("heads outside of blocks", _heads_outside, 1),
    Layout("cross-layer", _cross_layer, 0),
    Layout("MLA", _latent, 0),
    Layout("padded pages", _padded_pages, 0),
    Layout("layers of several sizes", _unlike_layers, 1),
)


class Blocks:
    """The tensors of a layout, and a store over them. The tensors are in CPU memory, which the fake
    driver may treat as memory of its device.
    """

    def __init__(self, tensors: Sequence[Tensor], block_dim: int, *, fake: FakeCuda | None = None) -> None:
        self.tensors = list(tensors)
        self.block_dim = block_dim
        self.store = BlockStore.from_tensors(self.tensors, block_dim=block_dim)
        self.fake = fake
        if fake is not None:
            for storage in self.storages():
                fake.mark_device(storage.data_ptr(), storage.numel())
            regions, blocks = self.store.regions, self.store.num_blocks
            self.store = BlockStore.from_regions(regions, blocks, device="cuda:0", keep_alive=self.tensors)

    def release(self) -> None:
        """Makes the fake driver treat the memory as host memory again."""
        if self.fake is not None:
            for storage in self.storages():
                self.fake.unmark(storage.data_ptr())

    def storages(self) -> list[Tensor]:
        """Returns all memory of each tensor as bytes, including the bytes between and around blocks."""
        return [torch.tensor([], dtype=torch.uint8).set_(one.untyped_storage()) for one in self.tensors]

    def copy(self, *, fake: FakeCuda | None = None) -> Blocks:
        """Returns equal bytes at other addresses, with the same layout."""
        twins = []
        for tensor, storage in zip(self.tensors, self.storages(), strict=True):
            memory = storage.clone().view(tensor.dtype)
            twins.append(torch.as_strided(memory, tensor.shape, tensor.stride(), tensor.storage_offset()))
        return Blocks(twins, self.block_dim, fake=fake)

    def same(self, other: Blocks) -> bool:
        """Returns whether all memory is equal, including the bytes outside of blocks."""
        pairs = zip(self.storages(), other.storages(), strict=True)
        return all(torch.equal(mine, theirs) for mine, theirs in pairs)

    def block(self, index: int) -> bytes:
        """Returns the bytes of a block in the order of the store's regions. For these layouts that is
        the order of the tensors' dimensions.
        """
        return self.copy().store.read_block(index)

    def assign(self, source: Blocks, pairs: Iterable[tuple[int, int]]) -> None:
        """Makes a copy with torch's indexing, as the expected result. Reads all sources before it
        writes to any destination.
        """
        taken = [
            (dst, [one.select(source.block_dim, src).clone() for one in source.tensors]) for src, dst in pairs
        ]
        for dst, pieces in taken:
            for tensor, piece in zip(self.tensors, pieces, strict=True):
                tensor.select(self.block_dim, dst).copy_(piece)


def on_device(fake: FakeCuda, blocks: int = 8, nbytes: int = 512, tensors: int = 1) -> Blocks:
    """Returns random blocks in memory of the fake device. Each block has ``nbytes`` bytes in each
    tensor.
    """
    return Blocks([_bytes(blocks, nbytes) for _ in range(tensors)], 0, fake=fake)


def random_shape(rng: random.Random) -> Shape:
    return Shape(
        layers=rng.choice((1, 2, 5)),
        tokens=rng.choice((1, 3, 16)),
        heads=rng.choice((1, 2, 8)),
        elements=rng.choice((1, 5, 7, 64, 128)),
    )


def random_pairs(rng: random.Random, sources: int, targets: int) -> list[tuple[int, int]]:
    """Returns a mapping in which no block occurs twice on either side. The pairs are scattered, or form
    ascending or descending runs.
    """
    count = rng.choice((0, 1, 3, min(sources, targets)))
    count = min(count, sources, targets)
    src, dst = rng.sample(range(sources), count), rng.sample(range(targets), count)
    if count and rng.random() < 0.5:
        first, to = rng.randrange(sources - count + 1), rng.randrange(targets - count + 1)
        src, dst = list(range(first, first + count)), list(range(to, to + count))
        if rng.random() < 0.5:
            src.reverse()
            dst.reverse()
    return list(zip(src, dst, strict=True))
