"""Requests of the reference model and their block tables: what makes these longer and shorter, and what is computed.

A call that raises changes nothing: either it checks first, or a copy is put back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from kvpool import errors
from tests.reference.pool import ReferencePool, _atomic, _check

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

#: Tier and block.
Place = tuple[int, int]
#: Until when blocks are fenced: ``after_step`` and ``until``.
Until = tuple[int | None, int | None]
#: What changed in block tables: rows of a batch, positions in their tables, blocks.
Changes = tuple[list[int], list[int], list[int]]


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
    #: Positions and blocks that ``trim_window`` gave up.
    left: list[tuple[int, int]] = field(default_factory=list)
    #: From this position on blocks may be shared or registered though tokens to come are written to them.
    guarded: int | None = None
    #: The token behind the last one that a connector loads now.
    external: int | None = None
    #: How it was released, while something moves or loads it still.
    leaving: Until | None = None

    @property
    def running(self) -> bool:
        """Whether it holds blocks of the device, and nothing moves or loads it."""
        return self.state == "running"

    @property
    def active(self) -> bool:
        """Whether the watermark is kept for it."""
        return self.state in {"running", "loading"}


class ReferenceTables:
    """Requests by id over reference pools, one per tier."""

    def __init__(self, pool: ReferencePool, host: ReferencePool | None = None) -> None:
        self.pool, self.host = pool, host
        self.requests: dict[Hashable, ReferenceRequest] = {}
        self.planned: list[tuple[Place, Place, int | None]] = []  # source, destination, swap
        self.weights = 0  # counts the changes of weights: epochs and resets

    @property
    def pools(self) -> list[ReferencePool]:
        """By tier."""
        return [self.pool, *([self.host] if self.host else [])]

    def find(self, request_id: Hashable, *states: str) -> ReferenceRequest:
        """A request in one of these states; without any, in any."""
        _check(request_id in self.requests, errors.UnknownRequestError)
        _check(not states or self.requests[request_id].state in states, errors.RequestStateError)
        return self.requests[request_id]

    def _batch(self, ids: Sequence[Hashable], row: int, *states: str) -> ReferenceRequest:
        """The request of a row, in one of these states and not named before."""
        request = self.find(ids[row], *states)
        _check(ids[row] not in ids[:row], errors.DuplicateRequestError)
        return request

    # --- Growth ------------------------------------------------------------------------------------

    def room(self, request: ReferenceRequest) -> int:
        """Slots of its blocks."""
        return len(request.blocks) * self.pool.block_size

    def slots(self, request: ReferenceRequest, more: int, asked: int) -> int:
        """Slots that a growth covers: new tokens that fall into blocks that there are have theirs, asked for or not."""
        return max(asked, min(len(request.tokens) + more, self.room(request)))

    def computable(self, request: ReferenceRequest) -> int:
        """Tokens that a step may have computed: those with blocks that the request may write to."""
        tokens, room = len(request.tokens), self.room(request)
        tail = [self.pool.blocks[request.blocks[slot // self.pool.block_size]] for slot in range(tokens, room)]
        own = [block.held == 1 and block.content is None for block in tail]
        return min(tokens, room) + (own.index(False) if False in own else len(own))

    def guard(self, request: ReferenceRequest, position: int) -> None:
        """Blocks from there on may be shared or registered; those behind the table are its own."""
        request.guarded = position if position < len(request.blocks) else None

    def guard_tail(self, request: ReferenceRequest) -> None:
        """The block of the next token may be shared or registered from now on."""
        tail = len(request.tokens) // self.pool.block_size
        self.guard(request, tail if request.guarded is None else min(request.guarded, tail))

    def missing(self, request: ReferenceRequest, slots: int) -> int:
        """Blocks that its table lacks for so many slots."""
        return max(0, -(-slots // self.pool.block_size) - len(request.blocks))

    def touched(self, request: ReferenceRequest, slots: int, tail: int | None = None) -> range:
        """Positions that a growth behind ``tail`` tokens writes to, of those that may be shared or registered."""
        tail = len(request.tokens) if tail is None else tail
        if request.guarded is None or slots <= tail:
            return range(0)
        end = min(-(-slots // self.pool.block_size), len(request.blocks))
        return range(min(request.guarded, end), end)

    def needed(self, request: ReferenceRequest, slots: int, given_up: dict[int, int]) -> tuple[int, int]:
        """Blocks that a growth takes, and how many of them are for copies of registered blocks that no other holds.

        The last of several requests that share a block needs no copy.
        """
        needed, avoidable = self.missing(request, slots), 0
        for at in self.touched(request, slots):
            b, block = request.blocks[at], self.pool.blocks[request.blocks[at]]
            users = block.held - block.pinned - given_up.get(b, 0)
            if block.content is not None or users > 1:
                given_up[b] = given_up.get(b, 0) + 1
                needed += 1
                avoidable += users == 1
        return needed, avoidable

    def takes(self, needed: int, avoidable: int, available: int | None = None) -> tuple[int, bool]:
        """Blocks that growths take, and whether registered blocks are written to in place, for want of blocks."""
        available = sum(self.pool.sums()[:2]) if available is None else available
        _check(needed - avoidable <= available, errors.OutOfBlocksError)
        return (needed, False) if needed <= available else (needed - avoidable, True)

    def grow(
        self, request: ReferenceRequest, tokens: Sequence[int], slots: int, *, in_place: bool = False
    ) -> list[tuple[int, int]]:
        """A growth that fits: copies what it must not write to, and allocates the rest. A preempted one gets tokens."""
        before, tail = list(request.blocks), len(request.tokens)
        request.tokens += tokens
        if request.running:
            self.cover(request, tail, slots, in_place=in_place)
        return [(at, b) for at, b in enumerate(request.blocks) if before[at : at + 1] != [b]]

    def cover(self, request: ReferenceRequest, tail: int, slots: int, *, in_place: bool) -> None:
        """Blocks for a request that had ``tail`` tokens until some were appended."""
        touched = self.touched(request, slots, tail)
        for at in touched:
            block = self.pool.blocks[b := request.blocks[at]]
            if in_place and block.content is not None and block.held - block.pinned == 1:
                self.pool.drop_cached([b])
            if not self.pool.writable(b):
                [request.blocks[at]] = self.pool.allocate(1)
                if at * self.pool.block_size < tail:
                    self.plan_copy((0, b), (0, request.blocks[at]))
                self.pool.release([b])
        if touched:
            self.guard(request, touched.stop)
        request.blocks += self.pool.allocate(self.missing(request, slots))

    @staticmethod
    def rows(ids: Sequence[Hashable], tokens: Sequence[int], offsets: Sequence[int] | None) -> list[list[int]]:
        """The tokens of each request."""
        offsets = list(range(len(ids) + 1)) if offsets is None else list(offsets)
        sound = len(offsets) == len(ids) + 1 and offsets[0] == 0 and offsets[-1] == len(tokens)
        _check(sound and offsets == sorted(offsets), errors.InvalidArgumentError)
        return [list(tokens[start:end]) for start, end in pairwise(offsets)]

    @_atomic
    def append_ragged(
        self,
        ids: Sequence[Hashable],
        tokens: Sequence[int],
        offsets: Sequence[int] | None = None,
        *,
        commit: bool = False,
        computed: Sequence[int] | None = None,
        lookahead: int = 0,
        covered: Sequence[int] | None = None,
        most_changes: int | None = None,
    ) -> Changes:
        """Rows of tokens; ``most_changes`` is what ``out`` has room for."""
        _check(not (commit and computed is not None), errors.InvalidArgumentError)
        _check(not (lookahead and covered is not None), errors.InvalidArgumentError)
        rows = self.rows(ids, tokens, offsets)
        for counts in (computed, covered):
            _check(counts is None or len(counts) == len(ids), errors.InvalidArgumentError)
        targets, given_up, needed, avoidable = list[tuple[int, int | None]](), dict[int, int](), 0, 0
        for row, new in enumerate(rows):
            request = self._batch(ids, row, "running", "preempted")
            every = len(request.tokens) + len(new)
            slots = self.slots(request, len(new), covered[row] if covered is not None else every + lookahead)
            said = computed[row] if computed is not None else every - 1 if commit and new else None
            targets.append((slots, said))
            if request.running:
                most = min(every, self.computable(request))
                _check(said is None or request.computed <= said <= most, errors.InvalidArgumentError)
                more = self.needed(request, slots, given_up)
                needed, avoidable = needed + more[0], avoidable + more[1]
        _, in_place = self.takes(needed, avoidable)
        tails = [len(self.find(request_id).tokens) for request_id in ids]
        for request_id, new, (_, said) in zip(ids, rows, targets, strict=True):
            request = self.find(request_id)
            request.tokens += new
            if request.running and said is not None:  # all is cached when blocks are evicted
                self.commit(request_id, said)
        changes: Changes = ([], [], [])
        for row, (request_id, (slots, _)) in enumerate(zip(ids, targets, strict=True)):
            request, before = self.find(request_id), list(self.find(request_id).blocks)
            if request.running:
                self.cover(request, tails[row], slots, in_place=in_place)
            for at, b in enumerate(request.blocks):
                if before[at : at + 1] != [b]:
                    for column, value in zip(changes, (row, at, b), strict=True):
                        column.append(value)
        _check(most_changes is None or len(changes[0]) <= most_changes, errors.InvalidArgumentError)
        return changes

    def append(
        self, ids: Sequence[Hashable], tokens: Sequence[int], *, commit: bool = False
    ) -> list[tuple[int, int, int]]:
        """One token each."""
        return list(zip(*self.append_ragged(ids, tokens, commit=commit), strict=True))

    def append_tokens(self, request_id: Hashable, tokens: Sequence[int], lookahead: int = 0) -> list[tuple[int, int]]:
        """Tokens of one request: positions of the table, and their blocks."""
        _, positions, blocks = self.append_ragged([request_id], tokens, [0, len(tokens)], lookahead=lookahead)
        return list(zip(positions, blocks, strict=True))

    def extend(self, request_id: Hashable, num_tokens: int) -> list[tuple[int, int]]:
        """Blocks for the first tokens, or for slots behind them."""
        request = self.find(request_id, "running")
        slots = self.slots(request, 0, num_tokens)
        _, in_place = self.takes(*self.needed(request, slots, {}))
        return self.grow(request, [], slots, in_place=in_place)

    # --- What is computed ----------------------------------------------------------------------------

    def commit(self, request_id: Hashable, computed: int) -> int:
        """Registers the full blocks that became computed, unless the epoch has changed or a fork has done it since."""
        request = self.find(request_id, "running")
        most = min(len(request.tokens), self.room(request))
        _check(request.computed <= computed <= most, errors.InvalidArgumentError)
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
        _check(len(ids) == len(computed), errors.InvalidArgumentError)
        for row, n in enumerate(computed):
            request = self._batch(ids, row, "running")
            most = min(len(request.tokens), self.room(request))
            _check(request.computed <= n <= most, errors.InvalidArgumentError)
        return sum(self.commit(request_id, n) for request_id, n in zip(ids, computed, strict=True))

    # --- Sharing, and what makes tables shorter ------------------------------------------------------

    def fork(self, parent_id: Hashable, child_id: Hashable) -> None:
        """A second request over the same blocks."""
        parent = self.find(parent_id, "running")
        _check(child_id not in self.requests, errors.DuplicateRequestError)
        self.pool.acquire(parent.blocks[parent.trimmed :])
        self.guard_tail(parent)
        twin = ReferenceRequest(**{**vars(parent), "tokens": list(parent.tokens), "blocks": list(parent.blocks)})
        twin.left = list(parent.left)
        self.requests[child_id] = twin

    @_atomic
    def fork_batch(self, parent_ids: Sequence[Hashable], child_ids: Sequence[Hashable]) -> None:
        """All or nothing."""
        _check(len(parent_ids) == len(child_ids), errors.InvalidArgumentError)
        for parent_id in parent_ids:
            self.find(parent_id, "running")
        _check(not any(child_id in self.requests for child_id in child_ids), errors.DuplicateRequestError)
        for parent_id, child_id in zip(parent_ids, child_ids, strict=True):
            self.fork(parent_id, child_id)

    @staticmethod
    def either(after_step: int | None, until: int | None) -> None:
        """One of both, or none."""
        _check(after_step is None or until is None, errors.InvalidArgumentError)

    def check_open(self, until: int | None) -> None:
        """A ticket is open."""
        _check(until is None or until in self.pool.tickets, errors.InvalidArgumentError)

    def give_back(self, tier: int, blocks: Sequence[int], until: Until) -> None:
        """Blocks of a table, its last one first, now or when a fence ends."""
        after_step, ticket = until
        if ticket is None:
            self.pools[tier].release_after(blocks[::-1], after_step)
        else:
            self.pools[tier].release_until(blocks[::-1], ticket)

    def give_up(self, request: ReferenceRequest, until: Until) -> None:
        """All blocks of a request; those that it gave up before and that are cached still are ordered with them."""
        left = []
        if request.tier == 0 and request.epoch == self.pool.epoch:
            for at, b in request.left:
                content = self.pool.content(request.extra, request.tokens, at)
                if self.pool.blocks[b].held == 0 and self.pool.blocks[b].content == content:
                    self.pool.hold(b)
                    left.append(b)
        after_step, ticket = until
        if ticket is not None or (after_step is not None and after_step > self.pool.completed):
            # A fence holds back blocks that a step may touch, and these are none of them.
            self.pool.release(left[::-1])
            left = []
        self.give_back(request.tier, request.blocks[request.trimmed :] + left, until)

    def truncate(
        self, request_id: Hashable, num_tokens: int, after_step: int | None = None, until: int | None = None
    ) -> None:
        """Keeps the first tokens; blocks behind them are released, a registered tail is copied by the next append."""
        self.either(after_step, until)
        request, size = self.find(request_id, "running"), self.pool.block_size
        self.check_open(until)
        least = max(1, request.trimmed * size)
        _check(least <= num_tokens <= len(request.tokens), errors.InvalidArgumentError)
        del request.tokens[num_tokens:]
        keep = -(-num_tokens // size)
        request.blocks, dropped = request.blocks[:keep], request.blocks[keep:]
        request.computed = min(request.computed, num_tokens)
        request.registered = min(request.registered, num_tokens // size)
        self.guard_tail(request)
        self.give_back(0, dropped, (after_step, until))

    @_atomic
    def truncate_batch(
        self,
        ids: Sequence[Hashable],
        num_tokens: Sequence[int],
        after_step: int | None = None,
        until: int | None = None,
    ) -> None:
        """All or nothing."""
        self.either(after_step, until)
        _check(len(ids) == len(num_tokens), errors.InvalidArgumentError)
        self.check_open(until)
        for row, n in enumerate(num_tokens):
            self._batch(ids, row, "running")
            self.truncate(ids[row], n, after_step, until)

    def trim_window(self, request_id: Hashable, window: int) -> int:
        """Block 0 takes the places of blocks before a window that ends with what is computed."""
        request = self.find(request_id, "running")
        end = max(request.trimmed, (request.computed - window) // self.pool.block_size)
        gone = request.blocks[request.trimmed : end]
        request.left += zip(range(request.trimmed, end), gone, strict=True)
        request.blocks[request.trimmed : end] = [0] * len(gone)
        request.trimmed = end
        self.pool.release(gone[::-1])
        return len(gone)

    # --- Copies --------------------------------------------------------------------------------------

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
