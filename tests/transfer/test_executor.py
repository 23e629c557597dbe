"""Tests a manager and an engine with real bytes. After forks, copies-on-write, swaps and aborts, each
request has its KV.

The KV of a token is a digest of all tokens up to it. It is written at the position that the block table
gives. After every operation, the test reads the KV of each running request through its table.
"""

from __future__ import annotations

import hashlib
import random
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import kvpool
from kvpool.transfer import BlockStore, PlanExecutor, TransferEngine
from tests.transfer.memory import MORE, Blocks

if TYPE_CHECKING:
    from tests.transfer.fake_cuda.driver import Driver, FakeCuda

BLOCK_SIZE = 4
SLOT = 8  # bytes of KV per token and layer
LAYERS = 2
BLOCKS, HOST_BLOCKS = 20, 16


def kv(tokens: list[int], position: int) -> bytes:
    return hashlib.blake2b(repr(tokens[: position + 1]).encode(), digest_size=SLOT).digest()


class Server:
    """Requests on a manager, whose plans an executor carries out."""

    def __init__(self, seed: int, fake: FakeCuda | None, driver: Driver | None) -> None:
        self.rng = random.Random(seed)
        self.fake, self.driver = fake, driver
        self.manager = kvpool.CacheManager(num_blocks=BLOCKS, block_size=BLOCK_SIZE, host_blocks=HOST_BLOCKS)
        tensors = [torch.zeros(BLOCKS, BLOCK_SIZE * SLOT, dtype=torch.uint8) for _ in range(LAYERS)]
        self.memory = Blocks(tensors, 0, fake=fake)
        self.bytes = [tensor.numpy() for tensor in tensors]
        device = self.memory.store
        pinned = fake is not None and seed % 2 == 0
        host = BlockStore.host(HOST_BLOCKS, like=device, pinned=pinned)
        self.stream = driver.stream() if driver else None
        self.engine = TransferEngine(device.device, staging_bytes=4096)
        self.executor = PlanExecutor(self.manager, self.engine, [device, host])
        self.tokens: dict[str, list[int]] = {}
        self.running: list[str] = []
        self.swapped: list[str] = []
        self.preempted: list[str] = []
        self.moving: dict[int, tuple[list[str], str]] = {}
        self.begun: list[int] = []
        self.names = iter(range(10**9))

    def execute(self) -> None:
        """Carries out the copies of this step, after planning and before computing."""
        self.executor.run(self.begun, stream=self.stream)
        self.begun = []
        if self.driver:
            assert self.driver.call("cuStreamSynchronize", self.stream) == 0

    def compute(self, name: str) -> None:
        """Stands in for the model: writes the KV of every token that is not computed, and commits it."""
        tokens = self.tokens[name]
        table = self.manager.block_ids(name)
        for position in range(self.manager.request(name).computed_tokens, len(tokens)):
            block, slot = table[position // BLOCK_SIZE], position % BLOCK_SIZE * SLOT
            for layer in self.bytes:
                layer[block, slot : slot + SLOT] = np.frombuffer(kv(tokens, position), np.uint8)
        self.manager.commit(name, len(tokens))

    def check(self) -> None:
        for name in self.running:
            tokens, table = self.tokens[name], self.manager.block_ids(name)
            for position in range(self.manager.request(name).computed_tokens):
                block, slot = table[position // BLOCK_SIZE], position % BLOCK_SIZE * SLOT
                for layer in self.bytes:
                    found = layer[block, slot : slot + SLOT].tobytes()
                    assert found == kv(tokens, position), f"{name}, position {position}, block {block}"
        self.manager.diagnose.check_invariants()

    def admit(self) -> None:
        prompt = list(range(self.rng.choice((3, 4, 9)))) + [
            self.rng.randrange(3) for _ in range(self.rng.randrange(6))
        ]
        name = f"r{next(self.names)}"
        try:
            self.manager.admit(name, prompt)
        except kvpool.errors.OutOfBlocksError:
            return
        self.tokens[name] = prompt
        self.running.append(name)
        self.execute()
        self.compute(name)

    def decode(self) -> None:
        if not self.running:
            return
        sampled = [self.rng.randrange(3) for _ in self.running]
        try:
            self.manager.append(self.running, sampled)
        except kvpool.errors.OutOfBlocksError:
            return
        for name, token in zip(self.running, sampled, strict=True):
            self.tokens[name].append(token)
        self.execute()
        for name in self.running:
            self.compute(name)

    def fork(self) -> None:
        if self.running:
            parent, child = self.rng.choice(self.running), f"r{next(self.names)}"
            self.manager.fork(parent, child)
            self.tokens[child] = list(self.tokens[parent])
            self.running.append(child)

    def swap(self) -> None:
        out = self.rng.random() < 0.5
        here = self.running if out else self.swapped
        if not here:
            return
        names = self.rng.sample(here, self.rng.randint(1, min(2, len(here))))
        begin = self.manager.swaps.begin_out if out else self.manager.swaps.begin_in
        try:
            swap = begin(names)
        except kvpool.errors.OutOfBlocksError:
            return
        self.moving[swap] = (names, "out" if out else "in")
        self.begun.append(swap)
        for name in names:
            here.remove(name)
        if self.rng.random() < 0.7:
            self.execute()

    def poll(self) -> None:
        for finished in self.executor.poll():
            names, way = self.moving.pop(finished.swap)
            assert finished.error is None
            (self.swapped if way == "out" else self.running).extend(names)

    def recompute(self) -> None:
        if self.running and self.rng.random() < 0.5:
            name = self.running.pop(self.rng.randrange(len(self.running)))
            self.manager.preempt(name)
            self.preempted.append(name)
        elif self.preempted:
            name = self.preempted[0]
            try:
                self.manager.resume(name)
            except kvpool.errors.OutOfBlocksError:
                return
            self.preempted.pop(0)
            self.running.append(name)
            self.execute()
            self.compute(name)

    def release(self) -> None:
        if self.running:
            name = self.running.pop(self.rng.randrange(len(self.running)))
            self.manager.release(name)
            del self.tokens[name]

    def run(self, steps: int) -> None:
        operations = [
            self.admit,
            self.decode,
            self.decode,
            self.fork,
            self.swap,
            self.swap,
            self.poll,
            self.recompute,
        ]
        for _ in range(steps):
            self.rng.choice([*operations, self.release])()
            if self.fake:
                for _ in range(self.rng.randrange(3)):
                    self.fake.run_pick(self.rng.randrange(1 << 30))
            self.check()
        self.execute()
        for finished in self.executor.wait():
            names, way = self.moving.pop(finished.swap)
            (self.swapped if way == "out" else self.running).extend(names)
        assert not self.moving
        for name in [*self.running, *self.swapped, *self.preempted]:
            self.manager.release(name)
        self.manager.diagnose.check_invariants()
        host = self.manager.swaps.host_stats()
        assert host is not None
        assert self.manager.stats().pool.active == host.active == 0
        self.engine.close()
        self.memory.release()


@pytest.mark.longer
@pytest.mark.parametrize("seed", range(8 * MORE))
def test_requests_keep_their_kv_on_the_cpu(seed: int) -> None:
    Server(seed, None, None).run(120)


@pytest.mark.longer
@pytest.mark.parametrize("seed", range(12 * MORE))
def test_requests_keep_their_kv_on_a_device(seed: int, lazy: FakeCuda, driver: Driver) -> None:
    Server(seed, lazy, driver).run(120)


def _pair(blocks: int = 8) -> tuple[Blocks, BlockStore]:
    memory = Blocks([torch.randint(0, 256, (blocks, 64), dtype=torch.uint8)], 0)
    return memory, BlockStore.host(blocks, like=memory.store)


def test_rounds_of_a_plan_follow_each_other() -> None:
    """In the plan, some blocks are both source and destination. The result must be as if all copies
    were made at the same time.
    """
    memory, host = _pair()
    before = [memory.block(i) for i in range(8)]
    chain = [((0, 1), (0, 2)), ((0, 2), (0, 3)), ((0, 3), (1, 4)), ((1, 4), (0, 1))]
    host.write_block(4, bytes(64))
    with TransferEngine() as engine:
        for transfer in engine.execute(kvpool.TransferPlan(chain), [memory.store, host], scratch=[(1, 7)]):
            transfer.wait()
        assert [memory.block(i) for i in (2, 3, 1)] == [before[1], before[2], bytes(64)]
        assert host.read_block(4) == before[3]
        with pytest.raises(kvpool.errors.InvalidArgumentError, match="cycles"):
            engine.execute(kvpool.TransferPlan([((0, 1), (0, 2)), ((0, 2), (0, 1))]), [memory.store, host])


def test_a_plan_of_a_tier_without_a_store_starts_nothing() -> None:
    memory, _ = _pair()
    before = memory.copy()
    plan = kvpool.TransferPlan([((0, 1), (0, 2)), ((0, 3), (1, 4))])
    with TransferEngine() as engine:
        with pytest.raises(
            kvpool.errors.InvalidArgumentError,
            match="one store per tier; the plan has a copy of tier 1",
        ):
            engine.execute(plan, [memory.store])
        assert memory.same(before)


def test_a_swap_that_another_caller_ended_is_reported() -> None:
    memory, host = _pair()
    manager = kvpool.CacheManager(num_blocks=8, block_size=4, host_blocks=8)
    for name in "ab":
        manager.admit(name, [ord(name)] * 8)
    with TransferEngine() as engine:
        executor = PlanExecutor(manager, engine, [memory.store, host])
        swaps = [manager.swaps.begin_out([name]) for name in "ab"]
        executor.run(swaps)
        manager.swaps.abort(swaps[0])
        first, second = executor.wait()
    assert isinstance(first.error, kvpool.errors.SwapError)
    assert second.error is None
    assert manager.block_ids("a") != []
    manager.diagnose.check_invariants()


class OldPlanner:
    """A caller's own manager with the method names of earlier versions."""

    def __init__(self) -> None:
        self.manager = kvpool.CacheManager(num_blocks=8, block_size=4, host_blocks=8)
        self.take_plan = self.manager.take_plan
        self.complete_swap = self.manager.swaps.complete
        self.abort_swap = self.manager.swaps.abort

    def __getattr__(self, name: str) -> object:
        """Passes all other calls to the manager, as a wrapper does."""
        return getattr(self.manager, name)


@pytest.mark.parametrize("fails", [False, True])
def test_a_planner_with_the_old_method_names_warns_once_and_works(fails: bool) -> None:
    memory, host = _pair()
    planner = OldPlanner()
    planner.manager.admit("a", range(8))
    stores = [memory.store] if fails else [memory.store, host]
    with TransferEngine() as engine, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        executor = PlanExecutor(planner, engine, stores)  # type: ignore[arg-type]
        executor.run([planner.manager.swaps.begin_out(["a"])])
        (finished,) = executor.wait()
    assert [warning.category for warning in caught] == [DeprecationWarning]
    assert "OldPlanner needs swaps.complete and swaps.abort" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert (finished.error is not None) == fails
    assert planner.manager.request("a").state == ("running" if fails else "swapped")
    planner.manager.diagnose.check_invariants()
