"""Compares random histories of the storage back end with a dictionary. A load never returns another
page's bytes.

A history consists of stores, loads, queries, clearings, restarts, other weights and damaged files. If a
load finds a page, the page has the bytes that these weights stored last under its key. Otherwise the
load is a miss (mooncake#850: another object had taken the slot in the meantime).

A page that is already stored is not written again, and only a load reads the stored bytes. So if a file
was damaged, storing its page again does not repair it. The next load of the page finds the damage and
removes the page. Only then does a store write it again.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvpool.store import StoreFolder
from tests.integrations.hicache_stand_ins import (
    ExtraInfo,
    MhaPool,
    PoolName,
    PoolTransfer,
    StatePool,
    attach,
    content,
    fill,
    indices,
    key,
    loaded,
)
from tests.shares import SHARES, run_share

KEYS = 12
PAGES = 8
#: A number that is larger than the number of clearings of the storage in any history.
GENERATIONS = 1000
NUMBERS = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=4, unique=True)


@dataclass
class Page:
    """The page that was stored last under a key."""

    held: bytes
    #: Whether a lookup must find the page.
    certain: bool
    #: Whether no load has read the page since files were damaged. Then storing the page may leave a
    #: damaged file as it is.
    doubtful: bool = False


class Histories(RuleBasedStateMachine):
    """Random calls on two host pools, whose pages are lent to the store or copied. The store has room
    for all pages, or for hardly any.
    """

    storage: Any

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="kvpool-sglang-"))
        #: For each combination of weights and host pool, the stored pages by key.
        self.stored: dict[tuple[str, str], dict[int, Page]] = {}
        #: A number that determines the bytes of pages. It depends on the weights and on the number of
        #: clearings so far.
        self.generation = 0
        self.backend: Any = None

    @initialize(
        layout=st.sampled_from(["page_first", "page_first_direct", "page_head", "layer_first"]),
        lend=st.booleans(),
        roomy=st.booleans(),
    )
    def begin(self, layout: str, lend: bool, roomy: bool) -> None:
        self.layout, self.lend, self.roomy = layout, lend, roomy
        self.open("1")

    def open(self, weights: str) -> None:
        self.weights, self.cleared = weights, False
        self.generation = GENERATIONS * int(weights)
        self.pools: dict[str, Any] = {"kv": MhaPool(self.layout, pages=PAGES), "mamba": StatePool(PAGES)}
        self.backend = attach(
            self.storage,
            self.root,
            self.pools["kv"],
            {PoolName.MAMBA: self.pools["mamba"]},
            interface_v1=self.lend,
            capacity_bytes=(4 << 20) if self.roomy else 6 * 24576,
            weights=weights,
            workers=2,
        )

    def here(self, pool: str) -> dict[int, Page]:
        return self.stored.setdefault((self.weights, pool), {})

    @rule(pool=st.sampled_from(["kv", "mamba"]), numbers=NUMBERS, whole=st.booleans())
    def save(self, pool: str, numbers: list[int], whole: bool) -> None:
        # The key of a page is the digest of its content. So a page with this key and these weights
        # always has the same bytes.
        seeds = [1 + number + KEYS * self.generation for number in numbers]
        mine = [fill(self.pools[pool], page, seed) for page, seed in enumerate(seeds)]
        at = indices(self.pools[pool], *range(len(numbers)))
        keys = [key(number) for number in numbers]
        if pool == "kv":
            done = self.backend.batch_set_v1(keys, at, ExtraInfo([]) if whole else None)
        else:
            done = self.backend.batch_set_v2([PoolTransfer(PoolName.MAMBA, at, keys)])[PoolName.MAMBA]
        for number, held, stored in zip(numbers, mine, done, strict=True):
            # If the store has hardly any room, pages that were cleared may still occupy it.
            assert stored or not self.roomy
            page = self.here(pool).setdefault(number, Page(held, certain=False))
            page.held, page.certain = held, self.roomy and not page.doubtful

    @rule(pool=st.sampled_from(["kv", "mamba"]), numbers=NUMBERS)
    def load(self, pool: str, numbers: list[int]) -> None:
        one = self.pools[pool]
        pages = indices(one, *range(len(numbers)))
        keys = [key(number) for number in numbers]
        if pool == "kv":
            found = self.backend.batch_get_v1(keys, pages)
        else:
            found = self.backend.batch_get_v2([PoolTransfer(PoolName.MAMBA, pages, keys)])[PoolName.MAMBA]
        for at, number in enumerate(numbers):
            page = self.here(pool).get(number)
            if found[at]:
                assert page is not None, "never stored"
                assert content(one, at) == page.held, "another page's bytes"
                page.certain, page.doubtful = self.roomy, False
            elif page is not None:
                assert not page.certain, "lost"
                page.doubtful = False

    @rule(numbers=NUMBERS)
    def query(self, numbers: list[int]) -> None:
        hits = self.backend.batch_exists([key(number) for number in numbers])
        known = [self.here("kv").get(number) for number in numbers]
        assert all(known[:hits]), "never stored"
        missed = known[hits] if hits < len(numbers) else None
        assert missed is None or not missed.certain, "lost"

    @rule()
    def clear(self) -> None:
        assert self.backend.clear()
        for pool in self.pools:
            self.here(pool).clear()
        self.cleared = True
        self.generation += 1

    @rule(weights=st.sampled_from(["1", "2"]))
    def another_run(self, weights: str) -> None:
        self.restart(weights)

    def restart(self, weights: str) -> None:
        self.backend.close()
        if self.cleared:
            for pool in self.pools:
                self.here(pool).clear()  # not stored for processes that start with these weights
        self.open(weights)

    @rule(
        pool=st.sampled_from(["kv", "mamba"]), flips=st.lists(st.integers(0, 1 << 20), min_size=1, max_size=3)
    )
    def damage(self, pool: str, flips: list[int]) -> None:
        """Stops the back end, flips bits of a file, and starts it again."""
        self.backend.close()
        slabs = list(self.root.rglob(f"{pool}/*.slab"))
        assert len(slabs) == 1
        used = StoreFolder(slabs[0].parent)
        places = [place for place, *_ in used.objects(0, used.places)]
        with slabs[0].open("r+b") as file:
            for flip in flips:
                if places:
                    at = places[flip % len(places)] * used.object_bytes + flip % used.object_bytes
                    file.seek(at)
                    byte = file.read(1)[0]
                    file.seek(at)
                    file.write(bytes([byte ^ 1 << (flip % 8)]))
        for (_, name), kept in self.stored.items():
            for page in kept.values() if name == pool else ():
                page.certain, page.doubtful = False, True
        self.restart(self.weights)

    @invariant()
    def nothing_is_left_on_its_way(self) -> None:
        if self.backend is not None:
            for stats in self.backend.stats().values():
                assert stats.bytes <= stats.capacity_bytes

    def teardown(self) -> None:
        if self.backend is not None:
            self.backend.close()
        shutil.rmtree(self.root)


@pytest.mark.longer
@pytest.mark.parametrize("share", range(SHARES))
def test_random_histories(share: int) -> None:
    with contextlib.ExitStack() as stack:
        storage = stack.enter_context(loaded())
        machine = type("LoadedHistories", (Histories,), {"storage": staticmethod(storage)})
        run_share(machine, share, settings().max_examples // 4)
