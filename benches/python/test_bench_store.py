"""Measures ``PrefixStore.save`` after each turn of a long conversation.

A save looks only at the blocks of its turn. Its time must not depend on the length of the conversation.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

import kvpool
from kvpool.store import Arena, Disk, Namespace, PrefixStore, Store

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchmark.fixture import BenchmarkFixture

BLOCK = 16
TURN = 96
TURNS = 200


def nothing(_: object) -> None:
    """Copies no bytes, so that only the save is measured."""


@pytest.mark.parametrize("tokens", [1_000, 100_000])
def test_save_of_a_turn(benchmark: BenchmarkFixture, tmp_path: Path, tokens: int) -> None:
    namespace = Namespace(
        model="m",
        weights="w",
        kv_dtype="bf16",
        scales="",
        layouts=[],
        block_size=BLOCK,
        layers=(0, 1),
        heads=(0, 1),
        hash_algorithm="sha256",
        hash_seed=b"",
        extra={},
    )
    manager = kvpool.CacheManager(num_blocks=16_384, block_size=BLOCK)
    arena = Arena(8_192, 64)
    disk = Disk(tmp_path, 256 << 20, free_floor_bytes=0)
    with Store(disk, arena, namespace, admission="always", deadline=60, staged=True, queue=8_192) as store:
        prefixes = PrefixStore(manager, store, arena, copy_in=nothing, copy_out=nothing)
        manager.admit("conversation", range(tokens))
        manager.commit("conversation", tokens)
        prefixes.save("conversation")
        prefixes.wait(60)
        turns = itertools.count(tokens, TURN)

        def turn() -> tuple[tuple[str], dict[str, object]]:
            end = next(turns) + TURN
            manager.append("conversation", list(range(end - TURN, end)))
            manager.commit("conversation", end)
            prefixes.wait(60)
            return ("conversation",), {}

        benchmark.pedantic(prefixes.save, setup=turn, rounds=TURNS, warmup_rounds=5)
