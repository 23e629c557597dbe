"""Tests calls that are refused because of the object's state or of another argument. They raise a typed
error and change nothing.

`test_wrong_arguments.py` tests values that an argument never accepts, and
`rust/kvpool/tests/operations/bad_input.rs` the states of pools and managers. The tests here cover
decisions of the Python bindings: classes of errors, plans, batches, settings.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvpool
from kvpool import _core, errors, events, metrics
from kvpool.testing import observe_manager
from tests.kinds import BUILTINS, LONE, Strange
from tests.rows import World

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Call = Callable[[World], object]
    Error = type[kvpool.KvpoolError]

VALUE, TYPE, BLOCK = errors.InvalidArgumentError, errors.ArgumentTypeError, errors.InvalidBlockError
TWICE, STATE, UNKNOWN = errors.DuplicateRequestError, errors.RequestStateError, errors.UnknownRequestError
FULL, STALE, IN_USE = errors.OutOfBlocksError, errors.StaleStepError, errors.BlocksInUseError


def refused(call: Callable[[], object], error: Error, *words: object) -> kvpool.KvpoolError:
    """Checks that a call raises exactly this error, and that its message contains these words."""
    with pytest.raises(error) as raised:
        call()
    assert raised.type is error
    assert isinstance(raised.value, BUILTINS[error])
    assert [word for word in words if str(word) not in str(raised.value)] == [], str(raised.value)
    return raised.value


#: Calls that are refused in the initial state of the objects of rows.py.
CALLS: list[tuple[Call, Error, tuple[object, ...]]] = [
    # These calls name a request twice, or name a new one that is already known.
    (lambda w: w.manager.admit("run", [1]), TWICE, ('"run"',)),
    (lambda w: w.manager.admit("wait", [1]), TWICE, ('"wait"',)),
    (lambda w: w.manager.append(["run", "run"], [1, 2]), TWICE, ('"run"', "twice")),
    (lambda w: w.manager.commit(["run", "run"], [9, 10]), TWICE, ('"run"',)),
    (lambda w: w.manager.truncate(["run", "run"], [9, 8]), TWICE, ('"run"',)),
    (lambda w: w.manager.append_ragged(["wait", "run", "wait"], [1, 2, 3]), TWICE, ('"wait"',)),
    (lambda w: w.manager.release(["wait", "run", "wait"]), TWICE, ('"wait"',)),
    (lambda w: w.manager.fork(["run"] * 2, ["fork", "wait"]), TWICE, ('"wait"',)),
    (lambda w: w.manager.fork(["run"] * 2, ["fork"] * 2), TWICE, ('"fork"', "twice")),
    (lambda w: w.step.append_ragged(["wait", "run", "wait"], [1, 2, 3]), TWICE, ('"wait"',)),
    # These calls name a request whose state does not allow the call.
    (lambda w: w.manager.commit(["run", "wait"], [10, 0]), STATE, ('"wait"', "preempted")),
    (lambda w: w.manager.truncate(["run", "wait"], [9, 9]), STATE, ('"wait"', "preempted")),
    (lambda w: w.manager.fork(["run", "wait"], ["fork", "other"]), STATE, ('"wait"', "preempted")),
    (lambda w: w.manager.extend("wait", 4), STATE, ('"wait"', "preempted")),
    (lambda w: w.manager.external_done("wait"), STATE, ('"wait"', "preempted")),
    (lambda w: w.step.preempt("wait"), STATE, ('"wait"', "preempted")),
    (lambda w: w.step.resume("run"), STATE, ('"run"', "running")),
    (lambda w: w.manager.append_ragged(["loads"], [1]), STATE, ('"loads"', "loading")),
    (lambda w: w.manager.append(["moves"], [1]), STATE, ('"moves"', "moving")),
    (lambda w: w.manager.external_done("moves"), STATE, ('"moves"', "moving")),
    (lambda w: w.step.append_ragged(["run", "moves"], [1, 2]), STATE, ('"moves"', "moving")),
    # These calls have lists of different lengths, or an empty prompt.
    (lambda w: w.manager.append(["run"], [1, 2]), VALUE, ("1 requests", "2 tokens")),
    (lambda w: w.manager.append([], [1]), VALUE, ("0 requests", "1 tokens")),
    (lambda w: w.manager.commit(["run"], [1, 2]), VALUE, ("1 requests", "2 counts")),
    (lambda w: w.manager.truncate(["run", "new"], [9]), VALUE, ()),
    (lambda w: w.manager.fork(["run", "new"], ["fork"]), VALUE, ()),
    (lambda w: w.manager.admit("other", []), VALUE, ('"other"', "no tokens")),
    (lambda w: w.step.admit("other", w.manager.prepare([])), VALUE, ('"other"', "no tokens")),
    # These calls have a number that does not fit the request's number of tokens.
    (lambda w: w.manager.commit("run", 7), VALUE, ("10 tokens", 7)),
    (lambda w: w.manager.commit("run", 2**40), VALUE, (2**40,)),
    (lambda w: w.manager.commit(["run"], [11]), VALUE, ("10 tokens", 11)),
    (lambda w: w.manager.truncate(["run", "new"], [9, 7]), VALUE, ()),
    (lambda w: w.manager.admit("other", range(10), external_tokens=10), VALUE, ("10 external tokens",)),
    (lambda w: w.step.admit("other", range(10), external_tokens=2**63), VALUE, (f"{2**63} external tokens",)),
    (lambda w: w.step.resume("wait", external_tokens=11), VALUE, ("11 external tokens",)),
    (lambda w: w.manager.external_done("loads", 8), VALUE, ("8 external tokens", "from 0 to 7")),
    (lambda w: w.manager.external_done("loads", 3, failed=[]), VALUE, ("loaded_tokens", "failed")),
    (lambda w: w.manager.admit("other", range(400)), FULL, ()),
    (lambda w: w.step.append("run", [1], lookahead=2**63 - 1), FULL, ()),
    # Swaps.
    (lambda w: w.manager.swaps.complete(99), errors.SwapError, ("swap 99",)),
    (lambda w: w.manager.swaps.begin_out(["run", "run"]), TWICE, ("named twice",)),
    (lambda w: w.manager.swaps.begin_out([]), VALUE, ("at least one request",)),
    (lambda w: w.manager.swaps.begin_in(["run"]), STATE, ("running",)),
    (lambda w: w.hybrid.swaps.begin_out(["run"]), VALUE, ("host_blocks",)),
    # These calls have a ticket that is not open, or both kinds of fence.
    (lambda w: w.manager.end_fence(2**64 - 1), VALUE, (2**64 - 1,)),
    (lambda w: w.step.release("run", until=99), VALUE, (99,)),
    (lambda w: w.manager.truncate([], [], until=99), VALUE, (99,)),
    (lambda w: w.manager.release([], until=99), VALUE, (99,)),
    (lambda w: w.step.preempt("run", after_step=1, until=w.ticket), VALUE, ("after_step", "until")),
    (lambda w: w.manager.truncate("run", 9, after_step=1, until=w.ticket), VALUE, ("after_step", "until")),
    (
        lambda w: w.manager.release(["run"], after_step=1, until=w.ticket),
        VALUE,
        ("after_step", "until"),
    ),
    # These calls have a prompt that another hasher has hashed, or pass extra keys twice.
    (lambda w: w.manager.probe(kvpool.BlockHasher("blake3", 4).cursor([1])), VALUE, ()),
    (lambda w: w.manager.admit("other", kvpool.BlockHasher(block_size=8).cursor([1])), VALUE, ()),
    (lambda w: w.step.admit("other", kvpool.BlockHasher(block_size=4, seed="x").cursor([1])), VALUE, ()),
    (lambda w: w.manager.probe(w.cursor, kvpool.ExtraKeys(salt="s")), VALUE, ("extra keys",)),
    (lambda w: w.step.admit("other", w.cursor, kvpool.ExtraKeys(salt="s")), VALUE, ("extra keys",)),
    # These calls have a wrong hint, range or tenant.
    (
        lambda w: w.manager.retention.retain("run", [(0, None, kvpool.Retention(ttl=1))]),
        VALUE,
        ("ttl", "advance_time"),
    ),
    (lambda w: w.manager.retention.retain("run", [(5, 5, w.retention)]), VALUE, ("range", "5..5")),
    (lambda w: w.manager.admit("other", [1], retention=[(2, 1, w.retention)]), VALUE, ("2..1",)),
    (lambda w: w.pool.retention.retain([0], w.retention), BLOCK, ("block 0",)),
    # These calls cause each error about blocks of a pool once.
    (lambda w: w.pool.release([1, 1]), BLOCK, ("references",)),
    (lambda w: w.pool.acquire([9, 1]), BLOCK, ("block 9", "0 references")),
    (lambda w: w.pool.register([2, 1, 2], w.chain), BLOCK, ("block 2", "already")),
    (lambda w: w.pool.register([1] * 5, w.chain), VALUE, ("5 blocks",)),
    (
        lambda w: w.pool.register([1], kvpool.BlockHasher(block_size=8).cursor(range(8))),
        VALUE,
        ("8 tokens", "4"),
    ),
    (lambda w: w.pool.adopt([5, 1], w.chain), BLOCK, ("active", 1)),
    (lambda w: w.pool.adopt([5, 5], w.chain), BLOCK, ("named twice",)),
    (lambda w: w.pool.disown([2]), BLOCK, ("held by others",)),
    (lambda w: w.pool.disown([3]), BLOCK, ("fenced",)),
    (lambda w: w.pool.register_table([1, 5], w.chain), BLOCK, (5,)),
    (lambda w: w.pool.acquire(kvpool.Match(w.chain, [4, 9])), errors.StaleMatchError, (9, "block 1")),
    (lambda w: w.pool.allocate(50), FULL, (50,)),
    (lambda w: w.pool.reset(), IN_USE, ("2 blocks are active", "1 fenced")),
    (lambda w: w.pool.resize(0), VALUE, ("40", "0")),
    (lambda w: w.manager.reset(), IN_USE, ("active",)),
    (lambda w: w.manager.resize(2**32), VALUE, ("40", 2**32)),
    (lambda w: w.pool.set_payloads([4, 9], [7, 8]), BLOCK, ("block 9", "position 1")),
    (lambda w: w.pool.set_payloads([4], [7, 8]), VALUE, ("2 payloads for 1 blocks",)),
    # The errors of these calls name the arguments of the batch, and not its tokens.
    (lambda w: w.manager.append([None], [1]), TYPE, ("request id",)),  # type: ignore[list-item]
    (lambda w: w.manager.admit("other", [1], out=[0]), TYPE, ("out is",)),  # type: ignore[arg-type]
    (lambda w: w.manager.append_ragged(["nobody"], [1], out=np.zeros(9, np.int32)), UNKNOWN, ("nobody",)),
    (lambda w: w.manager.append_ragged(["run"], [-1], out=np.zeros(9, np.int32)), errors.TokenError, (-1,)),
]


@pytest.mark.parametrize(("call", "error", "words"), CALLS, ids=range(len(CALLS)))
def test_a_call_is_refused_and_changes_nothing(
    call: Call, error: Error, words: tuple[object, ...], tmp_path: Path
) -> None:
    world = World(tmp_path)
    before = world.seen()
    refused(lambda: call(world), error, *words)
    assert world.seen() == before
    world.manager.diagnose.check_invariants()
    world.pool.diagnose.check_invariants()


ROWS: list[tuple[dict[str, Any], tuple[object, ...]]] = [
    ({"tokens": [1, 2, 3]}, ("2 requests", "3 tokens")),
    ({"offsets": [0, 3]}, ("2 requests",)),
    ({"offsets": [0, 1, 2, 3]}, ("2 requests",)),
    ({"offsets": [1, 2, 3]}, ("offset 1", "position 0")),
    ({"offsets": [0, 2, 2]}, ("offset 2", "position 2")),
    ({"offsets": [0, 2, 4]}, ("offset 4", "position 2")),
    ({"offsets": [0, 4, 3]}, ("offset 4", "position 1")),
    ({"offsets": [0, 2**63 - 1, 3]}, ("position 1",)),
    ({"computed": [9]}, ("2 requests", "1 ")),
    ({"computed": [9, 1, 1]}, ("2 requests", "3 ")),
    ({"covered": []}, ("2 requests", "0 ")),
    ({"covered": [1, 1, 1]}, ("2 requests", "3 ")),
    ({"computed": [9, 1], "commit": True}, ("commit", "computed")),
    ({"covered": [9, 1], "lookahead": 1}, ("lookahead", "covered")),
    ({"computed": [7, 0]}, ('"run"', "11 tokens", "8 computed", "to 7")),
    ({"computed": [12, 0]}, ('"run"', "11 tokens", "to 12")),
    ({"computed": [11, 8]}, ('"new"', "7 tokens", "to 8")),
    ({"computed": [8, 2**32]}, ("position 1", 2**32)),
]


@pytest.mark.parametrize(("settings", "words"), ROWS, ids=str)
def test_rows_of_a_step(settings: dict[str, Any], words: tuple[object, ...], tmp_path: Path) -> None:
    world = World(tmp_path)
    before = world.seen()
    tokens = settings.get("tokens", [1, 2, 3] if "offsets" in settings else [5, 6])
    arguments = {name: value for name, value in settings.items() if name != "tokens"}
    calls: list[Callable[..., object]] = [world.manager.append_ragged]
    calls += [] if "computed" in settings or "commit" in settings else [world.step.append_ragged]
    for call in calls:
        refused(functools.partial(call, ["run", "new"], tokens, **arguments), VALUE, *words)
    assert world.seen() == before


SETTINGS: list[tuple[dict[str, Any], Error, tuple[object, ...]]] = [
    ({"watermark": 1.0}, VALUE, ("watermark", "1")),
    ({"watermark": -0.5}, VALUE, ("watermark", "-0.5")),
    ({"key": b"k" * 32}, errors.HashingError, ("sha256", "blake3")),
    ({"algorithm": "vllm-xxhash", "verify": "tokens"}, errors.HashingError, ("vllm-xxhash", "seed")),
    ({"algorithm": "xxh3"}, VALUE, ("xxh3", "verify")),
    ({"algorithm": "vllm-xxhash", "seed": "0"}, VALUE, ("vllm-xxhash", "verify")),
    ({"eviction": "last-accessed", "retention": True}, VALUE, ("last-accessed",)),
    ({"retention": kvpool.RetentionConfig(pin_budget=10)}, VALUE, ("pin_budget", 10, "at most", 9)),
    (
        {"retention": kvpool.RetentionConfig(pin_budget=5, tenants=[kvpool.TenantLimits(1, floor=5)])},
        VALUE,
        ("floors", 10, 9),
    ),
    (
        {"retention": kvpool.RetentionConfig(tenants=[kvpool.TenantLimits(3, floor=4, ceiling=2)])},
        VALUE,
        ("ceiling", 2, "tenant 3", 4),
    ),
    ({"retention": kvpool.RetentionConfig(tenants=[kvpool.TenantLimits(3)] * 2)}, VALUE, ("tenant 3 twice",)),
    (
        {"retention": kvpool.RetentionConfig(tenants=[kvpool.TenantLimits(each) for each in range(201)])},
        VALUE,
        ("tenants", 201, 200),
    ),
]


@pytest.mark.parametrize(("settings", "error", "words"), SETTINGS, ids=range(len(SETTINGS)))
def test_settings_that_exclude_each_other(
    settings: dict[str, Any], error: Error, words: tuple[object, ...]
) -> None:
    refused(lambda: kvpool.CacheManager(10, 4, **settings), error, *words)


OTHERS: list[tuple[Callable[[], object], Error, tuple[object, ...]]] = [
    (lambda: kvpool.Retention(101), VALUE, ("priority", 101, "0 to 100")),
    (lambda: kvpool.Retention(ttl=-1), VALUE, ("ttl", "-1")),
    (lambda: kvpool.Retention(idle=True), VALUE, ("idle", "ttl")),
    (lambda: kvpool.Retention(50, pinned=True), VALUE, ("priority", "pinned")),
    (lambda: kvpool.Retention(pinned=True, demoted=True), VALUE, ("pinned", "demoted")),
    (lambda: kvpool.ExtraKeys(adapter_path="/a"), VALUE, ("adapter_path",)),
    (
        lambda: kvpool.BlockHasher(16),  # type: ignore[arg-type]
        TYPE,
        ("algorithm", "16", "BlockHasher(block_size=16)"),
    ),
    (
        lambda: kvpool.TransferPlan([(5, (1, 1))]),  # type: ignore[list-item]
        TYPE,
        ("5 is no block of a tier",),
    ),
    (lambda: metrics.Metrics().add(LONE, kvpool.BlockPool(9)), VALUE, ("name",)),
    (lambda: metrics.Metrics(labels={"rank": LONE}), VALUE, ("label",)),
    (lambda: events.ZmqSink(topic=LONE), VALUE, ("topic",)),
    (lambda: _core.events.EventPublisher(Strange(), 0), TYPE, ("source",)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "error", "words"), OTHERS, ids=range(len(OTHERS)))
def test_arguments_that_exclude_each_other(
    call: Callable[[], object], error: Error, words: tuple[object, ...]
) -> None:
    refused(call, error, *words)


@pytest.mark.parametrize(
    ("eviction", "instead"),
    [
        ("fifo", "lru"),
        ("lfu", "s3-fifo"),
        ("lfu-da", "arc"),
        ("sieve", "s3-fifo"),
        ("2q", "s3-fifo"),
        ("lrfu", "arc"),
        ("gdsf", "arc"),
    ],
)
def test_a_removed_policy_is_refused_with_the_policy_to_use_instead(eviction: str, instead: str) -> None:
    words = [*kvpool.sizing.POLICIES, f"kvpool no longer has {eviction}, use {instead}"]
    trace = kvpool.traces.Trace.generate(3)
    calls: list[Callable[[Any], object]] = [
        lambda name: kvpool.BlockPool(10, eviction=name),
        lambda name: kvpool.CacheManager(10, eviction=name),
        lambda name: kvpool.TieredPool([10, 10], eviction=name),
        lambda name: kvpool.AdvisorConfig(policies=["lru", name]),
        lambda name: kvpool.sizing.References(trace).run(name, 8),
        lambda name: kvpool.traces.Replay(trace, eviction=name),
        lambda name: _core.vllm.VllmPool(8, True, name),
        lambda name: kvpool.sizing.check_sizing(policies=["lru", name]),
    ]
    for call in calls:
        refused(functools.partial(call, eviction), VALUE, *words)


def test_an_error_of_too_few_blocks_counts_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    error = refused(lambda: world.pool.allocate(50), FULL)
    assert isinstance(error, FULL)
    assert (error.needed, error.available, error.missing, error.fenced) == (50, 36, 14, 1)
    assert not error.can_ever_fit


def test_steps_have_64_bits(tmp_path: Path) -> None:
    world, last = World(tmp_path), 2**64 - 1
    pool, manager = world.pool, world.manager
    pool.release([1], after_step=last)
    assert (pool.complete_step(last - 1), pool.state(1)) == (1, "fenced")
    assert (pool.complete_step(last), pool.state(1)) == (1, "free")
    manager.end_fence(world.ticket)
    manager.release("run", after_step=last)
    assert (manager.complete_step(last - 1), manager.complete_step(last)) == (0, 3)


def test_every_number_of_64_bits_is_a_request_of_its_own() -> None:
    names = [0, -1, 2**31, 2**63 - 1, -(2**63), 2**63, 2**64 - 1]
    manager = kvpool.CacheManager(16, 4, explain=True)
    for tokens, name in enumerate(names, 1):
        manager.admit(name, range(tokens))
        refused(functools.partial(manager.admit, name, [1]), TWICE, name)
    assert [manager.request(name).tokens for name in names] == list(range(1, len(names) + 1))
    manager.append(names, [5] * len(names))
    assert [manager.explain(name).request_id for name in names] == names
    for name in names:
        manager.release(name)
        assert name not in manager


@pytest.mark.parametrize("name", [None, 1.0, b"run", True, ("run",), ["run"], LONE, 2**64], ids=repr)
def test_a_name_that_no_request_has_is_refused_by_in(name: Any, tmp_path: Path) -> None:
    error = TYPE if not isinstance(name, str | int) or name is True else VALUE
    refused(lambda: name in World(tmp_path).manager, error, "request id")


def test_a_preempted_request_takes_the_tokens_that_a_step_samples(tmp_path: Path) -> None:
    manager = World(tmp_path).manager
    assert manager.append(["run", "wait"], [1, 2]) == []
    assert (manager.append("wait", [1]), manager.request("wait").tokens) == ([], 12)


def test_a_plan_refuses_a_request_that_it_already_has(tmp_path: Path) -> None:
    step = World(tmp_path).step
    step.append("run", [1])
    step.admit("other", [1])
    refused(lambda: step.admit("run", [1]), TWICE, '"run"')
    refused(lambda: step.admit("other", [1]), TWICE, '"other"')
    refused(lambda: step.release("run"), TWICE, '"run"')
    refused(lambda: step.append_ragged(["new", "run"], [1, 2]), TWICE, '"run"')
    assert len(step) == 2


def test_plans_that_are_stale_or_over(tmp_path: Path) -> None:
    manager = World(tmp_path).manager
    stale, committed, rolled_back = manager.plan_step(), manager.plan_step(), manager.plan_step()
    rolled_back.release("run")
    rolled_back.rollback()
    rolled_back.rollback()
    with manager.plan_step() as left:
        left.release("run")
    assert "run" in manager
    stale.append("run", [1])
    committed.append("run", [1])
    committed.commit()
    calls: list[Callable[[Any], object]] = [
        lambda step: step.commit(),
        lambda step: step.admit("other", [1]),
        lambda step: step.append("run", [1]),
        lambda step: step.release("run"),
        lambda step: step.preempt("run"),
        lambda step: step.resume("wait"),
        lambda step: step.append_ragged(["run"], [1]),
    ]
    before = observe_manager(manager, ["run", "wait"])
    for call in calls:
        refused(functools.partial(call, stale), STALE, "begin a new one")
        for over in (committed, rolled_back, left):
            assert len(over) == 0
            refused(functools.partial(call, over), STALE, "over")
            refused(lambda over=over: over.available_blocks, STALE, "over")  # type: ignore[misc]
    assert observe_manager(manager, ["run", "wait"]) == before


def test_matches_that_are_stale(tmp_path: Path) -> None:
    world = World(tmp_path)
    pool, chain = world.pool, world.chain
    found = pool.lookup(chain)
    assert (found.block_ids, found.start, len(found)) == ([4], 0, 1)
    assert found == kvpool.Match(chain, [7])
    assert found != pool.lookup(chain, 1)
    assert len({found, kvpool.Match(chain, [7]), pool.lookup(chain, 0, 0)}) == 2
    assert pool.evict(9) == [4]
    refused(lambda: pool.acquire(found), errors.StaleMatchError, "block 4")
    pool.bump_epoch()
    for refresh in (False, True):
        refused(functools.partial(pool.lookup, chain, refresh=refresh), errors.StaleEpochError)
    nothing = kvpool.Match(chain, [])
    assert (nothing.link, len(nothing)) == (None, 0)
    pool.acquire(nothing)


def test_payloads() -> None:
    pool, chain = (
        kvpool.BlockPool(4, 4, payloads=True),
        kvpool.BlockHasher(block_size=4).cursor(range(8)).chain(),
    )
    pool.adopt([1, 2], chain)
    numbers: list[int | bytes] = [0, 2**64 - 1, b"", b"\x00node"]
    for payload in numbers:
        pool.set_payloads([2], [payload])
        pool.disown([2])
        pool.adopt([2], chain, 1)
    refused(lambda: pool.set_payloads([1], [7]), errors.PayloadError, "4 payloads")
    assert pool.take_evicted() == [(2, chain.digests()[1], payload) for payload in numbers]
    pool.set_payloads([1], [7])
    none = kvpool.BlockPool(4, 4)
    refused(lambda: none.set_payloads([], []), errors.PayloadError, "keeps no payloads")
    assert none.take_evicted() == []


def test_time_that_goes_backwards() -> None:
    for made in (kvpool.BlockPool(10, retention=True), kvpool.CacheManager(10, retention=True)):
        made.clock.advance(5.5)
        made.clock.advance(5.5)
        refused(
            lambda made=made: made.clock.advance(5.25),  # type: ignore[misc]
            errors.TimeBackwardsError,
            5.25,
            5.5,
        )
        refused(lambda made=made: made.clock.advance(math.nan), VALUE, "now")  # type: ignore[misc]
        assert made.clock.advance(6) == 0


def test_hints_without_retention() -> None:
    pool, manager = kvpool.BlockPool(10), kvpool.CacheManager(10, 2)
    blocks = pool.allocate(1)
    manager.admit("a", [1, 2, 3])
    normal = kvpool.Retention()
    calls: list[Callable[[], object]] = [
        lambda: pool.retention.retain(blocks, normal),
        lambda: pool.retention.assign_tenant(blocks, 1),
        lambda: pool.clock.advance(1),
        lambda: pool.retention.tenant_blocks(1),
        lambda: manager.admit("b", [1], tenant=1),
        lambda: manager.admit("b", [1], no_cache=True),
        lambda: manager.admit("b", [1], retention=[(0, None, normal)]),
        lambda: manager.retention.retain("a", []),
        lambda: manager.retention.set_tenant("a", 1),
        lambda: manager.retention.end_of_life("a"),
        lambda: manager.retention.retain([1, 2], []),
        lambda: manager.retention.end_of_life([1, 2]),
        lambda: manager.retention.end_session("a"),
        lambda: manager.clock.advance(1),
        lambda: manager.retention.tenant_blocks(1),
        lambda: manager.plan_step().admit("b", [1], no_cache=True),
    ]
    for call in calls:
        refused(call, errors.NoRetentionError, "retention")
    assert (pool.retention.stats(), manager.retention.stats(), len(manager)) == (None, None, 1)


def test_what_loads_or_moves_is_released_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    manager = world.manager
    for name in ("loads", "moves"):
        manager.release(name)
        step = manager.plan_step()
        for call in (manager.release, step.release, manager.preempt, manager.resume, step.preempt):
            refused(functools.partial(call, name), STATE, "releasing")
        refused(functools.partial(manager.admit, name, [1]), TWICE)
    manager.swaps.abort(world.swap)
    assert manager.external_done("loads", failed=[(7, 2**63 - 1), (5, 5), (6, 2)]) == 0
    assert "moves" not in manager
    assert "loads" not in manager


def test_an_id_of_a_caller_that_fails_is_raised() -> None:
    class Failing:
        def __index__(self) -> int:
            raise RuntimeError("no")

    manager = kvpool.CacheManager(64)
    for call in (lambda: manager.admit(Failing(), [1]), lambda: manager.append([Failing()], [1])):
        with pytest.raises(RuntimeError, match="no"):
            call()
    assert len(manager) == 0
