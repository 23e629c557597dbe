"""Common code for tests of vLLM's pool: pools over the stand-in for vLLM, requests for them, and the
set of hashes that a subscriber of the pools' events would have.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Literal

from tests.integrations.fake_vllm import AllBlocksCleared, BlockRemoved, BlockStored, Request, part

Events = Literal["exact", "stock"]
#: Number of tokens per hash. Numbers of tokens per block of the two groups.
UNIT = 2
BLOCK = {0: 2, 1: 4}


@functools.cache
def digest(tokens: tuple[int, ...]) -> bytes:
    return hashlib.sha256(repr(tokens).encode()).digest()


def request_of(tokens: list[int], **more: Any) -> Request:
    hashes = [digest(tuple(tokens[: end + UNIT])) for end in range(0, len(tokens) - UNIT + 1, UNIT)]
    return Request("r", list(tokens), hashes, **more)


def key_of(tokens: list[int], group: int = 0) -> bytes:
    return digest(tuple(tokens)) + group.to_bytes(4, "big")


def make_pool(
    num_blocks: int = 8,
    events: Events | None = "exact",
    *,
    caching: bool = True,
    eviction: str = "lru",
    **more: Any,
) -> Any:
    module = part("pool")
    pool_class = module.BlockPool
    pool_class.eviction = eviction
    kinds = part("events")
    pool_class.events_class = kinds.StockEvents if events == "stock" else kinds.ExactEvents
    return pool_class(num_blocks, caching, UNIT, events is not None, **more)


def ids(blocks: Any) -> list[int]:
    return [block.block_id for block in blocks]


def order(pool: Any) -> list[int]:
    return ids(pool.free_block_queue.get_all_free_blocks())


def cached_keys(pool: Any) -> set[bytes]:
    return set(pool.cached_block_hash_to_block._cache)


def replay(events: list[Any], cached: set[bytes]) -> None:
    """Applies events to the set of hashes that a subscriber believes to be cached."""
    for event in events:
        if isinstance(event, AllBlocksCleared):
            cached.clear()
            continue
        keys = [block_hash + event.group_idx.to_bytes(4, "big") for block_hash in event.block_hashes]
        if isinstance(event, BlockStored):
            assert not cached & set(keys), "stored twice"
            assert event.block_hashes, "an event about nothing"
            assert len(event.token_ids) == len(keys) * event.block_size
            assert event.extra_keys is not None
            assert len(event.extra_keys) == len(keys)
            cached.update(keys)
        else:
            assert isinstance(event, BlockRemoved)
            assert cached >= set(keys), "removed twice"
            cached.difference_update(keys)


def in_words(event: Any) -> tuple[Any, ...]:
    """Returns an event as a tuple, in the form in which the model of the pool describes events."""
    if isinstance(event, BlockStored):
        hashes, tokens = tuple(event.block_hashes), tuple(event.token_ids)
        return ("stored", event.group_idx, event.parent_block_hash, hashes, tokens, event.block_size)
    if isinstance(event, BlockRemoved):
        return ("removed", event.group_idx, tuple(event.block_hashes))
    return ("cleared",)


class Metrics:
    """A collector of metrics that records every notification."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def on_block_allocated(self, block: Any) -> None:
        self.heard.append(("allocated", block.block_id))

    def on_block_accessed(self, block: Any) -> None:
        self.heard.append(("accessed", block.block_id))

    def on_block_evicted(self, block: Any) -> None:
        self.heard.append(("evicted", block.block_id))

    def reset(self) -> None:
        self.heard.append(("reset",))
