"""Computes the namespace of a vLLM engine's stored KV. ``tier`` writes the namespace into every object.

vLLM's key of a chunk is a digest of its tokens. The bytes also depend on the weights, on vLLM's
configuration and version, and on how layers and heads are divided among ranks. If any of these changes,
stored KV is not found (cold start). This module does not import vLLM.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Final

from kvpool.integrations.vllm import LOGGER_NAME
from kvpool.integrations.vllm.offload.identity import identity_of
from kvpool.store import Namespace

__all__ = ["namespace_of"]

_LOG: Final = logging.getLogger(LOGGER_NAME)


def namespace_of(spec: Any, config: Any, chunk_bytes: int, *, weights: str | None, scales: str) -> Namespace:
    """Returns the namespace of an engine.

    Args:
        spec: vLLM's ``OffloadingSpec``.
        config: vLLM's ``VllmConfig``; None if it is unknown, which causes a cold start.
        chunk_bytes: Bytes of a chunk.
        weights: The name of the weights; None to determine it.
        scales: The name of quantisation scales that are not part of the weights.

    Raises:
        InvalidArgumentError: The name of the weights was not given, and cannot be determined.
    """
    engine = spec.config
    identity = identity_of(config, weights)
    if identity.unknown:
        _LOG.warning(
            "kvpool: the store starts empty, because these settings have no form that another start could "
            "compare: %s",
            ", ".join(identity.unknown),
        )
    parallel = engine.parallel
    layout = engine.kv_cache_layout or ""
    sizes = {
        name: getattr(parallel, name) for name in ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size")
    }
    flags = {name: getattr(engine, name) for name in ("replicated_layout", "canonical_layout")}
    facts = {
        **sizes,
        **flags,
        "engine": "vllm",
        "chunk_bytes": chunk_bytes,
        "blocks_per_chunk": engine.cache.blocks_per_chunk,
        "worker_kv_bytes_per_block": engine.worker_kv_bytes_per_block,
        **{f"layers of group {group.group_id}": ",".join(group.layer_names) for group in engine.groups},
    }
    return Namespace(
        model=engine.model.name,
        weights=identity.weights,
        kv_dtype=str(engine.model.dtype),
        scales=scales,
        layouts=[(group.group_id, layout, [group.tokens_per_block], []) for group in engine.groups],
        block_size=engine.cache.tokens_per_hash,
        layers=(0, sum(len(group.layer_names) for group in engine.groups)),
        heads=(0, 0),  # all ranks': the sizes above determine which rank has which
        hash_algorithm="vllm",  # digests of another algorithm are different keys
        hash_seed=os.environ.get("PYTHONHASHSEED", "").encode(),
        extra={name: str(value) for name, value in facts.items()} | identity.facts,
    )
