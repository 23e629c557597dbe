"""Request traces: read, made up, converted, and replayed through a manager.

>>> from kvpool.traces import Replay, Trace
>>> replay = Replay(Trace.generate(requests=50), capacity_blocks=50_000)
>>> replay.advance()
50

The formats: ``docs/traces.md``. What a cache of another size or policy would hit: :mod:`kvpool.sizing`.
"""

from kvpool._core.traces import Replay, Trace, TraceReader, trace_formats

__all__ = ["Replay", "Trace", "TraceReader", "trace_formats"]
