"""The reference model of ``CacheManager``: requests with their tables over reference pools, one per tier.

Every table is a list, every swap a list of moves; what is refused is put back from a copy. Hints are not modelled: a
manager without retention refuses them.

A commit writes KV, and a planned copy copies it at once: plans are executed before the step that they are of writes
anything. ``check_kv`` compares what every request, and every lookup in every tier, reads with what it should.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvpool import errors
from kvpool.testing.reference import ReferencePool, _atomic, _check

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


@dataclass
class ReferenceRequest:
    """One request: its table is empty while it is preempted; ``registered`` blocks are in the index."""

    tokens: list[int]
    extra: Hashable
    epoch: int
    blocks: list[int] = field(default_factory=list)
    state: str = "preempted"
    tier: int = 0
    computed: int = 0
    cached: int = 0
    registered: int = 0
    trimmed: int = 0
    #: After a fork or a truncation: an append may meet a block that it must not write to.
    guarded: bool = False

    @property
    def running(self) -> bool:
        """Whether it holds blocks of the device, and no swap moves it."""
        return self.state == "running"


@dataclass
class Move:
    """A block of a swap: whether it is copied, and whether its content goes along."""

    source: int
    target: int
    references: int
    copied: bool
    registered: bool


@dataclass
class Swap:
    """A swap under way."""

    names: list[Hashable]
    to: int
    moves: list[Move]
    taken: bool


#: Tier and block.
Place = tuple[int, int]


class ReferenceManager:
    """The model of ``CacheManager``; what it lacks is its ``pool``'s."""

    def __init__(self, pool: ReferencePool, watermark: float = 0.0, host: ReferencePool | None = None) -> None:
        self.pool, self.host, self.watermark = pool, host, watermark
        self.requests: dict[Hashable, ReferenceRequest] = {}
        self.planned: list[tuple[Place, Place, int | None]] = []  # source, destination, swap
        self.swaps: dict[int, Swap] = {}
        self.next_swap = 0
        self.weights = 0  # counts the changes of weights: epochs and resets

    @property
    def pools(self) -> list[ReferencePool]:
        """By tier."""
        return [self.pool, *([self.host] if self.host else [])]

    @property
    def watermark_blocks(self) -> int:
        """The share that is kept free while others run, of the pool as large as it is now; block 0 is not counted."""
        return int(self.watermark * (len(self.pool.blocks) - 1))

    @property
    def reserve(self) -> int:
        """Blocks that are left to those that run."""
        return self.watermark_blocks if any(other.running for other in self.requests.values()) else 0

    def find(self, request_id: Hashable, running: bool | None = True) -> ReferenceRequest:
        """A request that runs, a preempted one with False, any with None."""
        state = {True: "running", False: "preempted", None: None}[running]
        _check(request_id in self.requests, errors.UnknownRequestError)
        _check(state in (None, self.requests[request_id].state), errors.RequestStateError)
        return self.requests[request_id]

    def missing(self, request: ReferenceRequest, more: int = 0) -> int:
        """Blocks that its table lacks for so many tokens more."""
        return max(0, -(-(len(request.tokens) + more) // self.pool.block_size) - len(request.blocks))

    def reusable(self, tokens: Sequence[int]) -> int:
        """Blocks that a lookup may return: the last token is left to compute."""
        return max(0, len(tokens) - 1) // self.pool.block_size

    @_atomic
    def admit(self, request_id: Hashable, tokens: Sequence[int], extra: Hashable = None) -> ReferenceRequest:
        """Lookup, then allocation."""
        _check(request_id not in self.requests, errors.DuplicateRequestError)
        _check(len(tokens) > 0, errors.InvalidArgumentError)
        self.requests[request_id] = ReferenceRequest(list(tokens), extra, self.pool.epoch)
        return self.resume(request_id)

    @_atomic
    def resume(self, request_id: Hashable) -> ReferenceRequest:
        """Lookup of all its tokens, then allocation; others that run have a right to the watermark."""
        request, reserve = self.find(request_id, running=False), self.reserve
        found = self.pool.match_and_acquire(request.extra, request.tokens, self.reusable(request.tokens))
        _check(self.missing(request) - len(found) + reserve <= sum(self.pool.sums()[:2]), errors.OutOfBlocksError)
        return self.install(request, found)

    def install(self, request: ReferenceRequest, found: list[int]) -> ReferenceRequest:
        """Allocates behind an acquired match."""
        request.blocks, request.state = found + self.pool.allocate(self.missing(request) - len(found)), "running"
        request.registered, request.epoch = len(found), self.pool.epoch
        request.computed = request.cached = len(found) * self.pool.block_size
        return request

    def touched(self, request: ReferenceRequest, more: int) -> range:
        """Positions of its table that an append writes to and that may not be its own."""
        first = len(request.tokens) // self.pool.block_size
        end = -(-(len(request.tokens) + more) // self.pool.block_size)
        return range(first, min(end, len(request.blocks)) if request.guarded and more else first)

    def needed(self, request: ReferenceRequest, more: int, given_up: dict[int, int]) -> int:
        """Blocks that an append takes; of a block that several share, the last of them needs no copy."""
        needed = self.missing(request, more)
        for at in self.touched(request, more):
            b, block = request.blocks[at], self.pool.blocks[request.blocks[at]]
            if block.content is not None or block.held - block.pinned - given_up.get(b, 0) > 1:
                given_up[b] = given_up.get(b, 0) + 1
                needed += 1
        return needed

    @_atomic
    def append_tokens(self, request_id: Hashable, tokens: Sequence[int], lookahead: int = 0) -> list[tuple[int, int]]:
        """Copies what it must not write to and allocates the rest: positions of the table, and their blocks."""
        request = self.find(request_id)
        needed = self.needed(request, len(tokens) + lookahead, {})
        _check(needed <= sum(self.pool.sums()[:2]), errors.OutOfBlocksError)
        return self.extend(request, tokens, lookahead)

    def extend(self, request: ReferenceRequest, tokens: Sequence[int], lookahead: int = 0) -> list[tuple[int, int]]:
        """An append that fits."""
        more, before = len(tokens) + lookahead, list(request.blocks)
        touched = self.touched(request, more)
        for at in touched:
            if not self.pool.writable(b := request.blocks[at]):
                [request.blocks[at]] = self.pool.allocate(1)
                if at * self.pool.block_size < len(request.tokens):
                    self.plan_copy((0, b), (0, request.blocks[at]))
                self.pool.release([b])
        if more:
            request.guarded = request.guarded and touched.stop < len(before)
        request.blocks += self.pool.allocate(self.missing(request, more))
        request.tokens += tokens
        return [(at, b) for at, b in enumerate(request.blocks) if before[at : at + 1] != [b]]

    def plan_copy(self, source: Place, target: Place, swap: int | None = None) -> None:
        """What reads the target of an earlier copy reads that copy's source."""
        (tier, b), (to, copy) = source, target
        self.pools[to].blocks[copy].kv = dict(self.pools[tier].blocks[b].kv)
        source = next((first for first, second, _ in self.planned if second == source), source)
        self.planned.append((source, target, swap))
        if swap is None:
            for tier, b in (source, target):
                self.pools[tier].pin(b)

    def check_kv(self) -> None:
        """What a request computed before a change of weights it may keep; everything else is of the weights of now.

        Raises:
            InvariantError: A request reads, or a lookup in some tier would return, KV of other tokens or weights.
        """
        for pool in self.pools:
            pool.check_kv(self.weights)
        for request_id, request in self.requests.items():
            blocks, size = self.pools[request.tier].blocks, self.pool.block_size
            for at in range(request.trimmed * size, request.computed):
                weights, prefix = blocks[request.blocks[at // size]].kv.get(at % size, (-1, 0))
                now = self.weights if request.epoch == self.pool.epoch else weights
                expected = self.pool.kv(now, request.extra, request.tokens[: at + 1])
                if (weights, prefix) != expected:
                    raise errors.InvariantError(f"request {request_id!r} reads other KV for token {at}")

    def take_plan(self) -> list[tuple[Place, Place]]:
        """Hands out the planned copies whose targets are of use to anybody."""
        plan = []
        for source, (tier, b), _ in self.planned:
            block = self.pools[tier].blocks[b]
            if block.held > block.fenced or block.computed:
                plan.append((source, (tier, b)))
        self.planned = []
        for swap in self.swaps.values():
            swap.taken = True
        for pool in self.pools:
            pool.unpin()
        return plan

    @_atomic
    def append(
        self, ids: Sequence[Hashable], tokens: Sequence[int], *, commit: bool = False
    ) -> list[tuple[int, int, int]]:
        """One token each."""
        self._batch(ids, tokens)
        given_up: dict[int, int] = {}
        needed = sum(self.needed(self.find(request_id), 1, given_up) for request_id in ids)
        _check(needed <= sum(self.pool.sums()[:2]), errors.OutOfBlocksError)
        added = list[tuple[int, int, int]]()
        for row, request_id in enumerate(ids):
            if commit:
                self.commit(request_id, len(self.find(request_id).tokens))
            added += [(row, *new) for new in self.extend(self.find(request_id), tokens[row : row + 1])]
        return added

    def _batch(self, ids: Sequence[Hashable], values: Sequence[int]) -> None:
        _check(len(ids) == len(values), errors.InvalidArgumentError)
        for row, request_id in enumerate(ids):
            self.find(request_id)
            _check(request_id not in ids[:row], errors.DuplicateRequestError)

    def commit(self, request_id: Hashable, computed: int) -> int:
        """Registers the full blocks that became computed, unless the epoch has changed or a fork has done it since."""
        request = self.find(request_id)
        _check(request.computed <= computed <= len(request.tokens), errors.InvalidArgumentError)
        size, registered = self.pool.block_size, 0
        for at in range(request.computed, computed):
            kv = self.pool.kv(self.weights, request.extra, request.tokens[: at + 1])
            self.pool.blocks[request.blocks[at // size]].kv[at % size] = kv
        request.computed, full = computed, computed // size
        for at in range(request.registered, full if request.epoch == self.pool.epoch else 0):
            if self.pool.blocks[b := request.blocks[at]].content is None:
                registered += self.pool.register([b], request.extra, request.tokens, at)
                self.pool.mark_computed([b])
            request.registered += 1
        return registered

    @_atomic
    def commit_batch(self, ids: Sequence[Hashable], computed: Sequence[int]) -> int:
        """All or nothing."""
        self._batch(ids, computed)
        return sum(self.commit(request_id, n) for request_id, n in zip(ids, computed, strict=True))

    def fork(self, parent_id: Hashable, child_id: Hashable) -> None:
        """A second request over the same blocks."""
        parent = self.find(parent_id)
        _check(child_id not in self.requests, errors.DuplicateRequestError)
        parent.guarded = True
        self.pool.acquire(parent.blocks[parent.trimmed :])
        twin = ReferenceRequest(**{**vars(parent), "tokens": list(parent.tokens), "blocks": list(parent.blocks)})
        self.requests[child_id] = twin

    def truncate(self, request_id: Hashable, num_tokens: int) -> None:
        """Keeps the first tokens; blocks behind them are released, a registered tail is copied by the next append."""
        request, size = self.find(request_id), self.pool.block_size
        least = max(1, request.trimmed * size)
        _check(least <= num_tokens <= len(request.tokens), errors.InvalidArgumentError)
        del request.tokens[num_tokens:]
        keep = -(-num_tokens // size)
        request.blocks, dropped = request.blocks[:keep], request.blocks[keep:]
        request.computed, request.registered = (
            min(request.computed, num_tokens),
            min(request.registered, num_tokens // size),
        )
        request.guarded = True
        self.pool.release(dropped[::-1])

    def trim_window(self, request_id: Hashable, window: int) -> int:
        """Block 0 takes the places of blocks before a window that ends with what is computed."""
        request = self.find(request_id)
        end = max(request.trimmed, (request.computed - window) // self.pool.block_size)
        gone = request.blocks[request.trimmed : end]
        request.blocks[request.trimmed : end] = [0] * len(gone)
        request.trimmed = end
        self.pool.release(gone[::-1])
        return len(gone)

    def give_up(self, request: ReferenceRequest, after_step: int | None) -> None:
        """Its blocks, tail first."""
        self.pools[request.tier].release_after(request.blocks[request.trimmed :][::-1], after_step)

    def release(self, request_id: Hashable, after_step: int | None = None) -> None:
        """Gives up the blocks and the id."""
        request = self.find(request_id, running=None)
        _check(request.state != "moving", errors.RequestStateError)
        self.give_up(self.requests.pop(request_id), after_step)

    def preempt(self, request_id: Hashable, after_step: int | None = None) -> None:
        """Gives up the blocks and keeps the tokens."""
        request = self.find(request_id, running=None)
        _check(request.state in {"running", "swapped"}, errors.RequestStateError)
        self.give_up(request, after_step)
        self.requests[request_id] = ReferenceRequest(request.tokens, request.extra, request.epoch)

    def complete_step(self, step: int) -> int:
        """Ends fences in every tier."""
        return sum(pool.complete_step(step) for pool in self.pools)

    def bump_epoch(self) -> int:
        """Forgets everything cached in every tier."""
        self.weights += 1
        return max(pool.bump_epoch() for pool in self.pools)

    def reset(self) -> int:
        """Forgets everything cached in every tier, if nothing is held in any."""
        _check(not any(block.held for pool in self.pools for block in pool.blocks), errors.BlocksInUseError)
        self.weights += 1
        return sum(pool.reset() for pool in self.pools)

    def _group(self, ids: Sequence[Hashable], state: str) -> list[Move]:
        """Distinct blocks of a group in order, with the cached blocks of the other tier that hold the same."""
        _check(self.host is not None and len(ids) > 0, errors.InvalidArgumentError)
        source, target = self.pools[:: 1 if state == "running" else -1]
        moves: dict[int, Move] = {}
        for row, request_id in enumerate(ids):
            request = self.find(request_id, running=None)
            _check(request.state == state, errors.RequestStateError)
            _check(request_id not in ids[:row], errors.DuplicateRequestError)
            for b in request.blocks[request.trimmed :]:
                if b not in moves:
                    found = target.find(source.cached(b))
                    moves[b] = Move(b, found or 0, 0, found is None, source.cached(b) is not None)
                moves[b].references += 1
        return list(moves.values())

    def _fit(self, moves: list[Move], out: bool, reserve: int) -> str:
        target = self.pools[1 if out else 0]
        fresh = sum(move.copied for move in moves)
        found = {move.target for move in moves if not move.copied}
        idle = sum(target.blocks[b].held == 0 for b in found)
        if fresh + reserve <= sum(target.sums()[:2]) - idle:
            return "ok"
        return "never" if fresh + reserve > len(target.blocks) - 1 - len(found) else "later"

    def fit_swap_out(self, ids: Sequence[Hashable]) -> str:
        """Whether the host has room."""
        return self._fit(self._group(ids, "running"), True, 0)

    def fit_swap_in(self, ids: Sequence[Hashable]) -> str:
        """Whether the device has room; the watermark is no obstacle for ever."""
        moves = self._group(ids, "swapped")
        fit, alone = (self._fit(moves, False, reserve) for reserve in (self.reserve, 0))
        return "later" if fit == "never" != alone else fit

    @_atomic
    def begin_swap(self, ids: Sequence[Hashable], out: bool) -> int:
        """Takes the targets and plans the copies; the sources stay as they are."""
        moves = self._group(ids, "running" if out else "swapped")
        _check(self._fit(moves, out, 0 if out else self.reserve) == "ok", errors.OutOfBlocksError)
        to = 1 if out else 0
        target, number = self.pools[to], self.next_swap
        for move in moves:
            for _ in range(0 if move.copied else move.references):
                target.hold(move.target)
        copied = [move for move in moves if move.copied]
        for move, b in zip(copied, target.allocate(len(copied)), strict=True):
            move.target, target.blocks[b].held = b, move.references
            self.plan_copy((1 - to, move.source), (to, b), number)
        for request_id in ids:
            self.requests[request_id].state = "moving"
        self.swaps[number] = Swap(list(ids), to, moves, taken=not copied)
        self.next_swap += 1
        return number

    def complete_swap(self, number: int) -> dict[int, int]:
        """The sources are given up, and the targets are cached as what the sources were when the copy was planned."""
        _check(number in self.swaps and self.swaps[number].taken, errors.SwapError)
        swap = self.swaps.pop(number)
        source, target = self.pools[1 - swap.to], self.pools[swap.to]
        for move in swap.moves:
            if move.copied and move.registered and (content := source.cached(move.source)):
                target.register_copy(move.target, content)
        source.release([move.source for move in swap.moves[::-1] for _ in range(move.references)])
        mapping = {move.source: move.target for move in swap.moves}
        for request in (self.requests[name] for name in swap.names):
            request.blocks = [mapping.get(b, b) for b in request.blocks]
            request.tier, request.state = swap.to, "swapped" if swap.to else "running"
        return mapping

    def abort_swap(self, number: int) -> None:
        """Everything is as before."""
        _check(number in self.swaps, errors.SwapError)
        swap = self.swaps.pop(number)
        self.planned = [copy for copy in self.planned if copy[2] != number]
        self.pools[swap.to].release([move.target for move in swap.moves[::-1] for _ in range(move.references)])
        for name in swap.names:
            self.requests[name].state = "running" if swap.to else "swapped"
