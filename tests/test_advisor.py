"""Tests the advisor in Python. Models that are written from its definitions must give the same advice.
Also tests its settings and docs.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import kvpool
from kvpool import AdvisorConfig, BlockPool, CacheManager
from kvpool.errors import InvalidArgumentError, OutOfBlocksError
from kvpool.sizing import References

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvpool._core.advisor import AdvicePoint
    from kvpool._core.hashing import HashChain

#: All policies that a ghost cache, a simulation that stores only keys, supports.
POLICIES = [name for name in kvpool.policies.eviction_policies() if name != "last-accessed"]
#: Sizes at which the advisor estimates hit rates, in eighths of the pool's size.
EIGHTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
HASHER = kvpool.BlockHasher(block_size=1)


def prefix_hits(cached: Sequence[tuple[int, ...]], prompt: tuple[int, ...]) -> int:
    """Returns the number of a prompt's blocks that are in the cache. A block is identified by the whole
    prefix up to its end.
    """
    return next((at for at in range(len(prompt)) if prompt[: at + 1] not in cached), len(prompt))


def lru_hits(prompts: Iterable[tuple[int, ...]], capacity: int) -> list[int]:
    """Returns the hits of each prompt in an LRU cache of prefixes. The last block of a prompt is
    evicted first. The model is a list with the least recently used block first.
    """
    cached: list[tuple[int, ...]] = []
    hits = []
    for prompt in prompts:
        hits.append(prefix_hits(cached, prompt))
        for end in range(len(prompt), 0, -1):
            if prompt[:end] in cached:
                cached.remove(prompt[:end])
            elif len(cached) == capacity:
                cached.pop(0)
            cached.append(prompt[:end])
    return hits


def windowed(counts: Iterable[tuple[int, tuple[float, ...]]], window: int) -> tuple[float, ...]:
    """Adds up numbers of the lookups, such as hits. Whenever ``window`` references have passed, halves
    the sums.
    """
    sums: tuple[float, ...] | None = None
    passed = 0
    for references, adds in counts:
        if passed >= window:
            sums, passed = None if sums is None else tuple(one / 2 for one in sums), 0
        passed += references
        sums = adds if sums is None else tuple(one + more for one, more in zip(sums, adds, strict=True))
    return sums or ()


def chain_of(prompt: tuple[int, ...]) -> HashChain:
    return HASHER.cursor(prompt).chain()


def serve(pool: BlockPool, prompt: tuple[int, ...], tenant: int | None = None) -> int:
    """Runs a request from its lookup to its release. Returns the number of blocks that it found in the
    cache.
    """
    chain = chain_of(prompt)
    table = pool.match_and_acquire(chain, tenant=tenant)
    hits = len(table)
    new = pool.allocate(min(len(prompt) - hits, pool.num_available))
    pool.register(new, chain, hits)
    pool.mark_computed(new)
    pool.release(table + new, tail_first=True)
    return hits


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[int, tuple[int, ...]]]:
    """Draws requests of a few tenants with common prefixes. Tokens are 0, 1 or 2."""
    prompts = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
    known = draw(st.lists(prompts, min_size=1, max_size=6))
    return draw(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(known)), min_size=1, max_size=40))


# In an earlier version, S3-FIFO's ghost cache evicted a block although the cache was not full. This
# changed the recency of the request's blocks.
AGED = [(0, prompt) for prompt in [(0,) * 4, (0,) * 4, (2,), (0,) * 4, (2,), (1,), (0,) * 4]]


def rates(curve: Sequence[AdvicePoint]) -> list[float]:
    return [point["block_hit_rate"] for point in curve]


@given(streams(), st.integers(1, 8), st.sampled_from([None, 3, 20, 10**6]))
@example(AGED, 3, None)
@settings(deadline=None)
def test_a_sample_of_everything_is_what_models_say(
    stream: list[tuple[int, tuple[int, ...]]], capacity: int, window: int | None
) -> None:
    """Compares three estimates with models: the curves with LRU in a list, the ghost caches with a pool
    that runs the policy, and the tenants with their own requests. The sample contains all lookups.
    """
    config = AdvisorConfig(policies=POLICIES, window=window)
    pool = BlockPool(capacity + 1, 1, advisor=config)
    own = [serve(pool, prompt, tenant) for tenant, prompt in stream]
    advice = pool.diagnose.advice()
    assert advice is not None
    pool.diagnose.check_invariants()
    prompts = [prompt for _, prompt in stream]
    asked = [len(prompt) for prompt in prompts]
    passing = advice["window_references"]
    assert passing == (window or 1 << 16)

    def rate(hits: Sequence[int], tenant: int | None = None) -> float:
        mine = [float(tenant in {None, whose}) for whose, _ in stream]
        adds = [(one, (one * of, hit * of)) for one, hit, of in zip(asked, hits, mine, strict=True)]
        references, found = windowed(adds, passing)
        return found / references

    sizes = [max(capacity * eighths // 8, 1) for eighths in EIGHTHS]
    assert (advice["capacity_blocks"], advice["sample_rate"]) == (capacity, 1.0)
    assert advice["references_ever"] == sum(asked)
    (references,) = windowed([(one, (float(one),)) for one in asked], passing)
    assert abs(advice["references"] - references) <= 0.5
    assert advice["sampled_references"] == advice["references"]
    assert advice["block_hit_rate"] == pytest.approx(rate(own))
    assert [point["blocks"] for point in advice["curve"]] == sizes
    by_size = {size: lru_hits(prompts, size) for size in sizes}
    assert rates(advice["curve"]) == pytest.approx([rate(by_size[size]) for size in sizes])

    assert [ghost["name"] for ghost in advice["policies"]] == POLICIES
    for ghost in advice["policies"]:
        other = BlockPool(capacity + 1, 1, eviction=ghost["name"])
        hits = [serve(other, prompt) for prompt in prompts]
        assert ghost["block_hit_rate"] == pytest.approx(rate(hits)), ghost["name"]
        assert ghost["references"] == advice["references"]

    tenants = sorted({tenant for tenant, _ in stream})
    assert [one["tenant"] for one in advice["tenants"]] == tenants
    for one in advice["tenants"]:
        tenant = one["tenant"]
        assert one["block_hit_rate"] == pytest.approx(rate(own, tenant))
        assert rates(one["curve"]) == pytest.approx([rate(by_size[size], tenant) for size in sizes])
        assert [point["blocks"] for point in one["curve_alone"]] == sizes[:5]
        mine = [prompt if whose == tenant else () for whose, prompt in stream]
        alone = [rate(lru_hits(mine, size), tenant) for size in sizes[:5]]
        assert rates(one["curve_alone"]) == pytest.approx(alone)
    assert advice["untracked_references"] == 0
    assert json.loads(json.dumps(advice)) == advice


def test_one_in_so_many_is_near() -> None:
    """Compares the estimate from a sample of the blocks with the exact curve of the same lookups."""
    trace = kvpool.traces.Trace.generate(1500, seed=3)
    exact = References(trace, blocks="full").lru()
    prompts = [json.loads(line) for line in trace.to_jsonl().splitlines()]
    pool = BlockPool(2001, 1, advisor=AdvisorConfig(sample_every=4, policies=["lru"], window=10**9))
    for prompt in prompts:
        full = prompt["hash_ids"][: prompt["input_length"] // 512]
        if full:
            serve(pool, tuple(full))
    advice = pool.diagnose.advice()
    assert advice is not None
    assert advice["sample_rate"] == 0.25
    assert 0 < advice["sampled_references"] < advice["references"] == exact.references
    for point in advice["curve"]:
        assert point["block_hit_rate"] == pytest.approx(exact.at(point["blocks"])[0], abs=0.04)
    assert advice["policies"][0]["block_hit_rate"] == pytest.approx(advice["block_hit_rate"], abs=0.04)


def test_a_refused_request_counts_once_it_is_admitted() -> None:
    manager = CacheManager(11, 1, advisor=True)

    def seen() -> int:
        advice = manager.diagnose.advice()
        assert advice is not None
        return advice["references_ever"]

    manager.admit("a", range(6))
    assert seen() == 5  # the last token is always computed, so it is not looked up
    prompt = manager.prepare(range(100, 106))
    for _ in range(10):
        with pytest.raises(OutOfBlocksError):
            manager.admit("b", prompt)
        manager.probe(prompt)
        step = manager.plan_step()
        with pytest.raises(OutOfBlocksError):
            step.admit("b", prompt)
        step.rollback()
    assert seen() == 5
    manager.release("a")
    manager.admit("b", prompt)
    assert seen() == 10
    manager.preempt("b")
    manager.resume("b")  # looks up again, and counts again, as in the pool's own counters
    stats = manager.stats().pool
    assert seen() == stats.hits + stats.misses == 15


def test_a_manager_counts_requests_for_their_tenants() -> None:
    manager = CacheManager(101, 1, advisor=True, retention=True)
    for name, tenant, tokens in (("a", 4, 11), ("b", 9, 8), ("c", None, 3), ("d", 4, 11)):
        manager.admit(name, range(tokens), tenant=tenant)
        manager.commit(name, tokens)
    advice = manager.diagnose.advice()
    assert advice is not None
    counted = [(one["tenant"], one["references"], one["block_hit_rate"]) for one in advice["tenants"]]
    assert counted == [(4, 20, 0.5), (9, 7, 1.0)]
    assert advice["references"] == 29


def test_tenants_beyond_the_most_are_untracked() -> None:
    pool = BlockPool(9, 1, advisor=AdvisorConfig(max_tenants=1))
    for tenant in (5, 6, 5, 7):
        serve(pool, (1, 2, 3), tenant)
    advice = pool.diagnose.advice()
    assert advice is not None
    assert [(one["tenant"], one["references"]) for one in advice["tenants"]] == [(5, 6)]
    assert advice["untracked_references"] == 6


@pytest.mark.parametrize("empty", [CacheManager.reset, CacheManager.bump_epoch])
def test_what_empties_the_pool_empties_the_estimators(empty: Callable[[CacheManager], object]) -> None:
    manager = CacheManager(9, 1, advisor=True)
    for turn in range(3):
        if turn == 2:
            empty(manager)
        manager.admit(turn, (1, 2, 3, 4))
        manager.commit(turn, 4)
        manager.release(turn)
    advice = manager.diagnose.advice()
    assert advice is not None
    third = pytest.approx(1 / 3)
    assert (
        advice["block_hit_rate"]
        == advice["policies"][0]["block_hit_rate"]
        == rates(advice["curve"])[-1]
        == third
    )


def test_a_resize_makes_the_curve_of_the_new_size() -> None:
    pool = BlockPool(9, 1, advisor=True)
    serve(pool, (1, 2, 3))
    pool.resize(17)
    advice = pool.diagnose.advice()
    assert advice is not None
    assert (advice["capacity_blocks"], advice["curve"][-1]["blocks"]) == (16, 128)
    assert [ghost["references"] for ghost in advice["policies"]] == [0] * len(POLICIES)


@pytest.mark.parametrize("num_blocks", [2, 1000, 1 << 20])
def test_memory_is_bounded_and_stated(num_blocks: int) -> None:
    pool = BlockPool(num_blocks, 1, advisor=True)
    before, after = pool.diagnose.advice(), None
    for turn in range(300):
        serve(pool, tuple(range(turn, turn + turn % 40 + 1)), tenant=turn)
        after = pool.diagnose.advice()
    assert before is not None
    assert after is not None
    assert before["memory_bytes"] == after["memory_bytes"] <= 4 * 2**20


def test_memory_follows_the_sample() -> None:
    def bytes_of(**settings_: Any) -> int:
        advice = BlockPool(1 << 16, advisor=AdvisorConfig(**settings_)).diagnose.advice()
        assert advice is not None
        return advice["memory_bytes"]

    small, large = (
        bytes_of(max_sampled_blocks=most, max_tenants=0, policies=[]) for most in (1 << 12, 1 << 16)
    )
    # The page docs/advisor.md states this number of bytes per sampled block, so the two must be equal.
    assert (large - small) / ((1 << 16) - (1 << 12)) == pytest.approx(54, abs=1)
    assert bytes_of(policies=[]) < bytes_of(policies=["lru"]) < bytes_of()
    assert bytes_of(max_tenants=0) < bytes_of(max_tenants=1) < bytes_of(max_tenants=100)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"max_sampled_blocks": 0}, "max_sampled_blocks is 0: must be 64 to 16777216"),
        ({"max_sampled_blocks": 2**24 + 1}, "max_sampled_blocks is 16777217: must be 64 to 16777216"),
        ({"max_sampled_blocks": -1}, "max_sampled_blocks is -1"),
        ({"sample_every": 0}, "sample_every is 0: must be 1 or more"),
        ({"sample_every": 2**32}, "sample_every is 4294967296: must be at most 4294967295"),
        ({"max_tenants": 1025}, "max_tenants is 1025: must be at most 1024"),
        ({"window": 0}, "window is 0: must be 1 or more"),
        ({"seed": -1}, "seed is -1"),
        ({"policies": ["mru"]}, rf"mru.*{', '.join(kvpool.policies.eviction_policies())}"),
        ({"policies": ["lru", "arc", "lru"]}, "policies is lru twice: must be each policy once"),
        (
            {"policies": ["last-accessed"]},
            "policies is last-accessed: must be policies that need no access times",
        ),
    ],
)
def test_a_setting_out_of_range_is_named(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        AdvisorConfig(**settings_)


def test_what_is_no_setting_is_a_type_error() -> None:
    for wrong in (1, "lru", {"seed": 1}):
        with pytest.raises(TypeError, match=r"advisor is a .*: must be an AdvisorConfig, a bool, or None"):
            BlockPool(8, advisor=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="policies is a str: must be a sequence of names"):
        AdvisorConfig(policies="lru")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        AdvisorConfig(policies=[1])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="tenant is -1"):
        BlockPool(8, 1).match_and_acquire(chain_of((1,)), tenant=-1)


def test_settings_are_values() -> None:
    config = AdvisorConfig(
        max_sampled_blocks=128, sample_every=3, policies=("arc",), max_tenants=2, window=9, seed=7
    )
    for one in (config, AdvisorConfig()):
        assert eval(repr(one), vars(kvpool)) == one
    assert config != AdvisorConfig()
    assert (config.max_sampled_blocks, config.sample_every, config.policies) == (128, 3, ["arc"])
    assert (config.max_tenants, config.window, config.seed) == (2, 9, 7)
    assert AdvisorConfig().policies == AdvisorConfig(policies=None).policies == POLICIES
    assert AdvisorConfig(policies=iter(POLICIES)) == AdvisorConfig()
    with pytest.raises(AttributeError):
        config.seed = 1  # type: ignore[misc]


def test_true_is_the_default_and_without_one_there_is_no_advice() -> None:
    for advisor in (True, AdvisorConfig()):
        assert (
            BlockPool(8, advisor=advisor).diagnose.advice()
            == BlockPool(8, advisor=AdvisorConfig()).diagnose.advice()
            is not None
        )
        assert CacheManager(8, advisor=advisor).diagnose.advice() is not None
    for none in (None, False):
        assert BlockPool(8, advisor=none).diagnose.advice() is None
        assert CacheManager(8, advisor=none).diagnose.advice() is None
    assert serve(BlockPool(8, 1), (1, 2), tenant=3) == 0  # without an advisor, the tenant has no effect


DOCS = (Path(__file__).resolve().parent.parent / "docs" / "advisor.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCS, flags=re.DOTALL)


def test_examples_of_the_docs_run_and_print_what_they_say() -> None:
    """Runs the page's examples one after another with the same variables. A text block after an example
    is its expected output.
    """
    names: dict[str, Any] = {}
    shown = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", DOCS, flags=re.DOTALL)
    for number, (code, expected) in enumerate(shown):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"docs/advisor.md, example {number}", "exec"), names)
        if expected:
            assert printed.getvalue() == expected, number
    assert len(shown) == len(EXAMPLES) >= 2
    assert any(expected for _, expected in shown)
