"""Estimates of the hit rates of caches of any size. See kvpool.sizing."""

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
    """The requests in one window of a trace, and how many of their blocks and tokens a cache hits."""

    start_s: float
    requests: int
    references: int
    block_hits: int
    tokens: int
    token_hits: int

@type_check_only
class SizingWorth(TypedDict):
    """The hits of a cache of ``gib`` GiB, and the seconds of computation that they save."""

    gib: float
    blocks: int
    token_hits: int
    block_hit_rate: float
    token_hit_rate: float
    seconds_saved: float

@final
class References:
    """A trace as block references, the input of all estimators of sizes.

    All estimators use the same model: prompts are processed as a whole, one after the other, without times. A
    block is a hit only if all blocks before it in its prompt are hits. Takes 4 bytes per reference, 24 bytes
    per request, and 20 bytes per run of consecutive blocks that are used again. O(references).

    Args:
        trace: The trace, with its own block size.
        blocks: ``"all"`` counts partial last blocks, too, which is the definition of published hit
            rates. ``"full"`` counts only full blocks of a prompt, which are the blocks that an engine
            can find again.

    Raises:
        TraceError: The trace was read without the check of prefixes, and would have failed it.
        InvalidArgumentError: The trace has more than ``2**32 - 2`` references.

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
        """The number of requests of the trace."""
    @property
    def references(self) -> int:
        """The number of block references, hits and misses together."""
    @property
    def unique_blocks(self) -> int:
        """The number of distinct blocks."""
    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of all prompts, including tokens outside blocks.

        Token hit rates are shares of it.
        """
    @property
    def block_tokens(self) -> int:
        """The number of tokens of a full block."""
    @property
    def finish_reasons(self) -> int:
        """The number of requests for which the trace contains a finish reason."""
    def without_finish_reasons(self) -> References:
        """Returns the same references without the reasons for which requests ended.

        Run ``hazard`` on both to see how many hits the finish reasons bring. The copy shares the large data
        with the original, and takes 40 bytes per request.
        """
    def lru(self) -> HitCurve:
        """Returns the exact hit rate of LRU at every capacity, in one pass.

        The method is that of Mattson et al., 1970. O(runs log requests), where a run is a sequence of
        consecutive blocks that are used again.
        """
    def run(self, policy: EvictionPolicy, capacity_blocks: int, *, form: SizingForm = "pool") -> PolicyRun:
        """Runs one policy at one capacity.

        Takes 20 to 150 ns per reference. Other threads continue.

        Args:
            policy: One of ``kvpool.policies.eviction_policies()``.
            capacity_blocks: The number of blocks of the cache.
            form: ``"pool"`` runs the policy on whole requests, as a pool does in lookup mode. Its cache is
                prefix-closed: it contains a block only with all blocks before it. ``"stream"`` runs the
                policy on single block references, the last block of a prompt first, as papers simulate
                policies.

        Raises:
            InvalidArgumentError: The policy or form is unknown, or the capacity is out of range.
        """
    def optimal(self, capacity_blocks: int) -> PolicyRun:
        """Runs the optimal policy, which knows all future requests, at one capacity.

        Its cache is prefix-closed: it contains a block only with all blocks before it. The policy need not
        store every block (Belady, 1966).

        Raises:
            InvalidArgumentError: ``capacity_blocks`` is negative.
        """
    def lru_with_hints(self, capacity_blocks: int, accuracy: float, *, seed: int = 0) -> PolicyRun:
        """Runs LRU with hints about blocks that are not used again.

        Each such block gets a hint with probability ``accuracy``, independently of the others. A block
        with a hint is evicted before all others.

        Args:
            capacity_blocks: The number of blocks of the cache.
            accuracy: The share of the blocks without later use that get a hint, 0 to 1.
            seed: Selects the blocks that get a hint.

        Raises:
            InvalidArgumentError: The accuracy is not from 0 to 1, or the capacity or seed is negative.
        """
    def over_time(self, run: PolicyRun, window_s: float) -> list[SizingWindow]:
        """Splits the hits of a run into windows of ``window_s`` seconds, including windows without requests.

        Raises:
            InvalidArgumentError: The window is not above 0, or so short that there would be more than a
                million windows.
        """

def sampled_lru(
    trace: Trace,
    *,
    rate: float = 1.0,
    max_blocks: int | None = None,
    seed: int = 0,
    blocks: SizingBlocks = "all",
) -> HitCurve:
    """Estimates the hit rate of LRU at every capacity from a sample of the blocks, in bounded memory.

    The method is SHARDS (Waldspurger et al., 2015). It takes 100 to 400 ns per sampled reference, and 54 to
    110 bytes per sampled block. Other threads continue. The error falls with the number of sampled blocks:
    with 8,192 blocks it is below one percentage point.

    Args:
        trace: The trace, with its own block size.
        rate: The share of the blocks to sample, above 0 and at most 1. With ``max_blocks``, the share at the
            beginning of the trace.
        max_blocks: The largest number of sampled blocks, 1 to ``2**30``. The rate is reduced whenever the
            sample would exceed this number. With None, the rate remains constant.
        seed: Selects the sample. All values are equally good.
        blocks: As for ``References``.

    Raises:
        InvalidArgumentError: A setting is out of range.

    >>> from kvpool.sizing import References, sampled_lru
    >>> trace = kvpool.traces.Trace.generate(2000)
    >>> estimate, exact = sampled_lru(trace, max_blocks=4000), References(trace).lru()
    >>> abs(estimate.at(2000)[0] - exact.at(2000)[0]) < 0.03
    True
    """

@final
class HitCurve:
    """The hit rate of LRU at every capacity.

    Points are triples of capacity in blocks, block hit rate and token hit rate. Rates are 0 to 1.
    """

    @property
    def sample_rate(self) -> float:
        """The share of sampled blocks. With 1.0, all blocks are sampled, and the curve is exact."""
    @property
    def references(self) -> int:
        """The number of block references of the trace, counted and not estimated."""
    def at(self, capacity_blocks: int) -> tuple[float, float]:
        """Returns the block and token hit rates at a capacity."""
    def ceiling(self) -> tuple[int, float, float]:
        """Returns the smallest capacity with the largest possible hit rates, and these rates."""
    def points(self, most: int = 200) -> list[tuple[int, float, float]]:
        """Returns at most ``most`` points of the curve, evenly spaced in the logarithm of the capacity."""
    def capacity_for(self, share: float) -> tuple[int, float, float] | None:
        """Returns the smallest capacity with this share (0 to 1) of the token hits of ``ceiling()``.

        Returns None if the share is out of range, or if the trace has no hits at any capacity.
        """
    def knee(self, most_blocks: int | None = None) -> tuple[int, float, float, float] | None:
        """Returns the point at which the curve bends most, and by how much, or None if it does not bend.

        If the curve does not bend, the largest cache is the best choice. The method is that of Satopaa et
        al., "Kneedle", 2011.
        """
    def worth(
        self, bytes_per_token: int, gib: Sequence[float], *, prefill_tokens_per_s: float = 1.0
    ) -> list[SizingWorth]:
        """Returns the hits of caches of several sizes in GiB, and the seconds that they save.

        Raises:
            InvalidArgumentError: The sizes are not in ascending order, or a speed is not above 0.
        """
    def distances(self) -> list[tuple[int, int, int]]:
        """Returns the number of reuses by distance, as triples of first distance, last distance and number.

        The distance of a reuse is the number of distinct blocks that were used since the last use of the
        block, plus 1.
        """
    def distance_quantile(self, fraction: float) -> int | None:
        """Returns the distance that covers this fraction (0 to 1) of the reuses.

        None if nothing is reused.
        """

@final
class PolicyRun:
    """The result of running one policy over a trace at one capacity."""

    @property
    def capacity_blocks(self) -> int:
        """The number of blocks of the cache."""
    @property
    def block_hits(self) -> int:
        """The number of block references that were hits."""
    @property
    def token_hits(self) -> int:
        """The number of prompt tokens in the blocks that were hits."""
    @property
    def block_hit_rate(self) -> float:
        """The number of hits divided by the number of references, 0 to 1."""
    @property
    def token_hit_rate(self) -> float:
        """The number of hit tokens divided by the number of prompt tokens, 0 to 1."""
    @property
    def evictions(self) -> int | None:
        """The number of evicted blocks.

        None for ``optimal`` and ``lru_with_hints``, which do not count them.
        """
    @property
    def turnover(self) -> float | None:
        """The mean of ``turnovers``, 0 to 1. None if the trace ends before the end of the first window."""
    @property
    def turnovers(self) -> list[float]:
        """The shares of new blocks among the resident blocks, one per window of the trace.

        A window has ``capacity_blocks`` insertions, and the share is taken at its end. A block is new if it
        was inserted during the window. If the values decrease towards 0, the cache has stagnated: it keeps
        old blocks and evicts new blocks at once.
        """
