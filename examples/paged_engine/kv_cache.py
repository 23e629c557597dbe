"""The KV memory that kvpool's block ids refer to, and the positions of slots and states in it.

Layers that store the same data of a request form a :class:`Group`. The layers of a group share a block
table. The blocks of all groups come from one pool. So all blocks have the same number of bytes, and
every group has the same number of layers.

A block has a *page* in each layer of its group. One tensor contains page ``n`` of all blocks, and layer
``n`` of each group uses it. In a group with keys and values, slot ``offset`` of block ``block`` is row
``block * block_size + offset`` of the tensor. In a group with recurrent states, the page contains the
state, followed by padding.

If a window has released a block, block 0 (the null block) replaces it in the table. kvpool never
allocates block 0, and no layer reads it. For a position that a row must not see, the row reads a block
of zeros instead, which is stored after the blocks of the pool. So neither old content of a reused block
nor a NaN can change a result. A weight of zero would not be enough, because ``0 * NaN`` is NaN.
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

#: Which blocks of windows, and which states, stay cached: see :class:`kvpool.GroupSpec`.
Keep = Literal["all", "junctions"] | int


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that store the same data of a request."""

    layers: tuple[int, ...]
    #: Number of tokens that each token reads, including itself. None means all tokens before it.
    window: int | None = None
    #: Number of values in a layer's recurrent state; 0 if the layer keeps keys and values.
    state: int = 0

    @property
    def name(self) -> str:
        """Returns the group's name for messages."""
        if self.state:
            return "state"
        return "full attention" if self.window is None else f"window of {self.window}"

    def spec(self, block_size: int, keep: Keep) -> GroupSpec:
        """Returns the manager's specification of the group."""
        if self.state:
            return GroupSpec("state", block_size, keep=keep)
        if self.window is None:
            return GroupSpec("full", block_size)
        return GroupSpec("sliding", block_size, window=self.window, keep=keep)

    def most_blocks(self, tokens: int, block_size: int, chunk: int) -> int:
        """Returns the maximum number of blocks that a request of ``tokens`` tokens holds in this group.

        The engine computes and commits at most ``chunk`` tokens at a time.
        """
        if self.state:
            return 1
        every = -(-tokens // block_size)
        # A chunk needs one more block if it begins with the last token of a block. It needs another one
        # if the first token that it reads is the last token of a block.
        return every if self.window is None else min(every, -(-(self.window - 1 + chunk) // block_size) + 1)


class PagedKV:
    """The KV memory of all layers, in blocks.

    Args:
        config: The model's sizes.
        groups: The model's groups.
        num_blocks: Number of blocks of the pool, including the null block.
        block_size: Number of token slots per block.
        poison: Whether unwritten memory is NaN, so that a wrong read changes the result. Otherwise
            unwritten memory is zero.
        device: torch's name of the device that has the memory.

    Raises:
        ValueError: A recurrent state does not fit into a page.
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
                "all groups of one pool need the same number of layers"
            )
            if group.state > numbers:
                raise ValueError(
                    f"a state of {group.state} numbers does not fit a page of {numbers}, of {block_size} "
                    "tokens: "
                    f"blocks need {-(-group.state * block_size // numbers)} tokens or more"
                )
        #: Number of the page that each layer uses.
        self._page = {layer: page for group in groups for page, layer in enumerate(group.layers)}
        fill = float("nan") if poison else 0.0
        pages = range(len(groups[0].layers))
        #: One tensor per page. Its dimensions are: keys and values, blocks, slots, heads, head
        #: dimension.
        self.pages = [torch.full(shape, fill, dtype=torch.float32, device=device) for _ in pages]
        #: Id of the block of zeros that rows read for positions that they must not see.
        self.padding = num_blocks
        for page in self.pages:
            page[:, self.padding] = 0.0

    @property
    def block_bytes(self) -> int:
        """Number of bytes of a block: the sum over the block's pages."""
        return sum(page[:, 0].numel() * page.element_size() for page in self.pages)

    def poison(self, blocks: Iterable[int]) -> None:
        """Fills these unused blocks with NaN, so that a wrong read changes the result."""
        ids = torch.tensor(list(blocks), dtype=torch.int64)
        for page in self.pages:
            page.index_fill_(1, ids.to(page.device), float("nan"))

    def slots(self, tables: Tensor, positions: Tensor) -> Tensor:
        """Returns the slots of positions, according to the block table of each row.

        Args:
            tables: One block table per row: [rows, blocks].
            positions: Positions in the sequence of each row: [rows, positions].
        """
        return tables.gather(1, positions // self.block_size) * self.block_size + positions % self.block_size

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Writes one key and one value per row into the row's slot.

        Both are [rows, heads, head dimension].
        """
        for part, rows in zip(self.pages[self._page[layer]], (keys, values), strict=True):
            part.flatten(0, 1).index_copy_(0, slots, rows)

    def head_rows(self, slots: Tensor) -> Tensor:
        """Returns the indices from which :meth:`read` gathers the given slots, one index for each head.

        The slots have the shape [rows, positions], and the result has the shape [rows * heads,
        positions].
        """
        heads = torch.arange(self.num_heads, device=slots.device)
        return (slots[:, None, :] * self.num_heads + heads[:, None]).flatten(0, 1)

    def read(self, layer: int, part: int, head_rows: Tensor) -> Tensor:
        """Reads the keys (``part`` 0) or the values (``part`` 1) at the given indices.

        The result has the shape [rows * heads, positions, head dimension].
        """
        rows = self.pages[self._page[layer]][part].flatten(0, 2).index_select(0, head_rows.flatten())
        return rows.view(*head_rows.shape, -1)

    def read_states(self, layer: int, blocks: Tensor, size: int) -> Tensor:
        """Returns the recurrent state in the page of each block: [blocks, values of a state]."""
        return self.pages[self._page[layer]][:, blocks].transpose(0, 1).flatten(1)[:, :size]

    def write_states(self, layer: int, blocks: Tensor, states: Tensor) -> None:
        """Overwrites the recurrent state in the page of each block."""
        page = self.pages[self._page[layer]]
        numbers = page[:, blocks].transpose(0, 1).flatten(1)
        numbers[:, : states.shape[1]] = states
        page[:, blocks] = numbers.view(len(blocks), *page[:, 0].shape).transpose(0, 1)
