"""Tests ``KVPOOL_VLLM_HINTS``: the values of the setting, and how hints of vLLM's requests affect the
blocks that the requests release.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.integrations.vllm.hints import VllmHints
from kvpool.integrations.vllm.settings import Settings
from tests.integrations.fake_vllm import fake_vllm, freeing, part
from tests.integrations.pool_stand_ins import BLOCK, digest, make_pool, order, request_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL = '{"priority": true, "session_ttl": 600, "kv_hints": true, "pins": true, "pin_budget": 2}'


@pytest.fixture(autouse=True)
def vllm() -> Iterator[Any]:
    with fake_vllm() as package:
        yield package
        part("pool").BlockPool.hinting = None


class Manager:
    """Stands in for vLLM's KV-cache manager. It has the attributes that kvpool reads, the tables of one
    group, and the method that frees a request.
    """

    def __init__(self, hints: str | None = ALL, num_blocks: int = 16, **more: Any) -> None:
        part("pool").BlockPool.hinting = VllmHints.parse(hints) if hints else None
        self.block_pool = make_pool(num_blocks, events=None, **more)
        self.tables: dict[str, list[Any]] = {}
        group = SimpleNamespace(req_to_blocks=self.tables, block_size=BLOCK[0])
        self.coordinator = SimpleNamespace(single_type_managers=(group,))

    def run(self, tokens: list[int], name: str = "r", *, finished: bool = True, **said: Any) -> list[int]:
        """Runs a request with these hints until its blocks are cached and freed. Returns the blocks."""
        request = request_of(
            tokens, session_id=said.pop("session_id", None), cache_salt=said.pop("cache_salt", None)
        )
        request.num_prompt_tokens = len(tokens)
        vars(request).update(request_id=name, is_finished=lambda: finished, **said)
        size, count = BLOCK[0], len(tokens) // BLOCK[0]
        blocks = self.block_pool.get_new_blocks(count)
        self.block_pool.cache_full_blocks(request, blocks, 0, count, size, 0)
        self.tables[name] = blocks
        self.free(request)
        return [block.block_id for block in blocks]

    def free(self, request: Any) -> None:
        part("hints").before_free(self, request)
        self.block_pool.free_blocks(reversed(self.tables.pop(request.request_id)))

    def cached_order(self) -> list[int]:
        """Returns the cached blocks in the order in which they would be evicted."""
        return [
            block for block in order(self.block_pool) if self.block_pool.blocks[block].block_hash is not None
        ]


def action(kind: str, **payload: Any) -> dict[str, Any]:
    return {"actions": [{"action_type": kind, "payload": payload}]}


def test_the_setting_is_off_and_its_fields_are_those_of_the_rules() -> None:
    assert Settings.from_environment({"KVPOOL_VLLM": "pool"}).hints is None
    found = Settings.from_environment({"KVPOOL_VLLM": "pool", "KVPOOL_VLLM_HINTS": ALL}).hints
    assert found is not None
    assert (found.rules.priority, found.rules.session_ttl, found.rules.pins) == (True, 600, True)
    assert found.retention.pin_budget == 2
    tenants = VllmHints.parse('{"tenants": {"salt": 3}, "limits": {"3": {"floor": 1, "ceiling": 4}}}')
    assert tenants.rules.tenants == {"salt": 3}
    (limit,) = tenants.retention.tenants
    assert (limit.tenant, limit.floor, limit.ceiling) == (3, 1, 4)
    assert VllmHints.parse("ALL").rules.kv_hints


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("yes", "must be 'all' or a JSON object"),
        ("[]", "must be 'all' or a JSON object"),
        ('{"breakpoints": true}', "has 'breakpoints': must be of priority, "),
        ('{"priority": 1}', "priority 1: must be true or false"),
        ('{"max_priority": 101}', "max_priority is 101: must be 35 to 100"),
        ('{"session_ttl": 0}', "session_ttl is 0"),
        ('{"limits": {"x": {}}}', "invalid literal"),
        ('{"limits": {"1": {"most": 2}}}', "most"),
        ('{"limits": 3}', "items"),
        ('{"tenants": 3}', "tenants must be a mapping"),
        ('{"pin_budget": -1}', "pin_budget is -1"),
    ],
)
def test_any_other_setting_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="KVPOOL_VLLM_HINTS") as refused:
        Settings.from_environment({"KVPOOL_VLLM": "pool", "KVPOOL_VLLM_HINTS": text})
    assert why in str(refused.value)


def test_the_shadow_takes_no_hints() -> None:
    with pytest.raises(ValueError, match="KVPOOL_VLLM_HINTS is set with KVPOOL_VLLM=shadow"):
        Settings.from_environment({"KVPOOL_VLLM": "shadow", "KVPOOL_VLLM_HINTS": "all"})


@pytest.mark.parametrize("seed", range(8))
def test_random_priorities_are_the_order_of_eviction(seed: int) -> None:
    # docs/hints.md states: the priority of a block is 35 minus the priority of its request, and at
    # least 0. The block with the lowest priority is evicted first, and among equal priorities the block
    # that was released first.
    numbers = random.Random(seed)
    manager = Manager('{"priority": true, "max_priority": 90}', 40)
    expected = []
    for at in range(30):
        priority = numbers.choice([0, 0, 0, -20, -80, 5, 60])
        (block,) = manager.run([at, at], f"r{at}", priority=priority)
        expected.append((min(max(35 - priority, 0), 90), at, block))
    assert manager.cached_order() == [block for _, _, block in sorted(expected)]
    answers = manager.block_pool.hints.answers
    assert sum(answers.values()) == sum(kept != 35 for kept, _, _ in expected)


def test_without_the_setting_a_request_says_nothing_and_vllms_order_stands() -> None:
    manager = Manager(None)
    first = manager.run([1, 2], "a", priority=-50, kv_hints=action("demote"))
    second = manager.run([3, 4], "b", priority=50)
    assert manager.cached_order() == [*first, *second]
    assert manager.block_pool.hints is None
    assert not manager.block_pool.core.keeps_history
    assert manager.block_pool.core.retention_stats() is None


def test_an_action_is_of_the_blocks_whose_last_token_is_in_its_range() -> None:
    manager = Manager()
    kept = manager.run([1, 2, 3, 4, 5, 6], "a", kv_hints=action("retain", start=0, end=5))
    stats = manager.block_pool.core.retention_stats()
    assert (stats.above_normal, stats.demoted) == (2, 0)
    assert manager.block_pool.hints.answers == {("retain", "accepted"): 1}
    assert manager.block_pool.hints.blocks["accepted"] == 2
    # The third block cannot be hit without the blocks before it, so it is evicted first in any case.
    assert manager.cached_order()[0] == kept[2]


def test_a_session_is_kept_and_its_end_makes_it_first_in_line() -> None:
    manager = Manager()
    chat = manager.run([1, 2, 3, 4], "a", session_id="chat")
    other = manager.run([7, 8], "b")
    assert manager.cached_order() == [*other, *reversed(chat)]
    ended = manager.run([5, 6], "c", session_id="other", kv_hints=action("end_session"))
    assert manager.cached_order()[: len(ended)] == ended
    assert manager.block_pool.core.retention_stats().with_ttl == 2


def test_a_request_that_is_preempted_is_not_at_its_end() -> None:
    manager = Manager()
    manager.run([1, 2], "a", finished=False, kv_hints=action("end_session"))
    manager.run([3, 4], "b", finished=False, kv_hints=action("demote"))
    assert manager.block_pool.core.retention_stats().demoted == 0
    manager.run([5, 6], "c", kv_hints=action("demote"))
    assert manager.block_pool.core.retention_stats().demoted == 1


def test_pins_have_a_budget_and_tenants_their_limits() -> None:
    manager = Manager()
    manager.run([1, 2, 3, 4, 5, 6], "a", kv_hints=action("pin", ttl_s=60))
    assert manager.block_pool.core.retention_stats().pinned == 2
    assert manager.block_pool.hints.blocks == {"accepted": 2, "clipped": 1, "ignored": 0}
    tenants = Manager('{"tenants": {"s": 1}, "limits": {"1": {"ceiling": 1}}}')
    plain = tenants.run([1, 2], "a")
    over = [tenants.run([at, at], f"r{at}", cache_salt="s")[0] for at in (3, 4)]
    # Blocks above the tenant's maximum are evicted before blocks that were released earlier.
    assert tenants.cached_order() == [over[0], *plain, over[1]]
    tenants.run([9, 9], "z", cache_salt="of nobody")
    assert tenants.block_pool.hints.answers["cache_salt", "ignored"] == 1


def test_time_passes_when_requests_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(part("hints").time, "monotonic", lambda: now[0])
    manager = Manager()
    manager.run([1, 2], "a", kv_hints=action("retain", priority=90, ttl_s=60))
    now[0] = 159.0
    manager.run([3, 4], "b")
    assert manager.block_pool.core.retention_stats().above_normal == 1
    now[0] = 161.0
    manager.run([5, 6], "c")
    assert manager.block_pool.core.retention_stats().above_normal == 0


@pytest.mark.parametrize("said", [{"priority": "high"}, {"kv_hints": 7}, {"kv_hints": action("fly")}])
def test_what_is_no_hint_is_answered_and_changes_nothing(said: dict[str, Any]) -> None:
    manager = Manager()
    blocks = manager.run([1, 2], "a", **said)
    assert manager.cached_order() == blocks
    assert {outcome for _, outcome in manager.block_pool.hints.answers} == {"ignored"}


def test_hints_change_no_answer_of_a_lookup() -> None:
    manager = Manager()
    manager.run([1, 2, 3, 4], "a", kv_hints=action("demote"))
    assert manager.block_pool.get_cached_block(digest((1, 2, 3, 4)), [0]) is not None


def test_a_pool_of_other_memory_or_without_a_cache_has_none() -> None:
    part("pool").BlockPool.hinting = VllmHints.parse("all")
    assert make_pool(medium="CPU").hints is None
    assert make_pool(caching=False).hints is None
    assert make_pool().hints is not None


def test_at_the_level_pool_vllms_manager_says_them_before_it_frees() -> None:
    with freeing(Manager, SimpleNamespace(is_finished=bool)) as kv_cache_manager:
        found = part("hints").replacements()
        assert [(owner, name) for owner, name, _ in found] == [
            (kv_cache_manager, "free"),
            (kv_cache_manager, "pop_blocks_for_free"),
        ]
        for owner, name, value in found:
            setattr(owner, name, value)
        manager = kv_cache_manager()
        manager.run([1, 2], "a", priority=-20)
        assert manager.block_pool.core.retention_stats().above_normal == 1
        setattr(kv_cache_manager, "free", lambda self, request, more: None)  # noqa: B010 - vLLM's, changed
        with pytest.raises(RuntimeError, match=r"KVCacheManager\.free is not that of a vLLM"):
            part("hints").replacements()
