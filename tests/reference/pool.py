"""A reference model of ``BlockPool`` and ``CacheManager``: slow, small, obviously right.

It hashes nothing: a block's content is its whole prefix, token by token, with its extra keys and epoch. Its blocks hold
KV, which is another with other weights. It orders nothing cleverly: lists are lists. It decides the same as kvpool:
results, ids, both orders, and the class of an error. Prompts are tokens and extra keys (any hashable value) instead of
hash chains. A call that raises changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, TypeAlias, TypeVar

from kvpool import errors

#: Extra keys, epoch, and every token from the start of the prompt to the end of the block.
Content: TypeAlias = tuple[Hashable, int, tuple[int, ...]]
#: What a token's slot holds once it is computed: the weights that it was computed with, counted, and its whole prefix.
Kv: TypeAlias = tuple[int, int]
Call = TypeVar("Call", bound=Callable[..., Any])


def _check(ok: bool, error: type[errors.KvpoolError]) -> None:
    if not ok:
        raise error


def _atomic(call: Call) -> Call:
    """A call that raises leaves everything as it was: a copy is put back."""

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = copy.deepcopy(self.__dict__)
        try:
            return call(self, *args, **kwargs)
        except errors.KvpoolError:
            self.__dict__ = before
            raise

    return wrapped  # type: ignore[return-value]


@dataclass
class ReferenceBlock:
    """One block: its references, those of fences and of pins among them, and what it holds if it is registered."""

    held: int = 0
    fenced: int = 0
    pinned: int = 0
    content: Content | None = None
    computed: bool = False
    #: By slot; nothing where nobody has written since the block was handed out.
    kv: dict[int, Kv] = field(default_factory=dict)


class ReferencePool:
    """The model of ``BlockPool``: ``free`` and ``evictable`` blocks, next to be handed out first.

    A pinned block that its last holder released has its place among the evictable ones, too, until its turn comes.
    """

    def __init__(self, num_blocks: int, block_size: int, *, drop_duplicates: bool = False) -> None:
        self.blocks = [ReferenceBlock() for _ in range(num_blocks)]
        self.block_size, self.drop_duplicates = block_size, drop_duplicates
        self.free, self.evictable = list(range(1, num_blocks)), list[int]()
        self.copies: dict[Content | None, list[int]] = {}
        self.fences: list[tuple[int, int]] = []  # step and block
        self.tickets: dict[int, list[int]] = {}  # open ones, and what is released until they end
        self.completed, self.next_ticket, self.epoch = -1, 0, 0
        self.pins: list[int] = []  # blocks of planned copies

    def sums(self) -> tuple[int, int, int, int]:
        """Free, cached-free, active, fenced."""
        held = [block for block in self.blocks if block.held]
        fenced = sum(block.held == block.fenced for block in held)
        return len(self.free), len(self.eviction_order()), len(held) - fenced, fenced

    def eviction_order(self) -> list[int]:
        """The blocks that allocations take when none is free, next victim first."""
        return [b for b in self.evictable if not self.blocks[b].held]

    def content(self, extra: Hashable, tokens: Sequence[int], position: int) -> Content:
        """What block ``position`` of a prompt holds."""
        return extra, self.epoch, tuple(tokens[: (position + 1) * self.block_size])

    def matchable(self) -> set[Content]:
        """The contents that a lookup can find."""
        return {block.content for block in self.blocks if block.content and block.computed}

    def _known(self, ids: Sequence[int]) -> list[ReferenceBlock]:
        _check(all(0 < b < len(self.blocks) for b in ids), errors.InvalidBlockError)
        return [self.blocks[b] for b in ids]

    def allocate(self, n: int) -> list[int]:
        """Free blocks first, then victims."""
        _check(n <= sum(self.sums()[:2]), errors.OutOfBlocksError)
        taken = list[int]()
        while len(taken) < n:
            b = self.free.pop(0) if self.free else self.evictable.pop(0)
            if self.blocks[b].held:
                continue  # a pinned block, whose turn has come: it only leaves the order
            self._unregister(b)
            self.blocks[b].held, self.blocks[b].kv = 1, {}
            taken.append(b)
        return taken

    @staticmethod
    def kv(weights: int, extra: Hashable, prefix: Sequence[int]) -> Kv:
        """The KV of the last token of a prefix: every reset and every epoch stands for a change of weights."""
        return weights, hash((extra, *prefix))

    def check_kv(self, weights: int) -> None:
        """Every block that a lookup may return holds what computing it now would write."""
        for b, block in enumerate(self.blocks):
            if block.content and block.computed:
                extra, _, tokens = block.content
                start = len(tokens) - self.block_size
                kv = {slot: self.kv(weights, extra, tokens[: start + slot + 1]) for slot in range(self.block_size)}
                if block.kv != kv:
                    raise errors.InvariantError(f"block {b} is cached with KV of other tokens or weights")

    def _unregister(self, b: int) -> bool:
        content, self.blocks[b].content, self.blocks[b].computed = self.blocks[b].content, None, False
        self.copies.get(content, [b]).remove(b)
        return content is not None

    def acquire(self, ids: Sequence[int]) -> None:
        """One more reference each."""
        _check(all(block.held for block in self._known(ids)), errors.InvalidBlockError)
        for b in ids:
            self.hold(b)

    @_atomic
    def release(self, ids: Sequence[int]) -> None:
        """One reference fewer each; what nobody but pins holds becomes evictable, deepest first, or free."""
        idle = []
        for b, block in zip(ids, self._known(ids), strict=True):
            _check(block.held > block.fenced, errors.InvalidBlockError)
            block.held -= 1
            idle += [b] * (block.held == block.pinned)
        cached = []
        for b in idle:
            if b in cached:
                continue  # placed with a copy that was dropped
            twins = self.copies.get(self.blocks[b].content, []) if self.drop_duplicates else []
            twin = next((twin for twin in twins if twin != b and self.blocks[twin].computed), None)
            if self.blocks[b].computed and twin is None:
                cached.append(b)
                continue
            computed = self.blocks[b].computed
            self._unregister(b)
            self.free[:0] = [b] * (self.blocks[b].held == 0)
            # What was cached behind the dropped one must not outlive the one that stays.
            if computed and twin is not None and twin not in cached and self._waits(twin):
                self.evictable = [other for other in self.evictable if other != twin]
                cached.append(twin)
        self.evictable += sorted(cached, key=lambda b: -len((self.blocks[b].content or (0, 0, ()))[2]))

    def _waits(self, b: int) -> bool:
        """Whether a block has a place in the order, or is pinned and has had one."""
        return b in self.evictable or 0 < self.blocks[b].held == self.blocks[b].pinned

    @_atomic
    def release_after(self, ids: Sequence[int], step: int | None) -> None:
        """The references are the fence's until the step completes; without a step none is."""
        for block in self._known(ids):
            _check(block.held > block.fenced, errors.InvalidBlockError)
            block.fenced += 1
        self.fences += [(self.completed if step is None else step, b) for b in ids]
        self.complete_step(self.completed)

    def complete_step(self, step: int) -> int:
        """Fences of this and of earlier steps end, earlier steps first."""
        self.completed = max(self.completed, step)
        self.fences.sort(key=lambda fence: fence[0])
        ended = [b for fenced_by, b in self.fences if fenced_by <= step]
        del self.fences[: len(ended)]
        for b in ended:
            self.blocks[b].fenced -= 1
        self.release(ended)
        return len(ended)

    def fence(self) -> int:
        """Opens a ticket."""
        ticket, self.next_ticket = self.next_ticket, self.next_ticket + 1
        self.tickets[ticket] = []
        return ticket

    @_atomic
    def release_until(self, ids: Sequence[int], ticket: int) -> None:
        """The references are the fence's until the ticket ends."""
        _check(ticket in self.tickets, errors.InvalidArgumentError)
        for block in self._known(ids):
            _check(block.held > block.fenced, errors.InvalidBlockError)
            block.fenced += 1
        self.tickets[ticket] += ids

    def end_fence(self, ticket: int) -> int:
        """The fence ends."""
        _check(ticket in self.tickets, errors.InvalidArgumentError)
        ended = self.tickets.pop(ticket)
        for b in ended:
            self.blocks[b].fenced -= 1
        self.release(ended)
        return len(ended)

    @_atomic
    def register(self, ids: Sequence[int], extra: Hashable, tokens: Sequence[int], start: int = 0) -> int:
        """Held blocks get the contents of a prompt from block ``start`` on."""
        _check(start + len(ids) <= len(tokens) // self.block_size, errors.InvalidArgumentError)
        for at, (b, block) in enumerate(zip(ids, self._known(ids), strict=True)):
            _check(block.held > 0 and not block.content, errors.InvalidBlockError)
            block.content = self.content(extra, tokens, start + at)
            self.copies.setdefault(block.content, []).append(b)
        return len(ids)

    @_atomic
    def register_table(
        self, ids: Sequence[int], extra: Hashable, tokens: Sequence[int], start: int = 0
    ) -> list[tuple[int, int]]:
        """Held blocks get the contents of a prompt, computed, but where a cached one takes the place."""
        _check(start + len(ids) <= len(tokens) // self.block_size, errors.InvalidArgumentError)
        new = list[int]()
        for at, (b, block) in enumerate(zip(ids, self._known(ids), strict=True)):
            _check(block.held > block.fenced, errors.InvalidBlockError)
            _check(block.content in {None, self.content(extra, tokens, start + at)}, errors.InvalidBlockError)
            new += [b] * (block.content is None)
        _check(len(new) == len(set(new)), errors.InvalidBlockError)
        changes = self._enter(ids, extra, tokens, start)
        self.release([ids[at] for at, _ in reversed(changes)])
        return changes

    @_atomic
    def adopt(
        self, ids: Sequence[int], extra: Hashable, tokens: Sequence[int], start: int = 0
    ) -> list[tuple[int, int]]:
        """The same of free blocks, each of which is held then, but where a cached one takes the place."""
        _check(start + len(ids) <= len(tokens) // self.block_size, errors.InvalidArgumentError)
        _check(all(b in self.free for b in ids) and len(ids) == len(set(ids)), errors.InvalidBlockError)
        changes = self._enter(ids, extra, tokens, start)
        for at, b in enumerate(ids):
            if at not in dict(changes):
                self.free.remove(b)
                self.blocks[b].held = 1
        return changes

    def _enter(self, ids: Sequence[int], extra: Hashable, tokens: Sequence[int], start: int) -> list[tuple[int, int]]:
        """Registers what stays in its place, computed, and holds what takes the places of the others."""
        contents = [self.content(extra, tokens, start + at) for at in range(len(ids))]
        each = [(at, self.find(contents[at]), b) for at, b in enumerate(ids)]
        changes = [(at, cached) for at, cached, b in each if cached is not None and cached != b]
        kept = [at for at in range(len(ids)) if at not in dict(changes)]
        for at in kept:
            if self.blocks[ids[at]].content is None:
                self.blocks[ids[at]].content = contents[at]
                self.copies.setdefault(contents[at], []).append(ids[at])
        self.mark_computed([ids[at] for at in kept])
        for _, cached in changes:
            self.hold(cached)
        return changes

    def disown(self, ids: Sequence[int]) -> None:
        """What one holder alone holds is free, without its content."""
        alone = all(block.held == 1 and not block.fenced for block in self._known(ids))
        _check(alone and len(ids) == len(set(ids)), errors.InvalidBlockError)
        self.drop_cached(ids)
        self.release(ids[::-1])

    def register_link(self, b: int, extra: Hashable, tokens: Sequence[int]) -> int:
        """Registers a held block as the last one of these tokens, or holds the block that is, computed or not."""
        [block] = self._known([b])
        _check(block.held > block.fenced and not block.content, errors.InvalidBlockError)
        shared = self.acquire_registered(extra, tokens)
        if shared is None:
            block.content = self.content(extra, tokens, len(tokens) // self.block_size - 1)
            self.copies.setdefault(block.content, []).append(b)
            return b
        self.release([b])
        return shared

    def acquire_registered(self, extra: Hashable, tokens: Sequence[int]) -> int | None:
        """Holds the first block that is registered as the last one of these tokens, computed or not."""
        content = self.content(extra, tokens, len(tokens) // self.block_size - 1)
        for b in self.copies.get(content, [])[:1]:
            self.hold(b)
            return b
        return None

    def mark_computed(self, ids: Sequence[int]) -> None:
        """Behind the copies that became computed before: the oldest of those that are left is the one that is found."""
        _check(all(block.content for block in self._known(ids)), errors.InvalidBlockError)
        for b in ids:
            if not self.blocks[b].computed:
                copies, self.blocks[b].computed = self.copies[self.blocks[b].content], True
                copies.remove(b)
                copies.insert(sum(self.blocks[other].computed for other in copies), b)

    def lookup(self, extra: Hashable, tokens: Sequence[int], max_blocks: int | None = None) -> tuple[list[int], int]:
        """The longest computed prefix, and how many blocks behind it are registered; changes nothing."""
        asked = range(len(tokens) // self.block_size)[:max_blocks]
        copies = [self.copies.get(self.content(extra, tokens, position)) or [0] for position in asked]
        registered = list(takewhile(bool, [first for first, *_ in copies]))
        found = list(takewhile(lambda b: self.blocks[b].computed, registered))
        return found, len(registered) - len(found)

    def find_run(self, extra: Hashable, tokens: Sequence[int], start: int, max_blocks: int | None) -> list[int]:
        """The computed blocks of a prompt from ``start`` on; changes nothing."""
        asked = range(len(tokens) // self.block_size)[start:][:max_blocks]
        each = (self.find(self.content(extra, tokens, position)) for position in asked)
        return [b for b in takewhile(lambda b: b is not None, each) if b is not None]

    def refresh(self, ids: Sequence[int]) -> None:
        """Counts as a use of what the blocks hold."""
        for b in ids:
            self.hold(b)
        self.release(ids[::-1])

    def acquire_match(self, ids: Sequence[int], contents: Sequence[Content]) -> None:
        """One more reference each, if all hold what they did."""
        fine = all(0 < b < len(self.blocks) and self.cached(b) == held for b, held in zip(ids, contents, strict=True))
        _check(fine, errors.StaleMatchError)
        for b in ids:
            self.hold(b)

    def evict(self, n: int) -> list[int]:
        """The next victims, up to so many: free now, and handed out next."""
        victims = list[int]()
        while len(victims) < n and self.eviction_order():
            b = self.evictable.pop(0)
            victims += [b] * (not self.blocks[b].held)  # a pinned block only leaves the order
        for b in victims:
            self._unregister(b)
        self.free[:0] = victims
        return victims

    def hold(self, b: int) -> None:
        """One more reference to a block that is held or cached-free."""
        self.evictable = [other for other in self.evictable if other != b]
        self.blocks[b].held += 1

    def match_and_acquire(self, extra: Hashable, tokens: Sequence[int], max_blocks: int | None = None) -> list[int]:
        """The longest computed prefix, acquired."""
        found, _ = self.lookup(extra, tokens, max_blocks)
        for b in found:
            self.hold(b)
        return found

    def pin(self, b: int) -> None:
        """One more reference, until the plan is taken: a planned copy reads or writes the block. One is enough."""
        block = self.blocks[b]
        if block.pinned:
            return
        block.held, block.fenced, block.pinned = block.held + 1, block.fenced + 1, block.pinned + 1
        self.pins.append(b)

    def unpin(self) -> None:
        """The plan is taken."""
        ended, self.pins = self.pins, []
        for b in ended:
            block = self.blocks[b]
            block.held, block.fenced, block.pinned = block.held - 1, block.fenced - 1, block.pinned - 1
            if not block.held and b not in self.evictable:  # released before, it has its place; or its turn has come
                self._unregister(b)
                self.free.insert(0, b)

    def writable(self, b: int) -> bool:
        """Whether nobody but its one holder needs what it holds; planned copies are made before anybody writes."""
        return self.blocks[b].content is None and self.blocks[b].held - self.blocks[b].pinned == 1

    def cached(self, b: int) -> Content | None:
        """What a registered and computed block holds."""
        return self.blocks[b].content if self.blocks[b].computed else None

    def find(self, content: Content | None) -> int | None:
        """The computed block that a lookup of this content finds."""
        return next((b for b in self.copies.get(content, [])[:1] if content and self.blocks[b].computed), None)

    def find_in_place(self, content: Content | None) -> int | None:
        """The same, unless its turn has come while pins alone held it: what it continues may be gone."""
        b = self.find(content)
        if b is None:
            return None
        overtaken = self.blocks[b].held == self.blocks[b].pinned and b not in self.evictable
        return None if overtaken else b

    def register_copy(self, b: int, content: Content) -> None:
        """Registers a held block, computed, with the content of another tier's."""
        if self.blocks[b].content is None:
            self.blocks[b].content = content
            self.copies.setdefault(content, []).append(b)
            self.mark_computed([b])

    def drop_cached(self, ids: Sequence[int]) -> int:
        """Forgets what the blocks hold; idle ones become free."""
        self._known(ids)
        registered = sum(self._unregister(b) for b in ids)
        idle = [b for b in dict.fromkeys(ids) if b in self.eviction_order()]
        self.evictable = [b for b in self.evictable if b not in ids]
        self.free = idle[::-1] + self.free
        return registered

    def reset(self) -> int:
        """Forgets everything, if nothing is held."""
        _check(not any(block.held for block in self.blocks), errors.BlocksInUseError)
        return self.drop_cached(self.evictable[:])

    def bump_epoch(self) -> int:
        """Forgets everything, held or not."""
        self.drop_cached(self.evictable + list(range(1, len(self.blocks))))
        self.epoch += 1
        return self.epoch

    def resize(self, num_blocks: int) -> None:
        """New blocks are free, behind the others."""
        _check(num_blocks >= len(self.blocks), errors.InvalidArgumentError)
        self.free += range(len(self.blocks), num_blocks)
        self.blocks += [ReferenceBlock() for _ in range(num_blocks - len(self.blocks))]
