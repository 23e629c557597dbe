"""Exported tests run: journals of random runs of every kind of pool, every call among them, exported and executed.

What is planted: answers that differ, a pool that is smaller than the journal's, and more operations than a test has.
"""

from __future__ import annotations

import array
import random
import re
import types
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvpool
from kvpool._core.vllm import VllmPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvpool._core import HashAlgorithm, VerifyMode

    Run = Callable[[str, random.Random], object]

#: Ids that a literal has to escape, and that tell each other apart by what follows an escape.
IDS: list[int | str] = [
    0,
    -(2**63),
    2**64 - 1,
    "0",
    "\x00",
    "\x001",
    "a\u0301",
    "\u202ex",
    '"\\',
    "\N{GRINNING FACE}",
    "\x1b]0;x\x07",
]
TOKENS = [[0] * 3, [1] * 9, [0, 1] * 4, [1, 1, 0, 1, 0, 1, 0], [2]]

MANAGER_CALLS = [
    "abort_swap",
    "admit",
    "advance_time",
    "append",
    "append_tokens",
    "begin_swap_in",
    "begin_swap_out",
    "bump_epoch",
    "commit",
    "commit_batch",
    "commit_step",
    "complete_step",
    "complete_swap",
    "drop_cached",
    "end_fence",
    "end_session",
    "evict",
    "extend",
    "extend_encoder",
    "external_done",
    "fence",
    "fork",
    "fork_batch",
    "preempt",
    "release",
    "release_batch",
    "release_batch_with",
    "reset",
    "resize",
    "resume",
    "retain",
    "retain_prefix",
    "set_tenant",
    "take_events",
    "take_plan",
    "trim_window",
    "truncate",
    "truncate_batch",
]
POOL_CALLS = [
    "acquire",
    "acquire_match",
    "acquire_registered",
    "adopt",
    "advance_time",
    "allocate",
    "assign_tenant",
    "bump_epoch",
    "complete_step",
    "disown",
    "drop_cached",
    "evict",
    "lookup_refreshing",
    "mark_accessed",
    "mark_computed",
    "match_and_acquire",
    "register_link",
    "register_table",
    "register",
    "release",
    "release_after",
    "release_table",
    "reset",
    "resize",
    "retain",
    "signal",
    "take_events",
]
VLLM_CALLS = [
    "allocate",
    "cache_full",
    "chain_group",
    "claim",
    "clear_index",
    "evict",
    "free",
    "insert_hash",
    "insert_in_index",
    "move_hashes",
    "pop_from_queue",
    "push_to_queue",
    "remove_from_index",
    "remove_from_queue",
    "remove_hashes",
    "reset",
    "reset_hash",
    "set_hash",
    "set_ref_count",
    "touch",
    "unpin",
]


def ring() -> kvpool.journal.Journal:
    return kvpool.journal.Journal(ring_bytes=1 << 24, digest_every=5)


def retention(r: random.Random) -> kvpool.Retention:
    ttl: dict[str, Any] = r.choice([{}, {"ttl": 2.5}, {"ttl": 3.0, "idle": True}, {"ttl": 1.0, "then": "demote"}])
    keep: dict[str, Any] = r.choice([{}, {"priority": 80}, {"pinned": True}, {"demoted": True}])
    return kvpool.Retention(**keep, **ttl)


def ranges(r: random.Random) -> list[tuple[int, int | None, kvpool.Retention]]:
    return [(r.randrange(4), r.choice([None, 9]), retention(r))]


class Manager:
    """A manager, and calls of it."""

    def __init__(self, r: random.Random) -> None:
        algorithms: list[HashAlgorithm] = ["sha256", "blake3", "vllm-sha256", "xxh3"]
        algorithm = r.choice(algorithms)
        modes: list[VerifyMode] = ["none", "fingerprint", "tokens"]
        verify = r.choice(modes[1:] if algorithm == "xxh3" else modes)
        limits = kvpool.TenantLimits(1, floor=1, ceiling=4)
        block_size = r.choice([1, 2, 3])
        self.groups = None
        if verify == "none" and r.random() < 0.6:
            kinds = [
                kvpool.GroupSpec("full", block_size),
                kvpool.GroupSpec("sliding", block_size, window=4, keep=r.choice(["all", "junctions", 4])),
                kvpool.GroupSpec("chunked", 2 * block_size, chunk=5),
                kvpool.GroupSpec("state", block_size, margin=r.randrange(2)),
                kvpool.GroupSpec("cross", block_size),
                kvpool.GroupSpec("sliding", block_size, window=3, sink=2),
                kvpool.GroupSpec(r.choice(["full", "state"]), 2, keep="none"),
            ]
            self.groups = r.sample(kinds, r.randrange(1, 4))
        self.pool = kvpool.CacheManager(
            r.choice([12, 30]),
            block_size,
            groups=self.groups,
            algorithm=algorithm,
            verify=verify,
            seed="7" if algorithm.startswith("vllm") else None,
            duplicates=r.choice(["keep", "drop-on-release"]),
            eviction=r.choice(["lru", "s3-fifo", "arc"]),
            retention=r.choice([None, kvpool.RetentionConfig(pin_budget=2, tenants=[limits])]),
            event_capacity=r.choice([0, 50]),
            watermark=r.choice([0.0, 0.1]),
            host_blocks=r.choice([0, 20]),
            journal=ring(),
        )  # fmt: skip
        self.image = self.pool.journal_image
        self.old: kvpool.hashing.HashCursor | None = None
        self.stale: list[kvpool.Step] = []
        self.swaps: list[int] = []

    def prompt(self, r: random.Random) -> Any:
        tokens, extra = r.choice(TOKENS), kvpool.ExtraKeys(salt="s") if r.random() < 0.2 else None
        if r.random() < 0.1:
            return kvpool.BlockHasher(block_size=self.pool.block_size, seed="another").cursor(tokens)
        if self.old is None or r.random() < 0.1:
            self.old = self.pool.prepare(tokens, extra)
        return r.choice([self.old, self.pool.prepare(tokens, extra), self.pool.prepare(tokens, extra)])

    def hints(self, r: random.Random) -> dict[str, Any]:
        if r.random() < 0.6:
            return {}
        return r.choice([{"tenant": 1}, {"no_cache": True}, {"retention": ranges(r)}])

    def plan(self, r: random.Random) -> None:
        step = self.pool.plan_step()
        if r.random() < 0.3:
            self.stale.append(step)
            return
        for request in r.sample(IDS, 3):
            name = r.choice(["admit", "resume", "append", "preempt", "release"])
            after: dict[str, Any] = r.choice([{}, {"after_step": 2}])
            match name:
                case "admit":
                    attempt(step.admit, request, self.pool.prepare(r.choice(TOKENS)), **self.hints(r))
                case "append":
                    attempt(step.append_ragged, [request], r.choice(TOKENS)[:3], [0, 3], lookahead=r.randrange(3))
                case "resume":
                    attempt(step.resume, request, allocate_tokens=r.choice([None, 2]), reuse=r.random() < 0.8)
                case _:
                    attempt(getattr(step, name), request, **after)
        step.commit()

    def ragged(self, some: list[int | str], r: random.Random) -> None:
        offsets = [0]
        for _ in some:
            offsets.append(offsets[-1] + r.randrange(4))
        tokens = [r.randrange(2) for _ in range(offsets[-1])]
        counts = [r.randrange(12) for _ in some]
        computed: dict[str, Any] = r.choice([{}, {"commit": True}, {"computed": counts}])
        covered: dict[str, Any] = r.choice([{}, {"lookahead": 3}, {"covered": counts}])
        columns = 4 if self.groups else 3
        out: dict[str, Any] = r.choice([{}, {"out": array.array("i", bytes(4 * columns * r.randrange(5)))}])
        self.pool.append_ragged(some, tokens, offsets, **computed, **covered, **out)

    def call(self, name: str, r: random.Random) -> None:
        pool, request = self.pool, r.choice(IDS[:6])
        after: dict[str, Any] = r.choice([{}, {}, {"after_step": r.randrange(3)}, {"until": r.randrange(4)}])
        some = r.sample(IDS[:6], r.randrange(3))
        parts: list[dict[str, Any]] = [
            {},
            {"allocate_tokens": r.randrange(5)},
            {"external_tokens": r.randrange(9)},
            {"reuse": False},
        ]
        part: dict[str, Any] = r.choice(parts)
        match name:
            case "admit":
                pool.admit(request, self.prompt(r), **self.hints(r), **part)
            case "append" if r.random() < 0.5:
                self.ragged(some, r)
            case "append":
                pool.append(some, [r.randrange(2) for _ in some], commit=r.random() < 0.5)
            case "append_tokens":
                pool.append_tokens(request, r.choice(TOKENS), lookahead=r.randrange(3))
            case "commit":
                pool.commit(request, pool.request(request).tokens if request in pool else 3)
            case "commit_batch":
                pool.commit_batch(some, [pool.request(one).tokens if one in pool else 1 for one in some])
            case "commit_step":
                if self.stale and r.random() < 0.5:
                    self.stale.pop().commit()
                else:
                    self.plan(r)
            case "fork":
                pool.fork(request, r.choice(IDS))
            case "fork_batch":
                pool.fork_batch(some, [r.choice(IDS) for _ in some])
            case "release_batch":
                pool.release_batch(some, **after)
            case "release_batch_with":
                reasons = [r.choice([None, "stop", "tool_calls", "length", "abort"]) for _ in some]
                tokens = [r.choice([None, r.randrange(900)]) for _ in some]
                pool.release_batch(some, **after, finish_reasons=reasons, output_tokens=tokens)
            case "truncate":
                pool.truncate(request, r.randrange(9), **after)
            case "truncate_batch":
                pool.truncate_batch(some, [r.randrange(9) for _ in some], **after)
            case "trim_window" | "extend" | "extend_encoder":
                getattr(pool, name)(request, r.randrange(9))
            case "external_done":
                loading = [one for one in IDS[:6] if one in pool and pool.request(one).state == "loading"]
                loaded: dict[str, Any] = r.choice([{}, {"loaded_tokens": r.randrange(9)}, {"failed": [(3, 5)]}])
                pool.external_done((loading or [request])[0], **loaded)
            case "end_fence":
                pool.end_fence(r.randrange(4))
            case "begin_swap_in" | "begin_swap_out":
                state = "swapped" if name == "begin_swap_in" else "running"
                there = [one for one in IDS[:6] if one in pool and pool.request(one).state == state]
                self.swaps.append(getattr(pool, name)(there[:1] or [request]))
            case "complete_swap" | "abort_swap":
                if r.random() < 0.7:
                    pool.take_plan()
                getattr(pool, name)(self.swaps.pop() if self.swaps else 3)
            case "release":
                pool.release(request, **after)
            case "end_session":
                pool.end_session(request, **after)
            case "preempt":
                pool.preempt(request, **after)
            case "resume":
                pool.resume(request, **part)
            case "retain":
                pool.retain(request, ranges(r))
            case "retain_prefix":
                pool.retain_prefix(self.prompt(r), ranges(r))
            case "set_tenant":
                pool.set_tenant(request, r.randrange(3))
            case "advance_time":
                pool.advance_time(r.choice([1.5, 4.0, 90.0]))
            case "complete_step":
                pool.complete_step(r.randrange(4))
            case "drop_cached":
                pool.drop_cached([r.randrange(12), r.randrange(30)])
            case "evict":
                pool.evict(r.randrange(4))
            case "resize":
                pool.resize(pool.num_blocks + r.randrange(3) - 1)
            case _:
                getattr(pool, name)()


class Pool:
    """A pool, and calls of it."""

    def __init__(self, r: random.Random) -> None:
        kinds: list[tuple[HashAlgorithm, VerifyMode]]
        kinds = [("sha256", "none"), ("vllm-sha256", "fingerprint"), ("xxh3", "tokens")]
        self.algorithm, self.verify = r.choice(kinds)
        self.pool = kvpool.BlockPool(
            r.choice([12, 30]),
            r.choice([1, 2, 3]),
            verify=self.verify,
            duplicates=r.choice(["keep", "drop-on-release"]),
            eviction=r.choice(["lru", "s3-fifo", "hazard"]),
            retention=r.choice([None, True, kvpool.RetentionConfig(tenants=[kvpool.TenantLimits(1, ceiling=3)])]),
            event_capacity=r.choice([0, 50]),
            journal=ring(),
        )
        self.image = self.pool.journal_image
        self.hasher = kvpool.BlockHasher(self.algorithm, self.pool.block_size, verify=self.verify, seed="7")
        self.table: list[int] = []
        self.adopted: kvpool.hashing.HashChain | None = None
        self.found: kvpool.Match | None = None

    def epoch(self, r: random.Random) -> int:
        return self.pool.epoch + (r.random() < 0.1)

    def chain(self, r: random.Random) -> kvpool.hashing.HashChain:
        tokens, epoch, size = r.choice(TOKENS), self.epoch(r), self.pool.block_size
        if r.random() < 0.1 and self.algorithm == "sha256":
            return kvpool.hashing.HashChain.from_digests("sha256", size, self.hasher.hash_tokens(tokens))
        if r.random() < 0.1:
            return kvpool.BlockHasher("sha256", size + 1).cursor(tokens).chain()
        if r.random() < 0.1:
            return kvpool.BlockHasher("blake3", size).cursor(tokens, epoch=epoch).chain()
        return self.hasher.cursor(tokens, epoch=epoch).chain()

    def link(self, r: random.Random) -> kvpool.hashing.ChainLink:
        size, epoch, tokens = self.pool.block_size, self.epoch(r), r.choice(TOKENS)
        last = None
        for at in range(1 + r.randrange(3)):
            last = self.hasher.link((tokens * 3)[at * size : (at + 1) * size], last, epoch=epoch)
        assert last is not None
        return last

    def some(self, r: random.Random) -> list[int]:
        return r.choice([self.table, self.table[:2], self.table[-1:], [r.randrange(40)]])

    def call(self, name: str, r: random.Random) -> None:
        pool, some = self.pool, self.some(r)
        match name:
            case "allocate":
                self.table += pool.allocate(r.randrange(5))
            case "match_and_acquire":
                tenant: dict[str, Any] = r.choice([{}, {"tenant": 1}])
                self.table += pool.match_and_acquire(self.chain(r), r.choice([None, 1, 9]), **tenant)
            case "register":
                chain = self.chain(r)
                pool.register(self.table[: len(chain)], chain, r.choice([0, 0, 0, 1]))
            case "register_table":
                chain, start = self.chain(r), r.choice([0, 0, 0, 1])
                part = self.table[: max(0, len(chain) - start)]
                for at, block in pool.register_table(part, chain, start):
                    self.table[at] = block
            case "adopt":
                chain = self.chain(r)
                ids = r.choice([pool.free_order()[::-1][: len(chain)], some])
                changes = dict(pool.adopt(ids, chain))
                self.adopted = chain
                self.table += [changes.get(at, block) for at, block in enumerate(ids)]
            case "disown":
                pool.disown(some)
                self.table = [block for block in self.table if block not in some]
            case "evict":
                pool.evict(r.randrange(4))
            case "lookup_refreshing":
                chain = r.choice([self.chain(r), self.adopted or self.chain(r)])
                self.found = pool.lookup(chain, r.choice([0, 0, 1]), r.choice([None, 2]), refresh=True)
            case "acquire_match":
                chain = self.chain(r)
                self.found = self.found or kvpool.Match(chain, self.table[: len(chain)])
                pool.acquire_match(self.found)
                self.table += self.found.block_ids
            case "mark_computed" | "drop_cached" | "acquire":
                if name == "acquire":
                    self.table += some
                getattr(pool, name)(some)
            case "release" | "release_table":
                self.table = []
                getattr(pool, name)(some)
            case "release_after":
                self.table = []
                pool.release_after(some, r.randrange(3))
            case "complete_step":
                pool.complete_step(r.randrange(4))
            case "register_link":
                pool.register_link(r.choice([*self.table, 3]), self.link(r))
            case "acquire_registered":
                pool.acquire_registered(self.link(r))
            case "mark_accessed":
                pool.mark_accessed(some, r.choice([0.5, 7.0]))
            case "retain":
                pool.retain(some, retention(r))
            case "assign_tenant":
                pool.assign_tenant(some, r.randrange(3))
            case "signal":
                pool.signal(some, finish_reason=r.choice(["stop", None]), output_tokens=r.choice([None, 5]))
            case "advance_time":
                pool.advance_time(r.choice([1.5, 4.0, 90.0]))
            case "resize":
                pool.resize(pool.num_blocks + r.randrange(3) - 1)
            case _:
                getattr(pool, name)()


class Vllm:
    """vLLM's pool, and calls of it."""

    #: Calls that have another name in Python.
    NAMES: ClassVar = {
        "insert_in_index": "index_insert",
        "remove_from_index": "index_remove",
        "clear_index": "index_clear",
        "pop_from_queue": "queue_pop",
    }

    def __init__(self, r: random.Random) -> None:
        self.pool = VllmPool(r.choice([2, 12]), r.random() < 0.8, r.choice(["lru", "s3-fifo", "hazard"]), ring())
        self.image = self.pool.journal_image
        self.held: list[Any] = []

    def digest(self, r: random.Random) -> bytes:
        return bytes([r.randrange(4)]) * 32

    def key(self, r: random.Random) -> bytes:
        return self.digest(r) + bytes([0, 0, 0, r.randrange(2)])

    def call(self, name: str, r: random.Random) -> None:
        pool = self.pool
        block = r.choice(pool.blocks)
        number = block.block_id
        match name:
            case "allocate":
                self.held += pool.allocate(r.randrange(4))[0]
            case "claim":
                taken = pool.queue_pop(r.randrange(3))
                self.held += taken
                pool.claim(taken)
            case "touch":
                pool.touch([block])
            case "free" | "unpin":
                some, self.held = self.held[:2], self.held[2:]
                getattr(pool, name)(some or [block])
            case "cache_full":
                first = r.randrange(2) if self.held else 0
                hashes = [self.digest(r) for _ in range(len(self.held))]
                mask = [r.random() < 0.8 for _ in range(len(self.held) - first)]
                end = max(first, len(self.held))
                pool.cache_full(self.held, hashes, first, end, 4, r.randrange(2), r.choice([None, mask]))
            case "insert_hash":
                pool.insert_hash(
                    self.key(r), number, r.choice([None, 8]), r.randrange(3), r.choice([None, self.key(r)])
                )
            case "insert_in_index" | "remove_from_index":
                getattr(pool, self.NAMES[name])(self.key(r), number)
            case "remove_hashes":
                pool.remove_hashes(number)
            case "remove_from_queue":
                if pool.queue_remove(number):
                    pool.queue_push([block], r.random() < 0.5)
            case "push_to_queue":
                pool.queue_push(pool.queue_pop(2), r.random() < 0.5)
            case "move_hashes":
                pool.move_hashes(number, r.choice(pool.blocks).block_id)
            case "evict":
                pool.evict(number, r.random() < 0.5)
            case "chain_group":
                pool.chain_group(r.randrange(2))
            case "set_ref_count":
                block.ref_cnt = block.ref_cnt
            case "set_hash":
                if block.block_hash is None:
                    block.set_block_hash(self.key(r), r.choice([None, 8]))
                else:
                    written: Any = block
                    written._block_hash = self.key(r)
            case "reset_hash":
                block.reset_hash()
            case "pop_from_queue":
                taken = pool.queue_pop(1)
                pool.queue_push(taken, True)
            case _:
                getattr(pool, self.NAMES.get(name, name))()


KINDS: list[tuple[type[Manager | Pool | Vllm], list[str]]] = [
    (Manager, MANAGER_CALLS),
    (Pool, POOL_CALLS),
    (Vllm, VLLM_CALLS),
]
BY_NAME = pytest.mark.parametrize(("kind", "names"), KINDS, ids=["manager", "pool", "vllm-pool"])


def attempt(call: Callable[..., object], *arguments: Any, **named: Any) -> object:
    """Calls; a refusal is recorded like any other answer."""
    try:
        return call(*arguments, **named)
    except kvpool.KvpoolError:
        return None


def recorded(kind: type[Manager | Pool | Vllm], names: list[str], seed: int, length: int) -> Manager | Pool | Vllm:
    """A random run of so many calls; every name comes as often as every other."""
    r = random.Random(seed)
    run = kind(r)
    for at in range(length):
        attempt(run.call, names[at % len(names)] if r.random() < 0.5 else r.choice(names[:5] + names), r)
    return run


def image_of(run: Manager | Pool | Vllm) -> bytes:
    image = run.image()
    assert image is not None
    return image


def execute(text: str, **instead: object) -> dict[str, Any]:
    """Runs an exported test; ``instead`` are names of kvpool's that are others for it."""
    module: dict[str, Any] = {}
    exec(compile(text, "exported", "exec"), module)
    module["kvpool"] = types.SimpleNamespace(**{**vars(kvpool), "hashing": kvpool.hashing, **instead})
    module["test_journal"]()
    return module


@BY_NAME
@given(seed=st.integers(0, 2**32), length=st.integers(0, 120))
@settings(max_examples=60, deadline=None)
def test_an_exported_test_runs(kind: type[Manager | Pool | Vllm], names: list[str], seed: int, length: int) -> None:
    image = image_of(recorded(kind, names, seed, length))
    assert kvpool.journal.replay_journal(image).difference is None
    text = kvpool.journal.export_journal(image, "python")
    assert text.isascii()
    execute(text)


@BY_NAME
def test_every_call_is_exported(kind: type[Manager | Pool | Vllm], names: list[str]) -> None:
    called: set[str] = set()
    accepted: set[str] = set()
    for seed in range(40):
        run = recorded(kind, names, seed, 150)
        image = image_of(run)
        called |= kvpool.journal.read_journal(image).calls.keys()
        info = kvpool.journal.read_journal(image, start=0, count=150)
        text = kvpool.journal.export_journal(image, "python")
        execute(text)
        answers = dict(re.findall(r"    # (\d+): (.*)", text))
        accepted |= {call for number, call, _ in info.lines
                     if call != "digest" and not answers[str(number)].startswith("refused")}  # fmt: skip
    assert called == accepted == set(names)


def test_a_manager_ends_as_it_did() -> None:
    for seed in range(20):
        run = recorded(Manager, MANAGER_CALLS, seed, 100)
        found: list[kvpool.CacheManager] = []

        def remember(*arguments: Any, **named: Any) -> kvpool.CacheManager:
            found.append(kvpool.CacheManager(*arguments, **named))  # noqa: B023
            return found[-1]  # noqa: B023

        execute(kvpool.journal.export_journal(image_of(run), "python"), CacheManager=remember)
        (again,), manager = found, run.pool
        assert isinstance(manager, kvpool.CacheManager)
        assert (again.free_order(), again.eviction_order()) == (manager.free_order(), manager.eviction_order())
        assert len(again) == len(manager)


# --- What has to fail, fails --------------------------------------------------------------------------


def others(text: str) -> Iterator[str]:
    """The test with another answer expected, for every one that it expects."""
    for found in re.finditer(r"^    assert .*?\) (==|is) (.*)$", text, re.MULTILINE):
        yield text[: found.start(1)] + '== "another"' + text[found.end() :]


@BY_NAME
def test_another_answer_fails(kind: type[Manager | Pool | Vllm], names: list[str]) -> None:
    text = kvpool.journal.export_journal(image_of(recorded(kind, names, 3, 40)), "python")
    changed = list(others(text))
    assert len(changed) > 30
    for one in changed:
        with pytest.raises(AssertionError):
            execute(one)


def test_another_pool_fails() -> None:
    pool = kvpool.BlockPool(9, 2, journal=ring())
    held = pool.allocate(8)
    pool.release(held)
    text = kvpool.journal.export_journal(pool.journal_image() or b"", "python")
    execute(text)
    with pytest.raises(AssertionError):
        execute(text, BlockPool=lambda _, *arguments, **named: kvpool.BlockPool(7, *arguments, **named))


def test_resumed_in_another_epoch_a_prompt_is_the_one_that_another_admitted() -> None:
    manager = kvpool.CacheManager(40, 2, journal=ring())
    manager.admit("first", [5] * 6)
    manager.preempt("first")
    manager.bump_epoch()
    manager.admit("second", [5] * 6)
    manager.commit("second", 6)
    assert manager.resume("first").cached_tokens == 4
    text = kvpool.journal.export_journal(manager.journal_image() or b"", "python")
    assert "== [4, " in text
    execute(text)


# --- How much of it there is ----------------------------------------------------------------------------


def long(operations: int) -> bytes:
    pool = kvpool.BlockPool(9, 2, journal=kvpool.journal.Journal(ring_bytes=1 << 24, digest_every=0))
    for _ in range(operations // 2):
        pool.release(pool.allocate(3))
    return pool.journal_image() or b""


def test_a_long_journal_is_refused_before_anything_is_written() -> None:
    pieces: list[str] = []
    message = r"the journal has 10,?002 operations, and a test has at most 10,?000: bisect and shrink it first"
    for language in ("rust", "python"):
        with pytest.raises(kvpool.errors.JournalError, match=message):
            kvpool.journal.export_journal(long(10_002), language, write=pieces.append)
    assert not pieces
    kvpool.journal.export_journal(long(10_002), "python", limit=10_002, write=pieces.append)
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="limit"):
        kvpool.journal.export_journal(long(2), "python", limit=-1)


def test_pieces_are_small_and_make_the_test() -> None:
    image = long(8000)
    for language in ("rust", "python"):
        pieces: list[str] = []
        kvpool.journal.export_journal(image, language, write=pieces.append)
        assert len(pieces) > 5
        assert max(map(len, pieces)) <= 1 << 16
        assert "".join(pieces) == kvpool.journal.export_journal(image, language)


def test_what_a_writer_raises_ends_the_export() -> None:
    pieces: list[str] = []

    def write(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 2:
            raise KeyError("full")

    with pytest.raises(KeyError, match="full"):
        kvpool.journal.export_journal(long(8000), "python", write=write)
    assert len(pieces) == 2


def test_export_of_a_language_that_is_none() -> None:
    image = long(10)
    assert "fn " in kvpool.journal.export_journal(image, "rust")
    with pytest.raises(kvpool.errors.InvalidArgumentError, match='language is "cobol": must be one of rust, python'):
        kvpool.journal.export_journal(image, "cobol")  # type: ignore[call-overload]
