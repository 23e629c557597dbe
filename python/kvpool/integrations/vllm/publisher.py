"""kvpool's publisher of KV events instead of vLLM's, for kvpool's pools.

vLLM's scheduler takes event objects from its pool at every step, and passes them to its publisher,
which packs them in a thread. Here the pool writes its changes to a log in Rust
(:class:`kvpool._core.vllm.VllmFeed`). The publisher (:mod:`kvpool.events`) turns the log into bytes in
its own thread. There is no Python object per block, and no work per step. Endpoint, replay endpoint,
topic and high-water mark are those of vLLM's ``--kv-events-config``.

Pools and publishers are matched by thread. An engine's scheduler makes its publisher and then its
KV-cache manager, in one thread. A pool that is made with events on *claims* the last publisher made in
its thread, if that has no pool yet. A pool that finds no publisher makes vLLM's event objects, as does
one with ``KVPOOL_VLLM_EVENTS=stock``.

Events from other sources, such as a connector's for CPU memory, are packed as vLLM packs them, and sent
in the same sequence. Snapshots do not contain them.

Costs: see :mod:`kvpool.events`.
"""

from __future__ import annotations

import inspect
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from kvpool import _core
from kvpool.events import Publisher, ZmqSink

from . import LOGGER_NAME
from .events import ExactEvents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .pool import BlockPool

logger = logging.getLogger(LOGGER_NAME)

#: Changes that may wait for the publisher's thread: several seconds' worth at 50,000 blocks per second.
CAPACITY: Final = 1 << 18
#: Kinds of groups whose blocks can be used without the blocks before them.
UNCHAINED: Final = frozenset({"sliding_window", "chunked_local_attention", "mamba"})

_unclaimed = threading.local()


class FedEvents(ExactEvents):
    """Writes a pool's changes to a feed, instead of making event objects."""

    def __init__(self, pool: BlockPool, publisher: PoolPublisher) -> None:
        super().__init__(pool)
        self.publisher = publisher
        self.feed = _core.vllm.VllmFeed(self._describe, CAPACITY)

    def _describe(
        self, request: Any, blocks: Sequence[tuple[int, int]]
    ) -> tuple[int | None, str | None, str | None, str | None, list[Any] | None]:
        """Returns the extra keys of a request's blocks.

        These are the adapter, the salt, the session, and the keys of each block.
        """
        from vllm.v1.core import kv_cache_utils

        keys, _ = self._extra_keys(request, blocks, 0)
        lora = request.lora_request
        return (
            lora.adapter_id if lora else None,
            lora.name if lora else None,
            request.cache_salt or None,
            request.session_id,
            kv_cache_utils.to_event_extra_keys(keys),
        )

    def stored_run(self, request: Any, *_: Any, item: int = 0, **__: Any) -> int:
        """Does nothing.

        Events for these blocks were sent when they were stored, and parts of blocks have no events.
        """
        del request
        return item

    def stored(
        self,
        request: Any,
        hashes: Any,
        first: int,
        end: int,
        block_size: int,
        group: int,
        new: list[bool | None],
    ) -> None:
        """Records that blocks ``first..end`` of a request were cached."""
        del end
        self.feed.stored(request, hashes, first, block_size, group, new)

    def removed(self, keys: Sequence[tuple[bytes, bool]]) -> None:
        """Records that keys were removed from a block."""
        self.feed.removed(keys)

    def stored_part(self, is_new: bool | None) -> bool:
        """Returns False.

        There are no events for parts of blocks, because readers require blocks of one size.
        """
        del is_new
        return False

    def cleared(self) -> None:
        """Records that nothing is cached any more."""
        self.feed.cleared()


class PoolPublisher:
    """The ``kv_event_publisher`` of vLLM's scheduler.

    Sockets are open from the start, because vLLM reports their addresses when an engine has started.
    Batches are sent once a pool has claimed the publisher and its groups are known.
    """

    def __init__(self, rank: int, config: Any) -> None:
        from vllm import envs
        from vllm.distributed.kv_events import ZmqEventPublisher

        self._rank = rank
        self._config = config
        offset = ZmqEventPublisher.offset_endpoint_port
        self.sink = ZmqSink(
            offset(config.endpoint, rank),
            offset(config.replay_endpoint, rank),
            topic=config.topic,
            form="vllm" if envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES else "vllm-bytes",
            bind=ZmqEventPublisher._is_bind_endpoint(offset(config.endpoint, rank)),
            high_water_mark=config.hwm,
            replay_batches=config.buffer_steps,
        )
        self.sink.open(lambda _start, _limit: [])
        self._feed: _core.vllm.VllmFeed | None = None
        self._publisher: Publisher | None = None
        self._pack: Any = None
        #: Whether the groups are known.
        self.begun = False
        logger.info("kvpool: KV events at %s, replays at %s", self.sink.endpoint, self.sink.replay_endpoint)

    def claim(self, feed: _core.vllm.VllmFeed) -> None:
        """Connects the feed of the pool that claims this publisher."""
        self._feed = feed

    def begin(self, groups: list[tuple[int, str, int | None, bool]]) -> None:
        """Sets the pool's groups and starts publishing.

        Each group has the tokens of a block, the kind, the window, and whether a block needs the one
        before it.
        """
        if self._publisher is None and self._feed is not None:
            self.begun = True
            self._feed.set_groups(groups)
            self._publisher = Publisher(self._feed, [self.sink], rank=self._rank)

    def publish(self, events: Any) -> None:
        """Sends events from other sources than the pool, packed as vLLM packs them."""
        if self._publisher is None:
            return
        if self._pack is None:
            import msgspec

            self._pack = msgspec.msgpack.Encoder()
        if events.data_parallel_rank is None:
            events.data_parallel_rank = self._rank
        self._publisher.pass_on(self._pack.encode(events))

    def shutdown(self) -> None:
        """Sends the remaining changes, and closes the sockets."""
        if self._publisher is None:
            self.sink.close()
            return
        self._publisher.flush()
        self._publisher.close()

    def get_publisher_config(self) -> Any:
        """Returns the configuration with the actual endpoints."""
        import dataclasses

        return dataclasses.replace(
            self._config, endpoint=self.sink.endpoint, replay_endpoint=self.sink.replay_endpoint
        )


def claim(pool: BlockPool) -> FedEvents | None:
    """Returns the events object for a pool, if a publisher was made for it in this thread."""
    waiting: weakref.ref[PoolPublisher] | None = getattr(_unclaimed, "publisher", None)
    publisher = waiting() if waiting is not None else None
    if publisher is None or pool.num_hash_lookahead_tokens or pool.medium != "GPU":
        return None
    _unclaimed.publisher = None
    events = FedEvents(pool, publisher)
    publisher.claim(events.feed)
    return events


def replacements() -> list[tuple[Any, str, Any]]:
    """Returns the replacements in vLLM: class, name, value.

    The list is empty for a vLLM that makes its publishers in another way.
    """
    try:
        from vllm.distributed.kv_events import EventPublisherFactory, ZmqEventPublisher
        from vllm.v1.core.kv_cache_manager import KVCacheManager
    except ImportError:
        return []
    stock_create = vars(EventPublisherFactory).get("create")
    stock_take = vars(KVCacheManager).get("take_events")
    is_known = (
        isinstance(stock_create, classmethod)
        and stock_take is not None
        and list(inspect.signature(stock_create.__func__).parameters)
        == ["cls", "config", "data_parallel_rank"]
        and list(inspect.signature(stock_take).parameters) == ["self"]
        and all(hasattr(ZmqEventPublisher, name) for name in ("offset_endpoint_port", "_is_bind_endpoint"))
    )
    if not is_known:
        logger.warning("kvpool: this vLLM makes its publisher of KV events in another way: it stays vLLM's")
        return []

    def create(cls: Any, config: Any, data_parallel_rank: int = 0) -> Any:
        from .pool import BlockPool

        is_ours = (
            config is not None
            and config.enable_kv_cache_events
            and config.publisher == "zmq"
            # ``:0`` means any free port of the node's address, which only vLLM can determine.
            and not config.endpoint.endswith(":0")
            and issubclass(BlockPool.events_class, ExactEvents)
        )
        if not is_ours:
            return stock_create.__func__(cls, config, data_parallel_rank)
        publisher = PoolPublisher(data_parallel_rank, config)
        _unclaimed.publisher = weakref.ref(publisher)
        return publisher

    def take_events(self: Any) -> Any:
        pool = self.block_pool
        if not pool.enable_kv_cache_events:
            return []
        publisher = getattr(pool.events, "publisher", None) if hasattr(pool, "events") else None
        if publisher is None:
            return stock_take(self)
        if not publisher.begun:
            publisher.begin(groups_of(self))
        return pool.take_events()

    return [
        (EventPublisherFactory, "create", classmethod(create)),
        (KVCacheManager, "take_events", take_events),
    ]


def groups_of(manager: Any) -> list[tuple[int, str, int | None, bool]]:
    """Returns the groups of vLLM's KV-cache manager, by number."""
    sizes = {one.kv_cache_group_id: one.block_size for one in manager.coordinator.single_type_managers}
    return [
        (sizes[number], kind, window, kind not in UNCHAINED)
        for number, (kind, window) in enumerate(manager.kv_cache_event_metadata)
    ]
