"""The model of ``Step`` for test_manager_stateful.py.

Operations are checked against what a plan would leave, in counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from kvpool import errors
from tests.reference.tables import ReferenceRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.reference.manager import ReferenceManager


@dataclass(frozen=True)
class Operation:
    """One operation of a step; each row of ``append_ragged`` is an operation of its own once it is planned."""

    kind: Literal["admit", "append", "append_ragged", "preempt", "resume", "release"]
    name: str | int
    tokens: list[int]
    salt: str
    #: ``after_step`` and ``until``.
    end: tuple[int | None, int | None]
    #: ``allocate_tokens``, ``external_tokens`` and ``reuse``.
    part: tuple[int | None, int, bool]
    rows: list[tuple[str | int, list[int]]]
    lookahead: int
    #: Instead of ``lookahead``, for ``append_ragged``.
    covered: list[int] | None

    @property
    def parts(self) -> dict[str, Any]:
        """The keyword arguments of an admission."""
        return dict(zip(("allocate_tokens", "external_tokens", "reuse"), self.part, strict=True))

    @property
    def ends(self) -> dict[str, int | None]:
        """The keyword arguments of a release."""
        return dict(zip(("after_step", "until"), self.end, strict=True))

    @property
    def batch(self) -> tuple[list[str | int], list[int], list[int]]:
        """Names, tokens and offsets of the rows."""
        offsets = [0]
        for _, new in self.rows:
            offsets.append(offsets[-1] + len(new))
        return [name for name, _ in self.rows], [token for _, new in self.rows for token in new], offsets


@dataclass
class Plan:
    """What a plan has promised so far."""

    manager: ReferenceManager
    held: list[int]
    available: int
    active: int
    named: list[str | int] = field(default_factory=list)
    #: References that planned appends give up by copying.
    given_up: dict[int, int] = field(default_factory=dict)
    #: With the request, the blocks of its match, or the slots of its append and whether it writes in place.
    planned: list[tuple[Operation, ReferenceRequest, list[int], int, bool]] = field(default_factory=list)

    @classmethod
    def begin(cls, manager: ReferenceManager) -> Plan:
        held = [block.held for block in manager.pool.blocks]
        active = sum(request.active for request in manager.requests.values())
        return cls(manager, held, sum(manager.pool.sums()[:2]), active)

    def plan(self, operation: Operation) -> int:
        """What the call of ``Step`` returns; raises as it does."""
        call: Callable[[Operation], int] = getattr(self, operation.kind)
        return call(operation)

    def name(self, *names: str | int) -> None:
        for at, name in enumerate(names):
            if name in self.named or name in names[:at]:
                raise errors.DuplicateRequestError

    def keep(
        self,
        operation: Operation,
        request: ReferenceRequest,
        found: list[int],
        slots: int = 0,
        in_place: bool = False,
    ) -> None:
        self.named.append(operation.name)
        self.planned.append((operation, request, found, slots, in_place))

    def admit(self, operation: Operation) -> int:
        self.name(operation.name)
        if operation.name in self.manager.requests:
            raise errors.DuplicateRequestError
        if not operation.tokens:
            raise errors.InvalidArgumentError
        request = ReferenceRequest(operation.tokens, operation.salt, self.manager.pool.epoch)
        return self.place(operation, request)

    def resume(self, operation: Operation) -> int:
        self.name(operation.name)
        return self.place(operation, self.manager.find(operation.name, "preempted"))

    def place(self, operation: Operation, request: ReferenceRequest) -> int:
        """The match is that of the pool as it is now; blocks that the plan would release count as available."""
        if operation.part[1] >= len(request.tokens):
            raise errors.InvalidArgumentError
        part, reuse = operation.part[:2], operation.part[2]
        vacancy = self.held, self.available, self.manager.watermark_blocks if self.active else 0
        found = self.manager.matched(request, part, vacancy, reuse=reuse)
        if not self.manager.fits(request, found, part, vacancy):
            raise errors.OutOfBlocksError
        needed = self.manager.size(request, len(found), *part) - len(found)
        self.available -= sum(self.held[block] == 0 for block in found) + needed
        for block in found:
            self.held[block] += 1
        self.active += 1
        self.keep(operation, request, found)
        return len(found) * self.manager.pool.block_size

    def append(self, operation: Operation) -> int:
        return self.append_ragged(replace(operation, rows=[(operation.name, operation.tokens)], covered=None))

    def append_ragged(self, operation: Operation) -> int:
        """All rows, or none."""
        names, _, _ = operation.batch
        if operation.covered is not None and (operation.lookahead or len(operation.covered) != len(names)):
            raise errors.InvalidArgumentError
        given_up, needed, rows = dict(self.given_up), 0, []
        for row, name in enumerate(names):
            self.name(*names[: row + 1])
            self.manager.find(name, "running", "preempted")
        for row, (name, tokens) in enumerate(operation.rows):
            request = self.manager.find(name, "running", "preempted")
            asked = len(request.tokens) + len(tokens) + operation.lookahead
            asked = asked if operation.covered is None else operation.covered[row]
            slots = self.manager.slots(request, len(tokens), asked)
            taken, in_place = 0, False
            if request.running:
                taken, in_place = self.manager.takes(
                    *self.manager.needed(request, slots, given_up), self.available - needed
                )
            needed += taken
            rows.append((replace(operation, kind="append", name=name, tokens=tokens), request, slots, in_place))
        self.available -= needed
        self.given_up = given_up
        for one, request, slots, in_place in rows:
            self.keep(one, request, [], slots, in_place)
        return needed

    def preempt(self, operation: Operation) -> int:
        self.manager.either(*operation.end)
        self.name(operation.name)
        return self.give_up(operation, self.manager.find(operation.name, "running", "swapped"))

    def release(self, operation: Operation) -> int:
        self.manager.either(*operation.end)
        self.name(operation.name)
        return self.give_up(
            operation, self.manager.find(operation.name, "running", "preempted", "swapped", "moving", "loading")
        )

    def give_up(self, operation: Operation, request: ReferenceRequest) -> int:
        freed, (after_step, until) = 0, operation.end
        self.manager.check_open(until)
        at_once = until is None and (after_step is None or after_step <= self.manager.pool.completed)
        if at_once and request.tier == 0 and request.state not in {"moving", "loading"}:
            for block in request.blocks[request.trimmed :]:
                self.held[block] -= 1
                freed += self.held[block] == 0
        self.available += freed
        self.active -= request.active
        self.keep(operation, request, [])
        return freed

    def commit(self) -> list[Any]:
        """Every match is acquired, then blocks are given up, then taken: that nothing fails is a plan's promise."""
        manager, outcomes = self.manager, list[Any]()
        for operation, request, found, _, _ in self.planned:
            if operation.kind in {"admit", "resume"}:
                assert manager.pool.match_and_acquire(request.extra, request.tokens, len(found)) == found
        for operation, _, _, _, _ in self.planned:
            if operation.kind == "preempt":
                manager.preempt(operation.name, *operation.end)
            elif operation.kind == "release":
                manager.release(operation.name, *operation.end)
        for operation, request, found, slots, in_place in self.planned:
            if operation.kind in {"admit", "resume"}:
                manager.requests[operation.name] = manager.install(request, found, *operation.part[:2])
                loads = (request.external or request.cached) - request.cached
                outcomes.append((list(request.blocks), len(found), loads))
            elif operation.kind == "append":
                outcomes.append(manager.grow(request, operation.tokens, slots, in_place=in_place))
            else:
                outcomes.append(None)
        return outcomes
