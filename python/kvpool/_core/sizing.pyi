"""Estimators of what a cache of any size would hit: see kvpool.sizing."""

from collections.abc import Sequence
from typing import Self, TypedDict, final, type_check_only

from kvpool._core import EvictionPolicy, SizingBlocks, SizingForm
from kvpool._core.traces import Trace

__all__ = [
    "HitCurve",
    "PolicyRun",
    "References",
    "sampled_lru",
]

@type_check_only
class SizingWindow(TypedDict):
    """What arrives in one window of a trace, and what of it a cache hits."""

    start_s: float
    requests: int
    references: int
    block_hits: int
    tokens: int
    token_hits: int

@type_check_only
class SizingWorth(TypedDict):
    """What a cache of one size in GiB saves."""

    gib: float
    blocks: int
    token_hits: int
    block_hit_rate: float
    token_hit_rate: float
    seconds_saved: float

@final
class References:
    """A trace as block references: what all estimators of sizes work on.

    All estimators use one definition: whole prompts one after the other, without time; a block is a hit
    only if all blocks before it in its prompt are. Memory: 4 bytes per reference, 24 per request, 20
    per run of reuses. O(references).

    Args:
        trace: The trace, at its own block size.
        blocks: ``"all"``: partial last blocks count, the definition of published hit rates. ``"full"``:
            only blocks that their prompt fills, which is all that an engine can find again.

    Raises:
        TraceError: The trace was read without the check of prefixes and would not have passed it.
        InvalidArgumentError: More than ``2**32 - 2`` references.

    >>> from kvpool.sizing import References
    >>> references = References(kvpool.traces.Trace.generate(500))
    >>> references.requests
    500
    >>> references.lru().at(700)[0] == references.run("lru", 700).block_hit_rate
    True
    """

    def __new__(cls, trace: Trace, *, blocks: SizingBlocks = "all") -> Self: ...
    @property
    def requests(self) -> int:
        """Requests of the trace."""
    @property
    def references(self) -> int:
        """Block references: hits and misses together."""
    @property
    def unique_blocks(self) -> int:
        """Different blocks."""
    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, in blocks or not: what token hit rates are a share of."""
    @property
    def block_tokens(self) -> int:
        """Tokens of a full block."""
    @property
    def finish_reasons(self) -> int:
        """Requests of which the trace says how they ended."""
    def without_finish_reasons(self) -> References:
        """Returns the same references, where nobody knows how requests ended.

        What ``hazard`` hits less is what the reasons are worth. Shares what is large: 40 bytes per request.
        """
    def lru(self) -> HitCurve:
        """Returns what LRU hits at every capacity, exact, in one pass.

        Mattson et al., 1970. O(runs log requests).
        """
    def run(self, policy: EvictionPolicy, capacity_blocks: int, *, form: SizingForm = "pool") -> PolicyRun:
        """Runs one policy at one capacity.

        20 to 150 ns per reference; other threads go on.

        Args:
            policy: One of ``kvpool.policies.eviction_policies()``.
            capacity_blocks: Blocks that the cache holds.
            form: ``"pool"``: the shipped evictor, whole requests at a time, prefix-closed: what the
                pool does in lookup mode. ``"stream"``: each block for itself, last block first: what
                papers simulate.

        Raises:
            InvalidArgumentError: An unknown policy or form; a capacity out of range.
        """
    def optimal(self, capacity_blocks: int) -> PolicyRun:
        """Runs the clairvoyant optimum at one capacity.

        Prefix-closed, and it need not store everything (Belady, 1966).

        Raises:
            InvalidArgumentError: ``capacity_blocks`` is negative.
        """
    def lru_with_hints(self, capacity_blocks: int, accuracy: float, *, seed: int = 0) -> PolicyRun:
        """Runs LRU with hints: a dead block is announced as dead with this probability.

        Raises:
            InvalidArgumentError: An accuracy that is not 0 to 1; a negative capacity or seed.
        """
    def over_time(self, run: PolicyRun, window_s: float) -> list[SizingWindow]:
        """Cuts what a run hit into windows of so many seconds, empty ones included.

        Raises:
            InvalidArgumentError: A window that is not above 0, or so short that there are more than a
                million.
        """

def sampled_lru(
    trace: Trace,
    *,
    rate: float = 1.0,
    max_blocks: int | None = None,
    seed: int = 0,
    blocks: SizingBlocks = "all",
) -> HitCurve:
    """Estimates what LRU hits at every capacity from a sample of the blocks, in bounded memory.

    SHARDS (Waldspurger et al., 2015). 100 to 400 ns per sampled reference, 54 to 110 bytes per block
    that is followed; other threads go on. The error falls with the blocks followed: with 8,192 it is
    below a point.

    Args:
        trace: The trace, at its own block size.
        rate: Share of the blocks to follow, above 0, at most 1; with ``max_blocks`` the share to begin with.
        max_blocks: Blocks to follow at most, 1 to ``2**30``: the rate falls as it has to. None keeps
            the rate.
        seed: Picks the sample; all values are equally good.
        blocks: As in ``References``.

    Raises:
        InvalidArgumentError: A setting out of range.

    >>> from kvpool.sizing import References, sampled_lru
    >>> trace = kvpool.traces.Trace.generate(2000)
    >>> estimate, exact = sampled_lru(trace, max_blocks=4000), References(trace).lru()
    >>> abs(estimate.at(2000)[0] - exact.at(2000)[0]) < 0.03
    True
    """

@final
class HitCurve:
    """What LRU hits at every capacity.

    Points are (capacity in blocks, block hit rate, token hit rate), rates 0 to 1.
    """

    @property
    def sample_rate(self) -> float:
        """The share of the blocks that it is estimated from: 1.0 is all, and exact."""
    @property
    def references(self) -> int:
        """Block references of the trace: counted, not estimated."""
    def at(self, capacity_blocks: int) -> tuple[float, float]:
        """Returns block and token hit rate at a capacity."""
    def ceiling(self) -> tuple[int, float, float]:
        """Returns the smallest capacity that hits all there is to hit, with both rates."""
    def points(self, most: int = 200) -> list[tuple[int, float, float]]:
        """Returns at most so many points, evenly spread over the logarithm of the capacity."""
    def capacity_for(self, share: float) -> tuple[int, float, float] | None:
        """Returns the smallest capacity with this share (0 to 1) of the token hits of ``ceiling()``."""
    def knee(self, most_blocks: int | None = None) -> tuple[int, float, float, float] | None:
        """Returns the point where the curve bends most, and by how much; None if it does not bend.

        Without a bend the largest cache is the best. Satopaa et al., "Kneedle", 2011.
        """
    def worth(
        self, bytes_per_token: int, gib: Sequence[float], *, prefill_tokens_per_s: float = 1.0
    ) -> list[SizingWorth]:
        """Returns what caches of rising sizes in GiB save.

        Raises:
            InvalidArgumentError: Sizes that do not rise; a speed that is not above 0.
        """
    def distances(self) -> list[tuple[int, int, int]]:
        """Returns uses of blocks again by distance: (from, to, references), distances in different blocks."""
    def distance_quantile(self, fraction: float) -> int | None:
        """Returns the distance within which this fraction (0 to 1) of the reuses lies; None without any."""

@final
class PolicyRun:
    """What one cache of one capacity did with a trace."""

    @property
    def capacity_blocks(self) -> int:
        """Blocks that it holds."""
    @property
    def block_hits(self) -> int:
        """References that it hit."""
    @property
    def token_hits(self) -> int:
        """Prompt tokens in them."""
    @property
    def block_hit_rate(self) -> float:
        """Hits of all references, 0 to 1."""
    @property
    def token_hit_rate(self) -> float:
        """Hit tokens of all prompt tokens, 0 to 1."""
    @property
    def evictions(self) -> int | None:
        """Blocks evicted; None for the optimum and for hints, which are not simulated block by block."""
    @property
    def turnover(self) -> float | None:
        """Resident turnover, 0 to 1: the mean of ``turnovers``; None if the trace ends before the first
        window.
        """
    @property
    def turnovers(self) -> list[float]:
        """Of each capacity's worth of insertions, the share of the resident blocks that came with it.

        Down towards 0 the cache has stagnated: what comes in goes out again at once.
        """
