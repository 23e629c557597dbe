"""Whose KV the pages of an SGLang rank are: what ``shelf`` writes into every object.

SGLang names a page by a SHA-256 chain of its tokens, adapter and salt. Its bytes also depend on the
model and its weights, the dtype, the layout, which layers and heads this rank holds, and on SGLang
itself; each of them that differs is a cold start. Knows no class of SGLang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvpool.store import Namespace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvpool.integrations.sglang.pages import Pages

__all__ = ["is_replicated", "namespace_of", "rank_of"]

#: What a host pool says of its pages.
_OF_POOL: Final = (
    "head_num",
    "head_dim",
    "v_head_dim",
    "kv_cache_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "layer_num",
    "target_layer_num",
    "num_mamba_layers",
    "size_per_token",
    "storage_format_tag",
)

#: What SGLang's configuration of a storage back end says of the rank, besides its rank in tensor parallelism.
_OF_CONFIG: Final = (
    "tp_size",
    "pp_rank",
    "pp_size",
    "attn_cp_rank",
    "attn_cp_size",
    "dcp_rank",
    "dcp_size",
    "is_mla_model",
    "tp_lcm_size",
    "should_split_heads",
    "logical_page_size",
)


def is_replicated(config: Any, pool: Any, name: str) -> bool:
    """Whether all ranks of tensor parallelism hold the same bytes in this host pool, so that one writes
    for all.

    Latents of MLA are. Pools with heads, and recurrent states, are shared out, also beside latents.
    """
    return bool(config.is_mla_model) and name != "mamba" and getattr(pool, "head_num", None) is None


def rank_of(config: Any) -> str:
    """What tells the ranks of a server apart: the name of a rank's folder."""
    parts = [
        f"tp{config.tp_rank}of{config.tp_size}",
        f"pp{config.pp_rank}of{config.pp_size}",
        f"cp{config.attn_cp_rank}of{config.attn_cp_size}",
        f"dp{getattr(config, 'dp_rank', 0)}",
    ]
    return "-".join(parts)


def namespace_of(
    config: Any,
    pool: Any,
    pages: Pages,
    *,
    name: str,
    weights: str,
    scales: str,
    engine: Mapping[str, object],
    model: str | None = None,
) -> Namespace:
    """The namespace of a host pool of a rank.

    Args:
        config: SGLang's ``HiCacheStorageConfig``.
        pool: SGLang's host pool. How many pages it has does not matter.
        pages: How its pages lie.
        name: Its name.
        weights: The name of the weights.
        scales: Which quantisation scales.
        engine: All else that determines how KV is computed: ``Engine.facts``.
        model: The model's path or name; by default the name in ``config``, which is a label outside a server.
    """
    facts = {key: getattr(config, key, None) for key in _OF_CONFIG}
    facts |= {key: getattr(pool, key, None) for key in _OF_POOL}
    facts |= {
        "pool": name,
        "class": type(pool).__name__,
        "parts": pages.parts,
        "part_bytes": pages.part_bytes,
    }
    facts |= dict(engine)
    heads = int(getattr(pool, "head_num", None) or 0)
    rank = 0 if is_replicated(config, pool, name) else int(config.tp_rank)
    facts["tp_rank"] = rank
    return Namespace(
        model=config.model_name or "" if model is None else model,
        weights=weights,
        kv_dtype=str(pool.dtype),
        scales=scales,
        layouts=[(0, str(pool.layout), pages.shape, pages.strides)],
        block_size=pages.page_size,
        layers=(int(getattr(pool, "start_layer", None) or 0), int(getattr(pool, "layer_num", None) or 0)),
        # Where there are more ranks than heads, ranks that hold the same head do not share: cold, and
        # never wrong.
        heads=(rank * heads, heads),
        hash_algorithm="sglang sha256",
        hash_seed=b"",
        extra={key: str(value) for key, value in facts.items()},
    )
