"""Request traces: read, generate and convert them, and replay them through a manager.

>>> from kvpool.traces import Replay, Trace
>>> replay = Replay(Trace.generate(requests=50), capacity_blocks=50_000)
>>> replay.advance()
50

``docs/traces.md`` describes the formats. :mod:`kvpool.sizing` computes the hit rates of caches of other
sizes and policies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from kvpool._core.traces import Replay, Trace, TraceReader, trace_formats

__all__ = ["EXAMPLE", "Replay", "Trace", "TraceReader", "example_path", "trace_formats"]

#: The arguments of :meth:`Trace.generate` that produced the example trace. A test generates the trace again,
#: and compares it with the file.
EXAMPLE: Final[dict[str, Any]] = {"requests": 2000, "seed": 21, "rate_per_s": 2.0}


def example_path() -> Path:
    """Returns the path of the example trace that ships with kvpool.

    The trace was generated from :data:`EXAMPLE`, and is in Mooncake's format. It contains chats, agents
    and one-shot requests over a quarter of an hour. ``kvpool size example`` reads it.

    >>> len(Trace.read(example_path()))
    2000
    """
    return Path(__file__).with_name("data") / "example.jsonl.gz"


def __dir__() -> list[str]:
    return [*__all__]
