"""Computes a :class:`~kvpool.sizing.report.SizingReport` from a trace.

This module owns the choice of estimators, the capacities, and the threads. The *cells* of the grid are
the runs of one policy at one capacity. The estimators are written in Rust
(:class:`kvpool.sizing.References`) and run without the GIL, so threads are sufficient.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import math
import os
import re
import resource
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import kvpool
from kvpool._core.policies import policy_removal
from kvpool._core.sizing import References, sampled_lru
from kvpool.errors import InvalidArgumentError
from kvpool.sizing.grouped import DEFAULT_KEEP, group_runs
from kvpool.sizing.tiers import check_tiers, tiers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvpool._core import EvictionPolicy, SizingForm
    from kvpool._core.sizing import HitCurve, PolicyRun
    from kvpool._core.traces import Trace, TraceSummary
    from kvpool.models import KvShape
    from kvpool.sizing import report as schema
    from kvpool.sizing.tiers import Tier

__all__ = [
    "DEFAULT_CAPACITIES",
    "DEFAULT_HINTS",
    "DEFAULT_POLICIES",
    "PAPERS",
    "POLICIES",
    "Size",
    "check_sizing",
    "size",
]

#: The publication in which each policy is defined.
PAPERS: Final = {
    "lru": "",
    "s3-fifo": "Yang et al., SOSP 2023",
    "arc": "Megiddo and Modha, FAST 2003",
    "adaptive": "kvpool",
    "hazard": "kvpool; after LHD, Beckmann et al., NSDI 2018",
}

#: The policies for which the caller need not provide access times.
POLICIES: Final = tuple(name for name in kvpool.policies.eviction_policies() if name in PAPERS)
#: The policies that are compared by default. They are also the advisor's defaults.
DEFAULT_POLICIES: Final[tuple[EvictionPolicy, ...]] = tuple(kvpool.AdvisorConfig().policies)
#: The default capacities, in per cent of the trace's different blocks.
DEFAULT_CAPACITIES: Final = ("1%", "2%", "5%", "10%", "20%", "30%", "40%", "50%")
#: The default accuracies of end-of-life hints: the share of the hints that are given, from 0 to 1.
DEFAULT_HINTS: Final = (0.5, 0.8, 1.0)

#: Number of points of the LRU curve in a report.
_CURVE_POINTS: Final = 200
#: The largest number of blocks that a sample may track.
_MOST_SAMPLED: Final = 2**30
#: Number of time windows in the hit rate over time.
_WINDOWS: Final = 60
#: The hit rate over time is reported for the capacity nearest to this percentage of the different
#: blocks.
_OVER_TIME_PERCENT: Final = 10.0
#: The policy that uses the reasons for which requests finished.
_LEARNS_FROM_ENDS: Final[EvictionPolicy] = "hazard"
#: Number of rows in the table that shows how many hits additional memory brings.
_WORTH_STEPS: Final = 12


_NO_SHAPE: Final = "capacities is in GiB: that needs a KV shape, name a model"

_Unit = Literal["%", "GiB", "blocks"]
_UNITS: Final[dict[str, _Unit]] = {"%": "%", "gib": "GiB", "blocks": "blocks", "": "blocks"}


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """A cache size, in the unit in which the caller gave it: per cent, GiB or blocks.

    >>> Size.parse("5%").blocks(unique_blocks=182_790, bytes_per_block=None)
    9139
    >>> Size.parse("60GiB").blocks(unique_blocks=0, bytes_per_block=64 * 2**20)
    960
    """

    amount: float
    unit: _Unit

    @classmethod
    def parse(cls, text: str) -> Size:
        """Reads ``5%``, ``60GiB`` or ``9139`` (blocks).

        Raises:
            InvalidArgumentError: The text has none of these forms.

        """
        match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*(%|gib|blocks|)\s*", text.lower())
        amount = _number(match[1]) if match else 0.0
        unit = _UNITS[match[2]] if match else "blocks"
        if not (0 < amount < math.inf and (unit != "blocks" or amount == math.floor(amount))):
            raise InvalidArgumentError(
                f"capacities is {text!r}: must be like 5%, 60GiB or 9139 (blocks), above 0"
            )
        return cls(amount, unit)

    def blocks(self, *, unique_blocks: int, bytes_per_block: int | None) -> int:
        """Returns the number of whole blocks, rounded down, at least 1.

        Raises:
            InvalidArgumentError: The size is in GiB and no model is given, or the number of blocks
                exceeds what a simulation can have.

        """
        if self.unit == "%":
            blocks = unique_blocks * self.amount / 100
        elif self.unit == "blocks":
            blocks = self.amount
        elif bytes_per_block is None:
            raise InvalidArgumentError(_NO_SHAPE)
        else:
            blocks = self.amount * 2**30 / bytes_per_block
        # The limit is the 2^32 block ids, minus the null block and the ids that a simulation needs.
        if blocks > 2**32 - 8:
            raise InvalidArgumentError(f"capacities is {blocks:,.0f} blocks: must be at most {2**32 - 8:,}")
        # The small addend prevents a rounding error of a percentage from reducing the result by one block.
        return max(1, math.floor(blocks + 1e-6))


def _number(text: str) -> float:
    """Parses a text as a number. Returns 0 if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def size(
    trace: Trace,
    *,
    policies: Sequence[EvictionPolicy] = DEFAULT_POLICIES,
    capacities: Sequence[Size | str] = DEFAULT_CAPACITIES,
    form: Literal["pool", "stream"] = "pool",
    blocks: Literal["all", "full"] = "all",
    hints: Sequence[float] = DEFAULT_HINTS,
    shape: KvShape | None = None,
    prefill_tokens_per_s: float | None = None,
    jobs: int = 0,
    sample_blocks: int | None = None,
    keep: int | str = DEFAULT_KEEP,
    tiers: Sequence[Tier] = (),
    source: str = "",
    progress: Callable[[int, int], None] | None = None,
    group_progress: Callable[[int, int], None] | None = None,
) -> schema.SizingReport:
    """Size a cache for a trace: compare policies and capacities, the optimum, hints, and the LRU curve.

    Costs: reading the references, the LRU curve, the optimum and hints take some ms per 100,000
    references. Each run of one policy at one capacity (*cell*) takes 20 to 150 ns per reference.
    Results do not depend on ``jobs``. With ``sample_blocks``, only LRU is estimated, from a sample. The
    cost then depends on the sample, not on the trace.

    Args:
        trace: The trace.
        policies: Names from :data:`POLICIES`.
        capacities: Sizes such as ``"5%"`` of the trace's different blocks, ``"60GiB"`` or ``"9139"``
            blocks.
        form: ``pool`` simulates kvpool's pool, which handles whole requests and evicts the end of a
            prefix before its beginning. ``stream`` simulates each block on its own, as papers do.
        blocks: ``all`` counts partial last blocks, as published figures do. ``full`` counts only full
            blocks, because an engine can find only these again.
        hints: Accuracies of end-of-life hints, 0 to 1.
        shape: The model's KV shape, which converts between blocks and GiB.
        prefill_tokens_per_s: The prefill speed, for results in seconds.
        jobs: Number of threads; 0 for one per core.
        sample_blocks: The largest number of blocks to track. The report then contains estimates of the LRU
            curve, its knee, the worth of memory, reuse distances, and tiers. It has no policies, optimum,
            hints, or hit rate over time.
        keep: For a hybrid model, the content of its windows and states that remains cached for later
            requests: ``"all"``, ``"junctions"``, or a number of tokens between checkpoints. The model
            is run at each size: see :mod:`kvpool.sizing.grouped`.
        tiers: The tiers beneath the device, starting with the fastest. For each capacity of the device,
            the report contains the hits of each tier and the time to the first token: see
            :mod:`kvpool.sizing.tiers`. Tiers need the shape of a model whose layers all keep every
            token.
        source: The name of the trace in the report.
        progress: Called on this thread with the number of finished cells and the number of all cells,
            each time a cell is finished. The order of the cells mixes policies and capacities, so that
            the share of finished cells is also the share of the finished work.
        group_progress: Called with the number of finished requests and the number of all requests while
            a hybrid model is run. This happens after the cells.

    Raises:
        InvalidArgumentError: A policy is unknown, a capacity is impossible, or a number is out of
            range.
        TraceError: The prefixes of the trace are inconsistent.

    """
    began = time.perf_counter()
    asked = check_sizing(
        policies=policies,
        capacities=capacities,
        hints=hints,
        shape=shape,
        sample_blocks=sample_blocks,
        tiers=tiers,
    )
    if prefill_tokens_per_s is not None and not 0 < prefill_tokens_per_s < math.inf:
        raise InvalidArgumentError(
            f"prefill_tokens_per_s is {prefill_tokens_per_s}: must be above 0, and finite"
        )
    if shape is not None and shape.bytes_per_token == 0:
        raise InvalidArgumentError(f"shape is {shape.name}: must keep tokens, and it keeps states alone")
    bytes_per_block = None if shape is None else shape.bytes_per_token * trace.block_tokens
    model: schema.Model | None = None
    if shape is not None:
        model = {
            "name": shape.name,
            "bytes_per_token": shape.bytes_per_token,
            "prefill_tokens_per_s": prefill_tokens_per_s,
        }
    summary = trace.summary()
    groups: schema.Groups | None = None
    if sample_blocks is None:
        references = References(trace, blocks=blocks)
        curve, unique_blocks = references.lru(), references.unique_blocks
        sizes = _capacities(asked, unique_blocks, trace.block_tokens, bytes_per_block)
        points = curve.points(_CURVE_POINTS)
        window_s = max(summary["span_ms"] / 1000 / _WINDOWS, 1e-3)
        parts = _simulated(references, sizes, policies, hints, form, jobs, progress, window_s)
        stats = json.loads(trace.stats_json())
        ideal, reuse_times = _ideal(stats), _reuse_times(stats)
        if shape is not None:
            groups = group_runs(
                trace,
                shape,
                sizes,
                unique_blocks=unique_blocks,
                keep=keep,
                jobs=jobs,
                progress=group_progress,
            )
    else:
        # The trace's statistics are skipped, because their table of all blocks would take more memory
        # than everything else.
        every, full = (
            sampled_lru(trace, max_blocks=sample_blocks, blocks=which) for which in ("all", "full")
        )
        curve = every if blocks == "all" else full
        unique_blocks = summary["unique_blocks"] if blocks == "all" else _unique_blocks(full)
        sizes = _capacities(asked, unique_blocks, trace.block_tokens, bytes_per_block)
        points = _with_capacities(curve, sizes)
        parts = _Parts(sample={"most_blocks": sample_blocks, "rate": curve.sample_rate})
        ideal, reuse_times = _estimated_ideal(every, full, summary), []
    facts: schema.TraceFacts = {
        "source": source,
        "format": trace.format or "generated",
        "requests": summary["requests"],
        "block_size": trace.block_tokens,
        "references": curve.references,
        "unique_blocks": unique_blocks,
        "tokens_in": summary["input_tokens"],
        "span_s": summary["span_ms"] / 1000,
        "ideal": ideal,
    }
    return {
        "kvpool": kvpool.__version__,
        "trace": facts,
        "form": form,
        "blocks": blocks,
        "capacities": sizes,
        "sample": parts.sample,
        "policies": parts.policies,
        "optimum": parts.optimum,
        "hints": parts.hints,
        "finish_reasons": parts.finish_reasons,
        "lru_curve": [
            {
                "blocks": size_blocks,
                "gib": _gib(size_blocks, bytes_per_block),
                "block_hit_rate": block_rate,
                "token_hit_rate": token_rate,
            }
            for size_blocks, block_rate, token_rate in points
        ],
        "knee": _knee(curve, bytes_per_block),
        "worth": _worth(curve, model, bytes_per_block),
        "reuse_distances": [
            {"from_blocks": first, "to_blocks": last, "references": count}
            for first, last, count in curve.distances()
        ],
        "reuse_times_s": reuse_times,
        "over_time": parts.over_time,
        "model": model,
        "groups": groups,
        "tiers": tiers_of(curve, tiers, sizes, model, facts) if tiers and model is not None else None,
        "elapsed_s": time.perf_counter() - began,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def check_sizing(
    *,
    policies: Sequence[EvictionPolicy] = DEFAULT_POLICIES,
    capacities: Sequence[Size | str] = DEFAULT_CAPACITIES,
    hints: Sequence[float] = DEFAULT_HINTS,
    shape: KvShape | None = None,
    sample_blocks: int | None = None,
    tiers: Sequence[Tier] = (),
) -> list[Size]:
    """Checks those arguments of :func:`size` that need no trace. Returns the capacities.

    O(arguments). Call it before reading a large trace, so that errors appear early.

    Raises:
        InvalidArgumentError: A policy is unknown, a size is invalid or in GiB without a KV shape, a
            number is out of range, or tiers do not support the model.

    """
    check_tiers(tiers, shape)
    unknown = [policy for policy in policies if policy not in POLICIES]
    if unknown or not policies:
        must = f"must be of {', '.join(POLICIES)}"
        removed = [note for note in map(policy_removal, unknown) if note is not None]
        what = ", ".join(map(repr, unknown)) or "empty"
        raise InvalidArgumentError(f"policies is {what}: {'; '.join([must, *removed])}")
    if sample_blocks is not None and not 1 <= sample_blocks <= _MOST_SAMPLED:
        raise InvalidArgumentError(f"sample_blocks is {sample_blocks}: must be 1 to {_MOST_SAMPLED}")
    asked = [Size.parse(one) if isinstance(one, str) else one for one in capacities]
    if not asked:
        raise InvalidArgumentError("capacities is empty: must be at least one size")
    if shape is None and any(one.unit == "GiB" for one in asked):
        raise InvalidArgumentError(_NO_SHAPE)
    for accuracy in hints:
        if not 0 <= accuracy <= 1:
            raise InvalidArgumentError(f"accuracy is {accuracy}; allowed: 0 to 1")
    return asked


@dataclasses.dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a report that need every reference of the trace.

    They are empty if the report is from a sample.
    """

    policies: list[schema.PolicyResult] = dataclasses.field(default_factory=list)
    optimum: schema.OptimumResult | None = None
    hints: list[schema.HintResult] = dataclasses.field(default_factory=list)
    finish_reasons: schema.FinishReasons | None = None
    over_time: schema.OverTime | None = None
    sample: schema.Sample | None = None


def _simulated(
    references: References,
    sizes: Sequence[schema.Capacity],
    policies: Sequence[EvictionPolicy],
    hints: Sequence[float],
    form: SizingForm,
    jobs: int,
    progress: Callable[[int, int], None] | None,
    window_s: float,
) -> _Parts:
    """Simulates the policies, the optimum and the hints at each capacity."""
    by_capacity = [capacity["blocks"] for capacity in sizes]
    cells = _spread(policies, by_capacity)
    told = references.finish_reasons if _LEARNS_FROM_ENDS in policies else 0
    untold = _spread([_LEARNS_FROM_ENDS], by_capacity) if told else []
    asked = [(references, *cell) for cell in cells]
    if told:
        without = references.without_finish_reasons()
        asked += [(without, *cell) for cell in untold]
    done_cells = list(_run_cells(asked, form, jobs, progress))
    runs = dict(zip(cells, done_cells[: len(cells)], strict=True))
    finish_reasons: schema.FinishReasons | None = None
    if told:
        unaware = {
            blocks: run for (_, blocks), (run, _) in zip(untold, done_cells[len(cells) :], strict=True)
        }
        finish_reasons = {
            "policy": _LEARNS_FROM_ENDS,
            "requests": told,
            "without": [_hits(unaware[blocks]) for blocks in by_capacity],
        }
    results: list[schema.PolicyResult] = []
    for policy in policies:
        done = [runs[policy, blocks] for blocks in by_capacity]
        results.append(
            {
                "name": policy,
                "source": PAPERS.get(policy, ""),
                "hits": [_hits(run) for run, _ in done],
                "seconds": sum(seconds for _, seconds in done),
            }
        )
    return _Parts(
        policies=results,
        optimum={"hits": [_hits(references.optimal(blocks)) for blocks in by_capacity]},
        hints=[
            {
                "accuracy": accuracy,
                "hits": [_hits(references.lru_with_hints(blocks, accuracy)) for blocks in by_capacity],
            }
            for accuracy in hints
        ],
        finish_reasons=finish_reasons,
        over_time=_over_time(references, sizes, runs, policies, window_s),
    )


def _unique_blocks(curve: HitCurve) -> int:
    """Estimates the number of different blocks: each is one miss of an unlimited cache."""
    return round(curve.references * (1 - curve.ceiling()[1]))


def _estimated_ideal(every: HitCurve, full: HitCurve, summary: TraceSummary) -> schema.Ideal:
    """Returns the hit rates of an unlimited cache.

    The rate of blocks is exact. The others are estimates from the sampled curves.
    """
    references = summary["block_references"]
    return {
        "block": (references - summary["unique_blocks"]) / references if references else 0.0,
        "token": every.ceiling()[2],
        "full_blocks": full.ceiling()[1],
        "last_half": None,
    }


def _with_capacities(curve: HitCurve, sizes: Sequence[schema.Capacity]) -> list[tuple[int, float, float]]:
    """Returns the points of the curve, with a point at each capacity added.

    A report from a sample has no other part that contains the rates at the capacities.
    """
    points = {point[0]: point for point in curve.points(_CURVE_POINTS)}
    for capacity in sizes:
        points.setdefault(capacity["blocks"], (capacity["blocks"], *curve.at(capacity["blocks"])))
    return [points[blocks] for blocks in sorted(points) if points[blocks][1] > 0]


def _capacities(
    asked: Sequence[Size], unique_blocks: int, block_tokens: int, bytes_per_block: int | None
) -> list[schema.Capacity]:
    """Returns the capacities in ascending order, without duplicates."""
    sizes: dict[int, schema.Capacity] = {}
    for one in asked:
        blocks = one.blocks(unique_blocks=unique_blocks, bytes_per_block=bytes_per_block)
        sizes.setdefault(
            blocks,
            {
                "relative_size": one.amount / 100 if one.unit == "%" else None,
                "blocks": blocks,
                "tokens": blocks * block_tokens,
                "gib": _gib(blocks, bytes_per_block),
            },
        )
    return [sizes[blocks] for blocks in sorted(sizes)]


def _spread(
    policies: Sequence[EvictionPolicy], capacities: Sequence[int]
) -> list[tuple[EvictionPolicy, int]]:
    """Returns the cells (pairs of policy and capacity) in an order that makes the progress report even.

    One cell may take twenty times as long as another, mostly because of its policy, and less because of
    its capacity. So every policy runs once before any runs again, and consecutive capacities are far
    apart. At any time, the finished cells then represent the remaining ones.

    >>> _spread(["lru", "adaptive"], [1, 2, 3, 4])[:6]
    [('lru', 3), ('adaptive', 3), ('lru', 1), ('adaptive', 1), ('lru', 4), ('adaptive', 4)]
    """
    # Sorting the positions of capacities by their reversed bits puts neighbouring positions far apart. The
    # order starts in the middle. For 8 capacities, it is 4, 0, 6, 2, 5, 1, 7, 3.
    number = len(capacities)
    far_apart = sorted(range(number), key=lambda place: f"{place:032b}"[::-1])
    places = [(place + number // 2) % number for place in far_apart]
    return [(policy, capacities[place]) for place in places for policy in policies]


def _run_cells(
    cells: Sequence[tuple[References, EvictionPolicy, int]],
    form: SizingForm,
    jobs: int,
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[PolicyRun, float]]:
    """Runs the cells of the grid on threads, and yields the results in the order of the cells.

    Ctrl-C cancels the cells that have not begun.
    """

    def run(cell: tuple[References, EvictionPolicy, int]) -> tuple[PolicyRun, float]:
        began = time.perf_counter()
        references, policy, blocks = cell
        return references.run(policy, blocks, form=form), time.perf_counter() - began

    workers = jobs or os.cpu_count() or 1
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(run, cell) for cell in cells]
        try:
            for done, _ in enumerate(concurrent.futures.as_completed(waiting), start=1):
                if progress is not None:
                    progress(done, len(cells))
            for cell in waiting:
                yield cell.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _hits(run: PolicyRun) -> schema.Hits:
    return {
        "block_hit_rate": run.block_hit_rate,
        "token_hit_rate": run.token_hit_rate,
        "evictions": run.evictions,
        "resident_turnover": run.turnover,
    }


def _gib(blocks: int, bytes_per_block: int | None) -> float | None:
    return None if bytes_per_block is None else blocks * bytes_per_block / 2**30


def _knee(curve: HitCurve, bytes_per_block: int | None) -> schema.Knee | None:
    knee = curve.knee()
    if knee is None:
        return None
    blocks, block_rate, _, _ = knee
    return {"blocks": blocks, "gib": _gib(blocks, bytes_per_block), "block_hit_rate": block_rate}


def _worth(
    curve: HitCurve, model: schema.Model | None, bytes_per_block: int | None
) -> list[schema.WorthStep]:
    """Returns how many more prompt tokens hit with each growth of the LRU cache.

    The sizes double, up to the size that serves all possible hits.
    """
    ceiling, _, _ = curve.ceiling()
    most = _gib(ceiling, bytes_per_block)
    if model is None or not most:
        return []
    sizes = [most / 2**step for step in range(_WORTH_STEPS, -1, -1)]
    rate = model["prefill_tokens_per_s"]
    rows = curve.worth(model["bytes_per_token"], sizes, prefill_tokens_per_s=rate or 1.0)
    steps: list[schema.WorthStep] = []
    for before, row in zip([None, *rows[:-1]], rows, strict=True):
        tokens = row["token_hits"] - (before["token_hits"] if before else 0)
        steps.append(
            {
                "from_gib": before["gib"] if before else 0.0,
                "to_gib": row["gib"],
                "hit_tokens": tokens,
                "prefill_seconds": None if rate is None else tokens / rate,
            }
        )
    return steps


def _ideal(stats: dict[str, Any]) -> schema.Ideal:
    return {
        "block": stats["ideal_block_hit_rate"],
        "token": stats["ideal_token_hit_rate"],
        "full_blocks": stats["ideal_full_block_hit_rate"],
        "last_half": stats["ideal_last_half_token_hit_rate"],
    }


def _reuse_times(stats: dict[str, Any]) -> list[schema.ReuseTime]:
    """Returns the percentiles of the time between two uses of a block.

    The list is empty if no block is used twice.
    """
    found = stats["reuse_time_s"]
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return [
        {"share": share, "seconds": found[name]} for name, share in shares.items() if found[name] is not None
    ]


def _over_time(
    references: References,
    sizes: Sequence[schema.Capacity],
    runs: dict[tuple[EvictionPolicy, int], tuple[PolicyRun, float]],
    policies: Sequence[EvictionPolicy],
    window_s: float,
) -> schema.OverTime | None:
    share = references.unique_blocks * _OVER_TIME_PERCENT / 100
    capacity = min(sizes, key=lambda one: abs(math.log((one["blocks"] + 1) / (share + 1))))
    policy = "lru" if "lru" in policies else policies[0]
    run, _ = runs[policy, capacity["blocks"]]
    ideal = references.optimal(references.unique_blocks)  # a cache without a size limit
    windows: list[schema.Window] = []
    pairs = zip(references.over_time(run, window_s), references.over_time(ideal, window_s), strict=True)
    for window, best in pairs:
        count = window["references"]
        windows.append(
            {
                "start_s": window["start_s"],
                "end_s": window["start_s"] + window_s,
                "block_hit_rate": window["block_hits"] / count if count else None,
                "ideal_hit_rate": best["block_hits"] / count if count else None,
            }
        )
    return {"policy": policy, "capacity": capacity, "windows": windows}
