"""Readers of KV events that decode like the consumers of other projects. They were written from each
consumer's documented format.

Each reader accepts and refuses the same batches as the consumer after which it is named. It stores the
same data: the hashes that a worker has in each medium, and the tokens of each hash. The readers contain
no code of the consumers.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import msgpack


class RefusedError(Exception):
    """The consumer that this reader imitates would refuse this batch of events."""


def require(condition: bool, what: str) -> None:
    if not condition:
        raise RefusedError(what)


def unpack(batch: bytes) -> list[Any]:
    """Decodes a batch, which is an array of the time, the events and the rank of the worker."""
    value = msgpack.unpackb(batch, raw=False, strict_map_key=True)
    require(isinstance(value, list) and len(value) == 3, "a batch is an array of three")
    require(isinstance(value[0], float), "the time is a float")
    require(isinstance(value[1], list), "events are an array")
    return list(value)


#: The fields of vLLM's events in their order, with their types. The first eight are always present.
VLLM: Final[dict[str, tuple[type, ...]]] = {
    "type": (str,),
    "block_hashes": (list,),
    "parent_block_hash": (int, bytes, type(None)),
    "token_ids": (list,),
    "block_size": (int,),
    "lora_id": (int, type(None)),
    "medium": (str, type(None)),
    "lora_name": (str, type(None)),
    "extra_keys": (list,),
    "group_idx": (int,),
    "kv_cache_spec_kind": (str,),
    "kv_cache_spec_sliding_window": (int,),
    "locality": (str,),
    "ownership": (str,),
    "session_id": (str,),
    "lookahead_token_ids": (list,),
}
#: The fields of SGLang's events, with their types. The first six are always present.
SGLANG: Final[dict[str, tuple[type, ...]]] = {
    **{key: VLLM[key] for key in list(VLLM)[:7]},
    "cache_salt": (str,),
    "session_id": (str,),
    "lora_name": (str,),
}


def as_map(event: Any, fields: dict[str, tuple[type, ...]], always: int) -> dict[str, Any]:
    """Returns an event as a map, and checks the map against the fields of its engine."""
    require(isinstance(event, dict), "an event is a map")
    if event["type"] == "BlockStored":
        names = list(fields)
        require(
            list(event) == [name for name in names if name in event],
            f"fields in another order: {list(event)}",
        )
        require(set(names[:always]) <= set(event), "a field is missing")
        for name, value in event.items():
            require(isinstance(value, fields[name]), f"{name} is {value!r}")
        require(
            len(event["token_ids"]) == len(event["block_hashes"]) * event["block_size"],
            "tokens of whole blocks",
        )
        extra = event.get("extra_keys")
        require(extra is None or len(extra) == len(event["block_hashes"]), "an extra key per block")
    elif event["type"] == "BlockRemoved":
        require(set(event) <= {"type", "block_hashes", "medium", "group_idx"}, "fields that are none")
    else:
        require(event == {"type": "AllBlocksCleared"}, f"no event is {event}")
    return dict(event)


#: The order of the fields if an event is an array.
POSITIONS: Final = ["type", *list(VLLM)[1:8], "extra_keys", "group_idx", "kv_cache_spec_kind", "window"]


def as_positions(event: Any) -> dict[str, Any]:
    """Returns an event as an array."""
    require(isinstance(event, list), "an event is an array")
    if event[0] == "BlockStored":
        require(len(event) in {7, 12}, "fields of a stored event")
        return dict(zip(POSITIONS, event, strict=False))
    if event[0] == "BlockRemoved":
        require(len(event) in {3, 4}, "fields of a removed event")
        return dict(zip(["type", "block_hashes", "medium", "group_idx"], event, strict=False))
    require(event == ["AllBlocksCleared"], f"no event is {event}")
    return {"type": "AllBlocksCleared"}


@dataclasses.dataclass
class Index:
    """The cached blocks of a worker (an engine), as a consumer of its events knows them."""

    held: dict[str, set[Any]] = dataclasses.field(default_factory=dict)
    #: For each hash, the hash of its parent block and the tokens of its block.
    chains: dict[Any, tuple[Any, tuple[int, ...]]] = dataclasses.field(default_factory=dict)
    last: int | None = None

    def note(self, number: int) -> None:
        """Checks the number of a batch, which must be the previous number plus one."""
        require(self.last is None or number == self.last + 1, f"a gap between {self.last} and {number}")
        self.last = number

    def stored(self, event: dict[str, Any], medium: str) -> None:
        parent, size = event["parent_block_hash"], event["block_size"]
        require(parent is None or parent in self.chains, "an unknown parent")
        for position, block_hash in enumerate(event["block_hashes"]):
            self.chains[block_hash] = (
                parent,
                tuple(event["token_ids"][position * size : (position + 1) * size]),
            )
            self.held.setdefault(medium, set()).add(block_hash)
            parent = block_hash

    def removed(self, event: dict[str, Any], medium: str) -> None:
        for block_hash in event["block_hashes"]:
            self.held[medium].discard(block_hash)

    def cleared(self) -> None:
        self.held.clear()
        self.chains.clear()

    def prompts(self) -> dict[str, set[tuple[int, ...]]]:
        """Returns the prompts that can be found, by the medium of their last block. Every block of such
        a prompt is in some medium.
        """
        everywhere = set().union(*self.held.values()) if self.held else set()
        found: dict[str, set[tuple[int, ...]]] = {}
        for medium, hashes in self.held.items():
            for block_hash in hashes:
                at, tokens = block_hash, tuple[int, ...]()
                while at is not None and at in everywhere:
                    at, own = self.chains[at]
                    tokens = own + tokens
                if at is None:
                    found.setdefault(medium, set()).add(tokens)
        return found


class Vllm(Index):
    """A subscriber that decodes like vLLM's own example: it reads maps, and requires the exact field
    names.
    """

    def take(self, number: int, batch: bytes) -> None:
        self.note(number)
        for item in unpack(batch)[1]:
            self.event(as_map(item, VLLM, 8))

    def event(self, event: dict[str, Any]) -> None:
        if event["type"] == "BlockStored":
            self.stored(event, event["medium"])
        elif event["type"] == "BlockRemoved":
            self.removed(event, event["medium"])
        else:
            self.cleared()


class Sglang(Vllm):
    """A subscriber that decodes SGLang's maps. Numbers are signed, and there are no groups."""

    def take(self, number: int, batch: bytes) -> None:
        self.note(number)
        for item in unpack(batch)[1]:
            event = as_map(item, SGLANG, 6)
            require("group_idx" not in event, "SGLang has no groups")
            require(
                all(-(1 << 63) <= one < 1 << 63 for one in event.get("block_hashes", [])), "signed numbers"
            )
            self.event(event)


class Dynamo(Vllm):
    """A subscriber that decodes like Dynamo's standalone indexer.

    It reads maps or arrays, and only numbers as hashes. It requires a single block size, full
    attention, and media from its own list. It drops a batch that it cannot read as a whole, and a batch
    with a lower number than the previous one.
    """

    TIERS: Final = {
        "GPU": "device",
        **dict.fromkeys(("CPU", "CPU_TIER1", "CPU_PINNED"), "host"),
        **dict.fromkeys(("STORAGE", "DISK", "EXTERNAL", "REMOTE", "CPU_TIER2"), "disk"),
    }

    def __init__(self, block_size: int) -> None:
        super().__init__()
        self.block_size = block_size

    def take(self, number: int, batch: bytes) -> None:
        if self.last is not None and number <= self.last:
            return
        self.note(number)
        for item in unpack(batch)[1]:
            event = as_positions(item) if isinstance(item, list) else dict(item)
            if event["type"] == "AllBlocksCleared":
                self.cleared()
                continue
            require(all(isinstance(one, int) for one in event["block_hashes"]), "hashes are numbers")
            tier = self.TIERS.get(event["medium"] or "GPU")
            if tier is None or event.get("locality") == "REMOTE" or event.get("ownership"):
                continue
            if event["type"] == "BlockRemoved":
                if not event.get("group_idx"):
                    self.removed(event, tier)
            elif event.get("kv_cache_spec_kind", "full_attention") in {
                "full_attention",
                "mla_attention",
                None,
            }:
                require(event["block_size"] == self.block_size, "another block size")
                require(event["parent_block_hash"] != 0, "the parent of a first block is nil")
                self.stored(event, tier)


class LlmD(Vllm):
    """A subscriber that decodes like llm-d's router. It reads maps or arrays, with any form of hash.
    The router computes keys of its own from the tokens, and uses the engine's hashes only to find
    these keys.
    """

    #: Weight of each medium in a worker's score; names are in lower case. A block in another medium has
    #: the weight of the device.
    WEIGHTS: Final = {"gpu": 1.0, "cpu": 0.8}

    def __init__(self, topic: bytes) -> None:
        super().__init__()
        head, _, rest = topic.partition(b"@")
        address, _, model = rest.partition(b"@")
        require(
            head == b"kv" and b":" in address and bool(model),
            f"the topic {topic!r} is not kv@host:port@model",
        )

    def take(self, number: int, batch: bytes) -> None:
        self.note(number)
        for item in unpack(batch)[1]:
            event = as_positions(item) if isinstance(item, list) else dict(item)
            for name in ("block_hashes", "parent_block_hash"):
                value = event.get(name)
                event[name] = (
                    [self.number(one) for one in value] if isinstance(value, list) else self.number(value)
                )
            event["medium"] = (event.get("medium") or "gpu").lower()
            self.event(event)

    @staticmethod
    def number(block_hash: Any) -> int | None:
        """Returns the number that the consumer uses for a hash: its last eight bytes. 0 means that a
        block has no parent.
        """
        if isinstance(block_hash, bytes):
            return int.from_bytes(block_hash[-8:], "big")
        return None if not block_hash else int(block_hash) & (1 << 64) - 1


class AiBrix(Vllm):
    """A subscriber that decodes like AIBrix. It reads only arrays, with at least five items. The time
    has to be a float and the rank a number.
    """

    def take(self, number: int, batch: bytes) -> None:
        value = unpack(batch)
        require(isinstance(value[2], int), "the rank is a number")
        self.last = number  # a gap is only counted
        for item in value[1]:
            event = as_positions(item)
            if event["type"] == "BlockStored":
                require(len(item) >= 5, "five fields")
                event["block_hashes"] = [self.number(one) for one in event["block_hashes"]]
                parent = event["parent_block_hash"]
                event["parent_block_hash"] = None if parent is None else self.number(parent)
            elif event["type"] == "BlockRemoved":
                event["block_hashes"] = [self.number(one) for one in event["block_hashes"]]
            self.event(event)

    @staticmethod
    def number(block_hash: Any) -> int:
        """Returns the number that the consumer uses for a hash: its first eight bytes."""
        if isinstance(block_hash, bytes):
            return int.from_bytes(block_hash[:8], "big")
        require(-(1 << 63) <= block_hash < 1 << 64, "a number of 64 bits")
        return int(block_hash)
