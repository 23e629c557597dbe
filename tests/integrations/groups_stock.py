"""A model of vLLM's manager of several KV-cache groups, in plain Python over kvpool's pool. Tests
compare ``VllmGroups`` with it.

The model was written from the description of vLLM's manager. It is slow and simple on purpose: a lookup
tries the groups one after the other, and repeats this until no group shortens the hit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvpool import _core
from tests.integrations.groups_model import MAX_LEN, UNIT, WAITING, AlignedStates, Manager, Result, down, ids

if TYPE_CHECKING:
    from tests.integrations.fake_vllm import Request


class Stock:
    """vLLM's ``KVCacheManager`` and its coordinator. Each group has a kind, a block size, and a number
    of tokens that it reads.
    """

    def __init__(
        self,
        num_blocks: int,
        groups: list[tuple[str, int, int, int]],
        watermark: int = 0,
        recomputed: int = 0,
        eviction: str = "lru",
        segments: int | None = None,
        dropping: bool = False,
    ) -> None:
        self.num_blocks = num_blocks
        self.pool = _core.vllm.VllmPool(num_blocks, True, eviction)
        self.watermark, self.recomputed = watermark, recomputed
        self.empty = Result(tuple(() for _ in groups))
        self.alignment = math.lcm(*(size for _, size, *_ in groups))
        #: Number of tokens between the positions whose windows and states stay cached. The name is
        #: vLLM's.
        self.retention_interval = None if segments is None else segments * self.alignment
        self.dropping = dropping
        self.managers: list[Manager] = []
        for number, (kind, size, reads, retained) in enumerate(groups):
            make = AlignedStates if kind == "aligned" else Manager
            name = "state" if kind == "aligned" else kind
            self.managers.append(make(self, number, name, size, reads, retained))
        for manager in self.managers:
            manager.drops = dropping and manager.kind in ("full", "sliding")
        # Groups of the same kind are looked up together. The group of full attention comes first.
        self.families: list[list[Manager]] = []
        for manager in sorted(self.managers, key=lambda one: one.kind != "full"):
            of = (manager.kind, manager.block_size, manager.reads, manager.retained)
            for family in self.families:
                one = family[0]
                if (one.kind, one.block_size, one.reads, one.retained) == of and type(one) is type(manager):
                    family.append(manager)
                    break
            else:
                self.families.append([manager])
        self.passed_on = 0

    def boundaries(self, request: Request, manager: Manager) -> list[int]:
        """Returns the positions at which hits of later requests can end: the end of the prompt, and the
        position at which this prompt diverged from a cached prompt.
        """
        prompt, junction = request.num_prompt_tokens, request.shared_prefix_boundary
        if self.dropping:
            ends = [
                down(prompt - 1, self.alignment) - self.alignment,
                down(prompt, self.alignment) - self.alignment,
            ]
            found = [max(0, end) for end in ends]
        else:
            found = [prompt - 1]
        return [*found, junction] if junction else found

    def allocate_slots(
        self,
        request: Request,
        new: int,
        hit: int,
        hits: Any,
        lookahead: int,
        external: int,
        delay: bool,
        encoder: int,
        whole: bool,
        reserved: int,
        scheduled: bool,
        skip_zeroing: Any = (),
    ) -> Any:
        assert (external, encoder, skip_zeroing) == (0, 0, ())
        self.passed_on += 1
        name = request.request_id
        found = [list(blocks) for blocks in (hits or self.empty).blocks]
        total = min(request.num_computed_tokens + hit, MAX_LEN)
        watermark = self.watermark if scheduled and int(request.status) in WAITING else 0

        def need(slots: int, main: int, **how: bool) -> int:
            needed = watermark
            for manager, blocks in zip(self.managers, found, strict=True):
                of = main if isinstance(manager, AlignedStates) else slots
                needed += manager.to_allocate(name, of, blocks, total, **how)
            return needed

        full = min(request.num_tokens, MAX_LEN)
        if whole and need(full, full, whole=True) > self.pool.num_free:
            return None
        # Draft tokens (lookahead) need slots in other groups, but not in states.
        main = total + new
        slots = min(main + lookahead, MAX_LEN)
        for manager in self.managers:
            manager.remove_skipped(name, max(0, total - request.num_in_flight_tokens))
        if need(slots, main) > self.pool.num_free - reserved:
            return None
        if hits is not None and hits is not self.empty:
            for manager, blocks in zip(self.managers, found, strict=True):
                manager.add_hits(name, blocks, total)
        taken = tuple(
            m.allocate_new(name, main if isinstance(m, AlignedStates) else slots) for m in self.managers
        )
        if not delay:
            self.cache_blocks(request, min(main, request.num_tokens))
        return Result(taken) if any(taken) else self.empty

    def cache_blocks(self, request: Request, tokens: int) -> None:
        for manager in self.managers:
            manager.cache_blocks(request, tokens)

    def free(self, name: str) -> bool:
        for manager in self.managers:
            manager.free(name)
        return True

    def new_step_starts(self) -> None:
        for manager in self.managers:
            manager.this_step.clear()

    def find(self, hashes: list[bytes], limit: int) -> tuple[int, int, list[list[int]]]:
        """Looks up a request like vLLM. Groups of one kind form a family. The families shorten the hit
        in turn, until none shortens it further. Returns the number of tokens, the longest hit of one
        family, and the blocks of each group.
        """
        length, longest = limit, 0
        full: dict[int, int] = {}
        proven: set[int] = set()
        alone = len(self.managers) == 1
        simple = alone or (len(self.families) == 2 and self.families[0][0].kind == "full")
        while True:
            before = length
            for at, family in enumerate(self.families):
                if at in full:
                    length = min(length, full[at])
                    continue
                drops = any(one.drops for one in family) and at not in proven
                margin = 0 if alone or not drops else family[0].block_size
                most = min(length + margin, len(hashes) * UNIT)
                # A block is a hit only if all groups of the family (groups of one kind) have cached it.
                found = self._together(family, hashes, most, drops=drops)
                if drops:
                    proven.add(at)
                elif found < length:
                    proven.clear()
                length = found
                longest = max(longest, found)
                if family[0].kind == "full":
                    full[at] = found
            if length >= before:
                break
            if simple:
                break
        tables = [
            ids(manager.table_of(hashes, length, dropped=alone and manager.drops))
            for manager in self.managers
        ]
        return length, longest, tables

    def _together(self, family: list[Manager], hashes: list[bytes], most: int, *, drops: bool) -> int:
        class All(type(family[0])):  # type: ignore[misc]
            """A group that has only those blocks that all groups of the family have."""

            def __init__(self) -> None:
                self.__dict__.update(vars(family[0]))

            def at(self, hashes: list[bytes], at: int) -> Any:
                found = [type(one).at(one, hashes, at) for one in family]
                return None if None in found else found[0]

        return int(All().find(hashes, most, drops=drops))

    def state(self) -> tuple[Any, ...]:
        blocks = [
            (block.ref_cnt, block.block_hash, block.block_hash_num_tokens) for block in self.pool.blocks
        ]
        groups = [
            (
                {name: ids(table) for name, table in manager.tables.items() if table},
                dict(manager.num_cached),
                list(manager.new_block_ids),
                set(manager.this_step),
                vars(manager).get("retired"),
                vars(manager).get("last"),
                vars(manager).get("allocated"),
                [
                    (*one[:2], one[2].block_id, one[3])
                    for one in vars(manager).get("_pending_boundary_state_offloads", ())
                ],
            )
            for manager in self.managers
        ]
        return self.pool.order(), blocks, groups, set(self.pool.keys())


def groups_of(stock: Stock, **more: Any) -> _core.vllm.VllmGroups:
    alone = len(stock.managers) == 1
    families = [
        ([one.number for one in family], family[0].drops, 0 if alone else family[0].block_size)
        for family in stock.families
    ]
    more = {"lookup": (stock.alignment, families), **more}
    return _core.vllm.VllmGroups(
        stock.pool,
        [manager.config() for manager in stock.managers],
        max_model_len=MAX_LEN,
        recomputed=stock.recomputed,
        watermark=stock.watermark,
        waiting=WAITING,
        blocks_class=Result,
        empty=stock.empty,
        fallback=stock.allocate_slots,
        coordinator=stock,
        scheduler_block=stock.alignment,
        drops=stock.dropping,
        **more,
    )
