"""Tests the shadow, which compares vLLM with kvpool, without vLLM. It compares two small managers, one
of which a test can break. After a difference, the trail (a file with the last calls) is checked.

``make vllm-shadow-selftest`` tests the shadow in a real vLLM, and ``make vllm-shadow-conformance`` runs
vLLM's own tests at this level.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kvpool import _core
from kvpool.integrations.vllm import comparison as comparing
from kvpool.integrations.vllm.comparison import Comparison
from kvpool.integrations.vllm.trail import Trail
from tests.integrations.fake_vllm import Request, fake_vllm, part
from tests.integrations.shadow_stand_ins import (
    SALT,
    SECRET,
    Blocks,
    Manager,
    Pool,
    StrictManager,
    request,
    trail_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Trail, "folder", str(tmp_path / "trails"))
    return tmp_path / "trails"


@pytest.fixture
def pair() -> Iterator[tuple[Any, Any, Comparison]]:
    manager, mirror = Manager(), StrictManager()
    comparison = Comparison(manager, mirror, {"vllm": "0.32.0"})
    yield manager, mirror, comparison
    comparison.stop()


def said(caplog: pytest.LogCaptureFixture, level: int) -> str:
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == level]
    assert str(SECRET) not in line
    assert SALT not in line
    return line


def test_the_callers_results_are_its_own_and_the_mirror_follows(pair: tuple[Any, Any, Comparison]) -> None:
    manager, mirror, comparison = pair
    new = manager.allocate_slots(request(), 3)
    assert all(block.pool is manager.block_pool for block in new.blocks[0])
    found, hits, _ = manager.get_computed_blocks(request("second", hits=2))
    assert hits == 2
    manager.allocate_slots(request("second"), 2, found)
    manager.allocate_slots(request("third"), 1, blocks=Blocks((new.blocks[0][:1],)))
    manager.block_pool.free_blocks(block for block in reversed(manager.pop_blocks_for_free(request())))
    manager.free(request("second"))
    assert manager.allocate_slots(request(), 100) is None
    assert len(manager.block_pool.take_events()) == 3
    assert manager.get_blocks("third").get_block_ids() == ([6],)
    assert comparison.running
    assert comparison.operations == 10
    assert [block.block_id for block in mirror.tables["third"]] == [6]
    order = [
        [block.block_id for block in one.block_pool.free_block_queue.blocks] for one in (manager, mirror)
    ]
    assert order[0] == order[1] == [7, 8, 9, 3, 2, 1, 5, 4]


def test_blocks_of_another_pool_are_left_to_vllm(pair: tuple[Any, Any, Comparison]) -> None:
    manager, mirror, comparison = pair
    (own,) = manager.block_pool.get_new_blocks(1)
    other = Pool(3).get_new_blocks(1)[0]
    manager.block_pool.free_blocks([own, other])
    assert other.ref_cnt == 0
    assert comparison.running
    assert mirror.block_pool.free_block_queue.num_free_blocks == 9


def check_off(manager: Any, comparison: Comparison) -> None:
    """Checks that the shadow is off: the manager has no mirror any more, and works like a new one."""
    assert not comparison.running
    assert comparison.mirror is None
    assert not set(vars(manager)) & set(comparing.MANAGER)
    assert not set(vars(manager.block_pool)) & set(comparing.POOL)
    operations = comparison.operations
    manager.allocate_slots(request("later"), 1)
    assert comparison.operations == operations


def test_a_different_result_is_reported_once(
    pair: tuple[Any, Any, Comparison], caplog: pytest.LogCaptureFixture, folder: Path
) -> None:
    manager, mirror, comparison = pair
    manager.allocate_slots(request(), 2)
    mirror.block_pool.free_block_queue.blocks.reverse()
    assert manager.allocate_slots(request("second"), 2).get_block_ids() == ([3, 4],)
    line = said(caplog, logging.ERROR)
    assert "operation 2, allocate_slots, first difference, results: vLLM [[3, 4]], kvpool [[9, 8]]" in line
    assert str(next(folder.iterdir())) in line
    first, *operations, last = trail_of(folder)
    assert first == {"vllm": "0.32.0"}
    assert [one["call"] for one in operations] == ["allocate_slots", "allocate_slots"]
    assert operations[1]["arguments"] == [{"request": "second", "tokens": 3, "computed": 1, "hashes": 1}, 2]
    assert operations[1]["result"] == [[3, 4]]
    assert (last["difference"], last["vllm"], last["kvpool"]) == ("results", [[3, 4]], [[9, 8]])
    check_off(manager, comparison)


@pytest.mark.parametrize("error", [RuntimeError(SALT, SECRET), BaseException(SALT)])
def test_an_error_of_the_mirror_does_not_reach_the_caller(
    pair: tuple[Any, Any, Comparison], caplog: pytest.LogCaptureFixture, folder: Path, error: BaseException
) -> None:
    manager, mirror, comparison = pair

    def broken(_: Any) -> None:
        raise error

    mirror.free = broken
    manager.allocate_slots(request(), 2)
    manager.free(request())
    assert (
        f'free, first difference, kvpool raised: vLLM null, kvpool {{"raised": "{type(error).__name__}"}}'
        in said(caplog, logging.ERROR)
    )
    assert trail_of(folder)[-1]["call"] == "free"
    assert manager.block_pool.free_block_queue.num_free_blocks == 9
    check_off(manager, comparison)


def test_an_interrupt_in_the_mirror_is_an_interrupt(pair: tuple[Any, Any, Comparison], folder: Path) -> None:
    manager, mirror, comparison = pair

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    mirror.free = interrupted
    with pytest.raises(KeyboardInterrupt):
        manager.free(request())
    check_off(manager, comparison)
    assert not folder.exists()


def test_where_vllm_raises_the_mirror_has_to(
    pair: tuple[Any, Any, Comparison], caplog: pytest.LogCaptureFixture
) -> None:
    manager, mirror, comparison = pair
    with pytest.raises(ValueError, match=SALT):
        manager.block_pool.get_new_blocks(100)
    assert comparison.running
    mirror.block_pool.get_new_blocks = lambda count: []
    with pytest.raises(ValueError, match=SALT):
        manager.block_pool.get_new_blocks(100)
    assert 'vLLM {"raised": "ValueError"}, kvpool []' in said(caplog, logging.ERROR)
    check_off(manager, comparison)


def test_what_vllm_does_by_half_before_it_raises_is_no_difference(
    pair: tuple[Any, Any, Comparison], caplog: pytest.LogCaptureFixture, folder: Path
) -> None:
    manager, _, comparison = pair
    with pytest.raises(AssertionError):
        manager.block_pool.free_blocks([*manager.block_pool.get_new_blocks(1), manager.block_pool.blocks[0]])
    assert "has done a part of it" in said(caplog, logging.WARNING)
    assert not folder.exists()
    check_off(manager, comparison)


def test_a_double_free_of_vllms_is_no_difference(
    pair: tuple[Any, Any, Comparison], caplog: pytest.LogCaptureFixture, folder: Path
) -> None:
    manager, _, comparison = pair
    blocks = manager.block_pool.get_new_blocks(1)
    manager.block_pool.free_blocks(blocks)
    manager.block_pool.free_blocks(blocks)
    assert "more often than it was taken" in said(caplog, logging.WARNING)
    assert not folder.exists()
    check_off(manager, comparison)


def test_a_refusal_without_a_double_free_is_a_difference(
    pair: tuple[Any, Any, Comparison], caplog: pytest.LogCaptureFixture
) -> None:
    manager, mirror, comparison = pair
    blocks = manager.block_pool.get_new_blocks(1)
    mirror.block_pool.blocks[1].ref_cnt = 0
    manager.block_pool.free_blocks(blocks)
    assert "freed too often" in said(caplog, logging.ERROR)
    check_off(manager, comparison)


@pytest.mark.parametrize("what", ["events", "free blocks"])
def test_what_no_result_shows_is_compared_too(
    pair: tuple[Any, Any, Comparison], caplog: pytest.LogCaptureFixture, what: str
) -> None:
    manager, mirror, comparison = pair
    take = mirror.block_pool.get_new_blocks

    def broken(count: int) -> Any:
        taken = take(count)
        if what == "events":
            mirror.block_pool.kv_event_queue[-1].token_ids.append(SECRET)
        else:
            mirror.block_pool.free_block_queue.blocks.pop()
        return taken

    mirror.block_pool.get_new_blocks = broken
    manager.allocate_slots(request(), 1)
    assert f"first difference, {what}:" in said(caplog, logging.ERROR)
    check_off(manager, comparison)


@pytest.mark.parametrize(
    ("what", "damage"),
    {
        "free blocks in order": lambda mirror: mirror.block_pool.free_block_queue.blocks.reverse(),
        "references": lambda mirror: setattr(mirror.block_pool.blocks[3], "ref_cnt", 1),
        "blocks by key": lambda mirror: mirror.block_pool.cached_block_hash_to_block._cache.update(
            {b"k": mirror.block_pool.blocks[2]}
        ),
        "cached tokens": lambda mirror: setattr(mirror.block_pool.blocks[3], "block_hash_num_tokens", 16),
        "blocks by request": lambda mirror: mirror.tables.update(r=[mirror.block_pool.blocks[1]]),
        "cached blocks by request": lambda mirror: mirror.coordinator.single_type_managers[
            0
        ].num_cached_block.update(r=1),
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_state_is_compared_every_so_often(
    pair: tuple[Any, Any, Comparison], caplog: pytest.LogCaptureFixture, what: str, damage: Any
) -> None:
    manager, mirror, comparison = pair
    damage(mirror)
    for _ in range(comparing.STATE_EVERY - 1):
        manager.get_blocks("first")
    assert comparison.running
    manager.get_blocks("first")
    assert f"first difference, {what}: " in said(caplog, logging.ERROR)
    check_off(manager, comparison)


def test_keys_with_one_block_and_with_several_are_compared_alike(pair: tuple[Any, Any, Comparison]) -> None:
    manager, mirror, comparison = pair
    ours, theirs = mirror.block_pool.blocks, manager.block_pool.blocks
    manager.block_pool.cached_block_hash_to_block._cache[b"k"] = theirs[2]
    mirror.block_pool.cached_block_hash_to_block._cache[b"k"] = {2: ours[2]}
    comparison.compare_state()
    assert comparison.running


def test_a_trail_that_cannot_be_written_ends_it_all_the_same(
    pair: tuple[Any, Any, Comparison], caplog: pytest.LogCaptureFixture, folder: Path
) -> None:
    manager, mirror, comparison = pair
    folder.write_text("in the way")
    mirror.block_pool.free_block_queue.blocks.reverse()
    manager.allocate_slots(request(), 1)
    assert "could not be written (FileExistsError" in said(caplog, logging.ERROR)
    check_off(manager, comparison)


def test_a_report_that_fails_ends_it_all_the_same(
    pair: tuple[Any, Any, Comparison], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, mirror, comparison = pair
    monkeypatch.setattr(comparing, "told", lambda value: 1 / 0)
    mirror.block_pool.free_block_queue.blocks.reverse()
    manager.allocate_slots(request(), 1)
    assert "could not be told (ZeroDivisionError)" in said(caplog, logging.ERROR)
    check_off(manager, comparison)


def test_the_shadow_logs_regularly_that_there_is_no_difference(
    pair: tuple[Any, Any, Comparison], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, _, _ = pair
    monkeypatch.setattr(comparing, "LOG_EVERY", 10)
    with caplog.at_level(logging.INFO):
        for _ in range(25):
            manager.get_blocks("first")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"kvpool shadow: {count} operations, no difference" for count in (10, 20)]


@pytest.fixture
def shadow() -> Iterator[Any]:
    with fake_vllm():
        yield part("shadow")


def test_vllms_hashes_are_returned_and_compared(
    shadow: Any, caplog: pytest.LogCaptureFixture, folder: Path
) -> None:
    theirs = [bytes([number]) * 32 for number in range(3)]
    ours = [list(theirs), [theirs[0], b"\xff" * 32, theirs[2]]]
    hasher = shadow.ShadowHasher(lambda _: theirs, lambda _: ours.pop(0))
    assert hasher(request()) is theirs
    assert not caplog.records
    assert hasher(request()) is theirs
    line = said(caplog, logging.ERROR)
    assert (
        f"hash 1 of the new ones of request first differs: vLLM ['{'01' * 8}'], kvpool ['{'ff' * 8}']" in line
    )
    *_, last = trail_of(folder)
    assert (last["difference"], last["hash"]) == ("hashes", 1)
    assert hasher(request()) is theirs  # our hasher is not called any more


def test_a_faulty_hasher_does_not_affect_the_caller(shadow: Any, caplog: pytest.LogCaptureFixture) -> None:
    theirs = [b"\x01" * 32]

    def broken(_: Any) -> list[bytes]:
        raise BaseException(SALT, SECRET)

    assert shadow.ShadowHasher(lambda _: theirs, broken)(request()) is theirs
    assert "BaseException" in said(caplog, logging.ERROR)
    caplog.clear()
    assert shadow.ShadowHasher(lambda _: theirs, lambda _: [])(request()) is theirs
    assert "kvpool []" in said(caplog, logging.ERROR)


def test_only_functions_that_kvpool_knows_have_hashes_to_compare(shadow: Any) -> None:
    known = part("hashing").vllm_hashing.sha256
    assert isinstance(shadow.get_request_block_hasher(16, known), shadow.ShadowHasher)
    unknown = max
    assert shadow.get_request_block_hasher(16, unknown) == ("stock", 16, unknown)
    assert shadow.get_request_block_hasher(16, known, 1) == ("stock", 16, known, 1)


def test_a_manager_without_a_mirror_is_vllms(shadow: Any, caplog: pytest.LogCaptureFixture) -> None:
    coordinators = shadow.kv_cache_coordinator
    before = coordinators.BlockPool
    manager = shadow.ShadowKVCacheManager()  # the stand-in's manager has no coordinator
    assert manager.comparison is None
    assert "cannot be made: AttributeError" in said(caplog, logging.ERROR)
    assert coordinators.BlockPool is before


def test_vllm_is_as_it_was_where_the_mirror_cannot_be_made(
    shadow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinators = shadow.kv_cache_coordinator
    before = coordinators.BlockPool
    seen = []

    def construct(*_args: Any, **_more: Any) -> None:
        seen.append(coordinators.BlockPool)
        raise RuntimeError

    monkeypatch.setattr(shadow, "KVCacheManager", construct)
    with pytest.raises(RuntimeError):
        shadow.make_mirror((), {})
    assert seen == [shadow._make_pool]
    assert coordinators.BlockPool is before


def construct(
    self: Any, groups: int = 1, *, metrics_collector: Any = None, log_stats: bool = False, watermark: int = 0
) -> None:
    """Gives a stand-in the parts of vLLM's ``KVCacheManager`` that kvpool reads, for full attention
    together with windows.
    """
    pool = part("manager").stock.kv_cache_coordinator.BlockPool(30, True, BLOCK, True, metrics_collector)
    managers = []
    for number in range(groups):
        kinds = part("manager").single_type
        group = (kinds.SlidingWindowManager if number else kinds.FullAttentionManager)()
        vars(group).update(
            block_pool=pool, block_size=BLOCK, kv_cache_group_id=number, dcp_world_size=1, pcp_world_size=1
        )
        spec = SimpleNamespace(prefix_cacheable=True)
        vars(group).update(
            req_to_blocks={},
            num_cached_block={},
            records_new_block_ids=False,
            enable_caching=True,
            kv_cache_spec=spec,
        )
        vars(group).update(
            sliding_window=3, extra_retained_tokens=0, max_admission_blocks_per_request=None, use_eagle=False
        )
        vars(group).update(cache_hit_alignment_tokens=BLOCK)
        managers.append(group)
    coordinators = part("manager").coordinators
    several = groups > 1
    self.coordinator = (
        coordinators.HybridKVCacheCoordinator if several else coordinators.UnitaryKVCacheCoordinator
    )()
    vars(self.coordinator).update(
        single_type_managers=tuple(managers),
        attention_groups=[(None, [number], type(one), False) for number, one in enumerate(managers)],
        block_size=BLOCK,
        scheduler_block_size=BLOCK,
        hash_block_size=BLOCK,
        enable_partial_hash_hits=False,
        eagle_group_ids=(),
        num_reprefillable_tokens=0,
        retention_interval=None,
    )
    self.block_pool, self.num_kv_cache_groups, self.max_model_len = pool, groups, 64
    self.enable_caching, self.enable_kv_cache_events, self.log_stats = True, True, log_stats
    self.metrics_collector, self.watermark_blocks, self.retained_hit_group_ids = (
        metrics_collector,
        watermark,
        (),
    )


BLOCK = 2


@pytest.fixture
def stock(shadow: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the stand-in for vLLM's manager. Like vLLM's manager, it makes its pool by the name in
    the coordinator's module.
    """
    monkeypatch.setattr(shadow._StockManager, "__init__", construct)
    monkeypatch.setattr(
        shadow._StockManager, "allocate_slots", lambda *_: pytest.fail("vLLM's own"), raising=False
    )
    monkeypatch.setattr(shadow.stock, "kv_cache_coordinator", shadow.kv_cache_coordinator, raising=False)
    return shadow


def test_the_mirror_is_what_the_level_manager_is(stock: Any) -> None:
    """The mirror's pool has the same class as at the level ``manager``. So all fast paths that check
    the class are used.
    """
    mirror = stock.make_mirror((), {"log_stats": True, "watermark": 1})
    pool = mirror.block_pool
    assert type(pool) is part("pool").BlockPool
    assert type(mirror) is part("manager").KVCacheManager
    assert part("manager")._why_not(mirror) is None
    assert (mirror.log_stats, mirror.watermark_blocks) == (False, 1)
    # The mirror writes a journal, and uses vLLM's form of events, because the level's own events differ
    # from vLLM's on purpose.
    assert type(pool.events) is part("events").StockEvents
    assert pool.core.journal_image() is not None
    calls: Counter[str] = Counter()
    request_ = Request("r", [1, 2, 3, 4, 5], [bytes([number]) * 32 for number in range(2)])
    with counting(calls):
        table = mirror.allocate_slots(request_, 5).blocks[0]
        mirror.get_computed_blocks(request_)
        mirror.cache_blocks(request_, 5)
        mirror.estimate_cached_tokens(request_)
        mirror.free(request_)
        part("lookup").count_evictable(None, table)
        given = (
            request_.block_hashes,
            4,
            [0],
            pool,
            SimpleNamespace(block_size=BLOCK, sliding_window=3),
            False,
            BLOCK,
        )
        part("lookup").find_in_full_attention(None, *given)
        need = {
            "_contiguous_blocks_for_hit": staticmethod(lambda *_: 1),
            "supports_fine_grained_hash_lookup": False,
        }
        window = type("Manager", (), need)
        part("lookup").find_in_sliding_window(window, *given)
    # The calls of the level ``manager`` that are implemented in Rust. The test leaves out a call that
    # connectors make, and the calls that lookups make on a pool.
    groups = {f"VllmGroups.{name}" for name in public(_core.vllm.VllmGroups)}
    assert groups - set(calls) == {"VllmGroups.find_longest_cache_hit_per_group"}
    assert {"VllmPool.find_run", "VllmPool.find_window", "VllmPool.num_evictable"} <= set(calls)


def test_the_mirror_of_several_groups_makes_the_calls_of_the_level(stock: Any) -> None:
    mirror = stock.make_mirror((2,), {})
    request_ = Request("r", [1, 2, 3, 4, 5], [bytes([number]) * 32 for number in range(2)])
    calls: Counter[str] = Counter()
    with counting(calls):
        full, window = mirror.allocate_slots(request_, 5).blocks
        assert (len(full), len(window)) == (3, 3)
        request_.num_computed_tokens = 5
        mirror.allocate_slots(request_, 1)
        mirror.cache_blocks(request_, 5)
        hit = mirror.coordinator.find_longest_cache_hit(request_.block_hashes, 4)
        assert [len(one) for one in hit[0]] == [2, 2]
        assert mirror.coordinator.find_longest_cache_hit_per_group(request_.block_hashes, 4)[1] == (4, 4)
        assert mirror.estimate_cached_tokens(request_) == 4
        mirror.free(request_)
    groups = {f"VllmGroups.{name}" for name in public(_core.vllm.VllmGroups)}
    assert {name for name in calls if name.startswith("VllmGroups.")} == groups


def public(cls: type) -> set[str]:
    return {name for name, one in vars(cls).items() if callable(one) and not name.startswith("_")}


@contextlib.contextmanager
def counting(calls: Counter[str]) -> Iterator[None]:
    """Counts the calls of functions that are implemented in Rust."""

    def count(_frame: Any, event: str, called: Any) -> None:
        if event == "c_call":
            calls[called.__qualname__] += 1

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_where_metrics_are_collected_the_mirror_takes_the_calls_that_tell_of_every_block(stock: Any) -> None:
    class Collector:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name}: it is the caller's, and not to be told twice")

    mirror = stock.make_mirror((), {"metrics_collector": Collector()})
    # With a single group of full attention, ordinary calls would not report each block to the
    # collector.
    assert mirror.groups is not None
    request_ = Request(
        "r", [1, 2, 3, 4, 5], [bytes([number]) * 32 for number in range(2)], num_prompt_tokens=5
    )
    assert len(mirror.allocate_slots(request_, 5).blocks[0]) == 3
    mirror.free(request_)
    blocks = mirror.block_pool.get_new_blocks(2)
    mirror.block_pool.touch(blocks)
    mirror.block_pool.free_blocks([*blocks, *blocks])
    assert mirror.block_pool.reset_prefix_cache()


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        (["FullAttentionManager"], ""),
        (["HiSparseHotManager"], "HiSparse"),
        (["FullAttentionManager", "Other"], "pools"),
    ],
)
def test_what_goes_past_the_managers_calls_is_not_compared(shadow: Any, groups: list[str], why: str) -> None:
    pool = object()
    made = [type(name, (), {"block_pool": pool if name != "Other" else object()})() for name in groups]
    manager = SimpleNamespace(coordinator=SimpleNamespace(single_type_managers=made), block_pool=pool)
    found = shadow._not_compared(manager)
    assert (why in found) if why else found == ""
