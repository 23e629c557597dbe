"""Property 18: equal digests of equal tokens imply equal extra keys, field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import kvpool

if TYPE_CHECKING:
    from kvpool._core import HashAlgorithm


@pytest.mark.parametrize("algorithm", ["sha256", "blake3", "xxh3"])
def test_property_18_equal_strings_in_different_fields_never_share(algorithm: HashAlgorithm) -> None:
    """vllm#44701, vllm#30931, vllm#3264: a salt equal to an adapter's name gave the other tenant's blocks."""
    extras: list[kvpool.ExtraKeys | None] = [
        None,
        kvpool.ExtraKeys(adapter="x"),
        kvpool.ExtraKeys(adapter="x", adapter_path="x"),
        kvpool.ExtraKeys(salt="x"),
        kvpool.ExtraKeys(tenant="x"),
        kvpool.ExtraKeys(user="x"),
        kvpool.ExtraKeys(salt=""),
        kvpool.ExtraKeys(tenant=""),
        kvpool.ExtraKeys(salt="x", tenant="x"),
        kvpool.ExtraKeys(salt="xx"),
        kvpool.ExtraKeys(multimodal=[("x", 0, 1)]),
        kvpool.ExtraKeys(multimodal=[("x", 0, 2)]),
        kvpool.ExtraKeys(multimodal=[("x", 1, 1)]),
    ]
    manager = kvpool.CacheManager(200, 2, algorithm=algorithm, verify="none" if algorithm != "xxh3" else "tokens")
    prompt = [1, 1, 2, 2, 3]
    for name, extra in enumerate(extras):
        assert manager.probe(prompt, extra).cached_blocks == 0
        assert manager.admit(name, prompt, extra).cached_tokens == 0
        manager.commit(name, 5)
    for name, extra in enumerate(extras):
        assert manager.probe(prompt, extra).cached_blocks == 2
        assert manager.admit(f"again {name}", prompt, extra).block_ids[:2] == manager.block_ids(name)[:2]
    assert manager.stats().pool.collisions == 0
