"""A minimal stand-in for the parts of vLLM that the plug-in imports, for tests that run without vLLM.

Parts that the plug-in calls are implemented: keys, extra keys, hash functions, requests, blocks.
Classes that the plug-in only replaces or derives from are empty. The stand-in was written from the
description of vLLM's interfaces. ``make vllm-conformance`` runs vLLM's own tests with the plug-in in a
real vLLM.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import importlib
import pickle
import sys
import types
from typing import TYPE_CHECKING, Any

import cbor2
import xxhash

import kvpool.integrations.vllm as plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

MODULES = (
    "vllm",
    "vllm.distributed",
    "vllm.distributed.kv_events",
    "vllm.envs",
    "vllm.utils",
    "vllm.utils.hashing",
    "vllm.v1",
    "vllm.v1.core",
    "vllm.v1.core.block_pool",
    "vllm.v1.core.kv_cache_coordinator",
    "vllm.v1.core.kv_cache_manager",
    "vllm.v1.core.kv_cache_utils",
    "vllm.v1.core.sched",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.core.single_type_kv_cache_manager",
    "vllm.v1.engine",
    "vllm.v1.engine.core",
    "vllm.v1.request",
)
#: Modules of the plug-in that import names from vLLM.
BOUND = ("pool", "events", "views", "hashing", "lookup", "manager", "install", "shadow", "publisher")


@dataclasses.dataclass
class BlockStored:
    """Stands in for vLLM's event, without the fields that no test reads."""

    block_hashes: list[Any]
    parent_block_hash: Any
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


@dataclasses.dataclass
class BlockRemoved:
    block_hashes: list[Any]
    medium: str | None
    group_idx: int | None = None


@dataclasses.dataclass
class AllBlocksCleared:
    """Stands in for vLLM's event after which no block is cached."""


@dataclasses.dataclass(eq=False)
class LooseBlock:
    """A block outside of kvpool's pools, with its own reference count and hash."""

    block_id: int
    ref_cnt: int = 0
    is_null: bool = False
    pool: Any = None
    block_hash: bytes | None = None
    block_hash_num_tokens: int | None = None

    def set_block_hash(self, block_hash: bytes, num_tokens: int | None = None) -> None:
        assert self.block_hash is None
        self.block_hash, self.block_hash_num_tokens = block_hash, num_tokens

    def reset_hash(self) -> None:
        self.block_hash = self.block_hash_num_tokens = None


class RequestStatus(enum.IntEnum):
    """Stands in for the enum of vLLM's request states, with the states that the tests need."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2


@dataclasses.dataclass(eq=False)
class Request:
    """A request with the fields that the plug-in reads."""

    request_id: str
    _all_token_ids: list[Any] = dataclasses.field(default_factory=list)
    block_hashes: Any = dataclasses.field(default_factory=list)
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    status: RequestStatus = RequestStatus.RUNNING
    mm_features: list[tuple[Any, int, int]] = dataclasses.field(default_factory=list)
    lora_request: Any = None
    cache_salt: Any = None
    prompt_embeds: list[bytes] | None = None
    session_id: str | None = None
    skip_reading_prefix_cache: bool = False
    num_prompt_tokens: int = 0
    shared_prefix_boundary: int = 0

    @property
    def all_token_ids(self) -> Sequence[Any]:
        """Returns the tokens of the request as a new list, like vLLM's property."""
        return tuple(self._all_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self._all_token_ids)


@dataclasses.dataclass
class Lora:
    """An adapter."""

    name: Any
    path: Any
    adapter_id: int = 7


class Coarse:
    """The hashes of larger blocks. Each is the hash of the last of the ``scale`` small blocks that it
    covers.
    """

    def __init__(self, hashes: Sequence[bytes], scale: int) -> None:
        self.hashes, self.scale = hashes, scale

    def __len__(self) -> int:
        return len(self.hashes) // self.scale

    def __getitem__(self, at: int) -> bytes:
        return self.hashes[(at + 1) * self.scale - 1]


def resolve_block_hashes(hashes: Any, hash_block_size: int, block_size: int, **_more: Any) -> Any:
    """Returns the request's hashes for blocks of this size, like vLLM's function."""
    return hashes if block_size == hash_block_size else Coarse(hashes, block_size // hash_block_size)


def generate_block_hash_extra_keys(
    request: Any, start: int, end: int, item: int
) -> tuple[tuple[Any, ...] | None, int]:
    """Returns the extra keys of a block like vLLM: adapter, images (identifier, first token, number of
    tokens), salt, embeddings.
    """
    keys: list[tuple[Any, ...]] = []
    if request.lora_request:
        keys.append(("lora", request.lora_request.name, request.lora_request.path))
    while item < len(request.mm_features) and request.mm_features[item][1] < end:
        identifier, offset, length = request.mm_features[item]
        if offset + length > start:
            keys.append(("mm", identifier, offset - start))
        if offset + length > end:
            break
        item += 1
    if start == 0 and request.cache_salt:
        keys.append(("cache_salt", request.cache_salt))
    if request.prompt_embeds is not None:
        keys.append(("prompt_embeds", hashlib.sha256(b"".join(request.prompt_embeds[start:end])).digest()))
    return (tuple(keys) if keys else None), item


def _hashing() -> dict[str, Any]:
    return {
        "sha256": lambda data: hashlib.sha256(pickle.dumps(data, 5)).digest(),
        "sha256_cbor": lambda data: hashlib.sha256(cbor2.dumps(data, canonical=True)).digest(),
        "xxhash": lambda data: xxhash.xxh3_128_digest(pickle.dumps(data, 5)),
        "xxhash_cbor": lambda data: xxhash.xxh3_128_digest(cbor2.dumps(data, canonical=True)),
    }


def _utils() -> dict[str, Any]:
    def hash_block_tokens(
        hash_fn: Callable[[Any], bytes], parent: bytes, tokens: Iterable[Any], extra: Any
    ) -> bytes:
        return hash_fn((parent, tuple(tokens), extra))

    def get_request_block_hasher(*arguments: Any) -> Any:
        return ("stock", *arguments)

    def maybe_convert_block_hash(digest: bytes) -> bytes | int:
        as_int = sys.modules["vllm.envs"].VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES
        return int.from_bytes(digest[-8:], "big") if as_int else digest

    return {
        "NONE_HASH": b"\x11" * 32,
        "make_block_hash_with_group_id": lambda digest, group: digest + group.to_bytes(4, "big"),
        "get_block_hash": lambda key: key[:-4],
        "get_group_id": lambda key: int.from_bytes(key[-4:], "big"),
        "maybe_convert_block_hash": maybe_convert_block_hash,
        "resolve_block_hashes": resolve_block_hashes,
        "generate_block_hash_extra_keys": generate_block_hash_extra_keys,
        "to_event_extra_keys": lambda keys: list(keys) or None,
        "hash_block_tokens": hash_block_tokens,
        "get_request_block_hasher": get_request_block_hasher,
    }


class _Stock:
    """Stands in for a class of vLLM's that the plug-in replaces or derives from."""

    def __init__(self, *_arguments: Any, **_more: Any) -> None:
        pass


def _managers() -> dict[str, Any]:
    def find_longest_cache_hit(cls: Any, /, **arguments: Any) -> Any:
        return (cls, arguments)

    def _get_num_evictable_blocks(cls: Any, /, blocks: Any) -> int:
        return sum(block.ref_cnt == 0 and not block.is_null for block in blocks)

    base = type(
        "SingleTypeKVCacheManager", (), {"_get_num_evictable_blocks": classmethod(_get_num_evictable_blocks)}
    )
    names = ("FullAttentionManager", "SlidingWindowManager", "ChunkedLocalAttentionManager", "MambaManager")
    lookup = {"find_longest_cache_hit": classmethod(find_longest_cache_hit)}
    return {base.__name__: base, **{name: type(name, (base,), dict(lookup)) for name in names}}


def _contents() -> dict[str, dict[str, Any]]:
    """Returns the names that each stand-in module defines. Each call makes new objects, so a test
    cannot change those of the next test.
    """
    utils = _utils()
    pool = type("BlockPool", (_Stock,), {})
    manager = type("KVCacheManager", (_Stock,), {})
    events = {"BlockStored": BlockStored, "BlockRemoved": BlockRemoved, "AllBlocksCleared": AllBlocksCleared}
    return {
        "vllm": {"__version__": "0.32.0"},
        "vllm.distributed.kv_events": events,
        "vllm.envs": {"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": False},
        "vllm.utils.hashing": _hashing(),
        "vllm.v1.core.block_pool": {"BlockPool": pool},
        "vllm.v1.core.kv_cache_coordinator": {
            "BlockPool": pool,
            "HybridKVCacheCoordinator": type("HybridKVCacheCoordinator", (), {}),
            "UnitaryKVCacheCoordinator": type("UnitaryKVCacheCoordinator", (), {}),
        },
        "vllm.v1.core.kv_cache_manager": {
            "KVCacheManager": manager,
            "KVCacheBlocks": dataclasses.make_dataclass("KVCacheBlocks", ["blocks"]),
        },
        "vllm.v1.core.kv_cache_utils": utils,
        "vllm.v1.core.sched.scheduler": {"KVCacheManager": manager},
        "vllm.v1.core.single_type_kv_cache_manager": _managers(),
        "vllm.v1.engine.core": {"get_request_block_hasher": utils["get_request_block_hasher"]},
        "vllm.v1.request": {"RequestStatus": RequestStatus},
    }


def _forget() -> dict[str, types.ModuleType]:
    """Removes vLLM from ``sys.modules``, together with the modules of the plug-in that have imported
    its names. Returns the removed modules.
    """
    bound = {f"{plugin.__name__}.{name}" for name in BOUND}
    gone = [name for name in sys.modules if name.partition(".")[0] == "vllm" or name in bound]
    return {name: sys.modules.pop(name) for name in gone}


@contextlib.contextmanager
def fake_vllm() -> Iterator[Any]:
    """Installs the stand-in as ``vllm`` for the duration of a ``with`` block.

    Yields the package, which also contains ``vllm.v1.core.block_pool``.
    """
    before, names = _forget(), dict(vars(plugin))
    contents = _contents()
    try:
        for name in MODULES:
            module = types.ModuleType(name)
            module.__path__ = []  # a package: a missing module raises ModuleNotFoundError with its own name
            vars(module).update(contents.get(name, {}))
            sys.modules[name] = module
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], last, module)
        yield sys.modules["vllm"]
    finally:
        _forget()
        sys.modules.update(before)
        for name in set(vars(plugin)) - set(names):
            delattr(plugin, name)
        vars(plugin).update(names)


@contextlib.contextmanager
def freeing(base: type, request: Any) -> Iterator[type]:
    """Replaces vLLM's ``Request`` with ``request``. Replaces its KV-cache manager with ``base`` and
    vLLM's two ways to free a request.
    """

    class KVCacheManager(base):  # type: ignore[misc]
        def free(self, request: Any) -> None:
            self.block_pool.free_blocks(reversed(self.pop_blocks_for_free(request)))

        def pop_blocks_for_free(self, request: Any) -> Any:
            return self.tables.pop(request.request_id)

    managers, requests = (
        vars(sys.modules["vllm.v1.core.kv_cache_manager"]),
        vars(sys.modules["vllm.v1.request"]),
    )
    stock = managers.get("KVCacheManager"), requests.get("Request")
    managers["KVCacheManager"], requests["Request"] = KVCacheManager, request
    try:
        yield KVCacheManager
    finally:
        managers["KVCacheManager"], requests["Request"] = stock


def part(name: str) -> Any:
    """Imports a module of the plug-in, which then uses the stand-in for vLLM."""
    return importlib.import_module(f"{plugin.__name__}.{name}")
