"""Tests in a real vLLM that the level ``shadow`` finds defects. The shadow compares vLLM with a mirror,
a pool of kvpool that gets the same calls. The test breaks mirrors and hashers on purpose.

    .venv-vllm/bin/python tools/vllm/shadow_selftest.py

First, managers of several kinds of models run random requests, and so do many random groups
(:mod:`shadow_groups`). No difference may be reported. The mirror must have made every call that the
level ``manager`` replaces, as counted by :mod:`shadow_calls`.

Then one defect after the other is planted in the mirror. The shadow must report the first operation
whose result the defect changes, and vLLM must continue normally. Neither the report nor the trail, the
file with the last operations, may contain a token id or a salt. Exit code 0: all checks passed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import kvpool

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # the folder tools/ contains a folder named vllm

from tools.vllm.shadow_calls import counting  # noqa: E402
from tools.vllm.shadow_groups import Configuration, Requests  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK = 16
BLOCKS = 60
SALT = "salt-of-a-user"
KINDS = ("full", "metrics", "window", "mamba")
#: Smallest token id. Token ids are so large that none can be mistaken for a block id or a count.
FIRST_TOKEN = 50_000_000
OPERATIONS = 3_000
#: Number of random configurations of groups, and number of operations with each.
DRAWN = 60
DRAWN_OPERATIONS = 600


class Lines(logging.Handler):
    """A log handler that collects the plug-in's messages."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.getMessage()))

    def at(self, level: int) -> list[str]:
        return [line for found, line in self.lines if found == level]


def load() -> SimpleNamespace:
    """Imports vLLM's names, and those of the plug-in at the level shadow."""
    install = importlib.import_module("kvpool.integrations.vllm.install")
    settings = importlib.import_module("kvpool.integrations.vllm.settings").Settings
    found = SimpleNamespace()
    for module, names in {
        "kvpool.integrations.vllm.comparison": ("MANAGER", "NOT_COMPARED", "COORDINATOR", "POOL"),
        "kvpool.integrations.vllm.shadow": (
            "ShadowKVCacheManager",
            "ShadowHasher",
            "get_request_block_hasher",
        ),
        "kvpool.integrations.vllm.trail": ("Trail",),
        "vllm": ("SamplingParams",),
        "vllm.utils.hashing": ("sha256",),
        "vllm.v1.core.block_pool": ("BlockPool",),
        "vllm.v1.core.kv_cache_metrics": ("KVCacheMetricsCollector",),
        "vllm.v1.core.kv_cache_utils": ("init_none_hash", "make_block_hash_with_group_id"),
        "vllm.v1.kv_cache_interface": (
            "ChunkedLocalAttentionSpec",
            "FullAttentionSpec",
            "KVCacheConfig",
            "KVCacheGroupSpec",
            "MambaSpec",
            "SlidingWindowSpec",
        ),
        "vllm.v1.request": ("Request", "RequestStatus"),
    }.items():
        for name in names:
            setattr(found, name, getattr(importlib.import_module(module), name))
    found.coordinators = importlib.import_module("vllm.v1.core.kv_cache_coordinator")
    found.torch = importlib.import_module("torch")
    install.install(settings(level="shadow"))
    found.init_none_hash(found.sha256)
    return found


def make_manager(vllm: SimpleNamespace, kind: str = "full", **more: Any) -> Any:
    """Makes a manager of a model with full attention. The kind adds metrics, a sliding window or a
    state space.
    """
    attention = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": vllm.torch.float32}
    specs = [vllm.FullAttentionSpec(**attention)]
    if kind == "window":
        specs.append(vllm.SlidingWindowSpec(**attention, sliding_window=2 * BLOCK))
    elif kind == "mamba":
        shapes = {"shapes": ((1, 1),), "dtypes": (vllm.torch.float32,), "mamba_cache_mode": "align"}
        specs.append(vllm.MambaSpec(block_size=BLOCK, **shapes))
    groups = [vllm.KVCacheGroupSpec([f"layer {number}"], spec) for number, spec in enumerate(specs)]
    config = vllm.KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)
    if kind == "metrics":
        more["metrics_collector"] = vllm.KVCacheMetricsCollector(0.5)
    settings = {
        "scheduler_block_size": BLOCK,
        "hash_block_size": BLOCK,
        "enable_kv_cache_events": True,
        **more,
    }
    return vllm.ShadowKVCacheManager(config, max_model_len=1024, **settings)


class Load:
    """Random requests on a manager, like those of a scheduler. They share prefixes, run, are preempted,
    and finish.
    """

    def __init__(self, vllm: SimpleNamespace, manager: Any, seed: int = 0) -> None:
        self.vllm, self.manager = vllm, manager
        self.source = random.Random(seed)
        self.hasher = vllm.get_request_block_hasher(BLOCK, vllm.sha256)
        self.running: list[Any] = []
        self.made = 0

    def tokens(self, count: int) -> list[int]:
        return [FIRST_TOKEN + self.source.randrange(4) for _ in range(count)]

    def start(self) -> None:
        prompt = [FIRST_TOKEN] * (BLOCK * self.source.randrange(4)) + self.tokens(
            self.source.randrange(1, 40)
        )
        self.made += 1
        request = self.vllm.Request(
            request_id=f"request-{self.made}",
            prompt_token_ids=prompt,
            sampling_params=self.vllm.SamplingParams(max_tokens=64),
            pooling_params=None,
            cache_salt=SALT if self.source.random() < 0.2 else None,
            block_hasher=self.hasher,
        )
        blocks, tokens, boundary = self.manager.get_computed_blocks(request)
        request.shared_prefix_boundary = boundary
        new = request.num_tokens - tokens
        if self.manager.allocate_slots(request, new, tokens, blocks) is not None:
            request.num_computed_tokens = request.num_tokens
            self.running.append(request)

    def decode(self, request: Any) -> None:
        later = self.source.random() < 0.5  # caches full blocks after the token arrived, as the engine does
        if self.manager.allocate_slots(request, 1, delay_cache_blocks=later) is None:
            self.end(request)
            return
        request.num_computed_tokens += 1
        request.append_output_token_ids(self.tokens(1)[0])
        if later:
            self.manager.cache_blocks(request, request.num_computed_tokens)

    def end(self, request: Any) -> None:
        self.running.remove(request)
        if self.source.random() < 0.3:
            blocks = self.manager.pop_blocks_for_free(request)
            self.manager.block_pool.free_blocks(reversed(blocks))
        else:
            self.manager.free(request)

    def step(self) -> None:
        """Runs one random operation as a step of the engine."""
        chance = self.source.random()
        self.manager.new_step_starts()
        if not self.running or chance < 0.2:
            self.start()
        elif chance < 0.3:
            self.end(self.source.choice(self.running))
        elif chance < 0.32:
            self.manager.evict_blocks({self.source.randrange(1, BLOCKS) for _ in range(3)})
        elif chance < 0.4:
            self.look()
        elif chance < 0.41:
            self.by_hand(self.source.choice(self.running))
        else:
            self.decode(self.source.choice(self.running))
        _copies, retained = self.manager.take_kv_cache_block_copies()
        if retained:
            self.manager.block_pool.free_blocks(retained)

    def look(self) -> None:
        """Calls the methods that only read state, and those that return collected data and clear it."""
        manager, request = self.manager, self.source.choice(self.running)
        manager.take_events()
        assert 0.0 <= manager.usage <= 1.0
        manager.get_block_ids(request.request_id)
        manager.get_blocks(request.request_id)
        manager.estimate_cached_tokens(request)
        manager.remove_skipped_blocks(request.request_id, request.num_computed_tokens)
        manager.take_boundary_state_offloads()
        manager.take_new_block_ids()
        if self.source.random() < 0.1:
            for one in list(self.running):
                self.end(one)
            assert manager.reset_prefix_cache()

    def by_hand(self, request: Any) -> None:
        """Calls the pool directly, as connectors and vLLM's managers of other kinds of groups do.
        Afterwards the pool's state is as before.
        """
        pool = self.manager.block_pool
        if pool.get_num_free_blocks() < 2 or len(request.block_hashes) < 2:
            return
        assert 0.0 <= pool.get_usage() <= 1.0
        pool.get_cached_block(request.block_hashes[0], [0])
        pool.emit_cached_block_events(request, 1, BLOCK, 0)
        first, second = pool.get_new_blocks(2)
        assert pool.is_block_writable(first)
        pool.cache_partial_block(request, first, BLOCK, 0, 2 * BLOCK)
        key = self.vllm.make_block_hash_with_group_id(request.block_hashes[1][::-1], 0)  # leads to no block
        pool._insert_block_hash(key, first, 2 * BLOCK)
        pool.move_block_hashes(first, second)
        keys = pool._remove_cached_block_hashes(second)
        pool._emit_block_removed_events(list(keys))
        pool._insert_block_hash(key, first, 2 * BLOCK)
        assert pool._maybe_evict_cached_block(first)
        pool.touch([first])
        pool.unpin_blocks([first], lambda _: None)
        pool.unpin_blocks([first], lambda _: None)
        pool.free_blocks([second])

    def run(self, operations: int = OPERATIONS) -> None:
        for _ in range(operations):
            self.step()


@contextlib.contextmanager
def listening(vllm: SimpleNamespace) -> Iterator[tuple[Lines, Path]]:
    """Collects the messages and the files of the plug-in until the end of the context."""
    logger = logging.getLogger("vllm.kvpool")
    lines = Lines()
    logger.addHandler(lines)
    try:
        with tempfile.TemporaryDirectory(prefix="kvpool-selftest-") as folder:
            vllm.Trail.folder = folder
            yield lines, Path(folder)
    finally:
        vllm.Trail.folder = None
        logger.removeHandler(lines)


def check_agreement(vllm: SimpleNamespace, kind: str) -> int:
    """Checks that the shadow reports no difference if no defect is planted. Returns the number of compared
    operations.
    """
    with listening(vllm) as (lines, folder):
        manager = make_manager(vllm, kind)
        assert manager.comparison is not None, lines.lines
        Load(vllm, manager).run()
        comparison = manager.comparison
        assert comparison.running, lines.lines
        comparison.compare_state()
        assert comparison.running, lines.lines
        assert not lines.at(logging.ERROR)
        assert not list(folder.iterdir())
    return int(comparison.operations)


def check_random_groups(vllm: SimpleNamespace, seeds: range) -> tuple[int, int]:
    """Checks that no difference is reported for random groups. Returns the number of operations and of
    hits.
    """
    operations = hits = 0
    for seed in seeds:
        with listening(vllm) as (lines, folder):
            configuration = Configuration(vllm, seed)
            manager = configuration.manager()
            what = f"seed {seed}, {configuration}"
            assert manager.comparison is not None, (what, lines.lines)
            mirror = manager.comparison.mirror
            assert (mirror.groups is None) == configuration.is_left_to_vllm, (what, lines.lines)
            manager.comparison._state_every = 8
            requests = Requests(configuration, manager)
            for _ in range(DRAWN_OPERATIONS):
                requests.step()
                assert manager.comparison.running, (
                    what,
                    lines.lines,
                    [file.read_text() for file in folder.glob("*.jsonl")],
                )
            operations += manager.comparison.operations
            hits += requests.hits
            assert not lines.at(logging.ERROR), (what, lines.lines)
    return operations, hits


def finds(vllm: SimpleNamespace, what: str, kind: str, plant: Callable[[Any], None]) -> str:
    """Plants a defect in the mirror after some operations, and returns the line that reports it."""
    with listening(vllm) as (lines, folder):
        manager = make_manager(vllm, kind)
        load = Load(vllm, manager)
        load.run(200)
        assert manager.comparison.running, lines.lines
        plant(manager.comparison.mirror)
        load.run(1_000)
        assert not manager.comparison.running, f"{what}: not found"
        assert manager.comparison.mirror is None
        assert not set(vars(manager)) & set(vllm.MANAGER), "vLLM's manager is not as it was made"
        assert not set(vars(manager.block_pool)) & set(vllm.POOL)
        check_report(what, lines, folder)
        return lines.at(logging.ERROR)[0]


def check_report(what: str, lines: Lines, folder: Path) -> None:
    """Checks a report of a difference: it is one line, its files exist, and neither contains user data.
    A difference of hashes does not depend on a pool, so it has no journal.
    """
    (line,) = lines.at(logging.ERROR)
    files = {file.suffix: file for file in folder.iterdir()}
    assert set(files) == ({".jsonl"} if what == "hasher" else {".jsonl", ".kvj"}), f"{what}: {files}"
    assert all(str(file) in line for file in files.values()), f"{what}: {line}"
    if ".kvj" in files:
        assert SALT.encode() not in files[".kvj"].read_bytes(), f"{what}: a salt is in the journal"
        report = kvpool.journal.replay_journal(files[".kvj"])
        assert report.operations, f"{what}: the journal is empty"
        assert report.difference is None, f"{what}: {report.difference}"
    text = files[".jsonl"].read_text(encoding="utf-8")
    assert str(FIRST_TOKEN // 100) not in line + text, f"{what}: the report contains a token id"
    assert SALT not in line + text, f"{what}: the report contains a salt"
    first, *operations, difference = [json.loads(one) for one in text.splitlines()]
    assert first["vllm"], first
    assert 0 < len(operations) <= 256, len(operations)
    assert difference["difference"], difference


def another_order(mirror: Any) -> None:
    """Plants a defect: the mirror's pool allocates the blocks of each call in reverse order."""
    pool = mirror.block_pool
    take = pool.get_new_blocks
    pool.get_new_blocks = lambda count: take(count)[::-1]


def another_queue(mirror: Any) -> None:
    """Plants a defect: the next block to be allocated is moved to the end of the free list."""
    queue = mirror.block_pool.free_block_queue
    queue.append(queue.popleft())


def a_lost_key(mirror: Any) -> None:
    """Plants a defect: a cached block is missing from the index."""
    cached = mirror.block_pool.cached_block_hash_to_block._cache
    cached.pop(next(iter(cached)))


def a_leak(mirror: Any) -> None:
    """Plants a defect: a block is allocated and never freed."""
    mirror.block_pool.get_new_blocks(1)


def an_event(mirror: Any) -> None:
    """Plants a defect: the mirror drops its events."""
    mirror.block_pool.events.removed = lambda *_: None
    mirror.block_pool.events.stored = lambda *_: None


def an_error(mirror: Any) -> None:
    """Plants a defect: a call raises an error."""

    def free(request: Any) -> None:
        raise RuntimeError(f"of {request.cache_salt} {request.all_token_ids[0]}")

    mirror.free = free


def a_panic(mirror: Any) -> None:
    """Plants a defect: a call raises something other than an ``Exception``, as a panic in Rust does."""

    def free(request: Any) -> None:
        raise BaseException(request.cache_salt)

    mirror.free = free


def hashes_differ(vllm: SimpleNamespace) -> str:
    """Flips one bit of the hashes that kvpool's hasher returns. Checks the report, and returns its
    line.
    """
    with listening(vllm) as (lines, folder):
        manager = make_manager(vllm)
        load = Load(vllm, manager)
        load.run(100)
        assert isinstance(load.hasher, vllm.ShadowHasher)
        assert isinstance(load.hasher._ours, kvpool._core.vllm.VllmHasher)
        assert load.hasher._calls
        theirs = load.hasher._ours
        assert theirs is not None
        assert not lines.at(logging.ERROR)

        def flipped(request: Any) -> list[bytes]:
            return [one if at else bytes([one[0] ^ 1]) + one[1:] for at, one in enumerate(theirs(request))]

        load.hasher._ours = flipped
        load.run(200)
        assert load.hasher._ours is None
        assert manager.comparison.running
        check_report("hasher", lines, folder)
        return lines.at(logging.ERROR)[0]


def cannot_be_made(vllm: SimpleNamespace) -> str:
    """Checks that vLLM remains unchanged if a mirror cannot be constructed."""
    with listening(vllm) as (lines, folder):
        shadow: Any = importlib.import_module("kvpool.integrations.vllm.shadow")
        before, shadow.BlockPool = shadow.BlockPool, None
        try:
            manager = make_manager(vllm)
        finally:
            shadow.BlockPool = before
        assert vllm.coordinators.BlockPool is vllm.BlockPool
        assert manager.comparison is None
        Load(vllm, manager).run(200)
        assert not list(folder.iterdir())
        return lines.at(logging.ERROR)[0]


def freed_twice(vllm: SimpleNamespace) -> str:
    """Checks that the shadow reports no difference if vLLM frees a block once too often."""
    with listening(vllm) as (lines, folder):
        manager = make_manager(vllm)
        load = Load(vllm, manager)
        load.run(50)
        block = manager.block_pool.get_new_blocks(1)
        manager.block_pool.free_blocks(block)
        manager.block_pool.free_blocks(block)
        assert not manager.comparison.running
        assert not list(folder.iterdir())
        assert not lines.at(logging.ERROR)
        return lines.at(logging.WARNING)[0]


def everything_is_compared(vllm: SimpleNamespace) -> None:
    """Checks that the shadow compares every public call of vLLM's manager and pool, or lists it as not
    compared.
    """
    manager = vllm.ShadowKVCacheManager.__base__
    public = {name for name, one in vars(manager).items() if callable(one) and not name.startswith("_")}
    assert public == {*vllm.MANAGER, *vllm.NOT_COMPARED}, public ^ {*vllm.MANAGER, *vllm.NOT_COMPARED}
    public = {
        name for name, one in vars(vllm.BlockPool).items() if callable(one) and not name.startswith("_")
    }
    watched = {name for name in vllm.POOL if not name.startswith("_")}
    assert public == watched, public ^ watched
    assert all(hasattr(vllm.BlockPool, name) for name in vllm.POOL)


def everything_is_called(calls: Counter[str]) -> None:
    """Prints the number of times that each replaced call was made, and checks that each was made."""
    for name, count in sorted(calls.items()):
        print(f"  {count:>9,} {name}")
    missing = sorted(name for name, count in calls.items() if not count)
    assert not missing, f"the shadow never calls {', '.join(missing)}"


def main() -> int:
    vllm = load()
    everything_is_compared(vllm)
    calls: Counter[str] = Counter()
    with counting(calls):
        for kind in KINDS:
            print(f"{kind}: {check_agreement(vllm, kind):,} operations, no difference")
        operations, hits = check_random_groups(vllm, range(DRAWN))
    print(f"{DRAWN} configurations of groups: {operations:,} operations, {hits:,} hits, no difference")
    assert hits > operations // 100, f"only {hits} hits"
    everything_is_called(calls)
    for kind, defects in {
        "full": (another_queue, a_lost_key, a_leak, an_event, an_error, a_panic),
        "window": (another_order, another_queue, a_lost_key, a_leak, an_event, an_error, a_panic),
        "mamba": (another_order, a_lost_key, an_event),
    }.items():
        for plant in defects:
            print(f"{kind}, {plant.__name__}: {finds(vllm, plant.__name__, kind, plant)}")
    for check in (hashes_differ, cannot_be_made, freed_twice):
        print(f"{check.__name__}: {check(vllm)}")
    print("the shadow finds what it should")
    return 0


if __name__ == "__main__":
    sys.exit(main())
