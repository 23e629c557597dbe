"""Every old name of CacheManager and BlockPool works like the new name, and causes a warning."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool import journal
from kvpool._removed import MANAGER, POOL, RENAMED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RANGES = [(0, None, kvpool.Retention(20))]
CHAIN = kvpool.BlockHasher(block_size=4).cursor(range(16)).chain()
LINK = kvpool.BlockHasher(block_size=4).link([7, 7, 7, 7])
PROMPT = list(range(8))

#: For each old name, an expression that uses it, and the same expression with the new name.
Pair = tuple["Callable[[Any], object]", "Callable[[Any], object]"]

MANAGERS: dict[str, Pair] = {
    "append_tokens": (
        lambda m: m.append_tokens(request_id="run", token_ids=[5, 6], lookahead=4),
        lambda m: m.append("run", [5, 6], lookahead=4),
    ),
    "commit_batch": (
        lambda m: m.commit_batch(request_ids=["run", "new"], computed_tokens=[10, 4]),
        lambda m: m.commit(["run", "new"], [10, 4]),
    ),
    "fork_batch": (
        lambda m: m.fork_batch(parent_ids=["run", "run"], child_ids=["b", "c"]),
        lambda m: m.fork(["run", "run"], ["b", "c"]),
    ),
    "truncate_batch": (
        lambda m: m.truncate_batch(["run"], num_tokens=[5], after_step=3),
        lambda m: m.truncate(["run"], [5], after_step=3),
    ),
    "release_batch": (
        lambda m: m.release_batch(["run", "new"], finish_reasons=["stop", None], output_tokens=[2, None]),
        lambda m: m.release(["run", "new"], finish_reason=["stop", None], output_tokens=[2, None]),
    ),
    "fit_groups": (
        lambda m: m.fit_groups(PROMPT, allocate_tokens=4),
        lambda m: m.fit(PROMPT, allocate_tokens=4, by_group=True),
    ),
    "extend_encoder": (
        lambda m: m.extend_encoder("run", num_tokens=8),
        lambda m: m.extend("run", 8, encoder=True),
    ),
    "cursor": (
        lambda m: m.cursor(request_id="run").chain().digests(),
        lambda m: m.prepare("run").chain().digests(),
    ),
    "begin_swap_out": (lambda m: m.begin_swap_out(["run"]), lambda m: m.swaps.begin_out(["run"])),
    "begin_swap_in": (lambda m: m.begin_swap_in(["far"]), lambda m: m.swaps.begin_in(["far"])),
    "fit_swap_out": (lambda m: m.fit_swap_out(["run"]), lambda m: m.swaps.fit_out(["run"])),
    "fit_swap_in": (lambda m: m.fit_swap_in(request_ids=["far"]), lambda m: m.swaps.fit_in(["far"])),
    "complete_swap": (lambda m: m.complete_swap(1), lambda m: m.swaps.complete(1)),
    "abort_swap": (lambda m: m.abort_swap(swap=1), lambda m: m.swaps.abort(1)),
    "host_stats": (lambda m: m.host_stats(), lambda m: m.swaps.host_stats()),
    "retain": (
        lambda m: m.retain(request_id="run", ranges=RANGES),
        lambda m: m.retention.retain("run", RANGES),
    ),
    "retain_prefix": (
        lambda m: m.retain_prefix(prompt=PROMPT, ranges=RANGES),
        lambda m: m.retention.retain(PROMPT, RANGES),
    ),
    "end_of_life": (
        lambda m: m.end_of_life("run", start_token=4),
        lambda m: m.retention.end_of_life("run", 4),
    ),
    "end_of_life_of": (
        lambda m: m.end_of_life_of(PROMPT, 4, extra=None),
        lambda m: m.retention.end_of_life(PROMPT, 4),
    ),
    "end_session": (
        lambda m: m.end_session("run", after_step=2),
        lambda m: m.retention.end_session("run", after_step=2),
    ),
    "set_tenant": (lambda m: m.set_tenant("run", tenant=1), lambda m: m.retention.set_tenant("run", 1)),
    "num_groups": (lambda m: m.num_groups, lambda m: len(m.groups) or 1),
    "epoch": (lambda m: m.epoch, lambda m: m.stats().pool.epoch),
}
POOLS: dict[str, Pair] = {
    "release_table": (
        lambda p: p.release_table(block_ids=[1, 2]),
        lambda p: p.release([1, 2], tail_first=True),
    ),
    "release_after": (lambda p: p.release_after([1], 5), lambda p: p.release([1], after_step=5)),
    "acquire_match": (
        lambda p: p.acquire_match(found=p.lookup(CHAIN)),
        lambda p: p.acquire(p.lookup(CHAIN)),
    ),
    "acquire_registered": (lambda p: p.acquire_registered(LINK), lambda p: p.acquire(LINK)),
    "ref_counts": (lambda p: p.ref_counts(block_ids=[1, 4]), lambda p: p.ref_count([1, 4])),
    "states": (lambda p: p.states([0, 1, 4]), lambda p: p.state([0, 1, 4])),
    "num_holders": (lambda p: p.num_holders(1), lambda p: p.diagnose.num_holders(1)),
    "is_registered": (lambda p: p.is_registered(4), lambda p: p.diagnose.is_registered(4)),
    "is_computed": (lambda p: p.is_computed(block_id=4), lambda p: p.diagnose.is_computed(4)),
    "hash_of": (lambda p: p.hash_of(4), lambda p: p.diagnose.hash_of(4)),
    "copies": (
        lambda p: p.copies(CHAIN.digests()[0]),
        lambda p: p.diagnose.copies(CHAIN.digests()[0]),
    ),
    "retain": (
        lambda p: p.retain([4], retention=kvpool.Retention(80)),
        lambda p: p.retention.retain([4], kvpool.Retention(80)),
    ),
    "assign_tenant": (lambda p: p.assign_tenant([4], 1), lambda p: p.retention.assign_tenant([4], 1)),
    "epoch": (lambda p: p.epoch, lambda p: p.stats().epoch),
}
BOTH: dict[str, Pair] = {
    "advance_time": (lambda x: x.advance_time(now=3.0), lambda x: x.clock.advance(3.0)),
    "observe_time": (lambda x: x.observe_time(3.0), lambda x: x.clock.observe(3.0)),
    "tenant_blocks": (lambda x: x.tenant_blocks(1), lambda x: x.retention.tenant_blocks(1)),
    "retention_stats": (lambda x: x.retention_stats(), lambda x: x.retention.stats()),
    "journal_stats": (lambda x: x.journal_stats().operations, lambda x: x.journal.stats().operations),
    "flush_journal": (lambda x: x.flush_journal(), lambda x: x.journal.flush()),
    "journal_image": (lambda x: len(x.journal_image()), lambda x: len(x.journal.image())),
    "check_invariants": (lambda x: x.check_invariants(), lambda x: x.diagnose.check_invariants()),
    "check_policy": (lambda x: x.check_policy(), lambda x: x.diagnose.check_policy()),
    "poison_reason": (lambda x: x.poison_reason, lambda x: x.diagnose.poison_reason),
    "scrub": (lambda x: x.scrub(blocks=3), lambda x: x.diagnose.scrub(3)),
    "state_digest": (lambda x: x.state_digest(), lambda x: x.diagnose.state_digest()),
    "state_digest_from_scratch": (
        lambda x: x.state_digest_from_scratch(),
        lambda x: x.diagnose.state_digest_from_scratch(),
    ),
    "free_order": (lambda x: x.free_order(), lambda x: x.diagnose.free_order()),
    "eviction_order": (lambda x: x.eviction_order(), lambda x: x.diagnose.eviction_order()),
    "advice": (lambda x: x.advice(), lambda x: x.diagnose.advice()),
    "metrics": (lambda x: x.metrics(), lambda x: x.diagnose.metrics()),
}
RETENTION = kvpool.RetentionConfig(tenants=[kvpool.TenantLimits(1, ceiling=4)])
GROUPS = [kvpool.GroupSpec("full", 4), kvpool.GroupSpec("cross", 4)]


def manager(name: str) -> kvpool.CacheManager:
    """A manager with two running requests, one swapped out, and one that is being swapped out."""
    groups = GROUPS if name in ("extend_encoder", "fit_groups", "num_groups") else None
    made = kvpool.CacheManager(
        40,
        4,
        retention=RETENTION,
        host_blocks=0 if groups else 8,
        groups=groups,
        digest=True,
        metrics=True,
        advisor=True,
        journal=journal.Journal(ring_bytes=1 << 18),
    )
    made.admit("run", range(10))
    made.commit("run", 8)
    made.admit("new", range(20, 26))
    for request in () if groups else ("far", "moves"):
        made.admit(request, range(80, 84))
        swap = made.swaps.begin_out([request])
        made.take_plan()
        if request == "far":
            made.swaps.complete(swap)
    return made


def pool(_: str) -> kvpool.BlockPool:
    """A pool with two blocks in use, one fenced block, and one cached-free block."""
    made = kvpool.BlockPool(
        40,
        4,
        retention=RETENTION,
        digest=True,
        metrics=True,
        advisor=True,
        journal=journal.Journal(ring_bytes=1 << 18),
    )
    made.allocate(4)
    made.release([3], after_step=5)
    made.register([4], CHAIN)
    made.mark_computed([4])
    made.release([4])
    return made


MAKE: dict[str, Callable[[str], Any]] = {"CacheManager": manager, "BlockPool": pool}
PAIRS = {"CacheManager": {**BOTH, **MANAGERS}, "BlockPool": {**BOTH, **POOLS}}
CASES = [(owner, name) for owner, names in PAIRS.items() for name in names]


def test_every_old_name_has_a_test() -> None:
    assert {owner: set(names) for owner, names in RENAMED.items()} == {
        owner: {*names, "save_journal"} for owner, names in PAIRS.items()
    }
    assert len(MANAGER) > 30
    assert len(POOL) > 30


@pytest.mark.parametrize(("owner", "name"), CASES)
def test_an_old_name_warns_and_does_what_the_new_name_does(owner: str, name: str) -> None:
    old, new = PAIRS[owner][name]
    before, after = MAKE[owner](name), MAKE[owner](name)
    with pytest.warns(DeprecationWarning, match=rf"^{owner}\.{name} (is called|was removed)") as seen:
        answer = old(before)
    assert [one.filename for one in seen] == [__file__]
    assert answer == new(after)
    assert type(answer) is type(new(MAKE[owner](name)))
    digests = {made.diagnose.state_digest_from_scratch() for made in (before, after)}
    assert len(digests) == 1
    assert before.journal.image() == after.journal.image()


@pytest.mark.parametrize("owner", PAIRS)
def test_an_old_name_saves_a_journal(owner: str, tmp_path: Path) -> None:
    made = MAKE[owner]("save_journal")
    with pytest.warns(DeprecationWarning, match=r"save_journal is called .*\.journal\.save now"):
        made.save_journal(path=tmp_path / "old.kvj")
    made.journal.save(tmp_path / "new.kvj")
    assert (tmp_path / "old.kvj").read_bytes() == (tmp_path / "new.kvj").read_bytes()


def test_a_call_site_warns_once() -> None:
    made: Any = kvpool.BlockPool(9)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            made.free_order()
        made.free_order()
    assert len(seen) == 2


def test_the_classes_have_few_names_and_no_old_ones() -> None:
    for made, most in ((kvpool.CacheManager, 40), (kvpool.BlockPool, 35)):
        for listed in (dir(made), dir(made(9))):
            names = {name for name in listed if not name.startswith("_")}
            assert len(names) <= most
            assert not names & set(RENAMED[made.__name__])


@pytest.mark.parametrize("owner", PAIRS)
def test_an_unknown_name_raises_the_error_of_python(owner: str) -> None:
    made = MAKE[owner]("")
    for name in ("never", "_never", "__never__", "\ud800"):
        with pytest.raises(AttributeError, match=f"^'{owner}' object has no attribute "):
            getattr(made, name)
    assert not hasattr(made, "never")


def test_a_facet_keeps_its_owner() -> None:
    swaps = kvpool.CacheManager(9, host_blocks=9).swaps
    stats = swaps.host_stats()
    assert stats is not None
    assert stats.usable == 8


def test_arguments_for_another_form_of_a_call_are_refused() -> None:
    made: Any = kvpool.CacheManager(40, 4)
    made.admit("run", range(10))
    refused = pytest.raises(kvpool.errors.InvalidArgumentError, match="is only for")
    with refused:
        made.append("run", [1], commit=True)
    with refused:
        made.append(["run"], [1], lookahead=2)
    with refused:
        made.append(["run"], [1], multimodal=[])
    with refused:
        made.prepare("run", kvpool.ExtraKeys(salt="s"))
    blocks: Any = kvpool.BlockPool(9)
    blocks.allocate(2)
    with refused:
        blocks.release([1], tail_first=True, after_step=1)
    with refused:
        blocks.ref_count(1, out=bytearray(4))
    assert blocks.ref_count([1, 2]) == [1, 1]
