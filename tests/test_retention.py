"""Tests retention in Python: the manager's hints, the counters, and the examples of the docs.

The Rust tests `rust/kvpool/tests/evictors` and `operations/manager_retention.rs` compare random hints
with models.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kvpool
from kvpool import CacheManager, HintReport, Retention, RetentionConfig, TenantLimits


def chat(manager: CacheManager, name: str, tokens: list[int], **hints: Any) -> list[int]:
    """Runs a request: admits, computes and releases it. Returns its full blocks."""
    table = manager.admit(name, tokens, **hints).block_ids
    manager.commit(name, len(tokens))
    manager.release(name)
    return table[: len(tokens) // manager.block_size]


def test_the_order_of_eviction_is_the_documented_one() -> None:
    retention = RetentionConfig(pin_budget=1, tenants=[TenantLimits(1, ceiling=0), TenantLimits(2, floor=1)])
    manager = CacheManager(16, 1, retention=retention)
    pinned = chat(manager, "pinned", [1], retention=[(0, None, Retention(pinned=True))])
    clipped = chat(manager, "clipped", [2], retention=[(0, None, Retention(pinned=True))])
    sheltered = chat(manager, "floor", [3], tenant=2)
    high = chat(manager, "high", [4], retention=[(0, None, Retention(60))])
    normal = chat(manager, "normal", [5])
    low = chat(manager, "low", [6], retention=[(0, None, Retention(0))])
    greedy = chat(manager, "ceiling", [7], tenant=1, retention=[(0, None, Retention(90))])
    scan = chat(manager, "scan", [8], no_cache=True)
    order = scan + greedy + low + normal + high + clipped + sheltered + pinned
    assert manager.diagnose.eviction_order() == order
    # The request needs all blocks, so blocks are evicted in their order, whatever their contents.
    manager.admit("all", list(range(100, 115)))
    manager.diagnose.check_invariants()
    assert set(manager.block_ids("all")) >= set(order)


def test_a_later_hint_takes_an_earlier_one_back() -> None:
    manager = CacheManager(16, 2, retention=True)
    chat(manager, "a", [1, 2, 3, 4])
    assert manager.retention.end_of_life([1, 2, 3, 4]) == manager.retention.retain(
        [1, 2, 3, 4], [(0, None, Retention())]
    )
    assert manager.retention.stats() == CacheManager(16, retention=True).retention.stats()


def test_the_end_of_a_session_and_the_return_of_its_prompt() -> None:
    manager = CacheManager(16, 2, retention=True)
    manager.admit("a", [1, 2, 3, 4, 5, 6])
    manager.commit("a", 6)
    report = manager.retention.end_session("a")
    assert (report.accepted, report.clipped, report.ignored) == (3, 0, 0)
    assert manager.admit("b", [1, 2, 3, 4, 9]).cached_tokens == 4
    stats = manager.retention.stats()
    assert stats is not None
    assert stats.demoted == 1


def test_a_step_admits_with_hints() -> None:
    manager = CacheManager(16, 2, retention=True)
    with manager.plan_step() as step:
        step.admit("a", [1, 2, 3], no_cache=True, tenant=5, retention=[(0, 1, Retention(80))])
        step.commit()
    manager.commit("a", 3)
    stats = manager.retention.stats()
    assert stats is not None
    assert (stats.demoted, stats.above_normal) == (1, 0)
    with (
        manager.plan_step() as step,
        pytest.raises(kvpool.errors.InvalidArgumentError, match=r"range is 3\.\.3"),
    ):
        step.admit("b", [1], retention=[(3, 3, Retention())])


def test_classes_are_values() -> None:
    assert Retention(80, ttl=5) == Retention(80, ttl=5.0)
    assert Retention(80) != Retention(81)
    assert (Retention().priority, Retention(pinned=True).priority, Retention(demoted=True).demoted) == (
        35,
        None,
        True,
    )
    for retention in (
        Retention(),
        Retention(0, ttl=0.5, idle=True, then="demote"),
        Retention(pinned=True, ttl=1),
    ):
        assert eval(repr(retention), {"Retention": Retention}) == retention
    limits = TenantLimits(3, floor=1, ceiling=2)
    config = RetentionConfig(pin_budget=3, tenants=(limits,))
    assert eval(repr(config), vars(kvpool)) == config
    assert (config.pin_budget, config.tenants, limits.tenant, limits.floor, limits.ceiling) == (
        3,
        [limits],
        3,
        1,
        2,
    )
    with pytest.raises(AttributeError):
        config.pin_budget = 4  # type: ignore[misc]


def test_true_is_retention_without_pins_and_limits() -> None:
    for config in (True, RetentionConfig()):
        assert kvpool.BlockPool(8, retention=config).retention.stats() is not None
    for none in (None, False):
        assert kvpool.BlockPool(8, retention=none).retention.stats() is None
        assert CacheManager(8, retention=none).stats().retention is None


def test_figures_of_the_manager_count_hints() -> None:
    manager = CacheManager(16, 2, retention=RetentionConfig(pin_budget=1))
    chat(manager, "a", [1, 2, 3, 4], retention=[(0, None, Retention(pinned=True))])
    manager.retention.end_of_life([5, 6])
    hints = manager.stats().hints
    assert (hints.accepted, hints.clipped, hints.ignored) == (1, 1, 1)


def test_tenants_are_counted() -> None:
    manager = CacheManager(16, 2, retention=RetentionConfig(tenants=[TenantLimits(1, ceiling=9)]))
    chat(manager, "a", [1, 2, 3, 4], tenant=1)
    manager.admit("b", [1, 2, 3, 4, 5, 6, 7])  # hits two blocks of tenant 1, and computes one
    manager.commit("b", 7)
    manager.retention.set_tenant("b", 1)
    assert (manager.retention.tenant_blocks(1), manager.retention.tenant_blocks(2)) == (3, 0)


DOCS = (Path(__file__).resolve().parent.parent / "docs" / "retention.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCS, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_of_the_docs_run(number: int) -> None:
    names: dict[str, Any] = {"kvpool": kvpool}
    exec(compile(EXAMPLES[number], f"docs/retention.md, example {number}", "exec"), names)
    managers = [value for value in names.values() if isinstance(value, CacheManager)]
    for manager in managers:
        manager.diagnose.check_invariants()


def test_the_docs_have_examples() -> None:
    assert len(EXAMPLES) >= 4
    assert isinstance(CacheManager(8, retention=True).retention.end_of_life([1]), HintReport)
