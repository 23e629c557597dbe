"""Common code for the tests of the example engine with both of its models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional

from examples.paged_engine.hybrid import RecurrentWeights
from examples.paged_engine.kv_cache import PagedKV
from examples.paged_engine.model import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from examples.paged_engine.engine import Engine
    from examples.paged_engine.model import Llama


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Runs torch with one thread, because tiny models are slower with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_all_blocks_are_back(engine: Engine) -> None:
    engine.manager.diagnose.check_invariants()
    host = engine.manager.swaps.host_stats()
    assert len(engine.manager) == 0
    assert engine.manager.stats().pool.active == 0
    assert host is None or host.active == 0


def textbook(model: Llama, ids: list[int]) -> Tensor:
    """Computes the logits from the model's formulas in float64. Windows are computed with a mask, and
    the recurrence is computed as one sum over all earlier tokens.
    """
    config: Any = model.config
    weights = model.weights
    kinds = getattr(config, "kinds", ("full",) * config.num_layers)
    positions = torch.arange(len(ids), dtype=torch.float64)
    back = positions[:, None] - positions

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight.double(), config.norm_eps)

    def rotated(x: Tensor) -> Tensor:
        pairs = torch.complex(*x.chunk(2, dim=-1))
        speeds = config.rope_theta ** (
            -torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        )
        turned = pairs * torch.polar(torch.ones(1).double(), torch.outer(positions, speeds))[:, None]
        return torch.cat((turned.real, turned.imag), dim=-1)

    def attention(fused: Tensor, kind: str | int) -> Tensor:
        heads = fused.view(len(ids), -1, config.head_dim)
        kv_heads = config.num_kv_heads
        queries, keys, values = heads.split(  # type: ignore[no-untyped-call]
            [config.num_heads, kv_heads, kv_heads],
            dim=1,
        )
        seen = (back >= 0) & (back < (kind if isinstance(kind, int) else len(ids)))
        q, k, v = (part.transpose(0, 1) for part in (rotated(queries), rotated(keys), values))
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return attended.transpose(0, 1).flatten(1)

    def recurrence(fused: Tensor, layer: RecurrentWeights) -> Tensor:
        heads, key, value = config.state_heads, config.state_key, config.state_value
        sizes = [config.conv_channels, heads * value, heads]
        inputs, gates, decays = fused.split(sizes, dim=1)  # type: ignore[no-untyped-call]
        kernel = layer.conv.double().T[:, None]
        padded = functional.pad(inputs.T[None], (config.conv_width - 1, 0))
        mixed = functional.silu(functional.conv1d(padded, kernel, groups=len(kernel))[0].T)
        parts = mixed.split([heads * key, heads * key, heads * value], dim=1)  # type: ignore[no-untyped-call]
        q, k, v = (part.view(len(ids), heads, -1).transpose(0, 1) for part in parts)
        # The share of each token's contribution that remains after the decays of all later tokens:
        # [heads, rows, tokens].
        logs = torch.sigmoid(decays + layer.decay.double()).log().cumsum(dim=0).T
        left = (logs[:, :, None] - logs[:, None]).exp().where(back >= 0, 0.0)
        out = (q @ k.transpose(1, 2) * left) @ v
        return norm(out, torch.ones(value)).transpose(0, 1).flatten(1) * functional.silu(gates)

    x = weights.embedding.double()[ids]
    for kind, layer in zip(kinds, weights.layers, strict=True):
        fused = norm(x, layer.attention_norm) @ layer.qkv.double().T
        mixed = recurrence(fused, layer) if isinstance(layer, RecurrentWeights) else attention(fused, kind)
        x = x + mixed @ layer.output.double().T
        gate, up = (norm(x, layer.mlp_norm) @ layer.gate_up.double().T).chunk(2, dim=1)
        x = x + (functional.silu(gate) * up) @ layer.down.double().T
    return norm(x, weights.norm) @ weights.head.double().T


def tokens_of(seed: int) -> list[int]:
    """Returns 150 random tokens in the vocabulary of the tiny models."""
    made: list[int] = torch.randint(256, (150,), generator=torch.Generator().manual_seed(seed)).tolist()
    return made


def assert_the_model_computes_what_a_textbook_says(model: Llama) -> None:
    ids = tokens_of(0)
    expected = textbook(model, ids)
    assert expected.std() > 0.5
    torch.testing.assert_close(model.forward_plain(ids).double(), expected, atol=1e-4, rtol=1e-4)


def assert_paged_is_plain(model: Llama, block_size: int) -> None:
    """Checks with several sizes of chunks that each row has the same bits as in a forward pass over the
    whole sequence.
    """
    ids, groups = tokens_of(block_size), len(model.groups)
    blocks = -(-len(ids) // block_size)
    # Besides the blocks of the tables, there is the null block, and one block that no table contains.
    kv = PagedKV(model.config, model.groups, groups * blocks + 2, block_size, poison=True)
    shuffled = 1 + torch.randperm(groups * blocks + 1, generator=torch.Generator().manual_seed(block_size))
    rows, done = [], 0
    for count in (1, 31, 40, 1, 1, 70, 6):
        positions = torch.arange(done, done + count)
        tables = [table.expand(count, -1) for table in shuffled[: groups * blocks].tensor_split(groups)]
        rows.append(
            model.forward(Batch(torch.tensor(ids)[positions], positions, tables, torch.arange(count)), kv)
        )
        done += count
    assert torch.equal(torch.cat(rows), model.forward_plain(ids))
