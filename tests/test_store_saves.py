"""Tests which blocks ``PrefixStore.save`` offers to the store, and at how many blocks it looks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import kvpool
from kvpool.errors import OutOfBlocksError
from kvpool.store import Custom
from tests.test_store import namespace
from tests.test_store_backends import Dictionary
from tests.test_store_prefixes import BLOCK, PROMPT, Engine

if TYPE_CHECKING:
    from types import FrameType

    from kvpool.store import PrefixStore


class Calls:
    """Counts the calls of compiled functions of kvpool while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, _: FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            owner = getattr(function, "__module__", None) or type(function.__self__).__module__
            self.count += owner.startswith("kvpool")


def blocks_looked_at(prefixes: PrefixStore) -> list[int]:
    """Returns a list to which each call of ``save`` appends the number of blocks at which it looks."""
    looked: list[int] = []
    to_slots = prefixes._to_slots

    def counted(
        positions: list[int], digests: list[bytes], blocks: list[int], lacking: list[bool]
    ) -> list[int | None]:
        looked.append(len(positions))
        return to_slots(positions, digests, blocks, lacking)

    prefixes._to_slots = counted  # type: ignore[method-assign]
    return looked


@pytest.mark.parametrize("how", ["through", "host", "back", "second touch", "renewed"])
def test_a_save_looks_only_at_the_blocks_of_its_turn(how: str) -> None:
    """Each turn is a request of its own, whose prompt is the conversation so far."""
    engine = Engine(
        Custom(Dictionary(), 1 << 30),
        blocks=1024,
        slots=64,
        host=how in ("host", "back"),
        write="back" if how == "back" else "through",
        admission="second_touch" if how == "second touch" else "always",
    )
    if how == "renewed":
        engine.prefixes.renew(namespace(weights="new"))
    engine.prefixes._copy_out = lambda _: None
    looked, calls, turns, turn_blocks = blocks_looked_at(engine.prefixes), [], 60, 5
    tokens: list[int] = []
    for turn in range(turns):
        tokens += [turn] * (turn_blocks * BLOCK)
        engine.manager.admit(str(turn), tokens)
        engine.tokens[str(turn)], engine.weights_of[str(turn)] = tokens, 0
        engine.compute(str(turn))
        with Calls() as counted:
            engine.prefixes.save(str(turn))
        calls.append(counted.count)
        engine.manager.release(str(turn))
        engine.prefixes.wait(60)
    engine.prefixes.flush(60)
    # At the second offer of a block, the save looks at the blocks of two turns.
    again = turn_blocks * (turns - 1) if how == "second touch" else 0
    assert sum(looked) == turn_blocks * turns + again
    assert max(looked) <= turn_blocks * (2 if how == "second touch" else 1)
    # One call offers the blocks. Others check free slots, check evicted slots, and write blocks back.
    assert max(calls) <= 4
    expected = turn_blocks * (turns - 1 if how == "second touch" else turns)
    assert engine.store.stats().writes == expected
    engine.manager.admit("again", [*tokens, 1])
    with Calls() as counted:
        offered = engine.prefixes.save("again")
    # Nothing is offered for the second time, except the blocks of the last turn.
    assert offered == (turn_blocks if how == "second touch" else 0)
    assert counted.count == (2 if how == "second touch" else 1)
    engine.store.close()


def names_of(engine: Engine, request: str) -> list[bytes]:
    """Returns the names of the computed blocks of a request in the store."""
    cursor = engine.manager.prepare(request)
    cursor.rebase(0)
    return cursor.digests()[: engine.manager.request(request).computed_tokens // BLOCK]


@pytest.mark.parametrize("write", ["through", "back"])
@pytest.mark.parametrize("loss", ["removed", "failed"])
def test_a_block_that_the_store_lost_is_stored_by_the_next_save(write: str, loss: str) -> None:
    shared = Dictionary()
    engine = Engine(
        Custom(shared, 1 << 20), slots=16, host=write == "back", write=write, breaker_failures=1 << 30
    )
    engine.admit("a", PROMPT, engine.prefixes.prefetch(PROMPT))
    engine.compute("a")
    if loss == "failed":
        shared.error = RuntimeError("down")
    assert engine.prefixes.save("a") == 4
    engine.prefixes.flush(60)
    if loss == "removed":
        assert engine.store.remove(names_of(engine, "a")[1:3]) == 2
    shared.error = None
    engine.prefixes.flush(60)
    lost = 4 if loss == "failed" else 2
    while engine.store.stats().in_flight:
        engine.store.wait(60)
    assert len(shared.objects) == 4 - lost
    assert engine.prefixes.save("a") == lost
    engine.prefixes.flush(60)
    assert len(shared.objects) == 4
    assert engine.prefixes.save("a") == 0
    engine.store.close()


def test_what_no_slot_was_free_for_is_offered_by_the_next_save() -> None:
    engine = Engine(Custom(Dictionary(), 1 << 20), slots=3)
    engine.admit("a", list(range(33)), engine.prefixes.prefetch(list(range(33))))
    engine.compute("a")
    for offered in (3, 3, 2, 0):
        assert engine.prefixes.save("a") == offered
        engine.prefixes.wait(60)
    assert engine.store.stats().writes == 8
    engine.store.close()


def test_blocks_of_a_failed_copy_are_offered_by_the_next_save() -> None:
    engine = Engine(Custom(Dictionary(), 1 << 20))
    engine.admit("a", PROMPT, engine.prefixes.prefetch(PROMPT))
    engine.compute("a")
    copy_out = engine.prefixes._copy_out

    def breaks(_: object) -> None:
        raise RuntimeError("the copy broke off")

    engine.prefixes._copy_out = breaks
    with pytest.raises(RuntimeError, match="broke off"):
        engine.prefixes.save("a")
    assert engine.prefixes.free_slots == 6
    engine.prefixes._copy_out = copy_out
    assert engine.prefixes.save("a") == 4
    engine.store.close()


def test_more_dirty_blocks_than_the_queue_of_the_store_are_written_back() -> None:
    shared = Dictionary()
    engine = Engine(Custom(shared, 1 << 24), blocks=64, slots=64, host=True, write="back", queue=3)
    engine.run("a", list(range(4 * 40 + 1)))
    engine.prefixes.flush(60)
    assert len(shared.objects) == 40
    engine.store.close()


class Refusing:
    """A store whose queue refuses every object, as one whose back end never ends a write."""

    def __init__(self) -> None:
        self.puts: list[int] = []

    def put(self, _digests: object, slots: list[int], **_options: object) -> int:
        assert len(self.puts) < 10, "refused blocks are offered again and again"
        self.puts.append(len(slots))
        return len(self.puts)

    def wait(self, _timeout: float) -> list[tuple[int, list[str]]]:
        return [(len(self.puts), ["busy"] * self.puts[-1])]

    poll = wait


def test_a_flush_ends_if_the_store_refuses_all_blocks() -> None:
    engine = Engine(Custom(Dictionary(), 1 << 24), blocks=64, slots=40, host=True, write="back")
    engine.run("a", list(range(4 * 39 + 1)))
    dirty, store = engine.prefixes._slots.dirty, engine.prefixes._store
    refusing: Any = Refusing()
    engine.prefixes._store = refusing
    engine.prefixes.flush(60)
    assert (sum(refusing.puts), engine.prefixes._slots.dirty) == (dirty, dirty)
    engine.prefixes._store = store
    engine.prefixes.flush(60)
    assert engine.prefixes._slots.dirty == 0
    engine.store.close()


class Saves(RuleBasedStateMachine):
    """Random requests with related prompts, saves, evictions on the device and in the store, failed
    writes, changes of the weights, and restarts.

    The model asks the store: a save must offer exactly the computed blocks that the store lacks and the
    request holds, as far as there are slots. When the back end works, repeated saves store all of them.
    """

    prompts = st.builds(
        lambda trunk, branch, length: ([trunk] * 8 + [branch] * 12)[:length],
        st.integers(1, 2), st.integers(3, 4), st.integers(1, 20),
    )  # fmt: skip

    @initialize(
        slots=st.integers(1, 8),
        how=st.sampled_from([(False, "through"), (True, "through"), (True, "back")]),
        window=st.sampled_from([None, 8]),
        room=st.sampled_from([7, 1 << 10]),
        admission=st.sampled_from(["always", "second_touch"]),
    )
    def begin(self, slots: int, how: tuple[bool, Any], window: int | None, room: int, admission: str) -> None:
        self.shared = Dictionary()
        host, write = how
        groups = None if window is None else [kvpool.GroupSpec("sliding", BLOCK, window=window)]
        self.settings: dict[str, Any] = {
            "slots": slots,
            "host": host,
            "write": write,
            "groups": groups,
            "admission": admission,
            "breaker_failures": 1 << 30,
        }
        self.slots, self.write, self.room, self.admission = slots, write, room, admission
        self.engine = self.start()
        self.running: list[str] = []
        self.count = 0

    def start(self) -> Engine:
        return Engine(Custom(self.shared, self.room * 8192), **self.settings)

    @rule(prompt=prompts)
    def admit(self, prompt: list[int]) -> None:
        self.count += 1
        name = str(self.count)
        try:
            self.engine.manager.admit(name, prompt)
        except OutOfBlocksError:
            return
        self.engine.tokens[name], self.engine.weights_of[name] = list(prompt), self.engine.weights
        self.running.append(name)
        self.engine.compute(name)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.lists(st.integers(1, 2), min_size=1, max_size=9))
    def grow(self, data: st.DataObject, tokens: list[int]) -> None:
        name = data.draw(st.sampled_from(self.running))
        try:
            self.engine.manager.append(name, tokens)
        except OutOfBlocksError:
            return
        self.engine.tokens[name] += tokens
        self.engine.compute(name)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), again=st.booleans())
    def save(self, data: st.DataObject, again: bool) -> None:
        name = data.draw(st.sampled_from(self.running))
        for _ in range(2 if again else 1):
            self.save_one(name)

    def lacking(self, name: str) -> list[bytes]:
        engine, names = self.engine, names_of(self.engine, name)
        if engine.manager.prepare(name).epoch != engine.prefixes._epoch:
            return []
        known, table = engine.store.contains(names), engine.manager.block_ids(name)
        return [
            digest
            for digest, presence, block in zip(names, known, table, strict=False)
            if presence in ("absent", "unknown")
            and (block != 0 or engine.prefixes._slots.find(digest) is not None)
        ]

    def save_one(self, name: str) -> int:
        engine, lacking = self.engine, self.lacking(name)
        slots = engine.prefixes._slots
        dirty = [slot for slot in map(slots.find, lacking) if slot in slots._dirty]
        busy = len(engine.prefixes._jobs) > 0
        saved = engine.prefixes.save(name)
        assert saved <= len(lacking), "a block that the store has was offered"
        # Blocks that are still to be written back were offered already.
        if not busy and self.write == "through" and not self.settings["host"]:
            assert saved == min(len(lacking), self.slots)
        elif not busy and len(lacking) <= slots.reclaimable:
            assert saved >= len(lacking) - len(dirty)
        return saved

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.running))
        self.running.remove(name)
        self.engine.manager.release(name)

    @rule(flush=st.booleans())
    def wait(self, flush: bool) -> None:
        if flush:
            self.engine.prefixes.flush(60)
        self.engine.prefixes.wait(60)

    @rule()
    def poll(self) -> None:
        self.engine.prefixes.poll()

    @rule(count=st.integers(1, 8))
    def evict(self, count: int) -> None:
        self.engine.manager.evict(count)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), at=st.integers(0, 4), count=st.integers(1, 3))
    def remove(self, data: st.DataObject, at: int, count: int) -> None:
        name = data.draw(st.sampled_from(self.running))
        self.engine.store.remove(names_of(self.engine, name)[at : at + count])

    @rule(fails=st.booleans())
    def fail(self, fails: bool) -> None:
        self.shared.error = RuntimeError("down") if fails else None

    @precondition(lambda self: self.shared.error is None)
    @rule()
    def renew(self) -> None:
        self.engine.weights += 1
        self.engine.prefixes.renew(namespace(weights=str(self.engine.weights)))

    @precondition(lambda self: self.shared.error is None)
    @rule()
    def restart(self) -> None:
        self.engine.prefixes.flush(60)
        self.engine.store.close()
        self.engine, self.running = self.start(), []

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.shared.error = None
        engine = self.engine
        for name in self.running if self.room > 7 else []:
            engine.prefixes.flush(60)
            # With the second offer, each block is offered twice. Each save offers at least one block.
            for _ in range(2 * 40):
                while engine.store.stats().in_flight:
                    engine.store.wait(60)
                if not self.lacking(name):
                    break
                engine.prefixes.save(name)
                engine.prefixes.flush(60)
            assert not self.lacking(name), "a block is never stored"
        engine.store.close()


TestSaves = Saves.TestCase
