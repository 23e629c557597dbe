"""A hybrid model: a recurrent layer, two sliding windows, and full attention, each in its own KV-cache group.

The model has random weights, and one layer of each kind that Gemma 3 (windows), Qwen3-Next and
Nemotron-H (recurrent layers) use. All blocks of a pool have the same number of bytes, so each group
needs the same number of layers: here one. The two windows have different widths. So each window keeps
and releases its own blocks, and either window may limit a hit. Two windows of the same width would need
two groups, too, but would always limit a hit to the same length.

The recurrent layer is linear attention with a decay, after a short convolution. Head ``h`` has a matrix
``S``. The token at position ``t`` has a key ``k``, a value ``v``, a query ``q``, a decay ``a`` between
0 and 1, and a gate::

    S[t] = a[t] * S[t - 1] + outer(k[t], v[t])        out[t] = norm(q[t] @ S[t]) * silu(gate[t])

Its *state* contains what the next token needs: the last inputs of the convolution (its tail), and all
``S``. A request has its state in one block, which every step reads and overwrites. At position 0 the
state is zero, whatever the block contains.

The result does not depend on how the tokens are cut into chunks. The recurrence and the convolution are
products and sums, one token after the other in the order of the sequence, and no kernel changes this
order. Everything else is computed in tiles, as in ``model``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch.nn import functional

from examples.paged_engine.checkpoint import LayerWeights, ModelConfig, Weights, random_weights
from examples.paged_engine.kv_cache import Group
from examples.paged_engine.model import Llama

if TYPE_CHECKING:
    from torch import Tensor

    from examples.paged_engine.kv_cache import PagedKV
    from examples.paged_engine.model import Context, Tile

__all__ = ["Hybrid", "HybridConfig", "RecurrentWeights", "hybrid_weights"]


@dataclass(frozen=True, slots=True)
class HybridConfig(ModelConfig):
    """Sizes and constants of a hybrid model."""

    #: The kind of each layer: "state" reads a recurrent state, a number is a window of this number of
    #: tokens, and "full" is every earlier token.
    kinds: tuple[Literal["state", "full"] | int, ...] = ("state", 32, "full", 96)
    #: Number of heads of a recurrent layer. For each head, the length of its keys and of its values.
    state_heads: int = 2
    state_key: int = 16
    state_value: int = 16
    #: Number of tokens that the convolution reads, including its own.
    conv_width: int = 4

    @property
    def conv_channels(self) -> int:
        """Number of channels of the convolution. Each head has a query, a key and a value in it."""
        return self.state_heads * (2 * self.state_key + self.state_value)

    @property
    def tail_numbers(self) -> int:
        """Number of values in the convolution's tail, the last inputs that the next token needs."""
        return (self.conv_width - 1) * self.conv_channels

    @property
    def state_numbers(self) -> int:
        """Number of values in a recurrent state: the convolution's tail and the matrices of all heads."""
        return self.tail_numbers + self.state_heads * self.state_key * self.state_value


@dataclass(frozen=True, slots=True)
class RecurrentWeights(LayerWeights):
    """Weights of a recurrent layer.

    The rows of ``qkv`` compute the inputs of the convolution, the gates, and the decays.
    """

    #: One row per token, oldest first: [width, channels].
    conv: Tensor
    #: One bias per head. It is added to the decay before the sigmoid.
    decay: Tensor


def hybrid_weights(config: HybridConfig, seed: int = 0) -> Weights:
    """Makes random weights."""
    weights = random_weights(config, seed)
    random = torch.Generator().manual_seed(seed + 1)
    values = config.state_heads * config.state_value

    def recurrent(layer: LayerWeights) -> LayerWeights:
        rows = config.conv_channels + values + config.state_heads
        return RecurrentWeights(
            attention_norm=layer.attention_norm,
            qkv=torch.randn(rows, config.hidden_size, generator=random) * config.hidden_size**-0.5,
            output=torch.randn(config.hidden_size, values, generator=random) * values**-0.5,
            mlp_norm=layer.mlp_norm,
            gate_up=layer.gate_up,
            down=layer.down,
            conv=torch.randn(config.conv_width, config.conv_channels, generator=random),
            # The decays differ: some heads forget within a few tokens, others hardly at all.
            decay=torch.linspace(1.0, 6.0, config.state_heads),
        )

    kinds = zip(config.kinds, weights.layers, strict=True)
    layers = [recurrent(layer) if kind == "state" else layer for kind, layer in kinds]
    return dataclasses.replace(weights, layers=layers)


class Hybrid(Llama):
    """A model with recurrent layers, sliding windows and full attention.

    Everything else is inherited from :class:`Llama`.

    Args:
        config: The sizes and constants of the model.
        weights: The weights.
        tile: Number of rows that are computed together.
    """

    config: HybridConfig

    def _group(self) -> list[Group]:
        # Hits are counted in blocks of the first group. So a group with full attention comes first.
        kinds = sorted(set(self.config.kinds), key=lambda kind: (kind != "full", kind == "state", str(kind)))
        layers = {kind: tuple(n for n, own in enumerate(self.config.kinds) if own == kind) for kind in kinds}
        return [
            Group(
                layers[kind],
                window=kind if isinstance(kind, int) else None,
                state=self.config.state_numbers if kind == "state" else 0,
            )
            for kind in kinds
        ]

    def probe(self, tile: int) -> Hybrid:
        """Returns the model itself, because its layers differ and all of them have to be tested."""
        return Hybrid(self.config, self.weights, tile=tile)

    def _mix(
        self, number: int, layer: LayerWeights, x: Tensor, tile: Tile, context: Context | None, kv: PagedKV
    ) -> Tensor:
        if not isinstance(layer, RecurrentWeights):
            return super()._mix(number, layer, x, tile, context, kv)
        table = tile.tables[self._group_of[number]]
        # All rows of one sequence are consecutive, and they use the block that has the sequence's
        # state.
        blocks, counts = torch.unique_consecutive(table[: tile.rows, 0], return_counts=True)
        first = counts.cumsum(0) - counts
        states = kv.read_states(number, blocks, self.config.state_numbers)
        # The block of a new request has the content of an earlier request. So start from a state of
        # zeros.
        states = states.where(tile.positions[first, None] > 0, 0.0)
        inputs, gates, decays = self._inputs(layer, x)
        convolved, tails = self._convolve(
            layer, inputs, states[:, : self.config.tail_numbers], counts.tolist()
        )
        matrices, last = self._recur(
            convolved, decays, states[:, self.config.tail_numbers :], counts.tolist()
        )
        kv.write_states(number, blocks, torch.cat((tails, last), dim=1))
        return self._read_out(convolved, matrices, gates)

    def _mix_plain(
        self, number: int, layer: LayerWeights, hidden: list[Tensor], tiles: list[Tile]
    ) -> list[Tensor]:
        if not isinstance(layer, RecurrentWeights):
            return super()._mix_plain(number, layer, hidden, tiles)
        tail = hidden[0].new_zeros(1, self.config.tail_numbers)
        state = hidden[0].new_zeros(1, self.config.state_numbers - self.config.tail_numbers)
        mixed = []
        for x, tile in zip(hidden, tiles, strict=True):
            inputs, gates, decays = self._inputs(layer, x)
            convolved, tail = self._convolve(layer, inputs, tail, [tile.rows])
            matrices, state = self._recur(convolved, decays, state, [tile.rows])
            mixed.append(self._read_out(convolved, matrices, gates))
        return mixed

    def _inputs(self, layer: RecurrentWeights, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the convolution's inputs, the gates and the decays for a tile.

        Their shape is [rows, numbers].
        """
        config = self.config
        fused = functional.linear(self._norm(x, layer.attention_norm), layer.qkv)
        channels, values = config.conv_channels, config.state_heads * config.state_value
        inputs, gates, decays = fused.tensor_split([channels, channels + values], dim=1)
        return inputs, functional.silu(gates.contiguous()), torch.sigmoid(decays + layer.decay)

    def _convolve(
        self, layer: RecurrentWeights, inputs: Tensor, tails: Tensor, counts: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Applies the convolution to a tile. Each row also reads the previous inputs of its sequence.

        Args:
            layer: The weights.
            inputs: [rows, channels].
            tails: The inputs before the first row of each sequence: [sequences, numbers].
            counts: Number of rows of each sequence; the remaining rows are padding.

        Returns:
            The outputs, and the tails after the last rows.
        """
        width, padding = self.config.conv_width, len(inputs) - sum(counts)
        # Concatenate the tail and the rows of each sequence, because the first rows read the inputs in
        # the tail.
        before = tails.view(len(counts), width - 1, -1)
        *rows, rest = inputs.split([*counts, padding])
        parts = [torch.cat(pair) for pair in zip(before, rows, strict=True)]
        out = [
            sum((part[n : n + count] * layer.conv[n] for n in range(1, width)), part[:count] * layer.conv[0])
            for part, count in zip(parts, counts, strict=True)
        ]
        last = [part[len(part) - width + 1 :].flatten() for part in parts]
        return functional.silu(torch.cat([*out, rest])), torch.stack(last)

    def _recur(
        self, convolved: Tensor, decays: Tensor, states: Tensor, counts: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Computes the matrix of each head after each row.

        Returns these matrices for the rows of a tile, and the matrices after the last row of each
        sequence.
        """
        config = self.config
        _, keys, values = self._split(convolved)
        matrices = keys.new_zeros(len(convolved), config.state_heads, config.state_key, config.state_value)
        outer, decays = keys[..., :, None] * values[..., None, :], decays[..., None, None]
        row, last = 0, []
        for state, count in zip(states, counts, strict=True):
            matrix = state.view(matrices.shape[1:])
            for _ in range(count):
                matrix = matrix * decays[row] + outer[row]
                matrices[row] = matrix
                row += 1
            last.append(matrix.flatten())
        return matrices, torch.stack(last)

    def _read_out(self, convolved: Tensor, matrices: Tensor, gates: Tensor) -> Tensor:
        """Computes the outputs of the rows from their matrices.

        The shape is [rows, heads * values per head].
        """
        queries, _, _ = self._split(convolved)
        read = torch.bmm(queries.flatten(0, 1)[:, None], matrices.flatten(0, 1))[:, 0]
        normed = read * torch.rsqrt(read.square().mean(dim=1, keepdim=True) + self.config.norm_eps)
        return normed.view(len(convolved), -1) * gates

    def _split(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Splits the convolution's outputs into queries, keys and values.

        Their shape is [rows, heads, numbers].
        """
        config = self.config
        queries, keys, values = convolved.split(
            [config.state_heads * size for size in (config.state_key, config.state_key, config.state_value)],
            dim=1,
        )
        heads = (len(convolved), config.state_heads, -1)
        return queries.reshape(heads), keys.reshape(heads), values.reshape(heads)
