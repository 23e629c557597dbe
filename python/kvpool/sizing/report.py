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

    #: The block hit rate: hits, as a share of all references to blocks.
    block: float
    #: The token hit rate: tokens in hit blocks, as a share of all prompt tokens.
    token: float
    #: The hit rate of full blocks: hits, as a share of the references to blocks that their prompt fills.
    full_blocks: float
    #: The token hit rate of the second half of the requests: tokens in hit blocks, as a share of their
    #: prompt tokens. ``None`` in a report from a sample.
    last_half: float | None


class TraceFacts(TypedDict):
    """The facts about the trace from which the report was made."""

    #: The source of the trace: a path, ``stdin`` or ``generated``.
    source: str
    #: The format in which the trace was read.
    format: str
    requests: int
    #: Tokens per block.
    block_size: int
    #: Number of references to blocks by all prompts. Each use of a block by a prompt counts.
    references: int
    #: Number of different blocks that the prompts contain.
    unique_blocks: int
    #: Prompt tokens of all requests.
    tokens_in: int
    #: Seconds from the first request's arrival to the last request's.
    span_s: float
    ideal: Ideal


class Capacity(TypedDict):
    """A cache size for which the report contains results."""

    #: The cache size, divided by the size of all different blocks of the trace: 0.05 is 5 %, and 2 is
    #: 200 %. ``None`` if the size was given in another unit.
    relative_size: float | None
    blocks: int
    tokens: int
    gib: float | None


class Hits(TypedDict):
    """The results of a simulated cache with one policy and one capacity."""

    #: The block hit rate: hits, as a share of all references to blocks.
    block_hit_rate: float
    #: The token hit rate: tokens in hit blocks, as a share of all prompt tokens.
    token_hit_rate: float
    #: Number of evicted blocks. ``None`` for the optimum and for hints, because these are not simulated
    #: block by block.
    evictions: int | None
    #: The turnover of the cache, from 0 to 1. It shows whether the cache still takes in new content.
    #: The trace is divided into windows, in each of which as many blocks are stored as the cache can
    #: hold. At the end of a window, some of the resident blocks were stored in that window. The figure
    #: is the average of their share. It is near 0 if the cache has stagnated. ``None`` for the optimum
    #: and for hints, and if the trace ends before the first window is full.
    resident_turnover: float | None


class PolicyResult(TypedDict):
    """The results of one eviction policy at every capacity."""

    name: str
    #: The paper or page that defines the policy; an empty text if nothing was published.
    source: str
    hits: list[Hits]
    #: Seconds for the replays of this policy at all capacities.
    seconds: float


class OptimumResult(TypedDict):
    """The results of the clairvoyant optimum, a policy that knows all future requests, at every capacity."""

    hits: list[Hits]


class HintResult(TypedDict):
    """The results of LRU with hints.

    A hint marks a block that will not be used again, and LRU evicts it early.
    """

    #: The probability, from 0 to 1, that a block that will not be used again is marked by a hint.
    accuracy: float
    hits: list[Hits]


class FinishReasons(TypedDict):
    """The results of a policy that learns from finish reasons, if it does not get them."""

    #: The name of the policy. ``policies`` contains its results with finish reasons.
    policy: str
    #: Number of requests of the trace for which it contains a finish reason.
    requests: int
    #: The results of a run in which the policy got no finish reasons, one entry per capacity.
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
    #: Seconds of prefill that the hits save: the time to compute ``hit_tokens`` tokens.
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

    #: The percentile: the share of reuses that happen within ``seconds``, from 0 to 1.
    share: float
    seconds: float


class Window(TypedDict):
    """One slice of the trace. Rates are ``None`` if no request arrives in it."""

    start_s: float
    end_s: float
    block_hit_rate: float | None
    #: The hit rate that a cache without a size limit has for the same requests.
    ideal_hit_rate: float | None


class OverTime(TypedDict):
    """The hit rate of a cache with one policy and one capacity over the course of the trace."""

    policy: str
    capacity: Capacity
    windows: list[Window]


class Model(TypedDict):
    """The model whose KV the cache contains."""

    name: str
    #: Bytes of KV per token, summed over all layers. Layers with windows and chunks are included.
    bytes_per_token: int
    prefill_tokens_per_s: float | None


class Group(TypedDict):
    """The KV-cache groups of one kind."""

    kind: Literal["full", "sliding", "chunked", "state"]
    #: Tokens of the window or chunk; ``None`` for the other kinds.
    span: int | None
    #: Number of KV-cache groups of this kind, and the number of layers in all of them together.
    groups: int
    layers: int
    block_tokens: int
    #: The share of the bytes of these groups' blocks that is padding, from 0 to 1.
    padding: float


class GroupRun(TypedDict):
    """A replay of the trace through a manager with the model's groups and LRU.

    See :mod:`kvpool.sizing.grouped`.
    """

    gib: float
    #: Number of blocks of the pool. All groups share them.
    blocks: int
    #: The content of windows and states that remains cached for later requests: ``all``, one
    #: checkpoint per this number of tokens, or only ``junctions``.
    keep: int | str
    #: The token hit rate: prompt tokens that were cached in every group, as a share of all prompt
    #: tokens.
    token_hit_rate: float
    #: The token hit rate if a hit needed only the blocks of this kind of group, one entry per kind, in
    #: the order of ``Groups.groups``.
    alone: list[float]
    #: The token hit rate of a cache with the same memory in which every layer keeps every token.
    #: ``None`` for models with states, and for the runs in ``spacing``.
    in_full_rate: float | None
    #: Number of times that a state was copied in order to keep it as a checkpoint.
    checkpoints: int
    evictions: int
    #: Number of prompts that did not fit into the pool completely.
    cut_short: int


class Groups(TypedDict):
    """The results for a hybrid model at each size."""

    #: Bytes of a block, which is the same for all groups.
    block_bytes: int
    groups: list[Group]
    #: The value of the argument ``keep`` of :func:`kvpool.sizing.size`, which all runs of ``sizes`` have.
    keep: int | str
    #: One run per capacity, in the order of ``capacities``.
    sizes: list[GroupRun]
    #: Runs at one cache size with different values of ``keep``. They show the effect of the distance
    #: between checkpoints.
    spacing: list[GroupRun]
    #: Number of requests in each run, which is that of all requests of the trace.
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

    #: The tier that has these hits: ``device``, or the name of a tier beneath it.
    tier: str
    #: The block hit rate of this tier: hits, as a share of all references to blocks.
    block_hit_rate: float
    #: The token hit rate of this tier: tokens in hit blocks, as a share of all prompt tokens.
    token_hit_rate: float
    #: Seconds of loading from this tier per request, averaged over all requests.
    load_s: float
    #: Mean seconds until the first token, with this tier and the tiers above it. The time consists of
    #: the loads, one after the other, and of the prefill of the remaining tokens. It includes no time in
    #: a queue. ``None`` without a prefill speed.
    first_token_s: float | None


class Tiers(TypedDict):
    """Tiers beneath the device, with LRU in all of them: see :mod:`kvpool.sizing.tiers`."""

    #: The tiers beneath the device, the fastest first.
    below: list[Tier]
    #: One entry per size of the device, in the order of ``capacities``. Each entry lists the device and
    #: then the tiers beneath it.
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
    #: The blocks that are counted. ``all``: partial last blocks, too. ``full``: only blocks that their
    #: prompt fills.
    blocks: Literal["all", "full"]
    capacities: list[Capacity]
    #: The sample from which the LRU curve, its knee, its worth, the tiers and the reuse distances were
    #: computed; ``None`` if they are exact. A report from a sample has no policies, optimum, hints,
    #: reuse times, or hit rate over time. Its curve contains a point for each capacity.
    sample: Sample | None
    policies: list[PolicyResult]
    optimum: OptimumResult | None
    hints: list[HintResult]
    #: The results without finish reasons. ``None`` if the trace has no finish reasons, or if no policy
    #: that learns from them was run.
    finish_reasons: FinishReasons | None
    #: A few hundred points of the LRU curve. The first point is the smallest capacity that has a hit.
    lru_curve: list[CurvePoint]
    #: The point where the LRU curve bends most; ``None`` if it does not bend.
    knee: Knee | None
    #: The benefit of each growth of an LRU cache. The list is empty if no model was given.
    worth: list[WorthStep]
    #: The number of reuses by reuse distance. The list is empty if no block is used twice.
    reuse_distances: list[DistanceRange]
    #: Percentiles of the time between two uses of a block. The list is empty if no block is used twice,
    #: and in a report from a sample.
    reuse_times_s: list[ReuseTime]
    over_time: OverTime | None
    model: Model | None
    #: The results for the model's KV-cache groups. ``None`` if no model was given, if the model has a
    #: single group, and in a report from a sample.
    groups: Groups | None
    #: The results for tiers beneath the device; ``None`` if the call named no tiers.
    tiers: Tiers | None
