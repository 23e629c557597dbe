"""Tests ``PrefixStore``, which connects a manager with a store. KV is computed from tokens, so that the
test notices if a block has the bytes of another block.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import kvpool
from kvpool.errors import (
    InvalidArgumentError,
    OutOfBlocksError,
    RequestStateError,
    StaleEpochError,
    StoreError,
)
from kvpool.store import Arena, Custom, Disk, Namespace, Prefetch, PrefixStore, Store
from tests.test_store import AGES, namespace
from tests.test_store_backends import Dictionary

if TYPE_CHECKING:
    from pathlib import Path

BLOCK, BYTES = 4, 4096


def kv(tokens: list[int], end: int, weights: int = 0) -> bytes:
    """Returns the KV of a block. It depends on all tokens up to the end of the block, and on the
    weights.
    """
    return hashlib.sha256(repr((tokens[:end], weights)).encode()).digest() * (BYTES // 32)


class Engine:
    """A scheduler, and a device whose blocks have bytes."""

    def __init__(
        self,
        backend: Any,
        *,
        blocks: int = 24,
        slots: int = 6,
        host: bool = False,
        write: Any = "through",
        groups: Any = None,
        of: Namespace | None = None,
        **settings: Any,
    ) -> None:
        self.manager = kvpool.CacheManager(num_blocks=blocks, block_size=BLOCK, groups=groups)
        self.arena = Arena(slots, BYTES)
        how = {"admission": "always", "staged": True, "deadline": AGES, "believed_for": 0.0, **settings}
        self.store = Store(backend, self.arena, of or namespace(), **how)
        self.device: dict[int, bytes] = {}
        self.tokens: dict[str, list[int]] = {}
        self.weights_of: dict[str, int] = {}
        self.weights = 0
        self.breaks = False
        self.copied_in = self.copied_out = 0
        self.prefixes = PrefixStore(
            self.manager,
            self.store,
            self.arena,
            copy_in=self.copy_in,
            copy_out=self.copy_out,
            host=host,
            write=write,
        )

    def copy_in(self, pairs: list[tuple[int, int]]) -> None:
        self.copied_in += len(pairs)
        for slot, block in pairs:
            self.device[block] = self.arena.read(slot)
            if self.breaks:
                raise RuntimeError("the copy broke off")

    def copy_out(self, pairs: list[tuple[int, int]]) -> None:
        self.copied_out += len(pairs)
        for block, slot in pairs:
            self.arena.write(slot, self.device[block])

    def admit(self, name: str, prompt: list[int], started: Prefetch, *, loading: bool = False) -> int:
        """Admits a request, and checks the KV of all tokens that it need not compute. Returns the
        number of tokens that were loaded from the store.
        """
        admission = self.prefixes.admit(name, started, loading=loading)
        self.tokens[name], self.weights_of[name] = list(prompt), self.weights
        computed = self.manager.request(name).computed_tokens
        if self.manager.request(name).state == "loading":
            assert loading
            assert computed == admission.cached_tokens
            self.check(name, computed)
            return 0
        assert computed == admission.cached_tokens + admission.external_tokens < len(prompt)
        self.check(name, computed)
        return admission.external_tokens

    def check(self, name: str, computed: int) -> None:
        """Checks that every block of a request that counts as computed has the KV of its tokens."""
        tokens, table = self.tokens[name], self.manager.block_ids(name)
        for at in range(computed // BLOCK):
            assert self.device[table[at]] == kv(tokens, BLOCK * (at + 1), self.weights_of[name]), (name, at)

    def compute(self, name: str) -> None:
        tokens, table = self.tokens[name], self.manager.block_ids(name)
        for at in range(self.manager.request(name).computed_tokens // BLOCK, len(tokens) // BLOCK):
            self.device[table[at]] = kv(tokens, BLOCK * (at + 1), self.weights_of[name])
        self.manager.commit(name, len(tokens))

    def run(self, name: str, prompt: list[int], *, save: bool = True) -> int:
        """Runs a request from its prefetch to its release. Returns the number of tokens that were
        loaded.
        """
        started = self.prefixes.prefetch(prompt)
        self.prefixes.wait(60)
        loaded = self.admit(name, prompt, started)
        self.compute(name)
        if save:
            self.prefixes.save(name)
        self.manager.release(name)
        return loaded


PROMPT = list(range(19))


def test_what_the_device_forgot_is_loaded_ahead_of_admission(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 64 * (BYTES + 4096), free_floor_bytes=0)
    engine = Engine(disk)
    assert engine.run("a", PROMPT) == 0
    engine.prefixes.wait(60)
    assert engine.run("b", PROMPT) == 0, "the device has it"
    engine.manager.reset()
    assert engine.run("c", [*PROMPT[:9], 77, 78, 79]) == 8
    engine.store.close()
    engine = Engine(disk)
    assert engine.run("d", PROMPT) == 16, "another process"
    assert engine.prefixes.free_slots == 6
    engine.store.close()


def test_the_last_token_is_computed() -> None:
    shared = Dictionary()
    engine = Engine(Custom(shared, 1 << 20))
    engine.run("a", list(range(16)))
    engine.prefixes.wait(60)
    engine.manager.reset()
    assert engine.run("b", list(range(16))) == 12
    engine.manager.reset()
    assert engine.run("c", list(range(17))) == 16
    engine.store.close()


def test_a_gap_between_device_and_loaded_blocks_is_not_bridged() -> None:
    engine = Engine(Custom(Dictionary(), 1 << 20))
    engine.run("a", PROMPT)
    engine.prefixes.wait(60)
    engine.manager.evict(2)  # the deepest blocks: the first two stay
    started = engine.prefixes.prefetch(PROMPT)
    engine.prefixes.wait(60)
    assert started.tokens == 16
    engine.manager.reset()  # now these are gone, too
    assert engine.admit("b", PROMPT, started) == 0
    assert engine.prefixes.free_slots == 6
    engine.store.close()


def test_what_is_on_its_way_is_not_used_and_its_slots_come_back() -> None:
    shared = Dictionary()
    engine = Engine(Custom(shared, 1 << 20))
    engine.run("a", PROMPT)
    engine.prefixes.wait(60)
    engine.manager.reset()
    started = engine.prefixes.prefetch(PROMPT)
    assert not started.done
    assert started.tokens == 0
    assert engine.admit("b", PROMPT, started) == 0
    with pytest.raises(InvalidArgumentError, match="admitted or dropped already"):
        engine.prefixes.admit("c", started)
    engine.prefixes.wait(60)
    assert engine.prefixes.free_slots == 6
    dropped = engine.prefixes.prefetch([*PROMPT, 5, 6, 7])
    engine.prefixes.drop(dropped)
    engine.prefixes.wait(60)
    assert engine.prefixes.free_slots == 6
    engine.store.close()


def test_a_refused_admission_keeps_what_was_loaded() -> None:
    engine = Engine(Custom(Dictionary(), 1 << 20), blocks=8)
    engine.run("a", PROMPT)
    engine.prefixes.wait(60)
    engine.manager.reset()
    engine.manager.admit("other", range(100, 120))
    started = engine.prefixes.prefetch(PROMPT)
    engine.prefixes.wait(60)
    with pytest.raises(OutOfBlocksError):
        engine.prefixes.admit("b", started)
    engine.manager.release("other")
    assert engine.admit("b", PROMPT, started) == 16
    engine.store.close()


def test_of_a_copy_that_broke_off_nothing_is_taken() -> None:
    engine = Engine(Custom(Dictionary(), 1 << 20))
    engine.run("a", PROMPT)
    engine.prefixes.wait(60)
    engine.manager.reset()
    started = engine.prefixes.prefetch(PROMPT)
    engine.prefixes.wait(60)
    engine.breaks = True
    with pytest.raises(RuntimeError, match="broke off"):
        engine.prefixes.admit("b", started)
    assert engine.manager.request("b").computed_tokens == 0
    engine.breaks = False
    engine.prefixes.drop(started)
    assert engine.prefixes.free_slots == 6
    engine.manager.release("b")
    assert engine.run("c", PROMPT) == 16, "the store has it still"
    engine.store.close()


def test_only_managers_with_one_group_and_blocks_that_fit() -> None:
    arena = Arena(2, BYTES)
    store = Store(Custom(Dictionary(), 1 << 20), arena, namespace())
    groups = [kvpool.GroupSpec("full", 4)] * 2
    several = kvpool.CacheManager(num_blocks=16, block_size=4, groups=groups)

    def nothing(pairs: object) -> None:
        raise AssertionError(pairs)

    with pytest.raises(InvalidArgumentError, match="2 KV-cache groups"):
        PrefixStore(several, store, arena, copy_in=nothing, copy_out=nothing)
    one = kvpool.CacheManager(num_blocks=16, block_size=4)
    with pytest.raises(InvalidArgumentError, match="block_bytes is 5000"):
        PrefixStore(one, store, arena, copy_in=nothing, copy_out=nothing, block_bytes=5000)
    store.close()


def test_blocks_that_the_device_has_meanwhile_are_not_written() -> None:
    """A load must not write to blocks that another request may share and read meanwhile."""
    engine = Engine(Custom(Dictionary(), 1 << 20))
    engine.run("a", PROMPT)
    engine.prefixes.wait(60)
    engine.manager.reset()
    started = engine.prefixes.prefetch(PROMPT)
    engine.prefixes.wait(60)
    engine.admit("first", PROMPT[:9], engine.prefixes.prefetch(PROMPT[:9]))
    engine.compute("first")
    written: list[int] = []
    copy_in, engine.prefixes._copy_in = (
        engine.copy_in,
        lambda pairs: written.extend(block for _, block in pairs),
    )
    assert engine.prefixes.admit("b", started).cached_blocks == 2
    table = engine.manager.block_ids("b")
    assert written == table[2:4]
    engine.prefixes._copy_in = copy_in
    engine.store.close()


def test_blocks_after_a_damaged_block_are_computed() -> None:
    shared = Dictionary()
    engine = Engine(Custom(shared, 1 << 20))
    engine.run("a", PROMPT)
    engine.prefixes.wait(60)
    engine.manager.reset()
    (damaged,) = [name for name in shared.values if engine.manager.prepare(PROMPT).digests()[1].hex() in name]
    shared.values[damaged] = shared.values[damaged][:-1] + b"?"
    started = engine.prefixes.prefetch(PROMPT)
    engine.prefixes.wait(60)
    assert (started.tokens, engine.prefixes.free_slots) == (4, 5)
    assert engine.admit("b", PROMPT, started) == 4
    assert engine.prefixes.free_slots == 6
    engine.store.close()


def test_only_what_is_computed_is_saved() -> None:
    engine = Engine(Custom(Dictionary(), 1 << 20))
    engine.admit("a", PROMPT, engine.prefixes.prefetch(PROMPT))
    assert engine.prefixes.save("a") == 0
    engine.compute("a")
    assert engine.prefixes.save("a") == 4
    engine.prefixes.wait(60)
    assert engine.prefixes.save("a") == 0, "the store has it"
    engine.store.close()


def test_weights_that_are_renewed_twice_are_apart() -> None:
    """Each process counts epochs from 0. So the namespace, and not the epoch, has to identify the
    weights of stored KV.
    """
    shared = Dictionary()
    for weights in (1, 2):
        engine = Engine(Custom(shared, 1 << 20), believed_for=5.0)
        engine.prefixes.renew(namespace(weights=str(weights)))
        engine.weights = weights
        assert engine.run("a", PROMPT) == 0
        engine.prefixes.wait(60)
        engine.store.close()


@pytest.mark.parametrize("host", [False, True])
def test_what_is_saved_after_renewals_is_found_after_a_restart_and_by_others(
    tmp_path: Path, host: bool
) -> None:
    """Each engine counts its own epochs. So an epoch must not be part of the name of a stored object."""
    room = 64 * (BYTES + 4096)
    for backends in (
        [Disk(tmp_path, room, free_floor_bytes=0)] * 3,
        [Custom(Dictionary(), 1 << 20)] * 3,
    ):
        # The first engine changes to the new weights while it runs, and the second engine starts with
        # them. The third engine changes to them later. It finds the stored objects only if the back end
        # is not a disk.
        for renewals, backend in zip((3, 0, 1), backends, strict=True):
            new = namespace(weights="new")
            engine = Engine(backend, believed_for=0.0, host=host, of=namespace() if renewals else new)
            for nth in range(renewals):
                engine.prefixes.renew(new if nth == renewals - 1 else namespace(weights=f"passed over {nth}"))
            engine.weights = 1
            engine.manager.diagnose.check_invariants()
            assert engine.manager.stats().pool.epoch == renewals
            finds = renewals == 0 or (renewals == 1 and isinstance(backend, Custom))
            assert engine.run("a", PROMPT) == (16 if finds else 0)
            engine.prefixes.wait(60)
            # The longer prompt begins with the same blocks, so their names in the store are the same.
            assert engine.run("b", [*PROMPT, 1, 2, 3, 4]) == (BLOCK if finds else 0)
            engine.prefixes.wait(60)
            engine.store.close()


def test_what_another_engine_wrote_is_asked_for() -> None:
    shared = Dictionary()
    one, other = (Engine(Custom(shared, 1 << 20), believed_for=5.0) for _ in range(2))
    one.run("a", PROMPT)
    one.prefixes.wait(60)
    started = other.prefixes.prefetch(PROMPT)
    other.prefixes.poll()
    other.prefixes.wait(60)
    assert (started.done, started.tokens) == (True, 16)
    assert other.admit("b", PROMPT, started) == 16
    assert other.run("c", [8] * 9) == 0
    for engine in (one, other):
        engine.store.close()


def test_kv_of_weights_that_were_replaced_is_never_stored() -> None:
    """A request may continue while the weights change, and a manager's epoch may change without notice
    to the store.
    """
    engine = Engine(Custom(Dictionary(), 1 << 20))
    engine.admit("old", PROMPT, engine.prefixes.prefetch(PROMPT))
    engine.prefixes.wait(60)
    engine.prefixes.renew(namespace(weights="new"))
    engine.compute("old")
    assert engine.prefixes.save("old") == 0
    engine.weights = 1
    assert engine.run("new", PROMPT) == 0
    engine.manager.preempt("old")
    with pytest.raises(RequestStateError, match="is preempted"):
        engine.prefixes.save("old")
    engine.manager.bump_epoch()
    for call in (lambda: engine.prefixes.save("old"), lambda: engine.prefixes.prefetch(PROMPT)):
        with pytest.raises(StaleEpochError, match="call renew, not bump_epoch"):
            call()
    engine.store.close()


def test_host_memory_keeps_what_was_saved_and_loaded() -> None:
    engine = Engine(Custom(Dictionary(), 1 << 20), host=True)
    assert engine.run("a", PROMPT) == 0
    engine.prefixes.wait(60)
    assert (engine.copied_out, engine.store.stats().writes) == (4, 4)
    engine.manager.reset()
    assert engine.run("b", PROMPT) == 16
    assert engine.store.stats().loads == 0, "host memory has it"
    assert engine.copied_out == 4, "host and store have it"
    # Host memory now has two blocks of another prompt, and room for one more. So the least recently
    # used block is evicted.
    engine.run("c", [7] * 9)
    engine.prefixes.wait(60)
    assert engine.run("d", [8] * 5) == 0
    engine.prefixes.wait(60)
    engine.manager.reset()
    assert engine.run("e", PROMPT) == 16
    assert engine.store.stats().loads == 1, "the deepest went first"
    assert engine.prefixes.free_slots == 6
    engine.store.close()


def test_what_is_written_back_is_written_late_and_once() -> None:
    engine = Engine(Custom(Dictionary(), 1 << 20), slots=8, host=True, write="back", admission="never")
    assert engine.run("a", PROMPT) == 0
    engine.prefixes.wait(60)
    assert engine.store.stats().writes == 0, "half of the slots are free"
    engine.manager.reset()
    assert engine.run("b", PROMPT) == 16
    engine.run("c", [7] * 17)
    engine.prefixes.wait(60)
    assert engine.store.stats().writes == 2, "a quarter of the slots is ready"
    engine.prefixes.flush(60)
    assert engine.store.stats().writes == 8
    engine.manager.reset()
    engine.run("d", PROMPT)
    engine.prefixes.flush(60)
    assert engine.store.stats().writes == 8
    engine.store.close()


def test_what_is_dirty_when_weights_change_is_never_written() -> None:
    """If such a block were written, it would be stored as KV of the new weights. A process that starts
    with these weights would find it.
    """
    shared = Dictionary()
    engine = Engine(Custom(shared, 1 << 20), host=True, write="back")
    engine.run("a", PROMPT)
    started = engine.prefixes.prefetch([*PROMPT, 1, 2])
    engine.prefixes.renew(namespace(weights="new"))
    engine.prefixes.drop(started)
    engine.prefixes.flush(60)
    assert not shared.objects
    assert engine.prefixes.free_slots == 6
    engine.store.close()


def test_a_request_that_loads_runs_when_its_blocks_are_there() -> None:
    shared = Dictionary()
    engine = Engine(Custom(shared, 1 << 20))
    engine.run("a", PROMPT)
    engine.prefixes.wait(60)
    engine.manager.reset()
    started = engine.prefixes.prefetch(PROMPT)
    assert engine.admit("b", PROMPT, started, loading=True) == 0
    assert engine.manager.request("b").state == "loading"
    engine.prefixes.drop(started)  # the request waits for the load
    with pytest.raises(InvalidArgumentError, match="admitted or dropped already"):
        engine.prefixes.admit("c", started)
    engine.prefixes.wait(60)
    assert engine.manager.request("b").state == "running"
    assert engine.manager.request("b").computed_tokens == 16
    engine.check("b", 16)
    engine.manager.release("b")
    assert engine.prefixes.free_slots == 6
    # The test releases the next request while the store loads its blocks.
    engine.manager.reset()
    engine.admit("c", PROMPT, engine.prefixes.prefetch(PROMPT), loading=True)
    engine.manager.release("c")
    engine.prefixes.wait(60)
    assert engine.manager.stats().releasing == 0
    # For the next request, the copy of the loaded bytes fails. The call reports this, and the request uses
    # none of the blocks.
    engine.manager.reset()
    engine.admit("d", PROMPT, engine.prefixes.prefetch(PROMPT), loading=True)
    engine.breaks = True
    with pytest.raises(RuntimeError, match="broke off"):
        engine.prefixes.wait(60)
    engine.breaks = False
    assert (engine.manager.request("d").state, engine.manager.request("d").computed_tokens) == ("running", 0)
    engine.manager.release("d")
    # In the last request one of several blocks fails. Afterwards the store must query the back end
    # before it starts another load.
    (damaged,) = [name for name in shared.values if engine.manager.prepare(PROMPT).digests()[1].hex() in name]
    shared.values[damaged] = shared.values[damaged][:-1] + b"?"
    engine.manager.reset()
    engine.admit("e", PROMPT, engine.prefixes.prefetch(PROMPT), loading=True)
    engine.prefixes.wait(60)
    assert engine.manager.request("e").computed_tokens == 4
    assert engine.prefixes.free_slots == 6
    engine.store.close()


def test_writing_back_needs_host_memory() -> None:
    arena, manager = Arena(2, BYTES), kvpool.CacheManager(num_blocks=16, block_size=4)
    store = Store(Custom(Dictionary(), 1 << 20), arena, namespace())
    for settings in ({"write": "back"}, {"write": "around", "host": True}):
        with pytest.raises(InvalidArgumentError, match="must be through, or back with host"):
            PrefixStore(manager, store, arena, copy_in=print, copy_out=print, **settings)
    store.close()


class Machine(RuleBasedStateMachine):
    """Random calls of requests with related prompts. The device is small, there are few slots, and the
    store fails at times and has damaged objects.

    The model is: a load may only return blocks that were computed with the current weights and saved.
    If the test has waited for a save and nothing was lost, it must return these blocks.
    """

    prompts = st.builds(
        lambda trunk, branch, length: ([trunk] * 8 + [branch] * 12)[:length],
        st.integers(1, 2), st.integers(3, 4), st.integers(1, 20),
    )  # fmt: skip

    @initialize(
        slots=st.integers(1, 6),
        blocks=st.integers(12, 24),
        how=st.sampled_from([(False, "through"), (True, "through"), (True, "back")]),
    )
    def begin(self, slots: int, blocks: int, how: tuple[bool, str]) -> None:
        self.shared = Dictionary()
        host, write = how
        self.engine = Engine(
            Custom(self.shared, 1 << 20),
            blocks=blocks,
            slots=slots,
            breaker_failures=1 << 30,
            host=host,
            write=write,
        )
        #: For the name of each block, a prompt that contains the block, and the number of tokens up to
        #: its end.
        self.ends: dict[bytes, tuple[list[int], int]] = {}
        self.slots = slots
        self.started: list[tuple[list[int], Prefetch, int]] = []
        self.running: list[str] = []
        self.offered: set[tuple[int, ...]] = set()
        self.count = 0

    @rule(prompt=prompts)
    def prefetch(self, prompt: list[int]) -> None:
        started = self.engine.prefixes.prefetch(prompt)
        self.started.append((prompt, started, self.engine.weights))
        plain = started.cursor.copy()
        plain.rebase(0)
        for at, name in enumerate(plain.digests()):
            self.ends[name] = (prompt, BLOCK * (at + 1))

    @precondition(lambda self: self.started)
    @rule(data=st.data(), drop=st.booleans(), loading=st.booleans())
    def admit_or_drop(self, data: st.DataObject, drop: bool, loading: bool) -> None:
        prompt, started, weights = self.started.pop(data.draw(st.integers(0, len(self.started) - 1)))
        if drop or weights != self.engine.weights:
            # The prompt was hashed in an earlier epoch, so the manager does not admit it.
            self.engine.prefixes.drop(started)
            return
        self.count += 1
        name = str(self.count)
        try:
            loaded = self.engine.admit(name, prompt, started, loading=loading)
        except OutOfBlocksError:
            self.engine.prefixes.drop(started)
            return
        self.running.append(name)
        end = self.engine.manager.request(name).computed_tokens
        if loaded:
            assert (weights, *prompt[:end]) in self.offered, "loaded, and never offered"

    # The number of running requests depends on when loads finish. So the drawn values must not depend
    # on it.
    @rule(nth=st.integers(0, 1 << 16), save=st.booleans())
    def finish(self, nth: int, save: bool) -> None:
        if not self.running:
            return
        name = self.running.pop(nth % len(self.running))
        tokens, weights = self.engine.tokens[name], self.engine.weights_of[name]
        if self.engine.manager.request(name).state == "loading":
            # The request is aborted during its load. Its blocks become free when the load has finished.
            self.engine.manager.release(name)
            return
        self.engine.compute(name)
        if save:
            saved = self.engine.prefixes.save(name)
            assert weights == self.engine.weights or saved == 0, "KV of weights that were replaced"
            self.offered |= {(weights, *tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK)}
        self.engine.manager.release(name)

    @rule()
    def wait(self) -> None:
        self.engine.prefixes.wait(60)

    @rule()
    def poll(self) -> None:
        self.engine.prefixes.poll()

    @rule(count=st.integers(1, 8))
    def evict(self, count: int) -> None:
        self.engine.manager.evict(count)

    @rule(at=st.integers(0, 1 << 20))
    def damage(self, at: int) -> None:
        for name, value in list(self.shared.values.items())[:2]:
            byte = at % len(value)
            self.shared.values[name] = value[:byte] + bytes([value[byte] ^ 1]) + value[byte + 1 :]

    @rule(fails=st.booleans())
    def fail(self, fails: bool) -> None:
        self.shared.error = RuntimeError("down") if fails else None

    @rule()
    def renew(self) -> None:
        self.engine.weights += 1
        with pytest.raises(StoreError) if self.shared.error else contextlib.nullcontext():
            self.engine.prefixes.renew(namespace(weights=str(self.engine.weights)))

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "engine"):
            self.engine.manager.diagnose.check_invariants()
            for name in self.running:
                self.engine.check(name, self.engine.manager.request(name).computed_tokens)
            assert 0 <= self.engine.prefixes.free_slots <= self.slots
            slots = self.engine.prefixes._slots
            had = [*slots._free, *{*slots._users, *slots._digests}]
            assert sorted(had) == list(range(self.slots)), "a slot is free, had or kept"
            for digest, slot in slots._by_digest.items():
                expected = kv(*self.ends[digest], self.engine.weights)
                assert self.engine.arena.read(slot) == expected, "host memory has other bytes"

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.shared.error = None
        for _, started, _ in self.started:
            self.engine.prefixes.drop(started)
        self.engine.prefixes.flush(60)
        assert self.engine.manager.stats().loading == self.engine.manager.stats().releasing == 0
        assert self.engine.prefixes.free_slots == self.slots, "a slot is lost"
        # Saved blocks must be loaded if nothing has failed.
        for name in self.running:
            self.engine.manager.release(name)
        self.engine.prefixes.renew(namespace(weights="last"))
        self.engine.weights += 1
        while self.engine.store.stats().in_flight:
            self.engine.store.wait(60)
        prompt = [9] * 9
        self.engine.run("before", prompt)
        self.engine.prefixes.wait(60)
        self.engine.manager.reset()
        assert self.engine.run("after", prompt) == min(2, self.slots) * BLOCK
        self.engine.store.close()


TestMachine = Machine.TestCase
