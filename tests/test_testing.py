"""kvpool.testing: needs nothing, is imported by nobody, and its example runs."""

from __future__ import annotations

import copy
import doctest
import functools
import subprocess
import sys

import pytest

import kvpool
import kvpool.testing
from kvpool.testing import ReferenceManager, ReferencePool, observe_manager, observe_pool, stats_dict


def modules_after(code: str) -> set[str]:
    command = [
        sys.executable,
        "-c",
        f"import sys; before = set(sys.modules); {code}; print(*set(sys.modules) - before)",
    ]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_importing_kvpool_does_not_import_it() -> None:
    assert not {name for name in modules_after("import kvpool") if name.startswith("kvpool.testing")}


def test_it_needs_no_other_package() -> None:
    found = {name.partition(".")[0] for name in modules_after("import kvpool.testing")}
    assert "kvpool" in found
    assert found - {"kvpool"} <= sys.stdlib_module_names


def test_its_examples_run() -> None:
    for module in (kvpool.testing, kvpool.testing.reference):
        result = doctest.testmod(module)
        assert result.failed == 0
    assert doctest.testmod(kvpool.testing).attempted > 0


def test_a_refused_call_leaves_the_model_as_it_was() -> None:
    pool = ReferencePool(5, 2)
    pool.release_after(pool.allocate(3)[:1], 4)
    before = copy.deepcopy(vars(pool))
    for ids in ([2, 1], [2, 2], [2, 9], [0]):
        for call in (pool.release, functools.partial(pool.release_after, step=5)):
            with pytest.raises(kvpool.errors.InvalidBlockError):
                call(ids)
            assert vars(pool) == before
    with pytest.raises(kvpool.errors.InvalidBlockError):
        pool.register([2, 3, 2], None, [1] * 6)
    assert vars(pool) == before
    manager = ReferenceManager(ReferencePool(4, 2))
    manager.admit("a", [1, 1, 2, 2, 3])
    with pytest.raises(kvpool.errors.OutOfBlocksError):
        manager.admit("b", [1, 1])
    assert list(manager.requests) == ["a"]


def test_the_watermark_grows_with_the_pool() -> None:
    manager = kvpool.CacheManager(num_blocks=4, block_size=2, watermark=0.2)
    model = ReferenceManager(ReferencePool(4, 2), watermark=0.2)
    assert model.watermark_blocks == 0
    manager.resize(6)
    model.pool.resize(6)
    assert model.watermark_blocks == 1
    manager.admit("a", [1, 1, 2, 2, 3])
    model.admit("a", [1, 1, 2, 2, 3])
    for each in (manager, model):
        with pytest.raises(kvpool.errors.OutOfBlocksError):
            each.admit("b", [3, 3, 4])


def test_observations_see_every_change() -> None:
    pool = kvpool.BlockPool(5, 2)
    seen = [observe_pool(pool)]
    chain = kvpool.BlockHasher(block_size=2).cursor([1, 1]).chain()
    for change in (
        lambda: pool.allocate(2),
        lambda: pool.acquire([1]),
        lambda: pool.register([1], chain),
        lambda: pool.mark_computed([1]),
        lambda: pool.release_after([1], 1),
        lambda: pool.release_after([1], 1),
        lambda: pool.complete_step(1),
        lambda: pool.bump_epoch(),
        lambda: pool.resize(6),
    ):
        change()
        if (now := observe_pool(pool)) in seen:
            # A fence on one of two references is the only thing that cannot be seen.
            assert pool.ref_count(1) == 2
        seen.append(now)
    manager = kvpool.CacheManager(9, 2)
    before = observe_manager(manager, ["a"])
    manager.admit("a", [1, 2, 3])
    admitted = observe_manager(manager, ["a"])
    manager.commit("a", 1)
    assert before != admitted != observe_manager(manager, ["a"])
    assert stats_dict(manager.stats())["prompt_tokens"] == 3
    assert "free" in stats_dict(pool.stats())
