"""kvpool.testing needs no other package. No other module imports it, and its example runs."""

from __future__ import annotations

import doctest
import subprocess
import sys

import kvpool
import kvpool.testing
from kvpool.testing import observe_manager, observe_pool


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
    result = doctest.testmod(kvpool.testing)
    assert (result.failed, result.attempted > 0) == (0, True)


def test_observations_see_every_change() -> None:
    pool = kvpool.BlockPool(5, 2)
    seen = [observe_pool(pool)]
    chain = kvpool.BlockHasher(block_size=2).cursor([1, 1]).chain()
    for change in (
        lambda: pool.allocate(2),
        lambda: pool.acquire([1]),
        lambda: pool.register([1], chain),
        lambda: pool.mark_computed([1]),
        lambda: pool.release([1], after_step=1),
        lambda: pool.release([1], after_step=1),
        lambda: pool.complete_step(1),
        lambda: pool.bump_epoch(),
        lambda: pool.resize(6),
    ):
        change()
        if (now := observe_pool(pool)) in seen:
            # The observed state lacks only one thing: that one of a block's two references is fenced.
            assert pool.ref_count(1) == 2
        seen.append(now)
    manager = kvpool.CacheManager(9, 2)
    before = observe_manager(manager, ["a"])
    manager.admit("a", [1, 2, 3])
    admitted = observe_manager(manager, ["a"])
    manager.commit("a", 1)
    assert before != admitted != observe_manager(manager, ["a"])
    assert before[0]["prompt_tokens"] == 0  # type: ignore[index]
    assert admitted[0]["prompt_tokens"] == 3  # type: ignore[index]
