"""A pytest plugin: puts kvpool where vLLM's tests of KV offloading look for vLLM's LRU, before they import anything.

``tools/vllm_offload_conformance.py`` gives it to pytest with ``-p``. ``KVPOOL_OFFLOAD`` says what is replaced:

- ``policy``: the policy ``"lru"`` of vLLM's manager is ``kvpool_lru``.
- ``manager``: a ``CPUOffloadingManager`` with the policy ``"lru"`` is a ``KvpoolOffloadingManager``. Its positional
  arguments and those of kvpool's differ, so a function stands where the class was.

Without it, nothing is. A replacement is made for tests alone; users choose by configuration.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def use_policy() -> None:
    policies = importlib.import_module("kvpool.integrations.vllm.offload.policies")
    factory = importlib.import_module("vllm.v1.kv_offload.cpu.policies.factory").CachePolicyFactory
    lru = importlib.import_module("vllm.v1.kv_offload.cpu.policies.lru")
    vars(lru)["LRUCachePolicy"] = policies.kvpool_lru
    factory._registry["lru"] = lambda: policies.kvpool_lru


def use_manager() -> None:
    ours = importlib.import_module("kvpool.integrations.vllm.offload.manager").KvpoolOffloadingManager
    importlib.import_module("vllm.v1.kv_offload.tiering.manager")  # derives from vLLM's class
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


def pytest_configure() -> None:
    replaced = os.environ.get("KVPOOL_OFFLOAD", "")
    if replaced:
        {"policy": use_policy, "manager": use_manager}[replaced]()
