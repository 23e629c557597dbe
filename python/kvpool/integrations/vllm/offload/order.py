"""The order in which resident chunks are evicted, expressed only in blocks and depths.

The order has two parts. ``VictimOrder`` contains the blocks that belong to no running request, ordered
by last use. It consists of an evictor of kvpool, and of blocks that could not be taken when their turn
came. The latter are evicted before the blocks in the evictor. ``RunningRequests`` contains the blocks
that running requests have used. They are evicted after all others, one request after the other, and
within a request the deepest block first, even if several calls stored them. Therefore the blocks of a
prefix that remain still form a prefix.

Both parts also contain the blocks in use, so that acquiring and releasing a block does not change its
position. The order depends on when requests used the blocks, and not on when transfers ended. Evictors
do not know which blocks are in use. If the turn of a block in use comes, the block is *passed over*. It
moves in front of all blocks in the evictor, after those that were passed over earlier, and is tried
first the next time. Searching for victims therefore does not change the order.
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Protocol

from kvpool.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Evictor", "Request", "RunningRequests", "VictimOrder"]


class Evictor(Protocol):
    """The interface of kvpool's evictors. Blocks are ids from 1 to ``num_blocks - 1``."""

    def __init__(self, num_blocks: int, /) -> None: ...
    def insert(self, candidates: Sequence[tuple[int, int]]) -> None:
        """Adds blocks that were used at the same moment, each with its depth.

        Among the blocks of one call, the deepest is evicted first.
        """

    def remove(self, block_id: int) -> bool:
        """Removes one block. Returns whether it was present."""

    def evict(self) -> int | None:
        """Removes and returns the next victim."""

    def order(self) -> list[int]:
        """Returns the blocks, next victim first."""

    def check_invariants(self) -> None:
        """Raises an error if the evictor's internal state is inconsistent."""

    def __contains__(self, block_id: int, /) -> bool: ...
    def __len__(self) -> int: ...


class VictimOrder:
    """Blocks ordered by last use. The next victim comes first.

    Args:
        evictor: An empty evictor with the methods of ``kvpool.parts.LruEvictor``. Only this object may
            use it.

    >>> import kvpool
    >>> order = VictimOrder(kvpool.parts.LruEvictor(8))
    >>> order.append([(1, 0), (2, 1), (3, 2)])  # one request: its tail is given up first
    >>> order.find(2, lambda block: block != 3)  # 3 is in use: passed over
    [2, 1]
    >>> order.drop(2)
    True
    >>> order.order()  # 3 keeps its place
    [3, 1]
    """

    def __init__(self, evictor: Evictor) -> None:
        self._evictor = evictor
        # The blocks that were in use when it was their turn to be evicted, in the order of these turns.
        # They are evicted before the blocks in the evictor.
        self._passed: dict[int, None] = {}

    def append(self, candidates: Sequence[tuple[int, int]]) -> None:
        """Adds new blocks at the end, as the most recently used. Each is a pair of block id and depth.

        Among the blocks of one call, the deepest is evicted first. Among blocks of equal depth, the one
        that was passed earliest is evicted first. O(1) per block.

        Raises:
            InvalidBlockError: An id is out of the evictor's range. Nothing has changed.
        """
        self._evictor.insert(candidates)

    def drop(self, block: int) -> bool:
        """Removes a block from the order. Returns whether the block was in the order. O(1)."""
        if block in self._passed:
            del self._passed[block]
            if not self._passed:
                self._passed = {}  # iterating over a dict that has shrunk is slow
            return True
        return self._evictor.remove(block)

    def find(self, n: int, may_go: Callable[[int], bool]) -> list[int]:
        """Returns the next ``n`` blocks that may be evicted, or all of them if there are fewer.

        The function ``may_go`` returns whether a block may be evicted.

        Does not change the order. O(n + blocks passed over, now and in earlier calls).
        """
        found = list(islice(filter(may_go, self._passed), n))
        while len(found) < n and (block := self._evictor.evict()) is not None:
            self._passed[block] = None
            if may_go(block):
                found.append(block)
        return found

    def order(self) -> list[int]:
        """Returns every block, next victim first. O(blocks), for tests and tools."""
        return [*self._passed, *self._evictor.order()]

    def check_invariants(self) -> None:
        """Checks the evictor, and that no passed-over block is also in it. O(blocks), for tests.

        Raises:
            InvariantError: An invariant is broken; the error describes the first one.
        """
        self._evictor.check_invariants()
        both = [block for block in self._passed if block in self._evictor]
        if both:
            raise InvariantError(f"blocks {both} are passed over and still held by the evictor")

    def __len__(self) -> int:
        return len(self._passed) + len(self._evictor)


class Request:
    """A running request, with the depths of those of its blocks that no later request has used."""

    __slots__ = ("blocks", "owner", "rank")

    def __init__(self, owner: RunningRequests, rank: int) -> None:
        self.owner = owner
        self.rank = rank
        self.blocks: dict[int, int] = {}


class RunningRequests:
    """The blocks of running requests, in the order in which the requests began, the deepest block first.

    >>> running = RunningRequests()
    >>> first, second = running.begin(), running.begin()
    >>> for block, depth in [(1, 0), (3, 2), (2, 1)]:
    ...     running.use(first, block, depth)
    >>> running.use(second, 1, 0)  # shared: the later request counts
    >>> running.find(9, lambda block: True)
    [3, 2, 1]
    """

    def __init__(self) -> None:
        self._ranks = count()
        self._requests: dict[int, Request] = {}  # those with blocks, by rank
        self._of: dict[int, Request] = {}  # by block

    def begin(self) -> Request:
        """Returns a new running request, which has used no blocks yet. O(1)."""
        return Request(self, next(self._ranks))

    def use(self, request: Request, block: int, depth: int) -> None:
        """Records that a request has used a block. The latest request that uses it counts. O(1)."""
        holder = self._of.get(block)
        if holder is not None:
            if holder.rank > request.rank:
                return
            self.drop(block)
        request.blocks[block] = depth
        self._of[block] = request
        self._requests[request.rank] = request

    def drop(self, block: int) -> bool:
        """Removes a block. Returns whether it was present. O(1)."""
        request = self._of.pop(block, None)
        if request is None:
            return False
        del request.blocks[block]
        if not request.blocks:
            del self._requests[request.rank]
        return True

    def holder(self, block: int) -> Request | None:
        """Returns the request to which a block is assigned, or None. O(1)."""
        return self._of.get(block)

    def find(self, n: int, may_go: Callable[[int], bool]) -> list[int]:
        """Returns the next ``n`` blocks that may be evicted, or all of them if there are fewer.

        The function ``may_go`` returns whether a block may be evicted.

        Changes nothing. O(b log b) for the b blocks of the requests examined, plus O(running requests).
        """
        return list(islice(filter(may_go, self._ordered()), n))

    def order(self) -> list[int]:
        """Returns every block, next victim first. O(b log b), for tests and tools."""
        return list(self._ordered())

    def check_invariants(self) -> None:
        """Checks that requests and blocks match. O(blocks), for tests.

        Raises:
            InvariantError: An invariant is broken; the error describes the first one.
        """
        held = {block: request for request in self._requests.values() for block in request.blocks}
        if held != self._of or any(request.rank != rank for rank, request in self._requests.items()):
            raise InvariantError("the blocks of running requests are not those that are theirs")

    def _ordered(self) -> Iterable[int]:
        for rank in sorted(self._requests):
            blocks = self._requests[rank].blocks
            yield from sorted(blocks, key=blocks.__getitem__, reverse=True)

    def __contains__(self, block: int) -> bool:
        return block in self._of

    def __len__(self) -> int:
        return len(self._of)
