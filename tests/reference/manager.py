"""The reference model of ``CacheManager``: requests with their tables over reference pools, one per tier.

Every table is a list, every swap a list of moves; what is refused is put back from a copy. Hints are not modelled: a
manager without retention refuses them.

A commit writes KV, and a planned copy copies it at once: plans are executed before the step that they are of writes
anything. ``check_kv`` compares what every request, and every lookup in every tier, reads with what it should.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvpool import errors
from tests.reference.pool import ReferencePool, _atomic, _check
from tests.reference.tables import Place, ReferenceRequest, ReferenceTables

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

#: ``allocate_tokens`` and ``external_tokens``.
Part = tuple[int | None, int]
#: References of each block, blocks that are available, and how many of them are left to those that run.
Vacancy = tuple[list[int], int, int]


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


class ReferenceManager(ReferenceTables):
    """The model of ``CacheManager``; what it lacks is its ``pool``'s."""

    def __init__(self, pool: ReferencePool, watermark: float = 0.0, host: ReferencePool | None = None) -> None:
        super().__init__(pool, host)
        self.watermark = watermark
        self.swaps: dict[int, Swap] = {}
        self.next_swap = 0

    @property
    def watermark_blocks(self) -> int:
        """The share that is kept free while others run, of the pool as large as it is now; block 0 is not counted."""
        return int(self.watermark * (len(self.pool.blocks) - 1))

    @property
    def reserve(self) -> int:
        """Blocks that are left to those that run."""
        return self.watermark_blocks if any(other.active for other in self.requests.values()) else 0

    def reusable(self, tokens: Sequence[int]) -> int:
        """Blocks that a lookup may return: the last token is left to compute."""
        return max(0, len(tokens) - 1) // self.pool.block_size

    def size(self, request: ReferenceRequest, cached: int, allocate_tokens: int | None, external_tokens: int) -> int:
        """Blocks of its table once it is admitted, when so many of them are cached."""
        ready = max(cached * self.pool.block_size, external_tokens)
        chunk = len(request.tokens) if allocate_tokens is None else allocate_tokens
        return -(-min(len(request.tokens), ready + chunk) // self.pool.block_size)

    def vacancy(self) -> Vacancy:
        """The blocks that an admission may take now."""
        return [block.held for block in self.pool.blocks], sum(self.pool.sums()[:2]), self.reserve

    def fits(self, request: ReferenceRequest, found: list[int], part: Part, vacancy: Vacancy) -> bool:
        """Whether the blocks behind a match are available."""
        held, available, reserve = vacancy
        idle = sum(held[b] == 0 for b in found)
        return self.size(request, len(found), *part) - len(found) <= max(0, available - idle - reserve)

    def served(self, request: ReferenceRequest, longest: list[int], part: Part, vacancy: Vacancy) -> list[int]:
        """The longest part of a match that an admission fits behind, or else one with a place for a first token."""
        matches = [longest[:n] for n in range(len(longest), -1, -1)]
        fitting = [found for found in matches if self.fits(request, found, part, vacancy)]
        partly = [found for found in matches if self.fitting(request, found, part[1], vacancy)]
        return [*fitting[:1], *partly[:1], longest][0]

    def fitting(self, request: ReferenceRequest, found: list[int], external_tokens: int, vacancy: Vacancy) -> int:
        """The longest first chunk behind a match."""
        ready = max(len(found) * self.pool.block_size, external_tokens)
        chunks = range(len(request.tokens) - ready + 1)
        return max((n for n in chunks if self.fits(request, found, (n, external_tokens), vacancy)), default=0)

    def matched(self, request: ReferenceRequest, part: Part, vacancy: Vacancy, *, reuse: bool = True) -> list[int]:
        """The blocks that an admission hits."""
        found, _ = self.pool.lookup(request.extra, request.tokens, self.reusable(request.tokens) if reuse else 0)
        return self.served(request, found, part, vacancy)

    @_atomic
    def admit(
        self,
        request_id: Hashable,
        tokens: Sequence[int],
        extra: Hashable = None,
        *,
        allocate_tokens: int | None = None,
        external_tokens: int = 0,
        reuse: bool = True,
    ) -> ReferenceRequest:
        """Lookup, then allocation."""
        _check(request_id not in self.requests, errors.DuplicateRequestError)
        _check(len(tokens) > 0, errors.InvalidArgumentError)
        self.requests[request_id] = ReferenceRequest(list(tokens), extra, self.pool.epoch)
        return self.resume(request_id, allocate_tokens=allocate_tokens, external_tokens=external_tokens, reuse=reuse)

    @_atomic
    def resume(
        self,
        request_id: Hashable,
        *,
        allocate_tokens: int | None = None,
        external_tokens: int = 0,
        reuse: bool = True,
    ) -> ReferenceRequest:
        """Lookup of all its tokens, then allocation; others that run have a right to the watermark."""
        request, vacancy, part = self.find(request_id, "preempted"), self.vacancy(), (allocate_tokens, external_tokens)
        _check(external_tokens < len(request.tokens), errors.InvalidArgumentError)
        found = self.matched(request, part, vacancy, reuse=reuse)
        _check(self.fits(request, found, part, vacancy), errors.OutOfBlocksError)
        for b in found:
            self.pool.hold(b)
        return self.install(request, found, *part)

    def install(
        self, request: ReferenceRequest, found: list[int], allocate_tokens: int | None = None, external_tokens: int = 0
    ) -> ReferenceRequest:
        """Allocates behind an acquired match; external tokens that are not cached are loaded now."""
        needed = self.size(request, len(found), allocate_tokens, external_tokens) - len(found)
        request.blocks = found + self.pool.allocate(needed)
        request.registered, request.epoch = len(found), self.pool.epoch
        request.computed = request.cached = len(found) * self.pool.block_size
        request.external = external_tokens if external_tokens > request.cached else None
        request.state = "running" if request.external is None else "loading"
        return request

    def fit(
        self,
        tokens: Sequence[int],
        extra: Hashable = None,
        *,
        allocate_tokens: int | None = None,
        external_tokens: int = 0,
        reuse: bool = True,
    ) -> tuple[str, int, int, int, bool]:
        """Whether an admission fits, cached tokens, new blocks, the largest chunk, and whether it can ever fit."""
        _check(0 <= external_tokens < len(tokens), errors.InvalidArgumentError)
        request, vacancy = ReferenceRequest(list(tokens), extra, self.pool.epoch), self.vacancy()
        part = (allocate_tokens, external_tokens)
        found = self.matched(request, part, vacancy, reuse=reuse)
        new = self.size(request, len(found), *part) - len(found)
        alone = -(-len(tokens) // self.pool.block_size) < len(self.pool.blocks)
        fit = "ok" if self.fits(request, found, part, vacancy) else "later" if alone else "never"
        cached = len(found) * self.pool.block_size
        return fit, cached, new, self.fitting(request, found, external_tokens, vacancy), alone

    def external_done(
        self,
        request_id: Hashable,
        loaded_tokens: int | None = None,
        *,
        failed: Sequence[tuple[int, int]] | None = None,
    ) -> int:
        """What was loaded before anything that failed is computed; the request runs, or goes if it was released."""
        _check(loaded_tokens is None or failed is None, errors.InvalidArgumentError)
        request = self.find(request_id)
        _check(request.external is not None, errors.RequestStateError)
        end = request.external or 0
        lost = (at for at in range(request.computed, end) if any(first <= at < last for first, last in failed or ()))
        usable = next(lost, end) if loaded_tokens is None else loaded_tokens
        _check(request.computed <= usable <= end, errors.InvalidArgumentError)
        request.external = None
        return 0 if self._arrive(request_id, "running") else self.commit(request_id, usable)

    def _arrive(self, request_id: Hashable, state: str) -> bool:
        """Nothing moves or loads the request any more: whether it goes."""
        request = self.requests[request_id]
        request.state = state
        if request.leaving is not None:
            self._leave(request_id)
        return request_id not in self.requests

    def _leave(self, request_id: Hashable) -> None:
        """A request that was released gives up its blocks; a fence that has ended since holds nothing back."""
        request = self.requests.pop(request_id)
        after_step, until = request.leaving or (None, None)
        end = after_step, until if until in self.pool.tickets else None
        self.give_up(request, end)

    def release(self, request_id: Hashable, after_step: int | None = None, until: int | None = None) -> None:
        """Gives up the blocks and the id, at once or when nothing moves or loads it any more."""
        self.either(after_step, until)
        request = self.find(request_id)
        _check(request.state != "releasing", errors.RequestStateError)
        self.check_open(until)
        request.leaving = after_step, until
        if request.state in {"moving", "loading"}:
            request.state = "releasing"
        else:
            self._leave(request_id)

    @_atomic
    def release_batch(self, ids: Sequence[Hashable], after_step: int | None = None, until: int | None = None) -> None:
        """All or nothing, one after the other."""
        self.either(after_step, until)
        self.check_open(until)
        for row, request_id in enumerate(ids):
            _check(request_id not in ids[:row], errors.DuplicateRequestError)
            self.release(request_id, after_step, until)

    def preempt(self, request_id: Hashable, after_step: int | None = None, until: int | None = None) -> None:
        """Gives up the blocks and keeps the tokens."""
        self.either(after_step, until)
        request = self.find(request_id, "running", "swapped")
        self.check_open(until)
        self.give_up(request, (after_step, until))
        self.requests[request_id] = ReferenceRequest(request.tokens, request.extra, request.epoch)

    def complete_step(self, step: int) -> int:
        """Ends fences in every tier."""
        return sum(pool.complete_step(step) for pool in self.pools)

    def fence(self) -> int:
        """Opens a fence, of the same number in every tier."""
        return max(pool.fence() for pool in self.pools)

    def end_fence(self, ticket: int) -> int:
        """Ends it."""
        return sum(pool.end_fence(ticket) for pool in self.pools)

    def bump_epoch(self) -> int:
        """Forgets everything cached in every tier."""
        self.weights += 1
        return max(pool.bump_epoch() for pool in self.pools)

    def reset(self) -> int:
        """Forgets everything cached in every tier, if nothing is held in any."""
        _check(not any(block.held for pool in self.pools for block in pool.blocks), errors.BlocksInUseError)
        self.weights += 1
        return sum(pool.reset() for pool in self.pools)

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

    def _group(self, ids: Sequence[Hashable], state: str) -> list[Move]:
        """Distinct blocks of a group in order, with the cached blocks of the other tier that hold the same."""
        _check(self.host is not None and len(ids) > 0, errors.InvalidArgumentError)
        source, target = self.pools[:: 1 if state == "running" else -1]
        moves: dict[int, Move] = {}
        for row, request_id in enumerate(ids):
            request = self.find(request_id, state)
            _check(request_id not in ids[:row], errors.DuplicateRequestError)
            for b in request.blocks[request.trimmed :]:
                if b not in moves:
                    found = target.find_in_place(source.cached(b))
                    moves[b] = Move(b, found or 0, 0, found is None, source.cached(b) is not None)
                moves[b].references += 1
        return list(moves.values())

    def _fit(self, moves: list[Move], out: bool, reserve: int) -> str:
        target = self.pools[1 if out else 0]
        fresh = sum(move.copied for move in moves)
        found = {move.target for move in moves if not move.copied}
        idle = sum(target.blocks[b].held == 0 for b in found)
        if not fresh or fresh + reserve <= sum(target.sums()[:2]) - idle:
            return "ok"
        return "never" if fresh + reserve > len(target.blocks) - 1 - len(found) else "later"

    def fit_swap_out(self, ids: Sequence[Hashable]) -> str:
        """Whether the host has vacancy."""
        return self._fit(self._group(ids, "running"), True, 0)

    def fit_swap_in(self, ids: Sequence[Hashable]) -> str:
        """Whether the device has vacancy; the watermark is no obstacle for ever."""
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
        for name in swap.names:
            request = self.requests[name]
            request.blocks, request.tier = [mapping.get(b, b) for b in request.blocks], swap.to
            self._arrive(name, "swapped" if swap.to else "running")
        return mapping

    def abort_swap(self, number: int) -> None:
        """Everything is as before."""
        _check(number in self.swaps, errors.SwapError)
        swap = self.swaps.pop(number)
        self.planned = [copy for copy in self.planned if copy[2] != number]
        self.pools[swap.to].release([move.target for move in swap.moves[::-1] for _ in range(move.references)])
        for name in swap.names:
            self._arrive(name, "running" if swap.to else "swapped")
