"""The report of ``kvpool size``: what ``--json`` prints, and what the table, the page and the picture
are made from.

Owns the schema and nothing else. Units are in the names: ``_s`` seconds, ``gib`` GiB, ``_rate`` and ``share``
from 0 to 1. Block and token counts are ints. What needs a model's KV size (``gib``) or a prefill speed is
``None`` where none was given. All floats are finite.

Invariants that the readers rely on: ``capacities`` rises in ``blocks``; each list named ``hits`` has
one entry per capacity, in that order; ``lru_curve`` rises in ``blocks``; ranges and windows are in
order and do not overlap.
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
    """What a cache without end would hit, each a share from 0 to 1: no policy and no capacity can pass it.

    From a sample all but ``block`` are estimates, and an estimate of a cache may pass that.
    """

    #: Of all block references.
    block: float
    #: Of all prompt tokens.
    token: float
    #: Of the references to blocks that their prompt fills.
    full_blocks: float
    #: Of the prompt tokens of the second half of the requests; ``None`` in a report from a sample.
    last_half: float | None


class TraceFacts(TypedDict):
    """The trace that was sized for."""

    #: Path, ``stdin`` or ``generated``.
    source: str
    #: Name of the format it was read as.
    format: str
    requests: int
    #: Tokens of a block.
    block_size: int
    #: Blocks that all prompts together use, each use counted.
    references: int
    #: Different blocks among them.
    unique_blocks: int
    #: Prompt tokens of all requests.
    tokens_in: int
    #: From the first arrival to the last.
    span_s: float
    ideal: Ideal


class Capacity(TypedDict):
    """A cache size of the grid."""

    # : The size over the trace's unique blocks: 0.05 is 5 %, and 2 is twice as many. ``None`` if the
    # size was given : in another unit.
    relative_size: float | None
    blocks: int
    tokens: int
    gib: float | None


class Hits(TypedDict):
    """What one cache of one capacity did."""

    #: Hits of all block references.
    block_hit_rate: float
    #: Tokens in hit blocks, of all prompt tokens.
    token_hit_rate: float
    #: ``None`` for the optimum and for hints, which are not simulated block by block.
    evictions: int | None
    # : Of each capacity's worth of new blocks, the share of the resident blocks that came with it, 0 to
    # 1, on average; : near 0 the cache has stagnated. ``None`` as above, and if the trace ends before
    # the first such window.
    resident_turnover: float | None


class PolicyResult(TypedDict):
    """One eviction policy at every capacity."""

    name: str
    #: The paper or page that defines it; empty if there is none.
    source: str
    hits: list[Hits]
    #: What replaying all capacities took.
    seconds: float


class OptimumResult(TypedDict):
    """The clairvoyant optimum at every capacity."""

    hits: list[Hits]


class HintResult(TypedDict):
    """LRU that is told, with some probability, which blocks will not come back."""

    #: That probability, 0 to 1.
    accuracy: float
    hits: list[Hits]


class FinishReasons(TypedDict):
    """What a policy that learns from how requests end would hit without being told."""

    #: The policy; with the reasons it is one of ``policies``.
    policy: str
    #: Requests of which the trace says how they ended.
    requests: int
    #: Without the reasons, at every capacity.
    without: list[Hits]


class CurvePoint(TypedDict):
    """A point of the LRU curve: exact, or an estimate if the report has a ``sample``."""

    blocks: int
    gib: float | None
    block_hit_rate: float
    token_hit_rate: float


class Knee(TypedDict):
    """Where the LRU curve bends most."""

    blocks: int
    gib: float | None
    block_hit_rate: float


class WorthStep(TypedDict):
    """What growing an LRU cache from one size to the next saves over the whole trace."""

    from_gib: float
    to_gib: float
    #: Prompt tokens that the larger cache finds and the smaller one does not.
    hit_tokens: int
    #: Seconds of prefill that they would have taken.
    prefill_seconds: float | None


class DistanceRange(TypedDict):
    """Reuses at one range of distances; both ends belong to it."""

    from_blocks: int
    to_blocks: int
    references: int


class ReuseTime(TypedDict):
    """A percentile of the time between two uses of a block."""

    #: The share of uses that come within ``seconds``, 0 to 1.
    share: float
    seconds: float


class Window(TypedDict):
    """One slice of the trace. Rates are ``None`` where nothing arrives."""

    start_s: float
    end_s: float
    block_hit_rate: float | None
    #: Of a cache without end, over the same requests.
    ideal_hit_rate: float | None


class OverTime(TypedDict):
    """How one cache fared in the course of the trace."""

    #: Whose hit rate it is.
    policy: str
    #: Its size.
    capacity: Capacity
    windows: list[Window]


class Model(TypedDict):
    """The model whose KV cache it is."""

    name: str
    #: KV bytes of a token over all layers, windows and chunks included.
    bytes_per_token: int
    prefill_tokens_per_s: float | None


class Group(TypedDict):
    """KV-cache groups of one kind."""

    kind: Literal["full", "sliding", "chunked", "state"]
    #: Tokens of the window or chunk.
    span: int | None
    #: How many there are, and the layers in all of them.
    groups: int
    layers: int
    block_tokens: int
    #: Share of their blocks that holds nothing, 0 to 1.
    padding: float


class GroupRun(TypedDict):
    """The trace through a manager with the model's groups, with LRU: see :mod:`kvpool.sizing.grouped`."""

    gib: float
    #: Blocks of the pool that all groups share.
    blocks: int
    # : What windows and states keep for later requests: all of it, every so many tokens, or at
    # junctions alone.
    keep: int | str
    #: Prompt tokens that every group could serve, of all.
    token_hit_rate: float
    #: What each kind of groups alone would have served, in the order of ``Groups.groups``.
    alone: list[float]
    # : The token hit rate with the same memory if every layer kept every token; ``None`` with states,
    # and for spacing.
    in_full_rate: float | None
    #: States that were copied to be kept.
    checkpoints: int
    evictions: int
    #: Prompts that the pool could not hold to the end.
    cut_short: int


class Groups(TypedDict):
    """A hybrid model, size by size."""

    #: Bytes of a block, of whichever group.
    block_bytes: int
    groups: list[Group]
    #: What ``sizes`` keep.
    keep: int | str
    #: One per capacity, in that order.
    sizes: list[GroupRun]
    #: At one of them, each way to keep: what checkpoint spacing buys.
    spacing: list[GroupRun]
    #: Requests that each run had: all of the trace.
    requests: int
    seconds: float


class Tier(TypedDict):
    """Where blocks live beneath the device. What it has, the tiers beneath it have too."""

    name: str
    #: Of all ranks together.
    gib: float
    blocks: int
    #: What a load from it gets to the tier above.
    read_bytes_per_s: float
    #: What a token takes from it to the device, through all tiers above, one after the other.
    load_s_per_token: float
    #: The speed of prefill from which on computing a token is faster than loading it from here.
    break_even_tokens_per_s: float


class Served(TypedDict):
    """What one tier serves: what it has and none above it has. Nothing, if one above holds as much."""

    #: ``device``, or the name of a tier beneath it.
    tier: str
    #: Of all block references.
    block_hit_rate: float
    #: Of all prompt tokens.
    token_hit_rate: float
    #: Loading from it, mean of all requests.
    load_s: float
    # : Mean time to the first token with this tier and those above it: loading from one after the
    # other, and prefill of : the rest; no queue. ``None`` without a speed of prefill.
    first_token_s: float | None


class Tiers(TypedDict):
    """Tiers beneath the device, with LRU in all of them: see :mod:`kvpool.sizing.tiers`."""

    #: From the device down.
    below: list[Tier]
    #: One per capacity, which is the device's, in that order. In each: the device, then the tiers beneath it.
    sizes: list[list[Served]]


class Sample(TypedDict):
    """What was looked at, if not all."""

    #: Blocks that were followed at most.
    most_blocks: int
    #: Share of the different blocks that were followed in the end, 0 to 1. At 1 the figures are exact.
    rate: float


class SizingReport(TypedDict):
    """All of it."""

    #: Version that made the report.
    kvpool: str
    #: What sizing took, reading the trace not included.
    elapsed_s: float
    #: The most memory that the process has had resident so far, reading the trace included.
    peak_memory_bytes: int
    trace: TraceFacts
    # : ``stream``: each block evicts for itself, nothing is held. ``pool``: as a manager does, whole
    # requests at a time.
    form: Literal["stream", "pool"]
    #: ``all``: partial last blocks count. ``full``: only blocks that their prompt fills.
    blocks: Literal["all", "full"]
    capacities: list[Capacity]
    # : What the LRU curve, its knee, its worth, tiers and the reuse distances are estimated from;
    # ``None``: from all, : exact. : From a sample there are no policies, optimum, hints, reuse times,
    # or hit rate over time, and the curve has all : capacities.
    sample: Sample | None
    policies: list[PolicyResult]
    optimum: OptimumResult | None
    hints: list[HintResult]
    #: ``None`` where the trace has no finish reasons, or no policy was run that learns from them.
    finish_reasons: FinishReasons | None
    #: A few hundred points of the curve; the first is the smallest capacity that hits at all.
    lru_curve: list[CurvePoint]
    #: ``None`` if the curve does not bend.
    knee: Knee | None
    #: Empty without a model.
    worth: list[WorthStep]
    #: Empty if no block is ever used again.
    reuse_distances: list[DistanceRange]
    #: Empty as well, and from a sample.
    reuse_times_s: list[ReuseTime]
    over_time: OverTime | None
    model: Model | None
    #: ``None`` without a model, for one whose layers are all alike, and from a sample.
    groups: Groups | None
    #: ``None`` if none were asked for.
    tiers: Tiers | None
