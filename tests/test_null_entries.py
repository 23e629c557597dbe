"""If a block table has null entries (block 0), code that reads the table skips them: swaps, copies,
events, snapshots, headers of slots.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import kvpool
from kvpool.errors import InvalidArgumentError
from kvpool.store import Arena, SlotHeaders, load_index, save_index
from kvpool.testing import observe_manager
from tests.test_restart import namespace

if TYPE_CHECKING:
    from pathlib import Path

SIZE, BYTES = 4, 4096
FULL = kvpool.GroupSpec("full", SIZE)
KINDS: dict[str, list[kvpool.GroupSpec] | None] = {
    "trims": None,
    "window": [kvpool.GroupSpec("sliding", SIZE, window=6)],
    "full and window": [FULL, kvpool.GroupSpec("sliding", SIZE, window=6)],
    "full and chunks": [FULL, kvpool.GroupSpec("chunked", SIZE, chunk=8)],
}


class Requests:
    """Makes requests that are computed in chunks. They release the blocks that their windows, chunks or
    trims do not need.
    """

    def __init__(self, kind: str, seed: int) -> None:
        self.manager = kvpool.CacheManager(
            60, SIZE, host_blocks=60, groups=KINDS[kind], event_capacity=1 << 12
        )
        self.trims, self.draw, self.nulls = KINDS[kind] is None, random.Random(seed), 0

    def tables(self, name: str) -> list[list[int]]:
        return [self.manager.block_ids(name, group=group) for group in range(len(self.manager.groups) or 1)]

    def run(self, name: str) -> list[list[int]]:
        """Runs a request until its prompt is computed. Returns the tables of its groups."""
        prompt = [*range(8), *[self.draw.randrange(3)] * self.draw.randrange(4, 30)]
        computed = self.manager.admit(name, prompt).cached_tokens
        while computed < len(prompt):
            computed = min(len(prompt), computed + self.draw.randrange(1, 9))
            self.manager.commit(name, computed)
            if self.trims:
                self.manager.trim_window(name, self.draw.randrange(1, 9))
        tables = self.tables(name)
        self.nulls += sum(table.count(0) for table in tables)
        return tables


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_no_plan_and_no_event_names_the_null_block(kind: str, seed: int) -> None:
    requests = Requests(kind, seed)
    manager = requests.manager
    for number in range(30):
        name = f"r{number}"
        before = requests.run(name)
        swap = manager.swaps.begin_out([name])
        pairs = manager.take_plan().transfers
        moved = manager.swaps.complete(swap)
        assert 0 not in moved
        assert 0 not in moved.values()
        assert {source for (_, source), _ in pairs} <= {block for table in before for block in table} - {0}
        swap = manager.swaps.begin_in([name])
        pairs += manager.take_plan().transfers
        manager.swaps.complete(swap)
        # Where a block table had a null entry (block 0) before the swap, it has one afterwards, too.
        assert [[block == 0 for block in table] for table in requests.tables(name)] == [
            [block == 0 for block in table] for table in before
        ]
        manager.fork(name, f"{name} again")
        manager.append([name, f"{name} again"], [1, 2])
        pairs += manager.take_plan().transfers
        assert all(block != 0 for pair in pairs for _, block in pair)
        observe_manager(manager, [name])
        for one in (name, f"{name} again"):
            manager.release(one)
        if requests.draw.random() < 0.3:
            manager.evict(20)
        manager.diagnose.check_invariants()
    assert requests.nulls > 0
    events, _ = manager.take_events()
    assert any(event["type"] == "stored" for event in events)
    assert all(event.get("block_id") != 0 for event in events)


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_has_no_null_block_and_a_slot_of_it_is_not_sealed(kind: str, tmp_path: Path) -> None:
    requests = Requests(kind, 0)
    slots = SlotHeaders(tmp_path / "slots", Arena(60, BYTES), namespace())
    table = requests.run("a")[-1]
    assert 0 in table
    digests = requests.manager.prepare("a").digests()[: len(table)]
    with pytest.raises(InvalidArgumentError, match="is 0, the null block"):
        slots.seal(table[: len(digests)], digests)
    save_index(requests.manager, tmp_path / "index", namespace())
    again = kvpool.CacheManager(60, SIZE, host_blocks=60, groups=KINDS[kind])
    assert load_index(again, tmp_path / "index", namespace(), trusted=True).blocks > 0
    again.diagnose.check_invariants()
    assert 0 not in again.diagnose.eviction_order()
