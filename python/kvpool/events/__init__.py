"""KV events: report to routers of several engines which prefixes each engine has cached.

A :class:`Publisher` observes a manager or a pool and sends each change to any number of *sinks*, in the
formats of existing consumers: Dynamo's indexer, llm-d, AIBrix and others. A :class:`ZmqSink` publishes
on a ZeroMQ PUB socket, and answers requests for missed batches on a second socket. A :class:`CallSink`
calls a function.

>>> from kvpool import CacheManager
>>> from kvpool.events import CallSink, Publisher
>>> manager, heard = CacheManager(64, block_size=4), []
>>> with Publisher(manager, [CallSink(lambda number, batch: heard.append(batch))]) as publisher:
...     told = publisher.flush()
...     admission, registered = manager.admit("a", list(range(8))), manager.commit("a", 8)
...     told = publisher.flush()
>>> b"AllBlocksCleared" in heard[0], b"BlockStored" in heard[1]
(True, True)

A publisher works in its own thread. A scheduler's step only pays for a copy of the list of blocks that
it registered. The publisher never waits for a consumer. If a sink cannot take a batch, the batch is
dropped, and the publisher sends all cached
contents again once the sink has room. `docs/events.md` describes the bytes and the consumers.
"""

from __future__ import annotations

from kvpool._core.events import EventPublisher

from .publisher import Counts, Publisher, Snapshot
from .sinks import CallSink, Form, Sink
from .zmq_sink import ZmqSink

__all__ = ["CallSink", "Counts", "EventPublisher", "Form", "Publisher", "Sink", "Snapshot", "ZmqSink"]


def __dir__() -> list[str]:
    return [*__all__]
