"""Whose KV the chunks of a vLLM engine are: what ``tier`` writes into every object.

vLLM names a chunk by a digest of its tokens. Its bytes also depend on the weights, the layout, how layers and heads are
shared out, and on vLLM itself; each of them that differs is a cold start. Knows no class of vLLM.
"""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

from kvpool.integrations.weights import weights_of
from kvpool.store import Namespace

__all__ = ["namespace_of"]


def namespace_of(spec: Any, chunk_bytes: int, *, weights: str | None, scales: str) -> Namespace:
    """The namespace of an engine.

    Args:
        spec: vLLM's ``OffloadingSpec``.
        chunk_bytes: Bytes of a chunk.
        weights: Their revision, if it is known.
        scales: Which quantisation scales.

    Raises:
        InvalidArgumentError: The weights' revision was not given, and cannot be found out.
    """
    config = spec.config
    parallel = config.parallel
    layout = config.kv_cache_layout or ""
    sizes = {name: getattr(parallel, name) for name in ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size")}
    flags = {name: getattr(config, name) for name in ("replicated_layout", "canonical_layout")}
    facts = {
        **sizes,
        **flags,
        "engine": f"vllm {importlib.metadata.version('vllm')}",
        "chunk_bytes": chunk_bytes,
        "blocks_per_chunk": config.cache.blocks_per_chunk,
        "worker_kv_bytes_per_block": config.worker_kv_bytes_per_block,
        **{f"layers of group {group.group_id}": ",".join(group.layer_names) for group in config.groups},
    }
    return Namespace(
        model=config.model.name,
        weights=weights_of(config.model.name) if weights is None else weights,
        kv_dtype=str(config.model.dtype),
        scales=scales,
        layouts=[(group.group_id, layout, [group.tokens_per_block], []) for group in config.groups],
        block_size=config.cache.tokens_per_hash,
        layers=(0, sum(len(group.layer_names) for group in config.groups)),
        heads=(0, 0),  # those of all ranks: which has which follows from the sizes above
        hash_algorithm="vllm",  # digests of another algorithm are other keys
        hash_seed=os.environ.get("PYTHONHASHSEED", "").encode(),
        extra={name: str(value) for name, value in facts.items()},
    )
