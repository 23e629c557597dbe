"""Tests kvpool's publisher in place of vLLM's. Each publisher must belong to the right pool, and the
published events must match the content of the pool.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import types
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from tests.events.consumers import Vllm
from tests.integrations.fake_vllm import Lora, fake_vllm, part
from tests.integrations.pool_stand_ins import BLOCK, digest, make_pool, request_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("zmq")


@dataclasses.dataclass
class Config:
    """Stands in for vLLM's KVEventsConfig."""

    enable_kv_cache_events: bool = True
    publisher: str = "zmq"
    endpoint: str = "tcp://127.0.0.1:*"
    replay_endpoint: str | None = None
    buffer_steps: int = 100
    hwm: int = 100
    max_queue_size: int = 100
    topic: str = "t"


class ZmqEventPublisher:
    """Stands in for those parts of vLLM's publisher that the plug-in uses."""

    @staticmethod
    def offset_endpoint_port(endpoint: str | None, rank: int) -> str | None:
        return endpoint if not rank or endpoint is None else f"{endpoint.rpartition(':')[0]}:{6000 + rank}"

    @staticmethod
    def _is_bind_endpoint(endpoint: str) -> bool:
        return "*" in endpoint


class Factory:
    """Stands in for vLLM's EventPublisherFactory."""

    @classmethod
    def create(cls, config: Any, data_parallel_rank: int = 0) -> Any:
        return ("stock", config, data_parallel_rank)


@dataclasses.dataclass
class Manager:
    """Stands in for those parts of vLLM's KVCacheManager that the plug-in reads."""

    block_pool: Any
    coordinator: Any = None
    kv_cache_event_metadata: Any = (("full_attention", None), ("sliding_window", 8))

    def __post_init__(self) -> None:
        sizes = [
            types.SimpleNamespace(kv_cache_group_id=group, block_size=size) for group, size in BLOCK.items()
        ]
        self.coordinator = types.SimpleNamespace(single_type_managers=sizes)

    def take_events(self) -> Any:
        return ("stock", self.block_pool.take_events())


@pytest.fixture(autouse=True)
def vllm() -> Iterator[Any]:
    with fake_vllm() as package:
        events, managers = (
            sys.modules[f"vllm.{name}"] for name in ("distributed.kv_events", "v1.core.kv_cache_manager")
        )
        vars(events).update(EventPublisherFactory=Factory, ZmqEventPublisher=ZmqEventPublisher)
        stock = dict(vars(Manager))
        vars(managers).update(KVCacheManager=Manager)
        factory = vars(Factory)["create"]
        package.envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES = True
        for owner, name, value in part("publisher").replacements():
            setattr(owner, name, value)
        yield package
        for owner, name, value in (
            (Factory, "create", factory),
            (Manager, "take_events", stock["take_events"]),
        ):
            setattr(owner, name, value)


def test_hashes_are_published_in_the_form_of_vllms_setting(vllm: Any) -> None:
    vllm.envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES = False
    publisher, manager = engine()
    cache(manager.block_pool, [1, 2, 3, 4])
    assert told(publisher).held == {"GPU": {digest((1, 2)), digest((1, 2, 3, 4))}}
    publisher.shutdown()


def engine(num_blocks: int = 8, **config: Any) -> tuple[Any, Any]:
    """Makes a publisher, and then the manager whose pool uses it. A scheduler makes them in the same
    order.
    """
    # The publisher is made before its pool. So an attribute of the pool's class, which this call sets,
    # determines the kind of events.
    make_pool(events=None)
    publisher = Factory.create(Config(**config))
    manager = Manager(make_pool(num_blocks))
    assert manager.take_events() == []
    return publisher, manager


def told(publisher: Any) -> Vllm:
    """Returns the content that vLLM's own subscriber would have after all events of the publisher."""
    publisher._publisher.flush()
    reader = Vllm()
    for number, batch in enumerate(publisher._publisher.snapshot().batches):
        reader.take(number, batch)
    return reader


def number(tokens: list[int]) -> int:
    return int.from_bytes(digest(tuple(tokens))[-8:], "big")


def cache(pool: Any, tokens: list[int], *, group: int = 0, **more: Any) -> list[Any]:
    size = BLOCK[group]
    blocks = pool.get_new_blocks(len(tokens) // size)
    pool.cache_full_blocks(request_of(tokens, **more), blocks, 0, len(blocks), size, group)
    return list(blocks)


def test_a_pool_with_a_publisher_returns_no_events_and_publishes_its_contents() -> None:
    publisher, manager = engine()
    pool = manager.block_pool
    blocks = cache(pool, [1, 2, 3, 4, 5, 6])
    assert manager.take_events() == []
    reader = told(publisher)
    assert reader.held == {"GPU": {number([1, 2]), number([1, 2, 3, 4]), number([1, 2, 3, 4, 5, 6])}}
    assert reader.prompts()["GPU"] == {(1, 2), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6)}
    pool.free_blocks(reversed(blocks))
    pool.evict_blocks({blocks[2].block_id})
    assert told(publisher).prompts()["GPU"] == {(1, 2), (1, 2, 3, 4)}
    assert pool.reset_prefix_cache()
    assert told(publisher).held == {}
    publisher.shutdown()


def test_other_pools_and_settings_get_vllms_publisher_and_vllms_objects() -> None:
    make_pool(events=None)
    none = (Config(publisher="null"), Config(enable_kv_cache_events=False), Config(endpoint="tcp://*:0"))
    for config in (None, *none):
        assert Factory.create(config, 3) == ("stock", config, 3)
    make_pool(events="stock")
    config = Config()
    assert Factory.create(config)[0] == "stock"
    pool = make_pool()
    assert pool.feed is None
    cache(pool, [1, 2])
    assert len(Manager(pool).take_events()[1]) == 1
    pool.enable_kv_cache_events = False
    assert Manager(pool).take_events() == [], "nobody is asked where nobody listens"


def test_a_publisher_belongs_to_one_pool_and_a_closed_one_to_none() -> None:
    publisher, manager = engine()
    other = make_pool()
    assert manager.block_pool.feed is not None
    assert other.feed is None
    publisher.shutdown()
    make_pool(events=None)
    forgotten = Factory.create(Config())
    forgotten.shutdown()
    del forgotten
    assert make_pool().feed is None
    left = Factory.create(Config())
    assert make_pool(medium="CPU").feed is None
    left.shutdown()


def test_a_window_is_published_with_the_parent_before_it() -> None:
    publisher, manager = engine(16)
    tokens = list(range(12))
    request = request_of(tokens)
    blocks = manager.block_pool.get_new_blocks(3)
    manager.block_pool.cache_full_blocks(request, blocks, 0, 3, BLOCK[1], 1, [False, True, True])
    publisher._publisher.flush()
    (event,) = msgpack.unpackb(publisher._publisher.snapshot().batches[0])[1]
    assert (event["group_idx"], event["kv_cache_spec_kind"]) == (1, "sliding_window")
    assert (event["kv_cache_spec_sliding_window"], event["block_size"]) == (8, 4)
    assert event["token_ids"] == tokens[4:]
    assert event["parent_block_hash"] == number(tokens[:4])
    publisher.shutdown()


def test_an_event_contains_the_extra_keys_of_its_blocks() -> None:
    publisher, manager = engine(16)
    cache(
        manager.block_pool,
        [1, 2, 3, 4],
        cache_salt="s",
        lora_request=Lora("name", "path"),
        session_id="session",
    )
    publisher._publisher.flush()
    (event,) = msgpack.unpackb(publisher._publisher.snapshot().batches[0])[1]
    assert (event["lora_id"], event["lora_name"], event["session_id"]) == (7, "name", "session")
    # The stand-in for vLLM's publisher keeps the tags of extra keys, which vLLM's own publisher removes.
    assert [len(keys) for keys in event["extra_keys"]] == [2, 1]
    publisher.shutdown()


@pytest.mark.parametrize("broken", ["tokens", "keys"])
def test_a_block_that_cannot_be_published_is_not_cached(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # In an earlier version such a block was cached, so lookups found it. But it was not published, and
    # neither were the blocks after it.
    publisher, manager = engine()
    pool = manager.block_pool
    request = request_of([1, 2, 3, 4], cache_salt="s" if broken == "keys" else None)
    blocks = pool.get_new_blocks(2)
    with monkeypatch.context() as patch:
        if broken == "tokens":
            patch.setattr(request, "_all_token_ids", [1, 2, "three", 4])
        else:
            patch.setattr(request, "lora_request", types.SimpleNamespace())
        with pytest.raises((TypeError, AttributeError)):
            pool.cache_full_blocks(request, blocks, 0, 2, BLOCK[0], 0)
    assert [block.block_hash for block in blocks] == [None, None]
    assert told(publisher).held == {}
    pool.cache_full_blocks(request, blocks, 0, 2, BLOCK[0], 0)
    assert told(publisher).prompts() == {"GPU": {(1, 2), (1, 2, 3, 4)}}
    publisher.shutdown()


def test_batches_of_others_are_published_in_the_same_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = types.SimpleNamespace(encode=lambda batch: msgpack.packb([batch.ts, batch.events, batch.rank]))
    packing = types.SimpleNamespace(msgpack=types.SimpleNamespace(Encoder=lambda: encoder))
    monkeypatch.setitem(sys.modules, "msgspec", packing)
    publisher, manager = engine()
    batch = types.SimpleNamespace(ts=1.0, events=["x"], rank=0, data_parallel_rank=None)
    cache(manager.block_pool, [1, 2])
    publisher.publish(batch)
    publisher._publisher.flush()
    assert batch.data_parallel_rank == 0
    kept = publisher._publisher._core.replay(0, 0)
    assert encoder.encode(batch) in [one for _, one in kept]
    assert [at for at, _ in kept] == list(range(kept[0][0], kept[0][0] + len(kept)))
    publisher.shutdown()


def test_sockets_are_open_before_there_is_a_pool_and_closed_at_the_end() -> None:
    make_pool(events=None)
    publisher = Factory.create(Config(replay_endpoint="tcp://127.0.0.1:*"))
    config = publisher.get_publisher_config()
    assert config.endpoint.startswith("tcp://127.0.0.1:")
    assert not config.endpoint.endswith("*")
    assert config.replay_endpoint == publisher.sink.replay_endpoint
    publisher.publish(types.SimpleNamespace())  # no subscriber yet, so there is nothing to report
    publisher.shutdown()
    assert publisher.sink._context is None


@pytest.mark.parametrize("seed", range(8))
def test_random_calls_of_a_pool_are_published_exactly(seed: int) -> None:
    publisher, manager = engine(24)
    pool = manager.block_pool
    numbers = random.Random(seed)
    tables: list[tuple[list[int], list[Any]]] = []
    for _ in range(120):
        choice = numbers.random()
        if choice < 0.5:
            tokens = [numbers.randrange(2) for _ in range(2 * numbers.randrange(1, 6))]
            if pool.get_num_free_blocks() >= len(tokens) // 2:
                tables.append((tokens, cache(pool, tokens)))
        elif choice < 0.85 and tables:
            _, blocks = tables.pop(numbers.randrange(len(tables)))
            pool.free_blocks(reversed(blocks))
        elif choice < 0.95:
            pool.evict_blocks({numbers.randrange(1, 24)})
        else:
            pool.reset_prefix_cache()
        if numbers.random() < 0.2:
            assert told(publisher).held.get("GPU", set()) == reachable(pool)
    assert told(publisher).held.get("GPU", set()) == reachable(pool)
    publisher.shutdown()


def reachable(pool: Any) -> set[int]:
    """Returns the blocks that lookups can find from the first block on, over all prompts of up to five
    blocks.
    """
    found: set[int] = set()
    waiting: list[list[int]] = [[]]
    while waiting:
        prompt = waiting.pop()
        for pair in ([0, 0], [0, 1], [1, 0], [1, 1]):
            longer = prompt + pair
            if len(longer) <= 10 and pool.get_cached_block(digest(tuple(longer)), [0]):
                found.add(number(longer))
                waiting.append(longer)
    return found


def test_a_vllm_that_makes_its_publisher_otherwise_keeps_its_own(caplog: pytest.LogCaptureFixture) -> None:
    module = part("publisher")
    Factory.create = classmethod(lambda cls, config: None)  # type: ignore[assignment]
    assert module.replacements() == []
    assert "stays vLLM's" in caplog.text
    del vars(sys.modules["vllm.distributed.kv_events"])["EventPublisherFactory"]
    assert module.replacements() == []
