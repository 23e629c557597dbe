"""Replaces vLLM's publisher of KV events with kvpool's, for kvpool's pools.

In vLLM, the scheduler takes event objects from the pool in every step, and passes them to the
publisher, which encodes them in a thread. Here the pool writes its changes to a log in Rust
(:class:`kvpool._core.vllm.VllmFeed`). The publisher (:mod:`kvpool.events`) converts the log to bytes in
its own thread. No Python object is made per block, and no work is done in a step. The endpoint, the
replay endpoint, the topic and the high-water mark come from vLLM's ``--kv-events-config``.

A pool finds its publisher by thread. The scheduler of an engine makes its publisher first, and then its
KV-cache manager, in the same thread. A pool that is made with events *claims* the publisher that was
made last in its thread, unless another pool has claimed it. A pool that finds no publisher makes vLLM's
event objects. So does a pool with ``KVPOOL_VLLM_EVENTS=stock``.

Events from other sources, such as a connector's events about CPU memory, are encoded as vLLM encodes
them, and sent in the same sequence. Snapshots do not contain
them.

Costs: see :mod:`kvpool.events.publisher`.
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

#: The largest number of changes that may wait for the publisher's thread. They are the changes of several
#: seconds at 50,000 blocks per second.
CAPACITY: Final = 1 << 18
#: Kinds of groups in which a block can be used without the blocks before it.
UNCHAINED: Final = frozenset({"sliding_window", "chunked_local_attention", "mamba"})

_unclaimed = threading.local()


class FedEvents(ExactEvents):
    """Writes the changes of a pool to a feed, and makes no event objects."""

    def __init__(self, pool: BlockPool, publisher: PoolPublisher) -> None:
        super().__init__(pool)
        self.publisher = publisher
        self.feed = _core.vllm.VllmFeed(self._describe, CAPACITY)

    def _describe(
        self, request: Any, blocks: Sequence[tuple[int, int]]
    ) -> tuple[int | None, str | None, str | None, str | None, list[Any] | None]:
        """Returns everything besides tokens that identifies the blocks of a request.

        This is the adapter, the salt, the session, and the extra keys of each block.
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

        The events for whole blocks were sent when the blocks were stored, and parts of blocks have no
        events.
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
        """Records in the feed that keys were removed from a block."""
        self.feed.removed(keys)

    def stored_part(self, is_new: bool | None) -> bool:
        """Returns False.

        There are no events for parts of blocks, because readers require blocks of one size.
        """
        del is_new
        return False

    def cleared(self) -> None:
        """Records in the feed that a reset has dropped all cached content."""
        self.feed.cleared()


class PoolPublisher:
    """The object that vLLM's scheduler uses as its ``kv_event_publisher``.

    Its sockets are open from the start, because vLLM reports their addresses when an engine has
    started. Batches are sent once a pool has claimed the publisher and the pool's groups are known.
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
        #: Whether the groups of the pool are known and publishing has begun.
        self.begun = False
        logger.info("kvpool: KV events at %s, replays at %s", self.sink.endpoint, self.sink.replay_endpoint)

    def claim(self, feed: _core.vllm.VllmFeed) -> None:
        """Connects this publisher with the feed of the pool that claims it."""
        self._feed = feed

    def begin(self, groups: list[tuple[int, str, int | None, bool]]) -> None:
        """Sets the groups of the pool, and starts publishing.

        Each group consists of the tokens per block, the kind, the window, and whether a block needs the
        block before it.
        """
        if self._publisher is None and self._feed is not None:
            self.begun = True
            self._feed.set_groups(groups)
            self._publisher = Publisher(self._feed, [self.sink], rank=self._rank)

    def publish(self, events: Any) -> None:
        """Sends events that do not come from the pool. They are encoded as vLLM encodes them."""
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
        """Returns the configuration, with the addresses at which the sockets are open."""
        import dataclasses

        return dataclasses.replace(
            self._config, endpoint=self.sink.endpoint, replay_endpoint=self.sink.replay_endpoint
        )


def claim(pool: BlockPool) -> FedEvents | None:
    """Returns the events object for a pool, or None if no publisher waits for a pool in this thread."""
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

    The list is empty if the installed vLLM makes its publishers in another way.
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
            # The port ``:0`` means any free port of the node's address. Only vLLM can determine it.
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
    """Returns the groups of vLLM's KV-cache manager, in the order of their numbers."""
    sizes = {one.kv_cache_group_id: one.block_size for one in manager.coordinator.single_type_managers}
    return [
        (sizes[number], kind, window, kind not in UNCHAINED)
        for number, (kind, window) in enumerate(manager.kv_cache_event_metadata)
    ]
