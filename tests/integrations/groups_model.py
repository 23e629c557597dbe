"""A model of vLLM's managers, one per KV-cache group, in plain Python over kvpool's pool. Tests compare
``VllmGroups`` with it.

The model was written from the description of vLLM's managers. It is slow and simple on purpose: it
looks up every block of a prompt, and then searches the list of results.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from tests.integrations.fake_vllm import Request, RequestStatus

if TYPE_CHECKING:
    from tests.integrations.groups_stock import Stock

UNIT = 2
WAITING = [int(RequestStatus.WAITING), int(RequestStatus.PREEMPTED)]
MAX_LEN = 40


class Result:
    """Stands in for vLLM's ``KVCacheBlocks``, the class of the results of lookups."""

    def __init__(self, blocks: tuple[Any, ...]) -> None:
        self.blocks = blocks


def hashes_of(tokens: list[int]) -> list[bytes]:
    ends = range(UNIT, len(tokens) + 1, UNIT)
    return [hashlib.sha256(repr(tokens[:end]).encode()).digest() for end in ends]


def request_of(name: str, tokens: list[int]) -> Request:
    return Request(
        name, list(tokens), hashes_of(tokens), status=RequestStatus.WAITING, num_prompt_tokens=len(tokens)
    )


def ids(blocks: Any) -> list[int]:
    return [block.block_id for block in blocks]


def num_idle(blocks: list[Any]) -> int:
    """Returns how many of these blocks have no references."""
    return len([block for block in blocks if block.ref_cnt == 0 and not block.is_null])


def up(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def down(tokens: int, size: int) -> int:
    return tokens // size * size


class Manager:
    """The manager of one group of windows, of chunks, or of states that are not aligned to blocks. It
    is also the base class of the others.
    """

    def __init__(
        self, stock: Stock, number: int, kind: str, block_size: int, reads: int, retained: int
    ) -> None:
        self.stock, self.pool = stock, stock.pool
        self.number, self.kind, self.block_size = number, kind, block_size
        self.reads, self.retained = reads, retained
        self.most = up(reads, block_size) + 2 if kind in ("sliding", "chunked") else None
        self.drops = False
        self.tables: dict[str, list[Any]] = {}
        self.num_cached: dict[str, int] = {}
        self.new_block_ids: list[int] = []
        self.this_step: set[bytes] = set()
        self.null = self.pool.blocks[0]

    @property
    def need(self) -> int:
        """Returns the number of a window's blocks that a hit needs, plus one if the last block of a hit
        is computed again.
        """
        return up(self.reads - 1, self.block_size) + self.drops

    def skipped(self, computed: int) -> int:
        """Returns the number of leading tokens that the next token does not read in this group."""
        if self.kind == "sliding":
            return max(0, computed - self.reads + 1 - self.retained)
        if self.kind == "chunked":
            return computed // self.reads * self.reads
        return max(0, computed - 1) if self.kind == "state" else 0

    def remove_skipped(self, name: str, settled: int) -> None:
        table = self.tables.setdefault(name, [])
        freed = []
        for at in range(min(self.skipped(settled) // self.block_size, len(table)) - 1, -1, -1):
            if table[at].is_null:
                break
            freed.append(table[at])
            table[at] = self.null
        self.pool.free(freed)

    def to_allocate(self, name: str, slots: int, hits: list[Any], total: int, *, whole: bool = False) -> int:
        if hits and hits[-1].block_hash in self.this_step:
            return self.stock.num_blocks + 1  # another request computes it in this step
        required = up(slots, self.block_size)
        if whole and self.most is not None:
            required = min(required, self.most)
        held = len(self.tables.get(name, ()))
        if name in self.num_cached:
            return max(required - held, 0)
        skipped = self.skipped(total) // self.block_size
        kept = hits[max(0, skipped - held) :]
        return max(required - max(skipped, len(hits) + held), 0) + num_idle(kept)

    def add_hits(self, name: str, hits: list[Any], total: int) -> None:
        skipped = self.skipped(total) // self.block_size
        kept = hits[skipped:]
        self.pool.touch([block for block in kept if not block.is_null])
        self.tables[name] = [self.null] * skipped + kept
        self.num_cached[name] = len(self.tables[name])

    def take(self, n: int) -> list[Any]:
        blocks, _ = self.pool.allocate(n)
        self.new_block_ids += ids(blocks)
        return list(blocks)

    def allocate_new(self, name: str, slots: int) -> list[Any]:
        table = self.tables.setdefault(name, [])
        new = self.take(max(up(slots, self.block_size) - len(table), 0))
        table += new
        return new

    def final(self, tokens: int) -> int:
        """Returns how many of the tokens to cache: all tokens up to the last position at which a hit
        can end. If the last block of a hit is computed again, one more block is cached.
        """
        settled = max(0, tokens - self.stock.recomputed)
        if len(self.stock.managers) == 1:
            return settled
        end = down(tokens, self.stock.alignment)
        if not self.drops or end == 0:
            return end
        return min(settled, down(settled, self.stock.alignment) + self.block_size)

    def keeps(self, at: int, request: Request) -> bool:
        """Returns whether any hit that ends at a retained position reads this block."""
        interval, alignment, size = self.stock.retention_interval, self.stock.alignment, self.block_size
        if self.kind in ("full", "chunked") or (self.kind == "state" and interval is None):
            return True
        segment = alignment if interval is None else interval
        need, shift = (1, 0) if self.kind == "state" else (self.need, int(self.drops))
        if segment and need >= segment // size:
            return True
        ends = set(range(segment, MAX_LEN + segment + 1, segment)) if segment else set()
        if interval is not None:
            ends |= {down(end, alignment) for end in self.stock.boundaries(request, self) if end >= 0}
        return any(end // size + shift - need <= at < end // size + shift for end in ends)

    def cache_blocks(self, request: Request, tokens: int) -> None:
        name = request.request_id
        known, full = self.num_cached.get(name, 0), self.final(tokens) // self.block_size
        scale = self.block_size // UNIT
        table = self.tables.setdefault(name, [])
        full = min(full, len(request.block_hashes) // scale)
        if known >= full:
            return
        mask = [self.keeps(at, request) for at in range(known, full)]
        self.pool.cache_full(
            table, request.block_hashes, known, full, self.block_size, self.number, mask, scale, False
        )
        self.num_cached[name] = full
        if self.kind == "state":
            self.this_step |= {block.block_hash for block in table[known:full] if block.block_hash}

    def free(self, name: str) -> None:
        self.pool.free(list(reversed(self.tables.pop(name, []))))
        self.num_cached.pop(name, None)

    def find(self, hashes: list[bytes], most: int, *, drops: bool) -> int:
        """Returns the number of tokens of this group's longest hit, of at most ``most`` tokens."""
        size, alignment = self.block_size, self.stock.alignment
        there = [
            self.at(hashes, at) is not None for at in range(min(most // size, len(hashes) * UNIT // size))
        ]
        if self.kind == "full":
            run = next((at for at, one in enumerate(there) if not one), len(there))
            return down(max(0, run - drops) * size, alignment)
        if self.kind == "chunked":
            first = most // self.reads * self.reads // size
            return first * size + size * next(
                (at for at, one in enumerate(there[first:]) if not one), len(there) - first
            )
        for end in range(len(there), 0, -1):
            need = 1 if self.kind == "state" else max(1, up(self.reads - 1, size) + drops)
            after = end - (drops and self.kind != "state")
            if after * size % alignment == 0 and end >= need and all(there[end - need : end]):
                return after * size
        if self.kind == "state":
            return 0
        # Near the start of the prompt, a hit needs fewer blocks than a whole window, because there are
        # no earlier tokens.
        runs = [
            end
            for end in range(1, len(there) + 1)
            if all(there[:end]) and (end - drops) * size % alignment == 0
        ]
        end = down(max((end for end in runs if end < need), default=0) * size, alignment)
        return down(max(0, end - size), alignment) if drops and end else end

    def at(self, hashes: list[bytes], at: int) -> Any:
        found = self.pool.find(hashes[(at + 1) * self.block_size // UNIT - 1], [self.number])
        return found[0] if found else None

    def table_of(self, hashes: list[bytes], length: int, *, dropped: bool = False) -> list[Any]:
        """Returns the table of a hit. Null blocks replace the blocks that the next token does not read.

        A window of one token reads no block. vLLM's search still returns one block, unless that block
        has to be computed again.
        """
        first = self.skipped(length) // self.block_size
        if self.kind == "sliding":
            least = 0 if dropped else 1
            first = (
                max(0, length // self.block_size - max(least, up(self.reads - 1, self.block_size)))
                if length
                else 0
            )
        blocks = [self.at(hashes, at) for at in range(first, length // self.block_size)]
        return [self.null] * first + blocks

    def config(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "block_size": self.block_size,
            "reads": self.reads,
            "retained": self.retained,
            "more_slots": 0,
            "most": self.most,
            "group": self.number,
            "scale": self.block_size // UNIT,
            "cached": True,
            "counts": True,
            "tables": self.tables,
            "num_cached": self.num_cached,
            "manager": self,
            "zeroed": True,
            "ends": self.stock.alignment if len(self.stock.managers) > 1 else None,
            "alignment": self.stock.alignment,
            "drops": self.drops,
            "prompt_tail": None,
            "this_step": self.this_step if self.kind == "state" else None,
            "states": None,
        }


class AlignedStates(Manager):
    """The manager of Mamba states in vLLM's mode ``align``, without checkpoints inside of chunks."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.drafts = self.reads  # number of blocks after the running state
        self.allocated: set[str] = set()
        self.retired: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self._pending_boundary_state_offloads: list[tuple[str, int, Any, int]] = []

    def remove_skipped(self, name: str, settled: int) -> None:
        table = self.tables.setdefault(name, [])
        end = min(self.skipped(settled) // self.block_size, len(table))
        if self.retired.get(name, 0) < end:
            freed = []
            for at in range(end - 1, self.retired.get(name, 0) - 1, -1):
                if not table[at].is_null:
                    freed.append(table[at])
                    table[at] = self.null
            self.pool.free(freed)
            self.retired[name] = end
        last = self.last.get(name)
        if last is not None and last < up(settled, self.block_size) - 1 and not table[last].is_null:
            self.pool.free([table[last]])
            table[last] = self.null

    def to_allocate(self, name: str, slots: int, hits: list[Any], total: int, *, whole: bool = False) -> int:
        if hits and hits[-1].block_hash in self.this_step:
            return self.stock.num_blocks + 1
        missing = up(slots, self.block_size) + self.drafts - len(hits) - len(self.tables.get(name, ()))
        most = 1 if name in self.allocated else 1 + self.drafts
        return min(max(missing, 0), most) + num_idle(hits)

    def allocate_new(self, name: str, slots: int) -> list[Any]:
        table = self.tables.setdefault(name, [])
        end, before = up(slots, self.block_size), len(table)
        if end + self.drafts > before:
            if name in self.allocated:
                self.last[name] = before - 1 - self.drafts
            elif before:
                self.last[name] = before - 1
            table += [self.null] * (end - 1 - before)
            if name in self.allocated:
                # In the block table, the blocks for draft tokens come after the block of the recurrent state.
                for at in range(before - self.drafts, min(before, end - 1)):
                    table.append(table[at])
                    table[at] = self.null
            table += self.take(end + self.drafts - len(table))
        self.allocated.add(name)
        return table[before:]

    def cache_blocks(self, request: Request, tokens: int) -> None:
        name, final = request.request_id, self.final(tokens)
        known = self.num_cached.get(name, 0)
        super().cache_blocks(request, tokens)
        table = self.tables.get(name, [])
        # This is the end of the last state that a request with the same prompt can use. It excludes
        # tokens that such a request computes again.
        end = request.num_prompt_tokens if self.stock.dropping else request.num_prompt_tokens - 1
        end = max(0, down(end, UNIT) - UNIT * self.stock.dropping)
        at = up(final, self.block_size) - 1
        if final and final == end and at < len(table) and not table[at].is_null:
            # Report the state's block again as cached in this step, until another state follows it.
            self.this_step.add(self._cache_partial_tail_block(request, final))
        for block in table[known : self.num_cached.get(name, 0)]:
            if block.block_hash:
                self.this_step.add(block.block_hash)
                self._pending_boundary_state_offloads.append(
                    (name, self.number, block, block.block_hash_num_tokens)
                )

    def _cache_partial_tail_block(
        self, request: Request, tokens: int, retention_interval: Any = None
    ) -> bytes:
        """Caches the state after this number of tokens, unless it is already cached. In these tests the
        number is always the end of a block.
        """
        block = self.tables[request.request_id][tokens // self.block_size - 1]
        key: bytes = request.block_hashes[tokens // UNIT - 1] + self.number.to_bytes(4, "big")
        if block.block_hash != key:
            self.pool.insert_hash(key, block.block_id, tokens, tokens // self.block_size - 1)
        return key

    def free(self, name: str) -> None:
        self.allocated.discard(name)
        self.retired.pop(name, None)
        self.last.pop(name, None)
        offers = self._pending_boundary_state_offloads
        self._pending_boundary_state_offloads = [offer for offer in offers if offer[0] != name]
        super().free(name)

    def config(self) -> dict[str, Any]:
        states = {
            "speculative": self.drafts,
            "allocated": self.allocated,
            "retired": self.retired,
            "last": self.last,
            "partial": {},
            "checkpoints": {},
            "tails": {},
            "junctions": False,
            "drops": self.stock.dropping,
            "lookahead": 0,
        }
        return {**super().config(), "states": states}
