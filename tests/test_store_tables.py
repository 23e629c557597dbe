"""``PrefixStore`` does not store blocks that a table has released because of windows, chunks or trims."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.errors import InvalidArgumentError
from kvpool.store import Custom
from tests.test_store_backends import Dictionary
from tests.test_store_prefixes import BLOCK, BYTES, Engine, kv

if TYPE_CHECKING:
    from collections.abc import Sequence

GARBAGE = b"\xee" * BYTES


class Trimming(Engine):
    """An engine whose null block contains garbage, as on devices whose kernels write padding to it."""

    def __init__(self, groups: Sequence[kvpool.GroupSpec] | None, **more: Any) -> None:
        self.stored = Dictionary()
        super().__init__(Custom(self.stored, 1 << 22), groups=groups, slots=16, blocks=40, **more)
        self.device[0] = GARBAGE
        self.written_to_null = 0

    def copy_in(self, pairs: list[tuple[int, int]]) -> None:
        self.written_to_null += sum(block == 0 for _, block in pairs)
        super().copy_in(pairs)

    def check(self, name: str, computed: int) -> None:
        """Checks that every computed block that is still in the request's table has the KV of its
        tokens.
        """
        tokens, table = self.tokens[name], self.manager.block_ids(name)
        for at in range(computed // BLOCK):
            if table[at] != 0:
                assert self.device[table[at]] == kv(tokens, BLOCK * (at + 1)), (name, at, table)

    def compute_to(self, name: str, end: int) -> None:
        table = self.manager.block_ids(name)
        for at in range(self.manager.request(name).computed_tokens // BLOCK, end // BLOCK):
            self.device[table[at]] = kv(self.tokens[name], BLOCK * (at + 1))
        self.manager.commit(name, end)


WINDOW = [kvpool.GroupSpec("sliding", BLOCK, window=6)]
CHUNKS = [kvpool.GroupSpec("chunked", BLOCK, chunk=8)]


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize(("groups", "trims"), [(None, True), (WINDOW, False), (CHUNKS, False)])
@pytest.mark.parametrize("seed", range(6))
def test_null_entries_are_neither_stored_nor_loaded(groups: Any, trims: bool, host: bool, seed: int) -> None:
    engine = Trimming(groups, host=host)
    draw, loaded = random.Random(seed), 0
    for number in range(60):
        name, family = f"r{number}", draw.randrange(3)
        prompt = [*range(draw.randrange(9)), *[family] * draw.randrange(8, 30)]
        started = engine.prefixes.prefetch(prompt)
        engine.prefixes.wait(60)
        loaded += engine.admit(name, prompt, started)
        computed = engine.manager.request(name).computed_tokens
        while computed < len(prompt):
            computed = min(len(prompt), computed + draw.randrange(1, 9))
            engine.compute_to(name, computed)
            if draw.random() < 0.5:
                engine.prefixes.save(name)
            if trims and draw.random() < 0.5:
                engine.manager.trim_window(name, draw.randrange(1, 12))
        engine.prefixes.save(name)
        engine.prefixes.wait(60)
        engine.check(name, len(prompt))
        engine.manager.release(name)
        engine.manager.evict(draw.choice([0, 0, 8, 40]))
        engine.manager.diagnose.check_invariants()
    assert GARBAGE not in {value[112:] for value in engine.stored.values.values()}
    assert engine.written_to_null == 0
    assert loaded > 0
    engine.store.close()


def test_a_window_that_was_trimmed_is_loaded_where_it_was_saved() -> None:
    engine = Trimming(None)
    prompt = list(range(4 * BLOCK + 1))
    for save in (False, True):
        engine.admit("a", prompt, engine.prefixes.prefetch(prompt))
        engine.compute_to("a", len(prompt))
        if save:
            assert engine.prefixes.save("a") == 3, "and the one that is there"
            engine.prefixes.wait(60)
        assert engine.manager.trim_window("a", BLOCK) == 3
        assert engine.manager.block_ids("a")[:3] == [0, 0, 0]
        assert engine.prefixes.save("a") == (0 if save else 1), "the block that is left"
        engine.prefixes.wait(60)
        engine.manager.release("a")
        engine.manager.evict(40)
        started = engine.prefixes.prefetch(prompt)
        engine.prefixes.wait(60)
        assert started.tokens == (4 * BLOCK if save else 0)
        engine.prefixes.drop(started)
    engine.store.close()


@pytest.mark.parametrize("block_size", [BLOCK, 2 * BLOCK])
@pytest.mark.parametrize("kind", ["full", "state", "cross"])
def test_a_group_whose_table_has_no_entry_per_digest_is_refused(kind: Any, block_size: int) -> None:
    if (kind, block_size) == ("full", BLOCK):
        assert Trimming([kvpool.GroupSpec(kind, block_size)]).manager.groups == [
            kvpool.GroupSpec(kind, block_size)
        ]
        return
    with pytest.raises(InvalidArgumentError, match=f"'{kind}' with blocks of {block_size} tokens"):
        Trimming([kvpool.GroupSpec(kind, block_size)])
