"""Random requests run on a manager with a publisher. Every consumer must get the contents of the pool,
in each event format that it accepts.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

import kvpool
from kvpool.events import CallSink, Publisher
from tests.events.consumers import AiBrix, Dynamo, LlmD, RefusedError, Sglang, Vllm

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvpool.events import Form

BLOCK = 4
TOPIC = b"kv@10.0.0.1:8000@model"

READERS: list[tuple[str, Form, Callable[[], Any]]] = [
    ("vllm", "vllm", Vllm),
    ("sglang", "sglang", Sglang),
    ("dynamo", "vllm", lambda: Dynamo(BLOCK)),
    ("dynamo, positions", "vllm-array", lambda: Dynamo(BLOCK)),
    ("dynamo of sglang", "sglang", lambda: Dynamo(BLOCK)),
    ("dynamo of sglang, positions", "sglang-array", lambda: Dynamo(BLOCK)),
    ("llm-d", "vllm", lambda: LlmD(TOPIC)),
    ("llm-d, positions", "vllm-array", lambda: LlmD(TOPIC)),
    ("llm-d, bytes", "vllm-bytes", lambda: LlmD(TOPIC)),
    ("aibrix", "vllm-array", AiBrix),
    ("aibrix, bytes", "vllm-array-bytes", AiBrix),
]


class Collected:
    """A sink that only collects the batches that it gets."""

    replay_batches, replay_bytes = 100, 1 << 20

    def __init__(self, form: Form) -> None:
        self.form = form
        self.batches: list[tuple[int, bytes]] = []
        self.has = True

    def open(self, replays: Any) -> None:
        self.replays = replays

    def send(self, number: int, batch: bytes) -> bool:
        if self.has:
            self.batches.append((number, batch))
        return self.has

    def has_room(self) -> bool:
        return self.has

    def serve(self) -> bool:
        return False

    def close(self) -> None:
        pass


class History:
    """A random sequence of calls on a manager."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.manager = kvpool.CacheManager(40, block_size=BLOCK, host_blocks=16, event_capacity=10_000)
        self.running: list[int] = []
        self.swapped: list[int] = []
        self.next = 0

    def step(self) -> None:
        choice = self.random.random()
        manager = self.manager
        if choice < 0.45:
            # The prompts are short, and their tokens are 0 or 1, so they often share prefixes.
            prompt = [self.random.randrange(2) for _ in range(self.random.randrange(1, 30))]
            try:
                manager.admit(self.next, prompt)
            except kvpool.errors.OutOfBlocksError:
                return
            manager.commit(self.next, len(prompt))
            self.running.append(self.next)
            self.next += 1
        elif choice < 0.7 and self.running:
            manager.release(self.running.pop(self.random.randrange(len(self.running))))
        elif choice < 0.8:
            self.swap()
        elif choice < 0.9:
            manager.evict(self.random.randrange(6))
        elif choice < 0.98:
            block = self.random.randrange(1, 40)
            try:
                manager.drop_cached([block])
            except kvpool.KvpoolError:
                return
        elif not self.running and not self.swapped:
            manager.reset()

    def swap(self) -> None:
        out = self.random.random() < 0.5
        here, there = (self.running, self.swapped) if out else (self.swapped, self.running)
        if not here:
            return
        request = here[self.random.randrange(len(here))]
        try:
            swap = self.manager.swaps.begin_out([request]) if out else self.manager.swaps.begin_in([request])
        except kvpool.errors.OutOfBlocksError:
            return
        self.manager.take_plan()
        self.manager.swaps.complete(swap)
        here.remove(request)
        there.append(request)


@pytest.mark.parametrize("seed", range(6))
def test_every_reader_agrees_with_the_others_and_with_the_snapshot(seed: int) -> None:
    history = History(seed)
    forms = sorted({form for _, form, _ in READERS})
    sinks = {form: Collected(form) for form in forms}
    readers = {name: make() for name, _, make in READERS}
    publisher = Publisher(history.manager, list(sinks.values()), start=False, base=1)
    for turn in range(120):
        history.step()
        if turn % 3:
            continue
        publisher.flush()
        for name, form, _ in READERS:
            for number, batch in sinks[form].batches:
                readers[name].take(number, batch)
        for sink in sinks.values():
            sink.batches.clear()
        prompts = {name: [sorted(one) for one in by_medium(reader)] for name, reader in readers.items()}
        first = prompts["vllm"]
        assert all(one == first for one in prompts.values()), turn
        # A lookup finds all of a prompt if all its blocks are on the device.
        for prompt in first[0]:
            hits = history.manager.probe([*prompt, 7])
            assert hits.cached_blocks * BLOCK >= (len(prompt) if only_device(first, prompt) else 0)
        fresh = Vllm()
        for batch in publisher.snapshot(forms.index("vllm")).batches:
            fresh.take(0 if fresh.last is None else fresh.last + 1, batch)
        assert [sorted(one) for one in by_medium(fresh)] == first
    publisher.close()


def by_medium(reader: Any) -> list[set[tuple[int, ...]]]:
    """Divides the prompts that a reader knows into those whose last block is on the device, and the
    others.
    """
    found: list[set[tuple[int, ...]]] = [set(), set()]
    for medium, prompts in reader.prompts().items():
        found[medium.lower() not in {"gpu", "device"}] |= prompts
    return found


def only_device(prompts: list[list[tuple[int, ...]]], prompt: tuple[int, ...]) -> bool:
    """Returns whether all earlier blocks of a prompt are on the device, too."""
    return all(prompt[: at * BLOCK] in prompts[0] for at in range(1, len(prompt) // BLOCK + 1))


def test_what_a_consumer_refuses_is_seen_here() -> None:
    sink = Collected("vllm-bytes")
    publisher = Publisher(kvpool.CacheManager(8, block_size=BLOCK), [sink], start=False, base=1)
    with pytest.raises(RefusedError, match="not kv@host"):
        LlmD(b"topic")
    publisher.flush()
    (number, batch), *_ = sink.batches
    with pytest.raises(RefusedError, match="an event is an array"):
        AiBrix().take(number, batch)
    with pytest.raises(RefusedError, match="array of three"):
        Vllm().take(number, b"\x90")
    reader = Vllm()
    reader.take(number, batch)
    with pytest.raises(RefusedError, match="a gap"):
        reader.take(number + 2, batch)
    publisher.close()


def test_salts_and_tenants_are_published_and_separate_prompts() -> None:
    manager = kvpool.CacheManager(32, block_size=BLOCK)
    sinks = [Collected("vllm"), Collected("sglang")]
    publisher = Publisher(manager, sinks, start=False, base=1)
    prompt = list(range(8))
    for name, extra in {
        "plain": None,
        "salted": kvpool.ExtraKeys(salt=b"grain"),
        "tenant": kvpool.ExtraKeys(tenant=b"acme", salt=b"\xff"),
    }.items():
        manager.admit(name, prompt, extra=extra)
        manager.commit(name, 8)
    publisher.flush()
    vllm, sglang = (msgpack.unpackb(sink.batches[-1][1])[1][1:] for sink in sinks)
    assert sorted(map(str, (event.get("extra_keys") for event in vllm))) == [
        "None",
        "[['grain'], None]",
        "[['tenant=acme;salt=ff'], None]",
    ]
    assert {event.get("cache_salt") for event in sglang} == {None, "grain", "tenant=acme;salt=ff"}
    publisher.close()


def test_a_pool_is_followed_as_a_manager_is() -> None:
    chain = kvpool.BlockHasher(block_size=BLOCK).cursor(list(range(12))).chain()
    pool = kvpool.BlockPool(16, BLOCK)
    sink, reader = Collected("vllm"), Vllm()
    publisher = Publisher(pool, [sink], start=False, base=1)
    blocks = pool.allocate(3)
    pool.register_table(blocks, chain)
    pool.release(blocks)
    publisher.flush()
    pool.evict(1)
    publisher.flush()
    for number, batch in sink.batches:
        reader.take(number, batch)
    assert by_medium(reader) == [{(0, 1, 2, 3), tuple(range(8))}, set()]
    publisher.close()


def test_a_call_sink_gets_everything_again_after_it_has_room() -> None:
    manager = kvpool.CacheManager(64, block_size=BLOCK)
    go, taken = threading.Semaphore(0), threading.Semaphore(0)
    reader, gaps = Vllm(), []

    def call(number: int, batch: bytes) -> None:
        go.acquire()
        if reader.last is not None and number != reader.last + 1:
            gaps.append(number)
            reader.last = number - 1
        reader.take(number, batch)
        taken.release()

    publisher = Publisher(manager, [CallSink(call, room=2)], start=False, base=1)
    for request in range(8):
        manager.admit(request, [request] * 8)
        manager.commit(request, 8)
        publisher.flush()
    assert publisher.counts().lost > 0
    sent = publisher.counts().batches - publisher.counts().lost
    for _ in range(sent):
        go.release()
        taken.acquire()
    go.release()
    publisher.flush()
    taken.acquire()
    assert gaps
    assert by_medium(reader)[0] == {(r,) * n for r in range(8) for n in (4, 8)}
    publisher.close()
    publisher.close()


def test_a_function_that_raises_gets_everything_again(caplog: pytest.LogCaptureFixture) -> None:
    manager = kvpool.CacheManager(64, block_size=BLOCK)
    heard: list[bytes] = []
    called = threading.Semaphore(0)

    def call(number: int, batch: bytes) -> None:
        heard.append(batch)
        called.release()
        if len(heard) == 1:
            raise RuntimeError("no")

    sink = CallSink(call)
    publisher = Publisher(manager, [sink], start=False, base=1)
    publisher.flush()
    called.acquire()
    manager.admit("a", list(range(8)))
    manager.commit("a", 8)
    # The sink's own thread may notice the failed call only in one of its next turns.
    while len(heard) < 2 or b"BlockStored" not in heard[-1]:
        publisher.flush()
    assert b"AllBlocksCleared" in heard[0]
    assert b"BlockStored" in heard[-1]
    publisher.close()
    assert "was not taken" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval": 0}, "interval is 0"),
        ({"heartbeat": float("nan")}, "heartbeat is nan"),
        ({"base": -1}, "base is -1"),
        ({"base": 1 << 63}, "base is 9223372036854775808"),
        ({"rank": 1 << 32}, "rank is 4294967296"),
        ({"capacity": 0}, "capacity"),
    ],
)
def test_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(kvpool.errors.InvalidArgumentError, match=message):
        Publisher(kvpool.CacheManager(8), [], start=False, **settings)


def test_other_sources_and_sinks_are_refused_by_name() -> None:
    source: Any = kvpool.TieredPool([8])
    with pytest.raises(kvpool.errors.ArgumentTypeError, match="source is a TieredPool"):
        Publisher(source, [], start=False)
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="room is 0"):
        CallSink(print, room=0)
    with Publisher(kvpool.CacheManager(8), [], start=False) as publisher:
        for number in (0, -1, 1 << 70):
            with pytest.raises(kvpool.errors.InvalidArgumentError):
                publisher.snapshot(number)
