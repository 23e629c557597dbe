"""The KV memory that kvpool's block ids name: one tensor per layer, and where a token's slot is in it.

Slot ``offset`` of block ``block`` is row ``block * block_size + offset`` of a layer. Block 0, the null block, is zero
and stays so: kvpool never hands it out, and nothing here writes to it. Whoever must not see a position reads the null
block's first slot instead, so that neither the garbage of a recycled block nor a NaN in one can reach a result (a
weight of zero does not help against it: ``0 * NaN`` is NaN).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from examples.paged_engine.checkpoint import ModelConfig

__all__ = ["PagedKV"]


class PagedKV:
    """Keys and values of all layers, in blocks.

    Args:
        config: The model's shape.
        num_blocks: Blocks, null block included.
        block_size: Token slots per block.
        fill: What the blocks hold before anything is written. NaN shows whoever reads what it should not.
        device: Where the memory is.

    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, *, fill: float = 0.0, device: str = "cpu"
    ) -> None:
        self.block_size = block_size
        self.num_heads = config.num_kv_heads
        shape = (2, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        #: One tensor per layer: [keys and values, blocks, slots, heads, head dimension].
        self.layers = [torch.full(shape, fill, dtype=torch.float32, device=device) for _ in range(config.num_layers)]
        for layer in self.layers:
            layer[:, 0] = 0.0

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return sum(layer[:, 0].numel() * layer.element_size() for layer in self.layers)

    def slots(self, tables: Tensor, positions: Tensor) -> Tensor:
        """Slots of positions, by the block tables of their rows.

        Args:
            tables: One block table per row, padded with null blocks: [rows, blocks].
            positions: Positions in the sequence of each row: [rows, positions].

        """
        return tables.gather(1, positions // self.block_size) * self.block_size + positions % self.block_size

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Writes keys and values, [rows, heads, head dimension], to one slot per row."""
        for part, rows in zip(self.layers[layer], (keys, values), strict=True):
            part.flatten(0, 1).index_copy_(0, slots, rows)

    def head_rows(self, slots: Tensor) -> Tensor:
        """Where :meth:`read` finds slots, [rows, positions], by head: [rows * heads, positions]."""
        heads = torch.arange(self.num_heads, device=slots.device)
        return (slots[:, None, :] * self.num_heads + heads[:, None]).flatten(0, 1)

    def read(self, layer: int, part: int, head_rows: Tensor) -> Tensor:
        """Gathers keys (part 0) or values (part 1): [rows * heads, positions, head dimension]."""
        rows = self.layers[layer][part].flatten(0, 2).index_select(0, head_rows.flatten())
        return rows.view(*head_rows.shape, -1)
