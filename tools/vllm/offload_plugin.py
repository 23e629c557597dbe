"""A pytest plugin for vLLM's tests of KV offloading. It replaces parts of vLLM by kvpool before the
tests import them.

``tools/vllm_conformance.py`` passes it to pytest with ``-p``. Files that a tier has written are removed
after the tests. ``KVPOOL_OFFLOAD`` selects the replacement:

- ``policy``: the policy ``"lru"`` of vLLM's manager is replaced by ``kvpool_lru``.
- ``manager``: a function replaces ``CPUOffloadingManager``. With the policy ``"lru"`` it makes a
  ``KvpoolOffloadingManager``, whose positional arguments differ from vLLM's.
- ``tier``: a ``KvpoolStoreTier`` on a disk replaces vLLM's example of a secondary tier. The example is
  a dictionary that completes each job by the next poll. So polls of kvpool's tier wait until the jobs
  are complete.

Without the variable nothing is replaced. The replacements are only for tests; users choose by
configuration.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Functions to call after the tests.
CLEANUPS: Final[list[Callable[[], None]]] = []


def use_policy() -> None:
    policies = importlib.import_module("kvpool.integrations.vllm.offload.policies")
    factory = importlib.import_module("vllm.v1.kv_offload.cpu.policies.factory").CachePolicyFactory
    lru = importlib.import_module("vllm.v1.kv_offload.cpu.policies.lru")
    vars(lru)["LRUCachePolicy"] = policies.kvpool_lru
    factory._registry["lru"] = lambda: policies.kvpool_lru


def use_manager() -> None:
    ours = importlib.import_module("kvpool.integrations.vllm.offload.manager").KvpoolOffloadingManager
    # This class derives from vLLM's manager, so it has to be imported before the manager is replaced.
    importlib.import_module("vllm.v1.kv_offload.tiering.manager")
    module = importlib.import_module("vllm.v1.kv_offload.cpu.manager")
    stock = module.CPUOffloadingManager

    def make(
        num_chunks: int,
        cache_policy: str = "lru",
        cache_policy_module_path: str | None = None,
        **settings: Any,
    ) -> Any:
        if cache_policy == "lru":
            return ours(num_chunks, **settings)
        return stock(num_chunks, cache_policy, cache_policy_module_path, **settings)

    vars(module)["CPUOffloadingManager"] = make


class Chunks:
    """Stands in for the dictionary of chunks in vLLM's example tier, which the tests inspect. It reads
    kvpool's store.
    """

    def __init__(self, tier: Any) -> None:
        self._tier = tier

    def __contains__(self, key: bytes) -> bool:
        return bool(self._tier.lookup(key, None).name == "HIT")

    def __setitem__(self, key: bytes, there: bool) -> None:
        if there:
            own = self._tier._store.put([key[:-4]], [0], groups=int.from_bytes(key[-4:], "big"))
            while key not in self:
                self._tier._take([ended for ended in self._tier._store.wait(10.0) if ended[0] != own])

    def __len__(self) -> int:
        return int(self._tier._store.stats().objects)


def use_tier() -> None:
    module = importlib.import_module("kvpool.integrations.vllm.offload.tier")
    namespace = importlib.import_module("kvpool.store").Namespace(
        model="tests", weights="", kv_dtype="", scales="", layouts=[], block_size=16, layers=(0, 1),
        heads=(0, 1), hash_algorithm="sha256", hash_seed=b"", extra={},
    )  # fmt: skip
    # The tests' specs are mocks from which no namespace can be computed. Other tests check the
    # namespace.
    vars(module)["namespace_of"] = lambda *_, **__: namespace
    example = importlib.import_module("vllm.v1.kv_offload.tiering.example.manager")
    scratch = tempfile.TemporaryDirectory(prefix="kvpool-tier-")
    root = Path(scratch.name)
    tiers: list[Any] = []

    def end() -> None:
        # Close every tier, because many tests leave their tier open, and an open store still writes
        # files.
        for tier in tiers:
            tier.shutdown()
        scratch.cleanup()

    CLEANUPS.append(end)

    class Tier(module.KvpoolStoreTier):  # type: ignore[name-defined, misc]
        count = 0
        medium = example.ExampleSecondaryTierManager.medium
        cache_hit_source = example.ExampleSecondaryTierManager.cache_hit_source

        def __init__(
            self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, *more: Any, **kept: Any
        ) -> None:
            Tier.count += 1
            backpressure = kept.pop("backpressure_detector", None)
            super().__init__(
                offloading_spec, primary_kv_view, tier_type, *more, backpressure_detector=backpressure,
                root_dir=str(root / str(Tier.count)), capacity_bytes=1 << 24, free_floor_bytes=0,
                admission="always", weights="tests", on_reset="keep",
            )  # fmt: skip
            del self.cache_hit_source  # use the attribute of the example's class
            tiers.append(self)

        @property
        def chunks(self) -> Chunks:
            return Chunks(self)

        def get_num_chunks(self) -> int:
            self._take(self._store.wait(10.0))
            return len(self.chunks)

        def get_finished_jobs(self) -> Any:
            while self._jobs:
                self._take(self._store.wait(10.0))
            return super().get_finished_jobs()

    vars(example)["ExampleSecondaryTierManager"] = Tier


def pytest_configure() -> None:
    replaced = os.environ.get("KVPOOL_OFFLOAD", "")
    if replaced:
        {"policy": use_policy, "manager": use_manager, "tier": use_tier}[replaced]()
    Path(os.environ["KVPOOL_CONFORMANCE_REPLACED"]).write_text(
        json.dumps([replaced] if replaced else []), encoding="utf-8"
    )


def pytest_unconfigure() -> None:
    while CLEANUPS:
        CLEANUPS.pop()()
