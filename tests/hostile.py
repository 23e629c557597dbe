"""Every entry that takes a sequence, a buffer or a count, to be called with what lies about its size.

As a program, run by test_hostile.py, it makes the calls from the one named on its command line on under a memory limit,
and writes a line of JSON before and after each: what is missing at the end was the end of the process.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", "kvpool was built", RuntimeWarning)

import numpy as np  # noqa: E402

import kvpool  # noqa: E402
from kvpool import _core, store  # noqa: E402
from kvpool.transfer import BlockStore, TransferEngine  # noqa: E402

HUGE = 2**40
# What a call may take beyond what is there: what never ends is read until it is full.
ROOM = 4 << 20


class Liar(Sequence[Any]):
    """Claims to have 2**40 items, and has two."""

    def __init__(self, item: object, length: int = HUGE) -> None:
        self.item, self.length = item, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, at: Any) -> Any:
        if at < 2:
            return self.item
        raise IndexError(at)


class Endless(Liar):
    """Claims to have 2**40 items, and never ends."""

    def __getitem__(self, at: Any) -> Any:
        return self.item

    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(self.item)


class World:
    """What the entries are called on."""

    def __init__(self) -> None:
        self.hasher = kvpool.BlockHasher(block_size=4)
        self.cursor = self.hasher.cursor([1, 2])
        self.chain = self.hasher.cursor(range(8)).chain()
        self.pool = kvpool.BlockPool(64, 4, retention=True)
        self.pool.allocate(4)
        self.manager = kvpool.CacheManager(64, 4, retention=True, host_blocks=8)
        self.manager.admit("a", range(8))
        self.manager.admit(1, range(8))
        self.manager.admit("loads", range(8), external_tokens=7)
        self.step = self.manager.plan_step()
        self.tiers = kvpool.TieredPool([64, 8])
        self.tiers.pools[0].allocate(3)
        self.plan = kvpool.TransferPlan([((0, 1), (1, 1))])
        self.memory = bytearray(64)
        address = np.frombuffer(self.memory, dtype=np.uint8).ctypes.data
        self.store = BlockStore.from_regions([(address, 8, 8)], 8, keep_alive=self.memory)
        self.engine = TransferEngine(threads=1)
        self.engine.submit(self.store, self.store, [(0, 1)]).wait()
        self.trace = kvpool.traces.Trace.generate(20, block_tokens=16)
        self.references = _core.sizing.References(self.trace)
        self.curve = self.references.lru()
        self.vllm = _core.vllm.VllmPool(16, True)
        self.feed = _core.vllm.VllmFeed(lambda *_: (None, None, None, None, None), 9)
        self.anything: Any = None
        self.folder = tempfile.TemporaryDirectory()
        self.objects = self.opened()
        self.journal = kvpool.BlockPool(8, journal=kvpool.journal.Journal(ring_bytes=1 << 18)).journal_image() or b""
        self.groups: dict[str, Any] = {
            "max_model_len": 64,
            "recomputed": 0,
            "watermark": 0,
            "blocks_class": tuple,
            "empty": None,
            "fallback": None,
            "coordinator": None,
            "scheduler_block": 4,
        }

    def namespace(self, **changed: Any) -> store.Namespace:
        names: dict[str, Any] = {
            "model": "m",
            "weights": "w",
            "kv_dtype": "b",
            "scales": "",
            "hash_algorithm": "sha256",
            "extra": {},
        }
        sizes: dict[str, Any] = {"layouts": [], "block_size": 16, "layers": (0, 1), "heads": (0, 1), "hash_seed": b""}
        return store.Namespace(**(names | sizes | changed))

    def opened(self, backend: Any = None, **settings: Any) -> store.Store:
        backend = backend or store.SharedFolder(self.folder.name, 1 << 20)
        return store.Store(backend, store.Arena(4, 64), self.namespace(), **settings)

    def tensor(self, shape: Any, strides: Any) -> Any:
        class Tensor:
            is_cpu, dtype = True, "torch.uint8"

            def __init__(self) -> None:
                self.shape = shape

            def stride(self) -> Any:
                return strides

            data_ptr = staticmethod(lambda: 4096)
            element_size = staticmethod(lambda: 1)
            is_pinned = staticmethod(lambda: False)

        return Tensor()


# An entry: the call, and an item that it would take.
Call = Callable[[World, Any], object]
RETENTION = kvpool.Retention(50)
GROUP: dict[str, Any] = {
    "kind": "full",
    "block_size": 4,
    "reads": 0,
    "retained": 0,
    "more_slots": 0,
    "most": None,
    "group": 0,
    "scale": 1,
    "cached": True,
    "counts": True,
    "tables": {},
    "num_cached": {},
    "manager": None,
    "zeroed": False,
    "ends": None,
    "alignment": 4,
    "drops": False,
    "prompt_tail": None,
    "this_step": None,
    "states": None,
}

SEQUENCES: dict[str, tuple[Call, object]] = {
    # Tokens.
    "hash_tokens": (lambda w, s: w.hasher.hash_tokens(s), 1),
    "cursor": (lambda w, s: w.hasher.cursor(s), 1),
    "link": (lambda w, s: w.hasher.link(s), 1),
    "cursor.append": (lambda w, s: w.cursor.append(s), 1),
    "prepare": (lambda w, s: w.manager.prepare(s), 1),
    "probe": (lambda w, s: w.manager.probe(s), 1),
    "admit": (lambda w, s: w.manager.admit("new", s), 1),
    "append_tokens": (lambda w, s: w.manager.append_tokens("a", s), 1),
    "append, tokens": (lambda w, s: w.manager.append(["a"], s), 1),
    "retain_prefix": (lambda w, s: w.manager.retain_prefix(s, []), 1),
    "end_of_life_of": (lambda w, s: w.manager.end_of_life_of(s), 1),
    "step.admit": (lambda w, s: w.step.admit("new", s), 1),
    "step.append": (lambda w, s: w.step.append("a", s), 1),
    "fit": (lambda w, s: w.manager.fit(s), 1),
    "append_ragged, tokens": (lambda w, s: w.manager.append_ragged(["a"], s), 1),
    "step.append_ragged, tokens": (lambda w, s: w.step.append_ragged(["a"], s), 1),
    # Blocks.
    "acquire": (lambda w, s: w.pool.acquire(s), 1),
    "release": (lambda w, s: w.pool.release(s), 1),
    "release_table": (lambda w, s: w.pool.release_table(s), 1),
    "release_after": (lambda w, s: w.pool.release_after(s, 1), 1),
    "register": (lambda w, s: w.pool.register(s, w.chain), 1),
    "register_table": (lambda w, s: w.pool.register_table(s, w.chain), 1),
    "adopt": (lambda w, s: w.pool.adopt(s, w.chain), 9),
    "disown": (lambda w, s: w.pool.disown(s), 1),
    "ref_counts": (lambda w, s: w.pool.ref_counts(s), 1),
    "states": (lambda w, s: w.pool.states(s), 1),
    "set_payloads": (lambda w, s: w.pool.set_payloads([1], s), 7),
    "Match": (lambda w, s: w.pool.acquire_match(kvpool.Match(w.chain, s)), 1),
    "mark_computed": (lambda w, s: w.pool.mark_computed(s), 1),
    "drop_cached": (lambda w, s: w.pool.drop_cached(s), 1),
    "mark_accessed": (lambda w, s: w.pool.mark_accessed(s, 1.0), 1),
    "pool.retain": (lambda w, s: w.pool.retain(s, RETENTION), 1),
    "assign_tenant": (lambda w, s: w.pool.assign_tenant(s, 1), 1),
    "manager.drop_cached": (lambda w, s: w.manager.drop_cached(s), 1),
    "push_front_n": (lambda _, s: kvpool.parts.FreeBlockList(8).push_front_n(s), 1),
    "allocator.acquire": (lambda _, s: kvpool.parts.BlockAllocator(8).acquire(s), 1),
    "allocator.release": (lambda _, s: kvpool.parts.BlockAllocator(8).release(s), 1),
    "tiers.begin_swap": (lambda w, s: w.tiers.begin_swap(s, src=0, dst=1), 1),
    "tiers.fit_swap": (lambda w, s: w.tiers.fit_swap(s, src=0, dst=1), 1),
    # Requests and their counts.
    "append": (lambda w, s: w.manager.append(s, [1]), 1),
    "commit_batch": (lambda w, s: w.manager.commit_batch(s, [1]), 1),
    "commit_batch, counts": (lambda w, s: w.manager.commit_batch(["a"], s), 1),
    "append_ragged": (lambda w, s: w.manager.append_ragged(s, [1]), 1),
    "append_ragged, offsets": (lambda w, s: w.manager.append_ragged(["a"], [1], s), 0),
    "append_ragged, computed": (lambda w, s: w.manager.append_ragged(["a"], [1], computed=s), 1),
    "append_ragged, covered": (lambda w, s: w.manager.append_ragged(["a"], [1], covered=s), 1),
    "step.append_ragged": (lambda w, s: w.step.append_ragged(s, [1]), 1),
    "step.append_ragged, offsets": (lambda w, s: w.step.append_ragged(["a"], [1], s), 0),
    "step.append_ragged, covered": (lambda w, s: w.step.append_ragged(["a"], [1], covered=s), 1),
    "truncate_batch": (lambda w, s: w.manager.truncate_batch(s, [1]), 1),
    "truncate_batch, lengths": (lambda w, s: w.manager.truncate_batch(["a"], s), 1),
    "external_done, failed": (lambda w, s: w.manager.external_done("loads", failed=s), (0, 1)),
    "release_batch": (lambda w, s: w.manager.release_batch(s), 1),
    "release_batch, reasons": (lambda w, s: w.manager.release_batch(["a"], finish_reasons=s), "stop"),
    "release_batch, tokens": (lambda w, s: w.manager.release_batch(["a"], output_tokens=s), 1),
    "fork_batch": (lambda w, s: w.manager.fork_batch(s, ["new"]), 1),
    "fork_batch, children": (lambda w, s: w.manager.fork_batch(["a"], s), 1),
    "begin_swap_out": (lambda w, s: w.manager.begin_swap_out(s), 1),
    "begin_swap_in": (lambda w, s: w.manager.begin_swap_in(s), 1),
    "fit_swap_out": (lambda w, s: w.manager.fit_swap_out(s), 1),
    "fit_swap_in": (lambda w, s: w.manager.fit_swap_in(s), 1),
    # Settings, plans, hints.
    "TieredPool": (lambda _, s: kvpool.TieredPool(s), 8),
    "TransferPlan": (lambda _, s: kvpool.TransferPlan(s), ((0, 1), (1, 1))),
    "rounds": (lambda w, s: w.plan.rounds(s), (0, 5)),
    "runs": (lambda w, s: w.plan.runs(s), (0, 5)),
    "LruEvictor.insert": (lambda _, s: kvpool.parts.LruEvictor(8).insert(s), (1, 0)),
    "from_digests": (lambda _, s: kvpool.hashing.HashChain.from_digests("sha256", 4, s), b"x" * 32),
    "RetentionConfig": (lambda _, s: kvpool.RetentionConfig(tenants=s), kvpool.TenantLimits(1)),
    "retain": (lambda w, s: w.manager.retain("a", s), (0, None, RETENTION)),
    "admit, retention": (lambda w, s: w.manager.admit("new", [1], retention=s), (0, None, RETENTION)),
    "ExtraKeys": (lambda _, s: kvpool.ExtraKeys(multimodal=s), ("image", 0, 4)),
    "HashCursor.append, multimodal": (
        lambda w, s: w.hasher.cursor().append([1], multimodal=s),
        ("image", 0, 4),
    ),
    "AdvisorConfig": (lambda _, s: kvpool.AdvisorConfig(policies=s), "lru"),
    "worth": (lambda w, s: w.curve.worth(8, s), 1.0),
    "pass_on": (lambda w, s: _core.events.EventPublisher(w.pool, 0).pass_on(s), 1),
    "Replay, tiers": (lambda w, s: kvpool.traces.Replay(w.trace, tiers=s), (8, 1.0)),
    "Replay, groups": (lambda w, s: _core.traces.Replay(w.trace, groups=s), ("full", 16, 0, None)),
    # A store.
    "Namespace, layouts": (lambda w, s: w.namespace(layouts=s), (0, "a", [1], [1])),
    "store.put": (lambda w, s: w.objects.put(s, [0]), b"k"),
    "store.put, slots": (lambda w, s: w.objects.put([b"k"], s), 0),
    "store.probe": (lambda w, s: w.objects.probe(s), b"k"),
    "store.touch": (lambda w, s: w.objects.touch(s), b"k"),
    # Moved bytes.
    "from_tensors": (lambda _, s: BlockStore.from_tensors(s), 1),
    "from_tensors, dims": (lambda w, s: BlockStore.from_tensors([w.tensor([4, 8], [8, 1])], block_dim=s), 0),
    "from_tensors, shape": (lambda w, s: BlockStore.from_tensors([w.tensor(s, [8, 1])]), 8),
    "from_tensors, strides": (lambda w, s: BlockStore.from_tensors([w.tensor([4, 8], s)]), 1),
    "from_regions": (lambda _, s: BlockStore.from_regions(s, 2), (4096, 8, 8)),
    "submit": (lambda w, s: w.engine.submit(w.store, w.store, s), (0, 1)),
    "submit, row": (lambda w, s: w.engine.submit(w.store, w.store, [s]), 1),
    "copy": (lambda w, s: w.engine.copy(w.store, w.store, s), (0, 1)),
    "copy_by_handle": (lambda w, s: _core.transfer.copy_by_handle(w.store.handle, w.store.handle, s), (0, 1)),
    "execute": (lambda w, s: w.engine.execute(w.plan, s), "store"),
    "execute, scratch": (lambda w, s: w.engine.execute(w.plan, [w.store, w.store], scratch=s), (0, 5)),
    # vLLM's pool.
    "vllm.find": (lambda w, s: w.vllm.find(b"x" * 32, s), 0),
    "vllm.find_run": (lambda w, s: w.vllm.find_run(s, HUGE, [0]), b"x" * 32),
    "vllm.find_window": (lambda w, s: w.vllm.find_window(s, HUGE, [0], 2, 4, 4, 0), b"x" * 32),
    "vllm.touch": (lambda w, s: w.vllm.touch(s), "block"),
    "vllm.free": (lambda w, s: w.vllm.free(s), "block"),
    "vllm.free, foreign": (lambda w, s: w.vllm.free(s), 1),
    "vllm.claim": (lambda w, s: w.vllm.claim(s), "block"),
    "vllm.unpin": (lambda w, s: w.vllm.unpin(s), "block"),
    "vllm.queue_push": (lambda w, s: w.vllm.queue_push(s, True), "block"),
    "vllm.num_evictable": (lambda w, s: w.vllm.num_evictable(s), "block"),
    "vllm.cache_full": (lambda w, s: w.vllm.cache_full(s, s, 0, HUGE, 4, 0), "block"),
    "vllm.cache_full, mask": (lambda w, s: w.vllm.cache_full([], [], 0, 0, 4, 0, s), True),
    "vllm_block_ids": (lambda _, s: _core.vllm.vllm_block_ids((s,)), "block"),
    "VllmGroups": (lambda w, s: _core.vllm.VllmGroups(w.vllm, s, waiting=[], **w.groups), GROUP),
    "VllmFeed.set_groups": (lambda w, s: w.feed.set_groups(s), (4, "full", None, True)),
    "VllmFeed.stored": (lambda w, s: w.feed.stored(None, [], 0, 4, 0, s), None),
    "VllmFeed.removed": (lambda w, s: w.feed.removed(s), (b"x" * 36, False)),
    "VllmGroups, waiting": (lambda w, s: _core.vllm.VllmGroups(w.vllm, [], waiting=s, **w.groups), 1),
    "VllmGroups, lookup": (
        lambda w, s: _core.vllm.VllmGroups(w.vllm, [GROUP], waiting=[], lookup=(4, s), **w.groups),
        ((0,), False, 4),
    ),
}

# Calls that take a count; those whose memory it decides at once.
COUNTS: dict[str, Call] = {
    "allocate": lambda w, n: w.pool.allocate(n),
    "evict": lambda w, n: w.pool.evict(n),
    "manager.evict": lambda w, n: w.manager.evict(n),
    "lookup, start": lambda w, n: w.pool.lookup(w.chain, n),
    "lookup, max_blocks": lambda w, n: w.pool.lookup(w.chain, 0, n, refresh=True),
    "pop_front_n": lambda _, n: kvpool.parts.FreeBlockList(8).pop_front_n(n),
    "allocator.allocate": lambda _, n: kvpool.parts.BlockAllocator(8).allocate(n),
    "lookahead": lambda w, n: w.manager.append_tokens("a", [1], lookahead=n),
    "append_ragged, lookahead": lambda w, n: w.manager.append_ragged(["a"], [1], lookahead=n),
    "append_ragged, count covered": lambda w, n: w.manager.append_ragged(["a"], [1], covered=[n]),
    "append_ragged, count computed": lambda w, n: w.manager.append_ragged(["a"], [1], computed=[n]),
    "append_ragged, offset": lambda w, n: w.manager.append_ragged(["a"], [1], [0, n]),
    "step.append_ragged, lookahead": lambda w, n: w.manager.plan_step().append_ragged(["a"], [1], lookahead=n),
    "step.lookahead": lambda w, n: w.manager.plan_step().append("a", [1], lookahead=n),
    "extend": lambda w, n: w.manager.extend("a", n),
    "allocate_tokens": lambda w, n: w.manager.fit([1], allocate_tokens=n),
    "external_tokens": lambda w, n: w.manager.admit("new", [1], external_tokens=n),
    "external_done": lambda w, n: w.manager.external_done("loads", n),
    "truncate": lambda w, n: w.manager.truncate("a", n),
    "truncate_batch, length": lambda w, n: w.manager.truncate_batch(["a"], [n]),
    "end_fence": lambda w, n: w.manager.end_fence(n),
    "until": lambda w, n: w.manager.release("a", until=n),
    "scrub": lambda w, n: w.pool.scrub(n),
    "manager.scrub": lambda w, n: w.manager.scrub(n),
    "max_blocks": lambda w, n: w.pool.match_and_acquire(w.chain, n),
    "points": lambda w, n: w.curve.points(n),
    "at": lambda w, n: w.curve.at(n),
    "host": lambda w, n: BlockStore.host(n, w.store),
    "threads": lambda _, n: TransferEngine(threads=n),
    "staging_bytes": lambda _, n: TransferEngine(staging_bytes=n),
    "ring_bytes": lambda _, n: kvpool.BlockPool(8, journal=kvpool.journal.Journal(ring_bytes=n)),
    "frame_bytes": lambda _, n: kvpool.BlockPool(8, journal=kvpool.journal.Journal(ring_bytes=2**62, frame_bytes=n)),
    "event_capacity": lambda _, n: kvpool.BlockPool(8, event_capacity=n),
    "host_blocks": lambda _, n: kvpool.CacheManager(8, host_blocks=n),
    "scrub_blocks": lambda _, n: kvpool.CacheManager(8, scrub_blocks=n),
    "max_sampled_blocks": lambda _, n: kvpool.BlockPool(8, advisor=kvpool.AdvisorConfig(max_sampled_blocks=n)),
    "max_tenants": lambda _, n: kvpool.BlockPool(8, advisor=kvpool.AdvisorConfig(max_tenants=n)),
    "pin_budget": lambda _, n: kvpool.BlockPool(8, retention=kvpool.RetentionConfig(pin_budget=n)),
    "resize": lambda w, n: w.pool.resize(n),
    "block_size": lambda _, n: kvpool.BlockHasher(block_size=n),
    "with_block_tokens": lambda w, n: w.trace.with_block_tokens(n),
    "optimal": lambda w, n: w.references.optimal(n),
    "sampled_lru": lambda w, n: _core.sizing.sampled_lru(w.trace, max_blocks=n),
    "replay.threads": lambda w, n: kvpool.traces.Replay(w.trace, threads=n),
    "replay.max_running": lambda w, n: kvpool.traces.Replay(
        w.trace, mode="engine", max_running=n, step_tokens=n, threads=1
    ),
    "read_journal": lambda w, n: kvpool.journal.read_journal(w.journal, count=n),
    "vllm.allocate": lambda w, n: w.vllm.allocate(n),
    "vllm.peek": lambda w, n: w.vllm.peek(n),
    "vllm.queue_pop": lambda w, n: w.vllm.queue_pop(n),
    "workers": lambda w, n: w.opened(workers=n),
    "queue": lambda w, n: w.opened(queue=n),
    "remembered_offers": lambda w, n: w.opened(remembered_offers=n),
    "slots": lambda _, n: store.Arena(n, 1),
    "slot_bytes": lambda _, n: store.Arena(1, n),
    "slots over memory": lambda w, n: store.Arena.over(w.memory, n),
    "capacity_bytes": lambda w, n: w.opened(store.Custom(w.anything, n, max_payload=1)),
    "VllmPool": lambda _, n: _core.vllm.VllmPool(n, True),
}
KINDS: dict[str, Callable[[Any], object]] = {
    "range": lambda _: range(HUGE),
    "liar": Liar,
    "greatest liar": lambda item: Liar(item, sys.maxsize),
    "endless": Endless,
    "array": lambda _: np.broadcast_to(np.int64(1), (HUGE,)),
    "mapping array": lambda _: np.broadcast_to(np.int64(1), (HUGE, 2)),
}
NUMBERS = {str(number): number for number in (2**31, HUGE, 2**63 - 1, 2**64 - 1, 2**127, 2**200)}
CASES = [
    *[("sequence", entry, kind) for entry in SEQUENCES for kind in KINDS],
    *[("count", entry, number) for entry in COUNTS for number in NUMBERS],
]


def call(world: World, case: tuple[str, str, str]) -> object:
    what, entry, kind = case
    if what == "count":
        return COUNTS[entry](world, NUMBERS[kind])
    run, item = SEQUENCES[entry]
    item = {"block": world.vllm.blocks[1], "store": world.store}.get(item, item) if isinstance(item, str) else item
    return run(world, KINDS[kind](item))


def outcome(world: World, case: tuple[str, str, str]) -> str:
    """What came of a call: "done", or the classes of what it raised."""
    try:
        call(world, case)
    except BaseException as error:
        return " ".join(base.__name__ for base in type(error).__mro__)
    return "done"


def limit_memory() -> None:
    """Leaves each call the same room, whatever the calls before it made the heap grow to."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, hard))


def main(first: int) -> None:
    world = World()
    for number, case in enumerate(CASES[first:], first):
        print(json.dumps([number, None]), flush=True)
        limit_memory()
        print(json.dumps([number, outcome(world, case)]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
