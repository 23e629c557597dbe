"""The order in which resident chunks are given up. Knows nothing of vLLM, keys or reference counts:
blocks and depths.

Owns the order alone, in two parts. ``VictimOrder`` orders what nobody's request is running for, by last
use: an evictor of kvpool, and in front of it the victims that could not be taken when their turn came.
``RunningRequests`` orders what requests that still run have met; it goes behind all of the former:
request after request, the deepest of each first, however many calls brought it. So what is left of a
prefix is a prefix.

Both order the blocks in use with the others, so that holding a block and letting it go do not change
its place: last used is what a request used last, not what a transfer ended last. Evictors know nothing
of blocks in use. One whose turn comes while it must stay is *passed over*: it waits in front of all
that the evictor still holds, in the order of the turns, and is asked first next time. Looking for
victims therefore changes no order.
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Protocol

from kvpool.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Evictor", "Request", "RunningRequests", "VictimOrder"]


class Evictor(Protocol):
    """What an evictor of kvpool does; blocks are ids from 1 to ``num_blocks - 1``."""

    def __init__(self, num_blocks: int, /) -> None: ...
    def insert(self, candidates: Sequence[tuple[int, int]]) -> None:
        """Takes blocks used at one moment, with their depths; of one call the deeper are given up first."""

    def remove(self, block_id: int) -> bool:
        """Gives up one block; says whether it was held."""

    def evict(self) -> int | None:
        """Gives up the next victim."""

    def order(self) -> list[int]:
        """The blocks held, next victim first."""

    def check_invariants(self) -> None:
        """Recounts itself."""

    def __contains__(self, block_id: int, /) -> bool: ...
    def __len__(self) -> int: ...


class VictimOrder:
    """Blocks by last use, the next victim first.

    Args:
        evictor: An empty evictor with the methods of ``kvpool.parts.LruEvictor``; this object owns it.

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
        # Insertion order is the order of the turns; all of it goes before what the evictor holds.
        self._passed: dict[int, None] = {}

    def append(self, candidates: Sequence[tuple[int, int]]) -> None:
        """Puts blocks that are not in the order at its end, used last: pairs of block id and depth.

        Of one call the deeper are given up first, and of equal depth the earlier. O(1) per block.

        Raises:
            InvalidBlockError: An id is outside the evictor; nothing has changed.
        """
        self._evictor.insert(candidates)

    def drop(self, block: int) -> bool:
        """Takes a block out of the order; says whether it was in it. O(1)."""
        if block in self._passed:
            del self._passed[block]
            if not self._passed:
                self._passed = {}  # one that has shrunk is slow to walk
            return True
        return self._evictor.remove(block)

    def find(self, n: int, may_go: Callable[[int], bool]) -> list[int]:
        """The next ``n`` blocks for which ``may_go`` is true, or all of them if there are fewer.
        Changes no order.

        O(n + blocks passed over), those of earlier calls included.
        """
        found = list(islice(filter(may_go, self._passed), n))
        while len(found) < n and (block := self._evictor.evict()) is not None:
            self._passed[block] = None
            if may_go(block):
                found.append(block)
        return found

    def order(self) -> list[int]:
        """Every block, next victim first. O(blocks), for tests and tools."""
        return [*self._passed, *self._evictor.order()]

    def check_invariants(self) -> None:
        """Recounts the evictor, and that no block is both held by it and passed over. O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """
        self._evictor.check_invariants()
        both = [block for block in self._passed if block in self._evictor]
        if both:
            raise InvariantError(f"blocks {both} are passed over and still held by the evictor")

    def __len__(self) -> int:
        return len(self._passed) + len(self._evictor)


class Request:
    """A running request, and the depths of the blocks that count as its own: those no later request has
    met.
    """

    __slots__ = ("blocks", "owner", "rank")

    def __init__(self, owner: RunningRequests, rank: int) -> None:
        self.owner = owner
        self.rank = rank
        self.blocks: dict[int, int] = {}


class RunningRequests:
    """Blocks that running requests have met: of the request that began first first, and of each the
    deepest first.

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
        """A request that runs from now on. O(1)."""
        return Request(self, next(self._ranks))

    def use(self, request: Request, block: int, depth: int) -> None:
        """Says that a request has met a block, unless a later one has. O(1)."""
        holder = self._of.get(block)
        if holder is not None:
            if holder.rank > request.rank:
                return
            self.drop(block)
        request.blocks[block] = depth
        self._of[block] = request
        self._requests[request.rank] = request

    def drop(self, block: int) -> bool:
        """Takes a block out; says whether it was in. O(1)."""
        request = self._of.pop(block, None)
        if request is None:
            return False
        del request.blocks[block]
        if not request.blocks:
            del self._requests[request.rank]
        return True

    def holder(self, block: int) -> Request | None:
        """The request that a block counts for, or None. O(1)."""
        return self._of.get(block)

    def find(self, n: int, may_go: Callable[[int], bool]) -> list[int]:
        """The next ``n`` blocks for which ``may_go`` is true, or all of them if there are fewer.
        Changes nothing.

        O(b log b) for the b blocks of the requests that are looked at, plus O(running requests).
        """
        return list(islice(filter(may_go, self._ordered()), n))

    def order(self) -> list[int]:
        """Every block, next victim first. O(b log b), for tests and tools."""
        return list(self._ordered())

    def check_invariants(self) -> None:
        """Recounts which block is whose. O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
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
