"""A Llama-type transformer over paged KV whose results do not depend, to the bit, on what else is in the batch.

Floating-point sums depend on their order, and kernels choose the order by the shape of their input. An engine whose
batches change from step to step therefore gives one prompt several answers, and nobody can tell a scheduling bug from
rounding. Here every kernel that sums always sees the same shape:

- Rows (tokens) are computed in *tiles* of a fixed number of rows, the last one padded. Whether a row is one of a
  prompt's chunk or a decode, and who its neighbours are, changes nothing.
- Attention goes over the context in *segments* of :data:`SEGMENT` positions, first to last. A segment that a row does
  not see adds an exact zero, so it does not matter how many a tile needs. Positions, not blocks, are cut: the block
  size does not matter either.

What is left is an assumption about the kernels: a row's result does not depend on its place in the tile or on its
neighbours. :func:`batch_invariant` tests it on this machine, and :meth:`Llama.choose_tile` takes the largest tile that
passes. A tile of one row is right by construction, and slow.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch.nn import functional

from examples.paged_engine.kv_cache import PagedKV

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from examples.paged_engine.checkpoint import LayerWeights, ModelConfig, Weights

__all__ = ["SEGMENT", "TILES", "Batch", "Llama", "batch_invariant"]

#: Positions of the context that attention takes at once.
SEGMENT: Final = 64

#: Rows per tile, the favourite first.
TILES: Final = (32, 8, 1)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes: rows, each a token of some sequence."""

    #: Token of each row: [rows].
    tokens: Tensor
    #: Position of each row in its sequence: [rows].
    positions: Tensor
    #: Block table of each row's sequence, padded with null blocks: [rows, blocks].
    tables: Tensor
    #: Rows whose logits are wanted.
    wanted: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return Batch(*(column.to(device) for column in (self.tokens, self.positions, self.tables, self.wanted)))


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows that are computed together; the last tile of a batch is padded with rows that nobody asks for."""

    tokens: Tensor
    positions: Tensor
    tables: Tensor
    #: Rows that are none of the padding.
    rows: int

    @property
    def num_segments(self) -> int:
        """Segments until the last one that a row sees."""
        return int(self.positions.max()) // SEGMENT + 1


class Llama:
    """The model: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

    Args:
        config: Its shape.
        weights: Its weights.
        tile: Rows per tile; :meth:`choose_tile` takes the largest that is right.

    """

    def __init__(self, config: ModelConfig, weights: Weights, *, tile: int = TILES[0]) -> None:
        self.config = config
        self.weights = weights
        self.tile = tile
        self._cosines, self._sines = _rotations(config, weights.embedding.device)

    def choose_tile(self) -> bool:
        """Takes the largest tile that is batch-invariant on this machine. Returns whether it is the favourite."""
        self.tile = next((tile for tile in TILES[:-1] if batch_invariant(self, tile)), TILES[-1])
        return self.tile == TILES[0]

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: PagedKV) -> Tensor:
        """Computes the rows of a step and writes their KV. Returns the logits of the wanted ones.

        A row sees the positions of its sequence up to its own: in the pool, or in an earlier row of the batch.
        """
        hidden = [self._forward_tile(tile, kv)[: tile.rows] for tile in self._tiles(batch)]
        return self._logits(torch.cat(hidden)[batch.wanted])

    @torch.inference_mode()
    def forward_plain(self, tokens: list[int]) -> Tensor:
        """Computes one sequence from scratch, with neither cache nor blocks. Returns the logits of every position.

        The same arithmetic in another order, layer by layer over the whole sequence: what :meth:`forward` must equal.
        """
        device = self.weights.embedding.device
        ids, positions = torch.tensor(tokens, device=device), torch.arange(len(tokens), device=device)
        no_tables = torch.zeros(len(tokens), 1, dtype=torch.int64, device=device)
        tiles = list(self._tiles(Batch(ids, positions, no_tables, positions)))
        hidden = [self.weights.embedding[tile.tokens] for tile in tiles]
        padding = (0, 0, 0, 0, 0, -len(tokens) % SEGMENT)
        for layer in self.weights.layers:
            projected = [self._project(layer, x, tile.positions) for x, tile in zip(hidden, tiles, strict=True)]
            _, *parts = (torch.cat(rows)[: len(tokens)] for rows in zip(*projected, strict=True))
            context = [self._shared_segments(functional.pad(part, padding)) for part in parts]

            def read(segment: int, part: int, context: list[list[Tensor]] = context) -> Tensor:
                return context[part][segment]

            for number, (x, tile, (queries, _, _)) in enumerate(zip(hidden, tiles, projected, strict=True)):
                hidden[number] = self._finish(layer, x, self._attend(queries, _visible(tile), read))
        return self._logits(torch.cat(hidden)[: len(tokens)])

    def _tiles(self, batch: Batch) -> Iterator[_Tile]:
        """Cuts a batch into tiles."""
        count = len(batch.tokens)
        for start in range(0, count, self.tile):
            rows = min(self.tile, count - start)
            columns = (batch.tokens, batch.positions, batch.tables)
            tokens, positions, tables = (_pad_rows(column[start : start + rows], self.tile) for column in columns)
            yield _Tile(tokens, positions, tables, rows)

    def _forward_tile(self, tile: _Tile, kv: PagedKV) -> Tensor:
        """Runs a tile through all layers."""
        own = kv.slots(tile.tables, tile.positions[:, None])[: tile.rows, 0]
        visible = _visible(tile)
        context = self._context(tile, visible, kv)
        x = self.weights.embedding[tile.tokens]
        for number, layer in enumerate(self.weights.layers):
            queries, keys, values = self._project(layer, x, tile.positions)
            kv.write(number, own, keys[: tile.rows], values[: tile.rows])

            def read(segment: int, part: int, number: int = number) -> Tensor:
                return kv.read(number, part, context[segment])

            x = self._finish(layer, x, self._attend(queries, visible, read))
        return x

    def _context(self, tile: _Tile, visible: list[Tensor], kv: PagedKV) -> list[Tensor]:
        """Where the keys and values of each segment are; what a row does not see is in the null block."""
        positions = torch.arange(SEGMENT * len(visible), device=tile.tables.device)
        missing = int(positions[-1]) // kv.block_size + 1 - tile.tables.shape[1]
        tables = functional.pad(tile.tables, (0, max(missing, 0)))
        slots = _segments(kv.slots(tables, positions.expand(self.tile, -1)))
        return [kv.head_rows(part.where(seen, 0)) for part, seen in zip(slots, visible, strict=True)]

    def _shared_segments(self, rows: Tensor) -> list[Tensor]:
        """Cuts keys or values of one sequence, [positions, heads, head dimension], into segments for a whole tile."""
        segments = rows.view(-1, SEGMENT, *rows.shape[1:]).transpose(1, 2).unbind(0)
        return [segment.repeat(self.tile, 1, 1) for segment in segments]

    def _project(self, layer: LayerWeights, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of a tile, [rows, heads, head dimension], positions rotated in."""
        config = self.config
        fused = functional.linear(self._norm(x, layer.attention_norm), layer.qkv)
        heads = fused.view(len(x), -1, config.head_dim)
        rotated, values = heads.tensor_split([config.num_heads + config.num_kv_heads], dim=1)
        cosines, sines = self._cosines[positions, None], self._sines[positions, None]
        left, right = rotated.chunk(2, dim=2)
        rotated = rotated * cosines + torch.cat((-right, left), dim=2) * sines
        queries, keys = rotated.tensor_split([config.num_heads], dim=1)
        return queries, keys, values

    def _attend(self, queries: Tensor, visible: list[Tensor], read: Callable[[int, int], Tensor]) -> Tensor:
        """Attention of a tile's queries over the segments of their contexts.

        Args:
            queries: [rows, heads, head dimension].
            visible: For each segment, which of its positions a row sees: [rows, positions].
            read: Keys (part 0) or values (part 1) of a segment: [rows * KV heads, positions, head dimension].

        """
        config = self.config
        grouped = queries.reshape(-1, config.num_heads // config.num_kv_heads, config.head_dim)
        grouped = grouped * config.head_dim**-0.5
        scores = []
        for segment, seen in enumerate(visible):
            hidden = ~seen.repeat_interleave(config.num_kv_heads, dim=0)[:, None]
            scores.append(torch.bmm(grouped, read(segment, 0).transpose(1, 2)).masked_fill(hidden, -torch.inf))
        peak = torch.stack([score.amax(dim=2, keepdim=True) for score in scores]).amax(dim=0)
        attended = torch.zeros_like(grouped)
        total = torch.zeros_like(peak)
        for segment, score in enumerate(scores):
            weights = torch.exp(score - peak)
            total += weights.sum(dim=2, keepdim=True)
            attended += torch.bmm(weights, read(segment, 1))
        return (attended / total).reshape(len(queries), -1)

    def _finish(self, layer: LayerWeights, x: Tensor, attended: Tensor) -> Tensor:
        """The rest of a layer: output projection and feed-forward, each added to the residual stream."""
        x = x + functional.linear(attended, layer.output)
        gate, up = functional.linear(self._norm(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=1)
        return x + functional.linear(functional.silu(gate) * up, layer.down)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + self.config.norm_eps) * weight

    def _logits(self, hidden: Tensor) -> Tensor:
        """Logits of hidden rows, in tiles as everything."""
        logits = []
        for start in range(0, len(hidden), self.tile):
            rows = hidden[start : start + self.tile]
            normed = self._norm(_pad_rows(rows, self.tile), self.weights.norm)
            logits.append(functional.linear(normed, self.weights.head)[: len(rows)])
        return torch.cat(logits) if logits else hidden.new_zeros(0, self.config.vocab_size)


def batch_invariant(model: Llama, tile: int) -> bool:
    """Tests whether a row's logits and KV are the same bits at every place of a tile, whatever its neighbours are.

    The neighbours are random tokens at random positions over random KV, so that the number of segments changes, too.
    One layer is enough: they all have the same shapes.
    """
    config = dataclasses.replace(model.config, num_layers=1)
    weights = dataclasses.replace(model.weights, layers=model.weights.layers[:1])
    probe = Llama(config, weights, tile=tile)
    device, random = weights.embedding.device, torch.Generator().manual_seed(0)
    length = min(3 * SEGMENT, config.max_positions)
    kv = PagedKV(config, num_blocks=1 + tile * length, block_size=1, device=str(device))
    # The probe has the first table and the same context at every place, its neighbours have the other tables.
    own, others = kv.layers[0].tensor_split([1 + length], dim=1)
    content, position = torch.randn(own[:, 1:].shape, generator=random), length * 5 // 8
    tables = torch.arange(1, 1 + tile * length).view(tile, length)
    outcomes = set()
    for place in range(tile):
        own[:, 1:] = content
        others.copy_(torch.randn(others.shape, generator=random))
        tokens = torch.randint(config.vocab_size, (tile,), generator=random)
        positions = torch.randint(length, (tile,), generator=random)
        tokens[place], positions[place] = 1, position
        batch = Batch(tokens, positions, tables.roll(place, dims=0), torch.arange(tile)).to(device)
        outcomes.add(_bytes(probe.forward(batch, kv)[place]) + _bytes(own))
    return len(outcomes) == 1


def _visible(tile: _Tile) -> list[Tensor]:
    """For each segment, which of its positions a row sees: those up to its own."""
    positions = torch.arange(SEGMENT * tile.num_segments, device=tile.positions.device)
    return _segments(positions <= tile.positions[:, None])


def _segments(rows: Tensor) -> list[Tensor]:
    """Cuts [rows, positions] into segments."""
    return list(rows.view(len(rows), -1, SEGMENT).unbind(1))


def _pad_rows(rows: Tensor, count: int) -> Tensor:
    """Appends rows of zeros: token 0 at position 0, over null blocks."""
    return functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, count - len(rows)))


def _rotations(config: ModelConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding by position, both halves of a head alike."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.outer(torch.arange(config.max_positions, dtype=torch.float64), config.rope_theta**-exponents)
    angles = torch.cat((angles, angles), dim=1)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().cpu().numpy().tobytes()
