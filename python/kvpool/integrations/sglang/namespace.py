"""Computes the namespace of an SGLang rank's stored pages. ``shelf`` writes the namespace into every object.

SGLang's name of a page is a SHA-256 chain over its tokens, adapter and salt. The bytes of the page also
depend on the model and its weights, the dtype, the layout, the layers and heads of this rank, and on
SGLang itself. If any of these differs, stored pages are not found (cold start). This module imports no
class of SGLang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvpool.store import Namespace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvpool.integrations.sglang.pages import Pages

__all__ = ["is_replicated", "namespace_of", "rank_of"]

#: Attributes of a host pool that determine the bytes of its pages. They are part of the namespace.
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

#: Fields of SGLang's configuration of a storage back end that describe the rank. The tensor-parallel
#: rank is handled separately.
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
    """Returns whether all tensor-parallel ranks have the same bytes in this host pool.

    If so, one rank writes for all of them. This is the case for MLA latents. Pools with heads are
    divided among the ranks, and so are recurrent states, even in a model with latents.
    """
    return bool(config.is_mla_model) and name != "mamba" and getattr(pool, "head_num", None) is None


def rank_of(config: Any) -> str:
    """Returns the name of a rank's folder, which is different for each rank of a server."""
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
    """Returns the namespace of a host pool of a rank.

    Args:
        config: SGLang's ``HiCacheStorageConfig``.
        pool: SGLang's host pool. Its number of pages has no influence.
        pages: The pages of the pool.
        name: The name of the pool.
        weights: The name of the weights.
        scales: The name of the quantisation scales.
        engine: Everything else that determines how KV is computed: ``Engine.facts``.
        model: The path or name of the model. The default is the name in ``config``, which outside of a
            server is only a label.
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
        # With more ranks than heads, several ranks have the same head but do not share pages. This
        # costs hits, but never returns wrong KV.
        heads=(rank * heads, heads),
        hash_algorithm="sglang sha256",
        hash_seed=b"",
        extra={key: str(value) for key, value in facts.items()},
    )
