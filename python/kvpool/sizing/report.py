"""The schema of the report of ``kvpool size``.

``--json`` prints the report. The table, the page and the picture are made from it.

This module contains the schema and nothing else. The names of fields state their units: ``_s`` means
seconds, ``gib`` means GiB, and ``_rate`` and ``share`` are from 0 to 1. Numbers of blocks and of tokens
are ints. Fields that need a model's KV size (``gib``) or a prefill speed are ``None`` if it was not
given. All floats are finite.

Readers may rely on these invariants: ``capacities`` ascends in ``blocks``. Each list named ``hits`` has
one entry per capacity, in the same order. ``lru_curve`` ascends in ``blocks``. Ranges and windows are
in order and do not overlap.
"""

from __future__ import annotations

from typing import Literal, TypedDict

__all__ = [
    "Capacity",
    "CurvePoint",
    "DistanceRange",
    "FinishReasons",
    "Group",
    "GroupRun",
    "Groups",
    "HintResult",
    "Hits",
    "Ideal",
    "Knee",
    "Model",
    "OptimumResult",
    "OverTime",
    "PolicyResult",
    "ReuseTime",
    "Sample",
    "Served",
    "SizingReport",
    "Tier",
    "Tiers",
    "TraceFacts",
    "Window",
    "WorthStep",
]


class Ideal(TypedDict):
    """The hit rates of a cache without a size limit, each from 0 to 1.

    No policy and no capacity can exceed these rates.

    In a report from a sample, every field except ``block`` is an estimate, so the estimated hit rate of
    a cache may exceed it.
    """

    #: Hits, as a share of all block references.
    block: float
    #: Tokens in hit blocks, as a share of all prompt tokens.
    token: float
    #: Hits, as a share of the references to blocks that their prompt fills.
    full_blocks: float
    #: Tokens in hit blocks, as a share of the prompt tokens in the second half of the requests;
    #: ``None`` in a report from a sample.
    last_half: float | None


class TraceFacts(TypedDict):
    """The trace that the report is about."""

    #: A path, ``stdin`` or ``generated``.
    source: str
    #: The format in which the trace was read.
    format: str
    requests: int
    #: Tokens per block.
    block_size: int
    #: Number of references to blocks by all prompts. Each use of a block counts.
    references: int
    #: Number of different blocks.
    unique_blocks: int
    #: Prompt tokens of all requests.
    tokens_in: int
    #: Seconds from the first arrival to the last.
    span_s: float
    ideal: Ideal


class Capacity(TypedDict):
    """A cache size of the grid."""

    #: The size divided by the trace's unique blocks: 0.05 is 5 %, and 2 is 200 %. ``None`` if the size
    #: was given in another unit.
    relative_size: float | None
    blocks: int
    tokens: int
    gib: float | None


class Hits(TypedDict):
    """The results of one cache at one capacity."""

    #: Hits, as a share of all block references.
    block_hit_rate: float
    #: Tokens in hit blocks, as a share of all prompt tokens.
    token_hit_rate: float
    #: ``None`` for the optimum and for hints, because these are not simulated block by block.
    evictions: int | None
    #: The turnover of the cache, from 0 to 1. It shows whether the cache still takes in new content.
    #: The trace is divided into windows, in each of which as many blocks are stored as the cache can
    #: hold. At the end of a window, some of the resident blocks were stored in that window. The figure
    #: is the average of their share. It is near 0 if the cache has stagnated. ``None`` for the optimum
    #: and for hints, and if the trace ends before the first window is full.
    resident_turnover: float | None


class PolicyResult(TypedDict):
    """One eviction policy at every capacity."""

    name: str
    #: The paper or page that defines it; empty without one.
    source: str
    hits: list[Hits]
    #: Seconds that replaying all capacities took.
    seconds: float


class OptimumResult(TypedDict):
    """The results of the clairvoyant optimum, a policy that knows all future requests, at every capacity."""

    hits: list[Hits]


class HintResult(TypedDict):
    """LRU with hints. For some blocks that will not be used again, LRU knows this and evicts them early."""

    #: The probability, from 0 to 1, that LRU knows this of such a block.
    accuracy: float
    hits: list[Hits]


class FinishReasons(TypedDict):
    """Results without finish reasons, for a policy that learns from finish reasons."""

    #: The name of the policy. Its results with the reasons are in ``policies``.
    policy: str
    #: Number of requests that have a finish reason in the trace.
    requests: int
    #: Hits without the reasons, one entry per capacity.
    without: list[Hits]


class CurvePoint(TypedDict):
    """A point of the LRU curve: exact, or an estimate if the report has a ``sample``."""

    blocks: int
    gib: float | None
    block_hit_rate: float
    token_hit_rate: float


class Knee(TypedDict):
    """The point where the LRU curve bends most."""

    blocks: int
    gib: float | None
    block_hit_rate: float


class WorthStep(TypedDict):
    """The benefit of growing an LRU cache from one size to the next, over the whole trace."""

    from_gib: float
    to_gib: float
    #: Prompt tokens that hit in the larger cache and miss in the smaller one.
    hit_tokens: int
    #: Seconds of prefill that those tokens would take.
    prefill_seconds: float | None


class DistanceRange(TypedDict):
    """The number of reuses in one range of reuse distances, both ends included.

    A reuse distance is the number of different blocks used between two uses of a block.
    """

    from_blocks: int
    to_blocks: int
    references: int


class ReuseTime(TypedDict):
    """A percentile of the time between two uses of a block."""

    #: The share of reuses that happen within ``seconds``, from 0 to 1.
    share: float
    seconds: float


class Window(TypedDict):
    """One slice of the trace. Rates are ``None`` if no request arrives in it."""

    start_s: float
    end_s: float
    block_hit_rate: float | None
    #: The hit rate of a cache without a size limit, over the same requests.
    ideal_hit_rate: float | None


class OverTime(TypedDict):
    """The hit rate of one cache over the course of the trace."""

    #: The eviction policy.
    policy: str
    #: The size of the cache.
    capacity: Capacity
    windows: list[Window]


class Model(TypedDict):
    """The model that the KV cache is for."""

    name: str
    #: Bytes of KV per token, summed over all layers. Layers with windows and chunks are included.
    bytes_per_token: int
    prefill_tokens_per_s: float | None


class Group(TypedDict):
    """The KV-cache groups of one kind."""

    kind: Literal["full", "sliding", "chunked", "state"]
    #: Tokens of the window or chunk; ``None`` for the other kinds.
    span: int | None
    #: Number of groups of this kind, and the number of layers in all of them.
    groups: int
    layers: int
    block_tokens: int
    #: The share of the bytes of these groups' blocks that contains no data, from 0 to 1.
    padding: float


class GroupRun(TypedDict):
    """A replay of the trace through a manager with the model's groups and LRU.

    See :mod:`kvpool.sizing.grouped`.
    """

    gib: float
    #: Blocks of the pool, which all groups share.
    blocks: int
    #: The content of windows and states that remains cached for later requests: ``all``, one
    #: checkpoint per this number of tokens, or only ``junctions``.
    keep: int | str
    #: Prompt tokens that were cached in every group, as a share of all prompt tokens.
    token_hit_rate: float
    #: For each kind of group, the token hit rate if only its blocks were needed, in the order of
    #: ``Groups.groups``.
    alone: list[float]
    #: The token hit rate with the same memory if every layer kept every token; ``None`` for models
    #: with states, and for the runs in ``spacing``.
    in_full_rate: float | None
    #: Number of copies of states that were made to keep them as checkpoints.
    checkpoints: int
    evictions: int
    #: Number of prompts that did not fit into the pool completely.
    cut_short: int


class Groups(TypedDict):
    """The results for a hybrid model at each size."""

    #: Bytes of a block, which is the same for all groups.
    block_bytes: int
    groups: list[Group]
    #: The value of ``keep`` of all ``sizes``.
    keep: int | str
    #: One run per capacity, in that order.
    sizes: list[GroupRun]
    #: Runs at one of the sizes, one per value of ``keep``. They show the effect of the spacing of
    #: checkpoints.
    spacing: list[GroupRun]
    #: Number of requests in each run: all requests of the trace.
    requests: int
    seconds: float


class Tier(TypedDict):
    """A tier beneath the device. Each tier contains all blocks of the tiers above it."""

    name: str
    #: Size in GiB, of all ranks together.
    gib: float
    blocks: int
    #: The speed at which blocks are loaded from this tier to the tier above.
    read_bytes_per_s: float
    #: Seconds to load one token from this tier to the device, through all tiers above, one after the
    #: other.
    load_s_per_token: float
    #: The prefill speed above which computing a token is faster than loading it from this tier.
    break_even_tokens_per_s: float


class Served(TypedDict):
    """The hits of one tier. These are blocks that the tier contains and that no tier above it contains.

    All fields are 0 if a tier above is at least as large.
    """

    #: ``device``, or the name of a tier beneath it.
    tier: str
    #: Hits, as a share of all block references.
    block_hit_rate: float
    #: Tokens in hit blocks, as a share of all prompt tokens.
    token_hit_rate: float
    #: Seconds that a request spends on loading from this tier, averaged over all requests.
    load_s: float
    #: Mean seconds until the first token, with this tier and the tiers above it. The time consists of
    #: the loads, one after the other, and of the prefill of the remaining tokens. It includes no time in
    #: a queue. ``None`` without a prefill speed.
    first_token_s: float | None


class Tiers(TypedDict):
    """Tiers beneath the device, with LRU in all of them: see :mod:`kvpool.sizing.tiers`."""

    #: The tiers, from the device down.
    below: list[Tier]
    #: One entry per capacity of the device, in that order. Each entry lists the device and then the
    #: tiers beneath it.
    sizes: list[list[Served]]


class Sample(TypedDict):
    """The sample from which the estimates were computed."""

    #: The largest number of blocks that were tracked at once.
    most_blocks: int
    #: The share of the different blocks that were tracked until the end, from 0 to 1. At 1, the
    #: figures are exact.
    rate: float


class SizingReport(TypedDict):
    """The whole report."""

    #: The version of kvpool that made the report.
    kvpool: str
    #: Seconds that sizing took. Reading the trace is not included.
    elapsed_s: float
    #: The peak of the process's resident memory so far, in bytes. Reading the trace is included.
    peak_memory_bytes: int
    trace: TraceFacts
    #: The kind of simulation. ``stream``: each block is evicted on its own, and no request holds
    #: blocks. ``pool``: whole requests hold their blocks, as in a manager.
    form: Literal["stream", "pool"]
    #: ``all``: partial last blocks count. ``full``: only blocks that their prompt fills.
    blocks: Literal["all", "full"]
    capacities: list[Capacity]
    #: The sample from which the LRU curve, its knee, its worth, the tiers and the reuse distances were
    #: computed; ``None`` if they are exact. A report from a sample has no policies, optimum, hints,
    #: reuse times, or hit rate over time. Its curve contains a point for each capacity.
    sample: Sample | None
    policies: list[PolicyResult]
    optimum: OptimumResult | None
    hints: list[HintResult]
    #: ``None`` if the trace has no finish reasons, or if no policy that learns from them was run.
    finish_reasons: FinishReasons | None
    #: A few hundred points of the curve. The first point is the smallest capacity that has a hit.
    lru_curve: list[CurvePoint]
    #: ``None`` if the curve does not bend.
    knee: Knee | None
    #: Empty without a model.
    worth: list[WorthStep]
    #: Empty if no block is used twice.
    reuse_distances: list[DistanceRange]
    #: Empty if no block is used twice, and in a report from a sample.
    reuse_times_s: list[ReuseTime]
    over_time: OverTime | None
    model: Model | None
    #: ``None`` without a model, for a model with a single KV-cache group, and in a report from a
    #: sample.
    groups: Groups | None
    #: ``None`` if the call asked for no tiers.
    tiers: Tiers | None
