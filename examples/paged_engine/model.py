"""A Llama-type transformer over paged KV.

Its results do not depend, to the bit, on the other rows of the batch.

Floating-point sums depend on their order, and kernels choose the order by the shape of their input. In
an engine whose batches change from step to step, one prompt therefore has several answers, and a
scheduling bug cannot be distinguished from rounding. Here every kernel that sums always gets the same
shape:

- Rows (tokens) are computed in *tiles* of a fixed number of rows; the last tile is padded. So the
  result of a row does not depend on its neighbours in the batch, nor on whether it belongs to a prefill
  chunk or a decode.
- Attention processes the context in *segments* of :data:`SEGMENT` positions, first to last. A segment
  that a row does not see adds an exact zero, so it does not matter which segments a tile needs.
  Segments are cut by positions, not by blocks, so the block size does not matter either.

A model with other layers is a subclass. It defines two things: the groups of its layers (``_group``),
and how a layer mixes the tokens of a sequence (``_mix`` for a tile over paged memory, ``_mix_plain``
for a whole sequence). ``hybrid`` is an example.

One assumption about the kernels remains: a row's result does not depend on its position in the tile or
on its neighbours. :func:`batch_invariant` tests this on the machine, and :meth:`Llama.choose_tile`
takes the largest tile that passes. A tile of one row is correct by construction, and slow.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch.nn import functional

from examples.paged_engine.kv_cache import Group, PagedKV

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from examples.paged_engine.checkpoint import LayerWeights, ModelConfig, Weights

__all__ = ["SEGMENT", "TILES", "Batch", "Context", "Llama", "Tile", "batch_invariant", "visible"]

#: Number of consecutive context positions whose keys and values attention processes together.
SEGMENT: Final = 64

#: Possible numbers of rows per tile, preferred number first.
TILES: Final = (32, 8, 1)


@dataclass(frozen=True, slots=True)
class Batch:
    """The input of one step. Each row is one token of a sequence."""

    #: The token of each row: [rows].
    tokens: Tensor
    #: The position of each row in its sequence: [rows].
    positions: Tensor
    #: For each group, the block table of each row's sequence: [rows, blocks]. Short tables are padded
    #: with the block of zeros.
    tables: list[Tensor]
    #: Indices of the rows for which the step returns logits.
    wanted: Tensor

    def to(self, device: torch.device) -> Batch:
        """Returns a copy of the batch on a device."""
        tables = [table.to(device) for table in self.tables]
        return Batch(self.tokens.to(device), self.positions.to(device), tables, self.wanted.to(device))


@dataclass(frozen=True, slots=True)
class Tile:
    """A fixed number of rows that are computed together.

    The last tile of a batch is padded with rows whose results are not used.
    """

    tokens: Tensor
    positions: Tensor
    #: For each KV-cache group, the block table of each row's sequence.
    tables: list[Tensor]
    #: Number of rows of the tile without the padding.
    rows: int


class Context:
    """The keys and values of a group that the rows of a tile read, and their positions in memory.

    Args:
        tile: The rows.
        group: The group.
        table: The block table of each row in the group.
        kv: The memory.
    """

    def __init__(self, tile: Tile, group: Group, table: Tensor, kv: PagedKV) -> None:
        #: For each segment that a row reads, whether each row sees each position: [rows, positions].
        self.visible = visible(tile, group)
        #: The slots to which the rows write their keys and values. Padding rows write nothing.
        self.own = kv.slots(table, tile.positions[:, None])[: tile.rows, 0]
        first, last = min(self.visible), max(self.visible)
        positions = torch.arange(SEGMENT * first, SEGMENT * (last + 1), device=table.device)
        missing = int(positions[-1]) // kv.block_size + 1 - table.shape[1]
        padded = functional.pad(table, (0, max(missing, 0)), value=kv.padding)
        slots = kv.slots(padded, positions.expand(len(table), -1)).split(SEGMENT, dim=1)
        zeros = kv.padding * kv.block_size
        #: For each segment, the tensor rows of its positions, for each head. Invisible positions refer
        #: to the block of zeros.
        self.rows = {
            segment: kv.head_rows(part.where(seen, zeros))
            for part, (segment, seen) in zip(slots, self.visible.items(), strict=True)
        }


class Llama:
    """A transformer with RMSNorm, rotary positions, grouped-query attention and SwiGLU.

    Args:
        config: The sizes and constants of the model.
        weights: The weights.
        tile: Number of rows per tile; :meth:`choose_tile` chooses the largest correct number.
    """

    def __init__(self, config: ModelConfig, weights: Weights, *, tile: int = TILES[0]) -> None:
        self.config = config
        self.weights = weights
        self.tile = tile
        #: The KV-cache groups of the layers.
        self.groups = self._group()
        self._group_of = {layer: number for number, group in enumerate(self.groups) for layer in group.layers}
        self._cosines, self._sines = _rotations(config, weights.embedding.device)

    def _group(self) -> list[Group]:
        """Puts layers that store the same data into one group."""
        return [Group(tuple(range(self.config.num_layers)))]

    def probe(self, tile: int) -> Llama:
        """Returns a model with the same arithmetic and as few layers as possible, for tests.

        All layers of this model have the same shapes, so one layer is enough.
        """
        config = dataclasses.replace(self.config, num_layers=1)
        return Llama(config, dataclasses.replace(self.weights, layers=self.weights.layers[:1]), tile=tile)

    def choose_tile(self) -> bool:
        """Chooses the largest tile whose results do not depend on the batch on this machine.

        Returns whether this is the preferred size.
        """
        self.tile = next((tile for tile in TILES[:-1] if batch_invariant(self, tile)), TILES[-1])
        return self.tile == TILES[0]

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: PagedKV) -> Tensor:
        """Computes the rows of a step and writes their KV. Returns the logits of the wanted rows.

        A row reads the positions of its sequence up to its own. Their KV is in the pool, or is computed
        by earlier rows of the batch.
        """
        hidden = [self._forward_tile(tile, kv)[: tile.rows] for tile in self._tiles(batch, kv.padding)]
        return self._logits(torch.cat(hidden)[batch.wanted])

    @torch.inference_mode()
    def forward_plain(self, tokens: list[int]) -> Tensor:
        """Computes one sequence from scratch, without cache and blocks, as a reference for :meth:`forward`.

        Returns the logits of every position. They must have the same bits as those of :meth:`forward`.
        The arithmetic is the same, but its order is layer by layer over the whole sequence.
        """
        device = self.weights.embedding.device
        ids, positions = torch.tensor(tokens, device=device), torch.arange(len(tokens), device=device)
        tiles = list(self._tiles(Batch(ids, positions, [], positions), 0))
        hidden = [self.weights.embedding[tile.tokens] for tile in tiles]
        for number, layer in enumerate(self.weights.layers):
            mixed = self._mix_plain(number, layer, hidden, tiles)
            hidden = [self._finish(layer, x, rows) for x, rows in zip(hidden, mixed, strict=True)]
        return self._logits(torch.cat(hidden)[: len(tokens)])

    def _tiles(self, batch: Batch, padding: int) -> Iterator[Tile]:
        """Cuts the rows of a batch into tiles.

        Rows that pad the last tile have the position of the last row, and read only the block of zeros.
        """
        count = len(batch.tokens)
        for start in range(0, count, self.tile):
            rows = min(self.tile, count - start)
            own = slice(start, start + rows)
            tokens = _pad_rows(batch.tokens[own], self.tile)
            positions = _pad_rows(batch.positions[own], self.tile, int(batch.positions[start + rows - 1]))
            tables = [_pad_rows(table[own], self.tile, padding) for table in batch.tables]
            yield Tile(tokens, positions, tables, rows)

    def _forward_tile(self, tile: Tile, kv: PagedKV) -> Tensor:
        """Runs a tile through all layers."""
        groups = zip(self.groups, tile.tables, strict=True)
        contexts = [None if group.state else Context(tile, group, table, kv) for group, table in groups]
        x = self.weights.embedding[tile.tokens]
        for number, layer in enumerate(self.weights.layers):
            mixed = self._mix(number, layer, x, tile, contexts[self._group_of[number]], kv)
            x = self._finish(layer, x, mixed)
        return x

    def _mix(
        self, number: int, layer: LayerWeights, x: Tensor, tile: Tile, context: Context | None, kv: PagedKV
    ) -> Tensor:
        """Computes the attention of the rows of a tile in one layer.

        First writes the keys and values of these rows, which later rows read.
        """
        assert context is not None
        queries, keys, values = self._project(layer, x, tile.positions)
        kv.write(number, context.own, keys[: tile.rows], values[: tile.rows])

        def read(segment: int, part: int) -> Tensor:
            return kv.read(number, part, context.rows[segment])

        return self._attend(queries, context.visible, read)

    def _mix_plain(
        self, number: int, layer: LayerWeights, hidden: list[Tensor], tiles: list[Tile]
    ) -> list[Tensor]:
        """Does the same as :meth:`_mix` for all tiles of one sequence, without paged memory."""
        group, count = self.groups[self._group_of[number]], sum(tile.rows for tile in tiles)
        projected = [self._project(layer, x, tile.positions) for x, tile in zip(hidden, tiles, strict=True)]
        _, *parts = (torch.cat(rows)[:count] for rows in zip(*projected, strict=True))
        padding = (0, 0, 0, 0, 0, -count % SEGMENT)
        context = [self._shared_segments(functional.pad(part, padding)) for part in parts]

        def read(segment: int, part: int) -> Tensor:
            return context[part][segment]

        rows = zip(projected, tiles, strict=True)
        return [self._attend(queries, visible(tile, group), read) for (queries, _, _), tile in rows]

    def _shared_segments(self, rows: Tensor) -> list[Tensor]:
        """Cuts the keys or values of one sequence into segments. All rows of a tile read the same segments.

        The keys or values have the shape [positions, heads, head dimension].
        """
        segments = rows.view(-1, SEGMENT, *rows.shape[1:]).transpose(1, 2).unbind(0)
        return [segment.repeat(self.tile, 1, 1) for segment in segments]

    def _project(self, layer: LayerWeights, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the queries, keys and values of a tile. Queries and keys get rotary positions.

        Their shape is [rows, heads, head dimension].
        """
        config = self.config
        fused = functional.linear(self._norm(x, layer.attention_norm), layer.qkv)
        heads = fused.view(len(x), -1, config.head_dim)
        rotated, values = heads.tensor_split([config.num_heads + config.num_kv_heads], dim=1)
        cosines, sines = self._cosines[positions, None], self._sines[positions, None]
        left, right = rotated.chunk(2, dim=2)
        rotated = rotated * cosines + torch.cat((-right, left), dim=2) * sines
        queries, keys = rotated.tensor_split([config.num_heads], dim=1)
        return queries, keys, values

    def _attend(
        self, queries: Tensor, visible: dict[int, Tensor], read: Callable[[int, int], Tensor]
    ) -> Tensor:
        """Computes the attention of a tile's queries over the segments of their contexts.

        Args:
            queries: [rows, heads, head dimension].
            visible: For each segment in order, the positions that a row sees: [rows, positions].
            read: Returns keys (part 0) or values (part 1) of a segment: [rows * KV heads, positions,
                head dimension].
        """
        config = self.config
        grouped = queries.reshape(-1, config.num_heads // config.num_kv_heads, config.head_dim)
        grouped = grouped * config.head_dim**-0.5
        scores = {}
        for segment, seen in visible.items():
            hidden = ~seen.repeat_interleave(config.num_kv_heads, dim=0)[:, None]
            scores[segment] = torch.bmm(grouped, read(segment, 0).transpose(1, 2)).masked_fill(
                hidden, -torch.inf
            )
        peak = torch.stack([score.amax(dim=2, keepdim=True) for score in scores.values()]).amax(dim=0)
        attended = torch.zeros_like(grouped)
        total = torch.zeros_like(peak)
        for segment, score in scores.items():
            weights = torch.exp(score - peak)
            total += weights.sum(dim=2, keepdim=True)
            attended += torch.bmm(weights, read(segment, 1))
        return (attended / total).reshape(len(queries), -1)

    def _finish(self, layer: LayerWeights, x: Tensor, attended: Tensor) -> Tensor:
        """Computes the rest of a layer: the output projection and the feed-forward network.

        The input of each is added to its output.
        """
        x = x + functional.linear(attended, layer.output)
        gate, up = functional.linear(self._norm(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=1)
        return x + functional.linear(functional.silu(gate) * up, layer.down)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + self.config.norm_eps) * weight

    def _logits(self, hidden: Tensor) -> Tensor:
        """Computes the logits of rows from their hidden states, tile by tile."""
        logits = []
        for start in range(0, len(hidden), self.tile):
            rows = hidden[start : start + self.tile]
            normed = self._norm(_pad_rows(rows, self.tile), self.weights.norm)
            logits.append(functional.linear(normed, self.weights.head)[: len(rows)])
        return torch.cat(logits) if logits else hidden.new_zeros(0, self.config.vocab_size)


def batch_invariant(model: Llama, tile: int) -> bool:
    """Tests whether a row's logits and KV have the same bits at every tile position, with any neighbours.

    The neighbours, which are the other rows of the tile, are random tokens at random positions over
    random KV. So the number of segments that the tile reads changes, too.
    """
    probe = model.probe(tile)
    config, device, random = probe.config, probe.weights.embedding.device, torch.Generator().manual_seed(0)
    length = min(3 * SEGMENT, config.max_positions)
    # Each row has the same number of blocks in each group. A recurrent state only needs the first of
    # them.
    blocks = -(-length // SEGMENT)
    held = blocks * len(probe.groups)
    kv = PagedKV(config, probe.groups, 1 + tile * held, SEGMENT, device=str(device))
    # The probe row is the row whose result is compared. The loop places it at each position of the tile
    # in turn. It always uses the first block tables and reads the same KV. The other rows use the other
    # tables.
    (page,) = kv.pages
    _, own, others, _ = page.tensor_split([1, 1 + held, 1 + tile * held], dim=1)
    content, position = torch.randn(own.shape, generator=random), length * 5 // 8
    tables = torch.arange(1, 1 + tile * held).view(tile, held)
    outcomes = set()
    for place in range(tile):
        own.copy_(content)
        others.copy_(torch.randn(others.shape, generator=random))
        tokens = torch.randint(config.vocab_size, (tile,), generator=random)
        positions = torch.randint(length, (tile,), generator=random)
        tokens[place], positions[place] = 1, position
        placed = list(tables.roll(place, dims=0).split(blocks, dim=1))
        batch = Batch(tokens, positions, placed, torch.arange(tile)).to(device)
        outcomes.add(_bytes(probe.forward(batch, kv)[place]) + _bytes(own))
    return len(outcomes) == 1


def visible(tile: Tile, group: Group) -> dict[int, Tensor]:
    """Returns, for each segment that the tile reads, a mask of the positions that each row sees.

    The shape of a mask is [rows, positions].
    """
    own = tile.positions[:, None]
    first = 0 if group.window is None else max(int(own.min()) - group.window + 1, 0) // SEGMENT
    last = int(own.max()) // SEGMENT
    positions = torch.arange(SEGMENT * first, SEGMENT * (last + 1), device=own.device)
    seen = positions <= own
    if group.window is not None:
        seen &= positions > own - group.window
    return dict(enumerate(seen.split(SEGMENT, dim=1), start=first))


def _pad_rows(rows: Tensor, count: int, value: int = 0) -> Tensor:
    """Appends rows to a tensor, and fills them with ``value``."""
    return functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, count - len(rows)), value=value)


def _rotations(config: ModelConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the cosines and the sines of the rotary embedding at each position.

    The second half of a head has the same numbers as the first.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.outer(
        torch.arange(config.max_positions, dtype=torch.float64), config.rope_theta**-exponents
    )
    angles = torch.cat((angles, angles), dim=1)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().cpu().numpy().tobytes()
