"""Stand-ins for the classes of SGLang that ``kvpool.integrations.sglang`` derives from, receives or
returns.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import enum
import hashlib
import importlib
import importlib.metadata
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HICACHE = "kvpool.integrations.sglang.hicache"
STORAGE = "sglang.srt.mem_cache.hicache_storage"
VERSION = "0.5.23"


class PoolName(enum.StrEnum):
    KV = "kv"
    MAMBA = "mamba"
    SWA = "swa"
    INDEXER = "indexer"
    DRAFT = "draft"


class PoolHitPolicy(enum.StrEnum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclasses.dataclass
class PoolTransfer:
    name: PoolName
    host_indices: torch.Tensor | None = None
    keys: list[str] | None = None
    hit_policy: Any = PoolHitPolicy.ALL_PAGES
    block_pages: int = 0
    group_pages: int = 0


@dataclasses.dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict[Any, int]
    restorable_prefix_pages: list[int] | None = None

    @classmethod
    def empty(cls) -> PoolTransferResult:
        return cls(0, {})


@dataclasses.dataclass
class ExtraInfo:
    prefix_keys: list[str] | None = None


@dataclasses.dataclass(frozen=True)
class LoRARef:
    lora_id: str
    lora_name: str
    lora_path: str
    pinned: bool = False


@dataclasses.dataclass
class Config:
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    is_page_first_layout: bool = True
    model_name: str | None = "llama"
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    dp_rank: int = 0
    extra_config: dict[str, Any] | None = None
    dcp_size: int = 1
    dcp_rank: int = 0
    logical_page_size: int | None = None

    @property
    def is_storage_writer(self) -> bool:
        return not self.is_mla_model or self.tp_rank == self.dcp_rank


class HiCacheStorage(abc.ABC):
    registered_pools: dict[Any, Any]

    def register_mem_pool_host(self, pool: Any) -> None:
        self.mem_pool_host = pool

    def register_mem_host_pool_v2(self, pool: Any, name: Any) -> None:
        vars(self).setdefault("registered_pools", {})[name] = pool

    @abc.abstractmethod
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any: ...
    @abc.abstractmethod
    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> Any: ...
    @abc.abstractmethod
    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool: ...
    @abc.abstractmethod
    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool: ...
    @abc.abstractmethod
    def exists(self, key: str) -> bool: ...


class StorageMetrics:
    def __init__(self) -> None:
        self.prefetch_pgs: list[int] = []
        self.backup_pgs: list[int] = []
        self.prefetch_bandwidth: list[float] = []
        self.backup_bandwidth: list[float] = []


class HostPool:
    """The base class of the host pools. A pool is a tensor that consists of whole pages, in one of
    SGLang's layouts.

    The dimensions of ``lead`` (keys and values) come before the dimension of pages. The dimensions of
    ``inner`` come after those of tokens and layers.
    """

    storage_format_tag = None
    shared_allocation_domain = None

    def __init__(
        self,
        layout: str,
        lead: tuple[int, ...],
        inner: tuple[int, ...],
        pages: int,
        page_size: int,
        layers: int,
    ) -> None:
        self.layout, self.page_size, self.layer_num = layout, page_size, layers
        self.size, self.page_num = pages * page_size, pages
        self.dtype, self.device = torch.bfloat16, "cpu"
        self.start_layer, self.end_layer = 0, layers
        self._lead = lead
        shape = {
            "layer_first": (layers, self.size),
            "page_first": (self.size, layers),
            "page_first_direct": (pages, layers, page_size),
            "page_head": (pages, *inner[:1], page_size, layers),
        }[layout]
        inner = inner[1:] if layout == "page_head" else inner
        self.kv_buffer = torch.zeros((*lead, *shape, *inner), dtype=self.dtype)
        self.size_per_token = self.kv_buffer.numel() * 2 // self.size

    def clear(self) -> None:
        """Marks all pages as unused. SGLang calls it when it clears its prefix cache."""

    def _page(self, index: int) -> torch.Tensor:
        if self.layout == "layer_first":
            return self.kv_buffer.narrow(len(self._lead) + 1, index, self.page_size)
        if self.layout == "page_first":
            return self.kv_buffer.narrow(len(self._lead), index, self.page_size)
        return self.kv_buffer.narrow(len(self._lead), index // self.page_size, 1)

    def get_data_page(self, index: int, flat: bool = True) -> torch.Tensor:
        page = self._page(index)
        return page.flatten() if flat else page

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.zeros(self._page(0).numel(), dtype=self.dtype)

    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None:
        page = self._page(index)
        page.copy_(data_page.reshape(page.shape))

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        addresses, lengths = [], []
        for index in indices.tolist()[:: self.page_size]:
            page = self._page(index)
            halves = page.unbind(0) if self._lead else (page,)
            for half in halves:
                pieces = [half] if half.is_contiguous() else half.unbind(0)
                addresses += [piece.data_ptr() for piece in pieces]
                lengths += [piece.numel() * 2 for piece in pieces]
        return addresses, lengths


class MhaPool(HostPool):
    """A host pool of keys and values. Each of the two has one half of the memory."""

    def __init__(
        self, layout: str = "page_first", pages: int = 8, page_size: int = 4, heads: int = 2
    ) -> None:
        self.head_num, self.head_dim = heads, 32
        super().__init__(layout, (2,), (heads, 32), pages, page_size, layers=3)


class MlaPool(HostPool):
    """A host pool of the latents of MLA."""

    def __init__(self, layout: str = "page_first", pages: int = 8, page_size: int = 4) -> None:
        self.kv_cache_dim = 72
        super().__init__(layout, (), (1, 72), pages, page_size, layers=3)


class StatePool:
    """A host pool of recurrent states. A page is one state. Its pieces have two dtypes, each in
    separate memory.
    """

    storage_format_tag = None
    layout, page_size, num_mamba_layers, dtype, device = "page_first", 1, 2, torch.bfloat16, "cpu"

    def __init__(self, states: int = 8) -> None:
        self.size = states
        self.temporal = torch.zeros((states, 2, 5), dtype=torch.float32)
        self.conv = torch.zeros((states, 2, 3), dtype=torch.bfloat16)
        self.kv_buffer = [self.temporal, self.conv]

    def get_data_page(self, index: int, flat: bool = True) -> torch.Tensor:
        pieces = [one[index].contiguous().view(torch.uint8).flatten() for one in (self.temporal, self.conv)]
        return torch.cat(pieces)

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.zeros(2 * 5 * 4 + 2 * 3 * 2, dtype=torch.uint8)

    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None:
        self.temporal[index] = data_page[:40].view(torch.float32).reshape(2, 5)
        self.conv[index] = data_page[40:].view(torch.bfloat16).reshape(2, 3)

    def get_page_buffer_meta(self, indices: torch.Tensor) -> Any:
        raise NotImplementedError


class LogicalPool:
    """A host pool that only counts pages. Other pools contain the bytes of these pages."""

    layout, dtype, device, kv_buffer, layer_num = "layer_first", torch.uint8, "cpu", None, 0

    def __init__(self, pages: int = 8, page_size: int = 4) -> None:
        self.size, self.page_size = pages * page_size, page_size

    def get_data_page(self, index: int, flat: bool = True) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None: ...


def stand_ins() -> dict[str, dict[str, Any]]:
    """Returns the names that each stand-in module of SGLang defines."""

    def get_server_args() -> Any:
        raise ValueError("not in a server")

    return {
        STORAGE: {
            "HiCacheStorage": HiCacheStorage,
            "PoolName": PoolName,
            "PoolTransferResult": PoolTransferResult,
        },
        "sglang.srt.observability.metrics_collector": {"StorageMetrics": StorageMetrics},
        "sglang.srt.runtime_context": {"get_server_args": get_server_args},
    }


@contextlib.contextmanager
def loaded() -> Iterator[Any]:
    """Installs the stand-ins for SGLang, and yields kvpool's storage back end over them. Removes them
    afterwards.
    """
    known = importlib.metadata.version
    with pytest.MonkeyPatch.context() as patch:
        for name, members in stand_ins().items():
            parts = name.split(".")
            for end in range(1, len(parts)):
                patch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
            module = types.ModuleType(name)
            vars(module).update(members)
            patch.setitem(sys.modules, name, module)
        patch.setattr(
            importlib.metadata, "version", lambda name: VERSION if name == "sglang" else known(name)
        )
        yield importlib.import_module(HICACHE).KvpoolHiCacheStorage
    del sys.modules[HICACHE]


def attach(
    storage: Any, folder: Path, pool: Any, others: dict[PoolName, Any] | None = None, **changed: Any
) -> Any:
    """Makes a storage back end and attaches it as SGLang does. Arguments with the name of a
    configuration field set that field. All others are settings of the back end.
    """
    fields = {field.name for field in dataclasses.fields(Config)}
    extra = {
        "root_dir": str(folder),
        "capacity_bytes": 4 << 20,
        "weights": "1",
        "free_floor_bytes": 0,
        "deadline": 120.0,
    }
    extra |= {name: value for name, value in changed.items() if name not in fields}
    config = Config(**{name: value for name, value in changed.items() if name in fields}, extra_config=extra)
    backend = storage(config, {})
    backend.register_mem_pool_host(pool)
    for name, one in {PoolName.KV: pool, **(others or {})}.items():
        backend.register_mem_host_pool_v2(one, name)
    backend.on_host_pools_registered()
    return backend


def key(number: int) -> str:
    return f"{number:064x}"


def indices(pool: Any, *pages: int) -> torch.Tensor:
    """Returns the indices of all tokens of these pages, as SGLang passes them."""
    return torch.cat([torch.arange(page * pool.page_size, (page + 1) * pool.page_size) for page in pages])


def content(pool: Any, page: int) -> bytes:
    return bytes(pool.get_data_page(page * pool.page_size).contiguous().view(torch.uint8).numpy())


def fill(pool: Any, page: int, seed: int) -> bytes:
    """Fills a page with bytes that depend on the seed. Returns the bytes."""
    flat = pool.get_dummy_flat_data_page()
    held = hashlib.shake_256(str(seed).encode()).digest(flat.numel() * flat.element_size())
    words = torch.frombuffer(bytearray(held), dtype=torch.uint8)
    pool.set_from_flat_data_page(page * pool.page_size, words.view(flat.dtype))
    return content(pool, page)
