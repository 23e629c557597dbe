"""The hit rate of vLLM v0, computed from the numbers of queries and hits.

The caller reports each query.
"""

from __future__ import annotations

from kvpool.lineage.errors import ContractError

__all__ = ["CacheMetricData"]


class CacheMetricData:
    """The average number of hits per query since the start. Queries are counted in windows of ``block_size``.

    Args:
        num_completed_blocks: Number of full windows.
        completed_block_cache_hit_rate: Hits per query in the full windows.
        num_incompleted_block_queries: Number of queries in the window that is not full yet.
        num_incompleted_block_hit: Number of hits in that window.
        block_size: Number of queries per window.

    Raises:
        ContractError: ``block_size`` is less than 1.

    >>> metrics = CacheMetricData()
    >>> metrics.query(hit=True), metrics.query(hit=False), metrics.get_hit_rate()
    (None, None, 0.5)
    """

    def __init__(
        self,
        num_completed_blocks: int = 0,
        completed_block_cache_hit_rate: float = 0.0,
        num_incompleted_block_queries: int = 0,
        num_incompleted_block_hit: int = 0,
        block_size: int = 1000,
    ) -> None:
        if block_size < 1:
            raise ContractError(f"windows of {block_size} queries")
        self.block_size = block_size
        self.num_completed_blocks = num_completed_blocks
        self.num_incompleted_block_queries = num_incompleted_block_queries
        self.num_incompleted_block_hit = num_incompleted_block_hit
        # The number of hits is an integer, so that rounding errors do not accumulate.
        self._completed_hits = round(completed_block_cache_hit_rate * num_completed_blocks * block_size)

    @property
    def completed_block_cache_hit_rate(self) -> float:
        """Hits per query in the full windows; 0.0 if no window is full yet."""
        queries = self.num_completed_blocks * self.block_size
        return self._completed_hits / queries if queries else 0.0

    def query(self, hit: bool) -> None:
        """Counts one query."""
        self.num_incompleted_block_queries += 1
        self.num_incompleted_block_hit += hit
        if self.num_incompleted_block_queries == self.block_size:
            self._completed_hits += self.num_incompleted_block_hit
            self.num_completed_blocks += 1
            self.num_incompleted_block_queries = self.num_incompleted_block_hit = 0

    def get_hit_rate(self) -> float:
        """Returns the hits per query; 0.0 if there was no query yet."""
        queries = self.num_completed_blocks * self.block_size + self.num_incompleted_block_queries
        return (self._completed_hits + self.num_incompleted_block_hit) / queries if queries else 0.0
