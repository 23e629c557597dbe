"""Two small managers for tests of the shadow without vLLM. The shadow compares their results. One of
them refuses the same calls as kvpool does.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kvpool import errors

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: A token id and a salt that must not appear in any line of the log or in any file.
SECRET = 123_456_789
SALT = "pepper"


class Block:
    def __init__(self, block_id: int, pool: Any) -> None:
        self.block_id, self.pool, self.ref_cnt = block_id, pool, 0
        self.is_null = block_id == 0
        self.block_hash_num_tokens = None


class Blocks:
    def __init__(self, blocks: tuple[list[Block], ...]) -> None:
        self.blocks = blocks

    def get_block_ids(self) -> tuple[list[int], ...]:
        return tuple([one.block_id for one in group] for group in self.blocks)


class Event:
    __struct_fields__ = ("block_hashes", "token_ids", "group_idx")

    def __init__(self, block_hashes: list[bytes], token_ids: list[int], group_idx: int = 0) -> None:
        self.block_hashes, self.token_ids, self.group_idx = block_hashes, token_ids, group_idx

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class BlockRemoved(Event):
    pass


class Queue:
    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks

    @property
    def num_free_blocks(self) -> int:
        return len(self.blocks)

    def get_all_free_blocks(self) -> list[Block]:
        return list(self.blocks)


class Pool:
    def __init__(self, count: int) -> None:
        self.blocks = [Block(number, self) for number in range(count)]
        self.free_block_queue = Queue(self.blocks[1:])
        self.cached_block_hash_to_block = SimpleNamespace(_cache={})
        self.kv_event_queue: list[Event] = []

    def get_new_blocks(self, count: int) -> list[Block]:
        free = self.free_block_queue.blocks
        if count > len(free):
            raise ValueError(f"{SALT} {count}")
        taken, free[:] = free[:count], free[count:]
        for block in taken:
            block.ref_cnt += 1
        self.kv_event_queue.append(Event([bytes([block.block_id]) for block in taken], [SECRET]))
        return taken

    def free_blocks(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if block.pool is not self:
                block.pool.free_blocks([block])
                continue
            assert not block.is_null, SALT
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.blocks.append(block)

    def take_events(self) -> list[Event]:
        events, self.kv_event_queue = self.kv_event_queue, []
        return events


class StrictPool(Pool):
    def free_blocks(self, blocks: Iterable[Block]) -> None:
        blocks = list(blocks)
        if any(block.ref_cnt < 1 and block.pool is self for block in blocks):
            raise errors.InvalidBlockError("freed too often")
        super().free_blocks(blocks)


class Manager:
    pool_class: type[Pool] = Pool

    def __init__(self, count: int = 10) -> None:
        self.block_pool = self.pool_class(count)
        self.tables: dict[str, list[Block]] = {}
        group = SimpleNamespace(req_to_blocks=self.tables, num_cached_block={}, block_pool=self.block_pool)
        self.coordinator = SimpleNamespace(single_type_managers=(group,))
        self.empty_kv_cache_blocks = Blocks(([],))

    def get_computed_blocks(self, request: Any) -> tuple[Blocks, int, int]:
        return Blocks((self.tables.get("first", [])[: request.hits],)), request.hits, 0

    def allocate_slots(self, request: Any, count: int, blocks: Blocks | None = None) -> Blocks | None:
        for block in blocks.blocks[0] if blocks else ():
            assert block.pool is self.block_pool
        if count > self.block_pool.free_block_queue.num_free_blocks:
            return None
        new = self.block_pool.get_new_blocks(count)
        self.tables.setdefault(request.request_id, []).extend(new)
        return Blocks((new,))

    def pop_blocks_for_free(self, request: Any) -> list[Block]:
        return self.tables.pop(request.request_id, [])

    def free(self, request: Any) -> None:
        self.block_pool.free_blocks(reversed(self.pop_blocks_for_free(request)))

    def get_blocks(self, request_id: str) -> Blocks:
        return Blocks((self.tables.get(request_id, []),))


class StrictManager(Manager):
    pool_class = StrictPool


def request(name: str = "first", hits: int = 0) -> Any:
    return SimpleNamespace(
        request_id=name,
        num_tokens=3,
        num_computed_tokens=1,
        block_hashes=[b"x" * 32],
        hits=hits,
        cache_salt=SALT,
        all_token_ids=[SECRET],
    )


def trail_of(folder: Path) -> list[dict[str, Any]]:
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    assert str(SECRET) not in text
    assert SALT not in text
    return [json.loads(line) for line in text.splitlines()]
