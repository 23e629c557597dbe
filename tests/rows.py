"""Lists the calls of the public classes that take arguments. Each row has a call, and arguments with
which it succeeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

import kvpool
from kvpool import _core, hashing, journal, parts, sizing, store, traces
from kvpool.testing import observe_manager, observe_pool
from kvpool.transfer import BlockStore, TransferEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMESPACE: Final[dict[str, Any]] = {
    "model": "m",
    "weights": "w",
    "kv_dtype": "b",
    "scales": "",
    "layouts": [(0, "a", [1], [1])],
    "block_size": 4,
    "layers": (0, 1),
    "heads": (0, 1),
    "hash_algorithm": "sha256",
    "hash_seed": b"",
    "extra": {},
}


class Row(NamedTuple):
    """A call of a public class, and arguments that it accepts."""

    name: str
    call: Callable[..., Any]
    arguments: dict[str, Any]


class World:
    """The objects on which the calls of the rows are made.

    In the manager, request "run" holds blocks 1 to 3, of which two are computed, and "new" holds blocks
    4 and 5. Request "wait" is preempted, "far" is swapped out, and "loads" is loading. In the pool,
    blocks 1 and 2 are active, and 2 has two references. Block 3 is fenced until step 5, and 4 is
    cached-free.
    """

    def __init__(self, folder: Path) -> None:
        self.hasher = kvpool.BlockHasher(block_size=4)
        self.cursor = self.hasher.cursor([1, 2])
        self.chain = self.hasher.cursor(range(16)).chain()
        self.link = self.hasher.link([7, 7, 7, 7])
        self.retention = kvpool.Retention(50)
        ring = journal.Journal(ring_bytes=1 << 18)
        self.manager = kvpool.CacheManager(40, 4, retention=True, host_blocks=8, explain=True, journal=ring)
        self.manager.admit("run", range(10))
        self.manager.commit("run", 8)
        self.manager.admit("new", range(20, 26))
        self.manager.admit("wait", range(50, 60))
        self.manager.preempt("wait")
        self.manager.admit("loads", range(70, 78), external_tokens=7)
        for request in ("far", "moves"):
            self.manager.admit(request, range(80, 84))
            self.swap = self.manager.swaps.begin_out([request])
            self.manager.take_plan()
            if request == "far":
                self.manager.swaps.complete(self.swap)
        self.ticket = self.manager.fence()
        self.step = self.manager.plan_step()
        groups = [kvpool.GroupSpec("full", 4), kvpool.GroupSpec("cross", 4)]
        self.hybrid = kvpool.CacheManager(40, 4, groups=groups)
        self.hybrid.admit("run", range(10))
        self.pool = kvpool.BlockPool(40, 4, retention=True, payloads=True, journal=ring)
        self.pool.allocate(4)
        self.pool.acquire([2])
        self.pool.release([3], after_step=5)
        self.pool.register([4], self.chain)
        self.pool.mark_computed([4])
        self.pool.release([4])
        self.fence = self.pool.fence()
        self.tiers = kvpool.TieredPool([64, 8])
        self.tiers.pools[0].allocate(3)
        self.allocator = parts.BlockAllocator(9)
        self.allocator.allocate(3)
        self.free = parts.FreeBlockList(9)
        self.free.pop_front_n(3)
        self.evictor = parts.LruEvictor(9)
        self.evictor.insert([(1, 0)])
        self.index = parts.PrefixIndex(9, 4)
        self.index.insert(1, self.chain, 0)
        self.plan = kvpool.TransferPlan([((0, 1), (0, 2))])
        self.trace = traces.Trace.generate(20, block_tokens=16)
        self.references = _core.sizing.References(self.trace)
        self.curve = self.references.lru()
        self.replay = traces.Replay(self.trace)
        self.arena = store.Arena(4, 64)
        self.folder = folder
        self.memory = np.zeros((2, 64), dtype=np.uint8)
        regions = [[(one.ctypes.data, 8, 8)] for one in self.memory]
        self.source, self.target = (
            BlockStore.from_regions(one, 8, keep_alive=self.memory) for one in regions
        )
        self.engine = TransferEngine(threads=1)
        self.transfer = self.engine.submit(self.source, self.target, [])
        self.transfer.wait()

    def seen(self) -> object:
        """Returns everything that can be observed of these objects, to check that a failed call has
        changed nothing.
        """
        requests: list[str | int] = ["run", "new", "wait", "loads", "far", "moves", "other", 1]
        parts_seen = (
            self.free.order(),
            self.allocator.free_order(),
            len(self.evictor),
            self.index.copies(self.chain, 0),
        )
        return (
            observe_manager(self.manager, requests),
            observe_manager(self.hybrid, requests),
            *(observe_pool(pool) for pool in (self.pool, *self.tiers.pools)),
            *(len(self.step), len(self.cursor), parts_seen, self.memory.tobytes()),
            *(self.engine.in_flight, self.pool.stats()),
        )


def row(call: Callable[..., Any], /, **arguments: Any) -> Row:
    return Row(call.__qualname__, call, arguments)


def batch(call: Callable[..., Any], /, **arguments: Any) -> Row:
    """Returns a row for a call that takes either one request or block, or a batch of them. Here it
    takes a batch.
    """
    return Row(f"{call.__qualname__} (batch)", call, arguments)


def rows(w: World) -> dict[str, Row]:
    """Returns all rows (a call and its valid arguments), by the name of the call."""
    m, p, s = w.manager, w.pool, w.step
    made = [
        *settings(w),
        *manager_rows(w),
        row(s.admit, request_id="other", prompt=[1, 2]),
        row(s.append, request_id="run", token_ids=[1]),
        row(s.append_ragged, request_ids=["run"], token_ids=[1]),
        row(s.preempt, request_id="run"),
        row(s.release, request_id="run"),
        row(s.resume, request_id="wait"),
        *pool_rows(w),
        row(w.tiers.begin_swap, block_ids=[1], src=0, dst=1),
        row(w.tiers.copy_on_write, block_id=1),
        row(w.tiers.fit_swap, block_ids=[1], src=0, dst=1),
        row(w.hasher.cursor, tokens=[1]),
        row(w.hasher.hash_tokens, tokens=[1]),
        row(w.hasher.link, tokens=[1, 2, 3, 4]),
        row(w.cursor.append, tokens=[1]),
        row(w.cursor.rebase, epoch=1),
        row(w.cursor.truncate, num_tokens=1),
        row(m.stats().bytes, blocks=1),
        row(p.stats().tokens, blocks=1),
        row(w.allocator.acquire, block_ids=[1]),
        row(w.allocator.allocate, n=1),
        row(w.allocator.ref_count, block_id=1),
        row(w.allocator.release, block_ids=[1]),
        row(w.free.pop_front_n, n=1),
        row(w.free.push_back, block_id=1),
        row(w.free.push_front, block_id=1),
        row(w.free.push_front_n, block_ids=[1]),
        row(w.free.remove, block_id=8),
        row(w.evictor.insert, candidates=[(2, 0)]),
        row(w.evictor.remove, block_id=1),
        row(w.index.copies, chain=w.chain, position=0),
        row(w.index.find, chain=w.chain, position=0),
        row(w.index.insert, block_id=2, chain=w.chain, position=1),
        row(w.index.mark_computed, block_id=1),
        row(w.index.remove, block_id=1),
        row(w.curve.at, capacity_blocks=8),
        row(w.curve.points),
        row(w.curve.capacity_for, share=0.5),
        row(w.curve.distance_quantile, fraction=0.5),
        row(w.curve.knee),
        row(w.curve.worth, bytes_per_token=8, gib=[1.0]),
        row(w.references.lru_with_hints, capacity_blocks=8, accuracy=0.5),
        row(w.references.optimal, capacity_blocks=8),
        row(w.references.over_time, run=w.references.run("lru", 8), window_s=1.0),
        row(w.references.run, policy="lru", capacity_blocks=8),
        row(w.replay.advance),
        row(w.arena.read, slot=0),
        row(w.arena.write, slot=0, payload=b"x"),
        row(w.trace.to_jsonl),
        row(traces.TraceReader(traces.example_path()).advance),
        row(w.plan.rounds),
        row(w.plan.runs),
        row(w.trace.with_block_tokens, block_tokens=16),
        row(w.source.read_block, block=1),
        row(w.target.write_block, block=1, data=bytes(8)),
        row(w.engine.copy, src=w.source, dst=w.target, mapping=[(0, 1)]),
        row(w.engine.execute, plan=w.plan, stores=[w.target]),
        row(w.engine.submit, src=w.source, dst=w.target, mapping=[(0, 1)]),
        row(w.engine.wait),
        row(w.transfer.wait),
        row(w.transfer.wait_on),
    ]
    return {one.name: one for one in made}


def manager_rows(w: World) -> list[Row]:
    """Returns the rows of a manager's calls, and of the objects in its properties."""
    m = w.manager
    ranges = [(0, None, w.retention)]
    return [
        row(m.admit, request_id="other", prompt=[1, 2]),
        batch(m.append, request_ids=["run"], token_ids=[1]),
        row(m.append, request_ids="run", token_ids=[1]),
        row(m.append_ragged, request_ids=["run"], token_ids=[1]),
        row(m.block_ids, request_id="run"),
        row(m.commit, request_id="run", computed_tokens=9),
        batch(m.commit, request_id=["run"], computed_tokens=[9]),
        row(m.complete_step, step=1),
        row(m.drop_cached, block_ids=[1]),
        row(m.end_fence, ticket=w.ticket),
        row(m.evict, n=1),
        row(m.explain, request_id="run"),
        row(m.extend, request_id="run", num_tokens=4),
        row(m.external_done, request_id="loads"),
        row(m.fit, prompt=[1]),
        row(m.fork, parent_id="run", child_id="other"),
        batch(m.fork, parent_id=["run"], child_id=["other"]),
        row(m.next_checkpoint, request_id="run"),
        row(m.preempt, request_id="run"),
        row(m.prepare, tokens=[1]),
        row(m.probe, prompt=[1]),
        row(m.release, request_id="run"),
        batch(m.release, request_id=["run"]),
        row(m.request, request_id="run"),
        row(m.resize, num_blocks=41),
        row(m.resume, request_id="wait"),
        row(m.trim_window, request_id="run", window=4),
        row(m.truncate, request_id="run", num_tokens=9),
        batch(m.truncate, request_id=["run"], num_tokens=[9]),
        row(m.swaps.abort, swap=w.swap),
        row(m.swaps.begin_in, request_ids=["far"]),
        row(m.swaps.begin_out, request_ids=["run"]),
        row(m.swaps.complete, swap=w.swap),
        row(m.swaps.fit_in, request_ids=["far"]),
        row(m.swaps.fit_out, request_ids=["run"]),
        row(m.retention.end_of_life, target="run"),
        row(m.retention.end_session, request_id="run"),
        row(m.retention.retain, target="run", ranges=ranges),
        row(m.retention.set_tenant, request_id="run", tenant=1),
        row(m.retention.tenant_blocks, tenant=1),
        row(m.journal.save, path=f"{w.folder}/manager.kvj"),
        row(m.diagnose.scrub, blocks=1),
        row(m.clock.advance, now=1.0),
        row(m.clock.observe, now=1.0),
    ]


def pool_rows(w: World) -> list[Row]:
    """Returns the rows of a pool's calls, and of the objects in its properties."""
    p = w.pool
    looks = (p.diagnose.hash_of, p.diagnose.is_computed, p.diagnose.is_registered, p.diagnose.num_holders)
    return [
        row(p.acquire, block_ids=[1]),
        row(p.adopt, block_ids=[9], chain=w.chain),
        row(p.allocate, n=1),
        row(p.complete_step, step=1),
        row(p.disown, block_ids=[1]),
        row(p.drop_cached, block_ids=[4]),
        row(p.end_fence, ticket=w.fence),
        row(p.evict, n=1),
        row(p.lookup, chain=w.chain),
        row(p.mark_accessed, block_ids=[1], time=1.0),
        row(p.mark_computed, block_ids=[4]),
        row(p.match_and_acquire, chain=w.chain),
        row(p.probe, chain=w.chain),
        row(p.ref_count, block_id=1),
        batch(p.ref_count, block_id=[1]),
        row(p.register, block_ids=[1], chain=w.chain),
        row(p.register_link, block_id=1, link=w.link),
        row(p.register_table, block_ids=[1], chain=w.chain),
        row(p.release, block_ids=[1]),
        row(p.resize, num_blocks=41),
        row(p.set_payloads, block_ids=[4], payloads=[7]),
        row(p.signal, block_ids=[1]),
        row(p.state, block_id=1),
        batch(p.state, block_id=[1]),
        row(p.retention.assign_tenant, block_ids=[1], tenant=1),
        row(p.retention.retain, block_ids=[1], retention=w.retention),
        row(p.retention.tenant_blocks, tenant=1),
        row(p.journal.save, path=f"{w.folder}/pool.kvj"),
        *(row(look, block_id=1) for look in looks),
        row(p.diagnose.copies, digest=b"x" * 32),
        row(p.diagnose.scrub, blocks=1),
        row(p.clock.advance, now=1.0),
        row(p.clock.observe, now=1.0),
    ]


def settings(w: World) -> list[Row]:
    """Returns the rows of the classes and functions that make the objects of the other rows."""
    region = (w.memory.ctypes.data, 8, 8)
    return [
        *(row(made, num_blocks=9) for made in (kvpool.CacheManager, kvpool.BlockPool, parts.PrefixIndex)),
        *(row(made, num_blocks=9) for made in (parts.BlockAllocator, parts.FreeBlockList, parts.LruEvictor)),
        *(
            row(made)
            for made in (kvpool.BlockHasher, kvpool.ExtraKeys, kvpool.Retention, kvpool.RetentionConfig)
        ),
        *(row(made) for made in (kvpool.AdvisorConfig, kvpool.ExplainConfig, TransferEngine)),
        row(journal.Journal, ring_bytes=1 << 18),
        row(kvpool.TieredPool, num_blocks=[9, 9]),
        row(kvpool.GroupSpec, kind="full"),
        row(kvpool.TenantLimits, tenant=1),
        row(kvpool.Match, chain=w.chain, block_ids=[1]),
        row(kvpool.TransferPlan, transfers=[((0, 1), (1, 1))]),
        row(hashing.HashChain.from_digests, algorithm="sha256", block_size=4, digests=[b"x" * 32]),
        row(hashing.ChainLink.from_digest, algorithm="sha256", digest=b"x" * 32, tokens=[1, 2]),
        row(traces.Replay, trace=w.trace),
        row(traces.Trace.generate, requests=4),
        row(store.Arena, slots=1, slot_bytes=64),
        row(store.Arena.over, memory=bytearray(64), slot_bytes=64),
        row(store.Namespace.from_json, text=store.Namespace(**NAMESPACE).to_json()),
        row(sizing.References, trace=w.trace),
        row(traces.Trace.parse, data=traces.example_path().read_bytes()),
        row(traces.Trace.read, path=traces.example_path()),
        row(traces.TraceReader, path=traces.example_path()),
        row(store.Disk, folder=f"{w.folder}/disk", capacity_bytes=1 << 20),
        row(store.SharedFolder, folder=f"{w.folder}/shared", capacity_bytes=1 << 20),
        row(store.Redis, capacity_bytes=1 << 20),
        row(store.Namespace, **NAMESPACE),
        row(BlockStore.from_regions, regions=[region], num_blocks=8),
        row(BlockStore.host, num_blocks=4, like=w.source),
    ]
