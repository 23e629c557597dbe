"""The KV memory that kvpool's block ids name, and where in it a token's slot or a request's state is.

Layers that keep the same of a request are a :class:`Group`: they share a block table. All groups have
blocks of one pool, so all blocks are of the same bytes, and every group has the same number of layers:
a block is a *page* in each of them. Page ``n`` of all blocks is one tensor, which the layer ``n`` of
each group uses. Of a group with keys and values, slot ``offset`` of block ``block`` is row ``block *
block_size + offset`` of the tensor. Of a group with states, the page is a row of numbers: the state,
and padding.

Block 0, the null block, is what a window has given up: kvpool never hands it out, and nothing reads it.
Whoever must not see a position reads a block of zeros instead, behind those of the pool, so that
neither the garbage of a recycled block nor a NaN in one can reach a result (a weight of zero does not
help against it: ``0 * NaN`` is NaN).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from kvpool import GroupSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from examples.paged_engine.checkpoint import ModelConfig

__all__ = ["Group", "Keep", "PagedKV"]

#: Which blocks of a window, and which states, stay cached: see :class:`kvpool.GroupSpec`.
Keep = Literal["all", "junctions"] | int


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that keep the same of a request."""

    layers: tuple[int, ...]
    #: Tokens that a token reads, itself included; None are all before it.
    window: int | None = None
    #: Numbers of the state that each layer hands on from token to token; 0 if it keeps keys and values.
    state: int = 0

    @property
    def name(self) -> str:
        """What people call it."""
        if self.state:
            return "state"
        return "full attention" if self.window is None else f"window of {self.window}"

    def spec(self, block_size: int, keep: Keep) -> GroupSpec:
        """What the manager has to know of it."""
        if self.state:
            return GroupSpec("state", block_size, keep=keep)
        if self.window is None:
            return GroupSpec("full", block_size)
        return GroupSpec("sliding", block_size, window=self.window, keep=keep)

    def most_blocks(self, tokens: int, block_size: int, chunk: int) -> int:
        """Blocks that a request of so many tokens holds at most, if so many are computed and committed
        at a time.
        """
        if self.state:
            return 1
        every = -(-tokens // block_size)
        # The first token of a chunk may be the last of a block, and so may the first one that it reads.
        return every if self.window is None else min(every, -(-(self.window - 1 + chunk) // block_size) + 1)


class PagedKV:
    """What all layers keep, in blocks.

    Args:
        config: The model's shape.
        groups: Its groups.
        num_blocks: Blocks of the pool, null block included.
        block_size: Token slots per block.
        poison: Whether what was not written is NaN, which shows whoever reads it; else it is zero.
        device: Where the memory is.

    Raises:
        ValueError: A state does not fit a page.

    """

    def __init__(
        self,
        config: ModelConfig,
        groups: Sequence[Group],
        num_blocks: int,
        block_size: int,
        *,
        poison: bool = False,
        device: str = "cpu",
    ) -> None:
        self.block_size = block_size
        self.num_heads = config.num_kv_heads
        shape = (2, num_blocks + 1, block_size, config.num_kv_heads, config.head_dim)
        numbers = 2 * block_size * config.num_kv_heads * config.head_dim
        for group in groups:
            assert len(group.layers) == len(groups[0].layers), (
                "groups of one pool have as many layers as each other"
            )
            if group.state > numbers:
                raise ValueError(
                    f"a state of {group.state} numbers does not fit a page of {numbers}, of {block_size} tokens: "
                    f"blocks need {-(-group.state * block_size // numbers)} tokens or more"
                )
        #: The page of each layer.
        self._page = {layer: page for group in groups for page, layer in enumerate(group.layers)}
        fill = float("nan") if poison else 0.0
        pages = range(len(groups[0].layers))
        #: One tensor per page: [keys and values, blocks, slots, heads, head dimension].
        self.pages = [torch.full(shape, fill, dtype=torch.float32, device=device) for _ in pages]
        #: The block of zeros.
        self.padding = num_blocks
        for page in self.pages:
            page[:, self.padding] = 0.0

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all pages."""
        return sum(page[:, 0].numel() * page.element_size() for page in self.pages)

    def poison(self, blocks: Iterable[int]) -> None:
        """Makes blocks NaN that hold nothing: whoever reads them shows."""
        ids = torch.tensor(list(blocks), dtype=torch.int64)
        for page in self.pages:
            page.index_fill_(1, ids.to(page.device), float("nan"))

    # --- Keys and values
    # -------------------------------------------------------------------------------------------

    def slots(self, tables: Tensor, positions: Tensor) -> Tensor:
        """Slots of positions, by the block tables of their rows.

        Args:
            tables: One block table per row: [rows, blocks].
            positions: Positions in the sequence of each row: [rows, positions].

        """
        return tables.gather(1, positions // self.block_size) * self.block_size + positions % self.block_size

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Writes keys and values, [rows, heads, head dimension], to one slot per row."""
        for part, rows in zip(self.pages[self._page[layer]], (keys, values), strict=True):
            part.flatten(0, 1).index_copy_(0, slots, rows)

    def head_rows(self, slots: Tensor) -> Tensor:
        """Where :meth:`read` finds slots, [rows, positions], by head: [rows * heads, positions]."""
        heads = torch.arange(self.num_heads, device=slots.device)
        return (slots[:, None, :] * self.num_heads + heads[:, None]).flatten(0, 1)

    def read(self, layer: int, part: int, head_rows: Tensor) -> Tensor:
        """Gathers keys (part 0) or values (part 1): [rows * heads, positions, head dimension]."""
        rows = self.pages[self._page[layer]][part].flatten(0, 2).index_select(0, head_rows.flatten())
        return rows.view(*head_rows.shape, -1)

    # --- States
    # ----------------------------------------------------------------------------------------------------

    def read_states(self, layer: int, blocks: Tensor, size: int) -> Tensor:
        """Returns the first numbers of blocks' pages: [blocks, size]."""
        return self.pages[self._page[layer]][:, blocks].transpose(0, 1).flatten(1)[:, :size]

    def write_states(self, layer: int, blocks: Tensor, states: Tensor) -> None:
        """Writes to them in place."""
        page = self.pages[self._page[layer]]
        numbers = page[:, blocks].transpose(0, 1).flatten(1)
        numbers[:, : states.shape[1]] = states
        page[:, blocks] = numbers.view(len(blocks), *page[:, 0].shape).transpose(0, 1)
