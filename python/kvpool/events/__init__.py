"""KV events: which prefixes can be found here, for routers above several engines.

A :class:`Publisher` follows a manager or a pool and tells any number of sinks what changed, in the
forms that existing consumers read: Dynamo's indexer, llm-d, AIBrix and others. A :class:`ZmqSink` is a
PUB socket with a socket for replays beside it; a :class:`CallSink` calls a function.

>>> from kvpool import CacheManager
>>> from kvpool.events import CallSink, Publisher
>>> manager, heard = CacheManager(64, block_size=4), []
>>> with Publisher(manager, [CallSink(lambda number, batch: heard.append(batch))]) as publisher:
...     told = publisher.flush()
...     admission, registered = manager.admit("a", list(range(8))), manager.commit("a", 8)
...     told = publisher.flush()
>>> b"AllBlocksCleared" in heard[0], b"BlockStored" in heard[1]
(True, True)

A publisher works in a thread of its own; a step of the scheduler pays for a copy of what it registers.
Nothing that a consumer does or leaves undone is waited for: what a sink cannot take is dropped, and
made good once it can. `docs/events.md` has the bytes, and what each consumer makes of them.
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
