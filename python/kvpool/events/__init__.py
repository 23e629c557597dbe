"""KV events: reports the prefixes cached in an engine to routers above several engines.

A :class:`Publisher` observes a manager or a pool and notifies any number of sinks of changes, in the
formats of existing consumers: Dynamo's indexer, llm-d, AIBrix and others. A :class:`ZmqSink` is a PUB
socket with a socket for replays beside it. A :class:`CallSink` calls a function.

>>> from kvpool import CacheManager
>>> from kvpool.events import CallSink, Publisher
>>> manager, heard = CacheManager(64, block_size=4), []
>>> with Publisher(manager, [CallSink(lambda number, batch: heard.append(batch))]) as publisher:
...     told = publisher.flush()
...     admission, registered = manager.admit("a", list(range(8))), manager.commit("a", 8)
...     told = publisher.flush()
>>> b"AllBlocksCleared" in heard[0], b"BlockStored" in heard[1]
(True, True)

A publisher works in a thread of its own. A scheduler's step only pays for a copy of its registrations.
The publisher never waits for a consumer: batches that a sink cannot take are dropped, and the contents
are sent again once it can. `docs/events.md` describes the bytes and the consumers.
"""

from __future__ import annotations

from kvpool._core.events import EventPublisher

from .publisher import Counts, Publisher, Snapshot
from .sinks import CallSink, Form, Sink
from .zmq_sink import ZmqSink

__all__ = ["CallSink", "Counts", "EventPublisher", "Form", "Publisher", "Sink", "Snapshot", "ZmqSink"]


def __dir__() -> list[str]:
    """Lists the public names."""
    return [*__all__]
