"""The laboratory (`lab`) makes random calls in Rust. The tests here make the same calls in Python,
which must give the same answers.

The laboratory compares its answers with models, and exports its journals as Python tests, which run
here. After every call they also check that the attributes of a pool or manager agree with each other.
"""

from __future__ import annotations

import os
import re
import subprocess
import types
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings

import kvpool

ROOT: Final = Path(__file__).parents[1]
JOURNALS: Final = sorted((ROOT / "lab/tests/journals").glob("*.journal"))
TARGET: Final = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
#: Number of calls on each kind of object: 4,000 in a normal run.
CALLS: Final = 80 * settings().max_examples
#: The call that checks the invariants after every operation in the exported tests. The tests here replace it
#: by more checks.
LOOK: Final = ".check_invariants()"


def look_at_pool(pool: kvpool.BlockPool) -> None:
    """Checks that what a pool reports about its blocks agrees with its counts."""
    pool.diagnose.check_invariants()
    blocks = range(1, pool.num_blocks)
    states, held = pool.state(blocks), pool.ref_count(blocks)
    assert states == [pool.state(block) for block in blocks]
    assert held == [pool.ref_count(block) for block in blocks]
    of = {
        state: [block for block, found in zip(blocks, states, strict=True) if found == state]
        for state in set(states)
    }
    assert sorted(pool.diagnose.free_order()) == of.get("free", [])
    assert sorted(pool.diagnose.eviction_order()) == of.get("cached-free", [])
    stats = pool.stats()
    counts = [len(of.get(state, [])) for state in ("free", "cached-free", "active", "fenced")]
    assert [stats.free, stats.cached_free, stats.active, stats.fenced] == counts
    assert sum(counts) == stats.usable == len(blocks)
    assert pool.num_available == stats.available == counts[0] + counts[1]
    registered = [block for block in blocks if pool.diagnose.is_registered(block)]
    assert stats.registered == len(registered)
    assert stats.registered_active == sum(held[block - 1] > 0 for block in registered)
    for block in blocks:
        digest = pool.diagnose.hash_of(block)
        assert (digest is not None) == pool.diagnose.is_registered(block)
        assert digest is None or block in pool.diagnose.copies(digest)
        assert pool.diagnose.num_holders(block) <= held[block - 1]
        assert (states[block - 1] == "fenced") == (pool.diagnose.num_holders(block) == 0 < held[block - 1])


def look_at_manager(manager: kvpool.CacheManager) -> None:
    """Checks that what a manager reports about its blocks and requests agrees with its counts."""
    manager.diagnose.check_invariants()
    stats = manager.stats()
    pool, host = stats.pool, manager.swaps.host_stats()
    assert (len(manager.diagnose.free_order()), len(manager.diagnose.eviction_order())) == (
        pool.free,
        pool.cached_free,
    )
    assert pool.free + pool.cached_free == manager.num_available
    assert pool.free + pool.cached_free + pool.active + pool.fenced == pool.usable == manager.num_blocks - 1
    assert host is None or host.free + host.cached_free + host.active + host.fenced == host.usable
    states = (stats.running, stats.preempted, stats.swapped, stats.moving, stats.loading, stats.releasing)
    assert sum(states) == len(manager)
    assert stats.hit_tokens + stats.external_tokens + stats.computed_tokens == stats.prompt_tokens


def run(name: str, text: str) -> int:
    """Runs an exported test. Returns the number of calls that it makes."""
    subject = "manager" if "manager = " in text else "pool"
    module = types.ModuleType("exported")
    vars(module)["look"] = look_at_manager if subject == "manager" else look_at_pool
    exec(compile(text.replace(subject + LOOK, f"look({subject})"), name, "exec"), vars(module))
    module.test_journal()
    return len(re.findall(r"^    # \d+: ", text, re.MULTILINE))


def exported(path: Path) -> str:
    """Returns a journal as the text of a Python test, or "" if Python lacks one of its calls."""
    try:
        return kvpool.journal.export_journal(path, "python")
    except kvpool.errors.JournalError as error:
        if "has no call in Python" not in str(error):
            raise
        return ""


def test_journals_of_the_laboratory_are_answered_as_in_rust() -> None:
    texts = {str(path): exported(path) for path in JOURNALS}
    assert list(texts.values()).count("") < 20 < len(texts)
    assert sum(run(name, text) for name, text in texts.items() if text) > 1500


@pytest.mark.longer
@pytest.mark.parametrize("subject", ["pool", "manager", "vllm"])
def test_random_calls_are_answered_as_in_rust(
    request: pytest.FixtureRequest, tmp_path: Path, subject: str
) -> None:
    built = sorted(TARGET.glob("*/kvpool-lab"), key=lambda path: path.stat().st_mtime)
    if not built:
        pytest.skip(f"no kvpool-lab in {TARGET}: run make build-rust-tests")
    seed: Any = request.config.getoption("--hypothesis-seed")
    seed = seed if seed and seed.isdecimal() else int.from_bytes(os.urandom(4))
    options = ["--calls", str(CALLS), "--seed", str(seed), "--python", str(tmp_path)]
    done = subprocess.run([str(built[-1]), subject, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    calls = sum(run(f"seed {seed}: {path.name}", path.read_text()) for path in sorted(tmp_path.iterdir()))
    # Python lacks some calls of vLLM's pool. An export ends at the first call that Python lacks.
    assert calls > CALLS // (10 if subject == "vllm" else 3)
