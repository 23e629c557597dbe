"""Sizing: the hit rates of a cache of any size, under each eviction policy.

:func:`size` returns all results for a trace at once, as a JSON-compatible dict whose schema is
:mod:`kvpool.sizing.report`. ``kvpool size`` on the command line prints it. :class:`References` has the
single estimators:

>>> import kvpool
>>> from kvpool.sizing import References
>>> references = References(kvpool.traces.Trace.generate(500))
>>> curve = references.lru()                        # LRU at every capacity, in one pass
>>> run = references.run("lru", 700)                # a policy at one capacity, as the pool evicts
>>> run.block_hit_rate == curve.at(700)[0]
True
>>> references.optimal(700).block_hit_rate > run.block_hit_rate
True

For a trace too large for that, :func:`sampled_lru` estimates the curve from a sample of its blocks:

>>> from kvpool.sizing import sampled_lru
>>> abs(sampled_lru(kvpool.traces.Trace.generate(500), max_blocks=1000).at(700)[0] - curve.at(700)[0]) < 0.05
True
"""

from kvpool._core.sizing import HitCurve, PolicyRun, References, sampled_lru
from kvpool.sizing.grouped import DEFAULT_KEEP, group_runs, parse_keep
from kvpool.sizing.measure import (
    DEFAULT_CAPACITIES,
    DEFAULT_HINTS,
    DEFAULT_POLICIES,
    POLICIES,
    Size,
    check_sizing,
    size,
)
from kvpool.sizing.report import SizingReport
from kvpool.sizing.tiers import Tier, parse_speed

__all__ = [
    "DEFAULT_CAPACITIES",
    "DEFAULT_HINTS",
    "DEFAULT_KEEP",
    "DEFAULT_POLICIES",
    "POLICIES",
    "HitCurve",
    "PolicyRun",
    "References",
    "Size",
    "SizingReport",
    "Tier",
    "check_sizing",
    "group_runs",
    "parse_keep",
    "parse_speed",
    "sampled_lru",
    "size",
]
