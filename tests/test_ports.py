"""Tests examples/ports. Each port gives the same answers as the plain manager that it replaces, and no
request reads the KV of another one.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvpool

# Add the repository's root to the path, because the examples are not part of the package.
sys.path.insert(0, str(Path(__file__).parents[1]))

from examples.ports import (
    beams,
    block_space,
    disaggregated,
    ids_and_trie,
    in_flight,
    index_only,
    native,
    radix_cache,
    sequence_manager,
)
from examples.ports.memory import Memory, WrongKVError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

MODULES = [
    sequence_manager,
    ids_and_trie,
    radix_cache,
    index_only,
    block_space,
    native,
    in_flight,
    disaggregated,
    beams,
]
# Fewer examples than usual, because one example is a whole workload.
FEW = settings(max_examples=max(settings().max_examples // 3, 1))


@dataclasses.dataclass(frozen=True)
class Workload:
    """Prompts of two different tokens, which therefore share long prefixes. The pool has room for
    little more than one request.
    """

    block_size: int
    prompts: list[list[int]]
    new_tokens: int
    spare: int

    def blocks(self, copies: int = 1, more_tokens: int = 0) -> int:
        """Returns a number of blocks for the pool: room for ``copies`` of the longest request, the null
        block, and some spare blocks.
        """
        longest = max(map(len, self.prompts)) + self.new_tokens + more_tokens
        return 1 + copies * (1 + -(-longest // self.block_size)) + self.spare


WORKLOADS = st.builds(
    Workload,
    block_size=st.integers(1, 5),
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), min_size=1, max_size=12),
    new_tokens=st.integers(2, 20),
    spare=st.integers(0, 20),
)


def memory(blocks: int, workload: Workload) -> Memory:
    return Memory(blocks, workload.block_size)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_each_runs_and_prints_what_it_did(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    module.main()
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) >= 1
    assert "False" not in printed.replace("fences=False", "")
    assert ("holds other KV" in printed) == (module is in_flight), "only what shows a missing fence"


#: Functions that make the plain manager and the port's manager, and the function that serves requests
#: with either of them.
PORTS: list[tuple[Any, Any, Any]] = [
    (sequence_manager.PlainBlockManager, sequence_manager.BlockManager, sequence_manager.serve),
    (ids_and_trie.PlainIdsAndTrie, ids_and_trie.IdsAndTrie, ids_and_trie.serve),
    (ids_and_trie.PlainIdsAndTrie, index_only.BatchIdsAndTrie, ids_and_trie.serve),
    (radix_cache.PlainRadixCache, radix_cache.RadixCache, radix_cache.serve),
    (radix_cache.PlainRadixCache, index_only.IndexOnly, radix_cache.serve),
]


@pytest.mark.parametrize(("plain", "port", "serve"), PORTS, ids=[port.__name__ for _, port, _ in PORTS])
@FEW
@given(WORKLOADS)
def test_a_port_answers_as_the_plain_manager(plain: Any, port: Any, serve: Any, workload: Workload) -> None:
    blocks = workload.blocks()
    new_tokens = [] if serve is radix_cache.serve else [workload.new_tokens]
    managers = [kind(blocks, workload.block_size) for kind in (plain, port)]
    logs = [serve(manager, memory(blocks, workload), workload.prompts, *new_tokens) for manager in managers]
    assert logs[0] == logs[1]
    ported = managers[1]
    subject = ported.manager if port is sequence_manager.BlockManager else ported.pool
    subject.diagnose.check_invariants()
    assert ported.num_available == blocks - 1
    if serve is radix_cache.serve:
        assert ported.sizes[1] == 0
    if port is index_only.BatchIdsAndTrie:
        assert not ported.ref_counts(np.arange(1, blocks, dtype=np.int32)).any()


@FEW
@given(WORKLOADS, st.integers(1, 3))
def test_the_block_space_answers_as_the_plain_one(workload: Workload, samples: int) -> None:
    blocks = workload.blocks(samples)
    host = 1 + len(workload.prompts) * blocks
    managers: list[block_space.Manager] = [
        kind(blocks, workload.block_size, host)
        for kind in (block_space.PlainBlockSpaceManager, block_space.BlockSpaceManager)
    ]
    logs = [
        block_space.serve(
            manager,
            memory(blocks, workload),
            memory(host, workload),
            workload.prompts,
            samples,
            workload.new_tokens,
        )
        for manager in managers
    ]
    assert logs[0] == logs[1]
    assert all(manager.num_available == blocks - 1 for manager in managers)


def test_the_block_space_returns_never() -> None:
    group = block_space.Group(0, [1] * 40, {0: [1] * 40})
    assert block_space.PlainBlockSpaceManager(8, 4, 8).can_allocate(group) == "never"
    assert block_space.BlockSpaceManager(8, 4, 8).can_allocate(group) == "never"


@FEW
@given(WORKLOADS, st.integers(0, 4), st.sampled_from([1, 3, 8, 1000]))
def test_chunks_and_drafts_change_no_answer(workload: Workload, drafts: int, budget: int) -> None:
    blocks = workload.blocks(more_tokens=drafts)
    manager = kvpool.CacheManager(blocks, workload.block_size)
    scheduler = native.Scheduler(manager, memory(blocks, workload), budget=budget, drafts=drafts)
    for key, prompt in enumerate(workload.prompts):
        scheduler.submit(key, prompt, workload.new_tokens)
    for _ in range(5_000):
        if not scheduler.running and not scheduler.waiting:
            break
        scheduler.step()
        manager.diagnose.check_invariants()
    assert scheduler.done == {
        key: native.continuation(prompt, workload.new_tokens) for key, prompt in enumerate(workload.prompts)
    }
    assert manager.num_available == blocks - 1


@pytest.mark.parametrize(("new_tokens", "drafts"), [(1, 0), (9, 0), (9, 3)])
def test_all_computed_blocks_of_a_finished_request_are_cached(new_tokens: int, drafts: int) -> None:
    manager = kvpool.CacheManager(100, 4)
    scheduler = native.Scheduler(manager, Memory(100, 4), budget=1000, drafts=drafts)
    scheduler.submit(0, list(range(40)), new_tokens)
    while scheduler.running or scheduler.waiting:
        scheduler.step()
    # The last step computes every token except the one that it samples.
    assert manager.stats().pool.cached_free == (len(scheduler.done[0]) - 1) // 4


class StepRecord(Memory):
    """Memory that records where each row of the last step began to compute."""

    starts: list[int]

    def step(self, rows: Iterable[tuple[Sequence[int], Sequence[int], int]]) -> None:
        batch = list(rows)
        self.starts = [start for _, _, start in batch]
        super().step(batch)


def test_a_preempted_request_resumes_with_the_tokens_of_its_last_step() -> None:
    # The pool has 8 usable blocks, which the two prompts fill. The second step needs two more.
    manager, memory = kvpool.CacheManager(9, 4), StepRecord(9, 4)
    scheduler = native.Scheduler(manager, memory, budget=1000)
    scheduler.submit(0, [0] * 16, 4)
    scheduler.submit(1, [1] * 16, 4)
    scheduler.step()
    assert memory.starts == [0, 0]
    scheduler.step()
    assert (memory.starts, scheduler.preemptions) == ([16], 1)
    while 0 not in scheduler.done:
        scheduler.step()
    scheduler.step()
    # Request 0 took one of the four cached blocks of request 1, so request 1 begins at token 12.
    assert memory.starts == [12]


def run_in_flight(workload: Workload, *, fences: bool) -> in_flight.Scheduler:
    blocks = workload.blocks()
    manager = kvpool.CacheManager(blocks, workload.block_size)
    scheduler = in_flight.Scheduler(manager, memory(blocks, workload), fences=fences)
    for key, prompt in enumerate(workload.prompts):
        scheduler.submit(key, prompt, workload.new_tokens)
    for _ in range(5_000):
        if not scheduler.busy:
            break
        scheduler.step()
        manager.diagnose.check_invariants()
    return scheduler


@FEW
@given(WORKLOADS)
def test_steps_in_flight_change_no_answer(workload: Workload) -> None:
    scheduler = run_in_flight(workload, fences=True)
    assert scheduler.done == {
        key: in_flight.answer(prompt, workload.new_tokens) for key, prompt in enumerate(workload.prompts)
    }
    assert scheduler.manager.num_available == scheduler.manager.num_blocks - 1
    assert scheduler.manager.stats().pool.fenced == 0


def test_without_fences_a_step_in_flight_writes_to_blocks_of_others() -> None:
    prompts = [[*range(12), *[number] * (3 + number % 5)] for number in range(20)]
    with pytest.raises(WrongKVError):
        run_in_flight(Workload(4, prompts, 30, 10), fences=False)


@FEW
@given(WORKLOADS, st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 1000))
def test_transfers_that_fail_and_aborts_change_no_answer(workload: Workload, lost: float, seed: int) -> None:
    blocks = (workload.blocks(), workload.blocks() + seed % 7)
    service = disaggregated.Service(blocks, workload.block_size, lost=lost, seed=seed)
    for key, prompt in enumerate(workload.prompts):
        service.submit(key, prompt, workload.new_tokens)
    chance, aborted = random.Random(seed), set()
    for _ in range(5_000):
        if not service.busy:
            break
        service.step()
        key = chance.randrange(10 * len(workload.prompts))
        if key < len(workload.prompts) and key not in service.done:
            service.abort(key)
            aborted.add(key)
        for manager in service.managers:
            manager.diagnose.check_invariants()
    assert service.done == {
        key: native.continuation(prompt, workload.new_tokens)
        for key, prompt in enumerate(workload.prompts)
        if key not in aborted
    }
    assert all(manager.num_available == manager.num_blocks - 1 for manager in service.managers)


@FEW
@given(WORKLOADS, st.integers(1, 6))
def test_beams_are_those_of_plain_lists(workload: Workload, width: int) -> None:
    blocks = workload.blocks(2 * width)
    manager, written = kvpool.CacheManager(blocks, workload.block_size), memory(blocks, workload)
    for prompt in workload.prompts:
        search = beams.BeamSearch(manager, written, prompt, width)
        for _ in range(workload.new_tokens):
            search.step()
        manager.diagnose.check_invariants()
        assert search.finish() == beams.plain_search(prompt, width, workload.new_tokens)
    assert manager.num_available == blocks - 1


def test_the_memory_finds_what_is_wrong() -> None:
    ours, table = Memory(8, 4), [1, 2]
    ours.write(table, [1, 2, 3, 4, 5], 0)
    ours.read(table, [1, 2, 3, 4, 5])
    wrong: list[tuple[list[int], list[int]]] = [
        ([1, 3], [1, 2, 3, 4, 5]),  # a block that was never written
        (table, [1, 2, 3, 4, 6]),  # another token
        (table, [9, 2, 3, 4, 5]),  # another token long before
        ([2, 1], [1, 2, 3, 4, 5]),  # the blocks in another order
    ]
    for blocks, tokens in wrong:
        with pytest.raises(WrongKVError):
            ours.read(blocks, tokens)
    ours.copy([(1, 2), (2, 1)])  # at the same time
    ours.read([2, 1], [1, 2, 3, 4, 5])
    ours.write([3], [7], 0)
    ours.write([2], [7], 0)  # another request's block
    with pytest.raises(WrongKVError):
        ours.read([2, 1], [1, 2, 3, 4, 5])


DOCS = Path(__file__).resolve().parent.parent / "docs" / "porting.md"


def test_the_snippets_of_the_docs_run_each_alone() -> None:
    snippets = DOCS.read_text(encoding="utf-8").split("```python\n")[1:]
    assert len(snippets) >= 4
    for number, snippet in enumerate(snippets):
        names: dict[str, Any] = {}
        exec(compile(snippet.partition("```")[0], f"docs/porting.md, example {number}", "exec"), names)
        for value in names.values():
            if isinstance(value, kvpool.CacheManager | kvpool.BlockPool):
                value.diagnose.check_invariants()


def test_the_docs_name_every_example() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for module in MODULES:
        assert module.__name__.replace(".", "/") + ".py" in text, module.__name__
    assert "rust/kvpool/examples/scheduler.rs" in text
