"""Computes the hashes of a request's blocks in Rust. The hashes are bit for bit those of vLLM.

The digest of a block is computed by one of vLLM's four hash functions, over a pickle or CBOR encoding.
Prompts of text are hashed without Python. The extra keys (adapters, images, salts, embeddings) come
from vLLM's own code. vLLM's configured hash function determines the algorithm. With any other function,
and with lookahead hashing (vLLM 0.33), vLLM's own hasher is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from vllm.utils import hashing as vllm_hashing
from vllm.v1.core import kv_cache_utils

from kvpool import _core

if TYPE_CHECKING:
    from collections.abc import Callable

#: For each of vLLM's hash functions, the name of the algorithm in kvpool.
ALGORITHMS = {
    "sha256": "vllm-sha256",
    "sha256_cbor": "vllm-sha256-cbor",
    "xxhash": "vllm-xxhash",
    "xxhash_cbor": "vllm-xxhash-cbor",
}

#: vLLM's own function that makes a hasher. It is saved here, because ``install`` replaces its name in vLLM.
stock_get_request_block_hasher = kv_cache_utils.get_request_block_hasher


def get_request_block_hasher(
    hash_block_size: int, caching_hash_fn: Callable[[Any], bytes], num_hash_lookahead_tokens: int = 0
) -> Callable[[Any], list[bytes]]:
    """Returns the function that computes a request's missing block hashes.

    Each hash covers ``hash_block_size`` tokens.
    """
    for name, algorithm in ALGORITHMS.items():
        if caching_hash_fn is getattr(vllm_hashing, name, None) and not num_hash_lookahead_tokens:
            return _core.vllm.VllmHasher(algorithm, hash_block_size, kv_cache_utils, caching_hash_fn)
    more = (num_hash_lookahead_tokens,) if num_hash_lookahead_tokens else ()
    return cast(
        "Callable[[Any], list[bytes]]",
        stock_get_request_block_hasher(hash_block_size, caching_hash_fn, *more),
    )
