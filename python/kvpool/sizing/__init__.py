"""Sizing: computes the hit rates of a cache of any size under each eviction policy.

:func:`size` returns all results for a trace at once, as a dict that can be written as JSON.
:mod:`kvpool.sizing.report` defines its schema, and ``kvpool size`` prints it on the command line.
:class:`References` offers each estimator separately:

>>> import kvpool
>>> from kvpool.sizing import References
>>> references = References(kvpool.traces.Trace.generate(500))
>>> curve = references.lru()                        # LRU at every capacity, in one pass
>>> run = references.run("lru", 700)                # a policy at one capacity, as the pool evicts
>>> run.block_hit_rate == curve.at(700)[0]
True
>>> references.optimal(700).block_hit_rate > run.block_hit_rate
True

If a trace is too large for this, :func:`sampled_lru` estimates the curve from a sample of the blocks:

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
