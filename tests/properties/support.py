"""Blocks, chains, recounts and replays for the tests of properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kvpool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

B = 2
HASHER = kvpool.BlockHasher(block_size=B)


def chain_of(tokens: Sequence[int], epoch: int = 0) -> kvpool.hashing.HashChain:
    return HASHER.cursor(tokens, epoch=epoch).chain()


def fill(pool: kvpool.BlockPool, tokens: Sequence[int]) -> list[int]:
    """Takes blocks for the tokens, registers them, marks them computed."""
    blocks = pool.allocate(len(tokens) // B)
    pool.register(blocks, chain_of(tokens, pool.epoch))
    pool.mark_computed(blocks)
    return blocks


def cache(pool: kvpool.BlockPool, tokens: Sequence[int]) -> list[int]:
    blocks = fill(pool, tokens)
    pool.release_table(blocks)
    return blocks


def recount(pool: kvpool.BlockPool) -> tuple[int, int, int, int]:
    """Free, cached-free, active, fenced: from the lists and the blocks alone."""
    states = [pool.state(block) for block in range(1, pool.num_blocks)]
    assert len(pool.free_order()) == states.count("free")
    assert len(pool.eviction_order()) == states.count("cached-free")
    held = sum(pool.ref_count(block) > 0 for block in range(1, pool.num_blocks))
    assert held == states.count("active") + states.count("fenced")
    free, cached_free, active, fenced = (states.count(s) for s in ("free", "cached-free", "active", "fenced"))
    return free, cached_free, active, fenced


def sums(stats: kvpool.PoolStats) -> tuple[int, int, int, int]:
    return stats.free, stats.cached_free, stats.active, stats.fenced


def interleavings(programs: int, steps: int) -> Iterator[list[int]]:
    """Which program runs next, in every order."""

    def go(left: tuple[int, ...]) -> Iterator[list[int]]:
        if not any(left):
            yield []
        for at, n in enumerate(left):
            if n:
                for rest in go((*left[:at], n - 1, *left[at + 1 :])):
                    yield [at, *rest]

    yield from go((steps,) * programs)


def replayed(live: set[bytes], events: Sequence[Any]) -> None:
    for event in events:
        if event["type"] == "stored":
            assert event["hash"] not in live
            # Its parent is the digest before it, and can be matched, too.
            assert (event["parent"] is None) == (event["depth"] == 0)
            live.add(event["hash"])
        elif event["type"] == "removed":
            live.remove(event["hash"])
        else:
            live.clear()
