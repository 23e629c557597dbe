"""Stand-ins for the classes of vLLM that ``kvpool.integrations.vllm.offload`` derives from, makes or
returns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OFFLOAD = "kvpool.integrations.vllm.offload"


class Context:
    def __init__(self, positions: dict[bytes, int] | None = None) -> None:
        self.positions = positions or {}
        self.state: dict[type, Any] = {}

    def get_state(self, cls: type) -> Any:
        return self.state.get(cls)

    def set_state(self, value: object) -> None:
        self.state[type(value)] = value

    def get_offload_key_position(self, key: bytes) -> int | None:
        return self.positions.get(key)


@dataclasses.dataclass
class Chunk:
    chunk_id: int
    ref_cnt: int = -1


class CachePolicy:
    def __init__(self, cache_capacity: int) -> None:
        self.cache_capacity = cache_capacity

    def mark_evictable(self, key: bytes) -> None: ...
    def mark_non_evictable(self, key: bytes) -> None: ...


def order_request_keys(key_groups: Sequence[Sequence[bytes]], context: Context) -> list[bytes]:
    keys = [key for group in key_groups for key in group]
    return (
        sorted(keys, key=context.positions.__getitem__)
        if all(key in context.positions for key in keys)
        else keys
    )


class LookupResult(enum.Enum):
    MISS = 1
    HIT = 2
    HIT_PENDING = 3
    RETRY = 4


class Medium(enum.Enum):
    CPU = "CPU"
    STORAGE = "STORAGE"


class Locality(enum.Enum):
    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


@dataclasses.dataclass
class Event:
    keys: list[bytes]
    medium: Medium
    removed: bool
    metadata_only: bool = False
    locality: Locality | None = None


@dataclasses.dataclass
class PrepareStoreOutput:
    keys_to_store: list[bytes]
    store_spec: Any
    evicted_keys: list[bytes]


@dataclasses.dataclass
class LoadStoreSpec:
    block_ids: list[int]


class Stats:
    def __init__(self) -> None:
        self.gauges: dict[str, float] = {}
        self.sizes: list[int] = []
        self.skipped: int | None = None
        self.counters: dict[str, float] = {}

    def set_gauge(self, name: str, value: float) -> None:
        self.gauges[name] = value

    def observe_histogram(self, name: str, value: int) -> None:
        self.sizes.append(value)

    def increase_counter(self, name: str, value: int) -> None:
        self.skipped = value
        self.counters[name] = value


@dataclasses.dataclass
class Metadata:
    documentation: str


@dataclasses.dataclass
class TransferJob:
    job_id: int
    keys: Sequence[bytes]
    chunk_ids: Sequence[int]
    is_promotion: bool
    req_context: Context


@dataclasses.dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: Sequence[bytes] | None = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class SecondaryTierManager:
    def __init__(self, spec: Any, view: memoryview, tier_type: str, detector: Any = None) -> None:
        self.tier_type = tier_type
        self._arguments = (spec, view, detector)


class OffloadingSpec:
    def __init__(self, config: dict[str, Any]) -> None:
        self.extra_config = config
        self.num_chunks = 4
        self._manager = None
        self.kv_events_config = types.SimpleNamespace(enable_kv_cache_events=True)


class Factory:
    def __init__(self) -> None:
        self.known: dict[str, tuple[str, str]] = {}

    def register(self, name: str, module: str, cls: str) -> None:
        if name in self.known:
            raise ValueError(name)
        self.known[name] = (module, cls)


class Scheduler:
    """Stands in for vLLM's scheduler. It resets its own cache and, if requested, the cache of its
    connector.
    """

    def __init__(self, manager: Any = None) -> None:
        self.manager = manager
        self.resets = 0

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        self.resets += 1
        if reset_connector and self.manager is not None:
            self.manager.drain_jobs()
        return True


class EngineCore:
    def __init__(self) -> None:
        self.called: list[Any] = []

    def collective_rpc(
        self, method: Any, timeout: float | None = None, args: Any = (), kwargs: Any = None
    ) -> list[Any]:
        self.called.append(method)
        return [method]

    def add_lora(self, lora_request: Any) -> bool:
        self.called.append(lora_request)
        return True


@dataclasses.dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool = False


@dataclasses.dataclass
class Request:
    lora_request: LoRARequest | None = None
    positions: dict[bytes, int] = dataclasses.field(default_factory=dict)


METRICS = (
    "CPU_CACHE_USAGE_PERC",
    "CPU_CACHE_WRITE_USAGE_PERC",
    "CPU_CACHE_READ_USAGE_PERC",
    "CPU_ALLOCATION_SIZE",
)


def stand_ins(policies: Factory, specs: Factory, tiers: Factory) -> dict[str, dict[str, Any]]:
    """Returns the names that each stand-in module of vLLM defines."""
    names = {name: name for name in (*METRICS, "STORES_SKIPPED")}
    return {
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics": {
            "OffloadingConnectorStats": Stats
        },
        "vllm.v1.kv_offload.base": {
            "LookupResult": LookupResult,
            "Medium": Medium,
            "OffloadingEvent": Event,
            "OffloadingManager": object,
            "PrepareStoreOutput": PrepareStoreOutput,
            "RequestOffloadingContext": types.SimpleNamespace,
            "Locality": Locality,
            "OffloadingCounterMetadata": Metadata,
            "OffloadingGaugeMetadata": Metadata,
        },
        # Make new classes in each call, because kvpool wraps their methods.
        "vllm.v1.engine.core": {"EngineCore": type("EngineCore", (EngineCore,), dict(vars(EngineCore)))},
        "vllm.v1.core.sched.scheduler": {"Scheduler": type("Scheduler", (Scheduler,), dict(vars(Scheduler)))},
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler": {
            "_create_req_context": lambda req: Context(req.positions)
        },
        "vllm.v1.kv_offload.tiering.factory": {
            "SecondaryTierFactory": types.SimpleNamespace(register_tier=tiers.register)
        },
        "vllm.v1.kv_offload.tiering.base": {
            "JobResult": JobResult,
            "SecondaryTierManager": SecondaryTierManager,
        },
        "vllm.v1.kv_offload.cpu.common": {
            "CPULoadStoreSpec": LoadStoreSpec,
            "CPUOffloadingMetrics": types.SimpleNamespace(**names),
        },
        "vllm.v1.kv_offload.cpu.policies.base": {
            "CachePolicy": CachePolicy,
            "order_request_keys": order_request_keys,
        },
        "vllm.v1.kv_offload.cpu.policies.factory": {
            "CachePolicyFactory": types.SimpleNamespace(register_cache_policy=policies.register)
        },
        "vllm.v1.kv_offload.cpu.spec": {"CPUOffloadingSpec": OffloadingSpec},
        "vllm.v1.kv_offload.factory": {
            "OffloadingSpecFactory": types.SimpleNamespace(register_spec=specs.register)
        },
        "vllm.v1.metrics.cache_hit_source": {
            "CacheHitSource": types.SimpleNamespace(
                HOST="host", DISK="disk", EXTERNAL_UNSPECIFIED="elsewhere"
            )
        },
    }


@dataclasses.dataclass
class Vllm:
    policy: Any
    manager: Any
    spec: Any
    tier: Any
    policies: Factory
    specs: Factory
    tiers: Factory


@contextlib.contextmanager
def loaded() -> Iterator[Vllm]:
    """Yields kvpool's modules that derive from vLLM's classes, over the stand-ins. Removes both
    afterwards.
    """
    policies, specs, tiers = Factory(), Factory(), Factory()
    with pytest.MonkeyPatch.context() as patch:
        for name, members in stand_ins(policies, specs, tiers).items():
            parts = name.split(".")
            for end in range(1, len(parts)):
                patch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
            module = types.ModuleType(name)
            vars(module).update(members)
            patch.setitem(sys.modules, name, module)
        mine = {
            name: importlib.import_module(f"{OFFLOAD}.{name}")
            for name in ("policies", "manager", "spec", "tier")
        }
        yield Vllm(
            mine["policies"].kvpool_lru,
            mine["manager"].KvpoolOffloadingManager,
            mine["spec"].KvpoolOffloadingSpec,
            mine["tier"].KvpoolStoreTier,
            policies,
            specs,
            tiers,
        )
    for name in mine:
        del sys.modules[f"{OFFLOAD}.{name}"]


# A prompt is a path in a tree of chunk keys, so requests share prefixes. The key of a chunk is the path
# to it, and the chunk's position is its depth in the tree.

PATHS = st.text("ab", min_size=1, max_size=3)


def prefix(path: str) -> list[bytes]:
    return [path[: end + 1].encode() for end in range(len(path))]


def positions(path: str) -> dict[bytes, int]:
    return {key: len(key) * 16 for key in prefix(path)}
